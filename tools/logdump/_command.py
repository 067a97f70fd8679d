"""What the commands have in common: how one is described, and what it is given to work with."""

from __future__ import annotations

import argparse
import os
import shutil
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from eventlog import EventLog, LogReader
from eventlog.encryption import Encryption, parse_keys
from recovery.cli._values import Redaction

if TYPE_CHECKING:
    from rich.console import Console


class UsageError(Exception):
    """The user asked for what cannot be done; says what to do instead."""


class KeyFileError(Exception):
    """There are no keys where they were said to be."""


@dataclass(frozen=True)
class Command:
    """A command: its name, help in a line, all of its help, examples, options, and what it does.

    ``run`` returns the exit code. ``paths``: how its logs are called in the help.
    """

    name: str
    line: str
    text: str
    more: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[Context], int]
    paths: tuple[str, ...] = ("path",)


class Context:
    """What a command works with: its options, where it writes, the keys, the clock."""

    def __init__(self, args: argparse.Namespace, out: TextIO) -> None:
        self.args, self.out = args, out
        self.redaction = Redaction(args.redact or ())

    def read(self, path: str | None = None) -> LogReader:
        """A reader of the log in directory ``path`` (as named on the command line)."""
        return EventLog.read(path or self.args.path, encryption=self.encryption)

    @cached_property
    def encryption(self) -> Encryption | None:
        """The keys that were given, if any: in a file, or in the environment."""
        where, text = "$EVENTLOG_KEY", os.environ.get("EVENTLOG_KEY")
        path = self.args.key_file
        if path is None and text is None:
            path = os.environ.get("EVENTLOG_KEY_FILE")
        try:
            if path is not None:
                where = path
                text = Path(path).read_text("utf-8")
            # It is for reading: what a log holds in clear is shown as well.
            return None if text is None else Encryption(parse_keys(text), accept_clear=True)
        except (OSError, ValueError) as exc:
            reason = exc.strerror if isinstance(exc, OSError) else exc
            if isinstance(exc, UnicodeDecodeError):  # which would show a part of it
                reason = "not text"
            raise KeyFileError(f"no key in {where}: {reason}") from None

    @property
    def width(self) -> int:
        """Columns for a line: those of the terminal, or many in a pipe."""
        return shutil.get_terminal_size().columns if self.out.isatty() else 160

    def print(self, line: str) -> None:
        """Write a line, which must be printable already."""
        print(line, file=self.out)

    def tell(self, line: str) -> None:
        """Write a line of prose, which must be printable already; folded on a terminal."""
        lines = (
            [line]
            if not self.out.isatty()
            else textwrap.wrap(line, self.width, subsequent_indent="  ")
        )
        self.print("\n".join(lines))

    @cached_property
    def console(self) -> Console:
        """The same output for Rich, which knows of terminals, widths and NO_COLOR.

        UsageError where Rich is not installed.
        """
        try:
            from rich.console import Console  # noqa: PLC0415 - an extra
        except ImportError:
            raise UsageError(
                f"{self.args.command} needs rich, which is not installed: "
                "pip install 'agent-eventlog[cli]' (dump and verify do without)"
            ) from None
        width = None if self.out.isatty() else self.width
        return Console(file=self.out, width=width, highlight=False, markup=False, emoji=False)

    def now(self) -> float:
        """Seconds since 1970."""
        return time.time()
