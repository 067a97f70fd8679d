"""Saves checkpoints of runs in a store, and loads those that verify."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

from eventlog import Damage, LogError, WritableLog
from recovery.history.checkpoint import Checkpoint, RecordedOutcomes, check_fields
from recovery.history.inventory import Validity
from recovery.history.manual_checkpoints import ManualCheckpoints
from recovery.history.restore_checkpoint import (
    BrokenCheckpointError,
    Restored,
    checkpoints_in,
    is_left_over,
    restore,
)
from recovery.history.retention import Kept, Pruning, Retention
from recovery.history.store_url import store_at
from recovery.history.write_checkpoint import CheckpointWriter
from recovery.stores.file import FileStore
from recovery.stores.memory import MemoryStore
from recovery.stores.protocol import RunStore, check_run_id
from recovery.values.pack import unpack

if TYPE_CHECKING:
    from eventlog.encryption import Encryption
    from eventlog.write.log import Durability
    from recovery.approvers import Approvers, Verify


# How many logs stay open between saves; the least recently used one is closed. Each takes four
# descriptors, and opening one again takes as long as some saves.
OPEN_MAX = 16


def _backend_of(
    given: object, durability: Durability | None, encryption: Encryption | None
) -> RunStore:
    """The RunStore: the given one, or one for a path, or one in memory for None."""
    if isinstance(given, str) and "://" in given:
        return store_at(given, durability, encryption)
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
    """The CheckpointStore without its handles of runs, which import the rooms above this one."""

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
        self._saving: dict[str, ManualCheckpoints] = {}  # the least recently used first

    def save(self, checkpoint: Checkpoint) -> str:
        """Save ``checkpoint``; returns its id. Durable when this returns. Only changes are written.

        Sets an empty ``checkpoint_id`` or ``checksum``. Raises ValueError, with the name of the
        field, for a checkpoint that could not be loaded again. Raises RefusedValueError, with the
        path to it, for a value that cannot be carried. Raises RecoveryError for a finished run or a
        checksum that does not fit; LogLockedError when another process owns the run. Nothing is
        saved then.
        """
        check_fields(checkpoint)
        name = checkpoint.checkpoint_id or f"{checkpoint.run_id}-{checkpoint.step_number:06d}"
        try:
            found = self.saving(checkpoint.run_id).save(checkpoint, name)
        except BaseException:  # the next save reads again what is really in the log
            with suppress(LogError, OSError):
                self.close_run(checkpoint.run_id)
            raise
        checkpoint.checkpoint_id, checkpoint.checksum = name, found
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
        """Whether ``checkpoint`` fits its checksum; or, for a run id, whether all of the run's
        stored checkpoints are sound. ``check`` gives the reason. Nothing is changed in the store; a
        Checkpoint that fails gets ``is_valid = False``.
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
        if found != (checkpoint.as_loaded or checkpoint.checksum):
            checkpoint.is_valid = False
            return Validity(False, f"checksum is {found}, recorded {checkpoint.checksum}")
        return Validity(True)

    def saving(self, run_id: str) -> ManualCheckpoints:
        """Not for users: saves checkpoints to a run. It holds the run's log until the store closes
        it, or ``close_run``."""
        saving = self._saving.pop(check_run_id(run_id), None)
        if saving is None:
            if len(self._saving) >= OPEN_MAX:
                with suppress(LogError, OSError):  # what was saved to it is durable
                    self.close_run(next(iter(self._saving)))
            log = self.backend.claim(run_id)
            try:
                saving = ManualCheckpoints(
                    log, run_id, self.approvers, self.retention, self.pruning
                )
            except BaseException:
                log.close()
                raise
        self._saving[run_id] = saving
        return saving

    def pruning(self, run_id: str, log: WritableLog, writer: CheckpointWriter) -> Pruning:
        """Not for users: writes a run's checkpoints, and removes those that need not be kept."""
        return Pruning(log, writer, self.retention, lambda: self.backend.read(run_id))

    def claim(self, run_id: str, takeover: bool = False) -> WritableLog:
        """Not for users: claims the run's log for an agent; releases it if ``save`` held it."""
        self.close_run(run_id)
        return self.backend.claim(run_id, takeover)

    def close(self) -> None:
        """Close the logs of runs to which checkpoints were saved."""
        for run_id in list(self._saving):
            self.close_run(run_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def close_run(self, run_id: str) -> None:
        """Close the log of a run to which a checkpoint was saved. The next save opens it again."""
        saving = self._saving.pop(run_id, None)
        if saving is not None:
            saving.close()

    def _exists(self, run_id: str) -> bool:
        reader = self.backend.read(check_run_id(run_id))
        if reader is not None:
            reader.close()
        return reader is not None

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
        made = Checkpoint(
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
        if found.holds_sealed:  # the checksum is of the sealed values: it was verified just now
            made.as_loaded = made.compute_checksum()
        return made
