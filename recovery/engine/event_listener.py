"""What is recorded, told to the process that records it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from recovery.declare.scope import current_scope
from recovery.journal.events import Event

if TYPE_CHECKING:
    from recovery.history.load import History
    from recovery.inspect.run_event import RunEvent

_logger = logging.getLogger("recovery")


class EventListener:
    """Tells a callback each event once it is recorded, in the order of the log.

    What the callback raises is logged, and goes no further.
    """

    def __init__(self, on_event: Callable[[RunEvent], Any], history: History) -> None:
        from recovery.inspect.run_event import EventReader  # noqa: PLC0415 - only where somebody listens

        self.teller = EventReader(history.run_id, history.tallies.progress, history.log.fetch)
        self._on_event = on_event

    def count_served(self, served: Callable[[], int]) -> None:
        """How many calls were served from the log is told with each event."""
        self.teller.served = served

    def event(self, lsn: int, time_ns: int, event: Event) -> None:
        """An event, which the tallies have seen."""
        self._call(lsn, lambda: self.teller.build(lsn, time_ns, event))

    def checkpoint(self, lsn: int, time_ns: int, step: int) -> None:
        """A checkpoint of the end of ``step``."""
        self._call(lsn, lambda: self.teller.checkpoint(lsn, time_ns, step))

    def _call(self, lsn: int, told: Callable[[], RunEvent]) -> None:
        # In no scope: what it calls is no part of the run, and is not recorded.
        token = current_scope.set(None)
        try:
            self._on_event(told())
        except Exception:
            _logger.exception("run %s: on_event failed at LSN %d", self.teller.run_id, lsn)
        finally:
            current_scope.reset(token)
