"""Settling a call from outside: what a person, or a program, knows about it."""

from __future__ import annotations

from eventlog import EventLog
from recovery._errors import RecoveryError
from recovery._events import (
    CallFailed,
    CallIntended,
    CallResolved,
    CallReturned,
    DivergenceAccepted,
    RunFailed,
    RunParked,
    encode,
    skim,
)
from recovery._existing import Store, backend_of, claimed
from recovery._history import Entry
from recovery._posted import is_inbox_lost
from recovery._skimmed import Skimmed, skim_run
from recovery._tool import Call, Resolution, check_call
from recovery._values import pack


def resolve(
    store: Store,
    run_id: str,
    call: Call | int | str,
    resolution: Resolution,
    *,
    who: str = "",
    why: str = "",
) -> None:
    """Record what became of a call in doubt: ``call`` is a Call, as InDoubtError gives it, its
    idempotency key, or its LSN (which another run of that name may have by then).

    Also settles the failed call that ended a run (RunFailedError.call), or for which a graph stands
    still (GraphParkedError.call). The run goes on when it is run again. Durable when this returns;
    ``who`` and ``why`` are kept in the record. Raises RecoveryError when the call is not in doubt,
    LogLockedError while a process runs the run.
    A call that was resolved can be resolved again until it has been executed. One made inside
    another can be resolved whatever became of that, before it or after; a retry of it is made when
    the call around it is.
    """
    if not isinstance(resolution, Resolution):
        raise TypeError(
            "the resolution is Resolution.outcome(value), Resolution.retry() or "
            f"Resolution.fail(reason), not {resolution!r:.80}"
        )
    check_call(call)
    if resolution.how == "unknown":
        raise ValueError("Resolution.unknown() settles nothing: the call stays in doubt")
    value = pack(resolution.value, "resolution")
    with claimed(store, run_id) as log:
        history = _checked(log, run_id)
        for_undo = _for_undo(history.entries)
        keys = history.keys() | _keys_of(log, for_undo, history.uid)
        which = call.idempotency_key if isinstance(call, Call) else call
        call = next((lsn for lsn, key in keys.items() if key == which), which)
        in_doubt = {one.lsn for one in history.open_calls()}
        for_undo -= in_doubt
        in_doubt |= for_undo
        failed = {failed_call(history.ended)} - {0} | _failed_for_good(history.entries)
        if not isinstance(call, int) or call not in in_doubt | failed:
            state = "has an outcome" if call in keys else "is no open call of this run"
            named = f"LSN {call}" if isinstance(call, int) else f"call {call!r}"
            raise RecoveryError(
                f"{named} of run {run_id!r} {state}; in doubt: {sorted(in_doubt) or 'none'}. "
                "Nothing was written."
            )
        log.append(*encode(CallResolved(call, resolution.how, value, who, why, call in for_undo)))
        log.commit()


def accept(store: Store, run_id: str, *, who: str = "", why: str = "") -> None:
    """Let a run whose code diverged from its record (DivergenceError) go on with the new code.

    At the next divergence the run does not stop: what is recorded and was not done again is waited
    for no more, and from there on the new code's history counts. What the dropped calls did in the
    outside world stays done, and one that the new code makes in the same way is served from the
    record; another (with other arguments, say) is a new call: read the DivergenceError first. A
    dropped side effect that is in doubt has to be resolved before. Holds for one divergence.

    Where the run stopped because its inbox is gone, or is another one, it goes on without what was
    in that, and nothing else is accepted.

    Durable when this returns; ``who`` and ``why`` are kept in the record. Raises RecoveryError for
    a run that has ended, or is not there; LogLockedError while a process runs it.
    """
    with claimed(store, run_id) as log:
        run = _checked(log, run_id)
        if run.ended is not None:
            raise RecoveryError(
                f"run {run_id!r} has ended: nothing can diverge. Nothing was written."
            )
        lost = run.started is not None and is_inbox_lost(backend_of(store).inbox, run)
        log.append(*encode(DivergenceAccepted(who, why, lost or None)))
        log.commit()


def retry(store: Store, run_id: str, *, who: str = "", why: str = "") -> int:
    """Let the call be made again by whose failure a run ended; its LSN (RunFailedError.call).

    For a tool that raised and is mended now: run the run again, and it goes on with this call,
    under the same idempotency key. ``RecoverableAgent.retry`` does both. Durable when this returns;
    ``who`` and ``why`` are kept in the record. Raises RecoveryError for a run that has not ended by
    the failure of a call, LogLockedError while a process runs it.
    """
    with claimed(store, run_id) as log:
        call = failed_call(_checked(log, run_id).ended)
        if not call:
            raise RecoveryError(
                f"run {run_id!r} has not ended by the failure of a call, so there is none to make "
                "again. Nothing was written."
            )
        log.append(*encode(CallResolved(call, "retry", None, who, why)))
        log.commit()
    return call


def failed_call(ended: object) -> int:
    """The call (LSN) by whose failure a run ended; 0 if it has not ended like that."""
    return ended.call if isinstance(ended, RunFailed) else 0


def _checked(log: EventLog, run_id: str) -> Skimmed:
    """The run, to be decided about by people who may not have the types of its values."""
    found = skim_run(log, run_id)
    found.check()
    return found


def _failed_for_good(entries: list[Entry]) -> set[int]:
    """The failed calls for which a graph stands still."""
    calls: set[int] = set()
    for _, _, event in entries:
        match event:
            case RunParked():
                calls = {*(event.stays or ())}
            case CallReturned() | CallFailed():
                calls.discard(event.call)
    return calls


def _keys_of(log: EventLog, lsns: set[int], uid: str) -> dict[int, str]:
    """The idempotency keys of calls, by LSN, wherever in the log they are."""
    events = ((record.lsn, skim(record)) for record in log.fetch(lsns).values())
    return {
        lsn: event.idempotency_key(uid) for lsn, event in events if isinstance(event, CallIntended)
    }


def _for_undo(entries: list[Entry]) -> set[int]:
    """The calls in doubt for which an undo parked last: also those that were cancelled, or are
    behind a checkpoint, so that nobody makes them again."""
    calls: set[int] = set()
    for _, _, event in entries:
        match event:
            case RunParked():
                calls = set(event.calls) if event.undo else set()
            case CallReturned() | CallFailed() | CallResolved():
                calls.discard(event.call)
    return calls
