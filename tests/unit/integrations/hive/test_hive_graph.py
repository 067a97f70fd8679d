"""Hive's graph executors, of 0.8.0 and of August 2026, inside of recorded runs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from recovery import CheckpointStore, InDoubtError, RecoverableAgent, Resolution
from recovery.control.resolve import resolve
from recovery.errors import DivergenceError, UnrecordedResultError
from recovery.graph import GraphParkedError
from recovery.inspect.status import status
from recovery.integrations.hive import recorded_llm, recorded_nodes, recorded_result
from tests.support.hive.graphs import (
    EdgeSpec,
    GraphExecutor,
    GraphSpec,
    LLMProvider,
    NodeContext,
    NodeProtocol,
    NodeResult,
    NodeSpec,
    Orchestrator,
    SharedMemory,
)
from tests.support.lives import RUN, Died, Disk, after_death, disk_store

BOTH = pytest.mark.parametrize("executor", [GraphExecutor, Orchestrator])

Work = Callable[[Any], Any]


class Node(NodeProtocol):
    def __init__(self, work: Work) -> None:
        self.work = work

    async def execute(self, ctx: Any) -> NodeResult:
        await asyncio.sleep(0)
        found = self.work(ctx)
        return found if isinstance(found, NodeResult) else NodeResult(True, found)


class World:
    """A graph of Hive's, and what its nodes have done in all processes."""

    def __init__(self, graph: GraphSpec, works: dict[str, Work] | Work) -> None:
        self.graph, self.works = graph, works
        self.done: Counter[str] = Counter()
        self.llm = LLMProvider()
        self.dies_at = ""
        self.dies_behind = False

    def registry(self) -> dict[str, NodeProtocol]:
        return {spec.id: Node(self.work) for spec in self.graph.nodes}

    def work(self, ctx: Any) -> Any:
        node_id = ctx.node_id
        if node_id == self.dies_at and not self.dies_behind:
            raise Died
        self.done[node_id] += 1
        if node_id == self.dies_at:
            raise Died
        work = self.works if callable(self.works) else self.works[node_id]
        return work(ctx)

    def live(self, executor: type[Any], store: CheckpointStore, **nodes: Any) -> dict[str, Any]:
        async def agent(run: Any) -> dict[str, Any]:
            registry = recorded_nodes(run, self.registry(), **nodes)
            hive = executor(None, llm=recorded_llm(run, self.llm), node_registry=registry)
            return recorded_result(run, await hive.execute(self.graph, "goal", run.task))

        made = RecoverableAgent(agent, store, max_recoveries=0)
        found = asyncio.run(made.run_with_recovery({"seed": 1}, RUN))
        return found["result"]

    def die(
        self, executor: type[Any], store: CheckpointStore, at: str, *, behind: bool = False
    ) -> CheckpointStore:
        self.dies_at, self.dies_behind = at, behind
        with pytest.raises(Died):
            self.live(executor, store)
        self.dies_at = ""
        return after_death(store)


def memory_of(ctx: Any) -> Any:
    return ctx.buffer if hasattr(ctx, "buffer") else ctx.memory


def adds_up(ctx: Any) -> dict[str, Any]:
    """Writes one key by itself, and another by its result."""
    memory_of(ctx).write("count", (memory_of(ctx).read("count") or 0) + 1, validate=False)
    return {ctx.node_id: [ctx.node_id, memory_of(ctx).read("count")]}


def chain(length: int) -> GraphSpec:
    names = [f"n{i}" for i in range(length)]
    edges = [EdgeSpec(a, b) for a, b in pairwise(names)]
    return GraphSpec("n0", [NodeSpec(name) for name in names], edges, names[-1:])


@BOTH
def test_no_node_of_a_killed_chain_is_executed_again(executor):
    expected = World(chain(20), adds_up).live(executor, disk_store())
    world = World(chain(20), adds_up)
    store = world.die(executor, disk_store(), "n12")
    with pytest.raises(InDoubtError) as told:
        world.live(executor, store)
    assert [call.tool for call in told.value.calls] == ["node n12"]
    resolve(store, RUN, told.value.calls[0].lsn, Resolution.retry())
    assert world.live(executor, store) == expected
    assert set(world.done.values()) == {1}
    assert world.live(executor, store) == expected  # and a finished run executes nothing
    assert set(world.done.values()) == {1}


def test_a_power_loss_takes_back_no_node_that_had_ended():
    """Where checkpoints are written behind the executor's back, those of fast nodes are lost."""
    world, store = World(chain(20), adds_up), disk_store()
    world.die(GraphExecutor, store, "n12")
    assert isinstance(store.backend, Disk)
    for seed in range(5):
        left = disk_store(store.backend.disk.after_power_loss(seed))
        done = Counter(world.done)
        with pytest.raises(InDoubtError):
            world.live(GraphExecutor, left)
        assert world.done == done
        world.live(GraphExecutor, left, after_crash="retry")
        assert world.done - done == Counter(f"n{i}" for i in range(12, 20))


@BOTH
def test_a_visit_that_may_be_repeated_is_entered_again(executor):
    world = World(chain(4), adds_up)
    store = world.die(executor, disk_store(), "n2", behind=True)
    result = world.live(executor, store, after_crash={"n2": "retry"})
    assert world.done == {"n0": 1, "n1": 1, "n2": 2, "n3": 1}
    assert result["output"]["count"] == 4


def fan_out(width: int) -> GraphSpec:
    branches = [f"b{i}" for i in range(width)]
    nodes = [NodeSpec(name) for name in ("first", *branches, "join")]
    edges = [
        edge for name in branches for edge in (EdgeSpec("first", name), EdgeSpec(name, "join"))
    ]
    return GraphSpec("first", nodes, edges, ["join"])


@BOTH
def test_branches_of_a_fan_out_that_had_finished_are_not_run_again(executor):
    def work(ctx: Any) -> dict[str, Any]:
        return (
            {ctx.node_id: sorted(memory_of(ctx).read_all())}
            if ctx.node_id == "join"
            else {ctx.node_id: ctx.node_id}
        )

    expected = World(fan_out(8), work).live(executor, disk_store())["output"]
    world = World(fan_out(8), work)
    store = world.die(executor, disk_store(), "b5")
    before = dict(world.done)
    result = world.live(executor, store, after_crash="retry")
    assert result["output"] == expected
    assert set(before) >= {"first", "b0"}
    assert [world.done[name] for name in before] == [1] * len(before)


@BOTH
def test_what_the_model_said_about_an_edge_is_not_asked_again(executor):
    nodes = [NodeSpec(name) for name in ("a", "b", "c")]
    edges = [
        EdgeSpec("a", "b", "llm_decide"),
        EdgeSpec("a", "c", "llm_decide"),
        EdgeSpec("b", "c", "conditional", lambda data: False),
    ]
    world = World(GraphSpec("a", nodes, edges), adds_up)
    store = world.die(executor, disk_store(), "b")
    asked = world.llm.asked
    assert asked == 2
    result = world.live(executor, store, after_crash="retry")
    assert (result["path"], world.llm.asked) == (["a", "b"], asked)


@BOTH
def test_retries_and_loops_are_served_by_their_visit(executor):
    failures = iter([False, True])  # of the one visit to "flaky" that fails first

    def flaky(ctx: Any) -> NodeResult:
        return NodeResult(True, {"flaky": 1}) if next(failures) else NodeResult(False, error="no")

    def again(ctx: Any) -> dict[str, Any]:
        return {"round": (memory_of(ctx).read("round") or 0) + 1}

    nodes = [NodeSpec(name) for name in ("flaky", "again", "end")]
    edges = [
        EdgeSpec("flaky", "again"),
        EdgeSpec("again", "again", "conditional", lambda data: data["round"] < 5),
        EdgeSpec("again", "end", "conditional", lambda data: data["round"] == 5),
    ]
    world = World(
        GraphSpec("flaky", nodes, edges), {"flaky": flaky, "again": again, "end": adds_up}
    )
    store = world.die(executor, disk_store(), "end")
    result = world.live(executor, store, after_crash="retry")
    assert world.done == {"flaky": 2, "again": 5, "end": 1}
    assert result["output"]["round"] == 5


@BOTH
def test_a_graph_that_failed_is_resumed_at_the_node_that_failed(executor):
    works: dict[str, Work] = {
        "n0": adds_up,
        "n1": lambda ctx: NodeResult(False, error="down"),
        "n2": adds_up,
    }
    world, store = World(chain(3), works), disk_store()
    with pytest.raises(GraphParkedError, match="down"):
        world.live(executor, store)
    assert (world.done["n1"], status(store, RUN).state) == (3, "parked")
    works["n1"] = adds_up
    result = world.live(executor, store)
    assert world.done == {"n0": 1, "n1": 4, "n2": 1}
    assert (result["path"], result["output"]["count"]) == (["n0", "n1", "n2"], 3)


@BOTH
def test_what_was_made_in_place_of_a_failure_is_so_on_every_replay(executor):
    works: dict[str, Work] = {"n0": adds_up, "n1": lambda ctx: 1 / 0, "n2": adds_up}
    world, store = World(chain(3), works), disk_store()
    with pytest.raises(GraphParkedError, match="division by zero"):
        world.live(executor, store)
    works["n1"] = adds_up
    store = world.die(executor, store, "n2")
    world.live(executor, store, after_crash="retry")
    assert world.done == {"n0": 1, "n1": 4, "n2": 1}


@BOTH
def test_a_visit_resolved_as_failed_is_not_tried_again_by_the_executor(executor):
    world = World(chain(3), adds_up)
    store = world.die(executor, disk_store(), "n1")
    with pytest.raises(InDoubtError) as told:
        world.live(executor, store)
    resolve(store, RUN, told.value.calls[0].lsn, Resolution.fail("never mind"))
    with pytest.raises(GraphParkedError, match="never mind"):
        world.live(executor, store)
    assert world.done == {"n0": 1}


@BOTH
def test_an_output_that_cannot_be_recorded_stops_the_run_and_is_not_made_again(executor):
    world, store = World(chain(2), lambda ctx: {"socket": object()}), disk_store()
    with pytest.raises(UnrecordedResultError, match="socket"):
        world.live(executor, store)
    with pytest.raises(InDoubtError):
        world.live(executor, store)
    assert world.done == {"n0": 1}


def test_a_graph_that_changed_is_refused_before_anything_new_is_executed():
    world = World(chain(4), adds_up)
    store = world.die(GraphExecutor, disk_store(), "n3")
    world.graph = GraphSpec("n0", [NodeSpec("n0"), NodeSpec("other")], [EdgeSpec("n0", "other")])
    with pytest.raises(DivergenceError) as told:
        world.live(GraphExecutor, store, after_crash="retry")
    assert "node n1" in told.value.recorded
    assert "node other" in told.value.found
    assert world.done["other"] == 0


def test_nodes_registered_later_are_recorded_and_are_what_they_were():
    class AgentLoop(Node):
        inbox: tuple[str, ...] = ()

        def inject_event(self, what: str) -> None:
            self.inbox += (what,)

    seen: list[Any] = []

    async def agent(run: Any) -> Any:
        hive = GraphExecutor(None, node_registry=recorded_nodes(run, {}))
        loop = AgentLoop(lambda ctx: {"n0": 1})
        hive.register_node("n0", loop)
        recorded = hive.node_registry["n0"]
        recorded.inject_event("hello")  # type: ignore[attr-defined]
        seen.append((isinstance(recorded, AgentLoop), loop.inbox))
        return recorded_result(run, await hive.execute(chain(1), "goal", {}))

    store = disk_store()
    asyncio.run(RecoverableAgent(agent, store).run_with_recovery(None, RUN))
    assert seen == [(True, ("hello",))]
    assert [call.tool for call in _calls(store)] == ["node n0"]


def test_a_node_gives_the_type_that_it_says_also_from_the_record():
    @dataclass
    class AgentResult:
        success: bool
        output: dict[str, Any] = field(default_factory=dict)
        exit_reason: str = "?"
        conversation: Any = None

    class Unannotated(Node):
        async def execute(self, ctx):
            return NodeResult(True, {"n1": 1}, tokens_used=7)

    class AgentLoop(Node):
        async def execute(self, ctx: Any) -> AgentResult:  # type: ignore[override]
            return AgentResult(True, {"n0": 1}, "completed", conversation=object())

    AgentLoop.execute.__annotations__["return"] = AgentResult  # as at the top of a module
    store, seen = disk_store(), list[Any]()

    async def agent(run: Any) -> None:
        nodes = recorded_nodes(run, {"n0": AgentLoop(adds_up), "n1": Unannotated(adds_up)})
        for name in ("n0", "n1"):
            ctx = NodeContext(None, name, NodeSpec(name), SharedMemory())
            seen.append(await nodes[name].execute(ctx))
        if len(seen) == 2:
            raise Died

    made = RecoverableAgent(agent, store)
    with pytest.raises(Died):
        asyncio.run(made.run_with_recovery(None, RUN))
    asyncio.run(made.run_with_recovery(None, RUN))
    assert seen[0].conversation is not None  # for Hive's continuous mode
    seen[0].conversation = None
    assert (
        seen[:2]
        == seen[2:]
        == [AgentResult(True, {"n0": 1}, "completed"), NodeResult(True, {"n1": 1}, tokens_used=7)]
    )


def test_a_plain_completion_is_recorded_too():
    world = World(chain(2), lambda ctx: {ctx.node_id: ctx.llm.complete([{"role": "user"}]).content})
    store = world.die(Orchestrator, disk_store(), "n1", behind=True)
    result = world.live(Orchestrator, store, after_crash="retry")
    assert result["output"] == {"seed": 1, "n0": "answer 1", "n1": "answer 2"}


def test_a_policy_that_would_have_the_executor_repeat_a_visit_is_refused():
    with pytest.raises(ValueError, match='"park" or "retry"'):
        recorded_nodes(None, {}, after_crash="report")  # type: ignore[arg-type]


def _calls(store: CheckpointStore) -> list[Any]:
    from recovery.journal.events import CallIntended
    from tests.support.lives import recorded

    return recorded(store, CallIntended)
