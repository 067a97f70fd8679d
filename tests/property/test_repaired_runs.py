"""A run whose log was damaged, repaired and resumed: nothing that took place is done again unless
somebody who knows says so, and it gets to the end that it would have had.

The operator tells the truth: of a call in doubt he knows whether it took place, by what it was to
do. The world counts what each tool did, in all lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from eventlog.repair import repair
from eventlog.testing import SimulatedDisk
from recovery import CheckpointStore, InDoubtError, RecoverableAgent, Resolution, tool
from recovery.control.resolve import resolve
from recovery.errors import DamagedRunError, DivergenceError
from tests.property.test_damage import Files, Killed, Store, damaged_runs, without

STEPS = 6


PARKS_MAX = 60


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


class World:
    """An agent, what its tools have done outside, and where it dies: at the n-th thing done."""

    def __init__(self, die_at: int = 0) -> None:
        self.die_at, self.done, self.asked = die_at, Counter[str](), Counter[str]()

    def act(self, what: str) -> str:
        self.done[what] += 1
        if self.done.total() == self.die_at:
            self.die_at = 0
            raise Killed
        return f"done: {what}"

    def tools(self) -> dict[str, Callable[..., Any]]:
        @tool
        def send(to: str) -> str:
            return self.act(f"send {to}")

        def happened(call: Any) -> Resolution:
            what = f"pay {call.args[0]}"
            return Resolution.outcome(f"done: {what}") if self.done[what] else Resolution.retry()

        @tool(reconcile=happened)
        def pay(to: str) -> str:
            return self.act(f"pay {to}")

        @tool(after_crash="retry")
        def ask(what: str) -> dict[str, str]:
            self.asked[what] += 1
            return {"answer": what * 20}

        @tool(after_crash="retry")
        def both(to: str) -> list[Any]:
            return [send(f"{to}, first"), send(f"{to}, second")]

        return {"send": send, "pay": pay, "ask": ask, "both": both}

    def agent(self, run: Any) -> Any:
        tools = self.tools()
        run.call(tools["send"], "before the steps")
        for step in run.steps():
            run.messages.append(run.call(tools["ask"], f"question {step}"))
            run.messages.append(run.call(tools["send"], f"person {step}"))
            if step % 2:
                run.messages.append({"both": run.call(tools["both"], f"family {step}")})
            else:
                run.messages.append(run.call(tools["pay"], f"shop {step}"))
            run.call(tools["send"], "always the same")
            run.state["count"] = step
            if step == STEPS:
                break
        return [dict(run.state), list(run.messages)]

    async def async_agent(self, run: Any) -> Any:
        tools = self.tools()
        await run.call(tools["send"], "before the steps")
        async for step in run.steps():
            run.messages.append(await run.call(tools["ask"], f"question {step}"))
            run.messages += await asyncio.gather(
                run.call(tools["send"], f"person {step}"),
                run.call(tools["pay"], f"shop {step}"),
                run.call(tools["both"], f"family {step}"),
            )
            run.state["count"] = step
            if step == STEPS:
                break
        return [dict(run.state), list(run.messages)]


def resume(disk: SimulatedDisk, world: World, is_async: bool, every: int = 2) -> Any:
    agent_fn = world.async_agent if is_async else world.agent
    agent = RecoverableAgent(
        agent_fn, CheckpointStore(Store(disk)), checkpoint_every_n=every, max_recoveries=0
    )
    return agent.run_with_recovery_sync("task", "run")["result"]


def run_that_died(die_at: int, is_async: bool, every: int) -> tuple[Files, Counter[str], Any]:
    """The files of a run that died, all of it durable; what was done; what it would have given."""
    disk, world = SimulatedDisk(seed=die_at), World(die_at)
    with contextlib.suppress(Killed):
        resume(disk, world, is_async, every)
    disk = disk.after_process_death()
    Store(disk).claim("run").close()
    files = {name: bytes(file.content) for name, file in disk.directories["runs/run"].items()}
    return files, world.done, resume(SimulatedDisk(), World(), is_async, every)


def operate(disk: SimulatedDisk, world: World, error: InDoubtError) -> None:
    """Somebody who knows what took place says so."""
    for call in error.calls:
        what = f"{call.tool} {call.args[0]}"
        # Of calls that are all the same, as many took place as were made by now.
        made = world.done[what] >= max(1, expected_of(call))
        how = Resolution.outcome(f"done: {what}") if made else Resolution.retry()
        resolve(Store(disk), "run", call.lsn, how, who="operator", force=True)


def expected_of(call: Any) -> int:
    """How often this has been done when the call has."""
    if call.args[0] != "always the same":
        return 1
    return int(call.step)


def check_repaired_run(
    files: Files, died: tuple[Counter[str], Any], is_async: bool, every: int, die_again: int = 0
) -> str:
    """Repair, resume, answer, until the run ends; how it ended."""
    done, expected = died
    disk, world = SimulatedDisk(seed=99), World()
    directory = disk.make_directory("runs/run")
    for name, content in files.items():
        directory.open(name, write=True, create=True).pwrite(content, 0)
    repair("runs/run", files=disk, who="me")
    world.done.update(done)
    world.die_at = die_again and done.total() + die_again
    for _ in range(PARKS_MAX):
        try:
            result = resume(disk, world, is_async, every)
        except InDoubtError as error:
            operate(disk, world, error)
        except Killed:
            disk = disk.after_process_death()
        except DamagedRunError:
            assert world.done == done, "executed, though nobody knows what"
            return "damaged"
        except DivergenceError:
            return "diverged"
        else:
            assert result == expected
            often = {
                what: count
                for what, count in world.done.items()
                if count != (STEPS if what == "send always the same" else 1)
            }
            assert not often, f"not done once: {often}"
            return "finished"
    raise AssertionError("resolving does not help")


def lost_segments(files: Files) -> Iterator[Files]:
    """One segment missing, or several; the end missing."""
    names = sorted(name for name in files if name.endswith(".seg"))
    for i in range(len(names)):
        yield without(files, *names[i:])
        yield without(files, *names[i : i + 2])


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(("die_at", "every"), [(4, 2), (9, 100), (13, 2), (99, 100)])
def test_nothing_is_done_twice_behind_a_repair(
    die_at: int, every: int, is_async: bool, rng: random.Random
) -> None:
    files, done, expected = run_that_died(die_at, is_async, every)
    ends = Counter[str]()
    found = [*damaged_runs(files), *lost_segments(files)]
    for damaged in rng.sample(found, min(len(found), 8)):
        ends[
            check_repaired_run(damaged, (done, expected), is_async, every, rng.choice((0, 1, 2)))
        ] += 1
    assert ends["finished"] > 2, ends
    assert not ends["diverged"], ends


@pytest.mark.crash
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("die_at", range(1, 26))
def test_nothing_is_done_twice_behind_any_repair(die_at: int, is_async: bool) -> None:
    ends = Counter[str]()
    for every in (2, 100):
        files, done, expected = run_that_died(die_at, is_async, every)
        for i, damaged in enumerate([*damaged_runs(files), *lost_segments(files)]):
            ends[check_repaired_run(damaged, (done, expected), is_async, every, i % 3)] += 1
    assert ends["finished"] and not ends["diverged"], ends
