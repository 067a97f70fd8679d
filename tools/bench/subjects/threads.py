"""A conversation in a thread of LangGraph, which grows with each super-step."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Annotated, Any, TypedDict
from uuid import UUID

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

from recovery.integrations.langgraph import EventLogSaver

from .paced import Paced
from .raw import text

CONFIG: Any = {"configurable": {"thread_id": "run", "checkpoint_ns": ""}}
SAID, FOUND = 1106, 1736  # characters; LangGraph's serializer makes 3.4 KB of the two messages


class State(TypedDict):
    """A conversation, and whether it goes on."""

    messages: Annotated[list[BaseMessage], add_messages]
    more: bool


def news(number: int) -> list[BaseMessage]:
    """What a step adds: a reply of the model that calls a tool, and what the tool has found."""
    call = {"id": f"call_{number:08d}", "name": "search", "args": {"query": text(60, -number)}}
    said = AIMessage(text(SAID, number), tool_calls=[{**call, "type": "tool_call"}])
    found = ToolMessage(text(FOUND, number), tool_call_id=call["id"])
    # Else LangGraph draws them, and a checkpoint before the first step has some, or not.
    said.id, found.id = (str(UUID(int=2 * number + at)) for at in (0, 1))
    return [said, found]


class Without:
    """No checkpointer: what LangGraph itself takes.

    The thread begins with a conversation of ``case["begins_with"]`` steps, given at once.
    """

    def __init__(self, directory: Path, case: dict[str, Any]) -> None:
        self._directory, self._begins_with = directory, case["begins_with"]
        self._paced = Paced(self._loop)
        self.turn, self.close = self._paced.turn, self._paced.close

    @contextmanager
    def saver(self) -> Iterator[Any]:
        yield None

    def _loop(self, go: Callable[[], bool]) -> None:
        with self.saver() as saver:
            graph, options = self._graph(go, saver)
            graph.invoke(self._begin(), **options)

    def _begin(self) -> State:
        begin = [one for number in range(self._begins_with) for one in news(number)]
        return {"messages": begin, "more": True}

    def _graph(self, go: Callable[[], bool], saver: Any) -> tuple[Any, dict[str, Any]]:
        def work(state: State) -> State:
            more = go()
            return {"messages": news(len(state["messages"]) // 2) if more else [], "more": more}

        graph = StateGraph(State)
        graph.add_node("work", work)
        graph.add_edge(START, "work")
        graph.add_conditional_edges("work", lambda state: "work" if state["more"] else END)
        options: dict[str, Any] = {"config": {**CONFIG, "recursion_limit": 1_000_000}}
        if saver is not None:
            options["durability"] = "sync"
        return graph.compile(checkpointer=saver), options


class Ours(Without):
    """EventLogSaver, in its default settings."""

    @contextmanager
    def saver(self) -> Iterator[Any]:
        with EventLogSaver(self._directory) as saver:
            yield saver


class Sqlite(Without):
    """SqliteSaver, in its default settings."""

    @contextmanager
    def saver(self) -> Iterator[Any]:
        path = self._directory / "db"
        with closing(sqlite3.connect(path, check_same_thread=False)) as connection:
            yield SqliteSaver(connection)


class AsyncOurs(Without):
    """EventLogSaver, in an event loop."""

    def _loop(self, go: Callable[[], bool]) -> None:
        asyncio.run(self._alive(go))

    async def _alive(self, go: Callable[[], bool]) -> None:
        async with self.async_saver() as saver:
            graph, options = self._graph(go, saver)
            await graph.ainvoke(self._begin(), **options)

    @asynccontextmanager
    async def async_saver(self) -> AsyncIterator[Any]:
        async with EventLogSaver(self._directory) as saver:
            yield saver


class AsyncSqlite(AsyncOurs):
    """AsyncSqliteSaver, in its default settings."""

    @asynccontextmanager
    async def async_saver(self) -> AsyncIterator[Any]:
        async with AsyncSqliteSaver.from_conn_string(str(self._directory / "db")) as saver:
            yield saver


class OpenOurs:
    """A turn opens the thread, reads its newest state, and closes it again, so many times."""

    kind: type[Without] = Ours
    begins_at_once = False

    def __init__(self, directory: Path, case: dict[str, Any]) -> None:
        steps = case["steps"]
        begins_with = steps - 1 if self.begins_at_once else 0
        self._thread = self.kind(directory, {"begins_with": begins_with})
        self._thread.turn(steps - begins_with)
        self._thread.close()
        self._messages = 2 * steps

    def turn(self, count: int) -> list[float]:
        times = []
        for _ in range(count):
            began = time.perf_counter()
            read = self.read()
            times.append(time.perf_counter() - began)
            if len(read) != self._messages:
                raise RuntimeError(f"{len(read)} messages were read, not {self._messages}")
            del read  # else the next time has the freeing of it, too
        return times

    def read(self) -> list[Any]:
        with self._thread.saver() as saver:
            return list(saver.get_tuple(CONFIG).checkpoint["channel_values"]["messages"])


class OpenSqlite(OpenOurs):
    """The same; the conversation was given at once, for step by step it takes gigabytes."""

    kind, begins_at_once = Sqlite, True


class Deserialise(OpenOurs):
    """What of it is LangGraph's deserialising: the bytes of the state are in memory."""

    kind, begins_at_once = Without, True

    def __init__(self, directory: Path, case: dict[str, Any]) -> None:
        self._serde, self._messages = JsonPlusSerializer(), 2 * case["steps"]
        state = [one for number in range(case["steps"]) for one in news(number)]
        self._typed = self._serde.dumps_typed(state)

    def read(self) -> list[Any]:
        return list(self._serde.loads_typed(self._typed))
