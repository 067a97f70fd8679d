"""CheckpointManager: where runs of graphs are kept, how often they are checkpointed, and which of
them have not ended. A thin thing over a CheckpointStore."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self, get_args

from eventlog import RefusedValueError
from recovery.agent.checkpoint_store import CheckpointStore
from recovery.errors import NoSoundCheckpointError, RecoveryError
from recovery.history.checkpoint import Checkpoint
from recovery.history.first_record import started_of
from recovery.history.inventory import StoredCheckpoint
from recovery.history.retention import Kept, Retention
from recovery.inspect.status import RunStatus, runs, status, status_of
from recovery.option_checks import check_count, check_one_of, names_its_options
from recovery.stores.file import default_directory
from recovery.stores.protocol import RunStore
from recovery.values.model_data import as_data

Frequency = Literal["every_node", "every_n_nodes"]
BESIDE = "eventlog"  # the directory of our runs, beside the files of a storage of somebody else's
_MEMORY = "memory "  # in front of what is the memory's, in the state of a checkpoint
_METADATA, _PART, _DEPTH = "metadata", "\x1f", 3  # a plan's context is that deep in the metadata
_NOT_LEFT = ("finished", "failed", "cancelled", "undone", "running", "empty", "saved")


class HasBasePath(Protocol):
    """A storage of somebody else's, which keeps its files in a directory."""

    @property
    def base_path(self) -> str | os.PathLike[str]: ...


@names_its_options("CheckpointConfig")
@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """How a CheckpointManager keeps runs.

    ``enabled``: whether at all; else executors store nothing. ``every_n_nodes``: how many nodes
    are visited between checkpoints; those that run at the same time count as one. ``on_node_start``
    and ``on_node_complete``: where one node ends the next one begins, so a checkpoint is taken
    there if either is on; with neither, none is taken, and a recovery replays the run from its
    beginning. What a finished node did is in the log in any case. ``auto_recovery``: whether
    ``execute`` goes on with a run that has not ended; else only ``resume`` does. ``retention``:
    "all", "prune_old" (the newest ``max_checkpoints_per_run``, 3) or "latest_only", see
    CheckpointStore; None: "prune_old" if there is a maximum, else "all". A graph's run is made of
    all that its nodes have written, so what goes is what they did on the way to it.

    Aden Hive's names do as well: ``retention_strategy`` for ``retention``; ``save_frequency``,
    "every_node" or "every_n_nodes", and then ``n_nodes`` for ``every_n_nodes``.
    """

    enabled: bool = True
    every_n_nodes: int = 1
    on_node_start: bool = False
    on_node_complete: bool = True
    auto_recovery: bool = True
    retention: Kept | None = None
    max_checkpoints_per_run: int | None = None
    retention_strategy: Kept | None = None
    save_frequency: Frequency | None = None
    n_nodes: int = 1

    def __post_init__(self) -> None:
        check_count("every_n_nodes", self.every_n_nodes)
        check_count("n_nodes", self.n_nodes)
        check_count("max_checkpoints_per_run", self.max_checkpoints_per_run, none=True)
        if self.save_frequency is not None:
            check_one_of("save_frequency", self.save_frequency, get_args(Frequency))
        for ours, theirs, taken in (
            ("every_n_nodes", "save_frequency", self.every_n_nodes == 1),
            ("retention", "retention_strategy", self.retention is None),
        ):
            if getattr(self, theirs) is not None and not taken:
                raise ValueError(f"{ours}= and {theirs}= say the same: give one of them")
        Retention.of(self.kept, self.keep)

    @property
    def every(self) -> int:
        """The steps of a run between checkpoints."""
        if not (self.on_node_start or self.on_node_complete):
            return sys.maxsize
        if self.save_frequency is None:
            return self.every_n_nodes
        return self.n_nodes if self.save_frequency == "every_n_nodes" else 1

    @property
    def kept(self) -> Kept:
        """Which checkpoints are kept."""
        default: Kept = "all" if self.max_checkpoints_per_run is None else "prune_old"
        return self.retention or self.retention_strategy or default

    @property
    def keep(self) -> int | None:
        """How many "prune_old" keeps; the others do not count them."""
        return self.max_checkpoints_per_run if self.kept == "prune_old" else None


@dataclass(slots=True)
class RestoredCheckpoint:
    """What a run was at a checkpoint: see ``CheckpointManager.restore``.

    ``memory``: values by key. ``path``: the nodes visited up to there, in order. ``next_nodes``:
    those that are visited next. ``step``, ``timestamp`` (as it was given): those of the
    checkpoint. ``metadata``: what was saved with it by ``save_checkpoint``.
    """

    run_id: str
    checkpoint_id: str
    step: int
    timestamp: float | str
    memory: dict[str, Any]
    path: list[str]
    next_nodes: list[str]
    visit_counts: dict[str, int] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)


class CheckpointManager:
    """Keeps runs of graphs: for executors, and for whoever asks what became of them.

    ``storage``: a path, a CheckpointStore, a RunStore, or None for the default directory
    (``$EVENTLOG_HOME`` or ``~/.eventlog``). What has a ``base_path``, as Aden Hive's FileStorage,
    gets the runs into a directory ``eventlog`` in there. TypeError for anything else. A context
    manager, which lets go of the runs to which ``save_checkpoint`` has saved. For one thread.
    """

    def __init__(
        self,
        storage: str | os.PathLike[str] | CheckpointStore | RunStore | HasBasePath | None = None,
        config: CheckpointConfig | None = None,
    ) -> None:
        self.storage, self.config = storage, config or CheckpointConfig()
        if isinstance(storage, CheckpointStore):
            if self.config.kept != "all":
                raise ValueError("give retention to the CheckpointStore itself, not to its manager")
            self.store = storage
        else:
            where = _where(storage)
            self.store = CheckpointStore(where, retention=self.config.kept, keep=self.config.keep)

    # -- what there is

    def unfinished(self) -> list[RunStatus]:
        """The runs that no process has and that have not ended: those that crashed, wait for
        somebody, failed at a node, or are damaged. See ``RunStatus.state`` and ``why``."""
        return [one for one in runs(self.store) if one.state not in _NOT_LEFT]

    def is_unfinished(self, run_id: str) -> bool:
        """Whether a run is one of those."""
        reader = self.store.backend.read(run_id)
        if reader is None:
            return False
        with reader:
            return status_of(reader, run_id).state not in _NOT_LEFT

    def list_checkpoints(self, run_id: str) -> list[StoredCheckpoint]:
        """The checkpoints of a run, the newest first, the damaged ones too."""
        return self.store.run(run_id).checkpoints()

    def get_checkpoint(self, run_id: str, checkpoint_id: str | None = None) -> Checkpoint | None:
        """A checkpoint that verifies, the newest one unless it is named; None if there is none.

        NoSoundCheckpointError when there are some, and none of them (or not the one that is named)
        verifies.
        """
        if checkpoint_id is None:
            found = self.store.load_latest(run_id)
        else:
            found = self.store.load(run_id, checkpoint_id)
        if found is None:
            damaged = [
                str(one)
                for one in self.list_checkpoints(run_id)
                if not one.validity and checkpoint_id in (None, one.checkpoint_id or checkpoint_id)
            ]
            if damaged:
                raise NoSoundCheckpointError(run_id, damaged)
        return found

    def restore(self, run_id: str, checkpoint_id: str | None = None) -> RestoredCheckpoint | None:
        """What the run was at a checkpoint that verifies, the newest one unless it is named.

        Reads, and changes nothing: a run is resumed by an executor, from all that it has recorded.
        To go on from an earlier checkpoint, fork the run there (``RunHandle.fork(..., at_step=)``),
        and resume the fork. None if there is no such checkpoint; raises as ``get_checkpoint``.
        """
        found = self.get_checkpoint(run_id, checkpoint_id)
        if found is None:
            return None
        if "node" in found.state:
            return _restored(found)
        from recovery.graph.state import GraphState  # noqa: PLC0415 - which imports this module

        task = status(self.store, run_id).task
        if not isinstance(task, dict) or "input" not in task or not found.messages:
            raise RecoveryError(f"run {run_id!r} is not one of a graph")
        standing = GraphState.from_messages("", task["input"], found.messages)
        return RestoredCheckpoint(
            run_id,
            found.checkpoint_id,
            found.step_number,
            found.timestamp,
            standing.memory,
            standing.path,
            list(standing.pending),
            standing.visits,
        )

    def delete_checkpoints(self, run_id: str) -> int:
        """Remove a run to which checkpoints were saved by ``save_checkpoint``; how many it had.

        RecoveryError for a run of an agent or of a graph, of which they are a part:
        ``store.run(run_id).remove()`` removes it as a whole. LogLockedError when another process
        has the run.
        """
        count = len(self.list_checkpoints(run_id))
        reader = self.store.backend.read(run_id)
        if reader is None:
            return 0
        with reader:
            if started_of(reader) is not None:
                raise RecoveryError(
                    f"the checkpoints of run {run_id!r} are a part of its log: without them it "
                    f"could not be resumed. Nothing was removed. store.run({run_id!r}).remove() "
                    "removes the run."
                )
        self.store.let_go(run_id)
        self.store.run(run_id).remove(force=True)
        return count

    # -- for executors that take their checkpoints themselves

    def should_checkpoint(self, step_number: int) -> bool:
        """Whether a checkpoint is to be saved behind this step, counted from 1."""
        return self.config.enabled and step_number % self.config.every == 0

    def save_checkpoint(
        self,
        run_id: str,
        node_id: str,
        memory: Any,
        executor_type: Any = "graph",
        metadata: Mapping[str, Any] | None = None,
    ) -> str | None:
        """Save what a run is behind a node; the checkpoint's id, None if that is not enabled.

        ``memory``: a mapping, or an object with ``read_all()``. ``metadata``: ``execution_path``,
        ``next_node_id`` and whatever else. Durable when this returns; of the memory only what has
        changed is written. What keeps it from being saved is raised, never passed over:
        RefusedValueError, with the path to it, for a value that cannot be carried. Models,
        dataclasses and named tuples of types that are not registered are restored as ModelData.
        """
        if not self.config.enabled:
            return None
        values = memory.read_all() if hasattr(memory, "read_all") else memory
        kept = dict(metadata or {})
        path = list(kept.pop("execution_path", ()))
        kind = executor_type.value if isinstance(executor_type, Enum) else executor_type
        state = {f"{_MEMORY}{key}": value for key, value in values.items()}
        state |= {"node": node_id, "executor_type": str(kind), **dict(_spread(_METADATA, kept))}
        saving, now = self.store.saving(run_id), datetime.now(UTC)
        state = saving.in_order(state)
        # Of a log, no LSN is given twice, whatever is damaged; of another one the time differs.
        name = f"ckpt_{run_id}_{node_id}_{now:%Y%m%d_%H%M%S_%f}_{saving.log.last_lsn + 1}"
        rest: Any = path, [], now.timestamp()
        try:
            try:
                made = Checkpoint(name, run_id, saving.step + 1, state, *rest)
            except RefusedValueError:
                made = Checkpoint(name, run_id, saving.step + 1, as_data(state), *rest)
            return self.store.save(made)
        except RefusedValueError as exc:
            where = exc.value_path.removeprefix("state.").replace(_PART, ".")
            raise RefusedValueError(where.replace(_MEMORY, "memory.", 1), exc.reason) from None

    def restore_from_checkpoint(
        self, run_id: str, checkpoint_id: str | None = None
    ) -> tuple[dict[str, Any], str] | tuple[None, None]:
        """The memory at a checkpoint that verifies, and the node to go on with: the one that was
        said to be next, else the one behind which it was saved. (None, None) if there is none, or
        ``auto_recovery`` is off; raises as ``get_checkpoint``."""
        if not self.config.enabled or not self.config.auto_recovery:
            return None, None
        found = self.restore(run_id, checkpoint_id)
        if found is None or not (found.next_nodes or found.path):
            return None, None
        return found.memory, (found.next_nodes or found.path)[0 if found.next_nodes else -1]

    def close(self) -> None:
        """Let go of the runs to which something was saved."""
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


def _where(storage: Any) -> Any:
    """What a CheckpointStore is made of; TypeError for what it is not."""
    if storage is None:
        return default_directory()
    if isinstance(storage, str | os.PathLike) or callable(getattr(storage, "claim", None)):
        return storage
    base = getattr(storage, "base_path", None)
    if isinstance(base, str | os.PathLike):
        return Path(base) / BESIDE
    raise TypeError(
        "storage is a path, a CheckpointStore, a RunStore, what has a base_path (such as Aden "
        f"Hive's FileStorage), or None; not {storage!r:.80}"
    )


def _spread(name: str, value: Any, depth: int = _DEPTH) -> Iterator[tuple[str, Any]]:
    """A value, or the parts of a dict by their names: what has not changed is not saved again."""
    if depth and value and type(value) is dict and all(map(_is_name, value)):
        for key, one in value.items():
            yield from _spread(f"{name}{_PART}{key}", one, depth - 1)
    else:
        yield name, value


def _is_name(key: Any) -> bool:
    return type(key) is str and _PART not in key


def _gathered(state: Mapping[str, Any], name: str) -> Any:
    """What ``_spread`` has made parts of."""
    whole: dict[str, Any] = {}
    for key, value in state.items():
        if key == name:
            return value
        inside, (first, *names) = whole, key.split(_PART)
        if first == name:
            for one in names[:-1]:
                inside = inside.setdefault(one, {})
            inside[names[-1]] = value
    return whole


def _restored(found: Checkpoint) -> RestoredCheckpoint:
    """What ``save_checkpoint`` has saved."""
    state = found.state
    metadata = _gathered(state, _METADATA)
    memory = {
        key.removeprefix(_MEMORY): value for key, value in state.items() if key.startswith(_MEMORY)
    }
    return RestoredCheckpoint(
        found.run_id,
        found.checkpoint_id,
        found.step_number,
        found.timestamp,
        memory,
        list(found.messages),
        [metadata.get("next_node_id") or state["node"]],
        metadata={"executor_type": state["executor_type"], **metadata},
    )
