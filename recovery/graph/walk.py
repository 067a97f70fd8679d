"""Executes a graph as an agent function: each step of the run visits all nodes that are ready."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from eventlog import RefusedValueError
from recovery.agent.drivers import Drivers
from recovery.agent.run import Run, execution_of
from recovery.calls.attempts import sleep_until
from recovery.calls.in_thread import in_thread
from recovery.declare.scope import current_scope
from recovery.declare.spec import ToolSpec, is_async
from recovery.engine.execution_base import ExecutionBase
from recovery.engine.randomness import a_number
from recovery.engine.unrecordable_results import refuse_result
from recovery.errors import ParkedError, RecoveryError, Sides, ToolError
from recovery.graph.graph import Graph, Node, function_of, is_final, making
from recovery.graph.hooks import call_hook
from recovery.graph.node import Memory, NodeContext, NodeFailedError
from recovery.graph.state import ARROW, END, START, GraphState, sources
from recovery.history.run_records import keys_of
from recovery.journal.events import RunParked
from recovery.replay.call_view import Failure
from recovery.values.pack import pack_message

Entry = dict[str, Any]  # of a visit: see GraphState

# From so many entries on they may be replaced by one, of at most this size.
FOLDED_MIN, FOLDED_SIZE_MAX = 256, 16 << 20


class GraphParkedError(ParkedError):
    """A run of a graph is parked at node ``node``, because of ``why``; resumed, it tries again.

    ``call``: the failed call (its LSN) that it does not retry by itself, and ``call_key`` its
    idempotency key; 0 and "": it tries again.
    """

    def __init__(self, run_id: str, node: str, why: str, call: tuple[int, str] = (0, "")) -> None:
        self.run_id, self.node, self.why = run_id, node, why
        self.call, self.call_key = call
        todo = "Resume it, and it tries again."
        if self.call:
            todo = (
                "Resuming it does not retry the call. To retry it: "
                f"store.run({run_id!r}).resolve({self.call_key!r}, Resolution.retry())"
            )
        super().__init__(f"run {run_id!r} is parked: {why}. {todo}")


@dataclass(eq=False, slots=True)
class Visit:
    """A visit that is to be made."""

    node: Node
    number: int
    via: list[str]
    answer: Any = None
    attempt: int = 0
    before: int = 0  # attempts that were calls of their own, in runs of the first rules
    executed: bool = False  # whether this process executes the present attempt

    def entry(self, **what: Any) -> Entry:
        """Its recorded entry."""
        tries = {"attempts": self.attempt} if self.attempt > 1 else {}
        return {"node": self.node.name, "visit": self.number, "via": self.via, **what, **tries}


@dataclass(frozen=True, slots=True)
class Failed:
    """A failed visit: its error, and its call (LSN); ``stays``: resuming the run does not retry
    it."""

    error: Exception
    call: int
    stays: bool


@dataclass(eq=False, slots=True)
class Walk:
    """One execution of a graph, in one process, by its agent function ``agent``.

    ``state``: the state of the run; None before it is known. ``in_flight``: the nodes whose
    visits have begun and not ended; ``executed``: visits made by this process.
    """

    graph: Graph
    runtime: Any = None
    state: GraphState | None = None
    in_flight: dict[str, None] = field(default_factory=dict)
    executed: int = 0

    def made_of(self) -> tuple[str, list[Any]]:
        """The input of the code's digest: the nodes and edges, and their functions."""
        edges = [
            (edge.source, edge.target, str(edge.when) * (not callable(edge.when)))
            for edge in self.graph.edges
        ]
        works = [function_of(node.work) for node in self.graph.nodes.values()]
        asked = [edge.when for edge in self.graph.edges if callable(edge.when)]
        return repr((list(self.graph.nodes), edges)), [*works, *asked]

    async def agent(self, run: Run) -> dict[str, Any]:
        """The agent function."""
        check_task(run.run_id, run.task, self.graph)
        self.state, self.in_flight = begun(run, self.graph), {}
        async for _ in run.steps():
            await self._step(run, self.state)
            if not self.state.pending:
                return finished(self.state)
        raise AssertionError("the loop of steps has no end")

    async def _step(self, run: Run, state: GraphState) -> None:
        known = len(run.messages)
        await self._check(run, state)
        visits = [self._visit_of(run, state, name) for name in ready(self.graph, state)]
        self.in_flight = {visit.node.name: None for visit in visits}
        if len(visits) == 1:
            ended = [await self._visit(run, state, visits[0])]
        else:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._visit(run, state, one)) for one in visits]
            ended = [task.result() for task in tasks]
        # Invariant: no entry of a step is in the state, or among the messages, before all of its
        # visits have ended.
        failed = [
            (visit.node.name, found)
            for visit, found in zip(visits, ended, strict=True)
            if isinstance(found, Failed)
        ]
        if failed:
            name, first = failed[0]
            calls = [one.call for _, one in failed if one.call and not one.stays]
            stays = [one.call for _, one in failed if one.call and one.stays]
            calls *= execution_of(run).rules >= 2  # before, each attempt is a call of its own
            park(run, name, f"node {name!r} failed: {error_line(first.error)}", calls, stays)
        entries = [found for found in ended if not isinstance(found, Failed)]
        for entry in entries:
            state.take(entry)
            run.messages.append(entry)
        fold(run, state, known)

    async def _check(self, run: Run, state: GraphState) -> None:
        """Follow the edges of the present graph, where they differ from the run's.

        Stops the run if it cannot continue from its record.
        """
        for name in list(state.pending):
            via = state.via(name)
            gone = [edge for edge in via if ARROW in edge and not self._has(edge, name)]
            if name in self.graph.nodes:
                # The edges of a visited node that was removed from the graph still count.
                gone = [edge for edge in gone if sources([edge])[0] in self.graph.nodes]
                if not gone:
                    continue
            edges = gone or via
            for edge in edges:
                await self._lead_on(run, state, name, edge)

    async def _lead_on(self, run: Run, state: GraphState, name: str, edge: str) -> None:
        """Follow the present edges from the source of this one."""
        (source,) = sources([edge])
        last, drift = self._entry_of(run, source)[0], execution_of(run).drift
        known = ARROW in edge and source in self.graph.nodes
        targets: list[str] = []
        if known and drift.is_allowed:  # another graph is other code
            targets = await self._targets(run, state, source)
            drift.say(
                f"node {source} led to node {name}, and the present graph leads to "
                f"{', '.join(targets) or END}"
            )
        else:
            if name not in self.graph.nodes:
                found = f"graph {self.graph.name!r} has no node {name!r}"
            else:
                found = f"graph {self.graph.name!r} has no edge {edge}"
            sides = Sides(last, f"node {source} led to node {name} (edge {edge})", found)
            with execution_of(run).mutex:
                drift.diverge(sides)
        # Recorded, so that the next process does not check it again.
        entry = {"node": name, "via": [edge], "dropped": True, "source": source, "next": targets}
        state.take(entry)
        run.messages.append(entry)

    async def _targets(self, run: Run, state: GraphState, source: str) -> list[str]:
        """The targets of the present graph after a node's recorded visit."""
        _, entry = self._entry_of(run, source)
        if entry is not None and "error" in entry:
            return self.graph.after_failure(source)
        output = state.memory if entry is None else entry.get("output", {})
        return await self._chosen(source, dict(output), Memory(state.memory))

    def _entry_of(self, run: Run, source: str) -> tuple[int, Mapping[str, Any] | None]:
        """The last visit of a node: its LSN and its entry; None if entries were folded into one
        since."""
        entries = zip(reversed(run.messages), reversed(run.messages.refs), strict=True)
        one, ref = next(
            (one, ref)
            for one, ref in entries
            if one.get("node", source) == source and not one.get("dropped")
        )
        return 0 if ref is None else ref.lsn, one if "node" in one else None

    def _has(self, edge: str, target: str) -> bool:
        (source,) = sources([edge])
        return source == START or self.graph.leads(source, target)

    def _visit_of(self, run: Run, state: GraphState, name: str) -> Visit:
        node, number = self.graph.nodes[name], state.visits.get(name, 0) + 1
        via = state.via(name)
        limit = node.options.get("max_visits", self.graph.max_visits)
        if number > limit:
            why = f"node {name!r} would be visited more than {limit} times, by {', '.join(via)}"
            park(run, name, why)
        return Visit(node, number, via)

    async def _visit(self, run: Run, state: GraphState, visit: Visit) -> Entry | Failed:
        """Make a visit; returns its entry, or its failure."""
        node = visit.node
        if node.options.get("pause"):
            visit.answer = await run.wait_for(node.name)
        ended: Entry | Failed
        try:
            if execution_of(run).rules < 2:
                ended = await self._visit_by_first_rules(run, state, visit)
            else:
                ended = await self._call(run, state, visit, node.spec)
        except Exception as exc:
            known = (one for one in reversed(execution_of(run).failures) if one.error is exc)
            failure = next(known, Failure(exc, 0, 0))
            visit.attempt = max(visit.before, failure.raised)
            targets = self.graph.after_failure(node.name)
            if targets:
                ended = visit.entry(error=error_line(exc), next=targets)
            else:
                # Invariant: the failure is recorded before the run parks for it, and a resumed run
                # retries the visit only if it had parked for it.
                ended = Failed(exc, failure.call, is_final(exc))
        self.in_flight.pop(node.name, None)
        return ended

    async def _visit_by_first_rules(self, run: Run, state: GraphState, visit: Visit) -> Entry:
        """The same where each attempt is a call of its own, and none is served another's calls."""
        node, failed, retry = visit.node, 0, visit.node.retry
        while True:
            visit.before += 1
            try:
                return await self._call(run, state, visit, replace(node.spec, retry=None))
            except Exception as exc:
                error = exc
            failed += 1
            final = is_final(error)
            if not final and retry is not None and retry.again(error, failed):
                if visit.executed:  # otherwise the process that recorded the failure has waited
                    await pause(execution_of(run), retry.pause_s(error, failed, a_number()))
                continue
            if self.graph.after_failure(node.name) or visit.executed or final:
                raise error
            failed = 0  # an earlier process parked here, and the run was resumed: try again

    async def _call(self, run: Run, state: GraphState, visit: Visit, spec: ToolSpec) -> Entry:
        """The recorded call of a visit. Its outcome is the entry of the visit, with the answers of
        the edges' conditions: they are not called again."""
        visit.executed = False

        async def attempt() -> Entry:
            visit.executed = True
            visit.attempt = visit.before or execution_of(run).current_scope().raised + 1
            self.executed += 1
            memory = Memory(state.memory)
            context = NodeContext(
                run.run_id,
                visit.node.name,
                run.task["goal"],
                run.task["input"],
                memory,
                visit.number,
                visit.attempt,
                tuple(visit.via),
                visit.answer,
                self.runtime,
                run,
            )
            await call_hook(self.runtime, "set_node", visit.node.name)
            found = await worked(visit.node.work, context)
            return await self._entry(visit, memory, found)

        identity = (visit.number, visit.via, visit.before)[: 3 if visit.before else 2]
        token = making.set(attempt)
        try:
            found = await execution_of(run).perform_async(spec, (identity, {}), "")
        finally:
            making.reset(token)
        if is_entry(found):
            return found  # type: ignore[no-any-return]
        # An operator has resolved a visit in doubt with a value (Resolution.outcome).
        return await self._entry(visit, Memory(state.memory), found)

    async def _entry(self, visit: Visit, memory: Memory, found: Any) -> Entry:
        """The entry of a visit whose work returned ``found``."""
        name = visit.node.name
        output, chosen = unfolded(name, found)
        memory.written.update(output)
        if chosen:
            entry = visit.entry(output=memory.written, next=self._named(name, chosen), jump=True)
        else:
            targets = await self._chosen(name, output, memory)
            entry = visit.entry(output=memory.written, next=targets)
        check_recordable(visit.node, entry, found)
        edges = [str(edge) for edge in self.graph.edges_from(name)]
        decision = await call_hook(
            self.runtime,
            "decide",
            intent=f"where to go from node {name}",
            options=[{"id": edge, "description": edge} for edge in edges],
            chosen=", ".join(entry["next"]) or END,
            reasoning="the node named it" if chosen else "the edges' conditions",
        )
        await call_hook(
            self.runtime,
            "record_outcome",
            decision_id=decision,
            success=True,
            result=dict(entry["output"]),
            summary=f"node {name}, visit {visit.number}",
        )
        return entry

    def _named(self, name: str, chosen: str) -> list[str]:
        if chosen == END:
            return []
        if chosen not in self.graph.nodes:
            raise NodeFailedError(
                f"node {name!r} named {chosen!r} as the next one, and the graph has no such node"
            )
        return [chosen]

    async def _chosen(self, name: str, output: Mapping[str, Any], memory: Memory) -> list[str]:
        """The targets of the edges that are taken."""
        found: dict[str, None] = {}
        for edge in self.graph.edges_from(name):
            taken: Any = edge.when in ("on_success", "always")
            if callable(edge.when):
                taken = edge.when(dict(output), memory)
                if inspect.isawaitable(taken):
                    taken = await taken
            if taken:
                found[edge.target] = None
        return list(found)


def check_task(run_id: str, task: Any, graph: Graph) -> None:
    """RecoveryError for a run that is not one of this graph."""
    if not isinstance(task, dict) or task.keys() != {"graph", "goal", "input"}:
        raise RecoveryError(f"run {run_id!r} is not one of a graph. Nothing was executed.")
    if task["graph"] != graph.name:
        raise RecoveryError(
            f"run {run_id!r} is one of graph {task['graph']!r}, not of {graph.name!r}. Nothing was "
            "executed."
        )


def begun(run: Run, graph: Graph) -> GraphState:
    """The state of the run when this process begins or resumes it."""
    try:
        return GraphState.from_messages(graph.start, run.task["input"], run.messages)
    except (KeyError, TypeError) as exc:
        raise RecoveryError(
            f"the messages of run {run.run_id!r} are not those of a graph ({exc!r}). Nothing was "
            "executed."
        ) from None


def fold(run: Run, state: GraphState, known: int) -> None:
    """Replace all entries by one, if most of the values that they wrote were overwritten.

    ``known``: how many entries there were before this step. This is checked each time that their
    number has doubled, and at least halves their size: so it costs less in all than the entries
    themselves. Invariant: it depends only on recorded values, because a replay does it again.
    """
    count = len(run.messages)
    if count < FOLDED_MIN or count.bit_length() == known.bit_length():
        return
    whole = state.entry()
    if len(pack_message(whole, "memory")) <= min(run.messages.size // 2, FOLDED_SIZE_MAX):
        run.messages = [whole]


def finished(state: GraphState) -> dict[str, Any]:
    """The recorded result of a graph's run that has completed."""
    return {
        "output": state.memory,
        "path": state.path,
        "visits": state.visits,
        "retries": state.retries,
        "failed": state.failed,
        "not_made": state.not_made,
    }


def error_line(error: Exception) -> str:
    """An exception as one line of text."""
    ours = isinstance(error, ToolError | NodeFailedError)
    return str(error) if ours else f"{type(error).__name__}: {error}"


async def pause(run: Drivers, seconds: float) -> None:
    """Wait before the next attempt. The run does not count as idle meanwhile."""
    scope = run.current_scope()
    with run.mutex:
        run.enter(scope)
    try:
        for nap in sleep_until(run, run.wall_clock() + seconds):
            await asyncio.sleep(nap.seconds)
    finally:
        with run.mutex:
            run.leave(scope)


def park(
    run: Run, node: str, why: str, calls: Sequence[int] = (), stays: Sequence[int] = ()
) -> NoReturn:
    """Park the run, so that it can be resumed.

    ``calls``: the failed calls (LSNs) that are retried then; ``stays``: those that are not.
    """
    execution = execution_of(run)
    with execution.mutex:
        execution.record(RunParked(list(calls), why=why, stays=list(stays) or None))
    execution.commit()
    for call in [] if calls else stays[:1]:
        key = keys_of(execution.log, {call}, execution.uid).get(call, "")
        execution.stop(GraphParkedError(run.run_id, node, why, (call, key)))
    execution.stop(GraphParkedError(run.run_id, node, why))


def check_recordable(node: Node, entry: Entry, found: Any) -> None:
    """Stop the run if the entry of a visit cannot be recorded; RefusedValueError outside of one."""
    scope = current_scope.get()
    try:
        pack_message(entry, f"output of node {node.name}")
    except RefusedValueError as exc:
        if scope is None or scope.call is None:  # the entry of a visit that a person resolved
            raise
        assert isinstance(scope.run, ExecutionBase)
        refuse_result(scope.run, node.spec, scope.call, exc, found)


def is_entry(found: Any) -> bool:
    """Whether a call's outcome is the entry of its visit, and not a value of a person."""
    return isinstance(found, dict) and found.keys() >= {"node", "visit", "via", "output", "next"}


def ready(graph: Graph, state: GraphState) -> list[str]:
    """The nodes that are visited next, in the order in which they were added to the graph.

    A join is ready when all nodes from which edges lead to it have led to it, or when no other node
    is ready; then those joins come first to which no other waiting one can lead.
    """
    reached = sorted(state.pending, key=graph.place)
    waiting = [
        name
        for name in reached
        if graph.nodes[name].options.get("join")
        and {*sources(state.via(name))} < {*graph.sources_of(name)}
    ]
    at_once = [name for name in reached if name not in waiting]
    if at_once or not waiting:
        return at_once
    first = [
        name
        for name in waiting
        if not any(name in graph.ahead(other) for other in waiting if other != name)
    ]
    return first or waiting[:1]


async def worked(work: Any, context: NodeContext) -> Any:
    """The result of a node's work."""
    validate = getattr(work, "validate_input", None)
    if callable(validate):
        wrong = validate(context)
        if wrong:
            raise NodeFailedError(f"input of node {context.node_id!r}: {'; '.join(wrong)}")
    return await called(function_of(work), context)


async def called(function: Callable[..., Any], *args: Any) -> Any:
    """The result of a function: an async one in this loop, a plain one in a thread."""
    if is_async(function):
        return await function(*args)
    found = await in_thread(lambda: function(*args))
    return await found if inspect.isawaitable(found) else found


def unfolded(name: str, found: Any) -> tuple[dict[str, Any], str]:
    """The values that a node writes, and the node that it names as the next one."""
    if hasattr(found, "success") and hasattr(found, "output"):  # a NodeResult, or one of others
        if not found.success:
            raise NodeFailedError(getattr(found, "error", None) or f"node {name!r} gave no reason")
        chosen = getattr(found, "next_node", None) or ""
        return dict(found.output or {}), chosen
    if isinstance(found, Mapping):
        return dict(found), ""
    return ({} if found is None else {name: found}), ""
