"""Detects calls that were never awaited: ``run.call(f)`` without ``await`` does nothing.

The coroutine of a call is noted until it starts. If it is deleted before that, or has not started
when the agent returns, the run does not finish. One that was closed or cancelled was not forgotten.
"""

from __future__ import annotations

import functools
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
    """Identifies a coroutine from when it is made until it starts."""


class _Name(str):
    """The name of a coroutine. Python formats it to warn of one that is deleted before it starts.

    Nothing else tells that one from one that was closed: since Python 3.12, both keep their frame
    until they are deleted.
    """

    __slots__ = ("coroutine", "dropped", "place")
    coroutine: ref[Any]
    place: Place
    dropped: list[Place]

    def __format__(self, spec: str) -> str:
        if self.coroutine() is None:  # else others format it, as for the text of a task
            self.dropped.append(self.place)
        return super().__format__(spec)


class Unawaited:
    """The coroutines of one run that were made and not started."""

    def __init__(self) -> None:
        self._made: dict[Token, _Name] = {}
        self._dropped: list[Place] = []

    def made(self, token: Token, coroutine: C, what: str, frame: FrameType) -> C:
        """Note a coroutine that calls ``started(token)`` first, made by the code of this frame."""
        name = _Name(what)  # an error, or Python's warning, names the call by it
        name.coroutine = ref(coroutine, lambda _: self.started(token))
        name.place, name.dropped = (what, frame.f_code, frame.f_lineno), self._dropped
        coroutine.__qualname__ = name  # type: ignore[attr-defined]
        self._made[token] = name
        return coroutine

    def started(self, token: Token) -> None:
        """Note that a coroutine was started."""
        self._made.pop(token, None)

    def check(self, run_id: str) -> None:
        """NotAwaitedError if there is a coroutine that was not awaited."""
        left = [(name.coroutine(), name.place) for name in tuple(self._made.values())]
        waiting = [place for made, place in left if made is not None and _is_unstarted(made)]
        places = dict.fromkeys((*self._dropped, *waiting))
        if places:
            where = [(what, f"{code.co_filename}:{line}") for what, code, line in places]
            raise NotAwaitedError(run_id, where)


def _is_unstarted(coroutine: Any) -> bool:
    return inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED


M = TypeVar("M", bound=Callable[..., Coroutine[Any, Any, Any]])


def noted(method: M) -> M:
    """A method of a run whose coroutines are noted until they are awaited."""

    @functools.wraps(method)
    def made(run: Any, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        return _made(method, run, args, kwargs)

    return made  # type: ignore[return-value]


def _made(
    method: Any, run: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Coroutine[Any, Any, Any]:
    token, unawaited = Token(), run._execution.unawaited
    coroutine = _begun(unawaited, token, method, (run, *args), kwargs)
    frame = sys._getframe(2)  # of the code that calls the method
    return unawaited.made(token, coroutine, f"run.{method.__name__}(...)", frame)  # type: ignore[no-any-return]


async def _begun(
    unawaited: Unawaited, token: Token, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    unawaited.started(token)
    return await method(*args, **kwargs)
