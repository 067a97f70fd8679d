"""Records the work of Hive's graph executors: visits of nodes, and models' answers about edges.

Hive's executor begins at the entry node each time, and receives the recorded values: results, the
nodes' own writes to the shared memory, and the model's answers about edges. So it computes the same
memory, edges, visits and retries again, and no recorded call is executed. This works in 0.8.0's
GraphExecutor and in the Orchestrator of August 2026.
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
    """Hive's node ``registry``, each visit a recorded call of ``run``: give it to the executor.

    A visit is identified by its node and its number. Its NodeResult, and the node's own writes to
    the shared memory, come from the record ever after. Nodes that are added to the registry later
    are recorded as well, in place: also those that an executor makes itself for missing nodes. A
    visit of such a loop is recorded as a whole; RecordedLoops records its calls.

    ``after_crash``: the policy for a visit that a crash cut short, for all nodes or by node: "park"
    (the run stops with an InDoubtError until an operator resolves it) or "retry" (the node is
    entered again: for one without effects, or an AgentLoop with a recorded conversation and
    recorded tools). A node of RecordedLoops is entered again.

    A failed visit is a result like any other if later records exist. If it is the last record, a
    resumed run makes it again. If a node's result cannot be recorded, the run stops
    (UnrecordedResultError), and the visit is in doubt.
    """
    for policy in after_crash.values() if isinstance(after_crash, Mapping) else [after_crash]:
        if policy not in ("park", "retry"):  # an executor would retry a reported failure
            raise ValueError(f'after_crash of a node is "park" or "retry", not {policy!r}')
    return _Registry(run, registry, after_crash)


def recorded_llm(run: Run, llm: Any) -> Any:
    """Hive's LLM provider ``llm``, ``complete`` and ``acomplete`` as recorded calls of ``run``.

    For the executor, whose edges may ask it for the next node. Repeatable: a call that a crash cut
    short is made again. Other attributes of the provider, ``stream`` too, are passed through.
    """
    return _LLM(run, llm)


def recorded_result(run: Run, result: Any) -> dict[str, Any]:
    """The agent function's result for ``result``, an ExecutionResult: its fields that can be
    recorded.

    A graph that failed does not end ``run``: it parks (GraphParkedError, with Hive's reason). When
    it is resumed, it makes its last visit again.
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
        # Code that adds a node later may keep it, and execute it without looking it up here: the
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
        return True  # otherwise an executor would replace an empty registry


@dataclass(slots=True)
class _Visits:
    """The visits of a node, in order: an executor makes one at a time."""

    run: Run
    node_id: str
    after_crash: NodePolicy
    count: int = 0

    async def next(self, visit: Callable[[], Any]) -> tuple[dict[str, Any], bool]:
        """The outcome of the next visit, and whether it was made just now; raises its exception."""
        self.count += 1
        again, call_id = 0, f"{self.node_id} visit {self.count}"
        found, executed = await self._call(visit, call_id)
        # After a failure without later records an earlier process parked, or died. The visit in its
        # place is a call of its own, so that later replays do the same.
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
            # It took effect, and its result cannot be recorded: an executor would retry it.
            execution_of(self.run).stop(exc)
        except LeftBehindError:  # it is not recorded, and another attempt would not be either
            raise
        except Exception as exc:
            if is_final(exc):  # an executor would retry it
                park(self.run, self.node_id, f"{call_id}: {exc}")
            return exc, executed

    def _is_recorded(self, call_id: str) -> bool:
        run = execution_of(self.run)
        with run.mutex:
            return any(call.key.call_id == call_id for call in run.replay.unmatched())


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
        """The result type that the node declares (an AgentLoop has its own), else NodeResult. It is
        never taken from a record, which could name any type."""
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
    """The recorded entry of a visit; or one made of the output that an operator gave."""
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
    """The context for a node, and a dict of the node's own writes to the shared memory."""
    name, memory = _memory_of(ctx)
    seen, written = copy.copy(ctx), dict[str, Any]()
    setattr(seen, name, _Memory(memory, written))
    return seen, written


class _Memory(Standin):
    def __init__(self, memory: Any, written: dict[str, Any]) -> None:
        super().__init__(memory)
        self._written = written

    def write(self, key: str, value: Any, *args: Any, **kwargs: Any) -> None:
        """Write to the memory, which may refuse."""
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
