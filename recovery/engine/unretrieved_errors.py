"""Marks this library's exceptions in tasks as retrieved, so that asyncio does not report them.

The caller of the run has received their message already.
"""

from __future__ import annotations

import asyncio

from recovery.errors import LeftBehindError, Stop


def need_not_be_retrieved() -> None:
    """Mark the exception that is about to be raised in the present task, if there is one."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # plain code
        return
    if task is not None:
        task.remove_done_callback(_retrieve)
        task.add_done_callback(_retrieve)


def _retrieve(task: asyncio.Future[object]) -> None:
    # task.exception() marks it as retrieved. If the task ended by an error of the agent's own after
    # all, asyncio reports that as always.
    if isinstance(getattr(task, "_exception", None), Stop | LeftBehindError):
        task.exception()
