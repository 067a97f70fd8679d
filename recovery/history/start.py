"""Where a recovery of a run begins in its log: one search, for all who read runs.

It begins with the newest checkpoint that can be restored, and behind which no task of an earlier
step is at work. Such a task has outlived its step, and only an earlier start brings it back. Where
there is no such checkpoint, it begins with the beginning of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from eventlog import Damage, Record, Snapshot
from recovery.history.run_records import RunRecords
from recovery.history.snapshot import (
    BrokenCheckpointError,
    Generation,
    Restored,
    checked_body,
    checkpoints_in,
    restore,
    whole_prologue,
)
from recovery.journal.events import Event
from recovery.journal.keys import step_of

NO_STEP = 1 << 63  # above all steps

T = TypeVar("T")
Tail = TypeVar("Tail", bound=Iterable[tuple[Any, ...]])  # of tuples with an event at their end


@dataclass(slots=True)
class Start:
    """Where reading may begin: behind a checkpoint (its LSN), or at the beginning of the log (0).

    ``prologue``: the records of the code before the first step. ``carried``: what tallies know.
    ``restored``: None where the checkpoint was not restored, and so not wholly verified.
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


def read_shallow(log: RunRecords, snapshot: Snapshot) -> Start:
    """What the record of a checkpoint says by itself. No type is needed for it."""
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


def read_whole(log: RunRecords, snapshot: Snapshot) -> Start:
    """A checkpoint that is restored and verified."""
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
    log: RunRecords,
    read: Callable[[Snapshot], T | None],
    on_damage: Callable[[Damage], None] = _ignore,
    on_broken: Callable[[str], None] = _ignore,
) -> Iterator[T]:
    """What ``read`` makes of the checkpoints, the newest first, but for None and for broken ones.

    ``on_damage`` and ``on_broken`` are told what is not sound.
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
    log: RunRecords,
    read: Read,
    behind: Callable[[Start], Tail],
    on_damage: Callable[[Damage], None] = _ignore,
    on_broken: Callable[[str], None] = _ignore,
) -> Iterator[tuple[Start, Tail]]:
    """Where a recovery may begin, the newest first and the beginning of the log last.

    ``behind`` reads what follows a start; what follows the one before it may be left out.
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
    """The lowest step of which a task is at work in these events; NO_STEP if there is none."""
    steps = (step_of(getattr(event, "scope", "")) for event in events)
    return min((step for step in steps if step), default=NO_STEP)


def beginning_gone(log: RunRecords, broken: list[str]) -> Damage:
    """That a run begins with a checkpoint which is not sound: retention has removed the rest."""
    reasons = f" ({'; '.join(broken)})" if broken else ""
    what = f"removed by retention, and no checkpoint behind them is sound{reasons}"
    return Damage(0, 0, 0, 1, log.oldest_lsn - 1, what)
