"""Exceptions of this library that nobody retrieves from a task, because the caller of the run has
been told what they say: asyncio need not report them as forgotten."""

from __future__ import annotations

import asyncio

from recovery.errors import LeftBehindError, Stop


def need_not_be_retrieved() -> None:
    """Say so of what is about to be raised in the present task, if there is one."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # plain code
        return
    if task is not None:
        task.remove_done_callback(_retrieve)
        task.add_done_callback(_retrieve)


def _retrieve(task: asyncio.Future[object]) -> None:
    # Asking for it (task.exception()) is what marks it as retrieved: an error of the agent's own,
    # by which the task may have ended after all, is to be reported as always.
    if isinstance(getattr(task, "_exception", None), Stop | LeftBehindError):
        task.exception()
