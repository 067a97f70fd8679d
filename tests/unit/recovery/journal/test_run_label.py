"""What a run is doing, by its newest record: stores on a server list runs by it."""

from __future__ import annotations

import math

import pytest

from recovery.journal.encoding import encode
from recovery.journal.events import (
    CallResolved,
    DivergenceAccepted,
    Event,
    RunCancelled,
    RunFailed,
    RunFinished,
    RunParked,
    RunResumed,
    RunStarted,
    RunUndone,
    StepStarted,
)
from recovery.journal.run_label import RunLabel, label_of
from recovery.journal.submission import SUBMITTED, Submission

QUEUED = {"priority": 2, "limit_key": "k"}


@pytest.mark.parametrize(
    ("event", "label"),
    [
        (RunStarted("run", 1, "uid"), RunLabel("running", None, ("", 0, ""))),
        (
            RunStarted("run", 1, "uid", agent="m.f", queued=QUEUED),
            RunLabel("running", None, ("m.f", 2, "k")),
        ),
        (
            RunStarted("run", 1, "uid", agent="m.f", queued={"agent": "named"}),
            RunLabel("running", None, ("named", 0, "")),
        ),
        (RunResumed(1, 0), RunLabel("running")),
        (CallResolved(4, "retry"), RunLabel("running")),
        (DivergenceAccepted("ann", ""), RunLabel("running")),
        (RunParked([4]), RunLabel("in doubt")),
        (RunParked([4], undo=True), RunLabel("parked")),
        (RunParked([], why="no approver"), RunLabel("parked")),
        (RunParked([4], why="approval"), RunLabel("waiting")),
        (RunParked([], wake_at=9.5), RunLabel("waiting", 9.5)),
        (RunParked([], wake_at=math.inf), RunLabel("waiting")),  # no store has room for that
        (RunFinished(1), RunLabel("finished")),
        (RunFailed("E", ""), RunLabel("failed")),
        (RunCancelled("ann", ""), RunLabel("cancelled")),
        (RunUndone("ann", ""), RunLabel("undone")),
        (StepStarted(1), None),
    ],
)
def test_the_label_after_an_event(event: Event, label: RunLabel | None) -> None:
    assert label_of(*encode(event)) == label


@pytest.mark.parametrize(
    ("submission", "label"),
    [
        (
            Submission("run", 1, "agent", 5_000_000_000, 2, "k"),
            RunLabel("submitted", 5.0, ("agent", 2, "k")),
        ),
        (Submission("run", 1), RunLabel("submitted", 1e-9, ("", 0, ""))),  # due at once
    ],
)
def test_the_label_of_a_run_that_was_submitted(submission: Submission, label: RunLabel) -> None:
    assert label_of(SUBMITTED, submission.packed()) == label
