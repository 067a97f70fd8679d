"""CheckpointManager: where runs of graphs are kept, how often they are checkpointed, and which of
them have not ended. A thin thing over a CheckpointStore."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Any, Self

from recovery.agent.checkpoint_store import CheckpointStore
from recovery.errors import RecoveryError
from recovery.history.checkpoint import Checkpoint
from recovery.history.inventory import StoredCheckpoint
from recovery.history.retention import Kept, Retention
from recovery.inspect.status import RunStatus, runs, status, status_of
from recovery.option_checks import check_count, names_its_options
from recovery.stores.file import default_directory
from recovery.stores.protocol import RunStore

_MEMORY = "memory "  # in front of what is the memory's, in the state of a checkpoint
_NOT_LEFT = ("finished", "failed", "cancelled", "undone", "running", "empty")


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
    CheckpointStore. A graph's run is made of all that its nodes have written, so what goes is what
    they did on the way to it.
    """

    enabled: bool = True
    every_n_nodes: int = 1
    on_node_start: bool = False
    on_node_complete: bool = True
    auto_recovery: bool = True
    retention: Kept = "all"
    max_checkpoints_per_run: int | None = None

    def __post_init__(self) -> None:
        check_count("every_n_nodes", self.every_n_nodes)
        Retention.of(self.retention, self.max_checkpoints_per_run)

    @property
    def every(self) -> int:
        """The steps of a run between checkpoints."""
        return self.every_n_nodes if self.on_node_start or self.on_node_complete else sys.maxsize


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
    (``$EVENTLOG_HOME`` or ``~/.eventlog``). A context manager, which lets go of the runs to which
    ``save_checkpoint`` has saved. For one thread.
    """

    def __init__(
        self,
        storage: str | os.PathLike[str] | CheckpointStore | RunStore | None = None,
        config: CheckpointConfig | None = None,
    ) -> None:
        self.config = config or CheckpointConfig()
        if storage is None:
            storage = default_directory()
        kept, keep = self.config.retention, self.config.max_checkpoints_per_run
        if not isinstance(storage, CheckpointStore):
            storage = CheckpointStore(storage, retention=kept, keep=keep)
        elif kept != "all":
            raise ValueError("give retention to the CheckpointStore itself, not to its manager")
        self.store = storage
        self._steps: dict[str, int] = {}  # of runs to which something was saved

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
        """A checkpoint that verifies, the newest one unless it is named; None if there is none."""
        if checkpoint_id is None:
            return self.store.load_latest(run_id)
        return self.store.load(run_id, checkpoint_id)

    def restore(self, run_id: str, checkpoint_id: str | None = None) -> RestoredCheckpoint | None:
        """What the run was at a checkpoint that verifies, the newest one unless it is named.

        Reads, and changes nothing: a run is resumed by an executor, from all that it has recorded.
        To go on from an earlier checkpoint, fork the run there (``RunHandle.fork(..., at_step=)``),
        and resume the fork. None if there is no such checkpoint.
        """
        found = self.get_checkpoint(run_id, checkpoint_id)
        if found is None:
            return None
        if "node" in found.state:
            return _restored(found)
        from recovery.graph.state import Standing  # noqa: PLC0415 - which imports this module

        task = status(self.store, run_id).task
        if not isinstance(task, dict) or "input" not in task or not found.messages:
            raise RecoveryError(f"run {run_id!r} is not one of a graph")
        standing = Standing.of("", task["input"], found.messages)
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
        changed is written. What keeps it from being saved is raised, never passed over.
        """
        if not self.config.enabled:
            return None
        values = memory.read_all() if hasattr(memory, "read_all") else memory
        kept = dict(metadata or {})
        path = list(kept.pop("execution_path", ()))
        kind = executor_type.value if isinstance(executor_type, Enum) else executor_type
        state = {f"{_MEMORY}{key}": value for key, value in values.items()}
        state |= {"node": node_id, "executor_type": str(kind), "metadata": kept}
        if run_id not in self._steps:
            last = self.store.load_latest(run_id)
            self._steps[run_id] = last.step_number if last is not None else 0
        step = self._steps[run_id] + 1
        name = f"ckpt_{run_id}_{node_id}_{step}"
        self.store.save(Checkpoint(name, run_id, step, state, path, [], time.time()))
        self._steps[run_id] = step
        return name

    def restore_from_checkpoint(
        self, run_id: str, checkpoint_id: str | None = None
    ) -> tuple[dict[str, Any], str] | tuple[None, None]:
        """The memory at a checkpoint that verifies, and the node to go on with: the one that was
        said to be next, else the one behind which it was saved. (None, None) if there is none, or
        ``auto_recovery`` is off."""
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


def _restored(found: Checkpoint) -> RestoredCheckpoint:
    """What ``save_checkpoint`` has saved."""
    state = found.state
    memory = {
        key.removeprefix(_MEMORY): value for key, value in state.items() if key.startswith(_MEMORY)
    }
    following = state["metadata"].get("next_node_id") or state["node"]
    return RestoredCheckpoint(
        found.run_id,
        found.checkpoint_id,
        found.step_number,
        found.timestamp,
        memory,
        list(found.messages),
        [following],
        metadata={"executor_type": state["executor_type"], **state["metadata"]},
    )
