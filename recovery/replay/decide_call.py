"""Decides what becomes of a call that the agent makes. Pure: calls/ carries it out.

The call is looked up by its identity, and gets one of these answers:

    Recorded          it has an outcome: that is served, and nothing is executed
    CancelledAgain    the agent cancelled it, and went on; it is about to do so again
    Again             it is to be made again: no outcome of it counts
    InDoubt           it was started, and nothing says how it ended: its tool's policy decides
    MayBeLost         it has no record, and that may be among what is lost: as good as in doubt
    New               it has no record
    Diverged          it has no record, and another one stands in its place
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, assert_never

from recovery.journal.events import (
    AttemptFailed,
    CallAbandoned,
    CallFailed,
    CallResolved,
    CallRetried,
    CallReturned,
)
from recovery.journal.keys import BEFORE_STEPS, CallKey
from recovery.replay.by_identity import closest
from recovery.replay.call_view import CallOutcome, Outcome
from recovery.replay.matching import Replay
from recovery.replay.recorded_call import RecordedCall

Why = Literal[
    "not begun",  # it has only waited, or nobody has approved it yet
    "attempt failed",  # and its Retry allows another one
    "resolved",  # somebody decided that it is
    "cut short",  # by a stop before it began; or by the agent, and then it counts as failed
    "failed in an attempt",  # at the call around it, which is made again
    "stood still",  # the run had failed with it, and was resumed
]


class Recorded(NamedTuple):
    """It is served ``settled`` in this turn of the record; 0: at once."""

    call: RecordedCall
    settled: CallOutcome
    turn: int


class Again(NamedTuple):
    """It is made again, not before ``at`` (seconds since 1970)."""

    call: RecordedCall
    why: Why
    at: float = 0.0


class InDoubt(NamedTuple):
    """It may have taken effect."""

    call: RecordedCall


class CancelledAgain(NamedTuple):
    """The agent is waited for, to cancel it. Should it not: ``then``."""

    call: RecordedCall
    then: Again | InDoubt


class MayBeLost(NamedTuple):
    """It is recorded now, as one that may have been made; that record is asked for an answer.

    ``like``: a recorded call that it may be, with something else in its arguments. Then the run
    diverges first.
    """

    like: RecordedCall | None


class New(NamedTuple):
    """It is made when the other code of the agent has made what is recorded, if it has:
    ``answer_behind`` decides that."""


class Diverged(NamedTuple):
    """It is none of those that are recorded. ``like``: the one that is most like it."""

    like: RecordedCall | None


OfRecord = Recorded | CancelledAgain | Again | InDoubt
Answer = OfRecord | MayBeLost | New | Diverged


class Asked(NamedTuple):
    """A call that the agent makes. ``digest_now``: of recorded arguments, by the code of now."""

    key: CallKey
    repeatable: bool
    fails_when_cut: bool
    before_loop: bool  # of the steps of a resumed run
    digest_now: Callable[[Any], bytes | None]


def answer(replay: Replay, asked: Asked) -> Answer:
    """What becomes of the call. A recorded one is given out once."""
    key, losses = asked.key, replay.losses
    call = _recorded(replay, asked)
    if call is not None:
        return answer_of(call, asked)
    like = replay.resembling(key)
    if losses is not None and losses.may_contain(key):
        if like is None and losses.redrawn and not asked.repeatable:
            # The code was given another time or random number than the one that is lost, and this
            # may be a call that is recorded, with that in its arguments.
            like = next((one for one in replay.unmatched() if _is_beside(one, key)), None)
        return MayBeLost(like)
    return New() if like is None else Diverged(like)


def answer_behind(replay: Replay, asked: Asked, waited: bool | None) -> New | Diverged:
    """What becomes of a new call once it has ``waited``: whether that was of use. None: it cannot
    wait."""
    is_last = waited and replay.exhausted
    # Before the loop, what is recorded of the steps is yet to come.
    if is_last or asked.before_loop or (waited is None and asked.repeatable):
        return New()
    return Diverged(closest(replay.unmatched(), asked.key))


def answer_of(call: RecordedCall, asked: Asked) -> OfRecord:
    """What becomes of a call that is recorded."""
    if call.has_outcome:
        assert isinstance(call.last, Outcome)
        return Recorded(
            call,
            CallOutcome(call.last_lsn, call.last, raised=call.tries.raised),
            call.replay_position,
        )
    then = _without_outcome(call, asked.fails_when_cut)
    return CancelledAgain(call, then) if call.cancelled and not call.from_past_attempt else then


def _without_outcome(call: RecordedCall, fails_when_cut: bool) -> Again | InDoubt:
    if not call.may_have_run:
        return Again(call, "not begun")
    if (
        call.uncertain
    ):  # records are lost behind the last one: whatever that says, it may have gone on
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
            return Again(call, "stood still" if call.stood_still else "failed in an attempt")
        case None | CallRetried() | CallAbandoned() | CallReturned() | CallResolved():
            return InDoubt(call)
        case _:
            assert_never(call.last)


def _recorded(replay: Replay, asked: Asked) -> RecordedCall | None:
    """What the record has of it: by its identity, or what it was before the code or the state in
    its arguments changed."""
    key = asked.key
    call = replay.match(key)
    if call is None and replay.has_unmatched:
        call = replay.match_alike(key, asked.digest_now)
    if call is None and asked.before_loop and key.scope == BEFORE_STEPS:
        call = replay.match_counterpart(key)
    return call


def _is_beside(call: RecordedCall, key: CallKey) -> bool:
    return (call.key.scope, call.key.tool) == (key.scope, key.tool)
