"""Commits the logs of several runs together, in a few threads.

After a flush, a thread waits until the event loop releases the interpreter, and then the loop waits
for the thread. Notifying the loop of each flush costs many times as much as the flush. So commits
that wait at the end of a turn of the loop are made together, and the loop is notified once.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary, ref

from eventlog import WritableLog
from eventlog.protocols import CommitGroup
from recovery.declare.scope import NOWHERE, current_scope

THREADS = 4  # of each event loop; a disk flushes some files at once, and Python runs one thread
SHARE_MAX = 8  # commits of one thread at once; each of them waits for the others
# Callbacks of these threads belong to no run, so no run waits until they are done.
_outside_any_run = partial(current_scope.set, NOWHERE)
# Separate threads, so that no commit waits for runs that begin and end.
flush_threads = ThreadPoolExecutor(8, "recovery-commit", _outside_any_run)
_committers = ThreadPoolExecutor(THREADS, "recovery-commit-together", _outside_any_run)


def _begin_in_child() -> None:
    """Make new threads in a forked child, which would wait for its parent's for ever."""
    ThreadPoolExecutor.__init__(flush_threads, 8, "recovery-commit", _outside_any_run)
    ThreadPoolExecutor.__init__(_committers, THREADS, "recovery-commit-together", _outside_any_run)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)

_Waiting = dict[Callable[[], None], list[asyncio.Future[None]]]
_Ended = tuple[asyncio.Future[None], BaseException | None]


class GroupCommit:
    """The commits that coroutines of one event loop wait for. Not thread-safe: for that loop."""

    def __init__(self) -> None:
        # First come, first served.
        self._waiting: _Waiting = {}
        self._threads = 0  # busy ones
        self._is_due = False
        self._context = contextvars.copy_context()
        self._context.run(current_scope.set, NOWHERE)

    async def commit(self, commit: Callable[[], None]) -> None:
        """Have ``commit`` called, in a thread, after now: once for all callers that wait for it."""
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        self._waiting.setdefault(commit, []).append(done)
        if not self._is_due:
            self._is_due = True
            loop.call_soon(self._hand_out, loop, context=self._context)
        await done

    def _hand_out(self, loop: asyncio.AbstractEventLoop) -> None:
        """Distribute the waiting commits evenly among idle threads."""
        self._is_due = False
        while self._waiting and self._threads < THREADS:
            share = min(SHARE_MAX, -(-len(self._waiting) // (THREADS - self._threads)))
            taken = {one: self._waiting.pop(one) for one in list(islice(self._waiting, share))}
            self._threads += 1
            work = loop.run_in_executor(_committers, _commit_all, taken)
            work.add_done_callback(self._ended, context=self._context)

    def _ended(self, work: asyncio.Future[list[_Ended]]) -> None:
        self._threads -= 1
        self._hand_out(work.get_loop())
        for done, error in [] if work.cancelled() else work.result():
            if done.done():  # cancelled
                continue
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)


def _commit_all(taken: _Waiting) -> list[_Ended]:
    ended: list[_Ended] = []
    for commit, waiting in taken.items():
        error = None
        try:
            commit()
        except BaseException as exc:  # for the callers that wait for it
            error = exc
        ended += [(done, error) for done in waiting]
    return ended


class SharedRoundTrips:
    """The commits of logs on a server that coroutines of one event loop wait for.

    Those of one turn of the loop are asked for together, and the loop is notified once for each
    answer of the server, however many logs it is about. Not thread-safe: for that loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = ref(loop)
        self._waiting: dict[WritableLog, list[asyncio.Future[None]]] = {}
        self._ended: deque[tuple[list[asyncio.Future[None]], Exception | None]] = deque()
        self._context = contextvars.copy_context()
        self._context.run(current_scope.set, NOWHERE)

    async def commit(self, log: WritableLog) -> None:
        """Have what the log has now committed."""
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._hand_out, context=self._context)
        self._waiting.setdefault(log, []).append(done)
        await done

    def _hand_out(self) -> None:
        waiting, self._waiting = self._waiting, {}
        groups: dict[CommitGroup, list[WritableLog]] = {}
        for log in waiting:
            assert log.group is not None
            groups.setdefault(log.group, []).append(log)

        def done(log: WritableLog, error: Exception | None) -> None:
            is_first = not self._ended
            self._ended.append((waiting[log], error))
            loop = self._loop()
            if is_first and loop is not None:
                with suppress(RuntimeError):  # the loop is closed: no coroutine waits
                    loop.call_soon_threadsafe(self._deliver, context=self._context)

        for group, logs in groups.items():
            group.commit(logs, done)

    def _deliver(self) -> None:
        while self._ended:
            futures, error = self._ended.popleft()
            for future in futures:
                if future.done():  # cancelled
                    continue
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)


_round_trips: WeakKeyDictionary[asyncio.AbstractEventLoop, SharedRoundTrips] = WeakKeyDictionary()


async def commit_on_server(log: WritableLog) -> None:
    """Commit a log on a server, together with those of other runs in this event loop."""
    loop = asyncio.get_running_loop()
    shared = _round_trips.get(loop)
    if shared is None:
        shared = _round_trips[loop] = SharedRoundTrips(loop)
    await shared.commit(log)


_of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, GroupCommit] = WeakKeyDictionary()


async def commit_together(commit: Callable[[], None]) -> None:
    """Have ``commit`` called in a thread, together with those of other runs in this event loop."""
    await _of_loops.setdefault(asyncio.get_running_loop(), GroupCommit()).commit(commit)


async def off_loop(act: Callable[[], Any]) -> Any:
    """Call it in a thread, which finishes it even if the caller is cancelled."""
    # In no scope, because it may call the user's code.
    work = asyncio.get_running_loop().run_in_executor(flush_threads, contextvars.Context().run, act)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([work])
        work.exception()
        raise
