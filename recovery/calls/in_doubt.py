"""Calls in doubt: what became of one that was started and of which nothing says how it ended."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any, assert_never

from eventlog import RefusedValueError
from recovery.declare.spec import AfterCrash, ToolSpec
from recovery.engine.call_in_progress import CallInProgress
from recovery.engine.driver_effects import Effect, Invoke
from recovery.engine.unrecordable_results import refuse_result
from recovery.journal.call import Call, Resolution
from recovery.journal.events import CallResolved
from recovery.replay.call_view import CallOutcome, recorded_call
from recovery.values.pack import pack
from recovery.values.types import OutcomeUnknown

if TYPE_CHECKING:
    from recovery.engine.execution import Execution
    from recovery.replay.recorded_call import RecordedCall

_logger = logging.getLogger("recovery")


def resolve_in_doubt(
    run: Execution, spec: ToolSpec, call: Call
) -> Generator[Effect, Any, CallOutcome | None]:
    """A call in doubt: what its policy says became of it; None if it is to be made again.

    One that is not made again has its end when what is in doubt inside it has one.
    """
    how, who = yield from _decided(run, spec, call)
    if how.how == "unknown":
        run.park([call, *_others_in_doubt(run, call.lsn)])
    if how.how == "retry" and spec.repeatable:
        return None
    if how.how != "retry":
        yield from settle_all(run, recorded_inside(run, call.lsn))
    settled = _resolved(run, spec, call, (how, who))
    return None if how.how == "retry" else settled


def settle_all(run: Execution, in_doubt: Iterable[CallInProgress]) -> Generator[Effect, Any, None]:
    """Settle side effects in doubt, each by its policy; the run parks if one cannot be.

    Those inside others first: what is around one that is open stays open.
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


def settle_covered(run: Execution) -> None:
    """Before the agent goes on: side effects in doubt inside calls that have an outcome already.

    Nobody makes these again. They are there in older logs, where somebody has resolved the call
    around them first, and where a tool that had returned was at work still.
    """
    with run.mutex:
        found = [_recorded(run, one) for one in run.replay.covered_in_doubt()]
        for _ in settle_all(run, found):
            raise AssertionError("nobody is asked about a call whose tool is not known")


def recorded_inside(run: Execution, lsn: int) -> list[CallInProgress]:
    """Side effects in doubt that were recorded inside a call, and that it has not made again."""
    return [_recorded(run, one) for one in run.replay.in_doubt_inside(lsn)]


def _recorded(run: Execution, made: RecordedCall) -> CallInProgress:
    policy: AfterCrash = "report" if made.intent.after_crash == "report" else "park"
    spec = ToolSpec(made.intent.tool, recorded_call, policy)  # its function is not to be had
    return CallInProgress(spec, recorded_call(run, made), (*run.replay.around(made), made.lsn))


def _resolved(
    run: Execution, spec: ToolSpec, call: Call, decided: tuple[Resolution, str]
) -> CallOutcome:
    """Record what was decided about a call in doubt."""
    how, who = decided
    assert how.how != "unknown"
    path = f"resolution of {spec.name}"
    try:
        event = CallResolved(call.lsn, how.how, pack(how.value, path), who, by_policy=True)
        return CallOutcome(run.record(event), event)
    except RefusedValueError as exc:
        where = exc.value_path if exc.value_path.startswith(path) else path
        refuse_result(run, spec, call, RefusedValueError(where, exc.reason), how.value)


def _decided(
    run: Execution, spec: ToolSpec, call: Call
) -> Generator[Effect, Any, tuple[Resolution, str]]:
    """What the policy of a call in doubt says became of it, and who says so."""
    who = f"after_crash={spec.after_crash}"
    match spec.after_crash:
        case "retry":
            how = Resolution.retry()
        case "report" if _is_behind_a_loss(run, call):
            how = Resolution.unknown()
        case "report":
            how = Resolution.outcome(OutcomeUnknown(spec.name, call.idempotency_key))
        case "reconcile":
            how = yield from _reconcile(run, spec, call)
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
    run.settled.append(f"{call}: {how.how} ({who})")
    _logger.info("run %s: was in doubt: %s", run.run_id, run.settled[-1])
    return how, who


def _is_behind_a_loss(run: Execution, call: Call) -> bool:
    """Whether the agent may have had the outcome and gone on with it: without it, it would do
    something else than it did. And an agent that tries again whatever it is told nothing of would
    do so for ever, for nobody knows of which call that is true. Of a later attempt it is not:
    that one was begun after a person had decided about the first."""
    losses = run.replay.losses
    if losses is None:
        return False
    return (call.lsn in losses.assumed and call.attempt == 1) or not run.replay.exhausted


def _altered(run: Execution, call: Call) -> str:
    """How this call, of which no record is left, may differ from what was made; "" if it does not.

    Nobody finds it by what it is now, so that nothing is found does not say that it was not made.
    """
    losses = run.replay.losses
    if losses is None or call.attempt > 1 or call.lsn not in losses.assumed:
        return ""
    if losses.input_changed:
        return (
            "other arguments, and another idempotency key: records are lost, and the code was "
            "given something else since than it was then. Look for it by what is the same, and "
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


def _others_in_doubt(run: Execution, but: int) -> list[Call]:
    """Calls that would park next, so that all of them can be resolved at once."""
    return [
        recorded_call(run, other)
        for other in run.replay.in_doubt()
        if other.intent.after_crash == "park" and other.lsn != but
    ]


def _reconcile(run: Execution, spec: ToolSpec, call: Call) -> Generator[Effect, Any, Resolution]:
    assert spec.reconcile is not None
    try:
        # In no scope: what it finds out is true now, and is not to be served from the log later.
        how = yield Invoke(spec.reconcile, (call,), {}, None)
    except Exception:
        _logger.exception(
            "run %s: reconciling failed, the call stays in doubt: %s", run.run_id, call
        )
        return Resolution.unknown()
    if not isinstance(how, Resolution):
        _logger.error(
            "run %s: reconcile of %s is to return a Resolution, not %r; the call stays in doubt",
            run.run_id,
            spec.name,
            how,
        )
        return Resolution.unknown()
    return how
