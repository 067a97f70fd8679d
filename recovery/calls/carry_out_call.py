"""Carries out one call, from its lookup to its outcome, for plain and for async code alike.

``call_steps`` does no waiting itself: it yields an effect, and a driver (agent.drivers) performs
it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from typing import Any, assert_never

from recovery.agent_code.call_site import call_site
from recovery.calls.approval import ApprovalRequest, await_approval
from recovery.calls.attempts import another_attempt, attempts, cancelled_again, drain, resume
from recovery.calls.identity import ambiguity, compared, digest_now, identify
from recovery.calls.in_doubt import recorded_inside, resolve_all
from recovery.calls.intent import arguments_for_people, intent_of, record_intent
from recovery.calls.serve_outcome import serve
from recovery.calls.waiting import after_waits, is_due
from recovery.declare.parameters import form_of
from recovery.declare.scope import Scope
from recovery.declare.spec import ToolSpec
from recovery.engine.call_in_progress import CallInProgress, Identified
from recovery.engine.changed_in_place import warn_of_changed_arguments
from recovery.engine.driver_effects import Effect, Perform
from recovery.engine.execution import Execution
from recovery.engine.metering import admit
from recovery.errors import AmbiguousCallError, Sides, Stop
from recovery.journal.call import Arguments, Call
from recovery.journal.call_key import UNDO_PREFIX, CallKey
from recovery.replay.call_view import CallOutcome, call_text, call_view
from recovery.replay.decide_call import (
    Again,
    CancelledAgain,
    Diverged,
    InDoubt,
    MayBeLost,
    New,
    OfRecord,
    Recorded,
    RequestedCall,
    answer,
    answer_after_wait,
    answer_of,
)
from recovery.replay.recorded_call import RecordedCall, Tries
from recovery.text import SEALED_TEXT, shorten
from recovery.values.diff import differences
from recovery.values.pack import unpack

_logger = logging.getLogger("recovery")

DIRECTLY = (
    " (a plain tool called directly beside other tasks cannot wait for what comes before it; "
    "`await run.call(...)` can)"
)


def call_steps(
    run: Execution,
    spec: ToolSpec,
    given: Arguments,
    call_id: str,
    steps: Callable[[ToolSpec, Arguments, str], Generator[Effect, Any, Any]] | None = None,
) -> Generator[Effect, Any, Any]:
    """Carry out a call; returns its result or raises its exception.

    ``steps``: of a call that is not looked up in the order of the record.
    """
    if call_id.__class__ is not str:
        raise TypeError(f"call_id is text, such as the model's id of the call; not {call_id!r:.80}")
    if spec.call_id:  # of a call that is made directly, which says it in no other way
        spec, call_id = replace(spec, call_id=""), call_id or spec.call_id
    try:
        if steps is not None:
            return (yield from steps(spec, given, call_id))
        return (yield from _call_steps(run, spec, given, call_id))
    except Stop:
        yield Perform(drain(run))
        raise


def _call_steps(
    run: Execution, spec: ToolSpec, given: Arguments, call_id: str
) -> Generator[Effect, Any, Any]:
    run.safe_point()
    made = identify(run, spec, given, call_id)
    spec = made.spec
    if spec.undo is not None:
        run.undoable[spec.name] = spec
    scope = run.current_scope()
    key = CallKey(scope.path, spec.name, made.call_id, made.digest)
    check_distinct(run, scope, key, made)
    key = run.replay.earlier.renumbered(key.nth(scope.next_occurrence(key)))
    found = yield from _answer(run, key, made)
    if isinstance(found, CancelledAgain):
        found = yield from _cancelled_again(run, found, made)
    found = yield from run.on_answer(found, key, made)
    match found:
        case Recorded():
            yield from _wait_for_turn(run, found.turn, found.call)
            run.served += 1
            return serve(run, spec, found.call.lsn, found.outcome)
        case New():
            is_placed = run.replay.exhausted  # else it is made between recorded calls
            steps = begin_call(run, key, made)
        case Again() | InDoubt():
            is_placed = not found.call.intent.lost
            steps = resume_call(run, found, made)
        case _:
            assert_never(found)
    run.enter(scope)
    try:
        lsn, outcome = yield from steps
        run.replay.forget(lsn)
    finally:
        run.leave(scope)
    if not spec.only_waits:  # whose turn has come, see wait_in_turn
        yield from _new_in_turn(run, outcome.lsn if is_placed else 0)
    return serve(run, spec, lsn, outcome)


def begin_call(
    run: Execution, key: CallKey, made: Identified
) -> Generator[Effect, Any, tuple[int, CallOutcome]]:
    """Make a new call; returns its LSN and its outcome."""
    call, asking = record_intent(run, key, made)
    if not made.spec.only_waits and is_due(run):
        yield from _let_waits_go_first(run, made.spec, call)
    return call.lsn, (yield from _made(run, made, call, asking, Tries()))


def _cancelled_again(
    run: Execution, found: CancelledAgain, made: Identified
) -> Generator[Effect, Any, Recorded | Again | InDoubt]:
    """Decide what becomes of a recorded call that the agent cancelled, if it does not now."""
    scope = run.current_scope()
    run.enter(scope)
    try:
        if made.spec.child_id is not None:
            one = found.call
            attempt = one.attempts, one.time_ns
            run.children.cancel_child(call_view(run, one.lsn, one.intent, made.shown, attempt))
        return (yield from cancelled_again(run, found))
    finally:
        run.leave(scope)


def resume_call(
    run: Execution, found: Again | InDoubt, made: Identified
) -> Generator[Effect, Any, tuple[int, CallOutcome]]:
    """Resume a recorded call that has no outcome; returns its LSN and its outcome."""
    spec, given, recorded = made.spec, made.shown, found.call
    if spec.only_waits:  # until the time recorded first, whatever the code says now
        given = recorded.arguments or given
    attempt = recorded.attempts, recorded.time_ns
    form = form_of(spec.function)
    call = call_view(run, recorded.lsn, recorded.intent, given, attempt, form)
    outcome = yield from resume(run, spec, found, call)
    if outcome is None:
        asking = ApprovalRequest.of(recorded)
        # Invariant: a side effect that needs approval is approved before its attempt is recorded.
        if recorded.may_have_run and (asking is None or spec.repeatable):
            call = another_attempt(run, call)
        outcome = yield from _made(run, made, call, asking, recorded.tries)
    recorded.last = outcome.event
    return call.lsn, outcome


def _let_waits_go_first(run: Execution, spec: ToolSpec, call: Call) -> Generator[Effect, Any, None]:
    """Begin a new call after waits that are over; otherwise an agent that always has calls in
    flight would never get them. The call is recorded before them, so a replay does not end them
    before the call is made.
    """
    try:
        yield from after_waits(run)
    except BaseException as exc:  # the agent cancelled this call when it had them
        around = run.current_scope().calls
        run.note_cancelled(CallInProgress(spec, call, (*around, call.lsn), begun=False), exc)
        raise


def _made(
    run: Execution, made: Identified, call: Call, asking: ApprovalRequest | None, tries: Tries
) -> Generator[Effect, Any, CallOutcome]:
    """Execute the call, after its approval if it needs one."""
    if asking is not None:
        shown = arguments_for_people(made)
        denied = yield from await_approval(run, made.spec, call, asking, shown)
        if denied is not None:
            return denied
    if made.given is made.shown:
        outcome = yield from attempts(run, made.spec, call, tries)
    else:
        run.secrets.keep(call.lsn, made.given)
        try:
            outcome = yield from attempts(run, made.spec, call, tries)
        finally:
            run.secrets.forget(call.lsn)
        if made.spec.redact:
            # The tool's frame has the secret, and some show the local variables of a traceback's
            # frames.
            outcome = outcome._replace(cause=None)
    warn_of_changed_arguments(run, made)
    return outcome


def check_distinct(run: Execution, scope: Scope, key: CallKey, made: Identified) -> None:
    """Stop the run at a call that could be taken for another one of its scope."""
    why = ambiguity(scope, key, made)
    if why is not None:
        run.stop(AmbiguousCallError(run.run_id, run.step, why, call_site()))


def _wait_for_turn(
    run: Execution, outcome: int, recorded: RecordedCall | None = None
) -> Generator[Effect, Any, None]:
    """Wait until everything that was recorded before this outcome has been replayed. ``recorded``:
    the call that has this outcome, unless the outcome is new."""
    replay, exchanged = run.replay, False
    try:
        yield from run.wait_until(lambda: replay.is_next(outcome), turn=outcome)
        replay.stop_waiting(outcome)
    except asyncio.CancelledError:
        exchanged = recorded is not None and replay.equal.exchange(recorded)
        raise
    finally:  # also when its task is cancelled: no other call may wait for it then
        if not exchanged:
            replay.mark_replayed(outcome)


def _new_in_turn(run: Execution, outcome: int) -> Generator[Effect, Any, None]:
    """Wait for the turn of a new outcome: recorded outcomes are served first, as they were the
    first time. Three kinds have no position among them (0): calls that may be lost, because their
    time is unknown; new calls before the loop of steps; and calls made between recorded ones.
    """
    turn = 0 if run.before_loop else outcome
    run.replay.add_outcome(turn)
    yield from _wait_for_turn(run, turn)


def _answer(
    run: Execution, key: CallKey, made: Identified
) -> Generator[Effect, Any, OfRecord | New]:
    """Decide what becomes of the call. A call that is not recorded may stop the run."""
    spec, replay = made.spec, run.replay
    requested = RequestedCall(
        key,
        spec.repeatable,
        spec.when_cut == "fail",
        run.before_loop,
        partial(digest_now, run, made),
        made.shown[1].get("timeout") is not None if spec.only_waits else None,
    )
    found, why = answer(replay, requested), ""
    if isinstance(found, New):
        if late := run.current_scope().overdue:
            # The calls recorded inside are of an attempt that had come further when its process
            # died.
            yield from resolve_all(run, recorded_inside(run, late))
            replay.pass_over(late)
        # Other code of the agent may still make the recorded call that is expected here.
        waited = yield from run.wait_until(lambda: run.caught_up() or run.is_left_by_stop(), turn=0)
        found = answer_after_wait(replay, requested, waited)
        why = DIRECTLY if waited is None else ""
    match found:
        case Diverged(like):
            sides = _sides(run, like, key, made)
            sides = replace(sides, found=f"{sides.found}{why}")
            call = run.drift.judge(spec, key, sides, partial(_compared, run, made))
            return New() if call is None else answer_of(call, requested)
        case MayBeLost(like):
            if like is not None:
                run.drift.diverge(_sides(run, like, key, made), key)
            return answer_of(assumed_made(run, key, made), requested)
        case Recorded() | CancelledAgain():
            if found.call.is_counterpart:
                _report_counterpart(run, found.call, key, made)
            return found
        case Again() | InDoubt() | New():
            return found
        case _:
            assert_never(found)


def _report_counterpart(
    run: Execution, recorded: RecordedCall, key: CallKey, made: Identified
) -> None:
    sides = _sides(run, recorded, key, made)
    _logger.info(
        "run %s: before the loop of steps: %s. It was served what is recorded in LSN %d: %s",
        run.run_id,
        sides.found,
        recorded.lsn,
        sides.recorded,
    )


def assumed_made(run: Execution, key: CallKey, made: Identified) -> RecordedCall:
    """A call that may have been made, because records are lost: recorded as if its intent had
    been there."""
    event = replace(intent_of(run, key, made)[0], lost=True)
    losses = run.replay.losses
    assert losses is not None
    if losses.uid_of_copies and not (
        event.key or event.child or made.spec.name.startswith(UNDO_PREFIX)
    ):
        # Invariant: a call keeps its idempotency key, also where its intent is recorded again.
        event = replace(event, key=event.idempotency_key(losses.uid_of_copies))
    admit(run, "call", key.tool)
    now = time.time_ns()
    return RecordedCall(run.record(event), now, event, key, now)


def _compared(run: Execution, made: Identified, args: Any) -> Any:
    """What is compared of recorded arguments, [positional, by name]; of those of the call itself
    for None."""
    match unpack(made.packed) if args is None else args:
        case [list(given), dict(named)]:
            return list(compared(run, made, (tuple(given), named)))
        case other:
            return other


def _sides(run: Execution, recorded: RecordedCall | None, key: CallKey, made: Identified) -> Sides:
    """The recorded and the new call side by side; without one, what else is recorded."""
    args = unpack(made.packed)
    is_sealed = bool(made.subject) or (recorded is not None and recorded.intent.subject is not None)
    found = f"{key}: {SEALED_TEXT if is_sealed else shorten(args)}, {call_site()}"
    if recorded is None:
        lsn, missing = run.missing()
        return Sides(lsn, missing or "the loop of steps continues from a checkpoint", found)
    known = recorded.intent.args
    if is_sealed:
        known = args = {}
    elif known is None:  # too large to be recorded whole
        known, args = (
            f"{size:,} bytes, digest {digest.hex()[:8]}"
            for size, digest in (
                (recorded.intent.size, recorded.key.digest),
                (len(made.packed), key.digest),
            )
        )
    elif made.spec.name == recorded.key.tool:
        known, args = _compared(run, made, known), _compared(run, made, None)
    return Sides(
        recorded.lsn,
        call_text(recorded),
        found,
        differences(_shown(recorded.key, known), _shown(key, args)),
    )


def _shown(key: CallKey, args: Any) -> dict[str, Any]:
    parts = {"args": args[0], **args[1]} if isinstance(args, list) else {"arguments": args}
    return {
        "scope": key.scope,
        "tool": key.tool,
        "call_id": key.call_id,
        "occurrence": key.occurrence,
        **parts,
    }
