"""Programs that give their executor a checkpoint manager, as those of Aden Hive's pull request 137
do: one manager for all runs, damage, odd values, the storage and the names that they know."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel

from eventlog import RefusedValueError
from recovery import (
    CheckpointConfig,
    CheckpointManager,
    CheckpointStore,
    RecoveryError,
    register,
)
from recovery.errors import NoSoundCheckpointError
from recovery.graph import Graph, GraphExecutor
from recovery.history import checkpoint_store_base
from recovery.history.retention import Kept
from tests.support.hive import manager as hive

RUN = "run_20260123_194332_00000001"
KEPT: tuple[Kept, ...] = ("all", "prune_old", "latest_only")


def text_of(node: str, size: int = 1024) -> str:
    """What a node writes."""
    return f"<{node}>" + "x" * size


def nodes_of(length: int, dies: int | None = None) -> list[hive.Node]:
    def node(i: int) -> hive.Node:
        def work(memory: hive.SharedMemory) -> None:
            if i == dies:
                raise RuntimeError("the process ends here")
            memory.write(f"n{i}", text_of(f"n{i}"))

        return f"n{i}", work

    return [node(i) for i in range(length)]


def save(manager: CheckpointManager, length: int, run_id: str = RUN, begin: int = 0) -> list[str]:
    """The checkpoints of a chain, as an executor saves them; their ids."""
    memory, path = {f"n{i}": text_of(f"n{i}") for i in range(begin)}, list[str]()
    path += [f"n{i}" for i in range(begin)]
    ids = []
    for i in range(begin, length):
        memory[f"n{i}"] = text_of(f"n{i}")
        path.append(f"n{i}")
        name = manager.save_checkpoint(run_id, f"n{i}", memory, metadata={"execution_path": path})
        assert name is not None
        ids.append(name)
    return ids


@pytest.fixture
def quick(tmp_path: Path) -> Iterator[CheckpointManager]:
    """A manager that flushes nothing."""
    with CheckpointManager(CheckpointStore(tmp_path / "runs", durability="none")) as manager:
        yield manager


# -- one manager for all runs


MANY = """
import resource, sys
from recovery import Checkpoint, CheckpointManager, CheckpointStore
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
store = CheckpointStore(sys.argv[1], durability="none")
manager = CheckpointManager(store)
for i in range(500):
    manager.save_checkpoint(f"R{i}", "n0", {"a": i})
for i in range(80):
    store.save(Checkpoint("", f"S{i}", 1, {"a": i}, [], [], 1.0))
manager.save_checkpoint("R0", "n1", {"a": 500})
assert manager.restore_from_checkpoint("R0") == ({"a": 500}, "n1")
assert manager.restore_from_checkpoint("R77") == ({"a": 77}, "n0")
assert store.load_latest("S79").state == {"a": 79}
"""


def test_one_manager_does_for_500_runs(tmp_path: Path) -> None:
    """256 descriptors, of which a run takes four."""
    subprocess.run([sys.executable, "-c", MANY, tmp_path], check=True, timeout=120)


def test_runs_that_are_saved_to_in_turns(quick: CheckpointManager) -> None:
    runs = [f"r{i}" for i in range(checkpoint_store_base.OPEN_MAX + 3)]
    for n in range(4):
        for run_id in runs:
            quick.save_checkpoint(run_id, f"n{n}", {"n": n, "run": run_id})
    assert len(quick.store._saving) == checkpoint_store_base.OPEN_MAX
    for run_id in runs:
        assert quick.restore_from_checkpoint(run_id) == ({"n": 3, "run": run_id}, "n3")
        assert [one.step for one in quick.list_checkpoints(run_id)] == [4, 3, 2, 1]


# -- damage


def frames(segment: Path) -> list[tuple[int, int]]:
    """Where the records of what ``save`` has saved begin and end, about: between its texts."""
    data = segment.read_bytes()
    marks, at = list[int](), data.find(b"ckpt_")
    while at >= 0:
        marks.append(at)
        at = data.find(b"ckpt_", at + 1)
    return list(zip(marks, [*marks[1:], len(data.rstrip(b"\0"))], strict=True))


def segment_of(manager: CheckpointManager, run_id: str = RUN) -> Path:
    backend: Any = manager.store.backend
    return max(Path(backend.root, run_id).glob("*.seg"))


def found_in(root: Path, run_id: str = RUN) -> int:
    """How many nodes have not to be executed again; 0 for a run of which nothing is left."""
    with CheckpointManager(root) as manager:
        try:
            memory, node = manager.restore_from_checkpoint(run_id)
        except NoSoundCheckpointError:
            return 0
    assert memory is not None
    assert node == f"n{len(memory) - 1}"
    assert memory == {f"n{i}": text_of(f"n{i}") for i in range(len(memory))}
    return len(memory)


@pytest.mark.parametrize("kept", KEPT)
def test_a_flipped_byte_in_any_record_costs_one_node(tmp_path: Path, kept: Kept) -> None:
    config = CheckpointConfig(retention_strategy=kept)
    with CheckpointManager(tmp_path, config) as manager:
        save(manager, 20)
        segment = segment_of(manager)
    whole = segment.read_bytes()
    lost = []
    for begin, end in frames(segment):
        for at in (begin, (begin + end) // 2, end - 5):
            data = bytearray(whole)
            data[at] ^= 1
            segment.write_bytes(data)
            lost.append(20 - found_in(tmp_path))
    segment.write_bytes(whole)
    assert found_in(tmp_path) == 20
    if kept == "latest_only":  # which promises nothing, and says so
        assert set(lost) <= {*range(21)}
    else:
        assert set(lost) == {0, 1}


def test_a_damaged_page_costs_a_part_of_a_run(tmp_path: Path) -> None:
    """Both lanes are in it; the last copy of everything, or what is before it, is not."""
    with CheckpointManager(tmp_path) as manager:
        save(manager, 40)
        segment = segment_of(manager)
    whole = segment.read_bytes()
    lost = []
    for page in range(1, len(whole.rstrip(b"\0")) // 4096, 3):
        data = bytearray(whole)
        data[page * 4096 : (page + 1) * 4096] = bytes(4096)
        segment.write_bytes(data)
        lost.append(40 - found_in(tmp_path))
    assert max(lost) <= 25, lost


def test_checkpoints_that_are_there_and_none_is_sound(tmp_path: Path) -> None:
    """Is no run that never was: what it did would be done again without a word."""
    with CheckpointManager(tmp_path) as manager:
        ids = save(manager, 3)
        segment = segment_of(manager)
    data = bytearray(segment.read_bytes())
    for begin, _ in frames(segment):
        data[begin + 2] ^= 1
    segment.write_bytes(data)
    with CheckpointManager(tmp_path) as manager:
        for attempt in (
            lambda: manager.restore_from_checkpoint(RUN),
            lambda: manager.restore(RUN),
            lambda: manager.get_checkpoint(RUN),
            lambda: manager.get_checkpoint(RUN, ids[0]),
        ):
            with pytest.raises(NoSoundCheckpointError, match=r"none of them is sound:\n.*segment"):
                attempt()
        assert manager.restore_from_checkpoint("another") == (None, None)
        again = save(manager, 5, begin=3)  # is whole by itself
        assert manager.restore_from_checkpoint(RUN)[1] == "n4"
        assert set(ids).isdisjoint(again)


def test_no_id_is_given_twice(tmp_path: Path) -> None:
    given: list[str] = []
    for lives in range(4):
        with CheckpointManager(tmp_path) as manager:
            given += save(manager, 3)
            segment = segment_of(manager)
        data = bytearray(segment.read_bytes())
        data[data.rindex(b"ckpt_")] ^= 1
        if lives == 1:
            segment.write_bytes(data)  # the newest one
        elif lives == 2:
            assert CheckpointManager(tmp_path).delete_checkpoints(RUN) == 9
    assert len({*given}) == 12


# -- its storage, and the names that it is known by


def test_the_storage_that_their_runtime_has(tmp_path: Path) -> None:
    runtime = hive.Runtime(tmp_path)
    manager = CheckpointManager(runtime.storage, CheckpointConfig())
    assert manager.storage is runtime.storage
    executor = hive.GraphExecutor(runtime, checkpoint_manager=manager)
    failed = executor.execute(nodes_of(10, dies=7))
    assert failed.session_state["resume_from"] == "n6"  # they do not say what is next
    done = executor.execute(nodes_of(10), failed.session_state)
    manager.close()
    assert done.success and done.path == ["n6", "n7", "n8", "n9"]
    assert done.output == {f"n{i}": text_of(f"n{i}") for i in range(10)}
    assert sorted(one.name for one in (tmp_path / "eventlog").iterdir() if one.is_dir()) == [
        failed.run_id,
        done.run_id,
    ]


@pytest.mark.parametrize("storage", [3, object(), b"runs", {"base_path": "x"}])
def test_what_is_no_storage_is_refused_at_once(storage: Any) -> None:
    with pytest.raises(TypeError, match=r"storage is a path, a CheckpointStore, .*base_path"):
        CheckpointManager(storage)


@pytest.mark.parametrize(
    ("given", "every", "kept", "keep"),
    [
        ({}, 1, "all", None),
        ({"max_checkpoints_per_run": 5}, 1, "prune_old", 5),
        (
            {"retention_strategy": "latest_only", "max_checkpoints_per_run": 100},
            1,
            "latest_only",
            0,
        ),
        ({"retention_strategy": "prune_old"}, 1, "prune_old", None),
        ({"retention_strategy": "all", "max_checkpoints_per_run": 5}, 1, "all", None),
        ({"save_frequency": "every_node", "n_nodes": 7}, 1, "all", None),
        ({"save_frequency": "every_n_nodes", "n_nodes": 7}, 7, "all", None),
        ({"every_n_nodes": 2, "retention": "prune_old"}, 2, "prune_old", None),
    ],
    ids=str,
)
def test_the_names_of_their_configuration(
    given: dict[str, Any], every: int, kept: Kept, keep: int | None
) -> None:
    manager = CheckpointManager(None, CheckpointConfig(**given))
    assert [n for n in range(1, 15) if manager.should_checkpoint(n)] == [*range(every, 15, every)]
    assert manager.store.retention == CheckpointStore(retention=kept, keep=keep or None).retention


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"save_frequency": "every_nodes"}, 'Did you mean "every_node"?'),
        ({"save_frequency": "every_n_nodes", "n_nodes": 0}, "n_nodes is a whole number, 1 or more"),
        ({"retention_strategy": "latest"}, 'Did you mean "latest_only"?'),
        ({"retention_strategy": "all", "retention": "prune_old"}, "give one of them"),
        ({"save_frequency": "every_node", "every_n_nodes": 2}, "give one of them"),
    ],
    ids=str,
)
def test_mistakes_in_it_are_told(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError) as caught:
        CheckpointConfig(**given)
    assert said in str(caught.value)


def test_checkpoints_are_deleted(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        save(manager, 4)
        assert manager.delete_checkpoints(RUN) == 4
        assert manager.list_checkpoints(RUN) == []
        assert manager.restore_from_checkpoint(RUN) == (None, None)
        assert manager.delete_checkpoints(RUN) == 0
        save(manager, 2)
        assert len(manager.list_checkpoints(RUN)) == 2
        graph = Graph("g")
        graph.node("a", lambda context: 1)
        GraphExecutor(checkpoint_manager=manager).execute_sync(graph, "goal", run_id="ours")
        with pytest.raises(RecoveryError, match=r"are a part of its log.*Nothing was removed"):
            manager.delete_checkpoints("ours")


# -- values


class Level(Enum):
    HIGH = "high"


class Point(NamedTuple):
    x: int
    y: int


@dataclass
class Lead:
    name: str
    level: Level
    at: Point


class Reply(BaseModel):
    text: str
    leads: list[Lead]


@register
@dataclass
class Known:
    n: int


def test_models_and_dataclasses_are_carried(quick: CheckpointManager) -> None:
    lead = Lead("Ann", Level.HIGH, Point(1, 2))
    memory = {"reply": Reply(text="hi", leads=[lead]), "lead": lead, "known": Known(1), "n": 1}
    quick.save_checkpoint("run", "a", memory, metadata={"context": {"level": Level.HIGH}})
    quick.store.close()
    restored = quick.restore("run")
    assert restored is not None
    found = restored.memory
    assert (type(found["known"]).__name__, found["known"].n, found["n"]) == ("Known", 1, 1)
    assert (found["lead"].name, found["lead"].level, found["lead"].at.y) == ("Ann", "high", 2)
    assert found["reply"].model_dump() == {
        "text": "hi",
        "leads": [{"name": "Ann", "level": "high", "at": {"x": 1, "y": 2}}],
    }
    assert found["reply"].model_type.endswith("Reply")
    assert restored.metadata["context"] == {"level": "high"}


def test_what_cannot_be_carried_fails_the_node_and_names_it(tmp_path: Path) -> None:
    runtime = hive.Runtime(tmp_path)
    manager = CheckpointManager(runtime.storage)
    executor = hive.FlexibleGraphExecutor(runtime, manager)

    def odd(memory: hive.SharedMemory) -> None:
        memory.write("n2", {"client": [object()]})

    nodes = [*nodes_of(2), ("n2", odd)]
    failed = executor.execute(nodes)
    assert failed.error.startswith("memory.n2.client[0]: ")
    assert failed.session_state["resume_from"] == "n1"
    context = {"plan": {"x": len}}
    with manager, pytest.raises(RefusedValueError, match=r"^metadata\.context\.plan\.x: "):
        manager.save_checkpoint("run", "a", {}, metadata={"context": context})


# -- bytes


@pytest.mark.parametrize("kind", [hive.GraphExecutor, hive.FlexibleGraphExecutor])
def test_bytes_per_node_are_flat(tmp_path: Path, kind: Any) -> None:
    """Each node adds a key, and changes no other; a plan's context has each result once more."""
    sizes = {}
    for length in (20, 100, 300):
        runtime = hive.Runtime(tmp_path / str(length))
        store = CheckpointStore(tmp_path / f"{length}-runs", durability="none")
        with CheckpointManager(store) as manager:
            done = kind(runtime, manager).execute(nodes_of(length))
            assert done.success, done.error
        reader = store.backend.read(done.run_id)
        assert reader is not None
        with reader:
            sizes[length] = sum(len(record.packed) for record in reader.records(1)) / length
    assert max(sizes.values()) < 1.4 * min(sizes.values()), sizes
    new = 1024 * (2 if kind is hive.FlexibleGraphExecutor else 1)
    assert max(sizes.values()) < 4 * new, sizes


def test_metadata_comes_back_as_it_was(quick: CheckpointManager) -> None:
    metadata: dict[str, Any] = {
        "step_number": 3,
        "empty": {},
        "context": {"plan_context": {"a": {"x": {"y": 1}}, "b": {}}, "odd": {"\x1f": 1, "c": 2}},
        "numbers": {1: 2},
    }
    quick.save_checkpoint("run", "a", {"metadata": 1}, metadata=metadata)
    quick.save_checkpoint("bare", "a", {})
    restored, bare = quick.restore("run"), quick.restore("bare")
    assert restored is not None and bare is not None
    assert restored.metadata == metadata | {"executor_type": "graph"}
    assert (restored.memory, bare.metadata) == ({"metadata": 1}, {"executor_type": "graph"})


# -- retention, damage and kills together


KILLED = """
import json, os, signal, sys
from recovery import CheckpointConfig, CheckpointManager
root, kept, die = sys.argv[1], sys.argv[2], int(sys.argv[3])
manager = CheckpointManager(root, CheckpointConfig(retention_strategy=kept))
memory, node = manager.restore_from_checkpoint("run")
memory = memory or {}
for i in range(len(memory), 20):
    memory[f"n{i}"] = f"<n{i}>" + "x" * 1024
    with open(root + ".nodes", "a") as done:
        print(i, file=done)
    if i == die:
        os.kill(os.getpid(), signal.SIGKILL)
    path = [f"n{j}" for j in range(i + 1)]
    manager.save_checkpoint("run", f"n{i}", memory, metadata={"execution_path": path})
"""


def life(root: Path, kept: Kept, die: int) -> int:
    return subprocess.run(
        [sys.executable, "-c", KILLED, root, kept, str(die)], timeout=60, check=False
    ).returncode


def killed(root: Path, kept: Kept, die: int) -> None:
    """A process is killed in a node."""
    assert life(root, kept, die) == -signal.SIGKILL


def damaged(root: Path, kept: Kept, record: int | None) -> list[int]:
    """A byte of a record is flipped, and another process resumes: how often each node was
    executed."""
    if record is not None:
        (segment,) = (root / "run").glob("*.seg")
        begin, end = frames(segment)[record]
        data = bytearray(segment.read_bytes())
        data[(begin + end) // 2] ^= 4
        segment.write_bytes(data)
    assert life(root, kept, -1) == 0
    done = [int(line) for line in Path(f"{root}.nodes").read_text().split()]
    return [done.count(i) for i in range(20)]


@pytest.mark.parametrize("kept", ["all", "prune_old"])
@pytest.mark.parametrize(("die", "record"), [(0, None), (12, 0), (12, 11)])
def test_a_kill_and_a_damaged_record(
    tmp_path: Path, kept: Kept, die: int, record: int | None
) -> None:
    """The node that was killed is executed again, and the one that the damage cost."""
    killed(tmp_path / "runs", kept, die)
    counts = damaged(tmp_path / "runs", kept, record)
    assert sum(counts) <= 20 + 2
    assert set(counts[: max(die - 1, 0)]) <= {1}


@pytest.mark.crash
@pytest.mark.parametrize("kept", ["all", "prune_old"])
def test_kills_with_every_damaged_record(tmp_path: Path, kept: Kept) -> None:
    for die in range(2, 20, 3):
        killed(tmp_path / f"{die}", kept, die)
        for record in range(die):
            again = tmp_path / f"{die}-{record}"
            shutil.copytree(tmp_path / f"{die}", again)
            shutil.copy(tmp_path / f"{die}.nodes", f"{again}.nodes")
            counts = damaged(again, kept, record)
            assert sum(counts) <= 20 + 2, (die, record, counts)
