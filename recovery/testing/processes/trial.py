"""One run of an agent from nothing to its end, through the deaths that are planned for it."""

from __future__ import annotations

import asyncio
import copy
import inspect
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from eventlog.testing import SimulatedDisk
from recovery.agent.checkpoint_store import CheckpointStore
from recovery.agent.recoverable import RecoverableAgent
from recovery.control.resolve import resolve
from recovery.declare.spec import is_async
from recovery.errors import ChildParkedError, InDoubtError, RunFailedError
from recovery.journal.call import Call, Resolution
from recovery.stores.log_store import LogStore
from recovery.testing.simulated.forgotten_doubts import forgotten
from recovery.testing.simulated.nondeterminism_hints import Hints
from recovery.testing.simulated.plain_functions import Watch
from recovery.testing.simulated.simulated_life import (
    RUN_ID,
    Died,
    Execution,
    Kill,
    Life,
    Store,
    observe,
)
from recovery.testing.simulated.unread_signals import watched_task
from recovery.testing.simulated.user_code import where_tasks_wait
from recovery.testing.simulated.virtual_time import Clock, Loop, StuckError, bury

LIVES_MAX = 100  # deaths and resolutions; more means that resuming leads nowhere


@dataclass(frozen=True)
class World:
    """The agent and what is outside of it, as the user gave them."""

    agent: Any
    task: Any
    setup: Callable[[], Any] | None = None
    effects: Callable[..., Any] | None = None
    watch: Watch = field(default_factory=lambda: Watch(()))
    resolve: Callable[[Call], Resolution] | None = None
    seed: int = 0
    answer: Callable[[CheckpointStore, str], Any] | None = None

    def make(self, outside: Any) -> RecoverableAgent:
        """A fresh agent, as a new process would make it."""
        agent = self.agent
        if not isinstance(agent, RecoverableAgent) and not is_agent_function(agent):
            agent = agent(outside) if takes_argument(agent) else agent()
        if isinstance(agent, RecoverableAgent):
            return copy.copy(agent)  # its store is going to be another
        if is_agent_function(agent):
            return RecoverableAgent(agent, CheckpointStore())
        raise TypeError(
            f"{self.agent!r} gave {agent!r}, and not a RecoverableAgent. Give a function that "
            "makes one, or the agent function itself: async, or with a parameter called `run`."
        )

    def seen(self, outside: Any) -> Any:
        """What took place outside, as ``effects`` tells it."""
        if self.effects is None:
            return None
        found = self.effects(outside) if takes_argument(self.effects) else self.effects()
        if isinstance(found, Iterable) and not isinstance(found, str | bytes | dict):
            return Counter(map(repr, found))
        return copy.deepcopy(found)


def is_agent_function(function: Any) -> bool:
    """Whether this is no factory: it is async, or its first parameter is called ``run``."""
    return is_async(function) or _parameters(function)[:1] == ["run"]


def takes_argument(function: Callable[..., Any]) -> bool:
    return bool(_parameters(function))


def _parameters(function: Any) -> list[str]:
    """The names of what has to be given by position."""
    try:
        given = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in given if p.kind in positional and p.default is p.empty]


@dataclass(frozen=True)
class Plan:
    """How the lives of a run end, and whether by power losses (their seed).

    ``after``: how many lives come to their end before the first that is killed: those that park.
    """

    kills: tuple[Kill, ...] = ()
    power: int | None = None
    after: int = 0


@dataclass
class End:
    """How a life, or a run, ended: "finished", "failed", "parked", "raised", "stuck", "died"."""

    how: str
    value: Any = None
    error: BaseException | None = None


class _Disk(SimulatedDisk):
    """A disk on which it is the same time as everywhere: how long an agent took is a question of
    its record."""

    def time_ns(self) -> int:
        return time.time_ns()

    def _next(self) -> SimulatedDisk:
        return _Disk(self.seed + 1)


@dataclass
class Trial:
    """A run, and all that it did in its lives."""

    world: World
    plan: Plan
    clock: Clock
    lives: list[Life] = field(default_factory=list)
    executions: list[Execution] = field(default_factory=list)
    doubtful: list[str] = field(default_factory=list)  # tools of calls for which the run parked
    end: End = field(default_factory=lambda: End("stuck"))
    forgotten: list[str] = field(default_factory=list)  # tools: see simulated.forgotten_doubts
    final: tuple[Any, Any, Any] | None = None
    effects: Any = None
    error: BaseException | None = None  # of the user's setup, effects or factory

    def run(self, hints: Hints | None = None) -> None:
        """From nothing to the end, in the present thread."""
        self.clock.begin()
        try:
            outside = self.world.setup() if self.world.setup is not None else None
            before = self.world.seen(outside)
            self.end = self._live_on(outside, hints)
            after = self.world.seen(outside)
            counted = isinstance(before, Counter) and isinstance(after, Counter)
            # Counted from the beginning of this run, for a list may hold earlier ones.
            self.effects = after - before if counted else after
        except BaseException as exc:
            self.error = exc

    def _live_on(self, outside: Any, hints: Hints | None) -> End:
        disk: SimulatedDisk = _Disk(seed=self.world.seed)
        for _ in range(LIVES_MAX):
            deaths = sum(life.dead for life in self.lives)
            kill = self.plan.kills[deaths] if deaths < len(self.plan.kills) else None
            resolved = bool(self.lives) and not self.lives[-1].dead  # it is taken up again
            if resolved if deaths else len(self.lives) != self.plan.after:
                kill = None
            life = Life(disk, self.world.seed, kill)
            life.waits.watch(self.clock, self.world.answer is not None, partial(_progress, life))
            if self.world.answer is not None:
                store = CheckpointStore(Store(life))
                life.answer = partial(self.world.answer, store, RUN_ID)
            self.lives.append(life)
            end = self._live(life, self.world.make(outside), hints)
            self.executions += life.executions
            self.final = life.final or self.final
            if self.clock.abandoned:
                return end
            self._look_for_forgotten(disk if not life.dead else disk.after_process_death())
            if end.how == "parked" and not self._settle(end.error, life):
                return end
            if life.dead:
                power = self.plan.power
                disk = (
                    disk.after_process_death()
                    if power is None
                    else disk.after_power_loss(power + deaths)
                )
            elif end.how != "parked":
                return end
        return End("stuck", f"the run has not ended after {LIVES_MAX} resumptions")

    def _live(self, life: Life, agent: RecoverableAgent, hints: Hints | None) -> End:
        observe(agent, life)
        task = copy.deepcopy(self.world.task)  # the agent may change it, and other lives have not
        loop = Loop(self.clock, life.waits) if is_async(agent.agent_fn) else None
        if loop is not None:
            loop.set_task_factory(watched_task)
        try:
            self.world.watch.life = life
            with nullcontext() if hints is None else hints.looking(agent):
                if loop is None:
                    done = agent.run_with_recovery_sync(task, RUN_ID)
                else:
                    running = agent.run_with_recovery(task, RUN_ID)
                    done = loop.run_until_complete(running)
        except BaseException as exc:
            if life.dead:
                return End("died")
            return _ended(exc, loop)
        finally:
            self.world.watch.life, life.over = None, True
            if loop is not None:
                bury(loop)
        if life.dead:
            life.swallowed |= life.died_here()
            return End("died")
        return End("finished", done["result"])

    def _look_for_forgotten(self, disk: SimulatedDisk) -> None:
        """Whether everybody could see, now, which side effects are in doubt."""
        found = forgotten(LogStore("runs", disk, "power"))
        self.forgotten += [tool for _, tool in found]

    def _settle(self, parked: BaseException | None, life: Life) -> bool:
        """Do what an operator does who looks outside; whether everything could be settled."""
        for call in doubts(parked):
            self.doubtful.append(call.tool)
            how = self._resolution(call)
            if how.how == "unknown":
                return False
            try:
                resolve(Store(life), call.run_id, call.lsn, how, who="crash test")
            except Died:
                return True
        return True

    def _resolution(self, call: Call) -> Resolution:
        if self.world.resolve is not None:
            return self.world.resolve(call)
        made = [one for one in self.executions if one.key == call.idempotency_key]
        for one in made:
            if one.done:
                return Resolution.outcome(one.value)
        # Entered and interrupted in the middle: not even the test knows.
        return Resolution.unknown() if made else Resolution.retry()


def _progress(life: Life) -> object:
    """What changes when anything happens in a life."""
    return len(life.disk.calls), len(life.executions)


def _ended(exc: BaseException, loop: asyncio.AbstractEventLoop | None) -> End:
    match exc:
        case RunFailedError():
            return End("failed", (exc.type_name, exc.message), exc)
        case InDoubtError() | ChildParkedError() if doubts(exc):
            return End("parked", None, exc)
        case StuckError():
            where = where_tasks_wait(loop) if loop is not None else ""
            return End("stuck", f"{waiting(where)}: {exc}", exc)
    return End("raised", None, exc)


def doubts(error: BaseException | None) -> list[Call]:
    """The calls in doubt for which a run is parked, or its children; none if it is not for that."""
    match error:
        case InDoubtError():
            return list(error.calls)
        case ChildParkedError():
            return [call for _, inner in error.children for call in doubts(inner)]
    return []


def waiting(where: str) -> str:
    """That a run is stuck, and where."""
    return f"the run waits for ever{f', in {where}' if where else ''}"
