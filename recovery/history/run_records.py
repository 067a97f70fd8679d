"""Defines the two sides of a run's log: reading records, and appending snapshots."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from eventlog import Damage, Record, Snapshot
from recovery.journal.encoding import decode_shallow
from recovery.journal.events import CallIntended


class RunRecords(Protocol):
    """The reading side of a run's log: an EventLog or a LogReader."""

    @property
    def oldest_lsn(self) -> int: ...

    def records(
        self, start: int = 1, *, on_damage: Callable[[Damage], None] | None = None
    ) -> Iterator[Record]: ...

    def snapshots(
        self, on_damage: Callable[[Damage], None] | None = None
    ) -> Iterator[Snapshot]: ...

    def fetch(self, lsns: set[int]) -> dict[int, Record]: ...


class SnapshotSink(Protocol):
    """The writing side for snapshots: an EventLog, or the draft of a log."""

    def append_snapshot(self, state: Any) -> int: ...


def keys_of(log: RunRecords, lsns: set[int], uid: str) -> dict[int, str]:
    """The idempotency keys of calls, by LSN, wherever in the log they are."""
    events = ((record.lsn, decode_shallow(record)) for record in log.fetch(lsns).values())
    return {
        lsn: event.idempotency_key(uid) for lsn, event in events if isinstance(event, CallIntended)
    }
