"""Graphs killed at every call of the disk, and resumed from the run id alone."""

from __future__ import annotations

import random
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest

import eventlog.write.log
from eventlog.testing import SimulatedDisk
from recovery import CheckpointConfig, CheckpointManager, RecoverableAgent, tool
from recovery.graph import Graph, GraphExecutor
from recovery.graph.walk import Walk
from recovery.testing import crash_everywhere
from tests.conftest import Figures
from tests.support.graphs import Subject, World, chain, fan_out, flexible, heavy, killed, loop
from tests.unit.recovery.history.test_retention import Small

SUBJECTS: list[Subject] = [chain, fan_out, loop, flexible]
TORN = (0, 1, 30, 100)  # bytes of a write that come to the disk


@pytest.fixture(autouse=True)
def _no_other_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process dies where the agent is, and not in a flush behind its back."""
    monkeypatch.setattr(
        eventlog.write.log,
        "committer",
        SimpleNamespace(request=lambda log, lsn: None, forget=lambda log: None),
    )


@cache
def wanted(subject: Subject, every: int) -> tuple[Any, Any, int]:
    """What comes of it without a crash."""
    result, world, calls = killed(subject, every, None)
    assert result.success, result.error
    return (result.output, result.path, result.node_visit_counts), world.made, calls


def check(subject: Subject, every: int, crash: tuple[int, int]) -> None:
    """Finished nodes are not executed again, and no tool is called twice: see ``killed``."""
    seen, made, _ = wanted(subject, every)
    found, world, _ = killed(subject, every, crash)
    assert found.success, found.error
    assert (found.output, found.path, found.node_visit_counts) == seen
    assert world.made == made


@pytest.mark.parametrize("subject", SUBJECTS)
def test_resumed_graphs_come_to_the_same_end(subject: Subject, rng: random.Random) -> None:
    calls = wanted(subject, 1)[2]
    for point in sorted(rng.sample(range(calls), 8)):
        check(subject, 1, (point, rng.choice(TORN)))


def pruned(disk: SimulatedDisk, every: int) -> CheckpointManager:
    """What is before the checkpoints that are kept goes."""
    config = CheckpointConfig(every_n_nodes=every, retention="prune_old", max_checkpoints_per_run=2)
    return CheckpointManager(Small(disk), config)


def latest(disk: SimulatedDisk, every: int) -> CheckpointManager:
    config = CheckpointConfig(every_n_nodes=every, retention="latest_only")
    return CheckpointManager(Small(disk), config)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("manager_of", [pruned, latest])
def test_graphs_whose_beginning_is_gone_come_to_the_same_end(
    manager_of: Any, rng: random.Random
) -> None:
    disks: list[SimulatedDisk] = []

    def kept(disk: SimulatedDisk, every: int) -> CheckpointManager:
        disks.append(disk)
        return manager_of(disk, every)  # type: ignore[no-any-return]

    seen, world, calls = killed(heavy, 1, None, kept)
    assert seen.output == {"given": 1, "sum": 40 * 600, "n": 40}
    assert Small(disks[-1]).oldest() > 100  # of some 400 records
    for point in sorted(rng.sample(range(calls), 3)):
        found, again, _ = killed(heavy, 1, (point, rng.choice(TORN)), kept)
        assert (found.output, found.path, again.made) == (seen.output, seen.path, world.made)
        assert Small(disks[-1]).oldest() > 100


@pytest.mark.crash
@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("manager_of", [pruned, latest])
def test_graphs_whose_beginning_is_gone_survive_each_crash(
    manager_of: Any,
) -> None:
    seen, world, calls = killed(heavy, 1, None, manager_of)
    for point in range(calls):
        found, again, _ = killed(heavy, 1, (point, 30), manager_of)
        assert (found.output, found.path, again.made) == (seen.output, seen.path, world.made)


@pytest.mark.crash
@pytest.mark.parametrize("every", [1, 3, 1000])
@pytest.mark.parametrize("subject", SUBJECTS)
def test_graphs_survive_a_crash_at_every_call_of_the_disk(
    subject: Subject, every: int, figures: Figures
) -> None:
    for point in range(wanted(subject, every)[2]):
        for torn in TORN:
            check(subject, every, (point, torn))
            figures.add("graphs", crashes=1)


@pytest.mark.parametrize("subject", [fan_out, loop])
def test_graphs_survive_a_crash_in_and_around_their_tools(subject: Any, rng: random.Random) -> None:
    """With nodes and tools that die in the middle of what they do, and in the recovery, too."""

    def make(world: World) -> RecoverableAgent:
        walk = Walk(subject(world))
        return GraphExecutor(checkpoint_manager=None).agent(walk)

    task = {"graph": subject(World()).name, "goal": "goal", "input": {}}
    report = crash_everywhere(
        make,
        task,
        setup=World,
        effects=lambda world: [*world.effects.values()],
        points=16,
        seed=rng.randrange(1 << 20),
        strict=True,
    )
    assert report.ok, str(report)


def test_a_side_effect_without_a_way_to_ask_parks_the_graph_and_is_resolved(
    rng: random.Random,
) -> None:
    sent: list[str] = []

    @tool
    def mail(what: str) -> str:
        sent.append(what)
        return what

    def make() -> RecoverableAgent:
        graph = Graph("mail")

        @graph.node("write")
        async def write(context: Any) -> dict[str, Any]:
            return {"text": "hello"}

        @graph.node("mail")
        async def post(context: Any) -> Any:
            return await context.call(mail, context.memory["text"])

        graph.edge("write", "mail")

        return GraphExecutor().agent(Walk(graph))

    task = {"graph": "mail", "goal": "goal", "input": {}}
    report = crash_everywhere(
        make, task, setup=sent.clear, effects=lambda: sent, points=16, seed=rng.randrange(1 << 20)
    )
    assert report.ok, str(report)
