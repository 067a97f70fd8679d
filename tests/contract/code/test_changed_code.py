"""Code that is edited between a crash and the resumption stops only where it could do harm."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from eventlog import EventLog
from recovery import (
    CheckpointManager,
    CheckpointStore,
    InDoubtError,
    RecoverableAgent,
    Resolution,
    Run,
    tool,
)
from recovery.agent_code.code_digest import digest_of
from recovery.agent_code.order_warnings import races_of
from recovery.control.resolve import accept, resolve
from recovery.errors import DivergenceError
from recovery.graph import Graph, GraphExecutor
from recovery.inspect.status import status
from recovery.journal.events import HistoryDropped
from recovery.stores.memory import MemoryStore
from tests.contract.code import edits
from tests.contract.code.edited_agents import EDITS
from tests.support.lives import RUN, Died, die_in, disk_store, executed, recorded, run, send

pytestmark = pytest.mark.usefixtures("fresh")

PAGE = (Path(__file__).parents[3] / "docs" / "divergence.md").read_text()


@tool(after_crash="retry")
async def look(what: Any) -> str:
    executed[what] += 1
    return f"saw {what}"


class DiesError(Exception):
    pass


def died(agent: Callable[[Run], Any]) -> CheckpointStore:
    """The store of a run whose process ended behind all that the agent does."""
    store = CheckpointStore(MemoryStore())

    async def dying(run: Run) -> None:
        await agent(run)
        raise DiesError

    with pytest.raises(DiesError):
        run(dying, store, max_recoveries=0)
    return store


# -- edits of a real agent


def test_one_edit_in_ten_stops_at_most_and_no_effect_comes_twice_unannounced() -> None:
    """The quick sample, each edit once; `tests.contract.code.edits` makes each five times."""
    tallies = edits.sweep(EDITS, points_each=1)
    assert len(EDITS) >= 60
    assert sum(one.stops for one in tallies) <= len(tallies) / 10
    for one in tallies:
        wrong = one.twice, one.unsaid, one.lost, one.failed
        assert wrong == (0, 0, 0, 0), (one.edit.what, one.seen)


def test_the_page_tells_of_these_edits() -> None:
    resumed = len(EDITS) * edits.POINTS
    assert f"makes {len(EDITS)} small edits" in PAGE and f"Of {resumed} resumptions" in PAGE
    stopped = re.search(r"resumptions, (\d+) stopped\. No side effect happened twice", PAGE)
    assert stopped is not None and int(stopped[1]) < resumed / 10


# -- what is said of drift


async def before(run: Run) -> None:
    run.messages.append({"role": "system", "content": "You are a helpfull assistant."})
    await run.call(look, "the weather of today")


async def reworded(run: Run) -> str:
    run.messages.append({"role": "system", "content": "You are a helpful assistant."})
    found = await run.call(look, "the weather of tomorrow")
    return f"{found}, {run.messages[0]['content']}"


def test_drift_is_served_and_said_in_report_log_and_logging(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = died(before)
    told: list[Any] = []
    found = run(reworded, store, on_event=told.append)
    assert found["result"] == "saw the weather of today, You are a helpfull assistant."
    assert executed == {"the weather of today": 1}
    message, call = found["report"].drift
    assert "helpfull" in message and "stays" in message
    assert "tomorrow" in call and "LSN" in call
    noted = [event.drift for event in recorded(store, HistoryDropped)]
    assert noted == [message, call]
    assert [event.kind for event in told].count("dropped") == 2
    assert sum("drifted" in one.getMessage() for one in caplog.records) == 2


def test_two_messages_are_not_one_in_other_words() -> None:
    async def longer(run: Run) -> list[Any]:
        run.messages.extend([{"role": "system", "content": "You are helpful."}, "Be short."])
        await run.call(look, "the weather of today")
        return list(run.messages)

    assert run(longer, died(before))["result"][1:] == ["Be short."]


def test_drift_is_noted_once_however_often_it_is_come_to() -> None:
    store = died(before)
    for _ in range(3):
        with pytest.raises(DiesError):
            run(_dying(reworded), store, max_recoveries=0)
    assert len(recorded(store, HistoryDropped)) == 2


@tool
async def pay(what: str) -> str:
    executed[f"pay {what}"] += 1
    return f"paid {what}"


async def first_question(run: Run) -> None:
    await run.call(look, "one")


async def reworded_and_longer(run: Run) -> str:
    found = await run.call(look, "two")
    return f"{await run.call(look, 'three')}, {await run.call(pay, found)}"


async def inserted_and_longer(run: Run) -> str:
    found = await run.call(look, "zero")
    return f"{await run.call(look, 'one')}, {await run.call(pay, found)}"


@pytest.mark.parametrize("edited", [reworded_and_longer, inserted_and_longer])
def test_what_edited_code_was_served_it_is_served_in_each_later_life(
    edited: Callable[[Run], Any],
) -> None:
    """Also where it has made more calls of that tool since, one of the recorded identity too."""
    store = died(first_question)
    for _ in range(2):
        with pytest.raises(DiesError):
            run(_dying(edited), store, max_recoveries=0)
    before = dict(executed)
    found = run(edited, store)
    assert found["result"].endswith(", paid saw one")
    assert executed == before and executed["pay saw one"] == 1
    assert len(recorded(store, HistoryDropped)) == 1


def test_a_dropped_side_effect_that_is_made_again_is_in_doubt_again() -> None:
    """Whoever drops a call by `accept` drops what it was then; not what is made of it later."""
    dies = {"first"}

    @tool
    async def charge(what: str) -> str:
        executed[what] += 1
        if what in dies:
            raise Died
        return f"charged {what}"

    async def agent(run: Run) -> str:
        return await run.call(charge, "first")

    async def edited(run: Run) -> str:
        return f"{await run.call(charge, 'more')}, {await run.call(charge, 'first')}"

    store = die_in(agent, disk_store())
    (call,) = status(store, RUN).in_doubt
    resolve(store, RUN, call.lsn, Resolution.retry())
    with pytest.raises(DivergenceError):
        run(edited, store)
    accept(store, RUN)
    store = die_in(edited, store)
    assert [one.lsn for one in status(store, RUN).in_doubt] == [call.lsn]
    with pytest.raises(InDoubtError):
        run(edited, store)
    resolve(store, RUN, call.lsn, Resolution.outcome("known"))
    assert run(edited, store)["result"] == "charged more, known"
    assert executed == {"first": 2, "more": 1}


def _dying(agent: Callable[[Run], Any]) -> Callable[[Run], Any]:
    async def dying(run: Run) -> None:
        await agent(run)
        raise DiesError

    return dying


def test_on_drift_stop_stops_as_any_divergence() -> None:
    store = died(before)
    with pytest.raises(DivergenceError):
        run(reworded, store, on_drift="stop")
    with pytest.raises(ValueError, match="on_drift"):
        RecoverableAgent(before, on_drift="never")  # type: ignore[call-overload]


def test_code_that_has_not_changed_is_served_only_what_resembles_it() -> None:
    """A local variable that a checkpoint does not hold: without the digest of the code, the second
    customer would be served what was read for the first one, and be paid for it."""
    customers = iter(["dave", "alice"])

    async def agent(run: Run) -> None:
        customer = next(customers)
        await run.call(look, customer)
        if customer == "dave":
            raise DiesError
        await run.call(send, customer)

    store = CheckpointStore(MemoryStore())
    with pytest.raises(DiesError):
        run(agent, store, max_recoveries=0)
    with pytest.raises(DivergenceError, match="code has not changed since") as stopped:
        run(agent, store, max_recoveries=0)
    assert stopped.value.same_code
    assert executed == {"dave": 1}


def test_an_error_names_the_side_effects_that_accepting_may_repeat() -> None:
    async def old(run: Run) -> None:
        await run.call(send, "a")
        await run.call(send, "b")

    @tool
    def post(what: Any) -> str:
        executed[what] += 1
        return f"posted {what}"

    async def renamed(run: Run) -> None:
        await run.call(post, "a")
        await run.call(post, "b")

    store = died(old)
    with pytest.raises(DivergenceError) as stopped:
        run(renamed, store)
    text = str(stopped.value)
    assert text.index("send('a')") < text.index("recorded (LSN")
    assert ["send('a')" in one for one in stopped.value.side_effects] == [True, False]
    assert "send('b')" in stopped.value.side_effects[1]
    assert " 1 more\n" not in text
    assert "@tool(name='send')" in text and stopped.value.renamed == "send"
    accept(store, RUN)
    run(renamed, store)
    assert executed == {"a": 2, "b": 2}

    kept = tool(name="send")(post)

    async def under_the_old_name(run: Run) -> str:
        await run.call(kept, "a")
        return str(await run.call(kept, "b"))

    assert run(under_the_old_name, died(old))["result"] == "sent b"


def test_effects_inside_a_call_that_is_not_made_again_are_named_too() -> None:
    @tool(after_crash="retry")
    async def order(item: str) -> str:
        return send(f"order of {item}")

    async def old(run: Run) -> None:
        await run.call(order, "tea")

    async def new(run: Run) -> None:
        await run.call(order, "coffee")

    with pytest.raises(DivergenceError) as stopped:
        run(new, died(old))
    assert any("send('order of tea')" in one for one in stopped.value.side_effects)
    assert executed == {"order of tea": 1}


# -- graphs


def graph_of(*edges: str) -> Graph:
    graph = Graph("g")

    async def work(context: Any) -> dict[str, Any]:
        return {context.node_id: context.visit}

    for name in dict.fromkeys("".join(edges)):
        graph.node(name, work)
    for edge in edges:
        graph.edge(edge[0], edge[1])
    return graph


# Records: the visit of the first node has begun; it has ended, and the next one has not begun.
IN_A, BEHIND_A = 4, 6


def crashed_graph(graph: Graph, at: int) -> CheckpointManager:
    manager = CheckpointManager(CheckpointStore(MemoryStore()))
    append, count = EventLog.append, 0

    def counted(log: EventLog, *args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        if count >= at:
            raise KeyboardInterrupt
        return append(log, *args, **kwargs)

    with mock.patch.object(EventLog, "append", counted), pytest.raises(BaseException):  # noqa: B017
        asyncio.run(GraphExecutor(checkpoint_manager=manager).execute(graph, "goal", {}, RUN))
    return manager


@pytest.mark.parametrize(
    ("edges", "path", "not_made", "at"),
    [
        (("ax", "xb", "bc"), "axbc", [], BEHIND_A),  # a node inserted
        (("ax", "xc"), "axc", [], BEHIND_A),  # renamed
        (("ac",), "ac", [], BEHIND_A),  # removed
        (("az", "zc", "bc"), "azc", [], BEHIND_A),  # an edge led elsewhere
        (("xb", "bc"), "xbc", [], IN_A),  # it begins with another node
    ],
)
def test_a_graph_goes_on_by_its_edges_of_now(
    edges: tuple[str, ...], path: str, not_made: list[str], at: int
) -> None:
    manager = crashed_graph(graph_of("ab", "bc"), at)
    result = asyncio.run(GraphExecutor(checkpoint_manager=manager).resume(graph_of(*edges), RUN))
    assert result.success
    assert "".join(result.path) == path
    assert result.branches_not_made == not_made


def test_a_branch_that_is_not_made_is_said() -> None:
    graph = graph_of("ab", "bc")
    other = Graph("g")
    other.node("a", lambda context: {"a": 1})
    manager = crashed_graph(graph, 6)
    result = asyncio.run(GraphExecutor(checkpoint_manager=manager).resume(other, RUN))
    assert (result.path, result.branches_not_made) == (["a"], ["b"])
    assert any("node a led to node b" in one for one in result.report.drift)


def test_a_failed_node_leads_where_the_graph_of_now_goes_on_from_failures() -> None:
    def graph(handler: str, dies: bool = False) -> Graph:
        async def fails(context: Any) -> None:
            raise ValueError("no")

        async def handles(context: Any) -> dict[str, Any]:
            if dies:
                raise KeyboardInterrupt
            return {"handled by": context.node_id}

        made = Graph("g")
        made.node("a", fails)
        made.node("b", handles)
        made.node(handler, handles)
        made.edge("a", "b")
        made.edge("a", handler, "on_failure")
        return made

    manager = CheckpointManager(CheckpointStore(MemoryStore()))
    executor = GraphExecutor(checkpoint_manager=manager)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(executor.execute(graph("old", dies=True), "goal", {}, RUN))
    result = asyncio.run(executor.resume(graph("new"), RUN))
    assert result.output == {"handled by": "new"}
    assert (result.path, result.branches_not_made) == (["a", "new"], [])


# -- the agent's source


def test_the_digest_is_that_of_what_the_agent_comes_to() -> None:
    def made(text: str) -> Any:
        names: dict[str, Any] = {"tool": tool, "__name__": "agents"}
        exec(compile(text, "agents.py", "exec"), names)  # noqa: S102
        return names["agent"]

    text = (
        "PROMPT = 'hello'\n"
        "def helper(x):\n    return x + 1\n"
        "@tool\ndef act(x):\n    return helper(x)\n"
        "async def agent(run):\n    return act(PROMPT)\n"
    )
    digest = digest_of(made(text))
    assert digest == digest_of(made(f"# a comment\n\n{text}"))
    for old, new in [
        ("'hello'", "'hallo'"),
        ("x + 1", "x + 2"),
        ("act(PROMPT)", "act(PROMPT + '')"),
    ]:
        assert digest_of(made(text.replace(old, new))) != digest, old
    assert digest_of(asyncio.sleep) == ""


def test_races_in_the_source_are_found() -> None:
    async def agent(run: Run) -> None:
        tasks = [asyncio.create_task(run.call(look, name)) for name in "ab"]
        await asyncio.wait(tasks)
        done, _ = await asyncio.wait(tasks)  # a set
        async with asyncio.timeout(3):  # a clock
            await run.call(look, "c")
        gate = asyncio.Semaphore()
        while done:
            await asyncio.sleep(0.1)  # a tick
            await run.call(look, len(done))
        await asyncio.sleep(0)
        await asyncio.sleep(0.1)  # a gate
        async with gate:
            pass

        async def late(name: str) -> None:
            await run.call(look, name)
            await asyncio.sleep(0.1)  # an order

        async def early(name: str) -> None:
            await asyncio.sleep(0.1)
            await run.call(look, name)

        async def telling(name: str) -> None:
            mine: list[str] = []
            await asyncio.sleep(0.1)
            mine.append(name)
            await run.call(look, name)
            await asyncio.sleep(0.1)
            await run.call(look, name)
            run.messages.append(name)
            await asyncio.sleep(0.1)  # a shared list
            run.messages.append(name)
            await run.call(look, name)
            await asyncio.sleep(0.1)  # a queue
            await queue.put(name)

        queue: asyncio.Queue[str] = asyncio.Queue()
        await asyncio.gather(*map(telling, "abc"))
        for one in asyncio.as_completed([late("d"), early("e")]):  # coroutines
            await one

    lines = Path(__file__).read_text().splitlines()
    said = [(lines[race.line - 1].rpartition("# ")[2], str(race)) for race in races_of(agent)]
    assert [mark for mark, _ in said] == [
        "a set",
        "a clock",
        "a tick",
        "a tick",
        "a gate",
        "an order",
        "a shared list",
        "a queue",
        "coroutines",
    ]
    assert "run.wait" in said[0][1] and "timeout_s" in said[1][1] and "run.sleep" in said[2][1]
