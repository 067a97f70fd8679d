"""What a log says of a run: the newest checkpoint that verifies, and what came after it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from eventlog import Damage, Record, Snapshot
from recovery._errors import DamagedRunError
from recovery._events import (
    CallResolved,
    Event,
    RunFailed,
    RunFinished,
    RunResumed,
    RunStarted,
    StepStarted,
    decode,
)
from recovery._keys import step_scope
from recovery._replay import Replay
from recovery._snapshots import BrokenCheckpointError, Restored, restore, value_at
from recovery._values import Ref, unpack

_logger = logging.getLogger("recovery")

Entry = tuple[int, int, Event]  # LSN, time in ns, event


class RunRecords(Protocol):
    """The reading side of a run's log: an EventLog or a LogReader."""

    def records(self, start: int = 1, *, on_damage: Callable[[Damage], None] | None = None
                ) -> Iterator[Record]: ...  # fmt: skip

    def snapshots(self, on_damage: Callable[[Damage], None] | None = None
                  ) -> Iterator[Snapshot]: ...  # fmt: skip

    def fetch(self, lsns: set[int]) -> dict[int, Record]: ...


@dataclass(slots=True)
class History:
    """A run as its log has it, ready to be replayed."""

    run_id: str
    log: RunRecords
    restored: Restored | None
    entries: list[Entry]
    replay: Replay
    prologue: list[int]
    started: RunStarted | None
    ended: RunFinished | RunFailed | None
    recoveries: int
    damage: tuple[Damage, ...]
    broken: tuple[str, ...]

    @property
    def step(self) -> int:
        """The step at whose end the checkpoint was taken; 0 without one."""
        return self.restored.step if self.restored else 0

    def value_of(self, item: Any) -> Any:
        """What a recorded message is: itself, or what it refers to."""
        if not isinstance(item, Ref):
            return item
        record = self.log.fetch({item.lsn})[item.lsn]
        return value_at(record, unpack(record.packed), item)


def load(log: RunRecords, run_id: str) -> History:
    """Read a run's history; changes nothing.

    A damaged checkpoint is passed over for an earlier one, down to none at all. Raises
    DamagedRunError when other records are lost: one of them may be a call that was made.
    """
    damage: list[Damage] = []
    lost: list[Damage] = []
    broken: list[str] = []
    restored, entries = _newest_checkpoint(log, damage, broken)

    def on_damage(found: Damage) -> None:
        (damage if found.snapshot or not found.lost else lost).append(found)

    for record in log.records(restored.lsn + 1 if restored else 1, on_damage=on_damage):
        entries += _entry(record, lost)
    if lost:
        raise DamagedRunError(run_id, lost)
    for reason in broken:
        _logger.warning("run %s: %s; an earlier one stands in", run_id, reason)
    return History(
        run_id, log, restored, entries, Replay.of(entries),
        restored.prologue if restored else list(_prologue(entries)),
        next((e for _, _, e in entries if isinstance(e, RunStarted)), None),
        _ended(entries),
        (restored.recoveries if restored else 0)
        + sum(isinstance(e, RunResumed) for _, _, e in entries),
        tuple(dict.fromkeys(damage)), tuple(broken),
    )  # fmt: skip


def _newest_checkpoint(
    log: RunRecords, damage: list[Damage], broken: list[str]
) -> tuple[Restored | None, list[Entry]]:
    """The newest checkpoint that verifies, with the events of the code before the first step."""
    for snapshot in log.snapshots(damage.append):
        try:
            restored = restore(log, snapshot)
            found = log.fetch(set(restored.prologue))
            if len(found) < len(restored.prologue):
                raise BrokenCheckpointError(
                    f"checkpoint at LSN {snapshot.lsn}: records of the code before the first step "
                    "are damaged"
                )
        except BrokenCheckpointError as exc:
            broken.append(str(exc))
            continue
        entries: list[Entry] = []
        for lsn in sorted(found):
            entries += _entry(found[lsn], [])
        return restored, entries
    return None, []


def _entry(record: Record, lost: list[Damage]) -> list[Entry]:
    try:
        event = decode(record)
    except ValueError as exc:
        lost.append(Damage(0, 0, len(record.packed), record.lsn, record.lsn, str(exc)))
        return []
    return [] if event is None else [(record.lsn, record.time_ns, event)]


def _prologue(entries: list[Entry]) -> dict[int, None]:
    """The LSNs that the code before the first step needs on replay."""
    needed: dict[int, None] = {}
    before = True
    for lsn, _, event in entries:
        before = before and not isinstance(event, StepStarted)
        scope, call = getattr(event, "scope", ""), getattr(event, "call", 0)
        if isinstance(event, RunResumed):
            continue
        if before or scope == step_scope(0) or call in needed:
            needed[lsn] = None
    return needed


def _ended(entries: list[Entry]) -> RunFinished | RunFailed | None:
    ended: RunFinished | RunFailed | None = None
    for _, _, event in entries:
        if isinstance(event, RunFinished | RunFailed):
            ended = event
        elif isinstance(event, CallResolved) and isinstance(ended, RunFailed):
            ended = None  # somebody settled the failed call, so that the run goes on
    return ended
