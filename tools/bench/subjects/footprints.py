"""Memory of live runs, and of open logs."""

from __future__ import annotations

import asyncio
import itertools
import resource
from pathlib import Path
from typing import Any

from eventlog import EventLog
from recovery import CheckpointStore, RecoverableAgent, tool

from .memory import peak, resident

STEPS = 3  # before a run waits


class LiveRuns:
    """Runs of one process, each of which waits for a call in its fourth step."""

    def __init__(self, directory: Path, case: dict[str, Any]) -> None:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each run has its files open
        self._look = tool(after_crash="retry")(self._look_or_wait)
        self._agent = RecoverableAgent(self._work, CheckpointStore(directory))
        self._loop, self._numbers = asyncio.new_event_loop(), itertools.count(1)
        self._tasks: list[asyncio.Task[Any]] = []
        self._waiting, self._all_wait = 0, asyncio.Event()

    def hold(self, count: int) -> int:
        """Have so many runs, all of them waiting; bytes resident then."""
        self._loop.run_until_complete(self._begin(count))
        return resident()

    async def _begin(self, count: int) -> None:
        self._all_wait.clear()
        while len(self._tasks) < count:
            life = self._agent.run_with_recovery("wait", f"run-{next(self._numbers)}")
            self._tasks.append(asyncio.create_task(life))
        ended: asyncio.Future[Any] = asyncio.gather(*self._tasks)
        waiting: asyncio.Future[Any] = asyncio.create_task(self._all_wait.wait())
        await asyncio.wait([waiting, ended], return_when=asyncio.FIRST_COMPLETED)
        if ended.done():  # no run ends but by an error
            ended.result()

    async def _work(self, run: Any) -> None:
        async for step in run.steps():
            run.state["last"] = await self._look(step)
            run.messages.append({"role": "tool", "content": run.state["last"]})

    async def _look_or_wait(self, step: int) -> str:
        if step <= STEPS:
            return f"result {step} ".ljust(200, ".")
        self._waiting += 1
        if self._waiting == len(self._tasks):
            self._all_wait.set()
        await asyncio.Event().wait()
        raise AssertionError("nothing sets it")


class Log:
    """A log that is open; bytes that this process had at its peak."""

    def __init__(self, directory: Path, case: dict[str, Any]) -> None:
        self._path = Path(case["path"])

    def read(self) -> int:
        """From its first record to its last."""
        with EventLog.read(self._path) as reader:
            for found in reader.records():
                _ = found.body
            return peak()

    def append(self) -> int:
        """A record more, in a log whose writer was killed."""
        with EventLog.open(self._path) as log:
            log.append("record", {"what": "nothing in particular"})
            log.commit()
            return peak()
