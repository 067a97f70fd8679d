"""The end of an attempt at a call after which another one is made.

What was made inside of it, and is under way still, gets to its end first: a call that one of
several raised past (``asyncio.gather``) is about to return. What does not is left behind: nothing
of it is recorded any more.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

from eventlog import Damage
from recovery._attempts import LANDING_NAP_S, LANDING_S
from recovery._core import RunCore
from recovery._effects import Nap
from recovery._errors import DamagedRunError
from recovery._events import CallIntended, RecordsLost, ValueRecorded
from recovery._history import Entry, items_from
from recovery._keys import call_scope
from recovery._tool import Scope


def landed(run: RunCore, scope: Scope) -> Generator[Nap, None, None]:
    """Wait until the calls that were made in this attempt have got to their end: as long as before
    a stop, and for a child run as long as it takes, for there cannot be two of it."""
    until = run.wall_clock() + LANDING_S
    while run.inside[scope.calls[-1]] and run.stopped is None:
        children = any(life.call.step == scope.path for life in run.children.lives.values())
        if not children and run.wall_clock() >= until:
            return
        yield Nap(LANDING_NAP_S)


def leave_behind(run: RunCore, scope: Scope) -> None:
    """The attempt is over, as recorded: what it leaves is for the next one (see _earlier)."""
    scope.over = True
    lsn = scope.calls[-1]
    if not scope.used and not run.replay.earlier.knows(lsn):
        return
    run.act()  # what was cancelled in it is
    run.attempt(run.replay.end_attempt, lsn, _inside(run, lsn))


def _inside(run: RunCore, lsn: int) -> Iterator[Entry]:
    """What is recorded of a call and inside it; and what of that is lost."""
    calls, scopes = {lsn}, {call_scope(lsn)}
    lost: list[Damage] = []
    for record, event in items_from(run.records, lsn, [], lost, repaired=True):
        match event:
            case CallIntended(scope=scope):
                if record.lsn != lsn and scope not in scopes:
                    continue
                calls.add(record.lsn)
                scopes.add(call_scope(record.lsn))
            case ValueRecorded(scope=scope):
                if scope not in scopes:
                    continue
            case RecordsLost():
                pass
            case _ if getattr(event, "call", 0) not in calls:
                continue
        yield record.lsn, record.time_ns, event
    if lost:
        raise DamagedRunError(run.run_id, lost)
