"""Time that passes only where something waits for it, so that an agent that sleeps takes no time.

The event loop's clock moves from timer to timer. ``time.sleep`` in the thread of the agent moves
the clocks of module ``time`` instead of waiting. Where something is waited for that is not in this
loop (a socket, a thread of the agent's own), both wait as usual, for then nobody knows how long.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

_sleep, _monotonic = time.sleep, time.monotonic
SLICE_S = 0.05  # of a real wait, so that an abandoned run comes to an end
# Threads that wait for work and never do any unasked.
_IDLE = ("eventlog", "recovery-commit")


class StuckError(BaseException):
    """Nothing can ever happen again, and the run has not ended. No agent is to catch it."""


class Clock:
    """How far the time of one thread is ahead of the real one."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self.abandoned = False
        self.stuck = ""  # why nothing will ever happen again
        self.furthest: Callable[[], float] = lambda: 0.0  # how long the last timer has yet to go
        self._thread = 0
        self._before = set(threading.enumerate())

    def begin(self) -> None:
        """The clock is that of the present thread."""
        self._thread = threading.get_ident()

    def quiet(self) -> bool:
        """Whether nothing goes on but in the thread of this clock."""
        others = (thread for thread in threading.enumerate() if thread not in self._before)
        return not any(
            thread.ident != self._thread and not thread.name.startswith(_IDLE) for thread in others
        )

    def is_here(self) -> bool:
        return threading.get_ident() == self._thread

    def sleep(self, seconds: float) -> None:
        if seconds < 0 or self.abandoned or not self.is_here() or not self.quiet():
            _sleep(seconds)
        else:
            self.ahead += seconds
            self.check()

    def check(self) -> None:
        """Raise StuckError where nothing will ever happen again."""
        stuck, self.stuck = self.stuck, ""
        if stuck:
            raise StuckError(stuck)


class _Selector(selectors.DefaultSelector):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self.outside = 0  # executors' futures under way

    def select(self, timeout: float | None = None) -> Any:
        events = super().select(0)
        if events or (timeout is not None and timeout <= 0):
            return events
        # One file is the loop's own, by which other threads wake it up.
        if len(self.get_map()) > 1 or self.outside or not self._clock.quiet():
            return self._select_really(timeout)
        if timeout is None:
            raise StuckError("the event loop waits for nothing")
        self._clock.check()
        self._clock.ahead += timeout
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


class Loop(asyncio.SelectorEventLoop):
    """An event loop of virtual time. Threads of ``asyncio.to_thread`` are calls that come a
    little later, one after the other, so that each run does the same in the same order."""

    def __init__(self, clock: Clock) -> None:
        self._waits = _Selector(clock)
        super().__init__(self._waits)
        clock.furthest = self._furthest
        self._virtual = clock
        self.set_exception_handler(lambda loop, context: None)

    def time(self) -> float:
        return self._virtual.ahead

    def _furthest(self) -> float:
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        last = max((one.when() for one in timers if not one.cancelled()), default=0.0)
        return last - self.time()

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        if executor is not None:  # the agent's own: perhaps of processes
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
    """Have all code see ``clock``; only its own thread's sleeps and event loops are virtual."""
    wall, monotonic, wall_ns, monotonic_ns = (
        time.time, time.monotonic, time.time_ns, time.monotonic_ns,
    )  # fmt: skip
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
    """Leave no task of a dead process; what they do on their way out does not count any more."""
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
