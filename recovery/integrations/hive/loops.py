"""Makes the AgentLoops of a graph, each with its conversation and tools recorded.

Hive's executors make the loop of an ``event_loop`` node themselves, with a store of their own that
cannot be replaced. So the user makes those loops beforehand, and registers them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any, Self, Unpack

from recovery import RecoveryError, Run
from recovery.integrations.hive.plain import Standin, type_beside
from recovery.integrations.hive.session import LoopOptions, RecordedLoop
from recovery.integrations.hive.tools import PASSED

RUN_ID_SIZE_MAX = 128
LOOP_TYPES = ("event_loop", "gcu")  # of nodes for which Hive's executors make a loop


class RecordedLoops(dict[str, Any]):
    """The nodes of ``graph`` that are loops, by id, for ``recorded_nodes``: a context manager.

    ``make(node, recorded)`` makes the loop of a node, with the user's own configuration, and with
    ``recorded.tool_executor`` and ``recorded.conversation_store``. ``tool_executor`` is Hive's, and
    ``files(name)`` makes Hive's store for the conversation of this name: a node's id, and "" for
    the one that all nodes of a graph in continuous mode share. The record of a conversation is a
    run of its own, which ``recovery show`` of ``run`` names when it is in doubt.

    Options: ``after_crash`` and ``spillover_dir``, see RecordedLoop. A visit that a crash cut short
    is entered again: its loop continues where its conversation is.
    """

    def __init__(
        self,
        run: Run,
        graph: Any,
        make: Callable[[Any, Any], Any],
        tool_executor: Callable[[Any], Any],
        files: Callable[[str], Any],
        **options: Unpack[LoopOptions],
    ) -> None:
        super().__init__()
        self._held = ExitStack()
        shared = getattr(graph, "conversation_mode", "isolated") == "continuous"
        everyone = None

        def open_(name: str) -> RecordedLoop:
            return RecordedLoop(
                _run_id(run, name),
                tool_executor,
                files(name),
                **options,
                node_id=name,
                parent=run,
            )

        for node in graph.nodes:
            if node.node_type not in LOOP_TYPES:
                continue
            if shared:
                everyone = everyone or _Session(partial(open_, ""), self._held)
            session = everyone or _Session(partial(open_, node.id))
            place = _Place(session, node.id, tool_executor)
            self[node.id] = LoopNode(make(node, place), session, node.id, shared)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._held.__exit__(kind, exc, tb)


class _Session:
    """A recorded conversation that is open during a visit; with ``held``, until that is left: a
    conversation that several nodes share is written between their visits, too."""

    def __init__(self, open_: Callable[[], RecordedLoop], held: ExitStack | None = None) -> None:
        self._open, self._held = open_, held
        self._now: RecordedLoop | None = None
        self._visited_by = ""

    @property
    def recorded(self) -> RecordedLoop:
        """The open conversation."""
        if self._now is None:
            if self._held is None:
                raise RuntimeError("the visit of this loop is over, and its record closed")
            self._now = self._held.enter_context(self._open())
        return self._now

    async def visit(self, node_id: str, execute: Callable[[Any], Any], ctx: Any) -> Any:
        """Have the loop executed while its conversation is open."""
        if self._visited_by:
            raise RecoveryError(
                f"loops {self._visited_by!r} and {node_id!r} are at work at once in one "
                "conversation: each would write over the other's messages, with or without a "
                "record of them. Set conversation_mode='isolated' in the graph, so that each node "
                "has its own."
            )
        self._visited_by = node_id
        try:
            if self._held is None:
                with self._open() as self._now:
                    return await execute(ctx)
            try:
                return await execute(ctx)
            finally:
                if self._now is not None:
                    self._now.check()
        finally:
            self._visited_by = ""
            if self._held is None:
                self._now = None


class _Place:
    """Stands for the conversation when a loop is made, before the conversation is open."""

    def __init__(self, session: _Session, node_id: str, executor: Callable[[Any], Any]) -> None:
        self.conversation_store = _Store(session, node_id)

        def tool_executor(use: Any) -> Any:
            return session.recorded.tool_executor(use)

        for name in PASSED:
            if hasattr(executor, name):
                setattr(tool_executor, name, getattr(executor, name))
        self.tool_executor = tool_executor


class _Store:
    def __init__(self, session: _Session, node_id: str) -> None:
        self._session, self._node_id = session, node_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session.recorded.conversation.of_node(self._node_id), name)


class LoopNode(Standin):
    """A loop whose conversation is open while it is executed."""

    def __init__(self, loop: Any, session: _Session, node_id: str, shared: bool) -> None:
        super().__init__(loop)
        self._session, self._node_id, self._shared = session, node_id, shared

    async def execute(self, ctx: Any) -> Any:
        """See NodeProtocol of Hive's."""
        return await self._session.visit(self._node_id, self._real.execute, ctx)

    @property
    def loop(self) -> Any:
        """Hive's own."""
        return self._real

    async def conversation_after(self) -> Any:
        """The conversation that a recorded visit left behind, for the executor to hand on; None
        where it has done so, and where nodes have conversations of their own."""
        store = self._session.recorded.conversation_store if self._shared else None
        parts = await store.read_parts() if store is not None else []
        if not parts or parts[-1].get("phase_id") != self._node_id:
            return None
        kind = type_beside(type(self._real), "NodeConversation")
        return await kind.restore(store) if hasattr(kind, "restore") else None


def _run_id(run: Run, name: str) -> str:
    """The id of the conversation of this name: for people, and unique."""
    shown = re.sub(r"[^A-Za-z0-9_.@=-]", "_", name or "loops")[:32]
    tail = f"+{shown}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    return run.run_id[: RUN_ID_SIZE_MAX - len(tail)] + tail
