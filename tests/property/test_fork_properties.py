"""What a fork promises, for any program, at every step, wherever the first run has crashed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventlog import LogReader
from eventlog.testing import SimulatedDisk
from recovery import RecoveryError, fork
from recovery._compare import told_both
from recovery._comparing import Comparing, as_types
from recovery._events import CallIntended, CallResolved, StepStarted
from recovery._keys import UNDO_CALL, outer_call
from tests.property.agent_programs import distinct, programs
from tests.property.agents import (
    RUN,
    UNDOABLE,
    Clock,
    Do,
    Everything,
    Plan,
    Program,
    Store,
    Trial,
    World,
    check_log,
    die_and_return,
    events,
    live,
    lives,
    noted,
    outcome_of,
    outcomes,
    records,
    trial,
    undoable,
    virtual_time,
)
from tests.scale import example_settings, scaled

PARENT = "parent"


@pytest.fixture
def clock() -> Iterator[Clock]:
    with virtual_time() as clock:
        yield clock


def moved(disk: SimulatedDisk, run_id: str = PARENT) -> None:
    """The run has another name from now on, with its inbox, so that its fork can have its own."""
    for entries in named(disk):
        for path in of_run(entries, RUN):
            entries[f"runs/{run_id}{path.removeprefix(f'runs/{RUN}')}"] = entries.pop(path)


def removed(disk: SimulatedDisk, run_id: str = PARENT) -> None:
    for entries in named(disk):
        for path in of_run(entries, run_id):
            del entries[path]


def named(disk: SimulatedDisk) -> tuple[dict[str, Any], ...]:
    """What the disk keeps for each directory."""
    return disk.directories, disk.durable_names, disk.changes


def of_run(paths: Collection[str], run_id: str) -> list[str]:
    return [path for path in paths if f"{path}/".startswith(f"runs/{run_id}/")]


def forked(world: World, **options: Any) -> World:
    """The world of a fork of the world's run, which is gone from the disk."""
    disk = world.disk.after_process_death()
    moved(disk)
    before = contents(disk)
    fork(Store(disk, world.segment_size), PARENT, RUN, **options)
    assert contents(disk) == before, "forking has written to the run that it forks"
    removed(disk)
    other = World(world.clock, disk, world.segment_size)
    # Of what was under way, the outside world knows by the same keys as before.
    other.results, other.attempts = dict(world.results), dict(world.attempts)
    other.raised, other.nonces = Everything(), world.nonces
    for _, event in events(disk):
        if isinstance(event, CallResolved):  # what people said came along
            other.said.setdefault(event.call, []).append(event.how)
    return other


def contents(disk: SimulatedDisk) -> dict[str, bytes]:
    entries = disk.directories[f"runs/{PARENT}"]
    return {name: bytes(file.content) for name, file in entries.items()}


def ended_steps(disk: SimulatedDisk) -> list[int]:
    return sorted({event.step - 1 for _, event in events(disk) if isinstance(event, StepStarted)})


def known(disk: SimulatedDisk, end: int | None) -> set[int]:
    """The calls up to this LSN, and those inside them: what is not to be executed in a fork if it
    has an outcome."""
    calls: set[int] = set()
    for lsn, event in events(disk):
        if isinstance(event, CallIntended) and (
            end is None or lsn <= end or outer_call(event.scope) in calls
        ):
            calls.add(lsn)
    return calls


def last_of_step(disk: SimulatedDisk, step: int | None) -> int | None:
    begun = {lsn: event.step for lsn, event in events(disk) if isinstance(event, StepStarted)}
    later = [lsn for lsn, number in begun.items() if step is not None and number > step]
    return min(later) - 1 if later else None


def own_undos(program: Program, booked: int, undone: int) -> Program:
    """What a fork does that begins with so many bookings and undos behind it.

    The bookings are those of the run that it comes from, which may undo them: they are not undone
    twice. So the fork ends as the program does if its own undos leave them alone.
    """
    left = undone

    def block(ops: tuple[Any, ...]) -> tuple[Any, ...]:
        nonlocal left
        made = []
        for op in ops:
            is_own = op[0] == "undo" and left == 0
            left -= op[0] == "undo" and left > 0
            made.append(("undo", booked) if is_own else op)
        return tuple(made)

    prologue = block(program.prologue)  # first, for they are counted
    return replace(program, prologue=prologue, steps=tuple(map(block, program.steps)))


def as_forked(program: Program, step: int | None) -> Program:
    """The program as a fork of its run at the end of this step does it."""
    blocks = (program.prologue, *program.steps)
    ops = [op for block in blocks[: None if step is None else step + 1] for op in block]
    booked = sum(op[0] == "call" and op[1].tool in UNDOABLE for op in ops)
    return own_undos(program, booked, sum(op[0] == "undo" for op in ops))


def as_recorded(program: Program, disk: SimulatedDisk) -> Program | None:
    """The same of a fork of all that is in the run's log; None while an undo is under way."""
    calls = {lsn: event for lsn, event in events(disk) if isinstance(event, CallIntended)}
    done = {call for _, call, _ in outcomes(disk)}
    undos = {lsn for lsn, event in calls.items() if event.tool == UNDO_CALL}
    booked = sum(undoable(event) for lsn, event in calls.items() if lsn in done)
    return own_undos(program, booked, len(undos)) if undos <= done else None


@dataclass
class Account:
    """What a run and its forks have done outside, by idempotency key."""

    one: Trial  # of the program as the run did it
    whats: dict[str, str]
    total: Counter[str]  # of a whole run
    before: set[str] = field(default_factory=set)  # what the fork began with, at this step
    step: int = 0
    program: Program = field(init=False)  # as the last fork does it

    def __post_init__(self) -> None:
        self.program = self.one.program

    @classmethod
    def of(cls, one: Trial, world: World) -> Account:
        whats = {effect.key: effect.what for effect in world.effects}
        return cls(one, whats, Counter(whats.values()))

    def forked(self, step: int | None) -> tuple[Any, Counter[str]]:
        """How a fork at this step ends, and what is done outside up to there, as the log has it."""
        later = step is None or step >= self.step
        self.program = as_forked(self.program if later else self.one.program, step)
        if self.program == self.one.program:
            return self.one.result, self.total
        expected = trial(self.one.oracle.clock, self.program)
        total = Counter(self.total)
        total.subtract(effects_of(self.one.oracle))
        total.update(effects_of(expected.oracle))
        return expected.result, total

    def keys(self, world: World, calls: set[int]) -> set[str]:
        """The keys of these calls of the world's run that did something."""
        made = {effect.lsn: effect.key for effect in world.effects}
        found = {lsn: event.key for lsn, event in events(world.disk) if lsn in calls and event.key}
        return {key for key in ({**made, **found}).values() if key in self.whats} - {
            key for lsn, key in made.items() if lsn not in calls
        }


def effects_of(world: World) -> Counter[str]:
    return Counter({effect.key: effect.what for effect in world.effects}.values())


def check_fork(world: World, program: Program, step: int | None, account: Account) -> World:
    """The fork ends like its parent, and executes what comes after the step, no more and no less.

    But it undoes only what it has done itself. That it is no less is not checked of a fork's fork
    at an earlier step.
    """
    old = known(world.disk, last_of_step(world.disk, step))
    done = {call for _, call, _ in outcomes(world.disk)}
    recorded = account.keys(world, old & done)
    open_keys = account.keys(world, old - done)
    result, total = account.forked(step)
    other = forked(world, at_step=step)
    end = lives(other, program, Plan(()))
    assert outcome_of(other, end) == result
    check_log(other.disk, other.said)
    check_compared(world, other)
    new = {effect.key: effect.what for effect in other.effects}
    assert recorded.isdisjoint(new), "executed what is recorded"
    assert new.keys() & account.whats.keys() <= open_keys, "a key is used again"
    account.whats |= new
    recorded |= account.before
    if "may-cancel" not in repr(program) and (step is None or step >= account.step):
        expected = total - Counter(account.whats[key] for key in recorded)
        assert Counter(new.values()) == expected
    account.before, account.step = recorded, 1 << 30 if step is None else step
    return other


def check_compared(world: World, other: World) -> None:
    """A run is like itself, and what is different between two is so whichever comes first."""
    readers = [one.store.read(RUN) for one in (world, other)]
    a, b = ((reader, RUN) for reader in readers if reader is not None)

    def found(one: tuple[LogReader, str], two: tuple[LogReader, str]) -> set[tuple[Any, ...]]:
        comparing = Comparing(*told_both(one, two), as_types, 1 << 30)
        return {
            (d.step, d.what, d.path, d.a and (d.a.lsn, repr(d.a.value)),
             d.b and (d.b.lsn, repr(d.b.value)))
            for d in comparing.found()
        }  # fmt: skip

    assert not found(a, a) and not found(b, b)
    assert found(a, b) == {(*about, there, here) for *about, here, there in found(b, a)}


def at_every_step(clock: Clock, program: Program, rng: random.Random, crashes: int) -> None:
    one = trial(clock, program)
    plan = Plan(tuple(("disk", rng.randrange(1 + one.disk_calls), 0) for _ in range(crashes)))
    world = one.world()
    with noted(plan):
        assert outcome_of(world, lives(world, program, plan)) == one.result
        for step in [*ended_steps(world.disk), None]:
            again = rng.choice([*ended_steps(world.disk), None])
            account = Account.of(one, world)
            with noted(f"fork at step {step}, and that at step {again}"):
                other = check_fork(world, program, step, account)
                try:
                    check_fork(other, program, again, account)
                except RecoveryError as exc:
                    assert "is not in its log" in str(exc), exc  # the fork began with a later one


def test_a_fork_at_any_step_ends_like_its_parent_and_repeats_nothing(clock: Clock) -> None:
    @settings(example_settings(max_examples=scaled(6, 45)))
    @given(programs(), st.integers(0, 1 << 30), st.integers(0, 2))
    def check(program: Program, number: int, crashes: int) -> None:
        at_every_step(clock, program, random.Random(number), crashes)

    check()


@pytest.mark.parametrize("step, own", [(0, [2, 1]), (1, [2]), (2, [])])
def test_a_fork_leaves_alone_what_it_began_with(clock: Clock, step: int, own: list[int]) -> None:
    """Its undos find less to undo than those of the run that it comes from, and say so."""
    book = [("call", Do("booking", f"{number}")) for number in range(3)]
    program = Program((book[0],), ((book[1],), (book[2],), (("undo",),)))
    at_every_step(clock, program, random.Random(1), 0)
    one = trial(clock, program)
    whole = [effect.what for effect in one.oracle.effects[3:]]
    assert whole == [f"undo-booking {number}" for number in (2, 1, 0)]
    child = forked(one.oracle, at_step=step)
    end = lives(child, program, Plan(()))
    undone = [effect.what for effect in child.effects if effect.what.startswith("undo-")]
    assert undone == [f"undo-booking {number}" for number in own]
    (_, result, _), (_, expected, _) = outcome_of(child, end), one.result
    assert result["state"]["undone"] == expected["state"]["undone"][: len(own)]


def test_a_run_that_was_cut_short_goes_on_in_its_fork(clock: Clock) -> None:
    """Crashed, parked or waiting for nobody: what is recorded is there, what was in doubt too."""

    @settings(example_settings(max_examples=scaled(6, 45)))
    @given(programs(), st.integers(0, 1 << 30), st.booleans())
    def check(program: Program, number: int, resumed: bool) -> None:
        rng = random.Random(number)
        one = trial(clock, program)
        world = one.world()
        plan = Plan((("disk", rng.randrange(1 + one.disk_calls), rng.choice([0, 40])),))
        with noted(plan):
            plan.begin(world)
            live(world, program)
            die_and_return(world, None)
            if resumed:  # as far as it goes without anybody's help
                plan.begin(world)
                live(world, program)
            if not records(world.disk):
                return
            for step in [*ended_steps(world.disk), None]:
                with noted(f"fork at step {step}"):
                    as_fork = (as_recorded(program, world.disk) if step is None
                               else as_forked(program, step))  # fmt: skip
                    if as_fork is None:
                        with pytest.raises(RecoveryError, match="has an undo under way"):
                            forked(world, at_step=step)
                        continue
                    other = forked(world, at_step=step)
                    end = lives(other, program, Plan(()))
                    assert outcome_of(other, end) == trial(clock, as_fork).result
                    check_log(other.disk, other.said)
                    check_once(world, other, step)

    check()


def check_once(world: World, other: World, step: int | None) -> None:
    """What the parent's record says is over was not executed in the fork."""
    old = known(world.disk, last_of_step(world.disk, step))
    done = {call for _, call, _ in outcomes(world.disk)} & old
    keys = {effect.key for effect in world.effects if effect.lsn in done}
    assert keys.isdisjoint(effect.key for effect in other.effects)


def test_changed_code_behind_the_step_runs_and_executes_its_own(clock: Clock) -> None:
    @settings(example_settings(max_examples=scaled(6, 45)))
    @given(programs().map(distinct), programs().map(distinct), st.integers(0, 1 << 30))
    def check(program: Program, other: Program, number: int) -> None:
        at = random.Random(number).randrange(len(program.steps))
        changed = replace(program, steps=(*program.steps[:at], *other.steps))
        if program.plain != other.plain or crosses(program, at):
            return
        one, expected = trial(clock, program), trial(clock, as_forked(changed, at))
        world = one.world()
        lives(world, program, Plan(()))
        old = known(world.disk, last_of_step(world.disk, at))
        if at not in ended_steps(world.disk):
            return  # it has failed before
        child = forked(world, at_step=at)
        end = lives(child, changed, Plan(()))
        assert outcome_of(child, end) == expected.result
        keys = {effect.key for effect in world.effects}
        assert keys.isdisjoint(effect.key for effect in child.effects)
        before = Counter(effect.what for effect in world.effects if effect.lsn in old)
        all_of_it = Counter(effect.what for effect in expected.oracle.effects)
        assert Counter(effect.what for effect in child.effects) == all_of_it - before

    check()


def crosses(program: Program, at: int) -> bool:
    """Whether a task that began up to step ``at`` is awaited in a later one, or may be cut off."""
    text = repr(program)
    return "'start'" in text or "may-cancel" in text or "fatal" in text


def test_state_and_messages_can_be_changed_at_any_step(clock: Clock) -> None:
    """As if the code of the next step had begun by setting them."""

    @settings(example_settings(max_examples=scaled(6, 45)))
    @given(programs(), st.integers(0, 1 << 30), st.booleans())
    def check(program: Program, number: int, messages: bool) -> None:
        rng = random.Random(number)
        at = rng.randrange(len(program.steps))
        if crosses(program, at):
            return
        one = trial(clock, program)
        world = one.world()
        lives(world, program, Plan(()))
        if at not in ended_steps(world.disk):
            return
        state = {"k": [rng.randrange(9)], "changed": True}
        given = {"messages": ["changed", {"n": 1}, "long " * 200]} if messages else {}
        steps = list(program.steps)
        steps[at] = (("become", state, given.get("messages")), *steps[at])
        expected = trial(clock, as_forked(replace(program, steps=tuple(steps)), at))
        child = forked(world, at_step=at, state=state, **given)
        end = lives(child, program, Plan(()))
        assert outcome_of(child, end) == expected.result

    check()
