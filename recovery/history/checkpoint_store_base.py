"""The store to save checkpoints in, and to load them from."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from itertools import takewhile
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

from eventlog import Damage, EventLog, LogError
from recovery.errors import RecoveryError
from recovery.history.checkpoint import Checkpoint, RecordedOutcomes, check_fields, seconds_of
from recovery.history.inventory import Validity
from recovery.history.load import History, load
from recovery.history.retention import Kept, Pruning, Retention
from recovery.history.snapshot import (
    BrokenCheckpointError,
    Restored,
    checkpoints_in,
    is_left_over,
    restore,
)
from recovery.history.snapshot_writer import CheckpointMeta, SnapshotWriter
from recovery.journal.keys import step_of
from recovery.journal.messages import Messages, digests_of
from recovery.stores.file import FileStore
from recovery.stores.memory import MemoryStore
from recovery.stores.protocol import RunStore, check_run_id
from recovery.values.pack import unpack

if TYPE_CHECKING:
    from eventlog.encryption import Encryption
    from eventlog.write.log import Durability
    from recovery.approvers import Approvers, Verify


@dataclass(slots=True)
class _Saving:
    """A run to which checkpoints are saved, and what it was before the first of them."""

    log: EventLog
    pruning: Pruning
    messages: Messages
    history: History

    def close(self) -> None:
        self.pruning.close()
        self.log.close()


def _check_forgotten(history: History, checkpoint: Checkpoint) -> None:
    """A checkpoint stands in for all that is recorded before it. RecoveryError if that would make
    a later recovery forget calls: it would execute them again."""
    for call in history.replay.unclaimed():
        step = step_of(call.key.scope)
        if not call.done or step is None or step > checkpoint.step_number:
            raise RecoveryError(
                f"a checkpoint of run {checkpoint.run_id!r} at step {checkpoint.step_number} would "
                f"make it forget a call: {call.key} (LSN {call.lsn}, step {call.key.scope}, "
                f"{'with an outcome' if call.done else 'in doubt'}). Nothing was saved."
            )


def _common(a: list[bytes], b: list[bytes]) -> int:
    """How many are the same in both, from the beginning."""
    length = min(len(a), len(b))
    if a[:length] == b[:length]:
        return length
    return sum(1 for _ in takewhile(bool, map(bytes.__eq__, a, b)))


def _backend_of(
    given: object, durability: Durability | None, encryption: Encryption | None
) -> RunStore:
    """Where runs are kept: what was given, or what is made of a path, or of None."""
    if isinstance(given, str | os.PathLike):
        return FileStore(given, "power" if durability is None else durability, encryption)
    if given is None and durability is None:
        return MemoryStore(encryption)
    if given is None or callable(getattr(given, "claim", None)):
        if durability is None and encryption is None:
            return cast("RunStore", given)
        raise ValueError(
            "durability= and encryption= are for a store that is made from a path. Give them to "
            f"the RunStore itself, not with {given!r:.80}"
        )
    raise TypeError(
        "storage_backend is None (in memory), a path, or a RunStore such as FileStore; not "
        f"{given!r:.80}"
    )


class CheckpointStoreBase:
    """The CheckpointStore without its handles of runs, which are made of all that is above."""

    def __init__(
        self,
        storage_backend: str | os.PathLike[str] | RunStore | None = None,
        *,
        retention: Kept = "all",
        keep: int | None = None,
        approvers: Approvers | Mapping[str, str | bytes] | Verify | None = None,
        durability: Durability | None = None,
        encryption: Encryption | None = None,
    ) -> None:
        self.retention = Retention.of(retention, keep)
        self.approvers: Approvers | None = None
        if approvers is not None:
            from recovery.approvers import Approvers as Known  # noqa: PLC0415 - where it is used

            self.approvers = Known.of(approvers)
        self.backend = _backend_of(storage_backend, durability, encryption)
        self._saving: dict[str, _Saving] = {}

    def save(self, checkpoint: Checkpoint) -> str:
        """Save a checkpoint; its id. Durable when this returns. Only what changed is written.

        An empty ``checkpoint_id`` or ``checksum`` is made, and set. What is saved can be loaded:
        raises ValueError, with the name of the field, for one that could not be, and
        RefusedValueError, with the path to the value, for what cannot be carried. RecoveryError for
        a finished run or a checksum that does not fit; LogLockedError when another process has the
        run. Nothing is saved then.
        """
        check_fields(checkpoint)
        given, _ = digests_of(checkpoint.messages)
        name = checkpoint.checkpoint_id or f"{checkpoint.run_id}-{checkpoint.step_number:06d}"
        text = checkpoint.timestamp if isinstance(checkpoint.timestamp, str) else None
        saving = self._open(checkpoint.run_id)
        _check_forgotten(saving.history, checkpoint)
        kept = _common(saving.messages.message_digests, given)
        results = checkpoint.tool_results
        what = CheckpointMeta(
            checkpoint.run_id,
            checkpoint.step_number,
            seconds_of(checkpoint.timestamp),
            name,
            saving.history.recoveries,
            tuple(saving.history.prologue),
            None if isinstance(results, RecordedOutcomes) else results,
            checkpoint.checksum or checkpoint.compute_checksum(),
            saving.history.tallies.carry(),
            saving.history.size,
            text,
        )
        try:
            saving.messages[kept:] = checkpoint.messages[kept:]
            saving.pruning.write(what, checkpoint.state, saving.messages)
            saving.history.size = 0
            saving.log.commit()
            saving.pruning.prune(nullcontext())
        except BaseException:  # the next save looks at what is really in the log
            del self._saving[checkpoint.run_id]
            with suppress(LogError, OSError):
                saving.close()
            raise
        checkpoint.checkpoint_id, checkpoint.checksum = name, what.checksum
        return name

    def load_latest(self, run_id: str) -> Checkpoint | None:
        """The newest checkpoint of the run that verifies; None when there is none."""
        return next(self._load(run_id, []), None)

    def load_at_step(self, run_id: str, step: int) -> Checkpoint | None:
        """The newest checkpoint taken at the end of this step that verifies, or None."""
        found = self._load(run_id, [])
        return next((one for one in found if one.step_number == step), None)

    def load(self, run_id: str, checkpoint_id: str) -> Checkpoint | None:
        """The newest checkpoint of this id that verifies, or None."""
        found = self._load(run_id, [])
        return next((one for one in found if one.checkpoint_id == checkpoint_id), None)

    def validate(self, checkpoint: Checkpoint | str) -> bool:
        """Whether a checkpoint is what its checksum says; or, for a run id, whether all of the
        run's stored checkpoints are sound. ``check`` says why not. Nothing is changed in the store;
        a Checkpoint that fails gets ``is_valid = False``.
        """
        return bool(self.check(checkpoint))

    def check(self, checkpoint: Checkpoint | str) -> Validity:
        """As ``validate``, with the reason."""
        if isinstance(checkpoint, str):
            broken: list[str] = []
            if not self._exists(checkpoint):
                return Validity(False, f"there is no run {checkpoint!r}")
            for _ in self._load(checkpoint, broken):
                pass
            return Validity(not broken, "; ".join(broken))
        if checkpoint.is_valid is False:
            return Validity(False, "marked as not valid")
        try:
            check_fields(checkpoint)
            found = checkpoint.compute_checksum()
        except ValueError as exc:
            checkpoint.is_valid = False
            return Validity(False, str(exc))
        if found != checkpoint.checksum:
            checkpoint.is_valid = False
            return Validity(False, f"checksum is {found}, recorded {checkpoint.checksum}")
        return Validity(True)

    def pruning(self, run_id: str, log: EventLog, writer: SnapshotWriter) -> Pruning:
        """Not for users: what writes a run's checkpoints, and removes what need not be kept."""
        return Pruning(log, writer, self.retention, lambda: self.backend.read(run_id))

    def claim(self, run_id: str, takeover: bool = False) -> EventLog:
        """The run's log, for an agent; lets go of it first if ``save`` held it."""
        self.let_go(run_id)
        return self.backend.claim(run_id, takeover)

    def close(self) -> None:
        """Let go of the runs to which something was saved."""
        for run_id in list(self._saving):
            self.let_go(run_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def let_go(self, run_id: str) -> None:
        """Let go of a run to which something was saved. The next save takes it up again."""
        saving = self._saving.pop(run_id, None)
        if saving is not None:
            saving.close()

    def _exists(self, run_id: str) -> bool:
        reader = self.backend.read(check_run_id(run_id))
        if reader is not None:
            reader.close()
        return reader is not None

    def _open(self, run_id: str) -> _Saving:
        if run_id not in self._saving:
            log = self.backend.claim(run_id)
            try:
                history = load(log, run_id, self.approvers)
                if history.ended is not None:
                    raise RecoveryError(f"run {run_id!r} has ended: nothing can be saved to it")
                writer = SnapshotWriter(log, history.restored)
                messages = Messages()
                if history.restored is not None:
                    messages.restore(history.restored.messages, history.restored.refs)
                messages.on_change = writer.messages_changed
            except BaseException:
                log.close()
                raise
            pruning = self.pruning(run_id, log, writer)
            self._saving[run_id] = _Saving(log, pruning, messages, history)
        return self._saving[run_id]

    def _load(self, run_id: str, broken: list[str]) -> Iterator[Checkpoint]:
        saving = self._saving.get(check_run_id(run_id))
        reader = saving.log if saving is not None else self.backend.read(run_id)
        if reader is None:
            return
        with nullcontext(reader) if saving is not None else reader:

            def damaged(found: Damage) -> None:
                broken.append(str(found))

            for snapshot in checkpoints_in(reader, damaged):
                try:
                    yield self._checkpoint(restore(reader.fetch, snapshot))
                except BrokenCheckpointError as exc:
                    if not is_left_over(snapshot, reader.oldest_lsn):
                        broken.append(str(exc))

    def _checkpoint(self, found: Restored) -> Checkpoint:
        results = found.tool_results
        if results is None:
            results = RecordedOutcomes(self.backend, found.run_id, found.lsn)
        messages = [unpack(message) for message in found.messages]
        return Checkpoint(
            found.checkpoint_id,
            found.run_id,
            found.step,
            found.state,
            messages,
            results,
            found.timestamp if found.timestamp_text is None else found.timestamp_text,
            True,
            found.checksum,
        )
