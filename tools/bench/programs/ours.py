"""The agent, on recovery."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from typing import Any

from recovery import CheckpointStore, RecoverableAgent, tool

MODE, DIRECTORY, STEPS = sys.argv[1], sys.argv[2], int(sys.argv[3])
SIZE = int(sys.argv[4]) if len(sys.argv) > 4 else 2048


@tool(after_crash="retry")
def work(number: int) -> str:
    """Return a value; at the last step, crash or say what time it is."""
    if number > STEPS:
        if MODE == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        print(time.monotonic(), flush=True)
        os._exit(0)
    return f"result {number} ".ljust(SIZE, ".")


async def agent(run: Any) -> None:
    """A step is one call, and the state is as large at the end as it was at the beginning."""
    async for step in run.steps():
        run.state["last"] = await run.call(work, step)


store = CheckpointStore(DIRECTORY)
asyncio.run(RecoverableAgent(agent, store, checkpoint_every_n=100).run_with_recovery("go", "run"))
