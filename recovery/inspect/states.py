"""Names the states of runs, and says what a recorded end or parking means. Pure."""

from __future__ import annotations

from typing import Literal, assert_never, get_args

from recovery.history.load import Ended
from recovery.inspect.calls_without_outcome import OpenCall
from recovery.journal.events import RunCancelled, RunFailed, RunFinished, RunParked, RunUndone

State = Literal[
    "submitted",
    "running",
    "interrupted",
    "in doubt",
    "waiting",
    "parked",
    "finished",
    "failed",
    "cancelled",
    "undone",
    "empty",
    "saved",
    "damaged",
    "unreadable",
]
STATES: tuple[State, ...] = get_args(State)

# States of runs that no process has and that have not ended.
OPEN: tuple[State, ...] = ("interrupted", "in doubt", "waiting", "parked")
# States of runs whose log is not to be read whole, or not at all.
BROKEN: tuple[State, ...] = ("damaged", "unreadable")


def state_of_end(ended: Ended) -> tuple[State, str]:
    """The state of a run that has ended, and why."""
    match ended:
        case RunFinished():
            return "finished", ""
        case RunFailed(type=kind, message=message, call=call):
            settled = f" (call {call} can be made again: recovery retry)" if call else ""
            return "failed", f"{kind.removeprefix('builtins.')}: {message}{settled}"
        case RunCancelled():
            return "cancelled", _said(ended.who, ended.why)
        case RunUndone():
            return "undone", _said(ended.who, ended.why)
        case _:
            assert_never(ended)


def state_of_parked(
    parked: RunParked, calls: tuple[OpenCall, ...], again: set[int]
) -> tuple[State, str]:
    """Why a run is parked: for its calls, while these are open, or for the recorded reason.

    ``again``: calls that have failed, and that resuming the run makes again.
    """
    left = [
        call
        for call in calls
        if call.lsn in parked.calls
        and (call.child or call.lsn in again or call.state != "to be made again")
    ]
    if any(call.state == "in doubt" for call in left):
        return "in doubt", ", ".join(call.name for call in left)
    if any(call.lsn in again for call in left):
        return "parked", parked.why
    if left and (parked.why or parked.wake_at is not None):
        return "waiting", parked.why
    if parked.calls and not left:
        return "interrupted", "what it was parked for is resolved: it can be resumed"
    children = [f"child run {call.child}" for call in left if call.child]
    return "parked", parked.why or ", ".join(children or (call.name for call in left))


def _said(who: str, why: str) -> str:
    return ": ".join(part for part in (who, why) if part)
