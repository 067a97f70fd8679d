"""The writing half of an open log: segments, the mark file, and what is known to be durable."""

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
)
from eventlog.format.names import MARK_NAME, is_unfinished, segment_name
from eventlog.read.log_end import Tail
from eventlog.read.segment_files import read_first_frame
from eventlog.write.segment_writer import SegmentWriter

BUFFER_SIZE = 64 << 10  # durability="none" writes in pieces of this size


class Appender:
    """Appends frames and flushes them. Thread-safe.

    Invariants: LSNs are given out under ``_lock``; a flush, a roll and a close hold ``_sync_lock``
    (taken before ``_lock``), so that a file is never closed under a flush. ``durable`` is raised
    only after a flush that began after the records it covers were written. After any error inside
    a write, memory and disk may differ, so the appender is failed for good.
    """

    def __init__(self, files: Files, directory: Directory, owner: Owner, log_id: bytes) -> None:
        self._files, self._directory, self._owner = files, directory, owner
        self.log_id = log_id
        self._lock, self._sync_lock = threading.Lock(), threading.Lock()
        self._failed: BaseException | None = None
        self.failure_unreported = False  # whether a failure has happened that nobody was told of
        self._writer: SegmentWriter | None = None
        self._mark_file: File | None = None
        self._buffer: list[bytes] = []  # frames that follow each other
        self._buffer_lsn = self._buffer_size = 0
        self._number = 0
        self._snapshot = 0
        self.next_lsn = self.oldest_lsn = 1
        self.durable = DurableMark()
        self.flushed = True  # durability="power"
        self.buffered = False  # durability="none"
        self.segment_size = 0
        self.encrypter: Encrypter | None = None  # None: in clear

    @property
    def has_begun(self) -> bool:
        """Whether there is a segment, or was one: else nothing was ever appended."""
        return self._number > 0 or self.next_lsn > 1

    # -- recovery

    def recover(self, tail: Tail) -> None:
        """Cut what was never acknowledged and make durable what is kept, before it is served.

        A crash in here is safe: after each step the next opening finds the same end.
        """
        owner_may_be_alive = self._owner.owner_may_be_alive
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
            if is_unfinished(name):  # a crash came before it got its name: it holds nothing
                self._directory.remove(name)
        if tail.number:
            self._mark_file = self._directory.open(MARK_NAME, write=True, create=True)
            self._recover_segment(tail, owner_may_be_alive)
            self._note_durable(self.durable)
        if owner_may_be_alive:
            # Whoever was here may still append behind the end that we have found. From now on
            # that does not count, for us and for readers alike: the LSNs go on in our segment.
            self._writer = self._new_segment(b"")

    def _recover_segment(self, tail: Tail, owner_may_be_alive: bool) -> None:
        file = self._directory.open(segment_name(tail.end_number), write=True)
        try:
            if tail.damaged or owner_may_be_alive or tail.header is None:
                # Evidence stays as it is, and another may still be writing here. What we keep
                # becomes durable; the cut is where the next segment's LSNs begin.
                _rewrite_unflushed(file, tail)
                file.sync()
                self._directory.sync()
                return
            writer = SegmentWriter(file, tail.header, tail.offset, tail.index, self.flushed)
            if not tail.sealed:
                # The process or the machine died. Cut the tail and seal what is left. What comes
                # next gets a new segment, and with it a new salt: should the bytes cut here turn
                # up again (a file system may show old blocks after a power loss), they are no
                # frames of that segment.
                file.truncate(tail.offset)
                _rewrite_unflushed(file, tail)
                writer.seal(self.durable, clean=False)
                self._directory.sync()
            elif tail.clean and tail.offset < self.segment_size and self._is_ours(tail):
                # Closed cleanly: nothing behind the end, no other writer. Go on in it. Its records
                # are durable; whether the flush of its footer succeeded, nothing says.
                _rewrite_unflushed(file, tail)
                self._writer = writer
        finally:
            if self._writer is None:
                file.close()

    def _is_ours(self, tail: Tail) -> bool:
        """Whether the segment is in clear, as we write, or encrypted under the key that we use."""
        assert tail.header is not None
        if self.encrypter is None:
            return not tail.header.encrypted
        _, payload = read_first_frame(self._directory, tail.end_number)
        return tail.header.encrypted and payload.startswith(self.encrypter.head)

    def begin_at(self, lsn: int) -> None:
        """Have a log that is empty begin at ``lsn``: what was before it went on purpose."""
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

    def append(self, kind: int, count: int, payload: bytes) -> int:
        """Append one frame of ``count`` records; the LSN of the first."""
        if self.encrypter is not None:
            self.encrypter.check_size(payload)
        with self._lock:
            if lsn := self._append(kind, count, payload):
                return lsn
        with self._sync_lock, self._lock:
            lsn = self._append(kind, count, payload)
            if not lsn:
                try:
                    if self._writer is not None:
                        self._seal(self._writer, clean=False)
                    plain_head = payload if self.encrypter is None else self.encrypter.head
                    self._writer = self._new_segment(plain_head)
                except BaseException as exc:
                    self.fail(exc)
                    raise
                lsn = self._append(kind, count, payload)
            return lsn

    def _append(self, kind: int, count: int, payload: bytes) -> int:
        """The LSN of the first record; 0 when they have to go to another segment."""
        if self._failed is not None:
            self.check()
        writer, lsn, encrypter = self._writer, self.next_lsn, self.encrypter
        if writer is None:
            return 0
        size, plain_head = FRAME_SIZE + len(payload), payload
        if encrypter is not None:  # as much of it as is the same however it is encrypted
            size, plain_head = size + encrypter.overhead, encrypter.head
        # A payload that has the segment's salt in it (an agent that reads its own log, or somebody
        # who forges frames) goes to another segment: the search for frames never looks into one.
        if plain_head.find(writer.rarest_byte) >= 0 and contains_salt(plain_head, writer.salt):
            return 0
        end = writer.end + self._buffer_size
        if end + size + -size % ALIGNMENT > self.segment_size and end > HEADER_SIZE:
            return 0  # a record larger than a segment has one to itself
        marks = (lsn, self.durable.durable, self._snapshot)
        if encrypter is not None:
            kind |= ENCRYPTED
            place = Frame(0, 0, kind, *marks, count, 0, 0, writer.salt)
            payload = encrypter.encrypt(writer.header, place, payload)
        frame = encode_frame(writer.salt, kind, count, payload, marks)
        try:
            if self.buffered:
                self._buffer_frame(frame, lsn)
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
        """Hand what is buffered to the operating system."""
        with self._lock:
            self.check()
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
        """A segment for a payload with ``bare`` in it, and what comes after it."""
        self._owner.check()
        if self._mark_file is None:
            self._mark_file = self._directory.open(MARK_NAME, write=True, create=True)
            if self.encrypter is not None:
                # Nothing can be decrypted without the log's id. Now it is in two places.
                self._write_mark(self.durable)
        while True:
            if self._number >= NUMBER_MAX:
                raise LogError(
                    f"{self._directory.path} has a segment of the highest number there is, "
                    f"{segment_name(NUMBER_MAX)}, which no log gets to. Move that file away."
                )
            self._number += 1
            salt = self._new_salt()
            while salt in plain_head:
                salt = self._new_salt()
            header = SegmentHeader(
                self._number,
                self.log_id,
                self.next_lsn,
                self.oldest_lsn,
                self._owner.epoch,
                salt,
                self.encrypter is not None,
            )
            try:
                return SegmentWriter.create(self._directory, header, self.flushed)
            except FileExistsError:
                # A writer that has lost the log made it after we looked. If that is us, this
                # raises. If it was the one before us, ours takes the next number: being later,
                # it decides where that one's records end.
                self._owner.check()
            except FileNotFoundError:
                # A new owner clears away what is in the making. If that is why, this raises.
                self._owner.check()
                raise

    def _new_salt(self) -> bytes:
        # No zero bytes, so that runs of zeros are never candidates for a frame.
        return bytes(byte or 0xA5 for byte in self._files.random_bytes(4))

    # -- durability

    def commit(self, target: int) -> None:
        """Make records up to ``target`` durable; those who wait meanwhile share the next flush."""
        with self._sync_lock:
            with self._lock:
                self.check()
                writer, mark = self._writer, DurableMark(self.next_lsn - 1, self._snapshot)
            try:
                if self.flushed and self.durable.durable < target:
                    assert writer is not None  # something is not durable, so it is in a segment
                    writer.file.sync()
                    self._note_durable(mark)
                else:
                    self._owner.check()
            except BaseException as exc:
                # fsyncgate: the pages may be marked clean now, and the next flush would lie.
                self.fail(exc)
                raise

    def _note_durable(self, mark: DurableMark) -> None:
        # Whoever has lost the log neither acknowledges nor writes over the new owner's mark.
        self._owner.check()
        self.durable = mark
        if self._mark_file is not None:
            # After the flush, never before, and not flushed itself: it may lag, it never leads.
            self._write_mark(mark)

    def _write_mark(self, mark: DurableMark) -> None:
        assert self._mark_file is not None
        write_all(self._mark_file, encode_mark(self.log_id, self._owner.epoch, mark), 0)

    def _seal(self, writer: SegmentWriter, clean: bool) -> None:
        self._owner.check()
        self._drain()
        mark = DurableMark(self.next_lsn - 1, self._snapshot)
        if writer.dirty:
            writer.seal(mark, clean)
        writer.file.close()
        self._writer = None
        self._note_durable(mark)

    # -- retention

    def truncate(self, oldest_lsn: int, numbers: list[int]) -> None:
        """Remove the segments of these numbers, all of whose records are before ``oldest_lsn``.

        Each step is durable before the next: what is kept; a new segment whose header says that
        what is older went on purpose; only then the old ones go. So after a crash between any two
        steps nothing is missing that is not explained.
        """
        with self._sync_lock, self._lock:
            self.check()
            try:
                if self.oldest_lsn < oldest_lsn:
                    if self._writer is not None:
                        self._seal(self._writer, clean=False)
                    self.oldest_lsn = oldest_lsn
                    self._writer = self._new_segment(b"")
                # A new owner that has not seen this segment must find the old ones.
                self._owner.check()
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

        A failure that nobody was told of (of ``commit_behind``) is raised here at the latest.
        """
        with self._sync_lock, self._lock:
            if self._failed is not None:
                if self.failure_unreported:
                    self.check()
                return
            try:
                self._owner.check()
                if self._writer is not None and (self._writer.dirty or self._buffer):
                    self._seal(self._writer, clean=True)
                    if self._mark_file is not None:
                        self._mark_file.sync()
            finally:
                self.fail(LogError(f"{self._directory.path}: this EventLog is closed"))

    def close_files(self) -> None:
        """Close the files, whatever state they are in. The lock goes with the owner's."""
        with self._sync_lock, self._lock:  # two threads may close a log
            writer, mark_file = self._writer, self._mark_file
            self._writer = self._mark_file = None
        if writer is not None:
            writer.file.close()
        if mark_file is not None:
            mark_file.close()
        self._owner.close()

    def close_after_fork(self, reason: LogError) -> None:
        """In a forked child: no lock may be waited for (its holder is not here), only dropped."""
        self._lock, self._sync_lock = threading.Lock(), threading.Lock()
        self._failed = reason
        self.close_files()

    def check(self) -> None:
        """Raise when this writer has failed or is closed."""
        if self._failed is None:
            return
        self.failure_unreported = False
        if isinstance(self._failed, LogError):
            raise self._failed.with_traceback(None)
        raise WriterFailedError(
            f"{self._directory.path}: an earlier write failed ({self._failed!r}). Everything up "
            f"to LSN {self.durable.durable} is safe. Close this log and open it again to go on."
        ) from self._failed

    def fail(self, exc: BaseException) -> None:
        """Take no more; the first reason is kept."""
        if self._failed is None:
            self._failed = exc
            if isinstance(exc, OSError):
                exc.add_note(
                    f"{self._directory.path}: the log takes no more. Everything up to LSN "
                    f"{self.durable.durable} is safe. Remove the cause (free space, check the "
                    "disk), close this log and open it again to go on."
                )


def _rewrite_unflushed(file: File, tail: Tail) -> None:
    """Write again, unchanged, what is kept but was not known to be durable.

    If a flush of the writer before us has failed, the operating system may hold these bytes in
    memory alone and take them for written: they can be read, and a flush would do nothing. They
    are written as they were verified: read once more, they might come out wrong.
    """
    for offset, frame in tail.unflushed:
        write_all(file, frame, offset)
