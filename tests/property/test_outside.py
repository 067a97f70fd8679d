"""What comes from outside, between random crashes: signals, decisions and the calls they are about.

One machine runs an agent and those who send to it, on one simulated disk, until it dies; then what
is left of the disk goes on. What the outside did and saw is known, and is what the run is held to.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar
from unittest import mock

import pytest

from eventlog import EventLog
from eventlog.testing import Crash, SimulatedDisk
from recovery import (
    ApprovalDeniedError,
    CheckpointStore,
    InDoubtError,
    RecoverableAgent,
    Resolution,
    RunCancelledError,
    WaitingError,
    approve,
    cancel,
    current_call,
    deny,
    pending,
    resolve,
    signal,
    tool,
)
from recovery._events import CallDecided, CallIntended, SignalTaken, decode
from recovery.stores.protocol import LogStore

RUN = "run"
LIVES_MAX = 200


class Log(EventLog):
    """A log that nobody flushes behind anybody's back, for that would be at no certain time."""

    def commit_behind(self) -> None:
        """Nothing."""


class Store(LogStore):
    """Runs on the disk of the machine."""

    def claim(self, run_id: str, takeover: bool = False) -> EventLog:
        return Log.open(self._path(run_id), "power", takeover=takeover, files=self._files)


@dataclass
class Machine:
    """The disk, the time, and all that was done in the world: it outlives every crash."""

    recovery_key: ClassVar[str] = "the world"  # there is one, whatever process makes its object
    choose: random.Random
    disk: SimulatedDisk = field(default_factory=SimulatedDisk)
    now: float = 1e9
    paid: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)  # key, arguments
    signals: list[tuple[str, int]] = field(default_factory=list)  # in the order to be sent
    sent: int = 0  # of them, as far as the sender knows
    licensed: set[str] = field(default_factory=set)  # begun in an earlier life, to be made again
    cancelled: bool = False
    act: Callable[[], None] = lambda: None
    naps: int = 0

    @property
    def store(self) -> CheckpointStore:
        return CheckpointStore(Store("runs", self.disk, "power"))

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.naps += 1
        assert self.naps < 5000, "the run waits for ever"
        self.act()

    @contextmanager
    def time(self) -> Iterator[None]:
        names = ("time", "monotonic", "perf_counter")
        clock: dict[str, Any] = dict.fromkeys(names, lambda: self.now)
        clock["time_ns"] = lambda: int(self.now * 1e9)
        with mock.patch.multiple(time, sleep=self.sleep, **clock):
            yield

    # -- what the agent does

    def pay(self, amount: int, to: str) -> int:
        """The effect: whatever made it, somebody has said yes to exactly this, once."""
        if self.disk._dead:
            raise Crash
        call = current_call()
        assert call is not None
        key = call.idempotency_key
        assert key not in [paid for paid, _ in self.paid], "one yes, two payments"
        if key not in self.licensed:
            said = [body for body in self.messages("decision") if body["of"] == key]
            assert said, "nobody was asked, or nobody has said yes"
            assert said[-1]["approved"], "the last word was a no"
            assert said[-1]["for"] == [amount, to], "a yes to something else"
        held = [event for event in self.events() if isinstance(event, CallDecided)]
        assert any(event.call == call.lsn and event.approved for event in held)
        assert self.disk_is_durable(call.lsn)
        self.paid.append((key, (amount, to)))
        return amount

    def disk_is_durable(self, lsn: int) -> bool:
        reader = self.store.backend.read(RUN)
        assert reader is not None
        with reader:
            held = {event.call: record.lsn for record in reader.records()
                    if isinstance(event := decode(record), CallDecided)}  # fmt: skip
            return reader.durable_lsn() >= held[lsn]

    # -- what others see and do

    def messages(self, kind: str) -> list[dict[str, Any]]:
        reader = self.store.backend.inbox(RUN)
        if reader is None:
            return []
        with reader:
            durable = reader.durable_lsn()  # else it was never acknowledged, and does not count
            found = [record.body for record in reader.records()
                     if record.kind == kind and record.lsn <= durable]  # fmt: skip
        asked = self.intents()
        return [body | {"for": asked.get(body.get("call", 0))} for body in found]

    def events(self) -> list[Any]:
        reader = self.store.backend.read(RUN)
        if reader is None:
            return []
        with reader:
            return [decode(record) for record in reader.records()]

    def intents(self) -> dict[int, list[Any]]:
        reader = self.store.backend.read(RUN)
        assert reader is not None
        with reader:
            made = {record.lsn: decode(record) for record in reader.records()}
        return {lsn: event.args[0] for lsn, event in made.items()
                if isinstance(event, CallIntended)}  # fmt: skip

    def somebody_acts(self) -> None:
        """One of those outside does something, or nobody does."""
        if self.disk._dead:
            raise Crash
        match self.choose.randrange(6):
            case 0 | 1:
                self.send()
            case 2 | 3:
                self.decide(approve if self.choose.random() < 0.6 else deny)
            case 4:
                self.forge()

    def send(self) -> None:
        """The next signal; one that nobody knows to have arrived is sent again."""
        if self.sent < len(self.signals):
            name, value = self.signals[self.sent]
            signal(self.store, RUN, name, value, key=f"{name} {value}")
            self.sent += 1

    def decide(self, how: Any) -> None:
        asked = pending(self.store, RUN)
        if asked:
            call = self.choose.choice(asked)
            assert list(call.args) == self.intents()[call.lsn]
            how(self.store, RUN, call, who="somebody")

    def forge(self) -> None:
        """A yes to another call of the same LSN, as a run that has diverged might have left it."""
        asked = pending(self.store, RUN)
        if asked:
            body = {"call": asked[0].lsn, "of": "0" * 32, "approved": True, "who": "", "why": ""}
            self.store.backend.post(RUN, "decision", body)


def agent_of(machine: Machine, program: list[tuple[Any, ...]]) -> Callable[[Any], Any]:
    pay = tool(needs_approval=True)(machine.pay)
    impatient = tool(needs_approval=True, approval_timeout_s=3, name="impatient")(machine.pay)

    def agent(run: Any) -> list[Any]:
        for step in run.steps():
            kind, *args = program[step - 1]
            try:
                if kind == "get":
                    run.messages.append(run.wait_for(*args))
                elif kind == "sleep":
                    run.messages.append(run.sleep(*args))
                else:
                    run.messages.append(run.call(pay if kind == "pay" else impatient, *args))
            except TimeoutError:
                run.messages.append("timed out")
            except ApprovalDeniedError:
                run.messages.append("denied")
            if step == len(program):
                return list(run.messages)
        raise AssertionError

    return agent


def live(machine: Machine, program: list[tuple[Any, ...]], **options: Any) -> Any:
    """One process; what the agent returned, or what ended it."""
    machine.naps = 0
    store = machine.store
    runner = RecoverableAgent(agent_of(machine, program), store, 2, max_recoveries=0, **options)
    try:
        return runner.run_with_recovery_sync("task", RUN)["result"]
    except (WaitingError, InDoubtError, RunCancelledError, Crash) as exc:
        return exc


def operate(machine: Machine, parked: InDoubtError) -> None:
    """Somebody looks whether it was paid, and says so."""
    for call in parked.calls:
        done = [args for key, args in machine.paid if key == call.idempotency_key]
        if not done:
            machine.licensed.add(call.idempotency_key)
        how = Resolution.outcome(done[0][0]) if done else Resolution.retry()
        resolve(machine.store, RUN, call.lsn, how)


def run_to_the_end(
    machine: Machine, program: list[tuple[Any, ...]], deaths: list[tuple[int, int, int | None]]
) -> Any:
    """Lives until the run ends; ``deaths``: the disk call, the torn size, the power loss' seed."""
    machine.act = machine.somebody_acts
    for number in range(LIVES_MAX):
        power: int | None = None
        if number < len(deaths):
            at, torn, power = deaths[number]
            machine.disk.crash_at(at, torn)
        park = machine.choose.choice([None, 0.5, 5])
        try:
            end = live(machine, program, park_after_s=park)
            if isinstance(end, InDoubtError):
                operate(machine, end)
            elif isinstance(end, WaitingError) and not machine.disk._dead:
                machine.now += machine.choose.choice([0, 1, 10])
                machine.somebody_acts()
        except Crash:
            pass
        if machine.disk._dead:
            dead = machine.disk
            after = dead.after_process_death() if power is None else dead.after_power_loss(power)
            machine.disk = after
        elif isinstance(end, list | RunCancelledError):
            return end
    raise AssertionError(f"not ended after {LIVES_MAX} lives")


def check(machine: Machine, program: list[tuple[Any, ...]], result: list[Any]) -> None:
    """The result is what the world knows, and the run's log says the same for ever."""
    outcomes = list(zip(program, result, strict=True))
    got: dict[str, list[Any]] = {}
    for (kind, *args), value in outcomes:
        if kind == "get" and value != "timed out":
            got.setdefault(args[0], []).append(value)
    for name, values in got.items():
        sent = [value for other, value in machine.signals if other == name]
        assert values == sent[: len(values)], "not in the order sent, or one is lost, or twice"
    taken = [event for event in machine.events() if isinstance(event, SignalTaken)]
    assert len({(event.uid, event.inbox) for event in taken}) == len(taken)
    wanted = [tuple(args) for (kind, *args), value in outcomes
              if kind in ("pay", "impatient") and value != "denied"]  # fmt: skip
    assert sorted(args for _, args in machine.paid) == sorted(wanted)
    machine.disk._crash_at = None
    assert live(machine, program) == result


def random_program(choose: random.Random) -> list[tuple[Any, ...]]:
    made: list[tuple[Any, ...]] = []
    for _ in range(choose.randrange(2, 7)):
        match choose.randrange(5):
            case 0 | 1:
                # Equal calls too: each is asked about on its own.
                made.append((choose.choice(["pay", "pay", "impatient"]),
                             choose.choice([10, 10, 9999]), choose.choice("ab")))  # fmt: skip
            case 2:
                made.append(("get", choose.choice("xy")))
            case 3:
                made.append(("get", choose.choice("xy"), choose.choice([0, 2, 30])))
            case 4:
                made.append(("sleep", choose.choice([0, 1, 100])))
    return made


def signals_for(program: list[tuple[Any, ...]], choose: random.Random) -> list[tuple[str, int]]:
    names = [op[1] for op in program if op[0] == "get"] + [choose.choice("xyz") for _ in range(3)]
    choose.shuffle(names)
    return [(name, number) for number, name in enumerate(names)]


def one_history(choose: random.Random) -> None:
    machine = Machine(choose, SimulatedDisk(seed=choose.randrange(1 << 30)))
    program = random_program(choose)
    machine.signals = signals_for(program, choose)
    deaths = [(choose.randrange(80), choose.choice([0, 0, 7, 60]),
               choose.choice([None, choose.randrange(1 << 30)]))
              for _ in range(choose.randrange(8))]  # fmt: skip
    with machine.time():
        end = run_to_the_end(machine, program, deaths)
        assert isinstance(end, list), end
        check(machine, program, end)


HISTORIES = 30


def test_random_people_and_random_crashes(rng: random.Random) -> None:
    for _ in range(HISTORIES):
        seed = rng.getrandbits(64)
        try:
            one_history(random.Random(seed))
        except BaseException as exc:
            exc.add_note(f"random.Random({seed})")
            raise


@pytest.mark.crash
@pytest.mark.slow
def test_many_random_people_and_random_crashes(rng: random.Random) -> None:
    for _ in range(50):
        test_random_people_and_random_crashes(rng)


PROGRAM: list[tuple[Any, ...]] = [
    ("get", "x"), ("pay", 10, "a"), ("sleep", 5), ("pay", 10, "a"), ("get", "x"), ("get", "y", 2),
]  # fmt: skip


def scripted(machine: Machine) -> None:
    """Everybody does what there is to do, at once, and the same each time."""
    if machine.disk._dead:
        raise Crash
    machine.send()
    for call in pending(machine.store, RUN):
        approve(machine.store, RUN, call, who="ann")


def swept(at: int, torn: int, power: int | None, park: float | None) -> Machine:
    """A run that dies once, at this call of the disk, whoever makes it."""
    machine = Machine(random.Random(0), SimulatedDisk(seed=1))
    machine.signals = [("x", 1), ("x", 2), ("z", 3)]
    machine.act = lambda: scripted(machine)
    machine.disk.crash_at(at, torn)
    with machine.time():
        for _ in range(20):
            try:
                end = live(machine, PROGRAM, park_after_s=park)
                if isinstance(end, InDoubtError):
                    operate(machine, end)
                elif isinstance(end, WaitingError) and not machine.disk._dead:
                    machine.now = max(machine.now, end.wake_at or 0)
                    scripted(machine)
            except Crash:
                pass
            if machine.disk._dead:
                dead = machine.disk
                machine.disk = (dead.after_process_death() if power is None
                                else dead.after_power_loss(power))  # fmt: skip
            elif isinstance(end, list):
                assert end == [1, 10, None, 10, 2, "timed out"]
                check(machine, PROGRAM, end)
                return machine
    raise AssertionError("not ended")


def disk_calls(park: float | None) -> int:
    return len(swept(1 << 30, 0, None, park).disk.calls)


@pytest.mark.parametrize("park", [None, 0.5])
def test_a_crash_at_some_calls_of_the_disk_of_whoever_is_at_work(
    park: float | None, rng: random.Random
) -> None:
    total = disk_calls(park)
    for at in rng.sample(range(total), 25):
        swept(at, rng.choice([0, 1, 9, 70]), rng.choice([None, rng.getrandbits(30)]), park)


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.parametrize("park", [None, 0.5])
def test_a_crash_at_every_call_of_the_disk_of_whoever_is_at_work(
    park: float | None, rng: random.Random
) -> None:
    for at in range(disk_calls(park)):
        for torn in (0, 1, 40, 90):
            for power in (None, rng.getrandbits(30), rng.getrandbits(30)):
                swept(at, torn, power, park)


def test_a_cancelled_run_pays_nothing_any_more(rng: random.Random) -> None:
    for _ in range(10):
        machine = Machine(random.Random(rng.getrandbits(64)), SimulatedDisk(seed=1))
        program = [("pay", 10, "a"), ("get", "never")]
        at = rng.randrange(20, 60)
        paid: list[int] = []

        def act(machine: Machine = machine, paid: list[int] = paid) -> None:
            if machine.disk._dead:
                raise Crash
            if not machine.cancelled:
                paid[:] = [len(machine.paid)]  # first: it may crash when all is said
                cancel(machine.store, RUN, who="ann")
                machine.cancelled = True
            else:
                machine.decide(approve)

        with machine.time():
            machine.act = act
            machine.disk.crash_at(at)
            end = live(machine, program)
            if isinstance(end, Crash):
                machine.disk = machine.disk.after_process_death()
                end = live(machine, program)
            machine.disk._crash_at = None
            assert isinstance(end, RunCancelledError), end
            assert len(machine.paid) == paid[0]
            assert isinstance(live(machine, program), RunCancelledError)
