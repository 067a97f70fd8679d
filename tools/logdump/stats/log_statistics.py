"""Counts the records of a log: by kind, tool, step and checkpoint; time, tokens and cost. Pure.

A LogStatistics is shown each record once, in the order of the log, and keeps totals only. Its
memory grows with the number of tools and of calls without an outcome, not with the log.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from eventlog.format.record import Packed, Record, Snapshot
from logdump.stats.samples import DurationSample, StepSizes
from logdump.stats.time_breakdown import Mode, OpenAttempt, TimeBreakdown
from recovery.journal.call_key import outer_call, step_of
from recovery.journal.encoding import decode_shallow
from recovery.journal.events import (
    AttemptFailed,
    CallAbandoned,
    CallDecided,
    CallFailed,
    CallIntended,
    CallResolved,
    CallRetried,
    CallReturned,
    Event,
    RunResumed,
    RunStarted,
    StepStarted,
)
from recovery.journal.usage import usage_from
from recovery.replay.error_counts import ErrorTally
from recovery.replay.progress import OF_ITS_PROCESS
from recovery.values.backrefs import is_chunk
from recovery.values.pack import unpack, unpack_map

T = TypeVar("T")

NAMES_MAX = 500  # tools, and kinds of records, that are counted separately
OTHERS = "(others)"
OPEN_MAX = 100_000  # calls without an outcome that are remembered
POINTS_MAX = 100  # newest checkpoints whose position is kept, for recoveries that begin there

PARTS = ("messages", "results", "arguments", "checkpoints", "other")
_PART = {"messages": 0, "outcome": 1, "failure": 1, "signal": 1, "call": 2, "snapshot": 3}


@dataclass(slots=True)
class KindTotals:
    """Records of a kind, and the bytes of their bodies."""

    records: int = 0
    size: int = 0


@dataclass(slots=True)
class UsageTotals:
    """Outcomes, and the usage of the models among them."""

    outcomes: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0

    def since(self, before: UsageTotals) -> UsageTotals:
        """The usage since then."""
        return UsageTotals(
            self.outcomes - before.outcomes,
            self.input_tokens - before.input_tokens,
            self.output_tokens - before.output_tokens,
            self.cost - before.cost,
        )

    def add(self, other: UsageTotals) -> None:
        """Add the other usage."""
        self.outcomes += other.outcomes
        self.input_tokens += other.input_tokens
        self.output_tokens += other.output_tokens
        self.cost += other.cost


@dataclass(slots=True)
class ToolTotals:
    """Totals of a tool. ``attempts``: of its ``calls``, retries included. ``open``: calls without
    an outcome. ``durations``: of attempts that ended in the session that began them.
    """

    calls: int = 0
    attempts: int = 0
    failed: int = 0
    open: int = 0
    arguments_size: int = 0
    results_size: int = 0
    used: UsageTotals = field(default_factory=UsageTotals)
    durations: DurationSample = field(default_factory=DurationSample)


@dataclass(slots=True)
class StepTotals:
    """Totals from the beginning of a step to the beginning of the next one.

    ``step`` 0: before the first. ``at_work_ns``: the time for which a process had the run.
    """

    step: int
    since_ns: int = 0
    at_work_ns: int = 0
    calls: int = 0
    records: int = 0
    size: int = 0
    checkpoint: int = 0
    used: UsageTotals = field(default_factory=UsageTotals)


@dataclass(slots=True)
class Checkpoints:
    """The number of checkpoints, their bytes, and the largest with its LSN."""

    count: int = 0
    size: int = 0
    largest: int = 0
    largest_lsn: int = 0


@dataclass(slots=True)
class Recoveries:
    """Totals of the recoveries of a run.

    ``replayed``: records after the checkpoints from which they began. ``served``: the outcomes
    among these, which needed no call. ``repeated``: calls that one process had begun and a later
    one made again. ``unknown``: recoveries whose checkpoint is not in the log.
    """

    count: int = 0
    replayed: int = 0
    repeated: int = 0
    unknown: int = 0
    served: UsageTotals = field(default_factory=UsageTotals)


Slow = tuple[int, int, str, str, int, int]  # ns, -LSN of the call, tool, call id, step, attempt
OnStep = Callable[[StepTotals], None]


class LogStatistics:
    """The totals of a log. ``on_step`` is called with each step at its end; ``finish`` ends all."""

    def __init__(self, slowest: int = 10, on_step: OnStep = lambda step: None) -> None:
        self.records = self.size = self.unreadable = self.first_lsn = self.last_lsn = 0
        self.is_run, self.calls, self.forgotten = False, 0, 0
        self.kinds: dict[str, KindTotals] = {}
        self.tools: dict[str, ToolTotals] = {}
        self.used, self.checkpoints, self.recoveries = UsageTotals(), Checkpoints(), Recoveries()
        self.errors = ErrorTally()
        self.time, self.growth = TimeBreakdown(), StepSizes(len(PARTS))
        self.parts: Counter[str] = Counter()
        self.step = StepTotals(0)
        self._slowest, self._slow = slowest, list[Slow]()
        self._on_step = on_step
        self._open: dict[int, OpenAttempt] = {}
        self._points: dict[int, tuple[int, UsageTotals]] = {0: (0, UsageTotals())}
        self._highest = self._session = 0

    @property
    def slow(self) -> list[Slow]:
        """The slowest attempts, the slowest first; waits are not among them."""
        return sorted(self._slow, reverse=True)

    @property
    def open(self) -> list[OpenAttempt]:
        """Calls without an outcome, in the order in which they were begun."""
        return [open_attempt for open_attempt in self._open.values() if not open_attempt.failed]

    @property
    def steps(self) -> int:
        """Steps that have begun, each counted once."""
        return self.growth.steps

    def observe(self, record: Record) -> None:
        """Count a record."""
        size = len(record.packed)
        self.records += 1
        self.size += size
        self.first_lsn = self.first_lsn or record.lsn
        self.last_lsn = record.lsn
        kind = _named(self.kinds, record.kind, KindTotals)
        kind.records += 1
        kind.size += size
        self.time.saw(record.time_ns)
        event = self._event(record)
        if event is not None:
            self.is_run = True
            self._observe(record.lsn, record.time_ns, event)
        part = _PART.get(record.kind, len(PARTS) - 1)
        self.parts[PARTS[part]] += size
        self.growth.add(part, size)
        self.step.records += 1
        self.step.size += size
        if isinstance(record, Snapshot):
            self._checkpoint(record, size)

    def finish(self) -> None:
        """End the last step, and count open calls."""
        self._end_step()
        for open_attempt in self._open.values():
            _named(self.tools, open_attempt.tool, ToolTotals).open += not open_attempt.failed

    def _event(self, record: Record) -> Event | None:
        try:
            return decode_shallow(record)
        except ValueError:
            self.unreadable += 1
            return None

    def _observe(self, lsn: int, time_ns: int, event: Event) -> None:
        self.errors.observe(lsn, time_ns, event)
        if isinstance(event, RunStarted | RunResumed):
            self._session += 1
            self.time.begin(time_ns, self._open.values())
        elif isinstance(event, (CallDecided, *OF_ITS_PROCESS)):
            before = self.time.at_work_ns
            self.time.until(time_ns)
            self.step.at_work_ns += self.time.at_work_ns - before
        match event:
            case StepStarted():
                self._begin_step(event.step, time_ns)
            case RunResumed():
                self._resumed(lsn, event)
            case _:
                self._observe_call(lsn, time_ns, event)

    def _observe_call(self, lsn: int, time_ns: int, event: Event) -> None:
        match event:
            case CallIntended():
                self._intended(lsn, time_ns, event)
            case CallDecided(approved=True):
                self._begin(event.call, time_ns)
            case CallRetried():
                self._retried(event, time_ns)
            case AttemptFailed():
                self._attempt_ended(event.call, time_ns, "waits")
            case CallAbandoned():
                self._attempt_ended(event.call, time_ns, "still")
            case CallReturned() | CallFailed():
                self._ended(event, time_ns)
            case CallResolved() if event.how != "retry":
                self._ended(event, time_ns)

    # -- steps and checkpoints

    def _begin_step(self, step: int, time_ns: int) -> None:
        self._end_step()
        self.step = StepTotals(step, time_ns)
        if step > self._highest:
            self._highest = step
            self.growth.step()

    def _end_step(self) -> None:
        if self.step.records:
            self._on_step(self.step)

    def _checkpoint(self, record: Snapshot, size: int) -> None:
        found = self.checkpoints
        found.count += not is_chunk(record)
        found.size += size
        self.step.checkpoint += size
        if size > found.largest:
            found.largest, found.largest_lsn = size, record.lsn
        try:
            step = unpack(unpack_map(record.packed)["step"])
        except (KeyError, ValueError):
            return
        if type(step) is int and step > 0:
            self._points.pop(step, None)
            self._points[step] = record.lsn, replace(self.used)
            if len(self._points) > POINTS_MAX:
                del self._points[next(one for one in self._points if one)]

    def _resumed(self, lsn: int, event: RunResumed) -> None:
        found = self.recoveries
        found.count += 1
        point = self._points.get(event.from_step)
        if point is None or (self.first_lsn > 1 and not event.from_step):
            found.unknown += 1
            return
        found.replayed += lsn - 1 - point[0]
        found.served.add(self.used.since(point[1]))

    # -- calls

    def _intended(self, lsn: int, time_ns: int, event: CallIntended) -> None:
        tool = _named(self.tools, event.tool, ToolTotals)
        tool.calls += 1
        tool.attempts += 1
        tool.arguments_size += event.size
        self.calls += 1
        self.step.calls += 1
        outer = outer_call(event.scope)
        step = step_of(event.scope)
        if step is None:
            within = self._open.get(outer)
            step = within.step if within is not None else self.step.step
        open_attempt = OpenAttempt(
            lsn,
            event.tool,
            event.call_id,
            step,
            time_ns,
            self._session,
            outer,
            waits=event.after_crash == "wait",
            is_effect=event.after_crash not in ("retry", "wait"),
        )
        self._open[lsn] = open_attempt
        if outer in self._open:
            self._open[outer].inside.append(lsn)
        asks = event.asks_until is not None
        self._turn(open_attempt, "waits" if open_attempt.waits or asks else "works")
        if len(self._open) > OPEN_MAX:
            oldest = next(iter(self._open))
            open_attempt = self._open[oldest]
            _named(self.tools, open_attempt.tool, ToolTotals).open += not open_attempt.failed
            self.forgotten += 1
            self._forget(oldest)

    def _begin(self, call: int, time_ns: int) -> None:
        open_attempt = self._open.get(call)
        if open_attempt is not None:
            open_attempt.since_ns, open_attempt.session = time_ns, self._session
            self._turn(open_attempt, "waits" if open_attempt.waits else "works")

    def _retried(self, event: CallRetried, time_ns: int) -> None:
        open_attempt = self._open.get(event.call)
        if open_attempt is None:
            return
        _named(self.tools, open_attempt.tool, ToolTotals).attempts += 1
        if open_attempt.session != self._session and not open_attempt.waits:
            self.recoveries.repeated += 1
        open_attempt.attempt, open_attempt.failed = event.attempt, False
        self._begin(event.call, time_ns)

    def _attempt_ended(self, call: int, time_ns: int, mode: Mode) -> None:
        open_attempt = self._open.get(call)
        if open_attempt is not None:
            self._time(open_attempt, time_ns)
            self._turn(open_attempt, mode)

    def _ended(self, event: CallReturned | CallFailed | CallResolved, time_ns: int) -> None:
        open_attempt = self._open.get(event.call)
        used = usage_from(event.usage) if isinstance(event, CallReturned) else None
        made = UsageTotals(1)
        if used is not None:
            made = UsageTotals(1, used.input_tokens, used.output_tokens, used.cost)
        self.used.add(made)
        self.step.used.add(made)
        if open_attempt is None:
            return
        tool = _named(self.tools, open_attempt.tool, ToolTotals)
        tool.used.add(made)
        tool.failed += isinstance(event, CallFailed) or getattr(event, "how", "") == "fail"
        value = getattr(event, "value", None)
        tool.results_size += len(value) if type(value) is Packed else 0
        if not isinstance(event, CallResolved):
            self._time(open_attempt, time_ns)
        if isinstance(event, CallFailed) and open_attempt.outer in self._open:
            open_attempt.failed = True  # it is made again if the call around it is
            self._turn(open_attempt, "still")
        else:
            self._forget(event.call)

    def _time(self, open_attempt: OpenAttempt, time_ns: int) -> None:
        """End an attempt; count its duration if the process that began it has ended it."""
        if open_attempt.mode == "still" or (
            open_attempt.mode == "waits" and not open_attempt.waits
        ):
            return
        ns = max(0, time_ns - open_attempt.since_ns)
        _named(self.tools, open_attempt.tool, ToolTotals).durations.add(ns)
        if open_attempt.waits or not self._slowest:
            return
        slow = (
            ns,
            -open_attempt.lsn,
            open_attempt.tool,
            open_attempt.call_id,
            open_attempt.step,
            open_attempt.attempt,
        )
        if len(self._slow) < self._slowest:
            heapq.heappush(self._slow, slow)
        elif slow > self._slow[0]:
            heapq.heapreplace(self._slow, slow)

    def _turn(self, open_attempt: OpenAttempt, mode: Mode) -> None:
        self.time.turn(open_attempt, mode, self._open.get(open_attempt.outer))

    def _forget(self, call: int) -> None:
        """Forget a call and the calls inside it, except side effects there that have no outcome."""
        todo = [call]
        while todo:
            open_attempt = self._open.get(todo.pop())
            if open_attempt is None or (
                open_attempt.lsn != call and open_attempt.is_effect and not open_attempt.failed
            ):
                continue
            todo += open_attempt.inside
            self._turn(open_attempt, "still")
            del self._open[open_attempt.lsn]


def _named(found: dict[str, T], name: str, make: Callable[[], T]) -> T:
    if name not in found:
        if len(found) >= NAMES_MAX:
            name = OTHERS
        if name not in found:
            found[name] = make()
    return found[name]
