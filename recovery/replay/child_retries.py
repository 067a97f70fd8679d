"""Remembers the newest decision of an operator to retry a failed child run. Pure."""

from __future__ import annotations

from typing import Any

from recovery.journal.events import CallResolved, Event
from recovery.journal.related_runs import RETRIED


class ChildRetries:
    """The newest decision in the parent's log to retry this child run.

    Each decision counts once. They come in the order of the parent's log, so the newest is enough.
    """

    name, wants = "retries", frozenset[type[Event]]((CallResolved,))

    def __init__(self) -> None:
        self.newest = ("", "")  # who and why

    def from_checkpoint(self, carried: Any) -> None:
        """See Accumulator.from_checkpoint."""
        who, why = carried
        self.newest = str(who), str(why)

    def observe(self, lsn: int, time_ns: int, event: Event) -> None:
        """See Accumulator.observe."""
        match event:
            case CallResolved(how="retry", who=who, why=why):
                if who.startswith("run ") and why.startswith(RETRIED):
                    self.newest = who, why

    def to_checkpoint(self) -> Any:
        """See Accumulator.to_checkpoint."""
        return list(self.newest) if self.newest[0] else None
