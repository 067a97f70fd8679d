"""recovery.graph: chains of nodes, and the loop that they could be."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recovery import CheckpointConfig, CheckpointManager
from recovery.graph import Graph, GraphExecutor
from recovery.history.retention import Kept

from .paced import result_of

NEW_SIZE = 1 << 10  # of what a node writes


def chain(nodes: int, work: Callable[..., Any]) -> Graph:
    """So many nodes, one after the other."""
    graph = Graph("chain")
    for number in range(nodes):
        graph.node(f"n{number}", work)
        if number:
            graph.edge(f"n{number - 1}", f"n{number}")
    return graph


class Off:
    """A turn executes a chain of so many nodes; no checkpoint_manager.

    A node waits for ``case["wait_ms"]``, as for a model, and writes a kibibyte under a key of its
    own. What it takes is the time from its end back to that of the one before; the first node's
    has the beginning of the execution in it, and the last one's the end.
    """

    retention: Kept | None = None

    def __init__(self, directory: Path, case: dict[str, Any]) -> None:
        self._wait_s, self._ends = case["wait_ms"] / 1000, list[float]()
        config = CheckpointConfig(retention=self.retention or "all")
        manager = CheckpointManager(directory / "runs", config) if self.retention else None
        self._executor = GraphExecutor(checkpoint_manager=manager)

    def turn(self, count: int) -> list[float]:
        graph = chain(count, self._work)
        self._ends = [time.perf_counter()]
        asyncio.run(self._execute(graph))
        if len(self._ends) != count + 1:
            raise RuntimeError(f"{len(self._ends) - 1} nodes were executed, not {count}")
        self._ends[-1] = time.perf_counter()
        return [end - began for began, end in zip(self._ends, self._ends[1:], strict=False)]

    async def _execute(self, graph: Graph) -> None:
        result = await self._executor.execute(graph, "to measure", {})
        if not result.success:
            raise RuntimeError(result.error)

    async def _work(self, context: Any) -> dict[str, Any]:
        if self._wait_s:
            await asyncio.sleep(self._wait_s)
        self._ends.append(time.perf_counter())
        return {context.node_id: result_of(len(self._ends), NEW_SIZE)}


class All(Off):
    """A checkpoint behind each node, in the default settings: durability "power", all are kept."""

    retention = "all"


class PruneOld(Off):
    """The newest three are kept."""

    retention = "prune_old"


class LatestOnly(Off):
    """The newest one is kept."""

    retention = "latest_only"


class Loop(Off):
    """No graph: a loop that awaits what the nodes are made of."""

    async def _execute(self, graph: Graph) -> None:
        memory: dict[str, Any] = {}
        for node in graph.nodes.values():
            memory |= await node.work(_Context(node.name))


class _Context:
    def __init__(self, node_id: str) -> None:
        self.node_id = node_id
