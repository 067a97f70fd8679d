"""Settling a call from outside: what a person, or a program, knows about it."""

from __future__ import annotations

from recovery._checkpoint import CheckpointStore
from recovery._errors import RecoveryError
from recovery._events import CallIntended, CallResolved, RunFailed, encode
from recovery._history import load
from recovery._tool import Resolution
from recovery._values import pack
from recovery.stores.protocol import RunStore


def resolve(
    store: CheckpointStore | RunStore,
    run_id: str,
    call: int,
    resolution: Resolution,
    *,
    who: str = "",
    why: str = "",
) -> None:
    """Record what became of a call in doubt: ``call`` is its LSN, as InDoubtError gives it.

    Also settles the failed call that ended a run (RunFailedError.call). The run goes on when it is
    run again. Durable when this returns; ``who`` and ``why`` are kept in the record. Raises
    RecoveryError when the call is not in doubt, LogLockedError while a process runs the run.
    A call that was resolved can be resolved again until it has been executed.
    """
    if resolution.how == "unknown":
        raise ValueError("Resolution.unknown() settles nothing: the call stays in doubt")
    value = pack(resolution.value, "resolution")
    backend = store.backend if isinstance(store, CheckpointStore) else store
    reader = backend.read(run_id)
    if reader is None:  # a claim would make it
        raise RecoveryError(f"there is no run {run_id!r}")
    reader.close()
    with store.claim(run_id) as log:
        history = load(log, run_id)
        intents = {lsn for lsn, _, event in history.entries if isinstance(event, CallIntended)}
        in_doubt = {recorded.lsn for recorded in history.replay.unclaimed() if not recorded.done}
        failed = history.ended.call if isinstance(history.ended, RunFailed) else 0
        if call not in in_doubt and (not failed or call != failed):
            state = "has an outcome" if call in intents else "is no call of this run"
            raise RecoveryError(
                f"LSN {call} of run {run_id!r} {state}; in doubt: {sorted(in_doubt) or 'none'}. "
                "Nothing was written."
            )
        log.append(*encode(CallResolved(call, resolution.how, value, who, why)))
        log.commit()
