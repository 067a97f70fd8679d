"""What the agent does not wait for any more, and the side effects that are open when it goes on.

Invariant: no call is let go of, and no run ends, while a side effect inside it is open.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from recovery._events import CallAbandoned

if TYPE_CHECKING:
    from recovery._core import RunCore
    from recovery._doubt import Begun


def let_go(run: RunCore, inside: int = 0) -> list[Begun]:
    """Record what was cancelled (inside this call); the side effects that are in doubt by it."""
    taken = [one for one in run.cut_short if not inside or inside in one.calls[:-1]]
    run.cut_short = [one for one in run.cut_short if one not in taken]
    lsns = {one.call.lsn for one in taken}
    found = [one for one in taken if one.begun and one.doubtful]
    found += [one for one in run.under_way.values() if lsns & {*one.calls[:-1]}]
    if taken and run.replay.has_unclaimed:
        found += _left_inside(run, lsns)
    around = {lsn for one in found for lsn in one.calls[:-1]}
    for one in taken:
        call = one.call
        went_on = one not in found and call.lsn not in around
        run.emit(CallAbandoned(call.lsn, call.attempt, "cancelled", went_on, one.begun))
        if went_on:
            run.children.cancelled(call)
            run.replay.over(call.lsn)  # what is recorded inside it is missed no more
    held = [one for one in taken if one.call.lsn in around and not one.spec.repeatable]
    return list(dict.fromkeys((*found, *held)))


def _left_inside(run: RunCore, lsns: Iterable[int]) -> list[Begun]:
    """Recorded side effects in doubt that these calls, which were cancelled, have not come to
    again; but for those of which the agent is only told."""
    from recovery._doubt import recorded_inside, settle_all  # noqa: PLC0415 - it imports this one

    left = {one.call.lsn: one for lsn in lsns for one in recorded_inside(run, lsn)}
    told = [one for one in left.values() if one.spec.after_crash == "report"]
    for _ in settle_all(run, told):
        pass  # nobody is asked
    return [one for one in left.values() if one not in told]


def park_for(run: RunCore, in_doubt: Iterable[Begun]) -> None:
    """Park the run if there are any."""
    found = list(in_doubt)
    if found:
        around = {lsn for one in found for lsn in one.calls}
        run.park([one.call for one in found], around=around)


def check_open(run: RunCore) -> None:
    """Park the run, which is about to end, if a side effect is open."""
    cut = [one for one in run.cut_short if one.begun and one.doubtful]
    park_for(run, [*cut, *run.under_way.values()])
