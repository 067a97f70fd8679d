"""The life of one call, written once for plain and for async code.

``call_steps`` does no waiting itself: it yields an effect, and a driver (agent.drivers) performs
it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator
from dataclasses import replace
from functools import partial
from typing import Any, assert_never

from eventlog import Packed
from recovery.agent_code.call_site import call_site
from recovery.calls.approval import ApprovalRequest, await_approval
from recovery.calls.attempts import another_attempt, attempts, drain, resume
from recovery.calls.identity import ambiguity, digest_now, identify
from recovery.calls.in_doubt import recorded_inside, settle_all
from recovery.calls.intent import arguments_for_people, intent_of, record_intent
from recovery.calls.serve_outcome import serve
from recovery.calls.waiting import behind_waits, is_due
from recovery.declare.scope import Scope
from recovery.declare.spec import ToolSpec
from recovery.engine.call_in_progress import CallInProgress, Identified
from recovery.engine.changed_in_place import tell_of_arguments
from recovery.engine.driver_effects import Effect, Perform, WaitForTurn
from recovery.engine.execution import Execution
from recovery.engine.metering import admit
from recovery.errors import AmbiguousCallError, Sides, Stop
from recovery.journal.call import Arguments, Call
from recovery.journal.keys import UNDO_PREFIX, CallKey
from recovery.replay.call_view import CallOutcome, call_of, describe
from recovery.replay.decide_call import (
    Again,
    Asked,
    CancelledAgain,
    Diverged,
    InDoubt,
    MayBeLost,
    New,
    OfRecord,
    Recorded,
    answer,
    answer_behind,
    answer_of,
)
from recovery.replay.recorded_call import RecordedCall, Tries
from recovery.text import shorten
from recovery.values.diff import differences
from recovery.values.pack import unpack

_logger = logging.getLogger("recovery")

DIRECTLY = (
    " (a plain tool called directly beside other tasks cannot wait for what comes before it; "
    "`await run.call(...)` can)"
)


def call_steps(
    run: Execution, spec: ToolSpec, given: Arguments, call_id: str
) -> Generator[Effect, Any, Any]:
    """The life of a call; returns its result or raises its exception."""
    if call_id.__class__ is not str:
        raise TypeError(f"call_id is text, such as the model's id of the call; not {call_id!r:.80}")
    try:
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
    _check_distinct(run, scope, key, made)
    key = run.replay.earlier.renumbered(key.nth(scope.next_occurrence(key)))
    found = yield from _answer(run, key, made)
    match found:
        case Recorded():
            yield from _wait_for_turn(run, found.turn)
            run.served += 1
            return serve(run, spec, found.call.lsn, found.settled)
        case New():
            is_placed = run.replay.exhausted  # else it is made between recorded calls
            steps = _begun(run, key, made)
        case CancelledAgain() | Again() | InDoubt():
            is_placed = not found.call.intent.lost
            steps = _taken_up(run, found, made)
        case _:
            assert_never(found)
    run.enter(scope)
    try:
        lsn, settled = yield from steps
        run.replay.forget(lsn)
    finally:
        run.leave(scope)
    if not spec.only_waits:  # whose turn has come, see wait_in_turn
        yield from _new_in_turn(run, settled.lsn if is_placed else 0)
    return serve(run, spec, lsn, settled)


def _begun(
    run: Execution, key: CallKey, made: Identified
) -> Generator[Effect, Any, tuple[int, CallOutcome]]:
    """A call that is new: its LSN, and how it ended."""
    call, asking = record_intent(run, key, made)
    if not made.spec.only_waits and is_due(run):
        yield from _let_waits_go_first(run, made.spec, call)
    return call.lsn, (yield from _made(run, made, call, asking, Tries()))


def _taken_up(
    run: Execution, found: CancelledAgain | Again | InDoubt, made: Identified
) -> Generator[Effect, Any, tuple[int, CallOutcome]]:
    """The same of a recorded call without an outcome."""
    spec, given, recorded = made.spec, made.shown, found.call
    if spec.only_waits:  # until the time recorded first, whatever the code says now
        given = recorded.arguments or given
    attempt = recorded.attempts, recorded.time_ns
    call = call_of(run, recorded.lsn, recorded.intent, given, attempt)
    settled = yield from resume(run, spec, found, call)
    if settled is None:
        if recorded.may_have_run:
            call = another_attempt(run, call)
        settled = yield from _made(run, made, call, ApprovalRequest.of(recorded), recorded.tries)
    recorded.last = settled.event
    return call.lsn, settled


def _let_waits_go_first(run: Execution, spec: ToolSpec, call: Call) -> Generator[Effect, Any, None]:
    """Begin a new call behind waits that are over: else an agent that is always at work would never
    have them. The call is recorded before them, so a replay does not end them before it is made.
    """
    try:
        yield from behind_waits(run)
    except BaseException as exc:  # what the agent has made of them has cancelled it
        around = run.current_scope().calls
        run.note_cancelled(CallInProgress(spec, call, (*around, call.lsn), begun=False), exc)
        raise


def _made(
    run: Execution, made: Identified, call: Call, asking: ApprovalRequest | None, tries: Tries
) -> Generator[Effect, Any, CallOutcome]:
    """Make the call, once somebody has approved it if it asks, with what its record lacks."""
    if asking is not None:
        shown = arguments_for_people(made)
        denied = yield from await_approval(run, made.spec, call, asking, shown)
        if denied is not None:
            return denied
    if made.given is made.shown:
        settled = yield from attempts(run, made.spec, call, tries)
    else:
        run.secrets.keep(call.lsn, made.given)
        try:
            settled = yield from attempts(run, made.spec, call, tries)
        finally:
            run.secrets.forget(call.lsn)
        if made.spec.redact:
            # The tool's frame has the secret, and some show the local variables of a traceback's
            # frames.
            settled = settled._replace(cause=None)
    tell_of_arguments(run, made)
    return settled


def _check_distinct(run: Execution, scope: Scope, key: CallKey, made: Identified) -> None:
    """Stop the run at a call that could be taken for another one of its scope."""
    why = ambiguity(scope, key, made)
    if why is not None:
        run.stop(AmbiguousCallError(run.run_id, run.step, why, call_site()))


def _wait_for_turn(run: Execution, outcome: int) -> Generator[Effect, Any, None]:
    """Wait until all that was recorded before this outcome has been done again."""
    scope = run.current_scope()
    try:
        yield WaitForTurn(lambda: run.must_stop(scope) or run.replay.is_next(outcome), turn=outcome)
        run.check()
        run.replay.stop_waiting(outcome)
    finally:  # also when its task is cancelled: nobody is to wait for it
        run.replay.mark_replayed(outcome)


def _new_in_turn(run: Execution, outcome: int) -> Generator[Effect, Any, None]:
    """What was recorded is served before what is new, as it was the first time. Of what may be
    lost nobody knows when it was; what is new before the loop is before all that is recorded; and
    what is made between recorded calls has no place among them: 0.
    """
    turn = 0 if run.before_loop else outcome
    run.replay.add_outcome(turn)
    yield from _wait_for_turn(run, turn)


def _answer(
    run: Execution, key: CallKey, made: Identified
) -> Generator[Effect, Any, OfRecord | New]:
    """What becomes of the call. One that the record does not have may stop the run."""
    spec, replay = made.spec, run.replay
    asked = Asked(
        key,
        spec.repeatable,
        spec.when_cut == "fail",
        run.before_loop,
        partial(digest_now, run, made),
    )
    found, why = answer(replay, asked), ""
    if isinstance(found, New):
        if late := run.current_scope().overdue:
            # What is recorded inside was made in an attempt that was further when its process died.
            yield from settle_all(run, recorded_inside(run, late))
            replay.pass_over(late)
        # A recorded call that nobody has made yet may be made by other code of the agent.
        scope = run.current_scope()
        waited = yield WaitForTurn(
            lambda: run.must_stop(scope) or run.caught_up() or run.is_left_by_stop(), turn=0
        )
        run.check()
        found = answer_behind(replay, asked, waited)
        why = DIRECTLY if waited is None else ""
    match found:
        case Diverged(like):
            sides = _sides(run, like, key, made.packed)
            sides = replace(sides, found=f"{sides.found}{why}")
            call = run.drift.judge(spec, key, sides, unpack(made.packed))
            return New() if call is None else answer_of(call, asked)
        case MayBeLost(like):
            if like is not None:
                run.drift.diverge(_sides(run, like, key, made.packed), key)
            return answer_of(_assumed_made(run, key, made), asked)
        case Recorded() | CancelledAgain():
            if found.call.is_counterpart:
                _tell_of_counterpart(run, found.call, key, made.packed)
            return found
        case Again() | InDoubt() | New():
            return found
        case _:
            assert_never(found)


def _tell_of_counterpart(
    run: Execution, recorded: RecordedCall, key: CallKey, packed: Packed
) -> None:
    sides = _sides(run, recorded, key, packed)
    _logger.info(
        "run %s: before the loop of steps: %s. It was served what is recorded in LSN %d: %s",
        run.run_id,
        sides.found,
        recorded.lsn,
        sides.recorded,
    )


def _assumed_made(run: Execution, key: CallKey, made: Identified) -> RecordedCall:
    """A call that may have been made, for records are lost: recorded as if its intent had been
    there."""
    event = replace(intent_of(run, key, made)[0], lost=True)
    losses = run.replay.losses
    assert losses is not None
    if losses.uid_of_copies and not (
        event.key or event.child or made.spec.name.startswith(UNDO_PREFIX)
    ):
        # Invariant: a call keeps its idempotency key, also where its intent is recorded anew.
        event = replace(event, key=event.idempotency_key(losses.uid_of_copies))
    admit(run, "call", key.tool)
    now = time.time_ns()
    return RecordedCall(run.record(event), now, event, key, now)


def _sides(run: Execution, recorded: RecordedCall | None, key: CallKey, packed: Packed) -> Sides:
    """The recorded and the new call side by side; without one, what else is recorded."""
    args = unpack(packed)
    found = f"{key}: {shorten(args)}, {call_site()}"
    if recorded is None:
        lsn, missing = run.missing()
        return Sides(lsn, missing or "the loop of steps goes on from a checkpoint", found)
    known = recorded.intent.args
    if known is None:  # too large to be recorded whole
        known, args = (
            f"{size:,} bytes, digest {digest.hex()[:8]}"
            for size, digest in (
                (recorded.intent.size, recorded.key.digest),
                (len(packed), key.digest),
            )
        )
    return Sides(
        recorded.lsn,
        describe(recorded),
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
