"""Notices signals that an agent took and never read: in the result of a task.

A task that returned a signal has consumed it. Code that cancels the losers of a race, and reads
only the winner's result, loses what a loser had got meanwhile, with or without a crash.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

from recovery.text import shorten


class WatchedTask(asyncio.Task[Any]):
    """A task that knows whether its result was read."""

    was_read = False

    def result(self) -> Any:
        """See asyncio.Future.result."""
        self.was_read = True
        return super().result()

    def __await__(self) -> Generator[Any, None, Any]:
        result = yield from super().__await__()
        self.was_read = True
        return result


def watched_task(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> WatchedTask:
    """The task factory of a loop whose tasks are watched.

    ``coro``: a coroutine. A generator too is within a task factory's type, and only Python up to
    3.13 types a task of one.
    """
    return WatchedTask(coro, loop=loop, **options)


class TakenSignals:
    """The signals that the tasks of a session have taken."""

    def __init__(self) -> None:
        self._taken: list[tuple[WatchedTask, object, Any]] = []

    def add(self, name: object, value: Any) -> None:
        """The present task got this from a wait for signal ``name`` (or for several)."""
        try:
            task = asyncio.current_task()
        except RuntimeError:  # plain code
            return
        if isinstance(task, WatchedTask):
            self._taken.append((task, name, value))

    def unread(self) -> list[str]:
        """The signals in results that were never read, in words."""
        return [
            f"signal {name} ({shorten(value)}) was taken by a task whose result was not read. Read "
            "the results of all tasks that are done, or wait for several names in one wait: "
            "run.wait_for((name, ...))"
            for task, name, value in self._taken
            # A signal without a value has no content that could be lost.
            if value is not None and task.done() and not task.was_read and _returned(task) is value
        ]


def _returned(task: WatchedTask) -> Any:
    if task.cancelled() or task.exception() is not None:
        return task
    return asyncio.Task.result(task)
