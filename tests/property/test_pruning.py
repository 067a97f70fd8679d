"""What is removed inside of a run, by random settings, is needed by nobody: results, effects and
what is served are those of the run that keeps everything."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recovery._pruning
from eventlog import EventLog
from eventlog._frame import SNAPSHOT
from eventlog.testing import SimulatedDisk
from recovery._history import load
from recovery._pruning import Retention
from recovery._snapshots import checkpoints_in, prologue_in, restore
from tests.property.agent_programs import example_settings, programs, scaled
from tests.property.agents import (
    RUN,
    Clock,
    Plan,
    Program,
    Trial,
    World,
    check_effects,
    check_finished,
    die_and_return,
    frames,
    harm,
    live,
    lives,
    noted,
    oldest,
    operate,
    outcome_of,
    trial,
    virtual_time,
)
from tests.property.test_agent_properties import crash_plans


@pytest.fixture
def clock() -> Iterator[Clock]:
    with virtual_time() as clock:
        yield clock


@dataclass(frozen=True)
class Setting:
    """How a run is pruned. ``gain`` 0: a generation begins at each checkpoint that fills a segment,
    whether that pays or not. ``late``: how many checkpoints later the log is cut."""

    retention: tuple[tuple[str, Any], ...]
    segment_size: int
    gain: int
    late: int

    @property
    def kept(self) -> Retention:
        given = dict(self.retention)
        return Retention.of(given["retention"], given.get("keep"))


@st.composite
def pruning(draw: Any) -> Setting:
    kept: dict[str, Any] = draw(
        st.sampled_from([{"retention": "latest_only"}, {"retention": "prune_old"}])
        | st.integers(1, 4).map(lambda keep: {"retention": "prune_old", "keep": keep})
    )
    size = draw(st.sampled_from([100, 100, 400, 1500]))
    return Setting(tuple(kept.items()), size, draw(st.sampled_from([0, 0, 1, 2])),
                   draw(st.sampled_from([0, 0, 1, 3])))  # fmt: skip


class Work:
    """A cut that is to be made later, in its turn."""

    def __init__(self, cut: Callable[[], None], late: int) -> None:
        self.cut, self.late = cut, late
        self.over = False

    def done(self) -> bool:
        if not self.over and self.late == 0:
            self.over = True
            self.cut()
        self.late -= 1
        return self.over

    def cancel(self) -> bool:
        return not self.over

    def exception(self) -> None:
        assert self.over


@contextmanager
def pruned_by(setting: Setting) -> Iterator[None]:
    """Threads take their turns, at points that repeat: when a checkpoint is taken."""

    class Threads:
        def submit(self, cut: Callable[[], None]) -> Work:
            work = Work(cut, setting.late)
            work.done()
            return work

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recovery._pruning, "flushers", Threads())
        patch.setattr(recovery._pruning, "GAIN", setting.gain)
        yield


def without_undo(program: Program) -> Program:
    """Undo needs all that a run has done."""

    def kept(ops: Any) -> Any:
        return tuple(op for op in ops if op[0] != "undo")

    return replace(program, every=1, prologue=kept(program.prologue),
                   steps=tuple(map(kept, program.steps)))  # fmt: skip


def world_of(one: Trial, setting: Setting) -> World:
    return World(one.oracle.clock, SimulatedDisk(seed=1), setting.segment_size,
                 dict(setting.retention))  # fmt: skip


def check_kept(world: World, kept: Retention) -> int:
    """The newest checkpoints restore what they had; how many are there."""
    sound = 0
    with EventLog.read(f"runs/{RUN}", files=world.disk) as reader:
        firsts = set()
        for snapshot in checkpoints_in(reader):
            restored = restore(reader, snapshot)
            found = prologue_in(reader, restored.prologue, restored.generation)
            assert len(found) == len(restored.prologue)
            firsts.add(restored.generation.first)
            sound += 1
            if sound >= kept.checkpoints and len(firsts) >= kept.generations:
                return sound
        assert reader.oldest_lsn == 1
    return sound


def crash(one: Trial, setting: Setting, plan: Plan) -> World:
    world = world_of(one, setting)
    with pruned_by(setting):
        end = lives(world, one.program, plan)
        assert outcome_of(world, end) == one.result
        check_effects(world, one.oracle)
        check_kept(world, setting.kept)
        check_finished(world, one.program, end)
    return world


def test_a_pruned_run_that_crashes_ends_like_one_that_keeps_everything(clock: Clock) -> None:
    cut = 0

    @settings(example_settings(max_examples=scaled(30)))
    @given(programs(steps_max=10), pruning(), st.integers(0, 1 << 30))
    def check(program: Program, setting: Setting, number: int) -> None:
        nonlocal cut
        one = trial(clock, without_undo(program))
        for plan in (Plan(()), *crash_plans(one, random.Random(number), 6)):
            with noted((setting, plan)):
                cut += oldest(crash(one, setting, plan).disk) > 1

    check()
    assert cut


def crashed(one: Trial, setting: Setting, plan: Plan) -> World | None:
    """A world in which the run has died and can be resumed."""
    world = world_of(one, setting)
    plan.begin(world)
    with pruned_by(setting):
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

    @settings(example_settings(max_examples=scaled(50)))
    @given(programs(steps_max=14), pruning(), st.integers(0, 1 << 30))
    def check(program: Program, setting: Setting, number: int) -> None:
        nonlocal cut
        rng = random.Random(number)
        # Much is cut: a generation begins with each checkpoint or two.
        kept = ("retention", "prune_old"), ("keep", rng.choice([1, 2, 3]))
        setting = replace(setting, retention=kept, segment_size=100, gain=rng.choice([0, 0, 1]))
        one = trial(clock, without_undo(program))
        effect = max(0, one.oracle.executed - rng.randrange(1, 6))
        plan = Plan((("effect", effect, 0),))
        world = crashed(one, setting, plan)
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
    assert cut
