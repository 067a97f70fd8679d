"""Implements ``logdump diff``, which compares two runs."""
