"""durabl: workflows that yield what is to be done."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from durabl import Runtime, ToolCall, ToolMode, tool, workflow

from .paced import Paced, Watch, result_of


class Durabl:
    """Its default settings; a tool that only reads is IDEMPOTENT."""

    SYNCHRONOUS = "NORMAL"

    def __init__(self, directory: Path, case: dict[str, Any]) -> None:
        self._db, size = str(directory / "db"), case["size"]
        mode = ToolMode.IDEMPOTENT if case.get("read") else ToolMode.AT_MOST_ONCE

        @tool(mode=mode)
        def work(number: int) -> str:
            return result_of(number, size)

        self._tool, self._made = work, 0
        self._paced = None if "read" not in case else Paced(self._loop)

    def _runtime(self) -> Runtime:
        return Runtime(db=self._db, tools=[self._tool], synchronous=self.SYNCHRONOUS)

    def turn(self, count: int) -> list[float]:
        assert self._paced is not None
        return self._paced.turn(count)

    def _loop(self, go: Callable[[], bool]) -> None:
        @workflow
        def agent(ctx: Any) -> Iterator[Any]:
            number = 0
            while go():
                number += 1
                yield ToolCall("work", {"number": number})

        with self._runtime() as runtime:
            runtime.start(agent)

    def together(self, runs: int, steps: int) -> dict[str, float]:
        """So many new runs of so many steps each; each in a thread, with a connection of its own,
        for a Runtime belongs to one thread."""
        watch = Watch(runs)
        begins = threading.Semaphore(1)  # one after another: at once, some find the database locked
        failed: list[BaseException] = []
        self._made += 1

        @workflow(name=f"agent-{self._made}")
        def agent(ctx: Any) -> Iterator[Any]:
            begins.release()
            ends = watch.meet()
            ends.append(time.perf_counter())
            for number in range(steps):
                yield ToolCall("work", {"number": number})
                ends.append(time.perf_counter())
            watch.part()

        def one() -> None:
            begins.acquire()
            try:
                with self._runtime() as runtime:
                    runtime.start(agent)
            except BaseException as exc:
                failed.append(exc)
                begins.release()
                watch.abort()

        threads = [threading.Thread(target=one) for _ in range(runs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]
        return watch.summary()

    def close(self) -> None:
        if self._paced is not None:
            self._paced.close()


class Full(Durabl):
    """Safe against power loss, as an option of it."""

    SYNCHRONOUS = "FULL"
