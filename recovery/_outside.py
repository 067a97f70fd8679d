"""What others do to a run, from any process: send it signals, and cancel it."""

from __future__ import annotations

from typing import Any

from eventlog import LogLockedError, UnsupportedFormatError
from recovery._checkpoint import CheckpointStore
from recovery._errors import RecoveryError
from recovery._events import RunCancelled, encode, skim
from recovery._history import ended_by, load
from recovery._inbox import CANCEL, SIGNAL
from recovery._values import pack
from recovery.stores.protocol import RunStore, check_signal_name


def signal(
    store: CheckpointStore | RunStore,
    run_id: str,
    name: str,
    value: Any = None,
    *,
    who: str = "",
    key: str = "",
) -> None:
    """Send a run signal ``name``, which its next ``wait_for(name)`` returns the value of.

    Durable when this returns, whether a process has the run or not, and whether it waits already
    or not: signals of a name are kept in the order sent, and each is taken once. A sender that
    tries again after a time-out gives both the same ``key``: then it is sent once. ``who`` is kept
    with it. Takes a few flushes of the disk; from async code, call it with ``asyncio.to_thread``.

    Raises RecoveryError when there is no such run, or it has ended; RefusedValueError for a value
    that cannot be carried; ValueError when another signal was sent under this ``key``;
    LogLockedError when other senders keep the inbox for 10 seconds.
    """
    packed = pack(value, "value")
    backend = _backend_of(store)
    _check_not_ended(backend, run_id, check_signal_name(name))
    backend.post(run_id, SIGNAL, {"name": name, "value": packed, "who": who}, key)


def cancel(store: CheckpointStore | RunStore, run_id: str, *, who: str = "", why: str = "") -> None:
    """End a run: it cannot be resumed, and running it again raises RunCancelledError.

    A run that no process has is ended when this returns. In a live one it is durable that it is
    to end: it does at the next thing that its agent does (a call, a step, while it waits, its
    end), a fifth of a second later at most; a tool at work is not interrupted. Whether a call in
    doubt took effect stays unknown; the error names it.

    Raises RecoveryError when there is no such run, or it has ended.
    """
    backend = _backend_of(store)
    _check_not_ended(backend, run_id, "cancel")
    asked = backend.post(run_id, CANCEL, {"who": who, "why": why})
    try:
        log = store.claim(run_id)
    except LogLockedError:
        return  # whoever has it finds the message
    with log:
        history = load(log, run_id)
        if history.ended is None:
            in_doubt = [call.lsn for call in history.replay.in_doubt()]
            log.append(*encode(RunCancelled(who, why, in_doubt, asked)))
            log.commit()


def _backend_of(store: CheckpointStore | RunStore) -> RunStore:
    return store.backend if isinstance(store, CheckpointStore) else store


def _check_not_ended(backend: RunStore, run_id: str, what: str) -> None:
    """RecoveryError when nobody will ever read what is sent to the run."""
    try:
        reader = backend.read(run_id)
    except UnsupportedFormatError:  # a claim that a crash cut short
        reader = None
    if reader is None:
        raise RecoveryError(f"there is no run {run_id!r}: {what} was not sent")
    with reader:
        # A run that has ended takes no checkpoint, so nothing that matters is in front of one.
        start = reader.tail().snapshot or 1
        read = reader.records(start, on_damage=lambda damage: None)
        ended = ended_by((record.lsn, record.time_ns, event) for record in read
                         if (event := skim(record)) is not None)  # fmt: skip
    if ended is not None:
        raise RecoveryError(f"run {run_id!r} has ended ({ended.kind}): {what} was not sent")
