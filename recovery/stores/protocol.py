"""What a store of runs does, and the part that all log-backed ones share."""

from __future__ import annotations

import re
from typing import Protocol

from eventlog import EventLog, LogReader
from eventlog._files import Files
from eventlog._log import Durability
from eventlog.encryption import Encryption

# Becomes the name of a directory, on case-insensitive file systems too: no separators, no dots in
# front, no control characters, and short enough for any of them.
RUN_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+=-]{0,127}")


class RunStore(Protocol):
    """Logs of runs by run id."""

    def claim(self, run_id: str, takeover: bool = False) -> EventLog:
        """The run's log, for this process alone; made when it is not there.

        Raises LogLockedError when another process has it, ValueError for an impossible run id.
        """

    def read(self, run_id: str) -> LogReader | None:
        """A reader of the run's log, which may be live; None when there is no such run."""

    def run_ids(self) -> list[str]:
        """All runs, in order of their ids."""


def check_run_id(run_id: str) -> str:
    """The run id itself; ValueError when it cannot be the name of a log."""
    if not RUN_ID.fullmatch(run_id):
        raise ValueError(
            f"run_id {run_id!r}: use 1 to 128 of the characters A-Z a-z 0-9 _ . @ + = - and begin "
            "with a letter, digit or underscore"
        )
    return run_id


class LogStore:
    """Runs as logs in the directories of ``root``, on whatever ``files`` are."""

    def __init__(
        self,
        root: str,
        files: Files,
        durability: Durability,
        encryption: Encryption | None = None,
    ) -> None:
        self.root = root
        self._files, self._durability, self._encryption = files, durability, encryption

    def claim(self, run_id: str, takeover: bool = False) -> EventLog:
        """See RunStore.claim."""
        path = self._path(run_id)
        return EventLog.open(
            path, self._durability, takeover=takeover, files=self._files,
            encryption=self._encryption,
        )  # fmt: skip

    def read(self, run_id: str) -> LogReader | None:
        """See RunStore.read."""
        try:
            return EventLog.read(self._path(run_id), files=self._files, encryption=self._encryption)
        except FileNotFoundError:
            return None

    def run_ids(self) -> list[str]:
        """See RunStore.run_ids."""
        return [name for name in self._files.list_directories(self.root) if RUN_ID.fullmatch(name)]

    def _path(self, run_id: str) -> str:
        return f"{self.root}/{check_run_id(run_id)}"
