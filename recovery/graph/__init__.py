"""Executes agents that are graphs of nodes, as recorded runs that resume where they stopped."""

from recovery.graph.checkpoint_manager import RestoredCheckpoint
from recovery.graph.executor import ExecutionResult, GraphExecutor
from recovery.graph.graph import Edge, Graph, GraphError, Node
from recovery.graph.node import Memory, NodeContext, NodeFailedError, NodeResult
from recovery.graph.plans import (
    FlexibleGraphExecutor,
    Judgment,
    PlanLimits,
    PlanStep,
    StepOutcome,
    feedback_of,
)
from recovery.graph.state import END
from recovery.graph.walk import GraphParkedError

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
    "RestoredCheckpoint",
    "StepOutcome",
    "feedback_of",
]
