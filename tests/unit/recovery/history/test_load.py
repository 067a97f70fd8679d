"""What events say of a run: what is needed again, what was accepted, how it ended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from recovery.history.load import _accepted, ended_by, prologue_of
from recovery.journal.contract_version import Rules
from recovery.journal.events import (
    AgentRaised,
    CallIntended,
    CallResolved,
    CallReturned,
    DivergenceAccepted,
    Event,
    HistoryDropped,
    LogRepaired,
    MessagesChanged,
    RunCancelled,
    RunFailed,
    RunFinished,
    RunResumed,
    RunStarted,
    StepStarted,
    ValueRecorded,
)

BEFORE = CallIntended("0", "tool", "", b"d", 1, "retry")
IN_STEP = CallIntended("1", "tool", "", b"d", 1, "retry")


@pytest.mark.parametrize(
    ("restored", "events", "needed"),
    [
        (None, [RunStarted("run", 1, "uid"), LogRepaired([[9, 9]]), BEFORE], [1, 2, 3]),
        (None, [BEFORE, CallReturned(1, 1), AgentRaised("E", "", call=1)], [1, 2]),
        (None, [MessagesChanged(0, 0, [1]), RunResumed(1, 0), BEFORE], [3]),
        (None, [StepStarted(1), IN_STEP, CallReturned(2, 1), LogRepaired([[9, 9]])], []),
        (
            None,
            [StepStarted(1), BEFORE, CallReturned(2, 1), ValueRecorded("0", "n", 1, 2)],
            [2, 3, 4],
        ),
        (None, [StepStarted(1), RunResumed(1, 0, rules=Rules(2)), RunResumed(2, 0)], [2]),
        (
            None,
            [BEFORE, StepStarted(1), IN_STEP, HistoryDropped([3]), HistoryDropped([3, 1])],
            [1, 5],
        ),
        ([40], [CallReturned(40, 1), RunCancelled("ann", ""), IN_STEP, BEFORE], [40, 1, 4]),
    ],
)
def test_what_the_code_before_the_first_step_needs_again(
    restored: list[int] | None, events: list[Event], needed: list[int]
) -> None:
    checkpoint: Any = None if restored is None else SimpleNamespace(prologue=restored)
    tail = [(lsn, 0, event) for lsn, event in enumerate(events, 1)]
    assert [*prologue_of(tail, checkpoint)] == needed


YES, NEW_INBOX = DivergenceAccepted("ann", ""), DivergenceAccepted("ann", "", inbox=True)


@pytest.mark.parametrize(
    ("events", "accepted"),
    [
        ([StepStarted(1)], False),
        ([YES, StepStarted(1)], True),
        ([NEW_INBOX], False),
        ([YES, HistoryDropped([4])], False),
        ([YES, HistoryDropped([4], drift="harmless")], True),
        ([YES, HistoryDropped([4]), YES], True),
    ],
)
def test_an_acceptance_is_used_up_by_what_is_dropped(events: list[Event], accepted: bool) -> None:
    assert _accepted([(lsn, 0, event) for lsn, event in enumerate(events, 1)]) is accepted


FAILED, DONE, STOPPED = RunFailed("E", "", call=4), RunFinished(1), RunCancelled("ann", "")


@pytest.mark.parametrize(
    ("events", "ended"),
    [
        ([StepStarted(1)], None),
        ([DONE], DONE),
        ([DONE, RunResumed(1, 0)], None),
        ([DONE, CallResolved(4, "outcome")], DONE),
        ([FAILED, RunResumed(1, 0)], FAILED),
        ([FAILED, CallResolved(4, "retry")], None),
        ([FAILED, CallResolved(5, "retry")], FAILED),
        ([STOPPED, CallResolved(4, "retry"), RunResumed(1, 0)], STOPPED),
        ([FAILED, CallResolved(4, "retry"), RunResumed(1, 0), DONE], DONE),
    ],
)
def test_how_a_run_ended(events: list[Event], ended: Event | None) -> None:
    assert ended_by((lsn, 0, event) for lsn, event in enumerate(events, 1)) is ended
