"""Provides the iterators of ``run.steps()``."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from recovery.engine.execution import Execution


class Steps:
    """The steps of an async agent, numbered from 1, without end."""

    # Not an async generator: the step must be set in the context of the code that iterates.
    def __init__(self, run: Execution) -> None:
        self._run = run

    def __aiter__(self) -> Steps:
        return self

    async def __anext__(self) -> int:
        return self._run.next_step()

    def __iter__(self) -> NoReturn:
        raise TypeError("this agent is async: write `async for step in run.steps()`")


class SyncSteps:
    """The same of a plain agent."""

    def __init__(self, run: Execution) -> None:
        self._run = run

    def __iter__(self) -> SyncSteps:
        return self

    def __next__(self) -> int:
        return self._run.next_step()

    def __aiter__(self) -> NoReturn:
        raise TypeError("this agent is a plain function: write `for step in run.steps()`")
