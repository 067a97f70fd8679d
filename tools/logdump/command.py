"""What the commands have in common: how one is described, and what it is given to work with."""

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
    """The user asked for what cannot be done; says what to do instead."""


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

    def read_below(self, path: str) -> LogReader:
        """The same, at or below what was named, where no link is followed."""
        files = OSFiles(beneath=self.args.path)
        return EventLog.read(path, files=files, encryption=self.encryption)

    @cached_property
    def encryption(self) -> Encryption | None:
        """The keys that were given, if any: in a file, or in the environment."""
        return encryption_from(self.args.key_file, reading=True)

    @property
    def run_id(self) -> str:
        """The run that the log is of, by the name of its directory."""
        return Path(self.args.path).resolve().name

    @property
    def width(self) -> int:
        """Columns for a line: those of the terminal (or $COLUMNS), or many in a pipe."""
        return shutil.get_terminal_size((160, 24)).columns

    def print(self, line: str) -> None:
        """Write a line, which must be printable already."""
        print(line, file=self.out)

    def print_prose(self, line: str) -> None:
        """Write a line of prose, which must be printable already; folded on a terminal."""
        self.print(folded(line, self.out))

    @cached_property
    def console(self) -> Console:
        """The same output for Rich, which knows of terminals, widths and NO_COLOR.

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
