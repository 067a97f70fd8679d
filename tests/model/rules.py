"""What must be true of a run, whatever happened to it. Each finding names its rule."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from recovery import OutcomeUnknown, RecoveryError
from recovery.calls.in_doubt import DRAIN_S
from recovery.errors import (
    AmbiguousCallError,
    ChildParkedError,
    DamagedRunError,
    DivergenceError,
    UnrecordedResultError,
)
from recovery.inspect.status import status
from recovery.journal.encoding import decode
from recovery.journal.events import (
    AttemptFailed,
    CallAbandoned,
    CallDecided,
    CallFailed,
    CallIntended,
    CallResolved,
    CallRetried,
    CallReturned,
    SignalTaken,
)
from tests.model import language as l
from tests.model import values as v
from tests.model.carried import lost
from tests.model.generate import NEVER
from tests.model.lived import Lived, made
from tests.model.logs import Held, held_by, misreported, wrong
from tests.model.oracle import Ending, Facts, endings
from tests.model.runner import LOSES, TASK, TOLD, Runner
from tests.model.schedule import Jump, Power, Rival, Schedule, Settling, Stop
from tests.model.search import Impossible, Search
from tests.model.world import LAMBDA, RUN, STUMBLED

ENDINGS_MAX = 2000
CPU_S = 15.0
AMBIGUOUS = ("method", "closure", "lambda")

DRIFTED = "the code has drifted"


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
    undone = "cannot be undone: no tool with undo= is known" in str(error)
    loops = [one.body for one in l.walk(program) if isinstance(one, l.Loop)]
    repeated = {one for one in l.walk(tuple(loops)) if isinstance(one, l.Call)}
    for one in l.walk(program):
        match one, error:
            case l.Call(tool=number), RecoveryError() if undone:
                if one.how in AMBIGUOUS and program.tools[number].undo:
                    return "an undo of a tool that is made inside a function"
            case l.Call(), AmbiguousCallError() if one.how in AMBIGUOUS:
                if not one.call_id or one in repeated:
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


def by_luck(program: l.Program, late: Collection[str]) -> str:
    """What makes the order of things a matter of luck, of which the library warns. ``late``: the
    time-outs of asyncio that ran out in some life."""
    slept = any(isinstance(one, l.Sleep) and one.own for one in l.walk(program))
    for one in l.walk(program):
        match one:
            case l.Race(recorded=False) | l.Par(kind="wait"):
                return "a set of tasks"
            case l.Par(kind="completed") if slept:
                return "a sleep beside as_completed"
            case l.Timeout(var) if var in late:
                return "a time-out of asyncio"
    return ""


def loses_a_local(lived: Lived) -> str:
    """The local variable that a resumed run does not have, if the library has warned of it."""
    warned = any(LOSES in line for line in lived.warned) and lived.program.every != NEVER
    changed = warned and lost(lived.program) == "changed"
    return "a local variable that is changed in the loop" if changed else ""


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
        self.stumbled(lived, store)
        self.stopped(lived, store)
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

    def stumbled(self, lived: Lived, store: Any) -> None:
        """An error of the agent's own code is in its log, where nothing else has happened."""
        process = lived.processes[-1]
        first = lived.world.asked_in.get(STUMBLED) == {id(process)}  # then it has raised
        # An agent that swallows the stop of its run may raise behind it: nobody asks for that.
        stopped = process.dead or lived.end.how in ("parked", "diverged")
        alone = first and not stopped and not process.life.faults
        if alone and status(store, RUN).error is None:
            self.add("told", lived, "the agent raised an error, and its log does not say so")

    def stopped(self, lived: Lived, store: Any) -> None:
        """A stop cuts no side effect short; that of a program which cuts nothing short itself."""
        faults = lived.processes[-1].life.faults
        stops = any(isinstance(one, Stop) for one in faults)
        others = [one for one in faults if not isinstance(one, Stop | Jump | Settling)]
        alone = not others and not lived.counts["repairs"]
        if alone and stops and lived.end.how == "parked":
            tools = lived.program.tools
            effects = {tool.name for tool in tools if tool.after_crash != "retry"}
            for call in status(store, RUN).in_doubt:
                if call.lsn > lived.last and call.tool in effects - may_be_cut(lived.program):
                    self.add("stop", lived, f"a stop has cut short {call.tool}")

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
        elif lived.old is not None and isinstance(error, DivergenceError):
            found.excused = "an edit that is never accepted"
        elif isinstance(error, DivergenceError):
            found.excused = by_luck(lived.program, lived.world.late) if told else ""
            found.excused = found.excused or loses_a_local(lived)
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
        done = Counter((one.label, one.key) for one in lived.world.done if one.tool in once)
        for (label, key), count in done.items():
            if key and count > 1:
                self.add("again", lived, f"{label} was done {count} times in one call")

    def compare(self, lived: Lived, found: Judged) -> None:
        told = Told.of(lived)
        taken = frozenset(told.taken)
        done = Counter(one.label for one in lived.world.done)
        world, known = lived.world, known_results(lived)
        mixed = frozenset(key for key, calls in world.askers.items() if len(calls) > 1)
        torn = frozenset(key for key, lives in world.asked_in.items() if len(lives) > 1)
        # Retention has removed some records, or they are lost; and of a lambda the log has no name.
        gone = lived.program.keep or lived.counts["repairs"] or lived.counts["forks"]
        unknown = gone or LAMBDA in told.names
        odd = None if unknown else told.odd
        facts = Facts(
            lived.faulty,
            frozenset(world.given_up),
            taken,
            odd,
            done,
            frozenset(world.asked_about),
            world.counts,
            mixed,
            torn,
            known,
            world.late,
            world.fine,
        )
        if lived.old is not None:
            if any(DRIFTED in line for line in lived.warned):
                found.undecided = True  # it goes on with results of other arguments
                return
            asked = frozenset(world.asked_about)
            facts = Facts(True, frozenset(world.given_up), taken, settled=asked)
        nearest: tuple[int, str, str] = (99, "", "")
        search = Search(ENDINGS_MAX)
        for ending in endings(lived.program, TASK, facts, search):
            if isinstance(ending, Impossible):
                nearest = min(nearest, (98, ending.rule, ending.what))
                continue
            differing = list(differences(ending, lived, done, taken))
            if not differing:
                return
            nearest = min(nearest, (len(differing), *differing[0]))
        if search.cut:
            found.undecided = True
            return
        found.excused = loses_a_local(lived)
        if found.excused:
            return
        self.add(nearest[1], lived, f"{nearest[2]} ({search.tried + 1} endings were tried)")


def known_results(lived: Lived) -> dict[str, str]:
    """Variables of the agent function that are written once, and are in its result."""
    if lived.end.how != "finished" or not lived.program.agents:
        return {}
    (agent, *_) = lived.program.agents
    written = Counter(name for one in l.walk(agent) for name in _written(one))
    loops = {
        name
        for loop in l.walk(agent)
        if isinstance(loop, l.Loop)
        for one in l.walk(loop.body)
        for name in _written(one)
    }
    return {
        one.name: v.full(found)
        for one, found in zip(agent.result, lived.end.value, strict=True)
        if isinstance(one, l.Var) and written[one.name] == 1 and one.name not in loops
    }


def _written(one: l.Term) -> Iterator[str]:
    """The variables that a statement writes."""
    if isinstance(one, l.Let):
        yield one.name
    elif not isinstance(one, l.Var):
        yield from (name for name in (getattr(one, "var", ""),) if name)


def may_be_cut(program: l.Program) -> set[str]:
    """The tools whose calls the program may cut short, or leave without an outcome, by itself."""
    found: set[str] = set()

    def add(term: Any) -> None:
        for one in l.walk(term):
            if isinstance(one, l.Call | l.Stream) and program.tools[one.tool].name not in found:
                found.add(program.tools[one.tool].name)
                add(program.tools[one.tool].body)

    for one in l.walk(program):
        match one:
            case l.Timeout() | l.Race() | l.Par(kind="group"):
                add(one)
            case l.Tool(name, body, timeout=timeout, shape=shape) if (
                timeout or shape == "strange" or longest(program, one) > DRAIN_S
            ):
                found.add(name)
                add(body)
    effects = {tool.name for tool in program.tools if tool.after_crash != "retry"}
    for _ in program.tools:  # what is around a call in doubt has no outcome either
        for tool in program.tools:
            calls = [one for one in l.walk(tool) if isinstance(one, l.Call | l.Stream)]
            if {program.tools[one.tool].name for one in calls} & found & effects:
                found.add(tool.name)
    return found


def longest(program: l.Program, term: l.Term) -> float:
    """How long this takes at most, but for what it waits for."""
    found = 0.0
    for one in l.walk(term):
        match one:
            case l.Sleep(seconds):
                found += seconds
            case l.Call(tool=number):
                tool = program.tools[number]
                found += tool.retry * longest(program, tool) + 2**tool.retry
    return found * max((one.most for one in l.walk(term) if isinstance(one, l.Loop)), default=1)


def of_other_lives(lived: Lived) -> Iterator[str]:
    """What tools that are safe to repeat have done: they do not wait until the results that they
    are given are durable, so another one may be there behind a power loss, and behind a takeover
    whose victim went on. A time-out of asyncio may run out in one life and not in the next one."""
    losing = any(
        isinstance(one, Power) or (isinstance(one, Rival) and one.takes_over)
        for one in l.walk(lived.schedule)
    )
    if lived.world.late or losing:
        safe = {tool.name for tool in lived.program.tools if tool.after_crash == "retry"}
        yield from (one.label for one in lived.world.done if one.tool in safe)


def differences(
    ending: Ending, lived: Lived, done: Counter[str], taken: frozenset[str]
) -> Iterator[tuple[str, str]]:
    """What is not as this ending says: rule and text."""
    how, value = lived.end.how, lived.end.value
    elsewhere = set(of_other_lives(lived))
    past = lived.old or Counter[str]()
    if lived.world.given_up:  # perhaps a call of which the record is lost, and behind which it was
        past = past + lived.before_repair
    if how != ending.how:
        yield "result", f"{how} ({value}), not {ending.how} ({ending.result})"
    for label, count in done.items():
        most = ending.must[label] + ending.may[label] + past[label]
        if count > most and not (label not in ending.must and label in elsewhere):
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


@dataclass
class Told:
    """What the logs say. ``odd``: how often calls of a tool ended with an "unknown" outcome, had
    attempts that were "late", or were "undecided" for too long."""

    taken: set[Any] = field(default_factory=set)
    odd: Counter[str] = field(default_factory=Counter)
    names: set[str] = field(default_factory=set)  # of tools

    @classmethod
    def of(cls, lived: Lived) -> Told:
        told, store = cls(), lived.store()
        for run_id in store.backend.run_ids():
            reader = store.backend.read(run_id)
            assert reader is not None
            names: dict[int, str] = {}
            with reader:
                for record in reader.records(on_damage=lambda damage: None):
                    event = decode(record)
                    if isinstance(event, CallIntended):
                        names[record.lsn] = event.tool
                        told.names.add(event.tool)
                    else:
                        told.add(event, names)
        return told

    def add(self, event: Any, names: dict[int, str]) -> None:
        match event:
            case SignalTaken(value=value):
                self.taken.add(value)
            case CallReturned(call, OutcomeUnknown()) | CallResolved(call, value=OutcomeUnknown()):
                self.odd[f"unknown {names.get(call)}"] += 1
            case CallDecided(call, False, ""):
                self.odd[f"undecided {names.get(call)}"] += 1
            case AttemptFailed(call, type=kind) | CallFailed(call, type=kind):
                if kind.endswith("TimeoutError"):
                    self.odd[f"late {names.get(call)}"] += 1


__all__ = ["RUN", "Finding", "Judged", "judged"]
