"""Reading a log: takes no lock, writes nothing, works on a live, dead or damaged one."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType

from eventlog._errors import Damage, DamagedError, UnsupportedFormatError
from eventlog._files import Directory, Files
from eventlog._frame import FOOTER, HEADER_SIZE, SNAPSHOT, Frame, SegmentHeader
from eventlog._frame import decode_segment_header
from eventlog._owner import LOCK_NAME
from eventlog._record import Record, Snapshot, decode_payload
from eventlog._scan import End, Mark, Segment, start_of
from eventlog._segment import INDEX_STEP, digest_holds, read_footer, read_header, read_mark
from eventlog._segment import read_segment, segment_name, segment_number

_logger = logging.getLogger("eventlog")

POLL_S = 0.02  # how often a follower looks for more

OnDamage = Callable[[Damage], None]


@dataclass(frozen=True, slots=True)
class Place:
    """A segment as the listing and its header give it. ``first_lsn`` is 0 when it is unreadable.

    ``limit`` is the lowest first LSN of any later segment: they are what counts from there on.
    """

    number: int
    first_lsn: int
    limit: int | None
    header: SegmentHeader | None
    damage: Damage | None


@dataclass(frozen=True, slots=True)
class Tail:
    """Where a log ends. ``number`` is 0 for a log without segments."""

    number: int
    header: SegmentHeader | None
    offset: int
    next_lsn: int
    snapshot: int
    records: int
    size: int
    clean: bool
    torn_size: int
    torn_frames: int
    damaged: tuple[Damage, ...]
    index: list[tuple[int, int]]


class LogReader:
    """A read-only view of the log in a directory; made by ``EventLog.read``.

    Any number of readers may work beside a writer and each other. A reader sees records as soon
    as the writer's ``append`` has returned; after a power loss some of these may be gone.
    """

    def __init__(self, files: Files, directory: Directory) -> None:
        self.files, self._directory = files, directory
        self.path = directory.path
        self._headers: dict[int, SegmentHeader] = {}

    def __enter__(self) -> LogReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the directory. Reading afterwards raises OSError."""
        self._directory.close()

    def records(
        self, start: int = 1, follow: bool = False, on_damage: OnDamage | None = None
    ) -> Iterator[Record]:
        """Records from LSN ``start`` in order, snapshots among them.

        With ``follow`` the iteration waits for more at the end of the log, over segments and
        changes of writer, and ends only when its user leaves it. Damage raises DamagedError when
        it is reached, or is passed to ``on_damage``, and reading goes on behind it.
        """
        report = on_damage or self._raise
        position = _Position(start)
        while True:
            for item in self._walk(position):
                if isinstance(item, Damage):
                    if item.last_lsn >= start or not item.lost:
                        report(item)
                elif item.lsn >= start:
                    yield item
            if not follow:
                return
            while not self._grown(position):
                time.sleep(POLL_S)

    def snapshots(self, on_damage: OnDamage | None = None) -> Iterator[Snapshot]:
        """Verified snapshots, the newest first; a damaged one is passed over and reported."""
        for place in reversed(self._places(1)):
            if not place.first_lsn:
                continue
            segment, offset, lsn = self._load(place, place.first_lsn)
            footer = read_footer(segment.buf, segment.salt)
            if footer is not None and footer.snapshot < place.first_lsn:
                continue
            found = []
            for item in _decoded(segment, offset, lsn):
                if isinstance(item, Snapshot):
                    found.append(item)
                elif isinstance(item, Damage) and item.snapshot:
                    _logger.warning("%s: %s; an earlier one stands in", self.path, item)
                    if on_damage is not None:
                        on_damage(item)
            yield from reversed(found)

    def latest_snapshot(self) -> Snapshot | None:
        """The newest snapshot that verifies, or None. Nothing is deleted because one did not."""
        return next(self.snapshots(), None)

    def fetch(self, lsns: set[int]) -> dict[int, Record]:
        """The records of these LSNs that are there and sound; the others are left out."""
        found: dict[int, Record] = {}
        if not lsns:
            return found
        for place in self._places(min(lsns)):
            limit = place.limit or 1 << 64
            wanted = {lsn for lsn in lsns if place.first_lsn <= lsn < limit}
            if not wanted or not place.first_lsn:
                continue
            segment, offset, lsn = self._load(place, min(wanted))
            for item in _decoded(segment, offset, lsn):
                if isinstance(item, Record) and item.lsn in wanted:
                    found[item.lsn] = item
                    wanted.discard(item.lsn)
                    if not wanted:
                        break
        return found

    def tail(self) -> Tail:
        """Verify the last segment and say where the log ends."""
        places = self._places(1 << 63)
        number = places[-1].number if places else 0
        damaged = [place.damage for place in reversed(places) if place.damage is not None]
        place = next((place for place in places if place.first_lsn), None)
        if place is None:
            durable = self._mark().durable
            if durable:  # segments were there and none can be read, not even the header
                damaged.append(Damage(number, 0, 0, 1, durable, "no segment is readable"))
            return Tail(number, None, 0, durable + 1, 0, 0, 0, False, 0, 0, tuple(damaged), [])
        segment, offset, lsn = self._load(place, place.first_lsn)
        segment.limit = None
        footer = read_footer(segment.buf, segment.salt)
        size = len(segment.buf)
        if footer is not None and footer.next_lsn > self._mark().durable:
            if digest_holds(segment.buf, footer) and not damaged:
                count = footer.next_lsn - place.first_lsn
                return Tail(number, place.header, size, footer.next_lsn, footer.snapshot,
                            count, size, footer.clean, 0, 0, (), footer.index)  # fmt: skip
        frames, end = [], End(offset, lsn, 0, 0)
        for item in segment.walk(offset, lsn):
            if isinstance(item, Damage):
                damaged.append(item)
            elif isinstance(item, End):
                end = item
            else:
                frames.append(item[0])
        clean = bool(frames) and frames[-1].kind == FOOTER and footer is not None and footer.clean
        return Tail(number, place.header, end.offset, end.next_lsn, _newest_snapshot(frames),
                    sum(frame.count for frame in frames), size, clean, end.torn_size,
                    end.torn_frames, tuple(damaged), _index(place, frames))  # fmt: skip

    def last_epoch(self) -> int:
        """The highest epoch that a segment was written under; 0 when none can be read."""
        headers = (self._header(number) for number in reversed(self.numbers()))
        return next((header.epoch for header in headers if header is not None), 0)

    def log_id(self) -> bytes | None:
        """The id that all segments of this log share; None when there is none to be read."""
        mark = read_mark(self._directory)
        if mark is not None:
            return mark[0]
        return next((p.header.log_id for p in self._places(1) if p.header is not None), None)

    def numbers(self) -> list[int]:
        """The numbers of the segments that are there, in order."""
        found = (segment_number(name) for name in self._directory.names())
        return sorted(number for number in found if number is not None)

    def _raise(self, damage: Damage) -> None:
        raise DamagedError(self.path, damage)

    def _mark(self) -> Mark:
        """What the mark file vouches for.

        A mark of an older epoch than the last segment's was left, or written late, by a writer
        that had lost the log: its LSNs are not this log's.
        """
        found = read_mark(self._directory)
        numbers = self.numbers()
        if found is None:
            return Mark()
        last = self._header(numbers[-1]) if numbers else None
        return found[2] if last is None or found[1] >= last.epoch else Mark()

    def _header(self, number: int) -> SegmentHeader | None:
        if number not in self._headers:
            header = read_header(self._directory, number)
            if header is None:
                return None
            self._headers[number] = header
        return self._headers[number]

    def _places(self, start: int) -> list[Place]:
        """The segments that hold records from ``start`` on, in order; at least the last one.

        Walks back from the newest, so that the cost is in the tail, not in the history.
        """
        mark = read_mark(self._directory)
        numbers = self.numbers()
        if not numbers and self._directory.identity(LOCK_NAME) is None:
            raise UnsupportedFormatError(f"{self.path} is not a log: it has no segments")
        places: list[Place] = []
        log_id, limit = (mark[0] if mark else None), None
        for number in reversed(numbers):
            place, log_id = self._place(number, limit, log_id)
            places.append(place)
            if place.first_lsn:
                limit = min(place.first_lsn, limit or place.first_lsn)
                if place.first_lsn <= start:
                    break
        return places[::-1]

    def _place(
        self, number: int, limit: int | None, log_id: bytes | None
    ) -> tuple[Place, bytes | None]:
        header = self._header(number)
        if header is not None:
            if header.number == number and header.log_id == (log_id or header.log_id):
                return Place(number, header.first_lsn, limit, header, None), header.log_id
            what = "a segment of another log, or under another number"
            return Place(number, 0, limit, None, Damage(number, 0, 0, 1, 0, what)), log_id
        # A segment gets its name after its header is durable: no crash leads here.
        start = start_of(read_segment(self._directory, number), number)
        what = "segment header fails its CRC" + ("" if start else "; no frame found")
        damage = Damage(number, 0, HEADER_SIZE, 1, 0, what)
        return Place(number, start[1] if start else 0, limit, None, damage), log_id

    def _load(self, place: Place, lsn: int) -> tuple[Segment, int, int]:
        """The segment, with an offset from which to walk to ``lsn`` and the LSN found there.

        The mark is read before the bytes: what it vouches for was written before.
        """
        mark = self._mark()
        buf = read_segment(self._directory, place.number)
        header = decode_segment_header(buf)
        start = start_of(buf, place.number)
        salt = header.salt if header is not None else start[0] if start is not None else b""
        segment = Segment(place.number, buf, salt, mark, place.limit)
        footer = read_footer(buf, salt)
        if footer is not None and lsn > place.first_lsn:
            at, offset = footer.offset_before(lsn)
            if at <= lsn and place.first_lsn <= at:
                return segment, offset, at
        return segment, HEADER_SIZE, place.first_lsn

    def _walk(self, position: _Position) -> Iterator[Record | Damage]:
        """All that there is from ``position`` on, which moves along."""
        places = self._places(position.lsn)
        expected = position.lsn
        for place in places:
            if place.number < position.number:
                continue
            if place.damage is not None:
                yield place.damage
            if not place.first_lsn:
                continue
            if place.number != position.number:
                position.number, position.offset = place.number, 0
                oldest = place.header.oldest_lsn if place.header else 1
                expected = max(expected, oldest)
                if place.first_lsn > expected:
                    yield self._missing(place, expected)
            yield from self._walk_place(place, position)
            expected = max(expected, position.lsn)

    def _missing(self, place: Place, expected: int) -> Damage:
        before = [n for n in self.numbers() if n < place.number]
        gap = not before or before[-1] != place.number - 1
        what = f"{segment_name(place.number - 1)} is missing" if gap else "records are missing"
        return Damage(place.number, 0, 0, expected, place.first_lsn - 1, what)

    def _walk_place(self, place: Place, position: _Position) -> Iterator[Record | Damage]:
        reread = False
        while True:
            segment, offset, lsn = self._load(place, position.lsn)
            if position.offset:
                offset, lsn = position.offset, position.lsn
            for item in _decoded(segment, offset, lsn, position):
                if isinstance(item, Damage) and place.limit is None and not reread:
                    # The writer may have been at work between the pages of our reading: what a
                    # later frame vouches for was written by then, so a second look decides.
                    reread = True
                    break
                yield item
            else:
                return

    def _grown(self, position: _Position) -> bool:
        numbers = self.numbers()
        if not numbers or numbers[-1] > position.number:
            return bool(numbers)
        file = self._directory.open(segment_name(position.number))
        try:
            return any(file.pread(48, position.offset))
        finally:
            file.close()


class _Position:
    """How far a reader has come: the next LSN, and where it starts when ``offset`` is not 0."""

    def __init__(self, lsn: int) -> None:
        self.lsn, self.number, self.offset = lsn, 0, 0


def _decoded(
    segment: Segment, offset: int, lsn: int, position: _Position | None = None
) -> Iterator[Record | Damage]:
    """The walk as records. ``position`` is moved behind each frame before it is yielded."""
    position = position or _Position(lsn)
    for item in segment.walk(offset, lsn):
        if isinstance(item, End):
            position.offset, position.lsn = item.offset, item.next_lsn
            return
        records: list[Record] | None = []
        if isinstance(item, Damage):
            yield item
            end, after = item.offset + item.size, max(position.lsn, item.last_lsn + 1)
        else:
            frame, payload = item
            end, after = frame.end, frame.lsn + frame.count
            if frame.kind != FOOTER:
                records = decode_payload(frame, payload)
            if records is None:
                what = "payload is not what its header says"
                yield Damage(segment.number, frame.offset, end - frame.offset, frame.lsn,
                             after - 1, what, frame.kind == SNAPSHOT)  # fmt: skip
        position.offset, position.lsn = end, after
        yield from records or ()


def _newest_snapshot(frames: list[Frame]) -> int:
    if not frames:
        return 0
    return frames[-1].lsn if frames[-1].kind == SNAPSHOT else frames[-1].snapshot


def _index(place: Place, frames: list[Frame]) -> list[tuple[int, int]]:
    index = [(place.first_lsn, HEADER_SIZE)]
    for frame in frames:
        if frame.offset - index[-1][1] >= INDEX_STEP:
            index.append((frame.lsn, frame.offset))
    return index
