"""A thread that makes records durable behind the agents' backs, for all logs of a process."""

from __future__ import annotations

import os
import threading
import time
from typing import Protocol

# A record that nobody waits for is flushed within this time, together with all that came since:
# short against a model call, long against a flush (0.1 to 10 ms).
DELAY_S = 0.01

# A disk flushes several files in little more time than one. Up to so many threads at once, the
# first for so many logs, and one more for as many again: to start one costs as much as a commit.
THREADS, LOGS_PER_THREAD = 8, 8


class Committable(Protocol):
    def commit_now(self) -> None:
        """Commit; an error is kept for whoever relies on the log."""


class Committer:
    """Commits logs a little after they ask for it."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._wake = threading.Condition()
        self._waiting: set[Committable] = set()
        self._thread: threading.Thread | None = None

    def request(self, log: Committable) -> None:
        """Have ``log`` committed within about ``DELAY_S``. Returns at once."""
        if log in self._waiting:  # then what it has now is committed too: that begins later
            return
        with self._wake:
            self._waiting.add(log)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="eventlog", daemon=True)
                thread.start()
                self._thread = thread
            elif len(self._waiting) == 1:
                self._wake.notify()

    def _run(self) -> None:
        try:
            while True:
                with self._wake:
                    while not self._waiting:
                        self._wake.wait()
                time.sleep(DELAY_S)
                with self._wake:
                    waiting, self._waiting = self._waiting, set()
                commit_all(waiting)
        finally:  # something has ended this thread: who asks next gets another
            with self._wake:
                self._thread, self._waiting = None, set()


def commit_all(logs: set[Committable]) -> None:
    """Commit the logs, several at once when they are many. Leaves the set empty."""
    threads = []
    for _ in range(min(len(logs) // LOGS_PER_THREAD, THREADS - 1)):
        thread = threading.Thread(target=_commit, args=(logs,), name="eventlog", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # there can be no more threads: those that there are do it
            break
        threads.append(thread)
    _commit(logs)
    for thread in threads:
        thread.join()


def _commit(logs: set[Committable]) -> None:
    while True:  # until it is empty, so that no thread keeps a log alive while it sleeps
        try:
            log = logs.pop()
        except KeyError:
            return
        log.commit_now()


committer = Committer()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=committer._reset)  # a child has no such thread
