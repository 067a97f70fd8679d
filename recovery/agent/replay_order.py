"""Whose turn it is: which of an agent's coroutines may go on, and when it is vain to wait.

Outcomes are handed to the agent one at a time: the next one when all that the last one has set
going has come to rest. So what a coroutine makes of a result, and who sees it first, does not
depend on how many results have come together, and is the same on replay, when all of them are
there at once.

What waits for the record waits for as long as other code of the agent may still do what is
recorded, and no longer. How long that is depends on what this code waits for (engine.task_state).
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

from recovery.declare.scope import Scope, current_scope
from recovery.engine.driver_effects import WaitForTurn
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

# How long a recorded outcome waits for what was recorded before it, when nothing moves. Going on
# without is no harm: the code asks for its results in another order, and gets them.
ORDER_WAIT_S = {Blocking.ON_REPLAY: 0.0, Blocking.UNKNOWN: 0.5, Blocking.RUNNABLE: 600.0}
# How long a new call waits for recorded ones to be made again. It costs time only where the code
# has changed; stopping a run is safe, but for nothing if it was only slow.
THREADS_ORDER_WAIT_S = {Blocking.ON_REPLAY: 0.0, Blocking.UNKNOWN: 0.5, Blocking.RUNNABLE: 10.0}
STRICT_WAIT_S = {Blocking.ON_REPLAY: 0.0, Blocking.UNKNOWN: 60.0, Blocking.RUNNABLE: 600.0}
BEFORE_LOOP_WAIT_S = 0.5
# A task that waits for so many things, one after the other, and makes no call, has something else
# to do: no outcome waits for it any more.
MOVES_MAX = 5
WARN_AFTER_S = 10.0  # and again each time that it has waited twice as long
SLEEPING_S = 2.0  # how soon it is said that a recovery waits for sleeps of the agent's own
# Turns of the event loop, for what an outcome has set going to come to rest. Code that never does
# (it asks again and again whether something is done) is waited for so long once, and then less.
TURNS_MAX, TURNS_WHEN_RESTLESS = 20_000, 50
# Of a loop that does not show what is ready to run: so many turns without a task that is. What goes
# on between two tasks (a group's counting of those that have ended) takes fewer.
QUIET_TURNS = 4
PAUSE_MAX_S = 0.05
GRACE_S = 0.1  # a thread that was woken may not have noticed yet
_OWN_THREADS = ("eventlog", "recovery-commit")


@dataclass(eq=False, slots=True)
class _Waiter:
    wait: WaitForTurn
    future: asyncio.Future[None]
    thread_of: Scope | None  # where in the run the thread is at work that waits; None: a task

    def wake(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class ReplayOrder:
    """The coroutines of a run in one event loop that wait for their turn.

    ``calls``: the code that has a call under way; ``at_home``: whether this is the loop in which
    the agent itself runs.
    """

    def __init__(self, run: Execution, calls: Collection[CodeType], at_home: bool) -> None:
        self._run, self._calls, self._at_home = run, calls, at_home
        self._loop = asyncio.get_running_loop()
        self._in_order: list[_Waiter] = []  # for an outcome, by its LSN
        self._new: list[_Waiter] = []  # with a new call
        self._timer: asyncio.Handle | None = None
        self._turns = self._idle = 0  # of the loop: since an outcome was handed on, in vain
        self._quiet = 0  # turns without a task of the agent that is ready to run
        self._restless = False  # whether the agent never came to rest, the last time
        self._seen: tuple[int, Blocking] | None = None
        self._since = self._warn_after = 0.0
        # What tasks that move were last seen to wait for, and how often that was something new.
        self._moves: WeakKeyDictionary[asyncio.Task[Any], tuple[Any, int]] = WeakKeyDictionary()
        self._has_seen_moves = False

    async def wait(self, wait: WaitForTurn, thread_of: Scope | None = None) -> bool:
        """Until it is the turn of this one; whether it is, or waiting is vain."""
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
        """The same for a thread that is not the loop's."""
        steps = self.wait(wait, self._run.current_scope())
        waiting = asyncio.run_coroutine_threadsafe(steps, self._loop)
        while not self._run.is_closed:
            done, _ = concurrent.futures.wait([waiting], PAUSE_MAX_S)
            if done:
                break
        waiting.cancel()
        return wait.ready()

    def at_rest(self) -> bool:
        """Whether nothing is ready to run in this loop but what asks, and other runs; False where
        nobody knows."""
        ready = getattr(self._loop, "_ready", None)
        # Copied, for other threads add to it.
        return ready is not None and not any(map(self._may_be_ours, tuple(ready)))

    def _rests(self) -> bool:
        """The same once a turn, whatever the loop shows: uvloop's does not say what is ready."""
        if hasattr(self._loop, "_ready"):
            return self.at_rest()
        ready = any(is_ready(task) for task, _ in tasks_of(self._run, self._loop))
        self._quiet = 0 if ready else self._quiet + 1
        return self._quiet >= QUIET_TURNS

    def _may_be_ours(self, handle: Any) -> bool:
        # What a run sets going has its context. Without one it may be for anybody.
        context = getattr(handle, "_context", None)
        scope = None if context is None else context.get(current_scope)
        return scope is None or scope.run is self._run

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
        """Everything is at rest: wake the one whose turn it is, or the first that waits in vain."""
        first = self._in_order[:1]
        chosen = [one for one in first if one.wait.ready()]
        if not chosen and (first or self._new) and self._is_stuck(bool(first)):
            chosen = first or self._new[:1]
        for waiter in chosen:
            waiter.wake()
            self._turns = self._idle = self._quiet = 0
            self._seen = None

    def _is_stuck(self, in_order: bool) -> bool:
        """Whether nobody comes to what is recorded any more, as far as one can know."""
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
        """What the agent's tasks wait for, and those that move by themselves."""
        ours = {waiter.future for waiter in (*self._in_order, *self._new)}
        # What goes on in the agent's own loop, or in threads, is not seen from another one.
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
    """How long to wait. Before the loop of steps of a resumed run calls may be left out, and others
    may be new."""
    return min(limits[held], BEFORE_LOOP_WAIT_S) if run.before_loop else limits[held]


def warn(run: Execution, waited: float, moving: Sequence[str]) -> None:
    """Say what a new call waits for, or the end of the agent."""
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
    """Says when a recovery waits for sleeps of the agent's own, which nobody has recorded."""

    def __init__(self, run: Execution, calls: Collection[CodeType]) -> None:
        self._run, self._calls = run, calls
        self._loop = asyncio.get_running_loop()
        self._matches, self._pause = run.replay.matches, SLEEPING_S
        self._timer = self._loop.call_later(self._pause, self._look)

    def _look(self) -> None:
        run = self._run
        if run.is_closed or run.replay.exhausted:
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
        """The run is over in this process."""
        self._timer.cancel()


class ThreadReplayOrder:
    """The same for the threads of a plain agent. Nobody sees when they have come to rest."""

    def __init__(self, run: Execution) -> None:
        self._run, self._home = run, threading.current_thread()
        self._before = frozenset(threading.enumerate())
        self._callers: WeakSet[threading.Thread] = WeakSet([self._home])

    def wait(self, wait: WaitForTurn) -> bool:
        """Until it is the turn of this thread; whether it is, or waiting is vain."""
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
        """Threads that may be at work for the agent."""
        return [
            thread
            for thread in threading.enumerate()
            if thread is not me
            and not thread.name.startswith(_OWN_THREADS)
            and (thread not in self._before or thread in self._callers)
        ]
