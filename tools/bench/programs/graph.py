"""A chain of nodes, executed until the last one kills the process; resumed from its id alone."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from recovery import CheckpointManager
from recovery.graph import Graph, GraphExecutor

MODE, DIRECTORY, NODES = sys.argv[1], sys.argv[2], int(sys.argv[3])
SIZE, AGAIN = 1 << 10, 3


async def work(context: Any) -> dict[str, Any]:
    """Write a kibibyte; in the last node, crash or say what time it is."""
    if context.node_id == f"n{NODES - 1}":
        if MODE == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        print(time.monotonic(), flush=True)
        os._exit(0)
    if MODE != "crash":
        os._exit(AGAIN)
    return {context.node_id: context.node_id.ljust(SIZE, ".")}


graph = Graph("chain")
for number in range(NODES):
    graph.node(f"n{number}", work)
    if number:
        graph.edge(f"n{number - 1}", f"n{number}")
executor = GraphExecutor(checkpoint_manager=CheckpointManager(DIRECTORY))
if MODE == "crash":
    executor.execute_sync(graph, "to measure", {}, "run")
else:
    executor.resume_sync(graph, "run")
