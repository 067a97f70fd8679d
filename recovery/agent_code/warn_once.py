"""Warns once in a process of uses of a tool that replay cannot repeat reliably."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import threading
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from recovery.journal.user_code import is_the_users

_logger = logging.getLogger("recovery")

_IN_ORDER = frozenset({int, float, bool})  # a set of these has the same order in each process
_said: set[tuple[str, str]] = set()  # warnings, and their tools


def warn_of_set(tool: str, value: set[Any] | frozenset[Any]) -> None:
    """A tool has returned a set: the order in which code iterates over it is not recorded."""
    if len(value) < 2 or _IN_ORDER.issuperset(map(type, value)) or is_said("set", tool):
        return
    _logger.warning(
        "tool %s returned a set. Its order is another one in each process, so an agent that goes "
        "through it does something else after a crash, and its run stops with a DivergenceError. "
        "Go through `sorted(...)` of it, or have the tool return a list.",
        tool,
    )


def warn_of_thread(tool: str, function: Callable[..., Any]) -> None:
    """A tool is called outside of any run, while a run is executed in this process."""
    thread = threading.current_thread()
    if thread is threading.main_thread() or asyncio._get_running_loop() is not None:
        return
    if is_said("thread", tool):
        return
    _logger.warning(
        "tool %s (%s) was called in thread %r, which knows of no run: it is executed as a plain "
        "function, is not recorded, and is executed again after a crash. Give the thread the run: "
        "`asyncio.to_thread(%s, ...)`, `run.call(%s, ...)`, or "
        "`pool.submit(contextvars.copy_context().run, %s, ...)`. If it is to be outside of a run, "
        "call %s.__wrapped__.",
        tool,
        _place(sys._getframe(2), function),
        thread.name,
        tool,
        tool,
        tool,
        tool,
    )


def warn_of_tasks_left(run_id: str, places: Iterable[str]) -> None:
    """An agent has returned, and tasks of its own are in the middle of calls at these lines."""
    new = [place for place in places if not is_said("left", place)]
    if new:
        _logger.warning(
            "run %s: the agent has returned while a task of its own is in a call, at %s. The call "
            "is completed. After a crash the agent may return before the task has reached it, "
            "and then it is not made. Await the task before the agent returns, or cancel it and "
            "await that. (asyncio.gather leaves the others at work when one of them raises; an "
            "asyncio.TaskGroup does not.)",
            run_id,
            ", ".join(new),
        )


def warn_of_undo(run_id: str, tool: str, function: Callable[..., Any]) -> None:
    """A run undoes calls of a tool that it knows only because this process has called it."""
    if not is_said("undo", tool):
        _logger.warning(
            "run %s: run.undo() knows tool %s (%s) only because this process has called it. The "
            "tool is made inside a function, or another one has its name. A run that is resumed "
            "from a later checkpoint stops at the undo, for it cannot find the tool. Give it: "
            "`run.undo(tools=[...])`, or define it at the top of a module.",
            run_id,
            tool,
            _place(None, function),
        )


def is_said(what: str, tool: str) -> bool:
    """Whether this warning was given for a tool before; remembers it."""
    if (what, tool) in _said:
        return True
    _said.add((what, tool))
    return False


def _place(frame: FrameType | None, function: Callable[..., Any]) -> str:
    """The user's line that makes the call; in a pool's own thread, the line of the tool."""
    while frame is not None and not is_the_users(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is not None:
        return f"{frame.f_code.co_filename}:{frame.f_lineno}"
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else "no line"
