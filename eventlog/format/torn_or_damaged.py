"""Decides whether bytes of a segment that are not a sound frame are torn or damaged. Pure.

The decision depends on which records were known to be durable, not on their position:

* A crash leaves unsynced bytes written, missing or torn, in any order. Bytes that are not a sound
  frame, and were never known to be durable, were never acknowledged: they are a torn tail. So is
  everything after them, because a log is a prefix of what was appended.
* A crash cannot harm bytes that were synced. If the first bad frame is where a record known to be
  durable must be, the log was damaged later. That is reported, and never cut.

Two sources say what is durable. The first is the caller: the mark file, a footer, or the existence
of a later segment. The second is the durable mark in the header of each later frame, written after
the flush that it reports. A mark may lag, but never leads. So a torn tail is never reported as
damage. Damage is taken for a torn tail only if every mark that covers it is lost as well.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator

from eventlog.errors import Damage, UnsupportedFormatError
from eventlog.format.durable_mark import DurableMark
from eventlog.format.frame import (
    BEYOND,
    FOOTER,
    HEADER_SIZE,
    KINDS,
    SNAPSHOT,
    Frame,
    contains_salt,
    frame_at,
    frames_ahead,
    payload_of,
    sound_frames,
)
from eventlog.light_dataclass import light_dataclass


@light_dataclass
class End:
    """Where the sound part of a segment ends, and how much comes after it.

    ``torn_size``: bytes up to the last one that is not zero (zeros are preallocated space).
    ``torn_frames``: whole frames among them, written out of order, which do not count.
    """

    offset: int
    next_lsn: int
    torn_size: int
    torn_frames: int


class Segment:
    """The bytes of one segment from ``base`` on, and what is known of it from outside.

    ``mark``: the highest durable LSN and the newest durable snapshot, as the mark file has them.

    ``superseded_at``: the first LSN that a later segment holds. What is before it was made durable
    before that segment was created. Frames from there on never count: a crash left them, or a
    writer that had lost the log wrote them.

    ``successor_unreadable``: there is a later segment, but it cannot be read. So the first LSN of
    its records is unknown.
    """

    def __init__(
        self,
        number: int,
        buf: bytes,
        salt: bytes,
        mark: DurableMark,
        superseded_at: int | None,
        base: int = 0,
    ) -> None:
        self.number, self.buf, self.salt, self.base = number, buf, salt, base
        self.end = base + len(buf)
        self.mark, self.superseded_at, self.successor_unreadable = mark, superseded_at, False
        self._ahead: list[Frame] | None = None
        self._order: list[Frame] | None = None
        self._offsets: list[int] = []
        self._marks: list[int] = []

    def walk(
        self, offset: int, lsn: int, wanted: Callable[[Frame], bool] | None = None
    ) -> Iterator[tuple[Frame, bytes] | Damage | End]:
        """Frames with their payloads from ``offset``, where record ``lsn`` is expected.

        Yields sound frames and damage in order, and one End last. Frames that are not ``wanted``
        are skipped, and their payloads are not read.
        """
        while self.superseded_at is None or lsn < self.superseded_at:
            if self.successor_unreadable and lsn > self._durable_by_frames(offset):
                # A writer that had lost the log may have written what is here.
                what = "from here on, records that count look like records that do not"
                last = max(lsn - 1, self._durable_up_to(offset))
                yield self._damage(offset, self.end, lsn, last, what)
                offset, lsn = self.end, last + 1
                break
            if wanted is None and not self.successor_unreadable:
                superseded_at = BEYOND if self.superseded_at is None else self.superseded_at
                offset, lsn = yield from sound_frames(
                    self.buf, self.base, (offset, lsn), superseded_at, self.salt
                )
                if lsn >= superseded_at:
                    break
            frame = frame_at(self.buf, offset, self.salt, self.base)
            if frame is not None and frame.lsn != lsn:
                frame = None
            passed_over = frame is not None and wanted is not None and not wanted(frame)
            if frame is not None and passed_over and self._is_passable(frame):
                offset, lsn = frame.end, lsn + frame.count
                continue
            payload = None
            if frame is not None:
                payload = payload_of(self.buf, frame, self.salt, self.base)
            if frame is not None and payload is not None:
                padding = any(self.between(frame.payload_end, frame.end))
                # A crash may leave old bytes in the padding too: then the frame is torn.
                if not padding or lsn <= self._durable_up_to(offset):
                    self._check_kind(frame)
                    yield frame, payload
                    if padding:
                        yield self._damage(offset, frame.end, lsn, lsn - 1, "padding is not zero")
                    offset, lsn = frame.end, lsn + frame.count
                    continue
            known = self._durable_up_to(offset)
            if lsn > known:
                # Crash: this frame and all after it were appended, but no flush that covers them
                # had returned. They were never acknowledged, so cutting them loses nothing.
                break
            # No crash leads here: a flush that covered this record had returned.
            damage = self._damage_at(frame, offset, lsn, known)
            yield damage
            offset, lsn = damage.offset + damage.size, max(lsn, damage.last_lsn + 1)
        yield self._end(offset, lsn)

    def _is_passable(self, frame: Frame) -> bool:
        """Whether the frames after this one count, whatever its payload holds."""
        # A frame that was never durable may be torn, and then the log ends with it. No payload
        # contains the salt: if this one does, another frame was written over a part of it.
        durable = self.superseded_at is not None or frame.lsn + frame.count - 1 <= self.mark.durable
        inside = self.between(frame.payload_offset, frame.end)
        return durable and frame.end <= self.end and not contains_salt(inside, self.salt)

    def between(self, start: int, end: int) -> bytes:
        return self.buf[start - self.base : end - self.base]

    def durable_up_to(self) -> int:
        """The highest LSN that any source calls durable, as far as the walk has come."""
        return self._durable_up_to(self.base)

    def _check_kind(self, frame: Frame) -> None:
        kind = frame.kind | frame.flags
        if kind not in KINDS:
            raise UnsupportedFormatError(
                f"segment {self.number}, offset {frame.offset}: frame kind {kind:#x}; "
                "the log is not damaged, it was written by a newer library"
            )

    def _damage_at(self, frame: Frame | None, offset: int, lsn: int, known: int) -> Damage:
        found = self._next_in_order(offset, lsn)
        # As in _is_passable.
        whole = found is None or frame is None or frame.end <= found.offset
        if frame is not None and whole and frame.end <= self.end:
            # The header has a CRC of its own, and is sound: so the size of the loss is known.
            last = lsn + frame.count - 1
            snapshot = frame.kind == SNAPSHOT
            what = {SNAPSHOT: "snapshot", FOOTER: "footer"}.get(frame.kind, "record")
            return self._damage(offset, frame.end, lsn, last, f"{what} fails its CRC", snapshot)
        # A record that was never durable does not say where the log continued.
        if found is not None and found.lsn <= known + 1:
            what = "gap in LSNs" if found.offset == offset else "bytes that are no frame"
            snapshot = found.lsn == lsn + 1 and found.snapshot == lsn
            return self._damage(offset, found.offset, lsn, found.lsn - 1, what, snapshot)
        snapshot = lsn == known == self.mark.snapshot
        what = "nothing sound from here on"
        # A segment may be truncated in the padding of its last sound frame.
        return self._damage(min(offset, self.end), self.end, lsn, known, what, snapshot)

    def _next_in_order(self, offset: int, lsn: int) -> Frame | None:
        """The frame at or after ``offset`` that continues the log, from ``lsn`` at least."""
        if self._order is None:  # at the first damage: everything before it is sound
            self._order = _in_order(list(self._frames_ahead(offset)), lsn)
        first = bisect_left(self._order, offset, key=lambda frame: frame.offset)
        for i in range(first, len(self._order)):
            found = self._order[i]
            if found.lsn >= lsn and (found.offset, found.lsn) != (offset, lsn):
                return found
        return None

    def _durable_up_to(self, offset: int) -> int:
        """The highest LSN that the caller, or a frame at or after ``offset``, calls durable."""
        if self.superseded_at is not None:
            return self.superseded_at - 1
        return max(self.mark.durable, self._durable_by_frames(offset))

    def _durable_by_frames(self, offset: int) -> int:
        """The highest LSN that a frame at or after ``offset`` calls durable."""
        first = self._index(offset)
        return self._marks[first] if first < len(self._marks) else 0

    def _frames_ahead(self, offset: int) -> Iterator[Frame]:
        first = self._index(offset)
        assert self._ahead is not None
        return (self._ahead[i] for i in range(first, len(self._ahead)))

    def _index(self, offset: int) -> int:
        # Collected once, at the first bad frame: a segment full of damage costs one search.
        if self._ahead is None:
            self._ahead = list(frames_ahead(self.buf, offset, self.salt, self.base))
            self._offsets = [frame.offset for frame in self._ahead]
            highest = 0
            for frame in reversed(self._ahead):
                highest = max(highest, frame.durable)
                self._marks.append(highest)
            self._marks.reverse()
        return bisect_left(self._offsets, offset)

    def _damage(
        self, offset: int, end: int, first: int, last: int, what: str, snapshot: bool = False
    ) -> Damage:
        return Damage(self.number, offset, end - offset, first, last, what, snapshot)

    def _end(self, offset: int, lsn: int) -> End:
        if self.superseded_at is not None:
            return End(offset, lsn, 0, 0)
        torn = len(self.between(offset, self.end).rstrip(b"\0"))
        return End(offset, lsn, torn, self._whole_frames(offset) if torn else 0)

    def _whole_frames(self, offset: int) -> int:
        """How many frames from ``offset`` on are complete with their payloads."""
        ahead = [*self._frames_ahead(offset)]
        ends = [*(frame.offset for frame in ahead[1:]), self.end]
        # Payloads that overlap the next frame are skipped: else forged frames cost quadratic time.
        return sum(
            frame.end <= end and payload_of(self.buf, frame, self.salt, self.base) is not None
            for frame, end in zip(ahead, ends, strict=False)
        )


def _in_order(frames: list[Frame], lsn: int) -> list[Frame]:
    """As many of the frames as are in ascending order of LSNs, from ``lsn`` on.

    In a sound log these are all frames. A disk that wrote to a wrong offset leaves copies of frames
    over others. Continuing at the first copy would lose the frames between. This returns the
    longest ascending subsequence; of equal ones, the later.
    """
    tops: list[tuple[int, bool]] = []  # the lowest key that ends a sequence of each length
    ends: list[int] = []  # and the index of its frame
    before: list[int] = []
    for i, frame in enumerate(frames):
        place = (frame.lsn, frame.kind != FOOTER)  # a footer has the LSN of the record after it
        length = bisect_left(tops, place)
        before.append(ends[length - 1] if length else -1)
        if frame.lsn >= lsn:
            tops[length : length + 1] = [place]
            ends[length : length + 1] = [i]
    order: list[Frame] = []
    at = ends[-1] if ends else -1
    while at >= 0:
        order.append(frames[at])
        at = before[at]
    return order[::-1]


def start_of(buf: bytes) -> tuple[bytes, int] | None:
    """Salt and first LSN of a segment whose header is damaged, from its first frame.

    Every frame starts with the salt, so the header is not the only place that has it.
    """
    salt = buf[HEADER_SIZE : HEADER_SIZE + 4]
    frame = frame_at(buf, HEADER_SIZE, salt) if len(salt) == 4 else None
    return None if frame is None else (salt, frame.lsn)
