"""Defines what a store of runs does, and implements the part that all log-backed ones share."""

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
from recovery.journal.inbox_messages import KEY, RUN_LSN, is_same_message
from recovery.values.pack import pack, pack_map

# Becomes the name of a directory, on case-insensitive file systems too: no separators, no dots at
# its beginning, no control characters, and short enough for any of them.
RUN_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+=-]{0,127}")

SIGNAL_NAME_MAX = 200  # it is part of small records
INBOX = "inbox"  # the log of messages to the run, in the directory of the run's log
# Senders claim the inbox one after the other, each for as long as a flush takes.
POST_WAIT_S, POST_PAUSE_S = 10.0, 0.005


class RunStore(Protocol):
    """Logs of runs by run id.

    ``run_id`` names a run, and a directory: ValueError for an impossible one. ``takeover`` (False):
    take the log from a process that is known to be stuck.
    """

    def claim(self, run_id: str, takeover: bool = False) -> EventLog:
        """The run's log, for this process alone; made if it does not exist.

        Raises LogLockedError when another process has it.
        """

    def read(self, run_id: str) -> LogReader | None:
        """A reader of the run's log, which may be live; None when the run does not exist, or its
        log is in creation."""

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
        """Put a message into the inbox of an existing run, which any process may have; returns its
        number.

        ``kind``: "signal", "decision" or "cancel". ``body`` has the ``uid`` of the run that it is
        for; it counts in no other run. ``time_ns``: when it was sent (since 1970), for a signed
        message; else now. Durable when this returns. A message that was posted under the same
        ``key`` is not posted again: ValueError when it is another message. Raises LogLockedError
        when other senders keep the inbox.
        """

    def inbox(self, run_id: str) -> LogReader | None:
        """A reader of the messages to the run; None when none was ever posted."""

    def remove(self, run_id: str, at: int | None = None) -> None:
        """Delete the run and its inbox; durably gone when this returns.

        ``at``: delete only if that is still the LSN of its newest record. Else LogError, and
        nothing was removed; FileNotFoundError when the run does not exist, LogLockedError when a
        process has it.
        """

    def size(self, run_id: str) -> int:
        """Bytes that the run takes, its inbox included; 0 when there is no such run."""

    def sweep(self) -> int:
        """Delete the remains of interrupted removals; returns the number of runs."""


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
    """The name itself; ValueError when a signal cannot have it."""
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
    """Runs as logs in the directories of ``root``, in any implementation of ``files``.

    ``durability``, ``encryption``: as of EventLog.open.
    """

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
        """See ``RunStore.claim``."""
        path = self._path(run_id)
        return EventLog.open(
            path,
            self.durability,
            takeover=takeover,
            files=self._files,
            encryption=self.encryption,
        )

    def read(self, run_id: str) -> LogReader | None:
        """See ``RunStore.read``."""
        try:
            return EventLog.read(self._path(run_id), files=self._files, encryption=self.encryption)
        except (FileNotFoundError, UnsupportedFormatError):  # or an empty directory so far
            return None

    def run_ids(self) -> list[str]:
        """See ``RunStore.run_ids``."""
        return [name for name in self._files.list_directories(self.root) if RUN_ID.fullmatch(name)]

    def post(
        self,
        run_id: str,
        kind: str,
        body: Mapping[str, Any],
        key: str = "",
        time_ns: int | None = None,
    ) -> int:
        """See ``RunStore.post``."""
        parts = {
            name: value if type(value) is Packed else pack(value, name)
            for name, value in (*body.items(), (KEY, key))
        }
        reader = self.inbox(run_id) if key else None
        if reader is not None:  # without the lock, because usually it exists
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
        """See ``RunStore.inbox``."""
        try:
            path = f"{self._path(run_id)}/{INBOX}"
            return EventLog.read(path, files=self._files, encryption=self.encryption)
        except (FileNotFoundError, UnsupportedFormatError):  # or in creation
            return None

    def remove(self, run_id: str, at: int | None = None) -> None:
        """See ``RunStore.remove``."""
        from eventlog.remove import remove  # noqa: PLC0415 - only where runs are removed

        remove(self._path(run_id), at, also=frozenset({INBOX}), files=self._files)

    def size(self, run_id: str) -> int:
        """See ``RunStore.size``."""
        size = 0
        for path in (self._path(run_id), f"{self._path(run_id)}/{INBOX}"):
            with suppress(FileNotFoundError):  # no inbox, or the run is being removed
                directory = self._files.open_directory(path)
                for name in directory.names():
                    with suppress(FileNotFoundError, UnsupportedFormatError):
                        file = directory.open(name)
                        size += file.size()
                        file.close()
                directory.close()
        return size

    def sweep(self) -> int:
        """See ``RunStore.sweep``."""
        from eventlog.remove import purge_removed  # noqa: PLC0415 - as above

        return purge_removed(self.root, files=self._files)

    def unswept(self) -> list[str]:
        """The runs (by id) that an interrupted removal has left partly."""
        from eventlog.remove import removed_from  # noqa: PLC0415 - as above

        return list(filter(None, map(removed_from, self._files.list_directories(self.root))))

    def backups(self) -> list[str]:
        """The names of the directories in which repairs have left backups."""
        from eventlog.repair.backup import backup_of  # noqa: PLC0415 - rare

        return list(filter(backup_of, self._files.list_directories(self.root)))

    def _now_ns(self) -> int:
        """The time at which a message is sent, by the clock of the deadlines."""
        return time.time_ns()

    def _open_inbox(self, run_id: str) -> tuple[EventLog, int]:
        """The inbox, and the durable LSN of the run's log."""
        deadline = time.monotonic() + POST_WAIT_S
        while True:
            try:
                path = f"{self._path(run_id)}/{INBOX}"
                inbox = EventLog.open(
                    path, self.durability, files=self._files, encryption=self.encryption
                )
                return inbox, self._check_there(run_id, inbox)
            except LogLockedError:  # by another sender; a sender that died holds no lock
                if time.monotonic() > deadline:
                    raise
                time.sleep(POST_PAUSE_S)

    def _check_there(self, run_id: str, inbox: EventLog) -> int:
        """The durable LSN of the log of the run whose inbox this is. If the run was removed just
        now, opening the inbox has made a directory without a run."""
        reader = self.read(run_id)
        if reader is not None:
            with reader:
                # Without power safety a log may end earlier after a power loss, and continue.
                return reader.durable_lsn() if self.durability == "power" else 0
        inbox.close()
        self._files.delete(inbox.path)
        raise RecoveryError(f"run {run_id!r} was removed meanwhile. Nothing was sent.")

    def _path(self, run_id: str) -> str:
        return f"{self.root}/{check_run_id(run_id)}"
