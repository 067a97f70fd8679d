"""Finds the line of the agent's code that makes a call, and its task or thread."""

from __future__ import annotations

import asyncio
import sys
import threading

_OURS = "recovery."


def call_site() -> str:
    """File and line of the agent's code that makes the present call."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_OURS):
        frame = frame.f_back
    if frame.f_globals.get("__name__", "").startswith("asyncio."):
        return "in a task of its own"  # as the visits of a graph are
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def present() -> object:
    """The present task, or thread."""
    if asyncio._get_running_loop() is not None:
        return asyncio.current_task()
    return threading.current_thread()


def is_over(owner: object) -> bool:
    """Whether the task or thread has ended."""
    if isinstance(owner, asyncio.Task):
        return owner.done()
    return isinstance(owner, threading.Thread) and not owner.is_alive()
