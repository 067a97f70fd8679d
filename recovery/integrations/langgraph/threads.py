"""The threads that a saver has open: how many, and when it lets go of them."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import ParamSpec, TypeVar

from recovery.integrations.langgraph.thread import PREFIX, Seen, Thread, log_name
from recovery.stores import RunStore

T = TypeVar("T")
P = ParamSpec("P")

_logger = logging.getLogger("recovery")

FORGET_AFTER_S = 60.0  # without use, the values of a thread are forgotten
PAUSE_MIN_S, PAUSE_MAX_S = 0.02, 1.0
SEEN_MAX = 4096  # closed threads that a stale writer is still known of


# Not those of an event loop: in all of them, tasks of a graph may wait for what is to be saved.
_WORKERS = 32, "EventLogSaver"
_workers = ThreadPoolExecutor(*_WORKERS)


def _begin_in_child() -> None:
    """Make new threads in a forked child, which would wait for its parent's for ever."""
    ThreadPoolExecutor.__init__(_workers, *_WORKERS)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)


async def in_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """``asyncio.to_thread``, in a thread that nothing else uses."""
    call = partial(contextvars.copy_context().run, function, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_workers, call)


class Threads:
    """Threads by name. Thread-safe.

    A background thread lets go of each log that was not written for ``release_after_s``. Of more
    than ``open_max`` threads, the one that was used least recently is closed.
    """

    def __init__(self, store: RunStore, release_after_s: float, open_max: int) -> None:
        self.store = store
        self._release_after_s, self._open_max = release_after_s, open_max
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._open: OrderedDict[str, tuple[Thread, list[int]]] = OrderedDict()
        self._seen: OrderedDict[str, Seen] = OrderedDict()
        self._sweeper: threading.Thread | None = None
        weakref.finalize(self, _close_all, self._open)  # at the end of the process, too

    @contextmanager
    def using(self, thread_id: str) -> Iterator[Thread]:
        """The thread; it stays open until this is left."""
        with self._using(log_name(thread_id), thread_id) as thread:
            yield thread

    @contextmanager
    def using_log(self, name: str) -> Iterator[Thread]:
        """The thread whose log has this name."""
        with self._using(name, None) as thread:
            yield thread

    @contextmanager
    def _using(self, name: str, thread_id: str | None) -> Iterator[Thread]:
        if os.getpid() != self._pid:
            self._begin()  # a child made by fork: the logs are its parent's
        with self._lock:
            seen = self._seen.setdefault(name, Seen())
            self._seen.move_to_end(name)
            if len(self._seen) > SEEN_MAX + self._open_max:
                self._seen.popitem(last=False)
            if name not in self._open:
                self._open[name] = Thread(self.store, thread_id, name, seen), [0]
            thread, users = self._open[name]
            if thread.thread_id is None:
                thread.thread_id = thread_id
            self._open.move_to_end(name)
            if self._sweeper is None:
                sweeper = threading.Thread(
                    target=_sweep, args=(weakref.ref(self),), name="EventLogSaver", daemon=True
                )
                sweeper.start()  # raises where no more can be started
                self._sweeper = sweeper
            users[0] += 1
            surplus = self._surplus()
        try:
            _close(surplus)
            yield thread
        finally:
            with self._lock:
                users[0] -= 1

    def _surplus(self) -> list[Thread]:
        """Take out those used least recently; called with the lock held."""
        surplus = len(self._open) - self._open_max
        if surplus <= 0:
            return []
        names = [name for name, (_, users) in self._open.items() if not users[0]][:surplus]
        return [self._open.pop(name)[0] for name in names]

    def names(self) -> list[str]:
        """The names of the logs of all threads, in the store."""
        return [name for name in self.store.run_ids() if name.startswith(PREFIX)]

    def release_idle(self, now: float) -> float:
        """Let go of idle threads; returns when to look again, in seconds; 0 when none is left."""
        with self._lock:
            idle = [
                (name, thread)
                for name, (thread, users) in self._open.items()
                if not users[0] and now - thread.used >= self._release_after_s
            ]
            done = [name for name, thread in idle if now - thread.used >= FORGET_AFTER_S]
            gone = [self._open.pop(name)[0] for name in done]
            # Held while they are closed, so that no caller begins to use one.
            for _, thread in idle:
                _close([], thread)
            _close(gone)
            if not self._open:
                self._sweeper = None
                return 0.0
        return min(max(self._release_after_s / 4, PAUSE_MIN_S), PAUSE_MAX_S)

    def close(self) -> None:
        """Let go of all threads that are not in use."""
        with self._lock:
            names = [name for name, (_, users) in self._open.items() if not users[0]]
            threads = [self._open.pop(name)[0] for name in names]
        failures = []
        for thread in threads:
            try:
                thread.close()
            except Exception as exc:
                failures.append(exc)
        if failures:
            raise failures[0]


def _close(threads: list[Thread], released: Thread | None = None) -> None:
    """Close these; of ``released`` only the log. The next writer meets the failure's cause."""
    for thread in threads if released is None else [released]:
        try:
            if released is None:
                thread.close()
            else:
                with thread.lock:
                    thread.release()
        except Exception as exc:
            _logger.warning("thread %r could not be closed: %r", thread.thread_id, exc)


def _close_all(threads: OrderedDict[str, tuple[Thread, list[int]]]) -> None:
    _close([thread for thread, _ in threads.values()])


def _sweep(threads: weakref.ref[Threads]) -> None:
    pause = PAUSE_MIN_S
    while pause:
        time.sleep(pause)
        found = threads()
        if found is None:
            return
        pause = found.release_idle(time.monotonic())
        del found
