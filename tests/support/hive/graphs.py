"""Doubles of Hive's graph executors, by their signatures and by what they do about failures.

``GraphExecutor`` is that of 0.8.0 (one loop, fan-out with gather), ``Orchestrator`` that of August
2026 (a task for each worker, activations, a shared buffer). Neither knows of anything recorded.
"""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.support.hive import loop_080 as hive_loop_080
from tests.support.hive.loop import (
    AgentLoop,
    FileConversationStore,
)


@dataclass
class SharedMemory:
    _data: dict[str, Any] = field(default_factory=dict)

    def read(self, key: str) -> Any:
        return self._data.get(key)

    def write(self, key: str, value: Any, validate: bool = True) -> None:
        self._data[key] = value

    async def write_async(self, key: str, value: Any, validate: bool = True) -> None:
        await asyncio.sleep(0)
        self._data[key] = value

    def read_all(self) -> dict[str, Any]:
        return dict(self._data)

    def with_permissions(self, read_keys: list[str], write_keys: list[str]) -> SharedMemory:
        return SharedMemory(self._data)


@dataclass
class NodeSpec:
    id: str
    name: str = ""
    node_type: str = "function"
    input_keys: list[str] = field(default_factory=list)
    output_keys: list[str] = field(default_factory=list)
    max_retries: int = 3
    tools: list[str] = field(default_factory=list)


@dataclass
class NodeContext:
    """Of August 2026: ``buffer``."""

    runtime: Any
    node_id: str
    node_spec: NodeSpec
    buffer: SharedMemory
    input_data: dict[str, Any] = field(default_factory=dict)
    llm: Any = None
    attempt: int = 1
    max_attempts: int = 3
    run_id: str = ""
    available_tools: list[Any] = field(default_factory=list)
    continuous_mode: bool = False

    @property
    def agent_id(self) -> str:
        return self.node_id


@dataclass
class NodeContext080:
    """Of 0.8.0: ``memory``."""

    runtime: Any
    node_id: str
    node_spec: NodeSpec
    memory: SharedMemory
    input_data: dict[str, Any] = field(default_factory=dict)
    llm: Any = None
    attempt: int = 1
    run_id: str = ""
    available_tools: list[Any] = field(default_factory=list)
    continuous_mode: bool = False

    @property
    def agent_id(self) -> str:
        return self.node_id


@dataclass
class NodeResult:
    success: bool
    output: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    next_node: str | None = None
    route_reason: str | None = None
    tokens_used: int = 0
    latency_ms: int = 0
    validation_errors: list[str] = field(default_factory=list)
    conversation: Any = None


class NodeProtocol(ABC):
    @abstractmethod
    async def execute(self, ctx: Any) -> NodeResult: ...

    def validate_input(self, ctx: Any) -> list[str]:
        held = ctx.buffer if hasattr(ctx, "buffer") else ctx.memory
        return [
            f"Missing required input: {key}"
            for key in ctx.node_spec.input_keys
            if key not in ctx.input_data and held.read(key) is None
        ]


@dataclass
class LLMResponse:
    content: str
    model: str
    input_tokens: int = 0
    output_tokens: int = 0
    stop_reason: str = ""
    raw_response: Any = None


class LLMProvider:
    """Answers yes and no in turn: asked again, it says something else."""

    def __init__(self) -> None:
        self.asked = 0

    async def acomplete(
        self, messages: list[dict[str, Any]], system: str = "", max_tokens: int = 1024
    ) -> LLMResponse:
        self.asked += 1
        await asyncio.sleep(0)
        proceed = json.dumps({"proceed": self.asked % 2 == 1})
        return LLMResponse(proceed, "double", 3, 1, "stop", raw_response=object())

    def complete(self, messages: list[dict[str, Any]], system: str = "") -> LLMResponse:
        self.asked += 1
        return LLMResponse(f"answer {self.asked}", "double")


@dataclass
class EdgeSpec:
    source: str
    target: str
    condition: str = "on_success"  # "on_failure", "llm_decide"; or a function of the output
    when: Callable[[dict[str, Any]], bool] | None = None

    async def should_traverse(
        self,
        source_success: bool,
        source_output: dict[str, Any],
        buffer_data: dict[str, Any],
        llm: Any,
        goal: Any,
    ) -> bool:
        if self.condition == "conditional":
            assert self.when is not None
            return self.when({**buffer_data, **source_output})
        if self.condition == "llm_decide":
            try:
                response = await llm.acomplete(
                    messages=[{"role": "user", "content": f"{self.source} to {self.target}?"}],
                    system="You are a routing agent. Respond with JSON only.",
                    max_tokens=64,
                )
                return bool(json.loads(response.content)["proceed"])
            except Exception:  # Hive proceeds on success then
                return source_success
        return source_success == (self.condition == "on_success")


@dataclass
class GraphSpec:
    entry_node: str
    nodes: list[NodeSpec]
    edges: list[EdgeSpec]
    terminal_nodes: list[str] = field(default_factory=list)
    conversation_mode: str = "continuous"

    def get_node(self, node_id: str) -> NodeSpec:
        return next(node for node in self.nodes if node.id == node_id)

    def get_outgoing_edges(self, node_id: str) -> list[EdgeSpec]:
        return [edge for edge in self.edges if edge.source == node_id]


@dataclass
class ExecutionResult:
    success: bool
    output: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    steps_executed: int = 0
    path: list[str] = field(default_factory=list)
    paused_at: str | None = None
    session_state: dict[str, Any] = field(default_factory=dict)


class _Executor:
    context: type = NodeContext
    loop_type: type[AgentLoop] = AgentLoop
    files_type: type[Any] = FileConversationStore
    is_continuous = False

    def __init__(
        self,
        runtime: Any,
        llm: Any = None,
        tools: Any = None,
        tool_executor: Any = None,
        node_registry: dict[str, NodeProtocol] | None = None,
        storage_path: Any = None,
    ) -> None:
        self.runtime, self.llm, self.tools = runtime, llm, tools or []
        self.tool_executor, self.storage_path = tool_executor, storage_path
        self.node_registry = node_registry or {}
        self.backoff_s = 0.0
        self.path: list[str] = []

    def register_node(self, node_id: str, implementation: NodeProtocol) -> None:
        self.node_registry[node_id] = implementation

    def _implementation(self, spec: NodeSpec) -> Any:
        """What is registered; else a loop, with a store that it shares with all others."""
        if spec.id not in self.node_registry:
            files = self.files_type(self.storage_path / "conversations")
            made: Any = self.loop_type(tool_executor=self.tool_executor, conversation_store=files)
            self.node_registry[spec.id] = made
            return made  # and not what the registry has
        return self.node_registry[spec.id]

    async def _with_retries(
        self, spec: NodeSpec, memory: SharedMemory, given: dict[str, Any]
    ) -> NodeResult:
        impl = self._implementation(spec)
        result = NodeResult(False, error="no attempts")
        for attempt in range(1 if isinstance(impl, AgentLoop) else max(1, spec.max_retries)):
            scoped = memory.with_permissions(spec.input_keys, spec.output_keys)
            ctx = self.context(self.runtime, spec.id, spec, scoped, given, self.llm, attempt + 1)
            ctx.available_tools = [one for one in self.tools if one.name in spec.tools]
            ctx.continuous_mode = self.is_continuous
            impl.validate_input(ctx)  # what is wrong is reported, and goes on
            try:
                result = await impl.execute(ctx)
            except Exception as exc:
                result = NodeResult(False, error=str(exc))
            if result.success:
                if self.is_continuous and result.conversation is not None:
                    await result.conversation.add("user", f"{spec.name} is done; go on")
                return result
            await asyncio.sleep(self.backoff_s)
        return NodeResult(False, error=f"failed after {spec.max_retries} attempts: {result.error}")

    async def _edges(
        self, graph: GraphSpec, node_id: str, result: NodeResult, memory: SharedMemory, goal: Any
    ) -> list[EdgeSpec]:
        if node_id in graph.terminal_nodes:
            return []
        return [
            edge
            for edge in graph.get_outgoing_edges(node_id)
            if await edge.should_traverse(
                result.success, result.output, memory.read_all(), self.llm, goal
            )
        ]


class GraphExecutor(_Executor):
    """0.8.0: cancelled, it says that it has paused."""

    context = NodeContext080
    loop_type, files_type = hive_loop_080.EventLoopNode, hive_loop_080.FileConversationStore

    async def execute(
        self, graph: GraphSpec, goal: Any, input_data: dict[str, Any]
    ) -> ExecutionResult:
        memory = SharedMemory(dict(input_data))
        self.is_continuous = graph.conversation_mode == "continuous"
        try:
            return await self._walk(graph, goal, memory)
        except asyncio.CancelledError:
            return ExecutionResult(False, memory.read_all(), "Execution paused", path=self.path)

    async def _walk(self, graph: GraphSpec, goal: Any, memory: SharedMemory) -> ExecutionResult:
        current: str | None = graph.entry_node
        while current is not None:
            self.path.append(current)
            result = await self._with_retries(graph.get_node(current), memory, {})
            if result.success:
                for key, value in result.output.items():
                    memory.write(key, value, validate=False)
            elif not graph.get_outgoing_edges(current):
                return ExecutionResult(False, memory.read_all(), result.error, path=self.path)
            targets = (
                [result.next_node]
                if result.next_node
                else [
                    edge.target for edge in await self._edges(graph, current, result, memory, goal)
                ]
            )
            if not targets and not result.success:
                return ExecutionResult(False, memory.read_all(), result.error, path=self.path)
            if len(targets) > 1:
                current = await self._branches(graph, targets, memory)
            else:
                current = targets[0] if targets else None
        return ExecutionResult(True, memory.read_all(), None, len(self.path), self.path)

    async def _branches(self, graph: GraphSpec, targets: list[str], memory: SharedMemory) -> str:
        async def branch(node_id: str) -> tuple[str, NodeResult | Exception]:
            try:
                result = await self._with_retries(graph.get_node(node_id), memory, {})
                self.path.append(node_id)
                if result.success:
                    for key, value in result.output.items():
                        await memory.write_async(key, value)
                return node_id, result
            except Exception as exc:
                return node_id, exc

        branches = (asyncio.wait_for(branch(one), timeout=300) for one in targets)
        failed = []
        for found in await asyncio.gather(*branches, return_exceptions=True):
            if isinstance(found, BaseException):
                if not isinstance(found, Exception | asyncio.CancelledError):
                    raise found  # a process that dies goes no further
                failed.append(str(found))
            elif isinstance(found[1], Exception) or not found[1].success:
                failed.append(found[0])
        if failed:
            raise RuntimeError(f"Parallel execution failed: {failed}")
        return graph.get_outgoing_edges(targets[0])[0].target


class Orchestrator(_Executor):
    """August 2026: a task for each worker; what is no Exception ends the task, and nothing else.

    A worker keeps the implementation of its node from its first visit on.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._kept: dict[str, Any] = {}

    def _implementation(self, spec: NodeSpec) -> Any:
        if spec.id not in self._kept:
            self._kept[spec.id] = super()._implementation(spec)
        return self._kept[spec.id]

    async def execute(
        self, graph: GraphSpec, goal: Any, input_data: dict[str, Any]
    ) -> ExecutionResult:
        buffer = SharedMemory(dict(input_data))
        self.is_continuous = graph.conversation_mode == "continuous"
        reached: dict[str, int] = {}
        failed: list[str] = []
        tasks: set[asyncio.Task[list[str]]] = set()

        async def worker(node_id: str) -> list[str]:
            self.path.append(node_id)
            try:
                result = await self._with_retries(graph.get_node(node_id), buffer, {})
                if result.success:
                    for key, value in result.output.items():
                        buffer.write(key, value, validate=False)
                edges = await self._edges(graph, node_id, result, buffer, goal)
                if not result.success and not edges:
                    failed.append(str(result.error))
                return [result.next_node] if result.next_node else [one.target for one in edges]
            except Exception as exc:
                failed.append(str(exc))
                return []

        tasks.add(asyncio.ensure_future(worker(graph.entry_node)))
        while tasks:
            done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                for target in task.result():
                    reached[target] = reached.get(target, 0) + 1
                    joins = sum(
                        1
                        for edge in graph.edges
                        if edge.target == target and edge.condition == "on_success"
                    )
                    if reached[target] % max(joins, 1) == 0:
                        tasks.add(asyncio.ensure_future(worker(target)))
        error = failed[0] if failed else None
        return ExecutionResult(
            error is None, buffer.read_all(), error, len(self.path), list(self.path)
        )
