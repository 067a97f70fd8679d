"""Doubles of the executors of Hive's pull request 137, which have a ``checkpoint_manager``.

The one for plans asks for a run id where it has none: NameError, until a test gives it one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from tests.support.hive.graphs import (
    ExecutionResult,
    GraphSpec,
    NodeContext080,
    NodeResult,
    SharedMemory,
)


class GraphExecutor:
    def __init__(
        self,
        runtime: Any,
        llm: Any = None,
        tools: Any = None,
        tool_executor: Any = None,
        node_registry: dict[str, Any] | None = None,
        approval_callback: Any = None,
        checkpoint_manager: Any = None,
    ) -> None:
        self.runtime, self.llm = runtime, llm
        self.node_registry = node_registry or {}
        self.checkpoint_manager = checkpoint_manager

    async def execute(
        self,
        graph: GraphSpec,
        goal: Any,
        input_data: dict[str, Any] | None = None,
        session_state: dict[str, Any] | None = None,
    ) -> ExecutionResult:
        state = session_state or {}
        memory = SharedMemory({**state.get("memory", {}), **(input_data or {})})
        current: str | None = state.get("resume_from") or graph.entry_node
        run_id = self.runtime.start_run(goal_id=goal.id, goal_description="", input_data={})
        path: list[str] = []
        try:
            while current is not None:
                path.append(current)
                spec = graph.get_node(current)
                ctx = NodeContext080(self.runtime, current, spec, memory, {}, self.llm)
                result: NodeResult = await self.node_registry[current].execute(ctx)
                if not result.success:
                    return ExecutionResult(False, memory.read_all(), result.error, path=path)
                self._save(run_id, current, memory, path)
                if current in graph.terminal_nodes:
                    break
                edges = graph.get_outgoing_edges(current)
                current = edges[0].target if edges else None
        except Exception as exc:
            found, node = None, None
            if self.checkpoint_manager:
                found, node = self.checkpoint_manager.restore_from_checkpoint(run_id)
            after = {"memory": found, "resume_from": node} if found and node else {}
            return ExecutionResult(False, {}, str(exc), len(path), path, session_state=after)
        return ExecutionResult(True, memory.read_all(), None, len(path), path)

    def _save(self, run_id: str, node: str, memory: Any, path: list[str]) -> None:
        manager = self.checkpoint_manager
        if manager and manager.should_checkpoint(len(path)):
            manager.save_checkpoint(
                run_id=run_id,
                node_id=node,
                memory=memory,
                executor_type=SimpleNamespace(value="graph"),
                metadata={
                    "execution_path": path.copy(),
                    "step_number": len(path),
                    "total_tokens": 0,
                    "total_latency_ms": 0,
                    "next_node_id": None,
                },
            )


@dataclass
class ActionSpec:
    action_type: str
    function_name: str = ""
    function_args: dict[str, Any] = field(default_factory=dict)


@dataclass
class PlanStep:
    id: str
    description: str
    action: ActionSpec
    expected_outputs: list[str] = field(default_factory=list)
    dependencies: list[str] = field(default_factory=list)
    status: str = "pending"


@dataclass
class Plan:
    id: str
    goal_id: str
    description: str
    steps: list[PlanStep]
    context: dict[str, Any] = field(default_factory=dict)


class FlexibleGraphExecutor:
    def __init__(
        self,
        runtime: Any,
        llm: Any = None,
        functions: dict[str, Any] | None = None,
        checkpoint_manager: Any = None,
    ) -> None:
        self.runtime, self.functions = runtime, functions or {}
        self.checkpoint_manager = checkpoint_manager

    async def execute_plan(
        self, plan: Plan, goal: Any, context: dict[str, Any] | None = None
    ) -> Any:
        context = {**(context or {}), **plan.context}
        self.runtime.start_run(goal_id=goal.id, goal_description="", input_data={})
        executed = 0
        while any(step.status == "pending" for step in plan.steps):
            done = [step.id for step in plan.steps if step.status == "completed"]
            step = next(
                one
                for one in plan.steps
                if one.status == "pending" and set(one.dependencies) <= set(done)
            )
            result = self.functions[step.action.function_name](**step.action.function_args)
            executed += 1
            step.status = "completed"
            outputs = dict.fromkeys(["result", *step.expected_outputs], result)
            context.update(outputs)
            plan.context[step.id] = outputs
            if self.checkpoint_manager and self.checkpoint_manager.should_checkpoint(executed):
                self.checkpoint_manager.save_checkpoint(
                    run_id=_run_id,  # type: ignore[name-defined]  # noqa: F821 - as it is there
                    node_id=step.id,
                    memory=SharedMemory(dict(context)),
                    executor_type=SimpleNamespace(value="flexible"),
                    metadata={
                        "execution_path": [*done, step.id],
                        "step_number": executed,
                        "context": {"plan_context": plan.context},
                    },
                )
        return SimpleNamespace(status=SimpleNamespace(value="completed"), results=context)


PLAN = {
    "ActionSpec": ActionSpec,
    "ActionType": SimpleNamespace(FUNCTION="function"),
    "Plan": Plan,
    "PlanStep": PlanStep,
    "StepStatus": SimpleNamespace(COMPLETED="completed"),
}
