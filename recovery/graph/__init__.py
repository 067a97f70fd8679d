"""Agents that are graphs of nodes: executed as recorded runs, resumed where they stopped."""

from recovery.graph._executor import ExecutionResult, GraphExecutor
from recovery.graph._flexible import (
    FlexibleGraphExecutor,
    Judgment,
    PlanLimits,
    PlanStep,
    StepOutcome,
    feedback_of,
)
from recovery.graph._graph import Edge, Graph, GraphError, Node
from recovery.graph._node import Memory, NodeContext, NodeFailedError, NodeResult
from recovery.graph._standing import END
from recovery.graph._walk import GraphParkedError

__all__ = [
    "END",
    "Edge",
    "ExecutionResult",
    "FlexibleGraphExecutor",
    "Graph",
    "GraphError",
    "GraphExecutor",
    "GraphParkedError",
    "Judgment",
    "Memory",
    "Node",
    "NodeContext",
    "NodeFailedError",
    "NodeResult",
    "PlanLimits",
    "PlanStep",
    "StepOutcome",
    "feedback_of",
]
