"""CheckpointManager: what is kept, how often, and for whom; also for executors of others."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eventlog import RefusedValueError
from eventlog.testing import SimulatedDisk
from recovery import (
    CheckpointConfig,
    CheckpointManager,
    CheckpointStore,
    RecoverableAgent,
    RecoveryError,
)
from recovery.graph import Graph, GraphExecutor
from recovery.stores.memory import MemoryStore
from tests.support.graphs import RUN, World, chain, manager_on
from tests.support.hive import manager as hive


def executed(manager: CheckpointManager, length: int = 4) -> None:
    executor = GraphExecutor(checkpoint_manager=manager)
    asyncio.run(executor.execute(chain(World(), length), "goal", {"given": 1}, RUN))


@pytest.fixture
def manager() -> Iterator[CheckpointManager]:
    with CheckpointManager(MemoryStore()) as manager:
        yield manager


# -- how often


@pytest.mark.parametrize(
    ("config", "steps"),
    [
        (CheckpointConfig(), [5, 4, 3, 2, 1]),
        (CheckpointConfig(every_n_nodes=2), [4, 2]),
        (CheckpointConfig(on_node_start=True, on_node_complete=False, every_n_nodes=3), [3]),
        (CheckpointConfig(on_node_complete=False), []),
    ],
)
def test_checkpoints_are_taken_as_often_as_asked(
    config: CheckpointConfig, steps: list[int]
) -> None:
    manager = CheckpointManager(MemoryStore(), config)
    executed(manager, 6)
    assert [one.step for one in manager.list_checkpoints(RUN)] == steps
    assert all(one.validity for one in manager.list_checkpoints(RUN))


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="every_n_nodes is a whole number, 1 or more"):
        CheckpointConfig(every_n_nodes=0)


def test_retention_is_that_of_the_store(tmp_path: Path) -> None:
    config = CheckpointConfig(retention="prune_old", max_checkpoints_per_run=5)
    store = CheckpointStore(tmp_path, retention="prune_old", keep=5)
    assert CheckpointManager(tmp_path, config).store.retention == store.retention
    assert CheckpointManager(store).store.retention == store.retention
    assert CheckpointManager(tmp_path).store.retention == CheckpointStore(tmp_path).retention
    with pytest.raises(ValueError, match="give retention to the CheckpointStore itself"):
        CheckpointManager(store, CheckpointConfig(retention="latest_only"))
    wrong: Any = "some"
    with pytest.raises(ValueError, match="retention"):
        CheckpointConfig(retention=wrong)


def test_a_manager_keeps_runs_where_it_is_told(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("EVENTLOG_HOME", str(tmp_path / "home"))
    store = CheckpointStore(tmp_path / "store")
    for storage, where in (
        (None, "home"),
        (str(tmp_path / "a"), "a"),
        (tmp_path / "b", "b"),
        (store, "store"),
    ):
        manager = CheckpointManager(storage)
        executed(manager)
        assert (tmp_path / where / RUN).is_dir()
    assert manager.store is store


# -- what there is


def test_what_a_run_was_at_each_checkpoint() -> None:
    manager = CheckpointManager(MemoryStore())
    executed(manager)
    newest = manager.restore(RUN)
    assert newest is not None
    assert (newest.step, newest.path, newest.next_nodes) == (3, ["n0", "n1", "n2"], ["n3"])
    assert newest.visit_counts == {"n0": 1, "n1": 1, "n2": 1}
    assert newest.memory["given"] == 1
    assert newest.memory["n2"] == [["n2", 2], "sent n2", 3]
    first = manager.list_checkpoints(RUN)[-1].checkpoint_id
    restored = manager.restore(RUN, first)
    assert restored is not None
    assert (restored.checkpoint_id, restored.path) == (first, ["n0"])
    found = manager.get_checkpoint(RUN, first)
    assert found is not None
    assert (found.step_number, found.is_valid) == (1, True)
    assert manager.restore(RUN, "another") is None
    assert manager.restore("another") is None
    assert manager.get_checkpoint(RUN, "another") is None


def test_going_on_from_an_earlier_checkpoint_is_a_fork() -> None:
    manager, world = CheckpointManager(MemoryStore()), World()
    executed(manager)
    earlier = manager.restore(RUN, manager.list_checkpoints(RUN)[1].checkpoint_id)
    assert earlier is not None
    assert earlier.next_nodes == ["n2"]
    manager.store.run(RUN).fork("again", at_step=earlier.step)
    result = GraphExecutor(checkpoint_manager=manager).resume_sync(chain(world, 4), "again")
    assert result.path == ["n0", "n1", "n2", "n3"]
    assert [node for node, _ in world.entered] == ["n2", "n3"]


def test_a_run_that_is_no_graph_has_nothing_to_restore() -> None:
    manager = CheckpointManager(MemoryStore())

    def agent(run: Any) -> int:
        for step in run.steps():
            run.state["n"] = step
            if step == 2:
                return 1
        raise AssertionError

    RecoverableAgent(agent, manager.store, 1).run_with_recovery_sync("task", RUN)
    with pytest.raises(RecoveryError, match="'run' is not one of a graph"):
        manager.restore(RUN)


def test_unfinished_runs_are_found_and_resumed_from_their_ids() -> None:
    disk = SimulatedDisk(seed=1)
    executed(manager_on(disk))
    world, manager = World(), manager_on(disk)
    assert manager.unfinished() == []
    for name in ("x", "y"):
        graph, executor = Graph("g"), GraphExecutor(checkpoint_manager=manager)
        graph.node("ask", lambda context: {"said": context.answer}, pause=True)
        assert executor.execute_sync(graph, "goal", run_id=name).paused_at == "ask"
    assert [one.run_id for one in manager.unfinished()] == ["x", "y"]
    assert world.entered == []


def test_automatic_recovery_can_be_off() -> None:
    store = MemoryStore()
    manager = CheckpointManager(store, CheckpointConfig(auto_recovery=False))
    graph, executor = Graph("g"), GraphExecutor(checkpoint_manager=manager)
    graph.node("ask", lambda context: {"said": context.answer}, pause=True)
    assert executor.execute_sync(graph, "goal", run_id=RUN).paused_at == "ask"
    manager.store.run(RUN).signal("ask", 1)
    with pytest.raises(RecoveryError, match=r"auto_recovery is off.*resume\(graph, run_id\)"):
        executor.execute_sync(graph, "goal", run_id=RUN)
    assert executor.resume_sync(graph, RUN).output == {"said": 1}
    assert executor.execute_sync(graph, "goal", run_id=RUN).output == {"said": 1}


def test_a_damaged_newest_checkpoint_falls_back_to_an_earlier_one(tmp_path: Path) -> None:
    """Others begin at step 0 then, in silence."""
    world, manager = World(), CheckpointManager(tmp_path)

    def graph_of(work: Any) -> Graph:
        graph = chain(world, 12)
        graph.node("last", work)
        graph.edge("n11", "last")
        return graph

    def fails(context: Any) -> None:
        raise OSError("not now")

    result = GraphExecutor(checkpoint_manager=manager).execute_sync(
        graph_of(fails), "goal", run_id=RUN
    )
    assert result.error == "node 'last' failed: OSError: not now"
    newest = manager.list_checkpoints(RUN)[0]
    assert newest.step == 12
    flip(tmp_path / RUN, b"run-000012")
    assert not manager.list_checkpoints(RUN)[0].validity
    world.entered.clear()
    again = GraphExecutor(checkpoint_manager=manager).resume_sync(graph_of(lambda _: 1), RUN)
    assert again.path == [*(f"n{i}" for i in range(12)), "last"]
    assert world.entered == []
    assert set(world.made.values()) == {1}
    assert again.report.from_step == 11
    assert again.report.broken or again.report.damage


def flip(directory: Path, what: bytes) -> None:
    """Flip a bit of the last place in the log where this stands."""
    for path in sorted(directory.iterdir(), reverse=True):
        data = bytearray(path.read_bytes()) if path.is_file() else bytearray()
        if what in data:
            data[data.rindex(what)] ^= 1
            path.write_bytes(data)
            return
    raise AssertionError(f"{what!r} is nowhere in {directory}")


# -- executors that take their checkpoints themselves


@pytest.mark.parametrize("every", [1, 3])
def test_an_executor_that_knows_three_methods_by_name_runs_unchanged(
    tmp_path: Path, every: int
) -> None:
    config = CheckpointConfig(every_n_nodes=every)
    runtime = hive.Runtime(tmp_path)

    def nodes_of(dies: bool) -> list[hive.Node]:
        def node(i: int) -> hive.Node:
            def work(memory: hive.SharedMemory) -> None:
                if dies and i == 7:
                    raise RuntimeError("the process ends here")
                memory.write(f"n{i}", [memory.read("n0"), "x" * 100])

            return f"n{i}", work

        return [node(i) for i in range(10)]

    with CheckpointManager(tmp_path, config) as manager:
        failed = hive.GraphExecutor(runtime, manager).execute(nodes_of(dies=True))
        assert len(manager.list_checkpoints(failed.run_id)) == 7 // every
        assert manager.unfinished() == []  # nobody says when such a run ends
    with CheckpointManager(tmp_path, config) as manager:
        done = hive.GraphExecutor(runtime, manager).execute(nodes_of(False), failed.session_state)
        saved = 7 // every * every
        assert done.path == [f"n{i}" for i in range(saved - 1, 10)]
        assert done.output["n9"] == [done.output["n0"], "x" * 100]
        newest = manager.restore(failed.run_id)
        assert newest is not None
        assert newest.metadata["total_tokens"] == 7 * saved
        assert newest.metadata["executor_type"] == "graph"


def test_where_there_is_nothing_to_restore(manager: CheckpointManager) -> None:
    assert manager.restore_from_checkpoint("none") == (None, None)
    manager.save_checkpoint("run", "a", {"x": 1})
    assert manager.restore_from_checkpoint("run") == ({"x": 1}, "a")
    store = manager.store
    off = CheckpointManager(store, CheckpointConfig(auto_recovery=False))
    assert off.restore_from_checkpoint("run") == (None, None)
    disabled = CheckpointManager(store, CheckpointConfig(enabled=False))
    assert disabled.restore_from_checkpoint("run") == (None, None)
    assert disabled.save_checkpoint("run", "b", {"x": 2}) is None
    assert not disabled.should_checkpoint(1)
    never = CheckpointManager(store, CheckpointConfig(on_node_complete=False))
    assert not any(map(never.should_checkpoint, (1, 100, sys.maxsize - 1)))


def test_checkpoints_of_a_graph_are_restored_for_such_executors_too() -> None:
    manager = CheckpointManager(MemoryStore())
    executed(manager)
    memory, node = manager.restore_from_checkpoint(RUN)
    assert node == "n3"
    assert memory is not None
    assert sorted(memory) == ["given", "n0", "n1", "n2"]


def test_what_cannot_be_saved_is_raised(manager: CheckpointManager) -> None:
    """Others log a warning, and the run goes on without."""
    with pytest.raises(RefusedValueError, match=r"^memory\.x: "):
        manager.save_checkpoint("run", "a", {"x": object()})
    assert manager.save_checkpoint("run", "a", {"x": 1}) is not None


def test_each_save_has_an_id_of_its_own_and_writes_what_changed(
    manager: CheckpointManager,
) -> None:
    memory = {"large": "x" * 10_000, "n": 0}
    ids = [manager.save_checkpoint("run", "a", memory | {"n": n}) for n in range(20)]
    assert len({*ids}) == 20
    sizes = [one.size for one in manager.list_checkpoints("run")]
    assert len(sizes) == 20
    assert max(sizes[:-2]) < 500  # the first of each of two lanes
    found = manager.restore("run", ids[3])
    assert found is not None
    assert found.memory == memory | {"n": 3}


def test_the_newest_sound_save_is_restored(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        for n in range(5):
            manager.save_checkpoint("run", f"n{n}", {"n": n, "text": f"the {n}th " * 20})
    flip(tmp_path / "run", b"the 4th ")
    with CheckpointManager(tmp_path) as manager:
        assert manager.restore_from_checkpoint("run") == ({"n": 3, "text": "the 3th " * 20}, "n3")
