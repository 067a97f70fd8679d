"""The lives of a run, from nothing to its end."""

from __future__ import annotations

import asyncio
import itertools
import linecache
import logging
import os
import random
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import recovery.calls.invoking
import recovery.history.retention
from eventlog.testing import SimulatedDisk
from recovery import Budget, CheckpointConfig, CheckpointManager, RecoverableAgent
from recovery.agent import shared_commits
from recovery.agent.checkpoint_store import CheckpointStore
from recovery.agent_code import agent_source as agent_source_module
from recovery.agent_code import order_warnings as races_module
from recovery.declare.tool import undoable_tools
from recovery.engine.driver_effects import TimedOutError
from recovery.engine.execution import Execution
from recovery.graph import FlexibleGraphExecutor, GraphExecutor
from recovery.reports import RecoveryReport
from recovery.testing.simulated.virtual_time import Clock, Loop, StuckError, bury, virtual_time
from tests.model import language as l
from tests.model import schedule as s
from tests.model import values as v
from tests.model.between import accepted, behind, repaired, settled
from tests.model.harm import segments
from tests.model.lived import End, Lived, ended, events_of, made
from tests.model.printer import printed
from tests.model.process import Process, Store
from tests.model.world import RUN, STUMBLED, World
from tests.support.lives import AtOnce

LIVES_MAX = 40
RAISES_MAX = 20  # so often people run an agent again that raises
STUCK_S = 8_000.0
BEGAN_S = 1.8e9
SMALL = 300  # bytes of a segment, where old ones are to go
TASK = "task"
TOLD = "may do things in another order"
LOSES = "a resumed run would lose local variable"
_numbers = itertools.count()


class Runner:
    """Lives one case. ``look`` is called behind each life, with the disk that it has left."""

    def __init__(
        self, program: l.Program, schedule: s.Schedule, look: Callable[[Lived], None]
    ) -> None:
        self.program, self.schedule, self.look = program, schedule, look
        self.lived = Lived(program, schedule, World(program, schedule))
        self.name = f"<program {next(_numbers)}>"
        self.write(program)
        self.clock = Clock()

    def write(self, program: l.Program) -> None:
        """The code of the agent is this from now on."""
        self.program = self.lived.program = program
        self.source = source = printed(program)
        linecache.cache[self.name] = (len(source), None, source.splitlines(True), self.name)
        self.code = compile(source, self.name, "exec", dont_inherit=True)

    def edited(self, life: s.Life) -> None:
        for fault in life.faults:
            if isinstance(fault, s.Edit):
                others = self.program.agents[1:]
                self.write(replace(self.program, agents=(fault.agent, *others)))
                self.lived.old = Counter(one.label for one in self.lived.world.done)
                self.lived.edited = self.lived.last

    def run(self) -> Lived:
        """From nothing to the end."""
        lived, disk, raised = self.lived, SimulatedDisk(seed=1), 0
        try:
            with (
                same_each_time(self.source),
                virtual_time(self.clock),
                quiet(lived),
                in_one_thread(),
                mock.patch.object(recovery.calls.invoking, "_in_time", in_time),
                late(lived.world),
                told(self.source, lived),
            ):
                self.clock.begin()
                for number in range(LIVES_MAX):
                    lives = self.schedule.lives
                    life = lives[number] if number < len(lives) else s.Life()
                    disk = self.between(life, disk)
                    end = self.life(life, disk)
                    lived.ends.append(end)
                    disk = behind(lived, life, disk)
                    lived.disks.append(disk)
                    lived.faulty |= end.how in ("parked", "died", "raised") or bool(life.faults)
                    lived.faulty |= lived.world.counts[STUMBLED] > 0
                    self.look(lived)
                    repaired(lived)
                    raised = raised + 1 if end.how == "raised" and not life.faults else 0
                    if lived.world.broken or raised > RAISES_MAX or self.over(end, life):
                        break
                    disk = lived.disks[-1]
                if lived.end.how in ("finished", "failed"):
                    self.once_more(lived.end, disk)
        finally:
            linecache.cache.pop(self.name, None)
        return lived

    def over(self, end: End, life: s.Life) -> bool:
        if self.lived.was_forked or self.lived.harmed:
            return False
        if end.how == "parked":
            with virtual_time(self.clock):
                return not settled(self.lived, end.error, life)
        if end.how == "diverged":
            with virtual_time(self.clock):
                return not accepted(self.lived, end.error)
        return end.how in ("finished", "failed", "stuck")

    def once_more(self, end: End, disk: SimulatedDisk) -> None:
        """A run that has ended is run again: it gives what it gave, and does nothing."""
        done, final = len(self.lived.world.done), self.lived.final
        for _ in range(2):  # what was lost with the last power is written again, once
            before = segments(disk)
            again = self.life(s.Life(), disk)
            disk = disk.after_process_death()
        same = again.how == end.how and v.full(again.value) == v.full(end.value)
        if not same or len(self.lived.world.done) > done or segments(disk) != before:
            self.lived.world.broken.append(f"ended: run again, it comes to {again}")
        self.lived.final = final
        del self.lived.processes[-2:]

    # -- between lives

    def between(self, life: s.Life, disk: SimulatedDisk) -> SimulatedDisk:
        for fault in life.faults:
            if isinstance(fault, s.Jump):
                self.clock.ahead += fault.seconds
                for process in self.lived.processes[-1:]:
                    process.hits("nobody there")
                self.lived.world.look_after(CheckpointStore(Store(disk)), self.clock.ahead)
        return disk

    # -- a life

    def life(self, life: s.Life, disk: SimulatedDisk) -> End:
        world = self.lived.world
        self.lived.last = max((lsn for lsn, _ in events_of(disk)), default=0)
        self.edited(life)
        self.lived.done = len(world.done)
        process = Process(world, disk, life, len(self.lived.ends) * self.lived.faulty)
        self.lived.processes.append(process)
        names: dict[str, Any] = {"outside": world, "__name__": "agent_of_a_stranger"}
        undoable_tools.clear()  # a new process knows none of other programs
        exec(self.code, names)  # noqa: S102 - a program that this package has printed
        store, kept = CheckpointStore(Store(disk, process)), self.program.keep
        if kept:
            logs = Store(disk, process, SMALL)
            store = CheckpointStore(logs, retention="prune_old", keep=kept)
        loop = Loop(self.clock)
        loop.set_task_factory(_Task.made)
        try:
            with mock.patch.object(Execution, "finish", self.finishing(Execution.finish)):
                if self.program.plain:
                    agent = self.recoverable(names, store, life, process)
                    value = agent.run_with_recovery_sync(TASK, RUN)["result"]
                else:
                    value = loop.run_until_complete(self.living(names, store, life, process))
            return End("died") if process.dead else End("finished", value)
        except KeyboardInterrupt:  # whoever hunts
            raise
        except BaseException as exc:
            # Who waits for a message, and writes nothing, does not see that the run was taken over.
            waits = process.taken_over and isinstance(exc, StuckError)
            return End("died") if process.dead or waits else ended(exc)
        finally:
            bury(loop)

    def recoverable(
        self, names: dict[str, Any], store: CheckpointStore, life: s.Life, process: Process
    ) -> RecoverableAgent[Any]:
        limits = [one.calls for one in life.faults if isinstance(one, s.Limit)]
        self.lived.limit = made(self.lived) + limits[0] if limits else None
        budget = Budget(calls=self.lived.limit) if limits else None
        told, every = process.told, self.program.every
        return RecoverableAgent(names["agent0"], store, every, on_event=told, budget=budget)

    def finishing(self, finish: Any) -> Any:
        lived = self.lived

        def kept(run: Any, result: Any) -> Any:
            if run.run_id == RUN:
                lived.final = v.full(dict(run.state)), v.full(list(run.messages))
            return finish(run, result)

        return kept

    async def living(
        self, names: dict[str, Any], store: CheckpointStore, life: s.Life, process: Process
    ) -> Any:
        people = asyncio.ensure_future(self.people(process))
        running = asyncio.ensure_future(self.running(names, store, life, process))
        try:
            done, _ = await asyncio.wait([people, running], return_when=asyncio.FIRST_COMPLETED)
            if running not in done:
                raise StuckError("the run does not end") from people.exception()
            return running.result()
        finally:
            people.cancel()

    async def people(self, process: Process) -> None:
        store, waited = CheckpointStore(Store(process.disk, process)), 1.0
        end, sent = self.clock.ahead + STUCK_S, 0
        while self.clock.ahead < end:
            await asyncio.sleep(waited)
            waited = min(waited * 1.5, 1000.0)
            process.check()
            process.people = True
            self.lived.world.look_after(store, self.clock.ahead)
            process.people = False
            if self.lived.world.sent.total() > sent:  # it takes what it is sent
                end, sent = self.clock.ahead + STUCK_S, self.lived.world.sent.total()

    async def running(
        self, names: dict[str, Any], store: CheckpointStore, life: s.Life, process: Process
    ) -> Any:
        program = self.program
        loop = asyncio.get_running_loop()
        for fault in life.faults:
            if isinstance(fault, s.DieIn):
                loop.call_later(fault.seconds, process.die, "die in time")
        if program.agents:
            agent = self.recoverable(names, store, life, process)

            def stop() -> None:
                process.hits("a stop")
                agent.stop()

            for fault in life.faults:
                if isinstance(fault, s.Stop):
                    loop.call_later(fault.seconds, stop)
            return (await agent.run_with_recovery(TASK, RUN))["result"]
        manager = CheckpointManager(store, CheckpointConfig())
        if program.nodes:
            executor = GraphExecutor(checkpoint_manager=manager, on_event=process.told)
            found = await executor.execute(names["graph"], "goal", {"task": TASK}, RUN)
        else:
            flexible = FlexibleGraphExecutor(
                names["planner"],
                names["tools"],
                names["judge"],
                checkpoint_manager=manager,
                on_event=process.told,
            )
            found = await flexible.execute("goal", {"task": TASK}, RUN)
        if not found.success:
            raise RuntimeError(f"stands still: {found.error}")
        return {key: value for key, value in found.output.items() if key != "task"}


@contextmanager
def same_each_time(source: str) -> Iterator[None]:
    """Without the clocks of the machine and without chance: a case repeats what it did. Only
    virtual time passes, and what is drawn at random depends on the program alone."""
    drawn = random.Random(source)
    with (
        mock.patch.multiple(
            time,
            time=lambda: BEGAN_S,
            time_ns=lambda: int(BEGAN_S * 1e9),
            monotonic=lambda: 0.0,
            monotonic_ns=lambda: 0,
        ),
        mock.patch.object(random, "random", drawn.random),
        mock.patch.object(os, "urandom", drawn.randbytes),
        mock.patch.object(uuid, "uuid4", lambda: uuid.UUID(int=drawn.getrandbits(128), version=4)),
    ):
        yield


class _Task(asyncio.Task[Any]):
    """A task whose place in a set is drawn, and not that of its place in memory."""

    def __init__(self, coro: Any, **options: Any) -> None:
        self._place = int(random.random() * 2**60)
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self._place

    @classmethod
    def made(cls, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> _Task:
        """A task factory of loops."""
        return cls(coro, loop=loop, **options)


@contextmanager
def in_one_thread() -> Iterator[None]:
    """Threads of the library do their work here. Retention removes records when a checkpoint is
    taken, whether that pays or not."""
    with (
        mock.patch.object(shared_commits, "_committers", AtOnce()),
        mock.patch.object(shared_commits, "flush_threads", AtOnce()),
        mock.patch.object(recovery.history.retention, "_cutters", AtOnce()),
        mock.patch.object(recovery.history.retention, "GAIN", 0),
    ):
        yield


def in_time(effect: Any) -> Any:
    """A call with a time-out from plain code: in the thread that has the time, and not in one of
    its own, which would wait for real."""

    async def called() -> Any:
        call = asyncio.ensure_future(effect.function(*effect.args, **effect.kwargs))
        if not (await asyncio.wait([call], timeout=effect.timeout_s))[0]:
            raise TimedOutError(effect.function.__name__, effect.timeout_s)
        return call.result()

    return asyncio.run(called())


_told: dict[str, list[str]] = {}  # what is said of the newest program, by its source


@contextmanager
def told(source: str, lived: Lived) -> Iterator[None]:
    """What the library says once in a process it has said of this program in each of its cases."""
    if source in _told:
        lived.warned += _told[source]
        yield
        return
    races_module._examined.clear()
    agent_source_module._examined.clear()
    yield
    _told.clear()
    _told[source] = [line for line in lived.warned if TOLD in line or LOSES in line]


class _Watched:
    """A time-out of asyncio, of which it is known whether it ran out."""

    def __init__(self, inner: asyncio.Timeout, var: str, world: World) -> None:
        self.inner, self.var, self.world = inner, var, world

    async def __aenter__(self) -> asyncio.Timeout:
        return await self.inner.__aenter__()

    async def __aexit__(self, *raised: Any) -> None:
        try:
            await self.inner.__aexit__(*raised)
        finally:
            if not self.world.process.dead:
                found = self.world.late if self.inner.expired() else self.world.fine
                found[self.var] += 1


@contextmanager
def late(world: World) -> Iterator[None]:
    """Count the time-outs of printed programs that run out, by the variable that they set."""
    made = asyncio.timeout

    def timeout(delay: float | None) -> Any:
        caller = sys._getframe(1)
        line = linecache.getline(caller.f_code.co_filename, caller.f_lineno)
        _, _, var = line.rstrip().rpartition("  # ")
        return _Watched(made(delay), var, world)

    with mock.patch.object(asyncio, "timeout", timeout):
        yield


class _Kept(logging.Handler):
    def __init__(self, lived: Lived) -> None:
        super().__init__()
        self.lived = lived

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(record.args, tuple) and record.args:
            (first, *_) = record.args
            if isinstance(first, RecoveryReport):
                self.lived.reports.append((len(self.lived.ends), first))
        if record.levelno >= logging.WARNING:
            self.lived.warned.append(record.getMessage())


@contextmanager
def quiet(lived: Lived) -> Any:
    """Keep what the library logs; show nothing of it."""
    with ExitStack() as held:
        for name in ("recovery", "eventlog", "asyncio"):
            logger = logging.getLogger(name)
            held.enter_context(mock.patch.object(logger, "handlers", [_Kept(lived)]))
            held.enter_context(mock.patch.object(logger, "propagate", False))
        logger = logging.getLogger("recovery")
        held.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.INFO)  # reports of recoveries are among it
        yield
