"""What must be true of a run, whatever happened to it. Each finding names its rule."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from recovery import (
    AmbiguousCallError,
    ChildParkedError,
    DamagedRunError,
    DivergenceError,
    UnrecordedResultError,
    status,
)
from recovery._events import (
    AttemptFailed,
    CallAbandoned,
    CallDecided,
    CallFailed,
    CallIntended,
    CallResolved,
    CallRetried,
    CallReturned,
    SignalTaken,
    decode,
)
from tests.model import language as l
from tests.model import values as v
from tests.model.carried import lost
from tests.model.generate import NEVER
from tests.model.lived import Lived, made
from tests.model.logs import Held, held_by, misreported, wrong
from tests.model.oracle import Ending, Facts, endings
from tests.model.runner import TASK, Runner
from tests.model.schedule import Power, Schedule
from tests.model.world import RUN

ENDINGS_MAX = 800
CPU_S = 15.0
AMBIGUOUS = ("method", "closure", "lambda")
TOLD = "may do things in another order"
LOSES = "a resumed run loses local variable"


@dataclass(frozen=True)
class Finding:
    rule: str
    what: str


@dataclass
class Judged:
    """What was found in one case."""

    lived: Lived
    findings: list[Finding] = field(default_factory=list)
    undecided: bool = False  # too many endings are possible
    excused: str = ""  # what the library has refused, or has warned of when it first saw the code


def judged(program: l.Program, schedule: Schedule) -> Judged:
    """Live the case and judge it."""
    judge = _Judge()
    runner = Runner(program, schedule, judge.behind)
    try:
        with _hurried():
            lived = runner.run()
    except Hung:
        return Judged(runner.lived, [Finding("hung", f"no end after {CPU_S} s of the processor")])
    found = Judged(lived, judge.findings)
    found.findings += [Finding(*text.split(": ", 1)) for text in lived.world.broken]
    if not found.findings:
        judge.ended(lived, found)
    return found


class Hung(BaseException):
    """It goes on for ever, and no time passes."""


@contextmanager
def _hurried() -> Iterator[None]:
    """End what takes too much time of the processor; in the main thread, for signals come there."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(*_: object) -> None:
        raise Hung

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def refused(program: l.Program, error: BaseException | None) -> str:
    """Why the library may refuse to execute this program to its end; "" if it may not."""
    for one in l.walk(program):
        match one, error:
            case l.Call(), AmbiguousCallError() if one.how in AMBIGUOUS and not one.call_id:
                return f"a {one.how} that its arguments do not tell from another"
            case l.Child(how="partial"), AmbiguousCallError():
                return "a child that its arguments do not tell from another"
            case l.Tool(shape="strange"), UnrecordedResultError():
                return "a result that cannot be recorded"
    return ""


def root(error: BaseException | None) -> BaseException | None:
    """What stops the run, be it in a child."""
    while isinstance(error, ChildParkedError):
        (_, error), *_ = error.children
    return error


def by_luck(program: l.Program) -> str:
    """What makes the order of things a matter of luck, of which the library warns."""
    slept = any(isinstance(one, l.Sleep) and one.own for one in l.walk(program))
    for one in l.walk(program):
        match one:
            case l.Race(recorded=False) | l.Par(kind="wait"):
                return "a set of tasks"
            case l.Par(kind="completed") if slept:
                return "a sleep beside as_completed"
            case l.Timeout():
                return "a time-out of asyncio"
    return ""


def open_side_effects(store: Any, run_id: str, program: l.Program) -> dict[int, CallIntended]:
    """The calls of which the log has a durable beginning and no end: their LSNs."""
    reader = store.backend.read(run_id)
    if reader is None:
        return {}
    fails = {tool.name for tool in program.tools if tool.on_timeout == "fail"}
    intents: dict[int, CallIntended] = {}
    begun: dict[int, bool] = {}
    with reader:
        for record in reader.records(on_damage=lambda damage: None):
            event = decode(record)
            match event:
                case CallIntended():
                    known = event.after_crash in ("park", "reconcile") and not event.child
                    if known and event.tool not in fails:
                        intents[record.lsn], begun[record.lsn] = event, event.asks_until is None
                case CallDecided(call, approved):
                    begun[call] = approved
                case CallRetried(call):
                    begun[call] = True
                case AttemptFailed(call):
                    begun[call] = False
                case CallAbandoned(call) if not event.begun:
                    begun[call] = False
                case CallResolved(call, "retry"):
                    begun[call] = False
                case CallReturned(call) | CallFailed(call) | CallResolved(call):
                    intents.pop(call, None)
    return {lsn: event for lsn, event in intents.items() if begun[lsn]}


class _Judge:
    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.held: Held | None = None  # the log before the life that is looked at

    def behind(self, lived: Lived) -> None:
        """After each life."""
        for text in (*wrong(lived), *misreported(lived, self.held)):
            self.add("log", lived, text)
        self.held = held_by(lived)
        if lived.limit is not None and not lived.was_forked and made(lived) > lived.limit:
            self.add("budget", lived, f"{made(lived)} calls were made, of {lived.limit}")
        store = lived.store()
        for run_id in store.backend.run_ids():
            found = open_side_effects(store, run_id, lived.program)
            if not found:
                continue
            how = status(store, run_id)
            told = {call.lsn for call in how.in_doubt}
            missed = {lsn: event.tool for lsn, event in found.items() if lsn not in told}
            if missed and how.state not in ("failed", "cancelled", "unreadable", "damaged"):
                self.add(
                    "doubt",
                    lived,
                    f"begun and without an outcome, status ({how.state}) names "
                    f"{sorted(told)} as in doubt, and not {missed}",
                )

    def add(self, rule: str, lived: Lived, what: str) -> None:
        if not self.findings:
            self.findings.append(Finding(rule, f"life {len(lived.ends)}: {what}"))

    def ended(self, lived: Lived, found: Judged) -> None:
        end = lived.end
        if end.how in ("finished", "failed"):
            self.compare(lived, found)
            return
        error, told = root(end.error), any(TOLD in line for line in lived.warned)
        if lived.program.nodes and lived.world.given_up and end.how == "raised":
            found.excused = "a node's call of which a person says that it failed"
        elif lived.counts["repairs"] and isinstance(error, DivergenceError | DamagedRunError):
            found.excused = "records are lost"
        elif isinstance(error, DivergenceError):
            found.excused = by_luck(lived.program) if told else ""
        else:
            found.excused = refused(lived.program, error)
        if found.excused:
            if not lived.program.nodes:  # a node that fails is made again, with what failed in it
                self.often(lived)
        elif isinstance(error, DivergenceError):
            self.add("divergence", lived, f"unchanged code diverged: {error}")
        else:
            self.add("error", lived, f"{end.how}: {type(error).__name__}: {error}")

    def often(self, lived: Lived) -> None:
        """Nothing that a program without an end does is done twice."""
        once = {
            tool.name
            for tool in lived.program.tools
            if tool.after_crash != "retry" and tool.retry == 1
        }
        labels = Counter(one.label for one in lived.world.done if one.tool in once)
        most = Counter(one.label for one in _first_life(lived))
        for label, count in labels.items():
            if count > max(1, most[label]):
                self.add("again", lived, f"{label} was done {count} times")

    def compare(self, lived: Lived, found: Judged) -> None:
        taken = frozenset(event.value for event in _taken(lived))
        own = (l.Trouble,)  # errors, behind which the agent goes on in the same life
        faulty = lived.faulty or any(
            isinstance(one, own) for agent in lived.program.agents for one in l.walk(agent)
        )
        facts = Facts(faulty, frozenset(lived.world.given_up), taken)
        done = Counter(one.label for one in lived.world.done)
        nearest: tuple[int, str, str] = (99, "", "")
        count = 0
        for ending in endings(lived.program, TASK, facts, ENDINGS_MAX):
            count += 1
            differing = list(differences(ending, lived, done, taken))
            if not differing:
                return
            nearest = min(nearest, (len(differing), *differing[0]))
        if count >= ENDINGS_MAX:
            found.undecided = True
            return
        told = any(LOSES in line for line in lived.warned)
        if told and lived.program.every != NEVER and lost(lived.program) == "changed":
            found.excused = "a local variable that is changed in the loop"
            return
        self.add(nearest[1], lived, f"{nearest[2]} ({count} endings are possible)")


def _first_life(lived: Lived) -> list[Any]:
    return lived.world.done[: lived.processes[0].effects]


def repeated_before_a_power_loss(lived: Lived) -> Iterator[str]:
    """What tools that are safe to repeat have done: they do not wait until the results that they
    are given are durable, so another one may be there behind a power loss."""
    if any(isinstance(one, Power) for one in l.walk(lived.schedule)):
        safe = {tool.name for tool in lived.program.tools if tool.after_crash == "retry"}
        yield from (one.label for one in lived.world.done if one.tool in safe)


def differences(
    ending: Ending, lived: Lived, done: Counter[str], taken: frozenset[str]
) -> Iterator[tuple[str, str]]:
    """What is not as this ending says: rule and text."""
    how, value = lived.end.how, lived.end.value
    lost_futures = set(repeated_before_a_power_loss(lived))
    if how != ending.how:
        yield "result", f"{how} ({value}), not {ending.how} ({ending.result})"
    for label, count in done.items():
        most = ending.must[label] + ending.may[label]
        if count > most and not (label not in ending.must and label in lost_futures):
            yield "twice", f"{label} was done {count} times, not {most}"
    for label, count in ending.must.items():
        if done[label] < count:
            yield "lost", f"{label} was done {done[label]} times, not {count}"
    if how != ending.how:
        return
    if lived.program.agents:
        if value != "ToolError" and v.full(value) != v.full(ending.result):
            yield "result", f"result {v.full(value)}, not {v.full(ending.result)}"
        if how == "finished":
            assert lived.final is not None
            state, messages = lived.final
            if state != v.full(ending.state):
                yield "state", f"state {state}, not {v.full(ending.state)}"
            if messages != v.full(ending.messages):
                yield "messages", f"messages {messages}, not {v.full(ending.messages)}"
            if taken != ending.gone:
                yield "signals", f"spent signals {sorted(taken)}, not {sorted(ending.gone)}"
        return
    memory = {key: value[key] for key in ending.state if key in value}
    if v.full(memory) != v.full(ending.state):
        yield "result", f"memory {v.full(memory)}, not {v.full(ending.state)}"


def _taken(lived: Lived) -> Iterator[SignalTaken]:
    store = lived.store()
    for run_id in store.backend.run_ids():
        reader = store.backend.read(run_id)
        assert reader is not None
        with reader:
            for record in reader.records(on_damage=lambda damage: None):
                event = decode(record)
                if isinstance(event, SignalTaken):
                    yield event


__all__ = ["RUN", "Finding", "Judged", "judged"]
