"""Commits the logs of several runs together, in a few threads.

A thread and the event loop that are at work at the same time take the interpreter from each other
at each system call, which costs several times as much as the call. Notifying the loop of each flush
costs more than the flush. So commits are made in rounds: a round begins when the loop has nothing
else to do, and the loop is notified once, when the round has ended.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from eventlog import WritableLog
from eventlog.after_fork import in_forked_child
from eventlog.protocols import CommitGroup
from recovery.calls.in_thread import OneCall
from recovery.declare.scope import NOWHERE, current_scope

THREADS = 8  # that commit for one event loop: a disk flushes several files at once
SHARE_MAX = 64  # commits of one thread in a round: then other event loops have their turn
PATIENCE_S = 0.01  # how long a commit waits for the others of its round, at most
# Callbacks of these threads belong to no run, so no run waits until they are done.
_outside_any_run = partial(current_scope.set, NOWHERE)
# Separate threads, so that no commit waits for runs that begin and end.
_FLUSHES = 8, "recovery-commit", _outside_any_run
flush_threads = ThreadPoolExecutor(*_FLUSHES)
in_forked_child(flush_threads, lambda pool: ThreadPoolExecutor.__init__(pool, *_FLUSHES))
# So many, since the first thread of a round waits for the others, which may take their time.
_ROUNDS = 2 * THREADS, "recovery-commit-together", _outside_any_run
_committers = ThreadPoolExecutor(*_ROUNDS)
in_forked_child(_committers, lambda pool: ThreadPoolExecutor.__init__(pool, *_ROUNDS))

_Commit = Callable[[], None]
_Waiting = list[asyncio.Future[None]]


def _begun(
    loop: asyncio.AbstractEventLoop, threads: ThreadPoolExecutor, call: OneCall[Any]
) -> asyncio.Future[Any]:
    """Have one of the threads make the call; if no more can be started, it is made here. Returns a
    future that is done when the call is."""
    try:
        return loop.run_in_executor(threads, call)
    except RuntimeError:
        call()
        return loop.create_task(call.ended())


class _Ended:
    """Commits that have ended, until the coroutines that wait for them are notified."""

    def __init__(self) -> None:
        self._ended: deque[tuple[_Waiting, BaseException | None]] = deque()
        self._context = contextvars.copy_context()
        self._context.run(current_scope.set, NOWHERE)

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


class GroupCommit(_Ended):
    """The commits that coroutines of one event loop wait for. Not thread-safe: for that loop."""

    def __init__(self) -> None:
        super().__init__()
        self._asked: dict[_Commit, _Waiting] = {}  # since the last round began
        self._queue: deque[tuple[_Commit, _Waiting]] = deque()  # first come, first served
        self._begins_by = 0.0
        self._rounds = 0  # at work
        self._shares: set[object] = set()  # of threads at work
        self._timer: asyncio.TimerHandle | None = None

    async def commit(self, commit: _Commit) -> None:
        """Have ``commit`` called, in a thread, after now: once for all callers that wait for it."""
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        if not self._asked:
            self._begins_by = loop.time() + PATIENCE_S
            loop.call_soon(self._begin_round, loop, context=self._context)
        self._asked.setdefault(commit, []).append(done)
        await done

    def _begin_round(self, loop: asyncio.AbstractEventLoop) -> None:
        if getattr(loop, "_ready", None) and loop.time() < self._begins_by:
            loop.call_soon(self._begin_round, loop, context=self._context)
            return
        asked, self._asked = self._asked, {}
        self._queue.extend(asked.items())
        self._hand_out(loop)

    def _hand_out(self, loop: asyncio.AbstractEventLoop) -> None:
        count = min(len(self._queue), THREADS - len(self._shares))
        if count > 0:
            shares = [object() for _ in range(count)]
            self._shares.update(shares)
            self._rounds += 1
            work = _begun(loop, _committers, OneCall(partial(self._commit_round, shares)))
            work.add_done_callback(self._round_ended, context=self._context)
        if self._rounds and self._timer is None:
            self._timer = loop.call_later(PATIENCE_S, self._look, loop, context=self._context)

    def _commit_round(self, shares: list[object]) -> None:
        """Commit what waits, in so many threads."""
        others = []
        for share in shares[1:]:
            other = OneCall(partial(self._commit_share, share))
            wait = other.wait
            with suppress(RuntimeError):  # no more threads can be started: use the existing ones
                wait = _committers.submit(other).result
            others.append((share, other, wait))
        self._commit_share(shares[0])
        for share, other, wait in others:
            if other.taken() is not None:
                self._shares.discard(share)
            else:
                wait()

    def _commit_share(self, share: object) -> None:
        for _ in range(SHARE_MAX):
            try:
                commit, futures = self._queue.popleft()
            except IndexError:
                break
            error = None
            try:
                commit()
            except BaseException as exc:  # for the coroutines that wait for it
                error = exc
            self._ended.append((futures, error))
        self._shares.discard(share)

    def _round_ended(self, work: asyncio.Future[None]) -> None:
        self._rounds -= 1
        if not self._rounds and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._hand_out(work.get_loop())
        self._deliver()

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """Deliver what has ended in a round that takes its time."""
        self._timer = None
        self._hand_out(loop)
        self._deliver()


class SharedRoundTrips(_Ended):
    """The commits of logs on a server that coroutines of one event loop wait for.

    Those of one turn of the loop are asked for together, and the loop is notified once for each
    answer of the server, however many logs it is about. Not thread-safe: for that loop.
    """

    def __init__(self) -> None:
        super().__init__()
        self._asked: dict[WritableLog, _Waiting] = {}
        self._is_notified = False  # whether the loop is to deliver what has ended

    async def commit(self, log: WritableLog) -> None:
        """Have what the log has now committed."""
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        if not self._asked:
            loop.call_soon(self._hand_out, context=self._context)
        self._asked.setdefault(log, []).append(done)
        await done

    def _deliver(self) -> None:
        self._is_notified = False  # before it looks: what ends later is notified again
        super()._deliver()

    def _hand_out(self) -> None:
        loop = asyncio.get_running_loop()
        asked, self._asked = self._asked, {}
        groups: dict[CommitGroup, list[WritableLog]] = {}
        for log in asked:
            assert log.group is not None
            groups.setdefault(log.group, []).append(log)

        def done(log: WritableLog, error: Exception | None) -> None:
            self._ended.append((asked[log], error))
            if not self._is_notified:
                self._is_notified = True
                with suppress(RuntimeError):  # the loop is closed: no coroutine waits
                    loop.call_soon_threadsafe(self._deliver, context=self._context)

        for group, logs in groups.items():
            group.commit(logs, done)


async def off_loop(act: Callable[[], Any]) -> Any:
    """Call it in a thread, which finishes it even if the caller is cancelled."""
    # In no scope, because it may call the user's code.
    call = OneCall(partial(contextvars.Context().run, act))
    work = _begun(asyncio.get_running_loop(), flush_threads, call)
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([work])
        raise
    return call.result()
