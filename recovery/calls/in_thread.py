"""Calls functions in the threads of an executor: once, or not at all.

An executor that can start no thread raises RuntimeError, and keeps what it was given. Its next free
thread would call that: a side effect whose failure is recorded, or a claim that is never released.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Generic, TypeVar, cast

T = TypeVar("T")
LOOK_S = 0.002  # between two looks whether a thread that was not asked to has ended the call


class OneCall(Generic[T]):
    """A call for whichever thread is the first to make it."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._left = [function]
        self._ended: tuple[T | None, BaseException | None]
        self._over = threading.Event()

    def __call__(self) -> None:
        function = self.taken()
        if function is None:
            return
        try:
            self._ended = function(), None
        except BaseException as exc:
            self._ended = None, exc
        self._over.set()

    def taken(self) -> Callable[[], T] | None:
        """The function, which no other thread calls from now on; None if one has it already."""
        try:
            return self._left.pop()
        except IndexError:
            return None

    def wait(self) -> None:
        """Wait for the thread that makes the call."""
        self._over.wait()

    def result(self) -> T:
        """What the call returned, or raises what it raised, once it has ended."""
        value, raised = self._ended
        if raised is not None:
            raise raised
        return cast(T, value)

    async def ended(self) -> None:
        """``wait`` for async code."""
        while not self._over.is_set():  # noqa: ASYNC110 - the thread knows of no event loop
            await asyncio.sleep(LOOK_S)


async def in_thread(function: Callable[[], T], unused: Callable[[], None] = lambda: None) -> T:
    """``asyncio.to_thread``; if it raises RuntimeError, the function is never called.

    ``unused`` is called if the function is not: also by a caller that is cancelled first.
    """
    call = OneCall(function)
    try:
        await asyncio.to_thread(call)
    except BaseException as exc:
        if call.taken() is not None:
            unused()
            raise
        if not isinstance(exc, RuntimeError):
            raise
        await call.ended()
    return call.result()
