"""Performs the effects of calls, from async and from plain code."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable
from typing import Any, assert_never
from weakref import ref

from eventlog import LogError, WritableLog
from recovery.agent.replay_order import ReplayOrder, ThreadReplayOrder
from recovery.agent.shared_commits import GroupCommit, SharedRoundTrips
from recovery.calls.cancelled_calls import check_open, record_cancelled
from recovery.calls.carry_out_call import call_steps
from recovery.calls.child_runs import Children
from recovery.calls.invoking import invoke, invoke_sync
from recovery.declare.settings import Settings
from recovery.declare.spec import ToolSpec, is_generator
from recovery.engine.drive import drive, drive_async
from recovery.engine.driver_effects import Commit, Effect, Invoke, Perform, Sleep, WaitForTurn
from recovery.engine.execution import Execution
from recovery.engine.per_event_loop import of_loop
from recovery.history.checkpoint_store_base import CheckpointStoreBase
from recovery.history.load import History
from recovery.journal.call import Arguments

# After so many slow flushes in a row (one may be chance), a thread makes those of a single run,
# too. To hand one over takes 0.04 ms, and the loop has other work to do meanwhile.
SLOW_FLUSH_S, SLOW_FLUSHES = 0.001, 3

live_runs: set[Any] = set()  # async runs of this process


def refuse_generator(spec: ToolSpec) -> None:
    """TypeError for a generator function: a generator is no value that can be recorded."""
    if is_generator(spec.function) and not spec.waits:
        raise TypeError(
            f"{spec.name} is a generator function: `run.stream({spec.name}, ...)` gives what it "
            "yields, and records it. run.call is for functions that return"
        )


class Drivers(Execution):
    """The drivers of both kinds of runs: for calls from the agent's own loop, from other loops, and
    from threads."""

    def __init__(
        self, log: WritableLog, history: History, store: CheckpointStoreBase, settings: Settings
    ) -> None:
        super().__init__(log, history, store, settings)
        self.children: Children = Children(self, history.entries)
        history.entries = []  # frees the history, which the run does not need any more
        self.handle: ref[Any] | None = None  # the Run object that the agent holds
        self._home = threading.current_thread()
        # Tasks at calls that are safe to repeat (these, and those around them: LSNs), which a stop
        # of the run need not wait for; and those that were cancelled for that.
        self.interruptible: dict[asyncio.Task[Any], tuple[int, ...]] = {}
        self.interrupted: set[asyncio.Task[Any]] = set()
        # The loop of the agent itself, if it is async; tools may run others, in other threads.
        self._home_loop: asyncio.AbstractEventLoop | None = None
        self._turns_of: dict[asyncio.AbstractEventLoop, ReplayOrder] = {}
        self._threads = ThreadReplayOrder(self)
        self._slow_flushes = 0  # in a row

    def record_cancelled(self) -> None:
        self.park_for(record_cancelled(self))

    def check_open(self) -> None:
        check_open(self)

    def wall_clock(self) -> float:
        # On a server its clock decides; that of a simulated disk never moves.
        return self.log.time_ns() / 1e9 if self.store.backend.is_remote else time.time()

    # -- from async code

    async def perform_async(self, spec: ToolSpec, given: Arguments, call_id: str) -> Any:
        refuse_generator(spec)
        steps = call_steps(self, spec, given, call_id)
        return await drive_async(steps, self._perform_async, self.mutex)

    def _perform_async(self, effect: Effect) -> Awaitable[Any]:
        match effect:
            case WaitForTurn():
                return self._turns().wait(effect)
            case Commit():
                return self._commit()
            case Invoke(interruptible=True):
                return self._interruptible(effect)
            case Invoke():
                return invoke(effect)
            case Sleep():
                return asyncio.sleep(effect.seconds)
            case Perform():
                return drive_async(effect.body, self._perform_async, self.mutex)
            case _:
                assert_never(effect)

    def _turns(self) -> ReplayOrder:
        """The replay order of the present event loop."""
        loop = asyncio.get_running_loop()
        turns = self._turns_of.get(loop)
        if turns is None:
            turns = ReplayOrder(self, {invoke.__code__}, loop is self._home_loop)
            self._turns_of[loop] = turns
        return turns

    async def _interruptible(self, effect: Invoke) -> Any:
        task = asyncio.current_task()
        assert task is not None
        assert effect.scope is not None
        outer = self.interruptible.get(task, ())
        self.interruptible[task] = effect.scope.calls
        try:
            return await invoke(effect)
        except asyncio.CancelledError:
            if task in self.interrupted:
                self.interrupted.discard(task)
                task.uncancel()
                self.check()
            raise
        finally:
            self.interruptible[task] = outer
            if not outer:
                del self.interruptible[task]

    async def _commit(self) -> None:
        if self.log.group is not None:
            return await self._commit_on_server()
        # Without a flush there is nothing to wait for. For a single run, a flush takes less time
        # than a thread switch, unless the disk is slow. Otherwise other runs that are about to make
        # calls may share the flush.
        if self.log.durability != "power":
            self.commit()
        elif (
            len(live_runs) <= 1
            and self.in_flight <= 1
            and self._slow_flushes < SLOW_FLUSHES
            and self._turns().at_rest()
        ):
            self._flush()
        else:
            await of_loop(GroupCommit).commit(self._flush)

    def _flush(self) -> None:
        began = time.monotonic()
        self.commit()
        slow = time.monotonic() - began > SLOW_FLUSH_S
        self._slow_flushes = self._slow_flushes + 1 if slow else 0

    async def _commit_on_server(self) -> None:
        if self.log.durable_lsn >= self.log.last_lsn:
            return
        try:
            await of_loop(SharedRoundTrips).commit(self.log)
        except LogError as exc:
            self.stop(exc)

    # -- from plain code

    def perform_sync(self, spec: ToolSpec, given: Arguments, call_id: str) -> Any:
        refuse_generator(spec)
        return drive(call_steps(self, spec, given, call_id), self._perform_sync, self.mutex)

    def _perform_sync(self, effect: Effect) -> Any:
        match effect:
            case WaitForTurn():
                return effect.ready() or self._wait_sync(effect)
            case Commit():
                return self.commit()
            case Invoke():
                return invoke_sync(effect)
            case Sleep():
                return time.sleep(effect.seconds)
            case Perform():
                return drive(effect.body, self._perform_sync, self.mutex)
            case _:
                assert_never(effect)

    def _wait_sync(self, wait: WaitForTurn) -> bool | None:
        if self._home_loop is None:
            return self._threads.wait(wait)
        if threading.current_thread() is not self._home:
            return self._turns_of[self._home_loop].wait_in_thread(wait)
        return False if self.alone() else None  # no other task can run meanwhile
