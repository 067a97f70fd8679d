"""Knows the owners of a run, and what one that was not known to be dead may still execute. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

from recovery.journal.events import Event, RunResumed, RunStarted
from recovery.replay.recorded_call import RecordedCall
from recovery.text import shown_time


class Elsewhere(NamedTuple):
    """A former owner, by name, may still execute a call: ``until`` then (seconds since 1970).

    That is the time-out of the call after the next owner has taken the run. None: it has no
    time-out, or there is no next owner yet.
    """

    owner: str
    until: float | None

    def __str__(self) -> str:
        until = "" if self.until is None else f" until {shown_time(self.until)}"
        return f"{self.owner}, which had the run before, may still execute it{until}"


class _Change(NamedTuple):
    lsn: int
    time_ns: int | None  # None: no process has taken the run yet
    former: str | None  # see RunResumed.former


class Owners:
    """The ``fence`` of the present owner, and the changes of owner since the checkpoint.

    A checkpoint is taken while no call is in flight, so earlier changes concern no call in doubt.
    """

    name, wants = "owner", frozenset[type[Event]]((RunStarted, RunResumed))

    def __init__(self) -> None:
        self.fence = 0
        self._changes: list[_Change] = []

    def from_checkpoint(self, carried: Any) -> None:
        """See Accumulator."""
        if type(carried) is not int:
            raise ValueError("no fence")
        self.fence = carried

    def to_checkpoint(self) -> Any:
        """See Accumulator."""
        return self.fence or None

    def observe(self, lsn: int, time_ns: int, event: Event) -> None:
        """See Accumulator."""
        assert isinstance(event, RunStarted | RunResumed)
        if event.fence is None:  # of an older library, whose owners were known to be dead
            self._changes.append(_Change(lsn, time_ns, None))
        elif event.fence > self.fence:
            self.fence = event.fence
            former = event.former if isinstance(event, RunResumed) else None
            self._changes.append(_Change(lsn, time_ns, former))

    def change(self, lsn: int, time_ns: int, fence: int, former: str | None) -> None:
        """Note a change of owner that no record of a resumption tells of."""
        self.fence = fence
        self._changes.append(_Change(lsn, time_ns, former))

    def reads(self, next_lsn: int, former: str) -> None:
        """Note what ``former_owner`` of the log says, before any process has taken the run."""
        self._changes.append(_Change(next_lsn, None, self.of_record(former)))

    def of_record(self, former: str) -> str | None:
        """What the record of a resumption says of earlier owners: see RunResumed."""
        return former or ("" if self.any_alive else None)

    @property
    def any_alive(self) -> bool:
        """Whether an earlier owner may be alive, by the record."""
        for change in reversed(self._changes):
            if change.former is not None:
                return bool(change.former)
        return False

    def executing(self, call: RecordedCall) -> Elsewhere | None:
        """The owner that may still execute a call in doubt; None if none does."""
        return self.executing_since(call.again_lsn or call.lsn, call.intent.timeout_s)

    def executing_since(self, lsn: int, limit_s: float | None = None) -> Elsewhere | None:
        """The owner that may still execute an attempt, by its LSN and time-out.

        The next owner's record tells of the one that began it. A later record can say that all
        earlier owners have ended since.
        """
        if not self.any_alive:
            return None
        later = [change for change in self._changes if change.lsn > lsn]
        if not later or not later[0].former or any(one.former == "" for one in later):
            return None
        taken_ns = later[0].time_ns
        until = None if limit_s is None or taken_ns is None else taken_ns / 1e9 + limit_s
        return Elsewhere(later[0].former, until)
