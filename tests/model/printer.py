"""Programs as Python source, as a stranger would write it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from tests.model import language as l

HEADER = """\
import asyncio
import functools
import time
from collections.abc import AsyncIterator

import recovery
from recovery import Retry, tool
from recovery.graph import FlexibleGraphExecutor, Graph, PlanStep
from tests.model.values import *
from tests.model.values import CustomError, DeclaredError, Parcel, Point, Strange

recovery.register(Point)
"""
BOUND = ("method", "closure", "lambda")
ALONE = (
    l.Do,
    l.Trouble,
    l.If,
    l.Loop,
    l.Branch,
    l.Par,
    l.Race,
    l.Timeout,
    l.Try,
    l.Finally,
    l.Turns,
    l.Let,
    l.Lit,
    l.Var,
    l.Task,
    l.Odd,
)


TOGETHER = {
    "gather": "VAR = await asyncio.gather(CALLS)",
    "careful": """
VAR = await asyncio.gather(CALLS, return_exceptions=True)
VAR = [kind(one) if isinstance(one, Exception) else one for one in VAR]""",
    "group": """
async with asyncio.TaskGroup() as group:
    tasks = [group.create_task(one) for one in [CALLS]]
VAR = [task.result() for task in tasks]""",
    "completed": """
VAR = []
for one in asyncio.as_completed([CALLS]):
    VAR.append(await one)""",
    "noted": """
VAR = []
async def noted(one):
    try:
        VAR.append(await one)
    except Exception as error:
        VAR.append(kind(error))
await asyncio.gather(*[noted(one) for one in [CALLS]])""",
    "wait": """
VAR = []
late = [asyncio.ensure_future(one) for one in [CALLS]]
while late:
    done, late = await asyncio.wait(late, return_when=asyncio.FIRST_COMPLETED)
    for one in done:
        VAR.append(one.result())""",
    "race": """
tasks = [asyncio.ensure_future(one) for one in [CALLS]]
done, late = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
for one in late:
    one.cancel()
await asyncio.gather(*late, return_exceptions=True)
VAR = [outcome(one) if one in done else None for one in tasks]""",
}
TOGETHER |= {
    f"recorded {name}": TOGETHER[name].replace("asyncio.wait(", "run.wait(")
    for name in ("race", "wait")
}


def printed(program: l.Program) -> str:
    """The module; its agent functions are ``agent0``, ..., or it has a ``graph`` or a plan."""
    return "\n".join([HEADER, *_Module(program).lines()]) + "\n"


class _Module:
    def __init__(self, program: l.Program) -> None:
        self.program = program
        self.forms: dict[int, list[str]] = {}  # of the tools, by their number
        for term in l.walk(program):
            if isinstance(term, l.Call | l.Stream):
                how = term.how if isinstance(term, l.Call) else "call"
                form = how if how in BOUND else "call"
                forms = self.forms.setdefault(term.tool, [])
                if form not in forms:
                    forms.append(form)

    def lines(self) -> Iterator[str]:
        program = self.program
        outer = [number for number in self.forms if not self.inside(number)]
        for number in sorted(outer, reverse=True):  # a tool calls those of higher numbers
            yield from self.tool(number)
        for number, agent in enumerate(program.agents):
            yield ""
            made = list(_indented(self.agent(agent)))
            if program.plain:
                made = [re.sub(r"\b(await|async) ", "", line) for line in made]
            yield f"{'' if program.plain else 'async '}def agent{number}(run):"
            for tool in sorted(self.used(agent), reverse=True):
                if self.inside(tool):
                    yield from _indented(self.tool(tool))
            yield from made
        if program.nodes:
            yield from self.graph()
        if program.plan:
            yield from self.plan(program.plan)

    def inside(self, number: int) -> bool:
        """Whether the tool uses the run, and so is defined in the agent function."""
        tool = self.program.tools[number]
        for term in l.walk((tool.body, tool.result)):
            if isinstance(term, l.Call):
                if term.how != "direct" or self.inside(term.tool):
                    return True
            elif isinstance(term, l.Par | l.Race):
                if term.recorded if isinstance(term, l.Race) else term.kind == "recorded":
                    return True
            elif not isinstance(term, ALONE) and not (isinstance(term, l.Sleep) and term.own):
                return True
        return False

    def used(self, term: object) -> set[int]:
        """The tools that are called in a term, and in those tools."""
        found: set[int] = set()
        for one in l.walk(term):
            if isinstance(one, l.Call | l.Stream) and one.tool not in found:
                found |= {one.tool} | self.used(self.program.tools[one.tool].body)
        return found

    # -- tools

    def tool(self, number: int) -> Iterator[str]:
        tool, word = (
            self.program.tools[number],
            "def" if self.program.tools[number].sync else "async def",
        )
        if tool.undo:
            yield ""
            yield f"async def undo_{tool.name}(call, result):"
            yield "    await asyncio.sleep(1)"
            yield f'    return outside.do("undo {tool.name}", result)'
        body = _Body(self, tool=tool)
        returns = {"parcel": " -> Parcel", "point": " -> Point"}.get(tool.shape, "")
        lines = [*body.block(tool.body), *self.result(tool, body)]
        for form in self.forms[number]:
            yield ""
            match form:
                case "call":
                    yield f"@tool{options(tool)}"
                    yield f'{word} {tool.name}(x, note="-"){returns}:'
                    yield from _indented(lines)
                case "lambda":
                    yield f"{word} body_{tool.name}(x){returns}:"
                    yield from _indented(lines)
                case "closure":
                    yield f"def make_{tool.name}(x):"
                    yield f"    @tool{options(tool)}"
                    yield f"    {word} {tool.name}(){returns}:"
                    yield from _indented(_indented(lines))
                    yield f"    return {tool.name}"
                case "method":
                    yield f"class Service_{tool.name}:"
                    yield "    def __init__(self, x):"
                    yield "        self.x = x"
                    yield f"    @tool{options(tool)}"
                    yield f"    {word} {tool.name}(self){returns}:"
                    yield "        x = self.x"
                    yield from _indented(_indented(lines))

    def result(self, tool: l.Tool, body: _Body) -> Iterator[str]:
        if tool.chunks:
            yield f"for number in range({tool.chunks}):"
            yield "    await asyncio.sleep(1)"
            yield f"    yield text({body.value(tool.result)}) + str(number)"
        else:
            yield f'return shaped("{tool.shape}", {body.value(tool.result)})'

    # -- agents

    def agent(self, agent: l.Agent) -> Iterator[str]:
        body = _Body(self)
        if any(isinstance(one, l.Start) and one.over for one in l.walk(agent.steps)):
            yield "work = []"
        yield from body.block(agent.prologue)
        result = f"return [{', '.join(f'text({body.value(one)})' for one in agent.result)}]"
        if not agent.steps:
            yield result
            return
        yield "async for step in run.steps():"
        for number, block in enumerate(agent.steps, 1):
            yield f"    if step == {number}:"
            yield from _indented(_indented(body.block(block) or ["pass"]))
            if number == len(agent.steps):
                yield f"        {result}"

    # -- graphs

    def graph(self) -> Iterator[str]:
        nodes = self.program.nodes
        yield ""
        yield 'graph = Graph("graph")'
        for node in nodes:
            body = _Body(self, node=node)
            given = [f'"{node.name}"']
            given += [f"retry=Retry({node.retry}, delay_s=1, jitter=0)"] if node.retry > 1 else []
            given += [f"timeout_s={node.timeout}"] if node.timeout else []
            yield ""
            yield f"@graph.node({', '.join(given)})"
            yield f"async def {node.name}(context):"
            yield from _indented(body.block(node.body))
            yield f'    return {{"{node.name}": text({body.value(node.value)})}}'
        for node in nodes:
            for other in node.to:
                name, when = nodes[other].name, ""
                if node.when:
                    when = f", when_{node.name}_{name}"
                    yield ""
                    yield f"def when_{node.name}_{name}(output, memory):"
                    yield f'    if outside.nth("edge {node.name} {name}", "") <= 1:'
                    yield '        raise ValueError("asked too early")'
                    yield "    return True"
                yield f'graph.edge("{node.name}", "{name}"{when})'

    def plan(self, plan: l.Plan) -> Iterator[str]:
        steps, tools = [], []
        for number, call in enumerate(plan.calls):
            name = self.program.tools[call.tool].name
            steps.append(f'PlanStep("p{number}", "{name}", {{"x": {_Body(self).value(call.arg)}}})')
            tools.append(f'"{name}": {name}')
        yield ""
        yield "def planner(context):"
        yield f"    return [{', '.join(steps)}]"
        yield ""
        yield "def judge(step, outcome, context):"
        yield f'    if outside.nth("judge", step.id) <= {plan.trouble}:'
        yield '        raise ValueError("the judge is busy")'
        yield '    return "accept"'
        yield f"tools = {{{', '.join(tools)}}}"


def options(tool: l.Tool, name: str = "") -> str:
    """The options of a tool, in brackets."""
    given = [f'name="{name}"'] if name else []
    if tool.after_crash == "reconcile":
        given.append("reconcile=outside.look")
    elif tool.after_crash != "park":
        given.append(f'after_crash="{tool.after_crash}"')
    given += [f"retry=Retry({tool.retry}, delay_s=2, jitter=0)"] if tool.retry > 1 else []
    given += [f"timeout_s={tool.timeout}"] if tool.timeout else []
    given += [f'on_timeout="{tool.on_timeout}"'] if tool.on_timeout else []
    given += ["raises=[DeclaredError]"] if tool.raises else []
    given += ["needs_approval=True"] if tool.approval else []
    given += [f"approval_timeout_s={tool.approval_timeout}"] if tool.approval_timeout else []
    given += [f"undo=undo_{tool.name}"] if tool.undo else []
    return f"({', '.join(given)})" if given else ""


class _Body:
    """Prints what is in one function, and the functions in it."""

    def __init__(
        self, module: _Module, tool: l.Tool | None = None, node: l.Node | None = None
    ) -> None:
        self.module, self.tool, self.node = module, tool, node
        self.name = tool.name if tool else node.name if node else "agent"
        self.caller = "context" if node else "run"
        self.count = 0
        self.sync = tool is not None and tool.sync

    def block(self, block: l.Block) -> list[str]:
        return [line for one in block for line in self.statement(one)]

    def value(self, term: l.Term) -> str:
        match term:
            case l.Lit(text):
                return repr(text)
            case l.Var(name):
                return name
            case l.Get(key):
                where = "context.memory" if self.node else "run.state"
                return f'{where}.get("{key}", "none")'
            case l.Last():
                return 'mix(len(run.messages), [m["content"] for m in run.messages][-1:])'
            case l.Task():
                return "x" if self.tool else 'context.memory["task"]' if self.node else "run.task"
            case l.Odd(of):
                return f"odd({self.value(of)})"
            case l.Lacks(key):
                return f'"{key}" not in run.state'
            case l.Silent():
                return "not run.messages"
        raise TypeError(term)

    def call(self, call: l.Call) -> str:
        tool, arg = self.module.program.tools[call.tool], self.value(call.arg)
        note = [f'note="{call.note}"'] if call.note else []
        given = [f"x={arg}" if call.by_name else arg, *note]
        if call.how == "direct":
            return f"{'' if tool.sync else 'await '}{tool.name}({', '.join(given)})"
        match call.how:
            case "partial":
                given = [f"functools.partial({tool.name}, {', '.join(given)})"]
            case "method":
                given = [f"Service_{tool.name}({arg}).{tool.name}"]
            case "closure":
                given = [f"make_{tool.name}({arg})"]
            case "lambda":
                body = f"lambda: body_{tool.name}({arg})"
                how = options(tool, "" if call.call_id else tool.name)
                given = [f"tool{how}({body})" if how else body]
            case _:
                given = [tool.name, *given]
        given += [f'call_id="{call.call_id}"'] if call.call_id else []
        return f"await {self.caller}.call({', '.join(given)})"

    def statement(self, one: l.Term) -> Iterable[str]:
        match one:
            case l.Call():
                return [f"{one.var} = {self.call(one)}"]
            case l.Do(var, arg):
                return [f'{var} = outside.do("{self.name}", {self.value(arg)})']
            case l.Trouble(times, kind):
                of = "x" if self.tool else '""'
                return [
                    f'if outside.nth("{self.name}", {of}) <= {times}:',
                    f'    raise {kind}("{self.name} is busy")',
                ]
            case l.If(condition, then, other):
                lines = [f"if {self.value(condition)}:", *self.inner(then)]
                return [*lines, "else:", *self.inner(other)] if other else lines
            case l.Loop(var, of, most, body):
                return [f"for {var} in range(size({self.value(of)}, {most})):", *self.inner(body)]
            case l.Par() | l.Race():
                return self.together(one)
            case l.Start(task, branch):
                name, lines = self.branch(branch)
                made = f"asyncio.create_task({name}())"
                return [*lines, f"{task}.append({made})" if one.over else f"{task} = {made}"]
            case l.Join(var, task, True):
                return [f"await asyncio.gather(*{task})", f'{var} = "joined"']
            case l.Join(var, task):
                return [f"{var} = await {task}"]
            case l.Timeout(var, seconds, body):
                return [
                    "try:",
                    f"    async with asyncio.timeout({seconds}):  # {var}",
                    *_indented(self.inner(body)),
                    f'    {var} = "fine"',
                    "except TimeoutError:",
                    f'    {var} = "late"',
                ]
            case l.Try(var, body):
                return [
                    "try:",
                    *self.inner(body),
                    f'    {var} = "fine"',
                    "except Exception as error:",
                    f"    {var} = kind(error)",
                ]
            case l.Finally(body, last):
                return ["try:", *self.inner(body), "finally:", *self.inner(last)]
            case _:
                return self.simple(one)

    def simple(self, one: l.Term) -> list[str]:
        match one:
            case l.Stream(var, number, arg, stop_after):
                name = self.module.program.tools[number].name
                lines = [
                    f"async with run.stream({name}, {self.value(arg)}) as stream:",
                    "    count = 0",
                    "    async for chunk in stream:",
                ]
                last = (
                    [
                        "        count += 1",
                        f"        if count >= {stop_after}:",
                        "            break",
                    ]
                    if stop_after
                    else ["        pass"]
                )
                return [*lines, *last, f"{var} = stream.result"]
            case l.Child(var, number, arg, how):
                if how == "partial":
                    agent = f"functools.partial(agent{number})"
                    return [f"{var} = await run.child({agent}, {self.value(arg)})"]
                return [f"{var} = await run.child(agent{number}, {self.value(arg)})"]
            case l.Wait(var, name, 0):
                return [f'{var} = await run.wait_for("{name}")']
            case l.Wait(var, name, timeout):
                return [
                    "try:",
                    f'    {var} = await run.wait_for("{name}", timeout={timeout})',
                    "except TimeoutError:",
                    f'    {var} = "late"',
                ]
            case l.Undo(var):
                return ["await run.undo()", f'{var} = "undone"']
            case l.Sleep(seconds, own):
                if self.sync or (own and self.module.program.plain and self.tool is None):
                    return [f"time.sleep({seconds})"]
                return [f"await {'asyncio' if own else 'run'}.sleep({seconds})"]
            case l.Turns(count):
                return [f"for _ in range({count}):", "    await asyncio.sleep(0)"]
            case l.Put(key, value, "set"):
                return [f'run.state["{key}"] = {self.value(value)}']
            case l.Put(key, value, "default"):
                return [f'run.state.setdefault("{key}", {self.value(value)})']
            case l.Put(key, value):
                return [f'run.state.setdefault("{key}", []).append(text({self.value(value)}))']
            case l.Say(value, edit):
                message = f'{{"role": "user", "content": text({self.value(value)})}}'
                if edit:
                    return ["if run.messages:", f"    run.messages[-1] = {message}"]
                return [f"run.messages.append({message})"]
            case l.Let(name, value, grow):
                made = self.value(value)
                return [f"{name} = mix({name}, {made})" if grow else f"{name} = {made}"]
            case l.Ask(var, what):
                return [f"{var} = run.{what}()"]
        raise TypeError(one)

    def branch(self, branch: l.Branch) -> tuple[str, list[str]]:
        """Its name and lines."""
        self.count += 1
        name = f"branch{self.count}"
        lines = [f"async def {name}():"]
        if branch.pause:
            lines.append(f"    await outside.pause({branch.pause})")
        lines += [*self.inner(branch.body, ()), f"    return {self.value(branch.value)}"]
        return name, lines

    def together(self, one: l.Par | l.Race) -> list[str]:
        names, lines = [], []
        for branch in one.branches:
            name, made = self.branch(branch)
            names.append(name)
            lines += made
        if isinstance(one, l.Race):
            kind = "recorded race" if one.recorded else "race"
        else:
            kind = "recorded wait" if one.kind == "recorded" else one.kind
        shape = TOGETHER[kind].replace("CALLS", ", ".join(f"{name}()" for name in names))
        return [*lines, *shape.replace("VAR", one.var).strip().splitlines()]

    def inner(self, block: l.Block, empty: Iterable[str] = ("pass",)) -> list[str]:
        return list(_indented(self.block(block) or empty))


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (f"    {line}" if line else "" for line in lines)
