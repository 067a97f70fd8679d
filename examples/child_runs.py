"""A researcher with sub-agents: each question is a run of its own, and all of them survive a crash.

Run it: python examples/child_runs.py DIRECTORY. Kill it at any moment; the same command goes on
where it stopped, and no question is researched twice.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from recovery import CheckpointStore, ChildFailedError, PermanentError, RecoverableAgent, Run, tool

QUESTIONS = ["What do otters eat?", "Where do otters sleep?", "Why is the sky green?"]
FACTS = {"eat": "Crabs and sea urchins.", "sleep": "On their backs, holding hands."}


@tool(after_crash="retry")
async def search(words: str) -> str:
    """Reading harms nobody: safe to repeat."""
    await asyncio.sleep(0.01)
    return next((fact for word, fact in FACTS.items() if word in words), "")


@tool(after_crash="retry")
async def ask_model(prompt: str) -> str:
    """Stands for a model."""
    await asyncio.sleep(0.01)
    return prompt.partition(": ")[2]


async def research(run: Run) -> str:
    """The sub-agent: one question."""
    found = ""
    async for step in run.steps():
        found = await run.call(search, run.task)
        if not found:
            raise PermanentError(f"nothing is known about {run.task!r}")
        if step == 2:
            break
    return str(await run.call(ask_model, f"Answer {run.task}: {found}"))


async def researcher(run: Run) -> dict[str, Any]:
    """The agent: a sub-agent for each question, side by side."""

    async def answer(question: str) -> str:
        try:
            return str(await run.child(research, question))
        except ChildFailedError as exc:  # recorded: the same whenever this is replayed
            return f"({exc.message})"

    answers = await asyncio.gather(*map(answer, run.task))
    return dict(zip(run.task, answers, strict=True))


def main(directory: str) -> None:
    store = CheckpointStore(directory)
    agent = RecoverableAgent(researcher, store)
    for question, answer in agent.run_with_recovery_sync(QUESTIONS, "otters")["result"].items():
        print(question, answer)
    for child in store.run("otters").children():
        print(f"{child.agent}: {child.state}")


if __name__ == "__main__":
    main(*sys.argv[1:])
