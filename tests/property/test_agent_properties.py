"""What an agent's run promises, for any program and a crash at any call of the disk."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventlog._frame import SNAPSHOT
from recovery import Resolution, accept
from recovery._events import CallIntended, CallRetried, RunResumed, StepStarted, ValueRecorded
from tests.model.harm import frames
from tests.property.agent_programs import MUTATIONS, distinct, mutated, plainly, programs
from tests.property.agents import (
    RUN,
    Branch,
    Clock,
    Do,
    Everything,
    Plan,
    Program,
    Trial,
    World,
    check_effects,
    die_and_return,
    events,
    harm,
    history,
    live,
    lives,
    newest_checkpoint,
    noted,
    operate,
    outcome_of,
    outcomes,
    settle,
    trial,
    virtual_time,
)
from tests.scale import example_settings, scaled


@pytest.fixture
def clock() -> Iterator[Clock]:
    with virtual_time() as clock:
        yield clock


def crash_plans(trial: Trial, rng: random.Random, count: int) -> Iterator[Plan]:
    """Plans for ``count`` first crash points, or for all of them, each with more crashes behind."""
    points = list(range(trial.disk_calls))
    effects = [(n, behind) for n in range(trial.oracle.executed) for behind in (0, 1)]
    for point in rng.sample(points, min(count, len(points))):
        torn = rng.choice([0, 1, 40, 100, 1 << 20])
        more = [("disk", rng.randrange(1 + trial.disk_calls), rng.choice([0, 30, 1 << 20]))
                for _ in range(rng.choice([0, 1, 1, 2]))]  # fmt: skip
        power = rng.choice([(), tuple(rng.choice([None, rng.getrandbits(30)]) for _ in range(3))])
        yield Plan((("disk", point, torn), *more), power)
    for n, behind in rng.sample(effects, min(max(2, count // 2), len(effects))):
        more = [("effect", rng.randrange(3), rng.randrange(2))] * rng.randrange(2)
        power = rng.choice([(), tuple(rng.choice([None, rng.getrandbits(30)]) for _ in range(3))])
        yield Plan((("effect", n, behind), *more), power)


def sweep(clock: Clock, figures: Any, name: str, examples: int, count: int) -> None:
    """Crash ``examples`` random programs at ``count`` points each."""
    points, began = 0, time.perf_counter()

    @settings(example_settings(max_examples=examples))
    @given(programs(), st.integers(0, 1 << 30))
    def check(program: Program, number: int) -> None:
        nonlocal points
        one = trial(clock, program)
        for plan in crash_plans(one, random.Random(number), count):
            with noted(plan):
                one.crash(plan)
        points += one.points

    check()
    figures.add(name, states=points, seconds=time.perf_counter() - began)


def test_a_run_that_crashes_ends_like_one_that_never_does(clock: Clock, figures: Any) -> None:
    sweep(clock, figures, "crashes of random agents, quick", scaled(12, 150), 8)


def _call(name: str, x: Any, then: str = "", delay: int = 0) -> tuple[str, Do]:
    return "call", Do(name, x, then=then, delay=delay)


# What random programs seldom are.
RARE = {
    "a task from before the first step makes calls all along": Program(
        (("start", "bg", Branch(2, Do("park", "early"), 6, Do("park", "late", then="kept"))),),
        tuple((("pause", 1), ("append", i)) for i in range(16)),
    ),
    "a task makes calls over several steps": Program(
        (),
        ((("start", "bg", Branch(3, Do("report", "b1"), 3, Do("park", "b2", then="kept"))),),
         *((("pause", 2), _call("retry", i, "append")) for i in range(4)), (("join", "bg"),)),
    ),
    "what a coroutine does between two outcomes of others": Program(
        (),
        ((("gather", (Branch(0, Do("retry", "a", then="append", late=3), 0),
                      Branch(0, Do("park", "b", then="append", delay=30, late=0), 0,
                             Do("park", "same", then="append")),
                      Branch(5, Do("reconcile", "c", then="append", delay=9, late=2), 0,
                             Do("park", "same", then="append")))),
          _call("park", "messages", "append")), ()),
    ),
    "a task group is cancelled": Program(
        (),
        ((("group", (Branch(0, Do("park", "may-cancel 1", delay=9), 0),
                     Branch(0, Do("retry", "may-cancel 2", delay=9), 0),
                     Branch(1, Do("fail", "may-cancel 3", delay=1), 0))),
          _call("park", "after", "append"), _call("hesitant", "more", "state")), (("pause", 1),)),
    ),
    "calls inside calls, equal ones too": Program(
        (_call("outer", "first", "state"),),
        ((_call("outer_retry", "x", "append"), _call("outer_retry", "x", "append")),
         (("gather", (Branch(0, Do("outer", "y", then="append"), 0),
                      Branch(1, Do("outer", "y", then="append"), 0))),), ()),
        every=2,
    ),
    "attempts that fail, and are made again with the calls inside": Program(
        (_call("outer_again", "x", "append"),),
        ((("gather", (Branch(0, Do("outer_again", "y", then="append"), 0),
                      Branch(1, Do("outer_again", "y", then="append"), 0))),),
         (_call("outer_again", "z", "state"),)),
        every=2,
    ),
    "a plain agent with attempts that fail": Program(
        (_call("sync_outer_again", "first", "state"),),
        ((_call("sync_outer_again", "x", "append"), _call("sync_outer_again", "x", "append")), ()),
        every=2, plain=True,
    ),
    "messages and state are edited from step to step": Program(
        (("append", "a"), ("append", "long")),
        ((("append", "b"), ("append", "c"), ("nest", "k", 1), ("set", "l", 5)),
         (("edit", 1, "new"), ("append", "d"), ("nest", "k", 2)), (("trim", 2, 2), ("append", "e")),
         (("pop", 0), ("insert", 1, "f"), ("forget", "l")), (("replace", 1, ["g", "h", "i"]),),
         (("append", "j"), ("edit", 0, "k"), ("set", "l", 5)), (("append", "l"),)),
    ),
    "a plain agent with calls inside calls": Program(
        (_call("sync_outer", "first", "state"), ("append", "long")),
        ((_call("sync_outer", "x", "append"), ("ask", "uuid", 0, "sync_park")),
         (("edit", 0, "new"), _call("reconcile", "messages", "wrap"), ("fail_once", 1)), ()),
        every=2, plain=True, segment_size=600,
    ),
}  # fmt: skip


# How many calls of the disk: a sample, and with the long sweeps all of them.
HERE_AND_THERE = pytest.param(12, id="here and there")
EVERYWHERE = pytest.param(1 << 30, id="everywhere", marks=pytest.mark.crash)


@pytest.mark.parametrize("count", [HERE_AND_THERE, EVERYWHERE])
@pytest.mark.parametrize("name", RARE)
def test_rare_programs_that_crash_at_calls_of_the_disk(
    clock: Clock, figures: Any, name: str, rng: random.Random, count: int
) -> None:
    began = time.perf_counter()
    one = trial(clock, RARE[name])
    for plan in crash_plans(one, rng, count):
        with noted(plan):
            one.crash(plan)
    seconds = time.perf_counter() - began
    figures.add("crashes of rare agents", states=one.points, seconds=seconds)


@pytest.mark.parametrize("count", [HERE_AND_THERE, EVERYWHERE])
@pytest.mark.parametrize("_", range(8))
def test_coroutines_go_on_in_the_order_of_their_outcomes(
    clock: Clock, rng: random.Random, _: int, count: int
) -> None:
    delays = rng.sample(range(0, 60, 4), 6)
    tools = rng.choices(["retry", "park", "reconcile"], k=6)
    racers = tuple(
        Branch(rng.randrange(4), Do(tool, f"racer {i}", delay=delay), 0)
        for i, (tool, delay) in enumerate(zip(tools, delays, strict=True))
    )
    one = trial(clock, Program((), ((("race", racers),), _steps_of_calls()), every=9))
    for plan in crash_plans(one, rng, count):
        world = one.world()
        end = lives(world, one.program, plan)
        with noted(plan):
            assert end.how == "finished", end.value
            made = {
                lsn: e.arguments[0][:1]
                for lsn, e in events(world.disk)
                if isinstance(e, CallIntended) and e.arguments is not None
            }
            order = [label for _, call, _ in outcomes(world.disk) for label in made[call]]
            found = end.value["result"]["state"]["order"]
            assert found == [label for label in order if label in found]


def _steps_of_calls() -> tuple[Any, ...]:
    return tuple(_call("park", i) for i in range(3))


@pytest.mark.crash
def test_many_runs_that_crash_at_every_call_of_the_disk(clock: Clock, figures: Any) -> None:
    sweep(clock, figures, "crashes of random agents", 6, 1 << 30)


# -- damage


def crashed(trial: Trial, plan: Plan) -> World | None:
    """A world in which the run crashed as planned, its log made durable; None if it did not."""
    world = trial.world()
    plan.begin(world)
    live(world, trial.program)
    if not world.dead:
        return None
    die_and_return(world, None)
    world.begin()
    world.store.claim(RUN).close()
    return world


def needed_from_before(world: World) -> set[int]:
    """The records that the code before the first step needs."""
    restored = history(world).restored
    return set(restored.prologue if restored else [])


def finishes(world: World, trial: Trial) -> None:
    end = lives(world, trial.program, Plan(()))
    assert outcome_of(world, end) == trial.result
    check_effects(world, trial.oracle)


def checkpointed(clock: Clock, check: Callable[..., None]) -> None:
    """Call check(trial, world, LSNs of its checkpoints, rng) for crashed runs that have some."""

    @settings(example_settings(max_examples=scaled(20, 180)))
    @given(programs(), st.integers(0, 1 << 30))
    def run(program: Program, number: int) -> None:
        rng = random.Random(number)
        one = trial(clock, replace(program, every=1))
        plan = Plan((("disk", one.disk_calls - rng.randrange(1, one.disk_calls), 0),))
        world = crashed(one, plan)
        if world is None:
            return
        lsns = [frame.lsn for _, frame in frames(world.disk) if frame.kind == SNAPSHOT]
        if lsns:
            with noted(plan):
                check(one, world, lsns, rng)

    run()


def test_the_checkpoint_before_stands_in_for_a_damaged_one(clock: Clock) -> None:
    def check(trial: Trial, world: World, lsns: list[int], rng: random.Random) -> None:
        used = newest_checkpoint(world)
        harm(world, next(p for p in frames(world.disk) if p[1].lsn == used), rng)
        earlier = [lsn for lsn in lsns if lsn < used]
        assert newest_checkpoint(world) == max(earlier, default=0)
        finishes(world, trial)

    checkpointed(clock, check)


def test_without_any_checkpoint_a_run_starts_over_and_repeats_no_call(clock: Clock) -> None:
    def check(trial: Trial, world: World, lsns: list[int], rng: random.Random) -> None:
        for place in frames(world.disk):
            if place[1].lsn in lsns:
                harm(world, place, rng)
        assert newest_checkpoint(world) == 0
        world.raised = Everything()  # one start, no more
        world.begin()
        end = live(world, trial.program)
        if end.how == "finished":
            report = end.value["report"]
            assert report.damage
            assert (report.from_step, report.checkpoint_lsn) == (0, 0)
        finishes(world, trial)

    checkpointed(clock, check)


def test_damage_behind_the_checkpoint_stops_the_run_before_anything_is_executed(
    clock: Clock,
) -> None:
    def check(trial: Trial, world: World, lsns: list[int], rng: random.Random) -> None:
        used = newest_checkpoint(world)
        behind = [place for place in frames(world.disk) if place[1].lsn > max(used, *lsns)]
        if not behind:
            return
        harm(world, rng.choice(behind), rng)
        world.begin()
        before = world.executed
        end = live(world, trial.program)
        assert end.how == "damaged", end
        assert world.executed == before

    checkpointed(clock, check)


def test_damage_before_the_checkpoint_does_no_harm(clock: Clock) -> None:
    # A checkpoint refers to messages and outcomes before it, and needs the code before the first
    # step: damage to those leads further back. Nothing else is ever looked at, but by an undo,
    # which has to know all that was done, and refuses.
    unneeded = StepStarted | RunResumed | CallIntended | CallRetried | ValueRecorded

    def check(trial: Trial, world: World, lsns: list[int], rng: random.Random) -> None:
        used = newest_checkpoint(world)
        found = {lsn for lsn, event in events(world.disk) if isinstance(event, unneeded)}
        found -= needed_from_before(world)
        before = [p for p in frames(world.disk) if p[1].lsn < used and p[1].lsn in found]
        if before and "'undo'" not in repr(trial.program):
            harm(world, rng.choice(before), rng)
            assert newest_checkpoint(world) == used
            finishes(world, trial)

    checkpointed(clock, check)


# -- divergence that was accepted


def check_accepted(one: Trial, edited: Program, world: World, rng: random.Random) -> str:
    """Accept that edited code diverges, and let it die again and again: it is as if it had always
    been this code, but for what the old one has done in the outside world."""
    world.begin()
    end = live(world, edited)
    if end.how != "diverged":
        return end.how
    again = trial(one.oracle.clock, edited)
    before, resumptions = len(world.effects), 0
    accept(world.store, RUN, who="somebody")
    while True:
        world.begin()
        if resumptions < 3:
            world.disk.crash_at(rng.randrange(again.disk_calls), 0)
        end = live(world, edited)
        world.disk._crash_at = None  # people do not die here
        resumptions += 1
        if end.how == "parked":
            operate(world, end.value)
        elif end.how == "diverged" and end.value.in_doubt:  # asked about before it is dropped
            call = end.value.in_doubt
            key = next((one.key for one in world.effects if one.lsn == call), "")
            how = Resolution.outcome(world.results[key]) if key else Resolution.retry()
            settle(world, call, how)
        elif end.how != "crashed":
            break
        if world.dead:
            die_and_return(world, None)
        assert resumptions < 30, end
    if end.how == "diverged":  # it was accepted once, and lost with the process before it was used
        return "not accepted"
    assert outcome_of(world, end) == again.result
    keys = Counter(effect.key for effect in world.effects if effect.policy != "retry")
    assert max(keys.values(), default=0) <= 1, "twice under one key"
    wanted = Counter(effect.what for effect in again.oracle.effects if effect.policy != "retry")
    assert wanted <= Counter(effect.what for effect in world.effects)
    made = {effect.what for effect in world.effects[before:] if effect.policy != "retry"}
    assert made <= set(wanted), "the new code does what it does not say"
    return "accepted"


def undoes_nothing(program: Program) -> bool:
    """An undo undoes what the old code has done, too, or is served what it undid then."""
    return plainly(program) and "undo" not in repr(program)


def test_accepted_code_goes_on_as_if_it_had_always_been_this_code(
    clock: Clock, figures: Any
) -> None:
    counts: Counter[str] = Counter()

    @settings(example_settings(max_examples=scaled(25, 75)))
    @given(programs().filter(undoes_nothing), st.sampled_from(MUTATIONS), st.integers(0, 1 << 30))
    def check(program: Program, what: str, number: int) -> None:
        rng = random.Random(number)
        # Without a checkpoint: one that the old code has taken stands in for what it did.
        program = replace(distinct(program), every=99)
        edited = mutated(program, what, rng)
        if edited is None:
            return
        one = trial(clock, program)
        point = max(rng.randrange(one.disk_calls) for _ in range(2))
        plan = Plan((("disk", point, 0),))
        world = crashed(one, plan)
        if world is not None:
            with noted(plan):
                counts[check_accepted(one, edited, world, rng)] += 1

    check()
    assert counts["accepted"] or counts.total() < 30  # few of few may be none
    figures.add("edits of agents' code, accepted", **counts)
