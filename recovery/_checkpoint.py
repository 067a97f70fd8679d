"""Checkpoints for users: the record, and the store to save and load them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from itertools import takewhile
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from eventlog import Damage, EventLog, LogError
from eventlog._dataclass import dataclass
from recovery._checkpoint_fields import check_content, check_fields, seconds_of
from recovery._errors import RecoveryError
from recovery._events import CallFailed, CallIntended, CallResolved, CallReturned, decode
from recovery._history import History, RunRecords, load
from recovery._keys import step_of
from recovery._messages import Messages, digests_of
from recovery._pruning import Kept, Pruning, Retention
from recovery._snapshots import (
    BrokenCheckpointError,
    Checkpointed,
    Restored,
    SnapshotWriter,
    checkpoints_in,
    is_left_over,
    restore,
)
from recovery._state import checksum, pack_state
from recovery._stored import StoredCheckpoint, Validity, stored_checkpoints
from recovery._values import digest, pack, unpack
from recovery.stores.file import FileStore
from recovery.stores.protocol import RunStore, check_run_id

if TYPE_CHECKING:
    from recovery.approvers import Approvers, Verify


class RecordedOutcomes(Sequence[dict[str, Any]]):
    """The outcomes of a run's calls up to a checkpoint, read from the log when first touched.

    Each is a dict of step, tool, call_id, and value or error.
    """

    def __init__(self, store: RunStore, run_id: str, up_to: int) -> None:
        self._store, self._run_id, self._up_to = store, run_id, up_to
        self._read: list[dict[str, Any]] | None = None

    def _outcomes(self) -> list[dict[str, Any]]:
        if self._read is None:
            reader = self._store.read(self._run_id)
            if reader is None:
                raise RecoveryError(f"run {self._run_id!r} is gone")
            with reader:
                if reader.oldest_lsn > 1:
                    raise RecoveryError(
                        f"the tool results of run {self._run_id!r} before LSN {reader.oldest_lsn} "
                        "were removed by retention. What an agent needs of them later belongs into "
                        "its messages or its state."
                    )
                self._read = outcomes(reader, self._up_to)
        return self._read

    def __len__(self) -> int:
        return len(self._outcomes())

    def __getitem__(self, index: Any) -> Any:
        return self._outcomes()[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        try:
            return repr(self._outcomes())
        except RecoveryError as exc:
            return f"<{exc}>"


def outcomes(log: RunRecords, up_to: int) -> list[dict[str, Any]]:
    """The outcomes of calls that agents made up to LSN ``up_to``, in the order of the log."""
    made: dict[int, CallIntended] = {}
    found: dict[int, dict[str, Any]] = {}
    for record in log.records(1):
        if record.lsn > up_to:
            break
        event = decode(record)
        if isinstance(event, CallIntended):
            made[record.lsn] = event
            continue
        if not isinstance(event, CallReturned | CallFailed | CallResolved):
            continue
        call = made.get(event.call)
        step = step_of(call.scope) if call is not None else None
        if call is None or step is None:
            continue  # made inside another call, whose outcome covers it
        outcome = {"step": step, "tool": call.tool, "call_id": call.call_id}
        found.pop(event.call, None)  # the newest outcome counts: a failed call may be resolved
        match event:
            case CallFailed():
                found[event.call] = outcome | {"error": f"{event.type}: {event.message}"}
            case CallResolved(how="fail"):
                found[event.call] = outcome | {"error": f"resolved as failed: {event.value}"}
            case CallReturned() | CallResolved(how="outcome"):
                found[event.call] = outcome | {"value": event.value}
    return list(found.values())


@dataclass()
class Checkpoint:
    """What a run was at the end of a step.

    ``state``, ``messages`` and ``tool_results`` are plain values that msgpack can hold;
    ``timestamp`` is text (ISO 8601), which is kept as it is given, or seconds since 1970.
    ``checksum`` (32 hex digits, xxh3-128 of run, step, state, messages and given tool results) is
    computed when it is not given. ``is_valid`` turns False when validation fails.
    """

    checkpoint_id: str
    run_id: str
    step_number: int
    state: dict[str, Any]
    messages: list[Any]
    tool_results: Sequence[Any]
    timestamp: str | float
    is_valid: bool = True
    checksum: str = ""

    def __post_init__(self) -> None:
        if not self.checksum:
            self.checksum = self.compute_checksum()

    def compute_checksum(self) -> str:
        """The checksum of the content as it is now; ValueError if it could not be loaded again."""
        check_content(self)
        _, messages = digests_of(self.messages)
        results = b""
        if not isinstance(self.tool_results, RecordedOutcomes):
            results = digest(pack(self.tool_results, "tool_results"))
        state = {key: digest(packed) for key, packed in pack_state(self.state).items()}
        return checksum(self.run_id, self.step_number, state, (messages, results))


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


class CheckpointStore:
    """Saves checkpoints and loads those that verify. Under an agent, or on its own.

    ``storage_backend``: None keeps them in memory, a path on disk (``~`` is expanded), and any
    RunStore where that keeps them. A context manager: a store that has saved something holds the
    run's log until it is closed, or an agent takes the run up. For one thread.

    ``retention``: which checkpoints of a run that goes on are kept, those of agents included.
    "all"; "prune_old": the newest ``keep`` (3), and with them always two that share no record, so
    that no damage in one place is the end of a run; "latest_only". What is recorded before them is
    removed, by whole segments, when that frees more than it costs; what the log had of it can then
    neither be undone nor forked.

    ``approvers``: whose signature the decisions (approve, deny) about runs of this store need: a
    dict of names and public keys, a function, or an Approvers (see recovery.approvers). Others do
    not count.
    """

    def __init__(
        self, storage_backend: str | os.PathLike[str] | RunStore | None = None, *,
        retention: Kept = "all", keep: int | None = None,
        approvers: Approvers | Mapping[str, str | bytes] | Verify | None = None,
    ) -> None:  # fmt: skip
        self.retention = Retention.of(retention, keep)
        self.approvers: Approvers | None = None
        if approvers is not None:
            from recovery.approvers import Approvers as Known  # noqa: PLC0415 - where it is used

            self.approvers = Known.of(approvers)
        self.backend: RunStore
        if storage_backend is None:
            from recovery.stores.memory import MemoryStore  # noqa: PLC0415 - only where it is used

            self.backend = MemoryStore()
        elif isinstance(storage_backend, str | os.PathLike):
            self.backend = FileStore(storage_backend)
        elif callable(getattr(storage_backend, "claim", None)):
            self.backend = storage_backend
        else:
            raise TypeError(
                "storage_backend is None (in memory), a path, or a RunStore such as FileStore; not "
                f"{storage_backend!r:.80}"
            )
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
        what = Checkpointed(
            checkpoint.run_id, checkpoint.step_number, seconds_of(checkpoint.timestamp),
            name, saving.history.recoveries, tuple(saving.history.prologue),
            None if isinstance(results, RecordedOutcomes) else results,
            checkpoint.checksum or checkpoint.compute_checksum(),
            saving.history.tallies.carry(), saving.history.size, text,
        )  # fmt: skip
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

    def checkpoints(self, run_id: str) -> list[StoredCheckpoint]:
        """The checkpoints of a run, the newest first, the damaged ones too; empty without a run.

        Reads the log once and restores nothing, so it says whether what a checkpoint needs is there
        and undamaged; ``validate`` also computes the checksums of what is restored.
        """
        saving = self._saving.get(check_run_id(run_id))
        reader = saving.log if saving is not None else self.backend.read(run_id)
        if reader is None:
            return []
        with nullcontext(reader) if saving is not None else reader:
            return stored_checkpoints(reader)

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
                history = load(log, run_id)
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
                    yield self._checkpoint(restore(reader, snapshot))
                except BrokenCheckpointError as exc:
                    if not is_left_over(snapshot, reader.oldest_lsn):
                        broken.append(str(exc))

    def _checkpoint(self, found: Restored) -> Checkpoint:
        results = found.tool_results
        if results is None:
            results = RecordedOutcomes(self.backend, found.run_id, found.lsn)
        messages = [unpack(message) for message in found.messages]
        return Checkpoint(
            found.checkpoint_id, found.run_id, found.step, found.state, messages, results,
            found.timestamp if found.timestamp_text is None else found.timestamp_text, True,
            found.checksum,
        )  # fmt: skip
