"""Local variables that a resumed run would lose are named when the agent function first runs."""

from __future__ import annotations

import ast
import asyncio
import functools
import logging
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recovery import CheckpointStore, RecoverableAgent, tool
from recovery._agent_source import locals_lost_by
from recovery._locals import lost_locals
from recovery.stores.memory import MemoryStore
from recovery.testing import crash_everywhere

ROOT = Path(__file__).parents[2]

# What is before the loop, what is in it, what is behind it, and which names are lost.
LOST = {
    "a list as in every SDK's example": (
        "messages = [{'role': 'user', 'content': run.task}]",
        "messages.append(await run.call(ask, messages))", "", "messages"),
    "a counter": ("turns = 0", "turns += 1\nif turns > 9: return turns", "", "turns"),
    "a total that is returned behind the loop": (
        "total = 0", "total += await run.call(price)\nif step == 3: break", "return total",
        "total"),
    "a best one so far": (
        "best, score = None, 0",
        "found = await run.call(ask)\nif found > score:\n    best, score = found, found", "",
        "score"),
    "a value that is made of itself": (
        "text = ''", "text = text + await run.call(ask)", "", "text"),
    "a dict by assignment of items": (
        "seen = {}", "if step not in seen:\n    seen[step] = await run.call(ask)", "", "seen"),
    "a set that is given": ("done: set[str] = set()", "done.add(step)\nreport(done)", "", "done"),
    "a work list that is used up": (
        "queue = deque(['a', 'b'])", "if not queue: return\nitem = queue.popleft()", "", "queue"),
    "an item that is deleted": (
        "open_ = dict.fromkeys('ab') or {}", "del open_['a']\nawait run.call(ask, open_)", "",
        "open_"),
    "a counter that is saved, and not taken from there": (
        "n = 0", "n += 1\nrun.state['n'] = n", "", "n"),
    "a total that is taken from the state, and never saved": (
        "total = run.state.get('total', 0)", "total += step\nawait run.call(ask, total)", "",
        "total"),
    "what a helper changes by nonlocal": (
        "count = 0\nasync def work():\n    nonlocal count\n    count += 1",
        "await work()\nprint(count)", "", "count"),
    "what a helper appends": (
        "log = []\ndef note(text):\n    log.append(text)", "note(step)\nawait run.call(ask, log)",
        "", "log"),
    "what a tool appends": (
        "sent = []\n@tool\nasync def send(x):\n    sent.append(x)",
        "await run.call(send, 1)\nif step == 2: return sent", "", "sent"),
    "a list in another one's place": (
        "history = []\nalias = history", "alias.append(1)\nprint(alias)", "", "alias"),
    "an attribute that is made here": (
        "self.notes = []", "self.notes.append(step)\nprint(self.notes)", "", "self.notes"),
    "a flag": ("first = True", "if first:\n    await run.call(greet)\nfirst = False", "", "first"),
    "a plan that is made when it is needed": (
        "plan = None", "if plan is None:\n    plan = await run.call(ask)\nprint(plan)", "", "plan"),
    "a list with a loop inside": (
        "found = []", "for x in range(3):\n    found.append(x)\nif len(found) > 5: return found",
        "", "found"),
    "what only one way of two sets": (
        "reply = None", "if step > 1:\n    reply = await run.call(ask)\nprint(reply)", "", "reply"),
    "the loop's iterator has a name": (
        "n = 0\nsteps = run.steps()", "n += 1\nprint(n)", "", "n"),
}  # fmt: skip
KEPT = {
    "what is in the state is changed in place": (
        "done = run.state.setdefault('done', [])", "done.append(step)\nprint(done)", ""),
    "a value in the state": ("state = run.state", "state['n'] = 1\nprint(state)", ""),
    "taken from the state and saved": (
        "total = run.state.get('total', 0)", "total += step\nrun.state['total'] = total", ""),
    "a set of what is done, saved as a list": (
        "done = set(run.state.get('done', []))",
        "if step in done: continue\ndone.add(step)\nrun.state['done'] = sorted(done)", ""),
    "saved by a helper": (
        "n = run.state.get('n', 0)", "n += 1\nsave(run, n)", ""),
    "what is left, by what the state says": (
        "done = run.state.setdefault('done', [])\nleft = [x for x in 'abc' if x not in done]",
        "if not left: return\ndone.append(left.pop(0))", ""),
    "a copy of the messages that goes along": (
        "history = list(run.messages)",
        "reply = await run.call(ask, history)\nhistory.append(reply)\nrun.messages.append(reply)",
        ""),
    "a value of each turn": (
        "reply = None", "reply = await run.call(ask)\nif reply: break", "return reply"),
    "a value of each turn, by two ways": (
        "x = 0", "if step > 1:\n    x = 1\nelse:\n    x = 2\nprint(x)", ""),
    "a value of each turn, by a loop without an end": (
        "x = None", "while True:\n    x = await run.call(ask)\n    if x: break\nprint(x)", ""),
    "a list of each turn": ("found = []", "found = []\nfound.append(step)\nprint(found)", ""),
    "a list that is cleared in each turn": (
        "found = []", "found.clear()\nfound.append(step)\nprint(found)", ""),
    "a count that nobody looks at": ("n = 0\nlog = []", "n += 1\nlog.append(step)", ""),
    "a client and its methods": (
        "client = Client()\nqueue = asyncio.Queue()",
        "client.add(step)\nclient.update(x=1)\nawait queue.put(step)\nprint(client)", ""),
    "a connection that is made again": (
        "db = connect()", "if db.closed:\n    db = connect()\nawait run.call(ask, db)", ""),
    "a connection that is made when it is needed": (
        "db = None", "if db is None:\n    db = await connect()\nawait db.get(1)", ""),
    "what does not change": ("tools = [ask]\nn0 = len(run.messages)", "print(tools, n0)", ""),
    "a loop inside has its own": (
        "i = 0", "for i in range(3):\n    print(i)\n[i for i in range(3)]", ""),
    "a helper's own": (
        "x = []\ndef work():\n    x = []\n    x.append(1)\n    return x", "print(work())", ""),
    "what the run itself gives": ("", "text = ''\ntext += 'x'\nprint(text)", ""),
    "an exception's name": (
        "error = None", "try:\n    x = await run.call(ask)\nexcept Exception as e:\n    print(e)",
        ""),
}  # fmt: skip


def program(before: str, inside: str, after: str, plain: bool = False) -> str:
    lines = ["async def agent(self, run):", *textwrap.indent(before, "    ").splitlines()]
    lines.append("    async for step in run.steps():")
    lines += textwrap.indent(inside, "        ").splitlines()
    lines += textwrap.indent(after, "    ").splitlines()
    text = "\n".join(lines)
    return re.sub(r"\b(async|await) ", "", text) if plain else text


def names_in(source: str, run: str = "run") -> list[str]:
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    return [lost.name for lost in lost_locals(function, run)]


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
@pytest.mark.parametrize(
    ("before", "inside", "after", "names"),
    [pytest.param(*one, id=name) for name, one in LOST.items()],
)
def test_what_is_lost_is_named(
    before: str, inside: str, after: str, names: str, plain: bool
) -> None:
    assert set(names_in(program(before, inside, after, plain))) >= {names}
    renamed = program(before, inside, after, plain).replace("run", "ctx")
    assert set(names_in(renamed, "ctx")) >= {names}


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
@pytest.mark.parametrize(
    ("before", "inside", "after"), [pytest.param(*one, id=name) for name, one in KEPT.items()]
)
def test_there_is_no_false_alarm(before: str, inside: str, after: str, plain: bool) -> None:
    assert names_in(program(before, inside, after, plain)) == []


def test_no_example_and_no_page_is_warned_of() -> None:
    """But for the program that shows what is lost."""
    texts = {path: path.read_text() for path in sorted((ROOT / "examples").glob("*.py"))}
    blocks = re.compile(r"```python\n(.*?)```", re.S)
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        texts |= {page.with_suffix(f".{i}"): block
                  for i, block in enumerate(blocks.findall(page.read_text()))}  # fmt: skip
    found = []
    for path, text in texts.items():
        try:
            tree = ast.parse(text)
        except SyntaxError:  # a part of a program
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.args.args:
                lost = lost_locals(node, node.args.args[0].arg)
                found += [(path.stem, one.name) for one in lost]
    assert found == [("code-and-record", "messages")]


# -- in a run


@tool(after_crash="retry")
def ask(messages: list[Any]) -> str:
    return f"answer {len(messages)}"


async def chat(run: Any) -> Any:
    messages = ["system"]
    async for step in run.steps():
        messages.append(await run.call(ask, messages))
        if step == 5:
            return messages


async def helped(task: str, run: Any) -> Any:
    return await chat(run)


async def passes_on(run: Any) -> Any:
    return await helped("x", run)


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return await function(*args, **kwargs)

    return wrapper


class Chat:
    async def run(self, run: Any) -> Any:
        return await self.talk(run)

    async def talk(self, run: Any) -> Any:
        messages: list[Any] = []
        async for _ in run.steps():
            messages.append(await run.call(ask, messages))

    async def __call__(self, run: Any) -> Any:
        return await self.talk(run)


@pytest.mark.parametrize(
    "agent",
    [
        chat, passes_on, logged(chat), functools.wraps(chat)(logged(chat)), functools.partial(chat),
        Chat().run, Chat(), logged(Chat().run), functools.partial(helped, "x"),
    ],
    ids=["plain", "passes the run on", "decorated", "wraps", "partial", "method", "object",
         "decorated method", "partial with more"],
)  # fmt: skip
def test_the_function_with_the_loop_is_found(agent: Any) -> None:
    lost = locals_lost_by(agent)
    assert lost is not None
    assert [one.name for one in lost.found] == ["messages"]


def test_without_source_nothing_is_said() -> None:
    space: dict[str, Any] = {}
    exec(program("n = 0", "n += 1\nprint(n)", "").replace("self, ", ""), space)  # noqa: S102
    for agent in (space["agent"], lambda run: run, print, functools.partial(print)):
        assert locals_lost_by(agent) is None


def lives(agent: Any, caplog: pytest.LogCaptureFixture, **options: Any) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING, "recovery"):
        for i in range(3):
            store = CheckpointStore(MemoryStore())
            run = RecoverableAgent(agent, store, **options).run_with_recovery("task", f"run-{i}")
            asyncio.run(run)
    return [record.getMessage() for record in caplog.records]


def test_it_is_said_once_and_with_the_ways_out(caplog: pytest.LogCaptureFixture) -> None:
    async def agent(run: Any) -> Any:
        total = 0
        async for step in run.steps():
            total += step
            if step == 4:
                return total

    assert lives(agent, caplog, check_locals=False) == []
    assert lives(agent, caplog, checkpoint_every_n=None) == []
    (said,) = lives(agent, caplog)
    first = agent.__code__.co_firstlineno
    assert f"agent {agent.__qualname__} (test_locals.py:{first})" in said
    assert f"'total' (made in line {first + 1}, changed in line {first + 3})" in said
    for word in ("run.state", "checkpoint_every_n=None", "check_locals=False"):
        assert word in said
    assert lives(agent, caplog) == []  # it was said


# -- without checkpoints


def plain_chat(run: Any) -> Any:
    messages, seen = ["system"], dict[int, str]()
    for step in run.steps():
        seen[step] = run.call(ask, messages)
        messages.append(seen[step])
        run.state["n"] = run.state.get("n", 0) + 1
        if step == 5:
            return [messages, seen, run.state["n"]]


@pytest.mark.parametrize("agent", [chat, plain_chat], ids=["async", "plain"])
def test_without_checkpoints_nothing_is_lost(agent: Any) -> None:
    report = crash_everywhere(lambda: RecoverableAgent(agent, CheckpointStore(), None), "task")
    assert report.ok, str(report)
    assert not report.notes


def test_retention_without_checkpoints_is_refused() -> None:
    pruned = CheckpointStore(MemoryStore(), retention="latest_only")
    with pytest.raises(ValueError, match="retention"):
        RecoverableAgent(chat, pruned, None)
    agent = RecoverableAgent(chat, pruned)
    with pytest.raises(ValueError, match="retention"):
        agent.checkpoint_every_n = None
    with pytest.raises(ValueError, match="checkpoint_every_bytes"):
        RecoverableAgent(chat, CheckpointStore(MemoryStore()), None, checkpoint_every_bytes=1)


def test_the_report_of_a_crash_test_names_them() -> None:
    """Even where the run is too short for a checkpoint, so that nothing differs."""
    report = crash_everywhere(lambda: RecoverableAgent(chat, CheckpointStore(), 100), "task")
    assert report.ok
    assert any("'messages'" in note for note in report.notes), str(report)
    report = crash_everywhere(lambda: RecoverableAgent(chat, CheckpointStore(), 2), "task")
    assert not report.ok
    assert "'messages'" in str(report)
