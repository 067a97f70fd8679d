"""What is read from an MCP server, and read from and written to a session, once in a run."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

pytest.importorskip("agents")

from agents import SQLiteSession
from mcp import types

from recovery import CheckpointStore, InDoubtError, RecoverableAgent, Run
from recovery.integrations.openai_agents.servers import recorded_server
from recovery.integrations.openai_agents.sessions import recorded_session
from recovery.journal.events import CallIntended
from tests.support.lives import RUN, Died
from tests.support.lives import recorded as events
from tests.support.openai_agents_shop import Stock


class Library(Stock):
    """A server from which one may read. ``asked``: how often."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[Any] = Counter()

    def _said(self, kind: Any, asked: Any, **fields: Any) -> Any:
        self.asked[asked] += 1
        return kind.model_validate(fields)

    async def list_prompts(self) -> Any:
        return self._said(types.ListPromptsResult, "prompts", prompts=[{"name": "greet"}])

    async def get_prompt(self, name: str, arguments: Any = None) -> Any:
        text = {"type": "text", "text": f"hello {arguments}"}
        messages = [{"role": "user", "content": text}]
        return self._said(types.GetPromptResult, (name, str(arguments)), messages=messages)

    async def list_resources(self, cursor: str | None = None) -> Any:
        return self._said(types.ListResourcesResult, ("resources", cursor), resources=[])

    async def list_resource_templates(self, cursor: str | None = None) -> Any:
        kind: Any = types.ListResourceTemplatesResult
        return self._said(kind, ("templates", cursor), resourceTemplates=[])

    async def read_resource(self, uri: str) -> Any:
        contents = [{"uri": uri, "text": "otters"}]
        return self._said(types.ReadResourceResult, uri, contents=contents)


async def read_all(server: Any) -> list[Any]:
    return [
        await server.list_prompts(),
        await server.get_prompt("greet", {"who": "ann"}),
        await server.get_prompt("greet"),
        await server.list_resources("page 2"),
        await server.list_resource_templates(),
        await server.read_resource(uri="file:///a"),
    ]


def test_what_a_server_has_said_is_served() -> None:
    store, library, told = CheckpointStore(), Library(), list[Any]()
    server = recorded_server(library)

    async def dies_once(run: Run) -> None:
        told.append(await read_all(server))
        if len(told) == 1:
            raise Died

    agent = RecoverableAgent(dies_once, store, check_locals=False)
    with pytest.raises(Died):
        asyncio.run(agent.run_with_recovery("task", RUN))
    asyncio.run(agent.run_with_recovery("task", RUN))
    assert set(library.asked.values()) == {1} and len(library.asked) == 6
    made = [one.tool for one in events(store, CallIntended)]
    assert made[:2] == ["stock.list_prompts", "stock.get_prompt"]
    assert made[-1] == "stock.read_resource"
    plainly = asyncio.run(read_all(server))  # outside of a run: what the server says
    assert told == [plainly, plainly] and set(library.asked.values()) == {2}


class Cut(SQLiteSession):
    """A session whose process dies before or after a write takes place."""

    when = ""

    async def pop_item(self) -> Any:
        when, self.when = self.when, ""
        if when == "before":
            raise Died
        item = await super().pop_item()
        if when == "after":
            raise Died
        if when == "beside another writer":
            await super().pop_item()
            raise Died
        return item


@pytest.fixture
def chat() -> Iterator[Cut]:
    with closing(Cut("chat")) as session:
        yield session


async def write(session: Any) -> Any:
    await session.add_items([{"role": "user", "content": text} for text in "abcd"])
    last = await session.pop_item()
    return [last["content"], [one["content"] for one in await session.get_items()]]


@pytest.mark.parametrize("when", ["before", "after", "beside another writer"])
def test_a_write_that_a_crash_cuts_short_is_made_once(chat: Cut, when: str) -> None:
    chat.when = when
    session = recorded_session(chat)

    async def writes(run: Run) -> Any:
        return await write(session)

    agent: RecoverableAgent[Any] = RecoverableAgent(writes, CheckpointStore(), check_locals=False)
    with pytest.raises(Died):
        asyncio.run(agent.run_with_recovery("task", RUN))
    if when == "beside another writer":
        with pytest.raises(InDoubtError):
            asyncio.run(agent.run_with_recovery("task", RUN))
        return
    found = asyncio.run(agent.run_with_recovery("task", RUN))["result"]
    assert found == ["d", ["a", "b", "c"]]
    with closing(SQLiteSession("another")) as another:
        assert found == asyncio.run(write(recorded_session(another)))


def test_a_session_is_cleared_once_more_after_a_crash(chat: Cut) -> None:
    session, deaths = recorded_session(chat), [Died()]

    async def clears(run: Run) -> Any:
        await write(session)
        await session.clear_session()
        if deaths:
            raise deaths.pop()
        return await session.get_items()

    agent: RecoverableAgent[Any] = RecoverableAgent(clears, CheckpointStore(), check_locals=False)
    with pytest.raises(Died):
        asyncio.run(agent.run_with_recovery("task", RUN))
    assert asyncio.run(agent.run_with_recovery("task", RUN))["result"] == []
    assert asyncio.run(chat.get_items()) == []
