"""Which signals a run has taken. Pure."""

from __future__ import annotations

from typing import Any

from recovery._events import Event, SignalTaken


class Signals:
    """The newest signal taken, by name: each wait takes the next one, in the order sent.

    Signals are numbered by the inbox of the run, and a fork has an inbox of its own.
    """

    name = "signals"

    def __init__(self) -> None:
        self._taken: dict[tuple[str, str], int] = {}

    def taken(self, uid: str, name: str) -> int:
        """The LSN of the newest one that run ``uid`` has taken from its inbox; 0 for none."""
        return self._taken.get((uid, name), 0)

    def restore(self, carried: Any) -> None:
        """See Tally.restore."""
        self._taken = {(str(uid), str(name)): int(lsn) for uid, name, lsn in carried}

    def observe(self, lsn: int, time_ns: int, event: Event) -> None:
        """See Tally.observe."""
        if isinstance(event, SignalTaken):
            known = self._taken.get((event.uid, event.name), 0)
            self._taken[event.uid, event.name] = max(known, event.inbox)

    def carry(self) -> Any:
        """See Tally.carry."""
        return [[uid, name, lsn] for (uid, name), lsn in self._taken.items()]
