"""Turns the recorded end of a run into its result, or into an exception for the caller."""

from __future__ import annotations

from typing import Any

from recovery.agent_code.agent_name import agent_option
from recovery.engine.resuming import RECORDED
from recovery.errors import (
    RecoveryError,
    RunCancelledError,
    RunFailedError,
    RunUndoneError,
    TaskMismatchError,
)
from recovery.history.load import History
from recovery.journal.events import RunCancelled, RunFailed, RunFinished, RunStarted, RunUndone
from recovery.stores.protocol import RunStore
from recovery.text import store_option
from recovery.values.pack import pack
from recovery.values.sealed import Sealed


def ending_of(
    history: History, task: Any = RECORDED, store: RunStore | None = None
) -> RunFinished | None:
    """The recorded end of a run; None if it has not ended. Raises for another task, and for a run
    that failed, was cancelled or was undone. ``store``: for the command in the error."""
    run_id, started, ended = history.run_id, history.started, history.ended
    if started is not None and started.run_id != run_id:
        raise RecoveryError(
            f"the log of {run_id!r} is that of run {started.run_id!r}: a copy, or a file system "
            "that does not tell the two names apart. Nothing was executed."
        )
    if started is not None and task is not RECORDED and not _is_same(started.task, task):
        raise TaskMismatchError(run_id, started.task, task, bool(started.subject))
    if isinstance(ended, RunCancelled):
        raise RunCancelledError(run_id, ended.who, ended.why, ended.calls)
    if isinstance(ended, RunFailed):
        cause = ended.type, ended.message, ended.traceback
        options, is_sealed = retry_options(started, store), ended.sealed is not None
        raise RunFailedError(run_id, cause, ended.call, options, is_sealed)
    if isinstance(ended, RunUndone):
        raise RunUndoneError(run_id, ended.who, ended.why)
    return ended


def retry_options(started: RunStarted | None, store: RunStore | None) -> str:
    """The options of ``recovery retry`` for a run."""
    named = (started.agent_object, started.agent) if started is not None else ()
    return f"--agent {agent_option(*named)}{store_option(store)}"


def _is_same(recorded: Any, given: Any) -> bool:
    if isinstance(recorded, Sealed):
        return True  # its subject was forgotten, or its key is not here
    # Packed, since a NaN equals nothing; by value, since the order of a dict's keys says nothing.
    try:
        return pack(recorded, "") == pack(given, "") or bool(recorded == given)
    except Exception:  # arrays have no opinion on whether they are equal
        return False
