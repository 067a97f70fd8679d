"""Decides which checkpoints of a run are kept, and removes the records before them.

A generation begins when it would free as much as it takes. So all generations together take no more
space than all other records. A thread truncates the log while the agent runs, after the kept
checkpoints are durable and were read back as a recovery reads them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from eventlog import Damage, LogError, LogRecords, RefusedValueError, Snapshot, WritableLog
from eventlog.after_fork import in_forked_child
from eventlog.light_dataclass import light_dataclass
from recovery.errors import RecoveryError
from recovery.history.choose_checkpoint import Start, lowest_step, read_shallow, starts
from recovery.history.restore_checkpoint import (
    BrokenCheckpointError,
    checked_body,
    restore,
    whole_prologue,
)
from recovery.history.write_checkpoint import CheckpointMeta, CheckpointWriter
from recovery.journal.encoding import decode_shallow
from recovery.journal.events import Event
from recovery.journal.messages import Messages
from recovery.option_checks import check_count, check_one_of

if TYPE_CHECKING:
    from eventlog import ReadableLog, Record

_logger = logging.getLogger("recovery")

Kept = Literal["all", "prune_old", "latest_only"]
KEEP = 3  # of "prune_old"
GAIN = 2  # a generation must free so many times the size of its checkpoint
NO_LSN = 1 << 63  # above all of them
PER_RECORD = 72  # bytes that a record takes besides its body

# These threads truncate logs; their name shows that they are not the agent's.
_CUTTERS = 4, "recovery-commit-retention"
_cutters = ThreadPoolExecutor(*_CUTTERS)
in_forked_child(_cutters, lambda pool: ThreadPoolExecutor.__init__(pool, *_CUTTERS))


@light_dataclass
class Retention:
    """The newest ``checkpoints`` are kept (0: all), and those of as many ``generations``."""

    checkpoints: int = 0
    generations: int = 0

    @classmethod
    def of(cls, kept: Kept, keep: int | None) -> Retention:
        """From the options of a store; ValueError for senseless ones."""
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

    @property
    def lanes(self) -> int:
        """In how many lanes checkpoints are saved by hand (see Saving): "latest_only" has one."""
        return 1 if self.generations == 1 else 2


class Pruning:
    """Writes the checkpoints of a run, and removes the records before those that are kept.

    ``read`` opens the run's log for reading. The owner of the run guards it.

    If a task outlives its step, a recovery restarts it from a checkpoint before that step. If no
    such checkpoint is kept, the task's actions are refused. This concerns threads of plain agents,
    which the runtime does not know.
    """

    def __init__(
        self,
        log: WritableLog,
        writer: CheckpointWriter,
        retention: Retention,
        read: Callable[[], ReadableLog | None],
    ) -> None:
        self._log, self._writer, self._retention, self._read = log, writer, retention, read
        writer.measures |= retention.checkpoints > 0
        self._prologue: list[Record] = []
        self._prologue_size = 0
        # Whether records may be removable: of an earlier process, or of a generation.
        self._due = True
        self._work: Future[None] | None = None
        self._closed = False
        self.step = 0  # of the oldest checkpoint that is kept, if others were removed; else 0

    @property
    def first(self) -> int:
        """The LSN before which new checkpoints need no record."""
        return self._writer.generation.first

    def write(
        self, what: CheckpointMeta, state: Mapping[str, Any], messages: Messages, due: bool = False
    ) -> int:
        """Append a checkpoint; returns its LSN. See CheckpointWriter.write. ``due``: a full one,
        whatever retention says."""
        prunes = self._retention.checkpoints > 0
        if self._carries(what) if due else (prunes and self._pays(what, messages)):
            from recovery.history.write_full_checkpoint import write_full_checkpoint  # noqa: PLC0415 - rare

            try:
                lsn = write_full_checkpoint(
                    self._log, self._writer, what, state, messages, self._prologue
                )
                self._due = True
                return lsn
            except RefusedValueError:
                raise
            except ValueError as exc:
                _logger.warning(
                    "run %s: retention: no checkpoint can stand alone, so nothing is removed: %s",
                    what.run_id,
                    exc,
                )
            finally:
                self._prologue = []
        return self._writer.write(what, state, messages)

    def _pays(self, what: CheckpointMeta, messages: Messages) -> bool:
        """Whether a full checkpoint would free as much as it takes."""
        generation = self._writer.generation
        records = self._log.last_lsn - generation.first
        recorded = (
            generation.size + what.bytes_since + PER_RECORD * records - self._log.segment_size
        )
        size = self._writer.size(messages)
        if recorded < GAIN * (size + self._prologue_size) or not self._carries(what):
            return False
        return recorded >= GAIN * (size + self._prologue_size)

    def _carries(self, what: CheckpointMeta) -> bool:
        """Whether the records of the code before the first step are there to be copied."""
        try:
            found = whole_prologue(
                self._log.fetch, self._log.last_lsn + 1, what.prologue, self._writer.generation
            )
        except BrokenCheckpointError:
            return False
        self._prologue_size = sum(len(record.packed) for record in found)
        self._prologue = found
        return True

    def check(self, event: Event) -> None:
        """RecoveryError if no recovery could restart the task that records this event."""
        if self.step and (step := lowest_step([event])) <= self.step:
            raise RecoveryError(
                f"{self._log.path}: a task of step {step} is at work, which a recovery "
                f"could not bring back: retention keeps no checkpoint before step {self.step}. "
                "What it did was refused. Let tasks and threads end in the step that starts them, "
                "or keep more checkpoints."
            )

    def prune(self, mutex: AbstractContextManager[Any]) -> None:
        """Let another thread remove records that are not needed, soon, if there may be any.

        To be called after a checkpoint. ``mutex`` guards the recording of events.
        """
        if not self._retention.checkpoints or not self._due:
            return
        if self.first <= self._log.oldest_lsn:  # the present generation needs all that there is
            self._due = False
            return
        if self._work is None or self._work.done():
            # Where no more threads can be started, it is tried again after the next checkpoint.
            with suppress(RuntimeError):
                self._work = _cutters.submit(partial(self._cut, mutex))
                self._due = False

    def close(self) -> None:
        """Stop removing records; waits for a removal that is in progress."""
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
                if lowest_step(event for (event,) in _between(reader, last, end + 1)) <= step:
                    self.step = before
                    return
            self._log.truncate_before(first)
        except (LogError, OSError, RecoveryError, ValueError) as exc:
            _logger.warning("%s: retention: %s. What was not removed stays.", self._log.path, exc)


def first_needed(log: LogRecords, retention: Retention) -> tuple[int, int, int]:
    """The LSN of the first record that the checkpoints to be kept need, 0 if there are too few; the
    step of the oldest of them; the last LSN that was looked at.

    Of each generation the newest is restored as a recovery would restore it, and the oldest of all.
    """
    firsts, found, last, end = set[int](), 0, 0, NO_LSN

    def read(snapshot: Snapshot) -> Start | None:
        nonlocal last
        last = last or snapshot.lsn
        is_new = checked_body(snapshot)["generation"].first not in firsts
        if (
            not is_new
            and len(firsts) < retention.generations
            and found + 1 >= retention.checkpoints
        ):
            return None  # one of many between the newest ones and the generation before
        return read_shallow(log, snapshot)

    def behind(start: Start) -> Iterator[tuple[Event]]:
        nonlocal end
        upto, end = end, start.lsn
        return _between(log, start.lsn, upto)

    for start, _ in starts(log, read, behind):
        if start.snapshot is None:
            break
        first = start.generation.first
        is_enough = len(firsts | {first}) >= retention.generations
        is_last = is_enough and found + 1 >= retention.checkpoints
        if is_last or first not in firsts:
            try:
                restore(log.fetch, start.snapshot, lambda packed: packed)
            except BrokenCheckpointError:
                continue
        found += 1
        firsts.add(first)
        if is_last:
            return min(firsts), start.step, last
    return 0, 0, last


def _between(log: LogRecords, start: int, end: int) -> Iterator[tuple[Event]]:
    """The events between two LSNs; ValueError for damage."""

    def on_damage(found: Damage) -> None:
        if found.lost and not found.snapshot:
            raise ValueError(f"nothing goes from a damaged log: {found}")

    for record in log.records(start + 1, on_damage=on_damage):
        if record.lsn >= end:
            break
        event = decode_shallow(record)
        if event is not None:
            yield (event,)
