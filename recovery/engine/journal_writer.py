"""Writes the events of a run: encodes, appends and counts them, and calls the listener."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventlog import RefusedValueError, WritableLog
from recovery.journal.encoding import encode
from recovery.journal.events import Event

if TYPE_CHECKING:
    from recovery.history.load import History


def record(log: WritableLog, history: History, event: Event, hold: bool = False) -> int:
    """Append an event, count it, and call the listener; returns its LSN.

    ``hold``: as of ``EventLog.append``, for an event that the next one makes known as well.
    """
    event = history.subjects.of_event(event)
    kind, body = encode(event)
    try:
        lsn = log.append(kind, body, hold=hold)
    except RefusedValueError as exc:  # too large
        raise RefusedValueError(kind, exc.reason) from None
    history.size += len(body)
    history.subjects.recorded(lsn, event)
    history.tallies.observe(lsn, log.last_time_ns, event)
    if history.replay.losses is not None:
        history.replay.losses.observe(lsn, event)
    for listener in history.listeners:
        listener.event(lsn, log.last_time_ns, event, body)
    return lsn
