"""Resolves calls in doubt: they were started, and no record says how they ended."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, assert_never

from eventlog import RefusedValueError
from recovery.calls.waiting import wait
from recovery.declare.spec import AfterCrash, ToolSpec
from recovery.engine.call_in_progress import CallInProgress
from recovery.engine.driver_effects import Effect, Invoke, Perform, Sleep, Waiting
from recovery.engine.unrecordable_results import refuse_result
from recovery.journal.call import Call, Resolution
from recovery.journal.events import CallResolved
from recovery.replay.call_view import CallOutcome, recorded_call_view
from recovery.text import SEALED_TEXT
from recovery.values.pack import pack
from recovery.values.sealed import Personal
from recovery.values.types import OutcomeUnknown

if TYPE_CHECKING:
    from recovery.engine.execution import Execution
    from recovery.replay.lost_records import LostRecords
    from recovery.replay.recorded_call import RecordedCall
    from recovery.replay.run_owners import Elsewhere

_logger = logging.getLogger("recovery")

# How long a side effect that is in flight elsewhere may take to end.
DRAIN_S, DRAIN_NAP_S = 30.0, 0.005


def resolve_in_doubt(
    run: Execution, spec: ToolSpec, call: Call
) -> Generator[Effect, Any, CallOutcome | None]:
    """Resolve a call in doubt by its policy: its outcome, or None if it is to be executed again.

    If it is not executed again, it ends after the calls in doubt inside it are resolved.
    """
    how, who = yield from _decided(run, spec, call)
    if how.how == "unknown":
        run.park([call, *_others_in_doubt(run)])
    if how.how == "retry" and spec.repeatable:
        return None
    if how.how != "retry":
        yield from resolve_all(run, recorded_inside(run, call.lsn))
    settled = _resolved(run, spec, call, (how, who))
    return None if how.how == "retry" else settled


def resolve_all(run: Execution, in_doubt: Iterable[CallInProgress]) -> Generator[Effect, Any, None]:
    """Resolve side effects in doubt, each by its policy; the run parks if one cannot be resolved.

    Inner calls come first: a call around one that stays open stays open too.
    """
    unknown: list[CallInProgress] = []
    around: set[int] = set()
    for one in sorted(in_doubt, key=lambda one: -one.call.lsn):
        how, who = Resolution.unknown(), ""
        if one.call.lsn not in around:
            how, who = yield from _decided(run, one.spec, one.call)
        if how.how == "unknown":
            unknown.append(one)
            around.update(one.calls)
        else:
            settled = _resolved(run, one.spec, one.call, (how, who))
            run.replay.settled(settled.lsn, settled.event)
    run.park_for(unknown)


def resolve_covered(run: Execution) -> None:
    """Resolve side effects in doubt inside calls that have an outcome, before the agent continues.

    The agent does not make these calls again. They exist in older logs, where an operator resolved
    the call around them first, and where a tool that had returned left tasks running.
    """
    with run.mutex:
        found = [_recorded(run, one) for one in run.replay.covered_in_doubt()]
        for _ in resolve_all(run, found):
            raise AssertionError("a call whose tool is unknown is resolved without waiting")


def recorded_inside(run: Execution, lsn: int) -> list[CallInProgress]:
    """Recorded side effects in doubt inside a call that it has not made again."""
    return [_recorded(run, one) for one in run.replay.in_doubt_inside(lsn)]


def _recorded(run: Execution, made: RecordedCall) -> CallInProgress:
    policy: AfterCrash = "report" if made.intent.after_crash == "report" else "park"
    spec = ToolSpec(made.intent.tool, recorded_call_view, policy)  # its function is not known here
    return CallInProgress(spec, recorded_call_view(run, made), (*run.replay.around(made), made.lsn))


def _resolved(
    run: Execution, spec: ToolSpec, call: Call, decided: tuple[Resolution, str]
) -> CallOutcome:
    """Record the resolution of a call in doubt."""
    how, who = decided
    assert how.how != "unknown"
    path = f"resolution of {spec.name}"
    marked = how.value if type(how.value) is Personal else None
    try:
        value = pack(how.value if marked is None else marked.value, path)
        event = CallResolved(call.lsn, how.how, value, who, by_policy=True)
        said = event if marked is None else replace(event, value=marked.of(value))
        return CallOutcome(run.record(said), event)
    except RefusedValueError as exc:
        where = exc.value_path if exc.value_path.startswith(path) else path
        refuse_result(run, spec, call, RefusedValueError(where, exc.reason), how.value)


def _decided(
    run: Execution, spec: ToolSpec, call: Call
) -> Generator[Effect, Any, tuple[Resolution, str]]:
    """The resolution of a call in doubt by its policy, and the name of what decided."""
    who = f"after_crash={spec.after_crash}"
    match spec.after_crash:
        case "retry":
            how = Resolution.retry()
        case "report" if _is_after_a_gap(run, call):
            how = Resolution.unknown()
        case "report":
            how = Resolution.outcome(OutcomeUnknown(spec.name, call.idempotency_key))
        case "reconcile":
            how = yield from _reconciled(run, spec, call)
            who = "reconcile"
        case "park":
            how = Resolution.unknown()
        case _:
            assert_never(spec.after_crash)
    if how.how in ("retry", "unknown") and spec.after_crash != "retry":
        altered = _altered(run, call)
        if altered:
            _logger.warning("run %s: %s may have been made with %s", run.run_id, call, altered)
            how = Resolution.unknown()
    there = f"; {run.elsewhere[call.lsn]}" if call.lsn in run.elsewhere else ""
    run.settled.append(f"{call}: {how.how} ({who}){there}")
    _logger.info("run %s: was in doubt: %s", run.run_id, run.settled[-1])
    return how, who


def _is_after_a_gap(run: Execution, call: Call) -> bool:
    """Whether the agent may have received the outcome and continued with it, because records are
    lost. Told that the outcome is unknown, the agent would then do something else than it did, and
    an agent that retries after such an answer might retry for ever. A later attempt began after an
    operator had decided about the first, so this is false for it."""
    lost = run.replay.losses is not None and not run.replay.exhausted
    return lost or _assumed_by(run, call) is not None


def _assumed_by(run: Execution, call: Call) -> LostRecords | None:
    """The losses by which the call may have been made, though none of its attempts is recorded."""
    losses = run.replay.losses
    known = losses is None or call.attempt > 1 or call.lsn not in losses.assumed
    return None if known else losses


def _altered(run: Execution, call: Call) -> str:
    """How this call, whose records are lost, may differ from the one that was made; "" if it
    cannot.

    A search by its present arguments may miss the earlier call. Finding nothing then does not prove
    that the call was not made.
    """
    losses = _assumed_by(run, call)
    if losses is None:
        return ""
    if losses.input_changed:
        return (
            "other arguments, and another idempotency key: records are lost, and the code was "
            "given other values since. Search for the call by the arguments that are the same, and "
            "resolve it."
        )
    if losses.in_copies:
        assert losses.origin is not None
        return (
            "another idempotency key: records are lost that came here with a fork, from run "
            f"{losses.origin.run_id!r} or one that this was forked from. Look for it by its "
            "arguments, or in that run, and resolve it."
        )
    return ""


def _others_in_doubt(run: Execution) -> list[Call]:
    """Other calls that would park the run next, so that all of them can be resolved at once."""
    return [
        recorded_call_view(run, other)
        for other in run.replay.in_doubt()
        if other.intent.after_crash == "park"
    ]


def _reconciled(run: Execution, spec: ToolSpec, call: Call) -> Generator[Effect, Any, Resolution]:
    """What the tool's hook finds. That a call did not happen is no proof while a former owner of
    the run may still execute it: so it stays in doubt until the time of the call is over. Nor is it
    while a thread here executes it, which nothing can end."""
    in_thread = call.lsn in run.in_threads  # it may end while the hook looks
    how = yield from _reconcile(run, spec, call)
    if in_thread and how.how in ("retry", "fail"):
        how = yield from _after_its_thread(run, spec, call)
    there = run.elsewhere.get(call.lsn)
    if there is None or how.how not in ("retry", "fail"):
        return how
    _logger.warning(
        "run %s: %s: the reconcile hook says %r, but %s", run.run_id, call, how.how, there
    )
    while not _is_over(run, there):
        if there.until is None:
            return Resolution.unknown()
        left_s, limit_s = there.until - run.log.time_ns() / 1e9, run.settings.park_after_s
        if limit_s is not None and left_s > limit_s:
            run.park([call], wake_at=there.until)
        what = f"{spec.name}, which is in doubt: {there}"
        ends = Waiting(call.lsn, what, run.wall_clock() + left_s, partial(_over, run, there))
        yield Perform(wait(run, ends))
    if run.log.former_owner() == "":
        run.elsewhere.clear()
    return (yield from _reconcile(run, spec, call))


def _after_its_thread(
    run: Execution, spec: ToolSpec, call: Call
) -> Generator[Effect, Any, Resolution]:
    """What the hook finds when the thread has ended; in doubt if it does not end in time."""
    _logger.warning(
        "run %s: %s: its thread continues after its time-out; waiting for it, %g s at most",
        run.run_id,
        call,
        DRAIN_S,
    )
    until = run.wall_clock() + DRAIN_S
    while call.lsn in run.in_threads:
        if run.wall_clock() >= until:
            return Resolution.unknown()
        yield Sleep(DRAIN_NAP_S)
        run.check()
    return (yield from _reconcile(run, spec, call))


def _is_over(run: Execution, there: Elsewhere) -> bool:
    """Whether no former owner executes the call any more: by the clock of the store, or because all
    of them have ended."""
    timed_out = there.until is not None and run.log.time_ns() >= there.until * 1e9
    return timed_out or run.log.former_owner() == ""


def _over(run: Execution, there: Elsewhere) -> float | None:
    return run.wall_clock() if _is_over(run, there) else None


def _reconcile(run: Execution, spec: ToolSpec, call: Call) -> Generator[Effect, Any, Resolution]:
    assert spec.reconcile is not None
    try:
        # In no scope: its findings are of now, and must not be served from the log later.
        how = yield Invoke(spec.reconcile, (call,), {}, None)
    except Exception as exc:
        line = "run %s: reconciling failed, the call stays in doubt: %s\n%s"
        _logger.error(line, run.run_id, call, run.told(exc, call.lsn))
        return Resolution.unknown()
    if not isinstance(how, Resolution):
        _logger.error(
            "run %s: reconcile of %s is to return a Resolution, not %s; the call stays in doubt",
            run.run_id,
            spec.name,
            SEALED_TEXT if call.subject else repr(how),
        )
        return Resolution.unknown()
    return how
