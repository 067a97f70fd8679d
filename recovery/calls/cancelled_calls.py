"""Records calls that the agent cancelled, and parks the run for side effects that they leave open.

Invariant: no call is abandoned, and no run ends, while a side effect inside it is open.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING

from recovery.calls.in_doubt import recorded_inside, resolve_all
from recovery.engine.driver_effects import WaitForTurn
from recovery.journal.events import CallAbandoned

if TYPE_CHECKING:
    from recovery.engine.call_in_progress import CallInProgress
    from recovery.engine.execution import Execution


def record_cancelled(run: Execution, inside: int = 0) -> list[CallInProgress]:
    """Record which calls the agent cancelled (inside this call); returns the side effects that
    are in doubt because of it.

    A wait, or another repeatable call, may be interrupted by a stop while a side effect beside it
    ends and makes calls. It is not recorded as cancelled: the resumed run makes it again.
    """
    taken = [
        one
        for one in run.cut_short
        if (not one.by_stop or one.in_doubt) and (not inside or inside in one.calls[:-1])
    ]
    run.cut_short = [one for one in run.cut_short if one not in taken]
    lsns = {one.call.lsn for one in taken}
    found = [one for one in taken if one.in_doubt]
    found += [one for one in run.side_effects_in_flight.values() if lsns & {*one.calls[:-1]}]
    found += _left_inside(run, lsns)
    around = {lsn for one in found for lsn in one.calls[:-1]}
    for one in taken:
        call = one.call
        went_on = one not in found and call.lsn not in around
        run.record(CallAbandoned(call.lsn, call.attempt, "cancelled", went_on, one.begun))
        if went_on:
            run.children.cancelled(call)
            run.replay.forget(call.lsn)  # the replay expects the calls inside it no more
    held = [one for one in taken if one.call.lsn in around and not one.spec.repeatable]
    return list(dict.fromkeys((*found, *held)))


def _left_inside(run: Execution, lsns: Iterable[int]) -> list[CallInProgress]:
    """Recorded side effects in doubt that these cancelled calls have not made again, except those
    that are only reported to the agent."""
    left = {one.call.lsn: one for lsn in lsns for one in recorded_inside(run, lsn)}
    reported = [one for one in left.values() if one.spec.after_crash == "report"]
    for _ in resolve_all(run, reported):
        pass  # these need no decision
    return [one for one in left.values() if one not in reported]


def until_done_again(run: Execution) -> Generator[WaitForTurn, None, None]:
    """Wait, after the agent has returned, until tasks that it left running have made the calls
    that are recorded.

    Recorded outcomes are served at once. So the agent may return earlier than the first time,
    while these tasks still sleep.
    """
    if not run.replay.exhausted:
        yield from run.wait_until(run.caught_up, turn=0)


def check_open(run: Execution) -> None:
    """Park the run, which is about to end, if a side effect is open."""
    cut = [one for one in run.cut_short if one.in_doubt]
    run.park_for([*cut, *run.side_effects_in_flight.values()])
