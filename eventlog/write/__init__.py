"""Writes an open log: appends, flushes, recovers."""
