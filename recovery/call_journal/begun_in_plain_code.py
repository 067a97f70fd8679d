"""Carries out a call that plain code begins, and that an event loop may have to end."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from types import coroutine
from typing import Any

from recovery.calls.invoking import called
from recovery.declare.scope import Entered
from recovery.declare.spec import is_async
from recovery.engine.drive import drive_async
from recovery.engine.driver_effects import Effect, Invoke, Sleep


@dataclass(slots=True, eq=False)
class SleepInLoop(Sleep):
    """Let time pass in which the event loop of this thread must run."""


def begun(
    steps: Generator[Effect, Any, Any],
    perform_sync: Callable[[Effect], Any],
    perform_async: Callable[[Effect], Awaitable[Any]],
    guard: AbstractContextManager[Any],
) -> Any:
    """The result of a call; an awaitable of it, if the function returns an awaitable."""
    in_loop = False

    async def perform(effect: Effect) -> Any:
        nonlocal in_loop
        if isinstance(effect, SleepInLoop) and not in_loop:
            in_loop = True
            await _hand_over()
        if in_loop:
            return await perform_async(effect)
        if not isinstance(effect, Invoke) or (effect.timeout_s and not is_async(effect.function)):
            return perform_sync(effect)
        inside = Entered(effect.scope)
        try:
            value = called(effect)
        finally:
            inside.leave()
        if not inspect.isawaitable(value):
            return value
        in_loop = True
        await _hand_over()
        return await perform_async(replace(effect, function=_awaited, args=(value,), kwargs={}))

    # Invariant: it suspends for the first time where it is handed over to the event loop.
    coming = drive_async(steps, perform, guard)
    try:
        coming.send(None)
    except StopIteration as done:
        return done.value
    return _ended(coming)


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


@coroutine
def _hand_over() -> Generator[None, None, None]:
    yield


async def _ended(coming: Coroutine[Any, Any, Any]) -> Any:
    return await _rest(coming)


@coroutine
def _rest(coming: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
    return (yield from coming)
