"""Runs as agents see them: what an agent function is given, and nothing of the runtime."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ALL_COMPLETED, Future
from dataclasses import astuple
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, overload

from recovery.agent.drivers import Drivers
from recovery.agent.executions import AsyncExecution, SyncExecution
from recovery.agent.steps import Steps, SyncSteps
from recovery.agent.unawaited_calls import noted
from recovery.calls.child_runs import Runner
from recovery.calls.waiting import SLEEP, WAIT_FOR, sleep_arguments, wait_for_arguments
from recovery.declare.settings import ChildOptions
from recovery.declare.spec import ToolSpec, spec_of
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
    execution: AsyncExecution, token: object, spec: ToolSpec, given: Arguments, call_id: str
) -> Any:
    execution.unawaited.started(token)
    return await execution.perform_async(spec, given, call_id)


class _RunBase:
    """What both kinds of runs show."""

    __slots__ = ("__weakref__", "_execution")
    _execution: Drivers

    @property
    def task(self) -> Any:
        """What the run was given to do: a copy."""
        return self._execution.task

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self._execution.run_id

    @property
    def recovery_count(self) -> int:
        """How often the run was recovered, by any process: not the same on replay."""
        return self._execution.recovery_count

    @property
    def step(self) -> int:
        """The present step, from 1; 0 before the loop of steps."""
        return self._execution.step

    @property
    def state(self) -> dict[str, Any]:
        """What must survive a crash between steps: a dict, saved with each checkpoint."""
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
        """What the run has used so far, over all its lives; the same on replay."""
        execution = self._execution
        return Usage(*execution.recorded_value("usage", lambda: list(astuple(execution.used()))))


def execution_of(run: _RunBase) -> Drivers:
    """The execution behind what an agent holds: for the library, which needs more of a run."""
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
        self._execution = execution

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

        Use it with ``async for``, in an ``async with`` block where the loop may be left early. The
        call is like any other: what the chunks make up is its recorded outcome, ``stream.result``
        (``@tool(combine=...)``; of text and bytes they are joined, of others a list). On replay
        nothing is executed, and the chunks are made from the outcome. See docs/streaming.md.
        """
        return self._execution.open_stream(spec_of(function), (args, kwargs), call_id)

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
        the wait began counts. It is taken when the agent has it: a wait that is cancelled leaves it
        to the next one. For a tuple of names: the first signal of any of them, as the pair of its
        name and its value.

        ``timeout``: seconds from when this line first ran. Without a signal that was sent by then
        it raises TimeoutError; one that was sent later is for the next wait. What came of it is
        recorded.
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
        recorded, so an agent that goes by it does the same on replay. ``tasks``: a list of tasks or
        futures, in an order that the code determines (TypeError for a set). ``timeout``: seconds;
        one that ran out is not waited for again.
        """
        from recovery.calls.wait_tasks import wait  # noqa: PLC0415 - only where it is used

        return await wait(self._execution, tasks, timeout, return_when)

    def steps(self) -> AsyncIterator[int]:
        """The steps of the run, numbered from 1, without end: leave the loop to end it.

        A checkpoint is taken between steps. Only ``state`` and ``messages`` are carried over one:
        after a crash the agent function is called again with these, and the loop goes on behind the
        last checkpoint. Local variables are fresh then, unless ``checkpoint_every_n`` is None.
        """
        self._execution.loop.claim(self, sys._getframe(1))
        return Steps(self._execution)


class SyncRun(_RunBase):
    """A run as a plain agent sees it: as Run, with nothing to await."""

    __slots__ = ()
    _execution: SyncExecution

    def __init__(self, execution: SyncExecution) -> None:
        self._execution = execution

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
        return self._execution.perform_sync(spec_of(function), (args, kwargs), call_id)

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
        return self._execution.open_stream(spec_of(function), (args, kwargs), call_id)

    def undo(
        self, since: int = 0, tools: Iterable[Callable[..., Any]] = ()
    ) -> list[dict[str, Any]]:
        """Undo what the run has done; see ``Run.undo``."""
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
