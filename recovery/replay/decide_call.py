"""Decides what becomes of a call that the agent makes. Pure: calls/ carries it out.

The call is looked up by its identity, and gets one of these answers:

    Recorded          it has an outcome: that is served, and nothing is executed
    CancelledAgain    the agent cancelled it and continued; it is about to do so again
    Again             it is to be executed again: no outcome of it counts
    InDoubt           it was started, and no record says how it ended: its tool's policy decides
    MayBeLost         it has no record, but its record may be lost: treated as in doubt
    New               it has no record
    Diverged          it has no record, and another call is recorded in its place
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, assert_never

from recovery.journal.call_key import BEFORE_STEPS, CallKey
from recovery.journal.events import (
    AttemptFailed,
    CallAbandoned,
    CallFailed,
    CallResolved,
    CallRetried,
    CallReturned,
)
from recovery.replay.by_identity import closest
from recovery.replay.call_view import CallOutcome, Outcome
from recovery.replay.matching import Replay
from recovery.replay.recorded_call import RecordedCall

Why = Literal[
    "not begun",  # it has only waited, or it awaits approval
    "attempt failed",  # and its Retry allows another one
    "resolved",  # an operator, or a policy, decided to retry it
    "cut short",  # by a stop before it began; or by the agent, and then it counts as failed
    "failed in an attempt",  # at the call around it, which is executed again
    "parked the run",  # the run parked with its failure, and was resumed
]


class Recorded(NamedTuple):
    """It is served ``settled`` at this position of the replay order; 0: at once."""

    call: RecordedCall
    outcome: CallOutcome
    turn: int


class Again(NamedTuple):
    """It is executed again, not before ``at`` (seconds since 1970)."""

    call: RecordedCall
    why: Why
    at: float = 0.0


class InDoubt(NamedTuple):
    """It may have taken effect."""

    call: RecordedCall


class CancelledAgain(NamedTuple):
    """The call waits for the agent to cancel it, or an equal call in its place. If the agent does
    neither: ``then``."""

    call: RecordedCall
    then: Again | InDoubt


class MayBeLost(NamedTuple):
    """It is recorded now, as a call that may have been made; that record decides about it.

    ``like``: a recorded call that it may be, with other arguments. Then the run diverges first.
    """

    like: RecordedCall | None


class New(NamedTuple):
    """It is executed after the agent's other code has made the recorded calls, if
    ``answer_after_wait`` allows it."""


class Diverged(NamedTuple):
    """It is none of the recorded calls. ``like``: the one that resembles it most."""

    like: RecordedCall | None


OfRecord = Recorded | CancelledAgain | Again | InDoubt
Answered = Recorded | Again | InDoubt | New  # once the agent does not cancel it again
Answer = OfRecord | MayBeLost | New | Diverged


class RequestedCall(NamedTuple):
    """A call that the agent makes. ``digest_now`` computes the digest that the present code would
    give recorded arguments. ``timed``: of a wait, whether it has a time-out."""

    key: CallKey
    repeatable: bool
    fails_when_cut: bool
    before_loop: bool  # of the steps of a resumed run
    digest_now: Callable[[Any], bytes | None]
    timed: bool | None = None


def answer(replay: Replay, requested: RequestedCall) -> Answer:
    """Decide what becomes of the call. Each recorded call is matched once."""
    key, losses = requested.key, replay.losses
    if requested.before_loop and (lent := replay.before_loop.lent(key)) is not None:
        return recorded_answer(lent)._replace(turn=0)  # its turn was that of the other call
    call = _recorded(replay, requested)
    if call is not None:
        return answer_of(call, requested)
    like = replay.resembling(key)
    if losses is not None and losses.may_contain(key.scope):
        if like is None and losses.redrawn and not requested.repeatable:
            # The code drew another time or random number than the one that is lost. So this may be
            # a recorded call with the lost value in its arguments.
            like = next((one for one in replay.unmatched() if _is_beside(one, key)), None)
        return MayBeLost(like)
    return New() if like is None else Diverged(like)


def answer_after_wait(
    replay: Replay, requested: RequestedCall, waited: bool | None
) -> New | Diverged:
    """Decide what becomes of a new call after its wait. ``waited``: whether the recorded calls were
    made meanwhile; None if the call could not wait."""
    is_last = waited and replay.exhausted
    # Before the loop, the recorded steps are yet to come.
    if is_last or requested.before_loop or (waited is None and requested.repeatable):
        return New()
    return Diverged(closest(replay.unmatched(), requested.key))


def answer_of(call: RecordedCall, requested: RequestedCall) -> OfRecord:
    """Decide what becomes of a recorded call."""
    if call.has_outcome:
        return recorded_answer(call)
    then = _without_outcome(call, requested.fails_when_cut)
    return CancelledAgain(call, then) if call.cancelled and not call.from_past_attempt else then


def recorded_answer(call: RecordedCall) -> Recorded:
    """The answer for a recorded call that has an outcome."""
    assert isinstance(call.last, Outcome)
    return Recorded(
        call,
        CallOutcome(call.last_lsn, call.last, raised=call.tries.raised),
        call.replay_position,
    )


def _without_outcome(call: RecordedCall, fails_when_cut: bool) -> Again | InDoubt:
    if not call.may_have_run:
        return Again(call, "not begun")
    if (
        call.uncertain
    ):  # records after the last one about it are lost: it may have continued, whatever that says
        return InDoubt(call)
    match call.last:
        case AttemptFailed(retry_at=at):
            return Again(call, "attempt failed", at)
        case CallResolved(how="retry"):
            return Again(call, "resolved")
        case CallAbandoned(begun=False):
            return Again(call, "cut short")
        case CallAbandoned(went_on=True) if fails_when_cut:
            return Again(call, "cut short")
        case CallFailed():
            return Again(call, "parked the run" if call.parked_run else "failed in an attempt")
        case None | CallRetried() | CallAbandoned() | CallReturned() | CallResolved():
            return InDoubt(call)
        case _:
            assert_never(call.last)


def _recorded(replay: Replay, requested: RequestedCall) -> RecordedCall | None:
    """The recorded call that it is: the one of its identity, or the one that it was before the
    code, or the state in its arguments, changed."""
    key = requested.key
    if requested.timed is not None:
        replay.distinguish_waits(key, requested.timed)
    call = replay.match(key)
    if call is None and replay.has_unmatched:
        call = replay.match_alike(key, requested.digest_now)
    if call is None and requested.before_loop and key.scope == BEFORE_STEPS:
        call = replay.match_counterpart(key)
    return call


def _is_beside(call: RecordedCall, key: CallKey) -> bool:
    return (call.key.scope, call.key.tool) == (key.scope, key.tool)
