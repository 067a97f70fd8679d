"""Subjects that run agents: loops that a package runs, one turn at a time; many runs at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from queue import SimpleQueue
from statistics import median
from typing import Any

from .raw import record

JOIN_S = 10.0


def result_of(number: int, size: int) -> str:
    """What a tool returns: a text, another one for each call."""
    return f"{number:08d}{_rest(size)}"


@cache
def _rest(size: int) -> str:
    return str(record(2 * size)["value"])[: size - 8]


class Paced:
    """Has code with a loop of its own take so many steps, and pause.

    ``loop(go)`` runs in a thread; it calls ``go()`` before each step, and ends when that is False.
    What a step takes is the time between two of these calls, without the pauses.
    """

    def __init__(self, loop: Callable[[Callable[[], bool]], Any]) -> None:
        self._turns: SimpleQueue[int] = SimpleQueue()
        self._done: SimpleQueue[list[float] | BaseException] = SimpleQueue()
        self._left, self._times, self._began = 0, list[float](), 0.0
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(loop,), daemon=True)
        self._thread.start()
        self._ready.wait()

    def turn(self, count: int) -> list[float]:
        """Seconds that each of so many more steps took."""
        self._turns.put(count)
        times = self._done.get()
        if isinstance(times, BaseException):
            raise times
        return times

    def go(self) -> bool:
        """Whether to take one more step; waits for the next turn when this one is over."""
        now = time.perf_counter()
        if self._left:
            self._times.append(now - self._began)
            self._left -= 1
        if not self._left:
            if self._times:
                self._done.put(self._times)
                self._times = []
            self._ready.set()
            self._left = self._turns.get()
        self._began = time.perf_counter()
        return self._left > 0

    def close(self) -> None:
        """Have the loop end."""
        self._turns.put(0)
        self._thread.join(JOIN_S)

    def _work(self, loop: Callable[[Callable[[], bool]], Any]) -> None:
        try:
            loop(self.go)
            self._done.put(RuntimeError("the loop has ended"))
        except BaseException as exc:
            self._done.put(exc)
        finally:
            self._ready.set()


class Watch:
    """Times the steps of many runs at once: they begin with them together, and none ends before all
    have made theirs, because an end takes its time from the steps of the others."""

    def __init__(self, runs: int) -> None:
        self._made = time.perf_counter()
        self._ends: list[list[float]] = [[] for _ in range(runs)]
        self._missing = iter(self._ends)
        self._cpu, self._at_work = 0.0, runs
        self._barrier = threading.Barrier(runs)

    def arrived(self) -> tuple[list[float], bool]:
        """Where a run that has begun notes the ends of its steps; whether it was the last."""
        ends = next(self._missing)
        self._cpu = time.process_time()
        return ends, ends is self._ends[-1]

    def meet(self) -> list[float]:
        """The same from a thread, when all are there."""
        ends, _ = self.arrived()
        self._barrier.wait()
        return ends

    def made_all(self) -> bool:
        """A run has made its steps: whether it was the last."""
        self._at_work -= 1
        return not self._at_work

    def part(self) -> None:
        """The same from a thread, when all have."""
        self._barrier.wait()

    def abort(self) -> None:
        """One of them failed: nobody is to wait for it."""
        self._barrier.abort()

    def summary(self) -> dict[str, float]:
        """Seconds: of all steps together, of one, and of the fastest and the slowest run.

        ``cpu``: of a step, in all threads, since the last run arrived; its share of their ends too.
        """
        steps = sorted(b - a for ends in self._ends for a, b in pairwise(ends))
        runs = [ends[-1] - ends[0] for ends in self._ends]
        return {
            "begun": min(ends[0] for ends in self._ends) - self._made,
            "seconds": max(ends[-1] for ends in self._ends) - min(ends[0] for ends in self._ends),
            "steps": len(steps),
            "cpu": (time.process_time() - self._cpu) / len(steps),
            "p50": median(steps),
            "p99": steps[len(steps) * 99 // 100],
            "longest": steps[-1],
            "fastest_run": min(runs),
            "slowest_run": max(runs),
        }
