"""The life of one call, written once for plain and for async code.

``protocol`` does no waiting itself: it yields an effect, and a driver (agent.drivers) performs it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator
from dataclasses import replace
from functools import partial
from typing import Any

from eventlog import Packed
from recovery.agent_code.call_site import call_site
from recovery.calls.approval import Asking, approved
from recovery.calls.attempts import attempts, leave, resume
from recovery.calls.identity import ambiguity, digest_now, identify
from recovery.calls.in_doubt import recorded_inside, settle_all
from recovery.calls.intent import arguments_for_people, intent_of, record_intent
from recovery.calls.serve_outcome import serve
from recovery.calls.waiting import behind_waits, is_due
from recovery.declare.scope import Scope
from recovery.declare.spec import ToolSpec
from recovery.engine.call_in_progress import CallInProgress, Identified
from recovery.engine.changed_in_place import tell_of_arguments
from recovery.engine.effects import Effect, Perform, Wait
from recovery.engine.execution import Execution
from recovery.engine.metering import admit
from recovery.errors import AmbiguousCallError, Sides, Stop
from recovery.journal.call import Arguments, Call
from recovery.journal.events import CallRetried
from recovery.journal.keys import BEFORE_STEPS, UNDO_PREFIX, CallKey
from recovery.replay.by_identity import closest
from recovery.replay.call_view import Outcome, Settled, call_of, describe
from recovery.replay.lost_records import LostRecords
from recovery.replay.recorded_call import RecordedCall, Tries
from recovery.text import shorten
from recovery.values.diff import differences
from recovery.values.pack import unpack

_logger = logging.getLogger("recovery")

DIRECTLY = (
    " (a plain tool called directly beside other tasks cannot wait for what comes before it; "
    "`await run.call(...)` can)"
)


def protocol(
    run: Execution, spec: ToolSpec, given: Arguments, call_id: str
) -> Generator[Effect, Any, Any]:
    """The life of a call; returns its result or raises its exception."""
    if call_id.__class__ is not str:
        raise TypeError(f"call_id is text, such as the model's id of the call; not {call_id!r:.80}")
    try:
        return (yield from _life(run, spec, given, call_id))
    except Stop:
        yield Perform(leave(run))
        raise


def _life(
    run: Execution, spec: ToolSpec, given: Arguments, call_id: str
) -> Generator[Effect, Any, Any]:
    run.safe_point()
    made = identify(run, spec, given, call_id)
    spec, given = made.spec, made.shown
    if spec.undo is not None:
        run.undoable[spec.name] = spec
    scope = run.here()
    key = CallKey(scope.path, spec.name, made.call_id, made.digest)
    _check_distinct(run, scope, key, made)
    key = run.replay.earlier.placed(key.nth(scope.next_occurrence(key)))
    recorded = yield from _known(run, key, made)
    in_between = recorded is None and not run.replay.used_up
    if recorded is not None and recorded.done:
        yield from _in_turn(run, recorded.turn)
        run.served += 1
        assert isinstance(recorded.last, Outcome)
        served = Settled(recorded.last_lsn, recorded.last, raised=recorded.tries.raised)
        return serve(run, spec, recorded.lsn, served)
    run.enter(scope)
    try:
        settled = None
        if recorded is None:
            call, asking = record_intent(run, key, made)
            if not spec.only_waits and is_due(run):
                yield from _let_waits_go_first(run, spec, call)
        else:
            if spec.only_waits:  # until the time recorded first, whatever the code says now
                given = recorded.arguments or given
            call = call_of(
                run, recorded.lsn, recorded.intent, given, (recorded.attempts, recorded.time_ns)
            )
            settled = yield from resume(run, spec, recorded, call)
            asking = Asking.of(recorded)
            if settled is None and recorded.begun:
                call = replace(call, attempt=call.attempt + 1)
                admit(run, "call", key.tool)
                run.emit(CallRetried(call.lsn, call.attempt))
        if settled is None and asking is not None:
            settled = yield from approved(run, spec, call, asking, arguments_for_people(made))
        if settled is None:
            tries = recorded.tries if recorded is not None else Tries()
            settled = yield from _made(run, made, call, tries)
            tell_of_arguments(run, made)
        if recorded is not None:
            recorded.last = settled.event
        run.replay.over(call.lsn)
    finally:
        run.leave(scope)
    if not spec.only_waits:  # whose turn has come, see wait_in_turn
        yield from _new_in_turn(run, recorded, settled, in_between)
    return serve(run, spec, call.lsn, settled)


def _let_waits_go_first(run: Execution, spec: ToolSpec, call: Call) -> Generator[Effect, Any, None]:
    """Begin a new call behind waits that are over: else an agent that is always at work would never
    have them. The call is recorded before them, so a replay does not end them before it is made.
    """
    try:
        yield from behind_waits(run)
    except BaseException:  # what the agent has made of them has cancelled it
        run.cut(CallInProgress(spec, call, (*run.here().calls, call.lsn), begun=False))
        raise


def _made(
    run: Execution, made: Identified, call: Call, tries: Tries
) -> Generator[Effect, Any, Settled]:
    """Make the call, with what its record does not have."""
    if made.given is made.shown:
        return (yield from attempts(run, made.spec, call, tries))
    run.secrets.keep(call.lsn, made.given)
    try:
        settled = yield from attempts(run, made.spec, call, tries)
    finally:
        run.secrets.forget(call.lsn)
    # The tool's frame has the secret, and some show the local variables of a traceback's frames.
    return settled._replace(cause=None) if made.spec.redact else settled


def _check_distinct(run: Execution, scope: Scope, key: CallKey, made: Identified) -> None:
    """Stop the run at a call that could be taken for another one of its scope."""
    why = ambiguity(scope, key, made)
    if why is not None:
        run.stop(AmbiguousCallError(run.run_id, run.step, why, call_site()))


def _in_turn(run: Execution, outcome: int) -> Generator[Effect, Any, None]:
    """Wait until all that was recorded before this outcome has been done again."""
    scope = run.here()
    try:
        yield Wait(lambda: run.ends(scope) or run.replay.is_next(outcome), turn=outcome)
        run.check()
        run.replay.wait_no_more(outcome)
    finally:  # also when its task is cancelled: nobody is to wait for it
        run.replay.done_again(outcome)


def _new_in_turn(
    run: Execution, recorded: RecordedCall | None, settled: Settled, in_between: bool
) -> Generator[Effect, Any, None]:
    """What was recorded is served before what is new, as it was the first time. Of what may be
    lost nobody knows when it was; what is new before the loop is before all that is recorded; and
    what is made between recorded calls has no place among them.
    """
    unplaced = recorded is not None and bool(recorded.intent.lost)
    turn = 0 if run.before_loop or unplaced or in_between else settled.lsn
    run.replay.add_outcome(turn)
    yield from _in_turn(run, turn)


def _known(
    run: Execution, key: CallKey, made: Identified
) -> Generator[Effect, Any, RecordedCall | None]:
    """What the record has of a call: by its identity, or what it was before the code or the state
    in its arguments changed; None if it is new."""
    replay = run.replay
    recorded = replay.claim(key)
    if recorded is None and replay.has_unclaimed:
        recorded = replay.claim_alike(key, partial(digest_now, run, made))
    if recorded is None and run.before_loop:
        recorded = _counterpart(run, key, made.packed)
    if recorded is None and replay.losses is not None:
        recorded = _presumed(run, key, made, replay.losses)
    return recorded or (yield from _unknown(run, key, made))


def _unknown(
    run: Execution, key: CallKey, made: Identified
) -> Generator[Effect, Any, RecordedCall | None]:
    """A call whose identity the record does not have."""
    spec, packed = made.spec, made.packed
    other = run.replay.resembling(key)
    why = ""
    if other is None:
        if late := run.here().overdue:
            # What is recorded inside was made in an attempt that was further when its process died.
            yield from settle_all(run, recorded_inside(run, late))
            run.replay.pass_over(late)
        # A recorded call that nobody has made yet may be made by other code of the agent.
        scope = run.here()
        ready = yield Wait(
            lambda: run.ends(scope) or run.caught_up() or run.is_left_by_stop(), turn=0
        )
        run.check()
        ready = ready and run.caught_up()
        # Before the loop, what is recorded of the steps is yet to come.
        if ready or run.before_loop or (ready is None and spec.repeatable):
            return None
        why = DIRECTLY if ready is None else ""
    sides = _sides(run, other or closest(run.replay.unclaimed(), key), key, packed)
    sides = replace(sides, found=f"{sides.found}{why}")
    return run.drift.judge(spec, key, sides, unpack(packed))


def _counterpart(run: Execution, key: CallKey, packed: Packed) -> RecordedCall | None:
    """The call before the loop that this one was the first time, with other arguments: they may
    hold the restored state and messages."""
    if key.scope != BEFORE_STEPS:
        return None
    recorded = run.replay.claim_counterpart(key)
    if recorded is not None:
        sides = _sides(run, recorded, key, packed)
        _logger.info(
            "run %s: before the loop of steps: %s. It was served what is recorded in LSN %d: %s",
            run.run_id,
            sides.found,
            recorded.lsn,
            sides.recorded,
        )
    return recorded


def _presumed(
    run: Execution, key: CallKey, made: Identified, losses: LostRecords
) -> RecordedCall | None:
    """A call that is not recorded, and that may have been made, for records are lost: recorded as
    one that is in doubt, as if its intent had been there. None if it cannot have been made."""
    if not losses.hides(key):
        return None
    other = run.replay.resembling(key)
    if other is None and losses.drawn and not made.spec.repeatable:
        # The code was given another time or random number than the one that is lost, and this may
        # be a call that is recorded, with that in its arguments.
        other = closest(run.replay.unclaimed(), key)
        if other is not None and (other.key.scope, other.key.tool) != (key.scope, key.tool):
            other = None
    if other is not None:
        run.drift.diverge(_sides(run, other, key, made.packed), key)
    event = replace(intent_of(run, key, made)[0], lost=True)
    if losses.uid_of_copies and not (
        event.key or event.child or made.spec.name.startswith(UNDO_PREFIX)
    ):
        # Invariant: a call keeps its idempotency key, also where its intent is recorded anew.
        event = replace(event, key=event.idempotency_key(losses.uid_of_copies))
    admit(run, "call", key.tool)
    now = time.time_ns()
    return RecordedCall(run.emit(event), now, event, key, now)


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
