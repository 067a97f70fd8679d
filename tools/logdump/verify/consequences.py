"""Says what the problems of a run's log mean for its recovery."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from eventlog import LogError, LogReader, Snapshot
from eventlog.dump import BAD_SNAPSHOT, MISSING, NOT_A_LOG, TORN, Finding
from recovery.history.choose_checkpoint import Start, starts
from recovery.history.inventory import needs
from recovery.history.load import Entry
from recovery.history.load_shallow import shallow_events
from recovery.inspect.calls_without_outcome import OpenCall
from recovery.journal.encoding import is_event
from recovery.journal.events import RecordsLost
from recovery.replay.lost_records import Gap, LostRecords

# Where the first record is lost, and no checkpoint has it.
HOPELESS = (
    "the run cannot be resumed, nor after a repair: the record with its task and its keys is lost. "
    "Restore the log from a copy"
)
NAMES_MAX = 10  # of calls, that are listed

Range = tuple[int, int]  # LSNs, the first and the last


class Lost:
    """A set of lost LSNs."""

    def __init__(self, ranges: Iterable[Range]) -> None:
        self.ranges: list[Range] = []
        for first, last in sorted(one for one in ranges if one[0] <= one[1]):
            if self.ranges and first <= self.ranges[-1][1] + 1:
                before = self.ranges.pop()
                self.ranges.append((before[0], max(before[1], last)))
            else:
                self.ranges.append((first, last))

    def __contains__(self, lsn: int) -> bool:
        i = bisect_right(self.ranges, lsn, key=lambda one: one[0])
        return i > 0 and lsn <= self.ranges[i - 1][1]


def is_run(reader: LogReader) -> bool:
    """Whether the log is that of a run, as far as it can be read."""
    try:
        first = next(reader.records(1, on_damage=lambda damage: None), None)
    except LogError:
        return False
    return first is not None and (isinstance(first, Snapshot) or is_event(first.kind))


def start_of_recovery(reader: LogReader, lost: Lost) -> Start:
    """The start of a recovery, given the lost records."""

    def read(snapshot: Snapshot) -> Start | None:
        step, needed = needs(reader, snapshot)
        return None if any(lsn in lost for lsn in needed) else Start(snapshot.lsn, step)

    start, _ = next(starts(reader, read, lambda start: _entries(reader, start.lsn)))
    return start


def _entries(reader: LogReader, after: int) -> Iterator[Entry]:
    return shallow_events(reader.records(after + 1, on_damage=lambda damage: None), [])


class Consequences:
    """The consequences of each finding of ``verify`` for the recovery of a run.

    ``findings``: all of them, because a loss decides what another one means. ``calls``: those
    without an outcome, as far as they can be read. The log is read only where a finding needs it,
    from the checkpoint that a recovery begins with.
    """

    def __init__(
        self, reader: LogReader, findings: Iterable[Finding], calls: Iterable[OpenCall] = ()
    ) -> None:
        self._calls = tuple(calls)
        self.lost = Lost((one.first_lsn, one.last_lsn) for one in findings)
        self.start = start_of_recovery(reader, self.lost) if self.lost.ranges else Start()
        self._losses = self._read_gaps(reader) if self.lost.ranges else LostRecords(0)

    def _read_gaps(self, reader: LogReader) -> LostRecords:
        """The gaps after the start, as a recovery sees them after a repair."""
        losses = LostRecords(self.start.step)
        ranges = [one for one in self.lost.ranges if one[1] > self.start.lsn]
        for lsn, _, event in _entries(reader, self.start.lsn) if ranges else ():
            while ranges and ranges[0][0] < lsn:
                losses.observe(max(ranges[0][0], self.start.lsn + 1), RecordsLost(ranges.pop(0)[1]))
            losses.observe(lsn, event)
        for first, last in ranges:
            losses.observe(max(first, self.start.lsn + 1), RecordsLost(last))
        return losses

    def _gap(self, finding: Finding) -> Gap | None:
        gaps = self._losses.gaps
        return next((gap for gap in gaps if gap.first <= finding.last_lsn <= gap.last), None)

    def of(self, finding: Finding) -> str:
        """The consequence in a line; "" for a finding that is no problem."""
        if not _loses(finding):
            return _without_loss(finding)
        if finding.last_lsn <= self.start.lsn:
            return (
                f"harmless: recovery begins with {self.start}, which needs nothing of it"
                " (a fork to an earlier step, or an undo, may)"
            )
        if finding.bit == BAD_SNAPSHOT:
            return f"recovery begins with {self.start} instead; nothing is executed again"
        if finding.first_lsn <= 1:
            return HOPELESS
        names = [call.name for call in self.calls_hit(finding)]
        more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
        listed = f"{', '.join(names[:NAMES_MAX])}{more}"
        known = f"{listed} {'becomes' if len(names) == 1 else 'become'} in doubt, as does "
        return (
            "recovery stops there, until `logdump repair` marks it as lost: then "
            f"{known if names else ''}any call{self._steps(finding)} that may have been recorded "
            f"there{'' if names else ' is in doubt'}{self._outcomes(finding)}"
        )

    def _outcomes(self, finding: Finding) -> str:
        """The outcomes that are left of calls in it."""
        if (gap := self._gap(finding)) is None:
            return ""
        found = self._losses.unclaimed
        lsns = ", ".join(str(lsn) for call, lsn, _ in found if gap.first <= call <= gap.last)
        return f". LSN {lsns}: outcome of such a call; resolve the call with it" if lsns else ""

    def _steps(self, finding: Finding) -> str:
        """The steps of the calls that may be lost."""
        first = self.start.step + 1
        gap = self._gap(finding)
        upto = gap.last_step if gap is not None else 0
        if upto < first:
            return ""
        return f" of step {first}" if upto == first else f" of steps {first} to {upto}"

    def calls_hit(self, finding: Finding) -> tuple[OpenCall, ...]:
        """The calls whose outcomes may be lost."""
        if not _loses(finding) or finding.last_lsn <= self.start.lsn:
            return ()
        if finding.bit == BAD_SNAPSHOT:
            return ()
        return tuple(call for call in self._calls if call.lsn < finding.last_lsn)


class InboxConsequences:
    """The consequences of findings in the inbox of a run."""

    def of(self, finding: Finding) -> str:
        """The consequence in a line; "" for a finding that is no problem."""
        if not _loses(finding):
            return _without_loss(finding)
        return "the run stops when it reads its inbox: what is lost may be a signal, or a denial"

    def calls_hit(self, finding: Finding) -> tuple[OpenCall, ...]:
        """None: calls are in the run's own log."""
        return ()


class Refusal:
    """The consequence of records that are no events, or were removed, in sound frames."""

    def of(self, finding: Finding) -> str:
        """In a line."""
        return (
            "recovery refuses to resume: a record that is missing or makes no sense may be a call "
            "that was made. `logdump repair` cannot help. Restore the log from a copy, or fork the "
            "run at a checkpoint that `recovery checkpoints` calls sound"
        )

    def calls_hit(self, finding: Finding) -> tuple[OpenCall, ...]:
        """None that could be named."""
        return ()


def _loses(finding: Finding) -> bool:
    return finding.last_lsn >= finding.first_lsn and finding.bit not in (0, TORN, NOT_A_LOG)


def _without_loss(finding: Finding) -> str:
    if finding.bit in (0, MISSING):  # the loss of a segment is reported where it should begin
        return ""
    if finding.bit == TORN:
        return f"harmless: torn tail, {finding.size} bytes never acknowledged"
    if finding.bit == NOT_A_LOG:
        return "nothing of it can be recovered by this library"
    return "harmless: no record is lost"
