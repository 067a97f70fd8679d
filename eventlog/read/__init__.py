"""Reads a log: segments, records, its end, and everything that is wrong with it."""
