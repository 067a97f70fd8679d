"""What runs that start runs promise, for any tree of them and a crash at any call of the disk."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.property.agent_programs import example_settings, scaled
from tests.property.agents import Clock, noted, virtual_time
from tests.property.families import Node, Plan, Trial, trees, trial


@pytest.fixture
def clock() -> Iterator[Clock]:
    with virtual_time() as clock:
        yield clock


def plans(one: Trial, rng: random.Random, count: int) -> Iterator[Plan]:
    """``count`` first crash points, or all of them, each with more crashes behind."""
    points = list(range(one.disk_calls))
    effects = [(n, behind) for n in range(len(one.oracle.effects)) for behind in (0, 1)]
    first = [("disk", point, rng.choice([0, 1, 40, 100, 1 << 20]))
             for point in rng.sample(points, min(count, len(points)))]  # fmt: skip
    first += [("effect", *effect)
              for effect in rng.sample(effects, min(max(2, count // 2), len(effects)))]  # fmt: skip
    for at in first:
        more = [("disk", rng.randrange(1 + one.disk_calls), rng.choice([0, 30, 1 << 20]))
                for _ in range(rng.choice([0, 1, 1, 2]))]  # fmt: skip
        power = rng.choice([(), tuple(rng.choice([None, rng.getrandbits(30)]) for _ in range(3))])
        yield Plan((at, *more), power)


def sweep(clock: Clock, figures: Any, name: str, examples: int, count: int) -> None:
    points, runs, began = 0, 0, time.perf_counter()

    @settings(example_settings(max_examples=examples, phases=[Phase.generate]))
    @given(trees(), st.sampled_from([600, 1 << 20]), st.sampled_from([1, 2, 64]),
           st.integers(0, 1 << 30))  # fmt: skip
    def check(root: Node, segment_size: int, limit: int, number: int) -> None:
        nonlocal points, runs
        # Whether a child that waits for its place begins at all is a matter of time.
        one = trial(clock, root, segment_size, 64 if "limited" in repr(root) else limit)
        for plan in plans(one, random.Random(number), count):
            with noted(plan):
                one.crash(plan)
        points += one.points
        runs += len(list(root.nodes()))

    check()
    figures.add(name, states=points, runs=runs, seconds=time.perf_counter() - began)


def test_a_family_that_crashes_ends_like_one_that_never_does(clock: Clock, figures: Any) -> None:
    sweep(clock, figures, "crashes of runs with children, quick", scaled(4, 30), 6)


def test_a_power_loss_at_any_call_of_the_disk_leaves_no_child_lost(clock: Clock) -> None:
    child = Node("child", ((("call", "plain", "1"),),))
    one = trial(clock, Node("parent", ((("child", child, True), ("call", "park", "2")),)))
    for point in range(one.disk_calls):
        for seed in range(2):
            plan = Plan((("disk", point, 0),), (seed,))
            with noted(plan):
                one.crash(plan)


def test_a_child_that_was_given_up_is_given_up_again_wherever_the_process_died(
    clock: Clock,
) -> None:
    child = Node("child", ((("sleep",),),))
    one = trial(clock, Node("parent", ((("limited", child), ("call", "park", "1")),)))
    for point in range(one.disk_calls // 3, one.disk_calls):  # before, nothing was given up
        plan = Plan((("disk", point, 0),), (None,))
        with noted(plan):
            one.crash(plan)


@pytest.mark.crash
def test_many_families_that_crash_at_every_call_of_the_disk(clock: Clock, figures: Any) -> None:
    sweep(clock, figures, "crashes of runs with children", 12, 1 << 30)
