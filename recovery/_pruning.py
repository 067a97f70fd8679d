"""Which checkpoints of a run are kept, and when what is before them goes.

A generation begins when what it would free is as much as it takes: so all of them together take no
more than what is recorded besides. The log is cut behind the agent's back, once the checkpoints
that are kept are durable and were read back as a recovery would read them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from eventlog import Damage, EventLog, LogError, RefusedValueError
from eventlog._dataclass import dataclass
from recovery._errors import RecoveryError
from recovery._events import Event, skim
from recovery._history import RunRecords
from recovery._keys import step_of
from recovery._messages import Messages
from recovery._options import check_count, check_one_of
from recovery._snapshots import (
    BrokenCheckpointError,
    Checkpointed,
    SnapshotWriter,
    checked_body,
    checkpoints_in,
    restore,
    whole_prologue,
)
from recovery._together import flushers

if TYPE_CHECKING:
    from eventlog import LogReader, Record

_logger = logging.getLogger("recovery")

Kept = Literal["all", "prune_old", "latest_only"]
KEEP = 3  # of "prune_old"
GAIN = 2  # a generation is worth so many times what its checkpoint takes
PER_RECORD = 72  # bytes that a record takes besides its body


@dataclass(frozen=True, slots=True)
class Retention:
    """The newest ``checkpoints`` are kept (0: all), and those of as many ``generations``."""

    checkpoints: int = 0
    generations: int = 0

    @classmethod
    def of(cls, kept: Kept, keep: int | None) -> Retention:
        """As users say it; ValueError for what makes no sense."""
        check_one_of("retention", kept, ("all", "prune_old", "latest_only"))
        check_count("keep", keep, none=True)
        if keep is not None and kept != "prune_old":
            raise ValueError(
                f'keep is for retention="prune_old", and 1 or more; not {keep} for {kept!r}'
            )
        if kept == "all":
            return cls()
        # Checkpoints of one generation have values in common. Those of two have none.
        return cls(1, 1) if kept == "latest_only" else cls(keep or KEEP, 2)


class Pruning:
    """Writes the checkpoints of a run, and removes what is before those that are kept.

    ``read`` opens the run's log for reading. Guarded by whoever has the run.

    A task that outlives its step is brought back by a recovery from a checkpoint before that step.
    Where there is none any more, what the task does is refused: a plain agent's thread may do so,
    for nobody knows of it.
    """

    def __init__(
        self, log: EventLog, writer: SnapshotWriter, retention: Retention,
        read: Callable[[], LogReader | None],
    ) -> None:  # fmt: skip
        self._log, self._writer, self._retention, self._read = log, writer, retention, read
        writer.measures |= retention.checkpoints > 0
        self._prologue: list[Record] = []
        self._prologue_size = 0
        # Whether something may go: what a process before this one left, or a generation.
        self._due = True
        self._work: Future[None] | None = None
        self._closed = False
        self.step = 0  # of the oldest checkpoint that is kept, if others were removed; else 0

    @property
    def first(self) -> int:
        """The LSN before which nothing is needed by checkpoints that are taken from now on."""
        return self._writer.generation.first

    def write(self, what: Checkpointed, state: Mapping[str, Any], messages: Messages) -> int:
        """Append a checkpoint; its LSN. See SnapshotWriter.write."""
        begins = self._retention.checkpoints > 0 and self._pays(what, messages)
        if begins:
            from recovery._whole import write_whole  # noqa: PLC0415 - only where it is needed

            try:
                lsn = write_whole(self._log, self._writer, what, state, messages,
                                  self._prologue)  # fmt: skip
                self._due = True
                return lsn
            except RefusedValueError:
                raise
            except ValueError as exc:
                _logger.warning("run %s: retention: no checkpoint can stand alone, so nothing is "
                                "removed: %s", what.run_id, exc)  # fmt: skip
            finally:
                self._prologue = []
        return self._writer.write(what, state, messages)

    def _pays(self, what: Checkpointed, messages: Messages) -> bool:
        """Whether as much could go as a checkpoint that stands alone would take."""
        generation = self._writer.generation
        records = self._log.last_lsn - generation.first
        recorded = generation.size + what.grown + PER_RECORD * records - self._log.segment_size
        size = self._writer.size(messages)
        if recorded < GAIN * (size + self._prologue_size):
            return False
        try:
            found = whole_prologue(self._log, self._log.last_lsn + 1, what.prologue, generation)
        except BrokenCheckpointError:
            return False
        self._prologue_size = sum(len(record.packed) for record in found)
        self._prologue = found
        return recorded >= GAIN * (size + self._prologue_size)

    def check(self, event: Event) -> None:
        """RecoveryError if no recovery could bring back the code that does this."""
        if self.step and 0 < _step_of(event) <= self.step:
            raise RecoveryError(
                f"{self._log.path}: a task of step {_step_of(event)} is at work, which a recovery "
                f"could not bring back: retention keeps no checkpoint before step {self.step}. "
                "What it did was refused. Let tasks and threads end in the step that starts them, "
                "or keep more checkpoints."
            )

    def prune(self, mutex: AbstractContextManager[Any]) -> None:
        """Have removed what can go, soon and by another thread, if there may be something.

        To be called behind a checkpoint. ``mutex``: in which events are recorded.
        """
        if not self._retention.checkpoints or not self._due:
            return
        if self.first <= self._log.oldest_lsn:  # the present generation needs all that there is
            self._due = False
            return
        if self._work is None or self._work.done():
            self._due = False
            self._work = flushers.submit(partial(self._cut, mutex))

    def close(self) -> None:
        """Remove nothing more. What is being removed just now is waited for."""
        self._closed = True
        if self._work is not None and not self._work.cancel():
            self._work.exception()

    def _cut(self, mutex: AbstractContextManager[Any]) -> None:
        try:
            self._log.commit()
            reader = self._read()
            if reader is None:
                return
            with reader:
                first, step, last = first_needed(reader, self._retention)
                if first <= self._log.oldest_lsn or self._closed:
                    return
                with mutex:
                    before, self.step = self.step, step
                    end = self._log.last_lsn
                # What was recorded between the first look and that was not refused.
                if _lowest_step(reader, last, end + 1) <= step:
                    self.step = before
                    return
            self._log.truncate_before(first)
        except (LogError, OSError, RecoveryError, ValueError) as exc:
            _logger.warning("%s: retention: %s. What was not removed stays.", self._log.path, exc)


def first_needed(log: RunRecords, retention: Retention) -> tuple[int, int, int]:
    """The LSN of the first record that the checkpoints to be kept need, 0 if there are too few; the
    step of the oldest of them; the last LSN that was looked at.

    Of each generation the newest is restored as a recovery would restore it, and the oldest of all.
    """
    found, firsts, last = 0, set[int](), 0
    behind, lowest = 1 << 63, 1 << 63
    for snapshot in checkpoints_in(log, lambda damage: None):
        last = last or snapshot.lsn
        try:
            body = checked_body(snapshot)
            generation = body["generation"]
            is_new = generation.first not in firsts
            is_enough = len(firsts) + is_new >= retention.generations
            is_last = is_enough and found + 1 >= retention.checkpoints
            if not is_new and not is_last and found + 1 >= retention.checkpoints:
                continue  # one of many between the newest ones and the generation before
            lowest = min(lowest, _lowest_step(log, snapshot.lsn, behind))
            behind = snapshot.lsn
            if body["step"] >= lowest:
                continue  # a task of an earlier step outlived it: a recovery passes it over
            if is_last or is_new:
                restore(log, snapshot, lambda packed: packed)
                whole_prologue(log, snapshot.lsn, body["prologue"], generation)
        except BrokenCheckpointError:
            continue
        found += 1
        firsts.add(generation.first)
        if is_last:
            return min(firsts), body["step"], last
    return 0, 0, last


def _lowest_step(log: RunRecords, start: int, end: int) -> int:
    """The lowest step of which there is something between two LSNs; ValueError for damage."""

    def on_damage(found: Damage) -> None:
        if found.lost and not found.snapshot:
            raise ValueError(f"nothing goes from a damaged log: {found}")

    lowest = 1 << 63
    for record in log.records(start + 1, on_damage=on_damage):
        if record.lsn >= end:
            break
        lowest = min(lowest, _step_of(skim(record)) or lowest)
    return lowest


def _step_of(event: Event | None) -> int:
    """The step to which the code belongs that does this; 0 for what is of none."""
    return step_of(getattr(event, "scope", "")) or 0
