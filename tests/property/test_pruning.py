"""What is removed inside of a run, by random settings, is needed by nobody: results, effects and
what is served are those of the run that keeps everything."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from eventlog import EventLog
from eventlog._frame import SNAPSHOT
from eventlog.testing import SimulatedDisk
from recovery._history import load
from tests.model.harm import frames
from tests.property.agent_programs import programs
from tests.property.agents import (
    RUN,
    Clock,
    Plan,
    Program,
    Trial,
    World,
    check_effects,
    die_and_return,
    harm,
    live,
    noted,
    oldest,
    operate,
    outcome_of,
    trial,
    virtual_time,
)
from tests.property.pruned import Setting, check_kept, pruned_by, pruning
from tests.property.test_agent_properties import crash_plans
from tests.scale import example_settings, scaled


@pytest.fixture
def clock() -> Iterator[Clock]:
    with virtual_time() as clock:
        yield clock


def without_undo(program: Program) -> Program:
    """Undo needs all that a run has done."""

    def kept(ops: Any) -> Any:
        return tuple(op for op in ops if op[0] != "undo")

    return replace(program, every=1, prologue=kept(program.prologue),
                   steps=tuple(map(kept, program.steps)))  # fmt: skip


@dataclass
class Pruned(Trial):
    """A program with its crash-free run, of which lives are pruned by ``setting``."""

    setting: Setting = field(kw_only=True)

    def world(self) -> World:
        return World(self.oracle.clock, SimulatedDisk(seed=1), self.setting.segment_size,
                     dict(self.setting.retention))  # fmt: skip

    def crash(self, plan: Plan) -> World:
        with pruned_by(self.setting):
            world = super().crash(plan)
        check_kept(world, self.setting.kept)
        return world


def pruned(clock: Clock, program: Program, setting: Setting) -> Pruned:
    one = trial(clock, without_undo(program))
    found = Pruned(one.program, one.oracle, one.result, 0, setting=setting)
    world = found.world()
    world.begin()
    with pruned_by(setting):
        live(world, found.program)
    found.disk_calls = len(world.disk.calls)
    return found


def sweep(clock: Clock, figures: Any, name: str, examples: int, count: int) -> None:
    cut = lives = 0
    began = time.perf_counter()

    @settings(example_settings(max_examples=examples, phases=[Phase.generate]))
    @given(programs(steps_max=10), pruning(), st.integers(0, 1 << 30))
    def check(program: Program, setting: Setting, number: int) -> None:
        nonlocal cut, lives
        one = pruned(clock, program, setting)
        for plan in (Plan(()), *crash_plans(one, random.Random(number), count)):
            with noted((setting, plan)):
                cut += oldest(one.crash(plan).disk) > 1
                lives += 1

    check()
    assert cut or examples < 10  # few of few may be none
    figures.add(name, states=lives, cut=cut, seconds=time.perf_counter() - began)


def test_a_pruned_run_that_crashes_ends_like_one_that_keeps_everything(
    clock: Clock, figures: Any
) -> None:
    sweep(clock, figures, "crashes of pruned agents, quick", scaled(6, 60), 4)


@pytest.mark.crash
def test_many_pruned_runs_that_crash_at_every_call_of_the_disk(clock: Clock, figures: Any) -> None:
    sweep(clock, figures, "crashes of pruned agents", 6, 1 << 30)


def crashed(one: Pruned, plan: Plan) -> World | None:
    """A world in which the run has died and can be resumed."""
    world = one.world()
    plan.begin(world)
    with pruned_by(one.setting):
        end = live(world, one.program)
    if end.how == "parked":
        operate(world, end.value)
        return world
    if not world.dead:
        return None
    die_and_return(world, None)
    return world


def test_an_earlier_checkpoint_stands_in_for_a_damaged_one(clock: Clock) -> None:
    """Of two that are kept any record of the newer may be lost, those that it shares with others
    included: there is one that needs none of it."""
    cut = 0

    @settings(example_settings(max_examples=scaled(12, 150)))
    @given(programs(steps_max=14), pruning(), st.integers(0, 1 << 30))
    def check(program: Program, setting: Setting, number: int) -> None:
        nonlocal cut
        rng = random.Random(number)
        # Much is cut: a generation begins with each checkpoint or two.
        kept = ("retention", "prune_old"), ("keep", rng.choice([1, 2, 3]))
        setting = replace(setting, retention=kept, segment_size=100, gain=rng.choice([0, 0, 1]))
        one = pruned(clock, program, setting)
        effect = max(0, one.oracle.executed - rng.randrange(1, 6))
        plan = Plan((("effect", effect, 0),))
        world = crashed(one, plan)
        if world is None:
            return
        with noted((setting, plan)), EventLog.read(f"runs/{RUN}", files=world.disk) as reader:
            restored = load(reader, RUN).restored
        if restored is None:
            return
        hit = [(name, frame) for name, frame in frames(world.disk) if frame.kind == SNAPSHOT
               and restored.generation.first <= frame.lsn <= restored.lsn]  # fmt: skip
        place = rng.choice([hit[-1], rng.choice(hit)])
        was_cut = oldest(world.disk) > 1
        with noted((setting, plan, place)):
            harm(world, place, rng)
            world.harmed.add(place[1].lsn)
            world.begin()
            with pruned_by(setting):
                end = live(world, one.program)
                for _ in range(40):
                    if end.how != "parked":
                        break
                    operate(world, end.value)
                    end = live(world, one.program)
            assert outcome_of(world, end) == one.result
            check_effects(world, one.oracle)
            cut += was_cut

    check()
    assert cut or scaled(12, 150) < 20
