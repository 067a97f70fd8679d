"""Local variables that a resumed run would lose are named when the agent function first runs."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import csv
import functools
import gc
import heapq
import inspect
import io
import itertools
import logging
import queue
import random
import re
import textwrap
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from recovery import CheckpointStore, RecoverableAgent, tool
from recovery.agent_code.agent_source import locals_lost_by
from recovery.agent_code.lost_locals import lost_locals
from recovery.agent_code.parsed_source import parsed_source
from recovery.stores.memory import MemoryStore
from recovery.testing import crash_everywhere

ROOT = Path(__file__).parents[3]

# What is before the loop, what is in it, what is behind it, and which names are lost.
LOST = {
    "a list as in every SDK's example": (
        "messages = [{'role': 'user', 'content': run.task}]",
        "messages.append(await run.call(ask, messages))",
        "",
        "messages",
    ),
    "a counter": ("turns = 0", "turns += 1\nif turns > 9: return turns", "", "turns"),
    "a total that is returned behind the loop": (
        "total = 0",
        "total += await run.call(price)\nif step == 3: break",
        "return total",
        "total",
    ),
    "a best one so far": (
        "best, score = None, 0",
        "found = await run.call(ask)\nif found > score:\n    best, score = found, found",
        "",
        "score",
    ),
    "a value that is made of itself": (
        "text = ''",
        "text = text + await run.call(ask)",
        "",
        "text",
    ),
    "a dict by assignment of items": (
        "seen = {}",
        "if step not in seen:\n    seen[step] = await run.call(ask)",
        "",
        "seen",
    ),
    "a set that is given": ("done: set[str] = set()", "done.add(step)\nreport(done)", "", "done"),
    "a work list that is used up": (
        "queue = deque(['a', 'b'])",
        "if not queue: return\nitem = queue.popleft()",
        "",
        "queue",
    ),
    "an item that is deleted": (
        "open_ = dict.fromkeys('ab') or {}",
        "del open_['a']\nawait run.call(ask, open_)",
        "",
        "open_",
    ),
    "a counter that is saved, and not taken from there": (
        "n = 0",
        "n += 1\nrun.state['n'] = n",
        "",
        "n",
    ),
    "a total that is taken from the state, and never saved": (
        "total = run.state.get('total', 0)",
        "total += step\nawait run.call(ask, total)",
        "",
        "total",
    ),
    "a list that is put into the state, and not taken from there": (
        "done = []\nrun.state['done'] = done",
        "done.append(step)",
        "return run.state['done']",
        "done",
    ),
    "a dict that is put into the state where it is made": (
        "seen = run.state['seen'] = {}",
        "seen[step] = await run.call(ask)",
        "",
        "seen",
    ),
    "a list that is a default of the state": (
        "done = []\nstate = run.state\nstate.setdefault('done', done)",
        "done.append(step)",
        "",
        "done",
    ),
    "a list in a dict that is put into the state": (
        "done = []\nrun.state.update(all={'done': done})",
        "done += [step]",
        "",
        "done",
    ),
    "an attribute of an object that is put into the state": (
        "cart = Cart()\nrun.state['cart'] = cart",
        "cart.total += step",
        "",
        "cart.total",
    ),
    "a copy of what the state has, never saved": (
        "seen = set(run.state.get('seen', []))",
        "if step in seen: return\nseen.add(await run.call(ask, step))",
        "",
        "seen",
    ),
    "what a helper changes by nonlocal": (
        "count = 0\nasync def work():\n    nonlocal count\n    count += 1",
        "await work()\nprint(count)",
        "",
        "count",
    ),
    "what a helper appends": (
        "log = []\ndef note(text):\n    log.append(text)",
        "note(step)\nawait run.call(ask, log)",
        "",
        "log",
    ),
    "what a tool appends": (
        "sent = []\n@tool\nasync def send(x):\n    sent.append(x)",
        "await run.call(send, 1)\nif step == 2: return sent",
        "",
        "sent",
    ),
    "a list in another one's place": (
        "history = []\nalias = history",
        "alias.append(1)\nprint(alias)",
        "",
        "alias",
    ),
    "an attribute that is made here": (
        "self.notes = []",
        "self.notes.append(step)\nprint(self.notes)",
        "",
        "self.notes",
    ),
    "a flag": ("first = True", "if first:\n    await run.call(greet)\nfirst = False", "", "first"),
    "a plan that is made when it is needed": (
        "plan = None",
        "if plan is None:\n    plan = await run.call(ask)\nprint(plan)",
        "",
        "plan",
    ),
    "a list with a loop inside": (
        "found = []",
        "for x in range(3):\n    found.append(x)\nif len(found) > 5: return found",
        "",
        "found",
    ),
    "what only one way of two sets": (
        "reply = None",
        "if step > 1:\n    reply = await run.call(ask)\nprint(reply)",
        "",
        "reply",
    ),
    "the loop's iterator has a name": ("n = 0\nsteps = run.steps()", "n += 1\nprint(n)", "", "n"),
    "the steps are taken one by one": (
        "n = 0\nit = aiter(run.steps())",
        "",
        "while True:\n    step = await anext(it)\n    n += 1\n    if n > 3: return n",
        "n",
    ),
    "what is gone through beside the steps": (
        "",
        "",
        "for item, step in zip(run.task, run.steps()): await run.call(ask, item)",
        "zip(run.task, run.steps())",
    ),
    "the steps, counted": (
        "",
        "",
        "for i, step in enumerate(run.steps()): await run.call(ask, i)",
        "enumerate(run.steps())",
    ),
}
KEPT = {
    "what is in the state is changed in place": (
        "done = run.state.setdefault('done', [])",
        "done.append(step)\nprint(done)",
        "",
    ),
    "a value in the state": ("state = run.state", "state['n'] = 1\nprint(state)", ""),
    "taken from the state and saved": (
        "total = run.state.get('total', 0)",
        "total += step\nrun.state['total'] = total",
        "",
    ),
    "a set of what is done, saved as a list": (
        "done = set(run.state.get('done', []))",
        "if step in done: continue\ndone.add(step)\nrun.state['done'] = sorted(done)",
        "",
    ),
    "saved by a helper": ("n = run.state.get('n', 0)", "n += 1\nsave(run, n)", ""),
    "what is left, by what the state says": (
        "done = run.state.setdefault('done', [])\nleft = [x for x in 'abc' if x not in done]",
        "if not left: return\ndone.append(left.pop(0))",
        "",
    ),
    "a copy of the messages that goes along": (
        "history = list(run.messages)",
        "reply = await run.call(ask, history)\nhistory.append(reply)\nrun.messages.append(reply)",
        "",
    ),
    "a value of each turn": (
        "reply = None",
        "reply = await run.call(ask)\nif reply: break",
        "return reply",
    ),
    "a value of each turn, by two ways": (
        "x = 0",
        "if step > 1:\n    x = 1\nelse:\n    x = 2\nprint(x)",
        "",
    ),
    "a value of each turn, by a loop without an end": (
        "x = None",
        "while True:\n    x = await run.call(ask)\n    if x: break\nprint(x)",
        "",
    ),
    "a list of each turn": ("found = []", "found = []\nfound.append(step)\nprint(found)", ""),
    "a list that is cleared in each turn": (
        "found = []",
        "found.clear()\nfound.append(step)\nprint(found)",
        "",
    ),
    "a count that nobody looks at": ("n = 0\nlog = []", "n += 1\nlog.append(step)", ""),
    "a client and its methods": (
        "client = Client()\nqueue = asyncio.Queue()",
        "client.add(step)\nclient.update(x=1)\nawait queue.put(step)\nprint(client)",
        "",
    ),
    "a connection that is made again": (
        "db = connect()",
        "if db.closed:\n    db = connect()\nawait run.call(ask, db)",
        "",
    ),
    "a connection that is made when it is needed": (
        "db = None",
        "if db is None:\n    db = await connect()\nawait db.get(1)",
        "",
    ),
    "what is put into the state, and taken from there": (
        "run.state['done'] = []\ndone = run.state['done']\nlog = run.state.setdefault('log', [])",
        "done.append(step)\nlog.append(done)",
        "",
    ),
    "what is put into the state if it is not there": (
        "done = run.state.get('done')\nif not done:\n    done = []\n    run.state['done'] = done",
        "done.append(step)",
        "",
    ),
    "what is put into the state and does not change": (
        "plan = [1]\nlast = {}\nrun.state.update(plan=plan, last=last, n=len(plan))",
        "last = await run.call(ask, plan)",
        "",
    ),
    "a copy of what the state has, where the loop changes both": (
        "seen = set(run.state.get('seen', []))",
        "if step in seen: return\nseen.add(step)\nrun.state.setdefault('seen', []).append(step)",
        "",
    ),
    "a copy of what a variable changes in the state": (
        "done = run.state.setdefault('done', [])\nseen = set(run.state['done'])",
        "if step in seen: return\nseen.add(step)\ndone.append(step)",
        "",
    ),
    "a copy that a helper may save": (
        "seen = set(run.state.get('seen', []))",
        "if step in seen: return\nseen.add(step)\nsave(run.state, step)",
        "",
    ),
    "a copy of what the state has": (
        "done = []\nrun.state['done'] = list(done)",
        "done = run.state['done']\ndone.append(step)",
        "",
    ),
    "what the run has": (
        "if not run.state: run.state = {'n': 0}\nif not run.messages: run.messages = [1]",
        "run.state['n'] += step\nrun.messages.append(step)\nprint(run.state, run.messages)",
        "return run.messages",
    ),
    "an attribute of an object from the state": (
        "cart = run.state.setdefault('cart', Cart())\ncart.total = 1",
        "cart.total += step\nprint(cart.total)",
        "",
    ),
    "what does not change": ("tools = [ask]\nn0 = len(run.messages)", "print(tools, n0)", ""),
    "a loop inside has its own": (
        "i = 0",
        "for i in range(3):\n    print(i)\n[i for i in range(3)]",
        "",
    ),
    "a helper's own": (
        "x = []\ndef work():\n    x = []\n    x.append(1)\n    return x",
        "print(work())",
        "",
    ),
    "what the run itself gives": ("", "text = ''\ntext += 'x'\nprint(text)", ""),
    "what is left, beside the steps": (
        "",
        "",
        "left = [x for x in run.task if x not in run.state]\n"
        "for x, step in zip(left, run.steps()): run.state[x] = await run.call(ask, x)",
    ),
    "an exception's name": (
        "error = None",
        "try:\n    x = await run.call(ask)\nexcept Exception as e:\n    print(e)",
        "",
    ),
}


def program(before: str, inside: str, after: str, plain: bool = False) -> str:
    lines = ["async def agent(self, run):", *textwrap.indent(before, "    ").splitlines()]
    if inside:
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
    assert set(names_in(renamed, "ctx")) >= {names.replace("run", "ctx")}


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
        texts |= {
            page.with_suffix(f".{i}"): block
            for i, block in enumerate(blocks.findall(page.read_text()))
        }
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
        chat,
        passes_on,
        logged(chat),
        functools.wraps(chat)(logged(chat)),
        functools.partial(chat),
        Chat().run,
        Chat(),
        logged(Chat().run),
        functools.partial(helped, "x"),
    ],
    ids=[
        "plain",
        "passes the run on",
        "decorated",
        "wraps",
        "partial",
        "method",
        "object",
        "decorated method",
        "partial with more",
    ],
)
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


# -- what the source does not show: seen when the first checkpoint is taken


crashes: list[int] = []
paid: list[Any] = []


def end(step: int) -> None:
    if step in crashes:
        crashes.remove(step)
        raise ConnectionError


@tool
def pay(order: Any) -> None:
    paid.append(order)


def used_up(run: Any, order: Any, step: int) -> bool:
    if order is not None and step < 5:
        end(step)
        pay(order)
        return False
    return True


def an_iterator(run: Any) -> None:
    orders = iter(run.task)
    for step in run.steps():
        if used_up(run, next(orders, None), step):
            return


def a_generator(run: Any) -> None:
    orders = (one for one in enumerate(run.task))
    next(orders)
    for step in run.steps():
        if used_up(run, next(orders, None), step):
            return


def an_endless_count(run: Any) -> None:
    orders = itertools.count(1)
    for step in run.steps():
        if used_up(run, next(orders), step):
            return


def a_chain(run: Any) -> None:
    orders = itertools.chain(zip(run.task, "ab", strict=False), enumerate("cd"))
    for step in run.steps():
        if used_up(run, next(orders, None), step):
            return


def a_heap(run: Any) -> None:
    orders = list(run.task)
    heapq.heapify(orders)
    for step in run.steps():
        if used_up(run, heapq.heappop(orders) if orders else None, step):
            return


def a_queue(run: Any) -> None:
    orders: queue.Queue[Any] = queue.Queue()
    for one in run.task:
        orders.put(one)
    for step in run.steps():
        if used_up(run, None if orders.empty() else orders.get(), step):
            return


def a_random_generator(run: Any) -> None:
    orders = random.Random(1)
    for step in run.steps():
        if used_up(run, orders.randint(1, 1 << 30), step):
            return


def a_file(run: Any) -> None:
    orders = csv.reader(io.StringIO("1\n2\n3\n4\n"))
    for step in run.steps():
        if used_up(run, next(orders, None), step):
            return


@dataclass(slots=True)
class Cart:
    count: int = 0
    items: list[int] = field(default_factory=list)

    def add(self) -> int:
        self.items.append(0)
        return len(self.items)


def an_attribute(run: Any) -> None:
    orders = Cart()
    for step in run.steps():
        orders.count += 1
        if used_up(run, orders.count, step):
            return


def a_list_in_an_object(run: Any) -> None:
    orders = Cart()
    for step in run.steps():
        if used_up(run, orders.add(), step):
            return


def a_list_inside_a_list(run: Any) -> None:
    orders: list[list[int]] = [[] for _ in "ab"]
    for step in run.steps():
        fill(orders[0])
        if used_up(run, len(orders[0]), step):
            return


def a_list_that_a_helper_fills(run: Any) -> None:
    orders: list[int] = []
    for step in run.steps():
        fill(orders)
        if used_up(run, len(orders), step):
            return


def a_heap_in_the_state(run: Any) -> None:
    orders = run.state["orders"] = list(run.task)
    for step in run.steps():
        if used_up(run, heapq.heappop(orders) if orders else None, step):
            return


def what_a_helper_is_given(run: Any) -> None:
    def work(orders: list[Any]) -> None:
        for step in run.steps():
            if used_up(run, orders.pop() if orders else None, step):
                return

    work(list(run.task))


class Shop:
    def __init__(self) -> None:
        self.orders = 0

    def __call__(self, run: Any) -> None:
        for step in run.steps():
            self.orders += 1
            if used_up(run, self.orders, step):
                return


def fill(some: list[int]) -> None:
    some.append(0)


SEEN = [
    an_iterator,
    a_generator,
    an_endless_count,
    a_chain,
    a_heap,
    a_queue,
    a_random_generator,
    a_file,
    an_attribute,
    a_list_in_an_object,
    a_list_inside_a_list,
    a_list_that_a_helper_fills,
    a_heap_in_the_state,
    what_a_helper_is_given,
    Shop,
]


def life(make: Callable[[], Any], *steps: int, every: int = 1) -> list[Any]:
    """What an agent pays in a run that crashes in these steps."""
    paid.clear()
    crashes[:] = steps
    store, task = CheckpointStore(MemoryStore()), [10, 20, 30, 40]
    while True:  # each life in a process of its own, as far as the agent is concerned
        agent = RecoverableAgent(make(), store, every, max_recoveries=0)
        try:
            agent.run_with_recovery_sync(task, "run")
        except ConnectionError:
            continue
        return list(paid)


@pytest.mark.parametrize("agent", SEEN, ids=lambda one: one.__name__)
def test_what_is_changed_in_place_is_named_at_the_first_checkpoint(
    agent: Any, caplog: pytest.LogCaptureFixture
) -> None:
    make = agent if agent is Shop else lambda: agent
    with caplog.at_level(logging.WARNING, "recovery"):
        whole = life(make)
        assert life(make, 3) != whole  # it is lost indeed
    said = [one.getMessage() for one in caplog.records if " would lose " in one.message]
    assert len(said) == 1, said
    name = {
        "an_attribute": "orders.count",
        "a_list_in_an_object": "orders.items",
        "Shop": "self.orders",
    }.get(agent.__name__, "orders")
    assert f"local variable {name!r} (made before the loop of line" in said[0]
    line = int(said[0].partition("of line ")[2].partition(",")[0])
    assert "for step in run.steps()" in Path(__file__).read_text().splitlines()[line - 1]
    for word in ("run.state", "checkpoint_every_n=None", "check_locals=False"):
        assert word in said[0]


class Strict:
    """An object of the user's whose methods are not to be called."""

    def __init__(self) -> None:
        self.connection: Any = None
        self.name = "strict"

    def refuse(self, *args: Any) -> Any:
        raise AssertionError("code of the user was run")

    __eq__ = __len__ = __iter__ = __repr__ = __reduce__ = __hash__ = __bool__ = refuse
    __getattr__ = refuse

    @functools.cached_property
    def answer(self) -> int:
        return 42


class Saved:
    def __init__(self, done: list[Any]) -> None:
        self.done = done


def fresh(some: list[Any]) -> None:
    some[0] = object()


def careful(run: Any) -> Any:
    done = Saved(run.state.setdefault("done", []))
    alias = run.state.setdefault("deep", {"list": []})["list"]
    known, strict, rows = [object()], Strict(), iter(run.task)
    first, note, scratch = list(rows), list[Any](), list[Any]()
    logger, lock, cache = logging.getLogger("shop"), threading.Lock(), functools.cache(len)
    for step in run.steps():
        fill(done.done)
        fill(alias)
        strict.connection = strict.connection or object()
        fresh(known)
        note.append(step)
        scratch.clear()
        fill(scratch)
        with lock:
            logger.debug("%s %s", cache("text"), strict.answer)
        if step == 4:
            return [len(first), next(rows, 0), bool(known), scratch, len(done.done), len(alias)]


def careful_by_helpers(run: Any) -> Any:
    def work(kept: list[int], again: set[int]) -> Any:
        seen, stats = set(run.state.get("seen", [])), Cart()
        for step in run.steps():
            fill(kept)
            mark(again, step)
            mark(seen, step)
            stats.count += 1
            run.state["seen"], run.state["again"] = sorted(seen), sorted(again)
            if step == 4:
                return [len(kept), len(seen), len(again), stats.items]

    return work(run.state.setdefault("kept", []), set(run.state.get("again", [])))


def mark(some: set[int], step: int) -> None:
    some.add(step)


def said_by_source(run: Any) -> Any:
    orders: list[int] = []
    for step in run.steps():
        orders.append(step)
        if len(orders) == 4:
            return orders


def test_what_the_source_shows_is_not_named_again(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "recovery"):
        agent = RecoverableAgent(said_by_source, CheckpointStore(MemoryStore()), 1)
        agent.run_with_recovery_sync("task", "run")
    (said,) = [one.getMessage() for one in caplog.records]
    assert "'orders' (made in line" in said


def test_what_is_kept_or_not_looked_at_is_not_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "recovery"):
        agent = RecoverableAgent(careful, CheckpointStore(MemoryStore()), 1)
        found = agent.run_with_recovery_sync([10, 20], "run")["result"]
    assert found == [2, 0, True, [0], 4, 4]
    with caplog.at_level(logging.WARNING, "recovery"):
        agent = RecoverableAgent(careful_by_helpers, CheckpointStore(MemoryStore()), 1)
        assert agent.run_with_recovery_sync("t", "run")["result"] == [4, 4, 4, []]
    assert not caplog.records
    for options in ({"check_locals": False}, {"checkpoint_every_n": None}):

        def unseen(run: Any) -> Any:
            orders = iter(range(9))
            return next(step for step in run.steps() if next(orders) > 4)

        agent = RecoverableAgent(unseen, CheckpointStore(MemoryStore()), **options)
        assert agent.run_with_recovery_sync("task", "run")["result"] == 6
        assert not caplog.records


def test_nothing_is_kept_alive_for_it() -> None:
    class Large(list[int]):
        pass

    runs, freed = [], []

    def agent(run: Any) -> None:
        large = Large()
        seen = weakref.ref(large)
        runs.append(weakref.ref(run))
        for step in run.steps():
            if step == 1:
                del large
            if step == 4:
                freed.append(seen() is None)
                return

    gc.collect()
    gc.disable()
    try:
        for every in (2, 9):  # with a checkpoint, and without
            store = CheckpointStore(MemoryStore())
            RecoverableAgent(agent, store, every).run_with_recovery_sync("task", "run")
    finally:
        gc.enable()
    assert freed == [True, False]


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
    report = crash_everywhere(
        lambda: RecoverableAgent(agent, CheckpointStore(), None), "task", points=40
    )
    assert report.ok, str(report)
    assert not report.notes


def totals(run: Any) -> Any:
    total = run.state.setdefault("first", 0)
    run.messages.append("system")
    for step in run.steps():
        pay(total)
        total += step
        run.messages.append(total)
        run.state["last"] = total
        end(step)
        if step == 6:
            return [total, list(run.messages), run.state["last"]]


def ended(store: CheckpointStore, *every: int | None) -> Any:
    """The result of a run after lives with these settings, and what was paid."""
    paid.clear()
    for one in every:
        agent = RecoverableAgent(totals, store, one, max_recoveries=0)
        with contextlib.suppress(ConnectionError):
            return agent.run_with_recovery_sync("task", "run")["result"], [*paid]
    raise AssertionError


@pytest.mark.parametrize("dies", range(1, 7))
@pytest.mark.parametrize("every", [[1, None], [2, None], [None, 1, None], [1, None, None]])
def test_a_run_with_checkpoints_is_replayed_from_its_first_line(
    dies: int, every: list[int | None]
) -> None:
    crashes[:] = []
    whole = ended(CheckpointStore(MemoryStore()), None)
    crashes[:] = [min(dies + at, 6) for at in range(len(every) - 1)]
    assert ended(CheckpointStore(MemoryStore()), *every) == whole


def test_a_run_that_cannot_be_replayed_from_its_first_line_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = CheckpointStore(MemoryStore())
    crashes[:] = [5]
    agent = RecoverableAgent(totals, store, 1, max_recoveries=0)
    with pytest.raises(ConnectionError):
        agent.run_with_recovery_sync("task", "run")
    fork = store.run("run").fork("fork", at_step=4, state={"first": 100})
    with caplog.at_level(logging.WARNING, "recovery"):
        result = RecoverableAgent(totals, store, None).run_with_recovery_sync("task", fork.run_id)
    assert result["recovered_from_step"] == 4 and result["result"][0] == 111
    (said,) = [one for one in caplog.messages if "checkpoint_every_n is None" in one]
    assert "run fork: " in said and "the checkpoint of step 4" in said


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

    def sweep(every: int) -> Any:
        def made() -> Any:
            return RecoverableAgent(chat, CheckpointStore(), every)

        return crash_everywhere(made, "task", points=40)

    report = sweep(100)
    assert report.ok
    assert any("'messages'" in note for note in report.notes), str(report)
    report = sweep(2)
    assert not report.ok
    assert "'messages'" in str(report)


def test_an_agent_runs_where_python_fails_to_parse_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def agent(run: Any) -> str:
        return "done"

    def fails(source: Any, *rest: Any, **named: Any) -> Any:
        if rest or named:  # pytest's own
            return parse(source, *rest, **named)
        parsed.append(source)
        raise SystemError("AST constructor recursion depth mismatch (before=180, after=231)")

    parsed: list[str] = []
    parse = ast.parse
    with monkeypatch.context() as patched:
        patched.setattr("ast.parse", fails)
        found = RecoverableAgent(agent, CheckpointStore()).run_with_recovery_sync("task", "run")
    assert found["result"] == "done"
    assert parsed


def test_an_agent_runs_whose_file_was_edited_since(tmp_path: Path) -> None:
    file = tmp_path / "agent_of_now.py"
    names: dict[str, Any] = {"__name__": "agent_of_now"}
    exec(compile("async def agent(run):\n    return 'done'\n", str(file), "exec"), names)  # noqa: S102 - our own code
    file.write_text('async def agent(\n    run="""\n')  # and not finished
    made = RecoverableAgent(names["agent"], CheckpointStore(MemoryStore()))
    assert asyncio.run(made.run_with_recovery(None, "run"))["result"] == "done"


def test_a_source_is_found_without_a_look_at_all_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """That takes a tenth of a second where a framework is loaded, in each process of each run."""
    looked: list[Any] = []
    monkeypatch.setattr(inspect, "getabsfile", looked.append)
    parsed_source.cache_clear()
    function = test_a_source_is_found_without_a_look_at_all_modules
    tree = parsed_source(function.__code__, __name__)
    assert tree is not None and tree.body[0].lineno == function.__code__.co_firstlineno
    assert not looked
