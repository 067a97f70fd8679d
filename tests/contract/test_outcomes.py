"""Every outcome is recorded, or its call is in doubt; results and errors are the same on replay."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pydantic import BaseModel, create_model

from recovery import (
    CheckpointConfig,
    CheckpointManager,
    CheckpointStore,
    InDoubtError,
    ModelData,
    RecoverableAgent,
    Resolution,
    ToolError,
    register,
    tool,
)
from recovery.control.resolve import resolve
from recovery.errors import RunFailedError, UnrecordedResultError
from recovery.graph import Graph, GraphExecutor
from recovery.inspect.status import status
from recovery.testing import crash_everywhere
from tests.support.lives import forget
from tests.support.scale import scaled

RUN = "run"
made: Counter[str] = Counter()
SCRIPT = Path(__file__).with_name("outcomes.py")


class Strange:
    """A value that no log can hold."""

    def __repr__(self) -> str:
        return "Strange(receipt 17)"


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    made.clear()
    yield
    forget()


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path) if request.param == "file" else CheckpointStore()


def run(agent: Callable[..., Any], store: CheckpointStore, **options: Any) -> Any:
    return RecoverableAgent(agent, store, **options).run_with_recovery_sync("task", RUN)["result"]


# -- a result that cannot be recorded

BAD: dict[str, Callable[[], Any]] = {
    "a type": lambda: {"items": [1, Strange()]},
    "too large": lambda: "x" * (65 << 20),
    "too deep": lambda: __import__("functools").reduce(lambda a, _: [a], range(600), "x"),
}


def both(name: str, bad: Callable[[], Any], **options: Any) -> Callable[[bool], Any]:
    """A tool of this name whose result is bad until it is mended, plain or async."""

    def give(mended: bool) -> Any:
        made[name] += 1
        return "fine" if mended else bad()

    def plain(mended: bool) -> Any:
        @tool(name=name, **options)
        def one() -> Any:
            return give(mended)

        return one

    return plain


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("bad", "options", "then", "calls"),
    [
        ("a type", {}, "resolve", 1),
        ("too large", {}, "resolve", 1),
        ("too deep", {}, "resolve", 1),
        ("a type", {"after_crash": "retry"}, "fine", 2),
        ("too deep", {"after_crash": "report"}, "OutcomeUnknown", 1),
        ("a type", {"reconcile": lambda call: Resolution.outcome("asked")}, "asked", 1),
        ("too deep", {"reconcile": lambda call: Resolution.retry()}, "fine", 2),
    ],
)
def test_what_cannot_be_recorded_is_no_outcome(
    bad: str, is_async: bool, options: Any, then: str, calls: int, store: CheckpointStore
) -> None:
    pay, seen = both("pay", BAD[bad], **options), list[Any]()

    def agent(mended: bool) -> Any:
        def plain(run: Any) -> Any:
            for _ in run.steps():
                try:
                    found = run.call(pay(mended))
                except Exception as exc:  # the agent has no way to swallow it
                    seen.append(exc)
                    return "swallowed"
                seen.append(found)
                return found if isinstance(found, str) else type(found).__name__
            return None

        async def like_it(run: Any) -> Any:
            async for _ in run.steps():
                try:
                    found = await run.call(pay(mended))
                except Exception as exc:
                    seen.append(exc)
                    return "swallowed"
                seen.append(found)
                return found if isinstance(found, str) else type(found).__name__
            return None

        return like_it if is_async else plain

    with pytest.raises(UnrecordedResultError) as stopped:
        run(agent(mended=False), store)
    error = stopped.value
    assert (error.tool, seen, made["pay"]) == ("pay", [], 1)
    assert error.path.startswith("result of pay")
    assert "Every earlier record is kept" in str(error)
    (call,) = status(store, RUN).calls
    assert (call.lsn, call.state) == (error.lsn, "in doubt")  # what its policy does comes then
    if bad == "a type":
        assert error.path == "result of pay.items[1]"
        assert "Strange(receipt 17)" in str(error)
        assert "recovery.register" in str(error)
    else:
        assert "Correct the tool.\n" in str(error)
    if then == "resolve":
        for _ in range(2):
            with pytest.raises(InDoubtError):
                run(agent(mended=True), store)
        assert f"recovery resolve run {call.idempotency_key} --outcome JSON" in str(error)
        resolve(store, RUN, error.lsn, Resolution.outcome("receipt 17"))
        then = "receipt 17"
    assert run(agent(mended=True), store) == then
    assert made["pay"] == calls


def test_registering_the_type_is_enough_for_a_repeatable_call(store: CheckpointStore) -> None:
    @tool(after_crash="retry")
    def look() -> Any:
        made["look"] += 1
        return Strange()

    def agent(run: Any) -> Any:
        return repr(look())

    with pytest.raises(UnrecordedResultError, match=r"repeatable, so it is made again"):
        run(agent, store)
    register(Strange, encode=lambda value: 1, decode=lambda recorded: Strange())
    assert run(agent, store) == "Strange(receipt 17)"
    assert made["look"] == 2


@pytest.mark.parametrize("is_async", [False, True])
def test_inside_other_calls_nothing_around_it_gets_an_outcome(
    is_async: bool, store: CheckpointStore
) -> None:
    bad = True

    @tool
    def charge() -> Any:
        made["charge"] += 1
        return Strange() if bad else "charged"

    @tool
    def order() -> str:
        made["order"] += 1
        try:
            return f"ordered, {charge()}"
        except Exception:
            return "swallowed"

    def plain(run: Any) -> Any:
        return run.call(order)

    async def like_it(run: Any) -> Any:
        return await run.call(order)

    agent = like_it if is_async else plain
    with pytest.raises(UnrecordedResultError, match="call 3, charge"):
        run(agent, store)
    assert [call.name for call in status(store, RUN).in_doubt] == ["order#2", "charge#3"]
    resolve(store, RUN, 3, Resolution.outcome("known"))
    resolve(store, RUN, 2, Resolution.retry())
    assert run(agent, store) == "ordered, known"
    assert made == {"charge": 1, "order": 2}


@pytest.mark.parametrize("what", ["chunk", "combined"])
def test_of_a_stream(what: str, store: CheckpointStore) -> None:
    combine: Any = {"combine": lambda chunks: Strange(), "split": lambda value: [value]}

    @tool(**(combine if what == "combined" else {}))
    async def say() -> AsyncIterator[Any]:
        made["say"] += 1
        yield "a"
        yield Strange() if what == "chunk" else "b"

    async def agent(run: Any) -> Any:
        async with run.stream(say) as chunks:
            return [chunk async for chunk in chunks]

    with pytest.raises(UnrecordedResultError):
        run(agent, store)
    with pytest.raises(InDoubtError) as parked:
        run(agent, store)
    resolve(store, RUN, parked.value.calls[0].lsn, Resolution.outcome("ab"))
    assert run(agent, store) == ["ab"]
    assert made["say"] == 1


def test_of_a_node_of_a_graph(tmp_path: Path) -> None:
    bad = True

    @tool
    def charge() -> str:
        made["charge"] += 1
        return "charged"

    def executed() -> Any:
        graph = Graph("shop")

        @graph.node("pay", after_crash="retry")
        def pay(context: Any) -> Any:
            made["node"] += 1
            return {"paid": charge(), "bad": Strange() if bad else "mended"}

        manager = CheckpointManager(str(tmp_path), CheckpointConfig())
        return GraphExecutor(checkpoint_manager=manager).execute_sync(graph, "goal", {}, RUN)

    for _ in range(2):
        with pytest.raises(UnrecordedResultError, match=r"output of node pay\.output\.bad"):
            executed()
    bad = False
    assert executed().output["paid"] == "charged"
    assert made == {"charge": 1, "node": 3}


def test_of_a_child_run_and_of_the_agent_itself(store: CheckpointStore) -> None:
    bad = True

    @tool
    def charge() -> str:
        made["charge"] += 1
        return "charged"

    def child(run: Any) -> Any:
        charge()
        return Strange() if bad else "child"

    def parent(run: Any) -> Any:
        found = run.child(child, "part")
        return found if not bad or found != "child" else Strange()

    with pytest.raises(
        Exception, match="the agent function returned a value that cannot be recorded"
    ):
        run(parent, store)
    bad = False
    assert run(parent, store) == "child"
    assert made == {"charge": 1}


def test_of_what_the_agent_returns(store: CheckpointStore) -> None:
    with pytest.raises(UnrecordedResultError, match=r"none is made again") as stopped:
        run(lambda run: {"a": Strange(), "b": "x" * 5000}, store)
    assert (stopped.value.lsn, stopped.value.path) == (0, "result.a")
    begin, end = stopped.value.shown.split(" ... ")
    assert begin.startswith("{'a': ") and end.endswith("x'}") and len(begin) == len(end) == 1000
    assert status(store, RUN).error is not None
    assert run(lambda run: "mended", store) == "mended"


def test_of_a_secret_in_what_is_left_out_no_part_is_shown(store: CheckpointStore) -> None:
    @tool(redact=["key"])
    def charge(key: str) -> Any:
        return [Strange(), f"{'x' * 870}{key}{'x' * 3000}"]

    key = "".join(map(str, range(80)))
    with pytest.raises(UnrecordedResultError) as stopped:
        run(lambda run: run.call(charge, key), store)
    assert "xxx" in stopped.value.shown and not re.search(r"\d{4}", stopped.value.shown)


# -- types that the code names


def script(store: Path, effects: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), str(store)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=os.environ | {"EFFECTS": str(effects)} | env,
    )


@pytest.mark.parametrize("die_in", ["1", "2", "4"])
def test_types_of_a_script_are_carried_over_a_sigkill(die_in: str, tmp_path: Path) -> None:
    never = script(tmp_path / "never", tmp_path / "once")
    assert never.returncode == 0, never.stderr
    assert script(tmp_path / "killed", tmp_path / "effects", DIE_IN=die_in).returncode == -9
    done = script(tmp_path / "killed", tmp_path / "effects")
    assert (done.stdout, done.stderr) == (never.stdout, "")
    assert (tmp_path / "effects").read_text() == (tmp_path / "once").read_text()


def test_a_script_and_the_module_of_it_are_one(tmp_path: Path) -> None:
    assert script(tmp_path / "runs", tmp_path / "effects", DIE_IN="2").returncode == -9
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "recovery.cli",
            "resume",
            RUN,
            "--agent",
            "outcomes:agent",
            "--json",
            "--store",
            str(tmp_path / "runs"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=SCRIPT.parent,
        env=os.environ | {"EFFECTS": str(tmp_path / "effects")},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["run_id"] == RUN
    assert (tmp_path / "effects").read_text().count("order") == 4


@pytest.fixture
def sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package, of which no code here names a type."""
    usage = create_model("Usage", __module__="some_sdk", tokens=(int, ...))
    reply = create_model(
        "Reply",
        __module__="some_sdk",
        __config__={"extra": "allow"},
        text=(str, ...),
        usage=(usage, ...),
        items=(list[int], ...),
    )
    package: Any = ModuleType("some_sdk")
    package.create = lambda: reply(text="hi", usage=usage(tokens=3), items=[1], more=None)
    monkeypatch.setitem(sys.modules, "some_sdk", package)


@pytest.mark.parametrize("is_async", [False, True])
def test_what_an_sdk_returns_is_the_same_first_and_on_replay(
    is_async: bool, store: CheckpointStore, sdk: None
) -> None:
    seen: list[Any] = []

    @tool(after_crash="retry")
    def ask() -> Any:
        return sys.modules["some_sdk"].create()

    def look(reply: Any) -> None:
        seen.append(reply)
        assert (reply.text, reply.usage.tokens, reply.items, reply.more) == ("hi", 3, [1], None)
        with pytest.raises(AttributeError, match="Name the type in the return annotation"):
            reply.model_copy()

    def plain(run: Any) -> Any:
        look(run.call(ask))
        if run.recovery_count < 1:
            raise OSError
        return seen[-1].model_dump()

    async def like_it(run: Any) -> Any:
        look(await run.call(ask))
        if run.recovery_count < 1:
            raise OSError
        return seen[-1].model_dump()

    result = run(like_it if is_async else plain, store)
    assert result == {"text": "hi", "usage": {"tokens": 3}, "items": [1], "more": None}
    assert [type(one) for one in seen] == [ModelData, ModelData]
    assert seen[0] == seen[1]
    assert seen[0].model_type == "some_sdk.Reply"
    assert dict(seen[0].usage) == {"tokens": 3}


# -- exceptions


class HttpError(Exception):
    pass


class StatusError(HttpError):
    def __init__(self, status: int, *, response: Any) -> None:
        super().__init__(f"status {status}")
        made["constructed"] += 1
        self.status, self.response = status, response


class SlottedError(OSError):
    __slots__ = ("code",)

    def __init__(self, code: int) -> None:
        super().__init__(code, "slotted")
        self.code = code


def raise_group() -> None:
    raise ExceptionGroup("both", [StatusError(500, response=Strange()), TimeoutError("late")])


def raise_from() -> None:
    try:
        try:
            raise asyncio.CancelledError
        except BaseException as exc:
            raise SlottedError(3) from exc
    except OSError as exc:
        raise StatusError(502, response=Strange()) from exc


def raise_with_notes() -> None:
    exc = LookupError("no room")
    exc.add_note("asked for a double room")
    raise exc


def raise_from_many() -> None:
    cause = ValueError("the first")
    for number in range(9):
        later = ValueError(f"later {number}")
        later.__cause__, cause = cause, later
    raise cause


RAISED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "a subclass": (lambda: raising(StatusError(429, response=Strange())), HttpError, "429"),
    "with slots": (lambda: raising(SlottedError(7)), SlottedError, "slotted"),
    "a group": (raise_group, ExceptionGroup, "both"),
    "of a library": (lambda: json.loads("{"), json.JSONDecodeError, "property name"),
    "a time-out": (lambda: raising(TimeoutError("late")), TimeoutError, "late"),
    "an import": (lambda: __import__("no_such"), ModuleNotFoundError, "no_such"),
    "from another": (raise_from, HttpError, "502"),
    "from many": (raise_from_many, ValueError, "later 8"),
    "with notes": (raise_with_notes, LookupError, "no room"),
    "a key": (lambda: dict[str, int]()["k"], KeyError, "'k'"),
    "two files": (lambda: Path("/no/x").rename("/y"), FileNotFoundError, "-> '/y'"),
    "of bytes": (b"\xff".decode, UnicodeDecodeError, "can't decode byte 0xff"),
    "a surrogate": (lambda: raising(ValueError("\ud800")), ValueError, "\ud800"),
    "long": (lambda: raising(ValueError("x" * 99_999)), ValueError, "xxx"),
}


def raising(exc: Exception) -> Any:
    raise exc


@pytest.mark.parametrize("name", RAISED)
@pytest.mark.parametrize("is_async", [False, True])
def test_an_exception_keeps_its_type_first_and_on_replay(
    name: str, is_async: bool, store: CheckpointStore
) -> None:
    make, kind, text = RAISED[name]
    seen: list[Any] = []

    @tool
    def failing() -> None:
        made["failing"] += 1
        make()

    def plain(run: Any) -> Any:
        try:
            run.call(failing)
        except kind as exc:
            seen.append(exc)
        if run.recovery_count < 2:
            raise OSError
        return "done"

    async def like_it(run: Any) -> Any:
        try:
            await run.call(failing)
        except kind as exc:
            seen.append(exc)
        if run.recovery_count < 2:
            raise OSError
        return "done"

    assert run(like_it if is_async else plain, store) == "done"
    first = seen[0]
    assert made["failing"] == 1
    assert made["constructed"] in (0, 1)  # by the tool, and by nothing that reads the log
    assert text in str(first)
    for one in seen[1:]:
        assert type(one) is type(first)
        assert (str(one), repr(one.args)) == (str(first), repr(first.args))
        assert repr(vars(one)) == repr(vars(first))
        assert printed(one) == printed(first)
    assert in_frames("make", first)  # the tool's own traceback, as long as there is one
    assert not in_frames("make", seen[1])
    check_details(name, first)


def check_details(name: str, first: Any) -> None:
    if name == "from another":
        slotted = first.__cause__
        assert (type(slotted), slotted.code) == (SlottedError, 3)
        assert type(slotted.__cause__) is asyncio.CancelledError
    if name == "from many":
        assert printed(first).count("direct cause") == 4
        assert "not recorded of it: .__cause__ (ValueError)" in printed(first)
    if name == "with notes":
        assert first.__notes__ == ["asked for a double room"]
    if name == "a subclass":
        assert first.status == 429
        assert not hasattr(first, "response")
        assert "not recorded of it: .response" in first.__notes__[0]
    if name == "with slots":
        assert (first.code, first.errno) == (7, 7)
    if name == "a group":
        status_error, late = first.exceptions
        assert (type(status_error), status_error.status) == (StatusError, 500)
        assert type(late) is TimeoutError
    if name == "an import":
        assert first.name == "no_such"


def test_of_two_exceptions_of_one_name_it_is_the_one_that_was_raised(
    store: CheckpointStore,
) -> None:
    def one_more() -> type[Exception]:
        class RefusedError(Exception):
            pass

        return RefusedError

    kinds = [one_more() for _ in range(3)]

    @tool
    def failing(number: int) -> None:
        raise kinds[number]("no")

    def agent(run: Any) -> list[int]:
        caught = []
        for number, kind in enumerate(kinds):
            try:
                run.call(failing, number)
            except kind:
                caught.append(number)
        return caught

    assert run(agent, store) == [0, 1, 2]


def printed(exc: BaseException) -> str:
    """All that is printed of an exception, without its traceback's frames."""
    lines = traceback.format_exception(type(exc), exc, None)
    return "".join(lines)


def in_frames(name: str, exc: BaseException) -> bool:
    return any(name in (frame.line or "") for frame in traceback.extract_tb(exc.__traceback__))


@pytest.mark.parametrize(
    ("base", "result"),
    [(ValueError, ["ValueError", "x", 5]), (Exception, [f"{__name__}.Late", "x"])],
)
def test_where_a_type_is_not_loaded_its_nearest_base_stands_for_it(
    base: type[Exception], result: Any, store: CheckpointStore
) -> None:
    kind: Any = type("Late", (base,), {})

    @tool
    def failing() -> None:
        exc = kind("x")
        exc.code = 5
        raise exc

    def dying(run: Any) -> Any:
        with pytest.raises(kind, match="x"):
            run.call(failing)
        raise KeyboardInterrupt

    def agent(run: Any) -> Any:
        try:
            run.call(failing)
        except ValueError as exc:
            return [type(exc).__name__, str(exc), exc.code]  # type: ignore[attr-defined]
        except ToolError as exc:
            return [exc.type_name, str(exc)]

    with pytest.raises(KeyboardInterrupt):
        run(dying, store)
    kind.__qualname__ = "elsewhere"  # as in a process where it is not loaded
    assert run(agent, store) == result


# -- a tool that raises, and is mended


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_tool_that_raised_at_step_5_goes_on_by_one_command(
    is_async: bool, wrapped: bool, store: CheckpointStore
) -> None:
    """The run that never failed is the oracle."""
    broken = True

    @tool
    def work(step: int) -> int:
        made[f"work {step}"] += 1
        if step == 5 and broken:
            raise ConnectionError("the service is down")
        return step * step

    def step_of(run: Any, step: int) -> None:
        try:
            run.state.setdefault("done", []).append(work(step))
        except ConnectionError as exc:
            if wrapped:
                raise RuntimeError("step 5 is lost") from exc
            raise

    def plain(run: Any) -> Any:
        for step in run.steps():
            step_of(run, step)
            if step == 8:
                return run.state["done"]

    async def like_it(run: Any) -> Any:
        async for step in run.steps():
            step_of(run, step)
            if step == 8:
                return run.state["done"]

    agent = RecoverableAgent(like_it if is_async else plain, store, checkpoint_every_n=3)
    with pytest.raises(RunFailedError) as failed:
        agent.run_with_recovery_sync("task", RUN)
    assert "Nothing is lost. Mend the cause" in str(failed.value)
    assert re.search(
        r"^  recovery retry run --agent MODULE:NAME( --store \S+)?$", str(failed.value), re.M
    )
    with pytest.raises(RunFailedError):  # nothing is made again unasked
        agent.run_with_recovery_sync("task", RUN)
    broken = False
    done = asyncio.run(agent.retry(RUN, why="it is up")) if is_async else agent.retry_sync(RUN)
    assert done["result"] == [step * step for step in range(1, 9)]
    assert done["recovered_from_step"] == 3
    assert made == {f"work {step}": 1 + (step == 5) for step in range(1, 9)}
    assert agent.retry_sync(RUN)["result"] == done["result"]  # a run that has ended stays so


def test_the_command_line_says_and_does_it(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "import os\n"
        "from recovery import CheckpointStore, RecoverableAgent, tool\n"
        "@tool\n"
        "def pay(n):\n"
        "    open('effects', 'a').write(f'{n} ')\n"
        "    if n == 2 and not os.path.exists('mended'): raise ValueError('no')\n"
        "    return n\n"
        "def agent(run):\n"
        "    for step in run.steps():\n"
        "        pay(step)\n"
        "        if step == 3: return 'done'\n"
        "agent = RecoverableAgent(agent, CheckpointStore('runs'))\n"
    )

    def shell(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *args],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    shell("-c", "import shop; shop.agent.run_with_recovery_sync('t', 'r')")
    shown = shell("-m", "recovery.cli", "show", "r", "--store", "runs").stdout
    assert "recovery retry r --agent shop:agent --store runs" in " ".join(shown.split())
    (tmp_path / "mended").touch()
    done = shell("-m", "recovery.cli", "retry", "r", "--agent", "shop:agent", "--store", "runs")
    assert (done.returncode, done.stdout) == (0, '"done"\n'), done.stderr
    assert (tmp_path / "effects").read_text() == "1 2 2 3 "
    again = shell("-m", "recovery.cli", "retry", "r", "--store", "runs")
    assert again.returncode == 1
    assert "none to make again" in " ".join(again.stderr.split())


# -- every crash point


class Ticket(BaseModel):
    seat: str


class SoldOutError(Exception):
    def __init__(self, show: str, left: int) -> None:
        super().__init__(show, left)
        self.left = left


@tool
def buy(show: str) -> Ticket:
    if show == "opera":
        raise SoldOutError(show, 0)
    return Ticket(seat="4b")


async def theatre(run: Any) -> Any:
    async for step in run.steps():
        try:
            run.state[f"at {step}"] = await asyncio.to_thread(buy, "opera" if step == 2 else "play")
        except SoldOutError as exc:
            run.state["left"] = exc.left
        if step == 4:
            return [run.state["at 1"], run.state["left"]]


def test_at_every_crash_point() -> None:
    report = crash_everywhere(
        lambda: RecoverableAgent(theatre, CheckpointStore(), checkpoint_every_n=2),
        "task",
        points=scaled(10, 60),
    )
    assert report.ok, report


def test_a_tool_that_raises_stop_iteration_ends_no_generator(store: CheckpointStore) -> None:
    @tool
    def stops() -> Any:
        return next(iter([]))

    def agent(run: Any) -> Any:
        with pytest.raises(RuntimeError, match="StopIteration"):
            run.call(stops)
        return "done"

    assert run(agent, store) == "done"
