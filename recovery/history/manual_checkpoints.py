"""Saves the checkpoints of one run that has no log of calls to replace a lost checkpoint.

They are written in two lanes. Each lane has every other checkpoint, as the changes since its own
previous one, and refers to no record of the other lane. So if one record is damaged, the newest
checkpoint or the one before it is intact. Now and then a lane starts again from a full copy, in
turns, so a damaged lane becomes intact again, and no checkpoint depends on very old records. A copy
is due when as much was saved since the last copy as a copy takes. So all copies together take no
more than the changes, and bytes per checkpoint stay constant as the log grows.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from eventlog import WritableLog
from recovery.errors import RecoveryError
from recovery.history.checkpoint import Checkpoint, RecordedOutcomes, seconds_of
from recovery.history.inventory import needs
from recovery.history.load import History, load
from recovery.history.restore_checkpoint import (
    BrokenCheckpointError,
    Restored,
    checkpoints_in,
    restore,
)
from recovery.history.retention import Pruning, Retention
from recovery.history.write_checkpoint import CheckpointMeta, CheckpointWriter
from recovery.journal.call_key import step_of
from recovery.journal.messages import Messages, digests_of

if TYPE_CHECKING:
    from recovery.approvers import Approvers

# A copy is due when so many times its size was saved since the last one. With 1 the copies take as
# much again as all else, and with 2 a memory that only grows is never copied.
WORTH = 1.5

PruningOf = Callable[[str, WritableLog, CheckpointWriter], Pruning]


@dataclass(slots=True, eq=False)
class _Lane:
    """Checkpoints that each hold the changes since the one before. ``is_new``: none yet."""

    writer: CheckpointWriter
    pruning: Pruning
    messages: Messages
    is_new: bool


class ManualCheckpoints:
    """Saves checkpoints to a run, whose log it owns. ``step``: of the newest one."""

    def __init__(
        self,
        log: WritableLog,
        run_id: str,
        approvers: Approvers | None,
        retention: Retention,
        pruning: PruningOf,
    ) -> None:
        self.log, self._run_id, self._pruning = log, run_id, pruning
        self._history = load(log, run_id, approvers)
        if self._history.ended is not None:
            raise RecoveryError(f"run {run_id!r} has ended: nothing can be saved to it")
        self.step = self._history.step
        newest = self._history.restored
        if newest is not None and newest.holds_sealed:
            raise RecoveryError(
                f"run {run_id!r} holds values of subjects: only its agent takes checkpoints of it. "
                "Nothing was saved."
            )
        # The newest intact one, then the one before, if it shares no record with the newest.
        found = [newest, _other(log, newest)]
        self._lanes = [self._lane(one) for one in reversed(found[: retention.lanes])]

    def _lane(self, restored: Restored | None) -> _Lane:
        writer, messages = CheckpointWriter(self.log, restored), Messages()
        if restored is not None:
            messages.restore(restored.messages, restored.refs)
        elif self._history.restored is not None:
            writer.generation = self._history.restored.generation  # where the prologue is
        writer.measures = True
        messages.on_change = writer.messages_changed
        pruning = self._pruning(self._run_id, self.log, writer)
        return _Lane(writer, pruning, messages, restored is None)

    def in_order(self, state: dict[str, Any]) -> dict[str, Any]:
        """The state with its former keys first: in another order, keys would have to be written
        again."""
        known = self._lanes[0].writer.keys()
        return {key: state[key] for key in known if key in state} | state

    def save(self, checkpoint: Checkpoint, name: str) -> str:
        """Append a checkpoint and make it durable; returns its checksum."""
        given, _ = digests_of(checkpoint.messages)
        history, lane = self._history, self._lanes.pop(0)
        self._lanes.append(lane)  # for it is the other's turn then
        _check_forgotten(history, checkpoint)
        results, time = checkpoint.tool_results, checkpoint.timestamp
        what = CheckpointMeta(
            checkpoint.run_id,
            checkpoint.step_number,
            seconds_of(time),
            name,
            history.recoveries,
            tuple(history.prologue),
            None if isinstance(results, RecordedOutcomes) else results,
            checkpoint.checksum or checkpoint.compute_checksum(),
            history.tallies.to_checkpoint(),
            history.size,
            time if isinstance(time, str) else None,
        )
        kept = _common(lane.messages.message_digests, given)
        lane.messages[kept:] = checkpoint.messages[kept:]
        lane.pruning.write(what, checkpoint.state, lane.messages, self._is_due(lane))
        self.log.commit()
        lane.pruning.prune(nullcontext())
        lane.is_new, history.size, self.step = False, 0, checkpoint.step_number
        return what.checksum

    def _is_due(self, lane: _Lane) -> bool:
        """Whether the lane is due to start again, from a full copy."""
        if lane.is_new:
            return self.log.last_lsn > 0
        last = max((one.writer.generation for one in self._lanes), key=lambda one: one.first)
        if last.first > lane.writer.generation.first or len(self._lanes) == 1:
            return len(self._lanes) * last.size >= WORTH * lane.writer.size(lane.messages)
        return False  # it is the other one's turn

    def close(self) -> None:
        """Close the log."""
        for lane in self._lanes:
            lane.pruning.close()
        self.log.close()


def _other(log: WritableLog, newest: Restored | None) -> Restored | None:
    """The intact checkpoint before the newest, if they share no record."""
    found = checkpoints_in(log) if newest is not None else ()
    whole: set[int] = set()
    for snapshot in found:
        assert newest is not None
        try:
            _, needed = needs(log, snapshot)
            if snapshot.lsn == newest.lsn:
                whole = needed
            elif snapshot.lsn < newest.lsn:
                apart = whole.isdisjoint({snapshot.lsn, *needed})
                return restore(log.fetch, snapshot) if apart else None
        except BrokenCheckpointError:
            return None
    return None


def _check_forgotten(history: History, checkpoint: Checkpoint) -> None:
    """RecoveryError if a checkpoint would make a later recovery forget calls: it replaces all
    earlier records, and the recovery would execute those calls again."""
    for call in history.replay.unmatched():
        step = step_of(call.key.scope)
        if not call.has_outcome or step is None or step > checkpoint.step_number:
            raise RecoveryError(
                f"a checkpoint of run {checkpoint.run_id!r} at step {checkpoint.step_number} would "
                f"make it forget a call: {call.key} (LSN {call.lsn}, step {call.key.scope}, "
                f"{'with an outcome' if call.has_outcome else 'in doubt'}). Nothing was saved."
            )


def _common(a: list[bytes], b: list[bytes]) -> int:
    """How many are the same in both, from the beginning."""
    length = min(len(a), len(b))
    if a[:length] == b[:length]:
        return length
    return sum(1 for _ in takewhile(bool, map(bytes.__eq__, a, b)))
