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
    around = {lsn for one in found for lsn in one.calls[:-1]}
    for one in taken:
        call = one.call
        went_on = one not in found and call.lsn not in around
        run.emit(CallAbandoned(call.lsn, call.attempt, "cancelled", went_on, one.begun))
        if went_on:
            run.children.cancelled(call)
    held = [one for one in taken if one.call.lsn in around and not one.spec.repeatable]
    return list(dict.fromkeys((*found, *held)))


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
