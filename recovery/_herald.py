"""What is recorded, told to the process that records it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from eventlog import EventLog, RefusedValueError
from recovery._events import Event, encode
from recovery._tool import current_scope

if TYPE_CHECKING:
    from recovery._history import History
    from recovery._run_event import RunEvent

_logger = logging.getLogger("recovery")


class Herald:
    """Tells a callback each event once it is recorded, in the order of the log.

    What the callback raises is logged, and goes no further.
    """

    def __init__(self, on_event: Callable[[RunEvent], Any], history: History) -> None:
        from recovery._run_event import Teller  # noqa: PLC0415 - only where somebody listens

        self.teller = Teller(history.run_id, history.tallies.progress, history.log.fetch)
        self._on_event = on_event

    def event(self, lsn: int, time_ns: int, event: Event) -> None:
        """An event, which the tallies have seen."""
        self._call(lsn, lambda: self.teller.tell(lsn, time_ns, event))

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


def record(log: EventLog, history: History, event: Event) -> int:
    """Append an event, count it, and tell whoever listens; its LSN."""
    kind, body = encode(event)
    try:
        lsn = log.append(kind, body)
    except RefusedValueError as exc:  # too large
        raise RefusedValueError(kind, exc.reason) from None
    history.size += len(body)
    history.tallies.observe(lsn, log.last_time_ns, event)
    if history.replay.losses is not None:
        history.replay.losses.observe(lsn, event)
    if history.herald is not None:
        history.herald.event(lsn, log.last_time_ns, event)
    return lsn
