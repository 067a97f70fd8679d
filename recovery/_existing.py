"""Runs that are there: their logs, to read or to write, for whoever comes from outside."""

from __future__ import annotations

import os
from typing import Any

from eventlog import EventLog, LogReader
from recovery._checkpoint import CheckpointStore
from recovery._errors import RecoveryError
from recovery.stores.protocol import RunStore

# What runs are looked for in: a path is that of a directory with runs in it.
Store = CheckpointStore | RunStore | str | os.PathLike[str]


def store_of(store: Store) -> CheckpointStore:
    """The store itself, or one at this path; TypeError for anything else."""
    return store if isinstance(store, CheckpointStore) else CheckpointStore(_there(store))


def backend_of(store: Store) -> RunStore:
    """Where the store keeps its runs."""
    return store.backend if isinstance(store, CheckpointStore) else store_of(store).backend


def _there(store: Any) -> Any:
    if store is None:
        raise TypeError("store is a CheckpointStore, a RunStore or a path, not None")
    return store


def reader_of(store: Store, run_id: str, consequence: str = "") -> LogReader:
    """A reader of the run's log; RecoveryError, with what follows from it, when there is none."""
    reader = backend_of(store).read(run_id)
    if reader is None:
        raise RecoveryError(f"there is no run {run_id!r}{consequence}")
    return reader


def claimed(store: Store, run_id: str) -> EventLog:
    """The run's log, for this process alone; RecoveryError when there is none."""
    reader_of(store, run_id).close()  # a claim would make it
    return claim(store, run_id)


def claim(store: Store, run_id: str) -> EventLog:
    """The same of a run that may not be there yet."""
    return (store if isinstance(store, CheckpointStore) else backend_of(store)).claim(run_id)
