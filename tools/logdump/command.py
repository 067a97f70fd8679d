"""Defines a command and its context: options, output, keys, clock."""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from eventlog import EventLog, LogReader
from eventlog.encryption import Encryption
from eventlog.files.posix import OSFiles
from recovery.cli.key_options import encryption_from
from recovery.cli.streams import folded
from recovery.values.render import Redaction

if TYPE_CHECKING:
    from rich.console import Console


class UsageError(Exception):
    """The command cannot do what the user asked for; the message says what to do instead."""


@dataclass(frozen=True)
class Command:
    """A command: its name, help in a line, full help, options and function.

    ``run`` returns the exit code. ``paths``: the name of its logs in the help.
    """

    name: str
    line: str
    text: str
    more: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[Context], int]
    paths: tuple[str, ...] = ("path",)


class Context:
    """The context of a command: its options, output, keys and clock."""

    def __init__(self, args: argparse.Namespace, out: TextIO) -> None:
        self.args, self.out = args, out
        self.redaction = Redaction(args.redact or ())

    def read(self, path: str | None = None) -> LogReader:
        """A reader of the log in directory ``path`` (as named on the command line)."""
        return EventLog.read(path or self.args.path, encryption=self.encryption)

    def read_below(self, path: str) -> LogReader:
        """A reader of a log in a directory below the named one, where no link is followed."""
        files = OSFiles(beneath=self.args.path)
        return EventLog.read(path, files=files, encryption=self.encryption)

    @cached_property
    def encryption(self) -> Encryption | None:
        """The keys from a file or the environment, if any were given."""
        return encryption_from(self.args.key_file, reading=True)

    @property
    def run_id(self) -> str:
        """The run of this log, by the name of its directory."""
        return Path(self.args.path).resolve().name

    @property
    def width(self) -> int:
        """Columns for a line: those of the terminal (or $COLUMNS), or many in a pipe."""
        return shutil.get_terminal_size((160, 24)).columns

    def print(self, line: str) -> None:
        """Write a line, which must be printable."""
        print(line, file=self.out)

    def print_prose(self, line: str) -> None:
        """Write a line of prose, which must be printable; folded on a terminal."""
        self.print(folded(line, self.out))

    @cached_property
    def console(self) -> Console:
        """The same output for Rich, which knows terminals, widths and NO_COLOR.

        UsageError where Rich is not installed.
        """
        try:
            from recovery.cli.console import Terminal  # noqa: PLC0415 - an extra
        except ImportError:
            raise UsageError(
                f"{self.args.command} needs rich, which is not installed: "
                "pip install 'agent-eventlog[cli]' (dump and verify do without)"
            ) from None
        return Terminal(file=self.out, width=self.width, highlight=False, markup=False, emoji=False)

    def now(self) -> float:
        """Seconds since 1970."""
        return time.time()
