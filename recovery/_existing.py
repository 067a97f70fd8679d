"""Runs that are there: their logs, to read or to write, for whoever comes from outside."""

from __future__ import annotations

from eventlog import EventLog, LogReader
from recovery._checkpoint import CheckpointStore
from recovery._errors import RecoveryError
from recovery.stores.protocol import RunStore


def backend_of(store: CheckpointStore | RunStore) -> RunStore:
    """Where the store keeps its runs."""
    return store.backend if isinstance(store, CheckpointStore) else store


def reader_of(store: CheckpointStore | RunStore, run_id: str, consequence: str = "") -> LogReader:
    """A reader of the run's log; RecoveryError, with what follows from it, when there is none."""
    reader = backend_of(store).read(run_id)
    if reader is None:
        raise RecoveryError(f"there is no run {run_id!r}{consequence}")
    return reader


def claimed(store: CheckpointStore | RunStore, run_id: str) -> EventLog:
    """The run's log, for this process alone; RecoveryError when there is none."""
    reader_of(store, run_id).close()  # a claim would make it
    return store.claim(run_id)
