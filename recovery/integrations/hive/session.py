"""A conversation of an AgentLoop, recorded: its tools and its store."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack

from recovery import Call, InDoubtError, Resolution
from recovery.declare.spec import AfterCrash, Reconcile
from recovery.declare.tool_options import check_policy
from recovery.history.checkpoint_store_base import CheckpointStoreBase
from recovery.integrations.hive.conversation import RecordedConversation
from recovery.integrations.hive.home import default_store
from recovery.integrations.hive.keyed_run import Book
from recovery.integrations.hive.tools import RecordedTools, unknown
from recovery.journal.events import CallResolved, CallRetried, RunParked
from recovery.journal.links import ParentRun
from recovery.option_checks import check_names
from recovery.replay.recorded_call import RecordedCall
from recovery.values.pack import pack

_logger = logging.getLogger("recovery")

Policy = AfterCrash | Reconcile


class LoopOptions(TypedDict, total=False):
    """See RecordedLoop."""

    after_crash: Policy | Mapping[str, Policy]
    spillover_dir: str | Path | None


class OneLoopOptions(LoopOptions, total=False):
    """See RecordedLoop."""

    node_id: str
    parent: ParentRun | None


class RecordedLoop:
    """What an AgentLoop is given so that it can die at any instant and go on where it stopped.

    ``tool_executor`` and ``conversation_store``: Hive's own, wrapped; give the attributes of these
    names to ``AgentLoop(...)``. ``run_id`` names the recorded conversation, in ``store`` (None: see
    default_store); it is opened by one process at a time (LogLockedError). A context manager.

    ``after_crash`` says what to do about a call of a tool that a crash cut short, for all tools or
    by the tool's name: "park" (nothing is executed until somebody resolves it), "retry" (it is made
    again, under the same idempotency key), "report" (the model is told that it may have taken
    effect), or a function from the Call to a Resolution, sync or async, that finds out.

    ``node_id``: the node whose conversation this is. Messages that say none get it as their
    phase_id: release 0.8.0 looks for it when it restores a conversation, and does not write it.
    ``spillover_dir``: as in Hive's LoopConfig; whole results that are put in are written there, as
    Hive does, for the model to look at. ``parent``: the run that this is a part of.

    Left without an exception, and with nothing under way or in doubt, the conversation has finished
    (as ``recovery show`` says, and ``gc`` collects it); opened again, it goes on.

    Raises InDoubtError where a call is to be resolved first: ``RunHandle.resolve``, and open it
    again. DamagedRunError when records of it are lost.
    """

    def __init__(
        self,
        run_id: str,
        tool_executor: Callable[[Any], Any],
        conversation_store: Any,
        store: CheckpointStoreBase | None = None,
        **options: Unpack[OneLoopOptions],
    ) -> None:
        check_names("RecordedLoop", options, OneLoopOptions.__annotations__)
        self._after_crash = after_crash = options.get("after_crash", "park")
        for policy in after_crash.values() if isinstance(after_crash, Mapping) else [after_crash]:
            if not callable(policy):
                check_policy(policy)
        self._book = Book(store or default_store(), run_id, options.get("parent"))
        try:
            parked = [
                call
                for call in self._book.left
                if not call.is_to_be_repeated and self._policy(call.key.tool) == "park"
            ]
            if parked:
                self._park(parked)
        except BaseException:
            self.close()
            raise
        self.tool_executor = RecordedTools(self._book, tool_executor, self._policy)
        self.conversation = RecordedConversation(
            self._book,
            conversation_store,
            self._settle,
            self._policy,
            options.get("spillover_dir"),
        )
        self.conversation_store = self.conversation.of_node(options.get("node_id", ""))

    def close(self) -> None:
        """Let go of the conversation, unfinished. Calls that are under way are then in doubt."""
        self._book.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._book.finish()
        finally:
            self.close()

    def _policy(self, tool: str) -> Policy:
        policy = self._after_crash
        return policy.get(tool, "park") if isinstance(policy, Mapping) else policy

    def _park(self, calls: list[RecordedCall]) -> None:
        book = self._book
        book.emit(RunParked([call.lsn for call in calls]))
        book.commit()
        raise InDoubtError(book.run_id, [book.call(call) for call in calls])

    async def _settle(self) -> None:
        """What became of calls that an earlier process had begun: as their policies say."""
        decided = [(call, *await self._decided(call)) for call in self._book.left]
        open_ = [call for call, how, _ in decided if how.how == "unknown"]
        if open_:  # before anything is executed
            self._park(open_)
        for call, how, who in decided:
            _logger.info(
                "run %s: was in doubt: %s: %s (%s)",
                self._book.run_id,
                self._book.call(call),
                how.how,
                who,
            )
            if how.how == "retry":
                call.attempts += 1
                self._book.emit(CallRetried(call.lsn, call.attempts))
                self._book.commit()
                await self.tool_executor.again(call)
            else:
                value = pack(how.value, f"resolution of {call.key.tool}")
                self._book.ended(call, CallResolved(call.lsn, how.how, value, who, by_policy=True))

    async def _decided(self, call: RecordedCall) -> tuple[Resolution, str]:
        policy = self._policy(call.key.tool)
        if call.is_to_be_repeated or policy == "retry":
            return Resolution.retry(), "after_crash=retry"
        shown = self._book.call(call)
        if policy == "report":
            return Resolution.outcome(unknown(call, shown.idempotency_key)), "after_crash=report"
        if callable(policy):
            return await self._asked(policy, shown), "reconcile"
        return Resolution.unknown(), "after_crash=park"

    async def _asked(self, policy: Reconcile, call: Call) -> Resolution:
        try:
            how = policy(call)
            found = await how if inspect.isawaitable(how) else how
        except Exception:
            _logger.exception("asking failed, the call stays in doubt: %s", call)
            return Resolution.unknown()
        if not isinstance(found, Resolution):
            _logger.error(
                "what was asked gave %r, no Resolution; the call stays in doubt: %s", found, call
            )
            return Resolution.unknown()
        return found
