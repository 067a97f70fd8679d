"""What a store of runs does, and the part that all log-backed ones share."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from eventlog import EventLog, LogLockedError, LogReader, Packed, Record, RefusedValueError
from eventlog.encryption import Encryption
from eventlog.errors import UnsupportedFormatError
from eventlog.files.api import Files
from eventlog.write.log import Durability
from recovery.errors import RecoveryError
from recovery.journal.envelope import KEY, RUN_LSN, is_same_message
from recovery.values.pack import pack, pack_map

# Becomes the name of a directory, on case-insensitive file systems too: no separators, no dots in
# front, no control characters, and short enough for any of them.
RUN_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+=-]{0,127}")

SIGNAL_NAME_MAX = 200  # it is part of small records
INBOX = "inbox"  # the log, in the directory of a run's log, of what others have sent to the run
# Senders have the inbox one after the other, each for as long as a flush takes.
POST_WAIT_S, POST_PAUSE_S = 10.0, 0.005


class RunStore(Protocol):
    """Logs of runs by run id."""

    def claim(self, run_id: str, takeover: bool = False) -> EventLog:
        """The run's log, for this process alone; made when it is not there.

        Raises LogLockedError when another process has it, ValueError for an impossible run id.
        """

    def read(self, run_id: str) -> LogReader | None:
        """A reader of the run's log, which may be live; None when there is no such run, or its log
        is just being made."""

    def run_ids(self) -> list[str]:
        """All runs, in order of their ids."""

    def post(
        self,
        run_id: str,
        kind: str,
        body: Mapping[str, Any],
        key: str = "",
        time_ns: int | None = None,
    ) -> int:
        """Put a message into the inbox of a run that is there, whoever has the run; its number.

        ``body`` has the ``uid`` of the run that it is for: in no other run does it count.
        ``time_ns``: when it was sent (since 1970), for a message that is signed; else it is now.
        Durable when this returns. What was posted under the same ``key`` is not posted again:
        ValueError when it is another message. Raises LogLockedError when others keep the inbox.
        """

    def inbox(self, run_id: str) -> LogReader | None:
        """A reader of what was posted to the run; None when nothing ever was."""

    def remove(self, run_id: str, at: int | None = None) -> None:
        """Delete the run and its inbox; gone for good when this returns, whatever happens.

        ``at``: only if that is still the LSN of its newest record. Else LogError, and nothing was
        removed; FileNotFoundError when there is no such run, LogLockedError when a process has it.
        """

    def size(self, run_id: str) -> int:
        """Bytes that the run takes, its inbox included; 0 when there is no such run."""

    def sweep(self) -> int:
        """Delete what removals that a crash interrupted have left; of how many runs."""


def check_run_id(run_id: str) -> str:
    """The run id itself; ValueError when it cannot be the name of a log."""
    if not isinstance(run_id, str):
        given: object = run_id
        raise ValueError(f"run_id is a str, not {given!r:.50}")
    if not RUN_ID.fullmatch(run_id):
        raise ValueError(
            f"run_id {run_id!r}: use 1 to 128 of the characters A-Z a-z 0-9 _ . @ + = - and begin "
            "with a letter, digit or underscore"
        )
    return run_id


def check_signal_name(name: str) -> str:
    """The name itself; ValueError when it is none that a signal can have."""
    if not isinstance(name, str):
        given: object = name
        raise TypeError(f"a signal's name is text, not {given!r:.80}")
    if not 0 < len(name) <= SIGNAL_NAME_MAX:
        raise ValueError(f"a signal's name is 1 to {SIGNAL_NAME_MAX} characters, not {name!r:.50}")
    return name


def _posted(records: Iterable[Record], message: tuple[str, dict[str, Packed]], key: str) -> int:
    """The LSN of the message that was posted under this key; 0 if none was."""
    for record in records:
        if (is_same := is_same_message(record, message, key)) is not None:
            if not is_same:
                raise ValueError(f"the run was sent something else under {key!r}: LSN {record.lsn}")
            return record.lsn
    return 0


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
        self._files, self.durability, self.encryption = files, durability, encryption

    def claim(self, run_id: str, takeover: bool = False) -> EventLog:
        """See RunStore.claim."""
        path = self._path(run_id)
        return EventLog.open(
            path,
            self.durability,
            takeover=takeover,
            files=self._files,
            encryption=self.encryption,
        )

    def read(self, run_id: str) -> LogReader | None:
        """See RunStore.read."""
        try:
            return EventLog.read(self._path(run_id), files=self._files, encryption=self.encryption)
        except (FileNotFoundError, UnsupportedFormatError):  # or no more than a directory yet
            return None

    def run_ids(self) -> list[str]:
        """See RunStore.run_ids."""
        return [name for name in self._files.list_directories(self.root) if RUN_ID.fullmatch(name)]

    def post(
        self,
        run_id: str,
        kind: str,
        body: Mapping[str, Any],
        key: str = "",
        time_ns: int | None = None,
    ) -> int:
        """See RunStore.post."""
        parts = {
            name: value if type(value) is Packed else pack(value, name)
            for name, value in (*body.items(), (KEY, key))
        }
        reader = self.inbox(run_id) if key else None
        if reader is not None:  # without the lock, for it is there more often than not
            with reader:
                lsn = _posted(reader.records(), (kind, parts), key)
                if 0 < lsn <= reader.durable_lsn():
                    return lsn
        log, run_lsn = self._open_inbox(run_id)
        with log:
            lsn = _posted(log.records(), (kind, parts), key) if key else 0
            if lsn:
                return lsn
            packed = pack_map({**parts, RUN_LSN: pack(run_lsn, RUN_LSN)})
            try:
                lsn = log.append(kind, packed, time_ns=time_ns or self._now_ns())
            except RefusedValueError as exc:  # too large
                raise RefusedValueError(kind, exc.reason) from None
            log.commit()
            return lsn

    def inbox(self, run_id: str) -> LogReader | None:
        """See RunStore.inbox."""
        try:
            path = f"{self._path(run_id)}/{INBOX}"
            return EventLog.read(path, files=self._files, encryption=self.encryption)
        except (FileNotFoundError, UnsupportedFormatError):  # or just being made
            return None

    def remove(self, run_id: str, at: int | None = None) -> None:
        """See RunStore.remove."""
        from eventlog.remove import remove  # noqa: PLC0415 - only where runs are removed

        remove(self._files, self._path(run_id), at, also=frozenset({INBOX}))

    def size(self, run_id: str) -> int:
        """See RunStore.size."""
        size = 0
        for path in (self._path(run_id), f"{self._path(run_id)}/{INBOX}"):
            with suppress(FileNotFoundError):  # no inbox, or the run is just being removed
                directory = self._files.open_directory(path)
                for name in directory.names():
                    with suppress(FileNotFoundError, UnsupportedFormatError):
                        file = directory.open(name)
                        size += file.size()
                        file.close()
                directory.close()
        return size

    def sweep(self) -> int:
        """See RunStore.sweep."""
        from eventlog.remove import purge_removed  # noqa: PLC0415 - as above

        return purge_removed(self._files, self.root)

    def unswept(self) -> list[str]:
        """The runs (by id) of which an interrupted removal has left something."""
        from eventlog.remove import removed_from  # noqa: PLC0415 - as above

        return list(filter(None, map(removed_from, self._files.list_directories(self.root))))

    def backups(self) -> list[str]:
        """The names of the directories in which repairs have left logs as they were."""
        from eventlog.repair.backup import backup_of  # noqa: PLC0415 - only where somebody asks

        return list(filter(backup_of, self._files.list_directories(self.root)))

    def _now_ns(self) -> int:
        """When a message is sent: by the clock by which deadlines go."""
        return time.time_ns()

    def _open_inbox(self, run_id: str) -> tuple[EventLog, int]:
        """The inbox, and up to where the run's log is durable."""
        deadline = time.monotonic() + POST_WAIT_S
        while True:
            try:
                path = f"{self._path(run_id)}/{INBOX}"
                inbox = EventLog.open(
                    path, self.durability, files=self._files, encryption=self.encryption
                )
                return inbox, self._check_there(run_id, inbox)
            except LogLockedError:  # of another sender; one that died holds nothing
                if time.monotonic() > deadline:
                    raise
                time.sleep(POST_PAUSE_S)

    def _check_there(self, run_id: str, inbox: EventLog) -> int:
        """Up to where the log of the run is durable, of which this is the inbox. If the run was
        removed a moment ago, opening it has made a directory that no run could be begun in."""
        reader = self.read(run_id)
        if reader is not None:
            with reader:
                # Without power safety a log may end earlier after a power loss, and goes on.
                return reader.durable_lsn() if self.durability == "power" else 0
        inbox.close()
        self._files.delete(inbox.path)
        raise RecoveryError(f"run {run_id!r} was removed meanwhile. Nothing was sent.")

    def _path(self, run_id: str) -> str:
        return f"{self.root}/{check_run_id(run_id)}"
