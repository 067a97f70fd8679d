"""Runs one session of an agent's process on a simulated disk, to its end or death."""

from __future__ import annotations

import copy
import functools
import inspect
import random
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import aclosing, closing, suppress
from dataclasses import dataclass, replace
from typing import Any, cast

from eventlog import EventLog, RefusedValueError
from eventlog.files.api import Files
from eventlog.testing import Crash, SimulatedDisk
from recovery.agent.checkpoint_store import CheckpointStore
from recovery.agent.executions import AsyncExecution, SyncExecution
from recovery.agent.recoverable import RecoverableAgent
from recovery.calls.identity import known_by, plainly
from recovery.calls.stream import combined
from recovery.declare.scope import Scope, current_scope
from recovery.declare.spec import ToolSpec, is_async, is_generator
from recovery.engine.driver_effects import Effect, Sleep
from recovery.journal.call import Arguments, Call
from recovery.journal.call_key import UNDO_CALL
from recovery.journal.events import RunFinished
from recovery.stores.log_store import LogStore
from recovery.testing.simulated.waits import Waits
from recovery.values.pack import pack, unpack
from recovery.values.types import OutcomeUnknown

RUN_ID = "crash-test"
BEGINNING_S = 1_700_000_000.0  # what run.now() starts from
DEATHS_MAX = 100  # how often a dead process may try to continue before it is stopped for good
_never = threading.Event()


class Died(Crash, SystemExit):
    """The process died here. A SystemExit, for which an event loop stops at once."""


@dataclass
class Execution:
    """The body of a tool, entered once. ``key`` is the idempotency key, "" outside of calls."""

    number: int  # of all executions of this session
    tool: str
    name: str  # tool#n, the n-th of its tool in this session
    key: str
    policy: str
    shown: str  # the tool with its arguments, for people
    identity: object  # the tool with its arguments, to compare
    done: bool = False
    value: Any = None


@dataclass(frozen=True)
class DiskCall:
    """A changing call of the disk, and the activity around it."""

    verb: str
    size: int
    during: str


@dataclass(frozen=True)
class Kill:
    """When a session ends: at changing call ``number`` of the disk, a write torn after ``torn``
    bytes; or before or after the effect of the ``number``-th execution of a tool."""

    what: str  # "disk", "before", "after"
    number: int
    torn: int = 0


class Life:
    """One process: what it does on the disk and outside, until it dies."""

    def __init__(self, disk: SimulatedDisk, seed: int, kill: Kill | None) -> None:
        self.disk, self.seed = disk, seed
        self.dead = False
        self.frozen = False  # its thread is stopped for good
        self.over = False  # it is being cleaned up
        self.swallowed = False  # the agent continued after its death
        self.calls: list[DiskCall] = []
        self.executions: list[Execution] = []
        self.reported: set[str] = set()  # tools whose calls gave the agent an OutcomeUnknown
        self.final: tuple[Any, Any, Any] | None = None
        self.active: dict[int, str] = {}
        self.where = "before the first step"
        self.touched = 0  # progress, as a watchdog sees it
        self.answer: Callable[[], Any] | None = None  # what others do while the run waits
        self.waits = Waits()
        self.is_remote = False  # whether the agent's own store is on a server
        self._deaths = 0
        self._home, self._died_in = threading.get_ident(), 0
        self._counts: Counter[str] = Counter()
        self._entered: Counter[str] = Counter()
        self._kill = kill
        if kill is not None and kill.what == "disk":
            disk.crash_at(kill.number, kill.torn)

    # -- death

    def die(self) -> None:
        self.dead = True
        self._died_in = threading.get_ident()
        raise Died

    def goes_on(self) -> None:
        """Whether the agent does something after its thread has got its death.

        Code that does it on the way out (``finally``, ``except BaseException`` that raises again)
        lets the death through, and is allowed.
        """
        on_the_way_out = isinstance(sys.exception(), Died | GeneratorExit)
        self.swallowed |= self.died_here() and not self.over and not on_the_way_out

    def died_here(self) -> bool:
        """Whether the thread of the agent itself has got its death."""
        return self.dead and self._died_in == threading.get_ident() == self._home

    def check(self) -> None:
        """A dead process does nothing, even if its code catches its death."""
        if self.dead:
            self._deaths += 1
            if self._deaths > DEATHS_MAX:
                self.frozen = True
                _never.wait()
            raise Died

    # -- the disk

    def disk_call(self, call: Callable[..., Any], name: str, given: Arguments) -> Any:
        """Make a call of the files interface, unless the process is dead or dies of it."""
        args, kwargs = given
        if name == "close":  # the kernel closes files of dead processes
            return call(*args, **kwargs)
        self.check()
        before = len(self.disk.calls)
        try:
            result = call(*args, **kwargs)
        except Crash:
            self.die()
        if len(self.disk.calls) > before:
            self.touched += 1
            size = len(args[0]) if name == "pwrite" else 0
            self.calls.append(DiskCall(self.disk.calls[-1], size, self.during()))
        made = name in ("open", "make_directory", "open_directory")
        return _Proxy(result, self) if made else result

    def during(self) -> str:
        calls = ", ".join(self.active.values())
        return f"during {calls}" if calls else self.where

    # -- calls and executions

    def look(self, look: Callable[..., None], *, at_once: bool = False) -> None:
        """The run reads its inbox; while it waits, others send messages before."""
        if at_once and self.answer is not None:
            self.answer()
        look(at_once=at_once)

    def begin_call(self, tool: str) -> int:
        self.goes_on()
        self._counts[tool] += 1
        number = self._counts.total()
        self.active[number] = f"{tool}#{self._counts[tool]}"
        return number

    def enter(self, tool: str, policy: str, call: Call | None, shown: tuple[str, object]) -> Any:
        """A tool is about to have its effect; returns its execution."""
        self.check()
        self.touched += 1
        number = self._entered.total()
        self._entered[tool] += 1
        name = f"{tool}#{self._entered[tool]}"
        key = call.idempotency_key if call is not None else ""
        made = Execution(number, tool, name, key, policy, *shown)
        if self._kill == Kill("before", number):
            self.die()
        self.executions.append(made)
        return made

    def leave(self, made: Execution, value: Any) -> None:
        """A tool has had its effect."""
        self.check()
        made.done, made.value = True, value
        if self._kill == Kill("after", made.number):
            self.die()


class _Proxy:
    """Files, a directory or an open file, whose calls go through a session."""

    def __init__(self, inner: Any, life: Life) -> None:
        self._inner, self._life = inner, life

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._life.disk_call(found, name, (args, kwargs))

        setattr(self, name, call)
        return call


class _Log(EventLog):
    """A log without background commits, whose time would be random."""

    def commit_behind(self) -> None:
        """Does nothing: unflushed writes may be lost in a power loss anyway."""


class Store(LogStore):
    """Runs on the disk of a session."""

    def __init__(self, life: Life) -> None:
        super().__init__("runs", cast(Files, _Proxy(life.disk, life)), "power")

    def claim(self, run_id: str, takeover: bool = False) -> EventLog:
        """See RunStore.claim."""
        path = self._path(run_id)
        return _Log.open(path, self.durability, takeover=takeover, files=self.files)


# -- runs that are seen from outside


def _observed(kind: type[Any]) -> type[Any]:
    class ObservedExecution(kind):  # type: ignore[misc]
        def __init__(self, life: Life, *args: Any) -> None:
            self.life = life
            super().__init__(*args)
            life.waits.add(self)
            self.inbox.look = functools.partial(life.look, self.inbox.look)

        async def perform_async(self, spec: ToolSpec, given: Arguments, call_id: str) -> Any:
            number = self.life.begin_call(spec.name)
            try:
                result = await super().perform_async(*_seen(self, spec, given), call_id)
                self.life.waits.ended(spec, given, result)
                return self._served(result)
            finally:
                self.life.active.pop(number, None)

        def perform_sync(self, spec: ToolSpec, given: Arguments, call_id: str) -> Any:
            number = self.life.begin_call(spec.name)
            try:
                return self._served(super().perform_sync(*_seen(self, spec, given), call_id))
            finally:
                self.life.active.pop(number, None)

        def _perform_async(self, effect: Effect) -> Awaitable[Any]:
            if isinstance(effect, Sleep):
                return self.life.waits.nap(effect)
            return cast(Awaitable[Any], super()._perform_async(effect))

        def _perform_sync(self, effect: Effect) -> Any:
            if isinstance(effect, Sleep):
                return self.life.waits.nap_sync(effect)
            return super()._perform_sync(effect)

        def open_stream(self, spec: ToolSpec, given: Arguments, call_id: str) -> Any:
            self.life.goes_on()
            return super().open_stream(*_seen(self, spec, given), call_id)

        def next_step(self) -> int:
            self.life.goes_on()
            step = super().next_step()
            self.life.where = f"in step {step}"
            return int(step)

        def finish(self, result: Any) -> RunFinished:
            if self.run_id == RUN_ID:  # no child's
                self.life.where = "at the end"
                self.life.final = _kept(result), _kept(self.state), _kept(list(self.messages))
            return cast(RunFinished, super().finish(result))

        def _served(self, result: Any) -> Any:
            if isinstance(result, OutcomeUnknown):
                self.life.reported.add(result.tool)
            return result

        def recorded_value(self, name: str, ask: Callable[[], Any]) -> Any:
            return super().recorded_value(name, lambda: _same_in_each_run(self, name, ask))

    return ObservedExecution


def _same_in_each_run(run: Any, name: str, ask: Callable[[], Any]) -> Any:
    """A value by its position in the run, so that two runs can be compared."""
    scope: Scope = run.current_scope()
    call, count = scope.call, scope._counts[name]
    place = [run.life.seed, run.step, name, count]
    if run.run_id != RUN_ID:
        place += [run.run_id]
    if call is not None:
        place += [call.tool, call.call_id, repr((call.args, call.kwargs))]
    choose = random.Random(repr(place))
    match name:
        case "now":
            return BEGINNING_S + run.step + count * count * 0.001
        case "random":
            return choose.random()
        case "usage":  # counts, without times
            return [*ask()[:-1], 0.0]
        case _:
            return str(uuid.UUID(int=choose.getrandbits(128), version=4))


def _kept(value: Any) -> Any:
    """A copy of the value; its text, if a log could not hold it."""
    try:
        return unpack(pack(value, "value"))
    except RefusedValueError:
        return repr(value)


_KINDS: dict[Any, Any] = {kind: _observed(kind) for kind in (AsyncExecution, SyncExecution)}


def observe(agent: RecoverableAgent, life: Life) -> None:
    """Make the agent run in this session, on its disk."""
    recover = type(agent)._recover

    def observed(task: Any, going: Any, takeover: bool, kind: Any) -> Any:
        made: Any = functools.partial(_KINDS[kind], life)
        return recover(agent, task, going, takeover, made)

    def child(agent_fn: Any, options: Any) -> RecoverableAgent:
        if isinstance(agent_fn, RecoverableAgent):
            made = copy.copy(agent_fn)
        else:
            made = RecoverableAgent(agent_fn, agent.store, **options)
        observe(made, life)
        return made

    life.is_remote = agent.store.backend.is_remote
    agent.store = CheckpointStore(Store(life))
    agent._recover = observed  # type: ignore[method-assign, assignment]
    agent._child = child  # type: ignore[method-assign]


def _seen(run: Any, spec: ToolSpec, given: Arguments) -> tuple[ToolSpec, Arguments]:
    if run.rules >= 2:
        spec, given = plainly(spec, given)
    if spec.waits or spec.name == UNDO_CALL:  # it has no effect outside
        return spec, given
    return _watched(spec), given


def _watched(spec: ToolSpec) -> ToolSpec:
    """The tool, which reports to its session when its body is entered and left."""
    function = spec.function

    async def finished(value: Awaitable[Any], life: Life, made: Execution) -> Any:
        result = await value
        life.leave(made, result)
        return result

    body: Callable[..., Any]
    if is_generator(function):
        body = _seen_generator(spec)
    elif is_async(function):

        @functools.wraps(function)
        async def body(*args: Any, **kwargs: Any) -> Any:
            life, made = _enter(spec)
            return await finished(function(*args, **kwargs), life, made)
    else:

        @functools.wraps(function)
        def body(*args: Any, **kwargs: Any) -> Any:
            life, made = _enter(spec)
            result = function(*args, **kwargs)
            if inspect.isawaitable(result):
                return finished(result, life, made)
            life.leave(made, result)
            return result

    return replace(spec, function=body, acts=spec.acts or function)


def _seen_generator(spec: ToolSpec) -> Callable[..., Any]:
    """Left at its end, or where its consumer leaves it: the chunks until then are its value."""
    function, combine = spec.function, spec.combine or combined

    @functools.wraps(function)
    async def body_async(*args: Any, **kwargs: Any) -> Any:
        (life, made), chunks = _enter(spec), list[Any]()
        async with aclosing(function(*args, **kwargs)) as source:
            with suppress(GeneratorExit):
                async for chunk in source:
                    chunks.append(chunk)
                    yield chunk
        life.leave(made, combine(chunks))

    @functools.wraps(function)
    def body(*args: Any, **kwargs: Any) -> Any:
        (life, made), chunks = _enter(spec), list[Any]()
        with closing(function(*args, **kwargs)) as source, suppress(GeneratorExit):
            for chunk in source:
                chunks.append(chunk)
                yield chunk
        life.leave(made, combine(chunks))

    return body_async if inspect.isasyncgenfunction(function) else body


def _enter(spec: ToolSpec) -> tuple[Life, Execution]:
    scope = current_scope.get()
    assert scope is not None and scope.call is not None
    life, call = cast(Any, scope.run).life, scope.call
    return life, life.enter(spec.name, spec.after_crash, call, shown(spec, call))


def shown(spec: ToolSpec, call: Call) -> tuple[str, object]:
    """A call for people, and to compare."""
    if spec.repeatable:  # its arguments may be a whole conversation, and are not compared
        return spec.name, spec.name
    text = f"{spec.name}({arguments(call.args, call.kwargs)})"
    return text, (spec.name, known_by(spec, (call.args, call.kwargs)))


def arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The arguments of a call for people."""
    parts = [repr(arg) for arg in args] + [f"{name}={value!r}" for name, value in kwargs.items()]
    return ", ".join(part if len(part) <= 60 else part[:57] + "..." for part in parts)
