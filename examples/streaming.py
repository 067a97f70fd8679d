"""An assistant whose words are shown as they come.

    python examples/streaming.py [DIRECTORY]

Run it again: the model is not asked again, and the answer is shown from the log.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

from recovery import CheckpointStore, RecoverableAgent, Run, tool

asked: list[str] = []  # what the model was asked in this process


@tool(after_crash="retry")
async def ask_model(question: str) -> AsyncIterator[str]:
    """Stands for a model that streams its tokens."""
    asked.append(question)
    for word in ("Otters", "hold", "hands.", "STOP", "Really."):
        await asyncio.sleep(0)
        yield word + " "


def show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


async def assistant(run: Run) -> Any:
    async with run.stream(ask_model, run.task) as stream:
        async for chunk in stream:
            show(chunk)
            if "STOP" in chunk:
                break  # the model is stopped, and what it has said is its recorded answer
    run.messages.append({"role": "assistant", "content": stream.result})
    return stream.result


if __name__ == "__main__":
    store = CheckpointStore(sys.argv[1] if len(sys.argv) > 1 else None)
    agent = RecoverableAgent(assistant, store)
    result = asyncio.run(agent.run_with_recovery("What do otters do?", "chat_1"))
    show(f"\n{len(asked)} questions asked. Answer: {result['result']}\n")
