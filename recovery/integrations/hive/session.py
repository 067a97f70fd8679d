"""Records a conversation of an AgentLoop in a journal of calls: its tools and its store."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypedDict, Unpack

from recovery import Call, CheckpointStore, Run
from recovery.call_journal import CallJournal
from recovery.integrations.hive.conversation import RecordedConversation
from recovery.integrations.hive.conversation_record import ConversationRecord
from recovery.integrations.hive.home import default_store
from recovery.integrations.hive.tools import RecordedTools, with_policy

_logger = logging.getLogger("recovery")

Policy = Literal["park", "retry", "report"] | Callable[[Call], Any]  # a Resolution, or awaitable


class LoopOptions(TypedDict, total=False):
    """See RecordedLoop."""

    after_crash: Policy | Mapping[str, Policy]
    spillover_dir: str | Path | None


class OneLoopOptions(LoopOptions, total=False):
    """See RecordedLoop."""

    node_id: str
    parent: Run | None


class RecordedLoop:
    """What an AgentLoop is given so that it can die at any instant and resume where it stopped.

    ``tool_executor`` and ``conversation_store``: Hive's own, wrapped; give the attributes of these
    names to ``AgentLoop(...)``. ``run_id`` names the recorded conversation, in ``store`` (None: see
    default_store); it is opened by one process at a time (LogLockedError). A context manager.
    ``journal``: the CallJournal that records it.

    ``after_crash`` is the policy for calls of a tool that a crash interrupted, for all tools or by
    the tool's name: "park" (nothing is executed until an operator resolves the call), "retry" (it
    is made again, under the same idempotency key), "report" (the model reads that it may have taken
    effect), or a function from the Call to a Resolution, sync or async, that asks the outside
    world.

    ``node_id``: the node whose conversation this is. Messages that name none get it as their
    phase_id: release 0.8.0 looks for it when it restores a conversation, and does not write it.
    ``spillover_dir``: as in Hive's LoopConfig; whole results that are put in are written there, as
    Hive does, for the model to look at. ``parent``: the run that this is a part of; without
    ``store``, it is recorded in that of the run.

    Left without an exception, and with no call in flight or in doubt, the conversation has finished
    (as ``recovery show`` says, and ``gc`` collects it); opened again, it continues.

    Raises InDoubtError where a call is to be resolved first: ``RunHandle.resolve``, and open it
    again. DamagedRunError when records of it are lost.
    """

    def __init__(
        self,
        run_id: str,
        tool_executor: Callable[[Any], Any],
        conversation_store: Any,
        store: CheckpointStore | None = None,
        **options: Unpack[OneLoopOptions],
    ) -> None:
        for name in options.keys() - OneLoopOptions.__annotations__:
            raise TypeError(f"RecordedLoop has no option {name!r}")
        parent = options.get("parent")
        self._after_crash = after_crash = options.get("after_crash", "park")
        for policy in after_crash.values() if isinstance(after_crash, Mapping) else [after_crash]:
            with_policy(policy)  # which checks it
        if store is None and parent is None:
            store = default_store()
        self.journal = CallJournal(store, run_id, parent=parent)
        try:
            self._park()
        except BaseException:
            self.close()
            raise
        self._record = ConversationRecord(self.journal)
        self.tool_executor = RecordedTools(self.journal, tool_executor, self._policy)
        self.conversation = RecordedConversation(
            self._record,
            conversation_store,
            self._settle,
            self.tool_executor.function,
            options.get("spillover_dir"),
        )
        self.conversation_store = self.conversation.of_node(options.get("node_id", ""))

    def check(self) -> None:
        """Raise what has stopped the record, if anything has: see CallJournal."""
        self.journal.check()

    def close(self) -> None:
        """Close the record, unfinished. Calls in flight are then in doubt."""
        self.journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        try:
            if kind is None and (known := self._record.known()):
                self.journal.forget(known)
        finally:
            self.journal.__exit__(kind, exc, tb)

    def _policy(self, tool: str) -> Policy:
        policy = self._after_crash
        return policy.get(tool, "park") if isinstance(policy, Mapping) else policy

    def _park(self) -> None:
        """Stop for calls in doubt that an operator has to resolve, before any is decided."""
        parked = [one for one in self.journal.in_doubt() if self._policy(one.tool) == "park"]
        if parked:
            self.journal.park(parked)

    async def _settle(self) -> None:
        """Have calls that an earlier process began decided by their policies."""
        self._park()
        for call in self.journal.unfinished():
            try:
                await self.tool_executor.again(call)
            except Exception:
                _logger.info("made again, and failed: %s", call, exc_info=True)
