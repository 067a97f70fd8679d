"""Finds the user's code, and watches its functions."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import eventlog
import recovery

_LIBRARIES = tuple(
    str(Path(module.__file__ or "").resolve().parent) + "/"
    for module in (sys.modules["os"], asyncio, eventlog, recovery)
)


def is_users(frame: FrameType | None) -> bool:
    """Whether this is code of neither the standard library nor an installed package (in
    site-packages, or in the dist-packages of some systems)."""
    if frame is None:
        return False
    name = frame.f_code.co_filename
    return not (name.startswith((*_LIBRARIES, "<frozen")) or "-packages/" in name)


def at(frame: FrameType) -> str:
    """``function (file.py:line)``."""
    return f"{frame.f_code.co_name} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})"


def where_thread_is(ident: int | None) -> str:
    """The user's innermost line in a thread; "" if there is none."""
    frame = sys._current_frames().get(ident or 0)
    while frame is not None and not is_users(frame):
        frame = frame.f_back
    return at(frame) if frame is not None else ""


def where_tasks_wait(loop: asyncio.AbstractEventLoop) -> str:
    """The user's innermost line in each waiting task of a loop."""
    found = set()
    for task in asyncio.all_tasks(loop):
        waits: Any = task.get_coro()
        place = ""
        while waits is not None:
            frame = getattr(waits, "cr_frame", None)
            place = at(frame) if frame is not None and is_users(frame) else place
            waits = getattr(waits, "cr_await", None)
        found.add(place)
    return ", ".join(sorted(found - {""}))


# -- functions seen from outside


def _through(*args: Any, **kwargs: Any) -> Any:
    wrapper: Any = "wrapper"  # a constant, which ``wrapped`` replaces
    return wrapper(*args, **kwargs)


async def _through_async(*args: Any, **kwargs: Any) -> Any:
    wrapper: Any = "wrapper"
    return await wrapper(*args, **kwargs)


def function_of(given: Callable[..., Any]) -> FunctionType:
    """The Python function behind a method, a partial or a decorator; TypeError if there is none."""
    inner = inspect.unwrap(getattr(given, "func", given))
    inner = getattr(inner, "__func__", inner)
    if not isinstance(inner, FunctionType) or inspect.isgeneratorfunction(inner):
        raise TypeError(f"watch= is for functions written in Python, not {given!r}")
    return inner


@contextmanager
def wrapped(
    function: FunctionType, wrap: Callable[[FunctionType], Callable[..., Any]]
) -> Iterator[None]:
    """Make every call of the function, by any name, go to ``wrap(function)``.

    Replaces the function's code, because an agent may hold the function anywhere: in a module, a
    closure, a table of tools.
    """
    code, signature = function.__code__, inspect.signature(function)
    original = FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    original.__kwdefaults__ = function.__kwdefaults__
    wrapper = wrap(original)
    through = (_through_async if inspect.iscoroutinefunction(function) else _through).__code__
    consts = tuple(wrapper if const == "wrapper" else const for const in through.co_consts)
    had_signature = "__signature__" in vars(function)
    function.__code__ = through.replace(co_consts=consts, co_freevars=code.co_freevars)
    function.__signature__ = signature  # type: ignore[attr-defined]
    try:
        yield
    finally:
        function.__code__ = code
        if not had_signature:
            del function.__signature__  # type: ignore[attr-defined]
