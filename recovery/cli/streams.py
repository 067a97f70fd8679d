"""The standard streams as a command finds them: closed, full, or with nobody at the other end."""

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

    Else the next file that is opened, say a segment of a log, gets the number of one of them, and
    whatever a library or a child process prints goes into it.
    """
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
            os.set_inheritable(fd, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(fd, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def output_failed() -> bool:
    """Whether standard output cannot be written to; what waits to be written is dropped then."""
    try:
        sys.stdout.flush()  # fails again: what could not be written is still there
    except OSError:
        discard()
        return True
    return False


def where_of(exc: OSError) -> str:
    """What the system could not read or write, as far as that is known. Files have their names
    in the error, so that it is standard output which is full where there is none."""
    if isinstance(exc.filename, str | bytes):
        return os.fsdecode(exc.filename)
    return "standard output" if output_failed() or exc.errno in FULL else ""


def discard() -> None:
    """Send what is left to the null device: the interpreter flushes once more at exit, and would
    complain about a closed pipe or a full disk again."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def folded(text: str, stream: TextIO) -> str:
    """Lines of prose that are too long for a terminal, folded at their blanks, where words of a
    command are kept whole; in a pipe they stay as they are."""
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
