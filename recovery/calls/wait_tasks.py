"""Implements ``run.wait``: records which of several tasks had ended, and in which order.

A set of finished tasks has no order, and on replay more of them may have ended. Without a record,
an agent would do something else after a crash.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from recovery.journal.events import ValueRecorded

if TYPE_CHECKING:
    from recovery.engine.execution import Execution

F = TypeVar("F", bound="asyncio.Future[Any] | concurrent.futures.Future[Any]")
Ended = tuple[list[F], list[F]]

NAME = "wait"  # of the recorded value


async def wait(
    run: Execution,
    given: Iterable[F],
    timeout: float | None,  # noqa: ASYNC109
    return_when: str,
) -> Ended[F]:
    """``asyncio.wait``, with lists in place of sets."""
    tasks = listed(given, asyncio.isfuture, "asyncio.create_task(...)")
    with _recorded(run, len(tasks)) as known:
        if known.order is None:
            known.order = await _ended(tasks, timeout, return_when)
        elif known.order:
            await asyncio.wait([tasks[i] for i in known.order])
    return _parts(tasks, known.order)


def wait_sync(
    run: Execution, given: Iterable[F], timeout: float | None, return_when: str
) -> Ended[F]:
    """``concurrent.futures.wait``, with lists in place of sets."""
    futures = listed(given, _is_of_a_pool, "executor.submit(...)")
    with _recorded(run, len(futures)) as known:
        if known.order is None:
            done = concurrent.futures.wait(futures, timeout, return_when).done
            known.order = [i for i, one in enumerate(futures) if one in done]
        else:
            concurrent.futures.wait([futures[i] for i in known.order])
    return _parts(futures, known.order)


def listed(given: Iterable[F], is_future: Callable[[Any], bool], made_by: str) -> list[Any]:
    """The awaited tasks, in their order; TypeError for a collection without order, or for items
    that are no tasks."""
    if isinstance(given, set | frozenset):
        raise TypeError(
            "run.wait takes a list of tasks: a set has no order that a replay could go by"
        )
    tasks = list(given)
    for one in tasks:
        if not is_future(one):
            raise TypeError(f"run.wait takes what {made_by} gives, not {one!r}")
    if not tasks:
        raise ValueError("run.wait was given no tasks")
    return tasks


class _Known:
    def __init__(self, order: list[int] | None) -> None:
        self.order = order


@contextmanager
def _recorded(run: Execution, count: int) -> Iterator[Any]:
    """The recorded indices of the tasks that had ended; without a record, they are recorded at the
    end."""
    with run.mutex:
        run.before_action()
        scope = run.current_scope()
        occurrence = scope.next_occurrence(NAME)
        lsn, value = run.replay.value_of(scope.path, NAME, occurrence)
    # If changed code waits for other tasks, the record does not fit, and it waits as it is now.
    fits = value is not None and all(type(i) is int and 0 <= i < count for i in value)
    known = _Known(list(value) if fits else None)
    try:
        yield known
    finally:
        with run.mutex:
            run.replay.mark_replayed(lsn)
    with run.mutex:
        run.check()
        if not fits:
            run.record_when_caught_up(ValueRecorded(scope.path, NAME, occurrence, known.order))


async def _ended(tasks: list[Any], timeout: float | None, return_when: str) -> list[int]:  # noqa: ASYNC109
    """The indices of the tasks that have ended, in the order in which they ended."""
    order = [i for i, task in enumerate(tasks) if task.done()]
    callbacks = {}
    for i, task in enumerate(tasks):
        if i not in order:
            callbacks[i] = lambda _, i=i: order.append(i)
            task.add_done_callback(callbacks[i])
    try:
        await asyncio.wait(tasks, timeout=timeout, return_when=return_when)
    finally:
        for i, callback in callbacks.items():
            tasks[i].remove_done_callback(callback)
    return list(order)


def _is_of_a_pool(one: Any) -> bool:
    return isinstance(one, concurrent.futures.Future)


def _parts(tasks: list[F], order: list[int]) -> Ended[F]:
    return [tasks[i] for i in order], [task for i, task in enumerate(tasks) if i not in order]
