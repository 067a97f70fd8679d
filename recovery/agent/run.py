"""Provides Run and SyncRun: the objects that agent functions receive."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ALL_COMPLETED, Future
from dataclasses import astuple
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, cast, overload
from weakref import ref

from recovery.agent.drivers import Drivers
from recovery.agent.executions import AsyncExecution, SyncExecution
from recovery.agent.steps import Steps, SyncSteps
from recovery.agent.unawaited_calls import Token, noted
from recovery.calls.child_runs import Runner
from recovery.calls.waiting import SLEEP, WAIT_FOR, sleep_arguments, wait_for_arguments
from recovery.declare.scope import current_scope
from recovery.declare.settings import ChildOptions
from recovery.declare.spec import ToolSpec, spec_to_call
from recovery.engine.execution import Execution
from recovery.engine.randomness import a_number, an_id
from recovery.journal.call import Arguments
from recovery.journal.messages import Messages
from recovery.journal.usage import Usage
from recovery.values.type_variables import Chunk, Chunks

if TYPE_CHECKING:
    from recovery.calls.stream import Stream, SyncStream

R = TypeVar("R")
P = ParamSpec("P")
F = TypeVar("F", bound=asyncio.Future[Any])


def _undoing(run: Execution, since: int, tools: Iterable[Callable[..., Any]]) -> ToolSpec:
    from recovery.calls.undo import prepare  # noqa: PLC0415 - only where it is used

    return prepare(run, since, tools)


async def _called(
    execution: AsyncExecution, token: Token, spec: ToolSpec, given: Arguments, call_id: str
) -> Any:
    execution.unawaited.started(token)
    return await execution.perform_async(spec, given, call_id)


class _RunBase:
    """The common part of both kinds of runs."""

    __slots__ = ("__weakref__", "_execution")
    _execution: Drivers

    @property
    def task(self) -> Any:
        """The run's task: a copy."""
        return self._execution.task

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self._execution.run_id

    @property
    def recovery_count(self) -> int:
        """How often the run was recovered, by any process. Differs on replay."""
        return self._execution.recovery_count

    @property
    def step(self) -> int:
        """The present step, from 1; 0 before the loop of steps."""
        return self._execution.step

    @property
    def state(self) -> dict[str, Any]:
        """The values that must survive a crash between steps: a dict, saved with each
        checkpoint."""
        return self._execution.loop.state

    @state.setter
    def state(self, value: dict[str, Any]) -> None:
        self._execution.loop.state.become(value)

    @property
    def messages(self) -> Messages:
        """The conversation: a list of which every change is recorded."""
        return self._execution.loop.messages

    @messages.setter
    def messages(self, value: list[Any]) -> None:
        messages = self._execution.loop.messages
        if value is not messages:  # `run.messages += [...]` assigns the list to itself
            messages[:] = value

    def now(self) -> float:
        """Seconds since 1970, as they were when this line first ran."""
        return float(self._execution.recorded_value("now", time.time))

    def random(self) -> float:
        """A random number in [0, 1), the same on replay."""
        return float(self._execution.recorded_value("random", a_number))

    def uuid(self) -> str:
        """A new UUID, the same on replay."""
        return str(self._execution.recorded_value("uuid", an_id))

    def usage(self) -> Usage:
        """The usage of the run so far, over all its processes; the same on replay."""
        execution = self._execution
        return Usage(*execution.recorded_value("usage", lambda: list(astuple(execution.used()))))


def current_run() -> Run | SyncRun | None:
    """The run in whose agent the present code runs: the object that the agent function was given.

    A Run if the agent is async, and a SyncRun if it is plain, whatever kind the present code is.
    None outside of a run. Works in all functions that the agent calls, in its tasks, and in nodes
    of a graph. It works in threads that have its context (``asyncio.to_thread``,
    ``contextvars.copy_context``). In the agent of a child run it is the child's.

    Inside a tool it is the run that called the tool, and the calls made with it are nested in the
    tool's call. A plain tool of an async agent cannot await ``Run.call``; and ``SyncRun.call``
    cannot await in an event loop. There, call a tool directly: that works in both kinds of code.
    """
    scope = current_scope.get()
    execution = scope.run if scope is not None else None
    if not isinstance(execution, AsyncExecution | SyncExecution):
        return None
    held = execution.handle() if execution.handle is not None else None
    if held is None:  # the agent function keeps it no more
        held = Run(execution) if isinstance(execution, AsyncExecution) else SyncRun(execution)
    return cast("Run | SyncRun", held)


def execution_of(run: _RunBase) -> Drivers:
    """The execution behind a Run or SyncRun, for the library's own use."""
    return run._execution


class Run(_RunBase):
    """A run as an async agent sees it.

    ``task``, ``run_id``; ``state`` (a dict) and ``messages`` (a list), which checkpoints restore;
    ``step``; ``now()``, ``random()``, ``uuid()``, which are recorded; ``steps()``, ``call()``,
    ``stream()``, ``undo()``.
    """

    __slots__ = ()
    _execution: AsyncExecution

    def __init__(self, execution: AsyncExecution) -> None:
        """Not for users: agents are given their run."""
        self._execution = execution
        execution.handle = ref(self)

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

        Its result, or exception, is recorded and served from the log ever after.

        Args:
            function: A tool, or any function. One that is no ``@tool`` counts as a side effect that
                parks the run when a crash leaves it in doubt.
            *args: Its arguments. They and the result must be values that can be carried
                (RefusedValueError names the value that cannot).
            call_id: The model's id for the call, if there is one (""). It distinguishes equal calls
                of a step.
            **kwargs: Its arguments by name.
        """
        spec, token = spec_to_call(function), Token()
        execution = self._execution
        made = _called(execution, token, spec, (args, kwargs), call_id)
        what = f"run.call({spec.name}, ...)"
        return execution.unawaited.made(token, made, what, sys._getframe(1))

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

        ``function``, ``*args``, ``call_id`` and ``**kwargs``: as for ``Run.call``. Use it with
        ``async for``, in an ``async with`` block where the loop may be left early. The call is like
        any other: its chunks are combined into its recorded outcome, ``stream.result``
        (``@tool(combine=...)``; text and bytes are joined, others make a list). On replay
        nothing is executed, and the chunks are made from the outcome. See docs/streaming.md.
        """
        return self._execution.open_stream(spec_to_call(function), (args, kwargs), call_id)

    @noted
    async def undo(
        self, since: int = 0, tools: Iterable[Callable[..., Any]] = ()
    ) -> list[dict[str, Any]]:
        """Undo the run's calls: make their compensations (``@tool(undo=...)``).

        All calls that have returned are compensated, newest first. Each compensation is a recorded
        call of its own, and is made once, however often this is called and whatever crashes.
        ``since``: only calls made after that step began. ``tools`` are needed for tools that are
        defined inside functions and were last called before a checkpoint. Returns the undone calls,
        newest first: dicts of call (LSN), tool, call_id, and result (of the compensation).

        Raises UndoError when a compensation fails: it stops there, and the next call of undo
        continues there. Parks (InDoubtError) for a compensation that a crash left in doubt. If a
        call that can be undone is itself in doubt, it parks before anything is undone.
        """
        execution = self._execution
        spec = _undoing(execution, since, tools)
        return await execution.perform_async(spec, ((since,), {}), "")  # type: ignore[no-any-return]

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
        """Run another agent on ``task``, in a run of its own, and return its result.

        A call like any other: recorded, started once, served from the log ever after. The child
        has its own log, in the same store, and is resumed with its parent.

        Args:
            agent_fn: An agent function, async or plain (in a thread), or a RecoverableAgent of the
                same store. Its name is part of the call's identity.
            task: The child's task; part of the identity.
            name: Distinguishes children with the same function and task (""); part of the identity.
            **options: For a function, those of a RecoverableAgent, with the same defaults:
                ``checkpoint_every_n``, ``checkpoint_every_bytes``, ``max_recoveries``,
                ``after_crash``, ``stop_on``, ``park_after_s``, ``budget``, ``max_children``,
                ``on_event``, ``check_locals``, ``on_drift``, ``subject``,
                ``on_forgotten``.

        Raises ChildFailedError when the child failed. When it cannot continue (in doubt, stopped,
        ...), the run parks with a ChildParkedError as soon as its other calls have ended.
        """
        execution = self._execution
        made = execution.children.call(agent_fn, task, name, options)
        return await execution.perform_async(*made, "")

    @noted
    async def sleep(self, seconds: float) -> None:
        """Sleep until ``seconds`` from when this line first ran, over crashes and restarts.

        By the wall clock: set forward it ends the sleep, set back it makes it longer by at most
        ``seconds``. With ``park_after_s`` (see Options) no process needs to wait with the run.
        """
        await self._execution.perform_async(SLEEP, sleep_arguments(self._execution, seconds), "")

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
        the wait began counts. It is taken when the agent receives it: a wait that is cancelled
        leaves it to the next one. For a tuple of names: the first signal of any of them, as the
        pair of its name and its value.

        ``timeout``: seconds from when this line first ran (None: no limit). Without a signal that
        was sent by then it raises TimeoutError; one that was sent later is for the next wait. The
        outcome is recorded.
        """
        execution = self._execution
        given = wait_for_arguments(execution, name, timeout)
        return await execution.perform_async(WAIT_FOR, given, "")

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
        recorded, so an agent that uses it does the same on replay. ``tasks``: a list of tasks or
        futures, in an order that the code determines (TypeError for a set). ``timeout``: seconds
        (None: no limit); one that ran out is not waited for again. ``return_when``: a constant of
        asyncio, ``ALL_COMPLETED`` by default.
        """
        from recovery.calls.wait_tasks import wait  # noqa: PLC0415 - only where it is used

        return await wait(self._execution, tasks, timeout, return_when)

    def steps(self) -> AsyncIterator[int]:
        """The steps of the run, numbered from 1, without end: leave the loop to end it.

        A checkpoint is taken between steps, and holds only ``state`` and ``messages``. After a
        crash the agent function is called again with these, and the loop continues after the last
        checkpoint. Local variables are fresh then, unless ``checkpoint_every_n`` is None.
        """
        self._execution.loop.claim(self, sys._getframe(1))
        return Steps(self._execution)


class SyncRun(_RunBase):
    """A run as a plain agent sees it: like Run, without awaiting."""

    __slots__ = ()
    _execution: SyncExecution

    def __init__(self, execution: SyncExecution) -> None:
        """Not for users: agents are given their run."""
        self._execution = execution
        execution.handle = ref(self)

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
        return self._execution.perform_sync(spec_to_call(function), (args, kwargs), call_id)

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
        return self._execution.open_stream(spec_to_call(function), (args, kwargs), call_id)

    def undo(
        self, since: int = 0, tools: Iterable[Callable[..., Any]] = ()
    ) -> list[dict[str, Any]]:
        """Undo the run's calls; see ``Run.undo``."""
        execution = self._execution
        spec = _undoing(execution, since, tools)
        return execution.perform_sync(spec, ((since,), {}), "")  # type: ignore[no-any-return]

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
        execution = self._execution
        made = execution.children.call(agent_fn, task, name, options)
        return execution.perform_sync(*made, "")

    def sleep(self, seconds: float) -> None:
        """Sleep until ``seconds`` from when this line first ran; see ``Run.sleep``."""
        self._execution.perform_sync(SLEEP, sleep_arguments(self._execution, seconds), "")

    @overload
    def wait_for(self, name: str, timeout: float | None = None) -> Any: ...

    @overload
    def wait_for(self, name: tuple[str, ...], timeout: float | None = None) -> tuple[str, Any]: ...

    def wait_for(self, name: str | tuple[str, ...], timeout: float | None = None) -> Any:
        """Wait for signal ``name`` from outside; see ``Run.wait_for``."""
        execution = self._execution
        return execution.perform_sync(WAIT_FOR, wait_for_arguments(execution, name, timeout), "")

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

        return wait_sync(self._execution, futures, timeout, return_when)

    def steps(self) -> Iterator[int]:
        """The steps of the run, numbered from 1, without end; see ``Run.steps``."""
        self._execution.loop.claim(self, sys._getframe(1))
        return SyncSteps(self._execution)
