"""Drives generators that yield effects and are sent their results, from plain and async code.

So logic that serves both kinds of code is written once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

Effect = TypeVar("Effect")
Result = TypeVar("Result")

_FREE: AbstractContextManager[Any] = nullcontext()


def drive(
    steps: Generator[Effect, Any, Result],
    perform: Callable[[Effect], Any],
    guard: AbstractContextManager[Any] = _FREE,
) -> Result:
    """Perform each effect. Its exceptions, cancellation too, are thrown into the generator."""
    answer: Any = None
    error: BaseException | None = None
    while True:
        try:
            with guard:
                effect = steps.throw(error) if error is not None else steps.send(answer)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        answer = error = None
        try:
            answer = perform(effect)
        except BaseException as exc:
            error = exc


async def drive_async(
    steps: Generator[Effect, Any, Result],
    perform: Callable[[Effect], Awaitable[Any]],
    guard: AbstractContextManager[Any] = _FREE,
) -> Result:
    """``drive`` for async code."""
    answer: Any = None
    error: BaseException | None = None
    while True:
        try:
            with guard:
                effect = steps.throw(error) if error is not None else steps.send(answer)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        answer = error = None
        try:
            answer = await perform(effect)
        except BaseException as exc:
            error = exc
