"""Calls the user's functions, sync and async, in the scope of their call."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_futures
from functools import partial
from typing import Any, TypeVar

from recovery.calls.in_thread import in_thread
from recovery.declare.scope import Entered
from recovery.declare.spec import function_name, is_async
from recovery.engine.driver_effects import Invoke, TimedOutError

R = TypeVar("R")


async def invoke(effect: Invoke) -> Any:
    """Call the function, a plain one in a thread; TimedOutError when it takes too long."""
    inside = Entered(effect.scope)
    try:
        if is_async(effect.function):
            coming = effect.function(*effect.args, **effect.kwargs)
        else:
            coming = _called_in_thread(effect)
        if effect.timeout_s is None:
            return await coming
        try:
            async with asyncio.timeout(effect.timeout_s) as timer:
                if effect.scope is not None:
                    effect.scope.timer = timer
                return await coming
        except TimeoutError as exc:
            if not timer.expired():  # it is the function's own
                raise
            raise TimedOutError(function_name(effect.function), effect.timeout_s) from exc
    finally:
        inside.leave()


async def _called_in_thread(effect: Invoke) -> Any:
    _enter_thread(effect)
    call, leave = partial(_called_here, effect, called), partial(_leave_thread, effect)
    value = await in_thread(call, leave)
    return await value if inspect.isawaitable(value) else value


def _called_here(effect: Invoke, call: Callable[[Invoke], Any]) -> Any:
    """Call the function in a thread of its own, which may continue after the time-out."""
    try:
        return call(effect)
    finally:
        _leave_thread(effect)


def _enter_thread(effect: Invoke) -> None:
    """Note that a thread executes the call, before it is started: it may begin only after the
    time-out."""
    if effect.scope is not None and effect.scope.call is not None:
        effect.scope.run.enter_thread(effect.scope.call.lsn)


def _leave_thread(effect: Invoke) -> None:
    if effect.scope is not None and effect.scope.call is not None:
        effect.scope.run.leave_thread(effect.scope.call.lsn)


def called(effect: Invoke) -> Any:
    """Call the function, in the present thread."""
    try:
        return effect.function(*effect.args, **effect.kwargs)
    except StopIteration as exc:  # a future takes none (Python 3.11 then waits for ever)
        raise RuntimeError("the tool raised StopIteration") from exc


def invoke_sync(effect: Invoke) -> Any:
    """The same from plain code, in the present thread unless there is a time-out."""
    inside = Entered(effect.scope)
    try:
        return _awaited_here(effect) if effect.timeout_s is None else _in_time(effect)
    finally:
        inside.leave()


def _in_time(effect: Invoke) -> Any:
    """Call it in a thread, because only a thread can be abandoned after a time-out."""
    ended: Future[Any] = Future()

    def work() -> None:
        try:
            ended.set_result(_called_here(effect, _awaited_here))
        except BaseException as exc:
            ended.set_exception(exc)

    context = contextvars.copy_context()
    _enter_thread(effect)
    try:
        threading.Thread(target=context.run, args=(work,), daemon=True).start()
    except RuntimeError:  # no more threads can be started
        _leave_thread(effect)
        raise
    assert effect.timeout_s is not None
    if not wait_for_futures([ended], effect.timeout_s).done:
        raise TimedOutError(function_name(effect.function), effect.timeout_s)
    return ended.result()


def _awaited_here(effect: Invoke) -> Any:
    value = called(effect)
    if not inspect.isawaitable(value):
        return value
    if asyncio._get_running_loop() is None:
        return asyncio.run(_awaited(value))
    if inspect.iscoroutine(value):
        value.close()
    raise TypeError(
        f"{function_name(effect.function)} is no async function, but returned something to "
        "await. Use `await run.call(...)` for it, or make it `async def`."
    )


async def _awaited(value: Awaitable[R]) -> R:
    return await value
