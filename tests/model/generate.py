"""Draws programs and schedules."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from tests.model import language as l

SHAPES = ("text", "text", "text", "tuple", "bytes", "point", "parcel", "time", "decimal")
NEVER = 10**6  # checkpoints
ERRORS = ("RuntimeError", "KeyError")  # of agents: one that another try may change, and one not


@dataclass
class Where:
    """The place that a statement is drawn for."""

    kind: str  # "prologue", "step", "tool", "branch", "node"
    names: list[str]  # of variables
    tools: list[int]  # that may be called
    writes: bool = True  # whether state and messages may be changed
    deep: int = 0
    agents: tuple[int, ...] = ()
    timed: bool = False  # inside of something that may be late
    waits: bool = True

    def inside(self, kind: str = "", **changes: Any) -> Where:
        return replace(
            self, kind=kind or self.kind, names=list(self.names), deep=self.deep + 1, **changes
        )


FEATURES = {
    "methods": "tools that are methods, and partials of tools",
    "nameless": "closures and lambdas, which their arguments do not tell apart",
    "sets": "asyncio.wait and as_completed, beside sleeps of the coroutines' own",
    "unrecordable": "results that no log can hold",
    "nested": "tools that make calls",
    "prologue": "code before the loop that reads state or messages",
    "race": "coroutines that are cancelled when another one is first",
    "graph": "graphs and plans",
    "concurrent": "coroutines, and waits for people, which plain agents do not have",
}


class Generator:
    """Programs from a source of randomness, without some of the FEATURES."""

    def __init__(self, rng: random.Random, without: Iterable[str] = ()) -> None:
        self.rng, self.without = rng, frozenset(without)
        self.numbers = 0
        self.tools: list[l.Tool] = []

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def name(self) -> str:
        return f"v{self.number()}"

    # -- programs

    def program(self) -> l.Program:
        inner = self.rng.choice((0, 1, 1, 2, 3)) if "nested" not in self.without else 0
        leaves = self.rng.randint(1, 3)
        self.tools = [l.Tool("", (), l.Lit(""))] * inner
        self.tools += [self.leaf(inner + n, n > 0) for n in range(leaves)]
        for number in reversed(range(inner)):
            self.tools[number] = self.composite(number)
        if self.chance(0.1) and "graph" not in self.without:
            return self.graph()
        if self.chance(0.03) and "graph" not in self.without:
            return self.plan()
        children: tuple[l.Agent, ...] = ()
        if "concurrent" not in self.without and self.chance(0.25):
            children = (self.agent((), 1, False),)
            if self.chance(0.4):  # and the first child is the other one's parent
                children = (self.agent((2,), self.rng.choice((1, 2)), False), *children)
        main = self.agent(tuple(range(1, 1 + len(children))), self.rng.choice((0, 1, 2, 2, 3, 4)))
        made = l.Program(tuple(self.tools), (main, *children), every=self.rng.choice((1, 1, 2, 3)))
        whole = any(isinstance(one, l.Wait | l.Undo) for one in l.walk(made))
        return made if whole or self.chance(0.6) else replace(made, keep=self.rng.choice((1, 2)))

    def agent(self, agents: tuple[int, ...], steps: int, waits: bool = True) -> l.Agent:
        every = [n for n in range(len(self.tools)) if waits or not self.waiting(n)]
        before = Where("prologue", [], every, agents=agents, waits=waits)
        prologue: list[l.Term] = []
        for _ in range(self.rng.choice((0, 1, 1, 2, 2, 3))):
            prologue += self.before(before)
        kept = [one for one in prologue if isinstance(one, l.Let)]
        blocks, names = [], before.names
        for _ in range(steps):
            here = Where("step", list(before.names), every, agents=agents, waits=waits)
            block = self.block(here, self.rng.choice((1, 1, 2)))
            for let in kept:
                if self.chance(0.7):
                    block.append(l.Let(let.name, self.value(here), True))
                    if isinstance(let.value, l.Get):
                        block.append(l.Put(let.value.key, l.Var(let.name)))
            for put in l.walk(tuple(prologue)):
                if isinstance(put, l.Put) and put.key in "ab" and self.chance(0.4):
                    block.append(l.Put(put.key, self.value(here)))
            names = here.names
            blocks.append(tuple(block))
        results = [l.Var(name) for name in names[-3:]] + [l.Get("a"), l.Last()]
        return l.Agent(tuple(prologue), tuple(blocks), tuple(results))

    def waiting(self, number: int) -> bool:
        """Whether the tool waits for a signal."""
        body = self.tools[number].body
        return any(
            isinstance(one, l.Wait) or (isinstance(one, l.Call) and self.waiting(one.tool))
            for one in l.walk(body)
        )

    def before(self, where: Where) -> list[l.Term]:
        """What people write before the loop."""
        match self.rng.randrange(8) if "prologue" not in self.without else 0:
            case 0:
                return [l.Say(l.Lit("system"))]
            case 1:
                return [l.If(l.Silent(), (l.Say(l.Lit("system")),))]
            case 2:
                name = self.name()
                where.names.append(name)
                made = l.Lit("n") if self.chance(0.5) else l.Get(self.rng.choice("ab"))
                return [l.Let(name, made)]
            case 3:
                inner = where.inside()
                call = self.call(inner)
                return [l.If(l.Lacks("ready"), (call, l.Put("ready", l.Var(call.var))))]
            case 4:
                return [
                    l.Put(self.rng.choice("ab"), l.Lit("0"), self.rng.choice(("set", "default")))
                ]
            case 5:
                call = replace(self.call(where), arg=l.Last())
                return [call]
            case _:
                return self.block(where, 1)

    def block(self, where: Where, count: int) -> list[l.Term]:
        return [one for _ in range(count) for one in self.statement(where)]

    def value(self, where: Where) -> l.Term:
        options: list[Callable[[], l.Term]] = [lambda: l.Lit(f"a{self.number()}")] * 2
        if where.names:
            options += [lambda: l.Var(self.rng.choice(where.names))] * 3
        if where.kind != "node":
            options += [lambda: l.Get(self.rng.choice("ab"))]
            if where.writes:
                options += [l.Last]
        return self.rng.choice(options)()

    # -- statements

    def statement(self, where: Where) -> list[l.Term]:
        simple: list[tuple[int, Callable[[Where], list[l.Term]]]]
        simple = [(12, self.called), (2, self.slept)]
        simple += [(3, self.waited)] if where.waits else []
        if where.writes and where.kind in ("step", "prologue", "tool"):
            simple += [(4, self.put), (3, self.said)]
        if where.kind in ("step", "prologue"):
            simple += [(3, self.streamed), (1, self.asked)]
        if where.kind == "step":
            simple += [(3, self.undone)] if any(tool.undo for tool in self.tools) else []
        if where.agents:
            simple += [(3, self.child)]
        if "concurrent" in self.without:
            simple = [one for one in simple if one[1] not in (self.waited, self.slept)]
            simple += [(2, self.condition), (1, self.loop)] if where.deep < 1 else []
        elif where.deep < 1 or (where.deep < 2 and self.chance(0.4)):
            simple += [
                (5, self.par),
                (2, self.fan),
                (3, self.timeout),
                (2, self.condition),
                (1, self.loop),
            ]
            if not where.timed and "race" not in self.without:
                simple += [(3, self.race)]
            simple += [(2, self.cleanup)]
        made = self.rng.choices([kind for _, kind in simple], [weight for weight, _ in simple])[0]
        return made(where)

    def call(self, where: Where, hows: tuple[str, ...] = ()) -> l.Call:
        number = self.rng.choice([n for n in where.tools if not self.tools[n].chunks])
        tool = self.tools[number]
        how = self.rng.choice(hows or self.hows())
        if how == "direct" and (tool.sync or where.kind == "branch"):
            how = "call"
        if how == "direct" and "concurrent" in self.without:
            how = "call"
        if tool.approval and how in ("method", "closure", "lambda"):
            how = "partial"  # people see what they say yes to
        if where.kind == "node" and how not in ("call", "direct"):
            how = "call"
        var = self.name()
        arg = l.Lit(f"a{self.number()}") if self.chance(0.6) else self.value(where)
        call_id = f"id{self.number()}" if how != "direct" and self.chance(0.3) else ""
        bound = how in ("method", "closure", "lambda")
        note = "" if bound else self.rng.choice(("", "", "", "-", "other"))
        made = l.Call(var, number, arg, how, call_id, not bound and self.chance(0.2), note)
        where.names.append(var)
        return made

    def hows(self) -> list[str]:
        """The ways in which people write a call."""
        found = ["call", "call", "call", "direct"]
        found += [] if "methods" in self.without else ["partial", "partial", "method"]
        return found + ([] if "nameless" in self.without else ["closure", "lambda"])

    def fan(self, where: Where) -> list[l.Term]:
        """The same tool several times at once, each call with something else bound."""
        how = self.rng.choice([how for how in self.hows() if how != "direct"])
        tool, branches = self.call(where.inside()).tool, []
        for _ in range(self.rng.choice((2, 3, 4))):
            call = self.call(where.inside("branch", tools=[tool]), (how,))
            # What nothing but its place tells from others is made in another order in each life.
            pause = self.rng.choice((0, 1, 2)) if how in ("method", "closure", "lambda") else 0
            made = replace(call, call_id="", note="")
            branches.append(l.Branch(pause, (made,), l.Var(call.var)))
        var = self.name()
        where.names.append(var)
        return [l.Par(var, "careful", tuple(branches))]

    def called(self, where: Where) -> list[l.Term]:
        made = self.call(where)
        if self.may_raise(made.tool) and self.chance(0.8):
            where.names.pop()
            return self.tried(where, [made])
        return [made]

    def may_raise(self, number: int) -> bool:
        tool = self.tools[number]
        if tool.approval or tool.timeout:
            return True
        for one in l.walk(tool.body):
            if isinstance(one, l.Trouble) and one.times >= tool.retry:
                return True
            if isinstance(one, l.Call) and self.may_raise(one.tool):
                return True
        return False

    def tried(self, where: Where, body: list[l.Term]) -> list[l.Term]:
        var = self.name()
        where.names.append(var)
        return [l.Try(var, tuple(body))]

    def waited(self, where: Where) -> list[l.Term]:
        var = self.name()
        where.names.append(var)
        return [l.Wait(var, self.rng.choice("pq"), self.rng.choice((0, 0, 10)))]

    def slept(self, where: Where) -> list[l.Term]:
        own = self.chance(0.5)
        if own and self.chance(0.3):
            return [l.Turns(self.rng.choice((1, 3, 60)))]
        return [l.Sleep(self.rng.choice((1, 3, 20) if where.timed else (1, 3, 20, 300)), own)]

    def put(self, where: Where) -> list[l.Term]:
        how = self.rng.choice(("set", "set", "add", "default"))
        key = self.rng.choice("cd") if how == "add" else self.rng.choice("ab")
        return [l.Put(key, self.value(where), how)]

    def said(self, where: Where) -> list[l.Term]:
        return [l.Say(self.value(where), self.chance(0.2))]

    def streamed(self, where: Where) -> list[l.Term]:
        found = [n for n in where.tools if self.tools[n].chunks]
        if not found:
            return self.called(where)
        arg, var = self.value(where), self.name()
        where.names.append(var)
        return [l.Stream(var, self.rng.choice(found), arg, self.rng.choice((0, 0, 1, 2)))]

    def asked(self, where: Where) -> list[l.Term]:
        var = self.name()
        made = replace(self.call(where, ("call",)), arg=l.Var(var))
        return [l.Ask(var, self.rng.choice(("uuid", "now", "random"))), made]

    def undone(self, where: Where) -> list[l.Term]:
        var = self.name()
        return [l.Undo(var)]

    def child(self, where: Where) -> list[l.Term]:
        arg, var = self.value(where), self.name()
        how = "function" if "nameless" in self.without else self.rng.choice(("function", "partial"))
        made = l.Child(var, self.rng.choice(where.agents), arg, how)
        if self.chance(0.5):
            return self.tried(where, [made])
        where.names.append(var)
        return [made]

    def branch(self, where: Where, noted: bool = False) -> l.Branch:
        """``noted``: when it ends, so its end comes behind something that is recorded."""
        inner = where.inside("branch", writes=False)
        if noted:
            body = self.block(inner, self.rng.choice((0, 0, 1))) + self.called(inner)
        else:
            body = self.block(inner, self.rng.choice((1, 1, 2)))
        value = l.Var(inner.names[-1]) if len(inner.names) > len(where.names) else l.Lit("b")
        return l.Branch(self.rng.choice((0, 0, 0, 1, 2)), tuple(body), value)

    def par(self, where: Where) -> list[l.Term]:
        kinds = ["gather", "gather", "careful", "group", "recorded"]
        kinds += ["wait", "completed"] if "sets" not in self.without else []
        kinds += ["noted", "noted"] if where.kind == "step" else []
        kind = self.rng.choice(kinds)
        branches = tuple(
            self.branch(where, kind == "noted") for _ in range(self.rng.choice((2, 2, 3)))
        )
        var = self.name()
        made = l.Par(var, kind, branches)
        raises = any(
            isinstance(one, l.Call) and self.may_raise(one.tool) for one in l.walk(branches)
        )
        if raises and made.kind not in ("careful", "noted") and self.chance(0.9):
            return self.tried(where, [made])
        where.names.append(var)
        if made.kind in l.IN_ORDER:  # something depends on the order
            effects = [n for n in where.tools if self.tools[n].after_crash != "retry"]
            seen = where.inside(tools=effects) if effects and self.chance(0.7) else where.inside()
            after = replace(self.call(seen), arg=l.Var(var))
            where.names.append(after.var)
            return [made, after]
        return [made]

    def race(self, where: Where) -> list[l.Term]:
        branches = []
        for _ in range(2):
            inner = where.inside("branch", writes=False)
            made = self.rng.choice(
                (self.waited, self.waited, self.slept, self.called)
                if where.waits
                else (self.slept, self.called)
            )
            body = made(inner)
            value = l.Var(inner.names[-1]) if len(inner.names) > len(where.names) else l.Lit("r")
            branches.append(l.Branch(0, tuple(body), value))
        var = self.name()
        where.names.append(var)
        recorded = "sets" in self.without or self.chance(0.5)
        return [l.Race(var, tuple(branches), recorded)]

    def timeout(self, where: Where) -> list[l.Term]:
        inner = where.inside(writes=False, timed=True)
        kinds = (self.called, self.called, self.slept, self.waited if where.waits else self.slept)
        body = self.rng.choice(kinds)(inner)
        var = self.name()
        where.names.append(var)
        return [l.Timeout(var, self.rng.choice((2.5, 5.5, 40.5)), tuple(body))]

    def condition(self, where: Where) -> list[l.Term]:
        then = self.block(where.inside(), 1)
        other = self.block(where.inside(), 1) if self.chance(0.4) else []
        return [l.If(l.Odd(self.value(where)), tuple(then), tuple(other))]

    def loop(self, where: Where) -> list[l.Term]:
        var, of = self.name(), self.value(where)
        inner = where.inside()
        body = self.block(inner, 1)
        return [l.Loop(var, of, 3, tuple(body))]

    def cleanup(self, where: Where) -> list[l.Term]:
        inner = where.inside()
        body, last = self.block(inner, 1), self.called(where.inside())
        return [l.Finally(tuple(body), tuple(last))]

    def beside(self, program: l.Program) -> l.Program:
        """The program with a task that goes on beside the steps, from before the loop or in one."""
        main, *others = program.agents
        leaves = [n for n, tool in enumerate(program.tools) if self.is_steady(tool)]
        # What can be undone is as far as it is when somebody undoes it: nobody knows when that is.
        tools = program.tools
        leaves = [n for n in leaves if not tools[n].chunks and not tools[n].undo]
        if not main.steps or not leaves:
            return program
        calls = []
        for number in range(self.rng.choice((1, 2, 2))):
            arg = l.Lit(f"beside {number}")
            made = l.Call(f"w{number}", self.rng.choice(leaves), arg)
            calls.append(l.Try(f"w{number}", (made,)) if self.may_raise(made.tool) else made)
        over = self.chance(0.4)
        body = (*calls, l.Put("work", l.Var("w0"))) if over else tuple(calls)
        start = l.Start("work", l.Branch(self.rng.choice((0, 1, 9)), body, l.Var("w0")), over)
        steps, last = list(main.steps), self.rng.randrange(len(main.steps))
        steps[last] = (*steps[last], l.Join("w9", "work", over))
        if over:
            first = self.rng.randint(0, last)
            steps[first] = (start, *steps[first])
            main = replace(main, steps=tuple(steps))
        elif self.chance(0.5):
            main = replace(main, prologue=(*main.prologue, start), steps=tuple(steps))
        else:
            steps[last] = (start, *steps[last])
            main = replace(main, steps=tuple(steps))
        return replace(program, agents=(main, *others))

    def orders(self, program: l.Program) -> l.Program:
        """The program with a side effect around a call that takes its time and may be repeated."""
        rng, count = self.rng, len(program.tools)
        seconds, after = rng.choice((1, 3, 8)), rng.choice(("park", "reconcile", "report"))
        look = l.Tool(
            f"t{count + 1}",
            (l.Do("r", l.Task()), l.Sleep(seconds, True)),
            l.Var("r"),
            after_crash="retry",
        )
        body: tuple[l.Term, ...] = (l.Call("a", count + 1, l.Lit("inside")), l.Do("b", l.Task()))
        order = l.Tool(f"t{count}", body[:: rng.choice((1, -1))], l.Var("a"), after_crash=after)
        main, *others = program.agents
        steps = list(main.steps or ((),))
        number = rng.randrange(len(steps))
        made = l.Call(self.name(), count, l.Lit("order"))
        steps[number] = (*steps[number], made)
        agents = (replace(main, steps=tuple(steps)), *others)
        return replace(program, tools=(*program.tools, order, look), agents=agents)

    def fails_once(self, program: l.Program) -> l.Program:
        """The program with an error of its own in a step."""
        main, *others = program.agents
        steps = list(main.steps)
        if steps:
            number = self.rng.randrange(len(steps))
            at = self.rng.randrange(len(steps[number]) + 1)
            error = l.Trouble(self.rng.choice((1, 2)), self.rng.choice(ERRORS))
            steps[number] = (*steps[number][:at], error, *steps[number][at:])
        return replace(program, agents=(replace(main, steps=tuple(steps)), *others))

    def edited(self, program: l.Program) -> l.Agent | None:
        """The agent after an edit of a call in one of its steps; None where there is none."""
        (agent, *_) = program.agents
        places = [
            (number, at)
            for number, block in enumerate(agent.steps)
            for at, one in enumerate(block)
            for call in [_call(one)]  # of others the record does not have what they are bound to
            if isinstance(call, l.Call) and call.how in ("call", "direct", "partial")
        ]
        if not places:
            return None
        number, at = self.rng.choice(places)
        block, steps = agent.steps[number], list(agent.steps)
        one = _call(block[at])
        assert isinstance(one, l.Call)
        plain = replace(one, var="z", call_id="", how="call")
        other = self.rng.choice(places)
        made: list[l.Term] = list(block)
        match self.rng.randrange(5):
            case 0:
                made[at] = l.Let(getattr(block[at], "var", one.var), l.Lit("dropped"))
            case 1:
                changed = replace(one, arg=l.Lit("changed"))
                tried = block[at]
                made[at] = replace(tried, body=(changed,)) if isinstance(tried, l.Try) else changed
            case 2:
                made.insert(at, l.Try("z", (replace(plain, arg=l.Lit("added")),)))
            case 3:
                made.append(l.Try("z", (replace(plain, arg=l.Lit("added")),)))
            case _ if other[0] == number and not reads(block):
                made[at], made[other[1]] = made[other[1]], made[at]
        steps[number] = tuple(made)
        return replace(agent, steps=tuple(steps)) if tuple(made) != block else None

    # -- tools

    def leaf(self, number: int, may_stream: bool) -> l.Tool:
        rng = self.rng
        if may_stream and self.chance(0.2):
            return l.Tool(
                f"t{number}",
                (l.Do("r", l.Task()),),
                l.Var("r"),
                after_crash="retry",
                chunks=rng.randint(1, 3),
            )
        after = rng.choice(("park", "park", "retry", "retry", "report", "reconcile"))
        timeout = rng.choice((0, 0, 0, 0, 5.5))
        body: list[l.Term] = []
        kind = rng.choice(("ValueError", "DeclaredError", "CustomError"))
        trouble: list[l.Term] = [l.Trouble(rng.choice((1, 1, 2)), kind)]
        if self.chance(0.4):
            body.append(l.Sleep(rng.choice((1, 2)), True))
        if self.chance(0.2):
            body, trouble = body + trouble, []
        body.append(l.Do("r", l.Task()))
        if trouble and self.chance(0.15):
            body += trouble
        if self.chance(0.5):
            body.append(l.Sleep(rng.choice((1, 2, 30) if timeout else (1, 3, 8)), True))
        sync = self.chance(0.15)
        if sync:  # in virtual time its sleep would hold up the others
            body = [one for one in body if not isinstance(one, l.Sleep)]
        shape = (
            "strange"
            if "unrecordable" not in self.without and self.chance(0.1)
            else rng.choice(SHAPES)
        )
        approval = not sync and "concurrent" not in self.without and self.chance(0.12)
        return l.Tool(
            f"t{number}",
            tuple(body),
            l.Var("r"),
            shape,
            sync,
            after,
            rng.choice((1, 1, 1, 2, 3)),
            0 if sync else timeout,
            rng.choice(("", "fail", "in_doubt"))
            if timeout and after != "retry" and not sync
            else "",
            any(isinstance(one, l.Trouble) and one.kind == "DeclaredError" for one in body),
            approval,
            rng.choice((0, 30)) if approval else 0,
            after != "report" and self.chance(0.15),
        )

    def composite(self, number: int) -> l.Tool:
        rng = self.rng
        after = rng.choice(("park", "retry", "retry", "retry", "report", "reconcile"))
        timeout = rng.choice((0, 0, 0, 2.5, 4.5, 60.5))
        callable_ = list(range(number + 1, len(self.tools)))
        callable_ = [n for n in callable_ if not timeout or not self.waiting(n)]
        where = Where("tool", [], callable_, False, 0, timed=bool(timeout), waits=not timeout)
        body = self.block(where, rng.choice((1, 1, 2)))
        if self.chance(0.2):
            var = self.name()
            body.insert(rng.choice((0, len(body))), l.Do(var, l.Lit(f"own{self.number()}")))
        if self.chance(0.2):
            body.append(l.Trouble(1, "ValueError"))
        result = l.Var(where.names[-1]) if where.names else l.Lit("done")
        return l.Tool(
            f"t{number}",
            tuple(body),
            result,
            "text",
            False,
            after,
            rng.choice((1, 1, 2, 3)),
            timeout,
            rng.choice(("", "", "fail")) if timeout else "",
        )

    # -- graphs

    def steady(self) -> list[int]:
        """Tools that come to a result sooner or later."""
        return [n for n, tool in enumerate(self.tools) if not tool.chunks and self.is_steady(tool)]

    def is_steady(self, tool: l.Tool) -> bool:
        never = l.Wait | l.Race | l.Timeout | l.Put | l.Say | l.Get | l.Ask | l.Child
        parts = list(l.walk(tool.body))
        return (
            not tool.approval
            and not tool.timeout
            and not any(isinstance(one, never) for one in parts)
            and all(
                self.is_steady(self.tools[one.tool]) for one in parts if isinstance(one, l.Call)
            )
        )

    def graph(self) -> l.Program:
        self.tools = [_alone(tool) for tool in self.tools]
        count, tools = self.rng.randint(1, 4), self.steady()
        nodes = []
        for number in range(count):
            where = Where("node", [], tools, False)
            body: list[l.Term] = (
                [one for _ in range(self.rng.randint(1, 2)) for one in [self.call(where)]]
                if tools
                else []
            )
            if self.chance(0.4):
                trouble = l.Trouble(self.rng.choice((1, 1, 2)), "ValueError")
                body.insert(self.rng.choice((0, len(body), len(body))), trouble)
            to = (number + 1,) if number + 1 < count else ()
            value = l.Var(where.names[-1]) if where.names else l.Lit("n")
            flaky = "flaky" if to and self.chance(0.2) else ""
            nodes.append(
                l.Node(f"n{number}", tuple(body), value, self.rng.choice((1, 2, 3)), 0, to, flaky)
            )
        if count > 2 and self.chance(0.4):  # a fan-out
            nodes[0] = replace(nodes[0], to=tuple(range(1, count)))
            nodes[1:] = [replace(node, to=(), when="") for node in nodes[1:]]
        return l.Program(tuple(self.tools), (), tuple(nodes), every=1)

    def plan(self) -> l.Program:
        self.tools = [_alone(tool) for tool in self.tools]
        steady = [number for number in self.steady() if not self.may_raise(number)]
        where = Where("node", [], steady, False)
        if not where.tools:
            return self.graph()
        calls = []
        for _ in range(self.rng.randint(1, 3)):
            call, arg = self.call(where, ("call",)), l.Lit(f"a{self.number()}")
            calls.append(replace(call, arg=arg, call_id="", note="", by_name=True))
        return l.Program(
            tuple(self.tools), (), (), l.Plan(tuple(calls), self.rng.choice((0, 1, 2)))
        )


def _call(one: l.Term) -> l.Term:
    """The call that a statement is, or that it tries."""
    return one.body[0] if isinstance(one, l.Try) and len(one.body) == 1 else one


def reads(block: l.Block) -> bool:
    """Whether a statement may need what another one has written."""
    return any(isinstance(one, l.Var) for one in l.walk(block))


def _alone(term: Any) -> Any:
    """The same without the use of a run, for tools of a module."""
    if isinstance(term, tuple):
        return tuple(map(_alone, term))
    if not isinstance(term, l.Term):
        return term
    changes = {field.name: _alone(getattr(term, field.name)) for field in fields(term)}
    if isinstance(term, l.Call):
        changes |= {"how": "direct", "call_id": ""}
    if isinstance(term, l.Sleep):
        changes["own"] = True
    if isinstance(term, l.Race):
        changes["recorded"] = False
    if isinstance(term, l.Par) and term.kind == "recorded":
        changes["kind"] = "gather"
    if isinstance(term, l.Tool):
        changes["sync"] = False
    return replace(term, **changes)
