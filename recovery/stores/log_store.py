"""Stores runs as logs in directories, on disk or in memory."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack, closing, suppress
from shlex import quote
from typing import Any

from eventlog import EventLog, LogError, LogLockedError, LogReader, RefusedValueError
from eventlog.encryption import Encryption
from eventlog.errors import UnsupportedFormatError
from eventlog.files.api import Files, write_all
from eventlog.files.lock import claim
from eventlog.format.durable_mark import DurableMark, encode_mark
from eventlog.format.names import MARK_NAME, segment_name
from eventlog.write.log import Durability
from recovery.errors import RecoveryError
from recovery.journal.inbox_messages import RUN_LSN
from recovery.journal.submission import Submission
from recovery.stores.protocol import (
    INBOX,
    RUN_ID,
    LogBytes,
    check_run_id,
    packed_message,
    posted_lsn,
)
from recovery.stores.subject_keys import KeyFile, SubjectKeys
from recovery.stores.submitting import submit, submitted
from recovery.values.pack import pack, pack_map

# Senders claim the inbox one after the other, each for as long as a flush takes.
POST_WAIT_S, POST_PAUSE_S = 10.0, 0.005


class LogStore:
    """Runs as logs in the directories of ``root``, in any implementation of ``files``.

    ``address``: as of RunStore; "" for one that no other process can reach.

    ``durability``, ``encryption``: as of EventLog.open.
    """

    is_remote = False

    def __init__(
        self,
        root: str,
        files: Files,
        durability: Durability,
        encryption: Encryption | None = None,
    ) -> None:
        self.root = root
        self.address = ""
        self.files, self.durability, self.encryption = files, durability, encryption
        self.subject_keys = SubjectKeys(KeyFile(root, files), encryption, files.random_bytes)

    def claim(self, run_id: str, takeover: bool = False) -> EventLog:
        """See ``RunStore.claim``."""
        path = self._path(run_id)
        return EventLog.open(
            path,
            self.durability,
            takeover=takeover,
            files=self.files,
            encryption=self.encryption,
        )

    def read(self, run_id: str) -> LogReader | None:
        """See ``RunStore.read``."""
        try:
            return EventLog.read(self._path(run_id), files=self.files, encryption=self.encryption)
        except (FileNotFoundError, UnsupportedFormatError):  # or an empty directory so far
            return None

    def run_ids(self) -> list[str]:
        """See ``RunStore.run_ids``."""
        return [name for name in self.files.list_directories(self.root) if RUN_ID.fullmatch(name)]

    def post(
        self,
        run_id: str,
        kind: str,
        body: Mapping[str, Any],
        key: str = "",
        time_ns: int | None = None,
    ) -> int:
        """See ``RunStore.post``."""
        parts = packed_message(body, key)
        reader = self.inbox(run_id) if key else None
        if reader is not None:  # without the lock, because usually it exists
            with reader:
                lsn = posted_lsn(reader.records(), (kind, parts), key)
                if 0 < lsn <= reader.durable_lsn():
                    return lsn
        log, run_lsn = self._open_inbox(run_id)
        with log:
            lsn = posted_lsn(log.records(), (kind, parts), key) if key else 0
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
            return EventLog.read(path, files=self.files, encryption=self.encryption)
        except (FileNotFoundError, UnsupportedFormatError):  # or in creation
            return None

    def submit(self, submission: Submission) -> bool:
        """See ``TakesSubmissions.submit``. ``submission``: the run."""
        return submit(self, submission)

    def submission(self, run_id: str) -> Submission | None:
        """See ``TakesSubmissions.submission``. ``run_id``: of the run."""
        return submitted(self, run_id)

    def remove(self, run_id: str, at: int | None = None, inbox: int | None = None) -> None:
        """See ``RunStore.remove``. Senders have the inbox' lock."""
        from eventlog.remove_log import remove  # noqa: PLC0415 - only where runs are removed

        remove(self._path(run_id), at, also={INBOX: inbox}, files=self.files)

    def size(self, run_id: str) -> int:
        """See ``RunStore.size``."""
        size = 0
        for path in (self._path(run_id), f"{self._path(run_id)}/{INBOX}"):
            with suppress(FileNotFoundError):  # no inbox, or the run is being removed
                directory = self.files.open_directory(path)
                for name in directory.names():
                    with suppress(FileNotFoundError, UnsupportedFormatError):
                        file = directory.open(name)
                        size += file.size()
                        file.close()
                directory.close()
        return size

    def sweep(self) -> int:
        """See ``RunStore.sweep``."""
        from eventlog.remove_log import purge_removed  # noqa: PLC0415 - as above

        return purge_removed(self.root, files=self.files)

    def adopt(self, run_id: str, logs: Mapping[str, LogBytes]) -> None:
        """Make run ``run_id`` of these ``logs``: see AdoptsLogs."""
        # Under the name of a removal that was interrupted, so that `sweep` deletes what a crash
        # leaves of it. The lock keeps a sweep away until then.
        path = self._path(run_id)
        name = f".{run_id}.removed-{self.files.random_bytes(4).hex()}"
        draft, is_written = f"{self.root}/{name}", False
        with ExitStack() as held:
            try:
                for of, log in logs.items():
                    self._write(f"{draft}/{of}" if of else draft, log, held)
                is_written = True
                self.files.move(draft, path)
            except OSError as exc:
                why = exc.strerror or exc
                names = self.files.list_directories(self.root)
                if is_written and name not in names and run_id in names:  # not durably
                    raise RecoveryError(
                        f"run {run_id!r} was copied to {path}, but a loss of power may take it "
                        f"away: {why}. Look at it: recovery show {run_id} --store "
                        f"{quote(self.root)}. A move can be repeated."
                    ) from exc
                with suppress(OSError):
                    self.files.delete(draft)  # which may fill the disk; else it waits for `sweep`
                raise RecoveryError(
                    f"run {run_id!r} could not be made at {path}: {why}. Nothing was copied."
                ) from exc

    def make_durable(self, run_id: str) -> None:
        """See AdoptsLogs. The files are durable before the run has its name, ``run_id``."""
        with closing(self.files.make_directory(self.root)) as directory:
            directory.sync()

    def _write(self, path: str, log: LogBytes, held: ExitStack) -> None:
        """Write a log durably, with its mark. It is ours until ``held`` ends."""
        directory = self.files.make_directory(path)
        held.callback(directory.close)
        owner = claim(self.files, directory, log.epoch, takeover=False)
        held.callback(owner.close)
        mark = DurableMark(log.next_lsn - 1, log.snapshot)
        contents = {segment_name(number): data for number, data in log.segments.items()}
        contents[MARK_NAME] = encode_mark(log.log_id, owner.epoch, mark)
        for name, data in contents.items():
            with closing(directory.open(name, write=True, create=True)) as file:
                write_all(file, data, 0)
                file.sync()
        directory.sync()

    def unswept(self) -> list[str]:
        """The runs (by id) that an interrupted removal has left partly."""
        from eventlog.remove_log import removed_from  # noqa: PLC0415 - as above

        return list(filter(None, map(removed_from, self.files.list_directories(self.root))))

    def backups(self) -> list[str]:
        """The names of the directories in which repairs have left backups."""
        from eventlog.repair.backup import backup_of  # noqa: PLC0415 - rare

        return list(filter(backup_of, self.files.list_directories(self.root)))

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
                    path, self.durability, files=self.files, encryption=self.encryption
                )
                return inbox, self._check_there(run_id, inbox)
            except LogError as exc:
                self._end_of(run_id)  # else it was removed, which is the cause
                # By another sender; a sender that died holds no lock.
                if not isinstance(exc, LogLockedError) or time.monotonic() > deadline:
                    raise
                time.sleep(POST_PAUSE_S)

    def _check_there(self, run_id: str, inbox: EventLog) -> int:
        """The durable LSN of the log of the run whose inbox this is. If the run was removed just
        now, opening the inbox has made directories without a run."""
        try:
            return self._end_of(run_id)
        except RecoveryError:
            inbox.close()
            self.files.delete(inbox.path)
            self.files.delete_empty(self._path(run_id))
            raise

    def _end_of(self, run_id: str) -> int:
        """The durable LSN of the log of a run that a message is for."""
        reader = self.read(run_id)
        if reader is None:
            raise RecoveryError(f"run {run_id!r} was removed meanwhile. Nothing was sent.")
        with reader:
            # Without power safety a log may end earlier after a power loss, and continue.
            return reader.durable_lsn() if self.durability == "power" else 0

    def _path(self, run_id: str) -> str:
        return f"{self.root}/{check_run_id(run_id)}"
