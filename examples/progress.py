"""How far is the agent? A progress bar with tqdm or rich, and a watcher in another process.

    python progress.py tqdm             runs the agent (kill it, run it again: the bar goes on)
    python progress.py rich
    python progress.py watch            in another terminal: what happens, live or afterwards

Runs live where `$EVENTLOG_HOME` says, or in ~/.eventlog.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Any

from recovery import RecoverableAgent, Run, tool
from recovery.reports import RunEvent

RUN = "otter-facts"
TOPICS = ["food", "sleep", "fur", "tools", "pups", "range", "play", "names"]
LATENCY_S = 0.3  # of the model that we pretend to have


@tool(after_crash="retry")
async def search(topic: str) -> str:
    await asyncio.sleep(LATENCY_S)
    return f"What is known about otters and {topic}."


@tool(after_crash="retry")
async def ask_model(prompt: str) -> dict[str, Any]:
    await asyncio.sleep(LATENCY_S)
    usage = {"input_tokens": len(prompt.split()), "output_tokens": 12}
    return {"content": f"A fact, from: {prompt}", "usage": usage}


async def collect(run: Run) -> int:
    """One topic a step."""
    async for step in run.steps():
        if step > len(TOPICS):
            return len(run.messages)
        found = await run.call(search, TOPICS[step - 1])
        run.messages.append(await run.call(ask_model, found))
    raise AssertionError("steps do not end by themselves")


def with_tqdm() -> Callable[[RunEvent], None]:
    """A bar of tqdm. The first event of a process has the totals so far."""
    from tqdm import tqdm  # noqa: PLC0415 - only for this bar

    bar = tqdm(total=len(TOPICS), unit="topic")

    def show(event: RunEvent) -> None:
        progress = event.progress
        bar.n = min(max(progress.step - 1, 0), len(TOPICS))
        bar.set_postfix_str(f"{progress.last_tool}, {progress.usage.tokens} tokens", refresh=False)
        bar.update(0)
        if progress.status != "running":
            bar.close()

    return show


def with_rich() -> Callable[[RunEvent], None]:
    """The same with rich."""
    from rich import progress as rich  # noqa: PLC0415 - only for this bar

    columns = rich.TextColumn("{task.description}"), rich.BarColumn(), rich.MofNCompleteColumn()
    display = rich.Progress(*columns, rich.TextColumn("{task.fields[tokens]} tokens"))
    bar = display.add_task("starting", total=len(TOPICS), tokens=0)
    display.start()

    def show(event: RunEvent) -> None:
        progress = event.progress
        display.update(
            bar,
            completed=max(progress.step - 1, 0),
            tokens=progress.usage.tokens,
            description=progress.last_tool or "starting",
        )
        if progress.status != "running":
            display.stop()

    return show


async def watch(run_id: str, after: int = 0) -> None:
    """What happens, a line each; ends with the run. `after` is the last LSN that was seen."""
    async for event in RecoverableAgent(collect).run(run_id).events(after=after):
        print(f"{time.strftime('%T', time.localtime(event.timestamp))} {event}")
    print(event.progress)


def main() -> int:
    match sys.argv[1:]:
        case ["tqdm" | "rich" as kind]:
            show = with_tqdm() if kind == "tqdm" else with_rich()
            agent = RecoverableAgent(collect, on_event=show)
            print(asyncio.run(agent.run_with_recovery("otters", RUN))["result"], "facts")
        case ["watch"]:
            asyncio.run(watch(RUN))
        case _:
            print(__doc__)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
