"""Finds where a recovery of a run begins in its log: one search for all readers of runs.

It begins with the newest checkpoint that can be restored, and after which no task of an earlier
step recorded anything. Such a task outlived its step, and only an earlier start restarts it.
Without such a checkpoint, the recovery begins at the beginning of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from eventlog import Damage, LogRecords, Record, Snapshot
from recovery.history.restore_checkpoint import (
    BrokenCheckpointError,
    Generation,
    Restored,
    checked_body,
    checkpoints_in,
    restore,
    whole_prologue,
)
from recovery.journal.call_key import step_of
from recovery.journal.events import Event

NO_STEP = 1 << 63  # above all steps

T = TypeVar("T")
Tail = TypeVar("Tail", bound=Iterable[tuple[Any, ...]])  # of tuples with an event at their end


@dataclass(slots=True, eq=False)
class Start:
    """Where reading may begin: after a checkpoint (its LSN), or at the beginning of the log (0).

    ``prologue``: the records of the code before the first step. ``carried``: totals up to the
    checkpoint. ``restored``: None if the checkpoint was not restored, and so not wholly verified.
    """

    lsn: int = 0
    step: int = 0
    time_ns: int = 0
    recoveries: int = 0
    carried: dict[str, Any] = field(default_factory=dict)
    generation: Generation = field(default_factory=Generation)
    prologue: list[Record] = field(default_factory=list)
    snapshot: Snapshot | None = None
    restored: Restored | None = None

    def __str__(self) -> str:
        if not self.lsn:
            return "the beginning of the log"
        return f"the checkpoint of step {self.step} (LSN {self.lsn})"


Read = Callable[[Snapshot], Start | None]  # raises BrokenCheckpointError; None: not this one


def read_shallow(log: LogRecords, snapshot: Snapshot) -> Start:
    """A start from the record of a checkpoint alone, without restoring it. It needs no types."""
    body = checked_body(snapshot)
    prologue = whole_prologue(log.fetch, snapshot.lsn, body["prologue"], body["generation"])
    return Start(
        snapshot.lsn,
        body["step"],
        snapshot.time_ns,
        body["recoveries"],
        body["carried"],
        body["generation"],
        prologue,
        snapshot,
    )


def read_whole(log: LogRecords, snapshot: Snapshot) -> Start:
    """A start from a checkpoint that is restored and verified."""
    restored = restore(log.fetch, snapshot)
    prologue = whole_prologue(log.fetch, snapshot.lsn, restored.prologue, restored.generation)
    return Start(
        snapshot.lsn,
        restored.step,
        snapshot.time_ns,
        restored.recoveries,
        restored.carried,
        restored.generation,
        prologue,
        snapshot,
        restored,
    )


def _ignore(what: object) -> None: ...


def readable(
    log: LogRecords,
    read: Callable[[Snapshot], T | None],
    on_damage: Callable[[Damage], None] = _ignore,
    on_broken: Callable[[str], None] = _ignore,
) -> Iterator[T]:
    """The starts that ``read`` makes of checkpoints, the newest first, except None and broken ones.

    ``on_damage`` and ``on_broken`` are called with damage and with broken checkpoints.
    """
    for snapshot in checkpoints_in(log, on_damage):
        try:
            found = read(snapshot)
        except BrokenCheckpointError as exc:
            on_broken(str(exc))
            continue
        if found is not None:
            yield found


def starts(
    log: LogRecords,
    read: Read,
    behind: Callable[[Start], Tail],
    on_damage: Callable[[Damage], None] = _ignore,
    on_broken: Callable[[str], None] = _ignore,
) -> Iterator[tuple[Start, Tail]]:
    """The starts of a recovery, the newest first and the beginning of the log last.

    ``behind`` reads the events after a start; those after the next start may be left out.
    """
    lowest = NO_STEP
    for start in readable(log, read, on_damage, on_broken):
        tail = behind(start)
        lowest = min(lowest, lowest_step(one[-1] for one in tail))
        if lowest > start.step:
            yield start, tail
        else:
            on_broken(f"checkpoint at LSN {start.lsn}: a task of an earlier step outlived it")
    beginning = Start()
    yield beginning, behind(beginning)


def lowest_step(events: Iterable[Event]) -> int:
    """The lowest step whose tasks have recorded some of these events; NO_STEP if there is none."""
    steps = (step_of(getattr(event, "scope", "")) for event in events)
    return min((step for step in steps if step), default=NO_STEP)


def beginning_gone(log: LogRecords, broken: list[str]) -> Damage:
    """The damage of a run whose first checkpoint is not sound: retention has removed the rest."""
    reasons = f" ({'; '.join(broken)})" if broken else ""
    what = f"removed by retention, and no checkpoint behind them is sound{reasons}"
    return Damage.of_records(1, log.oldest_lsn - 1, what)
