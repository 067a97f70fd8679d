"""Defines the exit codes of ``logdump``: below 64 the bits of ``verify``, then as in sysexits.h."""

USAGE, NO_INPUT, IN_USE, IO_ERROR, NO_KEY = 64, 66, 73, 74, 77
INTERRUPTED, CLOSED_PIPE = 128 + 2, 128 + 13  # as a shell reports the signals
