"""examples/undo.py and examples/streaming.py: run as users run them, and killed at every point."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from recovery import CheckpointStore, RecoverableAgent, Resolution, SyncRun, tool
from recovery.errors import UndoError
from recovery.testing import CrashReport, crash_everywhere

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["undo", "streaming"])
def example(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    yield __import__(request.param)
    del sys.modules[request.param]


def run_twice(name: str, directory: Path) -> list[list[str]]:
    command = [sys.executable, str(ROOT / "examples" / name), str(directory)]
    return [
        subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=60
        ).stdout.splitlines()
        for _ in range(2)
    ]


def test_the_trip_runs_and_its_result_stays(tmp_path: Path) -> None:
    first, second = run_twice("undo.py", tmp_path)
    assert first == second == ["no boat to be had; cancelled: hotel-2, flight-1"]


def test_the_assistant_runs_and_its_answer_stays(tmp_path: Path) -> None:
    first, second = run_twice("streaming.py", tmp_path)
    said = "Otters hold hands. STOP "
    assert first == [said, f"1 questions asked. Answer: {said}"]
    assert second == ["", f"0 questions asked. Answer: {said}"]


def sweep(example: Any, **options: Any) -> CrashReport:
    if example.__name__ == "undo":

        def reset() -> None:
            example.bookings.clear()
            example.cancellations.clear()

        return crash_everywhere(
            lambda: RecoverableAgent(example.trip, CheckpointStore(), checkpoint_every_n=1),
            ["flight", "hotel", "boat"],
            setup=reset,
            effects=lambda: [*example.bookings.values(), *example.cancellations.values()],
            **options,
        )
    example.show = lambda text: None
    return crash_everywhere(example.assistant, "why?", **options)


def test_the_examples_survive_a_crash_anywhere(example: Any, rng: random.Random) -> None:
    report = sweep(example, points=25, seed=rng.randrange(1 << 20))
    assert report.ok, str(report)


@pytest.mark.crash
def test_the_examples_survive_a_crash_at_every_point(example: Any, capsys: Any) -> None:
    report = sweep(example, points="all", power_loss=True)
    assert report.ok, str(report)
    with capsys.disabled():
        print(f"\n{example.__name__}: {report.points} crash points")


# -- agents that do more than the examples

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


async def builder_async(run: Any) -> Any:
    for what in "abc":
        await run.call(make, what)
    await run.call(make_async, "d")
    undone = await run.undo()
    return [[one["result"] for one in undone], await run.undo()]


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


def test_an_async_agent_undoes_everything_once(rng: random.Random) -> None:
    report = crash_everywhere(builder_async, points=20, seed=rng.randrange(1 << 20))
    assert report.ok, str(report)


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

    import asyncio

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
