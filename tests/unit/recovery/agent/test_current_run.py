"""recovery.current_run(): the run of the present code, wherever in a run it is."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from recovery import CheckpointStore, RecoverableAgent, Run, SyncRun, current_run, tool
from recovery.graph import Graph, GraphExecutor, NodeContext
from recovery.journal.events import CallIntended, ValueRecorded
from recovery.testing import crash_everywhere
from tests.support.lives import executed, recorded, run, run_sync, send

pytestmark = pytest.mark.usefixtures("fresh")


def here() -> Any:
    """A helper, deep in somebody's framework."""
    return current_run()


async def here_async() -> Any:
    await asyncio.sleep(0)
    return current_run()


def in_a_thread(function: Callable[[], Any]) -> Any:
    """In a thread of the agent's own, which has its context."""
    found: list[Any] = []
    context = contextvars.copy_context()
    thread = threading.Thread(target=lambda: found.append(context.run(function)))
    thread.start()
    thread.join()
    return found[0]


def test_there_is_none_outside() -> None:
    assert current_run() is None
    found: list[Any] = []

    async def agent(run: Run) -> None:
        thread = threading.Thread(target=lambda: found.append(current_run()))  # no context
        thread.start()
        thread.join()

    run(agent, CheckpointStore())
    assert found == [None]
    assert current_run() is None


def test_in_the_code_of_an_async_agent_it_is_the_run_that_it_was_given() -> None:
    async def agent(run: Run) -> bool:
        found = [
            here(),
            await here_async(),
            *await asyncio.gather(here_async(), here_async()),
            await asyncio.to_thread(here),
            in_a_thread(here),
        ]
        async for _ in run.steps():
            found += [here(), await asyncio.create_task(here_async())]
            break
        return all(one is run for one in found)

    assert run(agent, CheckpointStore())["result"] is True


def test_an_agent_that_does_not_keep_its_run_has_one_all_the_same() -> None:
    async def agent(run: Run) -> Any:
        del run
        found = current_run()
        assert isinstance(found, Run)
        return [found.run_id, await found.call(send, "x")]

    assert run(agent, CheckpointStore())["result"] == ["run", "sent x"]

    def plain(run: SyncRun) -> Any:
        del run
        found = current_run()
        assert isinstance(found, SyncRun)
        return [found.run_id, found.call(send, "y")]

    assert run_sync(plain, CheckpointStore())["result"] == ["run", "sent y"]


@tool
async def orders(what: str) -> str:
    found = current_run()
    assert isinstance(found, Run)
    return f"{await found.call(send, what)} at {found.now()}, {found.uuid()}"


@tool
def orders_in_a_thread(what: str) -> str:
    found = current_run()
    assert isinstance(found, Run)  # of the agent, whose calls a plain tool makes directly
    return f"{send(what)} in step {found.step}"


def test_what_a_tool_calls_with_it_is_nested_in_the_call_of_the_tool() -> None:
    store = CheckpointStore()

    async def agent(run: Run) -> Any:
        return [await run.call(orders, "a"), await run.call(orders_in_a_thread, "b")]

    first = run(agent, store)["result"]
    assert run(agent, store)["result"] == first
    outer, inner, *others = recorded(store, CallIntended)
    assert (outer.tool, outer.scope) == ("orders", "0")
    assert [one.tool for one in (inner, *others)] == ["send", "orders_in_a_thread", "send"]
    assert inner.scope.startswith("call ") and others[1].scope.startswith("call ")
    assert inner.scope != others[1].scope
    assert {one.scope for one in recorded(store, ValueRecorded)} == {inner.scope}
    assert executed == {"a": 1, "b": 1}


def test_agents_that_use_it_survive_every_crash() -> None:
    done: list[str] = []

    @tool
    async def pay(what: str) -> str:
        done.append(what)
        return f"paid {what}"

    async def deep(what: str) -> str:
        found = current_run()
        assert isinstance(found, Run)
        return f"{await found.call(pay, what)} {found.uuid()}"

    @tool
    async def outer(what: str) -> str:
        return await deep(f"inner {what}")

    async def agent(run: Run) -> Any:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(deep(what)) for what in "ab"]
        return [*(task.result() for task in tasks), await outer("c"), here() is run]

    report = crash_everywhere(agent, setup=done.clear, effects=lambda: sorted(done), points=20)
    assert report.ok, str(report)


def test_in_a_node_of_a_graph_it_is_the_run_of_the_graph() -> None:
    graph = Graph("g")

    @graph.node("a")
    async def node(context: NodeContext) -> Any:
        found = current_run()
        assert isinstance(found, Run)
        return {"said": await found.call(send, "x"), "same": found is await here_async()}

    found = GraphExecutor().execute_sync(graph, "goal")
    assert found.output == {"said": "sent x", "same": True}


# -- calls that are made directly, where it cannot be used


def chunks(what: str) -> Iterator[str]:
    executed[what] += 1
    yield from (what, "!")


async def chunks_async(what: str) -> AsyncIterator[str]:
    executed[what] += 1
    for chunk in (what, "!"):
        yield chunk


def test_a_plain_tool_of_an_async_agent_calls_streams_directly() -> None:
    store = CheckpointStore()

    @tool(after_crash="retry")
    def reads(what: str) -> list[str]:
        first: Any = tool(chunks)(f"{what} 1")
        second: Any = tool(chunks_async)(f"{what} 2")
        with first, second:
            return [*first, *second]

    async def agent(run: Run) -> Any:
        found = await asyncio.gather(run.call(reads, "a"), run.call(reads, "b"))
        if run.recovery_count == 0:
            raise OSError("once more")
        return found

    result = RecoverableAgent(agent, store).run_with_recovery_sync("task", "run")["result"]
    assert result == [["a 1", "!", "a 2", "!"], ["b 1", "!", "b 2", "!"]]
    assert set(executed.values()) == {1}


def test_async_code_in_a_plain_agent_calls_tools_directly() -> None:
    store = CheckpointStore()

    @tool
    async def fetch(what: str) -> str:
        executed[what] += 1
        await asyncio.sleep(0)
        return f"fetched {what}"

    async def framework() -> list[str]:
        return list(await asyncio.gather(*(fetch(what) for what in "abc")))

    def agent(run: SyncRun) -> Any:
        found = asyncio.run(framework())
        if run.recovery_count == 0:
            raise OSError("once more")
        return found

    result = RecoverableAgent(agent, store).run_with_recovery_sync("task", "run")["result"]
    assert result == ["fetched a", "fetched b", "fetched c"]
    assert set(executed.values()) == {1}
