"""Executes a call: its attempts and retries, its time-outs, and its cancellation."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Generator, Iterator
from dataclasses import replace
from typing import Any, assert_never

from eventlog import Packed, RefusedValueError
from eventlog.format.record import kind_name
from recovery.calls.attempt_end import drain_attempt, end_attempt, resolve_inside
from recovery.calls.in_doubt import DRAIN_NAP_S, DRAIN_S, resolve_in_doubt
from recovery.calls.intent import make_intent_durable
from recovery.declare.scope import Scope
from recovery.declare.spec import ToolSpec
from recovery.engine.call_in_progress import CallInProgress
from recovery.engine.driver_effects import Effect, Invoke, Perform, Sleep, TimedOutError
from recovery.engine.execution import Execution
from recovery.engine.metering import admit, measured
from recovery.engine.randomness import a_number
from recovery.engine.unrecordable_results import refuse_result
from recovery.errors import LeftBehindError, NoAnswerError
from recovery.journal.call import Call
from recovery.journal.call_key import call_scope
from recovery.journal.events import (
    AttemptFailed,
    CallAbandoned,
    CallResolved,
    CallRetried,
    CallReturned,
)
from recovery.journal.failure import failure
from recovery.replay.call_view import CallOutcome
from recovery.replay.decide_call import (
    Again,
    CancelledAgain,
    InDoubt,
    Recorded,
    recorded_answer,
)
from recovery.replay.recorded_call import RecordedCall, Tries
from recovery.text import SEALED_TEXT, quoted
from recovery.values.model_data import pack_result
from recovery.values.sealed import Personal

_logger = logging.getLogger("recovery")

POLL_S = 0.25  # how soon a call that waits sees that its run was stopped
# How much longer than the first time an agent may take to cancel a call on replay.
LATE_S = 10.0
_SETS = frozenset({set, frozenset})


def attempts(
    run: Execution, spec: ToolSpec, call: Call, tries: Tries
) -> Generator[Effect, Any, CallOutcome]:
    """Execute the call, and retry it as its tool allows; returns its outcome.

    ``tries``: attempts so far, in all processes.
    """
    while True:
        if not spec.repeatable:
            yield from make_intent_durable(run, spec, call)
        ended = yield from _attempt(run, spec, call, tries)
        if isinstance(ended, CallOutcome):
            return ended
        yield Perform(sleep_until(run, ended))
        tries = tries.next()
        call = another_attempt(run, call)


def another_attempt(run: Execution, call: Call) -> Call:
    """Record that a call, which has begun before, is executed again."""
    admit(run, "call", call.tool)
    run.record(CallRetried(call.lsn, call.attempt + 1))
    run.elsewhere.pop(call.lsn, None)
    return replace(call, attempt=call.attempt + 1)


def resume(
    run: Execution, spec: ToolSpec, found: Again | InDoubt, call: Call
) -> Generator[Effect, Any, CallOutcome | None]:
    """The outcome of a recorded call that has none yet; None if it is to be executed again."""
    match found:
        case InDoubt():
            return (yield from resolve_in_doubt(run, spec, call))
        case Again(_, "attempt failed", at):
            yield Perform(sleep_until(run, at))
        case Again(_, "failed in an attempt"):
            why = "it failed in an attempt at the call around it, which is executed again"
            _decide_again(run, call, "retry=", why)
        case Again(_, "parked the run"):
            why = "the run parked when it had failed, and was resumed"
            _decide_again(run, call, "resume", why)
        case Again(recorded) if recorded.cancelled:  # status shows that it waits again
            _decide_again(
                run, call, "resume", "the agent had cancelled it, and does not cancel it now"
            )
        case Again():
            pass
        case _:
            assert_never(found)
    return None


def cancelled_again(
    run: Execution, found: CancelledAgain
) -> Generator[Effect, Any, Recorded | Again | InDoubt]:
    """Wait for the agent to cancel the call as it did when it was recorded.

    If the agent cancels an equal call instead, returns the outcome of that one. If it cancels
    neither, returns what becomes of the call then.
    """
    recorded, equal = found.call, run.replay.equal
    equal.wait(recorded)
    try:
        yield Perform(_await_cancellation(run, recorded))
    except BaseException:
        other = equal.end(recorded)
        if other is not None and not equal.exchange(other):
            run.replay.mark_replayed(other.replay_position)
        raise
    other = equal.end(recorded)
    return found.then if other is None else recorded_answer(other)


def _decide_again(run: Execution, call: Call, who: str, why: str) -> None:
    again = CallResolved(call.lsn, "retry", None, who, why, by_policy=True)
    run.children.note_retry(call.lsn, run.record(again))


def sleep_until(run: Execution, when: float) -> Generator[Sleep, None, None]:
    """Wait until a time, in seconds since 1970; interrupted when the run is stopped."""
    while (left := when - run.wall_clock()) > 0:
        yield Sleep(min(left, POLL_S), left)
        run.check()


def _await_cancellation(run: Execution, recorded: RecordedCall) -> Generator[Sleep, None, None]:
    """Wait until the agent cancels an equal call instead, or has had time enough to cancel this.

    The agent may take as long as it took from the start of the step, because earlier calls are
    served at once.
    """
    took = max(0, recorded.last_ns - recorded.since_ns) / 1e9
    until = run.wall_clock() + took + LATE_S
    while run.replay.equal.exchanged(recorded) is None:
        left = until - run.wall_clock()
        if left <= 0:
            _logger.warning(
                "run %s: the agent cancelled call %s (LSN %d) when it was recorded, and does not "
                "now",
                run.run_id,
                recorded.key,
                recorded.lsn,
            )
            return
        yield Sleep(min(left, POLL_S), left)
        run.check()


def _attempt(
    run: Execution, spec: ToolSpec, call: Call, tries: Tries
) -> Generator[Effect, Any, CallOutcome | float]:
    """Execute one attempt: returns the call's outcome, or when to start the next attempt."""
    run.executed += 1
    scope = Scope(run, call_scope(call.lsn), call, run.current_scope())
    scope.raised = tries.raised
    try:
        if spec.waits:
            value = yield Perform(spec.function(run, call))
            if isinstance(value, CallOutcome):  # it has recorded the outcome itself
                return value
        else:
            args, kwargs = run.secrets.arguments(call.lsn, (call.args, call.kwargs))
            value = yield Invoke(
                spec.function, args, kwargs, scope, spec.timeout_s, spec.repeatable
            )
        yield from _resolve_inside(run, scope, None)
        return _returned(run, spec, scope, value)
    except (TimedOutError, NoAnswerError) as exc:
        error = exc.error() if isinstance(exc, TimedOutError) else exc
        yield from _resolve_inside(run, scope, error)
        return (yield from _timed_out(run, spec, scope, tries, error))
    except LeftBehindError:  # no outcome, whatever the code around this call turns it into
        run.current_scope().stopped = True
        raise
    except Exception as exc:
        yield from _resolve_inside(run, scope, exc)
        return _failed(run, spec, scope, tries, exc)
    except BaseException as exc:
        scope.check()
        try:
            # Otherwise waiting is impossible: the process is to end, or a stream was left.
            if isinstance(exc, asyncio.CancelledError) and scope.used:
                yield Perform(drain_attempt(run, scope, DRAIN_S))
        finally:
            scope.over = True
            run.note_cancelled(CallInProgress(spec, call, scope.calls), exc)
        raise
    finally:
        run.side_effects_in_flight.pop(call.lsn, None)


def _packed(spec: ToolSpec, value: Any) -> Packed:
    path = f"result of {spec.name}"
    try:
        return pack_result(value, path)
    except RefusedValueError:
        if not isinstance(value, Iterator | AsyncIterator):
            raise
        why = f"{kind_name(value)} cannot be carried, for it gives each item once"
        how = f"use `run.stream({spec.name}, ...)`, which records them, or return a list"
        raise RefusedValueError(path, f"{why}: {how}") from None


def _returned(run: Execution, spec: ToolSpec, scope: Scope, value: Any) -> CallOutcome:
    """Record what the call returned; a value that cannot be recorded is no outcome."""
    call, path = scope.call, f"result of {spec.name}"
    assert call is not None
    marked, value = (value, value.value) if type(value) is Personal else (None, value)
    used = measured(run, spec, scope, value)
    try:
        event = CallReturned(call.lsn, _packed(spec, value), used)
    except RefusedValueError as exc:
        refuse_result(run, spec, call, exc, marked or value)
    if value.__class__ in _SETS:
        from recovery.agent_code.warn_once import warn_of_set  # noqa: PLC0415 - rare

        warn_of_set(spec.name, value)
    try:
        # A mark needs the same value: one that is packed, as declared types may have changed it.
        said = event if marked is None else replace(event, value=marked.of(event.value))
        return CallOutcome(run.record(said), event)
    except RefusedValueError as exc:  # too large
        refuse_result(run, spec, call, RefusedValueError(path, exc.reason), marked or value)


def _resolve_inside(
    run: Execution, scope: Scope, ended: Exception | None
) -> Generator[Effect, Any, None]:
    """Resolve the calls inside before the end of an attempt is recorded: see attempt_end.

    If a call inside has stopped the run and the tool caught that, this stops the run again: the
    tool does not have that call's outcome.
    """
    scope.check()
    if scope.used or run.replay.earlier.has_calls_inside(scope.calls[-1]):
        yield from resolve_inside(run, scope, ended)
    scope.over = ended is not None


def drain(run: Execution) -> Generator[Sleep, None, None]:
    """Let side effects end before a stop is raised in the agent's code.

    A task group cancels its other tasks when the stop reaches it. Calls around the one that stops
    wait for that call, so this does not wait for them.
    """
    run.draining |= {*run.current_scope().calls}
    until = run.wall_clock() + DRAIN_S
    while run.side_effects_in_flight.keys() - run.draining and run.wall_clock() < until:
        yield Sleep(DRAIN_NAP_S)


def _failed(
    run: Execution, spec: ToolSpec, scope: Scope, tries: Tries, exc: Exception
) -> CallOutcome | float:
    call = scope.call
    assert call is not None
    is_sealed = bool(run.subjects.of_call(call.lsn))
    event = failure(call.lsn, exc, run.secrets if is_sealed else run.scrubber)
    failed = tries.failed + 1
    if spec.retry is None or not spec.retry.again(exc, failed):
        return CallOutcome(run.record(event), event, exc, tries.raised + 1)

    when = run.wall_clock() + spec.retry.pause_s(exc, failed, a_number())
    _logger.info(
        "run %s: attempt %d failed, next in %.1f s: %s: %s: %s",
        run.run_id,
        call.attempt,
        when - run.wall_clock(),
        call,
        event.type,
        SEALED_TEXT if is_sealed else quoted(event.message),
    )
    run.record(
        AttemptFailed(call.lsn, call.attempt, event.type, event.message, when, event.traceback)
    )
    end_attempt(run, scope)
    return when


def _timed_out(
    run: Execution, spec: ToolSpec, scope: Scope, tries: Tries, exc: TimeoutError | NoAnswerError
) -> Generator[Effect, Any, CallOutcome | float]:
    """A call without an answer: whether a side effect happened is unknown, so it is in doubt."""
    call = scope.call
    assert call is not None
    if spec.when_cut == "fail":
        return _failed(run, spec, scope, tries, exc)
    run.record(CallAbandoned(call.lsn, call.attempt, "timeout", begun=True))
    outcome = yield from resolve_in_doubt(run, spec, call)
    return outcome or _failed(run, spec, scope, tries, exc)
