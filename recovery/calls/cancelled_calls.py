"""What the agent does not wait for any more, and the side effects that are open when it goes on.

Invariant: no call is let go of, and no run ends, while a side effect inside it is open.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING

from recovery.calls.in_doubt import recorded_inside, settle_all
from recovery.engine.driver_effects import WaitForTurn
from recovery.journal.events import CallAbandoned

if TYPE_CHECKING:
    from recovery.engine.call_in_progress import CallInProgress
    from recovery.engine.execution import Execution


def let_go(run: Execution, inside: int = 0) -> list[CallInProgress]:
    """Record what the agent cancelled (inside this call); the side effects in doubt by it.

    Not a wait, or another call that may be repeated, which a stop cuts short while a side effect
    beside it gets to its end and makes calls: the resumed run makes it again.
    """
    taken = [
        one
        for one in run.cut_short
        if (not one.by_stop or (one.begun and one.doubtful))
        and (not inside or inside in one.calls[:-1])
    ]
    run.cut_short = [one for one in run.cut_short if one not in taken]
    lsns = {one.call.lsn for one in taken}
    found = [one for one in taken if one.begun and one.doubtful]
    found += [one for one in run.side_effects_in_flight.values() if lsns & {*one.calls[:-1]}]
    if taken and run.replay.has_unmatched:
        found += _left_inside(run, lsns)
    around = {lsn for one in found for lsn in one.calls[:-1]}
    for one in taken:
        call = one.call
        went_on = one not in found and call.lsn not in around
        run.record(CallAbandoned(call.lsn, call.attempt, "cancelled", went_on, one.begun))
        if went_on:
            run.children.cancelled(call)
            run.replay.forget(call.lsn)  # what is recorded inside it is missed no more
    held = [one for one in taken if one.call.lsn in around and not one.spec.repeatable]
    return list(dict.fromkeys((*found, *held)))


def _left_inside(run: Execution, lsns: Iterable[int]) -> list[CallInProgress]:
    """Recorded side effects in doubt that these calls, which were cancelled, have not come to
    again; but for those of which the agent is only told."""
    left = {one.call.lsn: one for lsn in lsns for one in recorded_inside(run, lsn)}
    told = [one for one in left.values() if one.spec.after_crash == "report"]
    for _ in settle_all(run, told):
        pass  # nobody is asked
    return [one for one in left.values() if one not in told]


def until_done_again(run: Execution) -> Generator[WaitForTurn, None, None]:
    """The agent has returned: until tasks that it has left at work have done what is recorded.

    What was recorded before they did is served at once, so the agent may come to its end earlier
    than the first time, while they still sleep.
    """
    if not run.replay.exhausted:
        scope = run.current_scope()
        yield WaitForTurn(lambda: run.must_stop(scope) or run.caught_up(), turn=0)
        run.check()


def check_open(run: Execution) -> None:
    """Park the run, which is about to end, if a side effect is open."""
    cut = [one for one in run.cut_short if one.begun and one.doubtful]
    run.park_for([*cut, *run.side_effects_in_flight.values()])
