"""Runs as agents see them, and the two drivers that perform what a call's protocol asks for."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ALL_COMPLETED, Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar, Unpack, overload

from eventlog import EventLog
from recovery.agent.drivers import Drivers, live_runs
from recovery.agent.replay_order import Watch
from recovery.agent.steps import Steps, SyncSteps
from recovery.agent.unawaited import Unawaited, noted
from recovery.agent_code.warn_once import warn_of_tasks_left
from recovery.calls.cancelled_calls import until_done_again
from recovery.calls.child_runs import Runner
from recovery.calls.invoking import invoke
from recovery.calls.waiting import SLEEP, WAIT_FOR, sleep_arguments, wait_for_arguments
from recovery.declare.scope import Scope
from recovery.declare.settings import ChildOptions, Settings
from recovery.declare.spec import ToolSpec, spec_of
from recovery.engine.drive import drive, drive_async
from recovery.engine.execution import Execution
from recovery.engine.task_state import place_of_call, tasks_of
from recovery.errors import NotAwaitedError
from recovery.history.checkpoint_store_base import CheckpointStoreBase
from recovery.history.load import History
from recovery.journal.call import Arguments
from recovery.journal.events import RunFinished
from recovery.journal.keys import step_of
from recovery.values.type_variables import Chunk, Chunks

if TYPE_CHECKING:
    from recovery.calls.stream import Stream, SyncStream

R = TypeVar("R")
P = ParamSpec("P")
F = TypeVar("F", bound=asyncio.Future[Any])

LEAVE_S = 0.1  # for an agent function to end by itself when its run was stopped


def _undoing(run: Execution, since: int, tools: Iterable[Callable[..., Any]]) -> ToolSpec:
    from recovery.calls.undo import prepare  # noqa: PLC0415 - only where it is used

    return prepare(run, since, tools)


class Run(Drivers):
    """A run as an async agent sees it.

    ``task``, ``run_id``; ``state`` (a dict) and ``messages`` (a list), which checkpoints restore;
    ``step``; ``now()``, ``random()``, ``uuid()``, which are recorded; ``steps()``, ``call()``,
    ``stream()``, ``undo()``.
    """

    is_async = True

    def __init__(
        self, log: EventLog, history: History, store: CheckpointStoreBase, settings: Settings
    ) -> None:
        super().__init__(log, history, store, settings)
        self._root = asyncio.current_task()
        self._cancelling = self._cancels()  # those of before
        self._was_cancelled = False
        self.unawaited = Unawaited()
        self._loop = self._home_loop = asyncio.get_running_loop()
        self._turns()
        calls = {invoke.__code__}
        self._watch = None if self.replay.used_up else Watch(self, calls)

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
        """Do not wait for what does no harm when it is cut short: calls that are safe to repeat,
        neither inside of a side effect nor around one, and an agent that waits for anything but
        calls."""
        busy = {lsn for one in self.under_way.values() for lsn in one.calls}
        tasks = {task for task, calls in self.interruptible.items() if busy.isdisjoint(calls)}
        if not self.in_flight and self._root is not None:
            tasks.add(self._root)
        self._cancel(tasks)
        if len(tasks) < len(self.interruptible):  # there are side effects inside the others
            self._loop.call_later(LEAVE_S, self._interrupt)

    def stop(self, error: Exception) -> NoReturn:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._loop.call_later, LEAVE_S, self._leave)
        super().stop(error)

    def _leave(self) -> None:
        """The agent function has not ended by the stop: it may wait for a task that has."""
        if self._root is None:
            return
        if self.in_flight:  # calls that are under way get to their end
            self._loop.call_later(LEAVE_S, self._leave)
        else:
            self._cancel({self._root})

    def _cancel(self, tasks: set[asyncio.Task[Any]]) -> None:
        for task in tasks - self.interrupted:
            self.interrupted.add(task)
            task.cancel()

    async def returned(self) -> None:
        """The agent function has returned: what its other tasks may still do, and are in."""
        await drive_async(until_done_again(self), self._perform_async, self.mutex)
        if self.in_flight:
            calls = {drive_async.__code__}
            places = {place_of_call(task, calls) for task, _ in tasks_of(self, self._loop)}
            warn_of_tasks_left(self.run_id, sorted(places - {""}))

    def left(self) -> None:
        """The agent function has ended, by itself or because of the run."""
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
            return False  # the agent itself may do more
        return not any(self._other_tasks())

    def outlived(self) -> bool:
        # One that has made no call yet counts too, for it may be about to. One that was started
        # before the first step does not: the code that resumes starts it again. To look at the
        # tasks takes as long as there are tasks of all runs.
        return bool(self.steps_held) and any(
            scope.call is None and step_of(scope.path) for scope in self._other_tasks()
        )

    def _other_tasks(self) -> Iterator[Scope]:
        """Where the agent started its tasks that have not ended, but for the present one."""
        # Those in which other runs are at work are none of them, and may be many.
        others = {run._root for run in tuple(live_runs)} - {self._root}
        others.add(asyncio.current_task())
        for _, scope in tasks_of(self, asyncio.get_running_loop(), others):
            yield scope

    @overload
    def call(
        self, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def call(
        self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def call(  # type: ignore[overload-cannot-match]  # it is, by calls with a call_id
        self, function: Callable[..., Awaitable[R]], /, *args: Any, call_id: str, **kwargs: Any
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def call(  # type: ignore[overload-cannot-match]  # it is, by calls with a call_id
        self, function: Callable[..., R], /, *args: Any, call_id: str, **kwargs: Any
    ) -> Coroutine[Any, Any, R]: ...
    def call(
        self, function: Callable[..., Any], /, *args: Any, call_id: Any = "", **kwargs: Any
    ) -> Coroutine[Any, Any, Any]:
        """Call a function, sync (in a thread) or async, so that it is never executed twice.

        What it returns, or raises, is recorded and served from the log ever after. ``call_id`` is
        the model's id for the call, if there is one; it tells equal calls of a step apart. The
        arguments and the result must be values that can be carried (RefusedValueError names what
        cannot). A function that is no ``@tool`` is taken for a side effect that parks the run when
        a crash leaves it in doubt.
        """
        spec, token = spec_of(function), object()
        made = self._called(token, spec, (args, kwargs), call_id)
        return self.unawaited.made(token, made, f"run.call({spec.name}, ...)", sys._getframe(1))

    async def _called(self, token: object, spec: ToolSpec, given: Arguments, call_id: str) -> Any:
        self.unawaited.started(token)
        return await self.perform_async(spec, given, call_id)

    @overload
    def stream(
        self, function: Callable[P, Chunks[Chunk]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Stream[Chunk]: ...
    @overload
    def stream(  # type: ignore[overload-cannot-match]  # the same
        self, function: Callable[..., Chunks[Chunk]], /, *args: Any, call_id: str, **kwargs: Any
    ) -> Stream[Chunk]: ...
    def stream(
        self, function: Callable[..., Any], /, *args: Any, call_id: Any = "", **kwargs: Any
    ) -> Stream:
        """Call a generator function, async or plain (in a thread), and get its chunks live.

        Use it with ``async for``, in an ``async with`` block where the loop may be left early. The
        call is like any other: what the chunks make up is its recorded outcome, ``stream.result``
        (``@tool(combine=...)``; of text and bytes they are joined, of others a list). On replay
        nothing is executed, and the chunks are made from the outcome. See docs/streaming.md.
        """
        return self.open_stream(spec_of(function), (args, kwargs), call_id)

    def open_stream(self, spec: ToolSpec, given: Arguments, call_id: str) -> Stream:
        from recovery.calls.stream import Stream  # noqa: PLC0415 - only where it is used

        return Stream(self, self._perform_async, spec, given, call_id)

    @noted
    async def undo(
        self, since: int = 0, tools: Iterable[Callable[..., Any]] = ()
    ) -> list[dict[str, Any]]:
        """Undo what the run has done: make the compensations (``@tool(undo=...)``) of its calls.

        Those of all calls that have returned, newest first, each a recorded call of its own; once
        only, however often this is called and whatever crashes. ``since``: only of calls made after
        that step began. ``tools`` are needed for tools that are defined inside functions and were
        last called before a checkpoint. Returns what was undone, newest call first: dicts of call
        (LSN), tool, call_id, and result (of the compensation).

        Raises UndoError when a compensation fails: it stops there, and goes on there when called
        again. Parks (InDoubtError) for a compensation that a crash left in doubt, and before
        anything is undone if a call that can be undone is itself in doubt.
        """
        return await self.perform_async(_undoing(self, since, tools), ((since,), {}), "")  # type: ignore[no-any-return]

    @overload
    def child(
        self,
        agent_fn: Callable[[Any], Awaitable[R]],
        task: Any,
        *,
        name: str = "",
        **options: Unpack[ChildOptions],
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def child(
        self,
        agent_fn: Runner[R],
        task: Any,
        *,
        name: str = "",
        **options: Unpack[ChildOptions],
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def child(
        self,
        agent_fn: Callable[[Any], R],
        task: Any,
        *,
        name: str = "",
        **options: Unpack[ChildOptions],
    ) -> Coroutine[Any, Any, R]: ...
    @noted
    async def child(
        self,
        agent_fn: Callable[[Any], Any] | Runner[Any],
        task: Any,
        *,
        name: str = "",
        **options: Unpack[ChildOptions],
    ) -> Any:
        """Run another agent on ``task``, in a run of its own, and return what it returned.

        A call like any other: recorded, started once, served from the log ever after. The child
        has its own log, in the same store, and is resumed with its parent. ``agent_fn``: an agent
        function, async or plain (in a thread), or a RecoverableAgent of the same store; what calls
        it is part of the call's identity by its name, and so are the task and ``name``, which tells
        equal children apart.

        ``options``, for a function: those of a RecoverableAgent, by name: ``checkpoint_every_n``,
        ``max_recoveries``, ``after_crash``, ``stop_on``, ``max_children``, ``on_event``,
        ``budget``, ``checkpoint_every_bytes``, ``park_after_s``, ``check_locals``, ``on_drift``.

        Raises ChildFailedError when the child failed. When it cannot go on (in doubt, stopped, ...)
        the run parks with a ChildParkedError as soon as its other calls have got to their end.
        """
        return await self.perform_async(*self.children.call(agent_fn, task, name, options), "")

    @noted
    async def sleep(self, seconds: float) -> None:
        """Sleep until ``seconds`` from when this line first ran, over crashes and restarts.

        By the wall clock: set forward it ends the sleep, set back it makes it longer by at most
        ``seconds``. With ``park_after_s`` (see Options) no process needs to wait with the run.
        """
        await self.perform_async(SLEEP, sleep_arguments(self, seconds), "")

    @overload
    async def wait_for(self, name: str, timeout: float | None = None) -> Any: ...  # noqa: ASYNC109

    @overload
    async def wait_for(
        self,
        name: tuple[str, ...],
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> tuple[str, Any]: ...

    @noted
    async def wait_for(
        self,
        name: str | tuple[str, ...],
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> Any:
        """Wait for signal ``name`` from outside (``RunHandle.signal``); the value sent with it.

        Each wait takes the next signal of this name, in the order sent; one that was sent before
        the wait began counts. It is taken when the agent has it: a wait that is cancelled leaves it
        to the next one. For a tuple of names: the first signal of any of them, as the pair of its
        name and its value.

        ``timeout``: seconds from when this line first ran. Without a signal that was sent by then
        it raises TimeoutError; one that was sent later is for the next wait. What came of it is
        recorded.
        """
        return await self.perform_async(WAIT_FOR, wait_for_arguments(self, name, timeout), "")

    @noted
    async def wait(
        self,
        tasks: Iterable[F],
        *,
        timeout: float | None = None,  # noqa: ASYNC109
        return_when: str = asyncio.ALL_COMPLETED,
    ) -> tuple[list[F], list[F]]:
        """Wait for tasks as ``asyncio.wait`` does: (done, pending), as lists.

        ``done`` is in the order in which the tasks ended. Which ones had, and that order, is
        recorded, so an agent that goes by it does the same on replay. ``tasks``: a list of tasks or
        futures, in an order that the code determines (TypeError for a set). ``timeout``: seconds;
        one that ran out is not waited for again.
        """
        from recovery.calls.wait_tasks import wait  # noqa: PLC0415 - only where it is used

        return await wait(self, tasks, timeout, return_when)

    def steps(self) -> AsyncIterator[int]:
        """The steps of the run, numbered from 1, without end: leave the loop to end it.

        A checkpoint is taken between steps. Only ``state`` and ``messages`` are carried over one:
        after a crash the agent function is called again with these, and the loop goes on behind the
        last checkpoint. Local variables are fresh then, unless ``checkpoint_every_n`` is None.
        """
        self.loop.claim(sys._getframe(1))
        return Steps(self)


class SyncRun(Drivers):
    """A run as a plain agent sees it: as Run, with nothing to await."""

    def returned(self) -> None:
        """See Run.returned."""
        drive(until_done_again(self), self._perform_sync, self.mutex)

    def alone(self) -> bool:
        return threading.current_thread() is self._home and not self.in_flight

    @overload
    def call(
        self, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    @overload
    def call(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    def call(  # type: ignore[overload-cannot-match]  # it is, by calls with a call_id
        self, function: Callable[..., Awaitable[R]], /, *args: Any, call_id: str, **kwargs: Any
    ) -> R: ...
    @overload
    def call(  # type: ignore[overload-cannot-match]  # the same
        self, function: Callable[..., R], /, *args: Any, call_id: str, **kwargs: Any
    ) -> R: ...
    def call(
        self, function: Callable[..., Any], /, *args: Any, call_id: Any = "", **kwargs: Any
    ) -> Any:
        """Call a function, sync or async, so that it is never executed twice; see ``Run.call``."""
        return self.perform_sync(spec_of(function), (args, kwargs), call_id)

    @overload
    def stream(
        self, function: Callable[P, Chunks[Chunk]], /, *args: P.args, **kwargs: P.kwargs
    ) -> SyncStream[Chunk]: ...
    @overload
    def stream(  # type: ignore[overload-cannot-match]  # the same
        self, function: Callable[..., Chunks[Chunk]], /, *args: Any, call_id: str, **kwargs: Any
    ) -> SyncStream[Chunk]: ...
    def stream(
        self, function: Callable[..., Any], /, *args: Any, call_id: Any = "", **kwargs: Any
    ) -> SyncStream:
        """Call a generator function, and get its chunks live with ``for``; see ``Run.stream``."""
        return self.open_stream(spec_of(function), (args, kwargs), call_id)

    def open_stream(self, spec: ToolSpec, given: Arguments, call_id: str) -> SyncStream:
        from recovery.calls.stream import SyncStream  # noqa: PLC0415 - only where it is used

        return SyncStream(self, self._perform_sync, spec, given, call_id)

    def undo(
        self, since: int = 0, tools: Iterable[Callable[..., Any]] = ()
    ) -> list[dict[str, Any]]:
        """Undo what the run has done; see ``Run.undo``."""
        return self.perform_sync(_undoing(self, since, tools), ((since,), {}), "")  # type: ignore[no-any-return]

    @overload
    def child(
        self,
        agent_fn: Callable[[Any], Awaitable[R]],
        task: Any,
        *,
        name: str = "",
        **options: Unpack[ChildOptions],
    ) -> R: ...
    @overload
    def child(
        self,
        agent_fn: Runner[R],
        task: Any,
        *,
        name: str = "",
        **options: Unpack[ChildOptions],
    ) -> R: ...
    @overload
    def child(
        self,
        agent_fn: Callable[[Any], R],
        task: Any,
        *,
        name: str = "",
        **options: Unpack[ChildOptions],
    ) -> R: ...
    def child(
        self,
        agent_fn: Callable[[Any], Any] | Runner[Any],
        task: Any,
        *,
        name: str = "",
        **options: Unpack[ChildOptions],
    ) -> Any:
        """Run another agent on ``task``, in a run of its own; see ``Run.child``.

        A plain agent runs in this thread, an async one in an event loop of its own.
        """
        return self.perform_sync(*self.children.call(agent_fn, task, name, options), "")

    def sleep(self, seconds: float) -> None:
        """Sleep until ``seconds`` from when this line first ran; see ``Run.sleep``."""
        self.perform_sync(SLEEP, sleep_arguments(self, seconds), "")

    @overload
    def wait_for(self, name: str, timeout: float | None = None) -> Any: ...

    @overload
    def wait_for(self, name: tuple[str, ...], timeout: float | None = None) -> tuple[str, Any]: ...

    def wait_for(self, name: str | tuple[str, ...], timeout: float | None = None) -> Any:
        """Wait for signal ``name`` from outside; see ``Run.wait_for``."""
        return self.perform_sync(WAIT_FOR, wait_for_arguments(self, name, timeout), "")

    def wait(
        self,
        futures: Iterable[Future[R]],
        *,
        timeout: float | None = None,
        return_when: str = ALL_COMPLETED,
    ) -> tuple[list[Future[R]], list[Future[R]]]:
        """Wait for futures of thread pools as ``concurrent.futures.wait`` does; see ``Run.wait``.

        ``done`` is in the order of ``futures``.
        """
        from recovery.calls.wait_tasks import wait_sync  # noqa: PLC0415 - only where it is used

        return wait_sync(self, futures, timeout, return_when)

    def steps(self) -> Iterator[int]:
        """The steps of the run, numbered from 1, without end; see ``Run.steps``."""
        self.loop.claim(sys._getframe(1))
        return SyncSteps(self)
