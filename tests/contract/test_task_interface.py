"""The smallest interface: checkpoints, their store and an agent, as the starter code has them.

A program that is written against it runs unchanged, and no field of a checkpoint is saved and then
lost: each value is refused by ``save``, with the name of the field, or loaded again as it was.
"""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections import UserDict, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields, is_dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy
import pytest

from recovery import Checkpoint, CheckpointStore, RecoverableAgent, RecoveryError, SyncRun
from recovery.history.checkpoint import seconds_of
from recovery.stores.memory import MemoryStore

NOW = "2026-11-22T17:20:26.000001+00:00"

STARTER = """
import asyncio, json, sys
from datetime import datetime, timezone
from recovery import Checkpoint, CheckpointStore, RecoverableAgent

store = CheckpointStore(storage_backend=None if sys.argv[1] == "memory" else sys.argv[1])
stamp = datetime.now(timezone.utc).isoformat()
for step in (3, 6):
    store.save(Checkpoint(
        checkpoint_id=f"cp-{step}", run_id="by-hand", step_number=step, state={"step": step},
        messages=[{"role": "user", "content": "hello"}],
        tool_results=[{"tool": "search", "result": step}], timestamp=stamp,
    ))
positional = Checkpoint("cp-9", "by-hand", 9, {"step": 9}, [], [], stamp, True, "")
store.save(positional)
latest, third = store.load_latest("by-hand"), store.load_at_step("by-hand", 3)
assert store.validate(latest) is True and latest.is_valid is True
assert latest.timestamp == third.timestamp == stamp
assert third.tool_results == [{"tool": "search", "result": 3}]
assert store.load_at_step("by-hand", step=6).checkpoint_id == "cp-6"
latest.state["step"] = 10
assert store.validate(latest) is False and latest.is_valid is False

failures = [5]

async def agent_fn(run):
    async for step in run.steps():
        if step in failures:
            failures.remove(step)
            raise ConnectionError("the tool is down")
        run.state["done"] = run.state.get("done", 0) + 1
        if step == 8:
            return run.state["done"]

agent = RecoverableAgent(agent_fn=agent_fn, checkpoint_store=store, checkpoint_every_n=3)
assert agent.agent_fn is agent_fn and agent.store is store
assert agent.checkpoint_every_n == 3 and agent.recovery_count == 0
result = asyncio.run(agent.run_with_recovery("the task", "run-1"))
print(json.dumps([result["result"], result["recovered_from_step"], agent.recovery_count]))
"""


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_a_program_against_the_starter_code_runs_unchanged(where: str, tmp_path: Path) -> None:
    storage = "memory" if where == "memory" else str(tmp_path / "store")
    found = subprocess.run(
        [sys.executable, "-c", STARTER, storage], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout) == [8, 3, 1]


def parameters(function: Callable[..., Any]) -> list[str]:
    if is_dataclass(function):
        return [field.name for field in fields(function)]
    return [name for name in inspect.signature(function).parameters if name != "self"]


def test_the_signatures_are_those_of_the_starter_code() -> None:
    assert parameters(Checkpoint) == [
        "checkpoint_id",
        "run_id",
        "step_number",
        "state",
        "messages",
        "tool_results",
        "timestamp",
        "is_valid",
        "checksum",
    ]
    assert parameters(CheckpointStore)[0] == "storage_backend"
    assert parameters(CheckpointStore.save) == ["checkpoint"]
    assert parameters(CheckpointStore.load_latest) == ["run_id"]
    assert parameters(CheckpointStore.load_at_step) == ["run_id", "step"]
    assert parameters(CheckpointStore.validate) == ["checkpoint"]
    assert parameters(RecoverableAgent)[:3] == [
        "agent_fn",
        "checkpoint_store",
        "checkpoint_every_n",
    ]
    assert parameters(RecoverableAgent.run_with_recovery)[:2] == ["task", "run_id"]
    assert inspect.iscoroutinefunction(RecoverableAgent.run_with_recovery)


def test_how_often_checkpoints_are_taken_can_be_set_and_is_checked() -> None:
    def agent(run: SyncRun) -> int:
        for step in run.steps():
            if step == 4:
                break
        return step

    store = CheckpointStore()
    made = RecoverableAgent(agent, store)
    made.checkpoint_every_n = 2
    made.run_with_recovery_sync("task", "run")
    assert [one.step for one in store.run("run").checkpoints()] == [2]
    with pytest.raises(ValueError, match="checkpoint_every_n"):
        made.checkpoint_every_n = 0


class Level(IntEnum):
    LOW = 1


class Name(StrEnum):
    A = "a"


class Plain(Enum):
    A = 1


class Text(str):
    __slots__ = ()


cycle: list[Any] = []
cycle.append(cycle)
deep: list[Any] = []
for _ in range(5000):
    deep = [deep]

# Each is refused or loaded again: which of them, the table does not say but the test's last lines.
ODD: dict[str, tuple[Any, ...]] = {
    "checkpoint_id": (
        "",
        "ż",
        "a/b",
        "x" * 100_000,
        "\ud800",
        "\0",
        b"id",
        None,
        3,
        True,
        Text("a"),
        Name.A,
        UUID(int=1),
    ),
    "run_id": ("", "a/b", "..", "ż", "\ud800", "x" * 129, b"run", None, 3, Text("run"), Name.A),
    "step_number": (
        0,
        -1,
        2**40,
        2**63 - 1,
        2**63,
        2**200,
        True,
        False,
        3.0,
        float("nan"),
        "3",
        None,
        Level.LOW,
        numpy.int64(3),
        Decimal(3),
    ),
    "timestamp": (
        NOW,
        "2026-11-22 17:20",
        "2026-11-22",
        "yesterday",
        "",
        "\ud800",
        "9999-12-31T23:59:59",
        "0001-01-01T00:00:00",
        0,
        -1,
        1.5,
        2**63 - 1,
        2**63,
        10**400,
        1e308,
        float("nan"),
        float("inf"),
        True,
        None,
        b"now",
        Decimal("1.5"),
        numpy.float64(1.5),
        date(2026, 1, 1),
        datetime(2026, 1, 1),
        datetime(2026, 1, 1, tzinfo=UTC),
        timedelta(1),
        Text(NOW),
    ),
    "state": (
        {},
        None,
        [],
        "state",
        3,
        {1: 2},
        {None: 1},
        {("a",): 1},
        {"a": float("nan")},
        {"a": 2**200},
        {"a": -(2**63) - 1},
        {"a": "\ud800"},
        {"\ud800": 1},
        {"a": cycle},
        {"a": deep},
        {"a": object()},
        {"a": (1, 2)},
        {"a": {1, 2}},
        {"a": b"\xff"},
        {"a": bytearray(b"a")},
        {"a": datetime(2026, 1, 1)},
        {"a": datetime(2026, 1, 1, tzinfo=UTC)},
        {"a": Plain.A},
        {"a": Level.LOW},
        {"a": {2: 3}},
        {"a": {(1, 2): 3}},
        {"a": numpy.int64(3)},
        {"a": numpy.arange(3)},
        {"": 1},
        {Text("a"): 1},
        {"a": lambda: 1},
        {"a": sys.stdout},
        UserDict(a=1),
        defaultdict(list, a=[1]),
        {"a": Decimal("NaN")},
        {"a": -0.0},
    ),
    "messages": (
        [],
        None,
        (),
        ("a",),
        "text",
        {"role": "user"},
        [None],
        [float("nan")],
        ["\ud800"],
        [object()],
        [(1, 2)],
        iter([1]),
        [cycle],
        [{"content": b"\0"}],
        numpy.arange(3),
    ),
    "tool_results": (
        [],
        None,
        (1, 2),
        {"a": 1},
        "text",
        [float("nan")],
        ["\ud800"],
        [object()],
        iter([1]),
    ),
    "is_valid": (True, False, None, 1, 0, "yes"),
    "checksum": ("", "0" * 32, "ż", "\ud800", b"0" * 32, 3),
}

LOADED_AT_LEAST = 40  # of what is odd, so that refusing everything would be no way out


def given(field: str, value: Any) -> Checkpoint:
    fields: dict[str, Any] = {
        "checkpoint_id": "c",
        "run_id": "run",
        "step_number": 3,
        "state": {"a": 1},
        "messages": [{"role": "user"}],
        "tool_results": [],
        "timestamp": NOW,
    }
    return Checkpoint(**fields | {field: value})


def save_and_load(field: str, value: Any) -> str:
    """What became of it: the reason, if it was refused."""
    store = CheckpointStore(MemoryStore())
    try:
        made = given(field, value)
        saved = store.save(made)
    except (ValueError, RecoveryError) as exc:
        store.close()
        run_id = value if field == "run_id" and isinstance(value, str) else "run"
        if run_id in store.backend.run_ids():
            assert store.load_latest(run_id) is None, "it was refused, and saved"
        return f"{type(exc).__name__}: {exc}"
    for again in (store, CheckpointStore(store.backend)):
        found = again.load_latest(made.run_id)
        assert found is not None, "it was saved, and is lost"
        assert found.checkpoint_id == saved
        assert same(found, made)
        assert again.validate(found) is True
        assert again.validate(made.run_id) is True
        store.close()
    return ""


def same(a: Any, b: Any) -> bool:
    """Equal, and a NaN is equal to a NaN."""
    if isinstance(a, Checkpoint):
        return all(same(getattr(a, field), getattr(b, field)) for field in parameters(Checkpoint))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, numpy.ndarray):
        return bool((a == b).all())
    return bool(a == b or (a != a and b != b)) and (type(a) is type(b) or isinstance(b, dict))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        pytest.param(field, value, id=f"{field}-{n}")
        for field, values in ODD.items()
        for n, value in enumerate(values)
    ],
)
def test_a_field_is_refused_or_comes_back(field: str, value: Any) -> None:
    refused = save_and_load(field, value)
    assert not refused or field in refused, refused
    assert "checkpoint:" not in refused


def test_what_is_odd_and_can_be_carried_is_carried() -> None:
    loaded = sum(
        not save_and_load(field, value) for field, values in ODD.items() for value in values
    )
    assert loaded >= LOADED_AT_LEAST


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import time

    monkeypatch.setenv("TZ", "UTC-2")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:00:10+00:00", 10),
        ("1970-01-01T03:00:00", 3600),
        ("1970-01-01T00:00:01Z", 1),
        ("yesterday", 0),
        ("0001-01-01T00:00:00", 0),
    ],
)
def test_text_is_shown_by_commands_as_the_time_that_it_says(
    text: str, seconds: float, zone: None
) -> None:
    assert seconds_of(text) == pytest.approx(seconds) or text.startswith("0001")
    with CheckpointStore() as store:
        store.save(given("timestamp", text))
        assert [one.timestamp for one in store.run("run").checkpoints()] == [seconds_of(text)]


def test_a_checkpoint_without_id_and_checksum_gets_them() -> None:
    made = given("checkpoint_id", "")
    made.checksum = ""
    with CheckpointStore() as store:
        assert store.save(made) == made.checkpoint_id == "run-000003"
        assert store.load_latest("run") == made
    assert Checkpoint(**asdict(made)) == made


def test_a_store_tells_why_a_checkpoint_is_not_valid() -> None:
    made = given("state", {"a": 1})
    with CheckpointStore() as store:
        store.save(made)
        assert str(store.check("run")) == "sound"
        made.step_number = True
        assert "step_number" in store.check(made).reason
        assert store.validate(made) is False
        assert store.check("none").reason == "there is no run 'none'"
