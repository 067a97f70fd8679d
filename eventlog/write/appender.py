"""Appends to segments, keeps the mark file, and knows which records are durable."""

from __future__ import annotations

import threading
from contextlib import suppress

from eventlog.crypto.encrypter import Encrypter
from eventlog.errors import LogError, WriterFailedError
from eventlog.files.api import Directory, File, Files, write_all
from eventlog.files.lock import Owner
from eventlog.format.durable_mark import DurableMark, encode_mark
from eventlog.format.frame import (
    ALIGNMENT,
    ENCRYPTED,
    FRAME_SIZE,
    HEADER_SIZE,
    LSN_MAX,
    NUMBER_MAX,
    SNAPSHOT,
    Frame,
    SegmentHeader,
    contains_salt,
    encode_frame,
    new_salt,
)
from eventlog.format.names import MARK_NAME, is_unfinished, segment_name
from eventlog.read.log_end import Tail
from eventlog.read.segment_files import read_first_frame
from eventlog.write.segment_writer import SegmentWriter

BUFFER_SIZE = 64 << 10  # durability="none" writes in pieces of this size


class Appender:
    """Appends frames and flushes them. Thread-safe.

    Invariants: LSNs are assigned under ``_lock``. A flush, a roll and a close hold ``_sync_lock``
    (taken before ``_lock``), so no file is closed during a flush. ``durable`` is raised only after
    a flush that began after the records it covers were written. After any error inside a write,
    memory and disk may differ, so the appender is failed for good.
    """

    def __init__(self, files: Files, directory: Directory, owner: Owner, log_id: bytes) -> None:
        self._files, self._directory, self.owner = files, directory, owner
        self.log_id = log_id
        self._lock, self._sync_lock = threading.Lock(), threading.Lock()
        self._failed: BaseException | None = None
        self.failure_unreported = False  # whether a failure has not reached any caller yet
        self._writer: SegmentWriter | None = None
        self._mark_file: File | None = None
        self._buffer: list[bytes] = []  # consecutive frames
        self._buffer_lsn = self._buffer_size = 0
        self._number = 0
        self._snapshot = 0
        self.next_lsn = self.oldest_lsn = 1
        self.durable = DurableMark()
        self.flushed: bool  # durability="power"
        self.buffered: bool  # durability="none"
        self.segment_size: int
        self.encrypter: Encrypter | None = None  # None: unencrypted

    @property
    def has_begun(self) -> bool:
        """Whether there is or was a segment: else nothing was ever appended."""
        return self._number > 0 or self.next_lsn > 1

    # -- recovery

    def recover(self, tail: Tail) -> None:
        """Cut bytes that were never acknowledged, and make the rest durable before it is served.

        A crash in here is safe: after each step the next opening finds the same end.
        """
        owner_may_be_alive = bool(self.owner.former)
        if tail.next_lsn > LSN_MAX // 2:
            raise LogError(
                f"{self._directory.path} claims {tail.next_lsn - 1} records, more than there can "
                "be: its files were forged or damaged. Nothing was changed."
            )
        self._number, self.next_lsn, self._snapshot = tail.number, tail.next_lsn, tail.snapshot
        self.oldest_lsn, self.durable = (
            tail.oldest_lsn,
            DurableMark(tail.next_lsn - 1, tail.snapshot),
        )
        for name in self._directory.names():
            if is_unfinished(name):  # a crash came before it was renamed: it holds no records
                with suppress(FileNotFoundError):  # an earlier owner that lives has renamed it
                    self._directory.remove(name)
        if tail.number:
            self._mark_file = self._directory.open(MARK_NAME, write=True, create=True)
            self._recover_segment(tail, owner_may_be_alive)
            self._note_durable(self.durable)
        if owner_may_be_alive:
            # An earlier owner may still append after the end that we found. From now on its records
            # do not count, neither for us nor for readers: our segment has the next LSNs.
            self._writer = self._new_segment(b"")

    def _recover_segment(self, tail: Tail, owner_may_be_alive: bool) -> None:
        file = self._directory.open(segment_name(tail.end_number), write=True)
        try:
            if tail.damaged or owner_may_be_alive or tail.header is None:
                # A damaged file is evidence and stays unchanged, and another writer may be at work.
                # Records that we keep become durable; the next segment's first LSN ends this one.
                _rewrite_unflushed(file, tail)
                file.sync()
                self._directory.sync()
                return
            writer = SegmentWriter(file, tail.header, tail.offset, tail.index, self.flushed)
            if not tail.sealed:
                # The process or the machine died. Cut the tail and seal the rest. New records get a
                # new segment, with a new salt. If the cut bytes appear again (a file system may
                # show old blocks after a power loss), they are no frames of that segment.
                file.truncate(tail.offset)
                _rewrite_unflushed(file, tail)
                writer.seal(self.durable, clean=False)
                self._directory.sync()
            elif tail.clean and self._is_ours(tail):
                # Closed cleanly: nothing after the end, no other writer. So continue in it. Its
                # records are durable, but the flush of its footer may have failed.
                _rewrite_unflushed(file, tail)
                self._writer = writer
        finally:
            if self._writer is None:
                file.close()

    def _is_ours(self, tail: Tail) -> bool:
        """Whether the segment is encrypted under our key, or, without one, unencrypted."""
        assert tail.header is not None
        if self.encrypter is None:
            return not tail.header.encrypted
        _, payload = read_first_frame(self._directory, tail.end_number)
        return tail.header.encrypted and payload.startswith(self.encrypter.head)

    def begin_at(self, lsn: int) -> None:
        """Begin an empty log at ``lsn``: earlier records were removed on purpose."""
        with self._sync_lock, self._lock:
            self.check()
            try:
                self.next_lsn = self.oldest_lsn = lsn
                self.durable = DurableMark(lsn - 1)
                self._writer = self._new_segment(b"")
            except BaseException as exc:
                self.fail(exc)
                raise

    # -- appending

    def append(self, kind: int, count: int, payload: bytes, hold: bool = False) -> int:
        """Append one frame of ``count`` records; returns the LSN of the first.

        ``hold``: if frames are flushed, write it with the next one, or when the buffer is drained.
        """
        if self.encrypter is not None:
            self.encrypter.check_size(payload)
        with self._lock:
            if lsn := self._append(kind, count, payload, hold):
                return lsn
        with self._sync_lock, self._lock:
            lsn = self._append(kind, count, payload, hold)
            if not lsn:
                try:
                    if self._writer is not None:
                        self._seal(self._writer, clean=False)
                    plain_head = payload if self.encrypter is None else self.encrypter.head
                    self._writer = self._new_segment(plain_head)
                except BaseException as exc:
                    self.fail(exc)
                    raise
                lsn = self._append(kind, count, payload, hold)
            return lsn

    def _append(self, kind: int, count: int, payload: bytes, hold: bool) -> int:
        """The LSN of the first record; 0 when the frame needs a new segment."""
        if self._failed is not None:
            self.check()
        writer, lsn, encrypter = self._writer, self.next_lsn, self.encrypter
        if writer is None:
            return 0
        size, plain_head = FRAME_SIZE + len(payload), payload
        if encrypter is not None:  # the part that is the same for every nonce
            size, plain_head = size + encrypter.overhead, encrypter.head
        # A payload that contains the segment's salt goes to another segment, so that searches for
        # frames can skip payloads. Such a payload is a copy of a log, or forged.
        if plain_head.find(writer.rarest_byte) >= 0 and contains_salt(plain_head, writer.salt):
            return 0
        end = writer.end + self._buffer_size
        if end + size + -size % ALIGNMENT > self.segment_size and end > HEADER_SIZE:
            return 0  # a record larger than a segment gets a segment of its own
        marks = (lsn, self.durable.durable, self._snapshot)
        if encrypter is not None:
            kind |= ENCRYPTED
            place = Frame(0, 0, kind, *marks, count, 0, 0, writer.salt)
            payload = encrypter.encrypt(writer.header, place, payload)
        frame = encode_frame(writer.salt, kind, count, payload, marks)
        try:
            if (hold and self.flushed) or self.buffered:
                self._buffer_frame(frame, lsn)
            elif self._buffer:
                self._buffer_frame(frame, lsn)
                self._drain()
            else:
                writer.write(frame, lsn)
            self.next_lsn = lsn + count
            if kind & ~ENCRYPTED == SNAPSHOT:
                self._snapshot = lsn
        except BaseException as exc:  # a full disk, Ctrl-C between two lines: see the invariants
            self.fail(exc)
            raise
        return lsn

    def _buffer_frame(self, frame: bytes, lsn: int) -> None:
        if not self._buffer:
            self._buffer_lsn, self._buffer_size = lsn, 0
        self._buffer.append(frame)
        self._buffer_size += len(frame)
        if self._buffer_size >= BUFFER_SIZE:
            self._drain()

    def drain(self) -> None:
        """Hand the buffer to the operating system."""
        with self._lock:
            self.check()
            self._drain_or_fail()

    def _drain_or_fail(self) -> None:
        try:
            self._drain()
        except BaseException as exc:
            self.fail(exc)
            raise

    def _drain(self) -> None:
        if self._buffer:
            assert self._writer is not None
            frames = b"".join(self._buffer)
            self._buffer, self._buffer_size = [], 0
            self._writer.write(frames, self._buffer_lsn)

    def _new_segment(self, plain_head: bytes) -> SegmentWriter:
        """A segment whose salt is not in ``plain_head``, the plain head of its first payload."""
        self.owner.check()
        self.owner.make_durable()
        if self._mark_file is None:
            self._mark_file = self._directory.open(MARK_NAME, write=True, create=True)
            if self.encrypter is not None:
                # Without the log's id nothing can be decrypted. Now two files have it.
                self._write_mark(self.durable)
        while True:
            if self._number >= NUMBER_MAX:
                raise LogError(
                    f"{self._directory.path} has a segment of the highest number there is, "
                    f"{segment_name(NUMBER_MAX)}, which no log gets to. Move that file away."
                )
            self._number += 1
            header = SegmentHeader(
                self._number,
                self.log_id,
                self.next_lsn,
                self.oldest_lsn,
                self.owner.epoch,
                new_salt(self._files.random_bytes, plain_head),
                self.encrypter is not None,
            )
            try:
                return SegmentWriter.create(self._directory, header, self.flushed)
            except FileExistsError:
                # A writer that lost the log made it after we looked. If we lost the log, this
                # raises. If the owner before us did, ours takes the next number: as the later
                # segment it decides where that one's records end.
                self.owner.check()
            except FileNotFoundError:
                # A new owner deletes unfinished segments. If it did, this raises.
                self.owner.check()
                raise

    # -- durability

    def commit(self, target: int) -> None:
        """Make records up to ``target`` durable; concurrent callers share the next flush."""
        with self._sync_lock:
            with self._lock:
                self.check()
                writer, mark = self._writer, DurableMark(self.next_lsn - 1, self._snapshot)
                if self.flushed:  # what is held
                    self._drain_or_fail()
            try:
                if self.flushed and self.durable.durable < target:
                    assert writer is not None  # a record is not durable, so there is a segment
                    writer.file.sync()
                    self._note_durable(mark)
                else:
                    self.owner.check()
            except BaseException as exc:
                # fsyncgate: the pages may be marked clean, and the next flush would report success.
                self.fail(exc)
                raise

    def _note_durable(self, mark: DurableMark) -> None:
        # A writer that has lost the log neither acknowledges nor overwrites the new owner's mark.
        self.owner.check()
        self.durable = mark
        if self._mark_file is not None:
            # Written after the flush, and not flushed itself: it may lag, but never leads.
            self._write_mark(mark)

    def _write_mark(self, mark: DurableMark) -> None:
        assert self._mark_file is not None
        write_all(self._mark_file, encode_mark(self.log_id, self.owner.epoch, mark), 0)

    def _seal(self, writer: SegmentWriter, clean: bool) -> None:
        self.owner.check()
        self._drain()
        mark = DurableMark(self.next_lsn - 1, self._snapshot)
        if writer.dirty:
            writer.seal(mark, clean)
        writer.file.close()
        self._writer = None
        self._note_durable(mark)

    # -- retention

    def roll(self) -> None:
        """End the present segment and begin another, unless it holds no records."""
        with self._sync_lock, self._lock:
            self.check()
            writer = self._writer
            if writer is None or writer.end + self._buffer_size == HEADER_SIZE:
                return
            try:
                self._seal(writer, clean=False)
                self._writer = self._new_segment(b"")
            except BaseException as exc:
                self.fail(exc)
                raise

    def truncate(self, oldest_lsn: int, numbers: list[int]) -> None:
        """Remove the segments of these numbers, all of whose records are before ``oldest_lsn``.

        Each step is durable before the next. First the kept records; then a new segment, whose
        header has the new oldest LSN; then the old segments go. So after a crash the headers
        explain every missing segment.
        """
        with self._sync_lock, self._lock:
            self.check()
            try:
                if self.oldest_lsn < oldest_lsn:
                    if self._writer is not None:
                        self._seal(self._writer, clean=False)
                    self.oldest_lsn = oldest_lsn
                    self._writer = self._new_segment(b"")
                # If a new owner has not seen the new segment, it must find the old ones.
                self.owner.check()
                for number in numbers:
                    with suppress(FileNotFoundError):  # another thread truncates as well
                        self._directory.remove(segment_name(number))
                self._directory.sync()
            except BaseException as exc:
                self.fail(exc)
                raise

    # -- the end

    def close(self) -> None:
        """Seal the segment as closed cleanly, unless a failure came first.

        A failure that no caller was given (of ``commit_behind``) is raised here at the latest.
        """
        with self._sync_lock, self._lock:
            if self._failed is not None:
                if self.failure_unreported:
                    self.check()
                return
            try:
                self.owner.check()
                if self._writer is not None and (self._writer.dirty or self._buffer):
                    self._seal(self._writer, clean=True)
                    if self._mark_file is not None:
                        self._mark_file.sync()
            finally:
                self.fail(LogError(f"{self._directory.path}: this EventLog is closed"))

    def close_files(self) -> None:
        """Close the files, in any state. The owner's file, when closed, drops the lock."""
        self._close_segment()
        self.owner.close()

    def may_still_act(self, acts: bool) -> None:
        """See WritableLog.may_still_act."""
        self.owner.may_still_act(acts)

    def _close_segment(self) -> None:
        with self._sync_lock, self._lock:  # two threads may close a log
            writer, mark_file = self._writer, self._mark_file
            self._writer = self._mark_file = None
        if writer is not None:
            writer.file.close()
        if mark_file is not None:
            mark_file.close()

    def close_after_fork(self, reason: LogError) -> None:
        """Close in a forked child. Threads of the parent may hold the locks, so replace them."""
        self._lock, self._sync_lock = threading.Lock(), threading.Lock()
        self._failed = reason
        self._close_segment()
        self.owner.close_after_fork()

    def check(self) -> None:
        """Raise when this writer has failed or is closed."""
        if self._failed is None:
            return
        self.failure_unreported = False
        if isinstance(self._failed, LogError):
            raise self._failed.with_traceback(None)
        raise WriterFailedError(
            f"{self._directory.path}: an earlier write failed ({self._failed!r}). Everything up "
            f"to LSN {self.durable.durable} is safe. To continue, close this log and open it again."
        ) from self._failed

    def fail(self, exc: BaseException) -> None:
        """Refuse further records; the first reason is kept."""
        if self._failed is None:
            self._failed = exc
            if isinstance(exc, OSError):
                exc.add_note(
                    f"{self._directory.path}: the log accepts no more records. Everything up to "
                    f"LSN {self.durable.durable} is safe. Remove the cause (free space, check the "
                    "disk); then start the program again, or close this log and open it again."
                )


def _rewrite_unflushed(file: File, tail: Tail) -> None:
    """Write again, unchanged, the kept frames that were not known to be durable.

    If a flush of the previous writer failed, the operating system may hold these bytes in memory
    only, marked as written. They can be read, but a flush would not write them. They are written
    from memory as they were verified: a second read might return other bytes.
    """
    for offset, frame in tail.unflushed:
        write_all(file, frame, offset)
