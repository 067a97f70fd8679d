"""Handles the standard streams of a command: closed, full, or with no reader."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import textwrap
from contextlib import suppress
from typing import TextIO

from recovery.text import QUOTED

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def open_closed() -> None:
    """Make the standard streams that the caller has closed (``>&-``) the null device.

    Otherwise the next opened file, such as a segment of a log, gets the number of one of them, and
    output of a library or a child process goes into it.
    """
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            os.set_inheritable(fd, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(fd, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def output_failed() -> bool:
    """Whether standard output cannot be written to; discards what is buffered then."""
    try:
        sys.stdout.flush()  # fails again: the data that could not be written is still buffered
    except OSError:
        discard()
        return True
    return False


def where_of(exc: OSError) -> str:
    """The file that the system could not read or write, if known. Errors of files have a name, so
    an error without one is of standard output."""
    if isinstance(exc.filename, str | bytes):
        return os.fsdecode(exc.filename)
    return "standard output" if output_failed() or exc.errno in FULL else ""


def discard() -> None:
    """Send the rest to the null device: the interpreter flushes once more at exit, and would
    report a closed pipe or a full disk again."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def folded(text: str, stream: TextIO) -> str:
    """Folds long lines of prose for a terminal, at blanks, without splitting commands; a pipe gets
    them unfolded."""
    if not stream.isatty():
        return text
    width = shutil.get_terminal_size().columns
    return "\n".join(
        textwrap.fill(
            line,
            width,
            break_on_hyphens=False,
            subsequent_indent=QUOTED if line.startswith(QUOTED) else "  ",
        )
        for line in text.splitlines()
    )
