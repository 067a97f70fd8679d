"""Counts the statistics of a log again, the slow and simple way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from logdump.stats.log_statistics import LogStatistics

from eventlog import Record, Snapshot
from recovery.journal.call_key import outer_call
from recovery.journal.encoding import decode, decode_shallow
from recovery.journal.events import (
    AttemptFailed,
    CallAbandoned,
    CallDecided,
    CallFailed,
    CallIntended,
    CallResolved,
    CallRetried,
    CallReturned,
    RunResumed,
    RunStarted,
)
from recovery.journal.usage import usage_from
from recovery.values.backrefs import is_chunk

ENDS = (CallReturned, CallFailed, AttemptFailed, CallAbandoned)
Entries = list[tuple[int, int, Any]]


def statistics_of(records: Sequence[Record], **options: Any) -> LogStatistics:
    statistics = LogStatistics(**options)
    for record in records:
        statistics.observe(record)
    statistics.finish()
    return statistics


def check_statistics(records: Sequence[Record]) -> None:
    """AssertionError unless the statistics of the log equal a count of its records."""
    steps: list[Any] = []
    statistics = statistics_of(records, slowest=3, on_step=steps.append)
    assert {name: (one.records, one.size) for name, one in statistics.kinds.items()} == {
        kind: (len(sizes), sum(sizes))
        for kind in {record.kind for record in records}
        if (sizes := [len(record.packed) for record in records if record.kind == kind])
    }
    assert (statistics.records, statistics.size) == (
        len(records),
        sum(len(r.packed) for r in records),
    )
    assert sum(statistics.parts.values()) == statistics.size
    snapshots = [record for record in records if isinstance(record, Snapshot)]
    assert statistics.checkpoints.count == sum(not is_chunk(one) for one in snapshots)
    assert statistics.checkpoints.size == sum(len(one.packed) for one in snapshots)
    entries = [
        (r.lsn, r.time_ns, event) for r in records if (event := decode_shallow(r)) is not None
    ]
    check_calls(statistics, entries)
    assert sum(step.size for step in steps) == statistics.size
    assert sum(step.records for step in steps) == statistics.records
    assert sum(step.calls for step in steps) == statistics.calls
    assert sum(step.used.outcomes for step in steps) == statistics.used.outcomes
    assert sum(step.at_work_ns for step in steps) == statistics.time.at_work_ns
    spent = statistics.time
    assert 0 <= spent.parallel_ns <= spent.in_tools_ns
    assert 0 <= spent.in_tools_ns + spent.waiting_ns <= spent.at_work_ns


def check_calls(statistics: LogStatistics, entries: Entries) -> None:
    calls = {lsn: event for lsn, _, event in entries if isinstance(event, CallIntended)}
    ends = {event.call: (lsn, event) for lsn, _, event in entries if is_end(event)}

    def covered(lsn: int) -> bool:
        outer = outer_call(calls[lsn].scope)
        if outer not in calls:
            return False
        return (outer in ends and ends[outer][0] > lsn) or covered(outer)

    def is_last(event: Any) -> bool:
        """Whether nothing more counts; a call that failed may be made again with another."""
        return not isinstance(event, CallFailed) or outer_call(calls[event.call].scope) not in calls

    last_ends: dict[int, int] = {}
    for lsn, _, event in entries:
        if is_end(event) and event.call in calls and is_last(event):
            last_ends.setdefault(event.call, lsn)
    again = [
        (lsn, event.call)
        for lsn, _, event in entries
        if isinstance(event, CallRetried)
        and event.call in calls
        and lsn < last_ends.get(event.call, lsn + 1)
        and not late(event.call, lsn, calls, ends)
    ]
    tried, last_tried = Counter(call for _, call in again), {call: lsn for lsn, call in again}
    for name in {event.tool for event in calls.values()}:
        mine = {lsn: event for lsn, event in calls.items() if event.tool == name}
        # What comes after the outcome of the call that it was made inside does not count.
        ended = [(lsn, event) for lsn, _, event in entries if is_end(event) and event.call in mine]
        counted = [
            event
            for lsn, event in ended
            if lsn <= last_ends.get(event.call, lsn) and not late(event.call, lsn, calls, ends)
        ]
        still = [lsn for lsn in mine if lsn not in ends or last_tried.get(lsn, 0) > ends[lsn][0]]
        found = statistics.tools[name]
        assert found.calls == len(mine)
        assert found.attempts == len(mine) + sum(tried[lsn] for lsn in mine)
        assert found.open == sum(not covered(lsn) for lsn in still)
        assert found.arguments_size == sum(event.size for event in mine.values())
        assert found.failed == sum(is_failure(event) for event in counted)
        values = [event.value for event in counted if not isinstance(event, CallFailed)]
        assert found.results_size == sum(len(value) for value in values if value is not None)
        used = [usage_from(getattr(event, "usage", None)) for event in counted]
        assert found.used.outcomes == len(counted)
        assert found.used.input_tokens == sum(one.input_tokens for one in used if one)
    assert sum(tool.calls for tool in statistics.tools.values()) == statistics.calls == len(calls)


def late(call: int, lsn: int, calls: dict[int, CallIntended], ends: dict[int, Any]) -> bool:
    """Whether record ``lsn``, the outcome of a call, comes after that of one around it."""
    outer = outer_call(calls[call].scope)
    if outer not in calls:
        return False
    return (outer in ends and call < ends[outer][0] < lsn) or late(outer, lsn, calls, ends)


def is_end(event: Any) -> bool:
    return isinstance(event, CallReturned | CallFailed) or (
        isinstance(event, CallResolved) and event.how != "retry"
    )


def is_failure(event: Any) -> bool:
    return isinstance(event, CallFailed) or getattr(event, "how", "") == "fail"


# -- time


def spent(records: Sequence[Record]) -> tuple[int, int, int, int]:
    """ns at work, in tools, in several of them at once, waiting: looked up anew at each record."""
    entries = [(r.lsn, r.time_ns, event) for r in records if (event := decode(r)) is not None]
    calls = {lsn: event for lsn, _, event in entries if isinstance(event, CallIntended)}
    total = [0, 0, 0, 0]
    for i, (_, time_ns, event) in enumerate(entries):
        by_process = not isinstance(event, RunStarted | RunResumed | CallResolved)
        if event.kind in ("accepted", "child_started", "run_undone", "run_cancelled"):
            continue
        before = [at for _, at, one in entries[:i] if counts(one)]
        if not by_process or not before:
            continue
        took = max(0, time_ns - before[-1])
        modes = {lsn: mode for lsn in calls if (mode := mode_of(lsn, calls[lsn], entries[:i]))}
        around = {outer_call(calls[lsn].scope) for lsn in modes}
        leaves = [mode for lsn, mode in modes.items() if lsn not in around]
        works = leaves.count("works")
        total[0] += took
        total[1] += took if works else 0
        total[2] += took if works > 1 else 0
        total[3] += took if not works and "waits" in leaves else 0
    return total[0], total[1], total[2], total[3]


def durations(records: Sequence[Record]) -> dict[str, list[int]]:
    """ns of the attempts of each tool that ended in the life that began them, in their order."""
    entries = [(r.lsn, r.time_ns, event) for r in records if (event := decode(r)) is not None]
    found: dict[str, list[int]] = {}
    for lsn, _, intent in entries:
        if not isinstance(intent, CallIntended):
            continue
        began: int | None = None
        for at, time_ns, event in entries:
            call = at if isinstance(event, CallIntended) else getattr(event, "call", 0)
            if isinstance(event, RunStarted | RunResumed):
                began = None
            elif call != lsn:
                continue
            elif isinstance(event, CallIntended):
                began = time_ns if event.asks_until is None else None
            elif isinstance(event, CallRetried) or (
                isinstance(event, CallDecided) and event.approved
            ):
                began = time_ns
            elif began is not None and isinstance(event, ENDS):
                found.setdefault(intent.tool, []).append(max(0, time_ns - began))
                began = None
    return found


def counts(event: Any) -> bool:
    return not isinstance(event, CallResolved) and event.kind not in (
        "accepted",
        "child_started",
        "run_undone",
        "run_cancelled",
    )


def mode_of(lsn: int, intent: CallIntended, entries: Entries) -> str:
    """What a call was at, at the end of these entries, by the last that is said of it."""
    mode, at_work = "", "waits" if intent.after_crash == "wait" else "works"
    outer = outer_call(intent.scope)
    for at, _, event in entries:
        call = at if isinstance(event, CallIntended) else getattr(event, "call", 0)
        if isinstance(event, RunStarted | RunResumed) or (call == outer and is_end(event)):
            mode = ""
        elif call != lsn:
            continue
        elif isinstance(event, CallIntended):
            mode = "waits" if event.asks_until is not None else at_work
        elif isinstance(event, CallRetried) or (isinstance(event, CallDecided) and event.approved):
            mode = at_work
        elif isinstance(event, AttemptFailed):
            mode = "waits"
        elif is_end(event) or isinstance(event, CallAbandoned):
            mode = ""
    return mode
