"""@tool: a plain function outside of a run, a recorded call inside."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import os
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from eventlog import RefusedValueError
from recovery import (
    Call,
    CheckpointStore,
    InDoubtError,
    RecoverableAgent,
    Resolution,
    Run,
    SyncRun,
    ToolError,
    current_call,
    tool,
)
from recovery.control.resolve import resolve
from recovery.declare.parameters import form_of
from recovery.declare.spec import function_name, is_async
from recovery.journal.events import CallFailed
from recovery.journal.rebuilt_errors import rebuilt
from tests.support.lives import executed

pytestmark = pytest.mark.usefixtures("fresh")


def run(agent: Any, store: CheckpointStore | None = None, run_id: str = "run") -> Any:
    of = RecoverableAgent(agent, store or CheckpointStore(), max_recoveries=1)
    return of.run_with_recovery_sync("task", run_id)["result"]


def twice(*calls: Any) -> list[Any]:
    """Results of calls in an agent that is recovered once: each was executed once."""

    async def agent(run: Run) -> Any:
        found = [await run.call(function, *args) for function, *args in calls]
        if run.recovery_count == 0:
            raise OSError
        return found

    found: list[Any] = run(agent)
    return found


# -- the arguments

FUNCTIONS: list[Any] = [
    lambda: 0,
    lambda a: 0,
    lambda a, b=1: 0,
    lambda a, /, b: 0,
    lambda a, *, b=1: 0,
    lambda a, *, b: 0,
    lambda *args: 0,
    lambda a, **more: 0,
    functools.partial(lambda a, b: 0, 1),
    functools.partial(lambda a, b, c: 0, b=1),
    dict,
    Counter[Any]().get,
]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("kwargs", [{}, {"b": 2}, {"a": 1, "b": 2}, {"x": 1}])
@pytest.mark.parametrize("args", [(), (1,), (1, 2), (1, 2, 3)])
def test_arguments_are_told_apart_as_the_signature_binds_them(function, args, kwargs):
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
        expected = bound.args, bound.kwargs
    except (TypeError, ValueError):
        expected = args, kwargs
    assert form_of(function).bound((args, kwargs)) == expected


# -- the decorator


def test_outside_of_a_run_a_tool_is_the_plain_function():
    @tool
    def plain(a: int, *, b: int = 2) -> tuple[int, int]:
        """The docstring."""
        assert current_call() is None
        return a, b

    @tool(after_crash="retry")
    async def coroutine(a: int) -> set[int]:
        return {a}

    assert plain(1, b=3) == (1, 3)  # a tuple: nothing is recorded
    assert asyncio.run(coroutine(1)) == {1}
    with pytest.raises(TypeError, match="missing 1 required"):
        plain()  # type: ignore[call-arg]
    assert (plain.__name__, plain.__doc__) == ("plain", "The docstring.")
    assert str(inspect.signature(plain)) == "(a: 'int', *, b: 'int' = 2) -> 'tuple[int, int]'"
    assert inspect.iscoroutinefunction(coroutine)
    assert not inspect.iscoroutinefunction(plain)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"after_crash": "ignore"}, ValueError, "not 'ignore'"),
        ({"after_crash": "retry", "reconcile": len}, ValueError, "leave out after_crash="),
        ({"reconcile": len, "after_crash": "report"}, ValueError, "leave out after_crash="),
    ],
)
def test_options_that_make_no_sense_are_refused(options, error, text):
    with pytest.raises(error, match=text):
        tool(**options)(lambda: None)


@pytest.mark.parametrize("what", ["send", 1, None])
def test_only_functions_are_tools(what):
    if what is None:
        with pytest.raises(TypeError, match=r"@tool is for functions.*@tool\(name=\.\.\.\)"):
            tool()(what)  # type: ignore[arg-type]
        return
    with pytest.raises(TypeError, match=r"@tool is for functions.*@tool\(name=\.\.\.\)"):
        tool(what)


class Mailer:
    def __init__(self) -> None:
        self.sent = 0

    def send(self, what: str) -> str:
        executed[what] += 1
        return f"sent {what}"

    async def asend(self, what: str) -> str:
        return self.send(what)

    def __call__(self, what: str) -> str:
        return self.send(what)


class AsyncMailer:
    async def __call__(self, what: str) -> str:
        executed[what] += 1
        return f"sent {what}"


class Unhashable(Mailer):
    __hash__ = None  # type: ignore[assignment]


def send(to: str, what: str) -> str:
    executed[what] += 1
    return f"sent {what} {to}"


async def asend(to: str, what: str) -> str:
    return send(to, what)


KINDS: dict[str, tuple[Any, str, bool]] = {
    "bound method": (Mailer().send, "send", False),
    "async bound method": (Mailer().asend, "asend", True),
    "object": (Mailer(), "Mailer", False),
    "async object": (AsyncMailer(), "AsyncMailer", True),
    "unhashable object": (Unhashable(), "Unhashable", False),
    "partial": (functools.partial(send, "you"), "send", False),
    "async partial": (functools.partial(asend, "you"), "asend", True),
    "nested partial": (functools.partial(functools.partial(send), "you"), "send", False),
    "builtin": (os.fspath, "fspath", False),
    "builtin method": ("-".join, "join", False),
}


@pytest.mark.parametrize("kind", KINDS)
def test_anything_that_can_be_called_can_be_a_tool(kind):
    function, name, asynchronous = KINDS[kind]
    assert function_name(function) == name
    assert is_async(function) is asynchronous
    made = tool(function)
    assert is_async(made) is asynchronous
    found = twice((made, "a"), (function, "b"))
    assert str(found[0]) in ("sent a", "sent a you", "a")
    assert set(executed.values()) <= {1}


def test_a_tool_is_known_by_its_name_or_the_one_it_is_given():
    calls = []

    def f() -> None:
        call = current_call()
        assert call is not None
        calls.append(call.tool)

    twice((tool(f),), (tool(name="other")(f),), (f,))
    assert calls == ["f", "other", "f"]


def test_arguments_that_do_not_fit_are_a_failure_of_the_call():
    async def agent(run: Run) -> Any:
        with pytest.raises(TypeError, match="missing 1 required"):
            await run.call(cast(Any, send), "x")
        with pytest.raises(TypeError, match="unexpected keyword"):
            await run.call(cast(Any, send), "you", "x", nonsense=1)
        if run.recovery_count == 0:
            raise OSError
        return "done"

    assert run(agent) == "done"


def test_an_argument_that_cannot_be_carried_is_named_and_nothing_executed():
    async def agent(run: Run) -> Any:
        with pytest.raises(RefusedValueError, match=r"^send\(args\[0\]\.cc\): memoryview"):
            await run.call(cast(Any, send), {"cc": memoryview(b"")}, "x")
        with pytest.raises(RefusedValueError, match=r"^opaque\(args\[0\]\): object"):
            await run.call(opaque, object())
        return executed.total()

    @tool
    def opaque(what: Any, then: Any = None) -> None:
        executed["opaque"] += 1

    assert run(agent) == 0


# -- current_call and idempotency keys


def key() -> str:
    call = current_call()
    assert call is not None
    return call.idempotency_key


@tool
def note(what: str) -> list[Any]:
    call = current_call()
    assert call is not None
    return [call.tool, list(call.args), call.kwargs, call.call_id, call.attempt, key()]


@tool
async def anote(what: str) -> list[Any]:
    return [key(), await asyncio.to_thread(key), await asyncio.create_task(akey())]


async def akey() -> str:
    return key()


@tool
def outer() -> list[Any]:
    before, inside = key(), note("nested")
    assert key() == before
    context = contextvars.copy_context()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(context.run, key).result() == before
    return [before, inside]


def test_a_tool_sees_its_call():
    async def agent(run: Run) -> Any:
        assert current_call() is None
        found = [await run.call(note, "x", call_id="id7"), await run.call(anote, "x"), outer()]
        assert current_call() is None
        return found

    (name, args, kwargs, call_id, attempt, _), keys, (_, nested) = run(agent)
    assert (name, args, kwargs, call_id, attempt) == ("note", ["x"], {}, "id7", 1)
    assert len(set(keys)) == 1
    assert nested[0] == "note"


def test_each_call_of_each_run_has_a_key_of_its_own():
    async def agent(run: Run) -> Any:
        found = [note("x")[-1], note("x")[-1], note("y")[-1], outer()[0], outer()[1][-1]]
        found.append((await run.call(note, "x", call_id="1"))[-1])
        async for _ in run.steps():
            found.append(note("x")[-1])
            if len(found) == 9:
                return found

    store = CheckpointStore()
    keys = run(agent, store, "a") + run(agent, store, "b")
    assert len(set(keys)) == len(keys) == 18


def test_a_call_says_what_it_is():
    call = Call("run", 7, "3", "send", ("you", "x" * 200), {"n": 1}, "", "k" * 32, 1, 0)
    assert str(call).startswith("LSN 7: send('you', 'xxx")
    assert " ... xxx" in str(call)
    assert "xxx', n=1), idempotency key kkk" in str(call)
    assert len(str(call)) < 200


# -- calls inside calls, and in threads


def test_calls_inside_calls_are_recorded_and_covered_by_the_outer_one():
    @tool
    async def fetch(what: str) -> str:
        executed[what] += 1
        return what

    @tool
    async def collect() -> list[str]:
        executed["collect"] += 1
        return list(await asyncio.gather(fetch("a"), fetch("b"), fetch("a")))

    found = twice((collect,), (fetch, "a"))
    assert found == [["a", "b", "a"], "a"]
    assert executed == {"a": 3, "b": 1, "collect": 1}


def test_a_call_that_is_made_again_is_served_the_calls_inside_it():
    class DiedError(BaseException):
        pass

    @tool
    def charge(what: str) -> str:
        executed[what] += 1
        return what

    @tool(after_crash="retry")
    def checkout() -> list[str]:
        executed["checkout"] += 1
        found = [charge("card")]
        if executed["checkout"] == 1:
            raise DiedError
        return [*found, charge("points")]

    async def agent(run: Run) -> Any:
        return await run.call(checkout)

    store = CheckpointStore()
    with pytest.raises(DiedError):
        run(agent, store)
    assert run(agent, store) == ["card", "points"]
    assert executed == {"card": 1, "points": 1, "checkout": 2}


@pytest.mark.parametrize("policy", ["report", "reconcile", "resolve"])
def test_a_call_is_settled_when_the_calls_inside_it_are(policy):
    class DiedError(BaseException):
        pass

    @tool
    def charge(what: str) -> str:
        executed[what] += 1
        if what == "second":
            raise DiedError
        return what

    def checkout() -> str:
        executed["checkout"] += 1
        charge("first")
        return charge("second")

    policies: dict[str, dict[str, Any]] = {
        "report": {"after_crash": "report"},
        "reconcile": {"reconcile": lambda call: Resolution.outcome("found")},
        "resolve": {},
    }
    options = policies[policy]
    made = tool(**options)(checkout)

    async def agent(run: Run) -> Any:
        await run.call(made)
        return await run.call(send, "you", "after")

    store = CheckpointStore()
    with pytest.raises(DiedError):
        run(agent, store)
    with pytest.raises(InDoubtError) as caught:
        run(agent, store)
    lsns = {call.tool: call.lsn for call in caught.value.calls}
    if policy == "resolve":
        resolve(store, "run", lsns["checkout"], Resolution.outcome("found"))
        with pytest.raises(InDoubtError, match="charge"):
            run(agent, store)
    resolve(store, "run", lsns["charge"], Resolution.fail("no points left"))
    assert run(agent, store) == "sent after you"
    assert executed == {"first": 1, "second": 1, "checkout": 1, "after": 1}


def test_calls_from_threads_are_recorded():
    def agent(run: SyncRun) -> Any:
        with ThreadPoolExecutor(4) as pool:
            waiting = [pool.submit(run.call, send, "you", str(n)) for n in range(8)]
            found = [one.result() for one in waiting]
        if run.recovery_count == 0:
            raise OSError
        return found

    assert run(agent) == [f"sent {n} you" for n in range(8)]
    assert set(executed.values()) == {1}
    assert len(executed) == 8


def test_decorated_tools_in_threads_need_the_context():
    recorded = tool(send)

    def agent(run: SyncRun) -> Any:
        found = []
        context = contextvars.copy_context()
        thread = threading.Thread(
            target=lambda: found.append(context.run(recorded, "you", "x")), name="t"
        )
        thread.start()
        thread.join()
        if run.recovery_count == 0:
            raise OSError
        return found

    assert run(agent) == ["sent x you"]
    assert executed == {"x": 1}


# -- exceptions


@pytest.mark.parametrize("name", ["exec", "SystemExit", "StopIteration", "nothing"])
def test_what_a_log_names_is_never_looked_up_but_among_exceptions(name):
    recorded = CallFailed(1, f"builtins.{name}", "x", ["x"])
    assert type(rebuilt(recorded, (), 2)) is ToolError
