"""Finds the record with which a run began."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from recovery.history.choose_checkpoint import readable
from recovery.history.restore_checkpoint import checked_body, prologue_in
from recovery.journal.encoding import decode
from recovery.journal.events import Event, RunStarted

if TYPE_CHECKING:
    from eventlog import LogRecords, Record, Snapshot


def started_of(
    log: LogRecords, read: Callable[[Record], Event | None] = decode
) -> RunStarted | None:
    """The RunStarted event of a run's log; None if no agent has run it.

    If retention has removed the beginning, the newest readable checkpoint holds the event.
    """
    if log.oldest_lsn > 1:
        return _started_in_checkpoint(log, read)
    for record in log.records(1, on_damage=lambda damage: None):
        with suppress(ValueError):
            event = read(record)
            if event is not None:
                return event if isinstance(event, RunStarted) else None
    return None


def _started_in_checkpoint(
    log: LogRecords, read: Callable[[Record], Event | None]
) -> RunStarted | None:
    def started(snapshot: Snapshot) -> RunStarted | None:
        body = checked_body(snapshot)
        first = min(body["prologue"], default=0)  # it is the first of all records
        record = prologue_in(log.fetch, [first], body["generation"]).get(first)
        event = None
        with suppress(ValueError):
            event = read(record) if record is not None else None
        return event if isinstance(event, RunStarted) else None

    return next(readable(log, started), None)
