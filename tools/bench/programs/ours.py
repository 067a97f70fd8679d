"""The agent, on recovery. With ``memory`` it prints what Linux says of it, instead of the time."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from recovery import CheckpointStore, RecoverableAgent, tool

AGAIN = 3
MODE, DIRECTORY, STEPS = sys.argv[1], sys.argv[2], int(sys.argv[3])
SIZE = int(sys.argv[4]) if len(sys.argv) > 4 else 2048


@tool(after_crash="retry")
def work(number: int) -> str:
    """Return a value; at the last step, crash or say what time it is."""
    if number > STEPS:
        if MODE == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        status = Path("/proc/self/status")
        print(status.read_text() if MODE == "memory" else time.monotonic(), flush=True)
        os._exit(0)
    if MODE != "crash":
        os._exit(AGAIN)
    return f"result {number} ".ljust(SIZE, ".")


async def agent(run: Any) -> None:
    """A step is one call, and the state is as large at the end as it was at the beginning."""
    async for step in run.steps():
        run.state["last"] = await run.call(work, step)


store = CheckpointStore(DIRECTORY)
asyncio.run(RecoverableAgent(agent, store, checkpoint_every_n=100).run_with_recovery("go", "run"))
