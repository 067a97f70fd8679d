"""Provides CheckpointManager: keeps runs of graphs, takes their checkpoints, lists unfinished ones.

It is a thin adapter of a CheckpointStore.
"""

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
BESIDE = "eventlog"  # the directory of our runs, beside the files of another library's storage
_MEMORY = "memory "  # prefix of the memory's keys, in the state of a checkpoint
_METADATA, _PART, _DEPTH = "metadata", "\x1f", 3  # a plan's context is that deep in the metadata
_NOT_LEFT = ("submitted", "finished", "failed", "cancelled", "undone", "running", "empty", "saved")


class HasBasePath(Protocol):
    """Another library's storage, which keeps its files in a directory."""

    @property
    def base_path(self) -> str | os.PathLike[str]: ...


@names_its_options("CheckpointConfig")
@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """How a CheckpointManager keeps runs.

    ``enabled``: whether executors store anything. ``every_n_nodes``: how many nodes are visited
    between checkpoints; nodes that run at the same time count as one. ``on_node_start`` and
    ``on_node_complete``: where one node ends the next one begins, so a checkpoint is taken there if
    either is on. With neither, none is taken, and a recovery replays the run from its beginning.
    The log has the calls of finished nodes in any case. ``auto_recovery``: whether ``execute``
    resumes a run that has not ended; otherwise only ``resume`` does. ``retention``: "all",
    "prune_old" (the newest ``max_checkpoints_per_run``, 3) or "latest_only", see CheckpointStore;
    None: "prune_old" if there is a maximum, else "all". Everything that nodes have written is kept;
    retention removes the records of the calls that led to it.

    Aden Hive's names work as well: ``retention_strategy`` for ``retention``; ``save_frequency``,
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
        """The retention of checkpoints."""
        default: Kept = "all" if self.max_checkpoints_per_run is None else "prune_old"
        return self.retention or self.retention_strategy or default

    @property
    def keep(self) -> int | None:
        """How many "prune_old" keeps; the others do not count them."""
        return self.max_checkpoints_per_run if self.kept == "prune_old" else None


@dataclass(slots=True)
class RestoredCheckpoint:
    """A run's memory and path at a checkpoint: see ``CheckpointManager.restore``.

    ``memory``: values by key. ``path``: the nodes visited up to there, in order. ``next_nodes``:
    the nodes that are visited next. ``step``, ``timestamp`` (as it was given): those of the
    checkpoint. ``metadata``: that of ``save_checkpoint``.
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
    """Keeps runs of graphs for executors, and reads them.

    ``storage``: a path, a CheckpointStore, a RunStore, or None for the default directory
    (``$EVENTLOG_HOME`` or ``~/.eventlog``). An object with a ``base_path``, such as Aden Hive's
    FileStorage, gets a directory ``eventlog`` with the runs in there. TypeError for anything else.
    ``config``: see CheckpointConfig (the defaults). A context manager, which closes the runs to
    which ``save_checkpoint`` has saved. For one thread. ``run_id`` names a run; ``checkpoint_id``
    one of its checkpoints, None the newest one that verifies.
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

    # -- reading runs

    def unfinished(self) -> list[RunStatus]:
        """The runs that have not ended and that no process owns: they crashed, are parked, failed
        at a node, or are damaged. See ``RunStatus.state`` and ``why``."""
        return [one for one in runs(self.store) if one.state not in _NOT_LEFT]

    def is_unfinished(self, run_id: str) -> bool:
        """Whether a run is unfinished in this sense."""
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

        NoSoundCheckpointError when there are some, and none of them (or not the named one)
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
        """The run's memory and path at a checkpoint that verifies, the newest one unless named.

        Only reads: an executor resumes a run, from all of its records. To continue from an earlier
        checkpoint, fork the run there (``RunHandle.fork(..., at_step=)``), and resume the fork.
        None if there is no such checkpoint; raises as ``get_checkpoint``.
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
        state = GraphState.from_messages("", task["input"], found.messages)
        return RestoredCheckpoint(
            run_id,
            found.checkpoint_id,
            found.step_number,
            found.timestamp,
            state.memory,
            state.path,
            list(state.pending),
            state.visits,
        )

    def delete_checkpoints(self, run_id: str) -> int:
        """Remove a run to which ``save_checkpoint`` has saved; returns how many checkpoints it had.

        RecoveryError for a run of an agent or of a graph, whose log needs its checkpoints:
        ``store.run(run_id).remove()`` removes the whole run. LogLockedError when another process
        owns the run.
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
        self.store.close_run(run_id)
        self.store.run(run_id).remove(force=True)
        return count

    # -- for executors that take their checkpoints themselves

    def should_checkpoint(self, step_number: int) -> bool:
        """Whether a checkpoint is due after step ``step_number``, counted from 1."""
        return self.config.enabled and step_number % self.config.every == 0

    def save_checkpoint(
        self,
        run_id: str,
        node_id: str,
        memory: Any,
        executor_type: Any = "graph",
        metadata: Mapping[str, Any] | None = None,
    ) -> str | None:
        """Save a run's memory after a node; returns the checkpoint's id, None if not enabled.

        ``node_id``: the node. ``executor_type``: kept as text. ``memory``: a mapping, or an object
        with ``read_all()``. ``metadata``: ``execution_path``, ``next_node_id`` and other values.
        Durable when this returns; only changes of the memory are written. Raises every error of
        saving: RefusedValueError, with the path to it, for a value that cannot be carried. Models,
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
        # A log never uses an LSN twice, even when it is damaged; in another log the time differs.
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
        """The memory at a checkpoint that verifies, and the node to continue with: the saved next
        node, else the node after which it was saved. (None, None) if there is no checkpoint, or
        ``auto_recovery`` is off; raises as ``get_checkpoint``."""
        if not self.config.enabled or not self.config.auto_recovery:
            return None, None
        found = self.restore(run_id, checkpoint_id)
        if found is None or not (found.next_nodes or found.path):
            return None, None
        return found.memory, (found.next_nodes or found.path)[0 if found.next_nodes else -1]

    def close(self) -> None:
        """Close the runs to which checkpoints were saved."""
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


def _where(storage: Any) -> Any:
    """The storage for a CheckpointStore; TypeError for other objects."""
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
    """A value, or the parts of a dict by their names, so that unchanged parts are not saved
    again."""
    if depth and value and type(value) is dict and all(map(_is_name, value)):
        for key, one in value.items():
            yield from _spread(f"{name}{_PART}{key}", one, depth - 1)
    else:
        yield name, value


def _is_name(key: Any) -> bool:
    return type(key) is str and _PART not in key


def _gathered(state: Mapping[str, Any], name: str) -> Any:
    """The value whose parts ``_spread`` has made."""
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
    """The content of a checkpoint of ``save_checkpoint``."""
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
