"""Detects calls that were never awaited: ``run.call(f)`` without ``await`` does nothing.

The coroutine of a call is noted until it starts. If it is deleted before that by the task that made
it, or has not started when the agent returns, the run does not finish.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Coroutine
from types import CodeType, FrameType
from typing import Any, TypeVar
from weakref import ref

from recovery.errors import NotAwaitedError

C = TypeVar("C", bound=Coroutine[Any, Any, Any])

Place = tuple[str, CodeType, int]  # what was called, and where: the code and its line


class Token:
    """The only reference is the frame of a coroutine: it goes before one that was cancelled."""

    __slots__ = ("__weakref__",)


class Unawaited:
    """The coroutines of one run that were made and not started."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[ref[Any], ref[Token], ref[Any] | None, Place]] = {}
        self._dropped: list[Place] = []

    def made(self, token: Token, coroutine: C, what: str, frame: FrameType) -> C:
        """Note a coroutine that calls ``started(token)`` first, made by the code of this frame."""
        task = _task()
        place = what, frame.f_code, frame.f_lineno
        # So that an error, or Python's warning, names the call.
        coroutine.__qualname__ = what  # type: ignore[attr-defined]
        number = id(token)
        self._made[number] = (
            ref(coroutine, lambda _: self._gone(number)),
            ref(token, lambda _: self._ended(number)),
            None if task is None else ref(task),
            place,
        )
        return coroutine

    def started(self, token: Token) -> None:
        """Note that a coroutine was started."""
        self._made.pop(id(token), None)

    def _ended(self, number: int) -> None:
        # A task that is cancelled before it begins ends its coroutine, which is no error. Of a
        # coroutine that is deleted, both references are called, in any order.
        made = self._made.get(number, (None,))[0]
        if made is not None and made() is not None:
            del self._made[number]

    def _gone(self, number: int) -> None:
        _, _, maker, place = self._made.pop(number, (None, None, None, None))
        if maker is not None and place is not None and maker() is _task():
            self._dropped.append(place)

    def check(self, run_id: str) -> None:
        """NotAwaitedError if there is a coroutine that was not awaited."""
        left = [(made(), place) for made, _, _, place in tuple(self._made.values())]
        waiting = [place for made, place in left if made is not None and _is_unstarted(made)]
        places = dict.fromkeys((*self._dropped, *waiting))
        if places:
            where = [(what, f"{code.co_filename}:{line}") for what, code, line in places]
            raise NotAwaitedError(run_id, where)


def _is_unstarted(coroutine: Any) -> bool:
    return inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED


def _task() -> asyncio.Task[Any] | None:
    return None if asyncio._get_running_loop() is None else asyncio.current_task()


M = TypeVar("M", bound=Callable[..., Coroutine[Any, Any, Any]])


def noted(method: M) -> M:
    """A method of a run whose coroutines are noted until they are awaited."""

    def made(run: Any, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        token, unawaited = Token(), run._execution.unawaited
        coroutine = _begun(unawaited, token, method, (run, *args), kwargs)
        frame = sys._getframe(1)
        return unawaited.made(token, coroutine, f"run.{method.__name__}(...)", frame)  # type: ignore[no-any-return]

    made.__name__, made.__qualname__ = method.__name__, method.__qualname__
    made.__doc__, made.__module__ = method.__doc__, method.__module__
    made.__wrapped__ = method  # type: ignore[attr-defined]  # for its signature
    return made  # type: ignore[return-value]


async def _begun(
    unawaited: Unawaited, token: Token, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    unawaited.started(token)
    return await method(*args, **kwargs)
