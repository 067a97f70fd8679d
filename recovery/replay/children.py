"""Lists the runs that a run has started, from the events in its log. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from recovery.journal.events import CallIntended, ChildStarted, Event
from recovery.journal.related_runs import ChildRun, ChildState
from recovery.replay.recorded_call import RecordedCall, fold


def children_of(events: Iterable[tuple[int, Event | None]]) -> list[ChildRun]:
    """The children in (LSN, event) of a run's log, in their order."""
    calls: dict[int, RecordedCall] = {}
    begun: dict[int, str] = {}
    for lsn, event in events:
        if isinstance(event, ChildStarted):
            begun[event.call] = event.run_id
        elif not isinstance(event, CallIntended) or event.child:
            fold(calls, lsn, 0, event)
    found = []
    for lsn, call in calls.items():
        agent = name = ""
        match call.intent.args:
            case [[str(agent), _, str(name)], _]:
                pass
        child = begun.get(lsn, call.intent.child)
        found.append(ChildRun(child, agent, name, lsn, _state(call)))
    return found


def _state(call: RecordedCall) -> ChildState:
    if call.cancelled:
        return "cancelled"
    match call.state:
        case "returned":
            return "finished"
        case "failed":
            return "failed"
        case "open" | "to be made again" | "abandoned":
            return "open"
        case _:
            assert_never(call.state)
