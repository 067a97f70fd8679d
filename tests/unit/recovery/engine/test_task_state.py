"""What can be seen of a task from outside: whether it continues by itself, and where it is."""

from __future__ import annotations

import asyncio
import linecache
import types
from collections.abc import Coroutine, Generator
from contextvars import copy_context
from types import SimpleNamespace
from typing import Any

import pytest

from recovery.declare.scope import Scope, current_scope
from recovery.engine.task_state import (
    Blocking,
    is_asleep,
    is_in_thread,
    is_ready,
    place_of,
    place_of_call,
    task_blocking,
    tasks_of,
)


async def sleeps() -> None:
    await asyncio.sleep(9)


async def waits() -> None:
    await asyncio.Event().wait()


async def waits_for_a_queue() -> None:
    await asyncio.Queue[int]().get()


async def waits_for_a_task() -> None:
    await asyncio.create_task(sleeps())


async def a_call(inner: Coroutine[Any, Any, Any]) -> None:
    await inner


async def calls() -> None:
    await a_call(sleeps())


async def is_awaited(inner: Coroutine[Any, Any, Any]) -> None:
    await inner


def is_a_call() -> Coroutine[Any, Any, None]:
    return a_call(sleeps())


def is_a_sleep() -> Coroutine[Any, Any, None]:
    return asyncio.sleep(9)


async def is_with_a_thread() -> None:
    await asyncio.to_thread(bool)


async def has_a_limit() -> None:
    await asyncio.wait_for(waits(), 9)


class Object:
    def __await__(self) -> Generator[Any, Any, None]:
        yield from waits().__await__()


async def awaits_an_object() -> None:
    await Object()


async def has_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(sleeps())


async def gathers(more: Any = waits) -> None:
    await asyncio.gather(sleeps(), more())


async def gathers_a_future() -> None:
    await gathers(asyncio.get_running_loop().create_future)


def in_module(name: str, body: Any) -> Any:
    return types.FunctionType(body.__code__, globals() | {"__name__": name})


async def sleeps_in_ours() -> None:
    await in_module("recovery.calls.waiting", sleeps)()


async def has_a_limited_caller() -> None:  # in the same task, as since Python 3.12
    await asyncio.wait_for(in_module("recovery.agent.recoverable", is_awaited)(waits()), None)


MOVES, UNKNOWN, HELD = Blocking.RUNNABLE, Blocking.UNKNOWN, Blocking.ON_REPLAY
SLEEP, WAIT = "await asyncio.sleep(9)", "await asyncio.Event().wait()"
SEEN: dict[Any, tuple[Any, ...]] = {
    # how it is blocked, what it does, and the lines where it is and where it makes a call
    sleeps: (MOVES, "is_asleep", SLEEP, ""),
    waits: (UNKNOWN, "", WAIT, ""),
    waits_for_a_queue: (UNKNOWN, "", "await asyncio.Queue[int]().get()", ""),
    waits_for_a_task: (HELD, "", "await asyncio.create_task(sleeps())", ""),
    calls: (MOVES, "", SLEEP, "await a_call(sleeps())"),
    is_a_call: (MOVES, "", SLEEP, "the task"),
    is_a_sleep: (MOVES, "", "", ""),
    is_with_a_thread: (MOVES, "is_in_thread", "await asyncio.to_thread(bool)", ""),
    has_a_limit: (MOVES, "", "await asyncio.wait_for(waits(), 9)", ""),
    awaits_an_object: (UNKNOWN, "", "yield from waits().__await__()", ""),
    has_a_group: (HELD, "", "async with asyncio.TaskGroup() as group:", ""),
    gathers: (HELD, "", "await asyncio.gather(sleeps(), more())", ""),
    gathers_a_future: (UNKNOWN, "", "await asyncio.gather(sleeps(), more())", ""),
    sleeps_in_ours: (MOVES, "", 'await in_module("recovery.calls.waiting", sleeps)()', ""),
    has_a_limited_caller: (UNKNOWN, "", WAIT, ""),
}


def line_at(place: str) -> str:
    file, _, line = place.rpartition(":")
    return linecache.getline(file, int(line)).strip() if file else place


@pytest.mark.parametrize("body", SEEN, ids=lambda body: body.__name__)
def test_what_is_seen_of_a_task(body: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def seen() -> tuple[Any, ...]:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "run_in_executor", lambda *given: loop.create_future())
        task = asyncio.create_task(body(), name="the task")
        assert is_ready(task)
        assert task_blocking(task, (), ()) is MOVES
        for _ in range(3):
            await asyncio.sleep(0)
        assert not is_ready(task)
        in_flight = {a_call.__code__}
        does = (is_asleep(task, in_flight) and "is_asleep") or (
            is_in_thread(task) and "is_in_thread"
        )
        assert task_blocking(task, {task._fut_waiter}, in_flight) is HELD  # type: ignore[attr-defined]
        found = (
            task_blocking(task, (), in_flight),
            does or "",
            line_at(place_of(task)),
            line_at(place_of_call(task, in_flight)),
        )
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert is_ready(task)
        return found

    assert asyncio.run(seen()) == SEEN[body]


def test_tasks_belong_to_the_run_in_whose_scope_they_were_started() -> None:
    async def found() -> set[tuple[str, str]]:
        run, held = SimpleNamespace(), list[Any]()
        for of, path in ((run, "1"), (SimpleNamespace(), "2"), (run, "3")):
            context = copy_context()
            context.run(current_scope.set, Scope(of, path))
            held.append(asyncio.create_task(sleeps(), name=path, context=context))
        held.append(asyncio.create_task(sleeps(), name="of no run"))
        loop = asyncio.get_running_loop()
        assert [task for task, _ in tasks_of(run, loop, held[:1])] == [held[2]]
        found = {(task.get_name(), scope.path) for task, scope in tasks_of(run, loop)}
        for task in held:
            task.cancel()
        return found

    assert asyncio.run(found()) == {("1", "1"), ("3", "3")}
