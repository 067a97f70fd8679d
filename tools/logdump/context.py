"""Defines the context of a command: its options, output, keys and clock."""

from __future__ import annotations

import shutil
import sys
import time
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, TextIO

import typer

from eventlog import EventLog, LogReader
from eventlog.encryption import Encryption
from eventlog.files.posix import OSFiles
from logdump.places import inside, name_of
from recovery.cli.console import Terminal
from recovery.cli.key_options import encryption_from
from recovery.cli.store_options import store_path, url_in
from recovery.cli.streams import folded
from recovery.history.store_url import is_url, log_at, split_run, without_password
from recovery.values.render import Redaction

LogPath = Annotated[
    str,
    typer.Argument(
        metavar="PATH", help="The directory or URL of a log, or the id of a run in the store."
    ),
]


class UsageError(Exception):
    """The command cannot do what the user asked for; the message says what to do instead."""


class Context:
    """The context of a command. ``args``: its options."""

    def __init__(self, options: dict[str, Any], out: TextIO | None = None) -> None:
        self.args, self.out = SimpleNamespace(**options), out or sys.stdout
        # URLs are shown without their passwords: here are those of stores with them.
        self._stores: dict[str, str] = {}
        self.redaction = Redaction(getattr(self.args, "redact", None) or ())
        self.args.path = self.found(self.args.path)

    def found(self, path: str) -> str:
        """The directory or URL of the log that was named by it, or by its id in the store."""
        store = getattr(self.args, "store", None)
        if not is_url(path) and (url := url_in(store)) is not None and not Path(path).exists():
            path = inside(url, path)
        if is_url(path):
            shown = without_password(path)
            self._stores[split_run(shown)[0]] = split_run(path)[0]
            return shown
        if store is None and ("/" in path or Path(path).exists()):
            return path
        below = Path(store_path(store), path)
        return str(below) if store is not None or below.exists() else path

    def read(self, path: str | None = None) -> LogReader:
        """A reader of the log in directory ``path`` (as named on the command line), or at a URL."""
        path = path or self.args.path
        if is_url(path):
            where, name = split_run(path)
            try:
                reader = log_at(self.store_url(where), name, self.encryption)
            except ValueError as exc:
                raise UsageError(str(exc)) from None
            assert isinstance(reader, LogReader)
            return reader
        return EventLog.read(path or self.args.path, encryption=self.encryption)

    def store_url(self, shown: str) -> str:
        """The URL of a store as the user gave it, with its password."""
        return self._stores.get(shown, shown)

    def read_below(self, path: str) -> LogReader:
        """A reader of a log in a directory below the named one, where no link is followed."""
        if is_url(path):
            return self.read(path)
        files = OSFiles(beneath=self.args.path)
        return EventLog.read(path, files=files, encryption=self.encryption)

    @cached_property
    def encryption(self) -> Encryption | None:
        """The keys from a file or the environment, if any were given."""
        return encryption_from(self.args.key_file, reading=True)

    @property
    def run_id(self) -> str:
        """The run of this log, by the name of its directory."""
        return name_of(self.args.path)

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
    def console(self) -> Terminal:
        """The same output for Rich, which knows terminals, widths and NO_COLOR."""
        return Terminal(file=self.out, width=self.width, highlight=False, markup=False, emoji=False)

    def now(self) -> float:
        """Seconds since 1970."""
        return time.time()
