"""Plans a repair: which segments are rewritten, and where placeholders for lost records go.

Reads only. LSNs decide, not the order of bytes: every LSN from the oldest to the last one known to
have been durable is either that of a sound record, or lost. Sound segments are not changed. A loss
between two segments replaces the missing or unreadable segments there; if there are none, it goes
into the segment before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import pairwise

from eventlog.errors import LogError, UnsupportedFormatError
from eventlog.format.frame import SegmentHeader
from eventlog.format.names import segment_name
from eventlog.format.record import Record, Snapshot
from eventlog.read.reader import LogReader
from eventlog.read.sealed_segment import Sealed
from eventlog.read.segments import SegmentInfo
from eventlog.read.verify import (
    BAD_SNAPSHOT,
    DAMAGED,
    NOT_A_LOG,
    TORN,
    DecodedFrame,
    Finding,
    Totals,
    examine,
)

LOST, REPAIRED = "lost", "repaired"  # kinds of records that a repair writes
# A placeholder takes some bytes. Segments of 1 GiB hold as many of the smallest records.
LOST_MAX = 1 << 24
MISSING_MAX = 1 << 12  # segments: a file with a much higher number was put there by mistake

Range = tuple[int, int]  # of LSNs, the last one included


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """A segment to rewrite, with LSNs ``first`` to ``next`` - 1.

    ``info``: the segment that has this number now; None if there is none that can be read.
    ``lost``: the lost LSNs; ``snapshots``: those of them that were snapshots.
    """

    number: int
    first: int
    next: int
    info: SegmentInfo | None
    lost: tuple[Range, ...]
    snapshots: frozenset[int] = frozenset()


@dataclass(slots=True)
class LogSurvey:
    """A log, as one pass over it shows it."""

    findings: list[Finding] = field(default_factory=list)
    totals: Totals = field(default_factory=Totals)
    infos: list[SegmentInfo] = field(default_factory=list)
    begin: int = 1
    end: int = 0
    torn_size: int = 0
    bad: set[int] = field(default_factory=set)  # segments that are damaged
    found: dict[int, list[list[int]]] = field(default_factory=dict)  # by segment: LSNs from, to
    newest: dict[int, int] = field(default_factory=dict)  # by segment: its newest snapshot
    snapshots: set[int] = field(default_factory=set)  # that are certainly lost
    placeholders: list[list[int]] = field(default_factory=list)
    declared: list[Range] = field(default_factory=list)  # as lost, by an earlier repair

    def undeclared(self) -> tuple[Range, ...]:
        """Losses for which an earlier, interrupted repair made placeholders."""
        return tuple(without([(first, last) for first, last in self.placeholders], self.declared))


def survey(reader: LogReader) -> LogSurvey:
    """Go through the log once. Raises UnsupportedFormatError for files that are no part of it, or
    of another version: a repair must not change them."""
    seen = LogSurvey()
    for item in examine(reader, seen.totals):
        if isinstance(item, Finding):
            seen.findings.append(item)
            seen.totals.exit_code |= item.bit
            _note(seen, item)
        elif isinstance(item, DecodedFrame):
            for record in item.records:
                _add(seen.found.setdefault(item.segment, []), record.lsn)
                _read(seen, item.segment, record)
        else:
            frame = item.frame
            for lsn in range(frame.lsn, frame.lsn + frame.count):
                _add(seen.found.setdefault(item.segment, []), lsn)
    for finding in seen.findings:
        if finding.bit & NOT_A_LOG:
            raise UnsupportedFormatError(
                f"{reader.path}: {finding.text.rstrip('.')}. It is no part of what can be "
                "repaired, and was not touched. Move that file away, or use a newer library; then "
                "repair what is left."
            )
    _, seen.infos = reader.listing.segments_from(0)
    if seen.infos and reader.listing.log_id() is None and not seen.found:
        raise UnsupportedFormatError(
            f"{reader.path}: nothing in it says that it is a log: no header, no record and no MARK "
            "can be read. Nothing was changed."
        )
    missing = seen.infos[-1].number - seen.infos[0].number if seen.infos else 0
    if missing > len(seen.infos) + MISSING_MAX:
        raise UnsupportedFormatError(
            f"{reader.path} lacks {missing - len(seen.infos):,} segments between those that are "
            "there: a file was put here under a wrong number, or a part of another log. Nothing "
            "was changed. Move away what is no part of the log; then repair what is left."
        )
    seen.begin = reader.oldest_lsn
    last = max((ranges[-1][1] for ranges in seen.found.values()), default=0)
    seen.end = max(last, max((found.last_lsn for found in seen.findings), default=0))
    return seen


def layout(directory_of: LogReader, seen: LogSurvey) -> list[SegmentPlan]:
    """The segments to rewrite, in order. Raises LogError when the log cannot be repaired."""
    plans = [plan for plan in _segment_plans(seen) if plan is not None]
    by_number = {plan.number: plan for plan in plans}
    for info, following in pairwise(seen.infos):
        # A writer seals its segments. The next segment is rewritten, so this one needs its footer.
        if following.number in by_number and info.number not in by_number and info.first_lsn:
            with Sealed.open(directory_of._directory, info) or nullcontext() as sealed:
                if sealed is None:
                    by_number[info.number] = _as_it_is(info, seen)
    count = sum(last - first + 1 for plan in plans for first, last in plan.lost)
    if count > LOST_MAX:
        raise LogError(
            f"{directory_of.path} would have lost {count:,} records, more than there can have been "
            f"({LOST_MAX:,}): its files were forged, or are those of several logs. Nothing was "
            "changed."
        )
    return [by_number[number] for number in sorted(by_number)]


def _segment_plans(seen: LogSurvey) -> Iterator[SegmentPlan | None]:
    expected, numbers = seen.begin, _numbers(seen)
    infos = {info.number: info for info in seen.infos}
    for at, number in enumerate(numbers):
        info = infos.get(number)
        if info is None or not info.first_lsn:
            later = (infos[n].first_lsn for n in numbers[at + 1 :] if n in infos)
            stop = max(expected, next((first for first in later if first), seen.end + 1))
            yield _plan(number, (expected, stop), None, [], seen)
            expected = stop
            continue
        ranges = seen.found.get(number, [])
        if (
            info.superseded_at is not None and info.first_lsn >= info.superseded_at
        ):  # superseded: holds nothing
            yield _as_it_is(info, seen) if number in seen.bad else None
            continue
        stop = ranges[-1][1] + 1 if ranges else info.first_lsn
        follows = numbers[at + 1] if at + 1 < len(numbers) else 0
        if not follows or (follows in infos and infos[follows].first_lsn):
            stop = max(stop, seen.end + 1 if info.superseded_at is None else info.superseded_at)
        plan = _plan(number, (info.first_lsn, stop), info, ranges, seen)
        yield plan if plan.lost or number in seen.bad else None
        expected = max(expected, stop)


def _numbers(seen: LogSurvey) -> list[int]:
    """The numbers of the segments of the repaired log, missing ones included."""
    there = [info.number for info in seen.infos]
    if not there:
        return [1] if seen.end >= seen.begin else []
    numbers = list(range(there[0], there[-1] + 1))
    first = seen.infos[0].first_lsn
    if first > seen.begin:
        if there[0] == 1:
            raise LogError(
                f"{segment_name(1)} begins at LSN {first}, and nothing comes before it: its file "
                "was forged. Nothing was changed."
            )
        numbers.insert(0, there[0] - 1)
    last = seen.infos[-1]
    ranges = seen.found.get(last.number, [])
    stop = ranges[-1][1] if ranges else last.first_lsn - 1
    if last.first_lsn and last.number not in seen.bad and stop < seen.end:
        numbers.append(last.number + 1)  # it is sound up to its end, but more was durable
    return numbers


def _plan(
    number: int,
    lsns: tuple[int, int],
    info: SegmentInfo | None,
    ranges: list[list[int]],
    seen: LogSurvey,
) -> SegmentPlan:
    first, stop = lsns
    whole = [(first, stop - 1)] if stop > first else []
    lost = tuple(without(whole, [(one, last) for one, last in ranges]))
    known = frozenset(one for one, last in lost if one == last and one in seen.snapshots)
    return SegmentPlan(number, first, stop, info, lost, known)


def _as_it_is(info: SegmentInfo, seen: LogSurvey) -> SegmentPlan:
    """A plan that keeps the records that count, and adds a footer."""
    ranges = seen.found.get(info.number, [])
    stop = ranges[-1][1] + 1 if ranges else info.first_lsn
    return _plan(info.number, (info.first_lsn, stop), info, ranges, seen)


def without(ranges: Iterable[Range], taken: Iterable[Range]) -> Iterator[Range]:
    """The parts of ``ranges`` that are in none of the others; both ascending."""
    gone = sorted(taken)
    for first, last in ranges:
        at = first
        for one, other in gone:
            if other >= at and one <= last:
                if one > at:
                    yield at, one - 1
                at = other + 1
        if at <= last:
            yield at, last


def header_for(
    reader: LogReader, plan: SegmentPlan, log_id: bytes, found: tuple[bytes, bool]
) -> SegmentHeader:
    """The header of a segment: the old one, or a new equivalent. ``found``: salt, encrypted."""
    if plan.info is not None and plan.info.header is not None:
        return plan.info.header
    salt, encrypted = found
    headers = [(n, reader.listing.header(n)) for n in reader.listing.numbers() if n != plan.number]
    before = [header for n, header in headers if header is not None and n < plan.number]
    behind = [header for n, header in headers if header is not None and n > plan.number]
    # The last epoch of an earlier owner, so that MARK keeps its meaning.
    near = [*before[-1:], *behind[:1]]
    epoch = near[0].epoch if near else 1
    if plan.info is None:
        encrypted = encrypted or any(header.encrypted for header in near)
    oldest = min(reader.oldest_lsn, plan.first)
    return SegmentHeader(plan.number, log_id, plan.first, oldest, epoch, salt, encrypted)


def _note(seen: LogSurvey, finding: Finding) -> None:
    if finding.bit == TORN:
        seen.torn_size += finding.size
    lost = finding.first_lsn <= finding.last_lsn
    behind_its_end = lost and not finding.size  # the next segment is missing
    if finding.bit & (DAMAGED | BAD_SNAPSHOT) and finding.segment and not behind_its_end:
        seen.bad.add(finding.segment)
    if finding.bit == BAD_SNAPSHOT and finding.first_lsn == finding.last_lsn:
        seen.snapshots.add(finding.first_lsn)


def _add(ranges: list[list[int]], lsn: int) -> None:
    if ranges and ranges[-1][1] == lsn - 1:
        ranges[-1][1] = lsn
    elif not ranges or lsn > ranges[-1][1]:
        ranges.append([lsn, lsn])


def _read(seen: LogSurvey, segment: int, record: Record) -> None:
    if isinstance(record, Snapshot):
        seen.newest[segment] = record.lsn
    elif record.kind == LOST:
        _add(seen.placeholders, record.lsn)
    elif record.kind == REPAIRED:
        seen.declared += declared_by(record)


def declared_by(record: Record) -> list[Range]:
    """The LSNs that a record of kind "repaired" calls lost."""
    try:
        body = record.body
    except ValueError:
        return []
    ranges = body.get("lost") if isinstance(body, dict) else None
    if not isinstance(ranges, list):
        return []
    pairs = [one for one in ranges if isinstance(one, list) and len(one) == 2]
    return [(a, b) for a, b in pairs if type(a) is int and type(b) is int and 0 < a <= b]
