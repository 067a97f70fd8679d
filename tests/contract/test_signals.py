"""Signals: each one that was acknowledged is seen by the agent once, or is still unread.

People send random signals (early, late, twice) to agents whose waits race with each other, with
sleeps and with time-outs. What the agent saw is compared with what was acknowledged, and with what
the run's log says was taken, after a death at any change of the disk.
"""

from __future__ import annotations

import ast
import asyncio
import itertools
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from eventlog import EventLog
from eventlog.testing import SimulatedDisk
from recovery import CheckpointStore, RecoverableAgent, RecoveryError, Run, tool
from recovery.control.relatives import children
from recovery.control.send import signal
from recovery.errors import StoppedError
from recovery.journal.encoding import decode
from recovery.journal.events import CallAbandoned, SignalTaken
from recovery.testing import crash_everywhere
from recovery.testing.processes.trial import Plan, Trial, World
from recovery.testing.simulated.simulated_life import RUN_ID, Kill, Store
from recovery.testing.simulated.virtual_time import Clock, virtual_time
from tests.support.lives import RUN, Died, after_death, disk_store, recorded, run, send

NAMES = ("a", "b", "c")
Op = tuple[Any, ...]


@dataclass
class People:
    """Those who send: at a time each, under a key, some of them twice."""

    began: float
    letters: list[tuple[float, str, int]]
    acknowledged: dict[int, str] = field(default_factory=dict)
    again: random.Random = field(default_factory=random.Random)

    def act(self, store: CheckpointStore, run_id: str) -> None:
        for at, name, value in self.letters:
            due = time.time() - self.began >= at
            if due and (value not in self.acknowledged or self.again.random() < 0.02):
                signal(store, run_id, name, value, key=str(value))
                self.acknowledged[value] = name


class EnoughError(Exception):
    """Leaves a task group."""


# -- agents whose waits race, as people write them; each gives what it saw


async def _two_tasks(run: Any, one: str, other: str) -> list[Any]:
    waits = [asyncio.create_task(run.wait_for(name)) for name in (one, other)]
    done, left = await asyncio.wait(
        [*waits, asyncio.create_task(run.sleep(20))], return_when=asyncio.FIRST_COMPLETED
    )
    for task in left:
        task.cancel()
    return [task.result() for task in waits if task in done]


async def _reminder(run: Any, name: str, seconds: float) -> list[Any]:
    """Asks again every so often, and gives up at last."""
    answer = asyncio.create_task(run.wait_for(name))
    for _ in range(3):
        nap = asyncio.create_task(run.sleep(seconds))
        done, _ = await asyncio.wait({answer, nap}, return_when=asyncio.FIRST_COMPLETED)
        nap.cancel()
        if answer in done:
            return [answer.result()]
    answer.cancel()
    return []


async def _timeout_around(run: Any, name: str, seconds: float) -> list[Any]:
    try:
        async with asyncio.timeout(seconds):
            return [await run.wait_for(name)]
    except TimeoutError:
        return []


async def _group_left(run: Any, one: str, other: str) -> list[Any]:
    got: list[Any] = []

    async def first(name: str, seconds: float) -> None:
        with suppress(TimeoutError):
            got.append(await run.wait_for(name, seconds))
        raise EnoughError

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(first(one, 15))
            group.create_task(first(other, 25))
    except* EnoughError:
        pass
    return got


async def _one_of_three(run: Any, name: str) -> list[Any]:
    """Three wait for one name; the first one wins, and the others are told to stop."""
    waits = [asyncio.create_task(run.wait_for(name, 30)) for _ in range(3)]
    done, left = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for task in left:
        task.cancel()
    return [task.result() for task in done if task.exception() is None]


async def _hedged(run: Any, name: str, seconds: float) -> list[Any]:
    """As libraries do it: the first that is done, the others cancelled and awaited."""
    waits = [asyncio.ensure_future(one) for one in (run.wait_for(name), run.sleep(seconds))]
    try:
        for first in asyncio.as_completed(waits):
            value = await first
            return [] if value is None else [value]
        raise AssertionError
    finally:
        for task in waits:
            task.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def _plain(run: Any, name: str, seconds: float) -> list[Any]:
    try:
        return [await run.wait_for(name, seconds)]
    except TimeoutError:
        return []


SHAPES: dict[str, Callable[..., Awaitable[list[Any]]]] = {
    "two tasks": _two_tasks,
    "reminder": _reminder,
    "timeout": _timeout_around,
    "group": _group_left,
    "three": _one_of_three,
    "hedged": _hedged,
    "plain": _plain,
}


def agent_of(program: list[Op]) -> Callable[[Any], Any]:
    async def agent(run: Any) -> list[Any]:
        seen: list[Any] = []
        for shape, *args in program:
            seen += await SHAPES[shape](run, *args)
        return seen

    return agent


def random_program(choose: random.Random) -> list[Op]:
    program: list[Op] = []
    for _ in range(choose.randrange(1, 6)):
        shape = choose.choice(list(SHAPES))
        one, other = choose.choice(NAMES), choose.choice(NAMES)
        match shape:
            case "two tasks" | "group":
                program.append((shape, one, other))
            case "three":
                program.append((shape, one))
            case _:
                program.append((shape, one, choose.choice([0.01, 2, 5, 12])))
    return program


def random_letters(choose: random.Random) -> list[tuple[float, str, int]]:
    # Many at the same time, and many when something else happens.
    times = [
        choose.choice([0, 0, 2, 5, 12, 12.01, 15, 20, choose.uniform(0, 90)])
        for _ in range(choose.randrange(1, 12))
    ]
    return [(at, choose.choice(NAMES), number) for number, at in enumerate(times)]


def taken(store: Any, run_id: str) -> list[int]:
    """The signals that are spent, as the log of a run says."""
    reader = store.read(run_id)
    assert reader is not None
    with reader:
        events = [decode(record) for record in reader.records()]
    return [event.value for event in events if isinstance(event, SignalTaken)]


@dataclass
class Outcome:
    trial: Trial
    people: People

    @property
    def disk(self) -> SimulatedDisk:
        return self.trial.lives[-1].disk

    def check(self) -> None:
        """Each acknowledged signal was seen once, or nobody has taken it."""
        end = self.trial.end
        assert end.how == "finished", end
        seen = Counter(end.value)
        assert set(seen.values()) <= {1}, f"seen twice: {seen}"
        assert set(seen) <= set(self.people.acknowledged) | {n for _, _, n in self.people.letters}
        assert sorted(self.taken()) == sorted(seen), "taken, and not seen"

    def taken(self) -> list[int]:
        """What the run's log says is spent."""
        self.disk._crash_at = None
        return taken(Store(self.trial.lives[-1]), RUN_ID)


def lived(
    program: list[Op], letters: list[tuple[float, str, int]], plan: Plan, seed: int = 0
) -> Outcome:
    clock = Clock()
    clock.begin()
    with virtual_time(clock):
        people = People(time.time(), letters, again=random.Random(seed))
        agent = agent_of(program)
        trial = Trial(World(agent, None, answer=people.act), plan, clock)
        trial.run()
    if trial.error is not None:
        raise trial.error
    return Outcome(trial, people)


def kills(choose: random.Random, calls: int) -> tuple[Kill, ...]:
    return tuple(
        Kill("disk", choose.randrange(calls), choose.choice([0, 0, 9]))
        for _ in range(choose.choice([1, 1, 2, 3]))
    )


def one_program(choose: random.Random, deaths: int) -> None:
    program, letters = random_program(choose), random_letters(choose)
    plan = Plan()
    try:
        outcome = lived(program, letters, plan)
        outcome.check()
        calls = len(outcome.trial.lives[0].calls)
        for _ in range(deaths):
            plan = Plan(kills(choose, calls), choose.choice([None, choose.getrandbits(20)]))
            lived(program, letters, plan, choose.getrandbits(20)).check()
    except BaseException as exc:
        exc.add_note(f"{program=}, {letters=}, {plan=}")
        raise


@pytest.mark.parametrize(
    ("programs", "deaths"),
    [(25, 3), pytest.param(300, 20, marks=[pytest.mark.crash, pytest.mark.slow])],
)
def test_each_acknowledged_signal_is_seen_once_or_is_unread(
    programs: int, deaths: int, rng: random.Random
) -> None:
    for _ in range(programs):
        one_program(random.Random(rng.getrandbits(40)), deaths=deaths)


# -- what crash_everywhere says of them


@tool(after_crash="retry")
async def note(what: str) -> str:
    return what


async def reads_the_first_alone(run: Any) -> Any:
    waits = [asyncio.create_task(run.wait_for(name)) for name in ("a", "b")]
    done, left = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    await run.call(note, "somebody was first")  # meanwhile the other one gets its signal
    for task in left:
        task.cancel()
    return done.pop().result()


async def cancels_the_other_at_once(run: Any) -> Any:
    waits = [asyncio.create_task(run.wait_for(name)) for name in ("a", "b")]
    done, left = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for task in left:
        task.cancel()
    await run.call(note, "somebody was first")
    return [done.pop().result(), await run.wait_for(("a", "b"))]


async def reads_all(run: Any) -> Any:
    async with asyncio.TaskGroup() as group:
        one, other = (group.create_task(run.wait_for(name)) for name in ("a", "b"))
    return [await one, other.result(), *await asyncio.gather(run.wait_for("c"))]


def all_at_once(store: CheckpointStore, run_id: str) -> None:
    for name in NAMES:
        signal(store, run_id, name, f"{name}!", key=name)


@pytest.mark.parametrize(
    ("agent", "lost"),
    [(reads_the_first_alone, True), (cancels_the_other_at_once, False), (reads_all, False)],
)
def test_a_signal_that_an_agent_took_and_did_not_look_at_is_found(agent: Any, lost: bool) -> None:
    report = crash_everywhere(agent, answer=all_at_once, points=12)
    assert report.ok is not lost, report
    if lost:
        assert "LOST: signal b ('b!') was taken by a task whose result was not read" in str(report)


async def _alone(run: Any) -> None:
    await run.wait_for("never")


def _alone_plain(run: Any) -> None:
    run.wait_for("never")


@tool(needs_approval=True)
def pay() -> None:
    raise AssertionError


async def _asking(run: Any) -> None:
    await run.call(pay)


async def _with_a_child(run: Any) -> None:
    await asyncio.gather(run.child(_alone, "task"), run.sleep(100))


@pytest.mark.parametrize("agent", [_alone, _alone_plain, _asking, _with_a_child])
@pytest.mark.parametrize("answered", [False, True])
def test_a_run_that_waits_for_ever_is_recognised_at_once(agent: Any, answered: bool) -> None:
    began = time.process_time()
    options: dict[str, Any] = {"answer": lambda store, run_id: None} if answered else {}
    with pytest.raises(TimeoutError, match=r"the run waits for ever.*'never'|approval of .*pay"):
        crash_everywhere(agent, **options)
    assert time.process_time() - began < 10


def test_a_timer_of_the_agents_own_is_waited_for() -> None:
    async def agent(run: Any) -> Any:
        async def doorbell() -> None:
            await asyncio.sleep(300)
            await run.call(note, "rings")
            rung.set()

        rung = asyncio.Event()
        ringing = asyncio.create_task(doorbell())
        got = asyncio.create_task(run.wait_for("never"))
        await rung.wait()
        got.cancel()
        await ringing
        return "rung"

    assert "'rung'" in str(crash_everywhere(agent, points=3))


# -- several names


async def _first_of(run: Any) -> list[Any]:
    got: list[Any] = [await run.wait_for(("paid", "cancelled")) for _ in range(2)]
    try:
        got.append(await run.wait_for(("paid", "cancelled"), 5))
    except TimeoutError as exc:
        got.append(str(exc))
    return [*got, await run.wait_for("paid")]


def _first_of_plain(run: Any) -> list[Any]:
    got: list[Any] = [run.wait_for(("paid", "cancelled")) for _ in range(2)]
    try:
        got.append(run.wait_for(("paid", "cancelled"), 5))
    except TimeoutError as exc:
        got.append(str(exc))
    return [*got, run.wait_for("paid")]


@pytest.mark.parametrize("agent", [_first_of, _first_of_plain])
def test_a_wait_for_several_names_gives_the_first_that_was_sent(agent: Any) -> None:
    people = People(0.0, [])

    def answer(store: CheckpointStore, run_id: str) -> None:
        if not people.began:
            people.began = time.time()
            people.letters = [(0, "other", 0), (0, "cancelled", 1), (0, "paid", 2), (60, "paid", 3)]
        people.act(store, run_id)

    def begin() -> None:
        people.began, people.acknowledged = 0.0, {}

    report = crash_everywhere(agent, answer=answer, setup=begin, points=12)
    assert report.ok, report
    assert report.reference == repr(
        [("cancelled", 1), ("paid", 2), "no signal 'paid' or 'cancelled' came within 5 s", 3]
    )


@pytest.mark.parametrize("names", [["a"], (), ("a", 1), 5, None])
def test_what_names_no_signal_is_refused_at_the_call(names: Any) -> None:
    async def agent(run: Any) -> None:
        await run.wait_for(names)

    with pytest.raises(TypeError, match=r"run\.wait_for is given the name of a signal, or a tuple"):
        crash_everywhere(agent)


def test_an_agent_that_is_always_at_work_gets_its_signal() -> None:
    """Outcomes of calls come before a wait that is over, and there are always some."""

    at_work = asyncio.Event()

    async def agent(run: Any) -> int:
        stop, made = asyncio.create_task(run.wait_for("a")), 0

        async def worker() -> None:
            nonlocal made
            while not stop.done() and made < 20_000:
                made += 1
                await run.call(note, str(made))
                at_work.set()

        await asyncio.gather(*(worker() for _ in range(8)))
        return made

    async def both() -> int:
        store = CheckpointStore()
        running = asyncio.create_task(RecoverableAgent(agent, store).run_with_recovery("t", "run"))
        await at_work.wait()
        await asyncio.to_thread(signal, store, "run", "a")
        return int((await running)["result"])

    assert asyncio.run(both()) < 20_000


def test_a_worker_that_is_cancelled_by_a_signal_makes_no_further_call() -> None:
    """It is about to make one just when the wait is over, which goes first."""
    made: Counter[str] = Counter()

    @tool
    async def work(what: str) -> None:
        made[what] += 1

    async def agent(run: Any) -> str:
        async def worker() -> None:
            for n in itertools.count():  # the signal may take its time
                await run.call(work, f"{n}")

        workers = [asyncio.create_task(worker()) for _ in range(4)]
        await run.wait_for("stop")
        for one in workers:
            one.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        at_the_end = made.total()
        await asyncio.sleep(0.01)
        return (
            f"{made.total() - at_the_end} made later by {sum(not w.cancelled() for w in workers)}"
        )

    async def both() -> Any:
        store = CheckpointStore()
        running = asyncio.create_task(RecoverableAgent(agent, store).run_with_recovery("t", "run"))
        while not made:  # noqa: ASYNC110 - until it is at work
            await asyncio.sleep(0)
        await asyncio.to_thread(signal, store, "run", "stop")
        return (await running)["result"]

    assert asyncio.run(both()) == "0 made later by 0"
    assert max(made.values()) <= 4


# -- the same in two child runs at once, and in processes that are killed


def test_each_signal_of_children_is_seen_once_or_is_unread(rng: random.Random) -> None:
    for _ in range(6):
        choose = random.Random(rng.getrandbits(40))
        programs = [random_program(choose) for _ in range(2)]
        letters = random_letters(choose)
        sent: dict[str, People] = {}

        def answer(
            store: CheckpointStore, run_id: str, sent: Any = sent, letters: Any = letters
        ) -> None:
            for child in children(store, run_id):
                if child.state == "open":
                    people = sent.setdefault(child.run_id, People(time.time(), letters))
                    with suppress(RecoveryError):  # it has ended, and its parent does not know yet
                        people.act(store, child.run_id)

        async def parent(run: Any, programs: Any = programs) -> list[Any]:
            made = (
                run.child(agent_of(program), "task", name=str(number))
                for number, program in enumerate(programs)
            )
            return list(await asyncio.gather(*made))

        clock = Clock()
        clock.begin()
        with virtual_time(clock):
            plan = Plan(kills(choose, 120))
            trial = Trial(World(parent, None, answer=answer), plan, clock)
            trial.run()
        assert trial.error is None
        assert trial.end.how == "finished", (programs, letters, plan, trial.end)
        trial.lives[-1].disk._crash_at = None
        store = Store(trial.lives[-1])
        for child, seen in zip(children(store, RUN_ID), trial.end.value, strict=True):
            assert sorted(taken(store, child.run_id)) == sorted(seen), (programs, letters, plan)


PROGRAM = """
import asyncio, sys
from recovery import CheckpointStore, RecoverableAgent

async def agent(run):
    seen = []
    for _ in range(25):
        waits = [asyncio.create_task(run.wait_for(name)) for name in "ab"]
        nap = asyncio.create_task(run.sleep(0.03))
        done, left = await asyncio.wait({*waits, nap}, return_when=asyncio.FIRST_COMPLETED)
        for task in left:
            task.cancel()
        seen += [task.result() for task in waits if task in done]
    return seen

store = CheckpointStore(sys.argv[1])
print(asyncio.run(RecoverableAgent(agent, store).run_with_recovery("task", "run"))["result"])
"""


def test_each_signal_to_processes_that_are_killed_is_seen_once_or_is_unread(
    tmp_path: Path, rng: random.Random
) -> None:
    store, acknowledged = CheckpointStore(tmp_path), list[int]()
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    for number in range(5):
        life = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        ends = time.monotonic() + (60 if number == 4 else rng.uniform(0.4, 1.2))
        while life.poll() is None and time.monotonic() < ends:
            with suppress(RecoveryError):  # it has not begun, or has ended
                signal(store, "run", rng.choice("ab"), len(acknowledged), who="somebody")
                acknowledged.append(len(acknowledged))
            time.sleep(rng.uniform(0, 0.08))
        if number < 4:
            life.kill()
        out = life.communicate()[0]
    seen = ast.literal_eval(out)
    assert sorted(seen) == sorted(taken(store.backend, "run"))
    assert len(set(seen)) == len(seen)
    assert set(seen) <= set(acknowledged)


@pytest.mark.parametrize("seed", range(8))
def test_a_signal_to_a_run_that_has_only_begun_outlives_a_power_loss(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EventLog, "commit_behind", lambda log: None)  # no flush by luck
    disk, found = SimulatedDisk(), list[SimulatedDisk]()
    store = disk_store(disk)

    async def agent(run: Run) -> Any:
        if not found:
            signal(store, RUN, "go", "yes")
            found.append(disk.after_power_loss(seed))
            raise Died
        return await run.wait_for("go", timeout=9)

    with pytest.raises(Died):
        run(agent, store)
    assert run(agent, disk_store(found[0]))["result"] == "yes"


def test_a_wait_that_a_stop_cut_short_beside_a_side_effect_waits_on_in_the_resumed_run() -> None:
    """The side effect gets to its end, and makes a call: that is not the agent going on."""
    store, asked = CheckpointStore(), asyncio.Event()

    @tool
    async def note(text: str) -> str:
        return text

    async def agent(run: Run) -> Any:
        @tool
        async def publish(text: str) -> str:
            recoverable.stop()
            await asyncio.sleep(0.3)  # the stop cuts the wait short meanwhile
            return await note(text)

        @tool(after_crash="retry")
        async def both() -> Any:
            waiting = asyncio.ensure_future(run.wait_for("go"))
            published = await publish("x")
            asked.set()
            return published, await waiting

        async for _ in run.steps():
            return await both()

    recoverable = RecoverableAgent(agent, store)

    async def lives() -> Any:
        with pytest.raises(StoppedError):
            await recoverable.run_with_recovery(None, RUN)
        assert recorded(store, CallAbandoned) == []
        asked.clear()
        resumed = asyncio.ensure_future(RecoverableAgent(agent, store).run_with_recovery(None, RUN))
        await asked.wait()
        signal(store, RUN, "go", 7)
        return (await asyncio.wait_for(resumed, 30))["result"]

    assert asyncio.run(lives()) == ("x", 7)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("kind", ["wait", "call"])
@pytest.mark.parametrize("patient_first", [True, False])
def test_of_two_equal_calls_the_one_that_is_not_cancelled_has_the_outcome(
    patient_first: bool, kind: str
) -> None:
    """Pauses of the agent's own change which of them is made first, in the resumed run."""
    store, asked, pauses = disk_store(), Counter[str](), [0.0, 0.05]
    answered = asyncio.Event()

    @tool(after_crash="retry")
    async def ask(what: str) -> int:
        asked[what] += 1
        await answered.wait()
        return 7

    async def agent(run: Run) -> Any:
        async def equal() -> Any:
            return await (run.wait_for("go") if kind == "wait" else run.call(ask, "go"))

        async def patient() -> Any:
            await asyncio.sleep(pauses[not patient_first])
            return await equal()

        async def hasty() -> Any:
            await asyncio.sleep(pauses[patient_first])
            with suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    return await equal()
            await run.call(send, "a reminder")
            if not answered.is_set():
                answered.set()
                signal(store, RUN, "go", 7)
            return "late"

        found = await asyncio.gather(patient(), hasty())
        if pauses[0] == 0:
            raise Died
        return found

    async def limited(store: CheckpointStore) -> Any:
        recoverable = RecoverableAgent(agent, store)
        return await asyncio.wait_for(recoverable.run_with_recovery(None, RUN), 30)

    with pytest.raises(Died):
        asyncio.run(limited(store))
    pauses.reverse()
    store = after_death(store)
    assert asyncio.run(limited(store))["result"] == [7, "late"]
    assert asked["go"] == (2 if kind == "call" else 0), "in the first life"
