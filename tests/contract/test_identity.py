"""Which call is which: programs as people write them, killed everywhere, and what is refused.

Effects are counted outside of the run, and the oracle is the run that never crashed.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

import recovery.agent.agent_errors
import recovery.agent.begin_run
from recovery import (
    ApprovalDeniedError,
    Call,
    CheckpointStore,
    RecoverableAgent,
    Run,
    SyncRun,
    current_call,
    register,
    tool,
)
from recovery.agent.run import execution_of
from recovery.calls.identity import plainly
from recovery.control.send import approve, deny, pending
from recovery.declare.spec import ToolSpec
from recovery.errors import AmbiguousCallError, DivergenceError
from recovery.graph import Graph, GraphExecutor, NodeContext
from recovery.journal.events import CallIntended, CallReturned
from recovery.testing import crash_everywhere
from recovery.values.pack import pack_arguments
from recovery.values.types import digest
from tests.support.lives import RUN, Died, die_in, disk_store, forget, recorded, run, run_sync
from tests.support.scale import scaled

done: list[Any] = []  # what took place outside


@pytest.fixture(autouse=True)
def _fresh_world(monkeypatch: pytest.MonkeyPatch) -> None:
    done.clear()
    monkeypatch.setattr(recovery.agent.agent_errors, "BACKOFF_S", 0.0)


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path if request.param == "file" else None)


# -- tools

URLS = ["/a", "/b", "/c"]


async def fetch(url: str, *, depth: int = 1) -> str:
    done.append(url)
    return f"page {url} {depth}"


@tool
async def page(url: str, limit: int = 10) -> str:
    done.append(url)
    return f"page {url} {limit}"


async def words(url: str) -> AsyncIterator[str]:
    done.append(url)
    for word in ("page ", url):
        yield word


class Api:
    """An account of a service."""

    def __init__(self, name: str) -> None:
        self.name = name

    @tool(identity=["self.name", "path"])
    async def by_identity(self, path: str) -> str:
        done.append(self.name)
        return f"{self.name}{path}"

    @tool(identity=lambda self, path: [self.name, path])
    async def by_function(self, path: str) -> str:
        done.append(self.name)
        return f"{self.name}{path}"

    @tool
    async def get(self, path: str) -> str:
        done.append(self.name)
        return f"{self.name}{path}"

    @staticmethod
    @tool
    async def shared(path: str) -> str:
        done.append(path)
        return f"shared {path}"

    @staticmethod
    @tool
    async def nothing() -> str:
        return said("nothing")

    async def untold(self, path: str) -> str:
        done.append(self.name)
        return f"{self.name}{path}"

    async def __call__(self, path: str) -> str:
        done.append(self.name)
        return f"{self.name}{path}"


class Keyed(Api):
    """One that says what tells it from others."""

    @property
    def recovery_key(self) -> str:
        return self.name

    async def agent(self, run: Run) -> str:
        return str(await run.call(page, self.name))


async def reader(run: Run, url: str, depth: int = 1) -> str:
    """An agent, to be a child."""
    return str(await run.call(page, url))


# -- each coroutine gets its own result, whoever comes first in the life of the moment

CLIENT: object = object()


async def with_client(client: object, url: str) -> str:
    assert client is CLIENT
    return await fetch(url)


async def back_to_front(url: str, run: Run) -> str:
    return str(await run.call(page, url))


def said(what: str) -> str:
    done.append(what)
    return f"said {what}"


@tool
def with_id(call_id: str) -> str:
    call = current_call()
    assert call is not None
    assert call.call_id == call_id
    return said(call_id)


def named(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    return tool(name=name)(function)


async def streamed(run: Run, function: Callable[..., Any]) -> str:
    async with run.stream(function) as stream:
        async for _ in stream:
            pass
    return str(stream.result)


async def read(stream: Any) -> str:
    async with stream:
        return "".join([chunk async for chunk in stream])


def of_words(url: str) -> Callable[[], AsyncIterator[str]]:
    async def generate() -> AsyncIterator[str]:
        async for word in words(url):
            yield word

    return generate


# What each coroutine does with its own URL.
TOLD_APART: dict[str, Callable[[Run, str], Any]] = {
    "partial": lambda run, url: run.call(partial(fetch, url)),
    "partial by name": lambda run, url: run.call(partial(fetch, url=url)),
    "partial of a partial": lambda run, url: run.call(partial(partial(fetch, depth=2), url)),
    "tool of a partial": lambda run, url: run.call(tool(name="x")(partial(fetch, url))),
    "partial of a tool": lambda run, url: run.call(partial(page, url)),
    "partial with a client": lambda run, url: run.call(partial(with_client, CLIENT, url)),
    "partial of a method": lambda run, url: run.call(partial(Keyed(url).get, "/")),
    "stream": lambda run, url: streamed(run, partial(words, url)),
    "child": lambda run, url: run.child(partial(reader, url=url), "task"),
    "child by position": lambda run, url: run.child(partial(back_to_front, url), "task"),
    "child of a method": lambda run, url: run.child(Keyed(url).agent, "task"),
    "identity by name": lambda run, url: Api(url).by_identity("/"),
    "identity by a function": lambda run, url: run.call(Api(url).by_function, "/"),
    "unbound method": lambda run, url: run.call(Api.by_identity, Api(url), "/"),
    "static method": lambda run, url: run.call(Api.shared, url),
    "key of the object": lambda run, url: run.call(Keyed(url).get, "/"),
    "key of an object without @tool": lambda run, url: run.call(Keyed(url).untold, "/"),
    "key of a callable object": lambda run, url: run.call(Keyed(url), "/"),
    "name": lambda run, url: run.call(tool(name=f"get {url}")(Api(url).get), "/"),
    "name of a lambda": lambda run, url: run.call(named(url, lambda: said(url))),
    "call id": lambda run, url: run.call(Api(url).get, "/", call_id=url),
    "call id of a lambda": lambda run, url: run.call(lambda: said(url), call_id=url),
    "call id that is a parameter": lambda run, url: run.call(with_id, call_id=url),
    "call id, called directly": lambda run, url: tool(call_id=url)(Api(url).get)("/"),
    "call id of a closure": lambda run, url: tool(call_id=url)(closure(url))(),
    "call id of a stream": lambda run, url: read(tool(call_id=url)(of_words(url))()),
    "call id by way of run.call": lambda run, url: run.call(tool(call_id=url)(closure(url))),
    "call id of a partial": lambda run, url: tool(call_id=url)(partial(with_object, Api(url)))(),
}


def side_by_side(what: Callable[[Run, str], Any]) -> Callable[[Run], Any]:
    """An agent of coroutines, each of which is first in one of the process's lives."""

    async def agent(run: Run) -> Any:
        async def one(at: int, url: str) -> Any:
            await asyncio.sleep((at + run.recovery_count) % len(URLS))
            return await what(run, url)

        return await asyncio.gather(*(one(at, url) for at, url in enumerate(URLS)))

    return agent


@pytest.mark.parametrize("idiom", TOLD_APART)
def test_each_coroutine_has_its_own_result_after_every_crash(idiom: str) -> None:
    report = crash_everywhere(
        side_by_side(TOLD_APART[idiom]),
        setup=done.clear,
        effects=lambda: done,
        points=scaled(4, 60),
    )
    assert report.ok, str(report)
    assert "".join(sorted(report.reference)).count("/") >= len(URLS)


# -- what cannot be told apart is refused at the first execution


def closure(url: str) -> Callable[[], Any]:
    async def get() -> str:
        return said(url)

    return get


def by_default(url: str) -> Callable[[], Any]:
    def get(url: str = url) -> str:
        return said(url)

    return get


def by_decorator(url: str) -> Callable[[], Any]:
    @functools.wraps(said)
    def wrapper() -> str:
        return said(url)

    return tool(after_crash="retry")(wrapper)


def of_another(url: str) -> Callable[[], Any]:
    inner = closure(url)

    async def get() -> str:
        return str(await inner())

    return get


def same_name(url: str) -> Callable[[], Any]:
    if url == URLS[0]:

        def get() -> str:
            return said(url)
    else:

        def get() -> str:
            return said(str(url))

    return get


def child_of(url: str) -> Callable[[Run], Any]:
    async def agent(run: Run) -> str:
        return str(await run.call(page, url))

    return agent


# What makes the second call, and in what the two differ.
REFUSED: dict[str, tuple[Callable[[Any, str], Any], tuple[str, ...]]] = {
    "closures": (lambda run, url: run.call(closure(url)), ("url",)),
    "default": (lambda run, url: run.call(by_default(url)), ("url",)),
    "decorated closure": (lambda run, url: run.call(by_decorator(url)), ("url",)),
    "closure of a closure": (lambda run, url: run.call(of_another(url)), ("inner",)),
    "functions of one name": (lambda run, url: run.call(same_name(url)), ()),
    "methods": (lambda run, url: run.call(Api(url).get, "/"), ("self",)),
    "methods that are no tools": (lambda run, url: run.call(Api(url).untold, "/"), ("self",)),
    "callable objects": (lambda run, url: run.call(Api(url), "/"), ("self",)),
    "tools of methods": (lambda run, url: run.call(tool(Api(url).untold), "/"), ("self",)),
    "objects in partials": (
        lambda run, url: run.call(partial(with_object, Api(url))),
        ("args[0]",),
    ),
    "children": (lambda run, url: run.child(child_of(url), "task"), ("url",)),
}


async def with_object(api: Api) -> str:
    return await api.untold("/")


@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize("idiom", REFUSED)
def test_what_cannot_be_told_apart_is_refused(
    idiom: str, kind: str, store: CheckpointStore
) -> None:
    make, names = REFUSED[idiom]

    async def one_by_one(run: Run) -> Any:
        return [await make(run, url) for url in URLS]

    def plain(run: SyncRun) -> Any:
        return [make(run, url) for url in URLS]

    agent, go = (one_by_one, run) if kind == "async" else (plain, run_sync)
    said_so = []
    for _ in range(2):  # the next process is told the same, and nothing more has happened
        with pytest.raises(AmbiguousCallError) as found:
            go(agent, store)
        said_so.append(str(found.value))
        assert found.value.names == names
        assert len(done) == 1
        intents = recorded(store, CallIntended)
        assert [one.tool for one in intents] in ([intents[0].tool], ["child"])
        assert len(recorded(store, CallReturned)) == 1
    here = Path(__file__).name
    assert said_so[0].count(f"{here}:") >= (3 if names != ("self",) or "call" not in idiom else 1)
    assert "call_id" in said_so[0]


@pytest.mark.parametrize("kind", ["call", "tool", "stream", "child"])
def test_a_lambda_needs_a_name(kind: str, store: CheckpointStore) -> None:
    async def agent(run: Run) -> Any:
        match kind:
            case "call":
                return await run.call(lambda: said("x"))
            case "tool":
                return tool(lambda: said("x"))()
            case "stream":
                return await streamed(run, lambda: iter("x"))
            case _:
                return await run.child(lambda run: "x", "task")

    with pytest.raises(AmbiguousCallError, match=r"lambda \(.*test_identity\.py:\d+\).*\n.*def"):
        run(agent, store)
    assert (done, recorded(store, CallIntended)) == ([], [])


def factory(client: object) -> Callable[[int], Any]:
    @tool
    def ask(number: int) -> Any:
        return said(str(number))

    assert client is not None
    return ask


# Nothing that could be taken for another: so none of it is refused.
FINE: dict[str, Callable[[Any], list[Any]]] = {
    "one function again": lambda run: [run.call(get, "x") for get in [said] * 3],
    "one closure again": lambda run: [run.call(get) for get in [closure("x")] * 3],
    "a factory's tool": lambda run: [run.call(factory(CLIENT), number) for number in range(3)],
    "closures of equal values": lambda run: [
        run.call(by_default(str(len("x" * 3)))) for _ in range(3)
    ],
    "closures of one object": lambda run: [run.call(holding(run, [1])) for _ in range(3)],
    "closures of equal containers": lambda run: [run.call(holding([1], {"a": 1})) for _ in "abc"],
    "recursive closures": lambda run: [run.call(recursive()) for _ in range(3)],
    "methods of one object": lambda run: both_ways(run, Api("x")),
    "a static method without arguments": lambda run: [run.call(Api.nothing)],
    "methods of two objects with other arguments": lambda run: [
        run.call(Api(url).get, url) for url in URLS
    ],
}


def both_ways(run: Run, api: Api) -> list[Any]:
    return [run.call(api.get, "/"), api.get("/"), run.call(Api.get, api, "/")]


def holding(*held: Any) -> Callable[[], str]:
    def get() -> str:
        return said(f"x {len(held)}")

    return get


def recursive() -> Callable[[], Any]:
    def get(depth: int = 2) -> Any:
        return get(depth - 1) if depth else said("x")

    return get


@pytest.mark.parametrize("idiom", FINE)
def test_what_is_one_call_or_has_its_own_arguments_is_not_refused(idiom: str) -> None:
    async def agent(run: Run) -> Any:
        found = await asyncio.gather(*FINE[idiom](run))
        async for step in run.steps():
            await run.call(closure(f"step {step}"))
            if step == 2:
                return found
        return None

    report = crash_everywhere(agent, setup=done.clear, effects=lambda: done, points=scaled(5, 1000))
    assert report.ok, str(report)


def test_nothing_is_kept_alive_for_the_sake_of_telling_apart(store: CheckpointStore) -> None:
    held: list[weakref.ref[Any]] = []

    def tools() -> tuple[Any, ...]:
        api = Api("x")

        async def get() -> str:
            return await api.untold("/")

        tools = get, Api("y").get, partial(with_object, Api("z"))
        held.extend(map(weakref.ref, (api, get, cast(Any, tools[1]).__self__, tools[2].args[0])))
        return tools

    async def agent(run: Run) -> None:
        first, second, third = tools()
        await run.call(first)
        await run.call(second, "/")
        await run.call(third)
        del first, second, third
        gc.collect()
        assert [one() for one in held] == [None] * 4

    run(agent, store)


# -- approvals


def approved_then(store: CheckpointStore, first: Any, then: Any, kind: str) -> Any:
    """One process asks for the first call, somebody says yes, the next process makes the other."""
    asked = []

    def go(call: Callable[[Any], Any]) -> Any:
        if kind == "sync":
            return run_sync(call, store, park_after_s=0.0)

        async def agent(run: Run) -> Any:
            return await call(run)

        return run(agent, store, park_after_s=0.0)

    with pytest.raises(recovery.errors.WaitingError):
        go(first)
    (call,) = pending(store, RUN)
    asked.append((call.tool, call.args, call.kwargs))
    approve(store, RUN, call, who="ann")
    with pytest.raises(DivergenceError):
        go(then)
    assert done == []
    go(first)
    return asked[0]


def pay(cents: int, to: str) -> str:
    done.append((cents, to))
    return "paid"


class Bank:
    def __init__(self, account: str, cache: int = 0) -> None:
        self.account, self.cache = account, cache

    @tool(needs_approval=True, identity=["self.account"])
    def pay(self, cents: int, to: str) -> str:
        done.append((self.account, cents, to))
        return "paid"

    @tool(needs_approval=True)
    def untold(self, cents: int) -> str:
        done.append(cents)
        return "paid"


asking = partial(tool, needs_approval=True)


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_yes_to_a_partial_is_one_to_its_arguments(kind: str, store: CheckpointStore) -> None:
    asked = approved_then(
        store,
        lambda run: run.call(asking()(partial(pay, 10, to="alice"))),
        lambda run: run.call(asking()(partial(pay, 9999, to="mallory"))),
        kind,
    )
    assert asked == ("pay", (10, "alice"), {})
    assert done == [(10, "alice")]


@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize("other", [("other", 10, "alice"), ("ours", 9999, "alice")])
def test_a_yes_to_a_method_is_one_to_its_object_and_all_its_arguments(
    kind: str, other: tuple[str, int, str], store: CheckpointStore
) -> None:
    asked = approved_then(
        store,
        lambda run: run.call(Bank("ours").pay, 10, "alice"),
        lambda run: run.call(Bank(other[0]).pay, *other[1:]),
        kind,
    )
    assert asked == ("pay", (10, "alice"), {"self.account": "ours"})
    assert done == [("ours", 10, "alice")]


@functools.lru_cache
@functools.wraps(pay)
def cached_pay(cents: int, to: str) -> str:
    return pay(cents, to)


def test_a_function_that_a_decorator_has_made_an_object_is_a_function(
    store: CheckpointStore,
) -> None:
    with pytest.raises(recovery.errors.WaitingError):
        run_sync(lambda run: run.call(asking()(cached_pay), 10, "ann"), store, park_after_s=0.0)
    assert [call.args for call in pending(store, RUN)] == [(10, "ann")]


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_nobody_is_asked_about_an_object_that_is_not_shown(
    kind: str, store: CheckpointStore
) -> None:
    async def agent(run: Run) -> Any:
        return await run.call(Bank("ours").untold, 10)

    def plain(run: SyncRun) -> Any:
        return Bank("ours").untold(10)

    with pytest.raises(AmbiguousCallError, match=r"class .*Bank from others.*\n.*recovery_key"):
        run(agent, store) if kind == "async" else run_sync(plain, store)
    assert (done, recorded(store, CallIntended)) == ([], [])


def test_approved_partials_are_paid_once_after_every_crash() -> None:
    async def agent(run: Run) -> Any:
        async def one(at: int, cents: int) -> Any:
            await asyncio.sleep((at + run.recovery_count) % 3)
            with_yes = asking()(partial(pay, cents, to="alice"))
            try:
                return await run.call(with_yes)
            except ApprovalDeniedError:
                return "no"

        return await asyncio.gather(*(one(at, cents) for at, cents in enumerate([10, 20, 30])))

    def answer(store: CheckpointStore, run_id: str) -> None:
        for call in pending(store, run_id):
            (deny if call.args[0] == 20 else approve)(store, run_id, call)

    report = crash_everywhere(
        agent, setup=done.clear, effects=lambda: done, answer=answer, points=scaled(5, 1000)
    )
    assert report.ok, str(report)
    assert report.reference == "['paid', 'no', 'paid']"


# -- edits that change nothing, and some that do


def go_on_with(first: Callable[[Run], Any], then: Callable[[Run], Any]) -> Any:
    """The result of a run that one process makes a call in, and dies, and another resumes."""

    def agent(call: Callable[[Run], Any], *, dies: bool) -> Callable[[Run], Any]:
        async def agent(run: Run) -> Any:
            run.messages.append({"role": "user", "content": "hello"})
            run.messages.append({"role": "user", "content": ["x"] * 2000})
            found = await call(run)
            if dies:
                raise Died
            return found

        return agent

    store = die_in(agent(first, dies=True), disk_store())
    return run(agent(then, dies=False), store)["result"]


def made(signature: str, **options: Any) -> Any:
    """A side effect ``f`` with these parameters."""
    names: dict[str, Any] = {"done": done, "nan": float("nan"), "big": [[0.5]] * 2000}
    code = f"def f({signature}):\n    done.append('f')\n    return len(done)"
    exec(code, names)  # noqa: S102 - functions that differ in their parameters alone
    return tool(**options)(names["f"])


def child(signature: str, *args: Any, **kwargs: Any) -> Callable[[Run], Any]:
    """A child run of an agent with these parameters, some of which are bound."""
    names: dict[str, Any] = {"done": done}
    exec(f"async def f({signature}):\n    done.append('f')\n    return len(done)", names)  # noqa: S102
    return lambda run: run.child(partial(names["f"], *args, **kwargs), "task")


def call(f: Any, *args: Any, **kwargs: Any) -> Callable[[Run], Any]:
    return lambda run: run.call(f, *args, **kwargs)


NO_CHANGE: dict[str, tuple[Callable[[Run], Any], Callable[[Run], Any]]] = {
    "default given": (call(made("a, b=5"), 1), call(made("a, b=5"), 1, 5)),
    "default given by name": (call(made("a, b=5"), 1), call(made("a, b=5"), 1, b=5)),
    "default not given": (call(made("a, *, b='x'"), 1, b="x"), call(made("a, *, b='x'"), 1)),
    "default before another": (call(made("a=1, b=2, *c"), 1, 3), call(made("a=1, b=2"), b=3)),
    "NaN as default": (call(made("a, b=nan"), 1, float("nan")), call(made("a, b=nan"), 1)),
    "mutable default": (call(made("a, b={}"), 1, {}), call(made("a, b={}"), 1)),
    "large default": (call(made("a, b=big"), 1, [[0.5]] * 2000), call(made("a, b=big"), 1)),
    "new parameter": (call(made("a"), 1), call(made("a, *, b=5, c=None"), 1)),
    "new parameter in between": (call(made("a, c=0"), 1, 2), call(made("a, b=5, c=0"), 1, c=2)),
    "keyword-only": (call(made("a, b"), 1, 2), call(made("a, *, b"), 1, b=2)),
    "not keyword-only": (call(made("a, *, b"), 1, b=2), call(made("a, b"), 1, 2)),
    "new default": (call(made("a, b"), 1, 2), call(made("a, b=2"), 1)),
    "another default": (call(made("a, b=5"), 1), call(made("a, b=6"), 1)),
    "renamed parameter": (call(made("a, b"), 1, 2), call(made("x, y"), 1, 2)),
    "redacted": (call(made("a, b"), 1, "secret"), call(made("a, b", redact=["b"]), 1, "secret")),
    "redacted and keyword-only": (
        call(made("a, b"), 1, "secret"),
        call(made("a, *, b", redact=["b"]), 1, b="secret"),
    ),
    "identity": (call(made("a, b"), 1, 2), call(made("a, b", identity=["a"]), 1, 3)),
    "messages as a list": (
        lambda run: run.call(made("a, b=1"), run.messages),
        lambda run: run.call(made("a, b=1"), list(run.messages), 1),
    ),
    "messages by name": (
        lambda run: run.call(made("a"), list(run.messages)),
        lambda run: run.call(made("a"), a=[*run.messages]),
    ),
    "partial": (call(made("a, b"), 1, 2), call(partial(made("a, b"), b=2), 1)),
    "no partial": (call(partial(made("a, b"), 1), 2), call(made("a, b"), a=1, b=2)),
    "child by name": (child("a, run", 1), child("run, a", a=1)),
    "default of a child": (child("run, a, b=2", a=1), child("run, a, b=2", a=1, b=2)),
    "second of two": (
        lambda run: asyncio.gather(run.call(made("a, b"), 1, 2), run.call(made("a, b"), 1, 2)),
        lambda run: asyncio.gather(*(run.call(made("a, *, b"), 1, b=2) for _ in "ab")),
    ),
}


@pytest.mark.parametrize("edit", NO_CHANGE)
def test_an_edit_that_says_the_same_is_no_change(edit: str) -> None:
    first, then = NO_CHANGE[edit]
    found = go_on_with(first, then)
    assert (found, len(done)) in ((1, 1), ([1, 2], 2))


CHANGE: dict[str, tuple[Callable[[Run], Any], Callable[[Run], Any]]] = {
    "value": (call(made("a, b=5"), 1), call(made("a, b=5"), 1, 6)),
    "what was the default": (call(made("a, b=5"), 1), call(made("a, b=6"), 1, 5)),
    "1 is not True": (call(made("a, b=1"), 1), call(made("a, b=1"), 1, True)),
    "0.0 is not -0.0": (call(made("a, b=0.0"), 1), call(made("a, b=0.0"), 1, -0.0)),
    "1 is not 1.0": (call(made("a, b=1"), 1), call(made("a, b=1"), 1, 1.0)),
    "partial": (call(partial(made("a"), 1)), call(partial(made("a"), 2))),
    "identity": (
        call(made("a, b", identity=["b"]), 1, 2),
        call(made("a, b", identity=["b"]), 1, 3),
    ),
    "messages": (
        lambda run: run.call(made("a"), run.messages),
        lambda run: run.call(made("a"), list(run.messages)[1:]),
    ),
    "keyword-only, and the value": (call(made("a, b"), 1, 2), call(made("a, *, b"), 1, b=3)),
    "no parameter for the argument": (call(made("a"), 1), call(made(""))),
}


@pytest.mark.parametrize("edit", CHANGE)
def test_an_edit_that_says_something_else_stops(edit: str) -> None:
    with pytest.raises(DivergenceError):
        go_on_with(*CHANGE[edit])
    assert done == ["f"]


# -- identity=


class Request:
    """As SDKs have them: with a clock in it."""

    clock = 0

    def __init__(self, url: str, at: float = 0.0) -> None:
        type(self).clock += 1
        self.url, self.at = url, at or float(self.clock)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Request) and (self.url, self.at) == (other.url, other.at)

    __hash__ = None  # type: ignore[assignment]


@pytest.fixture
def requests_recorded() -> Iterator[None]:
    register(
        Request,
        name="test identity request",
        encode=lambda one: [one.url, one.at],
        decode=lambda given: Request(*given),
    )
    yield
    forget()


@pytest.mark.usefixtures("requests_recorded")
@pytest.mark.parametrize(
    "identity", [["request.url", "headers.to"], lambda request, headers: request.url]
)
def test_a_request_with_a_clock_is_known_by_what_its_tool_says(identity: Any) -> None:
    @tool(identity=identity)
    def post(request: Request, headers: dict[str, Any]) -> str:
        return said(request.url)

    async def agent(run: Run) -> Any:
        found = []
        for url in URLS:
            headers = {"to": "x", "trace": Request.clock}
            found.append(await run.call(post, Request(url), headers))
        return found

    report = crash_everywhere(agent, setup=done.clear, effects=lambda: done, points=scaled(5, 1000))
    assert report.ok, str(report)
    assert len(done) == len(URLS)


def test_what_does_not_count_is_recorded_all_the_same(store: CheckpointStore) -> None:
    @tool(identity=["url"])
    def post(url: str, trace: str) -> str:
        return said(url)

    run_sync(lambda run: post("/a", trace="t1"), store)
    assert [one.args for one in recorded(store, CallIntended)] == [[["/a", "t1"], {}]]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"identity": ["b"]}, ValueError, "identity='b': said has no such parameter"),
        ({"identity": "what"}, TypeError, r"identity=\['what'\]"),
        ({"identity": fetch}, TypeError, "identity= is a plain function"),
    ],
)
def test_an_identity_that_makes_no_sense_is_refused(
    options: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        tool(**options)(said)


# -- methods


class Kinds:
    """Tools in a class, in every order of the decorators."""

    @tool
    def method(self, what: str) -> str:
        """The docstring."""
        return said(f"method {what}")

    @classmethod
    @tool
    def class_inside(cls, what: str) -> str:
        return said(f"{cls.__name__} {what}")

    @tool
    @classmethod
    def class_outside(cls, what: str) -> str:
        return said(f"{cls.__name__} {what}")

    @staticmethod
    @tool
    def static_inside(what: str) -> str:
        return said(f"static {what}")

    @tool(after_crash="retry")
    @staticmethod
    def static_outside(what: str) -> str:
        return said(f"static {what}")

    @tool
    async def later(self, what: str) -> str:
        return said(f"later {what}")

    @tool
    def chunks(self, what: str) -> Any:
        yield said(f"chunks {what}")

    half = functools.partialmethod(method, "half")


@pytest.mark.parametrize("way", ["directly", "run.call", "by the class"])
def test_tools_in_a_class_are_tools(way: str, store: CheckpointStore) -> None:
    kinds = Kinds()
    names = ["method", "class_inside", "class_outside", "static_inside", "static_outside", "later"]

    async def agent(run: Run) -> Any:
        found = []
        for name in names:
            function: Any = getattr(kinds, name)
            args: tuple[Any, ...] = (name,)
            if way == "by the class":
                function = getattr(Kinds, name)
                args = (kinds, name) if name in ("method", "later") else args
            made = function(*args) if way == "directly" else run.call(function, *args)
            found.append(await made if inspect.isawaitable(made) else made)
        found.append(await run.call(kinds.half))
        async with run.stream(kinds.chunks, "x") as stream:
            found.append([chunk async for chunk in stream])
        if run.recovery_count == 0:
            raise OSError
        return found

    found = run(agent, store)["result"]
    assert found == [
        "said method method",
        "said Kinds class_inside",
        "said Kinds class_outside",
        "said static static_inside",
        "said static static_outside",
        "said later later",
        "said method half",
        ["said chunks x"],
    ]
    assert len(done) == 8
    assert [one.args for one in recorded(store, CallIntended)][:2] == [
        [["method"], {}],
        [["class_inside"], {}],
    ]
    assert (kinds.method("x"), Kinds.method.__doc__) == ("said method x", "The docstring.")
    assert inspect.iscoroutinefunction(kinds.later)


# -- elsewhere


def test_a_node_calls_partials() -> None:
    graph = Graph("g")

    @graph.node("a")
    async def node(context: NodeContext) -> Any:
        calls = (context.call(partial(fetch, url)) for url in URLS)
        return {"found": await asyncio.gather(*calls)}

    found = GraphExecutor().execute_sync(graph, "goal")
    assert found.output["found"] == [f"page {url} 1" for url in URLS]
    assert sorted(done) == URLS


def test_partials_and_methods_are_undone_with_their_arguments(store: CheckpointStore) -> None:
    undone: list[Any] = []

    def cancel(call: Call, result: Any) -> None:
        undone.append((call.args, call.kwargs))

    @tool(undo=cancel)
    def book(room: str, nights: int = 1) -> str:
        return said(room)

    class Hotel:
        recovery_key = "Ritz"
        book = tool(undo=cancel)(lambda self, room: said(room))

    async def agent(run: Run) -> Any:
        await run.call(partial(book, "a"), 2)
        await run.call(tool(name="book hotel")(Hotel().book), "b")
        return await run.undo()

    run(agent, store)
    assert undone == [(("b",), {"self": "Ritz"}), (("a", 2), {})]


# -- runs that were begun under the first rules


@pytest.mark.parametrize(
    ("first", "shown"),
    [
        (call(partial(pay, 10), "alice"), [["alice"], {}]),
        (call(made("a, b=5"), 1, 5), [[1, 5], {}]),
        (call(tool(pay), cents=10, to="x"), [[10, "x"], {}]),
        (lambda run: run.call(lambda: said("x")), [[], {}]),
    ],
)
def test_runs_of_the_first_rules_keep_the_identities_they_had(
    first: Callable[[Run], Any], shown: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery.agent.begin_run, "Rules", lambda version: None)
    store = disk_store()

    async def agent(run: Run) -> Any:
        assert execution_of(run).rules == 1
        found = [await first(run), await first(run)]
        if run.recovery_count == 0:
            raise Died
        return found

    store = die_in(agent, store)
    monkeypatch.undo()
    assert [one.args for one in recorded(store, CallIntended)] == [shown] * 2
    run(agent, store)
    assert len(done) == 2


# -- what identifies a call is less than what is recorded


def without_clocks(request: dict[str, Any]) -> Any:
    """What of a model's request is compared: no time, and no id of this process."""
    return [{"role": one["role"], "content": one["content"]} for one in request["messages"]]


def request_of(text: str, size: int = 0) -> dict[str, Any]:
    """A request as a framework builds it: in each process with other times and ids."""
    Request.clock += 1
    messages = [
        {"role": "system", "content": "x" * size, "at": Request.clock},
        {"role": "user", "content": text, "at": Request.clock, "id": f"msg-{Request.clock}"},
    ]
    return {"model": "m", "messages": messages, "sent": Request.clock + 0.5}


def asks(run: Run, request: dict[str, Any], **options: Any) -> Any:
    """By a function that is made for this call, as adapters make them."""

    async def handler(request: dict[str, Any]) -> str:
        return said(f"{request['messages'][-1]['content']} {len(seen)}")

    seen: list[object] = [object(), request]
    model = tool(name="model", identity=without_clocks, **options)
    return run.call(model(handler), request)


@pytest.mark.parametrize("size", [0, 50_000])
def test_requests_with_clocks_are_recorded_whole_and_served(size: int) -> None:
    async def agent(run: Run) -> Any:
        first = await asyncio.gather(*(asks(run, request_of(url, size)) for url in URLS))
        async for step in run.steps():
            if step == 3:
                return first
            first.append(await asks(run, request_of("again", size)))

    report = crash_everywhere(
        agent, setup=done.clear, effects=lambda: sorted(done), points=scaled(5, 1000)
    )
    assert report.ok, str(report)
    assert len(done) == len(URLS) + 2


def test_the_log_has_the_whole_request_and_the_handle_shows_it(store: CheckpointStore) -> None:
    async def agent(run: Run) -> Any:
        return await asks(run, request_of("hello", 50_000))

    run(agent, store)
    (intent,) = recorded(store, CallIntended)
    [[request], named] = intent.args
    assert named == {} and len(request["messages"][0]["content"]) == 50_000
    assert request["messages"][1]["content"] == "hello" and request["sent"] > 0
    call = next(one for one in store.run(RUN).events() if one.kind == "call")
    assert call.size > 50_000


def test_arguments_beyond_a_megabyte_are_recorded_by_digest(store: CheckpointStore) -> None:
    async def agent(run: Run) -> Any:
        found = await asks(run, request_of("hello", 2 << 20))
        if run.recovery_count == 0:
            raise OSError("once more")
        return found

    run(agent, store)
    (intent,) = recorded(store, CallIntended)
    assert intent.args is None and intent.size > 2 << 20
    assert len(done) == 1


def test_equal_requests_of_functions_made_for_one_call_are_no_ambiguity(
    store: CheckpointStore,
) -> None:
    async def agent(run: Run) -> Any:
        return [await asks(run, request_of("same")) for _ in range(3)]

    assert run(agent, store)["result"] == ["said same 2"] * 3
    assert len({one.digest for one in recorded(store, CallIntended)}) == 1
    assert [one.occurrence for one in recorded(store, CallIntended)] == [1, 2, 3]


def test_different_code_under_one_identity_is_refused_all_the_same(
    store: CheckpointStore,
) -> None:
    async def agent(run: Run) -> Any:
        model = tool(name="model", identity=lambda: 1)
        return [await run.call(model(same_name(url))) for url in URLS]

    with pytest.raises(AmbiguousCallError):
        run(agent, store)


def test_a_divergence_says_what_identifies_the_call_and_not_what_does_not() -> None:
    store, text = disk_store(), "first"

    async def agent(run: Run) -> Any:
        await asks(run, request_of(text))
        raise Died

    with pytest.raises(Died):
        run(agent, store)
    text = "second"
    with pytest.raises(DivergenceError) as found:
        run(agent, store)
    assert "identity[1].content: 'first' -> 'second'" in str(found.value)
    assert "different: " in str(found.value)
    assert "sent" not in str(found.value).partition("different: ")[2].partition("\n")[0]


def test_names_that_identify_are_those_of_a_divergence() -> None:
    store, url = disk_store(), "/a"

    async def agent(run: Run) -> Any:
        post = tool(name="post", identity=["request.url"])(Poster().post)
        await run.call(post, {"url": url, "at": Request.clock})
        raise Died

    class Poster:
        recovery_key = "p"

        async def post(self, request: dict[str, Any]) -> str:
            Request.clock += 1
            return said(request["url"])

    with pytest.raises(Died):
        run(agent, store)
    url = "/b"
    with pytest.raises(DivergenceError, match=r"request\.url: '/a' -> '/b'"):
        run(agent, store)


def test_keys_for_other_services_do_not_depend_on_what_does_not_identify() -> None:
    keys: set[str] = set()
    store = disk_store()

    async def charge(request: dict[str, Any]) -> str:
        call = current_call()
        assert call is not None
        keys.add(call.idempotency_key)
        if len(done) < 2:
            done.append("attempt")
            raise Died
        return "charged"

    async def agent(run: Run) -> Any:
        request = request_of("x")
        made = tool(identity=without_clocks, after_crash="retry")(charge)
        return await run.call(made, request)

    for _ in range(2):
        with pytest.raises(Died):
            run(agent, store)
    run(agent, store)
    assert len(keys) == 1


def test_a_run_begun_before_its_tool_said_what_identifies_it_goes_on() -> None:
    store, options = disk_store(), dict[str, Any]()

    async def fetches(request: dict[str, Any]) -> str:
        return said(request["messages"][-1]["content"])

    async def agent(run: Run) -> Any:
        found = [await run.call(tool(**options)(fetches), request_of(url)) for url in URLS[:2]]
        if not options:
            raise Died
        return found

    clock = Request.clock
    with pytest.raises(Died):
        run(agent, store)
    options, Request.clock = {"identity": without_clocks}, clock + 100
    assert run(agent, store)["result"] == ["said /a", "said /b"]
    assert done == ["/a", "/b"]


def test_a_fork_is_served_and_a_comparison_finds_no_difference(store: CheckpointStore) -> None:
    async def agent(run: Run) -> Any:
        return [await asks(run, request_of(url)) for url in URLS]

    run(agent, store)
    made = len(done)
    fork = store.run(RUN).fork("fork")
    of = RecoverableAgent(agent, store)
    assert of.run_with_recovery_sync("task", "fork")["result"] == [f"said {u} 2" for u in URLS]
    assert len(done) == made
    assert store.run(RUN).compare(fork).alike
    other = RecoverableAgent(agent, store).run_with_recovery_sync("task", "other")
    assert other["result"] == [f"said {u} 2" for u in URLS]
    assert store.run(RUN).compare("other").alike


@pytest.mark.parametrize("kind", ["async", "plain", "direct", "stream"])
def test_functions_made_for_one_call_die_after_it(kind: str) -> None:
    held: list[weakref.ref[Any]] = []

    def made(at: int) -> Callable[..., Any]:
        conversation = Api("x")

        async def handler(request: dict[str, Any]) -> str:
            return f"{conversation.name} {at}"

        def plain(request: dict[str, Any]) -> str:
            return f"{conversation.name} {at}"

        async def generate(request: dict[str, Any]) -> AsyncIterator[str]:
            yield f"{conversation.name} {at}"

        function = {"plain": plain, "stream": generate}.get(kind, handler)
        held.extend((weakref.ref(conversation), weakref.ref(function)))
        return function

    async def one(run: Run, at: int) -> None:
        options: Any = {"identity": without_clocks} if at % 2 else {}
        function = tool(name=f"model {at}", call_id=f"c{at}", **options)(made(at))
        request = request_of(str(at))
        match kind:
            case "direct":
                await function(request)
            case "stream":
                await streamed(run, partial(function, request))
            case _:
                await run.call(function, request)

    async def agent(run: Run) -> None:
        async for step in run.steps():
            for at in range(100):
                await one(run, at)
            deadline = time.monotonic() + 20
            while left := [here for here in held if here() is not None]:
                # The thread that executed the last plain tool lets go of it after its outcome.
                assert time.monotonic() < deadline, left
                del left
                await asyncio.sleep(0.01)
                gc.collect()
            if step == 3:
                return

    run(agent, CheckpointStore())
    assert len(held) == 600


# -- in any order


class Account:
    """A client, which no record can hold; of the account that its key names."""

    def __init__(self, name: str) -> None:
        self.recovery_key = name


def of_account(account: Account, url: str) -> str:
    done.append(account.recovery_key)
    return account.recovery_key + url


@tool
def reply(messages: list[Any], model: str) -> str:
    done.append(model)
    return f"{model} {len(messages)}"


@pytest.mark.parametrize("what", ["partials", "messages"])
def test_equal_calls_are_told_apart_by_what_else_they_are_given(what: str) -> None:
    """A replay makes them in another order."""

    async def agent(run: Run) -> dict[str, str]:
        run.messages.append({"role": "user", "content": "which?"})
        names = "ba" if run.recovery_count else "ab"
        if what == "partials":
            calls = [run.call(partial(of_account, Account(name)), " 1") for name in names]
        else:
            calls = [run.call(reply, list(run.messages), name) for name in names]
        found = await asyncio.gather(*calls)
        if not run.recovery_count:
            raise ConnectionError
        return dict(zip(names, found, strict=True))

    assert run(agent, CheckpointStore())["result"] == {"a": "a 1", "b": "b 1"}
    assert sorted(done) == ["a", "b"]


def test_an_empty_list_is_no_conversation(store: CheckpointStore) -> None:
    run_sync(lambda run: run.call(reply, [], "m"), store)
    (intent,) = recorded(store, CallIntended)
    assert intent.digest == digest(pack_arguments(([], "m"), {}, ""))


def test_a_partial_may_leave_places_open(monkeypatch: pytest.MonkeyPatch) -> None:
    hole: Any = getattr(functools, "Placeholder", object())  # of Python 3.14
    monkeypatch.setattr(functools, "Placeholder", hole, raising=False)
    made = ToolSpec("f", partial(of_account, hole, "2"))
    spec, given = plainly(made, ((1, 3), {}))
    assert (spec.function, given) == (of_account, ((1, "2", 3), {}))
    assert plainly(made, ((), {}))[1] == ((hole, "2"), {})
