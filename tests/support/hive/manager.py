"""As much of Aden Hive's pull request 137 as a checkpoint manager meets: its storage, its memory, a
runtime that names runs, and executors that save behind each node and restore when one raises."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any


class ExecutorType(str, Enum):  # noqa: UP042 - as there
    GRAPH = "graph"
    FLEXIBLE = "flexible"


class FileStorage:
    """Keeps its files below a directory, and makes folders for them."""

    def __init__(self, base_path: str | Path) -> None:
        self.base_path = Path(base_path)
        for name in ("runs", "indexes", "summaries", "checkpoints/by_run", "checkpoint_indexes"):
            (self.base_path / name).mkdir(parents=True, exist_ok=True)


class Runtime:
    """Names runs; each execution is a new one."""

    def __init__(self, storage_path: str | Path) -> None:
        self.storage = FileStorage(storage_path)
        self._numbers = itertools.count(1)

    def start_run(self) -> str:
        return f"run_20260123_194332_{next(self._numbers):08x}"


class SharedMemory:
    """What nodes write to."""

    def __init__(self, values: dict[str, Any] | None = None) -> None:
        self._values = dict(values or {})

    def read(self, key: str) -> Any:
        return self._values.get(key)

    def write(self, key: str, value: Any) -> None:
        self._values[key] = value

    def read_all(self) -> dict[str, Any]:
        return dict(self._values)


@dataclass
class Result:
    """How an execution ended; ``session_state`` is to go on with."""

    success: bool
    run_id: str
    output: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    path: list[str] = field(default_factory=list)
    session_state: dict[str, Any] = field(default_factory=dict)


Node = tuple[str, Callable[[SharedMemory], None]]


class GraphExecutor:
    """Executes a chain. A node is saved when it is done, and before it is known what is next."""

    kind = ExecutorType.GRAPH

    def __init__(self, runtime: Runtime, checkpoint_manager: Any) -> None:
        self.runtime, self.manager = runtime, checkpoint_manager

    def execute(self, nodes: Sequence[Node], session_state: dict[str, Any] | None = None) -> Result:
        given = session_state or {}
        memory = SharedMemory(given.get("memory"))
        names = [name for name, _ in nodes]
        begin = names.index(given.get("resume_from", names[0]))
        run_id, path = self.runtime.start_run(), list[str]()
        try:
            for steps, (name, work) in enumerate(nodes[begin:], 1):
                path.append(name)
                work(memory)
                if self.manager.should_checkpoint(steps):
                    self._save(run_id, name, memory, path, steps)
        except Exception as exc:
            values, node = self.manager.restore_from_checkpoint(run_id)
            state = {"memory": values, "resume_from": node} if values and node else {}
            return Result(False, run_id, error=str(exc), path=path, session_state=state)
        return Result(True, run_id, memory.read_all(), path=path)

    def _save(
        self, run_id: str, name: str, memory: SharedMemory, path: list[str], steps: int
    ) -> None:
        self.manager.save_checkpoint(
            run_id=run_id,
            node_id=name,
            memory=memory,
            executor_type=self.kind,
            metadata={
                "execution_path": path.copy(),
                "step_number": steps,
                "total_tokens": 7 * steps,
                "total_latency_ms": 0,
                "next_node_id": None,
            },
        )


class FlexibleGraphExecutor(GraphExecutor):
    """The steps of a plan: with the context of all of them beside the memory."""

    kind = ExecutorType.FLEXIBLE

    def _save(
        self, run_id: str, name: str, memory: SharedMemory, path: list[str], steps: int
    ) -> None:
        context = {one: {"result": memory.read(one)} for one in path}
        self.manager.save_checkpoint(
            run_id=run_id,
            node_id=name,
            memory=memory,
            executor_type=self.kind,
            metadata={
                "execution_path": path.copy(),
                "step_number": steps,
                "context": {"plan_context": context},
            },
        )
