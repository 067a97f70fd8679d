"""Implements ``logdump stats``, which shows what a log is made of."""
