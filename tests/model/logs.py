"""What every log of a run is like, at any time, whatever program made it and whatever happened.

Each check gives what is wrong as texts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from eventlog import LogReader, Snapshot
from recovery import OutcomeUnknown
from recovery.history.restore_checkpoint import BrokenCheckpointError, is_left_over, restore
from recovery.inspect.follow import events as run_events
from recovery.inspect.run_event import RunEvent
from recovery.journal.call_key import CallKey, outer_call
from recovery.journal.encoding import decode
from recovery.journal.events import (
    AttemptFailed,
    CallFailed,
    CallIntended,
    CallResolved,
    CallRetried,
    CallReturned,
    DivergenceAccepted,
    HistoryDropped,
    RunResumed,
    RunStarted,
    StepStarted,
)
from recovery.values.backrefs import is_chunk
from tests.model.lived import Lived
from tests.model.world import RUN

Events = list[tuple[int, Any]]


@dataclass(frozen=True)
class Held:
    """A log as it is read without the runtime."""

    records: list[Any]
    events: Events
    oldest: int
    lost: bool  # whether anything in it is damaged

    @classmethod
    def by(cls, reader: LogReader) -> Held:
        damage: list[Any] = []
        records = list(reader.records(on_damage=damage.append))
        told = [(record.lsn, decode(record)) for record in records]
        return cls(records, told, reader.oldest_lsn, bool(damage))


def held_by(lived: Lived) -> Held | None:
    """The log as the newest life has left it."""
    reader = lived.store().backend.read(RUN)
    if reader is None:
        return None
    assert isinstance(reader, LogReader)
    with reader:
        return Held.by(reader)


def wrong(lived: Lived) -> Iterator[str]:
    """What is wrong with the logs as the newest life has left them."""
    store = lived.store()
    for run_id in store.backend.run_ids():
        reader = store.backend.read(run_id)
        if reader is None:
            continue
        assert isinstance(reader, LogReader)
        with reader:
            held = Held.by(reader)
            if held.lost or lived.counts["repairs"]:  # what is lost is missing in all that follows
                continue
            yield from broken_checkpoints(reader, held)
        if held.oldest > 1:
            continue
        yield from contradictions(held.events)
        if run_id == RUN and not lived.was_forked:
            yield from untold(lived, held)


def contradictions(found: Events) -> Iterator[str]:
    """What no sound record says."""
    events = [event for _, event in found]
    calls = {lsn: event for lsn, event in found if isinstance(event, CallIntended)}
    known = {lsn: event.identity for lsn, event in calls.items()}
    for event in events:  # what is served to changed code is known as what that has made of it
        if isinstance(event, HistoryDropped) and event.call:
            scope, tool, *_ = known[event.call]
            now = event.call_id or "", event.digest or b"", event.occurrence or 0
            known[event.call] = CallKey(scope, tool, *now)
    intents = Counter(known.values())
    yield from (f"intended twice: {tuple(one)}" for one, count in intents.items() if count > 1)
    # Behind an accepted divergence a step begins anew.
    same_code = not any(isinstance(event, DivergenceAccepted) for event in events)
    steps = Counter(e.step for e in events if isinstance(e, StepStarted) and same_code)
    yield from (f"step {step} begins twice" for step, count in steps.items() if count > 1)
    resumed = [event.recovery for event in events if isinstance(event, RunResumed)]
    first = (
        resumed[0]
        if resumed and any(isinstance(event, RunStarted) and event.forked_from for event in events)
        else 1
    )
    if resumed != list(range(first, first + len(resumed))):
        yield f"recoveries are counted as {resumed}"
    ends = Counter(event.call for event in events if isinstance(event, CallReturned | CallFailed))
    for event in events:
        if not isinstance(event, CallResolved):
            continue
        ends[event.call] -= event.how == "retry"
        match event.who:
            case "after_crash=report":
                if calls[event.call].after_crash != "report" or not isinstance(
                    event.value, OutcomeUnknown
                ):
                    yield f"reported as unknown, and not to be: {event}"
            case "retry=":
                if not failed_with_its_attempt(found, event.call):
                    yield f"made again without a reason: {event}"
            case "ann" | "reconcile" | "resume":
                pass
            case who:
                yield f"resolved by {who!r}"
    for call, count in ends.items():  # who waits again in a further attempt records nothing of that
        if count > 1 and calls[call].after_crash != "wait":
            yield f"call {call} has two outcomes"
    for call in calls:
        again = [e.attempt for e in events if isinstance(e, CallRetried) and e.call == call]
        if again != list(range(2, 2 + len(again))):
            yield f"attempts at LSN {call}: {again}"


def failed_with_its_attempt(found: Events, call: int) -> bool:
    """Whether the call failed, and then an attempt at a call around it, which is made again."""
    outer = {
        lsn: outer_call(event.scope) for lsn, event in found if isinstance(event, CallIntended)
    }
    around = {*_outwards(outer.get(call, 0), outer)}
    failed = 0
    for lsn, event in found:
        match event:
            case CallReturned() | CallFailed() if event.call == call:
                failed = lsn if isinstance(event, CallFailed) else 0
            case AttemptFailed() | CallFailed() if failed and event.call in around:
                return True
    return False


def _outwards(call: int, outer: dict[int, int]) -> Iterator[int]:
    while call:
        yield call
        call = outer.get(call, 0)


def broken_checkpoints(reader: LogReader, held: Held) -> Iterator[str]:
    """Each checkpoint restores, also one for which another would stand in."""
    for record in held.records:
        first = held.oldest
        if not isinstance(record, Snapshot) or is_chunk(record) or is_left_over(record, first):
            continue
        steps = [
            e.step for lsn, e in held.events if isinstance(e, StepStarted) and lsn < record.lsn
        ]
        try:
            restored = restore(reader.fetch, record)
        except BrokenCheckpointError as exc:
            yield f"the checkpoint at LSN {record.lsn}: {exc}"
            continue
        if steps and max(steps) != restored.step:
            yield f"the checkpoint at LSN {record.lsn} hides the records of a later step"


def untold(lived: Lived, held: Held) -> Iterator[str]:
    """What the process was told is what its log says, and so is what a follower reads of it."""
    process, store = lived.processes[-1], lived.store()
    whole = [one.lsn for one in held.records if not is_chunk(one)]
    read = [event for event in run_events(store, RUN, until="now") if event.kind != "damage"]
    if [event.lsn for event in read] != whole:
        yield f"a follower reads {[event.lsn for event in read]} of {whole}"
    if not read:
        return
    found = Counter(type(event) for _, event in held.events)
    counted = read[-1].progress.usage.steps, read[-1].progress.usage.calls, read[-1].progress.failed
    there = (
        found[StepStarted],
        found[CallIntended] + found[CallRetried],
        found[CallFailed],
    )
    if counted != there and not lived.counts["forks"] + lived.counts["accepted"]:
        yield f"progress counts {counted}, the log has {there} steps, calls, failures"
    known = {event.lsn: event for event in read}
    told = [
        _counted(replace(event, progress=replace(event.progress, served=0)), known)
        for event in process.events
    ]
    if told and not process.taken_over and not process.was_hit("power loss"):
        mine = [event for event in read if event.lsn >= told[0].lsn]
        # A crash in an append may leave a record of which nobody was told.
        count = len(told) if process.dead or process.was_hit("disk error") else len(mine)
        if mine[:count] != told and told[: len(mine)] != mine:
            yield f"told {[one.lsn for one in told]} of {[one.lsn for one in mine]}"
    middle = read[len(read) // 2].lsn
    rest = [_counted(one, known) for one in run_events(store, RUN, after=middle, until="now")]
    if rest != [event for event in read if event.lsn > middle]:
        yield f"a follower that goes on behind LSN {middle} reads something else"


def _counted(event: RunEvent, known: dict[int, RunEvent]) -> RunEvent:
    """With the attempt of a call that began before the checkpoint where its reader began."""
    if not event.call or event.attempt or event.lsn not in known:
        return event
    whole = known[event.lsn]
    return replace(event, attempt=whole.attempt, duration_s=whole.duration_s)


def misreported(lived: Lived, held: Held | None) -> Iterator[str]:
    """What the first report of a life says, and the log that was there before it does not."""
    life = len(lived.ends) - 1
    reports = [report for number, report in lived.reports if number == life]
    if held is None or not reports or held.lost or held.oldest > 1 or lived.counts["repairs"]:
        return
    report = reports[0]
    found = [event for _, event in held.events if event is not None]
    recoveries = sum(isinstance(event, RunResumed) for event in found)
    if any(isinstance(event, RunStarted) for event in found) and not lived.counts["forks"]:
        recoveries += 1
        if report.recovery_count != recoveries:
            yield f"recovery {report.recovery_count} is reported, it is {recoveries}"
    at = [one.lsn for one in held.records if isinstance(one, Snapshot) and not is_chunk(one)]
    if report.checkpoint_lsn != max(at, default=0):
        yield f"resumed from the checkpoint at LSN {report.checkpoint_lsn}, the newest is {at[-1:]}"
