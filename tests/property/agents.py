"""Agents as data, the world they act on, and the lives of a process that runs them.

An agent program is data, run by one interpreter as an async agent or as a plain one. What tools do
to the outside world is counted in a list that outlives every crash, together with each call's
idempotency key. Time is virtual and threads are taken in turn, so that a failure repeats:
`StuckError` is raised where a real process would hang. The oracle is the same program run without
a crash.

A new feature of the runtime comes in here: what it makes the agent's code do is a method of
`Interpreter`, what its tools may do is a rule in `licensed`, what it does to a log that is sound is
a line in `check_log`, and what people do about it is a line in `operate`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
import selectors
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import pytest

import eventlog._log
import recovery._agent
import recovery._drivers
import recovery._inbox
import recovery._turns
import recovery._waiting
from eventlog import Damage, EventLog, LogError, Snapshot
from eventlog._frame import Frame
from eventlog.testing import Crash, SimulatedDisk
from recovery import (
    Budget,
    CheckpointStore,
    DamagedRunError,
    DivergenceError,
    InDoubtError,
    OutcomeUnknown,
    PermanentError,
    RecoverableAgent,
    Resolution,
    Retry,
    RunEvent,
    RunFailedError,
    StoppedError,
    ToolError,
    current_call,
    resolve,
    signal,
    tool,
)
from recovery import events as run_events
from recovery._events import (
    AttemptFailed,
    CallAbandoned,
    CallFailed,
    CallIntended,
    CallResolved,
    CallRetried,
    CallReturned,
    RunResumed,
    RunStarted,
    StepStarted,
    ValueRecorded,
    decode,
)
from recovery._history import History, load
from recovery._keys import outer_call, step_of
from recovery._parts import is_portion
from recovery._snapshots import BrokenCheckpointError, is_left_over, restore
from recovery._values import unpack
from recovery.stores.protocol import LogStore
from tests.model.harm import flip, segments
from tests.property.recount import check_account

TASK, RUN = {"topic": "otters"}, "run"
LIVES_MAX = 80
PARKS = 40  # of one life's work; more means that resolving does not help

# -- a world in which a process can die


class StuckError(AssertionError):
    """Nothing can ever happen again, and the run has not ended."""


class Clock:
    """Time that passes only where something waits for it."""

    def __init__(self) -> None:
        self.now, self.requests = 0.0, 0
        self._before = 1.7e9  # seconds since 1970, when the present process began

    def begin(self) -> None:
        """Another process: its own clock starts anew, that on the wall goes on."""
        self._before += self.now
        self.now = self.requests = 0

    def time(self) -> float:
        """What the clock on the wall shows."""
        return self._before + self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def module(self) -> SimpleNamespace:
        return SimpleNamespace(
            monotonic=lambda: self.now, sleep=self.sleep, perf_counter=time.perf_counter,
            time=self.time, time_ns=lambda: int(self.time() * 1e9), gmtime=time.gmtime,
            strftime=time.strftime,
        )  # fmt: skip


class _Selector(selectors.SelectSelector):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise StuckError("the event loop waits for nothing")
        self._clock.now += max(0.0, timeout)
        return super().select(0)


class Loop(asyncio.SelectorEventLoop):
    """An event loop of virtual time, whose threads are calls that come a little later."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(_Selector(clock))
        self._clock = clock
        self.set_exception_handler(lambda loop, context: None)

    def time(self) -> float:
        return self._clock.now

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Any, *args: Any
    ) -> Any:
        future = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except BaseException as exc:
                future.set_exception(exc)
            else:
                future.set_result(result)

        self.call_soon(self.call_soon, work)
        return future


class Log(EventLog):
    """A log of which the tests remember what retention removes: they ask for all that was."""

    def truncate_before(self, lsn: int) -> int:
        disk = self._files
        assert isinstance(disk, SimulatedDisk)
        _removed.setdefault(disk, {}).update({one.lsn: one for one in read(disk).records})
        return super().truncate_before(lsn)


class Store(LogStore):
    """Runs on a simulated disk, in small segments."""

    def __init__(self, disk: SimulatedDisk, segment_size: int) -> None:
        super().__init__("runs", disk, "power")
        self.segment_size = segment_size
        self.log: EventLog | None = None

    def claim(self, run_id: str, takeover: bool = False) -> EventLog:
        path = self._path(run_id)
        log = Log.open(path, files=self._files, segment_size=self.segment_size, takeover=takeover)
        self.log = log
        return log


@dataclass
class Effect:
    """Something that a tool did outside."""

    key: str
    what: str
    policy: str
    lsn: int


@dataclass
class Began:
    """What the log held when the agent function started: calls by LSN."""

    last: int = 0
    settled: set[int] = field(default_factory=set)
    parked: list[int] = field(default_factory=list)
    made: set[str] = field(default_factory=set)  # idempotency keys, since then


@dataclass
class Arrival:
    """State and messages where an open program ends, and whether all that is recorded was used."""

    final: Any
    used_up: bool


@dataclass
class World:
    """All that outlives a process, and the process of the moment."""

    clock: Clock
    disk: SimulatedDisk
    segment_size: int = 1 << 20
    retention: dict[str, Any] = field(default_factory=dict)
    effects: list[Effect] = field(default_factory=list)
    results: dict[str, Any] = field(default_factory=dict)
    raised: set[Any] = field(default_factory=set)
    asked: Counter[str] = field(default_factory=Counter)
    seen: dict[Any, Any] = field(default_factory=dict)
    life: int = 0
    store: Store = None  # type: ignore[assignment]
    kill: tuple[int, bool] | None = None  # die at this effect from now, before it or behind it
    visit: tuple[int, Callable[[], None]] | None = None  # by somebody else, at this effect from now
    executed: int = 0
    entered: int = 0  # tools, since the agent function last started
    nonces: int = 0
    attempts: dict[str, int] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)  # attempts that raised, by key
    runner: Any = None
    stopping: bool = False  # somebody has asked the run to stop
    keys: dict[int, str] = field(default_factory=dict)  # idempotency keys, by the calls' LSNs
    begun: Began = None  # type: ignore[assignment]
    starts: int = 0  # of the agent function
    stops_at: str = "raise"  # what becomes of the agent at the end of an open program
    arrivals: list[Arrival] = field(default_factory=list)  # there, in this life
    handed: list[list[str]] = field(default_factory=list)  # arguments of calls, as they came back
    doubts: list[str] = field(default_factory=list)  # what reconcile hooks do, one after the other
    said: dict[int, list[str]] = field(default_factory=dict)  # what they and operators answered
    fence: int | None = None  # LSN up to which the log is this process's, once taken over
    harmed: set[int] = field(default_factory=set)  # LSNs damaged on purpose
    verdicts: dict[str, Resolution] = field(default_factory=dict)  # instead of calls; for oracles
    # State and messages as steps began with them, by the LSN before the record of that.
    boundaries: dict[int, Any] = field(default_factory=dict)
    restores: set[int] = field(default_factory=set)  # checkpoints found sound: LSNs
    budget: Budget | None = None  # of this life
    spared: set[int] = field(default_factory=set)  # bookings that an undo leaves alone: LSNs
    told: list[RunEvent] = field(default_factory=list)  # in this life
    final: Any = None
    problems: list[str] = field(default_factory=list)  # that an agent would take for a tool's

    def begin(self, kill: tuple[int, bool] | None = None) -> None:
        self.life += 1
        self.clock.begin()
        self.store = Store(self.disk, self.segment_size)
        self.kill = kill and (self.executed + kill[0], kill[1])
        self.visit = self.fence = self.budget = None
        self.stopping = False
        self.arrivals, self.handed = [], []
        self.started()

    def started(self) -> None:
        """The agent function starts: what may be executed depends on what the log holds now."""
        self.entered = 0
        self.begun = began(self.disk)
        # What is not in the log was lost, and its LSNs are taken again.
        last = self.begun.last
        self.boundaries = {lsn: x for lsn, x in self.boundaries.items() if lsn < last}
        self.restores = {lsn for lsn in self.restores if lsn <= last}
        self.keys = {lsn: key for lsn, key in self.keys.items() if lsn <= last}
        self.handed.append([])
        forget_values(self)

    @property
    def dead(self) -> bool:
        return self.disk._dead

    def die(self) -> None:
        self.disk._dead = True
        raise Crash

    def enter(self, policy: str) -> Any:
        """What every tool does first: the call, which must be one that may be executed."""
        if self.dead:
            raise Crash
        call = current_call()
        assert call is not None
        self.entered += 1
        problem = licensed(self, call, policy)
        if problem:
            self.problems.append(f"{call}: {problem}")
        if self.keys.setdefault(call.lsn, call.idempotency_key) != call.idempotency_key:
            self.problems.append(f"{call}: its idempotency key was {self.keys[call.lsn]}")
        self.begun.made.add(call.idempotency_key)
        self.attempts[call.idempotency_key] = call.attempt
        return call

    def effect(self, what: str, policy: str, result: Any) -> None:
        """What a tool does to the outside world, at the moment when it does it."""
        if self.dead:
            raise Crash
        call = current_call()
        assert call is not None
        number, self.executed = self.executed, self.executed + 1
        if self.kill == (number, False):
            self.die()
        self.effects.append(Effect(call.idempotency_key, what, policy, call.lsn))
        self.results[call.idempotency_key] = result
        if self.visit is not None and self.visit[0] == number:
            self.visit[1]()
        if self.kill == (number, True):
            self.die()

    def nonce(self) -> int:
        """A number that no other execution of a tool gets."""
        self.nonces += 1
        return self.nonces

    def happened(self, key: str) -> bool:
        return key in self.results


@dataclass(frozen=True)
class Read:
    """What a disk held after so many calls that change it, behind what retention has removed.

    ``oldest``: the LSN that the log itself begins at.
    """

    calls: int
    records: list[Any]
    damage: list[Damage]
    events: list[tuple[int, Any]]
    oldest: int = 1


_read: WeakKeyDictionary[SimulatedDisk, Read] = WeakKeyDictionary()
_removed: WeakKeyDictionary[SimulatedDisk, dict[int, Any]] = WeakKeyDictionary()


def read(disk: SimulatedDisk) -> Read:
    """The run's log, read once for each state of the disk: all that checks a run asks for it."""
    found = _read.get(disk)
    if found is None or found.calls != len(disk.calls):
        damage: list[Damage] = []
        sound, oldest = [], 1
        with (
            suppress(FileNotFoundError, eventlog.UnsupportedFormatError),
            EventLog.read(f"runs/{RUN}", files=disk) as reader,
        ):
            sound, oldest = list(reader.records(1, on_damage=damage.append)), reader.oldest_lsn
        removed = _removed.get(disk, {})
        sound = [removed[lsn] for lsn in sorted(removed) if lsn < oldest] + sound
        told = [(record.lsn, decode(record)) for record in sound]
        found = _read[disk] = Read(len(disk.calls), sound, damage, told, oldest)
    return found


def records(disk: SimulatedDisk, damage: list[Damage] | None = None) -> list[Any]:
    """All sound records of the run's log, and those that retention has removed."""
    found = read(disk)
    if damage is not None:
        damage += found.damage
    return list(found.records)


def events(disk: SimulatedDisk) -> Iterator[tuple[int, Any]]:
    return iter(read(disk).events)


def outcomes(disk: SimulatedDisk) -> list[tuple[int, int, Any]]:
    """(LSN, call, event) of all outcomes that stand, in the order of the log."""
    found: list[tuple[int, int, Any]] = []
    for lsn, event in events(disk):
        if isinstance(event, CallResolved) and event.how == "retry":
            found = [one for one in found if one[1] != event.call]  # of a failure, as a rule
        elif isinstance(event, CallReturned | CallFailed | CallResolved):
            found.append((lsn, event.call, event))
    return found


def in_doubt(disk: SimulatedDisk) -> list[tuple[int, CallIntended]]:
    """(LSN, intent) of the calls of which nothing says how they ended, nor that to make them again.

    What was called inside a call that has an outcome is covered by it; and inside one whose intent
    is lost, by the one that is recorded in its place.
    """
    made: dict[int, CallIntended] = {}
    last: dict[int, Any] = {}
    for lsn, event in events(disk):
        if isinstance(event, CallIntended):
            made[lsn] = event
        elif isinstance(event, OF_CALLS):
            last[event.call] = event

    def over(call: int) -> bool:
        match last.get(call):
            case CallReturned() | CallFailed():
                return True
            case CallResolved(how=how):
                return how != "retry"
            case CallAbandoned(went_on=went_on):
                return went_on
        return False

    def covered(scope: str) -> bool:
        outer = outer_call(scope)  # whose own record may be lost
        return outer > 0 and (outer not in made or over(outer) or covered(made[outer].scope))

    return [(lsn, intent) for lsn, intent in made.items()
            if not (over(lsn) or isinstance(last.get(lsn), AttemptFailed | CallResolved))
            and not covered(intent.scope)]  # fmt: skip


def began(disk: SimulatedDisk) -> Began:
    begun = Began(max((lsn for lsn, _ in events(disk)), default=0))
    begun.settled = {call for _, call, _ in outcomes(disk)}
    begun.parked = [lsn for lsn, intent in in_doubt(disk) if intent.after_crash == "park"]
    return begun


def licensed(world: World, call: Any, policy: str) -> str:
    """Why a tool must not be executed now; empty if it may.

    By policy: a call that is safe to repeat may be made once in each start of the agent; any other
    needs an intent that is durable, and for each further attempt somebody who said so.
    """
    begun, log = world.begun, world.store.log
    if call.lsn in begun.settled and not failed_with_its_attempt(world.disk, call.lsn):
        return "it had an outcome and is executed again"
    if policy == "retry":
        twice = call.idempotency_key in begun.made and not refused(world, call)
        return "twice without a crash between" if twice else ""
    if log is None or log.durable_lsn < call.lsn:
        return "it starts without a durable intent"
    if world.fence is not None and call.lsn > world.fence:
        return "the run has another owner now"
    before = world.attempts.get(call.idempotency_key, 0)
    if call.attempt <= before:
        return f"it is attempt {call.attempt}, and {before} was made"
    if call.lsn > begun.last and call.attempt == 1:
        return f"a new call beside LSN {begun.parked} in doubt" if begun.parked else ""
    return licensed_again(world, call, policy)


def licensed_again(world: World, call: Any, policy: str) -> str:
    """Another attempt at a call in doubt: it is recorded, and somebody said so as often."""
    assert world.store.log is not None
    durable_lsn = world.store.log.durable_lsn
    held = [event for lsn, event in events(world.disk) if lsn <= durable_lsn]
    # Of a call behind a loss nobody reports that its outcome is unknown: a person has to say.
    never = policy == "report" and not world.harmed
    if never or CallRetried(call.lsn, call.attempt) not in held:
        return f"attempt {call.attempt} without a durable record of it"
    said = sum((isinstance(event, CallResolved) and (event.call, event.how) == (call.lsn, "retry"))
               or (isinstance(event, AttemptFailed) and event.call == call.lsn)
               for event in held)  # fmt: skip
    said += sum(lsn > call.lsn for lsn in world.harmed)  # that may have said so
    if said < call.attempt - 1:
        return f"attempt {call.attempt}, and {said} times somebody said so"
    return ""


def failed_with_its_attempt(disk: SimulatedDisk, call: int) -> bool:
    """Whether the call failed inside an attempt, at the call around it, that then failed as well;
    so that it may be made again."""
    outer = last = 0
    for lsn, event in events(disk):
        if lsn == call and isinstance(event, CallIntended):
            outer = outer_call(event.scope)
        elif isinstance(event, CallReturned | CallFailed) and event.call == call:
            last = lsn if isinstance(event, CallFailed) else 0
        elif isinstance(event, AttemptFailed) and event.call == outer and last:
            return True
    return False


def refused(world: World, call: Any) -> bool:
    """Whether the attempt before this one is recorded as one that raised."""
    return any(isinstance(event, AttemptFailed) and (event.call, event.attempt + 1)
               == (call.lsn, call.attempt) for _, event in events(world.disk))  # fmt: skip


# -- programs


@dataclass(frozen=True)
class Do:
    """One call: ``x`` names the argument, ``then`` what becomes of the result."""

    tool: str
    x: Any
    call_id: str = ""
    direct: bool = False
    then: str = ""
    delay: int = 0
    late: int = 0  # yields between the result and what becomes of it
    caught: bool = True


@dataclass(frozen=True)
class Branch:
    """A coroutine of a gather: yields, a call, yields, perhaps a call with the first's result."""

    before: int
    first: Do
    between: int
    second: Do | None = None


@dataclass(frozen=True)
class Program:
    prologue: tuple[Any, ...]
    steps: tuple[tuple[Any, ...], ...]
    every: int = 1
    segment_size: int = 1 << 20
    plain: bool = False
    open: bool = False  # there is more code behind its end, which nobody has written yet


class FrontierError(Exception):
    """An open program has come to its end."""


class AgentError(Exception):
    """Declared by a tool as raised."""


class HiddenError(Exception):
    """Not declared."""


LONG = 99  # stands for seconds instead of turns


async def yields(count: int) -> None:
    if count == LONG:
        await asyncio.sleep(3)
        return
    for _ in range(count):
        await asyncio.sleep(0)


def timeless(x: Any) -> Any:
    """A value without what differs from one execution to another."""
    if isinstance(x, dict):
        return {key: timeless(value) for key, value in x.items() if key != "nonce"}
    return [timeless(one) for one in x] if isinstance(x, list | tuple) else x


def nonces(x: Any) -> set[int]:
    """The executions whose results are in a value."""
    if isinstance(x, dict):
        found = {x["nonce"]} if "nonce" in x else set()
        return found.union(*map(nonces, x.values()))
    return set().union(*map(nonces, x)) if isinstance(x, list | tuple) else set()


def shown(x: Any) -> Any:
    """A short plain stand-in for an argument."""
    if isinstance(x, list) and x[:1] == ["value"]:
        return "value"  # another one in every run
    text = repr(timeless(x))
    return x if isinstance(x, int | str) and len(text) < 40 else f"#{zlib.crc32(text.encode()):x}"


def answer(world: World, name: str, x: Any) -> Any:
    """A tool's result: but for the nonce the same whenever the argument is the same."""
    what = shown(x)
    size = zlib.crc32(repr(what).encode()) % 60
    text = "r" * (5000 if size == 7 else size)
    return {"tool": name, "x": what, "text": text, "nonce": world.nonce()}


class Outside:
    """The outside world, asked what became of a call; now and then it is in doubt itself."""

    def __init__(self, world: World) -> None:
        self.world = world

    def find(self, key: str) -> list[Any]:
        return [self.world.results[key]] if self.world.happened(key) else []

    async def reconcile(self, call: Any) -> Resolution:
        how = self.answer(call)
        await asyncio.sleep(0)
        return how

    def hesitant(self, call: Any) -> Resolution:
        self.world.asked[call.idempotency_key] += 1
        if self.world.asked[call.idempotency_key] % 2:
            if self.world.asked.total() % 2:
                raise OSError("the outside world does not answer")
            return Resolution.unknown()
        return self.answer(call)

    def answer(self, call: Any) -> Resolution:
        match self.world.doubts.pop(0) if self.world.doubts else "":
            case "raises":
                raise OSError("the outside world does not answer")
            case "unknown":
                return Resolution.unknown()
            case "nonsense":
                return "no resolution"  # type: ignore[return-value]
            case "dies":
                self.world.die()
        found = self.find(call.idempotency_key)
        how = Resolution.outcome(found[0]) if found else Resolution.retry()
        self.world.said.setdefault(call.lsn, []).append(how.how)
        return how


def make_tools(world: World) -> dict[str, Callable[..., Any]]:
    """Tools of every policy and kind, whose effects the world counts."""

    def plain_tool(name: str, policy: str, **options: Any) -> Callable[..., Any]:
        def body(x: Any, delay: int = 0) -> Any:
            world.enter(policy)
            result = answer(world, name, x)
            world.effect(f"{name} {shown(x)}", policy, result)
            return result

        body.__name__ = name
        return body if name == "undecorated" else tool(**options)(body)

    def async_tool(name: str, policy: str, **options: Any) -> Callable[..., Any]:
        async def body(x: Any, delay: int = 0) -> Any:
            world.enter(policy)
            await yields(delay)
            result = answer(world, name, x)
            world.effect(f"{name} {shown(x)}", policy, result)
            await yields(delay // 2)
            return result

        body.__name__ = name
        return body if name == "undecorated" else tool(**options)(body)

    def failing(name: str, error: type[Exception], **options: Any) -> Callable[..., Any]:
        @tool(name=name, **options)
        async def fail(x: Any, delay: int = 0) -> Any:
            world.enter(options.get("after_crash", "park"))
            await yields(delay)
            raise error(f"cannot {shown(x)}")

        return fail

    def refuses(call: Any, times: int) -> bool:
        """Whether the outside world refuses this attempt, as it does so many times."""
        world.refused[call.idempotency_key] += 1
        return world.refused[call.idempotency_key] <= times

    def flaky_tool(name: str, policy: str, sync: bool = False, **options: Any) -> Any:
        """Refused as often as its argument says, and then done."""

        def attempt(x: Any) -> Any:
            call = world.enter(policy)
            if refuses(call, zlib.crc32(repr(shown(x)).encode()) % 3):
                raise ConnectionError("refused")
            result = answer(world, name, x)
            world.effect(f"{name} {shown(x)}", policy, result)
            return result

        async def body(x: Any, delay: int = 0) -> Any:
            await yields(delay)
            return attempt(x)

        def plain(x: Any, delay: int = 0) -> Any:
            return attempt(x)

        retry = Retry(attempts=4, delay_s=2, on=ConnectionError)
        return tool(name=name, retry=retry, **options)(plain if sync else body)

    def hanging_tool(name: str, policy: str, **options: Any) -> Any:
        """Does it, and never says so."""

        async def body(x: Any, delay: int = 0) -> Any:
            call = world.enter(policy)
            if policy == "retry" and not refuses(call, 1):
                return answer(world, name, x)
            if policy != "retry":
                world.effect(f"{name} {shown(x)}", policy, answer(world, name, x))
            await yields(LONG)
            raise AssertionError("it was not timed out")

        return tool(name=name, timeout_s=1, **options)(body)

    outside = Outside(world)

    @tool(after_crash="retry")
    def look(key: str) -> Any:
        world.enter("retry")
        return outside.find(key)

    tools: dict[str, Callable[..., Any]] = {
        "park": async_tool("park", "park"),
        "undecorated": async_tool("undecorated", "park"),
        "retry": async_tool("retry", "retry", after_crash="retry"),
        "report": async_tool("report", "report", after_crash="report"),
        "reconcile": async_tool("reconcile", "reconcile", reconcile=outside.reconcile),
        "hesitant": async_tool("hesitant", "reconcile", reconcile=outside.hesitant),
        "sync_park": plain_tool("sync_park", "park"),
        "sync_retry": plain_tool("sync_retry", "retry", after_crash="retry"),
        "fail": failing("fail", ValueError),
        "fail_declared": failing("fail_declared", AgentError, raises=[AgentError]),
        "fail_hidden": failing("fail_hidden", HiddenError, after_crash="retry"),
        "fail_permanently": failing("fail_permanently", PermanentError, raises=[PermanentError]),
        "look": look,
        # After an edit of the policy: the same names in the log.
        "park, repeatable": async_tool("park", "retry", after_crash="retry"),
        "retry, parking": async_tool("retry", "park"),
        "sync_park, repeatable": plain_tool("sync_park", "retry", after_crash="retry"),
        "sync_retry, parking": plain_tool("sync_retry", "park"),
        "flaky": flaky_tool("flaky", "park"),
        "flaky_retry": flaky_tool("flaky_retry", "retry", after_crash="retry"),
        "sync_flaky": flaky_tool("sync_flaky", "park", sync=True),
        "hang_retry": hanging_tool(
            "hang_retry", "retry", after_crash="retry", retry=Retry(delay_s=1)
        ),
        "hang_report": hanging_tool("hang_report", "report", after_crash="report"),
        "hang_reconcile": hanging_tool("hang_reconcile", "reconcile", reconcile=outside.reconcile),
    }
    tools |= make_stream_tools(world) | make_undoable_tools(world)
    return tools | make_outer_tools(world, tools)


def make_stream_tools(world: World) -> dict[str, Callable[..., Any]]:
    """Tools whose results come in parts, with an effect in the middle."""

    def begun(name: str, policy: str, x: Any) -> tuple[list[Any], Callable[[], None]]:
        world.enter(policy)
        result = answer(world, name, x)
        return parts(result), lambda: world.effect(f"{name} {shown(x)}", policy, result)

    def streaming(name: str, policy: str, **options: Any) -> Callable[..., Any]:
        @tool(name=name, combine=dict, split=parts, **options)
        async def stream(x: Any, delay: int = 0) -> AsyncIterator[Any]:
            chunks, effect = begun(name, policy, x)
            yield chunks[0]
            await yields(delay)
            effect()
            for chunk in chunks[1:]:
                yield chunk

        return stream

    @tool(combine=dict, split=parts)
    def sync_stream(x: Any, delay: int = 0) -> Iterator[Any]:
        chunks, effect = begun("sync_stream", "park", x)
        yield chunks[0]
        effect()
        yield from chunks[1:]

    return {
        "stream": streaming("stream", "park"),
        "stream_retry": streaming("stream_retry", "retry", after_crash="retry"),
        "sync_stream": sync_stream,
    }


def parts(result: dict[str, Any]) -> list[Any]:
    return [[key, value] for key, value in result.items()]


UNDOABLE = ("booking", "sync_booking")


def undoable(event: Any) -> bool:
    return isinstance(event, CallIntended) and event.tool in UNDOABLE


def make_undoable_tools(world: World) -> dict[str, Callable[..., Any]]:
    """Tools with compensations, one of which may be repeated."""

    def undoing(policy: str, **options: Any) -> Callable[..., Any]:
        @tool(**options)
        def unbook(call: Any, outcome: Any) -> Any:
            if call.lsn in world.spared:
                return None
            world.enter(policy)
            result = ["undone", call.tool, timeless(outcome)]
            world.effect(f"undo-{call.tool} {shown(call.args[0])}", policy, result)
            return result

        return unbook

    @tool(undo=undoing("park"))
    async def booking(x: Any, delay: int = 0) -> Any:
        world.enter("park")
        await yields(delay)
        result = answer(world, "booking", x)
        world.effect(f"booking {shown(x)}", "park", result)
        return result

    @tool(undo=undoing("retry", after_crash="retry"))
    def sync_booking(x: Any, delay: int = 0) -> Any:
        world.enter("park")
        result = answer(world, "sync_booking", x)
        world.effect(f"sync_booking {shown(x)}", "park", result)
        return result

    return {"booking": booking, "sync_booking": sync_booking}


def make_outer_tools(world: World, tools: dict[str, Any]) -> dict[str, Callable[..., Any]]:
    """Tools that call tools, and have no effect of their own."""
    inner_park, inner_retry = tools["park"], tools["retry"]

    async def outer(x: Any, delay: int = 0) -> Any:
        call = current_call()
        world.enter("retry" if call is not None and call.tool == "outer_retry" else "park")
        first = await inner_park(["inner", shown(x)], delay)
        await yields(delay)
        second, third = await asyncio.gather(
            inner_retry(first["x"], 1), inner_park(["other", shown(x)])
        )
        return [first, second["x"], third["x"]]

    def refused_at_first(x: Any) -> Any:
        """A side effect that is refused as often as its argument says, and has no retry=."""
        call = world.enter("park")
        world.refused[call.idempotency_key] += 1
        if world.refused[call.idempotency_key] <= zlib.crc32(repr(shown(x)).encode()) % 3:
            raise ConnectionError("refused")
        result = answer(world, "once", x)
        world.effect(f"once {shown(x)}", "park", result)
        return result

    @tool(name="once")
    async def once(x: Any, delay: int = 0) -> Any:
        await yields(delay)
        return refused_at_first(x)

    sync_once = tool(name="sync_once")(refused_at_first)
    again = Retry(attempts=5, delay_s=2, on=ConnectionError)

    @tool(after_crash="retry", retry=again)
    async def outer_again(x: Any, delay: int = 0) -> Any:
        """Its next attempt is served what returned in the last one, also beside what failed."""
        world.enter("retry")
        first = await inner_park(["inner", shown(x)], delay)
        second, third, fourth = await asyncio.gather(
            inner_retry(first["x"], 1), once(["first", shown(x)], delay),
            once(["second", shown(x)], 2),
        )  # fmt: skip
        return [first, second["x"], third["x"], fourth["x"]]

    sync_park = tools["sync_park"]

    @tool(after_crash="retry", retry=again)
    def sync_outer_again(x: Any, delay: int = 0) -> Any:
        world.enter("retry")
        return [sync_park(["inner", shown(x)]), sync_once(["once", shown(x)])]

    @tool
    def sync_outer(x: Any, delay: int = 0) -> Any:
        world.enter("park")
        return [sync_park(["inner", shown(x)]), sync_park(["inner", shown(x)])]

    return {
        "outer": tool(name="outer")(outer),
        "outer_retry": tool(name="outer_retry", after_crash="retry")(outer),
        "sync_outer": sync_outer,
        "outer_again": outer_again,
        "sync_outer_again": sync_outer_again,
    }


CAREFUL = (
    "park", "retry", "report", "reconcile", "hesitant", "outer", "outer_retry", "outer_again",
    "sync_park", "sync_retry", "undecorated", "fail", "fail_declared", "fail_hidden",
    "fail_permanently", "flaky", "flaky_retry", "hang_retry", "hang_report", "hang_reconcile",
    "stream", "stream_retry", "sync_stream",
)  # fmt: skip
PLAIN = ("sync_park", "sync_retry", "sync_outer", "park", "reconcile", "fail", "undecorated",
         "sync_flaky", "stream", "sync_stream", "sync_outer_again")  # fmt: skip
STREAMS = {"stream", "stream_retry", "sync_stream"}
SYNC = {"sync_park", "sync_retry", "sync_outer", "sync_flaky", "sync_outer_again"}
OF_CALLS = CallReturned | CallFailed | CallResolved | CallRetried | AttemptFailed | CallAbandoned


class Interpreter:
    """Runs a program as an agent. In plain agents nothing ever waits."""

    def __init__(self, world: World, program: Program, run: Any) -> None:
        self.world, self.program, self.run = world, program, run
        self.tools = make_tools(world)
        self.env: dict[str, Any] = {}
        self.tasks: dict[str, asyncio.Task[Any]] = {}

    async def agent(self) -> Any:
        run, steps = self.run, self.program.steps
        self.world.starts += 1
        self.world.started()
        await self.ops(self.program.prologue)
        if not steps:
            pass
        elif self.program.plain:
            for _ in run.steps():
                if await self.step(steps):
                    break
        else:
            async for _ in run.steps():
                if await self.step(steps):
                    break
        if self.program.open:
            self.arrive()
        for name in list(self.tasks):
            await self.join(name)
        self.world.final = self.plain_final()
        return {"state": json.loads(json.dumps(run.state)), "count": len(run.messages)}

    def plain_final(self) -> Any:
        return json.loads(json.dumps([self.run.state, list(self.run.messages)]))

    def arrive(self) -> None:
        used_up = self.run.missing() == (0, "")
        self.world.arrivals.append(Arrival(self.plain_final(), used_up))
        if self.world.stops_at == "die":
            self.world.die()
        raise FrontierError

    async def step(self, steps: tuple[tuple[Any, ...], ...]) -> bool:
        self.env = {}
        log = self.world.store.log
        assert log is not None
        self.world.boundaries.setdefault(log.last_lsn - 1, self.plain_final())
        await self.ops(steps[self.run.step - 1])
        return bool(self.run.step == len(steps))

    async def ops(self, ops: tuple[Any, ...]) -> None:
        for op in ops:
            if self.world.dead:
                raise Crash
            await getattr(self, op[0])(*op[1:])

    def value(self, x: Any) -> Any:
        match x:
            case "last":
                return self.env.get("last", "none")
            case "messages":
                return self.run.messages
            case "count":
                return len(self.run.messages)
            case "state":
                # When a task in the background leaves its result there depends on time.
                return [key for key in sorted(self.run.state) if not key.startswith("background")]
            case "big":
                return "big" * 2000
        return x

    # -- messages and state

    async def append(self, value: Any) -> None:
        self.run.messages.append("x" * 700 if value == "long" else value)

    async def edit(self, index: int, value: Any) -> None:
        if self.run.messages:
            self.run.messages[index % len(self.run.messages)] = {"edited": value}

    async def trim(self, start: int, size: int) -> None:
        del self.run.messages[start : start + size]

    async def replace(self, start: int, values: list[Any]) -> None:
        self.run.messages[start:] = values

    async def insert(self, index: int, value: Any) -> None:
        self.run.messages.insert(index, value)

    async def pop(self, index: int) -> None:
        if self.run.messages:
            last = self.run.messages.pop(index % len(self.run.messages))
            self.env["last"] = json.loads(json.dumps(last))

    async def set(self, key: str, value: Any) -> None:
        self.run.state[key] = self.value(value)

    async def nest(self, key: str, value: Any) -> None:
        inner = self.run.state.setdefault("nested", {})
        inner.setdefault(key, []).append(value)

    async def forget(self, key: str) -> None:
        self.run.state.pop(key, None)

    async def become(self, state: dict[str, Any], messages: list[Any] | None) -> None:
        self.run.state = state
        if messages is not None:
            self.run.messages = messages

    # -- time and the outside

    async def rest(self, seconds: int) -> None:
        began = self.world.clock.time()
        slept = self.run.sleep(seconds)
        if not self.program.plain:
            await slept
        # Perhaps in an earlier life, perhaps in parts of several; never longer than it was to be.
        if self.world.clock.time() - began > seconds + 1e-3:
            self.world.problems.append(f"a sleep of {seconds} s took longer")

    async def hear(self, number: int, limit: int | None) -> None:
        """Somebody sends something, and it is waited for; or nobody does, and that ends too."""
        name = f"{self.run.step} {number}"
        if limit is None:
            signal(self.world.store, RUN, name, [number], key=name)
        try:
            heard = self.run.wait_for(name, limit)
            heard = heard if self.program.plain else await heard
        except TimeoutError:
            heard = "nothing"
        if (heard == "nothing") != (limit is not None):
            self.world.problems.append(f"heard {heard} of signal {name}")
        self.run.messages.append(heard)

    async def pause(self, count: int) -> None:
        if not self.program.plain:
            await yields(count)

    # -- calls

    async def call(self, do: Do) -> None:
        self.env["last"] = await self.one(do)

    async def within(self, what: str, do: Do) -> None:
        """A call that an edit has moved into a task, or into another tool."""
        if what == "task":
            self.env["last"] = await asyncio.create_task(self.one(do))
            return
        try:
            self.env["last"] = await self.run.call(self.inside, do.tool, do.x, do.delay)
        except Exception as exc:
            if not do.caught:
                raise
            self.env["last"] = ["failed", type(exc).__name__, str(exc)]

    async def inside(self, name: str, x: Any, delay: int) -> Any:
        function = self.tools[name]
        result = function(x, delay)
        return result if name in SYNC else await result

    async def one(self, do: Do, x: Any = None) -> Any:
        """Make one call, find out what became of it if nobody knows, keep its result."""
        x = self.value(do.x) if x is None else x
        try:
            result = await self.made(do, x)
        except Exception as exc:
            if not do.caught:
                raise
            result = ["failed", type(exc).__name__, str(exc)]
        again = 0
        while isinstance(result, OutcomeUnknown):
            again += 1
            found = await self.made(Do("look", ""), result.idempotency_key)
            call_id = f"{do.call_id or do.tool}-again-{again}"
            other = replace(do, call_id=call_id, direct=False)
            result = found[0] if found else await self.made(other, x)
        await yields(do.late)
        if do.then == "append":
            self.run.messages.append(result)
        elif do.then == "wrap":
            self.run.messages.append({"role": "tool", "content": result})
        elif do.then == "state":
            self.run.state["result"] = result
        elif do.then:
            self.run.state[do.then] = result
        return result

    async def made(self, do: Do, x: Any) -> Any:
        outcome = True
        try:
            return await self.asked(do, x)
        except Exception as exc:
            outcome = not isinstance(exc, OSError | LogError)  # else the disk has failed
            raise
        except BaseException:  # the run stops, or the coroutine is cancelled
            outcome = False
            raise
        finally:
            if isinstance(x, str) and outcome:
                self.world.handed[-1].append(x)

    async def asked(self, do: Do, x: Any) -> Any:
        how = self.world.verdicts.get(x) if isinstance(x, str) else None
        if how is not None:
            if how.how == "fail":
                raise ToolError("resolved as failed", how.value, "")
            return how.value
        function = self.tools[do.tool]
        args = (x,) if do.tool == "look" else (x, do.delay)
        if do.tool in STREAMS:
            return await self.streamed(do, args)
        if self.program.plain:
            if do.direct and do.tool in SYNC:
                return function(*args)
            return self.run.call(function, *args, call_id=do.call_id)
        if do.direct and do.tool != "undecorated":
            result = function(*args)
            return result if do.tool in SYNC else await result
        return await self.run.call(function, *args, call_id=do.call_id)

    async def streamed(self, do: Do, args: tuple[Any, ...]) -> Any:
        """Read a stream; its chunks are those of its result, live as on replay."""
        function, chunks = self.tools[do.tool], list[Any]()
        if do.direct:
            stream = function(*args)
        else:
            stream = self.run.stream(function, *args, call_id=do.call_id)
        if self.program.plain:
            chunks += stream
        else:
            async with stream:
                async for chunk in stream:
                    chunks.append(chunk)
                    await yields(do.late)
        if chunks != parts(stream.result):
            self.world.problems.append(f"{chunks} are the chunks of {stream.result}")
        return stream.result

    async def undo(self, spared: int = 0) -> None:
        """Undo all; in oracles of forks, do as if the first ``spared`` bookings were not to be."""
        booked = [lsn for lsn, event in events(self.world.disk) if undoable(event)]
        self.world.spared = set(booked[:spared])
        undone = self.run.undo(tools=[self.tools[name] for name in UNDOABLE])
        if not self.program.plain:
            undone = await undone
        self.run.state["undone"] = [[one["tool"], one["result"]] for one in undone
                                    if one["call"] not in self.world.spared]  # fmt: skip

    async def patience(self, do: Do) -> None:
        """Give a call up after a second."""
        try:
            async with asyncio.timeout(1):
                self.env["last"] = await self.made(do, self.value(do.x))
        except TimeoutError:
            self.env["last"] = "given up"

    async def branch(self, branch: Branch) -> Any:
        await yields(branch.before)
        result = await self.one(branch.first)
        await yields(branch.between)
        return result if branch.second is None else await self.one(branch.second, shown(result))

    async def gather(self, branches: tuple[Branch, ...]) -> None:
        start = len(self.run.messages)
        results = await asyncio.gather(*map(self.branch, branches))
        self.normalize(start)
        self.run.state["gathered"] = results

    async def each(self, branches: tuple[Branch, ...]) -> None:
        """Takes the outcomes as they come."""
        start = len(self.run.messages)
        # As tasks: coroutines would be begun in the order of a set.
        tasks = [asyncio.create_task(self.branch(branch)) for branch in branches]
        for first in asyncio.as_completed(tasks):
            self.run.messages.append(await first)
        self.normalize(start)

    async def race(self, branches: tuple[Branch, ...]) -> None:
        async def one(branch: Branch) -> None:
            await self.branch(branch)
            self.run.state.setdefault("order", []).append(branch.first.x)

        await asyncio.gather(*map(one, branches))

    async def group(self, branches: tuple[Branch, ...]) -> None:
        start = len(self.run.messages)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self.branch(branch)) for branch in branches]
            self.run.state["grouped"] = [task.result() for task in tasks]
        except* (ValueError, AgentError):
            self.run.state["grouped"] = "failed"
        self.normalize(start)

    def normalize(self, start: int) -> None:
        # Which branch appends first depends on time; what comes after must not.
        self.run.messages[start:] = sorted(
            self.run.messages[start:], key=lambda message: repr(timeless(message))
        )

    async def start(self, name: str, branch: Branch) -> None:
        self.tasks[name] = asyncio.create_task(self.branch(branch))

    async def join(self, name: str) -> None:
        if name in self.tasks:
            await self.tasks.pop(name)

    # -- values of the outside world, and errors

    async def ask(self, kind: str, number: int, use: str) -> None:
        value = getattr(self.run, kind)()
        kept = self.world.seen.setdefault((self.run.step, number), value)
        if kept != value:
            self.world.problems.append(f"{kind} was {kept!r} and is {value!r} after the crash")
        if use:
            await self.made(Do(use, ""), ["value", value])

    async def fail_once(self, number: int) -> None:
        if (self.run.step, number) not in self.world.raised:
            self.world.raised.add((self.run.step, number))
            raise RuntimeError("the agent fails once")

    async def give_up(self) -> None:
        raise PermanentError("enough")


def make_agent(world: World, program: Program) -> Callable[..., Any]:
    async def agent(run: Any) -> Any:
        return await Interpreter(world, program, run).agent()

    def plain(run: Any) -> Any:
        try:
            Interpreter(world, program, run).agent().send(None)
        except StopIteration as done:
            return done.value
        raise AssertionError("a plain agent waits")

    return plain if program.plain else agent


# -- lives

ENDS = {
    InDoubtError: "parked",
    RunFailedError: "failed",
    DivergenceError: "diverged",
    DamagedRunError: "damaged",
    FrontierError: "frontier",
    StoppedError: "stopped",
}


@dataclass
class End:
    """How a life ended."""

    how: str
    value: Any = None


def live(
    world: World, program: Program, job: Callable[[], Coroutine[Any, Any, Any]] | None = None
) -> End:
    """One life of the agent's process on the world's disk, to its end or death."""

    told = world.told = list[RunEvent]()

    async def run() -> Any:
        agent = make_agent(world, program)
        store = CheckpointStore(world.store, **world.retention)
        runner = RecoverableAgent(
            agent, store, program.every, max_recoveries=1 if program.open else 3,
            on_event=told.append, budget=world.budget,
        )  # fmt: skip
        world.runner = runner
        if program.plain:
            return runner.run_with_recovery_sync(TASK, RUN)
        return await runner.run_with_recovery(TASK, RUN)

    loop = Loop(world.clock)
    try:
        if program.plain and job is None:
            run().send(None)
            raise AssertionError("a plain agent waits")
        return End("finished", loop.run_until_complete((job or run)()))
    except StopIteration as done:
        return End("finished", done.value)
    except BaseException as exc:
        if world.dead:  # whatever the agent made of it: a dead process does nothing
            return End("crashed")
        return End(
            next((how for kind, how in ENDS.items() if isinstance(exc, kind)), "raised"), exc
        )
    finally:
        bury(loop)
        if world.problems:
            raise AssertionError(world.problems[0])


def bury(loop: Loop) -> None:
    """Leave nothing of a dead process running."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    for task in tasks:
        if not task.cancelled():
            task.exception()
    loop.close()


BY_HAND = "by hand"  # why a call was resolved with what it did not return


def operate(world: World, parked: InDoubtError) -> None:
    """What an operator does: look outside whether it happened, and say so."""
    for call in parked.calls:
        how = Resolution.retry()
        if world.happened(call.idempotency_key):
            how = Resolution.outcome(world.results[call.idempotency_key])
        settle(world, call.lsn, how)


def settle(world: World, call: int, how: Resolution, why: str = "") -> None:
    world.said.setdefault(call, []).append(how.how)
    resolve(world.store, RUN, call, how, who="operator", why=why)


def verdicts(disk: SimulatedDisk) -> dict[str, Resolution]:
    """What the agent got instead of calls' own outcomes, by their arguments."""
    calls = {lsn: event for lsn, event in events(disk) if isinstance(event, CallIntended)}
    found: dict[str, Resolution] = {}
    for _, event in events(disk):
        if isinstance(event, CallResolved) and (args := calls[event.call].args):
            given = args[0][0]
            if not isinstance(given, str):
                continue  # a list, or what run.now() gave: the oracle's is not the same
            found.pop(given, None)  # the last word counts: it may have been tried again
            if event.why == BY_HAND:
                found[given] = Resolution(event.how, event.value)  # type: ignore[arg-type]
    return found


class Everything(set[Any]):
    """Contains all: the errors of its own that an agent has seen already."""

    def __contains__(self, item: object) -> bool:
        return True


def die_and_return(world: World, power: int | None) -> None:
    """The disk for the next process. ``power``: the seed of a power loss."""
    dead = world.disk
    process = dead.after_process_death()
    _removed[process] = _removed.get(dead, {})
    log = world.store.log
    acknowledged = 0 if log is None else log.durable_lsn
    damage: list[Damage] = []
    before = {record.lsn: record for record in records(process, damage)}
    after = process if power is None else dead.after_power_loss(power)
    _removed[after] = _removed[process]
    found = {record.lsn: record for record in records(after, damage)}
    assert {one.first_lsn for one in damage} <= world.harmed, damage
    for lsn in range(oldest(after), acknowledged + 1):
        if lsn in world.harmed:
            continue
        assert lsn in before and lsn in found, f"LSN {lsn} was acknowledged and is gone"
        assert found[lsn] == before[lsn]
    world.disk = after


def oldest(disk: SimulatedDisk) -> int:
    """The LSN that the run's log begins at: 1 unless retention has removed some records."""
    return read(disk).oldest


def forget_values(world: World) -> None:
    """A value that is not in the log may be another one now."""
    kept = [event.value for _, event in events(world.disk) if isinstance(event, ValueRecorded)]
    world.seen = {key: value for key, value in world.seen.items() if value in kept}


@dataclass
class Plan:
    """When the lives of a run end: one entry for each, the last ones live on."""

    at: tuple[tuple[str, int, int], ...]  # ("disk", call, torn size) or ("effect", nth, behind it)
    power: tuple[int | None, ...] = ()

    def begin(self, world: World) -> None:
        index = world.life
        kind, number, how = self.at[index] if index < len(self.at) else ("", 0, 0)
        world.begin((number, bool(how)) if kind == "effect" else None)
        if kind == "disk":
            world.disk.crash_at(number, how)

    def seed(self, life: int) -> int | None:
        return self.power[life - 1] if 0 < life <= len(self.power) else None


def lives(world: World, program: Program, plan: Plan) -> End:
    """Live, die, be resolved and live again until the run has ended."""
    parks = 0
    while world.life < LIVES_MAX:
        plan.begin(world)
        end = live(world, program)
        while end.how == "parked" and parks < PARKS:
            parks += 1
            parked = end.value
            try:
                operate(world, parked)
            except Crash:
                end = End("crashed")
                break
            end = live(world, program)
        if world.dead:
            die_and_return(world, plan.seed(world.life))
            continue
        return end
    raise AssertionError(f"not finished after {LIVES_MAX} lives and {parks} resolutions")


def outcome_of(world: World, end: End) -> Any:
    if end.how == "failed":
        return end.how, end.value.type_name, end.value.message
    if end.how != "finished":
        raise end.value
    return end.how, timeless(end.value["result"]), timeless(world.final)


def label_of(what: str) -> str:
    """The argument by which an effect is known."""
    return what.partition(" ")[2]


def happened(world: World, repeatable: bool, left_out: Collection[str]) -> Counter[str]:
    """Effects, as often as they took place, but those that a task group may cancel."""
    return Counter(
        effect.what
        for effect in world.effects
        if (effect.policy == "retry") == repeatable
        and "may-cancel" not in effect.what
        and label_of(effect.what) not in left_out
    )


def check_effects(world: World, oracle: World) -> None:
    """Those of the oracle; of a call that people gave an outcome: at most one."""
    once = Counter(effect.key for effect in world.effects if effect.policy != "retry")
    assert not [key for key, count in once.items() if count > 1], "twice under one key"
    settled = oracle.verdicts.keys()
    found, expected = happened(world, False, settled), happened(oracle, False, settled)
    assert found == expected, (found - expected, expected - found)
    # These may be made again; not without a crash, see `licensed`.
    found, expected = happened(world, True, settled), happened(oracle, True, settled)
    assert set(found) == set(expected), set(found) ^ set(expected)


def check_results(world: World, value: Any) -> None:
    """The agent has only such results as are in the log."""
    kept = set()
    for _, _, event in outcomes(world.disk):
        if isinstance(event, CallReturned | CallResolved):
            kept |= nonces(event.value)
    assert nonces(value) <= kept, f"results that no record knows: {nonces(value) - kept}"


def check_log(disk: SimulatedDisk, said: dict[int, list[str]]) -> None:
    """What every log of a run is like, at any time. ``said``: how calls were resolved, by LSN."""
    check_account(records(disk))
    found = [event for _, event in events(disk)]
    calls = {lsn: event for lsn, event in events(disk) if isinstance(event, CallIntended)}
    intents = [(c.scope, c.tool, c.call_id, c.digest, c.occurrence) for c in calls.values()]
    assert len(intents) == len(set(intents)), "a call is intended twice"
    steps = [event.step for event in found if isinstance(event, StepStarted)]
    assert len(steps) == len(set(steps)), "a step begins twice"
    resumed = [event.recovery for event in found if isinstance(event, RunResumed)]
    counted = 1
    if any(isinstance(event, RunStarted) and event.forked_from for event in found) and resumed:
        counted = resumed[0]  # its first checkpoint knows of those before
    assert resumed == list(range(counted, counted + len(resumed))), "recoveries are not counted"
    ends = Counter(event.call for event in found if isinstance(event, CallReturned | CallFailed))
    for event in found:
        if isinstance(event, CallResolved):
            ends[event.call] -= event.how == "retry"
            match event.who:
                case "after_crash=report":
                    assert calls[event.call].after_crash == "report"
                    assert isinstance(event.value, OutcomeUnknown)
                case "operator" | "reconcile":
                    assert event.how in said.get(event.call, ()), f"nobody said so: {event}"
                case "retry=":
                    assert failed_with_its_attempt(disk, event.call), f"{event}"
                case who:
                    raise AssertionError(f"resolved by {who!r}")
    assert max(ends.values(), default=0) <= 1, "a call has two outcomes"
    for call in calls:
        again = [e.attempt for e in found if isinstance(e, CallRetried) and e.call == call]
        assert again == list(range(2, 2 + len(again))), f"attempts at LSN {call}: {again}"


def check_told(world: World) -> None:
    """What the process was told is what its log says, and so is what a follower reads of it."""
    whole = [one for one in records(world.disk) if not is_portion(one)]
    read = [] if not whole else list(run_events(world.store, RUN, until="now"))
    read = [event for event in read if event.kind != "damage"]
    first_kept = oldest(world.disk)
    assert [event.lsn for event in read] == [one.lsn for one in whole if one.lsn >= first_kept]
    if not read:
        return
    # Where the beginning is gone, the first checkpoint says what was counted before it.
    counts_from = 1
    if first_kept > 1:
        counts_from = next(event.lsn for event in read if event.kind == "snapshot")
    if not world.harmed:  # else a follower cannot know what was in the record that is lost
        found = Counter(type(event) for _, event in events(world.disk))
        calls = found[CallIntended] + found[CallRetried]
        progress = read[-1].progress
        counted = progress.usage.steps, progress.usage.calls, progress.failed
        assert counted == (found[StepStarted], calls, found[CallFailed])
    if world.fence is None and world.told:
        told = [replace(event, progress=replace(event.progress, served=0)) for event in world.told]
        first = told[0].lsn
        assert told[0].kind in ("run_started", "run_resumed"), "the first event is of no life"
        mine = [event for event in read if event.lsn >= max(first, counts_from)]
        told = [event for event in told if event.lsn >= counts_from]
        # A crash in an append may leave a record of which nobody was told.
        told += mine[len(told) :] if world.dead and len(mine) == len(told) + 1 else []
        assert mine == told if not world.harmed else len(mine) == len(told)
    middle = read[len(read) // 2].lsn
    rest = list(run_events(world.store, RUN, after=middle, until="now"))
    assert world.harmed or rest == [event for event in read if event.lsn > middle]


def checkpoints_of(disk: SimulatedDisk) -> list[Snapshot]:
    """Those of which all is there that they need, as far as retention is concerned."""
    first = oldest(disk)
    return [one for one in records(disk) if isinstance(one, Snapshot) and one.lsn >= first
            and not is_portion(one) and not is_left_over(one, first)]  # fmt: skip


def check_checkpoints(world: World) -> int:
    """Each checkpoint in the log restores what the step ended with; how many are new and did.

    One that does not is a bug even where an earlier one would stand in for it.
    """
    found = {record.lsn: record for record in records(world.disk)}
    new = [record for record in checkpoints_of(world.disk) if record.lsn not in world.restores]
    if not new:
        return 0
    with EventLog.read(f"runs/{RUN}", files=world.disk) as reader:
        for record in new:
            try:
                restored = restore(reader, record)
            except BrokenCheckpointError as exc:
                needed = re.search(r"needs LSN (\d+),", str(exc))
                assert needed and int(needed[1]) in world.harmed, exc
                continue
            steps = [event.step for lsn, event in events(world.disk)
                     if isinstance(event, StepStarted) and lsn < record.lsn]  # fmt: skip
            assert max(steps) == restored.step, "a checkpoint hides the records of a later step"
            begun = found.get(record.lsn + 1)
            if begun is not None and decode(begun) == StepStarted(restored.step + 1):
                messages = [unpack(message) for message in restored.messages]
                again = json.loads(json.dumps([restored.state, messages]))
                expected = world.boundaries.get(record.lsn)
                assert expected in (None, again), f"the checkpoint at LSN {record.lsn} is another"
            world.restores.add(record.lsn)
    return len(new)


def check_ended(world: World, program: Program, end: End, power: bool) -> None:
    """Each call of a run that has ended has its outcome; every recovery is counted."""
    settled = {call for _, call, _ in outcomes(world.disk)}
    settled |= {e.call for _, e in events(world.disk) if isinstance(e, CallAbandoned) and e.went_on}
    if "may-cancel" not in repr(program):
        calls = ((lsn, e) for lsn, e in events(world.disk) if isinstance(e, CallIntended))
        made = {lsn for lsn, event in calls if step_of(event.scope) is not None}
        assert made <= settled, "a call without an outcome in a run that has ended"
    resumed = sum(isinstance(event, RunResumed) for _, event in events(world.disk))
    assert power or resumed >= world.starts - 1
    if end.how == "finished":
        assert end.value["recovery_count"] == resumed


def check_finished(world: World, program: Program, end: End) -> None:
    """A finished run gives its recorded result, executes nothing and, at last, writes nothing."""
    count, result = world.executed, outcome_of(world, end)
    for again in range(2):
        before = segments(world.disk)
        world.disk._crash_at = None
        world.begin()
        other = live(world, program)
        assert outcome_of(world, other) == result
        assert world.executed == count
        assert again == 0 or segments(world.disk) == before
        if end.how == "finished":
            assert other.value["report"].executed == 0
    if end.how == "finished":
        report = end.value["report"]
        assert not report.damage and not report.broken, str(report)


@dataclass
class Trial:
    """A program with its crash-free run."""

    program: Program
    oracle: World
    result: Any
    disk_calls: int
    points: int = 0

    def world(self) -> World:
        clock = self.oracle.clock
        return World(clock, SimulatedDisk(seed=1), self.program.segment_size)

    def crash(self, plan: Plan) -> World:
        """Live by the plan, then compare with the oracle."""
        world = self.world()
        self.points += len(plan.at)
        end = lives(world, self.program, plan)
        assert outcome_of(world, end) == self.result
        check_effects(world, self.oracle)
        check_results(world, world.final)
        check_log(world.disk, world.said)
        check_told(world)
        check_checkpoints(world)
        check_ended(world, self.program, end, any(seed is not None for seed in plan.power))
        check_finished(world, self.program, end)
        return world


def trial(clock: Clock, program: Program) -> Trial:
    oracle = World(clock, SimulatedDisk(seed=1), program.segment_size)
    oracle.begin()
    # The oracle has seen the agent's own errors already, so that it never recovers.
    oracle.raised = Everything()
    end = live(oracle, program)
    result = outcome_of(oracle, end)
    # The agent's errors come in the runs that crash, where the disk sees more calls.
    again = World(clock, SimulatedDisk(seed=1), program.segment_size)
    again.begin()
    live(again, program)
    return Trial(program, oracle, result, len(again.disk.calls))


@contextmanager
def virtual_time() -> Iterator[Clock]:
    """Runs take no time, their loggers are silent, and commits behind the agent's back repeat."""
    clock = Clock()

    # They come at points that repeat, and die like everything else.
    class Committer:
        def request(self, log: Any) -> None:
            clock.requests += 1
            if clock.requests % 3 == 0:
                log.commit_now()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.getLogger("recovery"), "disabled", True)  # it has much to say
        patch.setattr(logging.getLogger("eventlog"), "disabled", True)
        patch.setattr(logging.getLogger("asyncio"), "disabled", True)
        patch.setattr(recovery._drivers, "time", clock.module())
        patch.setattr(recovery._turns, "time", clock.module())
        patch.setattr(recovery._agent, "time", clock.module())
        patch.setattr(recovery._inbox, "time", clock.module())
        patch.setattr(recovery._waiting, "time", clock.module())
        patch.setattr(eventlog._log, "committer", Committer())
        yield clock


@contextmanager
def noted(plan: Any) -> Iterator[None]:
    try:
        yield
    except BaseException as exc:
        exc.add_note(repr(plan))
        raise


# -- damage


def harm(world: World, place: tuple[str, Frame], rng: random.Random) -> None:
    flip(world.disk, place, rng)
    _read.pop(world.disk, None)


def history(world: World) -> History:
    with EventLog.read(f"runs/{RUN}", files=world.disk) as reader:
        return load(reader, RUN)


def newest_checkpoint(world: World) -> int:
    """The LSN of the checkpoint from which the run would be resumed; 0 for none."""
    restored = history(world).restored
    return restored.lsn if restored else 0
