"""How many processes in a row died at the same place: by what they had recorded."""

from __future__ import annotations

import pytest

from recovery.journal.events import (
    AgentRaised,
    CallResolved,
    CallRetried,
    Event,
    RunParked,
    RunResumed,
    StepStarted,
)
from recovery.replay.crash_counts import crashes_in_a_row

RESUMED, AGAIN, STEP = RunResumed(1, 0), CallRetried(4, 2), StepStarted(2)
RAISED = AgentRaised("ValueError", "", "", 2, "", False)


@pytest.mark.parametrize(
    ("events", "dead", "alive"),
    [
        ([], 0, 0),
        ([STEP], 1, 0),
        ([STEP, RESUMED], 2, 1),
        ([STEP, RESUMED, AGAIN, RESUMED, AGAIN], 3, 2),
        ([STEP, RESUMED, STEP, RESUMED, STEP], 1, 0),  # each got further
        ([STEP, RESUMED, RAISED], 1, 1),  # an exception is no death
        ([STEP, RAISED, RESUMED, RAISED, RESUMED, RAISED], 0, 0),
        ([STEP, RESUMED, RunParked([4])], 1, 1),
        ([STEP, RESUMED, AGAIN, CallResolved(4, "fail", None, "", "")], 0, 0),
        ([RESUMED, RESUMED, RESUMED], 3, 2),  # from the checkpoint on
    ],
)
def test_deaths_without_progress_are_counted(events: list[Event], dead: int, alive: int) -> None:
    assert crashes_in_a_row(events, is_dead=True) == dead
    assert crashes_in_a_row(events, is_dead=False) == alive
