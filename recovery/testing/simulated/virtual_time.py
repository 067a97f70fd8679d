"""Simulates time, which passes only when all code waits, so that an agent's sleeps take no time.

The event loop's clock moves from timer to timer. ``time.sleep`` in the thread of the agent moves
the clocks of module ``time`` instead of waiting. If code waits for something outside of this loop
(a socket, a thread of the agent's own), both wait in real time, as the duration is unknown.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import selectors
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol
from unittest import mock

from recovery.agent.replay_order import OWN_THREADS

_sleep, _monotonic = time.sleep, time.monotonic
SLICE_S = 0.05  # of a real wait, so that an abandoned run ends
_POOL = concurrent.futures.thread._worker.__code__  # where a thread of a pool waits for work


def _has_no_work(frame: FrameType | None) -> bool:
    """Whether an existing thread is one of a pool, and has no work."""
    if frame is None or frame.f_code is not _POOL:
        return False
    known = frame.f_locals
    return known.get("work_item") is None and known["work_queue"].qsize() == 0


class StuckError(BaseException):
    """Nothing can ever happen again, and the run has not ended. No agent should catch it."""


class Looks(Protocol):
    """Knows whether polling, in the loops of a clock, can find anything new."""

    def seen(self) -> object:
        """A value that changes whenever anything has happened."""
        ...

    def skip(self, nap_s: float, due_s: float) -> float:
        """How far time may move if nothing happens for ``due_s``, and the next poll is in
        ``nap_s``."""
        ...


class Clock:
    """How far the time of one thread is ahead of real time."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self.abandoned = False
        self._thread = 0
        self._before = set(threading.enumerate())

    def begin(self) -> None:
        """The clock is that of the present thread."""
        self._thread = threading.get_ident()

    def quiet(self) -> bool:
        """Whether only the thread of this clock is active."""
        others = [
            thread.ident
            for thread in threading.enumerate()
            if thread not in self._before
            and thread.ident != self._thread
            and not thread.name.startswith(OWN_THREADS)
        ]
        if not others:
            return True
        frames = sys._current_frames()
        return all(_has_no_work(frames.get(ident or 0)) for ident in others)

    def is_here(self) -> bool:
        return threading.get_ident() == self._thread

    def sleep(self, seconds: float) -> None:
        if seconds < 0 or not self.is_alone():
            _sleep(seconds)
        else:
            self.ahead += seconds

    def is_alone(self) -> bool:
        """Whether this is the thread of this clock, and no other one is active."""
        return not self.abandoned and self.is_here() and self.quiet()


class _Selector(selectors.DefaultSelector):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self.outside = 0  # executors' futures in flight
        self.skip: Callable[[float], float] = lambda timeout: timeout  # how far time may move

    def select(self, timeout: float | None = None) -> Any:
        events = super().select(0)
        if events or (timeout is not None and timeout <= 0):
            return events
        # One file is the loop's own, through which other threads wake it up.
        if len(self.get_map()) > 1 or self.outside or not self._clock.quiet():
            return self._select_really(timeout)
        if timeout is None:
            raise StuckError("the event loop waits for nothing")
        self._clock.ahead += self.skip(timeout)
        return []

    def _select_really(self, timeout: float | None) -> Any:
        began = _monotonic()
        end = None if timeout is None else began + timeout
        while True:
            if self._clock.abandoned:
                raise StuckError("given up")
            left = SLICE_S if end is None else min(SLICE_S, end - _monotonic())
            events = super().select(max(0.0, left))
            if events or (end is not None and _monotonic() >= end):
                self._clock.ahead += _monotonic() - began
                return events


def _wake_up(over: asyncio.Future[None]) -> None:
    if not over.done():
        over.set_result(None)


class Loop(asyncio.SelectorEventLoop):
    """An event loop of virtual time. Threads of ``asyncio.to_thread``, and those that commit,
    become calls a little later, one after the other: so each run does the same in the same order,
    and a commit takes no time."""

    def __init__(self, clock: Clock, looks: Looks | None = None) -> None:
        self._waits = _Selector(clock)
        super().__init__(self._waits)
        self._waits.skip = self._skip
        self._virtual = clock
        self._looks = looks
        # Polls: the time of the next deadline, and what had happened before.
        self._naps: dict[asyncio.TimerHandle, tuple[float, object]] = {}
        self.set_exception_handler(lambda loop, context: None)

    def time(self) -> float:
        return self._virtual.ahead

    async def nap(self, seconds: float, due_s: float) -> None:
        """Sleep until the next poll. If nothing has happened, the polls find nothing for
        ``due_s``."""
        over = self.create_future()
        timer = self.call_later(seconds, _wake_up, over)
        seen = None if self._looks is None else self._looks.seen()
        self._naps[timer] = self.time() + due_s, seen
        try:
            await over
        finally:
            timer.cancel()
            del self._naps[timer]

    def _skip(self, timeout: float) -> float:
        """How far time may move: past the next poll, if all polls would find nothing."""
        if self._looks is None or not self._naps:
            return timeout
        now = self._looks.seen()
        if any(seen != now for _, seen in self._naps.values()):
            return timeout
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        due = [due for due, _ in self._naps.values()]
        due += [one.when() for one in timers if not one.cancelled() and one not in self._naps]
        return self._looks.skip(timeout, min(due) - self.time())

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        name = getattr(executor, "_thread_name_prefix", "")
        if executor is not None and not name.startswith(OWN_THREADS):  # perhaps with processes
            self._waits.outside += 1
            outside = super().run_in_executor(executor, func, *args)
            outside.add_done_callback(self._landed)
            return outside
        future = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except (SystemExit, KeyboardInterrupt) as exc:
                future.set_exception(exc)
                raise
            except BaseException as exc:
                future.set_exception(exc)
            else:
                future.set_result(result)

        self.call_soon(self.call_soon, work)
        return future

    def _landed(self, future: object) -> None:
        self._waits.outside -= 1


@contextmanager
def virtual_time(clock: Clock) -> Iterator[None]:
    """Make all code see ``clock``; only its own thread's sleeps and event loops are virtual."""
    wall, monotonic, wall_ns, monotonic_ns = (
        time.time,
        time.monotonic,
        time.time_ns,
        time.monotonic_ns,
    )
    new_event_loop = asyncio.events.new_event_loop

    def new_loop() -> asyncio.AbstractEventLoop:
        return Loop(clock) if clock.is_here() else new_event_loop()

    shifted: dict[str, Any] = {
        "sleep": clock.sleep,
        "time": lambda: wall() + clock.ahead,
        "time_ns": lambda: wall_ns() + int(clock.ahead * 1e9),
        "monotonic": lambda: monotonic() + clock.ahead,
        "monotonic_ns": lambda: monotonic_ns() + int(clock.ahead * 1e9),
    }
    with (
        mock.patch.multiple(time, **shifted),
        mock.patch.object(asyncio.events, "new_event_loop", new_loop),
    ):
        yield


def bury(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel all tasks of a dead process; what they do on their way out does not count."""
    for _ in range(100):  # each task may die once more on its way
        tasks = asyncio.all_tasks(loop)
        if not tasks:
            break
        for task in tasks:
            task.cancel()
        try:
            loop.run_until_complete(asyncio.wait(tasks))
        except StuckError:
            break
        except BaseException:
            continue
    loop.close()
