"""Values of all types on their way through runs: first, on replay, from checkpoints, unread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy
import pytest

from eventlog import EventLog, LogReader, RefusedValueError
from eventlog.dump import dump, verify
from recovery import (
    CheckpointStore,
    InDoubtError,
    RecoverableAgent,
    Resolution,
    Run,
    SyncRun,
    register,
    tool,
)
from recovery.control.resolve import resolve
from recovery.errors import TaskMismatchError, UnreadableValueError
from recovery.values import codec as coded
from recovery.values.pack import pack
from tests.support.lives import Died, after_death, die_in, disk_store, forget, run


@pytest.fixture(autouse=True)
def _registrations() -> Iterator[None]:
    yield
    forget()


@dataclass
class Order:
    item: str
    price: Decimal
    tags: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Place:
    x: int
    at: Any = None


VALUE = {
    "when": datetime(2026, 1, 1, tzinfo=UTC),
    (1, UUID(int=2)): [{1, 2}, b"x", bytearray(b"y")],
    "big": 1 << 70,
    "odd": "\ud800",
    "path": Path("/a"),
    "order": Order("x", Decimal("1.50"), {"t"}),
}


@pytest.fixture(params=[True, False], ids=["async", "sync"])
def is_async(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def life(is_async: bool, seen: list[Any], dies: set[int]) -> Any:
    """An agent that sees values wherever it can, in state and messages too; it dies behind these
    steps, once each."""

    @tool(after_crash="retry")
    def echo(value: Any) -> Any:
        return value

    @tool(after_crash="retry")
    def broken(value: Any) -> None:
        raise KeyError((1, Decimal("2.0")))

    def look(run: Any, step: int, found: Any) -> None:
        assert isinstance(found["order"], Order)
        assert found["order"].tags == {"t"}
        found["order"].tags.add("changed by the agent")
        run.state.setdefault("kept", {"all": set()})["all"].add((step, Decimal(step)))
        run.messages.append({"step": step, "at": Place(step, (1, {2}))})
        seen.append([found["step"], sorted(run.state["kept"]["all"]), run.messages[-1]["at"].x])

    def end(run: Any, step: int, exc: KeyError) -> Any:
        assert exc.args == ((1, Decimal("2.0")),)
        if step in dies:
            dies.discard(step)
            raise Died
        return {"state": run.state["kept"], "last": run.messages[-1]["at"]}

    async def agent(run: Run) -> Any:
        async for step in run.steps():
            look(run, step, await run.call(echo, VALUE | {"step": (step,)}))
            with pytest.raises(KeyError) as caught:
                await run.call(broken, {step})
            found = end(run, step, caught.value)
            if step == 5:
                return found

    def plain(run: SyncRun) -> Any:
        for step in run.steps():
            look(run, step, run.call(echo, VALUE | {"step": (step,)}))
            with pytest.raises(KeyError) as caught:
                run.call(broken, {step})
            found = end(run, step, caught.value)
            if step == 5:
                return found
        return None

    return agent if is_async else plain


@pytest.mark.parametrize("every", [1, 2, 9])
def test_values_are_the_same_first_on_replay_and_behind_a_checkpoint(is_async, every):
    register(Order)
    register(Place)
    store, dies, deaths, seen = disk_store(), {2, 3, 5}, 0, list[Any]()
    while True:
        try:
            result = run(life(is_async, seen, dies), store, checkpoint_every_n=every)["result"]
            break
        except Died:
            deaths += 1
            store = after_death(store)
    assert deaths == 3
    all_steps = [(step, Decimal(step)) for step in range(1, 6)]
    assert result == {"state": {"all": {*all_steps}}, "last": Place(5, (1, {2}))}
    assert type(result["last"].at[1]) is set
    assert run(life(is_async, [], set()), store)["result"] == result
    for (step,), kept, x in seen:
        assert (kept, x) == (all_steps[:step], step)


def test_changes_inside_values_of_the_state_are_in_the_next_checkpoint():
    register(Order)

    async def agent(run: Run) -> Any:
        if not run.state:
            run.state.update(
                set=set(),
                order=Order("x", Decimal(1)),
                array=numpy.zeros(3),
                buffer=bytearray(3),
                tuple=([],),
            )
        async for step in run.steps():
            if step == 4 and run.recovery_count == 0:
                raise Died
            if step == 4:
                return {key: repr(value) for key, value in run.state.items()}
            run.state["set"].add(step)
            run.state["order"].tags.add(str(step))
            run.state["array"][0] = step
            run.state["buffer"][0] = step
            run.state["tuple"][0].append(step)

    found = run(agent, die_in(agent, disk_store(), checkpoint_every_n=1))
    assert found["recovered_from_step"] == 3
    assert found["result"] == {
        "set": "{1, 2, 3}",
        "array": "array([3., 0., 0.])",
        "buffer": "bytearray(b'\\x03\\x00\\x00')",
        "tuple": "([1, 2, 3],)",
        "order": found["result"]["order"],
    }
    assert all(f"'{step}'" in found["result"]["order"] for step in (1, 2, 3))


# -- types that are not registered


def places(where: str) -> Any:
    """An agent that has a Place in one place of its run."""

    @tool(after_crash="retry")
    def use(value: Any = None) -> Any:
        return Place(2) if where == "result" else None

    async def agent(run: Run) -> Any:
        if where == "prologue":
            await run.call(use, Place(1))
        async for step in run.steps():
            await run.call(use, Place(1) if where == "arguments" else step)
            if where == "messages":
                run.messages.append([Place(1)])
            if where == "state":
                run.state["place"] = {"at": (Place(1),)}
            if where == "result":
                await run.call(use)
            if step == 3:
                raise Died

    return agent


async def touches_nothing(run: Run) -> Any:
    raise AssertionError("nothing is executed")


@pytest.mark.parametrize("every", [1, 9], ids=["checkpoint", "tail"])
@pytest.mark.parametrize("where", ["arguments", "result", "messages", "state", "prologue", "task"])
def test_a_run_whose_types_are_not_registered_does_not_resume(where, every):
    register(Place)
    task = [Place(7)] if where == "task" else "task"
    store = die_in(places(where), disk_store(), checkpoint_every_n=every, task=task)
    if where in ("arguments", "result") and every == 1:
        return  # calls of steps before a checkpoint are not looked at any more
    if where == "state" and every == 9:
        return  # a state is in checkpoints alone
    before = records(store)
    forget()
    with pytest.raises(UnreadableValueError) as caught:
        run(touches_nothing, store, task="task")
    assert caught.value.name == "Place"
    assert caught.value.lsn in {item["lsn"] for item in before}
    assert "recovery.register(" in str(caught.value)
    assert records(store) == before  # nothing was written, and all can be shown
    assert "Place" in str(before) or any("$ext" in str(item) for item in before)
    register(Place)
    with pytest.raises(AssertionError, match="nothing is executed"):
        run(touches_nothing, store, task=task, max_recoveries=0)


def records(store: CheckpointStore) -> list[Any]:
    with store.backend.read("run") as reader:  # type: ignore[union-attr]
        assert isinstance(reader, LogReader)
        assert list(verify(reader)) == []
        return list(dump(reader))


def test_a_type_that_gained_a_field_does_not_break_checkpoints():
    old = make_dataclass("Plan", ["a"], frozen=True)
    new = make_dataclass("Plan", ["a", ("b", int, 5)], frozen=True)

    async def first(run: Run) -> Any:
        async for step in run.steps():
            if step == 3:
                raise Died
            run.state["plan"] = old(step)
            run.messages.append({"plan": old(step)})

    async def second(run: Run) -> Any:
        async for step in run.steps():
            return step, run.state["plan"], list(run.messages)

    register(old, name="plan")
    store = die_in(first, disk_store(), checkpoint_every_n=1)
    forget()
    register(new, name="plan")
    found = run(second, store, checkpoint_every_n=1)
    assert found["report"].broken == ()
    assert found["recovered_from_step"] == 2
    assert found["result"][:2] == (3, new(2, 5))
    assert found["result"][2] == [{"plan": new(1, 5)}, {"plan": new(2, 5)}]


def test_the_same_task_is_the_same_whatever_it_holds():
    @tool(after_crash="retry")
    def nothing() -> None: ...

    async def agent(run: Run) -> Any:
        await run.call(nothing)
        if run.recovery_count == 0:
            raise Died
        return "done"

    task = {"data": numpy.arange(3), "when": VALUE["when"], "nan": float("nan")}
    store = die_in(agent, disk_store(), task=task)
    with pytest.raises(TaskMismatchError):
        run(agent, store, task=task | {"data": numpy.arange(4)})
    assert run(agent, store, task=task)["result"] == "done"


# -- values that are too large


MEBIBYTE = 1 << 20


@pytest.mark.slow
@pytest.mark.parametrize("size", [63 * MEBIBYTE, 100 * MEBIBYTE])
def test_values_of_100_megabytes(tmp_path, size):
    fits = size < 64 * MEBIBYTE
    told: list[str] = []

    @tool(after_crash="retry")
    def make() -> bytes:
        return bytes(size)

    @tool(after_crash="retry")
    def take(data: bytes) -> int:
        return len(data)

    def attempt(what: Any) -> None:
        try:
            what()
        except RefusedValueError as exc:
            told.append(exc.value_path)
            assert "Keep the value elsewhere" in str(exc)

    def agent(run: SyncRun) -> Any:
        assert run.call(take, bytes(size)) == size  # arguments of any size: by digest
        if fits:
            run.call(make)
        attempt(lambda: run.messages.append(bytes(size)))
        return len(run.messages)

    found = RecoverableAgent(agent, CheckpointStore(tmp_path)).run_with_recovery_sync("t", "run")
    assert found["result"] == (1 if fits else 0)
    assert told == ([] if fits else ["messages"])


@pytest.mark.slow
def test_a_state_that_is_too_large_is_refused_at_the_checkpoint(tmp_path):
    def agent(run: SyncRun) -> Any:
        for step in run.steps():
            run.state["data"] = bytes(100 * MEBIBYTE if step == 2 else 10)
        return None

    with pytest.raises(RefusedValueError, match=r"^checkpoint: .*Keep the value elsewhere"):
        RecoverableAgent(agent, CheckpointStore(tmp_path), 1).run_with_recovery_sync("t", "run")
    latest = CheckpointStore(tmp_path).load_latest("run")
    assert latest is not None
    assert latest.state == {"data": bytes(10)}


def test_the_log_shows_values_that_only_their_types_can_read(tmp_path):
    register(Place)
    with EventLog.open(tmp_path / "log") as log:
        log.append("mine", pack({"at": [Place(1), (2,)]}, "x"))
    forget()
    with EventLog.read(tmp_path / "log") as reader:
        (record,) = reader.records()
        assert record.body["at"][0].code == coded.REGISTERED
        assert list(verify(reader)) == []


def test_a_call_is_resolved_by_who_does_not_know_its_types():
    @tool
    def dies(place: Place) -> None:
        raise Died

    async def agent(run: Run) -> Any:
        return await run.call(dies, Place(1))

    register(Place)
    store = die_in(agent, disk_store())
    with pytest.raises(InDoubtError) as caught:
        run(agent, store)
    (call,) = caught.value.calls
    assert call.args == (Place(1),)
    forget()
    resolve(store, "run", call.lsn, Resolution.retry())
    register(Place)  # an outcome of such a type is given by who knows it
    resolve(store, "run", call.lsn, Resolution.outcome({"at": Place(2)}))
    assert run(agent, store)["result"] == {"at": Place(2)}
