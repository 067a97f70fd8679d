"""The life of one call, written once for plain and for async code.

``protocol`` does no waiting itself: it yields an effect, and a driver (see _run) performs it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any

from eventlog import Packed
from recovery._approval import Asking, approved, asks
from recovery._attempts import attempts, leave, resume
from recovery._budget import admit
from recovery._captured import where_of
from recovery._core import RunCore
from recovery._difference import differences
from recovery._doubt import Begun, Failure, Outcome, Settled, call_of, describe
from recovery._effects import Attend, Effect, Wait
from recovery._errors import Ambiguity, AmbiguousCallError, Sides, Stop, ToolError
from recovery._events import (
    CallFailed,
    CallIntended,
    CallResolved,
    CallRetried,
    CallReturned,
)
from recovery._identity import Identified, ambiguity, digest_now, identify
from recovery._in_place import tell_of_arguments
from recovery._keys import BEFORE_STEPS, CallKey, nested_key, step_of
from recovery._lost import Losses
from recovery._recorded import RecordedCall, Tries
from recovery._shorten import shorten
from recovery._tool import Arguments, Call, Scope, ToolSpec, function_name
from recovery._values import pack, unpack
from recovery._waiting import behind_waits, is_due
from recovery._where import call_site

_logger = logging.getLogger("recovery")

# By this task, or by those that started it before they did: what comes later here came later then.
_accounted: ContextVar[tuple[Losses | None, int]] = ContextVar("accounted", default=(None, 0))

DIRECTLY = (
    " (a plain tool called directly beside other tasks cannot wait for what comes before it; "
    "`await run.call(...)` can)"
)
ARGS_SIZE_MAX = 4 << 10  # arguments up to this size are recorded whole, larger ones by digest


def protocol(
    run: RunCore, spec: ToolSpec, given: Arguments, call_id: str
) -> Generator[Effect, Any, Any]:
    """The life of a call; returns its result or raises its exception."""
    if call_id.__class__ is not str:
        raise TypeError(f"call_id is text, such as the model's id of the call; not {call_id!r:.80}")
    try:
        return (yield from _life(run, spec, given, call_id))
    except Stop:
        yield Attend(leave(run))
        raise


def _life(
    run: RunCore, spec: ToolSpec, given: Arguments, call_id: str
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
        _go_past(run, recorded)
        assert isinstance(recorded.last, Outcome)
        served = Settled(recorded.last_lsn, recorded.last, raised=recorded.tries.raised)
        return _serve(run, spec, recorded.lsn, served)
    run.enter(scope)
    try:
        settled = None
        if recorded is None:
            call, asking = _intend(run, key, made)
            if not spec.only_waits and is_due(run):
                yield from _let_waits_go_first(run, spec, call)
        else:
            if spec.only_waits:  # until the time recorded first, whatever the code says now
                given = recorded.arguments or given
            call = call_of(run, recorded.lsn, recorded.intent, given,
                           (recorded.attempts, recorded.time_ns))  # fmt: skip
            settled = yield from resume(run, spec, recorded, call)
            asking = Asking.of(recorded)
            if settled is None and recorded.begun:
                call = replace(call, attempt=call.attempt + 1)
                admit(run, "call", key.tool)
                run.emit(CallRetried(call.lsn, call.attempt))
        if settled is None and asking is not None:
            settled = yield from approved(run, spec, call, asking, _for_people(made))
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
    _go_past(run, recorded)
    return _serve(run, spec, call.lsn, settled)


def _let_waits_go_first(run: RunCore, spec: ToolSpec, call: Call) -> Generator[Effect, Any, None]:
    """Begin a new call behind waits that are over: else an agent that is always at work would never
    have them. The call is recorded before them, so a replay does not end them before it is made.
    """
    try:
        yield from behind_waits(run)
    except BaseException:  # what the agent has made of them has cancelled it
        run.cut(Begun(spec, call, (*run.here().calls, call.lsn), begun=False))
        raise


def _made(
    run: RunCore, made: Identified, call: Call, tries: Tries
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


def _check_distinct(run: RunCore, scope: Scope, key: CallKey, made: Identified) -> None:
    """Stop the run at a call that could be taken for another one of its scope."""
    why = ambiguity(scope, key, made)
    if why is not None:
        run.stop(AmbiguousCallError(run.run_id, run.step, why, call_site()))


def _in_turn(run: RunCore, outcome: int) -> Generator[Effect, Any, None]:
    """Wait until all that was recorded before this outcome has been done again."""
    scope = run.here()
    try:
        yield Wait(lambda: run.ends(scope) or run.replay.is_next(outcome), turn=outcome)
        run.check()
        run.replay.wait_no_more(outcome)
    finally:  # also when its task is cancelled: nobody is to wait for it
        run.replay.done_again(outcome)


def _new_in_turn(
    run: RunCore, recorded: RecordedCall | None, settled: Settled, in_between: bool
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
    run: RunCore, key: CallKey, made: Identified
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
    run: RunCore, key: CallKey, made: Identified
) -> Generator[Effect, Any, RecordedCall | None]:
    """A call whose identity the record does not have."""
    spec, packed = made.spec, made.packed
    other = run.replay.resembling(key)
    ready: bool | None = False
    if other is None:
        # A recorded call that nobody has made yet may be made by other code of the agent.
        scope = run.here()
        ready = yield Wait(lambda: run.ends(scope) or run.caught_up(), turn=0)
        run.check()
        # Before the loop, what is recorded of the steps is yet to come.
        if ready or run.before_loop or (ready is None and spec.repeatable):
            return None
    sides = _sides(run, other or run.replay.closest(key), key, packed)
    if ready is None:
        sides = replace(sides, found=f"{sides.found}{DIRECTLY}")
    return run.drift.judge(spec, key, sides, unpack(packed))


def _intend(run: RunCore, key: CallKey, made: Identified) -> tuple[Call, Asking | None]:
    """Record that a new call is about to be made."""
    event, asking = _intent(run, key, made)
    admit(run, "call", key.tool)
    return call_of(run, run.emit(event), event, made.shown, (1, time.time_ns())), asking


def _counterpart(run: RunCore, key: CallKey, packed: Packed) -> RecordedCall | None:
    """The call before the loop that this one was the first time, with other arguments: they may
    hold the restored state and messages."""
    if key.scope != BEFORE_STEPS:
        return None
    recorded = run.replay.claim_counterpart(key)
    if recorded is not None:
        sides = _sides(run, recorded, key, packed)
        _logger.info("run %s: before the loop of steps: %s. It was served what is recorded in LSN "
                     "%d: %s", run.run_id, sides.found, recorded.lsn, sides.recorded)  # fmt: skip
    return recorded


def _presumed(run: RunCore, key: CallKey, made: Identified, losses: Losses) -> RecordedCall | None:
    """A call that is not recorded, and that may have been made, for records are lost: recorded as
    one that is in doubt, as if its intent had been there. None if it cannot have been made."""
    if not losses.hides(key, _accounted_for(losses)):
        return None
    other = run.replay.resembling(key)
    if other is None and losses.drawn and not made.spec.repeatable:
        # The code was given another time or random number than the one that is lost, and this may
        # be a call that is recorded, with that in its arguments.
        other = run.replay.closest(key)
        if other is not None and (other.key.scope, other.key.tool) != (key.scope, key.tool):
            other = None
    if other is not None:
        run.drift.diverge(_sides(run, other, key, made.packed), key)
    event = replace(_intent(run, key, made)[0], lost=True)
    admit(run, "call", key.tool)
    now = time.time_ns()
    return RecordedCall(run.emit(event), now, event, key, now)


def _go_past(run: RunCore, recorded: RecordedCall | None) -> None:
    """The code goes on behind a call that may be among what is lost: if what it does next is among
    it as well, so are this call's intent and its outcome."""
    losses = run.replay.losses
    if losses is None or recorded is None or step_of(recorded.key.scope) is None:
        return
    if recorded.intent.lost:
        _accounted.set((losses, _accounted_for(losses) + 2))


def _accounted_for(losses: Losses) -> int:
    """How many of the lost records the present code, before it came here, has accounted for."""
    known, count = _accounted.get()
    return count if known is losses else 0


def _intent(run: RunCore, key: CallKey, made: Identified) -> tuple[CallIntended, Asking | None]:
    """What is recorded of a call before it is made, and what it asks for."""
    spec, packed = made.spec, made.packed
    outer, undo, small = run.here().call, "", packed if len(packed) <= ARGS_SIZE_MAX else None
    if spec.undo is not None:  # its arguments are all that the compensation will know of it
        undo, small = function_name(spec.undo), _for_people(made)
    inside = nested_key(outer.idempotency_key, key) if outer is not None else ""
    event = CallIntended(*key, "wait" if spec.only_waits else spec.after_crash, small, len(packed),
                         undo, key=inside, loop=run.loop.place_of(key.scope))  # fmt: skip
    if spec.child_id is not None:
        event = replace(event, child=spec.child_id(event.idempotency_key(run.uid)))
    asking = asks(run, spec, event, made.shown)
    if asking is None:
        return event, None
    if made.unkeyed:
        why = Ambiguity(spec.name, "", where_of(made.origin), unkeyed=made.unkeyed)
        run.stop(AmbiguousCallError(run.run_id, run.step, why, call_site()))
    if small is None:  # whole, for somebody is to say yes to exactly these
        event = replace(event, args=packed)
    signed = run.recipient.approvers is not None or None
    return replace(event, asks_until=asking.until, signed=signed), asking


def _for_people(made: Identified) -> Packed:
    """The arguments of a call that may be shown, whole."""
    if made.spec.undo is None:
        return made.packed
    return pack([list(made.shown[0]), dict(made.shown[1])], f"{made.spec.name}(...)")


def _sides(run: RunCore, recorded: RecordedCall | None, key: CallKey, packed: Packed) -> Sides:
    """The recorded and the new call side by side; without one, what else is recorded."""
    args = unpack(packed)
    found = f"{key}: {shorten(args)}, {call_site()}"
    if recorded is None:
        lsn, missing = run.missing()
        return Sides(lsn, missing or "the loop of steps goes on from a checkpoint", found)
    known = recorded.intent.args
    if known is None and recorded.key.digest != key.digest:  # too large to be recorded whole
        known, args = (f"{size:,} bytes, digest {digest.hex()[:8]}" for size, digest in (
            (recorded.intent.size, recorded.key.digest), (len(packed), key.digest)))  # fmt: skip
    return Sides(recorded.lsn, describe(recorded), found,
                 differences(_shown(recorded.key, known), _shown(key, args)))  # fmt: skip


def _shown(key: CallKey, args: Any) -> dict[str, Any]:
    parts = {"args": args[0], **args[1]} if isinstance(args, list) else {"arguments": args}
    return {"scope": key.scope, "tool": key.tool, "call_id": key.call_id,
            "occurrence": key.occurrence, **parts}  # fmt: skip


def _serve(run: RunCore, spec: ToolSpec, call: int, settled: Settled) -> Any:
    """Hand an outcome to the agent: the same on the first execution as on replay."""
    if isinstance(settled.event, CallReturned) and settled.event.usage is not None:
        run.here().metered = True
    match settled.event:
        case CallReturned(value=value) | CallResolved(how="outcome", value=value):
            packed = value if type(value) is Packed else pack(value, "outcome")
            run.conversation.remember(packed, settled.lsn)
            return unpack(packed)
        case CallFailed() as failed:
            from recovery._raised import rebuilt  # noqa: PLC0415 - only where a call has failed

            exc = rebuilt(failed, spec.raises, run.rules, settled.cause)
            if settled.cause is None:
                # Nowhere in the exception: what the agent does with it is to be the same again.
                _logger.debug("run %s: call %d (%s) raises what LSN %d has:\n%s", run.run_id, call,
                              spec.name, settled.lsn, failed.traceback)  # fmt: skip
        case CallResolved(value=reason):
            reason = unpack(reason) if type(reason) is Packed else reason
            exc = ToolError("resolved as failed", str(reason), "")
    run.failures.append(Failure(exc, call, settled.raised))
    raise exc from exc.__cause__
