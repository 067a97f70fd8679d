"""Records the tools and tasks of LangGraph graphs, so that a finished one is not executed again.

A checkpointer saves a super-step when all of it has run. A process that dies before that executes
again what had finished in it, and reports nothing of what it interrupted. See
docs/langgraph-tools.md.

Needs the extra: ``pip install 'agent-eventlog[langgraph]'``.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import inspect
import os
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from langchain_core.messages import ToolMessage
from langgraph.config import get_config
from langgraph.errors import GraphBubbleUp
from langgraph.func import task as langgraph_task
from langgraph.runtime import get_runtime

from eventlog import RefusedValueError
from recovery import ApprovalDeniedError, CheckpointStore, RecoveryError
from recovery.call_journal import CallJournal
from recovery.integrations.framework_calls import as_call, refuse_redact
from recovery.integrations.langgraph.calls import RecordedCalls
from recovery.integrations.langgraph.messages import Middleware, as_answer

__all__ = ["RecordedCalls", "RecordedThread", "RecordedTools", "run_id_of"]

RUN_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+=-]{0,99}")
CHECKPOINT_WAIT_S = 60.0  # for one checkpoint: as long as a store waits for its server
INTERRUPTED = {"langgraph": "interrupted"}  # the outcome of a tool that asks a person


def run_id_of(thread_id: str) -> str:
    """The id of the run in which the calls of thread ``thread_id`` are recorded.

    It is ``tools-`` and that id; a digest of it, if that is no id of a run.
    """
    if RUN_ID.fullmatch(thread_id):
        return f"tools-{thread_id}"
    return f"tools-{hashlib.sha256(thread_id.encode('utf-8', 'surrogatepass')).hexdigest()}"


class RecordedTools(Middleware):
    """Records the tool calls and tasks of graphs: middleware for ``create_agent``.

    ``create_agent(..., middleware=[recorded])``, or ``ToolNode(tools, wrap_tool_call=
    recorded.wrap_tool_call, awrap_tool_call=recorded.awrap_tool_call)``; ``@recorded.task`` in
    place of LangGraph's ``@task``. For graphs that are called sync and async, and for many threads
    at once. The graph is executed inside ``with recorded.thread(graph, thread_id)``.

    ``store``: a CheckpointStore or a path. The calls of a thread are a run in it (``run_id_of``).
    ``policies``: options of ``recovery.tool`` by the name of a tool or task, such as
    ``{"search": {"after_crash": "retry"}, "pay": {"needs_approval": True}}``. Without any, a call
    is a side effect: when a crash interrupts it, the thread stops until the call is resolved.
    ``park_after_s``: once all calls of a thread have waited so many seconds for approvals, the
    ``with`` block raises WaitingError; by default they wait on.
    """

    def __init__(
        self,
        store: CheckpointStore | str | os.PathLike[str],
        policies: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        park_after_s: float | None = None,
    ) -> None:
        super().__init__()
        self._park_after_s = park_after_s
        self._store = store if isinstance(store, CheckpointStore) else CheckpointStore(store)
        self._policies = dict(policies or {})
        self._open: dict[str, RecordedThread] = {}
        for name, options in self._policies.items():
            refuse_redact(name, options)
            as_call(_nothing, name, options)  # an option that is unknown or not served: an error

    def thread(self, graph: Any, thread_id: str) -> RecordedThread:
        """Open the record of thread ``thread_id``: a context manager, sync and async, that gives
        its config.

        ``graph``: the compiled graph, whose checkpoints say which outcomes it has. One process has
        a thread open at a time (LogLockedError); it lets go at the end of the block, or dies.
        """
        return RecordedThread(self, graph, thread_id)

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """See AgentMiddleware of LangChain and ToolNode of LangGraph."""
        asked = request.tool_call
        journal = self._thread(request.runtime.config["configurable"].get("thread_id")).journal
        call = self._call(asked["name"], asked["id"])
        try:
            found = call.make_sync(journal, lambda arguments: handler(request), asked["args"])
        except ApprovalDeniedError as exc:
            found = exc
        return as_answer(found, asked)

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """The same in async graphs."""
        asked = request.tool_call
        journal = self._thread(request.runtime.config["configurable"].get("thread_id")).journal
        call = self._call(asked["name"], asked["id"])
        try:
            found = await call.make(journal, lambda arguments: handler(request), asked["args"])
        except ApprovalDeniedError as exc:
            found = exc
        return as_answer(found, asked)

    def task(self, function: Callable[..., Any] | None = None, **options: Any) -> Any:
        """A ``@task`` of LangGraph whose result is recorded before it is handed on.

        ``function``: the task's; without it, a decorator. ``options``: LangGraph's own (``name``,
        ``retry_policy``, ``cache_policy``, ``timeout``).
        """
        if function is None:
            return functools.partial(self.task, **options)
        made, name = function, options.get("name") or function.__name__

        def asked() -> tuple[RecordedThread, _Call]:
            info = get_runtime().execution_info
            return self._thread(info.thread_id), self._call(name, info.task_id)

        body: Callable[..., Any]
        if inspect.iscoroutinefunction(made):

            @functools.wraps(made)
            async def body(*args: Any, **kwargs: Any) -> Any:
                thread, call = asked()
                await thread.step_is_saved_async()
                return await call.make(thread.journal, made, *args, **kwargs)
        else:

            @functools.wraps(made)
            def body(*args: Any, **kwargs: Any) -> Any:
                thread, call = asked()
                thread.step_is_saved()
                return call.make_sync(thread.journal, made, *args, **kwargs)

        return langgraph_task(body, **options)

    def _call(self, name: str, call_id: str | None) -> _Call:
        return _Call(name, self._policies.get(name, {}), call_id or "")

    def _thread(self, thread_id: Any) -> RecordedThread:
        thread = self._open.get(str(thread_id))
        if thread is None:
            raise RecoveryError(
                f"thread {thread_id!r} is not open, so its calls cannot be recorded. Nothing was "
                "executed. Call the graph inside `with recorded.thread(graph, thread_id) as config`"
            )
        return thread


class RecordedThread:
    """The record of a thread, while it is open: see RecordedTools.thread.

    ``journal``: the CallJournal in which its calls are. When the block ends without an exception,
    the outcomes that the graph's checkpoint holds are forgotten.
    """

    journal: CallJournal

    def __init__(self, tools: RecordedTools, graph: Any, thread_id: str) -> None:
        """Not for users: call ``RecordedTools.thread``."""
        self._tools, self._graph, self._thread_id = tools, graph, str(thread_id)
        self._config = {"configurable": {"thread_id": self._thread_id}}
        self._step = ""  # the newest checkpoint that is known to be saved

    def __enter__(self) -> dict[str, Any]:
        self.journal = CallJournal(
            self._tools._store,
            run_id_of(self._thread_id),
            park_after_s=self._tools._park_after_s,
        )
        self._tools._open[self._thread_id] = self
        return self._config

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        with self._closing(kind, exc, tb):
            if kind is None:
                self._forget(self._graph.get_state(self._config) if self._saves else None)

    async def __aenter__(self) -> dict[str, Any]:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        with self._closing(kind, exc, tb):
            if kind is None:
                self._forget(await self._graph.aget_state(self._config) if self._saves else None)

    @contextmanager
    def _closing(self, *how: Any) -> Iterator[None]:
        del self._tools._open[self._thread_id]
        try:
            yield
        finally:
            self.journal.__exit__(*how)  # which raises what has stopped it, if anything has

    # LangGraph names tasks by the checkpoint of their step, and saves the first one of a run in the
    # background. If the process died before that, the next one would make other tasks of them.

    def step_is_saved(self) -> None:
        """Wait until the checkpoint of the present step is saved. RecoveryError if it is not."""
        for config in self._until_saved():
            if self._graph.checkpointer.get_tuple(config) is not None:
                self._step = config["configurable"]["checkpoint_id"]
                break
            time.sleep(0.001)

    async def step_is_saved_async(self) -> None:
        """The same from async code."""
        for config in self._until_saved():
            if await self._graph.checkpointer.aget_tuple(config) is not None:
                self._step = config["configurable"]["checkpoint_id"]
                break
            await asyncio.sleep(0.001)

    def _until_saved(self) -> Iterator[Any]:
        info, now = get_runtime().execution_info, get_config()["configurable"]
        of_root = info.checkpoint_ns.count("|") <= 1  # the node's part, and the task's
        at_exit = now.get("__pregel_durability") == "exit"  # saves nothing before
        if not self._saves or not of_root or at_exit or info.checkpoint_id == self._step:
            return
        named = {"checkpoint_ns": "", "checkpoint_id": info.checkpoint_id}
        until = time.monotonic() + CHECKPOINT_WAIT_S
        while time.monotonic() < until:
            yield {"configurable": {"thread_id": self._thread_id, **named}}
        raise RecoveryError(
            f"the checkpoint of this step of thread {self._thread_id!r} was not saved in "
            f"{CHECKPOINT_WAIT_S:g} s. The task was not executed. Look at what the checkpointer "
            "has logged, and run the graph again"
        )

    @property
    def _saves(self) -> bool:
        return self._graph.checkpointer not in (None, False)

    def _forget(self, state: Any) -> None:
        if state is None or not state.next:
            self.journal.forget()
            return
        channels = state.values.values() if isinstance(state.values, dict) else ()
        self.journal.forget(
            message.tool_call_id
            for messages in channels
            if isinstance(messages, list)
            for message in messages
            if isinstance(message, ToolMessage)
        )


class _Call:
    """A call of a graph's tool. An interrupt is no outcome of it, and neither is a failure of an
    earlier process: the graph stopped with it, and makes the call again when it resumes. A denial
    is an outcome, and not asked for again."""

    def __init__(self, name: str, options: Mapping[str, Any], call_id: str) -> None:
        self._name, self._options, self._call_id = name, options, call_id
        self._interrupts, self._is_new = 0, False
        self._interrupt: GraphBubbleUp | None = None

    def make_sync(
        self, journal: CallJournal, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Have the journal make or serve it, from plain code."""

        def run(*args: Any, **kwargs: Any) -> Any:
            self._is_new = True
            try:
                return function(*args, **kwargs)
            except GraphBubbleUp as exc:
                self._interrupt = exc
                return INTERRUPTED

        while True:
            try:
                found = journal.call_sync(self._named(run), *args, **kwargs)
            except Exception as exc:
                self._check(exc)
                continue
            if not self._is_interrupted(found):
                return found

    async def make(
        self, journal: CallJournal, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """The same from async code."""

        async def run(*args: Any, **kwargs: Any) -> Any:
            self._is_new = True
            try:
                return await function(*args, **kwargs)
            except GraphBubbleUp as exc:
                self._interrupt = exc
                return INTERRUPTED

        while True:
            try:
                found = await journal.call(self._named(run), *args, **kwargs)
            except Exception as exc:
                self._check(exc)
                continue
            if not self._is_interrupted(found):
                return found

    def _named(self, run: Callable[..., Any]) -> Callable[..., Any]:
        times = f" interrupted {self._interrupts}" if self._interrupts else ""
        return as_call(run, self._name, self._options, self._call_id and self._call_id + times)

    def _check(self, exc: Exception) -> None:
        """Raise what the call raised now; return to have it made again."""
        if self._is_new or isinstance(exc, RefusedValueError | RecoveryError | ApprovalDeniedError):
            raise exc

    def _is_interrupted(self, found: Any) -> bool:
        """Whether it is to be made again, for its outcome is an interrupt that is answered now."""
        if self._interrupt is not None:
            raise self._interrupt
        if type(found) is not dict or found != INTERRUPTED:
            return False
        self._interrupts += 1
        return True


def _nothing() -> None:
    """Has no parameters: the arguments of a call are one value, of which no part is redacted."""
