"""What becomes of a call that the agent makes: one table of records and answers."""

from __future__ import annotations

from typing import Any

import pytest

from recovery.journal.call_key import BEFORE_STEPS, CallKey
from recovery.journal.events import (
    RESUMED,
    AttemptFailed,
    CallAbandoned,
    CallDecided,
    CallFailed,
    CallIntended,
    CallResolved,
    CallRetried,
    CallReturned,
    Event,
    LogRepaired,
    RecordsLost,
    RunParked,
    StepStarted,
)
from recovery.replay.decide_call import (
    Again,
    Answer,
    CancelledAgain,
    Diverged,
    InDoubt,
    MayBeLost,
    New,
    Recorded,
    RequestedCall,
    answer,
    answer_after_wait,
)
from recovery.replay.matching import Replay


def intent(scope: str = "1", after_crash: str = "park", **more: Any) -> CallIntended:
    return CallIntended(scope, "t", more.pop("call_id", ""), b"d", 1, after_crash, **more)


def requested(scope: str = "1", tool: str = "t", **more: Any) -> RequestedCall:
    key = CallKey(scope, tool, more.pop("call_id", ""), more.pop("digest", b"d"), 1)
    told = {"repeatable": False, "fails_when_cut": False, "before_loop": False, **more}
    return RequestedCall(key, digest_now=lambda given: None, **told)


def replay(*events: Event, at: tuple[int, int] = (0, 0)) -> Replay:
    return Replay.of(((lsn, lsn, event) for lsn, event in enumerate(events, 1)), 0, at)


def told(found: Answer) -> str:
    """An answer in a few words."""
    match found:
        case Recorded():
            return f"recorded in turn {found.turn}"
        case CancelledAgain():
            return f"cancelled again, else {told(found.then)}"
        case Again():
            return f"again: {found.why}" + (f" at {found.at}" if found.at else "")
        case InDoubt():
            return "in doubt"
        case MayBeLost():
            return f"may be lost{', like another' if found.like else ''}"
        case New():
            return "new"
        case Diverged():
            return f"diverged{', like another' if found.like else ''}"


YES, NO = CallDecided(1, True, "ann", ""), CallDecided(1, False, "ann", "")
FAILED = CallFailed(1, "ValueError", "", [], "")
LOST = RecordsLost(2), LogRepaired([[2, 2]])
LOST_BEHIND_TWO = RecordsLost(3), LogRepaired([[3, 3]])
CUT = CallAbandoned(1, 1, "cancelled", went_on=True, begun=True)


@pytest.mark.parametrize(
    ("behind", "expected"),
    [
        ([], "in doubt"),
        ([CallReturned(1, 5)], "recorded in turn 2"),
        ([FAILED], "recorded in turn 2"),
        ([CallResolved(1, "outcome", 5, "ann")], "recorded in turn 2"),
        ([CallResolved(1, "fail", "no", "ann")], "recorded in turn 2"),
        ([CallResolved(1, "retry", None, "ann")], "again: resolved"),
        ([CallResolved(1, "retry", None, "ann"), CallRetried(1, 2)], "in doubt"),
        ([AttemptFailed(1, 1, "E", "", 7.5)], "again: attempt failed at 7.5"),
        ([CallAbandoned(1, 1, "cancelled", begun=False)], "again: cut short"),
        ([CallAbandoned(1, 1, "timeout", begun=True)], "in doubt"),
        ([CUT], "cancelled again, else in doubt"),
        ([FAILED, RunParked([1])], "again: parked the run"),
        ([LOST[0], LOST[1]], "in doubt"),
    ],
)
def test_a_recorded_call(behind: list[Event], expected: str) -> None:
    found = replay(intent(), *behind)
    assert told(answer(found, requested())) == expected
    assert told(answer(found, requested())) in ("new", "may be lost"), "each is given out once"


@pytest.mark.parametrize(
    ("behind", "expected"),
    [
        ([], "again: not begun"),
        ([YES], "in doubt"),
        ([CallAbandoned(1, 1, "cancelled", begun=False), YES], "in doubt"),
        ([NO, FAILED, CallResolved(1, "retry", None, "ann")], "again: not begun"),
        ([NO, FAILED, CallResolved(1, "retry", None, "ann"), YES], "in doubt"),
        (
            [YES, CallResolved(1, "retry", None, "ann")],
            "again: resolved",
        ),
        ([CallAbandoned(1, 1, "cancelled", begun=False)], "again: not begun"),
        ([*LOST], "in doubt"),
    ],
)
def test_a_call_that_needs_a_yes(behind: list[Event], expected: str) -> None:
    assert told(answer(replay(intent(asks_until=9.0), *behind), requested())) == expected


def test_a_call_that_only_waits_has_not_begun() -> None:
    assert told(answer(replay(intent(after_crash="wait")), requested())) == "again: not begun"
    found = replay(intent(after_crash="wait"), *LOST)
    assert told(answer(found, requested())) == "again: not begun", "whatever is lost behind it"


def test_a_read_that_the_agent_cancelled_is_made_again_if_it_does_not_now() -> None:
    found = answer(replay(intent(after_crash="retry"), CUT), requested(fails_when_cut=True))
    assert told(found) == "cancelled again, else again: cut short"


def test_what_failed_in_an_attempt_that_is_over_is_made_again() -> None:
    failed = CallFailed(2, "ValueError", "", [], "")
    over = AttemptFailed(1, 1, "E", "", 7.5)
    found = replay(intent(), intent("call 1"), failed, over)
    assert told(answer(found, requested("call 1"))) == "again: failed in an attempt"


def test_a_call_of_a_resumed_run_before_the_loop_has_no_turn() -> None:
    found = replay(intent(BEFORE_STEPS, loop=RESUMED), CallReturned(1, 5))
    assert told(answer(found, requested(BEFORE_STEPS))) == "recorded in turn 0"


def test_before_the_loop_a_call_is_known_by_its_order() -> None:
    def at_a_checkpoint() -> Replay:
        return replay(intent(BEFORE_STEPS), CallReturned(1, 5), StepStarted(1), at=(1, 3))

    other = requested(BEFORE_STEPS, digest=b"other", before_loop=True)
    found = answer(at_a_checkpoint(), other)
    assert isinstance(found, Recorded) and found.call.is_counterpart
    beside = answer(at_a_checkpoint(), requested(BEFORE_STEPS, digest=b"other"))
    assert told(beside) == "new"


@pytest.mark.parametrize(
    ("recorded", "made", "expected"),
    [
        ([], requested(), "new"),
        ([intent()], requested(tool="u"), "new"),
        ([intent(call_id="c")], requested(call_id="c", digest=b"other"), "diverged, like another"),
        ([StepStarted(1), *LOST], requested(), "may be lost"),
        ([StepStarted(1), *LOST], requested("2"), "new"),
        (
            [StepStarted(1), intent(call_id="c"), *LOST_BEHIND_TWO],
            requested(call_id="c", digest=b"other"),
            "may be lost, like another",
        ),
    ],
)
def test_a_call_without_a_record(recorded: list[Event], made: RequestedCall, expected: str) -> None:
    assert told(answer(replay(*recorded), made)) == expected


@pytest.mark.parametrize("repeatable", [False, True])
def test_a_lost_number_may_be_in_the_arguments_of_a_recorded_side_effect(repeatable: bool) -> None:
    found = replay(StepStarted(1), intent(), *LOST_BEHIND_TWO)
    found.take_value("1", "random", 1)
    made = requested(digest=b"other", repeatable=repeatable)
    assert told(answer(found, made)) == f"may be lost{'' if repeatable else ', like another'}"


@pytest.mark.parametrize(
    ("left", "waited", "more", "expected"),
    [
        (False, True, {}, "new"),
        (True, True, {}, "diverged, like another"),
        (True, False, {}, "diverged, like another"),
        (True, None, {}, "diverged, like another"),
        (True, None, {"repeatable": True}, "new"),
        (True, False, {"before_loop": True}, "new"),
    ],
)
def test_a_new_call_is_made_behind_all_that_is_recorded(
    left: bool, waited: bool | None, more: dict[str, Any], expected: str
) -> None:
    found = replay(*[intent()] * left)
    assert told(answer_after_wait(found, requested(tool="u", **more), waited)) == expected
