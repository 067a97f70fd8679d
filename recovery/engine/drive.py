"""Two drivers for generators that yield what is to be done and are sent what came of it.

Logic that serves plain and async code is written once, as such a generator.
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
    """Perform each effect; what it raises, cancellation too, is for the generator to judge."""
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
