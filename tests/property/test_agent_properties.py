"""What an agent's run promises, for any program and a crash at any call of the disk.

An agent program is data, run by one interpreter as an async agent or as a plain one. The oracle is
the same program run without a crash. What tools do to the outside world is counted in a list that
outlives every crash, together with each call's idempotency key. Time is virtual and threads are
taken in turn, so that a failure repeats: `StuckError` is raised where a real process would hang.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import random
import selectors
import time
import zlib
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import eventlog._log
import recovery._agent
import recovery._run
from eventlog import Damage, EventLog
from eventlog._frame import FOOTER, HEADER_SIZE, SNAPSHOT, Frame, decode_segment_header
from eventlog._scan import Mark, Segment
from eventlog.testing import Crash, SimulatedDisk
from recovery import (
    CheckpointStore,
    DamagedRunError,
    DivergenceError,
    InDoubtError,
    OutcomeUnknown,
    RecoverableAgent,
    Resolution,
    RunFailedError,
    current_call,
    resolve,
    tool,
)
from recovery._events import (
    CallFailed,
    CallIntended,
    CallResolved,
    CallRetried,
    CallReturned,
    RunResumed,
    StepStarted,
    ValueRecorded,
    decode,
)
from recovery._history import History, load
from recovery._keys import step_of
from recovery._values import digest, pack_arguments
from recovery.stores.protocol import LogStore

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

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def module(self) -> SimpleNamespace:
        return SimpleNamespace(
            monotonic=lambda: self.now, sleep=self.sleep, perf_counter=time.perf_counter,
            time=time.time, time_ns=time.time_ns,
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


class Store(LogStore):
    """Runs on a simulated disk, in small segments."""

    def __init__(self, disk: SimulatedDisk, segment_size: int) -> None:
        super().__init__("runs", disk, "power")
        self.segment_size = segment_size
        self.log: EventLog | None = None

    def claim(self, run_id: str, takeover: bool = False) -> EventLog:
        path = self._path(run_id)
        log = EventLog.open(path, files=self._files, segment_size=self.segment_size)
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
class World:
    """All that outlives a process, and the process of the moment."""

    clock: Clock
    disk: SimulatedDisk
    segment_size: int = 1 << 20
    effects: list[Effect] = field(default_factory=list)
    results: dict[str, Any] = field(default_factory=dict)
    raised: set[Any] = field(default_factory=set)
    asked: Counter[str] = field(default_factory=Counter)
    seen: dict[Any, Any] = field(default_factory=dict)
    life: int = 0
    store: Store = None  # type: ignore[assignment]
    kill: tuple[int, bool] | None = None  # die at this effect from now, before it or behind it
    settled: set[int] = field(default_factory=set)  # calls with an outcome when the life began
    retried: set[str] = field(default_factory=set)
    executed: int = 0
    attempts: dict[str, int] = field(default_factory=dict)
    starts: int = 0  # of the agent function
    final: Any = None
    problems: list[str] = field(default_factory=list)  # that an agent would take for a tool's

    def begin(self, kill: tuple[int, bool] | None = None) -> None:
        self.life += 1
        self.clock.now = self.clock.requests = 0
        self.store = Store(self.disk, self.segment_size)
        self.kill = kill and (self.executed + kill[0], kill[1])
        self.settled = {call for _, call, _ in outcomes(self.disk)}

    @property
    def dead(self) -> bool:
        return self.disk._dead

    def die(self) -> None:
        self.disk._dead = True
        raise Crash

    def effect(self, what: str, policy: str, result: Any) -> None:
        """What a tool does to the outside world, at the moment when it does it."""
        if self.dead:
            raise Crash
        call = current_call()
        assert call is not None
        if call.lsn in self.settled:
            self.problems.append(f"{call} had an outcome and is executed again")
        log = self.store.log
        if policy != "retry" and (log is None or log.durable_lsn < call.lsn):
            self.problems.append(f"{call} starts without a durable intent")
        if policy != "retry":
            before = self.attempts.get(call.idempotency_key, 0)
            if call.attempt <= before:
                self.problems.append(f"{call} is attempt {call.attempt}, and {before} was made")
            self.attempts[call.idempotency_key] = call.attempt
        number, self.executed = self.executed, self.executed + 1
        if self.kill == (number, False):
            self.die()
        self.effects.append(Effect(call.idempotency_key, what, policy, call.lsn))
        self.results[call.idempotency_key] = result
        if self.kill == (number, True):
            self.die()

    def happened(self, key: str) -> bool:
        return key in self.results


def records(disk: SimulatedDisk, damage: list[Damage] | None = None) -> list[Any]:
    """All sound records of the run's log."""
    damage = [] if damage is None else damage
    try:
        reader = EventLog.read(f"runs/{RUN}", files=disk)
    except (FileNotFoundError, eventlog.UnsupportedFormatError):
        return []
    with reader:
        return list(reader.records(1, on_damage=damage.append))


def events(disk: SimulatedDisk) -> Iterator[tuple[int, Any]]:
    return ((record.lsn, decode(record)) for record in records(disk))


def outcomes(disk: SimulatedDisk) -> list[tuple[int, int, Any]]:
    """(LSN, call, event) of all outcomes that stand."""
    return [
        (lsn, event.call, event)
        for lsn, event in events(disk)
        if isinstance(event, CallReturned | CallFailed)
        or (isinstance(event, CallResolved) and event.how != "retry")
    ]


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


def shown(x: Any) -> Any:
    """A short plain stand-in for an argument."""
    if isinstance(x, list) and x[:1] == ["value"]:
        return "value"  # another one in every run
    text = repr(list(x) if isinstance(x, list) else x)
    return x if isinstance(x, int | str) and len(text) < 40 else f"#{zlib.crc32(text.encode()):x}"


def answer(name: str, x: Any) -> Any:
    """A tool's result: the same whenever it is called with the same argument."""
    what = shown(x)
    size = zlib.crc32(repr(what).encode()) % 60
    return {"tool": name, "x": what, "text": "r" * (5000 if size == 7 else size)}


def make_tools(world: World) -> dict[str, Callable[..., Any]]:
    """Tools of every policy and kind, whose effects the world counts."""

    def plain_tool(name: str, policy: str, **options: Any) -> Callable[..., Any]:
        def body(x: Any, delay: int = 0) -> Any:
            result = answer(name, x)
            world.effect(f"{name} {shown(x)}", policy, result)
            return result

        body.__name__ = name
        return body if policy == "plain" else tool(**options)(body)

    def async_tool(name: str, policy: str, **options: Any) -> Callable[..., Any]:
        async def body(x: Any, delay: int = 0) -> Any:
            await yields(delay)
            result = answer(name, x)
            world.effect(f"{name} {shown(x)}", policy, result)
            await yields(delay // 2)
            return result

        body.__name__ = name
        return body if policy == "plain" else tool(**options)(body)

    @tool(after_crash="retry")
    def look(key: str) -> Any:
        return [world.results[key]] if world.happened(key) else []

    async def reconcile(call: Any) -> Resolution:
        world.asked[call.idempotency_key] += 1
        found = look(call.idempotency_key)
        await asyncio.sleep(0)
        return Resolution.outcome(found[0]) if found else Resolution.retry()

    def hesitant(call: Any) -> Resolution:
        world.asked[call.idempotency_key] += 1
        if world.asked[call.idempotency_key] % 2:
            return Resolution.unknown()
        found = look(call.idempotency_key)
        return Resolution.outcome(found[0]) if found else Resolution.retry()

    def failing(name: str, error: type[Exception], **options: Any) -> Callable[..., Any]:
        @tool(name=name, **options)
        async def fail(x: Any, delay: int = 0) -> Any:
            await yields(delay)
            raise error(f"cannot {shown(x)}")

        return fail

    tools: dict[str, Callable[..., Any]] = {
        "park": async_tool("park", "park"),
        "undecorated": async_tool("undecorated", "plain"),
        "retry": async_tool("retry", "retry", after_crash="retry"),
        "report": async_tool("report", "report", after_crash="report"),
        "reconcile": async_tool("reconcile", "reconcile", reconcile=reconcile),
        "hesitant": async_tool("hesitant", "reconcile", reconcile=hesitant),
        "sync_park": plain_tool("sync_park", "park"),
        "sync_retry": plain_tool("sync_retry", "retry", after_crash="retry"),
        "fail": failing("fail", ValueError),
        "fail_declared": failing("fail_declared", AgentError, raises=[AgentError]),
        "fail_hidden": failing("fail_hidden", HiddenError, after_crash="retry"),
        "look": look,
    }
    inner_park, inner_retry = tools["park"], tools["retry"]

    async def outer(x: Any, delay: int = 0) -> Any:
        first = await inner_park(["inner", shown(x)], delay)
        await yields(delay)
        second, third = await asyncio.gather(
            inner_retry(first["x"], 1), inner_park(["other", shown(x)])
        )
        return [first, second["x"], third["x"]]

    tools["outer"] = tool(name="outer")(outer)
    tools["outer_retry"] = tool(name="outer_retry", after_crash="retry")(outer)
    sync_park = tools["sync_park"]

    @tool
    def sync_outer(x: Any, delay: int = 0) -> Any:
        return [sync_park(["inner", shown(x)]), sync_park(["inner", shown(x)])]

    tools["sync_outer"] = sync_outer
    return tools


CAREFUL = (
    "park", "retry", "report", "reconcile", "hesitant", "outer", "outer_retry", "sync_park",
    "sync_retry", "undecorated", "fail", "fail_declared", "fail_hidden",
)  # fmt: skip
PLAIN = ("sync_park", "sync_retry", "sync_outer", "park", "reconcile", "fail", "undecorated")
SYNC = {"sync_park", "sync_retry", "sync_outer"}


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
        await self.ops(self.program.prologue)
        if self.program.plain:
            for _ in run.steps():
                if await self.step(steps):
                    break
        else:
            async for _ in run.steps():
                if await self.step(steps):
                    break
        for name in list(self.tasks):
            await self.join(name)
        self.world.final = json.loads(json.dumps([run.state, list(run.messages)]))
        return {"state": json.loads(json.dumps(run.state)), "count": len(run.messages)}

    async def step(self, steps: tuple[tuple[Any, ...], ...]) -> bool:
        self.env = {}
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
                return sorted(self.run.state)
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
            self.env["last"] = json.dumps(self.run.messages.pop(index % len(self.run.messages)))

    async def set(self, key: str, value: Any) -> None:
        self.run.state[key] = self.value(value)

    async def nest(self, key: str, value: Any) -> None:
        inner = self.run.state.setdefault("nested", {})
        inner.setdefault(key, []).append(value)

    async def forget(self, key: str) -> None:
        self.run.state.pop(key, None)

    async def pause(self, count: int) -> None:
        if not self.program.plain:
            await yields(count)

    # -- calls

    async def call(self, do: Do) -> None:
        self.env["last"] = await self.one(do)

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
        function = self.tools[do.tool]
        args = (x,) if do.tool == "look" else (x, do.delay)
        if self.program.plain:
            if do.direct and do.tool in SYNC:
                return function(*args)
            return self.run.call(function, *args, call_id=do.call_id)
        if do.direct and do.tool != "undecorated":
            result = function(*args)
            return result if do.tool in SYNC else await result
        return await self.run.call(function, *args, call_id=do.call_id)

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
        self.run.messages[start:] = sorted(self.run.messages[start:], key=repr)

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

    async def run() -> Any:
        agent = make_agent(world, program)
        runner = RecoverableAgent(agent, CheckpointStore(world.store), program.every)
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


def operate(world: World, parked: InDoubtError) -> None:
    """What an operator does: look outside whether it happened, and say so."""
    for call in parked.calls:
        how = Resolution.retry()
        if world.happened(call.idempotency_key):
            how = Resolution.outcome(world.results[call.idempotency_key])
        resolve(world.store, RUN, call.lsn, how, who="operator")


def die_and_return(world: World, power: int | None) -> None:
    """The disk for the next process. ``power``: the seed of a power loss."""
    dead = world.disk
    process = dead.after_process_death()
    log = world.store.log
    acknowledged = 0 if log is None else log.durable_lsn
    damage: list[Damage] = []
    before = {record.lsn: record for record in records(process, damage)}
    after = process if power is None else dead.after_power_loss(power)
    found = {record.lsn: record for record in records(after, damage)}
    assert damage == []
    for lsn in range(1, acknowledged + 1):
        assert lsn in before and lsn in found, f"LSN {lsn} was acknowledged and is gone"
        assert found[lsn] == before[lsn]
    world.disk = after
    if power is not None:
        forget_values(world)


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
            world.settled = {call for _, call, _ in outcomes(world.disk)}
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
    return end.how, end.value["result"], world.final


def harmful(world: World) -> Counter[str]:
    """Side effects, as often as they took place, but those that a task group may cancel."""
    return Counter(
        effect.what
        for effect in world.effects
        if effect.policy != "retry" and "may-cancel" not in effect.what
    )


def check_effects(world: World, oracle: World) -> None:
    once = Counter(effect.key for effect in world.effects if effect.policy != "retry")
    assert not [key for key, count in once.items() if count > 1], "twice under one key"
    assert harmful(world) == harmful(oracle)
    made = {effect.what for effect in oracle.effects if effect.policy == "retry"}
    again = {effect.what for effect in world.effects if effect.policy == "retry"}
    assert {x for x in made ^ again if "may-cancel" not in x} == set()


def check_log(world: World, program: Program, end: End, power: bool) -> None:
    """No identity is intended twice, no call has two outcomes; every recovery is counted."""
    intents = [
        (event.scope, event.tool, event.call_id, event.digest, event.occurrence)
        for _, event in events(world.disk)
        if isinstance(event, CallIntended)
    ]
    assert len(intents) == len(set(intents))
    steps = [event.step for _, event in events(world.disk) if isinstance(event, StepStarted)]
    assert len(steps) == len(set(steps))
    settled = Counter(call for _, call, event in outcomes(world.disk))
    assert max(settled.values(), default=0) <= 1
    if "may-cancel" not in repr(program):
        calls = ((lsn, e) for lsn, e in events(world.disk) if isinstance(e, CallIntended))
        made = {lsn for lsn, event in calls if step_of(event.scope) is not None}
        assert made <= set(settled), "a call without an outcome in a run that has ended"
    resumed = [event.recovery for _, event in events(world.disk) if isinstance(event, RunResumed)]
    assert resumed == list(range(1, len(resumed) + 1))
    assert power or len(resumed) >= world.starts - 1
    if end.how == "finished":
        assert end.value["recovery_count"] == len(resumed)


def segments(disk: SimulatedDisk) -> dict[str, bytes]:
    entries = disk.directories.get(f"runs/{RUN}", {})
    return {name: bytes(file.content) for name, file in entries.items() if name.endswith(".seg")}


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
        check_log(world, self.program, end, any(seed is not None for seed in plan.power))
        check_finished(world, self.program, end)
        return world


def trial(clock: Clock, program: Program) -> Trial:
    oracle = World(clock, SimulatedDisk(seed=1), program.segment_size)
    oracle.begin()
    # The oracle has seen the agent's own errors already, so that it never recovers.
    oracle.raised = {(s, n) for s in range(20) for n in range(20)}
    end = live(oracle, program)
    result = outcome_of(oracle, end)
    # The agent's errors come in the runs that crash, where the disk sees more calls.
    again = World(clock, SimulatedDisk(seed=1), program.segment_size)
    again.begin()
    live(again, program)
    return Trial(program, oracle, result, len(again.disk.calls))


# -- generators

small = st.integers(0, 3)
pauses = st.sampled_from([0, 0, 1, 1, 2, 2, 3, 3, LONG])
text = st.sampled_from(["a", "b", "otter " * 8, "long"])


@st.composite
def dos(draw: Any, names: tuple[str, ...], x: Any = None, then: tuple[str, ...] = ("",)) -> Do:
    name = draw(st.sampled_from(names))
    x = draw(x if x is not None else st.sampled_from(
        ["a", "b", 7, "last", "messages", "count", "state", "big"]))  # fmt: skip
    delay = draw(small)
    return Do(name, x, draw(st.sampled_from(["", "", "id"])), draw(st.booleans()),
              draw(st.sampled_from(then)), delay)  # fmt: skip


THEN = ("", "append", "wrap", "state")


@st.composite
def branches(draw: Any, names: tuple[str, ...], count: int, label: str = "") -> tuple[Branch, ...]:
    made = []
    for number in range(count):
        # Equal calls of several branches are told apart by occurrence alone.
        x = st.sampled_from([f"{label}same", f"{label}{number}"])
        then = ("",) if label else ("", "append", "wrap")
        first = draw(dos(names, x, then))
        call_id = first.call_id and f"{first.call_id}-{number}"
        delay = draw(st.sampled_from([0, 1, 2, 3, 30]))
        # A plain tool called directly in async code cannot wait for its turn.
        direct = first.direct and first.tool not in SYNC
        first = replace(first, call_id=call_id, late=draw(small), delay=delay, direct=direct)
        second = draw(st.none() | dos(names, st.just("unused"), then))
        if second is not None:
            direct = second.direct and second.tool not in SYNC
            call_id = second.call_id and f"{second.call_id}-{number}b"
            second = replace(second, call_id=call_id, direct=direct)
        made.append(Branch(draw(pauses), first, draw(pauses), second))
    return tuple(made)


def message_ops() -> st.SearchStrategy[Any]:
    return st.one_of(
        st.tuples(st.just("append"), text | st.integers(-9, 9)),
        st.tuples(st.just("append"), st.fixed_dictionaries({"role": text, "n": st.integers(0, 9)})),
        st.tuples(st.just("edit"), small, text),
        st.tuples(st.just("trim"), small, small),
        st.tuples(st.just("replace"), small, st.lists(text, max_size=3)),
        st.tuples(st.just("insert"), small, text),
        st.tuples(st.just("pop"), small),
    )


def state_ops() -> st.SearchStrategy[Any]:
    key = st.sampled_from(["k", "l"])
    return st.one_of(
        st.tuples(st.just("set"), key, st.sampled_from(["last", "count", "plain", 5])),
        st.tuples(st.just("nest"), key, st.integers(0, 9)),
        st.tuples(st.just("forget"), key),
    )


@st.composite
def operations(draw: Any, plain: bool, where: int) -> tuple[Any, ...]:
    kinds = ["message", "message", "state", "call", "call", "call", "ask", "fail_once"]
    kinds += [] if plain else ["gather", "gather", "group", "failing group", "pause"]
    made: list[Any] = []
    for number in range(draw(st.integers(0, 4))):
        match draw(st.sampled_from(kinds)):
            case "message":
                made.append(draw(message_ops()))
            case "state":
                made.append(draw(state_ops()))
            case "call":
                do = draw(dos(PLAIN if plain else CAREFUL, None, THEN))
                # The model never gives one id to two calls.
                do = replace(do, call_id=do.call_id and f"{do.call_id}-{number}")
                made += [("call", do)] * draw(st.sampled_from([1, 1, 2]) if not do.call_id
                                              else st.just(1))  # fmt: skip
            case "ask":
                use = draw(st.sampled_from(["", "sync_retry", "sync_park"]))
                made.append(("ask", draw(st.sampled_from(["now", "random", "uuid"])), number, use))
            case "fail_once":
                made.append(("fail_once", number))
            case "gather":
                made.append(("gather", draw(branches(CAREFUL, draw(st.integers(2, 4))))))
            case "group":
                names = tuple(n for n in CAREFUL if "fail" not in n)
                made.append(("group", draw(branches(names, draw(st.integers(2, 3))))))
            case "failing group":
                names = ("park", "retry", "reconcile")
                doomed = draw(branches(names, 2, "may-cancel "))
                bad = Branch(draw(small), Do("fail", "may-cancel", delay=draw(small)), 0)
                made.append(("group", (*doomed, bad)))
            case "pause":
                made.append(("pause", draw(small)))
    return tuple(made)


@st.composite
def programs(draw: Any, steps_max: int = 5, plain: bool | None = None) -> Program:
    is_plain = draw(st.sampled_from([False, False, False, True])) if plain is None else plain
    prologue = draw(operations(is_plain, 0))
    steps = [list(draw(operations(is_plain, i + 1)))
             for i in range(draw(st.integers(1, steps_max)))]  # fmt: skip
    if not is_plain and draw(st.booleans()):
        # A task that is started in one step and awaited in a later one, where it left its result.
        first = draw(st.integers(-1, len(steps) - 1))
        (made,) = draw(branches(CAREFUL, 1))
        keep = Do(made.first.tool, "background", "", made.first.direct, "background",
                  draw(st.integers(0, 30)))  # fmt: skip
        task = Branch(made.before, keep, made.between, None)
        last = draw(st.integers(max(0, first), len(steps) - 1))
        at = steps[first] if first >= 0 else None
        if at is None:
            prologue = (*prologue, ("start", "bg", task))
        else:
            at.append(("start", "bg", task))
        steps[last].append(("join", "bg"))
    if draw(st.sampled_from([False] * 5 + [True])):
        name = draw(st.sampled_from(["fail"] if is_plain else ["fail", "fail_declared"]))
        steps[-1].append(("call", Do(name, "fatal", caught=False)))
    return Program(prologue, tuple(map(tuple, steps)), draw(st.integers(1, 4)),
                   draw(st.sampled_from([600, 2000, 1 << 20])), is_plain)  # fmt: skip


# -- tests


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(logging.getLogger("recovery"), "disabled", True)  # it has much to say
    monkeypatch.setattr(logging.getLogger("asyncio"), "disabled", True)
    monkeypatch.setattr(recovery._run, "time", clock.module())
    monkeypatch.setattr(recovery._agent, "time", clock.module())

    # Commits behind the agent's back come at points that repeat, and die like everything else.
    class Committer:
        def request(self, log: Any) -> None:
            clock.requests += 1
            if clock.requests % 3 == 0:
                log.commit_now()

    monkeypatch.setattr(eventlog._log, "committer", Committer())
    return clock


def scaled(examples: int) -> int:
    """As many examples as the profile asks for: ``examples`` where it asks for 100."""
    default = settings.default
    assert default is not None
    return max(1, examples * default.max_examples // 100)


def example_settings(**options: Any) -> settings:
    return settings(
        deadline=None,
        suppress_health_check=list(HealthCheck),
        **options,
    )


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


def sweep(clock: Clock, examples: int, count: int) -> int:
    """Crash ``examples`` random programs at ``count`` points each; how many points that were."""
    points = 0

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
    return points


@contextmanager
def noted(plan: Any) -> Iterator[None]:
    try:
        yield
    except BaseException as exc:
        exc.add_note(repr(plan))
        raise


def test_a_run_that_crashes_ends_like_one_that_never_does(clock: Clock, capsys: Any) -> None:
    points = sweep(clock, scaled(50), 8)
    with capsys.disabled():
        print(f"\n{points} crash points")


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


@pytest.mark.parametrize("name", RARE)
def test_rare_programs_that_crash_at_every_call_of_the_disk(
    clock: Clock, capsys: Any, name: str, rng: random.Random
) -> None:
    one = trial(clock, RARE[name])
    for plan in crash_plans(one, rng, 1 << 30):
        with noted(plan):
            one.crash(plan)
    with capsys.disabled():
        print(f"\n{one.points} crash points")


@pytest.mark.parametrize("_", range(8))
def test_coroutines_go_on_in_the_order_of_their_outcomes(
    clock: Clock, rng: random.Random, _: int
) -> None:
    delays = rng.sample(range(0, 60, 4), 6)
    tools = rng.choices(["retry", "park", "reconcile"], k=6)
    racers = tuple(
        Branch(rng.randrange(4), Do(tool, f"racer {i}", delay=delay), 0)
        for i, (tool, delay) in enumerate(zip(tools, delays, strict=True))
    )
    one = trial(clock, Program((), ((("race", racers),), _steps_of_calls()), every=9))
    for plan in crash_plans(one, rng, 1 << 30):
        world = one.world()
        end = lives(world, one.program, plan)
        with noted(plan):
            assert end.how == "finished", end.value
            made = {lsn: e.digest for lsn, e in events(world.disk) if isinstance(e, CallIntended)}
            labels = {
                digest(pack_arguments((racer.first.x, racer.first.delay), {}, "")): racer.first.x
                for racer in racers
            }
            order = [labels.get(made[call]) for _, call, _ in outcomes(world.disk)]
            found = end.value["result"]["state"]["order"]
            assert found == [label for label in order if label in found]


def _steps_of_calls() -> tuple[Any, ...]:
    return tuple(_call("park", i) for i in range(3))


@pytest.mark.crash
def test_many_runs_that_crash_at_every_call_of_the_disk(clock: Clock, capsys: Any) -> None:
    points = sweep(clock, scaled(2), 1 << 30)
    with capsys.disabled():
        print(f"\n{points} crash points")


# -- damage


def frames(disk: SimulatedDisk) -> list[tuple[str, Frame]]:
    """All frames of the run's log, by segment."""
    found = []
    for name, buf in sorted(segments(disk).items()):
        header = decode_segment_header(buf)
        assert header is not None
        walk = Segment(header.number, buf, header.salt, Mark(), None)
        for item in walk.walk(HEADER_SIZE, header.first_lsn):
            if isinstance(item, tuple) and item[0].kind != FOOTER:
                found.append((name, item[0]))
    return found


def harm(world: World, place: tuple[str, Frame], rng: random.Random) -> None:
    """Flip a bit of a frame: of its header or of its payload."""
    name, frame = place
    content = world.disk.directories[f"runs/{RUN}"][name].content
    parts = [range(frame.offset, frame.payload_offset)]
    parts += [range(frame.payload_offset, frame.payload_end)] * (
        frame.payload_end > frame.payload_offset
    )
    content[rng.choice(rng.choice(parts))] ^= 1 << rng.randrange(8)


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


def history(world: World) -> History:
    with EventLog.read(f"runs/{RUN}", files=world.disk) as reader:
        return load(reader, RUN)


def newest_checkpoint(world: World) -> int:
    """The LSN of the checkpoint from which the run would be resumed; 0 for none."""
    restored = history(world).restored
    return restored.lsn if restored else 0


def needed_from_before(world: World) -> set[int]:
    """The records that the code before the first step needs."""
    restored = history(world).restored
    return set(restored.prologue if restored else [])


def finishes(world: World, trial: Trial) -> None:
    end = lives(world, trial.program, Plan(()))
    assert outcome_of(world, end) == trial.result
    check_effects(world, trial.oracle)


def checkpointed(clock: Clock, check: Callable[..., None], examples: int = 60) -> None:
    """Call check(trial, world, LSNs of its checkpoints, rng) for crashed runs that have some."""

    @settings(example_settings(max_examples=scaled(examples)))
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
        world.raised = {(step, n) for step in range(20) for n in range(20)}  # one start, no more
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
    # step: damage to those leads further back. Nothing else is ever looked at.
    unneeded = StepStarted | RunResumed | CallIntended | CallRetried | ValueRecorded

    def check(trial: Trial, world: World, lsns: list[int], rng: random.Random) -> None:
        used = newest_checkpoint(world)
        found = {lsn for lsn, event in events(world.disk) if isinstance(event, unneeded)}
        found -= needed_from_before(world)
        before = [p for p in frames(world.disk) if p[1].lsn < used and p[1].lsn in found]
        if before:
            harm(world, rng.choice(before), rng)
            assert newest_checkpoint(world) == used
            finishes(world, trial)

    checkpointed(clock, check)


# -- divergence

MUTATIONS = ("argument", "drop", "add", "swap", "rename", "message")


def distinct(program: Program) -> Program:
    """The program with another argument for every call, by which its effects are known."""
    labels = itertools.count()

    def labelled(op: Any) -> Any:
        match op:
            case Do():
                # Plain tools called directly beside other tasks do not wait for recorded calls.
                direct = op.direct and (program.plain or op.tool not in SYNC)
                return replace(op, x=f"label {next(labels)}", direct=direct)
            case Branch():
                second = op.second and labelled(op.second)
                return replace(op, first=labelled(op.first), second=second)
            case tuple():
                return tuple(labelled(part) for part in op)
        return op

    steps = labelled(program.steps)
    return replace(program, prologue=labelled(program.prologue), steps=steps)


def plainly(program: Program) -> bool:
    """Whether no call of the program hides others, or is cancelled."""
    text = repr(program)
    return "outer" not in text and "may-cancel" not in text and "fatal" not in text


def mutated(program: Program, what: str, rng: random.Random) -> Program | None:
    """The program after an edit of its code; None where there is nothing to edit like that."""
    blocks = [list(block) for block in (program.prologue, *program.steps)]
    places = [(b, i) for b, block in enumerate(blocks) for i in range(len(block))]
    calls = [(b, i) for b, i in places if blocks[b][i][0] == "call"]
    texts = [(b, i) for b, i in places if blocks[b][i][0] == "append"]
    chosen = texts if what == "message" else calls
    if not chosen:
        return None
    b, i = rng.choice(chosen)
    op = blocks[b][i]
    match what:
        case "argument":
            blocks[b][i] = ("call", replace(op[1], x=op[1].x + " changed"))
        case "drop":
            del blocks[b][i]
        case "add":
            new = "sync_park" if program.plain else "park"
            blocks[b].insert(i, ("call", Do(new, "added")))
        case "swap":
            others = [j for b2, j in calls if b2 == b and j != i]
            if not others:
                return None
            j = rng.choice(others)
            blocks[b][i], blocks[b][j] = blocks[b][j], blocks[b][i]
        case "rename":
            other = {"park": "reconcile", "sync_park": "sync_retry"}.get(op[1].tool, "park")
            blocks[b][i] = ("call", replace(op[1], tool=other))
        case "message":
            blocks[b][i] = ("append", "edited")
    prologue, *steps = map(tuple, blocks)
    return replace(program, prologue=prologue, steps=tuple(steps))


def check_edited(one: Trial, edited: Program, world: World) -> str:
    """Resume the world's run with edited code, and if it stops with the old code again."""
    last = max((lsn for lsn, _ in events(world.disk)), default=0)
    first = len(world.effects)
    world.begin()
    end = live(world, edited)
    assert world.clock.now < 60, "the run hangs"
    assert end.how in ("finished", "parked", "diverged"), end
    if end.how == "diverged":
        assert [effect for effect in world.effects[first:] if effect.lsn > last] == []
        forget_values(world)
        with noted(end.value):
            finishes(world, one)
        return end.how
    if end.how == "parked":
        end = lives(world, edited, Plan(()))
        assert end.how in ("finished", "diverged"), end
    labels = Counter(effect.what.partition(" ")[2].removesuffix(" changed")
                     for effect in world.effects if effect.policy != "retry")  # fmt: skip
    del labels["value"]  # of all calls that take a value of the outside world
    assert max(labels.values(), default=0) <= 1, labels
    return end.how


def test_edited_code_resumes_or_stops_before_it_does_harm(clock: Clock, capsys: Any) -> None:
    counts: Counter[str] = Counter()

    @settings(example_settings(max_examples=scaled(200)))
    @given(programs().filter(plainly), st.sampled_from(MUTATIONS), st.integers(0, 1 << 30))
    def check(program: Program, what: str, number: int) -> None:
        rng = random.Random(number)
        program = replace(distinct(program), every=rng.choice([1, 3, 9]))
        edited = mutated(program, what, rng)
        if edited is None:
            return
        one = trial(clock, program)
        point = max(rng.randrange(one.disk_calls) for _ in range(2))  # rather late than early
        plan = Plan((("disk", point, 0),))
        world = crashed(one, plan)
        if world is not None:
            with noted(plan):
                counts[f"{what}: {check_edited(one, edited, world)}"] += 1

    check()
    with capsys.disabled():
        print(f"\n{dict(sorted(counts.items()))}")
