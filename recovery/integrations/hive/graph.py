"""Hive's graph executors inside of a run: visits of nodes, and what edges ask of models, are calls.

Hive's executor begins at the entry node each time, and is given what the record has: results, what
the nodes wrote to the shared memory themselves, and what the model said about edges. So memory,
edges, visits and retries make themselves again, in 0.8.0's GraphExecutor as in the Orchestrator of
August 2026, and nothing that was recorded is executed.
"""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from eventlog import RefusedValueError
from recovery import RecoveryError, Run
from recovery.agent.run import execution_of
from recovery.declare.spec import ToolSpec
from recovery.errors import LeftBehindError
from recovery.graph.graph import is_final
from recovery.graph.walk import park
from recovery.integrations.hive.loops import LoopNode
from recovery.integrations.hive.plain import (
    Standin,
    fields_of,
    made,
    plain,
    recordable,
    type_beside,
)

_logger = logging.getLogger("recovery")

NodePolicy = Literal["park", "retry"]
_MEMORIES = ("memory", "buffer")  # of a context: its name in 0.8.0, and in August 2026


def recorded_nodes(
    run: Run,
    registry: Mapping[str, Any],
    after_crash: NodePolicy | Mapping[str, NodePolicy] = "park",
) -> dict[str, Any]:
    """Hive's node registry, each visit a recorded call of ``run``: give it to the executor.

    A visit is known by its node and its number; its NodeResult, and what the node wrote to the
    shared memory itself, come from the record ever after. Nodes that come to what is returned later
    are recorded as well, in place: those that an executor makes itself for nodes that are not in
    it, too. Of such a loop a visit is recorded as a whole; RecordedLoops records its calls.

    ``after_crash`` says what to do about a visit that a crash cut short, for all nodes or by node:
    "park" (the run stops with an InDoubtError until somebody resolves it)
    or "retry" (the node is entered again: for one without effects, or an AgentLoop with a recorded
    conversation and recorded tools). A node of RecordedLoops is entered again.

    A failed visit is a result like any other while something is recorded behind it. The last one
    of a run that is resumed is made again. A node that gives what cannot be recorded stops the run
    (UnrecordedResultError), and is in doubt.
    """
    for policy in after_crash.values() if isinstance(after_crash, Mapping) else [after_crash]:
        if policy not in ("park", "retry"):  # told a failure, an executor would try it again
            raise ValueError(f'after_crash of a node is "park" or "retry", not {policy!r}')
    return _Registry(run, registry, after_crash)


def recorded_llm(run: Run, llm: Any) -> Any:
    """Hive's LLM provider, ``complete`` and ``acomplete`` as recorded calls of ``run``.

    For the executor, whose edges may ask it where to go. Repeatable: one that a crash cut short is
    made again. All else that the provider has, ``stream`` too, is passed through.
    """
    return _LLM(run, llm)


def recorded_result(run: Run, result: Any) -> dict[str, Any]:
    """What the agent function returns for an ExecutionResult: its fields that can be recorded.

    A graph that failed does not end the run: it parks (GraphParkedError, with Hive's reason), and
    run again it makes its last visit again.
    """
    if not result.success:
        path = getattr(result, "path", None) or ["?"]
        park(run, str(path[-1]), str(result.error or "the graph failed, and gave no reason"))
    return recordable(result)


class _Registry(dict[str, Any]):
    def __init__(
        self,
        run: Run,
        nodes: Mapping[str, Any],
        after_crash: NodePolicy | Mapping[str, NodePolicy],
    ) -> None:
        super().__init__()
        self._run, self._after_crash = run, after_crash
        for node_id, node in nodes.items():
            super().__setitem__(node_id, self._recorded(node_id, node))

    def __setitem__(self, node_id: str, node: Any) -> None:
        # Whoever brings a node later may keep it, and execute it without asking for it here: the
        # executors do so with loops that they have made themselves.
        recorded = self._recorded(node_id, node)
        try:
            node.execute = recorded.execute
        except AttributeError:
            execution_of(self._run).stop(
                RecoveryError(
                    f"node {node_id!r} came to the registry when the graph was being executed, and "
                    f"cannot be recorded there: a {type(node).__qualname__} takes no attributes. "
                    "Nothing of it was executed. Give it to recorded_nodes beforehand."
                )
            )
        if hasattr(node, "inject_event"):
            _logger.warning(
                "run %s: node %r is a loop that Hive's executor has made itself: a crash in it "
                "leaves its whole visit in doubt, with all calls of its tools. Make it with "
                "RecordedLoops, and each of these calls is recorded",
                self._run.run_id,
                node_id,
            )
        super().__setitem__(node_id, recorded)

    def _recorded(self, node_id: str, node: Any) -> _Node:
        policy = self._after_crash
        if isinstance(policy, Mapping):
            policy = policy.get(node_id, "park")
        if isinstance(node, LoopNode):
            policy = "retry"
        return _Node(node, _Visits(self._run, node_id, policy))

    def __bool__(self) -> bool:
        return True  # else an executor would take another one as long as it is empty


@dataclass(slots=True)
class _Visits:
    """The visits of a node, in order: an executor makes one at a time."""

    run: Run
    node_id: str
    after_crash: NodePolicy
    count: int = 0

    async def next(self, visit: Callable[[], Any]) -> tuple[dict[str, Any], bool]:
        """What came of the next one, and whether it was made just now; raises what it raised."""
        self.count += 1
        again, call_id = 0, f"{self.node_id} visit {self.count}"
        found, executed = await self._call(visit, call_id)
        # A failure behind which nothing is recorded is where an earlier process gave up, or died.
        # What is made in its place is a call of its own, so that later replays do the same.
        while not (executed or _succeeded(found)):
            again += 1
            call_id = f"{self.node_id} visit {self.count} again {again}"
            if not (execution_of(self.run).caught_up() or self._is_recorded(call_id)):
                break
            found, executed = await self._call(visit, call_id)
        if isinstance(found, Exception):
            raise found
        return found, executed

    async def _call(
        self, visit: Callable[[], Any], call_id: str
    ) -> tuple[dict[str, Any] | Exception, bool]:
        executed = False

        async def function() -> Any:
            nonlocal executed
            executed = True
            return await visit()

        spec = ToolSpec(f"node {self.node_id}", function, self.after_crash, acts=_as_recorded)
        try:
            found = await execution_of(self.run).perform_async(spec, ((), {}), call_id)
            return _as_recorded(found), executed
        except RefusedValueError as exc:
            # It took effect, and what came of it cannot be kept: an executor would try it again.
            execution_of(self.run).stop(exc)
        except LeftBehindError:  # nothing is recorded of it, and again it would be the same
            raise
        except Exception as exc:
            if is_final(exc):  # and an executor would try it again
                park(self.run, self.node_id, f"{call_id}: {exc}")
            return exc, executed

    def _is_recorded(self, call_id: str) -> bool:
        return any(
            call.key.call_id == call_id for call in execution_of(self.run).replay.unmatched()
        )


class _Node(Standin):
    def __init__(self, node: Any, visits: _Visits) -> None:
        super().__init__(node)
        self._visits = visits
        self._execute = node.execute
        owner = getattr(self._execute, "__self__", None)
        if type(owner) is _Node and owner is not node:  # recorded in place, in an earlier run
            self._execute = owner._execute

    async def execute(self, ctx: Any) -> Any:
        """A visit: made once."""

        kind: Any = None
        conversation: Any = None  # an object that lives; see docs/hive.md

        async def visit() -> dict[str, Any]:
            nonlocal kind, conversation
            seen, written = _watched(ctx)
            result = await self._execute(seen)
            kind = type(result)
            held = fields_of(result)
            conversation = held.pop("conversation", None)
            return {"result": held, "written": written}

        found, executed = await self._visits.next(visit)
        if not executed:
            for key, value in found["written"].items():
                _memory_of(ctx)[1].write(key, value, validate=False)
            if isinstance(self._real, LoopNode):
                conversation = await self._real.conversation_after()
        held = found["result"]
        if conversation is not None:
            held = {**held, "conversation": conversation}
        return made(kind or self._result_type(ctx), held)

    def _result_type(self, ctx: Any) -> Any:
        """What the node says that it gives (an AgentLoop's is its own), else a NodeResult. Never
        what a record says: that could be anything."""
        execute = self._execute
        if isinstance(self._real, LoopNode):
            execute = self._real.loop.execute
        hint = getattr(execute, "__annotations__", {}).get("return")
        if isinstance(hint, str):
            hint = getattr(sys.modules.get(execute.__module__), hint, None)
        told = "success" in getattr(hint, "__dataclass_fields__", ())  # Any is a type, too
        return hint if told else type_beside(type(ctx), "NodeResult")


def _succeeded(found: dict[str, Any] | Exception) -> bool:
    return not isinstance(found, Exception) and bool(found["result"]["success"])


def _as_recorded(found: Any) -> dict[str, Any]:
    """What a visit has recorded; else what somebody says that its output was."""
    if isinstance(found, dict) and found.keys() == {"result", "written"}:
        return found
    output = dict(found) if isinstance(found, dict) else {"result": found}
    return {"result": {"success": True, "output": output}, "written": {}}


def _memory_of(ctx: Any) -> tuple[str, Any]:
    for name in _MEMORIES:
        if hasattr(ctx, name):
            return name, getattr(ctx, name)
    raise TypeError(f"{type(ctx).__qualname__} is no context of a node: it has none of {_MEMORIES}")


def _watched(ctx: Any) -> tuple[Any, dict[str, Any]]:
    """The context for a node, and what the node writes to the shared memory itself."""
    name, memory = _memory_of(ctx)
    seen, written = copy.copy(ctx), dict[str, Any]()
    setattr(seen, name, _Memory(memory, written))
    return seen, written


class _Memory(Standin):
    def __init__(self, memory: Any, written: dict[str, Any]) -> None:
        super().__init__(memory)
        self._written = written

    def write(self, key: str, value: Any, *args: Any, **kwargs: Any) -> None:
        """As the memory's own, which may refuse."""
        self._real.write(key, value, *args, **kwargs)
        self._written[key] = value

    async def write_async(self, key: str, value: Any, *args: Any, **kwargs: Any) -> None:
        """The same."""
        await self._real.write_async(key, value, *args, **kwargs)
        self._written[key] = value

    def with_permissions(self, *args: Any, **kwargs: Any) -> Any:
        """A view of the memory, watched as well."""
        return _Memory(self._real.with_permissions(*args, **kwargs), self._written)


class _LLM(Standin):
    def __init__(self, run: Run, llm: Any) -> None:
        super().__init__(llm)
        self._run = run

    async def acomplete(self, *args: Any, **kwargs: Any) -> Any:
        """One answer, asked for once."""

        async def function(*_: Any) -> Any:
            return recordable(await self._real.acomplete(*args, **kwargs))

        spec = ToolSpec("llm.acomplete", function, "retry", acts=_LLM.acomplete)
        given = (plain(args), plain(kwargs)), dict[str, Any]()
        return self._answer(await execution_of(self._run).perform_async(spec, given, ""))

    def complete(self, *args: Any, **kwargs: Any) -> Any:
        """The same, from plain code."""

        def function(*_: Any) -> Any:
            return recordable(self._real.complete(*args, **kwargs))

        spec = ToolSpec("llm.complete", function, "retry", acts=_LLM.complete)
        given = (plain(args), plain(kwargs)), dict[str, Any]()
        return self._answer(execution_of(self._run).perform_sync(spec, given, ""))

    def _answer(self, held: Any) -> Any:
        return made(type_beside(type(self._real), "LLMResponse"), cast(dict[str, Any], held))
