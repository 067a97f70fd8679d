"""Graphs of nodes: what they are made of, where they lead, and how an execution ends."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eventlog import RefusedValueError
from recovery import (
    Budget,
    CheckpointConfig,
    CheckpointManager,
    InDoubtError,
    RecoverableAgent,
    RecoveryError,
    Resolution,
    Retry,
    tool,
)
from recovery.errors import BudgetError, DivergenceError, TaskMismatchError, UnrecordedResultError
from recovery.graph import (
    END,
    ExecutionResult,
    Graph,
    GraphError,
    GraphExecutor,
    NodeContext,
    NodeResult,
)
from recovery.journal.events import CallReturned
from recovery.stores.memory import MemoryStore
from tests.support.lives import recorded

RUN = "run"


class Died(BaseException):
    """The process dies here, as far as the graph can tell."""


def linear(name: str, *works: tuple[str, Any], **options: Any) -> Graph:
    """Nodes one after the other."""
    graph = Graph(name, **options)
    for i, (node, work) in enumerate(works):
        graph.node(node, work)
        if i:
            graph.edge(works[i - 1][0], node)
    return graph


def execute(graph: Graph, manager: CheckpointManager | None = None, **options: Any) -> Any:
    given = options.pop("given", {})
    executor = GraphExecutor(checkpoint_manager=manager, **options)
    return asyncio.run(executor.execute(graph, "goal", given, RUN))


def resume(graph: Graph, manager: CheckpointManager, **options: Any) -> ExecutionResult:
    executor = GraphExecutor(checkpoint_manager=manager, **options)
    return asyncio.run(executor.resume(graph, RUN))


def die(graph: Graph, manager: CheckpointManager, **options: Any) -> None:
    with pytest.raises((Died, BaseExceptionGroup)):
        execute(graph, manager, **options)


@pytest.fixture
def manager() -> CheckpointManager:
    return CheckpointManager(MemoryStore())


def gives(value: Any) -> Callable[[Any], Any]:
    return lambda context: value


# -- the example


def test_the_example(tmp_path: Path) -> None:
    storage, goal, input_data = tmp_path / "runs", "greet Ann", {"name": "Ann"}
    told: list[str] = []
    runtime = SimpleNamespace(
        start_run=lambda **details: told.append("start_run"),
        end_run=lambda **details: told.append("end_run"),
    )
    graph = Graph("greeting")

    @graph.node("write")
    async def write(context: NodeContext) -> dict[str, str]:
        return {"text": f"Hello {context.memory['name']}"}

    @graph.node("sign")
    def sign(context: NodeContext) -> dict[str, str]:
        return {"text": context.memory["text"] + "!"}

    graph.edge("write", "sign")

    async def main() -> ExecutionResult:
        checkpoint_manager = CheckpointManager(storage, CheckpointConfig())
        executor = GraphExecutor(runtime=runtime, checkpoint_manager=checkpoint_manager)
        result = await executor.execute(graph, goal, input_data)
        return result

    result = asyncio.run(main())
    assert result.success
    assert result.output == {"name": "Ann", "text": "Hello Ann!"}
    assert result.path == ["write", "sign"]
    assert told == ["start_run", "end_run"]
    kept = CheckpointManager(storage)
    assert len(kept.list_checkpoints(result.run_id)) == 1
    assert kept.unfinished() == []


# -- nodes


class Plain:
    def execute(self, context: NodeContext) -> dict[str, Any]:
        return {"plain": context.visit}


class Async:
    async def execute(self, context: NodeContext) -> dict[str, Any]:
        return {"async": context.via}


class Checked:
    def validate_input(self, context: NodeContext) -> list[str]:
        return [] if "wanted" in context.memory else ["wanted is not there", "nor is anything"]

    async def execute(self, context: NodeContext) -> None:
        return None


class Foreign:
    """A result of somebody else's."""

    def __init__(self, success: bool, **rest: Any) -> None:
        self.success, self.output, self.error = success, rest.get("output"), rest.get("error")
        self.next_node = rest.get("next_node")


def test_what_can_be_a_node_and_what_it_can_give() -> None:
    async def function(context: NodeContext) -> int:
        context.memory["written"] = 1
        context.memory.write("too", 2)
        return 3

    graph = linear(
        "g",
        ("function", function),
        ("lambda", gives({"a": 1})),
        ("plain", Plain()),
        ("async", Async()),
        ("none", gives(None)),
        ("checked", Checked()),
        ("result", gives(NodeResult(output={"b": 2}))),
        ("foreign", gives(Foreign(True))),
    )
    result = execute(graph, given={"wanted": True})
    assert result.output == {
        "wanted": True,
        "written": 1,
        "too": 2,
        "function": 3,
        "a": 1,
        "plain": 1,
        "async": ("plain -> async",),
        "b": 2,
    }
    assert result.path == [*graph.nodes]
    assert result.steps_executed == 8


def test_a_node_that_finds_its_input_wrong_fails() -> None:
    result = execute(linear("g", ("checked", Checked())))
    assert not result.success
    assert "wanted is not there; nor is anything" in result.error


def test_what_a_node_reads_is_a_copy_the_first_time_and_behind_a_checkpoint(
    manager: CheckpointManager,
) -> None:
    deaths = [Died()]

    def change(context: NodeContext) -> None:
        if deaths:
            raise deaths.pop()
        context.memory["given"]["deep"].append(1)
        read = context.memory["made"]
        assert (type(read), type(read["deep"])) == (dict, list)
        read["deep"].append(1)

    graph = linear("g", ("make", gives({"made": {"deep": []}})), ("change", change))
    die(graph, manager, given={"given": {"deep": []}})
    result = resume(graph, manager)
    assert result.output == {"given": {"deep": []}, "made": {"deep": []}}


def test_the_memory_of_a_node() -> None:
    def look(context: NodeContext) -> dict[str, Any]:
        memory = context.memory
        memory["b"] = [2]
        assert dict(memory) == memory.read_all() == {"a": 1, "b": [2]}
        assert (len(memory), "b" in memory, memory.read("c", 3)) == (2, True, 3)
        memory["b"].append(3)
        return {"goal": context.goal, "input": context.input_data}

    result = execute(linear("g", ("look", look)), given={"a": 1})
    assert result.output == {"a": 1, "b": [2], "goal": "goal", "input": {"a": 1}}


def test_what_cannot_be_recorded_stops_the_run_by_name() -> None:
    with pytest.raises(UnrecordedResultError, match=r"output of node bad\.output\.x\[0\]"):
        execute(linear("g", ("bad", gives({"x": [object()]}))))


def test_graphs_that_make_no_sense_are_refused() -> None:
    graph = Graph("g")
    with pytest.raises(GraphError, match="no node '' to start"):
        execute(graph)
    graph.node("a", gives(None))
    for wrong in ("", "x -> y", "(end)", "(start)", "a", "x" * 201):
        with pytest.raises(GraphError):
            graph.node(wrong, gives(None))
    with pytest.raises(GraphError, match="a function or an object with execute"):
        graph.node("b", 5)
    with pytest.raises(TypeError, match=r"no option retries=\. Did you mean retry="):
        graph.node("b", gives(None), retries=1)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="timeout_s"):
        graph.node("b", gives(None), timeout_s=0)
    with pytest.raises(ValueError, match="after_crash"):
        graph.node("b", gives(None), after_crash="report")  # type: ignore[call-overload]
    with pytest.raises(GraphError, match="when= is"):
        graph.edge("a", "a", "sometimes")  # type: ignore[arg-type]
    graph.edge("a", "b")
    with pytest.raises(GraphError, match="edge a -> b of graph 'g': no node 'b'"):
        execute(graph)
    with pytest.raises(GraphError, match="no node 'z' to start"):
        execute(Graph("g", start="z"))


# -- edges


def test_edges_are_taken_by_what_their_conditions_say() -> None:
    graph = Graph("g")
    graph.node("a", gives({"n": 3}))

    async def later(output: Any, memory: Any) -> bool:
        await asyncio.sleep(0)
        return bool(memory["given"] == output["n"] - 2)

    whens: dict[str, Any] = {
        "yes": lambda output, memory: output["n"] == memory["n"] == 3,
        "no": lambda output, memory: output["n"] > 3,
        "async": later,
        "default": "on_success",
        "always": "always",
        "failure": "on_failure",
    }
    for name, when in whens.items():
        graph.node(name, gives(None))
        graph.edge("a", name, when)
    assert execute(graph, given={"given": 1}).path == ["a", "yes", "async", "default", "always"]


def test_a_node_can_name_the_next_one() -> None:
    graph = Graph("g", start="b")
    graph.node("a", gives(NodeResult(next_node=END)))
    graph.node("b", gives(Foreign(True, next_node="a", output={"b": 1})))
    graph.node("c", gives(None))
    graph.edge("b", "c")
    graph.edge("a", "c")
    result = execute(graph)
    assert (result.path, result.output) == (["b", "a"], {"b": 1})
    graph = linear("g", ("a", gives(NodeResult(next_node="nowhere"))))
    assert "node 'a' named 'nowhere' as the next one" in execute(graph).error


def test_a_condition_is_not_asked_again(manager: CheckpointManager) -> None:
    """It may be a model, or a clock: what it said when the node ended counts."""
    answers = [True, False]

    def last(context: NodeContext) -> None:
        if len(answers) == 1:
            answers.append(False)
            raise Died

    for every in (1, 100):
        answers[:] = [True, False]
        manager = CheckpointManager(MemoryStore(), CheckpointConfig(every_n_nodes=every))
        graph = Graph("g")
        graph.node("a", gives(None))
        graph.node("b", last)
        graph.edge("a", "b", lambda output, memory: answers.pop(0))
        die(graph, manager)
        assert resume(graph, manager).path == ["a", "b"]


def test_a_condition_that_raises_fails_its_node_by_name() -> None:
    graph = linear("g", ("a", gives(None)), ("b", gives(None)))
    graph.edge("a", "b", lambda output, memory: output["nothing"])
    assert "node 'a' failed: KeyError" in execute(graph).error


# -- several at once


def test_nodes_run_at_the_same_time_and_the_join_once() -> None:
    graph = Graph("g")
    graph.node("a", gives({"x": 0}))
    meeting = asyncio.Barrier(3)

    async def branch(context: NodeContext) -> dict[str, Any]:
        await meeting.wait()  # in vain if they ran one after the other
        assert context.memory["x"] == 0
        return {"x": context.node_id}

    graph.node("join", lambda context: {"via": sorted(context.via)}, join=True)
    for name in "dcb":
        graph.node(name, branch)
        graph.edge("a", name)
        graph.edge(name, "join")
    result = execute(graph)
    assert result.path == ["a", "d", "c", "b", "join"]
    assert result.output == {"x": "b", "via": ["b -> join", "c -> join", "d -> join"]}


def test_a_join_waits_for_longer_branches_and_not_for_ones_not_taken() -> None:
    graph = Graph("g")
    for name in ("a", "short", "long 1", "long 2", "never"):
        graph.node(name, gives(None))
    graph.node("join", lambda context: {"via": sorted(context.via)}, join=True)
    graph.node("last", lambda context: {"last": sorted(context.via)}, join=True)
    for source, target in (
        ("a", "short"),
        ("a", "long 1"),
        ("long 1", "long 2"),
        ("short", "join"),
        ("long 2", "join"),
        ("never", "join"),
        ("short", "last"),
        ("join", "last"),
    ):
        graph.edge(source, target)
    graph.edge("a", "never", lambda output, memory: False)
    result = execute(graph)
    assert result.path == ["a", "short", "long 1", "long 2", "join", "last"]
    assert result.output["via"] == ["long 2 -> join", "short -> join"]
    assert result.output["last"] == ["join -> last", "short -> last"]


def test_joins_that_wait_for_one_another_go_in_order() -> None:
    graph = Graph("g")
    for name in ("a", "never"):
        graph.node(name, gives(None))
    graph.node("second", gives(None), join=True)
    graph.node("first", gives(None), join=True)
    for source, target in (
        ("a", "first"),
        ("never", "first"),
        ("a", "second"),
        ("first", "second"),
    ):
        graph.edge(source, target)
    assert execute(graph).path == ["a", "first", "second"]


def test_without_a_join_a_node_runs_for_each_branch_that_reaches_it() -> None:
    graph = Graph("g")
    for name in ("a", "short", "long", "more", "end"):
        graph.node(name, gives(None))
    for source, target in (
        ("a", "short"),
        ("a", "long"),
        ("short", "end"),
        ("long", "more"),
        ("more", "end"),
    ):
        graph.edge(source, target)
    assert execute(graph).path == ["a", "short", "long", "more", "end", "end"]


def test_a_node_that_leads_to_one_beside_it_is_not_lost() -> None:
    """The edge is taken while its target is at work, having been reached by the same edge."""

    def count(context: NodeContext) -> NodeResult:
        return NodeResult(output={}, next_node=END) if context.visit == 4 else NodeResult()

    graph = Graph("g")
    graph.node("a", count)
    graph.node("b", gives(None))
    graph.edge("a", "a")
    graph.edge("a", "b")
    assert execute(graph).path == ["a", "a", "b", "a", "b", "a", "b"]


def test_of_a_batch_of_parallel_tools_only_the_one_under_way_is_in_doubt(
    manager: CheckpointManager,
) -> None:
    """Killed in the twelfth of twelve: others make eleven of them twice."""
    called: list[int] = []

    @tool
    async def act(n: int) -> int:
        called.append(n)
        if n == 11:
            for _ in range(100):  # until the others have ended
                await asyncio.sleep(0)
            raise Died
        return n

    async def batch(context: NodeContext) -> dict[str, Any]:
        return {"sum": sum(await asyncio.gather(*(context.call(act, n) for n in range(12))))}

    graph = linear("g", ("batch", batch))
    die(graph, manager)
    with pytest.raises(InDoubtError) as parked:
        resume(graph, manager)
    (call,) = parked.value.calls
    assert call.args == (11,)
    manager.store.run(RUN).resolve(call.lsn, Resolution.outcome(11))
    assert resume(graph, manager).output == {"sum": 66}
    assert sorted(called) == [*range(12)]


# -- loops and failures


def test_a_loop_comes_to_an_end_and_goes_on_with_a_higher_bound(
    manager: CheckpointManager,
) -> None:
    def graph_of(limit: int) -> Graph:
        graph = Graph("g", max_visits=limit)
        graph.node("a", lambda context: {"n": context.visit})
        graph.edge("a", "a", lambda output, memory: output["n"] < 7)
        return graph

    result = execute(graph_of(5), manager)
    assert not result.success
    assert result.error == "node 'a' would be visited more than 5 times, by a -> a"
    assert (result.output, result.node_visit_counts) == ({"n": 5}, {"a": 5})
    assert [one.why for one in manager.unfinished()] == [result.error]
    again = resume(graph_of(100), manager)
    assert (again.success, again.output, again.steps_executed) == (True, {"n": 7}, 2)


def failing(times: int, made: list[int]) -> Callable[[NodeContext], Any]:
    def work(context: NodeContext) -> dict[str, Any]:
        made.append(context.attempt)
        if len(made) <= times:
            raise ValueError(f"attempt {context.attempt}")
        return {"made": len(made)}

    return work


def test_a_node_is_tried_again() -> None:
    made: list[int] = []
    graph = Graph("g")
    graph.node("a", failing(2, made), retry=Retry(3, 0.0))
    result = execute(graph)
    assert result.success
    assert made == [1, 2, 3]
    assert (result.total_retries, result.retry_details) == (2, {"a": 2})


def test_attempts_are_counted_over_a_crash(manager: CheckpointManager) -> None:
    made: list[int] = []

    def work(context: NodeContext) -> None:
        made.append(context.attempt)
        if len(made) == 2:
            raise Died
        raise ValueError("no")

    graph = Graph("g")
    graph.node("a", work, retry=Retry(3, 0.0))
    die(graph, manager)
    result = resume(graph, manager)
    assert result.error == "node 'a' failed: ValueError: no"
    assert made == [1, 2, 2, 3]


def test_a_failed_node_leaves_a_run_that_tries_again_when_it_is_resumed(
    manager: CheckpointManager,
) -> None:
    made: list[int] = []
    entered: list[str] = []
    graph = Graph("g")
    graph.node("before", lambda context: entered.append("before"))
    graph.node("a", failing(3, made), retry=Retry(2, 0.0))
    graph.node("beside", lambda context: entered.append("beside"))
    graph.edge("before", "a")
    graph.edge("before", "beside")
    result = execute(graph, manager, given={"given": 1})
    assert (result.success, result.paused_at) == (False, None)
    assert result.error == "node 'a' failed: ValueError: attempt 2"
    assert (result.path, result.output) == (["before"], {"given": 1})
    (left,) = manager.unfinished()
    assert (left.run_id, left.state, left.why) == (RUN, "parked", result.error)
    again = resume(graph, manager)
    assert (again.success, again.output["made"], made) == (True, 4, [1, 2, 3, 4])
    assert again.path == ["before", "a", "beside"]
    assert entered == ["before", "beside"]
    assert execute(graph, manager, given={"given": 1}).output == again.output
    assert len(made) == 4


def test_a_tool_that_failed_is_called_again_by_the_next_attempt(
    manager: CheckpointManager,
) -> None:
    calls: list[int] = []

    @tool
    def flaky() -> int:
        calls.append(1)
        if len(calls) < 2:
            raise OSError("not now")
        return len(calls)

    graph = linear("g", ("a", lambda context: flaky()))
    assert execute(graph, manager).error == "node 'a' failed: OSError: not now"
    assert resume(graph, manager).output == {"a": 2}


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("rules", [1, 2])
def test_a_run_does_not_park_while_a_node_waits_to_be_tried_again(
    manager: CheckpointManager, rules: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if rules == 1:
        monkeypatch.setattr("recovery.agent.begin_run.Rules", lambda version: None)
    made: list[int] = []
    graph = Graph("g")
    graph.node("a", gives(None))
    graph.node("ask", gives(None), pause=True)
    graph.node("again", failing(1, made), retry=Retry(2, 50.0, jitter=0.0))
    graph.edge("a", "ask")
    graph.edge("a", "again")
    began = time.monotonic()
    assert execute(graph, manager).paused_at == "ask"
    assert made == [1, 2]
    assert time.monotonic() - began > 50
    manager.store.run(RUN).signal("ask", 1)
    assert resume(graph, manager).success
    assert made == [1, 2]


def test_a_failure_beside_a_pause_is_told_when_that_is_over(manager: CheckpointManager) -> None:
    graph = Graph("g")
    for name, work, pause in (
        ("a", gives(None), False),
        ("bad", failing(9, []), False),
        ("ask", gives(None), True),
    ):
        graph.node(name, work, pause=pause)
    graph.edge("a", "bad")
    graph.edge("a", "ask")
    assert execute(graph, manager).paused_at == "ask"
    manager.store.run(RUN).signal("ask", 1)
    # Nobody was told of it yet, and so nobody has asked to try it again.
    assert resume(graph, manager).error == "node 'bad' failed: ValueError: attempt 1"
    assert resume(graph, manager).error == "node 'bad' failed: ValueError: attempt 2"


def test_messages_that_are_not_of_a_graph_are_refused(manager: CheckpointManager) -> None:
    graph = linear("g", ("a", gives(1)), ("b", failing(9, [])))
    execute(graph, manager)
    manager.store.run(RUN).fork("other", at_step=1, messages=[{"role": "user"}])
    with pytest.raises(RecoveryError, match="messages of run 'other' are not those of a graph"):
        GraphExecutor(checkpoint_manager=manager).resume_sync(graph, "other")


def test_a_failure_can_be_gone_on_from() -> None:
    made: list[int] = []
    graph = Graph("g")
    graph.node("a", failing(9, made), retry=Retry(2, 0.0))
    graph.node("b", gives(None))
    graph.node("sorry", lambda context: {"sorry": context.via})
    graph.edge("a", "b")
    graph.edge("a", "sorry", "on_failure")
    result = execute(graph)
    assert (result.success, result.path) == (True, ["a", "sorry"])
    assert result.nodes_with_failures == ["a"]
    assert (result.output, result.total_retries) == ({"sorry": ("a -> sorry",)}, 1)


def test_what_a_failed_visit_has_written_does_not_count() -> None:
    def work(context: NodeContext) -> NodeResult:
        context.memory["x"] = 1
        return NodeResult(False, {"y": 2}, "no luck")

    graph = linear("g", ("a", work))
    result = execute(graph)
    assert (result.error, result.output) == ("node 'a' failed: no luck", {})


def test_a_node_that_takes_too_long_fails() -> None:
    async def forever(context: NodeContext) -> None:
        await asyncio.Event().wait()

    graph = Graph("g")
    graph.node("a", forever, timeout_s=0.01)
    assert "TimeoutError" in execute(graph).error


# -- people


def test_a_pause_node_waits_for_somebody(manager: CheckpointManager) -> None:
    entered: list[str] = []
    graph = Graph("g")
    graph.node("draft", lambda context: entered.append("draft"))
    graph.node("review", lambda context: {"said": context.answer}, pause=True)
    graph.edge("draft", "review")
    result = execute(graph, manager)
    assert (result.success, result.paused_at, result.error) == (False, "review", None)
    assert result.path == ["draft"]
    assert [one.state for one in manager.unfinished()] == ["waiting"]
    assert resume(graph, manager).paused_at == "review"
    manager.store.run(RUN).signal("review", {"ok": True})
    again = resume(graph, manager)
    assert (again.success, again.output) == (True, {"said": {"ok": True}})
    assert entered == ["draft"]


def test_a_node_that_needs_approval(manager: CheckpointManager) -> None:
    def graph_of() -> Graph:
        graph = Graph("g")
        graph.node("pay", gives({"paid": True}), needs_approval=True)
        return graph

    assert execute(graph_of(), manager).paused_at == "pay"
    (call,) = manager.store.run(RUN).pending()
    manager.store.run(RUN).approve(call, who="ann")
    assert resume(graph_of(), manager).output == {"paid": True}


def test_a_denied_node_is_not_asked_for_again(manager: CheckpointManager) -> None:
    graph = Graph("g")
    graph.node("pay", gives(None), needs_approval=True, retry=Retry(3, 0.0))
    execute(graph, manager)
    manager.store.run(RUN).deny(manager.store.run(RUN).pending()[0], who="ann")
    for _ in range(2):
        result = resume(graph, manager)
        assert str(result.error).startswith(
            "node 'pay' failed: ApprovalDeniedError: node pay was denied by ann."
        )
        assert manager.store.run(RUN).pending() == []
    graph.node("other", gives({"other": 1}))
    graph.edge("pay", "other", "on_failure")
    assert resume(graph, manager).path == ["pay", "other"]


def test_a_node_with_effects_of_its_own_parks_and_is_resolved(
    manager: CheckpointManager,
) -> None:
    entered: list[int] = []

    def work(context: NodeContext) -> None:
        entered.append(1)
        raise Died

    graph = Graph("g")
    graph.node("a", work, after_crash="park")
    graph.node("b", gives(None))
    graph.edge("a", "b", lambda output, memory: output["x"] == memory["x"] == 5)
    die(graph, manager)
    with pytest.raises(InDoubtError) as parked:
        resume(graph, manager)
    call = parked.value.calls[0]
    manager.store.run(RUN).resolve(call.lsn, Resolution.outcome({"x": 5}))
    result = resume(graph, manager)
    assert (result.path, result.output, entered) == (["a", "b"], {"x": 5}, [1])


def test_a_node_whose_resolution_leaves_no_room_for_its_entry_has_failed(
    manager: CheckpointManager,
) -> None:
    """What a person says may be nested as deep as a value can be; the entry is around it."""
    said: Any = 5
    for _ in range(500):
        said = [said]

    async def work(context: NodeContext) -> None:
        raise Died

    graph = linear("g", ("b", gives(None)))
    graph.node("a", work, after_crash="park")
    graph.edge("b", "a")
    die(graph, manager)
    with pytest.raises(InDoubtError) as parked:
        resume(graph, manager)
    call = parked.value.calls[0]
    manager.store.run(RUN).resolve(call.lsn, Resolution.outcome({"x": said}))
    for _ in range(2):
        assert "output of node a" in str(resume(graph, manager).error)


def test_a_node_that_is_resolved_as_failed_is_not_made_again(manager: CheckpointManager) -> None:
    entered: list[int] = []

    def work(context: NodeContext) -> None:
        entered.append(1)
        raise Died

    graph = Graph("g")
    graph.node("a", work, after_crash="park", retry=Retry(3, 0.0))
    die(graph, manager)
    with pytest.raises(InDoubtError) as parked:
        resume(graph, manager)
    manager.store.run(RUN).resolve(parked.value.calls[0].lsn, Resolution.fail("gone"))
    assert "gone" in str(resume(graph, manager).error)
    assert "gone" in str(resume(graph, manager).error)
    assert entered == [1]


# -- the runtime object


class Hooks:
    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []

    def start_run(self, goal_id: str, goal_description: str, input_data: Any) -> str:
        self.told.append(("start_run", (goal_id, goal_description, input_data)))
        return "an id"

    def end_run(self, success: bool, narrative: str, output_data: Any) -> None:
        self.told.append(("end_run", (success, narrative, output_data)))

    def report_problem(self, severity: str, description: str) -> None:
        self.told.append(("report_problem", (severity, description)))

    def set_node(self, node_id: str) -> None:
        self.told.append(("set_node", node_id))

    async def decide(self, intent: str, options: Any, chosen: str, reasoning: str) -> str:
        assert [option["id"] for option in options] == [option["description"] for option in options]
        self.told.append(("decide", (intent, chosen, reasoning)))
        return "decision"

    def record_outcome(self, decision_id: str, success: bool, result: Any, summary: str) -> None:
        assert (decision_id, success) == ("decision", True)
        self.told.append(("record_outcome", (summary, result)))


def test_the_runtime_is_told_of_what_this_process_does(manager: CheckpointManager) -> None:
    made: list[int] = []
    graph = Graph("g")
    graph.node("a", gives({"x": 1}))
    graph.node("b", failing(1, made))
    graph.edge("a", "b")
    goal = SimpleNamespace(id="goal 1", description="to greet", secret=object())
    first, second = Hooks(), Hooks()

    async def main(hooks: Hooks) -> None:
        executor = GraphExecutor(hooks, manager)
        await executor.execute(graph, goal, {"in": 1}, RUN)

    asyncio.run(main(first))
    error = "node 'b' failed: ValueError: attempt 1"
    assert first.told == [
        ("start_run", ("goal 1", "to greet", {"in": 1})),
        ("set_node", "a"),
        ("decide", ("where to go from node a", "b", "the edges' conditions")),
        ("record_outcome", ("node a, visit 1", {"x": 1})),
        ("set_node", "b"),
        ("report_problem", ("critical", error)),
        ("end_run", (False, error, {"in": 1, "x": 1})),
    ]
    asyncio.run(main(second))
    assert [hook for hook, _ in second.told] == [
        "start_run",
        "set_node",
        "decide",
        "record_outcome",
        "end_run",
    ]
    assert second.told[-1][1][:2] == (True, "the graph came to its end")


def test_the_runtime_is_told_that_a_node_has_named_the_next_one(manager: CheckpointManager) -> None:
    graph, hooks = Graph("g"), Hooks()
    graph.node("a", gives(NodeResult(next_node="c")))
    graph.node("b", gives({}))
    graph.node("c", gives({}))
    graph.edge("a", "b")
    goal = SimpleNamespace(id="goal 1", description="to greet")
    asyncio.run(GraphExecutor(hooks, manager).execute(graph, goal, {}, RUN))
    decided = [said for hook, said in hooks.told if hook == "decide"]
    assert decided == [
        ("where to go from node a", "c", "the node named it"),
        ("where to go from node c", END, "the edges' conditions"),
    ]


def test_what_goes_wrong_in_a_hook_is_not_the_runs(caplog: pytest.LogCaptureFixture) -> None:
    @tool
    def note(what: str) -> None:
        pass

    def broken(*args: Any, **details: Any) -> None:
        note("outside of the run")  # recorded, it would be missing on replay
        raise RuntimeError("broken hook")

    runtime = SimpleNamespace(start_run=broken, end_run=broken, set_node=broken, decide=5)
    result = execute(linear("g", ("a", gives(None))), runtime=runtime)
    assert result.success
    assert result.report.usage.calls == 1
    assert "the runtime's hook set_node failed" in caplog.text


def test_errors_for_whoever_runs_the_graph_are_told_and_raised(
    manager: CheckpointManager,
) -> None:
    hooks = Hooks()
    graph = linear("g", ("a", gives(None)), ("b", gives(None)))
    with pytest.raises(BudgetError):
        execute(graph, manager, runtime=hooks, budget=Budget(steps=1))
    assert [hook for hook, _ in hooks.told[-2:]] == ["report_problem", "end_run"]
    assert execute(graph, manager).path == ["a", "b"]


# -- with and without a manager


def test_without_a_manager_nothing_is_stored(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("EVENTLOG_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    executor = GraphExecutor()
    result = executor.execute_sync(linear("g", ("a", gives({"x": 1}))), "goal")
    assert result.output == {"x": 1}
    off = CheckpointManager(None, CheckpointConfig(enabled=False))
    assert (
        GraphExecutor(checkpoint_manager=off)
        .execute_sync(linear("g", ("a", gives({"x": 1}))), "goal", run_id=RUN)
        .success
    )
    assert list(tmp_path.iterdir()) == []
    assert executor.store.backend.run_ids() == []


def test_without_a_manager_a_run_can_be_resumed_by_its_executor() -> None:
    graph = Graph("g")
    graph.node("ask", lambda context: {"said": context.answer}, pause=True)
    executor = GraphExecutor()
    result = executor.execute_sync(graph, "goal")
    assert result.paused_at == "ask"
    executor.store.run(result.run_id).signal("ask", 7)
    assert executor.resume_sync(graph, result.run_id).output == {"said": 7}


def test_goals_that_cannot_be_recorded_are_refused() -> None:
    with pytest.raises(RefusedValueError):
        GraphExecutor().execute_sync(linear("g", ("a", gives(1))), object())
    with pytest.raises(RefusedValueError):
        GraphExecutor().execute_sync(linear("g", ("a", gives(1))), "goal", {"x": object()})


def test_a_run_id_of_something_else_is_refused(manager: CheckpointManager) -> None:
    graph = linear("g", ("a", gives(1)))
    with pytest.raises(RecoveryError, match="there is no run 'run'"):
        resume(graph, manager)
    execute(graph, manager)
    with pytest.raises(TaskMismatchError):
        execute(graph, manager, given={"other": 1})
    with pytest.raises(RecoveryError, match="run 'run' is one of graph 'g', not of 'h'"):
        resume(linear("h", ("a", gives(1))), manager)
    agent = RecoverableAgent(lambda run: 1, manager.store)
    agent.run_with_recovery_sync("task", "other")
    with pytest.raises(RecoveryError, match="is not one of a graph"):
        GraphExecutor(checkpoint_manager=manager).resume_sync(graph, "other")


# -- graphs that have changed since


def crashed(every: int = 1) -> CheckpointManager:
    """a, b and c were to run one after the other; the process died in b."""
    manager = CheckpointManager(MemoryStore(), CheckpointConfig(every_n_nodes=every))

    def last(context: NodeContext) -> None:
        raise Died

    die(linear("g", ("a", gives({"a": 1})), ("b", last), ("c", gives(None))), manager)
    return manager


def changed(names: str, edges: str) -> Graph:
    graph = Graph("g")
    for name in names:
        graph.node(name, lambda context: {context.node_id: 2})
    for edge in edges.split():
        graph.edge(edge[0], edge[1])
    return graph


@pytest.mark.parametrize("every", [1, 100])
def test_what_still_matches_goes_on(every: int) -> None:
    result = resume(changed("abcx", "ab bx xc"), crashed(every))
    assert (result.path, result.output) == (["a", "b", "x", "c"], {"a": 1, "b": 2, "x": 2, "c": 2})


def test_a_changed_condition_is_asked_about_the_output_of_its_node() -> None:
    manager = CheckpointManager(MemoryStore())

    def dies(context: NodeContext) -> None:
        raise Died

    die(linear("g", ("a", gives({"a": 1})), ("b", gives({"b": 2})), ("c", dies)), manager)
    graph = changed("abx", "ab")
    graph.edge("b", "x", lambda output, memory: (dict(output), memory["a"]) == ({"b": 2}, 1))
    result = resume(graph, manager)
    assert (result.path, result.output) == (["a", "b", "x"], {"a": 1, "b": 2, "x": 2})


def test_a_finished_node_can_go_when_a_checkpoint_is_behind_it() -> None:
    graph = changed("bc", "bc")
    graph.node("a", gives(None))
    graph.edge("a", "b")
    assert resume(graph, crashed()).path == ["a", "b", "c"]


@pytest.mark.parametrize("every", [1, 100])
@pytest.mark.parametrize(
    ("names", "edges", "missing"),
    [
        ("ac", "ac", "no node 'b'"),
        ("axc", "ax xc", "no node 'b'"),
        ("abc", "ac bc", "no edge a -> b"),
    ],
)
def test_what_does_not_match_is_refused_by_name(
    every: int, names: str, edges: str, missing: str
) -> None:
    manager = crashed(every)
    graph = changed(names, edges)
    with pytest.raises(DivergenceError) as refused:
        resume(graph, manager, on_drift="stop")
    text = str(refused.value)
    assert "b" in text
    for choice in (".accept(", ".fork(", ".cancel()"):
        assert choice in text
    if every == 1:
        assert f"graph 'g' has {missing}" in text
        assert "node a led to node b (edge a -> b)" in text
        assert refused.value.lsn > 0
    # The graph that made the record still goes on.
    assert resume(changed("abc", "ab bc"), manager).path == ["a", "b", "c"]


def test_accepted_the_branch_ends_there(manager: CheckpointManager) -> None:
    def ended() -> list[str]:
        return [event.value["node"] for event in recorded(manager.store, CallReturned)]

    def graph_of(*names: str, dies: str = "") -> Graph:
        graph = Graph("g")

        async def work(context: NodeContext) -> Any:
            while dies == "b" == context.node_id and "c" not in ended():  # noqa: ASYNC110
                await asyncio.sleep(0.001)  # until what is beside it is over
            if context.node_id == dies:
                raise Died
            return {context.node_id: 1}

        for name in names:
            graph.node(name, work)
            if name != "a":
                graph.edge("a", name)
        graph.node("end", work)
        for name in names[1:]:
            graph.edge(name, "end")
        return graph

    die(graph_of("a", "b", "c", dies="b"), manager)
    with pytest.raises(DivergenceError):
        resume(graph_of("a", "c"), manager, on_drift="stop")
    manager.store.run(RUN).accept(why="b is gone")
    with pytest.raises(Died):  # b has called nothing that may have taken effect
        resume(graph_of("a", "c", dies="end"), manager, on_drift="stop")
    result = resume(graph_of("a", "c"), manager, on_drift="stop")
    assert result.path == ["a", "c", "end"]


# -- what it costs


def bytes_per_node(nodes: int, off: bool = False) -> float:
    store = MemoryStore()
    manager = CheckpointManager(store, CheckpointConfig(every_n_nodes=10**9 if off else 1))

    async def work(context: NodeContext) -> dict[str, str]:
        return {f"key of {context.node_id}": f"{context.node_id:>1024}"}

    graph = linear("g", *((f"n{i:04}", work) for i in range(nodes)))
    assert execute(graph, manager).success
    reader = store.read(RUN)
    assert reader is not None
    with reader:
        sizes = [len(one.packed) for one in reader.records() if one.kind != "run_finished"]
    return sum(sizes) / nodes


def test_bytes_per_node_do_not_grow_with_the_graph() -> None:
    few, many, most = (bytes_per_node(nodes) for nodes in (10, 100, 300))
    assert many < few + 80
    assert most < many + 40  # a reference more in some checkpoints: log2 of their number
    assert most < 1024 + 650


@pytest.mark.slow
def test_bytes_per_node_of_a_thousand_nodes() -> None:
    assert bytes_per_node(1000) < bytes_per_node(100) + 80


def lines_run(nodes: int) -> float:
    """Lines of this library's code that a node takes, without the ends."""
    manager = CheckpointManager(MemoryStore())
    counts: list[int] = []
    count = 0

    async def work(context: NodeContext) -> dict[str, str]:
        counts.append(count)
        return {f"key of {context.node_id}": "x"}

    graph = linear("g", *((f"n{i:04}", work) for i in range(nodes)))

    def trace(frame: Any, event: str, arg: Any) -> Any:
        nonlocal count
        count += 1
        return trace

    was = sys.gettrace()
    sys.settrace(trace)
    try:
        execute(graph, manager)
    finally:
        sys.settrace(was)
    tail = counts[nodes // 2 :]
    return (tail[-1] - tail[0]) / (len(tail) - 1)


def test_the_work_of_a_node_does_not_grow_with_the_graph() -> None:
    few, many = lines_run(30), lines_run(240)
    assert many < 1.3 * few, (few, many)
