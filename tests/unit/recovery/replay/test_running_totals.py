"""What a checkpoint carries of the events before it."""

from __future__ import annotations

from typing import Any

import pytest

from recovery.journal.events import (
    AgentRaised,
    CallFailed,
    CallIntended,
    CallResolved,
    CallReturned,
    Event,
    RunResumed,
    RunStarted,
    SignalTaken,
    StepStarted,
)
from recovery.journal.related_runs import RETRIED
from recovery.replay.run_owners import Elsewhere
from recovery.replay.running_totals import KINDS, Accumulators

EVENTS: list[Event] = [
    RunStarted("run", "task", "uid", code="code", fence=3),
    StepStarted(1),
    CallIntended("1", "ask", "", b"d", 1, "retry"),
    CallReturned(3, "x", usage=[1, 2, 0.5]),
    CallIntended("1", "send", "", b"d", 1, "park"),
    CallFailed(5, "E", "m"),
    SignalTaken(5, 1, name="go", inbox=4, uid="uid", sent=6),
    CallResolved(5, "retry", None, "run parent", f"{RETRIED} 7", by_policy=True),
    AgentRaised("E", "message", "traceback", 1, "place", True, 3),
    StepStarted(2),
    RunResumed(1, 0, fence=4, code="other"),
]


def totals(events: list[Event], carried: dict[str, Any] | None = None, at: int = 0) -> Accumulators:
    found = Accumulators(carried or {})
    for lsn, event in enumerate(events, at + 1):
        found.observe(lsn, lsn * 1000, event)
    return found


@pytest.mark.parametrize("at", range(len(EVENTS) + 1))
def test_the_totals_are_the_same_whenever_a_checkpoint_was_taken(at: int) -> None:
    carried = totals(EVENTS[:at]).to_checkpoint()
    whole, found = totals(EVENTS), totals(EVENTS[at:], carried, at)
    assert found.to_checkpoint() == whole.to_checkpoint()
    assert {*whole.to_checkpoint()} == {kind.name for kind in KINDS}


def test_totals_of_a_later_version_are_kept() -> None:
    assert totals([], {"later": [1]}).to_checkpoint()["later"] == [1]


def test_of_owners_that_nobody_has_recorded_nothing_is_said() -> None:
    nobody = totals([])
    assert (nobody.owners.fence, nobody.owners.of_record("")) == (0, None)
    assert "owner" not in nobody.to_checkpoint()
    assert totals([], {"owner": 4}).owners.fence == 4


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("progress", [1, 2, 3, [4, 5], 6.0, 7, 8, 9]),
        ("progress", [1, 2, 3, [4, 5], 6.0, 7, 8]),
        ("errors", [1]),
        ("errors", [1, 1, 9, 9, True, True, 1, 3, "E", "message", None]),
        ("code", 1),
        ("owner", "4"),
        ("signals", [["uid", "go"]]),
        ("retries", ["run"]),
    ],
)
def test_totals_that_make_no_sense_are_refused(name: str, wrong: Any) -> None:
    with pytest.raises(ValueError):
        Accumulators({name: wrong})


def test_a_former_owner_may_execute_what_began_before_the_next_one_until_its_time_is_over() -> None:
    owners = totals(EVENTS[:1]).owners
    owners.observe(5, 10**9, RunResumed(1, 0, fence=4, former="process 1"))
    assert owners.executing_since(3) == Elsewhere("process 1", None)
    assert owners.executing_since(3, 5.0) == Elsewhere("process 1", 6.0)
    assert owners.executing_since(7) is None
    owners.observe(8, 10**9, RunResumed(2, 0, fence=5))
    assert owners.executing_since(7) is None and owners.executing_since(3) is not None
    owners.observe(9, 10**9, RunResumed(3, 0, fence=6, former=""))
    assert owners.executing_since(3) is None and not owners.any_alive
    owners.observe(10, 2 * 10**9, RunResumed(4, 0, fence=7, former="process 3"))
    assert owners.executing_since(3) is None  # those before had ended
    assert owners.executing_since(9, 1.0) == Elsewhere("process 3", 3.0)
    owners.observe(11, 10**9, RunResumed(4, 0, fence=7, former="the same owner"))
    owners.observe(12, 10**9, RunResumed(5, 0))  # of an older library
    assert owners.fence == 7 and owners.executing_since(10) is None
    owners.change(13, 4 * 10**9, 8, "process 4")
    assert owners.fence == 8 and owners.executing_since(12, 1.0) == Elsewhere("process 4", 5.0)
    assert owners.executing_since(11) is None  # the owner then was known to be dead
    assert "may still execute it until " in str(owners.executing_since(12, 1.0))


def test_before_anybody_has_taken_the_run_nobody_knows_for_how_long() -> None:
    owners = totals(EVENTS[:1]).owners
    owners.reads(5, "process 1")
    assert owners.executing_since(3, 5.0) == Elsewhere("process 1", None)
    assert owners.executing_since(5, 5.0) is None
    assert str(owners.executing_since(3)).endswith("the run before, may still execute it")
    owners.reads(6, "")
    assert owners.executing_since(3, 5.0) is None
    assert owners.of_record("") is None
