"""The agent runtime as a state machine: a program grows while its process lives, dies and returns.

Two kinds of rules. Some write the next line of an agent program: its end is open, and where a life
comes to it the process ends, as it does at any other point. The others let the world happen: lives
that end at a call of the disk or around an effect, power losses, full and failing disks, a second
process, damaged checkpoints, people who settle what is in doubt, edits of the code.

The oracle is the run that never crashed: the same program, lived once, on a disk of its own. What
people have decided instead (a result by hand, a failure) is read from the log and given to the
oracle as well. Wherever a life comes to the end of the program, however many died before: state,
messages and effects are the oracle's. After each life: the log is one that can be, each report says
what the log held, outcomes were handed on in their order; and at each tool's first line `licensed`
asks the log whether it may be executed now.

A feature of the runtime (a timer, a signal, an approval, undo, a child run, retries) comes in at
one place each: what the agent's code does is a method of `agents.Interpreter` and a rule below that
writes it; what its tools may do is a line of `agents.licensed`; what people do is a rule beside
`settle`.
A new way for the world to misbehave (a fork) is one more rule that calls `life`.
Some runs are pruned all along (see `pruned.Setting`); what goes is remembered for the checks.

Not in the programs, because the guarantees name them as limits: task groups that cancel calls (no
record says so), plain tools called directly beside other tasks, coroutines that sleep for longer
than the waits of replay before a recorded call, tasks from before the first step, and coroutines
that wait for something without a record between a result and what the others see of it (easily
done with as_completed). Such a run may diverge without an edit: loudly, with nothing executed.
"""

from __future__ import annotations

import errno
import logging
import random
import re
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from eventlog import FencedError, LogError, LogLockedError, Snapshot
from eventlog._frame import SNAPSHOT
from eventlog.encryption import Encryption
from eventlog.testing import Crash, SimulatedDisk
from recovery import (
    Budget,
    BudgetError,
    CheckpointStore,
    RecoverableAgent,
    RecoveryError,
    RecoveryReport,
    Resolution,
    RunFailedError,
    ToolError,
    resolve,
)
from recovery._events import CallIntended, CallResolved, CallRetried, RunResumed
from recovery._failure import failure
from recovery._keys import UNDO_CALL, UNDO_PREFIX, outer_call
from recovery._parts import is_portion
from tests.model.harm import frames
from tests.property.agent_programs import (
    MUTATIONS,
    branches,
    dos,
    message_ops,
    mutated,
    plainly,
    state_ops,
)
from tests.property.agents import (
    BY_HAND,
    CAREFUL,
    LONG,
    PARKS,
    PLAIN,
    RUN,
    SYNC,
    TASK,
    Branch,
    Clock,
    Do,
    End,
    Everything,
    Program,
    Store,
    World,
    check_checkpoints,
    check_effects,
    check_ended,
    check_log,
    check_results,
    check_told,
    checkpoints_of,
    die_and_return,
    events,
    harm,
    history,
    in_doubt,
    live,
    newest_checkpoint,
    oldest,
    outcome_of,
    outcomes,
    records,
    settle,
    shown,
    timeless,
    verdicts,
    virtual_time,
)
from tests.property.encrypted import KEY, encrypted
from tests.property.pruned import Setting, check_kept, pruned_by, pruning

SETTLED_BY_HAND = {"park", "undecorated", "reconcile", "hesitant", "sync_park", "fail"}

powers = st.sampled_from([None, None, 1, 2, 3]) | st.integers(0, 1 << 30)
tears = st.sampled_from([0, 0, 1, 30, 100, 1 << 20])
near = st.integers(0, 8)
nths = near | st.integers(0, 30)
far = st.integers(0, 12) | st.integers(0, 60)
first_ones = st.sampled_from([0, 0, 0, 1, 1, 2, 3, 5])
changes = st.lists(message_ops() | state_ops(), max_size=3)
settings_or_none = st.none() | pruning()
doubts = st.lists(st.sampled_from(["", "raises", "unknown", "nonsense", "dies"]), max_size=2)

answers = st.lists(st.sampled_from(["truth", "result", "failure"]), min_size=1, max_size=3)


class Reports(logging.Handler):
    """Keeps the reports that recoveries make when they begin."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[RecoveryReport] = []

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(record.args, tuple) and record.args:
            (first, *_) = record.args
            if isinstance(first, RecoveryReport):
                self.found.append(first)


class AgentMachine(RuleBasedStateMachine):
    clock: ClassVar[Clock]
    reports: ClassVar[Reports]
    counts: ClassVar[Counter[str]]
    key: ClassVar[Encryption | None] = None  # of all logs

    @initialize(
        every=st.sampled_from([1, 1, 2, 3, 4]),
        segment_size=st.sampled_from([600, 2000, 1 << 20]),
        plain=st.sampled_from([False, False, False, True]),
        steps=st.lists(changes, max_size=4),
        hidden=st.sampled_from([False, False, True]),
        setting=settings_or_none,
    )
    def begin(
        self, every: int, segment_size: int, plain: bool, steps: list[list[Any]], hidden: bool,
        setting: Setting | None,
    ) -> None:  # fmt: skip
        AgentMachine.key = KEY if hidden else None
        self.setting = setting
        segment_size = setting.segment_size if setting else segment_size
        rows = tuple(map(tuple, steps))
        self.program = Program((), rows, every, segment_size, plain, open=True)
        self.world = World(self.clock, SimulatedDisk(seed=1), segment_size,
                           dict(setting.retention) if setting else {})  # fmt: skip
        self.oracles: dict[str, tuple[World, End]] = {}
        self.numbers = 0
        self.unique: set[str] = set()  # arguments of one call each
        self.background = ""  # a task that is not awaited yet
        self.settled_next: list[int] = []  # calls that people can settle now
        self.finished: int | None = None  # starts of the agent until it was
        self.how = ""  # the last life ended
        self.news = True  # there is code that no life has come to
        self.swapped = False  # calls have changed places: they get their outcomes in a new order

    # -- the program grows

    def growing(self) -> bool:
        return self.program.open and self.finished is None

    def alone(self) -> bool:
        return self.growing() and not self.background

    def add(self, *ops: Any) -> None:
        program, self.news = self.program, True
        if program.steps:
            *before, last = program.steps
            self.program = replace(program, steps=(*before, (*last, *ops)))
        else:
            self.program = replace(program, prologue=(*program.prologue, *ops))

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def label(self) -> str:
        label = f"c{self.number()}"
        self.unique.add(label)
        return label

    @precondition(growing)
    @rule()
    def step(self) -> None:
        self.program = replace(self.program, steps=(*self.program.steps, ()))

    @precondition(growing)
    @rule(ops=st.lists(message_ops(), min_size=1, max_size=3), in_a_new_step=st.booleans())
    def messages(self, ops: list[Any], in_a_new_step: bool) -> None:
        if in_a_new_step:
            self.step()
        self.add(*ops)

    @precondition(growing)
    @rule(ops=st.lists(state_ops(), min_size=1, max_size=3), in_a_new_step=st.booleans())
    def state(self, ops: list[Any], in_a_new_step: bool) -> None:
        if in_a_new_step:
            self.step()
        self.add(*ops)

    @precondition(growing)
    @rule(steps=st.lists(changes, min_size=2, max_size=4), power=powers)
    def several_steps(self, steps: list[list[Any]], power: int | None) -> None:
        """Steps that leave checkpoints, each the next one's base."""
        for ops in steps:
            self.step()
            self.add(*ops)
        self.life(power=power)

    @precondition(growing)
    @rule(data=st.data(), count=st.integers(1, 4), in_a_new_step=st.booleans())
    def calls(self, data: Any, count: int, in_a_new_step: bool) -> None:
        if in_a_new_step:
            self.step()
        for _ in range(count):
            self.call(data, data.draw(st.sampled_from([1, 1, 1, 2])))

    def call(self, data: Any, times: int) -> None:
        names = PLAIN if self.program.plain else CAREFUL
        label = self.label() if times == 1 else f"twice {self.number()}"
        x = st.sampled_from([label] * 4 + ["last", "messages", "count", "state", "big", "same"])
        do = data.draw(dos(names, x, ("", "append", "wrap", "state")))
        if do.tool in SYNC and self.background and not self.program.plain:
            do = replace(do, direct=False)
        call_id = do.call_id and f"id {self.number()}"
        self.add(*[("call", replace(do, call_id=call_id))] * (1 if call_id else times))

    def something_new(self, data: Any) -> None:
        """What is done for the first time is where a crash can leave doubts."""
        if self.growing() and not self.news:
            for _ in range(data.draw(st.integers(1, 3))):
                self.call(data, 1)

    def may_wait(self) -> bool:
        return self.alone() and not self.program.plain

    @precondition(may_wait)
    @rule(data=st.data(), kind=st.sampled_from(["gather", "group", "each"]))
    def several_calls(self, data: Any, kind: str) -> None:
        found = data.draw(branches(CAREFUL, data.draw(st.integers(2, 4))))
        self.add((kind, tuple(self.branch(branch, kind) for branch in found)))

    def branch(self, found: Branch, kind: str) -> Branch:
        first, second = found.first, found.second
        first = replace(first, x="same" if "same" in first.x else self.label(),
                        call_id=first.call_id and f"id {self.number()}")  # fmt: skip
        before, between = (0 if n == LONG else n for n in (found.before, found.between))
        if kind == "each":  # the agent sees in which order they come, so the record must too
            return replace(found, before=before, first=replace(first, late=0), between=0,
                           second=None)  # fmt: skip
        if second is not None:
            second = replace(second, call_id=second.call_id and f"id {self.number()}")
        return replace(found, before=before, first=first, between=between, second=second)

    def may_start_a_task(self) -> bool:
        return self.may_wait() and bool(self.program.steps)

    @precondition(may_start_a_task)
    @rule(data=st.data())
    def start_a_task(self, data: Any) -> None:
        (made,) = data.draw(branches(CAREFUL, 1))
        self.background = f"background {self.number()}"
        first = replace(made.first, x=self.label(), call_id="", then=self.background, late=0)
        self.add(("start", self.background, replace(made, before=0, first=first, second=None)))

    def awaits_a_task(self) -> bool:
        return self.growing() and self.background != ""

    @precondition(awaits_a_task)
    @rule()
    def await_the_task(self) -> None:
        self.add(("join", self.background))
        self.background = ""

    def may_give_up(self) -> bool:
        return self.growing() and not self.program.plain

    @precondition(may_give_up)
    @rule(again=st.booleans())
    def give_a_call_up(self, again: bool) -> None:
        """The agent cancels a call that takes too long, and goes on."""
        for _ in range(1 + again):
            self.add(("patience", Do("retry", self.label(), delay=LONG)), ("set", "k", "last"))

    @precondition(growing)
    @rule(kind=st.sampled_from(["now", "random", "uuid"]),
          use=st.sampled_from(["", "sync_retry", "sync_park"]))  # fmt: skip
    def ask(self, kind: str, use: str) -> None:
        self.add(("ask", kind, self.number(), "" if self.background else use))

    @precondition(growing)
    @rule(kinds=st.lists(st.sampled_from(["booking", "sync_booking"]), min_size=1, max_size=3),
          direct=st.booleans())  # fmt: skip
    def book(self, kinds: list[str], direct: bool) -> None:
        """Calls that can be undone."""
        for kind in kinds:
            name = "sync_booking" if self.program.plain else kind
            plainly_called = direct and (self.program.plain or name == "booking")
            do = Do(name, self.label(), direct=plainly_called, then="append")
            self.add(("call", do))

    def has_its_beginning(self) -> bool:
        return self.growing() and self.setting is None

    @precondition(has_its_beginning)
    @rule()
    def undo(self) -> None:
        self.add(("undo",))

    @precondition(growing)
    @rule()
    def fail_once(self) -> None:
        self.add(("fail_once", self.number()))

    @precondition(growing)
    @rule(count=st.integers(1, 3))
    def pause(self, count: int) -> None:
        self.add(("pause", count))

    def may_end(self) -> bool:
        return self.alone() and self.numbers >= 8

    @precondition(may_end)
    @rule(how=st.sampled_from(["return", "return", "give up", "fail"]))
    def end(self, how: str) -> None:
        if how == "fail":  # a failure that the agent lets through; people may settle it
            self.add(("call", Do("fail", self.label(), then="append", caught=False)))
            return
        if how == "give up":
            self.add(("give_up",))
        self.program = replace(self.program, open=False)

    # -- the world happens

    @rule(stops_at=st.sampled_from(["raise", "die"]), power=powers, doubts=doubts)
    def live_to_the_end(self, stops_at: str, power: int | None, doubts: list[str]) -> None:
        self.life(stops_at=stops_at, power=power, doubts=doubts)

    @rule(how=answers, power=powers)
    def live_to_the_end_with_help(self, how: list[str], power: int | None) -> None:
        for _ in range(PARKS):
            if self.life(power=power).how != "parked":
                return
            self.settle(how, None, power)
        raise AssertionError("settling does not help")

    @rule(data=st.data(), more=near, crash_at=st.none() | st.tuples(far, tears), power=powers)
    def live_within_a_budget(
        self, data: Any, more: int, crash_at: tuple[int, int] | None, power: int | None
    ) -> None:
        """So many calls more may be made; what is replayed costs nothing."""
        self.something_new(data)
        limit = self.made() + more

        def begin() -> None:
            self.world.budget = Budget(calls=limit)
            if crash_at is not None:
                self.world.disk.crash_at(*crash_at)

        bound = self.made_but_to_undo() + more  # what undoes may always be done
        end = self.life(begin, power=power, may_raise=(BudgetError,))
        assert self.made_but_to_undo() <= bound, "a call beyond the budget"
        if isinstance(end.value, BudgetError):
            assert end.value.used.calls >= limit
            self.counts["over budget"] += 1

    def made(self) -> int:
        found = (event for _, event in events(self.world.disk))
        return sum(isinstance(event, CallIntended | CallRetried) for event in found)

    def made_but_to_undo(self) -> int:
        found = list(events(self.world.disk))
        undoing: set[int] = set()
        for lsn, event in found:
            if isinstance(event, CallIntended) and (
                event.tool == UNDO_CALL
                or event.tool.startswith(UNDO_PREFIX)
                or outer_call(event.scope) in undoing
            ):
                undoing.add(lsn)
        return sum(lsn not in undoing if isinstance(event, CallIntended)
                   else isinstance(event, CallRetried) and event.call not in undoing
                   for lsn, event in found)  # fmt: skip

    @rule(data=st.data(), points=st.lists(st.tuples(far, tears, powers), min_size=1, max_size=2))
    def crash_at_a_call_of_the_disk(self, data: Any, points: list[Any]) -> None:
        self.something_new(data)
        self.crash(points)

    def crash(self, points: list[Any]) -> None:
        for call, torn, power in points:
            self.life(partial(self.crash_at, call, torn), power=power)

    def crash_at(self, call: int, torn: int) -> None:
        self.world.disk.crash_at(call, torn)

    @rule(data=st.data(), point=st.tuples(far, tears, powers),
          more=st.lists(st.tuples(near, tears, powers), min_size=1, max_size=3))  # fmt: skip
    def crash_in_the_recovery_too(self, data: Any, point: Any, more: list[Any]) -> None:
        self.something_new(data)
        self.crash([point, *more])

    @rule(data=st.data(), nth=first_ones, behind=st.booleans(), power=powers)
    def crash_around_an_effect(self, data: Any, nth: int, behind: bool, power: int | None) -> None:
        self.something_new(data)
        self.life(kill=(nth, behind), power=power)

    @rule(verb=st.sampled_from(["write", "write", "sync", "sync", "create", "publish",
                                "sync directory"]),
          nth=nths, error=st.sampled_from([errno.EIO, errno.ENOSPC]),
          count=st.integers(1, 4), power=powers)  # fmt: skip
    def fail_a_call_of_the_disk(
        self, verb: str, nth: int, error: int, count: int, power: int | None
    ) -> None:
        def fail() -> None:
            for n in range(nth, nth + count):
                self.world.disk.fail_at(verb, n, error)

        self.life(fail, power=power, may_raise=(OSError, LogError))

    @rule(
        nth=nths,
        size=st.integers(0, 100),
        full=st.booleans(),
        power=powers,
    )
    def write_short(self, nth: int, size: int, full: bool, power: int | None) -> None:
        def shorten() -> None:
            self.world.disk.shorten_at(nth, size)
            if full:
                self.world.disk.fail_at("write", nth + 1, errno.ENOSPC)

        self.life(shorten, power=power, may_raise=(OSError, LogError))

    @rule(nth=first_ones, kind=st.sampled_from(["run", "settle", "take over"]),
          power=powers)  # fmt: skip
    def come_as_a_second_process(self, nth: int, kind: str, power: int | None) -> None:
        def come() -> None:
            self.world.visit = (self.world.executed + nth, lambda: self.visit(kind))

        self.life(come, power=power, may_raise=(FencedError,))

    @rule(data=st.data(), nth=first_ones, power=powers)
    def stop_at_an_effect(self, data: Any, nth: int, power: int | None) -> None:
        self.something_new(data)

        def come() -> None:
            self.world.visit = (self.world.executed + nth, lambda: self.visit("stop"))

        before = {lsn for lsn, _ in in_doubt(self.world.disk)}
        if self.life(come, power=None).how == "stopped":
            new = [e for lsn, e in in_doubt(self.world.disk) if lsn not in before]
            assert all(intent.after_crash == "retry" for intent in new), "in doubt by a stop"
        if power is not None:
            self.life(power=power)

    def visit(self, kind: str) -> None:
        world = self.world
        if kind == "stop":
            world.stopping = True
            world.runner.stop("somebody came")
            return
        store = Store(world.disk, world.segment_size)
        if kind == "take over":
            log = store.claim(RUN, takeover=True)
            world.fence = log.durable_lsn
            log.close()
            return

        def second(run: Any) -> None:
            world.problems.append("a second process runs the agent")

        try:
            if kind == "run":
                RecoverableAgent(second, CheckpointStore(store)).run_with_recovery_sync(TASK, RUN)
            else:
                resolve(store, RUN, world.effects[-1].lsn, Resolution.retry())
        except LogLockedError:
            return
        world.problems.append(f"a second process may {kind}")

    @rule(count=st.integers(1, 3), number=st.integers(0, 1 << 30))
    def damage_the_newest_checkpoints(self, count: int, number: int) -> None:
        for i in range(count):
            self.damage_a_checkpoint(random.Random(number + i))
        self.life()

    def damage_a_checkpoint(self, rng: random.Random) -> None:
        world = self.world
        if not any(frame.kind == SNAPSHOT for _, frame in frames(world.disk)):
            return
        world.begin()
        world.store.claim(RUN).close()
        used = newest_checkpoint(world)
        if oldest(world.disk) > 1 and not self.stands_in(used):
            die_and_return(world, None)
            return
        place = next((place for place in frames(world.disk) if place[1].lsn == used), None)
        if place is not None:
            harm(world, place, rng)
            world.harmed.add(used)
            self.counts["checkpoint damaged"] += 1
        die_and_return(world, None)

    def stands_in(self, used: int) -> bool:
        """Whether a run whose beginning is gone can be resumed without this checkpoint."""
        assert self.setting is not None
        others = [one.lsn for one in checkpoints_of(self.world.disk)
                  if one.lsn not in {used, *self.world.harmed}]  # fmt: skip
        if not self.world.harmed and self.setting.kept.generations > 1:
            assert others, "nothing stands in for the newest checkpoint"
        return bool(others)

    @rule(every=st.integers(1, 4))
    def set_how_often_checkpoints_are_taken(self, every: int) -> None:
        self.program = replace(self.program, every=every)

    def waits_for_people(self) -> bool:
        return bool(self.settled_next)

    @precondition(waits_for_people)
    @rule(power=powers)
    def look_outside_and_settle(self, power: int | None) -> None:
        self.settle(["truth"], None, power)

    @precondition(waits_for_people)
    @rule(how=answers,
          crash_at=st.none() | st.tuples(near, tears), power=powers)  # fmt: skip
    def settle(self, how: list[str], crash_at: tuple[int, int] | None, power: int | None) -> None:
        """People say what became of the calls in doubt, or of the one whose failure ended it."""
        world, calls, self.settled_next = self.world, self.settled_next, []
        world.begin()
        with pytest.raises(RecoveryError):
            resolve(world.store, RUN, 1, Resolution.retry())
        if crash_at is not None:
            world.disk.crash_at(*crash_at)
        done = []
        try:
            for i, call in enumerate(calls):
                settle(world, call, *self.resolution(call, how[i % len(how)]))
                done.append(call)
        except Crash:
            self.counts["crashed in settling"] += 1
        die_and_return(world, power)
        kept = {event.call for _, event in events(world.disk) if isinstance(event, CallResolved)}
        assert set(done) <= kept, "what people said is gone"
        self.counts["settled"] += len(done)

    def resolution(self, call: int, how: str) -> tuple[Resolution, str]:
        world = self.world
        intent = next(event for lsn, event in events(world.disk) if lsn == call)
        assert isinstance(intent, CallIntended)
        label = shown(intent.args[0][0]) if intent.args else None
        if how != "truth" and intent.tool in SETTLED_BY_HAND and label in self.unique:
            person = {"tool": "person", "x": label}
            return (Resolution.outcome(person) if how == "result"
                    else Resolution.fail("a person gives up")), BY_HAND  # fmt: skip
        for effect in world.effects:
            if effect.lsn == call:
                return Resolution.outcome(world.results[effect.key]), ""
        return Resolution.retry(), ""

    def may_be_edited(self) -> bool:
        return self.alone() and plainly(self.program)

    @precondition(may_be_edited)
    @rule(what=st.sampled_from(("pause", *MUTATIONS)), number=st.integers(0, 1 << 30))
    def edit_the_code(self, what: str, number: int) -> None:
        made = edited(self.program, what, random.Random(number))
        if made is None:
            return
        block, program = made
        world, last = self.world, max((lsn for lsn, _ in events(self.world.disk)), default=0)
        first, restored = len(world.effects), self.restored_step()
        before, self.program = self.program, program
        self.swapped = self.swapped or what == "swap"
        world.raised = Everything()
        replayed = 0 < block <= restored  # the code of that step is not run again
        end = self.life(edited=True)
        used_up = all(arrival.used_up for arrival in world.arrivals)
        self.counts[f"edited, {end.how}"] += 1
        if what == "pause":
            assert end.how in ("frontier", "parked", "failed"), end
        if end.how == "diverged" or not used_up:
            new = [effect for effect in world.effects[first:] if effect.lsn > last]
            assert not new, "changed code did something before it was stopped"
        if end.how != "frontier" or replayed or not used_up:
            self.program = before
        if end.how == "frontier" and used_up:
            self.compare(end)

    def restored_step(self) -> int:
        try:
            return history(self.world).step
        except FileNotFoundError:
            return 0

    # -- lives

    def life(
        self,
        prepare: Callable[[], None] = lambda: None,
        *,
        kill: tuple[int, bool] | None = None,
        power: int | None = None,
        stops_at: str = "raise",
        doubts: list[str] | None = None,
        may_raise: tuple[type[Exception], ...] = (),
        edited: bool = False,
    ) -> End:
        """One life of the process, and what must be true behind it."""
        world, self.settled_next = self.world, []
        world.begin(kill)
        world.stops_at, world.doubts = stops_at, doubts or []
        before = Held.by(world.disk)
        self.reports.found.clear()
        prepare()
        with pruned_by(self.setting) if self.setting else nullcontext():
            end = live(world, self.program)
        self.counts["lives"] += 1
        self.counts[end.how] += 1
        self.how, self.news = end.how, False
        assert world.clock.now < 900, "the run hangs"
        self.check_end(end, may_raise, edited)
        before.check(self.reports.found, world.harmed)
        check_log(world.disk, world.said)
        check_told(world)
        self.counts["checkpoints"] += check_checkpoints(world)
        if self.setting and not world.harmed:
            check_kept(world, self.setting.kept)
        if not self.swapped:
            self.check_order()
        if not edited:
            self.compare(end)
        die_and_return(world, power)
        return end

    def check_end(self, end: End, may_raise: tuple[type[Exception], ...], edited: bool) -> None:
        """A life ends in a way that there was a reason for."""
        world = self.world
        if self.finished is not None:
            assert world.starts == self.finished, "a finished run starts again"
            assert end.how in ("finished", "crashed") or isinstance(end.value, may_raise), end
        match end.how:
            case "crashed" | "frontier":
                pass
            case "finished":
                assert world.fence is None, "finished by a process that does not own the run"
                self.finished = world.starts
            case "failed":
                self.settled_next = [end.value.call] if end.value.call else []
            case "parked":
                doubtful = dict(in_doubt(world.disk))
                self.settled_next = [call.lsn for call in end.value.calls]
                assert set(self.settled_next) <= set(doubtful), "parked without a doubt"
                assert set(world.begun.parked) <= set(self.settled_next), "not all is told"
            case "diverged":
                assert edited, end.value
            case "stopped":
                assert world.stopping, end.value
            case _:
                ours = isinstance(end.value, RuntimeError) and "fails once" in str(end.value)
                assert ours or isinstance(end.value, may_raise), end.value

    def check_order(self) -> None:
        """Coroutines got their outcomes in the order in which these are recorded."""
        calls = {lsn: event for lsn, event in events(self.world.disk)
                 if isinstance(event, CallIntended) and event.args}  # fmt: skip
        at: dict[str, list[int]] = {}
        for lsn, call, _ in outcomes(self.world.disk):
            if call in calls:
                at.setdefault(shown(calls[call].args[0][0]), []).append(lsn)
        for labels in self.world.handed:
            found = [at[x][0] for x in labels if x in self.unique and len(at.get(x, ())) == 1]
            assert found == sorted(found), f"handed on in another order: {labels}"

    def compare(self, end: End) -> None:
        """Where a life came to the end of the program, all is as if there had been no other."""
        world = self.world
        ended = end.how in ("finished", "failed")
        if self.background or world.fence is not None or not (ended or world.arrivals):
            return
        oracle, expected = self.oracle()
        for arrival in world.arrivals:
            assert timeless(arrival.final) == timeless(oracle.arrivals[0].final)
            check_results(world, arrival.final)
        check_effects(world, oracle)
        if ended:
            assert outcome_of(world, end) == outcome_of(oracle, expected)
        if end.how == "finished":
            check_results(world, world.final)
            check_ended(world, self.program, end, power=True)
        self.counts["compared"] += 1

    def oracle(self) -> tuple[World, End]:
        decided = verdicts(self.world.disk)
        key = repr((self.program, decided))
        if key not in self.oracles:
            world = World(self.clock, SimulatedDisk(seed=1), self.program.segment_size)
            world.raised, world.verdicts = Everything(), decided
            world.begin()
            end = live(world, self.program)
            if isinstance(end.value, ToolError):  # what a person said; here it is in no log
                what = failure(0, end.value)
                error = RunFailedError(RUN, (what.type, what.message, what.traceback), 0)
                end = End("failed", error)
            assert end.how in ("frontier", "finished", "failed"), end
            self.oracles = {key: (world, end)}
        return self.oracles[key]

    def over(self) -> bool:
        return self.finished is not None or self.how == "failed"

    @precondition(over)
    @rule(data=st.data())
    def begin_another_run(self, data: Any) -> None:
        self.begin(data.draw(st.integers(1, 4)), data.draw(st.sampled_from([600, 1 << 20])), False,
                   data.draw(st.lists(changes, max_size=4)), data.draw(st.booleans()),
                   data.draw(settings_or_none))  # fmt: skip

    def teardown(self) -> None:
        if not hasattr(self, "program"):
            return
        self.program, self.background = replace(self.program, open=False), ""
        for _ in range(PARKS):
            end = self.life()
            if end.how == "parked":
                self.look_outside_and_settle(None)
            elif end.how != "raised":  # an error of the agent's own, which it has seen now
                break
        assert end.how in ("finished", "failed"), end
        again = self.life(power=1)
        assert outcome_of(self.world, again) == outcome_of(self.world, end)
        self.counts["runs"] += 1
        self.counts["pruned"] += oldest(self.world.disk) > 1


@dataclass(frozen=True)
class Held:
    """What a log holds, read without the runtime: what a report of a recovery must say."""

    begun: bool
    recoveries: int
    in_doubt: set[int]
    checkpoint: int

    @classmethod
    def by(cls, disk: SimulatedDisk) -> Held:
        found = [event for _, event in events(disk) if event is not None]
        checkpoints = [record.lsn for record in records(disk)
                       if isinstance(record, Snapshot) and not is_portion(record)]  # fmt: skip
        return cls(
            bool(found or checkpoints), sum(isinstance(event, RunResumed) for event in found),
            {lsn for lsn, _ in in_doubt(disk)}, max(checkpoints, default=0),
        )  # fmt: skip

    def check(self, reports: list[RecoveryReport], harmed: set[int]) -> None:
        if not reports:
            return
        first = reports[0]
        assert first.recovery_count == self.recoveries + self.begun, first
        named = {int(re.findall(r"\(LSN (\d+)\)$", text)[0]) for text in first.in_doubt}
        assert named == self.in_doubt, first
        assert first.checkpoint_lsn == self.checkpoint or harmed, first
        assert all(report.checkpoint_lsn not in harmed for report in reports)
        if any(lsn > first.checkpoint_lsn for lsn in harmed):
            assert first.damage or first.broken, "damage is not told"
        elif not harmed:
            assert not first.damage and not first.broken, first


def edited(program: Program, what: str, rng: random.Random) -> tuple[int, Program] | None:
    """The program after an edit, and the step that was edited; None where there is nothing to."""
    if what == "pause":
        blocks = [list(block) for block in (program.prologue, *program.steps)]
        block = rng.randrange(len(blocks))
        blocks[block].insert(rng.randrange(len(blocks[block]) + 1), ("pause", rng.randrange(1, 4)))
        prologue, *steps = map(tuple, blocks)
        return block, replace(program, prologue=prologue, steps=tuple(steps))
    made = mutated(program, what, rng)
    if made is None:
        return None
    before, after = (program.prologue, *program.steps), (made.prologue, *made.steps)
    changed = [i for i, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    return (changed[0], made) if changed else None


def run_machine(figures: Any, sweep: str, examples: int, steps: int) -> None:
    """Failures are not shrunk: that takes minutes. The same seed in a smaller run shows the bug."""
    logger = logging.getLogger("recovery")
    AgentMachine.reports, AgentMachine.counts = Reports(), Counter()
    began = time.perf_counter()
    with (
        virtual_time() as AgentMachine.clock,
        pytest.MonkeyPatch.context() as patch,
        encrypted(lambda: AgentMachine.key),
    ):
        patch.setattr(logger, "disabled", False)
        patch.setattr(logger, "propagate", False)
        patch.setattr(logger, "handlers", [AgentMachine.reports])
        patch.setattr(logger, "level", logging.INFO)
        run_state_machine_as_test(
            AgentMachine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                suppress_health_check=list(HealthCheck),
                report_multiple_bugs=False,
                phases=[Phase.generate],
            ),
        )
    counts = AgentMachine.counts
    figures.add(
        sweep, runs=counts["runs"], lives=counts["lives"], states=counts["crashed"],
        settled=counts["settled"], pruned=counts["pruned"],
        checkpoints=counts["checkpoints"], seconds=time.perf_counter() - began,
    )  # fmt: skip


def test_an_agent_that_grows_and_dies_is_the_one_that_never_died(figures: Any) -> None:
    run_machine(figures, "agents that grow, quick", 10, 40)


@pytest.mark.crash
def test_many_agents_that_grow_and_die(figures: Any) -> None:
    run_machine(figures, "agents that grow", 110, 50)
