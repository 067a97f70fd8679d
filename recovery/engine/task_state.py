"""Finds out whether an agent's other tasks and threads can still make a call by themselves.

A sleeping coroutine, or a running thread, may still make a recorded call again. None will if each
of them waits for the replay. So each is one of

    ON_REPLAY  waits for its turn in the replay order, or for tasks that are examined themselves
    UNKNOWN    waits for another task: a lock, a queue, some future
    RUNNABLE   continues by itself: ready, asleep on a timer, in a thread, in a call in flight

They are examined from outside, and an unfamiliar state is UNKNOWN.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import concurrent.futures.thread
import contextvars
import gc
import queue
import sys
import threading
from collections.abc import Collection, Iterable, Iterator
from enum import IntEnum
from types import CodeType, FrameType
from typing import Any

from recovery.declare.scope import Scope, current_scope


class Blocking(IntEnum):
    """The kinds of things that code waits for; of several, the greatest counts."""

    ON_REPLAY = 0
    UNKNOWN = 1
    RUNNABLE = 2


CHAIN_MAX = 1000  # coroutines that await one another
# A coroutine in one of these continues after some time, whatever else happens.
_TO_THREAD = asyncio.to_thread.__code__
_TIMED = {asyncio.sleep.__code__, asyncio.wait_for.__code__, _TO_THREAD}
# The module whose coroutines await those of an agent.
_AROUND_AGENTS = "recovery.agent.recoverable"
_GROUP = asyncio.TaskGroup.__aexit__.__code__
_IDLE = concurrent.futures.thread._worker.__code__
_LOCKS = {module.__file__ for module in (threading, queue, concurrent.futures._base)}
_NO_CONTEXT = contextvars.Context()


def context_of(task: asyncio.Task[Any]) -> contextvars.Context:
    """The context in which a task runs."""
    if sys.version_info >= (3, 12):
        return task.get_context()
    # Python 3.11 has no name for it.
    held = gc.get_referents(task)
    return next((one for one in held if isinstance(one, contextvars.Context)), _NO_CONTEXT)


def task_blocking(
    task: asyncio.Task[Any], ours: Collection[Any], calls: Collection[CodeType]
) -> Blocking:
    """The blocking state of a task. ``ours``: the futures of tasks that wait for their turn;
    ``calls``: the code of calls in flight."""
    waiter = getattr(task, "_fut_waiter", None)
    if waiter in ours:
        return Blocking.ON_REPLAY
    frames = list(frames_of(task))
    codes = {frame.f_code for frame in frames}
    if waiter is None or waiter.done() or not codes.isdisjoint(calls) or _is_timed(frames):
        return Blocking.RUNNABLE
    awaited = getattr(waiter, "_children", [waiter])  # of a gather
    if _GROUP in codes or all(isinstance(one, asyncio.Task) for one in awaited):
        return Blocking.ON_REPLAY
    return Blocking.UNKNOWN


def _is_timed(frames: list[FrameType]) -> bool:
    """Whether the agent's own code continues after some time. The time limit of its caller, which
    since Python 3.12 is in the same task, makes no calls."""
    for frame in reversed(frames):
        if frame.f_code in _TIMED:
            return True
        if frame.f_globals.get("__name__") == _AROUND_AGENTS:
            return False
    return False


def is_ready(task: asyncio.Task[Any]) -> bool:
    """Whether a task runs at the next turn of its loop."""
    waiter = getattr(task, "_fut_waiter", None)
    return waiter is None or waiter.done()


def is_asleep(task: asyncio.Task[Any], calls: Collection[CodeType]) -> bool:
    """Whether a task is in an ``asyncio.sleep`` of the agent's own, in no call."""
    frames = list(frames_of(task))
    if len(frames) < 2 or frames[-1].f_code is not asyncio.sleep.__code__:
        return False
    own = not frames[-2].f_globals.get("__name__", "").startswith("recovery.")
    return own and {frame.f_code for frame in frames}.isdisjoint(calls)


def place_of(task: asyncio.Task[Any]) -> str:
    """File and line of the agent's code at which a task waits; "" where it has none."""
    not_the_agents = ("asyncio.", "recovery.")
    frames = [
        frame
        for frame in frames_of(task)
        if not frame.f_globals.get("__name__", "").startswith(not_the_agents)
    ]
    return f"{frames[-1].f_code.co_filename}:{frames[-1].f_lineno}" if frames else ""


def place_of_call(task: asyncio.Task[Any], calls: Collection[CodeType]) -> str:
    """File and line of the agent's code at which a task makes a call; "" where it makes none."""
    place = task.get_name()
    for frame in frames_of(task):
        if frame.f_code in calls:
            return place
        if not frame.f_globals.get("__name__", "").startswith(("asyncio.", "recovery.")):
            place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    return ""


def is_in_thread(task: asyncio.Task[Any]) -> bool:
    """Whether a task waits for a thread of ``asyncio.to_thread``."""
    return any(frame.f_code is _TO_THREAD for frame in frames_of(task))


def frames_of(task: asyncio.Task[Any]) -> Iterator[FrameType]:
    """The frames of the coroutines and generators that await one another, the task's own first."""
    inner: Any = task.get_coro()
    for _ in range(CHAIN_MAX):
        is_generator = hasattr(inner, "gi_frame")
        frame = getattr(inner, "gi_frame" if is_generator else "cr_frame", None)
        if frame is None:
            return
        yield frame
        inner = inner.gi_yieldfrom if is_generator else inner.cr_await


def threads_blocking(threads: Iterable[threading.Thread], ours: Collection[CodeType]) -> Blocking:
    """The blocking state of threads. ``ours``: the code in which they wait for their turn."""
    frames = sys._current_frames()
    return max(
        (_of_thread(frames.get(thread.ident or 0), ours) for thread in threads),
        default=Blocking.ON_REPLAY,
    )


def _of_thread(frame: FrameType | None, ours: Collection[CodeType]) -> Blocking:
    if frame is None or frame.f_code is _IDLE or frame.f_code in ours:
        return Blocking.ON_REPLAY
    return Blocking.UNKNOWN if frame.f_code.co_filename in _LOCKS else Blocking.RUNNABLE


def tasks_of(
    run: object, loop: asyncio.AbstractEventLoop, without: Collection[object] = ()
) -> Iterator[tuple[Any, Scope]]:
    """The tasks of an agent that have not ended, and where in the run each was started."""
    for task in asyncio.all_tasks(loop).difference(without):
        scope = context_of(task).get(current_scope)
        if scope is not None and scope.run is run:
            yield task, scope
