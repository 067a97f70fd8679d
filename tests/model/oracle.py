"""What a program may come to: a pure interpreter, which knows nothing of the library.

Where the program leaves it open what happens (who wins a race, what is late after a crash), the
interpreter asks `pick`. `endings` goes through all answers, but for those that lead to what has not
happened. An ending has what must have happened outside, once each, and what may have besides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import permutations
from typing import Any, TypeVar, cast

from tests.model import language as l
from tests.model import values as v
from tests.model.search import Impossible, Known, Search, frozen

T = TypeVar("T")
CUT = "cut"  # in a memo, in place of a call: an attempt was cut short, with what it had begun
OFTEN = 1000  # of effects of tools that may be repeated


class RaisedError(Exception):
    """The program raises an error of this kind here."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


class Late(BaseException):
    """The time of a time-out is over here."""

    def __init__(self, deadline: float) -> None:
        super().__init__(deadline)
        self.deadline = deadline


@dataclass(frozen=True)
class Facts:
    """What happened to the run, as far as it matters to what it may come to."""

    faulty: bool = False  # anything at all
    given_up: frozenset[str] = frozenset()  # tools of whose calls a person said that they failed
    taken: frozenset[str] | None = None  # the signals that waits have taken, as the log says
    odd: Counter[str] | None = None  # what became of calls, how often, as the log says: see Told
    done: Counter[str] | None = None  # what was done outside
    settled: frozenset[str] = frozenset()  # tools of whose calls somebody was asked
    asked: Counter[str] | None = None  # how often a tool has looked whether it is to raise
    mixed: frozenset[str] = frozenset()  # of these, what several calls have looked at
    torn: frozenset[str] = frozenset()  # and what was looked at in several lives
    result: dict[str, str] = field(default_factory=dict)  # variables whose value is known
    late: Counter[str] | None = None  # how often time-outs of asyncio have run out, by variable
    fine: Counter[str] | None = None  # how often they have not


@dataclass
class Ending:
    """``how``: "finished" or "failed" (then ``result`` is the kind of error)."""

    how: str
    result: Any
    state: dict[str, Any]
    messages: list[Any]
    must: Counter[str]
    may: Counter[str]
    gone: set[str] = field(default_factory=set)  # signals that the agent has got


def endings(
    program: l.Program, task: Any, facts: Facts, search: Search
) -> Iterator[Ending | Impossible]:
    """All endings that the program may have, the likeliest first."""
    while True:
        try:
            yield _Oracle(program, facts, search).run(task)
        except Impossible as exc:
            yield exc
        except Known:
            pass
        if not search.next():
            return


@dataclass
class _Frame:
    """One function under way: its variables, and for a run its state and messages."""

    env: dict[str, Any]
    task: Any
    state: dict[str, Any]
    messages: list[Any]
    name: str = ""
    tool: l.Tool | None = None
    memo: dict[str, list[Any]] | None = None  # what came back in earlier attempts
    used: Counter[str] = field(default_factory=Counter)

    def branch(self) -> _Frame:
        """The same with variables of its own: for what goes on beside others."""
        return replace(self, env=dict(self.env))

    def parts(self) -> list[Any]:
        return [self.env, self.task, self.state, self.messages, self.memo, self.used]


class _Oracle:
    def __init__(self, program: l.Program, facts: Facts, search: Search) -> None:
        self.program, self.facts, self.search = program, facts, search
        self.pick = search.pick
        self.held: list[Any] = []  # where the interpreter stands, and what it knows there
        self.soft = 0  # inside of what may yet turn out to have been cut short
        self.main: _Frame | None = None
        self.now = 0.0
        self.deadlines: list[float] = []
        self.unsure = 0  # inside of what is cut short somewhere
        self.must: Counter[str] = Counter()
        self.may: Counter[str] = Counter()
        self.entered: Counter[str] = Counter()
        self.vague: Counter[str] = Counter()  # of these: how many may have come to nothing
        self.odd: Counter[str] = Counter()
        self.spent: set[str] = set()
        self.beside = 1  # coroutines at work
        # What comes of tasks: a value or error, when they end, and what they do outside.
        self.tasks: dict[str, tuple[Any, float, Counter[str]]] = {}
        self.undoable: list[str] = []
        self.beside_undoable: dict[str, list[str]] = {}  # what tasks under way make of that
        self.left: list[tuple[l.Block, _Frame]] = []  # what goes on beside, and nobody awaits
        self.home = _Frame({}, None, {}, [])  # the run that is under way

    @contextmanager
    def holding(self, *values: Any) -> Iterator[None]:
        """What is known here decides how it goes on from anywhere inside."""
        self.held.append(values)
        try:
            yield
        finally:
            self.held.pop()

    def place(self) -> Any:
        """Where the interpreter stands: the same place goes on in the same way."""
        times = [one - self.now for one in self.deadlines]
        tasks = [
            [name, getattr(found, "kind", found), ended - self.now, done]
            for name, (found, ended, done) in self.tasks.items()
        ]
        return frozen(
            [
                *(self.held, self.must, self.entered, self.vague, self.spent, self.undoable),
                self.beside_undoable,
                *(self.odd, times, self.unsure, self.beside, self.soft, tasks),
                [[id(block), frame] for block, frame in self.left],
            ]
        )

    def perhaps_odd(self, how: str, tool: l.Tool) -> bool:
        """Whether this became of a call, which the log may say of so many calls."""
        what = f"{how} {tool.name}"
        if self.facts.odd is not None and self.odd[what] >= self.facts.odd[what]:
            return False
        found = self.pick((False, True))
        self.odd[what] += found
        return found

    def perhaps(self) -> bool:
        """False; or also true, where a crash or a person may have made it so."""
        return self.facts.faulty and self.pick((False, True))

    # -- runs

    def run(self, task: Any) -> Ending:
        frame = self.main = _Frame({}, task, {}, [])
        result: list[str] | None = None
        try:
            if self.program.agents:
                result = self.agent(self.program.agents[0], frame)
            else:
                self.graph(frame)
        except RaisedError as exc:
            return self.ending("failed", exc.kind, frame)
        return self.ending("finished", result, frame)

    def ending(self, how: str, result: Any, frame: _Frame) -> Ending:
        return Ending(how, result, frame.state, frame.messages, self.must, self.may, self.spent)

    def agent(self, agent: l.Agent, frame: _Frame) -> list[str]:
        undoable, self.undoable = self.undoable, []
        home, self.home = self.home, frame
        tasks, self.tasks, left, self.left = self.tasks, {}, self.left, []
        beside, self.beside_undoable = self.beside_undoable, {}
        try:
            with self.holding(undoable, beside, [[id(block), one] for block, one in left]):
                for block in (agent.prologue, *agent.steps):
                    self.block(block, frame)
            return [v.text(self.value(one, frame)) for one in agent.result]
        except RaisedError:
            for _, _, done in self.tasks.values():  # how far it came is not known
                self.must -= done
                self.may += done
            raise
        finally:
            self.undoable, self.home, self.tasks, self.left = undoable, home, tasks, left
            self.beside_undoable = beside

    def graph(self, frame: _Frame) -> None:
        self.home = frame
        if self.program.plan is not None:
            for number, call in enumerate(self.program.plan.calls):
                try:
                    with self.holding(number):
                        frame.state[f"p{number}"] = self.call(call, frame)
                except RaisedError:
                    frame.state[f"p{number}"] = None  # and the judge accepts it
            return
        todo, visited = [0], set[int]()
        while todo:
            number = todo.pop(0)
            if number in visited:
                continue
            visited.add(number)
            with self.holding(todo, visited):
                self.visit(self.program.nodes[number], frame)
            todo += self.program.nodes[number].to

    def visit(self, node: l.Node, frame: _Frame) -> None:
        memo: dict[str, list[Any]] = {}
        for number in range(50):
            inner = _Frame({}, frame.task, frame.state, [], node.name, None, memo)
            try:
                with self.holding(number):
                    self.block(node.body, inner)
                frame.state[node.name] = v.text(self.value(node.value, inner))
                return
            except RaisedError:
                continue  # or the execution stands still, and is resumed
        raise Impossible("result", f"node {node.name} never succeeds")

    # -- statements

    def block(self, block: l.Block, frame: _Frame) -> None:
        here = [id(block), 0, frame]
        self.held.append(here)
        try:
            for number, one in enumerate(block):
                here[1] = number
                self.search.stands(self.place, self.may)
                self.statement(one, frame)
                if frame is self.main and self.facts.result:
                    self.check_result(frame.env)
        finally:
            self.held.pop()

    def check_result(self, env: dict[str, Any]) -> None:
        for name, known in self.facts.result.items():
            if name in env and v.full(v.text(env[name])) != known:
                raise Impossible("result", f"{name} is {v.text(env[name])}, not {known}")

    def value(self, term: l.Term, frame: _Frame) -> Any:
        match term:
            case l.Lit(text):
                return text
            case l.Var(name):
                return frame.env[name]
            case l.Get(key):
                return frame.state.get(key, "none")
            case l.Last():
                found = [message["content"] for message in frame.messages]
                return v.mix(len(found), found[-1:])
            case l.Task():
                return frame.task
            case l.Odd(of):
                return v.odd(self.value(of, frame))
            case l.Lacks(key):
                return key not in frame.state
            case l.Silent():
                return not frame.messages
        raise TypeError(term)

    def statement(self, one: l.Term, frame: _Frame) -> None:
        env = frame.env
        match one:
            case l.Call():
                env[one.var] = self.call(one, frame)
            case l.Do(var, arg):
                env[var] = self.do(frame, self.value(arg, frame))
            case l.Trouble() if not frame.name:
                pass  # and the agent is run again
            case l.Trouble(times, kind):
                if self.raises(frame, times):
                    raise RaisedError(kind)
            case l.If(condition, then, other):
                self.block(then if self.value(condition, frame) else other, frame)
            case l.Loop(var, of, most, body):
                count = v.size(self.value(of, frame), most)
                for number in range(count):
                    env[var] = number
                    with self.holding(number, count):
                        self.block(body, frame)
            case l.Par():
                env[one.var] = self.par(one, frame)
            case l.Race():
                env[one.var] = self.race(one, frame)
            case l.Start(task, branch):
                self.start(task, branch, frame)
            case l.Join(var, task):
                found = self.joined(task)
                env[var] = "joined" if one.over else found
                self.check_all_done()
            case l.Timeout(var):
                env[var] = "late" if self.is_late(one, frame) else "fine"
            case l.Try(var, body):
                try:
                    self.block(body, frame)
                    env[var] = "fine"
                except RaisedError as exc:
                    env[var] = exc.kind
            case l.Finally(body, last):
                try:
                    self.block(body, frame)
                except (RaisedError, Late) as exc:
                    with self.holding(*map(str, exc.args)):
                        self.block(last, frame)
                    raise
                self.block(last, frame)
            case _:
                self.simple(one, frame)

    def raises(self, frame: _Frame, times: int) -> bool:
        """Whether this execution raises; of several at once nobody knows which is which, and one
        that a crash has ended may have been counted or not."""
        key = f"{frame.name} {v.text(frame.task) if frame.tool else ''}"
        self.entered[key] += 1
        self.vague[key] += self.unsure > 0
        asked = None if self.facts.asked is None else self.facts.asked[key]
        nth, mixed = self.entered[key], key in self.facts.mixed or asked is None
        known = asked is not None and frame.name not in self.facts.settled
        if known and asked is not None and asked <= times:
            return True
        if nth - self.vague[key] <= times < nth:
            return self.pick((False, True))
        if known and not mixed and key not in self.facts.torn:
            return nth <= times
        if nth > times:
            among = self.beside > 1 and mixed and nth <= times + self.beside
            return among and self.pick((False, True))
        if self.beside > 1 and mixed:
            return self.pick((True, False))
        if not self.perhaps():
            return True
        if mixed:
            self.entered[key] -= self.pick((0, 1))
        else:  # one after the other: none that comes later raises
            self.entered[key] = times + 1
        return False

    def simple(self, one: l.Term, frame: _Frame) -> None:
        env = frame.env
        match one:
            case l.Stream(var, number, arg, stop_after):
                env[var] = self.stream(
                    self.program.tools[number], self.value(arg, frame), stop_after
                )
            case l.Child(var, number, arg):
                task = self.value(arg, frame)
                key = f"child {number} {v.text(task)}"
                env[var] = self.once(frame, key, lambda _: self.child(number, task))
            case l.Wait(var, name, timeout):
                self.which_wait(frame, f"wait {name}")
                env[var] = self.once(frame, f"wait {name}", lambda _: self.wait(name, timeout))
            case l.Undo(var):
                for task, made in self.beside_undoable.items():  # how far they are is not known
                    done = self.pick(range(len(made), -1, -1))
                    self.undoable = made[len(made) - done :] + self.undoable
                    self.beside_undoable[task] = made[: len(made) - done]
                for label in self.undoable:
                    self.pass_time(1)
                    self.effect(f"undo {label}", frame.tool)
                self.undoable = []
                env[var] = "undone"
            case l.Sleep(seconds):
                self.pass_time(seconds)
            case l.Turns():
                pass
            case l.Put(key, value, how):
                found = self.value(value, frame)
                if how == "set":
                    frame.state[key] = found
                elif how == "default":
                    frame.state.setdefault(key, found)
                else:
                    frame.state.setdefault(key, []).append(v.text(found))
                self.goes_on_beside()
            case l.Say(value, edit):
                message = {"role": "user", "content": v.text(self.value(value, frame))}
                if not edit:
                    frame.messages.append(message)
                elif frame.messages:
                    frame.messages[-1] = message
                self.goes_on_beside()
            case l.Let(name, value, grow):
                found = self.value(value, frame)
                env[name] = v.mix(env[name], found) if grow else found
            case l.Ask(var, what):
                env[var] = "<uuid>" if what == "uuid" else 0.5
            case _:
                raise TypeError(one)

    # -- time

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        if self.deadlines and self.now > min(self.deadlines):
            self.now = min(self.deadlines)
            raise Late(self.now)

    def is_open(self, term: Any) -> bool:
        """Whether how long it takes is up to people, or to what of a sleep was over before."""
        for one in l.walk(term):
            if isinstance(one, l.Wait | l.Race) or (isinstance(one, l.Sleep) and not one.own):
                return True
            if isinstance(one, l.Call):
                tool = self.program.tools[one.tool]
                if tool.approval or self.is_open(tool.body):
                    return True
        return False

    def is_nested(self, body: l.Block) -> bool:
        """Whether calls are cut short with it: what becomes of them depends on their policies."""
        return any(isinstance(one, l.Call | l.Child) for one in l.walk(body))

    def within(self, seconds: float, make: Callable[[], T]) -> T | Late:
        """What is made, or that it takes longer; for what takes a known time."""
        deadline = self.now + seconds
        self.deadlines.append(deadline)
        try:
            return make()
        except Late as exc:
            if exc.deadline != deadline:
                raise
            return exc
        finally:
            self.deadlines.remove(deadline)

    def is_late(self, timeout: l.Timeout, frame: _Frame) -> bool:
        """Whether a block takes longer; after a crash it may or may not."""
        var, seconds, body = timeout.var, timeout.seconds, timeout.body
        nested = frame.tool is not None and self.is_nested(body)
        if not self.facts.faulty and not self.is_open(body) and not nested:
            try:
                return self.within(seconds, lambda: self.block(body, frame)) is not None
            except RaisedError as exc:
                if exc.kind != "TimeoutError":
                    raise
                return True
        may_be = self.facts.late is None or self.facts.late[var] > 0
        must_be = may_be and self.facts.fine is not None and not self.facts.fine[var]
        if must_be or (may_be and self.pick((False, True))):
            self.perhaps_done(body if self.facts.faulty else before_its_end(body), frame)
            return True
        try:
            self.block(body, frame)
        except RaisedError as exc:
            if exc.kind != "TimeoutError":
                raise
            return True
        return False

    def perhaps_done(self, body: l.Block, frame: _Frame) -> None:
        """What is cut short somewhere: each of its effects may have happened."""
        spent, undoable = set(self.spent), list(self.undoable)
        inner = _Frame(
            dict(frame.env),
            frame.task,
            dict(frame.state),
            list(frame.messages),
            frame.name,
            frame.tool,
        )
        self.unsure += 1
        deadlines, self.deadlines = self.deadlines, []
        try:
            with self.holding(spent, undoable, [one - self.now for one in deadlines]):
                self.block(body, inner)
        except RaisedError:
            pass
        finally:
            self.unsure -= 1
            self.deadlines = deadlines
        self.perhaps_over(spent, undoable)

    def perhaps_over(self, spent: set[str], undoable: list[str]) -> None:
        """What was spent and made since then may have been cut short before it was."""
        for label in self.undoable[: len(self.undoable) - len(undoable)]:
            self.may[f"undo {label}"] += 1
        self.undoable = undoable
        # Some of the waits may have been over before they were cut short, the first ones first.
        new, self.spent = self.spent - spent, set(spent)
        for name in "pq":
            mine = {one for one in new if one[0] == name} & (self.facts.taken or set())
            taken = sorted(mine, key=lambda one: int(one[2:]))
            self.spent |= set(self.pick([taken[:count] for count in range(len(taken) + 1)]))

    # -- together

    def par(self, par: l.Par, frame: _Frame) -> list[Any]:
        began, ended, found = self.now, [self.now], list[Any]()
        late: Late | None = None
        raised: list[RaisedError] = []
        before, spent, undoable = Counter(self.must), set(self.spent), list(self.undoable)
        known = before, spent, undoable
        wide = [_width(branch) for branch in par.branches]
        catches = par.kind in ("careful", "noted")
        soft = not catches and self.may_raise(par)
        self.soft += soft
        for number, branch in enumerate(par.branches):
            self.now = began
            inner = frame.branch()
            past = [one - began for one in ended] if self.deadlines else []
            kinds = [one.kind for one in raised]
            others = sum(wide) - wide[number]
            self.beside += others
            try:
                with self.holding(number, found, kinds, late, *known, past):
                    self.pass_time(branch.pause)
                    self.block(branch.body, inner)
                    found.append(self.value(branch.value, inner))
            except Late as exc:
                late = exc
            except RaisedError as exc:
                raised.append(exc)
                found.append(exc.kind)
            self.beside -= others
            ended.append(self.now)
        self.soft -= soft
        self.now = max(ended)
        if late is not None:
            raise late
        if raised and not catches:
            # How far the others came is not known.
            self.may += self.must - before
            self.must = before
            self.perhaps_over(spent, undoable)
            if par.kind != "group":
                self.left += [(one.body, frame.branch()) for one in par.branches if self.reads(one)]
            raise RaisedError("ExceptionGroup") if par.kind == "group" else self.pick(raised)
        self.check_all_done()
        if par.kind in l.IN_ORDER:
            return list(self.pick(list(permutations(found))))
        return found

    def reads(self, term: Any) -> bool:
        """Whether it reads the state or the messages."""
        tools = [
            self.program.tools[one.tool].body for one in l.walk(term) if isinstance(one, l.Call)
        ]
        found = any(isinstance(one, l.Get | l.Last) for one in l.walk(term))
        return found or any(map(self.reads, tools))

    def goes_on_beside(self) -> None:
        """The state is another one: tasks that a gather has left may come upon it."""
        left, self.left = self.left, []
        for body, frame in left:
            known = Counter(self.entered), Counter(self.vague), Counter(self.odd), set(self.spent)
            self.perhaps_done(body, frame.branch())
            self.entered, self.vague, self.odd, self.spent = known
        self.left = left

    def start(self, task: str, branch: l.Branch, frame: _Frame) -> None:
        """A task goes on beside what comes next; here it is done at once."""
        began, before, inner = self.now, Counter(self.must), frame.branch()
        undoable, self.undoable = self.undoable, []
        self.beside += 1
        self.soft += 1  # it may yet turn out to have been cut short
        try:
            with self.holding(task, before, began, undoable):
                self.pass_time(branch.pause)
                self.block(branch.body, inner)
                found: Any = self.value(branch.value, inner)
        except RaisedError as exc:
            found = exc
        except Late:
            self.undoable += undoable
            raise
        self.soft -= 1
        self.beside_undoable[task], self.undoable = self.undoable, undoable
        self.tasks[task] = found, self.now, self.must - before
        self.now = began

    def joined(self, task: str) -> Any:
        """What came of a task, at its end."""
        self.beside -= 1
        found, ended, _ = self.tasks.pop(task)
        self.undoable = self.beside_undoable.pop(task) + self.undoable
        self.pass_time(max(0.0, ended - self.now))
        if isinstance(found, RaisedError):
            raise found
        return found

    def may_raise(self, term: Any) -> bool:
        """Whether anything in it may raise, as far as can be seen."""
        for one in l.walk(term):
            if isinstance(one, l.Trouble | l.Child | l.Try):
                return True
            if isinstance(one, l.Call):
                tool = self.program.tools[one.tool]
                if tool.approval or tool.timeout or tool.name in self.facts.given_up:
                    return True
                if self.may_raise(tool.body):
                    return True
        return False

    def race(self, race: l.Race, frame: _Frame) -> list[Any]:
        count = len(race.branches)
        sets = sorted(range(1, 1 << count), key=int.bit_count)
        done = self.pick(sets)
        found: list[Any] = []
        for number, branch in enumerate(race.branches):
            if not done >> number & 1:
                sure = race.recorded or not self.facts.faulty
                with self.holding(number, done, found):
                    self.perhaps_done(before_its_end(branch.body) if sure else branch.body, frame)
                found.append(None)
                continue
            inner = frame.branch()
            try:
                with self.holding(number, done, found):
                    self.block(branch.body, inner)
                found.append(v.text(self.value(branch.value, inner)))
            except RaisedError as exc:
                found.append(exc.kind)
        return found

    def wait(self, name: str, timeout: int) -> str:
        free = [found for n in range(1, 80) if (found := f"{name}-{n}") not in self.spent]
        taken = self.facts.taken
        # Beside others: they may have had any of those before it.
        near = free[: self.beside] if self.beside == 1 or taken is None else free
        options = [one for one in near if taken is None or one in taken]
        options = options if timeout else options or free[:1]
        found = self.pick([*options, "late"] if timeout else options)
        if found != "late":
            self.spent.add(found)
        return found

    # -- calls

    def effect(self, label: str, tool: l.Tool | None) -> None:
        (self.may if self.unsure else self.must)[label] += 1
        if tool is not None and tool.after_crash == "retry" and (self.facts.faulty or self.unsure):
            self.may[label] += OFTEN
        self.check_done(label)

    def check_all_done(self) -> None:
        for label in self.must:
            self.check_done(label)

    def check_done(self, label: str) -> None:
        """Nothing that must have been done can be missed, once it is sure that it must."""
        done = self.facts.done
        sure = not (self.soft or self.tasks)
        if done is not None and sure and self.must[label] > done[label]:
            text = f"{label} was done {done[label]} times, not {self.must[label]}"
            raise Impossible("lost", text)

    def do(self, frame: _Frame, arg: Any) -> str:
        self.effect(f"{frame.name}({v.text(arg)})", frame.tool)
        return v.text(f"{frame.name}:{v.text(arg)}")

    def stream(self, tool: l.Tool, arg: Any, stop_after: int) -> Any:
        inner = self.body_of(tool, arg)
        found = v.text(self.value(tool.result, inner))
        count = min(stop_after or tool.chunks, tool.chunks)
        self.pass_time(count)
        return "".join(f"{found}{number}" for number in range(count))

    def call(self, call: l.Call, frame: _Frame) -> Any:
        tool, arg = self.program.tools[call.tool], self.value(call.arg, frame)
        key = f"{call.tool} {v.text(arg)} {call.note} {call.call_id}"
        return self.once(frame, key, lambda memo: self.performed(tool, arg, memo))

    def once(self, frame: _Frame, key: str, make: Callable[[dict[str, list[Any]]], T]) -> T:
        """What is made; in a further attempt of what is around it: what came back before."""
        if frame.memo is None:
            return make({})
        held = frame.memo.setdefault(key, [])
        frame.used[key] += 1
        count = frame.used[key]
        memo: dict[str, list[Any]] = frame.memo.setdefault(f"{key} {count}", [{}])[0]
        if CUT in frame.memo:
            memo[CUT] = []
        if count <= len(held):
            if isinstance(held[count - 1], RaisedError):
                raise held[count - 1]
            return cast(T, held[count - 1])
        try:
            with self.holding(key, count):
                made = make(memo)
        except RaisedError as exc:
            if exc.kind == "ApprovalDeniedError":  # a further attempt asks nobody again
                held.append(exc)
            raise
        held.append(made)
        return made

    def which_wait(self, frame: _Frame, key: str) -> None:
        """Waits of one name beside each other are told apart by which comes first, and that may
        be another one in a further attempt: any of what came back before may come next."""
        held = (frame.memo or {}).get(key, [])
        nth = frame.used[key]
        if self.beside > 1 and nth < len(held) - 1:
            chosen = self.pick(range(nth, len(held)))
            held[nth], held[chosen] = held[chosen], held[nth]

    def child(self, number: int, task: Any) -> list[str]:
        try:
            return self.agent(self.program.agents[number], _Frame({}, task, {}, []))
        except RaisedError:
            raise RaisedError("ChildFailedError") from None

    def performed(self, tool: l.Tool, arg: Any, memo: dict[str, list[Any]]) -> Any:
        if tool.approval:
            no = v.refused(tool.name, arg)
            if no or (tool.approval_timeout and self.perhaps_odd("undecided", tool)):
                raise RaisedError("ApprovalDeniedError")
        begun = CUT in memo
        for attempt in range(1, tool.retry + 1):
            if self.is_unknown(tool, arg, begun):
                found = v.UNKNOWN
                break
            try:
                with self.holding(attempt):
                    found = self.attempt(tool, arg, memo)
                break
            except RaisedError:
                if attempt == tool.retry:
                    raise
                self.pass_time(2**attempt)
        if tool.undo:
            self.undoable.insert(0, f"{tool.name}({v.text(found)})")
        return found

    def is_unknown(self, tool: l.Tool, arg: Any, begun: bool) -> bool:
        """Whether this attempt is cut short, and the agent is told so; raises if a person says
        that it failed. ``begun``: whether it may be, in an attempt around it that is over."""
        if tool.name in self.facts.given_up and self.pick((False, True)):
            self.perhaps_called(tool, arg)
            raise RaisedError("ToolError")
        unknown = tool.timeout or self.facts.faulty or self.unsure or tool.shape == "strange"
        unknown = unknown or begun
        if tool.after_crash == "report" and unknown and self.perhaps_odd("unknown", tool):
            self.perhaps_called(tool, arg)
            return True
        return False

    def perhaps_called(self, tool: l.Tool, arg: Any) -> None:
        frame = self.frame(tool, arg)
        self.perhaps_done(tool.body, frame)

    def attempt(self, tool: l.Tool, arg: Any, memo: dict[str, list[Any]]) -> Any:
        def made() -> Any:
            return self.result(tool, self.body_of(tool, arg, memo))

        fails = tool.on_timeout == "fail" or (tool.after_crash == "retry" and not tool.on_timeout)
        asks = tool.after_crash == "reconcile"
        if not tool.timeout or not (fails or asks):  # what is in doubt, a person settles
            return made()
        if self.facts.faulty or self.is_open(tool.body) or self.is_nested(tool.body):
            if self.perhaps_odd("late", tool):
                memo[CUT] = []
                self.perhaps_called(tool, arg)
                raise RaisedError("TimeoutError")
            return made()
        before = Counter(self.must)
        with self.holding(before):
            found = self.within(tool.timeout, made)
        if not isinstance(found, Late):
            return found
        memo[CUT] = []
        if not fails and self.must != before:  # the service knows what came of it
            return v.shaped(tool.shape, f"{tool.name}:{v.text(arg)}")
        raise RaisedError("TimeoutError")

    def frame(self, tool: l.Tool, arg: Any, memo: dict[str, list[Any]] | None = None) -> _Frame:
        return _Frame({}, arg, self.home.state, self.home.messages, tool.name, tool, memo)

    def body_of(self, tool: l.Tool, arg: Any, memo: dict[str, list[Any]] | None = None) -> _Frame:
        inner = self.frame(tool, arg, memo)
        self.block(tool.body, inner)
        return inner

    def result(self, tool: l.Tool, frame: _Frame) -> Any:
        return v.shaped(tool.shape, self.value(tool.result, frame))


def before_its_end(body: l.Block) -> l.Block:
    """What of a block that was cut short may have happened: who has a signal at its end has come
    to it, and one that is cut short before has taken none."""
    return body[:-1] if body and isinstance(body[-1], l.Wait) else body


def _width(term: l.Term) -> int:
    """How many coroutines are at work in it at most."""
    inside = [len(one.branches) for one in l.walk(term) if isinstance(one, l.Par | l.Race)]
    return 1 + sum(inside) - len(inside)
