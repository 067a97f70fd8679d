"""Defines the exit codes of ``recovery`` and ``logdump``; docs/errors.md has the table.

Codes below 64 are findings: ``logdump verify`` adds up bits. The next ones are those of sysexits.h,
and then those by which a shell reports signals.
"""

OK, FOUND = 0, 1
USAGE, NO_INPUT, IN_USE, IO_ERROR, NO_KEY = 64, 66, 73, 74, 77
INTERRUPTED, CLOSED_PIPE = 128 + 2, 128 + 13
