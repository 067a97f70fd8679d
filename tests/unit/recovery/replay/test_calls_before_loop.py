"""Calls before the loop of a resumed run: what is made in whose place, and what may be left out."""

from __future__ import annotations

from typing import Any

import pytest

from recovery.journal.call_key import CallKey
from recovery.journal.events import BEFORE, BESIDE, RESUMED, CallIntended, CallReturned
from recovery.replay.calls_before_loop import BeforeLoop
from recovery.replay.recorded_call import RecordedCall


def call(
    lsn: int, call_id: str = "", loop: str | None = BEFORE, scope: str = "0", **options: Any
) -> RecordedCall:
    given = {"after_crash": "park", **options}
    intent = CallIntended(scope, "tool", call_id, bytes([lsn]), 1, loop=loop, **given)
    made = RecordedCall.of(lsn, 0, intent)
    made.apply(lsn + 1, 0, CallReturned(lsn, lsn))
    return made


def of(*calls: RecordedCall, behind: int = 20, foreign: int = 0) -> BeforeLoop:
    found = BeforeLoop(behind, foreign)
    for one in calls:
        found.add(one, None)
    return found


def new(call_id: str = "", tool: str = "tool") -> CallKey:
    return CallKey("0", tool, call_id, b"new", 1)


def test_a_call_takes_the_place_of_the_one_at_its_position() -> None:
    calls = first, second, third = call(2), call(4), call(6)
    loop, left = of(*calls), {one.key for one in calls}
    assert loop.counterpart(new(), left) is first
    loop.made_again(first)
    left -= {first.key, second.key}  # the second is served to another call
    assert loop.counterpart(new(), left) is None
    assert loop.counterpart(new(), left) is third
    loop.made_again(third)
    assert loop.counterpart(new(), left) is None
    assert loop.counterpart(new(tool="other"), left) is None


def test_a_call_with_an_id_takes_the_place_of_the_one_with_its_id() -> None:
    calls = plain, first, second, _ = call(2), call(4, "a"), call(6, "b"), call(8, "b")
    loop, left = of(*calls), {one.key for one in calls}
    assert loop.counterpart(new("b"), left) is second
    assert loop.counterpart(new("a"), left) is first
    assert loop.counterpart(new("c"), left) is None
    assert loop.counterpart(new("b"), left - {second.key}) is None
    assert loop.counterpart(new(), left) is plain


@pytest.mark.parametrize(
    ("made", "behind", "foreign"),
    [
        (call(2, loop=BESIDE), 20, 0),
        (call(2, loop=RESUMED), 20, 0),
        (call(2, scope="1"), 20, 0),
        (call(2), 0, 0),  # of a run that is replayed from its beginning
        (call(2), 20, 2),  # of the run that it was forked from, with another task
    ],
)
def test_other_calls_are_in_nobodys_place(made: RecordedCall, behind: int, foreign: int) -> None:
    assert of(made, behind=behind, foreign=foreign).counterpart(new(), {made.key}) is None


def test_a_call_that_is_in_doubt_is_in_nobodys_place_and_one_that_was_cancelled_is() -> None:
    made = call(2)
    made.last = None
    assert of(made).counterpart(new(), {made.key}) is None
    assert not of(made).may_miss(made)
    made.intent = CallIntended("0", "tool", "", b"", 1, "retry", loop=BEFORE)
    assert of(made).may_miss(made)


@pytest.mark.parametrize(
    ("loop", "behind", "may_miss", "passed"),
    [
        (BEFORE, 20, True, [2, 3]),
        (BEFORE, 0, False, []),
        (RESUMED, 20, True, []),
        (RESUMED, 0, True, []),
        (BESIDE, 20, False, []),
        (None, 20, True, [2, 3]),  # of an older library: by its LSN
        (None, 1, False, []),
    ],
)
def test_what_the_code_may_leave_out(
    loop: str | None, behind: int, may_miss: bool, passed: list[int]
) -> None:
    made = call(2, loop=loop)
    found = of(made, behind=behind)
    assert (found.may_miss(made), [*found.passed([made])]) == (may_miss, passed)


def test_a_call_inside_another_is_where_that_is() -> None:
    outer, inner = call(2, loop=RESUMED), call(4, scope="call 2", loop=None)
    loop = of(outer)
    loop.add(inner, outer)
    assert inner.place == RESUMED
    beside = call(6, loop=None, scope="3")
    loop.add(beside, None)
    assert beside.place is None
