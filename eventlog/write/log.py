"""Opens logs for appending: EventLog and its report."""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from eventlog.after_fork import in_forked_child, not_in_child
from eventlog.crypto.encrypter import Encrypter
from eventlog.crypto.keys import Encryption
from eventlog.errors import LogError, UnsupportedFormatError, WriterFailedError
from eventlog.files.api import Directory, Files
from eventlog.files.lock import LOCK_NAME, Owner, claim_if_linked
from eventlog.files.posix import OSFiles, check_file_system
from eventlog.format.frame import HEADER_SIZE, RECORDS, SEGMENT_SIZE_MAX, SNAPSHOT
from eventlog.format.names import MARK_NAME
from eventlog.format.record import Record, Snapshot, encode_payload, encode_snapshot, pack
from eventlog.protocols import CommitGroup, OnDamage, OpenReport
from eventlog.read.log_end import Tail
from eventlog.read.reader import LogReader
from eventlog.write.appender import Appender
from eventlog.write.group_commit import committer

_logger = logging.getLogger("eventlog")

T = TypeVar("T")
Durability = Literal["power", "process", "none"]

SEGMENT_SIZE = 8 << 20  # opening after a crash scans one: about 10 ms


class EventLog:
    """An append-only log in a directory of its own, for one writer at a time.

    Made by ``EventLog.open``; a context manager. Thread-safe. ``append`` hands a record to the
    operating system: it survives the death of the process. ``commit`` makes everything appended
    durable, as ``durability`` says. Any error while writing leaves the writer failed: close it and
    open the log again. A child made by fork cannot append.
    """

    path: str
    durability: Durability
    report: OpenReport
    group: CommitGroup | None = None

    def __init__(self, appender: Appender, reader: LogReader, directory: Directory) -> None:
        """Not for users: call ``EventLog.open``."""
        self._appender, self._reader, self._directory = appender, reader, directory
        self._files = reader.files
        self.path = directory.path
        self.last_time_ns = 0  # of the record that this process appended last
        self._pid = os.getpid()
        self._open, self._acts = True, False

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        durability: Durability = "power",
        *,
        takeover: bool = False,
        segment_size: int = SEGMENT_SIZE,
        files: Files | None = None,
        encryption: Encryption | None = None,
    ) -> EventLog:
        """Create the log in directory ``path``, or recover it, and hold it exclusively.

        ``report`` of the log says what was found.

        Args:
            path: The directory; made if it is missing.
            durability: What ``commit`` promises. "power" (the default): survives power loss and an
                OS crash (one flush, 0.1 ms and up, as the disk has it). "process": survives the
                process; no flush. "none": records are written 64 KiB at a time; a crash loses the
                last of them, and what is left is a sound prefix.
            takeover: An operator's decision: take the log from an owner that is stuck (False).
                Nothing that the old owner writes afterwards counts, and its next commit raises
                FencedError.
            segment_size: Bytes at which a new file is begun (8 MiB).
            files: A file system for tests (the real one).
            encryption: Encrypts what is appended (None). An encrypted log cannot be opened without.

        Raises LogLockedError (held by another); UnsupportedFormatError (not a log, or of a newer
        version); EncryptedLogError, WrongKeyError and NotEncryptedError (before anything is
        written); OSError; LogError (a file system that cannot give ``durability``, or a log that
        was removed or moved away meanwhile). Damage is reported, not raised; a read that meets it
        raises. Records are appended after it.
        """
        if durability not in ("power", "process", "none"):
            raise ValueError(f'durability is "power", "process" or "none", not {durability!r}')
        size: object = segment_size
        if type(size) is not int or not HEADER_SIZE < size <= SEGMENT_SIZE_MAX:
            raise ValueError(
                f"segment_size is {HEADER_SIZE + 1} to {SEGMENT_SIZE_MAX} bytes, not {size!r:.80}"
            )
        files = files or OSFiles()
        directory = files.make_directory(os.fspath(path))
        try:
            _check_directory(files, directory, durability)
            reader = LogReader(files, directory, encryption)
            encrypter = reader.decoder.encrypter(files.random_bytes)
            owner = claim_if_linked(files, directory, reader.listing.last_epoch(), takeover)
            return cls._owned(reader, directory, owner, encrypter, (durability, segment_size))
        except BaseException as exc:
            directory.close()
            if isinstance(exc, OSError):
                exc.add_note(
                    f"{directory.path}: the log could not be opened. Nothing acknowledged is lost. "
                    "Remove the cause (free space, check the disk) and open it again."
                )
            raise

    @classmethod
    def _owned(
        cls,
        reader: LogReader,
        directory: Directory,
        owner: Owner,
        encrypter: Encrypter | None,
        settings: tuple[Durability, int] = ("power", SEGMENT_SIZE),
    ) -> EventLog:
        """Recover a log that we own, and open it; ``owner`` is closed with it."""
        began = time.perf_counter()
        durability, segment_size = settings
        files = reader.files
        log_id = reader.listing.log_id() or files.random_bytes(16)
        appender = Appender(files, directory, owner, log_id)
        try:
            appender.flushed, appender.buffered = durability == "power", durability == "none"
            appender.segment_size, appender.encrypter = segment_size, encrypter
            tail = reader.tail()
            appender.recover(tail)
        except BaseException:
            appender.close_files()
            raise
        log = cls(appender, reader, directory)
        log.durability = durability
        log.report = open_report(tail, time.perf_counter() - began)
        for damage in tail.damaged:
            _logger.error("%s: %s", log.path, damage)
        in_forked_child(log, EventLog._forked)
        return log

    @staticmethod
    def read(
        path: str | os.PathLike[str],
        *,
        files: Files | None = None,
        encryption: Encryption | None = None,
    ) -> LogReader:
        """A reader of the log: takes no lock, writes nothing; the log may be live or damaged.

        ``path``: its directory. ``encryption``: where the keys of an encrypted log are. ``files``:
        a file system for tests.
        Raises FileNotFoundError, or UnsupportedFormatError when the directory holds no log.
        """
        files = files or OSFiles()
        directory = files.open_directory(os.fspath(path))
        reader = LogReader(files, directory, encryption)
        if not reader.listing.numbers() and directory.identity(LOCK_NAME) is None:
            directory.close()
            raise UnsupportedFormatError(f"{os.fspath(path)} is not a log: it has no segments")
        return reader

    @property
    def epoch(self) -> int:
        """The number of this ownership: higher than that of every owner before."""
        return self._appender.owner.epoch

    @property
    def last_lsn(self) -> int:
        """The LSN of the newest record; 0 in an empty log."""
        return self._appender.next_lsn - 1

    @property
    def log_id(self) -> bytes:
        """16 random bytes that never change; durable before any record."""
        return self._appender.log_id

    def former_owner(self) -> str:
        """See WritableLog. Asks the kernel whether the owners before have ended."""
        return self._appender.owner.living_former()

    def may_still_act(self, acts: bool) -> None:
        """See WritableLog. In files the kernel knows it, and drops it when the process ends.

        ``acts``: whether this process may act for the log after ``close``.
        """
        self._acts = acts
        self._appender.may_still_act(acts)
        if not (acts or self._open):
            not_in_child(self)

    @property
    def is_encrypted(self) -> bool:
        """Whether appended records are encrypted."""
        return self._appender.encrypter is not None

    @property
    def oldest_lsn(self) -> int:
        """The LSN that the log begins at; above 1 after ``truncate_before``."""
        return self._appender.oldest_lsn

    @property
    def segment_size(self) -> int:
        """The size in bytes at which a new segment is begun."""
        return self._appender.segment_size

    @property
    def durable_lsn(self) -> int:
        """Records up to this LSN are known to have been flushed to the device."""
        return self._appender.durable.durable

    def time_ns(self) -> int:
        """The clock that stamps records: ns since 1970."""
        return self._files.time_ns()

    def append(
        self, kind: str, body: Any, *, time_ns: int | None = None, hold: bool = False
    ) -> int:
        """Append one record; returns its LSN. The operating system has it when this returns.

        ``kind``: a word, up to 255 characters. ``body``: a value that msgpack can hold.
        ``time_ns``: for a copy of a record, which keeps its time; otherwise now. ``hold``: whether
        the operating system may get it with the next record only, or by ``commit`` or
        ``commit_behind``. It has no effect without ``durability="power"``.

        Raises RefusedValueError, with the path to the value, for a value that msgpack cannot hold,
        and for more than 64 MiB (nothing is written then); WriterFailedError after an earlier
        failure.
        """
        if time_ns is None:
            time_ns = self._files.time_ns()
        lsn = self._appender.append(RECORDS, 1, encode_payload(time_ns, ((kind, body),)), hold)
        self.last_time_ns = time_ns
        return lsn

    def append_batch(self, items: Iterable[tuple[str, Any]]) -> list[int]:
        """Append records as one atomic batch: after a crash all of them are there, or none.

        ``items``: pairs of a kind and a body. Returns their LSNs. Raises as ``append``; the batch
        as a whole is limited to 64 MiB.
        """
        batch = list(items)
        if not batch:
            return []
        time_ns = self._files.time_ns()
        payload = encode_payload(time_ns, batch)
        first = self._appender.append(RECORDS, len(batch), payload)
        self.last_time_ns = time_ns
        return list(range(first, first + len(batch)))

    def append_snapshot(self, state: Any) -> int:
        """Append a snapshot of ``state``, with an xxh3-128 digest of it; its LSN."""
        time_ns = self._files.time_ns()
        payload = encode_snapshot(time_ns, "snapshot", pack(state, "state"))
        lsn = self._appender.append(SNAPSHOT, 1, payload)
        self.last_time_ns = time_ns
        return lsn

    def commit(self) -> None:
        """Make everything appended so far durable, as ``durability`` says, before this returns.

        Concurrent commits share a flush. Raises FencedError when another owner has taken the log
        over; OSError when the flush failed, and WriterFailedError on every later call. It is then
        unknown which records since the last commit are durable; opening the log again finds out.
        """
        self._appender.commit(self.last_lsn)

    def commit_behind(self) -> None:
        """Have everything appended so far committed soon, by threads that all logs share.

        Returns at once. A failure reaches the next ``append`` or ``commit``.
        """
        appender = self._appender
        last_lsn = appender.next_lsn - 1
        if appender.flushed and appender.durable.durable < last_lsn:
            committer.request(self, last_lsn)

    def commit_now(self, lsn: int) -> None:
        """Not for users: called by the committer's threads, to commit what is up to ``lsn``."""
        if self.durable_lsn >= lsn:
            # A caller has waited for it, or a later record has taken it along.
            return self.commit_behind()  # what was appended since has its time yet
        try:
            self._appender.commit(self.last_lsn)
        except WriterFailedError:
            pass  # an earlier failure, which a caller has got, or which is kept already
        except Exception as exc:  # kept by the appender, for the next call or for close
            self._appender.failure_unreported = True
            _logger.debug("%s: commit in the background failed: %r", self.path, exc)

    def records(self, start: int = 1, on_damage: OnDamage | None = None) -> Iterator[Record]:
        """Records from LSN ``start`` to the end, in order; see ``LogReader.records``."""
        self._appender.drain()
        return self._once_begun(lambda: self._reader.records(start, on_damage=on_damage))

    def snapshots(self, on_damage: OnDamage | None = None) -> Iterator[Snapshot]:
        """Verified snapshots, the newest first; see ``LogReader.snapshots``."""
        self._appender.drain()
        return self._once_begun(lambda: self._reader.snapshots(on_damage))

    def _once_begun(self, read: Callable[[], Iterator[T]]) -> Iterator[T]:
        """A reader. Does not read the directory of a new log: no other process writes there."""
        return read() if self._appender.has_begun else self._if_begun(read)

    def _if_begun(self, read: Callable[[], Iterator[T]]) -> Iterator[T]:
        if self._appender.has_begun:  # read late, because iterators look when they are advanced
            yield from read()

    def latest_snapshot(self) -> Snapshot | None:
        """The newest snapshot that verifies, or None."""
        return next(self.snapshots(), None)

    def fetch(self, lsns: set[int]) -> dict[int, Record]:
        """The records of ``lsns`` that are there and sound; the others are left out."""
        self._appender.drain()
        return self._reader.fetch(lsns)

    def roll(self) -> None:
        """End the present segment: later records go into a new one.

        So ``truncate_before`` can free what is before them, in a log of less than a segment too.
        Everything appended so far is flushed first, whatever ``durability`` is. Each roll costs
        some five flushes. A crash in the middle loses nothing. Does nothing when the segment holds
        no records. Raises as ``commit``.
        """
        self._appender.roll()

    def truncate_before(self, lsn: int) -> int:
        """Remove the segments that hold only records before ``lsn``; the new ``oldest_lsn``.

        Frees disk space by whole segments (see ``segment_size`` and ``roll``), so some records
        before ``lsn`` may stay. The kept records are committed first, and flushed whatever
        ``durability`` is. A crash in the middle leaves a sound log. Readers skip removed records.
        The caller must know that no reader needs them; most often ``lsn`` is that of a verified
        snapshot.

        Raises ValueError for an ``lsn`` beyond the end, otherwise as ``commit``.
        """
        if lsn > self.last_lsn + 1:
            raise ValueError(f"{self.path} ends at LSN {self.last_lsn}, which is before {lsn}")
        self._appender.drain()
        oldest, numbers = self._reader.listing.before(lsn)
        if numbers:
            self._appender.truncate(oldest, numbers)
        return self._appender.oldest_lsn

    def close(self) -> None:
        """Commit, mark the log as closed cleanly, and release it. Closing again does nothing.

        After a failure nothing more is written; the next opening recovers. Raises FencedError,
        OSError, and a failure of a commit in the background (see ``commit_behind``).
        """
        try:
            if self._open:
                self._appender.close()
        finally:
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_open", False):
            warnings.warn(f"{self.path} was not closed", ResourceWarning, stacklevel=2, source=self)
            self._open = False
            self._let_go()

    def _release(self) -> None:
        self._open = False
        committer.forget(self)
        if not self._acts:  # else a forked child must not keep what this process holds
            not_in_child(self)
        self._let_go()

    def _let_go(self) -> None:
        """Release the files, and with them the log.

        Invariant: takes no lock that is shared with other logs. The garbage collector calls this in
        any thread, perhaps one that holds that lock, and at the end of the process, when a thread
        that held it is gone.
        """
        self._appender.close_files()
        self._directory.close()

    def _forked(self) -> None:
        # The child must not keep the locks: they go with the last descriptor, not with the process.
        not_in_child(self)  # nor in its own children
        self._open = False
        self._appender.close_after_fork(
            LogError(
                f"{self.path} is held by process {self._pid}; a child made by fork cannot append "
                "to it. Open it in the process that uses it."
            )
        )
        self._directory.close()


def open_report(tail: Tail, time_s: float) -> OpenReport:
    clean = tail.clean and not tail.torn_size
    return OpenReport(
        clean,
        tail.next_lsn - 1,
        tail.records,
        tail.size,
        tail.torn_size,
        tail.torn_frames,
        tail.damaged,
        time_s,
    )


def _check_directory(files: Files, directory: Directory, durability: Durability) -> None:
    if durability == "power":
        check_file_system(files, directory)
    if directory.identity(LOCK_NAME) is None:
        strangers = [name for name in directory.names() if not name.endswith((".seg", ".new"))]
        # Another process may have made them since.
        if strangers and not {MARK_NAME, LOCK_NAME} & {*strangers}:
            raise UnsupportedFormatError(
                f"{directory.path} holds other things ({strangers[0]!r}, ...): a log has a "
                "directory to itself. Nothing was written."
            )
