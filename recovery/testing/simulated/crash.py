"""Kills an agent at every point in simulation, and reports the findings."""

from __future__ import annotations

import contextvars
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypedDict, Unpack
from unittest import mock

from recovery.agent import begin_run
from recovery.agent.checkpoint_store import CheckpointStore
from recovery.agent.recoverable import RecoverableAgent
from recovery.declare.spec import function_name
from recovery.journal.call import Call, Resolution
from recovery.testing.crash_report import NEVER, CrashReport, Finding
from recovery.testing.processes.trial import End, Plan, Trial, World, waiting
from recovery.testing.simulated.compare import ended_alike, forgotten, judge, lost_signals, told
from recovery.testing.simulated.nondeterminism_hints import Hints
from recovery.testing.simulated.plain_functions import Watch
from recovery.testing.simulated.planned_deaths import quiet
from recovery.testing.simulated.simulated_life import Kill, Life
from recovery.testing.simulated.user_code import function_of, where_thread_is
from recovery.testing.simulated.virtual_time import Clock, virtual_time

POINTS = 500  # tried by default: a second or two for most agents
TIMEOUT_S = 10.0
NAMES_MAX = 8  # of functions in a note

_monotonic = time.monotonic
_one_at_a_time = threading.RLock()


class CrashOptions(TypedDict, total=False):
    """The options of ``crash_everywhere``, all of them by name."""

    setup: Callable[[], Any] | None
    effects: Callable[..., Any] | None
    watch: Sequence[Callable[..., Any]]
    resolve: Callable[[Call], Resolution] | None
    answer: Callable[[CheckpointStore, str], Any] | None
    points: int | Literal["all"] | Sequence[str]
    seed: int
    power_loss: bool
    strict: bool
    timeout_s: float


def crash_everywhere(
    agent: RecoverableAgent | Callable[..., Any], task: Any = None, **options: Unpack[CrashOptions]
) -> CrashReport:
    """Run an agent, kill it at every point and resume it; returns a report.

    The run is made twice without a crash, then once for each crash point. These are each changing
    call of the disk, each write torn in the middle, and a crash of the recovery itself. Each
    execution of a tool has one before its effect, and one after it. It is resumed until it ends,
    and compared: effects of tools, result, state, messages. Tools are really executed: give fakes.
    Sleeping takes no time.

    Args:
        agent: A function that makes a RecoverableAgent. It is called for each process, and given
            what ``setup`` returned, if it takes an argument. Or an agent function: async, or with
            ``run`` as its first parameter. Its store is replaced by one on a simulated disk.
        task: The task of the run (None).
        setup: Called before each run; makes, or resets, the outside world.
        effects: Returns the effects there, as an iterable to be compared (given what ``setup``
            returned, if it takes an argument).
        watch: Plain functions to count and to die in, too (none).
        resolve: The answer of a person about a call in doubt (the truth).
        answer: What others do about a run that waits (``RunHandle.signal`` with a key,
            ``approve``), given its store and its id, called repeatedly while it waits.
        points: At most so many points, chosen by the seed (500); "all": every one; texts of a
            report: these.
        seed: Chooses the points (0).
        power_loss: Also lose unflushed writes (False). True by default if the agent's store is on a
            server: a process that is killed loses there what it has not committed.
        strict: A call in doubt is a failure (False).
        timeout_s: How long, in real seconds, the run may make no progress before it counts as stuck
            (10).

    Raises what the agent raises without a crash, TypeError for an object that is no agent.
    """
    watched = [function_of(function) for function in options.get("watch", ())]
    world = World(
        agent,
        task,
        options.get("setup"),
        options.get("effects"),
        Watch(watched),
        options.get("resolve"),
        options.get("seed", 0),
        options.get("answer"),
    )
    with _one_at_a_time, _alone(world.seed), world.watch.watching():
        sweep = Sweep(world, options)
        sweep.run()
    return sweep.report()


@dataclass(frozen=True)
class Point:
    """A point to die at, and its text."""

    plan: Plan
    text: str


@dataclass
class Sweep:
    """The runs of one agent, and their findings."""

    world: World
    options: CrashOptions
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    points: int = 0
    possible: int = 0
    resumptions: int = 0
    reference: Trial | None = None

    def run(self) -> None:
        reference = self._trial(Plan(), None)
        if reference.end.how in ("raised", "parked", "stuck"):
            raise _without_a_crash(reference.end)
        self.reference = reference
        hints = Hints()
        again = self._trial(Plan(), hints)
        differing = ended_alike(reference, again)
        self.findings += [
            Finding(
                "differs", NEVER, "", f"the agent itself gave two different results {NEVER}: {what}"
            )
            for what in differing
        ]
        self.findings += [*lost_signals(reference, NEVER), *forgotten(reference, NEVER)]
        self._note(hints)
        is_remote = any(life.is_remote for life in reference.lives)
        power_loss = self.options.get("power_loss", is_remote)
        points = possible_points(reference, power_loss, self.world.seed)
        self.possible = len(points)
        for point in chosen(points, self.options.get("points", POINTS), self.world.seed):
            self._try(point, steady=not differing)

    def _try(self, point: Point, steady: bool) -> None:
        trial = self._trial(point.plan, None)
        assert self.reference is not None
        deaths = sum(life.dead for life in trial.lives)
        if not deaths and trial.end.how != "stuck":
            return  # an agent that is not deterministic did not reach this point
        self.points += 1
        self.resumptions += max(0, len(trial.lives) - 1)
        self.findings += judge(self.reference, trial, point.text, steady)
        if any(life.swallowed for life in trial.lives):
            self._say(
                "the agent catches BaseException and continues. No process survives its death, "
                "but cancellation, Ctrl-C and sys.exit() come that way too: let them "
                "through."
            )

    def _trial(self, plan: Plan, hints: Hints | None) -> Trial:
        clock = Clock()
        trial = Trial(self.world, plan, clock)
        with virtual_time(clock):
            thread = threading.Thread(
                target=contextvars.copy_context().run,
                args=(trial.run, hints),
                name="crash test",
                daemon=True,
            )
            thread.start()
            try:
                if not self._wait(thread, trial):
                    trial = self._given_up(trial, where_thread_is(thread.ident))
            finally:  # also after Ctrl-C: remaining threads of the run do nothing any more
                if thread.is_alive():
                    clock.abandoned = True
                    for life in trial.lives:
                        life.dead = True
        if trial.error is not None:
            raise trial.error from None
        return trial

    def _wait(self, thread: threading.Thread, trial: Trial) -> bool:
        """Whether the trial ended; False when it makes no progress any more."""
        limit, touched, since = self.options.get("timeout_s", TIMEOUT_S), -1, _monotonic()
        while True:
            thread.join(0.02)
            if not thread.is_alive():
                return True
            now = sum(life.touched for life in list(trial.lives))
            frozen = trial.lives and trial.lives[-1].frozen
            if now != touched:
                touched, since = now, _monotonic()
            elif frozen or _monotonic() - since > limit:
                return False

    def _given_up(self, trial: Trial, where: str) -> Trial:
        """The trial without its thread, which will never end."""
        what = waiting(where)
        if trial.lives and trial.lives[-1].frozen:
            what = f"{where or 'the agent'} catches BaseException and tries again for ever"
        return replace(
            trial,
            end=End("stuck", what),
            lives=list(trial.lives),
            executions=list(trial.executions),
        )

    def _note(self, hints: Hints) -> None:
        if hints.lost is not None:
            self._say(str(hints.lost))
        for hint in hints.changing:
            self._say(f"not the same in each run: {hint}")
        watched = {function.__name__ for function in self.world.watch.functions}
        names = [name for name in hints.unrecorded if name.partition(" ")[0] not in watched]
        if names and self.world.effects is None:
            more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
            self._say(
                "what the agent does outside of recorded calls is done again after a crash, "
                "and was not looked at (watch=, effects=): "
                f"{', '.join(names[:NAMES_MAX])}{more}"
            )

    def _say(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def report(self) -> CrashReport:
        """The findings."""
        assert self.reference is not None
        effects = Counter(one.tool for one in self.reference.executions)
        return CrashReport(
            _name(self.world.agent),
            self.points,
            self.resumptions,
            told(self.reference.end),
            tuple(self.findings),
            dict(effects),
            self.world.seed,
            self.possible,
            self.options.get("strict", False),
            tuple(self.notes),
        )


def _without_a_crash(end: End) -> BaseException:
    """The error to raise for an agent that does not end by itself."""
    note = "crash_everywhere: this is the run without any crash; make that work first"
    if end.how == "stuck":
        error: BaseException = TimeoutError(end.value)
    else:
        error = end.error or RuntimeError(end.how)
        if isinstance(error, (SystemExit, KeyboardInterrupt)):
            error = RuntimeError(f"the agent raised {error!r}")
    error.add_note(note)
    return error


def _name(agent: Any) -> str:
    if isinstance(agent, RecoverableAgent):
        agent = agent.agent_fn
    return function_name(agent)


# -- crash points


def possible_points(reference: Trial, power_loss: bool, seed: int) -> list[Point]:
    """Every point to die at, in the order in which a run reaches them; then pairs of points."""
    choose = random.Random(f"{seed} points")
    found: list[Point] = []
    twice: list[Point] = []
    for after, life in enumerate(reference.lives):
        points, again = _points_of(life, choose, power_loss)
        for points_of, to in ((points, found), (again, twice)):
            to += [_later(point, after) for point in points_of]
    return found + twice


def _later(point: Point, after: int) -> Point:
    """The point in a later session, which the run reaches after a call was resolved."""
    if not after:
        return point
    text = f"{point.text}, in life {after + 1}"
    return Point(replace(point.plan, after=after), text)


def _points_of(
    life: Life, choose: random.Random, power_loss: bool
) -> tuple[list[Point], list[Point]]:
    """The points to die at in one session, and the pairs."""
    found: list[Point] = []
    twice: list[Point] = []
    for number, call in enumerate(life.calls):
        at = f"at disk call {number} of {len(life.calls)} ({call.verb}"
        size = f" of {call.size} bytes" if call.size else ""
        kills = [(Kill("disk", number), f"{at}{size}), {call.during}")]
        if call.size > 1:
            torn = choose.randrange(1, call.size)
            kills.append(
                (Kill("disk", number, torn), f"{at}{size}, torn after {torn}), {call.during}")
            )
        found += _with_variants(kills, choose, power_loss)
        twice.append(_twice(*kills[0], len(life.calls), choose))
    for one in life.executions:
        kills = [
            (Kill("before", one.number), f"before {one.name} took effect"),
            (Kill("after", one.number), f"after {one.name} took effect, before that was recorded"),
        ]
        found += _with_variants(kills, choose, power_loss)
    return found, twice


def _with_variants(
    kills: list[tuple[Kill, str]], choose: random.Random, power_loss: bool
) -> Iterator[Point]:
    for kill, text in kills:
        yield Point(Plan((kill,)), text)
        if power_loss:
            number = choose.randrange(1 << 30)
            yield Point(Plan((kill,), number), f"{text}, a power loss (seed {number})")


def _twice(kill: Kill, text: str, calls: int, choose: random.Random) -> Point:
    again = choose.randrange(calls)
    text = f"{text}, and again at disk call {again} of the resumption"
    return Point(Plan((kill, Kill("disk", again))), text)


def chosen(
    points: list[Point], which: int | Literal["all"] | Sequence[str], seed: int
) -> list[Point]:
    """The points to try: executions of tools first, because they show the most."""
    if which == "all":
        return points
    if not isinstance(which, int):
        texts = set(which)
        unknown = texts - {point.text for point in points}
        if unknown:
            raise ValueError(f"this run has no such crash point: {sorted(unknown)}")
        return [point for point in points if point.text in texts]
    if which < 1:
        raise ValueError(f'points is "all", 1 or more, or texts of a report, not {which}')
    choose = random.Random(f"{seed} chosen")
    tools = [point for point in points if point.plan.kills[0].what != "disk"]
    disk = [point for point in points if point.plan.kills[0].what == "disk"]
    some = choose.sample(tools, min(len(tools), max(which // 2, which - len(disk))))
    some += choose.sample(disk, min(len(disk), which - len(some)))
    taken = {point.text for point in some}
    return [point for point in points if point.text in taken]


@contextmanager
def _alone(seed: int) -> Iterator[None]:
    """Makes runs that are the same each time, and log nothing."""

    def uid(run_id: str, log: object, is_guarded: bool) -> str:
        return random.Random(f"{seed} uid {run_id}").randbytes(16).hex()

    # Idempotency keys depend on these ids, and results may contain keys. So each run has an id of
    # its own, which is the same in each trial.
    with quiet(), mock.patch.object(begin_run, "_new_uid", uid):
        yield
