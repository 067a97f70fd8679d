"""Calls the process's ``on_event`` callback with each recorded event."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from eventlog import Packed
from recovery.declare.scope import current_scope
from recovery.journal.events import Event

if TYPE_CHECKING:
    from recovery.history.load import History, SpanListener
    from recovery.inspect.run_event import RunEvent
    from recovery.stores.protocol import RunStore

_logger = logging.getLogger("recovery")

# Makes a listener of each run of this process, while recovery.tracing emits spans.
spans_of: Callable[[History, RunStore], SpanListener] | None = None


def listen(history: History, store: RunStore, on_event: Callable[[RunEvent], Any] | None) -> None:
    """Set the listeners of a run: of its spans, and ``on_event``."""
    history.spans = spans_of(history, store) if spans_of is not None else None
    events = EventListener(on_event, history) if on_event is not None else None
    history.listeners = tuple(one for one in (events, history.spans) if one is not None)


class EventListener:
    """Calls a callback with each event after it is recorded, in the order of the log.

    Exceptions of the callback are logged, and not raised.
    """

    def __init__(self, on_event: Callable[[RunEvent], Any], history: History) -> None:
        from recovery.inspect.run_event import EventReader  # noqa: PLC0415 - only with a listener

        self.reader = EventReader(history.run_id, history.tallies.progress, history.log.fetch)
        self._on_event = on_event

    def count_served(self, served: Callable[[], int]) -> None:
        """Add the number of calls that were served from the log to each event."""
        self.reader.served = served

    def event(self, lsn: int, time_ns: int, event: Event, packed: Packed) -> None:
        """Report an event, after the accumulators have observed it."""
        self._call(lsn, lambda: self.reader.build(lsn, time_ns, event))

    def checkpoint(self, lsn: int, time_ns: int, step: int) -> None:
        """Report a checkpoint of the end of ``step``."""
        self._call(lsn, lambda: self.reader.checkpoint(lsn, time_ns, step))

    def close(self) -> None:
        """The process is done with the run: that is no event."""

    def _call(self, lsn: int, make_event: Callable[[], RunEvent]) -> None:
        # In no scope: calls of the callback are not part of the run, and are not recorded.
        token = current_scope.set(None)
        try:
            self._on_event(make_event())
        except Exception:
            _logger.exception("run %s: on_event failed at LSN %d", self.reader.run_id, lsn)
        finally:
            current_scope.reset(token)
