"""Implements ``logdump verify``, which checks everything, and says what it means for recovery."""
