"""Long graphs: a visit costs as much however many there were before it. Counted, not timed."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
import weakref
from collections import Counter
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

import eventlog.write.log
from eventlog.testing import SimulatedDisk
from eventlog.write.appender import Appender
from recovery import CheckpointConfig, CheckpointManager
from recovery.errors import DivergenceError
from recovery.graph import Graph, GraphExecutor, NodeContext, walk
from recovery.history.retention import Kept
from tests.support.graphs import RUN, World, finished_visits, heavy, killed, loop, manager_on
from tests.support.lives import Disk
from tests.unit.recovery.history.test_retention import Small

NEW_SIZE = 1 << 10  # of what a node writes


APPEND = Appender.append.__code__


class Died(BaseException):
    """The process dies here, as far as the graph can tell."""


@pytest.fixture(autouse=True)
def _no_other_thread(monkeypatch: pytest.MonkeyPatch, at_once: None) -> None:
    monkeypatch.setattr(
        eventlog.write.log,
        "committer",
        SimpleNamespace(request=lambda log, lsn: None, forget=lambda log: None),
    )


def execute(graph: Graph, manager: CheckpointManager | None) -> Any:
    executor = GraphExecutor(checkpoint_manager=manager)
    return asyncio.run(executor.execute(graph, "goal", {}, RUN))


def resume(graph: Graph, manager: CheckpointManager) -> Any:
    return asyncio.run(GraphExecutor(checkpoint_manager=manager).resume(graph, RUN))


# -- a chain, of which everything that is written stays


class Counted:
    """What has been done when each node of a chain begins: functions called, and on the disk."""

    def __init__(
        self,
        nodes: int,
        dies: bool = False,
        disk: SimulatedDisk | None = None,
        retention: Kept = "all",
    ) -> None:
        self.nodes, self.dies, self.disk = nodes, dies, disk or SimulatedDisk()
        self.done, self.at = Counter[str](), list[Counter[str]]()
        config = CheckpointConfig(retention=retention)
        self.manager = CheckpointManager(Disk(self.disk), config)

    def graph(self) -> Graph:
        graph = Graph("chain")
        for i in range(self.nodes):
            graph.node(f"n{i:04d}", self._work)
            if i:
                graph.edge(f"n{i - 1:04d}", f"n{i:04d}")
        return graph

    def execute(self, act: Any) -> None:
        """With every function that is called counted."""

        def count(frame: Any, event: str, arg: Any) -> None:
            if event == "call" and frame.f_code is APPEND:
                self.done["records"] += 1
                self.done["bytes"] += len(frame.f_locals["payload"])
            self.done["calls"] += event in ("call", "c_call")

        graph = self.graph()
        sys.setprofile(count)
        try:
            act(graph, self.manager)
        except Died:
            assert self.dies
        finally:
            sys.setprofile(None)

    async def _work(self, context: NodeContext) -> dict[str, Any]:
        self.at.append(self.done + Counter(writes=len(self.disk.calls), reads=self.disk.reads))
        if self.dies and context.node_id == f"n{self.nodes - 1:04d}":
            raise Died
        return {context.node_id: f"{context.node_id:.>{NEW_SIZE}}"}

    def of(self, first: int, last: int) -> Counter[str]:
        """What so many nodes have taken together."""
        return self.at[last] - self.at[first]


@pytest.mark.parametrize("retention", ["all", "latest_only"])
def test_the_two_hundredth_node_costs_what_the_thirtieth_has_cost(retention: Kept) -> None:
    counted = Counted(250, retention=retention)
    counted.execute(execute)
    early, late = counted.of(32, 64), counted.of(208, 240)
    # A message is named in log2(n) checkpoints, by some six bytes.
    for what in ("calls", "bytes"):
        assert early[what] * 0.95 < late[what] < early[what] * 1.05, (what, early, late)
    assert early["records"] == late["records"] == 32 * 5  # step, call, outcome, message, checkpoint
    assert early["writes"] == late["writes"] and early["reads"] == late["reads"] == 0
    assert late["bytes"] < 32 * (NEW_SIZE + 1000)


def test_to_resume_costs_what_the_nodes_have_written_and_a_new_node_costs_the_same() -> None:
    costs = []
    for nodes in (40, 240):
        counted = Counted(nodes, dies=True)
        with pytest.raises(Died):
            execute(counted.graph(), counted.manager)
        again = Counted(nodes + 9, disk=counted.disk.after_process_death())
        again.execute(resume)
        assert len(again.at) == 10, "a finished node was executed again"
        # Of eight, because a wait for another thread takes some calls of one, now and then.
        costs.append((again.at[0], again.of(1, 9)))
    (few, first), (many, last) = costs
    assert many["reads"] <= few["reads"] + 10
    assert many["calls"] < 6 * few["calls"]
    for what in ("calls", "bytes"):
        assert last[what] < first[what] * 1.05


def test_what_an_execution_had_in_its_hands_goes_with_it() -> None:
    class Runtime:
        """Something large, for instance."""

    graph = Graph("g")
    graph.node("a", lambda context: {"a": 1})
    runtime = Runtime()
    gone = weakref.ref(runtime)
    assert asyncio.run(GraphExecutor(runtime).execute(graph, "goal", {})).success
    del runtime
    gc.collect()
    assert gone() is None


# -- loops, of which most is written over


def rounds(world: World, count: int = 9) -> Graph:
    """Two nodes side by side, a join, and back: three entries for each round."""
    graph = Graph("rounds")

    async def branch(context: NodeContext) -> Any:
        world.enter(context)
        return await context.call(world.send, f"{context.node_id} {context.visit}")

    async def failing(context: NodeContext) -> None:
        world.enter(context)
        if context.visit == 1:
            raise ValueError("only once")

    async def join(context: NodeContext) -> dict[str, Any]:
        world.enter(context)
        return {"via": context.via, "round": context.memory.read("round", 0) + 1}

    graph.node("join", join, join=True)
    for name, work in (("b", branch), ("c", failing)):
        graph.node(name, work)
        graph.edge("join", name, lambda output, memory: output["round"] < count)
        graph.edge(name, "join", "always")
    return graph


SUBJECTS = [partial(loop, visits=20), partial(heavy, visits=20), rounds]


def ends(subject: Any, crash: tuple[int, int] | None = None) -> tuple[Any, Any, tuple[int, int]]:
    managers: list[CheckpointManager] = []

    def kept(disk: SimulatedDisk, every: int) -> CheckpointManager:
        managers.append(manager_on(disk, every))
        return managers[-1]

    result, world, calls = killed(subject, 1, crash, kept)
    assert result.success, result.error
    newest = managers[-1].get_checkpoint(RUN)
    assert newest is not None
    restored = managers[-1].restore(RUN)
    assert restored is not None and restored.path == result.path[: len(restored.path)]
    assert len(result.path) - len(restored.path) == 1
    end = (result.output, result.path, result.node_visit_counts, result.nodes_with_failures)
    return end, world.made, (calls, len(newest.messages))


@pytest.mark.parametrize("subject", SUBJECTS)
def test_loops_whose_entries_were_folded_come_to_the_same_end(
    subject: Any, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, made, (_, entries) = ends(subject)
    assert entries >= 19
    monkeypatch.setattr(walk, "FOLDED_MIN", 8)
    folded, again, (calls, entries) = ends(subject)
    assert (folded, again) == (whole, made) and entries < 16
    for point in sorted(rng.sample(range(calls), 5)):
        assert ends(subject, (point, rng.choice([0, 1, 30])))[:2] == (whole, made)


@pytest.mark.crash
@pytest.mark.parametrize("subject", SUBJECTS)
def test_loops_whose_entries_are_folded_survive_a_crash_at_every_call_of_the_disk(
    subject: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walk, "FOLDED_MIN", 8)
    whole, made, (calls, _) = ends(subject)
    for point in range(0, calls, 2):
        assert ends(subject, (point, 30))[:2] == (whole, made)
        assert ends(subject, (point + 1, 0))[:2] == (whole, made)


def endless(visits: int, size: int) -> Graph:
    graph = Graph("endless", max_visits=10_000)

    @graph.node("again")
    async def again(context: NodeContext) -> dict[str, Any]:
        if context.visit == visits:
            raise Died
        return {"found": f"{context.visit:>{size}}"}

    graph.edge("again", "again")
    return graph


def test_retention_frees_what_a_loop_has_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "FOLDED_MIN", 16)
    sizes = []
    for visits in (100, 400):
        store = Small()
        manager = CheckpointManager(store, CheckpointConfig(retention="latest_only"))
        with pytest.raises(Died):
            execute(endless(visits, NEW_SIZE), manager)
        kept = store.disk.directories[store._path(RUN)]
        sizes.append(sum(len(file.content) for file in kept.values()))
        assert len(finished_visits(manager)) < 60
    assert sizes[1] < sizes[0] * 1.2 + 400 * 20, "the path grows, by a name for each visit"


def test_what_a_node_led_to_is_named_behind_a_fold_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "FOLDED_MIN", 8)
    manager = manager_on(SimulatedDisk())
    with pytest.raises(Died):
        execute(endless(9, 600), manager)
    newest = manager.get_checkpoint(RUN)
    assert newest is not None and len(newest.messages) == 1
    other = Graph("endless")
    other.node("other", lambda context: None)
    with pytest.raises(DivergenceError, match="no node 'again'") as refused:
        resume(other, manager)
    assert refused.value.lsn > 30
    moved = Graph("endless")
    moved.node("again", lambda context: None)
    moved.node("end", lambda context: {"end": 1})
    moved.edge("again", "end", lambda output, memory: output["found"].strip() == "8")
    result = resume(moved, manager)
    assert (result.success, result.path[-2:]) == (True, ["again", "end"])


def test_of_a_chain_nothing_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "FOLDED_MIN", 8)
    counted = Counted(40)
    counted.execute(execute)
    newest = counted.manager.get_checkpoint(RUN)
    assert newest is not None and len(newest.messages) == 39
    sizes = [after["bytes"] - before["bytes"] for before, after in pairwise(counted.at)]
    assert max(sizes) < 1.2 * min(sizes)
