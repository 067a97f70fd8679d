"""Undoes a run from outside: aborts it, and makes the compensations of its calls.

The compensations are recorded in the run's own log, after the record of the abort. So an undo can
be repeated after a crash, and no call is undone twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from eventlog import Damage, WritableLog
from recovery.agent.executions import SyncExecution
from recovery.calls.undo import by_name, read_plan, undo_call
from recovery.declare.scope import Scope, current_scope
from recovery.declare.settings import Settings
from recovery.errors import RecoveryError, Stop
from recovery.history.checkpoint_store_base import CheckpointStoreBase
from recovery.history.find_run import Store, claim_existing, reader_of, store_of
from recovery.history.load import Entry, History, load
from recovery.journal.call_key import UNDO_CALL
from recovery.journal.encoding import decode_shallow, encode
from recovery.journal.events import (
    CallFailed,
    CallIntended,
    CallResolved,
    CallReturned,
    RecordsLost,
    RunStarted,
    RunUndone,
)
from recovery.journal.forked_from import ForkedFrom
from recovery.replay.matching import Replay
from recovery.replay.recorded_call import RecordedCall
from recovery.replay.undo_plan import UndoPlan


def undo(
    store: Store,
    run_id: str,
    *,
    tools: Iterable[Callable[..., Any]],
    who: str = "",
    why: str = "",
) -> list[dict[str, Any]]:
    """See RunHandle.undo."""
    store = store_of(store)
    known = by_name(tools, {})
    with claim_existing(store, run_id) as log:
        history = load(log, run_id, store.approvers)
        if history.started is None:
            raise RecoveryError(f"run {run_id!r} has checkpoints alone: it has made no calls")
        if not isinstance(history.ended, RunUndone):
            before = _outside(log, history, store)
            with before.mutex, _unstopped():
                read_plan(before, UndoPlan(log.last_lsn + 1), known)
            log.append(*encode(RunUndone(who, why)))
            log.commit()
            history = load(log, run_id, store.approvers)
        run = _outside(log, history, store)
        token = current_scope.set(run.scope)
        try:
            with _unstopped():
                result: list[dict[str, Any]] = run.perform_sync(
                    undo_call(run, known), ((0,), {}), ""
                )
        finally:
            current_scope.reset(token)
            run.close()
            log.commit()
        return result


def undoing(store: Store, run_id: str) -> tuple[list[RecordedCall], list[RecordedCall]]:
    """The calls that ``undo`` would undo, newest first, and those that must be resolved before.

    Only reads, and needs no types: the values stay packed. RecoveryError when there is no such run,
    or records of it are lost.
    """
    with reader_of(store, run_id) as reader:
        lost: list[Damage] = []
        plan = UndoPlan(reader.tail().next_lsn)
        for record in reader.records(1, on_damage=lost.append):
            event = decode_shallow(record)
            if isinstance(event, RecordsLost) and event.last and not event.snapshot:
                lost.append(Damage.of_records(record.lsn, event.last, "lost before a repair"))
            if isinstance(event, RunStarted) and (origin := ForkedFrom.of(event)):
                plan.forked, plan.base = origin.until, origin.base
            if isinstance(event, CallReturned):
                event = replace(event, value=None)  # values may be large, and are not needed here
            if event is not None:
                plan.add(record.lsn, record.time_ns, event)
    lost = [one for one in lost if one.lost and not one.snapshot]
    if lost:
        more = f", and {len(lost) - 1} more" if len(lost) > 1 else ""
        raise RecoveryError(
            f"run {run_id!r} cannot be undone, because records are lost: {lost[0]}{more}. "
            "Nothing was executed; `logdump verify` says what is lost."
        )
    return plan.calls_to_undo(), plan.in_doubt()


def _outside(log: WritableLog, history: History, store: CheckpointStoreBase) -> SyncExecution:
    """An execution of the undo alone: the agent's records are not replayed."""
    owners = history.tallies.owners  # an undo has no record that it begins again
    fence = max(log.epoch, owners.fence + 1)
    former = owners.of_record(log.former_owner())
    owners.change(log.last_lsn + 1, log.time_ns(), fence, former)
    section = _of_the_undo(history)
    history = replace(
        history, restored=None, entries=section, replay=Replay.of(section), prologue=[]
    )
    run = SyncExecution(log, history, store, Settings())
    run.scope = Scope(run, "undo")
    return run


def _of_the_undo(history: History) -> list[Entry]:
    """The records since the run was aborted, without earlier undos, which have failed."""
    began, undos = 0, set()
    for lsn, _, event in history.entries:
        match event:
            case RunUndone():
                began = lsn
            case CallIntended(tool=tool) if began and tool == UNDO_CALL:
                undos.add(lsn)
            case CallFailed(call=call) | CallResolved(call=call, how="fail") if call in undos:
                began = lsn
    return [entry for entry in history.entries if 0 < began < entry[0]]


@contextmanager
def _unstopped() -> Iterator[None]:
    """Turn a stop of the run into its error: here is no agent whose code it must pass through."""
    try:
        yield
    except Stop as stop:
        raise stop.error from stop.error.__cause__
