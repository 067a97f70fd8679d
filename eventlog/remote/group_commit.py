"""Commits the logs of one store together: what waits goes to the server in one statement.

An append whose answer is lost has an unknown outcome. It is neither repeated blindly nor taken for
failed: the thread connects again, looks whether its batch is there, and sends the same batch again
if it is not. Meanwhile the callers wait, for at most ``patience_s``.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol, cast

from eventlog.after_fork import in_forked_child
from eventlog.errors import LogError, LostRecordsError, UnreachableError
from eventlog.protocols import WritableLog
from eventlog.remote.appender import RemoteAppender
from eventlog.remote.log_server import (
    HEAD_ALONE,
    Batch,
    Head,
    LogServer,
    LostConnectionError,
)
from eventlog.remote.log_url import url_of

DELAY_S = 0.01  # what no caller waits for is sent within this time, with all that comes until then
IDLE_S = 2.0  # after which a thread without open logs ends
RETRY_MIN_S, RETRY_MAX_S = 0.05, 2.0
STATEMENT_SIZE_MAX = 16 << 20  # bytes; a larger batch goes alone

Done = Callable[[Exception | None], None]
_Request = tuple[int, bool, Done]  # up to which LSN, and with everything else that waits


class _OnServer(Protocol):
    appender: RemoteAppender


class RemoteCommitter:
    """The thread that commits the logs of one store and renews their leases.

    ``lease_s``: how long a log stays held after the last commit or renewal. ``patience_s``: how
    long a commit waits for a server that does not answer.
    """

    def __init__(self, log_server: LogServer, lease_s: float, patience_s: float) -> None:
        self.log_server, self.lease_s, self.patience_s = log_server, lease_s, patience_s
        self._reset()
        in_forked_child(self, RemoteCommitter._reset)

    def _reset(self) -> None:
        self._wake = threading.Condition()
        self._waiting: dict[RemoteAppender, list[_Request]] = {}
        self._ended: deque[tuple[Done, Exception | None]] = deque()  # and are not told
        self._behind: set[RemoteAppender] = set()
        self._behind_at = 0.0
        self._sleeps_until = 0.0  # when the thread looks next by itself
        # Whether a thread sends. Invariant: only one at a time.
        self._is_busy = self._waits_for_caller = False
        self._open: dict[RemoteAppender, float] = {}  # and when its lease was renewed
        self._thread: threading.Thread | None = None

    # -- what logs ask for

    def opened(self, appender: RemoteAppender) -> None:
        """Renew the lease of this log from now on, until it is closed."""
        with self._wake:
            self._start()
            self._open[appender] = time.monotonic()

    def commit(
        self, logs: Iterable[WritableLog], done: Callable[[WritableLog, Exception | None], None]
    ) -> None:
        """See CommitGroup."""
        asked = []
        for log in logs:
            appender = cast("_OnServer", log).appender
            asked.append((appender, (appender.next_lsn - 1, False, _for_log(done, log))))
        self._ask(asked)

    def commit_and_wait(
        self, appender: RemoteAppender, target: int, everything: bool = False
    ) -> None:
        """Commit up to LSN ``target``, or with ``everything`` also what is no record."""
        if appender.durable.durable >= target and not everything:
            return
        answered = threading.Event()
        failed: list[Exception | None] = []

        def done(error: Exception | None) -> None:
            failed.append(error)
            answered.set()

        # Where this thread waits anyway, no other one has to be woken.
        self._ask([(appender, (target, everything, done))], asyncio._get_running_loop() is None)
        answered.wait()
        if failed[0] is not None:
            appender.failure_unreported = False
            raise failed[0].with_traceback(None)

    def commit_behind(self, appender: RemoteAppender) -> None:
        """Commit within about ``DELAY_S``. Returns at once."""
        if appender in self._behind:
            return
        with self._wake:
            if not self._behind:
                self._behind_at = time.monotonic() + DELAY_S
            self._behind.add(appender)
            with suppress(RuntimeError):  # no more threads can be started: the next commit sends it
                self._start()
            if self._sleeps_until > self._behind_at:
                self._wake.notify()

    def _ask(
        self, asked: Iterable[tuple[RemoteAppender, _Request]], sends_here: bool = False
    ) -> None:
        """Have this committed, by this thread if it ``sends_here`` or no other can be started."""
        due: dict[RemoteAppender, bool] | None = None
        try:
            with self._wake:
                for appender, request in asked:
                    self._waiting.setdefault(appender, []).append(request)
                try:
                    self._start()
                except RuntimeError:
                    sends_here = True
                if not self._is_busy:
                    if sends_here:
                        due = self._due(time.monotonic())
                        self._is_busy = True
                    else:
                        self._wake.notify()
            if due is not None:
                self._send(due)
        finally:  # interrupted, it leaves what it has not answered to the committer's thread
            if due is not None:
                self._sent()
        if due is not None and self._thread is None and self._waiting:
            self._ask((), True)

    def _sent(self) -> None:
        """Let another thread send."""
        with self._wake:
            self._is_busy = False
            if self._waiting or self._ended or self._waits_for_caller:
                self._wake.notify()

    def _start(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="eventlog-remote", daemon=True)
            thread.start()  # raises RuntimeError where no more can be started
            self._thread = thread

    # -- the thread

    def _run(self) -> None:
        try:
            while (due := self._next()) is not None:
                try:
                    self._send(due)
                finally:
                    self._sent()
        finally:  # if an error has ended this thread, the next request starts another
            with self._wake:
                if self._thread is threading.current_thread():
                    self._thread = None

    def _next(self) -> dict[RemoteAppender, bool] | None:
        """The logs to send now, and whether each lease is to be renewed; None to end."""
        with self._wake:
            # After a statement the thread naps, so that `commit_behind` need not wake it each time:
            # to wake a thread costs more than the records that it sends.
            naps = True
            while True:
                now = time.monotonic()
                if self._is_busy:  # a caller sends
                    self._waits_for_caller = True
                    self._wake.wait()
                    self._waits_for_caller = False
                    continue
                due = self._due(now)
                if due or self._ended:
                    self._is_busy = True
                    return due
                times = [renewed + self.lease_s / 3 for renewed in self._open.values()]
                times += [self._behind_at] * bool(self._behind)
                until = min(times, default=now + IDLE_S)
                self._sleeps_until = min(until, now + DELAY_S) if naps else until
                woken = self._wake.wait(self._sleeps_until - now)
                if not (times or woken or naps or self._waiting or self._behind):
                    self._thread = None
                    return None
                naps = False

    def _due(self, now: float) -> dict[RemoteAppender, bool]:
        for appender in [one for one in self._open if not one.is_open]:
            del self._open[appender]
        stale = now - self.lease_s / 3
        due = {one: True for one, renewed in self._open.items() if renewed <= stale}
        if self._behind and self._behind_at <= now:
            due |= {one: due.get(one, False) for one in self._behind}
        due |= {one: due.get(one, False) for one in self._waiting}
        self._behind -= due.keys()
        return due

    def _send(self, due: dict[RemoteAppender, bool]) -> None:
        asked = {one: len(self._waiting.get(one, ())) for one in due}
        taken = [(one, batch) for one, renews in due.items() if (batch := one.take(renews))]
        while taken:
            size, count = 0, 0
            for _, batch in taken:
                size += sum(len(piece.data) for piece in batch.pieces)
                if count and size > STATEMENT_SIZE_MAX:
                    break
                count += 1
            self._append(dict(taken[:count]))
            taken = taken[count:]
        self._answer(asked)

    def _answer(self, asked: dict[RemoteAppender, int]) -> None:
        """Tell the callers whose commits are done, or can never be."""
        with self._wake:
            for appender, count in asked.items():
                waiting = self._waiting.get(appender, [])
                error = appender.failure()
                left = []
                for i, (target, everything, done) in enumerate(waiting):
                    durable = appender.durable.durable >= target
                    if durable and (not everything or i < count):
                        self._ended.append((done, error if everything else None))
                    elif error is not None:
                        self._ended.append((done, error))
                    else:
                        left.append((target, everything, done))
                if left:
                    self._waiting[appender] = left
                else:
                    self._waiting.pop(appender, None)
        # Interrupted, it leaves the others to the committer's thread, which may call one again.
        while self._ended:
            done, failure = self._ended[0]
            done(failure)
            self._ended.popleft()

    def _append(self, batches: dict[RemoteAppender, Batch]) -> None:
        try:
            accepted = self.log_server.append(list(batches.values()), self.lease_s)
        except LostConnectionError as exc:
            self._find_out(batches, exc)
        except Exception as exc:  # the server has refused the statement: a full disk, no permission
            if len(batches) > 1:
                for one, batch in batches.items():
                    self._append({one: batch})
                return
            for one in batches:
                one.refuse(exc)
        else:
            self._find_out(self._settle(batches, accepted))

    def _settle(
        self, batches: dict[RemoteAppender, Batch], accepted: set[int]
    ) -> dict[RemoteAppender, Batch]:
        """Note the accepted batches; returns the others."""
        now, refused = time.monotonic(), {}
        for one, batch in batches.items():
            if batch.key in accepted:
                one.settle(batch)
                if one in self._open:
                    self._open[one] = now
            else:
                refused[one] = batch
        return refused

    def _head_of(self, one: RemoteAppender) -> Head | None:
        try:
            found = self.log_server.load(one.name, HEAD_ALONE)
        except (LogError, LostConnectionError):  # it is for an error message only
            return None
        return found.head if found else None

    def _find_out(
        self, batches: dict[RemoteAppender, Batch], why: BaseException | None = None
    ) -> None:
        """Find out why batches were refused, or, after a lost connection (``why``), which are on
        the server; send those again that can be."""
        began, pause_s = time.monotonic(), RETRY_MIN_S
        while batches:
            if why is not None and time.monotonic() - began > self.patience_s:
                for one in batches:
                    one.refuse(UnreachableError(self.log_server.address, self.patience_s, why))
                return
            if why is not None:
                time.sleep(pause_s * random.uniform(0.5, 1))
                pause_s = min(2 * pause_s, RETRY_MAX_S)
            try:
                found = self.log_server.resolve(list(batches.values()))
                missing = self._sorted_out(batches, found)
                if missing:
                    accepted = self.log_server.append(list(missing.values()), self.lease_s)
                    # The first statement may have been executed only now: then look again.
                    why = why or LostConnectionError("the log changes under its owner")
                    missing = self._settle(missing, accepted)
                batches = missing
            except Exception as exc:  # refused, too: by a standby that is not promoted yet
                why = exc
                batches = {one: batch for one, batch in batches.items() if one.waits_for(batch)}

    def _sorted_out(
        self, batches: dict[RemoteAppender, Batch], found: dict[int, tuple[int, bool]]
    ) -> dict[RemoteAppender, Batch]:
        """Settle what is there, refuse what can never be; returns what is to be sent again."""
        missing = {}
        for one, batch in batches.items():
            end, is_there = found.get(batch.key, (0, False))
            if is_there:
                self._settle({one: batch}, {batch.key})
            elif end == batch.expected:
                missing[one] = batch
            elif 0 < end < batch.expected:
                path = url_of(self.log_server.address, one.name)
                one.refuse(LostRecordsError(path, end, batch.expected))
            else:
                one.refuse(one.fenced(self._head_of(one)))
        return missing


def _for_log(done: Callable[[WritableLog, Exception | None], None], log: WritableLog) -> Done:
    return lambda error: done(log, error)
