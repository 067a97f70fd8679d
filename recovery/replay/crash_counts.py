"""Counts how many processes in a row died at the same place of a run. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from recovery.journal.events import (
    AgentRaised,
    AttemptFailed,
    CallAbandoned,
    CallResolved,
    CallRetried,
    DivergenceAccepted,
    Event,
    LogRepaired,
    RunCancelled,
    RunFailed,
    RunFinished,
    RunParked,
    RunResumed,
    RunUndone,
)

# A process that records one of these has not died.
_ENDS = AgentRaised | RunParked | RunFinished | RunFailed | RunCancelled | RunUndone
# Events that a run records again at the same place.
_AGAIN = CallRetried | AttemptFailed | CallAbandoned


def crashes_in_a_row(events: Iterable[Event], *, is_dead: bool) -> int:
    """How many processes in a row died without getting further than the one before.

    ``events``: those after the newest checkpoint, because a run that took one has got further.
    ``is_dead``: whether no process has the run now.
    """
    crashes, is_open = 0, False
    for event in events:
        match event:
            case RunResumed():
                crashes, is_open = crashes + is_open, True
            case _ if isinstance(event, _ENDS):
                is_open = False
            case _ if isinstance(event, _AGAIN):
                is_open = True
            case CallResolved() | DivergenceAccepted() | LogRepaired():  # by a person, mostly
                crashes, is_open = 0, False
            case _:
                crashes, is_open = 0, True
    return crashes + (is_open and is_dead)
