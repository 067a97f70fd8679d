"""Crash-tests any agent, in processes that are really killed.

The agent first runs twice without a kill; what is the same in both is the reference. Then it runs
once for each moment: it is killed there, and started again as its user would, until it ends. Its
effects are compared with the reference. Each run has a working directory of its own.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from recovery.testing.crash_report import CrashReport, Finding
from recovery.testing.processes import child
from recovery.testing.processes.counting_proxy import Proxy, Service
from recovery.testing.processes.process_tree import TOKEN, Ended, Life, end_all, new_token
from recovery.testing.processes.verdict import Outcome, Volatile, counted, judge, volatile
from recovery.testing.processes.watch import Listener, Moment, Watch, short

COPY_SIZE_MAX, COPY_FILES_MAX = 64 * 1024 * 1024, 5000  # of a working directory, for each run
NOT_COPIED = (".git", ".hg", ".svn", ".venv", "venv", "node_modules", "__pycache__", ".*_cache")
SETTLE_S = 30.0  # how long a service may take to answer a request forwarded before a kill
_RESULT_FILE = ".crashtest-result"

# Kinds of moments that are tried first when not all can be tried.
_FIRST = ("call", "return", "request", "answer")


class CannotTestError(Exception):
    """There is no run to compare killed runs with: the message says what to change."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The commands of an agent.

    ``resume``: how it is started again. ``directory``: copied to be the working directory of each
    run. ``result``: the file in it that holds the result; None: the last printed line.
    """

    name: str
    start: Sequence[str]
    resume: Sequence[str]
    directory: Path
    result: str | None = None


@dataclass(frozen=True, slots=True)
class World:
    """The sources of effects: functions by name, and services behind a proxy, by port.

    ``repeatable``: those of them that are safe to repeat.
    """

    tools: Sequence[str] = ()
    services: Sequence[tuple[int, Service]] = ()
    repeatable: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is tried. ``points``: exact moments; ``kills``: random ones, by ``seed``; a run with
    random kills is killed up to twice. ``restarts``: how often a run may fail by itself.
    ``life_s``: the time limit of a session."""

    points: int = 100
    kills: int = 10
    seed: int = 0
    restarts: int = 2
    life_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Kill:
    """Where to kill a run: at a moment, or its first sessions after so many seconds."""

    at: Moment | None = None
    after_s: tuple[float, ...] = ()

    def __str__(self) -> str:
        times = " and, resumed, ".join(f"{after:.3f} s" for after in self.after_s)
        return str(self.at) if self.at is not None else f"after {times}"


Progress = Callable[[int, int, Kill], None]


def crashtest(
    subject: Subject, world: World, limits: Limits, progress: Progress, *, strict: bool = False
) -> CrashReport:
    """Kill the agent at each moment that can be seen, and at random ones; report the effects.

    ``progress`` is called before each run: how many are done, of how many, and the kill. Raises
    CannotTestError; OSError when processes or sockets are not available.
    """
    with ExitStack() as stack:
        disk = bool(limits.points)
        listener = stack.enter_context(Listener(list(world.tools), disk))
        runner = Runner(subject, limits, listener)
        for port, service in world.services:
            proxy = Proxy(port, service, lambda: listener.watch)
            runner.proxies.append(stack.enter_context(proxy))
        reference, again = runner.run(Kill()), runner.run(Kill())
        _check(reference, again, world)
        kills = planned_kills(reference, limits)
        outcomes = []
        for done, kill in enumerate(kills):
            progress(done, len(kills), kill)
            outcomes.append(runner.run(kill))
    report = _report(subject, world, limits, (reference, again), outcomes)
    return replace(report, strict=strict)


class Runner:
    """Runs the agent, each time from the beginning, in a directory of its own."""

    def __init__(self, subject: Subject, limits: Limits, listener: Listener) -> None:
        self._subject, self._limits, self._listener = subject, limits, listener
        self.proxies: list[Proxy] = []

    def run(self, kill: Kill) -> Outcome:
        watch = self._listener.watch = Watch(kill.at)
        with tempfile.TemporaryDirectory(
            prefix="crashtest-run-", ignore_cleanup_errors=True
        ) as folder:
            return self._run(kill, watch, Path(folder))

    def _run(self, kill: Kill, watch: Watch, folder: Path) -> Outcome:
        _copy(self._subject.directory, folder / "work")
        environment = self._environment(folder)
        began, lives, kills, failures = time.monotonic(), 0, 0, 0
        while True:
            after_s = kill.after_s[lives] if lives < len(kill.after_s) else None
            ended = self._live(watch, folder, environment, lives, after_s)
            lives += 1
            if ended.killed:
                kills += 1
                continue
            parked = watch.parked if ended.code else ""
            if ended.code in (0, None) or parked or failures == self._limits.restarts:
                break
            failures += 1  # a supervisor would restart it
        return Outcome(
            point=str(kill) if kills else "",
            effects=tuple(watch.effects),
            moments=tuple(watch.moments),
            result=self._result(folder, ended),
            failed=self._failed(ended),
            stuck=ended.code is None,
            parked=parked,
            lives=lives,
            kills=kills,
            time_s=time.monotonic() - began,
            said=ended.tail(),
        )

    def _live(
        self,
        watch: Watch,
        folder: Path,
        environment: Mapping[str, str],
        number: int,
        after_s: float | None,
    ) -> Ended:
        """Run one process, until all of its processes have ended."""
        token = new_token()
        watch.begin(token)
        command = self._subject.resume if number else self._subject.start
        output = folder / f"life-{number + 1}"
        try:
            with Life(command, folder / "work", {**environment, TOKEN: token}, output) as life:
                watch.attach(life.kill)
                return life.wait(self._limits.life_s, after_s)
        except (FileNotFoundError, PermissionError) as exc:
            raise CannotTestError(f"cannot start {command[0]!r}: {exc.strerror}") from exc
        except BaseException:
            end_all(token)  # an interrupt may have come before the process was stored here
            raise
        finally:
            watch.end()
            for proxy in self.proxies:
                proxy.settle(SETTLE_S)

    def _environment(self, folder: Path) -> dict[str, str]:
        base = os.environ | {
            "CRASHTEST_DIR": str(folder / "work"),
            "CRASHTEST_RUN": folder.name,
            "EVENTLOG_HOME": str(folder / "work" / ".eventlog"),
        }
        for number, proxy in enumerate(self.proxies, 1):
            name = "CRASHTEST_PROXY" if number == 1 else f"CRASHTEST_PROXY_{number}"
            base[name] = f"http://127.0.0.1:{proxy.port}"
        # Relative to the present directory, which is not the working directory of the agent.
        path = filter(None, base.get("PYTHONPATH", "").split(":"))
        absolute = ":".join(str(Path(folder).absolute()) for folder in path)
        return self._listener.environment(base | {"PYTHONPATH": absolute})

    def _result(self, folder: Path, ended: Ended) -> str | None:
        if self._subject.result is None:
            lines = ended.stdout.read_text(errors="replace").split("\n")
            return next((line for line in reversed(lines) if line.strip()), None)
        try:
            return (folder / "work" / self._subject.result).read_text(errors="replace")
        except OSError:
            return None

    def _failed(self, ended: Ended) -> str:
        if ended.code is None:
            return f"it does not end within {self._limits.life_s:g} s: {ended.last_line()}"
        return f"it ends with exit code {ended.code}: {ended.last_line()}" if ended.code else ""


def _copy(source: Path, target: Path) -> None:
    """The working directory of a run."""
    size = files = 0
    ignore = shutil.ignore_patterns(*NOT_COPIED)
    for folder, folders, names in os.walk(source):
        left_out = ignore(folder, folders)
        folders[:] = [name for name in folders if name not in left_out]
        files += len(names)
        size += sum(os.lstat(Path(folder, name)).st_size for name in names)
        if size > COPY_SIZE_MAX or files > COPY_FILES_MAX:
            raise CannotTestError(
                f"{source} is too large to be copied for each run ({COPY_SIZE_MAX >> 20} MiB, "
                f"{COPY_FILES_MAX} files): name a directory with what the agent needs, --fresh DIR"
            )
    shutil.copytree(source, target, symlinks=True, ignore=ignore)


def _check(reference: Outcome, again: Outcome, world: World) -> None:
    """Check that two runs without a kill are equal enough to compare a third with them."""
    for outcome in (reference, again):
        if outcome.parked or outcome.failed:
            which = "" if outcome is reference else " when it is run a second time, from nothing"
            why = outcome.failed or f"it waits for a person to settle {outcome.parked}"
            raise CannotTestError(
                f"the agent fails without being killed{which}: {why}\n{outcome.said}"
            )
    for tool in world.tools:
        if not any(effect.name == tool for effect in reference.effects):
            raise CannotTestError(
                f"tool {tool} was never called. Name it as the module that defines it names it "
                "(module:function, module:Class.method); the agent has to be a Python program that "
                "heeds PYTHONPATH."
            )
    ignored = volatile(reference, again)
    one, other = (counted(outcome.effects, ignored) for outcome in (reference, again))
    if one != other:
        (_, call), *_ = (one - other) + (other - one)
        raise CannotTestError(
            f"two runs without a kill differ: {call} took place {one[_find(one, call)]} times, "
            f"then {other[_find(other, call)]} times. Use a model that answers the same each time; "
            "and keep all state in the working directory ($CRASHTEST_DIR), a new copy of which "
            "each run gets."
        )


def _find(counts: Counter[tuple[str, str]], call: str) -> tuple[str, str]:
    return next((key for key in counts if key[1] == call), ("", call))


def planned_kills(reference: Outcome, limits: Limits) -> list[Kill]:
    """The kills: all moments, or those of tools and requests and a sample of the others."""
    rng = random.Random(limits.seed)
    ranked = list(dict.fromkeys(reference.moments))
    chosen: set[Moment] = set()
    for group in (_FIRST, ("record",), ("disk",)):
        of_group = [moment for moment in ranked if moment.where in group]
        room = limits.points - len(chosen)
        chosen.update(of_group if len(of_group) <= room else rng.sample(of_group, room))
    plan = [Kill(moment) for moment in ranked if moment in chosen]
    for _ in range(limits.kills):
        times = (rng.uniform(0, reference.time_s), rng.uniform(0, reference.time_s))
        plan.append(Kill(after_s=times[: rng.choice((1, 2))]))
    return plan


def _report(
    subject: Subject,
    world: World,
    limits: Limits,
    references: tuple[Outcome, Outcome],
    outcomes: list[Outcome],
) -> CrashReport:
    reference, again = references
    ignored = volatile(reference, again)
    comparable = reference.result == again.result
    held = reference if comparable else _without_result(reference)
    findings: list[Finding] = []
    for outcome in outcomes:
        if outcome.kills:
            findings += judge(held, outcome, ignored, world.repeatable)
    effects = Counter(short(effect.name) for effect in reference.effects)
    possible = len(set(reference.moments)) + limits.kills
    return CrashReport(
        agent=subject.name,
        points=sum(bool(outcome.kills) for outcome in outcomes),
        resumptions=sum(outcome.lives - 1 for outcome in outcomes),
        reference=f"returned {reference.result}" if reference.result is not None else "no result",
        findings=tuple(findings),
        effects=dict(effects),
        seed=limits.seed,
        possible=possible,
        notes=tuple(_notes(world, ignored, comparable, outcomes)),
    )


def _without_result(outcome: Outcome) -> Outcome:
    return replace(outcome, result=None)


def _notes(
    world: World, ignored: Volatile, comparable: bool, outcomes: list[Outcome]
) -> Iterator[str]:
    if not world.tools and not world.services:
        yield (
            "no effects were watched (--tool, --proxy): only the result and the exit code were "
            "compared"
        )
    for tool, arg in sorted(ignored):
        yield f"{arg} of {short(tool)} is another in each run, and was not compared"
    if not comparable:
        yield "the result is another in each run, and was not compared"
    missed = sum(not outcome.kills for outcome in outcomes)
    if missed:
        yield f"{missed} runs were over before they could be killed"


def module_agent(name: str, task: str, directory: Path) -> Subject:
    """The agent ``module:name``, called with ``task`` (JSON) in a process of this Python."""
    command = [sys.executable, child.__file__, name, task, _RESULT_FILE, str(Path.cwd())]
    return Subject(name, command, command, directory, _RESULT_FILE)
