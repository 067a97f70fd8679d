"""Lists the segments of a log by their names and headers."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

from eventlog.errors import Damage, UnsupportedFormatError
from eventlog.files.api import Directory
from eventlog.files.lock import LOCK_NAME
from eventlog.format.durable_mark import DurableMark
from eventlog.format.frame import BEYOND, HEADER_SIZE, Frame, SegmentHeader
from eventlog.format.names import segment_number
from eventlog.light_dataclass import light_dataclass
from eventlog.read.segment_files import (
    identify,
    read_first_frame,
    read_header,
    read_mark,
    read_segment,
)

T = TypeVar("T")

# How often a question is asked again when a segment is gone between listing and opening
# (truncate_before). More segments than that are not removed meanwhile. The bound ends the retries
# when a name cannot be opened at all.
RETRIES_MAX = 1000

# The system lists a directory in pieces of 32 KiB; names may change between two pieces.
NAMES_AT_ONCE = 500


@light_dataclass
class SegmentInfo:
    """A segment as the listing and its header give it. ``first_lsn`` is 0 when it is unreadable.

    ``superseded_at``: the lowest first LSN of any later segment. From there on the later segments
    count, and this one does not. ``oldest_lsn``: of the log; older records were removed on purpose.
    """

    number: int
    first_lsn: int
    superseded_at: int | None
    header: SegmentHeader | None
    damage: Damage | None
    oldest_lsn: int
    successor_unreadable: bool = False  # whether the segment after it cannot be read at all


class Listing:
    """The segments in a directory, listed again for each question. Headers are cached.

    Thread-safe: caches are replaced as a whole. Each answer is consistent, whatever is removed
    meanwhile, except for the iterator of ``newest_first``.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._headers: dict[int, SegmentHeader] = {}
        self._listed: tuple[list[str], list[int]] = [], []

    def last_epoch(self) -> int:
        """The highest epoch that a segment was written under; 0 when none can be read."""
        return retried(self._last_epoch)

    def _last_epoch(self) -> int:
        headers = (self.header(number) for number in reversed(self.numbers()))
        return next((header.epoch for header in headers if header is not None), 0)

    def log_id(self) -> bytes | None:
        """The id that all segments of this log share; None when none can be read."""
        return retried(lambda: self._marked_id(self.numbers()))

    def _marked_id(self, numbers: list[int]) -> bytes | None:
        mark = read_mark(self._directory)
        return self._log_id(mark[0] if mark else None, numbers)

    def oldest_lsn(self) -> int:
        """Records before this LSN were removed on purpose; the newest readable header says so."""
        return retried(self._oldest_now)

    def _oldest_now(self) -> int:
        numbers = self.numbers()
        return self._oldest_lsn(self._marked_id(numbers), numbers)

    def first_frame(self, number: int) -> tuple[Frame | None, bytes]:
        """The first frame of a segment and its payload; None when it is not there or not sound."""
        return read_first_frame(self._directory, number)

    def first_encrypted(self) -> int:
        """The number of the first segment of this log that is encrypted; 0 when none is."""
        return retried(self._first_encrypted)

    def _first_encrypted(self) -> int:
        numbers = self.numbers()
        log_id = self._marked_id(numbers)
        for number in numbers:
            header = self.header(number)
            if header is not None and header.encrypted and header.log_id == log_id:
                return number
        return 0

    def before(self, lsn: int) -> tuple[int, list[int]]:
        """The segments that hold only records before ``lsn``, and the first LSN after them.

        Includes only segments that certainly belong to this log: an unreadable one is kept.
        """
        return retried(lambda: self._before(lsn))

    def _before(self, lsn: int) -> tuple[int, list[int]]:
        numbers = self.numbers()
        kept = self._segments_from(lsn)[1][0] if numbers else None
        if kept is None or kept.header is None:
            return 0, []
        earlier = ((n, self.header(n)) for n in numbers if n < kept.number)
        ours = [
            number
            for number, header in earlier
            if header and (header.number, header.log_id) == (number, kept.header.log_id)
        ]
        return kept.first_lsn, ours

    def numbers(self) -> list[int]:
        """The numbers of the existing segments, in order."""
        known, numbers = self._listed
        names = self._directory.names()
        if names != known:
            numbers = _numbers(names)
            while len(names) > NAMES_AT_ONCE:
                # A segment is removed only after a newer one, whose header says so, was made. If a
                # second listing has no newer segment, the first one explains what is missing.
                second = self._directory.names()
                if max(_numbers(second), default=0) == max(numbers, default=0):
                    break
                names, numbers = second, _numbers(second)
            self._listed = names, numbers
        return numbers[:]

    def header(self, number: int) -> SegmentHeader | None:
        """The header of a segment; None when it is damaged."""
        if number not in self._headers:
            header = read_header(self._directory, number)
            if header is None:
                return None
            self._headers[number] = header
        return self._headers[number]

    def segments_from(self, start: int) -> tuple[DurableMark, list[SegmentInfo]]:
        """The durable mark, and the segments with records from ``start`` on, in order.

        At least the last segment is among them. Starts at the newest segment, so the cost depends
        on the tail, not on the history. Reads the mark before the listing, and both before any
        other bytes: so the records that the mark covers are in these files, whatever a writer does.
        """
        return retried(lambda: self._segments_from(start))

    def _segments_from(self, start: int) -> tuple[DurableMark, list[SegmentInfo]]:
        mark, newest_first = self.newest_first()
        infos: list[SegmentInfo] = []
        for info in newest_first:
            infos.append(info)
            if 0 < info.first_lsn <= start:
                break
        return mark, infos[::-1]

    def newest_first(self) -> tuple[DurableMark, Iterator[SegmentInfo]]:
        """The mark, and the segments from the newest to the oldest, each header read when needed.

        The iterator raises FileNotFoundError for a segment that was removed since it was listed.
        """
        found = read_mark(self._directory)
        numbers = self.numbers()
        if not numbers and self._directory.identity(LOCK_NAME) is None:
            raise UnsupportedFormatError(f"{self._directory.path} is not a log: it has no segments")
        log_id = self._log_id(found[0] if found else None, numbers)
        foreign_mark = found is not None and found[0] != (log_id or found[0])
        mark = found[2] if found is not None and not foreign_mark else DurableMark()
        headers = (self._ours(number, log_id) for number in reversed(numbers))
        last = next((header for header in headers if header is not None), None)
        if found is not None and last is not None and found[1] < last.epoch:
            # A mark whose epoch is older than the last segment's was left, or written late, by a
            # writer that had lost the log. It is not about the records of this log.
            mark = DurableMark()
        return mark, self._newest_first(numbers, log_id, foreign_mark)

    def _newest_first(
        self, numbers: list[int], log_id: bytes | None, foreign_mark: bool
    ) -> Iterator[SegmentInfo]:
        superseded_at, oldest = None, self._oldest_lsn(log_id, numbers)
        successor_unreadable = False
        for number in reversed(numbers):
            info = self._segment_info(number, superseded_at, log_id, oldest)
            if foreign_mark:
                info, foreign_mark = _with_foreign_mark(info), False
            yield replace(info, successor_unreadable=True) if successor_unreadable else info
            successor_unreadable = not info.first_lsn
            if info.first_lsn:
                superseded_at = min(info.first_lsn, superseded_at or info.first_lsn)
                if info.first_lsn <= oldest and oldest > 1:
                    return

    def segments_with(self, lsns: set[int]) -> tuple[DurableMark, list[SegmentInfo]]:
        """As ``segments_from``, but only the segments that can hold one of these records.

        Reads few headers, however many segments there are.
        """
        return retried(lambda: self._segments_with(lsns))

    def _segments_with(self, lsns: set[int]) -> tuple[DurableMark, list[SegmentInfo]]:
        mark, infos = self._segments_from(BEYOND)
        if not infos or not infos[0].first_lsn:
            return mark, infos
        last, found = infos[0], {info.number: info for info in infos}
        behind = last.oldest_lsn
        for lsn in sorted(lsns):
            if behind <= lsn < last.first_lsn:  # else in a segment that was found
                info = self._search(lsn, last)
                if info is None:
                    return self._segments_from(min(lsns))
                found[info.number], behind = info, info.superseded_at or last.first_lsn
        return mark, [found[number] for number in sorted(found)]

    def _search(self, lsn: int, last: SegmentInfo) -> SegmentInfo | None:
        """The segment that holds record ``lsn``, by bisection; None when that is not certain.

        It is the last segment that begins at or before ``lsn``. Segments begin in ascending order,
        with one exception. A new owner begins at or after every segment that it has seen. It misses
        at most one segment: the previous owner had checked the lock before it made that one. Its
        number precedes the new owner's first one. So LSNs step back only from a segment to the
        next, and no later segment begins before both of the next two.
        """
        numbers = [number for number in self.numbers() if number <= last.number]
        log_id = last.header.log_id if last.header is not None else None
        low, high = 0, len(numbers) - 1
        while low < high:
            middle = (low + high) // 2
            header = self._ours(numbers[middle], log_id)
            if header is None:
                return None
            if header.first_lsn <= lsn:
                low = middle + 1
            else:
                high = middle
        near = numbers[max(0, low - 1) : low + 2]
        headers = [header for number in near if (header := self._ours(number, log_id)) is not None]
        firsts = [header.first_lsn for header in headers]
        consecutive = [number - near[0] for number in near] == list(range(len(headers)))
        if not low or not consecutive or not firsts[0] <= lsn < min(firsts[1:]):
            return None
        return SegmentInfo(near[0], firsts[0], min(firsts[1:]), headers[0], None, last.oldest_lsn)

    def _ours(self, number: int, log_id: bytes | None) -> SegmentHeader | None:
        """The header of a segment, when it is sound and of this log."""
        header = self.header(number)
        if header is not None and (header.number, header.log_id) == (number, log_id):
            return header
        return None

    def _log_id(self, marked: bytes | None, numbers: list[int]) -> bytes | None:
        """The id of this log, whatever segment or mark file of another log was copied into it."""
        ids: Counter[bytes] = Counter()
        for number in reversed(numbers):
            header = self.header(number)
            if header is not None:
                if header.log_id == marked:  # nearly always the first header
                    return marked
                ids[header.log_id] += 1
        return max(ids, key=lambda log_id: ids[log_id]) if ids else marked

    def _oldest_lsn(self, log_id: bytes | None, numbers: list[int]) -> int:
        headers = (self.header(number) for number in reversed(numbers))
        return next((h.oldest_lsn for h in headers if h is not None and h.log_id == log_id), 1)

    def _segment_info(
        self, number: int, superseded_at: int | None, log_id: bytes | None, oldest: int
    ) -> SegmentInfo:
        header = self._ours(number, log_id)
        if header is not None:
            return SegmentInfo(number, header.first_lsn, superseded_at, header, None, oldest)
        if self.header(number) is not None:
            what = "a segment of another log, or under another number"
            return SegmentInfo(
                number, 0, superseded_at, None, Damage(number, 0, 0, 1, 0, what), oldest
            )
        # A segment gets its name after its header is durable: a crash cannot cause this.
        start = identify(read_segment(self._directory, number))
        what = "segment header fails its CRC" + ("" if start else "; no frame found")
        damage = Damage(number, 0, HEADER_SIZE, 1, 0, what)
        return SegmentInfo(number, start[1] if start else 0, superseded_at, None, damage, oldest)


def or_removed(infos: list[SegmentInfo], first: int) -> str:
    """What is to be said of missing records from ``first`` on, if the log begins behind them and a
    header is damaged: that one may have said that they were removed on purpose."""
    begins_late = infos and infos[0].number > 1 and first <= infos[0].oldest_lsn
    if begins_late and any(info.header is None for info in infos):
        return " (or removed on purpose, as the damaged header may have said)"
    return ""


def _with_foreign_mark(info: SegmentInfo) -> SegmentInfo:
    what = "MARK is of another log than the segments: one or the other was put here"
    return replace(info, damage=info.damage or Damage(info.number, 0, 0, 1, 0, what))


def _numbers(names: list[str]) -> list[int]:
    return sorted(number for number in map(segment_number, names) if number is not None)


def retried(look: Callable[[], T]) -> T:
    """The result of ``look``, repeated while it meets files that were removed since listing."""
    for _ in range(RETRIES_MAX):
        with contextlib.suppress(FileNotFoundError):  # removed since it was listed, on purpose
            return look()
    return look()
