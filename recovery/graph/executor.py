"""Provides GraphExecutor: executes graphs as recorded runs, and reports how they ended."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from os import urandom
from typing import Any, Unpack

from eventlog import RefusedValueError
from recovery.agent.checkpoint_store import CheckpointStore
from recovery.agent.recoverable import RecoverableAgent
from recovery.declare.settings import Options, Settings
from recovery.engine.recovery_report import RunResult
from recovery.errors import RecoveryError, WaitingError
from recovery.graph.checkpoint_manager import CheckpointManager
from recovery.graph.graph import Graph
from recovery.graph.hooks import call_hook
from recovery.graph.state import GraphState
from recovery.graph.walk import GraphParkedError, Walk, check_task, finished
from recovery.inspect.status import status
from recovery.values.pack import pack

Live = Callable[[RecoverableAgent], Awaitable[RunResult]]


@dataclass(slots=True)
class ExecutionResult:
    """How an execution of a graph ended.

    ``success``: it completed; ``output`` is then the memory, with all that the nodes have written.
    Otherwise ``error`` names the reason, or ``paused_at`` the node that waits for a signal; the run
    can be resumed by its ``run_id``. ``path``: the nodes visited, in order; ``node_visit_counts``
    by node; ``total_retries`` and ``retry_details`` (by node): retried visits;
    ``nodes_with_failures``: nodes that failed and were followed by an edge. ``steps_executed``:
    visits that this process has made. ``branches_not_made``: nodes that were to be visited, and are
    not, because the graph was changed since. ``report``: the RecoveryReport of a run that has
    ended.
    """

    success: bool
    run_id: str
    output: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    paused_at: str | None = None
    path: list[str] = field(default_factory=list)
    steps_executed: int = 0
    node_visit_counts: dict[str, int] = field(default_factory=dict)
    total_retries: int = 0
    retry_details: dict[str, int] = field(default_factory=dict)
    nodes_with_failures: list[str] = field(default_factory=list)
    branches_not_made: list[str] = field(default_factory=list)
    report: Any = None


class GraphExecutor:
    """Executes graphs: each visit of a node is a recorded call, so that none is made twice.

    ``runtime``: an object with hooks, each optional. The executor calls them for what this process
    executes, never for what is served from the log, and logs their errors:

    - ``start_run(goal_id=, goal_description=, input_data=)``
    - ``end_run(success=, narrative=, output_data=)``
    - ``report_problem(severity=, description=)``
    - ``set_node(node_id)``
    - ``decide(intent=, options=, chosen=, reasoning=)``: which node comes next; returns an id
    - ``record_outcome(decision_id=, success=, result=, summary=)``: what the node wrote

    ``checkpoint_manager``: keeps the runs; without one nothing is stored, and runs end with the
    executor.

    ``options``: those of a RecoverableAgent, by name: ``max_recoveries``, ``after_crash``,
    ``stop_on``, ``max_children``, ``on_event``, ``budget``, ``checkpoint_every_bytes``,
    ``park_after_s``, ``check_locals``, ``on_drift``, ``subject``, ``on_forgotten``.
    """

    def __init__(
        self,
        runtime: Any = None,
        checkpoint_manager: CheckpointManager | None = None,
        **options: Unpack[Options],
    ) -> None:
        if isinstance(runtime, CheckpointManager):
            raise TypeError("the first parameter is runtime: write checkpoint_manager=...")
        if not isinstance(checkpoint_manager, CheckpointManager | None):
            raise TypeError(
                "checkpoint_manager is a CheckpointManager, such as CheckpointManager('runs'), not "
                f"{checkpoint_manager!r:.80}"
            )
        self.runtime, self.checkpoint_manager = runtime, checkpoint_manager
        self._keeps = checkpoint_manager is not None and checkpoint_manager.config.enabled
        self.store = (
            checkpoint_manager.store
            if checkpoint_manager is not None and self._keeps
            else CheckpointStore()
        )
        given: Options = {"max_recoveries": 0, "park_after_s": 0.0}
        self._options: Options = {**given, **options}
        Settings(None, **self._options)  # which refuses wrong ones

    async def execute(
        self,
        graph: Graph,
        goal: Any,
        input_data: Mapping[str, Any] | None = None,
        run_id: str | None = None,
    ) -> ExecutionResult:
        """Execute ``graph``, or resume run ``run_id`` where it stopped (None: a new run).

        ``goal``: a value that can be recorded, or an object with ``id`` or ``description``.
        ``input_data``: the initial memory. A run that has ended gives its recorded result, and
        executes nothing. If a node fails, the run can be resumed.

        Raises GraphError for a graph that cannot be executed, and as
        ``RecoverableAgent.run_with_recovery``: InDoubtError, DivergenceError, TaskMismatchError,
        LogLockedError, ...
        """
        _check_graph(graph)
        if not isinstance(input_data, Mapping | None):
            raise TypeError(f"input_data is a dict, the initial memory; not {input_data!r:.80}")
        task = {"graph": graph.name, "goal": plain_goal(goal), "input": dict(input_data or {})}
        if run_id is None:
            run_id = f"run_{urandom(16).hex()}"
        elif self._keeps:
            self._check_automatic(run_id)
        return await self._live(
            graph, run_id, task, lambda agent: agent.run_with_recovery(task, run_id)
        )

    async def resume(self, graph: Graph, run_id: str) -> ExecutionResult:
        """Resume run ``run_id`` of ``graph``; its goal and input are the recorded ones.

        If a node has failed, it tries again. Raises RecoveryError when there is no such run, or it
        is not one of this graph; otherwise as ``execute``.
        """
        _check_graph(graph)
        task = status(self.store, run_id).task
        check_task(run_id, task, graph)
        return await self._live(graph, run_id, task, lambda agent: agent.resume(run_id))

    def execute_sync(
        self,
        graph: Graph,
        goal: Any,
        input_data: Mapping[str, Any] | None = None,
        run_id: str | None = None,
    ) -> ExecutionResult:
        """``execute`` without an event loop."""
        return asyncio.run(self.execute(graph, goal, input_data, run_id))

    def resume_sync(self, graph: Graph, run_id: str) -> ExecutionResult:
        """``resume`` without an event loop."""
        return asyncio.run(self.resume(graph, run_id))

    def agent(self, walk: Walk) -> RecoverableAgent:
        """Not for users: the agent that runs a walk."""
        manager = self.checkpoint_manager
        every = manager.config.every if manager is not None and self._keeps else sys.maxsize
        return RecoverableAgent(walk.agent, self.store, every, **self._options)

    async def _live(
        self, graph: Graph, run_id: str, task: dict[str, Any], live: Live
    ) -> ExecutionResult:
        walk = Walk(graph, self.runtime)
        goal = task["goal"]
        error_line = goal if isinstance(goal, dict) else {}
        await call_hook(
            self.runtime,
            "start_run",
            goal_id=str(error_line.get("id", graph.name)),
            goal_description=str(error_line.get("description", goal)),
            input_data=task["input"],
        )
        try:
            result = await self._ended(walk, run_id, live)
        except Exception as exc:
            await self._call_end_hooks(str(exc), {}, problem=True)
            raise
        await self._call_end_hooks(
            result.error or "", result.output, problem=result.error is not None
        )
        if result.success and not self._keeps:
            self.store.backend.remove(run_id)
        return result

    async def _ended(self, walk: Walk, run_id: str, live: Live) -> ExecutionResult:
        try:
            done = await live(self.agent(walk))
        except GraphParkedError as exc:
            return self._stopped(walk, run_id, error=exc.why)
        except WaitingError:
            return self._stopped(walk, run_id, paused_at=next(iter(walk.in_flight), None))
        return as_result(run_id, done["result"], walk.executed, success=True, report=done["report"])

    def _stopped(self, walk: Walk, run_id: str, **how: str | None) -> ExecutionResult:
        state = walk.state or GraphState()
        return as_result(run_id, finished(state), walk.executed, success=False, **how)

    async def _call_end_hooks(self, error: str, output: dict[str, Any], problem: bool) -> None:
        if problem:
            await call_hook(self.runtime, "report_problem", severity="critical", description=error)
        await call_hook(
            self.runtime,
            "end_run",
            success=not problem,
            output_data=output,
            narrative=error or "the graph came to its end",
        )

    def _check_automatic(self, run_id: str) -> None:
        manager = self.checkpoint_manager
        if manager is None or manager.config.auto_recovery:
            return
        if manager.is_unfinished(run_id):
            raise RecoveryError(
                f"run {run_id!r} was begun and has not ended, and auto_recovery is off. Nothing "
                "was executed. executor.resume(graph, run_id) resumes it."
            )


def _check_graph(graph: object) -> None:
    if not isinstance(graph, Graph):
        raise TypeError(f"graph is a recovery.graph.Graph, not {graph!r:.80}")
    graph.check()


def as_result(run_id: str, found: dict[str, Any], executed: int, **how: Any) -> ExecutionResult:
    """The result of an execution, from its recorded result."""
    return ExecutionResult(
        run_id=run_id,
        output=dict(found["output"]),
        path=list(found["path"]),
        node_visit_counts=dict(found["visits"]),
        retry_details=dict(found["retries"]),
        total_retries=sum(found["retries"].values()),
        nodes_with_failures=list(found["failed"]),
        steps_executed=executed,
        branches_not_made=list(found.get("not_made", ())),
        **how,
    )


def plain_goal(goal: Any) -> Any:
    """A goal as it is recorded: itself if it can be recorded, else the fields of an object."""
    try:
        pack(goal, "goal")
    except RefusedValueError:
        names = ("id", "name", "description")
        said = {
            name: found for name in names if isinstance(found := getattr(goal, name, None), str)
        }
        if not said:
            raise
        return said
    return goal
