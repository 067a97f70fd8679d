"""The end of an attempt at a call, and what was made inside it.

Invariant: no outcome, failed attempt or abandonment of a call is recorded while a side effect
inside it is open. What was begun inside gets to its end first, for a call that one of several
raised past (``asyncio.gather``) is about to return. What does not is in doubt, and settled by its
own policy.

Of an attempt that has not returned, what is still at work then is left behind: nothing that it does
is recorded any more.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Generator, Iterator
from typing import Any

from eventlog import Damage
from recovery.calls.cancelled_calls import let_go
from recovery.calls.in_doubt import recorded_inside, settle_all
from recovery.declare.scope import Scope
from recovery.engine.call_in_progress import CallInProgress
from recovery.engine.driver_effects import Effect, Perform, Sleep
from recovery.engine.execution import Execution
from recovery.errors import DamagedRunError
from recovery.history.load import Entry, items_from
from recovery.journal.events import CallAbandoned, CallIntended, RecordsLost, ValueRecorded
from recovery.journal.keys import call_scope

_logger = logging.getLogger("recovery")

WARN_AFTER_S = 10.0

# How long a stop waits for side effects that are under way elsewhere.
LANDING_S, LANDING_NAP_S = 30.0, 0.005


def settled_inside(
    run: Execution, scope: Scope, ended: BaseException | None
) -> Generator[Effect, Any, None]:
    """Before the end of an attempt is recorded: what was made inside it has one.

    ``ended``: what the attempt raised; None if it has returned. What a tool that returned has left
    at work may go on, as it would without the library.
    """
    lsn = scope.calls[-1]
    cut = isinstance(ended, TimeoutError | asyncio.CancelledError)
    yield Perform(drain_attempt(run, scope, LANDING_S if cut else math.inf))
    scope.check()  # it may have stopped the run meanwhile
    scope.over = ended is not None
    in_doubt = let_go(run, lsn)
    for one in [one for one in run.side_effects_in_flight.values() if lsn in one.calls[:-1]]:
        run.record(CallAbandoned(one.call.lsn, one.call.attempt, "timeout", begun=True))
        in_doubt.append(one)
    yield from settle_all(run, [*in_doubt, *recorded_inside(run, lsn)])


def drain_attempt(run: Execution, scope: Scope, limit_s: float) -> Generator[Sleep, None, None]:
    """Wait until what was made in this attempt, and is at work, has got to its end.

    A side effect is given ``limit_s``, others as long as before a stop; a child run as long as it
    takes, for there cannot be two of it.
    """
    began = run.wall_clock()
    warn_after = WARN_AFTER_S
    while True:
        waited = run.wall_clock() - began
        effects = _under_way(run, scope)
        if not _children(run, scope):
            limit = LANDING_S if run.stopped is not None or not effects else limit_s
            if waited >= limit or not (effects or _at_work(run, scope)):
                return
        if waited >= warn_after:
            warn_after *= 2
            what = ", ".join(str(one.call) for one in effects) or "a repeatable call"
            _logger.warning(
                "run %s: call %s (LSN %d) has ended, and waits since %.0f s for what "
                "it has begun: %s",
                run.run_id,
                scope.call and scope.call.tool,
                scope.calls[-1],
                waited,
                what,
            )
        yield Sleep(LANDING_NAP_S)
        if scope.left_behind or (run.is_closed and run.stopped is None):
            run.check()


def _under_way(run: Execution, scope: Scope) -> list[CallInProgress]:
    lsn = scope.calls[-1]
    return [one for one in run.side_effects_in_flight.values() if lsn in one.calls[:-1]]


def _children(run: Execution, scope: Scope) -> bool:
    return run.children.any_in(scope)


def _at_work(run: Execution, scope: Scope) -> bool:
    """Whether a call made in this attempt does more than wait for something outside."""
    lsn = scope.calls[-1]
    waiting = sum(one.inside == lsn for one in run.waits)
    return run.inside[lsn] > waiting


def end_attempt(run: Execution, scope: Scope) -> None:
    """The attempt is over, as recorded: what it leaves is for the next one (past_attempts)."""
    lsn = scope.calls[-1]
    if scope.used or run.replay.earlier.has_calls_inside(lsn):
        run.write_or_stop(run.replay.end_attempt, lsn, _inside(run, lsn))


def _inside(run: Execution, lsn: int) -> Iterator[Entry]:
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
