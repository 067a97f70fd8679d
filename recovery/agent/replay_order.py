"""Serves outcomes in the recorded order, and detects when waiting for that order is in vain.

Outcomes are handed to the agent one at a time: the next one when all code that the last one woke is
idle. So the order in which coroutines see results does not depend on how many results have come
together. It is the same on replay, when all of them are there at once.

A call waits for the replay as long as other code of the agent may still make the recorded calls,
and no longer. How long that is depends on what this code waits for (engine.task_state).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
import time
from bisect import insort
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from recovery.declare.scope import Scope
from recovery.engine.driver_effects import WaitForTurn
from recovery.engine.per_event_loop import of_loop
from recovery.engine.ready_runs import ReadyRuns
from recovery.engine.task_state import (
    Blocking,
    is_asleep,
    is_in_thread,
    is_ready,
    place_of,
    task_blocking,
    tasks_of,
    threads_blocking,
)

if TYPE_CHECKING:
    from recovery.engine.execution import Execution

_logger = logging.getLogger("recovery")

# How long a recorded outcome waits for earlier ones, when no task makes progress. Continuing
# without them is harmless: the code asks for its results in another order, and gets them.
ORDER_WAIT_S = {Blocking.ON_REPLAY: 0.0, Blocking.UNKNOWN: 0.5, Blocking.RUNNABLE: 600.0}
# How long a new call waits for recorded ones to be made again. It costs time only if the code has
# changed; stopping a run is safe, but a waste if the code was only slow.
THREADS_ORDER_WAIT_S = {Blocking.ON_REPLAY: 0.0, Blocking.UNKNOWN: 0.5, Blocking.RUNNABLE: 10.0}
STRICT_WAIT_S = {Blocking.ON_REPLAY: 0.0, Blocking.UNKNOWN: 60.0, Blocking.RUNNABLE: 600.0}
BEFORE_LOOP_WAIT_S = 0.5
# A task that waits for so many things, one after the other, without a call, does other work: no
# outcome waits for it any more.
MOVES_MAX = 5
WARN_AFTER_S = 10.0  # and again each time that it has waited twice as long
SLEEPING_S = 2.0  # how soon to warn that a recovery waits for sleeps of the agent's own
# Turns of the event loop until the code that an outcome woke is idle. Code that never is (it polls
# whether something is done) gets this many turns once, and then fewer.
TURNS_MAX, TURNS_WHEN_RESTLESS = 20_000, 50
# For a loop that does not show which tasks are ready: so many turns without a ready task. Callbacks
# between two tasks (as of a task group) take fewer.
QUIET_TURNS = 4
PAUSE_MAX_S = 0.05
GRACE_S = 0.1  # a thread that was woken may not have noticed yet
OWN_THREADS = ("eventlog", "recovery-commit")  # the names of the threads that commit


@dataclass(eq=False, slots=True)
class _Waiter:
    wait: WaitForTurn
    future: asyncio.Future[None]
    thread_of: Scope | None  # the scope in which a waiting thread works; None: a task waits

    def wake(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class ReplayOrder:
    """The coroutines of a run in one event loop that wait for their turn.

    ``calls``: the code of calls in flight; ``at_home``: whether this is the loop in which the agent
    itself runs.
    """

    def __init__(self, run: Execution, calls: Collection[CodeType], at_home: bool) -> None:
        self._run, self._calls, self._at_home = run, calls, at_home
        self._loop = asyncio.get_running_loop()
        self._ready_runs = of_loop(ReadyRuns)
        self._in_order: list[_Waiter] = []  # waiting for an outcome, by its LSN
        self._new: list[_Waiter] = []  # waiting with a new call
        self._timer: asyncio.Handle | None = None
        self._turns = self._idle = 0  # turns of the loop since an outcome was served, and idle ones
        self._quiet = 0  # turns without a task of the agent that is ready to run
        self._restless = False  # whether the agent never became idle, the last time
        self._seen: tuple[int, Blocking] | None = None
        self._since = self._warn_after = 0.0
        # The last known awaited object of each task, and how often it has changed.
        self._moves: WeakKeyDictionary[asyncio.Task[Any], tuple[Any, int]] = WeakKeyDictionary()
        self._has_seen_moves = False

    async def wait(self, wait: WaitForTurn, thread_of: Scope | None = None) -> bool:
        """Wait for this one's turn; False if waiting is in vain."""
        if self._has_seen_moves and (task := asyncio.current_task()) is not None:
            self._moves.pop(task, None)
        if self._in_order or self._new:
            self._tick_soon()
        if wait.ready() and (not wait.turn or self.at_rest() or self._run.alone()):
            return True
        waiter = _Waiter(wait, self._loop.create_future(), thread_of)
        waiting = self._in_order if wait.turn else self._new
        insort(waiting, waiter, key=lambda one: one.wait.turn)
        self._tick_soon()
        try:
            await waiter.future
        finally:
            waiting.remove(waiter)
        return wait.ready()

    def wait_in_thread(self, wait: WaitForTurn) -> bool:
        """The same for another thread than the loop's."""
        steps = self.wait(wait, self._run.current_scope())
        waiting = asyncio.run_coroutine_threadsafe(steps, self._loop)
        while not self._run.is_closed:
            done, _ = concurrent.futures.wait([waiting], PAUSE_MAX_S)
            if done:
                break
        waiting.cancel()
        return wait.ready()

    def at_rest(self) -> bool:
        """Whether nothing is ready to run in this loop but the caller, and other runs; False if
        that is unknown."""
        ready = self._ready_runs
        return ready.is_known and not ready.may_have(self._run, self._loop)

    def _rests(self) -> bool:
        """The same, once a turn, for all loops: uvloop does not show which tasks are ready."""
        if self._ready_runs.is_known:
            return self.at_rest()
        ready = any(is_ready(task) for task, _ in tasks_of(self._run, self._loop))
        self._quiet = 0 if ready else self._quiet + 1
        return self._quiet >= QUIET_TURNS

    def _tick_soon(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._idle = 0
        self._timer = self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self._run.is_closed:
            for waiter in (*self._in_order, *self._new):
                waiter.wake()
            return
        for waiter in self._new:
            if waiter.wait.ready():
                waiter.wake()
        self._turns += 1
        rests = self._rests()
        if rests or self._turns > (TURNS_WHEN_RESTLESS if self._restless else TURNS_MAX):
            self._restless = not rests
            self._wake_next()
            pause = 0 if self._idle < 2 else min(0.001 * (self._idle - 1), PAUSE_MAX_S)
            self._idle += 1
        else:
            pause = 0
        if self._in_order or self._new:
            later = self._loop.call_later
            self._timer = later(pause, self._tick) if pause else self._loop.call_soon(self._tick)

    def _wake_next(self) -> None:
        """Wake the next waiter in the replay order, or the first that waits in vain, when the
        agent is idle."""
        first = self._in_order[:1]
        chosen = [one for one in first if one.wait.ready()]
        if not chosen and (first or self._new) and self._is_stuck(bool(first)):
            chosen = first or self._new[:1]
        for waiter in chosen:
            waiter.wake()
            self._turns = self._idle = self._quiet = 0
            self._seen = None

    def _is_stuck(self, in_order: bool) -> bool:
        """Whether, as far as can be known, no code will make the recorded calls any more."""
        held, moving = self._held(in_order)
        now, seen = self._loop.time(), (self._run.replay.matches, held)
        if seen != self._seen:
            self._seen, self._since, self._warn_after = seen, now, WARN_AFTER_S
        waited = now - self._since
        if waited > self._warn_after and not in_order:
            self._warn_after = 2 * waited
            warn(self._run, waited, [_whereabouts(task) for task in moving])
        limits = ORDER_WAIT_S if in_order else STRICT_WAIT_S
        return bool(waited >= limit_of(self._run, limits, held))

    def _held(self, in_order: bool) -> tuple[Blocking, list[Any]]:
        """The blocking state of the agent's tasks, and those that continue by themselves."""
        ours = {waiter.future for waiter in (*self._in_order, *self._new)}
        # Tasks of the agent's own loop, or threads, cannot be seen from another loop.
        worst, moving = Blocking.ON_REPLAY if self._at_home else Blocking.UNKNOWN, []
        threads = Counter(
            one.thread_of for one in (*self._in_order, *self._new) if not one.future.done()
        )
        for task, scope in tasks_of(self._run, self._loop):
            held = task_blocking(task, ours, self._calls)
            if held is Blocking.RUNNABLE and threads[scope] and is_in_thread(task):
                threads[scope] -= 1  # it waits for its turn there
                continue
            if held is Blocking.RUNNABLE:
                moving.append(task)
                if in_order and self._has_had_its_turn(task):
                    continue
            worst = max(worst, held)
        return worst, moving

    def _has_had_its_turn(self, task: asyncio.Task[Any]) -> bool:
        waits_for = getattr(task, "_fut_waiter", None)
        last, moves = self._moves.get(task, (waits_for, 0))
        moves += int(last is not waits_for)
        self._moves[task] = waits_for, moves
        self._has_seen_moves = True
        return bool(moves > MOVES_MAX)


def limit_of(run: Execution, limits: dict[Blocking, float], held: Blocking) -> float:
    """How long to wait. Before the loop of steps, a resumed run may leave out calls and make new
    ones."""
    return min(limits[held], BEFORE_LOOP_WAIT_S) if run.before_loop else limits[held]


def warn(run: Execution, waited: float, moving: Sequence[str]) -> None:
    """Warn that a new call, or the end of the agent, waits for the replay."""
    lsn, missing = run.missing()
    _logger.warning(
        "run %s: has waited %.0f s for LSN %d, which is recorded and has not been done again: %s. "
        "Still at work: %s. Nothing new is executed meanwhile. If the code has changed, this ends "
        "in a DivergenceError.",
        run.run_id,
        waited,
        lsn,
        missing,
        ", ".join(moving) or "nobody",
    )


def _whereabouts(task: Any) -> str:
    where = place_of(task)
    return f"{task.get_name()} at {where}" if where else str(task.get_name())


class Watch:
    """Warns when a recovery waits for sleeps of the agent's own, which are not recorded."""

    def __init__(self, run: Execution, calls: Collection[CodeType]) -> None:
        self._run, self._calls = run, calls
        self._loop = asyncio.get_running_loop()
        self._matches, self._pause = run.replay.matches, SLEEPING_S
        self._timer = self._loop.call_later(self._pause, self._look)

    def _look(self) -> None:
        run = self._run
        if run.is_closed or run.caught_up():
            return
        if run.replay.matches == self._matches:
            asleep = sorted(
                {
                    place_of(task)
                    for task, _ in tasks_of(run, self._loop)
                    if is_asleep(task, self._calls)
                }
            )
            if asleep:
                lsn, missing = run.missing()
                _logger.warning(
                    "run %s: its recovery waits for asyncio.sleep at %s. That sleep is not "
                    "recorded, so it is slept again. `await run.sleep(...)` ends when it would "
                    "have ended the first time. Still to be done again: LSN %d, %s.",
                    run.run_id,
                    ", ".join(asleep),
                    lsn,
                    missing,
                )
            self._pause *= 2
        self._matches = run.replay.matches
        self._timer = self._loop.call_later(self._pause, self._look)

    def end(self) -> None:
        """Stop watching: the run is over in this process."""
        self._timer.cancel()


class ThreadReplayOrder:
    """The same for the threads of a plain agent. When they are idle cannot be seen."""

    def __init__(self, run: Execution) -> None:
        self._run, self._home = run, threading.current_thread()
        self._before = frozenset(threading.enumerate())
        self._callers: WeakSet[threading.Thread] = WeakSet([self._home])

    def wait(self, wait: WaitForTurn) -> bool:
        """Wait for this thread's turn; False if waiting is in vain."""
        me = threading.current_thread()
        self._callers.add(me)
        limits = THREADS_ORDER_WAIT_S if wait.turn else STRICT_WAIT_S
        seen, since, warn_after = None, 0.0, WARN_AFTER_S
        while not wait.ready() and not self._run.is_closed:
            others = self._others(me)
            held = threads_blocking(others, {ThreadReplayOrder.wait.__code__})
            now = time.monotonic()
            if seen != (self._run.replay.matches, held):
                seen, since = (self._run.replay.matches, held), now
            if held < Blocking.RUNNABLE and me is self._home and self._run.in_flight <= 1:
                limit = GRACE_S if others else 0.0
            else:
                limit = max(limit_of(self._run, limits, held), GRACE_S)
            if now - since >= limit:
                break
            if now - since > warn_after:  # no outcome waits so long
                warn_after = 2 * (now - since)
                warn(self._run, now - since, [thread.name for thread in others])
            time.sleep(0.005)
        return wait.ready()

    def _others(self, me: threading.Thread) -> list[threading.Thread]:
        """Threads that may be executing code of the agent."""
        return [
            thread
            for thread in threading.enumerate()
            if thread is not me
            and not thread.name.startswith(OWN_THREADS)
            and (thread not in self._before or thread in self._callers)
        ]
