"""Calls functions in the threads of an executor: once, or not at all.

An executor that can start no thread raises RuntimeError, and keeps what it was given. Its next free
thread would call that: a side effect whose failure is recorded, or a claim that is never released.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Generic, TypeVar, cast

T = TypeVar("T")
LOOK_S = 0.002  # between two looks whether a thread that was not asked to has ended the call


class OneCall(Generic[T]):
    """A call for whichever thread is the first to make it."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._left = [function]
        self._ended: tuple[T | None, BaseException | None] | None = None

    def __call__(self) -> None:
        function = self.taken()
        if function is None:
            return
        try:
            self._ended = function(), None
        except BaseException as exc:
            self._ended = None, exc

    def taken(self) -> Callable[[], T] | None:
        """The function, which no other thread calls from now on; None if one has it already."""
        try:
            return self._left.pop()
        except IndexError:
            return None

    def result(self) -> T:
        """What the call returned, or raises what it raised; waits for the thread that makes it."""
        while self._ended is None:
            time.sleep(LOOK_S)
        value, raised = self._ended
        if raised is not None:
            raise raised
        return cast(T, value)

    async def ended(self) -> None:
        """Wait for the thread that makes the call."""
        while self._ended is None:  # noqa: ASYNC110 - the thread knows of no event loop
            await asyncio.sleep(LOOK_S)


async def in_thread(function: Callable[[], T]) -> T:
    """``asyncio.to_thread``; if it raises RuntimeError, the function is never called."""
    call = OneCall(function)
    try:
        await asyncio.to_thread(call)
    except RuntimeError:
        if call.taken() is not None:
            raise
        await call.ended()
    return call.result()
