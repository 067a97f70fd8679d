"""Code that does several things at once replays, though they come in another order in each life.

Crashes come at any call of the disk (before each record, inside each write, at each flush) and
before or behind any effect; what the agent awaits besides its calls takes another time in each
life (see concurrent_agents). No unchanged code is ever said to have diverged, no effect happens
twice, and the result is that of a run without a crash which got those outcomes.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from eventlog.testing import Crash, SimulatedDisk
from recovery import (
    Call,
    CheckpointStore,
    InDoubtError,
    RecoverableAgent,
    Resolution,
    Run,
    SyncRun,
    resolve,
    tool,
)
from recovery.stores.protocol import LogStore
from tests.property.agents import (
    RUN,
    TASK,
    Clock,
    End,
    Plan,
    Program,
    World,
    check_log,
    check_results,
    die_and_return,
    live,
    noted,
    operate,
    timeless,
    virtual_time,
)
from tests.property.concurrent_agents import PAUSES, RACES, SAME, Agent, Outing

LIVES_MAX = 60
RULES = Program((), ())  # only for how a life ends


@pytest.fixture
def clock() -> Iterator[Clock]:
    with virtual_time() as clock:
        yield clock


class Story:
    """An agent's lives, one after the other, to its end."""

    def __init__(
        self, clock: Clock, agent: Agent, every: int = 1, pauses: tuple[str, ...] = PAUSES
    ) -> None:
        self.clock, self.agent, self.every, self.pauses = clock, agent, every, pauses

    def live(self, world: World, seed: object) -> End:
        out = Outing(world, random.Random(f"{seed} {world.life}"), self.pauses)

        async def body(run: Any) -> Any:
            world.starts += 1
            world.started()
            result = await self.agent(run, out)
            world.final = [timeless(list(run.messages)), timeless(dict(run.state))]
            return result

        async def job() -> Any:
            runner = RecoverableAgent(body, CheckpointStore(world.store), self.every)
            return await runner.run_with_recovery(TASK, RUN)

        return live(world, RULES, job)

    def lives(self, plan: Plan, seed: object) -> tuple[World, End]:
        world = World(self.clock, SimulatedDisk(seed=1))
        for _ in range(LIVES_MAX):
            plan.begin(world)
            end = self.live(world, seed)
            try:
                while end.how == "parked" and not world.dead:
                    operate(world, end.value)
                    end = self.live(world, seed)
            except Crash:
                pass
            if not world.dead:
                return world, end
            die_and_return(world, plan.seed(world.life))
        raise AssertionError(f"not finished after {LIVES_MAX} lives")

    def told(self, plan: Plan, seed: object) -> tuple[World, Any]:
        with noted((plan, seed)):
            world, end = self.lives(plan, seed)
            if end.how != "finished":
                raise end.value
            check_once(world)
            check_log(world.disk, world.said)
            check_results(world, world.final)
        return world, timeless(end.value["result"])


def check_once(world: World) -> None:
    once = Counter(effect.key for effect in world.effects if effect.policy != "retry")
    assert not [key for key, count in once.items() if count > 1], "twice under one key"
    # Each argument is that of one call, whatever the key.
    labels = Counter(effect.what for effect in world.effects if effect.policy != "retry")
    assert max(labels.values(), default=0) <= 1, labels


def plans(rng: random.Random, calls: int, executed: int, count: int) -> Iterator[Plan]:
    """``count`` plans, or one for each call of the disk and each effect if ``count`` is 0."""
    points: list[tuple[str, int, int]] = [
        ("disk", n, rng.choice([0, 1, 40, 1 << 20])) for n in range(calls)
    ]
    points += [("effect", n, behind) for n in range(executed) for behind in (0, 1)]
    for point in rng.sample(points, count or len(points)):
        more = [("disk", rng.randrange(1 + calls), rng.choice([0, 30, 1 << 20]))
                for _ in range(rng.choice([0, 1, 1, 3]))]  # fmt: skip
        power = rng.choice([(), tuple(rng.choice([None, rng.getrandbits(30)]) for _ in range(3))])
        yield Plan((point, *more), power)


def sweep(story: Story, rng: random.Random, count: int) -> int:
    oracle, expected = story.told(Plan(()), rng.random())
    calls = len(oracle.disk.calls)
    tried = 0
    for plan in plans(rng, calls, oracle.executed, count):
        tried += 1
        world, result = story.told(plan, rng.random())
        if story.agent in SAME.values():
            assert result == expected
            what = {effect.what for effect in world.effects}
            assert what == {effect.what for effect in oracle.effects}
    return tried


@pytest.mark.parametrize("name", [*SAME, *RACES])
def test_concurrent_code_replays_in_whatever_order_things_come(
    clock: Clock, rng: random.Random, figures: Any, name: str
) -> None:
    began = time.perf_counter()
    count = sweep(Story(clock, (SAME | RACES)[name], rng.choice([1, 9])), rng, 6)
    seconds = time.perf_counter() - began
    figures.add("crashes of concurrent agents", states=count, seconds=seconds)


@pytest.mark.crash
@pytest.mark.parametrize("name", [*SAME, *RACES])
def test_concurrent_code_that_crashes_at_every_call_of_the_disk(
    clock: Clock, rng: random.Random, figures: Any, name: str
) -> None:
    began = time.perf_counter()
    count = sweep(Story(clock, (SAME | RACES)[name], rng.choice([1, 2, 9])), rng, 0)
    seconds = time.perf_counter() - began
    figures.add("crashes of concurrent agents", states=count, seconds=seconds)


# -- threads: real ones, so that what they do takes real time, and little of it


@tool
def notify(what: str) -> str:
    return note(what)


@tool(after_crash="retry")
def fetch(what: str) -> str:
    return note(what)


def charged(call: Call) -> Resolution:
    what = call.args[0]
    return Resolution.outcome(what) if what in LEDGER.done else Resolution.retry()


@tool(reconcile=charged)
def charge(what: str) -> str:
    return note(what)


class Ledger:
    """What the tools of one test have done, and the pauses of the present life."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.disk: Any = None
        self.rng = random.Random()

    def pause(self) -> None:
        time.sleep(self.rng.choice([0, 0, 0.001, 0.004, 0.02]))


LEDGER = Ledger()


def note(what: str) -> str:
    LEDGER.pause()
    if LEDGER.disk._dead:
        raise Crash
    LEDGER.done[what] += 1
    return what


def chain(run: SyncRun, name: str) -> list[str]:
    """What a thread does."""
    LEDGER.pause()
    found = [run.call(notify, f"{name} notify")]
    LEDGER.pause()
    found += [run.call(charge, f"{name} charge"), run.call(fetch, f"{name} fetch")]
    return found


def in_a_pool(run: SyncRun) -> Any:
    found: list[Any] = []
    for step in run.steps():
        with ThreadPoolExecutor(3) as pool:
            found = list(pool.map(partial(chain, run), [f"{step}{x}" for x in "abcd"]))
        run.call(notify, f"step {step}")
        if step == 2:
            return found
    raise AssertionError


def in_threads(run: SyncRun) -> Any:
    """The agent goes on meanwhile, and its threads wait for one another."""
    first = threading.Event()
    found: dict[str, Any] = {}

    def one() -> None:
        try:
            found["one"] = chain(run, "one")
        finally:
            first.set()

    def two() -> None:
        run.call(fetch, "two before")
        first.wait()
        found["two"] = chain(run, "two")

    threads = [threading.Thread(target=quietly, args=(work,)) for work in (one, two)]
    for thread in threads:
        thread.start()
    found["three"] = [run.call(notify, "three"), run.call(charge, "three more")]
    for thread in threads:
        thread.join()
    run.call(fetch, "at last")
    return found


def quietly(work: Callable[[], None]) -> None:
    try:
        work()
    except BaseException:  # what stops the run, stops the agent at its next call
        return


async def to_threads(run: Run) -> Any:
    """An async agent: decorated tools in threads, beside coroutines."""

    def in_thread(name: str) -> list[str]:
        LEDGER.pause()
        return [notify(f"{name} notify"), charge(f"{name} charge")]

    async def beside(name: str) -> Any:
        await asyncio.sleep(LEDGER.rng.choice([0, 0.001, 0.02]))
        return [await run.call(fetch, name), await run.call(notify, f"{name} more")]

    for turn in range(2):
        names = [f"{turn}{x}" for x in "abc"]
        found = await asyncio.gather(
            *(asyncio.to_thread(in_thread, name) for name in names), beside(f"{turn} beside")
        )
        await run.call(notify, f"turn {turn}")
    return found


@pytest.mark.parametrize("agent", [in_a_pool, in_threads, to_threads])
def test_threads_replay_in_whatever_order_they_come(
    agent: Callable[[Any], Any], rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A crash kills threads that nobody awaits; what they say on the way out is no news.
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    monkeypatch.setattr(logging.getLogger("asyncio"), "disabled", True)
    ends = []
    for crash_at in [-1, *rng.sample(range(60), 8)]:
        LEDGER.__init__()  # type: ignore[misc]
        disk = SimulatedDisk(seed=1)
        if crash_at >= 0:
            disk.crash_at(crash_at, rng.choice([0, 30, 1 << 20]))
        for _ in range(30):
            LEDGER.disk, LEDGER.rng = disk, random.Random(rng.random())
            store = CheckpointStore(LogStore("runs", disk, "power"))
            try:
                end = asyncio.run(RecoverableAgent(agent, store).run_with_recovery(TASK, RUN))
                break
            except InDoubtError as parked:
                for call in parked.calls:
                    done = LEDGER.done[call.args[0]] > 0
                    how = Resolution.outcome(call.args[0]) if done else Resolution.retry()
                    resolve(store, RUN, call.lsn, how)
            except BaseException:
                assert disk._dead
                disk = disk.after_process_death()
        ends.append(end["result"])
        assert ends[-1] == ends[0]
        twice = [what for what, count in LEDGER.done.items() if count > 1]
        assert all(what.endswith(("fetch", "before", "beside", "last")) for what in twice), twice
