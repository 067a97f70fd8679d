"""Remembers which signals a run has taken. Pure."""

from __future__ import annotations

from typing import Any

from recovery.journal.events import CallDecided, DivergenceAccepted, Event, SignalTaken

# In place of a name that a signal can have: the number and the time of the newest message read.
_LSN, _TIME = "", "\0"


class Signals:
    """The newest signal taken, by name: each wait takes the next one, in the order sent.

    Signals are numbered by the inbox of the run, and a fork has an inbox of its own.
    """

    name = "signals"
    wants = frozenset[type[Event]]((SignalTaken, CallDecided, DivergenceAccepted))

    def __init__(self) -> None:
        self._taken: dict[tuple[str, str], int] = {}
        self._newest_read: dict[str, tuple[int, int]] = {}

    def taken(self, uid: str, name: str) -> int:
        """The LSN of the newest one that run ``uid`` has taken from its inbox; 0 for none."""
        return self._taken.get((uid, name), 0)

    def newest_read(self, uid: str) -> tuple[int, int]:
        """The newest message that run ``uid`` has read of its inbox, by its LSN and its time (ns
        since 1970; 0: not known); zeros for none."""
        known = max((lsn for (of, _), lsn in self._taken.items() if of == uid), default=0)
        return max((known, 0), self._newest_read.get(uid, (0, 0)))

    def from_checkpoint(self, carried: Any) -> None:
        """See Accumulator.from_checkpoint."""
        for uid, name, number in carried:
            if name in (_LSN, _TIME):
                lsn, sent = self._newest_read.get(uid, (0, 0))
                self._newest_read[uid] = (number, sent) if name == _LSN else (lsn, number)
            else:
                self._taken[str(uid), str(name)] = int(number)

    def observe(self, lsn: int, time_ns: int, event: Event) -> None:
        """See Accumulator.observe."""
        match event:
            case SignalTaken():
                known = self._taken.get((event.uid, event.name), 0)
                self._taken[event.uid, event.name] = max(known, event.inbox)
                self._hear(event, event.uid)
            case CallDecided(uid=str(uid)):
                self._hear(event, uid)
            case DivergenceAccepted(inbox=True):
                self._taken.clear()
                self._newest_read.clear()

    def _hear(self, event: SignalTaken | CallDecided, uid: str) -> None:
        newest_read = event.inbox, event.sent or 0
        self._newest_read[uid] = max(newest_read, self._newest_read.get(uid, (0, 0)))

    def to_checkpoint(self) -> Any:
        """See Accumulator.to_checkpoint."""
        taken = [[uid, name, lsn] for (uid, name), lsn in self._taken.items()]
        for uid, (lsn, sent) in self._newest_read.items():
            taken += [[uid, _LSN, lsn], [uid, _TIME, sent]]
        return taken
