"""recovery: agents that call one tool in each step."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eventlog.write.log import Durability
from recovery import CheckpointStore, RecoverableAgent, Run, SyncRun, tool
from recovery.stores.file import FileStore

from .paced import Paced, Watch, result_of


def _store(directory: Path, durability: Durability) -> CheckpointStore:
    return CheckpointStore(FileStore(directory / "runs", durability))


class Plain:
    """A plain agent, in the default settings. The tool is a side effect, or (``read``) not."""

    DURABILITY: Durability = "power"

    def __init__(self, directory: Path, case: dict[str, Any]) -> None:
        size, self._store = case["size"], _store(directory, self.DURABILITY)

        def work(number: int) -> str:
            return result_of(number, size)

        self._tool = tool(after_crash="retry")(work) if case["read"] else tool(work)
        self._paced = Paced(self._loop)
        self.turn, self.close = self._paced.turn, self._paced.close

    def _loop(self, go: Callable[[], bool]) -> None:
        def agent(run: SyncRun) -> None:
            for step in run.steps():
                if not go():
                    return
                self._tool(step)

        RecoverableAgent(agent, self._store).run_with_recovery_sync(None, "run")


class Async(Plain):
    """An async agent with an async tool."""

    def __init__(self, directory: Path, case: dict[str, Any]) -> None:
        size = case["size"]

        async def work(number: int) -> str:
            return result_of(number, size)

        self._async_tool = tool(after_crash="retry")(work) if case["read"] else tool(work)
        super().__init__(directory, case)

    def _loop(self, go: Callable[[], bool]) -> None:
        async def agent(run: Run) -> None:
            async for step in run.steps():
                if not go():
                    return
                await self._async_tool(step)

        RecoverableAgent(agent, self._store).run_with_recovery_sync(None, "run")


class AsyncProcess(Async):
    """The same, safe against the death of the process and not against power loss."""

    DURABILITY = "process"


class Together:
    """Many runs in one event loop, in the default settings."""

    DURABILITY: Durability = "power"

    def __init__(self, directory: Path, case: dict[str, Any]) -> None:
        self._size, self._store = case["size"], _store(directory, self.DURABILITY)
        self._made = 0
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a run has three files open

    def together(self, runs: int, steps: int) -> dict[str, float]:
        """So many new runs of so many steps each, all at once."""
        self._made += 1
        return asyncio.run(self._together(Watch(runs), runs, steps))

    async def _together(self, watch: Watch, runs: int, steps: int) -> dict[str, float]:
        size, all_there, all_made = self._size, asyncio.Event(), asyncio.Event()

        @tool
        async def work(number: int) -> str:
            await asyncio.sleep(0)  # as every tool does that asks somebody for something
            return result_of(number, size)

        async def agent(run: Run) -> None:
            ends, last = watch.arrived()
            if last:
                all_there.set()
            await all_there.wait()
            ends.append(time.perf_counter())
            async for step in run.steps():
                await work(step)
                ends.append(time.perf_counter())
                if step == steps:
                    break
            if watch.made_all():
                all_made.set()
            await all_made.wait()

        of = RecoverableAgent(agent, self._store)
        names = [f"{self._made}-{number}" for number in range(runs)]
        await asyncio.gather(*(of.run_with_recovery(None, name) for name in names))
        return watch.summary()


class TogetherProcess(Together):
    """The same, safe against the death of the process and not against power loss."""

    DURABILITY = "process"
