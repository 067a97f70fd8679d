"""Graphs whose nodes are loops: those that executors make themselves, and RecordedLoops."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from recovery import CheckpointStore, InDoubtError, RecoverableAgent, Resolution
from recovery.errors import RecoveryError
from recovery.inspect.status import runs, status
from recovery.integrations.hive import (
    RecordedLoops,
    current_call,
    recorded_llm,
    recorded_nodes,
    recorded_result,
)
from tests.support.hive.graphs import (
    EdgeSpec,
    GraphExecutor,
    GraphSpec,
    NodeContext,
    NodeProtocol,
    NodeResult,
    NodeSpec,
    Orchestrator,
    SharedMemory,
)
from tests.support.hive.loop import ToolResult, ToolUse
from tests.support.lives import RUN, Died, after_death, disk_store

BOTH = pytest.mark.parametrize("executor", [GraphExecutor, Orchestrator])
ITEMS = 3


class LLM:
    """Has the tool of its node called for each item, again for those that gave an error."""

    def __init__(self) -> None:
        self.ids = 0

    async def stream(self, messages: list[Any], system: str, tools: list[Any]) -> Any:
        asked, done = dict[str, Any](), set[Any]()
        tool = tools[-1].name
        for message in messages:
            asked |= {one["id"]: one["function"] for one in message.get("tool_calls", [])}
            if message["role"] == "tool" and not message["content"].startswith("ERROR"):
                how = asked[message["tool_call_id"]]
                done.add((how["name"], how["arguments"]))
        for item in range(ITEMS):
            if (tool, f'{{"item": {item}}}') not in done:
                self.ids += 1
                yield SimpleNamespace(
                    type="tool_call",
                    tool_use_id=f"toolu_{id(self)}_{self.ids}",
                    tool_name=tool,
                    tool_input={"item": item},
                )
        yield SimpleNamespace(type="text_delta", snapshot=f"done {tool}")


@dataclass
class Tool:
    name: str


class World:
    """A graph of loops, and what their tools have done in all processes."""

    def __init__(self, base: Path, executor: Any, names: str, mode: str, fans: bool) -> None:
        self.base, self.executor, ids = base, executor, names.split()
        pairs = [(ids[0], one) for one in ids[1:-1]] + [(one, ids[-1]) for one in ids[1:-1]]
        edges = [EdgeSpec(a, b) for a, b in (pairs if fans else pairwise(ids))]
        nodes = [NodeSpec(one, one, "event_loop", tools=[f"send_{one}"]) for one in ids]
        self.graph = GraphSpec(ids[0], nodes, edges, ids[-1:], mode)
        self.tools = [Tool(f"send_{one}") for one in ids]
        self.wanted = Counter(f"send_{one} {item}" for one in ids for item in range(ITEMS))
        self.store: CheckpointStore = disk_store()
        self.made: Counter[str] = Counter()
        self.keys: set[str] = set()
        self.calls, self.dies_at, self.behind = 0, -1, False

    def send(self, use: ToolUse) -> ToolResult:
        self.calls += 1
        dies = self.calls == self.dies_at
        if dies and not self.behind:
            raise Died
        self.made[f"{use.name} {use.input['item']}"] += 1
        call = current_call()
        self.keys.add(call.idempotency_key if call is not None else "")
        if dies:
            raise Died
        return ToolResult(use.id, f"sent {use.input['item']}")

    def look(self, call: Any) -> Resolution:
        sent = call.idempotency_key in self.keys
        return Resolution.outcome("sent") if sent else Resolution.retry()

    def live(self, helped: bool = True) -> dict[str, Any]:
        def files(name: str) -> Any:
            return self.executor.files_type(self.base / "conversations" / name)

        def make(node: Any, recorded: Any) -> Any:
            return self.executor.loop_type(
                tool_executor=recorded.tool_executor,
                conversation_store=recorded.conversation_store,
            )

        async def agent(run: Any) -> dict[str, Any]:
            with RecordedLoops(
                run, self.graph, make, self.send, files, after_crash=self.look
            ) as loops:
                hive = self.executor(
                    None,
                    recorded_llm(run, LLM()),
                    self.tools,
                    self.send,
                    recorded_nodes(run, loops if helped else {}),
                    self.base,
                )
                return recorded_result(run, await hive.execute(self.graph, "goal", {}))

        made = RecoverableAgent(agent, self.store, max_recoveries=0)
        found = asyncio.run(made.run_with_recovery("task", RUN))
        return found["result"]

    def die(self, at: int, *, behind: bool = False, helped: bool = True) -> None:
        self.calls, self.dies_at, self.behind = 0, at, behind
        with pytest.raises(Died):
            self.live(helped)
        self.dies_at, self.store = -1, after_death(self.store)


@BOTH
@pytest.mark.parametrize(
    ("names", "mode", "fans"),
    [
        ("a b c", "continuous", False),
        ("a b c", "isolated", False),
        ("a b c d e", "isolated", True),
    ],
)
def test_no_tool_of_a_loop_is_called_twice_wherever_it_dies(tmp_path, executor, names, mode, fans):
    points = ITEMS * len(names.split())
    for at in range(1, points + 1):
        world = World(tmp_path / str(at), executor, names, mode, fans)
        world.die(at, behind=at % 2 == 0)
        if at % 3 == 0:
            world.die(1, behind=at % 2 == 1)
        assert world.live()["success"], at
        assert world.made == world.wanted, at
        assert world.live()["success"]
    assert {one.state for one in runs(world.store)} == {"finished"}
    gone = [one.run_id for one in world.store.gc(keep=0)]
    assert gone[0] == RUN
    assert len(gone) == 1 + (1 if mode == "continuous" else len(names.split()))


@BOTH
def test_a_loop_that_the_executor_made_itself_is_never_repeated_unasked(tmp_path, executor, caplog):
    world = World(tmp_path, executor, "a b", "continuous", False)
    world.die(2, helped=False)
    assert "a loop that Hive's executor has made itself" in caplog.text
    for _ in range(2):
        with pytest.raises(InDoubtError) as told:
            world.live(helped=False)
    made = Counter(world.made)  # tools of a batch run side by side
    (call,) = told.value.calls
    assert call.tool == "node a"
    world.store.run(RUN).resolve(call.lsn, Resolution.outcome({}))
    assert world.live(helped=False)["success"]
    world.live(helped=False)  # and its visits are served
    assert world.made == made + Counter(f"send_b {item}" for item in range(ITEMS))


def test_a_loop_in_doubt_parks_the_graph_and_says_which_call_it_is(tmp_path):
    world = World(tmp_path, Orchestrator, "a b", "isolated", False)
    world.die(2, behind=True)
    world.look = lambda call: Resolution.unknown()  # type: ignore[method-assign]
    with pytest.raises(RecoveryError) as told:
        world.live()
    (loops,) = (one for one in runs(world.store) if one.kind == "journal")
    assert loops.run_id in str(told.value)
    assert loops.in_doubt  # what ran beside it may be cut off, too
    for call in loops.in_doubt:
        world.store.run(loops.run_id).resolve(call.lsn, World.look(world, call))
    assert loops.parent is not None
    assert loops.parent.run_id == RUN
    assert world.live()["success"]
    assert world.made == world.wanted


def test_loops_at_work_at_once_in_one_conversation_are_refused(tmp_path):
    world = World(tmp_path, Orchestrator, "a b c d", "continuous", True)
    with pytest.raises(RecoveryError, match="conversation_mode='isolated'"):
        world.live()


def test_a_node_that_cannot_be_recorded_in_place_is_refused():
    class Node:
        __slots__ = ()

        async def execute(self, ctx: Any) -> NodeResult:
            raise AssertionError

    async def agent(run: Any) -> None:
        recorded_nodes(run, {})["n0"] = Node()

    with pytest.raises(RecoveryError, match="takes no attributes"):
        asyncio.run(RecoverableAgent(agent, disk_store()).run_with_recovery(None, RUN))


def test_a_node_that_is_brought_to_two_runs_is_recorded_in_each():
    class Node(NodeProtocol):
        async def execute(self, ctx: Any) -> NodeResult:
            return NodeResult(True, {"n0": 1})

    node = Node()

    async def agent(run: Any) -> Any:
        recorded_nodes(run, {})["n0"] = node
        ctx = NodeContext(None, "n0", NodeSpec("n0"), SharedMemory())
        return recorded_result(run, await node.execute(ctx))

    store = disk_store()
    for name in ("one", "two"):
        made = RecoverableAgent(agent, store)
        assert asyncio.run(made.run_with_recovery(None, name))["result"]["success"]
        assert status(store, name).progress.usage.calls == 1
