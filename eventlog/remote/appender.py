"""Appends frames to a log on a server: collects them in memory until the next commit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from eventlog.crypto.encrypter import Encrypter
from eventlog.errors import FencedError, LogError, WriterFailedError
from eventlog.format.durable_mark import DurableMark
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
from eventlog.remote.directory import RemoteDirectory
from eventlog.remote.log_server import Batch, Head, Label, Piece
from eventlog.remote.owner_processes import former_owners

SEGMENT_SIZE = 1 << 20  # an old record is found by reading one


class Commits(Protocol):
    """What sends the batches: see eventlog.remote.group_commit."""

    def commit_and_wait(
        self, appender: RemoteAppender, target: int, everything: bool = False
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Ownership:
    """Under which epoch this process appends; see WritableLog."""

    epoch: int
    head: Head  # as of the claim

    @property
    def former(self) -> bool:
        """Whether an owner before did not release the log."""
        return bool(self.head.lost)

    def living_former(self) -> str:
        """See WritableLog.former_owner."""
        return former_owners(self.head)


class RemoteAppender:
    """Appends frames and commits them. Thread-safe.

    Invariants: LSNs are assigned under ``_lock``. At most one batch is on its way; it stays as it
    is until its outcome is known, so sending it again appends nothing twice. ``durable`` is raised
    only when the server has answered.
    """

    def __init__(
        self,
        committer: Commits,
        directory: RemoteDirectory,
        head: Head,
        encrypter: Encrypter | None,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        self._committer, self._directory, self._random_bytes = committer, directory, random_bytes
        self._key, self.log_id, self.encrypter = head.key, head.log_id, encrypter
        self.owner = Ownership(head.epoch, head)
        self.next_lsn, self.oldest_lsn = head.next_lsn, head.oldest_lsn
        self.durable = DurableMark(head.next_lsn - 1, head.snapshot)
        self.segment_size = SEGMENT_SIZE
        self.failure_unreported = False
        self.wakes = ""  # the log whose owner is to look at this one after each commit
        self._lock = threading.Lock()
        self._failed: BaseException | None = None
        self._snapshot, self._tail = head.snapshot, head.first if head.snapshot else 0
        self._number, self._end = head.number, head.end
        self._header: SegmentHeader | None = None  # of the segment that is appended to
        self._pieces: list[tuple[int, int, list[bytes]]] = []  # not sent yet
        self._label: Label | None = None
        self._keep_from = 0
        self._releases = self._acts = False
        self._on_its_way: Batch | None = None

    @property
    def has_begun(self) -> bool:
        """Whether there is or was a segment: else nothing was ever appended."""
        return self._number > 0 or self.next_lsn > 1

    @property
    def is_open(self) -> bool:
        return self._failed is None

    def resume_segment(self, header: SegmentHeader) -> None:
        """Append to the last segment, which other processes append to as well, one by one."""
        self._header = header

    # -- appending

    def append(self, kind: int, count: int, payload: bytes, label: Label | None = None) -> int:
        """Append one frame of ``count`` records; returns the LSN of the first."""
        encrypter, plain_head = self.encrypter, payload
        size = FRAME_SIZE + len(payload)
        if encrypter is not None:
            encrypter.check_size(payload)
            size, plain_head = size + encrypter.overhead, encrypter.head
        with self._lock:
            self.check()
            header, lsn = self._header, self.next_lsn
            is_full = self._end + size + -size % ALIGNMENT > self.segment_size
            if (
                header is None
                or (is_full and self._end > HEADER_SIZE)
                or contains_salt(plain_head, header.salt)
            ):
                header = self._begin_segment(plain_head)
            marks = (lsn, self.durable.durable, self._snapshot)
            if encrypter is not None:
                kind |= ENCRYPTED
                place = Frame(0, 0, kind, *marks, count, 0, 0, header.salt)
                payload = encrypter.encrypt(header, place, payload)
            self._put(encode_frame(header.salt, kind, count, payload, marks))
            self.next_lsn = lsn + count
            if kind & ~ENCRYPTED == SNAPSHOT:
                self._snapshot, self._tail = lsn, self._number
            self._label = label or self._label
            return lsn

    def _begin_segment(self, plain_head: bytes) -> SegmentHeader:
        """Begin a segment whose salt is not in ``plain_head``. It is sent with its first frame."""
        if self._number >= NUMBER_MAX or self.next_lsn > LSN_MAX // 2:
            raise LogError(f"{self._directory.path} is full: no log gets to so many segments")
        if self._header is not None and not self._pieces and self._on_its_way is None:
            self._directory.forget(self._number)
        self._number, self._end = self._number + 1, 0
        self._header = SegmentHeader(
            self._number,
            self.log_id,
            self.next_lsn,
            self.oldest_lsn,
            self.owner.epoch,
            new_salt(self._random_bytes, plain_head),
            self.encrypter is not None,
        )
        self._put(self._header.encode())
        return self._header

    def _put(self, data: bytes) -> None:
        if not self._pieces or self._pieces[-1][0] != self._number:
            self._pieces.append((self._number, self._end, []))
        self._pieces[-1][2].append(data)
        self._end += len(data)
        self._directory.extend(self._number, data)

    def drain(self) -> None:
        """Nothing to do: readers of this process see what is in memory."""
        with self._lock:
            self.check()

    # -- durability

    def commit(self, target: int) -> None:
        """Make records up to ``target`` durable; one statement for all logs that wait."""
        self.check()
        self._committer.commit_and_wait(self, target)
        if self.durable.durable < target:
            self.check()

    def take(self, renews: bool) -> Batch | None:
        """What is to be sent now; None if nothing is. ``renews``: the lease has to be renewed."""
        with self._lock:
            if self._on_its_way is not None:
                return self._on_its_way
            pending = self._pieces or self._label or self._keep_from or self._releases
            if self._failed is not None or not (pending or renews):
                return None
            self._on_its_way = Batch(
                self._key,
                self.owner.epoch,
                self.durable.durable + 1,
                self.next_lsn,
                self.oldest_lsn,
                self._snapshot,
                self._tail,
                self._number,
                self._end,
                tuple(Piece(number, at, b"".join(data)) for number, at, data in self._pieces),
                self._keep_from,
                self._label,
                self._releases,
                self.wakes if self._pieces else "",
            )
            self._pieces, self._label, self._keep_from = [], None, 0
            return self._on_its_way

    def settle(self, batch: Batch) -> None:
        """The server has the batch."""
        with self._lock:
            self.durable = DurableMark(batch.next_lsn - 1, batch.snapshot)
            self._on_its_way = None

    def refuse(self, error: BaseException) -> None:
        """The batch is not on the server, and will not be; or nothing is known, and patience is
        over."""
        self.failure_unreported = True
        self.fail(error)

    # -- retention

    def roll(self) -> None:
        """Have the next frame begin another segment."""
        with self._lock:
            self.check()
            self._header = None

    def truncate(self, oldest_lsn: int, numbers: list[int]) -> None:
        """Remove the segments of these numbers, all of whose records are before ``oldest_lsn``."""
        with self._lock:
            self.check()
            self.oldest_lsn = max(self.oldest_lsn, oldest_lsn)
            self._begin_segment(b"")  # its header says why the others are gone
            self._keep_from = max(numbers) + 1
        self.commit(self.next_lsn - 1)
        self._directory.drop_before(max(numbers) + 1)

    # -- the end

    def close(self) -> None:
        """Commit, and release the log. A failure that no caller was given is raised here."""
        with self._lock:
            if self._failed is not None:
                if self.failure_unreported:
                    self.check()
                return
            self._releases = not self._acts  # else the lease runs out by itself
        try:
            self._committer.commit_and_wait(self, self.next_lsn - 1, everything=True)
            self.check()
        finally:
            self.fail(LogError(f"{self._directory.path}: this log is closed"))

    def may_still_act(self, acts: bool) -> None:
        """See WritableLog.may_still_act."""
        self._acts = acts

    def close_files(self) -> None:
        """Let go without a word: the lease runs out by itself."""
        self.fail(LogError(f"{self._directory.path}: this log is closed"))

    def close_after_fork(self, reason: LogError) -> None:
        """Close in a forked child. Threads of the parent may hold the lock, so replace it."""
        self._lock, self._failed = threading.Lock(), reason

    def check(self) -> None:
        """Raise when this writer has failed or is closed."""
        if self._failed is None:
            return
        self.failure_unreported = False
        if isinstance(self._failed, LogError):
            raise self._failed.with_traceback(None)
        raise WriterFailedError(
            f"{self._directory.path}: an earlier commit failed ({self._failed!r}). Everything up "
            f"to LSN {self.durable.durable} is safe. To continue, close this log and claim it "
            "again."
        ) from self._failed

    def failure(self) -> Exception | None:
        """What ``check`` would raise."""
        try:
            self.check()
        except LogError as exc:
            return exc
        return None

    def waits_for(self, batch: Batch) -> bool:
        """Whether the outcome of the batch is unknown."""
        return self._on_its_way is batch and self._failed is None

    def fail(self, exc: BaseException) -> None:
        """Refuse further records; the first reason is kept."""
        if self._failed is None:
            self._failed = exc

    def fenced(self, head: Head | None) -> FencedError:
        """The error for a batch that the server has refused. ``head``: None if it has none, or
        could not be asked."""
        if head is None:
            what = "was removed, or taken over by another process"
        elif head.key != self._key:
            what = "was removed"
        else:
            what = (
                f"was taken over by process {head.owner.pid} on {head.owner.host} "
                f"(epoch {head.epoch}, ours {self.owner.epoch})"
            )
        return FencedError(
            f"{self._directory.path} {what}. What was committed before is kept; what was appended "
            "since does not count."
        )

    @property
    def name(self) -> str:
        return self._directory.head.name
