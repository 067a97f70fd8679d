"""The agent of the resume benchmark, a program: ``_agent.py crash|resume DIRECTORY STEPS``.

``crash`` works for so many steps and then kills itself inside a call. ``resume`` prints the time
(monotonic, the same for all processes) at which that call is made again, and ends there.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from typing import Any

from recovery import CheckpointStore, RecoverableAgent, tool

MODE, DIRECTORY, STEPS = sys.argv[1], sys.argv[2], int(sys.argv[3])


@tool(after_crash="retry")
def work(number: int) -> str:
    """Return about 200 bytes; at the last step, crash or say what time it is."""
    if number > STEPS:
        if MODE == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        print(time.monotonic(), flush=True)
        os._exit(0)
    return f"result {number} ".ljust(200, ".")


async def agent(run: Any) -> None:
    """A step is one call, and a message that holds its result."""
    number = 0
    async for step in run.steps():
        number = step
        run.messages.append({"role": "tool", "content": await run.call(work, number)})
        run.state["last"] = number


asyncio.run(RecoverableAgent(agent, CheckpointStore(DIRECTORY)).run_with_recovery("bench", "run"))
