"""Code that does several things at once replays, though they come in another order in each life.

Crashes come at any call of the disk (before each record, inside each write, at each flush) and
before or behind any effect; what the agent awaits besides its calls takes another time in each
life (see concurrent_agents). No unchanged code is ever said to have diverged, no effect happens
twice, and the result is that of a run without a crash which got those outcomes.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from eventlog.testing import Crash, SimulatedDisk
from recovery import CheckpointStore, RecoverableAgent
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
