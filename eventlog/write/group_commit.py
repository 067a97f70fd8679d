"""Commits records in background threads, for all logs of a process."""

from __future__ import annotations

import threading
import time
from typing import Protocol

from eventlog.after_fork import in_forked_child

# A record that no caller waits for is flushed within twice this time, with all that are appended
# until then. That is short against a model call, and long against a flush (0.1 to 10 ms). If many
# logs have such records, it takes DELAY_PER_LOG_S for each: flushes that callers wait for go first.
DELAY_S, DELAY_PER_LOG_S = 0.01, 0.001

# A disk flushes several files in little more time than one. So there are several threads: another
# one for each so many logs. Starting a thread costs as much as a commit.
THREADS, LOGS_PER_THREAD = 8, 8


class Committable(Protocol):
    def commit_now(self, lsn: int) -> None:
        """Commit what is up to ``lsn``; an error is kept for the next caller of the log."""


class Committer:
    """Commits logs soon after they ask for it."""

    def __init__(self) -> None:
        self._reset()
        in_forked_child(self, Committer._reset)

    def _reset(self) -> None:
        self._wake = threading.Condition()
        self._waiting: dict[Committable, int] = {}
        self._thread: threading.Thread | None = None

    def request(self, log: Committable, lsn: int) -> None:
        """Have ``log`` committed up to ``lsn`` soon, unless a caller does it. Returns at once, if
        a thread can be started."""
        if log in self._waiting:
            return
        try:
            with self._wake:
                self._waiting[log] = lsn
                if self._thread is None:
                    thread = threading.Thread(target=self._run, name="eventlog", daemon=True)
                    thread.start()
                    self._thread = thread
                elif len(self._waiting) == 1:
                    self._wake.notify()
        except RuntimeError:  # no more threads can be started: this one commits
            self.forget(log)
            log.commit_now(lsn)

    def forget(self, log: Committable) -> None:
        """Commit ``log`` no more: it is closed."""
        with self._wake:
            self._waiting.pop(log, None)

    def _delay_s(self) -> float:
        return max(DELAY_S, DELAY_PER_LOG_S * len(self._waiting))

    def _run(self) -> None:
        try:
            while True:
                with self._wake:
                    self._wake.wait_for(lambda: self._waiting)
                slept_s = 0.0
                while (left_s := self._delay_s() - slept_s) > 0:  # more have asked meanwhile
                    time.sleep(left_s)
                    slept_s += left_s
                with self._wake:
                    waiting, self._waiting = self._waiting, {}
                commit_all(waiting)
        finally:  # if an error has ended this thread, the next request starts another
            with self._wake:
                self._thread, self._waiting = None, {}


def commit_all(logs: dict[Committable, int]) -> None:
    """Commit the logs, with several threads if there are many. Empties the dict."""
    threads = []
    for _ in range(min(len(logs) // LOGS_PER_THREAD, THREADS - 1)):
        thread = threading.Thread(target=_commit, args=(logs,), name="eventlog", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads can be started: use the existing ones
            break
        threads.append(thread)
    _commit(logs)
    for thread in threads:
        thread.join()


def _commit(logs: dict[Committable, int]) -> None:
    while True:  # ends when the dict is empty, so that no sleeping thread keeps a log alive
        try:
            log, lsn = logs.popitem()
        except KeyError:
            return
        log.commit_now(lsn)


committer = Committer()
