"""Reads idempotency keys from a run's log; defines where checkpoints are appended."""

from __future__ import annotations

from typing import Any, Protocol

from eventlog import LogRecords
from recovery.journal.encoding import decode_shallow
from recovery.journal.events import CallIntended


class SnapshotSink(Protocol):
    """The writing side for snapshots: a log, or the draft of a log."""

    def append_snapshot(self, state: Any) -> int: ...


def keys_of(log: LogRecords, lsns: set[int], uid: str) -> dict[int, str]:
    """The idempotency keys of calls, by LSN, wherever in the log they are."""
    events = ((record.lsn, decode_shallow(record)) for record in log.fetch(lsns).values())
    return {
        lsn: event.idempotency_key(uid) for lsn, event in events if isinstance(event, CallIntended)
    }
