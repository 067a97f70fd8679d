"""Ends an attempt at a call: drains and resolves the calls that were made inside it.

Invariant: no outcome, failed attempt or abandonment of a call is recorded while a side effect
inside it is open. Calls that began inside end first: if one of several raised
(``asyncio.gather``), the others are about to return. A call that does not end in time is in doubt,
and is resolved by its own policy.

If the attempt has not returned, calls that are still running then are abandoned: nothing that they
do is recorded any more.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Generator, Iterator
from typing import Any

from eventlog import Damage
from recovery.calls.cancelled_calls import record_cancelled
from recovery.calls.in_doubt import DRAIN_NAP_S, DRAIN_S, recorded_inside, resolve_all
from recovery.declare.scope import Scope
from recovery.engine.call_in_progress import CallInProgress
from recovery.engine.driver_effects import Effect, Perform, Sleep
from recovery.engine.execution import Execution
from recovery.errors import DamagedRunError
from recovery.history.load import Entry, items_from
from recovery.journal.call_key import call_scope
from recovery.journal.events import CallAbandoned, CallIntended, RecordsLost, ValueRecorded

_logger = logging.getLogger("recovery")

WARN_AFTER_S = 10.0
DRAIN_NAP_MAX_S = 0.25  # of a call that has been waited for long


def resolve_inside(
    run: Execution, scope: Scope, ended: BaseException | None
) -> Generator[Effect, Any, None]:
    """Resolve the calls inside an attempt before the end of the attempt is recorded.

    ``ended``: what the attempt raised; None if it has returned. If a tool has returned and left
    tasks running, they may continue, as they would without the library.
    """
    lsn = scope.calls[-1]
    cut = isinstance(ended, TimeoutError | asyncio.CancelledError)
    yield Perform(drain_attempt(run, scope, DRAIN_S if cut else math.inf))
    scope.check()  # it may have stopped the run meanwhile
    scope.over = ended is not None
    in_doubt = record_cancelled(run, lsn)
    for one in [one for one in run.side_effects_in_flight.values() if lsn in one.calls[:-1]]:
        run.record(CallAbandoned(one.call.lsn, one.call.attempt, "timeout", begun=True))
        in_doubt.append(one)
    yield from resolve_all(run, [*in_doubt, *recorded_inside(run, lsn)])


def drain_attempt(run: Execution, scope: Scope, limit_s: float) -> Generator[Sleep, None, None]:
    """Wait until the calls that this attempt made, and that are running, have ended.

    A side effect is given ``limit_s``, and other calls as long as before a stop. A child run is
    given as long as it takes, because it must not run twice at once.
    """
    began = run.wall_clock()
    warn_after = WARN_AFTER_S
    while True:
        waited = run.wall_clock() - began
        effects = _under_way(run, scope)
        if not _children(run, scope):
            limit = DRAIN_S if run.stopped is not None or not effects else limit_s
            if waited >= limit or not (effects or _at_work(run, scope)):
                return
        if waited >= warn_after:
            warn_after *= 2
            what = ", ".join(str(one.call) for one in effects) or "a repeatable call"
            _logger.warning(
                "run %s: call %s (LSN %d) has ended, and has waited %.0f s for calls that "
                "it began: %s",
                run.run_id,
                scope.call and scope.call.tool,
                scope.calls[-1],
                waited,
                what,
            )
        yield Sleep(max(DRAIN_NAP_S, min(waited / 20, DRAIN_NAP_MAX_S)))
        if run.stopped is None or scope.attempt_has_ended:
            run.check()


def _under_way(run: Execution, scope: Scope) -> list[CallInProgress]:
    lsn = scope.calls[-1]
    return [one for one in run.side_effects_in_flight.values() if lsn in one.calls[:-1]]


def _children(run: Execution, scope: Scope) -> bool:
    return run.children.any_in(scope)


def _at_work(run: Execution, scope: Scope) -> bool:
    """Whether a call made in this attempt does more than wait for an event outside the run."""
    lsn = scope.calls[-1]
    waiting = sum(one.inside == lsn for one in run.waits)
    return run.inside[lsn] > waiting


def end_attempt(run: Execution, scope: Scope) -> None:
    """Note that the attempt is over: its recorded calls serve the next one (past_attempts)."""
    lsn = scope.calls[-1]
    if scope.used or run.replay.earlier.has_calls_inside(lsn):
        run.write_or_stop(run.replay.end_attempt, lsn, _inside(run, lsn))


def _inside(run: Execution, lsn: int) -> Iterator[Entry]:
    """The records of a call and of the calls inside it, and those of them that are lost."""
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
