"""Calls functions in the threads of an executor: once, or not at all.

An executor that can start no thread raises RuntimeError, and keeps what it was given. Its next free
thread would call that: a side effect whose failure is recorded, or a claim that is never released.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class OneCall(Generic[T]):
    """A call for whichever thread is the first to make it."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._left = [function]
        self.ended: Future[T] = Future()

    def __call__(self) -> None:
        function = self.taken()
        if function is None:
            return
        try:
            self.ended.set_result(function())
        except BaseException as exc:
            self.ended.set_exception(exc)

    def taken(self) -> Callable[[], T] | None:
        """The function, which no other thread calls from now on; None if one has it already."""
        try:
            return self._left.pop()
        except IndexError:
            return None

    def result(self) -> T:
        """What the call returned, or raises what it raised, without frames of the future's."""
        if (raised := self.ended.exception()) is not None:
            raise raised
        return self.ended.result()


async def in_thread(function: Callable[[], T]) -> T:
    """``asyncio.to_thread``; if it raises RuntimeError, the function is never called."""
    call = OneCall(function)
    try:
        await asyncio.to_thread(call)
    except RuntimeError:
        if call.taken() is not None:
            raise
        await asyncio.wait([asyncio.wrap_future(call.ended)])
    return call.result()
