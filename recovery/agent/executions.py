"""Executes the two kinds of agents: async ones, and plain ones."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, cast

from eventlog import WritableLog
from recovery.agent.drivers import Drivers, live_runs
from recovery.agent.replay_order import Watch
from recovery.agent.unawaited_calls import Unawaited
from recovery.agent_code.warn_once import warn_of_tasks_left
from recovery.calls.cancelled_calls import until_done_again
from recovery.calls.invoking import invoke
from recovery.declare.scope import Scope
from recovery.declare.settings import Settings
from recovery.declare.spec import ToolSpec
from recovery.engine.drive import drive, drive_async
from recovery.engine.task_state import place_of_call, tasks_of
from recovery.errors import NotAwaitedError
from recovery.history.checkpoint_store_base import CheckpointStoreBase
from recovery.history.load import History
from recovery.journal.call import Arguments
from recovery.journal.call_key import step_of
from recovery.journal.events import RunFinished

if TYPE_CHECKING:
    from recovery.calls.stream import Stream, SyncStream

LEAVE_S = 0.1  # for an agent function to end by itself when its run was stopped


class AsyncExecution(Drivers):
    """One execution of an async agent."""

    is_async = True

    def __init__(
        self, log: WritableLog, history: History, store: CheckpointStoreBase, settings: Settings
    ) -> None:
        super().__init__(log, history, store, settings)
        self._root = asyncio.current_task()
        self._cancelling = self._cancels()  # cancellations before the agent began
        self._was_cancelled = False
        self.unawaited = Unawaited()
        self._loop = self._home_loop = asyncio.get_running_loop()
        self._turns()
        calls = {invoke.__code__}
        self._watch = None if self.replay.exhausted else Watch(self, calls)

    def close(self) -> None:
        super().close()
        if self._watch is not None:
            self._watch.end()

    def finish(self, result: Any) -> RunFinished:
        try:
            self.unawaited.check(self.run_id)
        except NotAwaitedError as exc:
            self.stop(exc)
        return super().finish(result)

    def cancel(self, error: Exception) -> None:
        super().cancel(error)
        with suppress(RuntimeError):  # the loop is closed: the run is over
            self._loop.call_soon_threadsafe(self._interrupt)

    def _interrupt(self) -> None:
        """Interrupt what is harmless to interrupt: calls that are safe to repeat, neither inside a
        side effect nor around one, and an agent that waits for something else than calls."""
        busy = {lsn for one in list(self.side_effects_in_flight.values()) for lsn in one.calls}
        interruptible = list(self.interruptible.items())  # tools in threads may have loops, too
        tasks = {task for task, calls in interruptible if busy.isdisjoint(calls)}
        if not self.in_flight and self._root is not None:
            tasks.add(self._root)
        self._cancel(tasks)
        if len(tasks) < len(interruptible):  # there are side effects inside the others
            self._loop.call_later(LEAVE_S, self._interrupt)

    def stop(self, error: Exception) -> NoReturn:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._loop.call_later, LEAVE_S, self._leave)
        super().stop(error)

    def _leave(self) -> None:
        """Cancel an agent function that the stop has not ended: it may wait for a task that
        ended."""
        if self._root is None:
            return
        if self.in_flight:  # calls in flight end first
            self._loop.call_later(LEAVE_S, self._leave)
        else:
            self._cancel({self._root})

    def _cancel(self, tasks: set[asyncio.Task[Any]]) -> None:
        for task in tasks - self.interrupted:
            self.interrupted.add(task)
            task.cancel()

    async def returned(self) -> None:
        """Wait, after the agent function has returned, for the replay and streams of its other
        tasks."""
        await drive_async(until_done_again(self), self._perform_async, self.mutex)
        if self.in_flight:
            calls = {drive_async.__code__}
            places = {place_of_call(task, calls) for task, _ in tasks_of(self, self._loop)}
            warn_of_tasks_left(self.run_id, sorted(places - {""}))

    def agent_returned(self) -> None:
        """Note that the agent function has ended, by itself or by a stop of the run."""
        self._was_cancelled = self.is_being_cancelled()
        root, self._root = self._root, None
        if root is not None and root in self.interrupted:
            root.uncancel()

    def _cancels(self) -> int:
        own = self._root in self.interrupted  # by a stop of the run
        return self._root.cancelling() - own if self._root is not None else 0

    def is_being_cancelled(self) -> bool:
        return self._was_cancelled or self._cancels() > self._cancelling

    def alone(self) -> bool:
        if asyncio._get_running_loop() is None or asyncio.current_task() is not self._root:
            return False  # the agent itself may make more calls
        return not any(self._other_tasks())

    def outlived(self) -> bool:
        # A task that has made no call yet counts too, because it may be about to. One that was
        # started before the first step does not: the resumed code starts it again. The check takes
        # time in proportion to the tasks of all runs.
        return bool(self.steps_held) and any(
            scope.call is None and step_of(scope.path) for scope in self._other_tasks()
        )

    def _other_tasks(self) -> Iterator[Scope]:
        """The scopes in which the agent started its tasks that have not ended, except the present
        task."""
        # Tasks that execute other runs do not belong to it, and may be many.
        others = {run._root for run in tuple(live_runs)} - {self._root}
        others.add(asyncio.current_task())
        for _, scope in tasks_of(self, asyncio.get_running_loop(), others):
            yield scope

    def open_stream(self, spec: ToolSpec, given: Arguments, call_id: str) -> Stream:
        from recovery.calls.stream import Stream, SyncStream  # noqa: PLC0415 - only where it is used

        if asyncio._get_running_loop() is None:  # a plain tool in its thread
            return cast("Stream", SyncStream(self, self._perform_sync, spec, given, call_id))
        return Stream(self, self._perform_async, spec, given, call_id)


class SyncExecution(Drivers):
    """One execution of a plain agent."""

    def returned(self) -> None:
        """See AsyncExecution.returned."""
        drive(until_done_again(self), self._perform_sync, self.mutex)

    def alone(self) -> bool:
        return threading.current_thread() is self._home and not self.in_flight

    def open_stream(self, spec: ToolSpec, given: Arguments, call_id: str) -> SyncStream:
        from recovery.calls.stream import SyncStream  # noqa: PLC0415 - only where it is used

        return SyncStream(self, self._perform_sync, spec, given, call_id)
