# ruff: noqa: SIM115, PTH123, PLW0108 - a table, one mistake a line
"""Mistakes that strangers make, and what each of them is told, where it is made.

None is silent, and none is told in the words of the implementation. Each line has the parts of the
message that a reader needs: what it is about, and what to write.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import re
import signal as signals
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import eventlog
import recovery as typed
import recovery.graph as typed_graphs
from recovery.stores.file import FileStore as TypedFileStore
from recovery.stores.memory import MemoryStore
from tests.cli.harness import call

# Type checkers find most of these mistakes. Here they are made by people who use none.
recovery: Any = typed
EventLog: Any = eventlog.EventLog
FileStore: Any = TypedFileStore
Budget, CheckpointConfig, CheckpointStore = (
    recovery.Budget,
    recovery.CheckpointConfig,
    recovery.CheckpointStore,
)
RecoverableAgent, Resolution, Retry, tool = (
    recovery.RecoverableAgent,
    recovery.Resolution,
    recovery.Retry,
    recovery.tool,
)

CheckpointManager = recovery.CheckpointManager
graphs: Any = typed_graphs
Graph, GraphExecutor, FlexibleGraphExecutor, PlanStep = (
    graphs.Graph,
    graphs.GraphExecutor,
    graphs.FlexibleGraphExecutor,
    graphs.PlanStep,
)

Store = Any

# How the library is made is nothing that a message may speak of.
IMPLEMENTATION = re.compile(
    r"__\w+__|ToolSpec|Settings|_Steps|NoneType|has no attribute|unexpected keyword|positional "
    r"argument|not supported between|unpack|coroutine object|cannot be interpreted|not iterable"
)


def plain(run: Any) -> str:
    for _ in run.steps():
        break
    return "done"


async def asynchronous(run: Any) -> str:
    async for _ in run.steps():
        break
    return "done"


def search(query: str = "", limit: int = 3) -> str:
    return f"{query} {limit}"


async def fetch(url: str = "") -> str:
    return url


@tool(undo=lambda call, outcome: None)
def pay(cents: int) -> int:
    return cents


@functools.cache
@tool
def charge(cents: int) -> int:
    return cents


@functools.cache
@tool
def refund(call: Any, outcome: Any) -> None: ...


def run(store: Store, agent: Any, run_id: Any = "run", **options: Any) -> Any:
    made = RecoverableAgent(agent, store, **{"max_recoveries": 0} | options)
    return made.run_with_recovery_sync("task", run_id)


def within(act: Callable[[Any], Any]) -> Callable[[Store], Any]:
    """An agent that does this in its first step."""

    def agent(run: Any) -> Any:
        for _ in run.steps():
            return act(run)
        return None

    return lambda store: run(store, agent)


def within_async(act: Callable[[Any], Any]) -> Callable[[Store], Any]:
    async def agent(run: Any) -> Any:
        async for _ in run.steps():
            return await act(run)

    return lambda store: run(store, agent)


def agent_of(**options: Any) -> Callable[[Store], Any]:
    return lambda store: RecoverableAgent(plain, store, **options)


def tool_of(**options: Any) -> Callable[[Store], Any]:
    return lambda store: tool(search, **options)


def yielding(run: Any) -> Any:
    yield 1


async def yielding_async(run: Any) -> Any:
    yield 1


def no_parameters() -> None: ...
def two_parameters(run: Any, client: Any) -> None: ...


async def async_for_over_plain(run: Any) -> None:
    async for _ in run.steps():
        break


async def wrongly_for(run: Any) -> None:
    for _ in run.steps():
        break


async def not_awaited(run: Any) -> str:
    run.call(search, "otters")
    return "done"


def twice(run: Any) -> None:
    for _ in run.steps():
        break
    for _ in run.steps():
        break


def kept(run: Any) -> Any:
    RUNS.append(run)
    return "done"


RUNS: list[Any] = []
OF_THE_PROCESS = ("belongs to this process", "agent function", "functools.partial")


class Client:
    pass


def assign(run: Any, value: Any) -> None:
    run.state["found"] = value


def lists_coroutines() -> list[Any]:
    return [fetch("a")]


def after_its_end(store: Store) -> Any:
    run(store, kept)
    return RUNS.pop().call(search)


def parked(store: Store) -> int:
    """A run with a call in doubt; its LSN."""

    def dies(run: Any) -> None:
        for _ in run.steps():
            run.call(fail_hard)

    with pytest.raises(KeyboardInterrupt):
        run(store, dies)
    return int(store.run("run").status().in_doubt[0].lsn)


@tool
def fail_hard() -> None:
    raise KeyboardInterrupt


def done(store: Store) -> Store:
    run(store, plain)
    return store


# What is done, and what of the message is needed.
TOLD: dict[str, tuple[Callable[[Store], Any], tuple[str, ...]]] = {
    # -- the agent function
    "agent without parameters": (
        lambda s: RecoverableAgent(no_parameters, s),
        ("def agent(run)", "no_parameters", "none"),
    ),
    "agent with two parameters": (
        lambda s: RecoverableAgent(two_parameters, s),
        ("def agent(run)", "two_parameters", "(run, client)", "functools.partial"),
    ),
    "agent is text": (lambda s: RecoverableAgent("agent", s), ("agent_fn", "'agent'")),
    "agent was called": (
        lambda s: RecoverableAgent(asynchronous(None), s),
        ("write asynchronous, not asynchronous(...)",),
    ),
    "plain agent that returns a coroutine": (
        lambda s: run(s, lambda run: asynchronous(run)),
        ("async def", "await"),
    ),
    "for over async steps": (lambda s: run(s, wrongly_for), ("async for step in run.steps()",)),
    "async for over plain steps": (
        lambda s: run(s, lambda run: asyncio.run(async_for_over_plain(run))),
        ("for step in run.steps()", "plain function"),
    ),
    "steps twice": (lambda s: run(s, twice), ("run.steps()", "one loop")),
    "call not awaited": (lambda s: run(s, not_awaited), ("await", "search", "test_mistakes.py")),
    "decorator above @tool": (
        within(lambda run: run.call(charge, 5)),
        ("charge", "lru_cache", "leave out", "once, above", "charge(...)"),
    ),
    "decorator above @tool, in a partial": (
        within(lambda run: run.call(functools.partial(charge, 5))),
        ("charge", "lru_cache", "leave out"),
    ),
    "decorator above @tool, awaited": (
        within_async(lambda run: run.call(charge, 5)),
        ("charge", "lru_cache", "leave out"),
    ),
    "@tool around a decorator above @tool": (
        lambda s: tool(charge, timeout_s=5),
        ("charge", "lru_cache", "once, above"),
    ),
    "decorator above @tool, in undo=": (
        lambda s: tool(search, undo=refund),
        ("refund", "lru_cache", "leave out"),
    ),
    "agent with @tool": (
        lambda s: RecoverableAgent(pay, s),
        ("remove @tool", "agent function pay"),
    ),
    "agent with yield": (
        lambda s: RecoverableAgent(yielding, s),
        ("yielding has a `yield`", "`return`"),
    ),
    "async agent with yield": (
        lambda s: RecoverableAgent(yielding_async, s),
        ("yielding_async has a `yield`",),
    ),
    # -- run ids
    "run id is a number": (lambda s: run(s, plain, 7), ("run_id", "str", "7")),
    "run id is None": (lambda s: run(s, plain, None), ("run_id", "str", "None")),
    "run id with a slash": (lambda s: run(s, plain, "a/b"), ("run_id", "'a/b'", "A-Z")),
    # -- options of an agent
    "store is a dict": (lambda s: RecoverableAgent(plain, {"a": 1}), ("RunStore", "path", "{'a'")),
    "store is a number": (lambda s: CheckpointStore(3), ("storage_backend", "path", "3")),
    "checkpoint_every_n is 0": (
        agent_of(checkpoint_every_n=0),
        ("checkpoint_every_n", "1 or more", "0"),
    ),
    "checkpoint_every_n is text": (
        agent_of(checkpoint_every_n="3"),
        ("checkpoint_every_n", "'3' (text)"),
    ),
    "checkpoint_every_n is True": (
        agent_of(checkpoint_every_n=True),
        ("checkpoint_every_n", "True"),
    ),
    "checkpoint_every_n is a float": (
        agent_of(checkpoint_every_n=2.5),
        ("checkpoint_every_n", "2.5"),
    ),
    "checkpoint_every": (
        agent_of(checkpoint_every=3),
        ("checkpoint_every=", "Did you mean checkpoint_every_n=?"),
    ),
    "an option like no other": (
        agent_of(colour="red"),
        ("RecoverableAgent has no option colour=", "max_recoveries"),
    ),
    "max_recoveries is negative": (agent_of(max_recoveries=-1), ("max_recoveries", "0 or more")),
    "max_children is 0": (agent_of(max_children=0), ("max_children", "1 or more")),
    "checkpoint_every_bytes with a unit": (
        agent_of(checkpoint_every_bytes="4MB"),
        ("checkpoint_every_bytes", "'4MB'"),
    ),
    "park_after_s is text": (agent_of(park_after_s="5"), ("park_after_s", "seconds", "'5'")),
    "after_crash misspelt": (
        agent_of(after_crash="rety"),
        ("after_crash", 'Did you mean "retry"?'),
    ),
    "after_crash of a tool misspelt": (
        agent_of(after_crash={"pay": "parc"}),
        ('Did you mean "park"?',),
    ),
    "stop_on is one signal": (agent_of(stop_on=signals.SIGTERM), ("stop_on", "[signal.SIGTERM]")),
    "on_event is async": (agent_of(on_event=fetch), ("on_event", "plain function")),
    "budget is a dict": (agent_of(budget={"steps": 3}), ("budget", "Budget(steps=100)")),
    # -- budgets and retries
    "budget of max_steps": (lambda s: Budget(max_steps=3), ("Budget", "Did you mean steps=?")),
    "budget by position": (lambda s: Budget(3), ("Budget(steps=100)",)),
    "budget below 0": (lambda s: Budget(cost=-1), ("Budget(cost=)", "0 or more")),
    "on_exceeded misspelt": (
        lambda s: Budget(steps=1, on_exceeded="stop"),
        ("on_exceeded", '"park"', '"fail"'),
    ),
    "retry max_attempts": (lambda s: Retry(max_attempts=3), ("Retry", "Did you mean attempts=?")),
    "retry delay": (lambda s: Retry(delay=3), ("Did you mean delay_s=?",)),
    "retry 0 times": (lambda s: Retry(0), ("Retry(attempts=)", "1 or more")),
    "retry delay as text": (lambda s: Retry(delay_s="1"), ("Retry(delay_s=)", "'1' (text)")),
    "retry jitter": (lambda s: Retry(jitter=2), ("Retry(jitter=)", "up to 1")),
    "retry on text": (lambda s: Retry(on="OSError"), ("Retry(on=)", "[OSError]")),
    "retry on a function of nothing": (
        lambda s: Retry(on=lambda: True),
        ("Retry(on=)", "(error)", "none"),
    ),
    "retry delay of one": (
        lambda s: Retry(delay_s=lambda error: 1),
        ("Retry(delay_s=)", "(error, failed_attempt)", "are: error"),
    ),
    # -- tools
    "tool on a number": (lambda s: tool(3), ("@tool is for functions", "3")),
    "tool on text": (lambda s: tool("send"), ("@tool(name=...)", "'send'")),
    "tool on a class": (lambda s: tool(Path), ("@tool is for functions", "class Path", "methods")),
    "tool on a property": (
        lambda s: tool(property(search)),
        ("@tool is for functions", "property"),
    ),
    "tool timeout": (
        tool_of(timeout=5),
        ("@tool has no option timeout=", "Did you mean timeout_s=?"),
    ),
    "tool retries": (tool_of(retries=5), ("Did you mean retry=?",)),
    "tool on_crash": (tool_of(on_crash="retry"), ("Did you mean after_crash=?",)),
    "tool misspelt": (tool_of(aftercrash="retry"), ("Did you mean after_crash=?",)),
    "tool after_crash misspelt": (tool_of(after_crash="Retry"), ('Did you mean "retry"?',)),
    "tool timeout_s is text": (tool_of(timeout_s="5"), ("timeout_s", "seconds", "'5' (text)")),
    "tool on_timeout": (tool_of(on_timeout="raise"), ("on_timeout", '"in_doubt"', '"fail"')),
    "tool retry is text": (tool_of(retry="3"), ("retry=", "Retry", "'3'")),
    "tool retry is 0": (tool_of(retry=0), ("retry=", "1 or more")),
    "tool raises text": (tool_of(raises="OSError"), ("raises", "[OSError]")),
    "tool undo is text": (tool_of(undo="refund"), ("undo", "function", "'refund'")),
    "tool combine alone": (tool_of(combine=sum), ("combine=", "split=")),
    "tool redact is text": (tool_of(redact="query"), ("redact=['query']",)),
    "tool redact misspelt": (
        tool_of(redact=["qeury"]),
        ("redact='qeury'", "Did you mean 'query'?"),
    ),
    "tool needs_approval is text": (tool_of(needs_approval="yes"), ("needs_approval", "'yes'")),
    "tool needs_approval is async": (
        tool_of(needs_approval=fetch),
        ("needs_approval", "plain function"),
    ),
    "tool reconcile of nothing": (
        tool_of(reconcile=lambda: Resolution.retry()),
        ("reconcile= of search", "(call)", "none"),
    ),
    "tool undo of one": (
        tool_of(undo=lambda result: None),
        ("undo= of search", "(call, outcome)", "are: result"),
    ),
    "tool needs_approval of nothing": (
        tool_of(needs_approval=lambda: True),
        ("needs_approval= of search", "(call)"),
    ),
    "tool identity of one": (
        tool_of(identity=lambda query: query),
        ("identity= of search", "(query, limit)", "are: query"),
    ),
    "tool usage of two": (
        tool_of(usage=lambda call, result: None),
        ("usage= of search", "(result)"),
    ),
    "tool name is a number": (tool_of(name=3), ("name is text", "3")),
    "tool reconcile and after_crash": (
        tool_of(reconcile=search, after_crash="park"),
        ("reconcile=", "after_crash="),
    ),
    # -- what a run is asked for
    "call of a result": (
        within(lambda r: r.call(search("a"))),
        ("run.call(f, 1), not run.call(f(1))", "'a 3'"),
    ),
    "call of a coroutine": (within_async(lambda r: r.call(fetch("a"))), ("run.call(fetch, ...)",)),
    "call of a plain value": (within(lambda r: r.call(3)), ("run.call(f, 1)",)),
    "call of a name": (within(lambda r: r.call("search", "a")), ("run.call(f, 1)", "'search'")),
    "call of a generator": (within(lambda r: r.call(x for x in "a")), ("run.stream(",)),
    "call id is a number": (within(lambda r: r.call(search, call_id=3)), ("call_id", "text", "3")),
    "argument that is a file": (
        within(lambda r: r.call(search, open(__file__))),
        ("search(args[0])", "TextIOWrapper"),
    ),
    "child that is text": (within(lambda r: r.child("agent", "task")), ("agent_fn", "'agent'")),
    "child option misspelt": (
        within(lambda r: r.child(plain, "task", max_recovery=1)),
        ("Did you mean max_recoveries=?",),
    ),
    "sleep as text": (within(lambda r: r.sleep("5")), ("run.sleep", "'5' (text)")),
    "sleep below 0": (within(lambda r: r.sleep(-1)), ("run.sleep", "0 or more")),
    "sleep None": (within(lambda r: r.sleep(None)), ("run.sleep", "None")),
    "wait for a number": (within(lambda r: r.wait_for(3)), ("signal", "3")),
    "wait for nothing": (within(lambda r: r.wait_for("")), ("signal", "''")),
    "wait with a timeout as text": (
        within(lambda r: r.wait_for("paid", timeout="5")),
        ("timeout", "'5' (text)"),
    ),
    "stream of a function": (within(lambda r: list(r.stream(search))), ("search", "generator")),
    "messages is a dict": (
        within(lambda r: setattr(r, "messages", {"role": "user"})),
        ("run.messages", "list"),
    ),
    "state is a list": (within(lambda r: setattr(r, "state", ["a"])), ("run.state", "dict")),
    "a file in the state": (
        within(lambda r: r.state.update(log=open(__file__))),
        ("state.log", "TextIOWrapper", *OF_THE_PROCESS),
    ),
    "a lock in the state": (
        within(lambda r: r.state.setdefault("lock", threading.Lock())),
        ("state.lock", "lock", *OF_THE_PROCESS),
    ),
    "a socket in the state": (
        within(lambda r: setattr(r, "state", {"at": socket.socket()})),
        ("state.at", "socket", *OF_THE_PROCESS),
    ),
    "a client in the state": (
        within(lambda r: r.state.update(client=Client())),
        ("state.client", "Client", "such as a client", "functools.partial"),
    ),
    "message that is a file": (
        within(lambda r: r.messages.append(open(__file__))),
        ("message", "TextIOWrapper", *OF_THE_PROCESS),
    ),
    "a number as a key of the state": (
        within(lambda r: r.state.update({1: "a"})),
        ("state[1]", "state['1']", "dict"),
    ),
    "a coroutine in the state": (
        within_async(lambda r: assign(r, fetch("a"))),
        ("state.found", "`await fetch(...)`"),
    ),
    "a call in the state": (
        within_async(lambda r: assign(r, r.call(fetch, "a"))),
        ("state.found", "`await run.call(fetch, ...)`"),
    ),
    "a call among the messages": (
        within_async(lambda r: r.messages.append(r.call(fetch, "a"))),
        ("messages[0]", "`await run.call(fetch, ...)`"),
    ),
    "a call as an argument": (
        within_async(lambda r: r.call(fetch, r.call(fetch, "a"))),
        ("fetch(args[0])", "`await run.call(fetch, ...)`"),
    ),
    "a coroutine in what a tool returns": (
        within(lambda r: r.call(lists_coroutines)),
        ("[0]", "`await fetch(...)`"),
    ),
    "a coroutine in what the agent returns": (
        lambda s: run(s, lambda run: [fetch("a")]),
        ("result[0]", "`await fetch(...)`"),
    ),
    "a call after the end": (after_its_end, ("run", "over")),
    # -- from outside
    "resolve with text": (
        lambda s: s.run("run").resolve(parked(s), "retry"),
        ("Resolution.retry()", "'retry'"),
    ),
    "resolve with a class method": (
        lambda s: s.run("run").resolve(parked(s), Resolution.retry),
        ("Resolution.retry()",),
    ),
    "resolve a call as text": (
        lambda s: s.run("run").resolve(str(parked(s)), Resolution.retry()),
        ("LSN", "an int", "'3'"),
    ),
    "approve a call as text": (lambda s: done(s).run("run").approve("5"), ("call", "'5'", "LSN")),
    "signals in a list": (
        lambda s: done(s).run("run").signal(["paid", "late"]),
        ("signal", "['paid', 'late']"),
    ),
    "signal to no run": (lambda s: s.run("none").signal("paid"), ("no run 'none'",)),
    "signal to a run that has ended": (
        lambda s: done(s).run("run").signal("paid"),
        ("has ended", "not sent"),
    ),
    "cancel of no run": (lambda s: s.run("none").cancel(), ("no run 'none'",)),
    "status of a run id that is a number": (lambda s: s.run(3).status(), ("run_id", "3")),
    "handle in no store": (lambda s: recovery.RunHandle(None, "run"), ("store", "None")),
    "handle of a task": (
        lambda s: RecoverableAgent(plain, s).run("write to Ann"),
        ("run_id", "'write to Ann'"),
    ),
    "comparison with a run of another store": (
        lambda s: done(s).run("run").compare(CheckpointStore().run("run")),
        ("another", "store"),
    ),
    "runs of a state misspelt": (
        lambda s: s.runs(state="interupted"),
        ("state", 'Did you mean "interrupted"?'),
    ),
    "fork at a step as text": (
        lambda s: done(s).run("run").fork("new", at_step="1"),
        ("at_step", "'1' (text)"),
    ),
    "fork onto itself": (lambda s: done(s).run("run").fork("run"), ("run_id of its own",)),
    "fork with a misspelt change": (
        lambda s: done(s).run("run").fork("new", at_step=0, sate={}),
        ("Did you mean state=?",),
    ),
    "undo with one tool": (lambda s: done(s).run("run").undo(tools=pay), ("tools=[pay]",)),
    "undo with names": (lambda s: done(s).run("run").undo(tools=["pay"]), ("function", "'pay'")),
    "events until misspelt": (
        lambda s: done(s).run("run").events(until="end"),
        ("until", 'Did you mean "ended"?'),
    ),
    "resume of no run": (
        lambda s: RecoverableAgent(plain, s).resume_sync("none"),
        ("no run 'none'",),
    ),
    # -- graphs and plans
    "node without a context": (
        lambda s: Graph("g").node("b", lambda: 1),
        ("node 'b'", "function of (context)"),
    ),
    "node option of another": (
        lambda s: Graph("g").node("b", plain, timeout=3),
        ("node 'b'", "Did you mean timeout_s=?"),
    ),
    "node retry as text": (
        lambda s: Graph("g").node("b", plain, retry="3"),
        ("retry=", "attempts", "'3'"),
    ),
    "visits as text": (lambda s: Graph("g", max_visits="3"), ("max_visits", "'3' (text)")),
    "edge of the output alone": (
        lambda s: Graph("g").edge("a", "b", lambda output: True),
        ("edge a -> b", "(output, memory)"),
    ),
    "manager by position": (
        lambda s: GraphExecutor(CheckpointManager(s)),
        ("checkpoint_manager=",),
    ),
    "store in place of a manager": (
        lambda s: GraphExecutor(checkpoint_manager=s),
        ("CheckpointManager('runs')",),
    ),
    "executor option misspelt": (
        lambda s: GraphExecutor(max_recoverys=1),
        ("Did you mean max_recoveries=?",),
    ),
    "no graph": (lambda s: GraphExecutor().execute_sync(None, "goal"), ("graph is a", "Graph")),
    "input of a graph as a list": (
        lambda s: GraphExecutor().execute_sync(one_node(), "goal", [1]),
        ("input_data", "dict"),
    ),
    "planner is a list": (lambda s: planned([]), ("planner", "function of (context)")),
    "functions as a list": (lambda s: planned(functions=[search]), ("functions", "dict")),
    "function of a plan by name": (
        lambda s: planned(functions={"search": "search"}),
        ("functions['search']", "(text)"),
    ),
    "judge of two": (
        lambda s: planned(judge=lambda step, outcome: "accept"),
        ("judge", "(step, outcome, context)"),
    ),
    "limits as a number": (lambda s: planned(limits=5), ("PlanLimits",)),
    "planner gives one step": (
        lambda s: planned(lambda context: PlanStep("a", "search")),
        ("a list of PlanSteps",),
    ),
    "step in another order": (
        lambda s: planned(lambda context: [PlanStep("search", {}, "a")]),
        ("PlanStep(id, function, inputs", "function is text"),
    ),
    "field of a step misspelt": (
        lambda s: planned(lambda context: [{"id": "a", "func": "search"}]),
        ("Did you mean function=?",),
    ),
    "step depends on text": (
        lambda s: planned(lambda context: [PlanStep("a", "search", {}, "b")]),
        ("depends_on", "('b',)"),
    ),
    "step of no function": (
        lambda s: planned(lambda context: [PlanStep("a", "serch")]),
        ("no function 'serch'", "'search'"),
    ),
    "input that is not in the memory": (
        lambda s: planned(lambda context: [PlanStep("a", "search", {"query": "$q"})]),
        ("'$q'", "the memory has no 'q'"),
    ),
    # -- stores
    "store is a file": (
        lambda s: RecoverableAgent(plain, __file__),
        ("test_mistakes.py is a file", "path of a directory"),
    ),
    "retention misspelt": (
        lambda s: CheckpointStore(retention="prune"),
        ("retention", 'Did you mean "prune_old"?'),
    ),
    "keep is 0": (lambda s: CheckpointStore(retention="prune_old", keep=0), ("keep", "1 or more")),
    "keep without retention": (
        lambda s: CheckpointStore(keep=3),
        ("keep", 'retention="prune_old"'),
    ),
    "durability misspelt": (
        lambda s: CheckpointStore("x", durability="powr"),
        ("durability", 'Did you mean "power"?'),
    ),
    "durability of another's store": (
        lambda s: CheckpointStore(FileStore("x"), durability="none"),
        ("durability=", "RunStore"),
    ),
    "durability in memory": (lambda s: CheckpointStore(durability="none"), ("durability=", "path")),
    "durability of a log": (
        lambda s: EventLog.open("x", "fsync"),
        ("durability", '"power"', "'fsync'"),
    ),
    "segment size with a unit": (
        lambda s: EventLog.open("x", segment_size="8MB"),
        ("segment_size", "bytes", "'8MB'"),
    ),
    "config misspelt": (
        lambda s: CheckpointConfig(every_n=3),
        ("CheckpointConfig", "Did you mean every_n_nodes=?"),
    ),
    "config as text": (
        lambda s: CheckpointConfig(every_n_nodes="3"),
        ("every_n_nodes", "'3' (text)"),
    ),
}


def one_node() -> Any:
    graph = Graph("g")
    graph.node("a", lambda context: None)
    return graph


def planned(planner: Any = lambda context: [], functions: Any = None, **options: Any) -> Any:
    """The error of an execution that plans."""
    functions = {"search": search} if functions is None else functions
    executor = FlexibleGraphExecutor(planner, functions, **options)
    raise RuntimeError(asyncio.run(executor.execute("goal")).error)


def told(make: Callable[[Store], Any], store: Store) -> str:
    try:
        made = make(store)
    except Exception as exc:
        return f"{type(exc).__name__}: {exc}"
    return f"nothing: {made!r}"


@pytest.fixture
def store() -> Any:
    with CheckpointStore() as made:
        yield made


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("mistake", TOLD)
def test_a_mistake_is_told_where_it_is_made(mistake: str, store: Store) -> None:
    make, parts = TOLD[mistake]
    text = told(make, store)
    assert not text.startswith("nothing"), text
    missing = [part for part in parts if part not in text]
    assert not missing, f"{missing} not in: {text}"
    ours = re.sub(r"\n  returned: .*", "", text)
    if "await" in text:
        gc.collect()  # else Python warns of the coroutine in another test
    assert not IMPLEMENTATION.search(ours), text


# -- what is no mistake any more: it is clear what was meant


def test_a_path_stands_for_the_store_at_it(tmp_path: Path) -> None:
    made = RecoverableAgent(plain, str(tmp_path))
    assert made.run_with_recovery_sync("task", "run")["result"] == "done"
    assert RecoverableAgent(plain, tmp_path).run_with_recovery_sync("task", "run")
    for where in (tmp_path, str(tmp_path), FileStore(tmp_path), CheckpointStore(tmp_path)):
        assert recovery.RunHandle(where, "run").status().state == "finished"
        with pytest.raises(recovery.RecoveryError, match="has ended"):
            recovery.RunHandle(where, "run").cancel()
    fork = recovery.RunHandle(tmp_path, "run").fork("fork", at_step=0)
    recovery.RunHandle(str(tmp_path), "fork").undo(tools=[])
    assert recovery.RunHandle(tmp_path, "run").compare(fork)


def test_a_run_store_stands_for_a_checkpoint_store() -> None:
    memory = MemoryStore()
    RecoverableAgent(plain, memory).run_with_recovery_sync("task", "run")
    assert recovery.RunHandle(memory, "run").status().state == "finished"


def test_a_number_of_attempts_stands_for_a_retry(store: Store) -> None:
    tries: list[int] = []

    @tool(retry=Retry(3, delay_s=0, on=[OSError, KeyError]), raises=OSError)
    def once_more() -> int:
        tries.append(1)
        if len(tries) < 3:
            raise OSError("not yet")
        return len(tries)

    assert run(store, lambda run: run.call(once_more))["result"] == 3
    assert tool(search, retry=3).tool_spec.retry == Retry(3)


# -- what can only be told later


@pytest.mark.parametrize("calls", [0, 1, 12])
@pytest.mark.parametrize("said", [True, False])
def test_a_budget_of_tokens_that_counts_nothing_says_so(
    calls: int, said: bool, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    reply = {"usage": {"prompt_tokens": 1, "completion_tokens": 1}} if said else {"text": "hello"}

    @tool(after_crash="retry")
    def ask(n: int) -> dict[str, Any]:
        return reply

    def agent(run: Any) -> None:
        for _ in run.steps():
            for n in range(calls):
                run.call(ask, n)
            break

    run(store, agent, budget=Budget(tokens=1000))
    warnings = [one.getMessage() for one in caplog.records if "Budget" in one.getMessage()]
    assert len(warnings) == (0 if said else {0: 0, 1: 1, 12: 2}[calls])
    for warning in warnings:
        assert "Budget(tokens=)" in warning
        assert "@tool(usage=...)" in warning


def test_without_a_home_directory_the_ways_to_say_where_runs_are_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("EVENTLOG_HOME")
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    for make in (lambda: RecoverableAgent(plain), lambda: FileStore("~/runs")):
        with pytest.raises(RuntimeError) as found:
            make()
        assert all(part in str(found.value) for part in ("home", "EVENTLOG_HOME", "--store"))


# -- the command


COMMANDS: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "command misspelt": (["resum", "run"], ("no such command", "resume")),
    "option misspelt": (["show", "run", "--stor", "x"], ("--stor", "--store")),
    "run not named": (["show"], ("missing argument", "RUN")),
    "no such run": (["show", "none", "--store", "{store}"], ("no run 'none'",)),
    "run id with a slash": (["show", "a/b", "--store", "{store}"], ("a/b",)),
    "call as text": (["resolve", "run", "five", "--retry", "--store", "{store}"], ("five",)),
    "no such store": (["runs", "--store", "{store}/none"], ("none",)),
    "store is a file": (["runs", "--store", __file__], ("is a file", "directory")),
    "store of another kind": (["runs", "--store", "s3://bucket"], ("s3",)),
}


@pytest.mark.parametrize("mistake", COMMANDS)
def test_a_mistake_in_a_command_is_told(mistake: str, tmp_path: Path) -> None:
    given, parts = COMMANDS[mistake]
    RecoverableAgent(plain, tmp_path).run_with_recovery_sync("task", "run")
    ended = call("recovery", *(one.format(store=tmp_path) for one in given), cwd=tmp_path)
    text = " ".join((ended.out + ended.err).split())
    assert ended.code != 0, text
    missing = [part for part in parts if part not in text]
    assert not missing, f"{missing} not in: {text}"
    assert not IMPLEMENTATION.search(text), text
    assert "Traceback" not in text
