"""Keeps totals over all events of a run, which survive checkpoints. Pure.

A recovery reads only the records after a checkpoint. An accumulator sees every event once, and its
totals are saved with each checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, cast

from recovery.journal.events import Event, RunResumed, RunStarted
from recovery.replay.child_retries import ChildRetries
from recovery.replay.error_counts import ErrorTally
from recovery.replay.progress import ProgressTally
from recovery.replay.run_owners import Owners
from recovery.replay.taken_signals import Signals


class Accumulator(Protocol):
    """Counts something over the events of a run."""

    name: str
    wants: frozenset[type[Event]]  # the types of event that it observes

    def from_checkpoint(self, carried: Any) -> None:
        """Restore the totals that ``to_checkpoint`` gave; ValueError when they make no sense."""

    def observe(self, lsn: int, time_ns: int, event: Event) -> None:
        """Count one event, as recorded or read back. Values in it may be Packed."""

    def to_checkpoint(self) -> Any:
        """The totals, as a value that msgpack can hold; None: there are none."""


class CodeTally:
    """The digest of the code that was executed last. It wrote the records after a checkpoint, up to
    the record that another process resumed the run."""

    name, wants = "code", frozenset[type[Event]]((RunStarted, RunResumed))

    def __init__(self) -> None:
        self._code: str | None = None

    def from_checkpoint(self, carried: Any) -> None:
        """See Tally."""
        if type(carried) is not str:
            raise ValueError("no digest of code")
        self._code = carried

    def observe(self, lsn: int, time_ns: int, event: Event) -> None:
        """See Tally."""
        if isinstance(event, RunStarted | RunResumed):
            self._code = event.code

    def to_checkpoint(self) -> Any:
        """See Tally."""
        return self._code or None


Observer = Callable[[int, int, Event], None]

# One of each in every run.
KINDS: tuple[type[Accumulator], ...] = (
    ProgressTally,
    Signals,
    ChildRetries,
    ErrorTally,
    CodeTally,
    Owners,
)


class Accumulators:
    """The accumulators of one run, by name."""

    def __init__(
        self, carried: Mapping[str, Any], kinds: Iterable[type[Accumulator]] = KINDS
    ) -> None:
        self._carried = dict(carried)  # also totals of another version of this library
        self._tallies = {tally.name: tally for tally in (kind() for kind in kinds)}
        self._observers: dict[type[Event], list[Observer]] = {}  # by the type of event
        for name, tally in self._tallies.items():
            if name in carried:
                tally.from_checkpoint(carried[name])

    def __getitem__(self, name: str) -> Accumulator:
        return self._tallies[name]

    @property
    def progress(self) -> ProgressTally:
        """The accumulator of progress and usage."""
        return cast(ProgressTally, self._tallies[ProgressTally.name])

    @property
    def owners(self) -> Owners:
        """The accumulator of owners."""
        return cast(Owners, self._tallies[Owners.name])

    def observe(self, lsn: int, time_ns: int, event: Event) -> None:
        """Show an event to the accumulators that observe its type."""
        kind = type(event)
        observers = self._observers.get(kind)
        if observers is None:
            observers = [one.observe for one in self._tallies.values() if kind in one.wants]
            self._observers[kind] = observers
        for observe in observers:
            observe(lsn, time_ns, event)

    def to_checkpoint(self) -> dict[str, Any]:
        """The totals of all accumulators, for a checkpoint."""
        carried = {name: tally.to_checkpoint() for name, tally in self._tallies.items()}
        return self._carried | {name: one for name, one in carried.items() if one is not None}
