"""Defines the exit codes of the command ``recovery``."""

OK, FOUND, USAGE = 0, 1, 2
INTERRUPTED, CLOSED_PIPE = 128 + 2, 128 + 13  # as a shell reports the signals
