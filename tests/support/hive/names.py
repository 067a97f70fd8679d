"""The doubles of Hive under the names that Hive has for them, and with its keywords."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from tests.support.hive import graphs as hive_graphs
from tests.support.hive import loop as hive_loop
from tests.support.hive import loop_080 as hive_loop_080
from tests.support.hive import plans as hive_plans

VERSIONS = ("main", "0.8.0", "137")


@dataclass
class Tool:
    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass
class LLMResponse:
    content: str
    model: str
    stop_reason: str = ""


class LLMProvider:
    """What its subclasses stream."""

    async def acomplete(self, *args: Any, **options: Any) -> Any:
        return self.complete(*args, **options)  # type: ignore[attr-defined]


def _event(kind: str) -> Any:
    return lambda **fields: SimpleNamespace(type=kind, **fields)


class Runtime:
    """0.8.0; DecisionTracker since."""

    def __init__(self, storage_path: Any) -> None:
        self.storage = SimpleNamespace(base_path=Path(storage_path))

    def start_run(self, *args: Any, **options: Any) -> str:
        return "run_1"

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **options: ""


def LoopConfig(**options: Any) -> dict[str, Any]:  # noqa: N802 - a class there
    return options


EdgeCondition = SimpleNamespace(ON_SUCCESS="on_success", ALWAYS="on_success")


def EdgeSpec(  # noqa: N802
    id: str,
    source: str,
    target: str,
    condition: str = "on_success",
) -> hive_graphs.EdgeSpec:
    return hive_graphs.EdgeSpec(source, target, condition)


def NodeSpec(description: str = "", **options: Any) -> hive_graphs.NodeSpec:  # noqa: N802
    return hive_graphs.NodeSpec(**{"node_type": "event_loop", **options})


def GraphSpec(id: str, goal_id: str, **options: Any) -> hive_graphs.GraphSpec:  # noqa: N802
    options.pop("max_steps", None)
    return hive_graphs.GraphSpec(**options)


def AgentSpec(**options: Any) -> Any:  # noqa: N802
    return SimpleNamespace(**options)


def Goal(**options: Any) -> Any:  # noqa: N802
    return SimpleNamespace(**options)


_LLM = {
    "framework.llm.provider": {
        "LLMProvider": LLMProvider,
        "LLMResponse": LLMResponse,
        "Tool": Tool,
        "ToolResult": hive_loop.ToolResult,
        "ToolUse": hive_loop.ToolUse,
    },
    "framework.llm.stream_events": {
        "FinishEvent": _event("finish"),
        "TextDeltaEvent": lambda content="", snapshot="": SimpleNamespace(
            type="text_delta", content=content, snapshot=snapshot
        ),
        "ToolCallEvent": _event("tool_call"),
    },
}
_EDGES = {"EdgeCondition": EdgeCondition, "EdgeSpec": EdgeSpec, "GraphSpec": GraphSpec}
_NODES = {
    "NodeProtocol": hive_graphs.NodeProtocol,
    "NodeResult": hive_graphs.NodeResult,
    "NodeSpec": NodeSpec,
}
_MODULES: dict[str, dict[str, dict[str, Any]]] = {
    "main": {
        **_LLM,
        "framework.storage.conversation_store": {
            "FileConversationStore": hive_loop.FileConversationStore
        },
        "framework.agent_loop.agent_loop": {
            "AgentLoop": hive_loop.AgentLoop,
            "LoopConfig": LoopConfig,
        },
        "framework.agent_loop.types": {
            "AgentContext": hive_loop.AgentContext,
            "AgentSpec": AgentSpec,
        },
        "framework.orchestrator.edge": _EDGES,
        "framework.orchestrator.goal": {"Goal": Goal},
        "framework.orchestrator.node": _NODES,
        "framework.orchestrator.orchestrator": {"Orchestrator": hive_graphs.Orchestrator},
        "framework.tracker.decision_tracker": {"DecisionTracker": Runtime},
    },
    "0.8.0": {
        **_LLM,
        "framework.storage.conversation_store": {
            "FileConversationStore": hive_loop_080.FileConversationStore
        },
        "framework.graph.edge": _EDGES,
        "framework.graph.event_loop_node": {
            "EventLoopNode": hive_loop_080.EventLoopNode,
            "LoopConfig": LoopConfig,
        },
        "framework.graph.executor": {"GraphExecutor": hive_graphs.GraphExecutor},
        "framework.graph.goal": {"Goal": Goal},
        "framework.graph.node": {
            **_NODES,
            "NodeContext": hive_graphs.NodeContext080,
            "SharedMemory": hive_graphs.SharedMemory,
        },
        "framework.runtime.core": {"Runtime": Runtime},
    },
    "137": {
        "framework.runtime.core": {"Runtime": Runtime},
        "framework.graph.edge": _EDGES,
        "framework.graph.executor": {"GraphExecutor": hive_plans.GraphExecutor},
        "framework.graph.flexible_executor": {
            "FlexibleGraphExecutor": hive_plans.FlexibleGraphExecutor
        },
        "framework.graph.goal": {"Goal": Goal},
        "framework.graph.node": _NODES,
        "framework.graph.plan": hive_plans.PLAN,
    },
}


@contextmanager
def installed(version: str) -> Iterator[None]:
    """The doubles as the packages of Hive."""
    before = dict(sys.modules)
    for name, held in _MODULES[version].items():
        parts = name.split(".")
        for end in range(1, len(parts)):
            sys.modules.setdefault(".".join(parts[:end]), ModuleType(".".join(parts[:end])))
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(held)
    try:
        yield
    finally:
        for name in [one for one in sys.modules if one.split(".")[0] == "framework"]:
            del sys.modules[name]
        sys.modules |= {name: one for name, one in before.items() if name.startswith("framework")}
