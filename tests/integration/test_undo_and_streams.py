"""Every compensation is made once, and every stream read once, wherever the process dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from recovery import CheckpointStore, RecoverableAgent, Resolution, SyncRun, tool
from recovery.errors import UndoError
from recovery.testing import crash_everywhere

broken: list[str] = []


@tool
def unmake(call: Any, outcome: Any) -> str:
    if call.args[0] in broken:
        broken.remove(call.args[0])
        raise ConnectionError(call.args[0])
    return f"unmade {outcome}"


@tool(after_crash="retry")
async def unmake_async(call: Any, outcome: Any) -> str:
    return f"unmade {outcome}"


@tool(undo=unmake)
def make(what: str) -> str:
    return what


@tool(undo=unmake_async, after_crash="retry")
async def make_async(what: str) -> str:
    return what


@tool(undo=unmake)
def make_two(what: str) -> list[str]:
    return [make(f"{what}1"), make(f"{what}2")]


def builder(run: SyncRun) -> Any:
    for step in run.steps():
        if step == 4:
            break
        run.call(make, f"a{step}")
        run.call(make_async, f"b{step}")
        run.call(make_two, f"c{step}")
        if step == 2:
            run.state["undone"] = len(run.undo(since=2))
    found = [run.state["undone"]]
    while True:
        try:
            found.append([one["result"] for one in run.undo()])
            return found
        except UndoError as exc:
            found.append([len(exc.done), len(exc.left)])


def fail_twice() -> None:
    broken[:] = ["a1", "c3"]


@pytest.mark.parametrize(
    ("points", "power"),
    [
        (8, False),
        pytest.param("all", True, marks=pytest.mark.crash),
    ],
)
@pytest.mark.parametrize("every", [1, 2, 100])
def test_every_compensation_is_made_once_wherever_it_crashes(every, points, power, rng) -> None:
    report = crash_everywhere(
        lambda: RecoverableAgent(builder, CheckpointStore(), checkpoint_every_n=every),
        setup=fail_twice,
        points=points,
        power_loss=power,
        seed=rng.randrange(1 << 20),
    )
    assert report.ok, str(report)
    made = {name: count for name, count in report.effects.items() if name.startswith("undo")}
    assert made == {"undo make": 4, "undo make_async": 3, "undo make_two": 4}


@tool
async def write(count: int) -> AsyncIterator[str]:
    for number in range(count):
        yield f"{number} "


@tool(after_crash="retry")
def write_plainly(count: int) -> Iterator[str]:
    for number in range(count):
        yield f"{number} "


@tool(
    reconcile=lambda call: Resolution.unknown(),
    combine=lambda chunks: {"sum": sum(chunk["n"] for chunk in chunks)},
    split=lambda value: [{"n": value["sum"]}],
)
def count(up_to: int) -> Iterator[dict[str, int]]:
    for number in range(up_to):
        yield {"n": number}


async def reader(run: Any) -> Any:
    async def read(function: Any, most: int) -> Any:
        async with run.stream(function, 5) as stream:
            async for chunk in stream:
                if "3" in str(chunk) and most < 5:
                    break
        return stream.result

    first = await asyncio.gather(read(write, 5), read(write, 4), read(write_plainly, 5))
    async for _ in run.steps():
        total = await read(count, 5)
        run.messages.append(total)
        if run.step == 3:
            return [first, total]


def plain_reader(run: SyncRun) -> Any:
    total = 0
    for chunk in run.stream(count, 4):
        total += chunk["n"]
    with run.stream(write, 3) as stream:
        text = "".join(stream)
    return [total, text, "".join(write_plainly(2))]


@pytest.mark.parametrize(
    ("points", "power"),
    [
        (15, False),
        pytest.param("all", True, marks=pytest.mark.crash),
    ],
)
@pytest.mark.parametrize("agent", [reader, plain_reader])
def test_every_stream_is_read_once_wherever_it_crashes(agent, points, power, rng) -> None:
    report = crash_everywhere(
        lambda: RecoverableAgent(agent, CheckpointStore(), checkpoint_every_n=1),
        points=points,
        power_loss=power,
        seed=rng.randrange(1 << 20),
    )
    assert report.ok, str(report)
