"""LangChain agents without a checkpointer are killed at any append, and end as if nobody had."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain")

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.tools import ToolException
from langchain_core.tools import tool as langchain_tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from recovery import CheckpointStore, Run, SyncRun
from recovery.integrations.langgraph.tools import RecordedCalls
from tests.support import outside
from tests.support.framework_lives import (
    AGAIN,
    ended,
    fails_at_first,
    keep_request,
    kills,
    requests,
    survives,
)
from tests.support.kill_sweep import RUNS, settle
from tests.support.langchain_models import OfflineModel
from tests.support.lives import RUN

Turns = list[list[tuple[str, dict[str, Any]]]]
TURNS: Turns = [
    [("search", {"query": "tea"}), ("pay", {"cents": 5, "to": "ann"})],  # at once
    [("refund", {"cents": 3})],
    [("weather", {"city": "nowhere"})],
    [("weather", {"city": "Bonn"})],
]
ASKS: Turns = [[("order", {"what": "tea"}), ("pay", {"cents": 6, "to": "bob"})]]


@langchain_tool
def search(query: str) -> list[str]:
    """Searches."""
    fails_at_first()
    return [query, "cup"]


@langchain_tool
def pay(cents: int, to: str) -> str:
    """Pays."""
    return outside.did(f"pay {cents}", f"receipt for {to}")


@langchain_tool
def refund(cents: int) -> str:
    """Refunds, when somebody has approved it."""
    return outside.did(f"refund {cents}", "refunded")


@langchain_tool
def weather(city: str) -> str:
    """Wants a city that there is."""
    if city == "nowhere":
        raise ToolException("there is no such city: try another one")
    return outside.did(f"weather in {city}", "sunny")


weather.handle_tool_error = True  # the model gets a message, as with many tools


@langchain_tool
def order(what: str) -> str:
    """Orders, when somebody has said how many."""
    many = interrupt(f"how many of {what}?")
    return outside.did(f"order {many} {what}", f"{many} ordered")


class Model(OfflineModel):
    """Says what the script has; each request is kept, and gets a random id."""

    place: Path
    turns: Turns = TURNS
    keeps: bool = True

    def says(self, messages: Any) -> AIMessage:
        turn = sum(isinstance(one, AIMessage) for one in messages)
        if self.keeps:
            keep_request(self.place, transcript(messages))
        calls = [
            {"name": name, "args": given, "id": f"{turn}-{at}"}
            for at, (name, given) in enumerate(self.turns[turn] if turn < len(self.turns) else [])
        ]
        return AIMessage(f"turn {turn}", tool_calls=calls)

    def _stream(self, messages: Any, *args: Any, **options: Any) -> Iterator[ChatGenerationChunk]:
        said = self.says(messages)
        for word in str(said.content).split():
            yield ChatGenerationChunk(message=AIMessageChunk(f"{word} "))
        calls = [
            tool_call_chunk(name=one["name"], args=json.dumps(one["args"]), id=one["id"], index=at)
            for at, one in enumerate(said.tool_calls)
        ]
        yield ChatGenerationChunk(message=AIMessageChunk("", tool_call_chunks=calls))


def transcript(messages: list[Any]) -> list[str]:
    """The messages without the ids that LangGraph draws."""
    return [repr(message.model_dump(exclude={"id"})) for message in messages]


def agent_of(place: Path, turns: Turns = TURNS, **options: Any) -> Any:
    policies: dict[str, Any] = {
        "search": AGAIN,
        "refund": {"needs_approval": True},
    }
    return create_agent(
        Model(place=place, turns=turns),
        [search, pay, refund, weather, order],
        system_prompt="Sell tea.",
        middleware=[RecordedCalls(policies)],
        **options,
    )


def streamed(place: Path) -> Any:
    """From plain code, which reads the chunks: a reply that is served is one chunk."""
    agent = agent_of(place)

    def sell(run: SyncRun) -> Any:
        texts, state = [], {}
        given = {"messages": [HumanMessage(run.task)]}
        for mode, event in agent.stream(given, stream_mode=["messages", "values"]):
            if mode == "values":
                state = event
            elif isinstance(event[0], AIMessage):
                texts.append(event[0].content)
        return [*transcript(state["messages"]), "".join(texts)]

    return [ended(place, sell)["result"], requests(place)]


def awaited(place: Path) -> Any:
    """The same, with a tool that asks a person by an interrupt."""

    async def sell(run: Run) -> Any:
        agent = agent_of(place, TURNS + ASKS, checkpointer=InMemorySaver())
        config: Any = {"configurable": {"thread_id": "1"}}
        state = await agent.ainvoke({"messages": [HumanMessage(run.task)]}, config)
        while "__interrupt__" in state:
            (asked,) = state["__interrupt__"]
            assert asked.value == "how many of tea?"
            answer = Command(resume={asked.id: await run.wait_for("how many")})
            state = await agent.ainvoke(answer, config)
        return transcript(state["messages"])

    return [ended(place, sell)["result"], requests(place)]


def person(place: Path, how: str) -> None:
    run = CheckpointStore(place / RUNS).run(RUN)
    if how == "WaitingError" and not run.pending():
        return run.signal("how many", 7)
    assert all((call.tool, call.kwargs) == ("refund", {"cents": 3}) for call in run.pending())
    settle(place, how)


@pytest.fixture(scope="module", autouse=True)
def warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What is slow the first time, before the processes are forked."""
    place = tmp_path_factory.mktemp("warm")
    asyncio.run(
        create_agent(Model(place=place, keeps=False)).ainvoke({"messages": [HumanMessage("warm")]})
    )
    convert_to_openai_tool(search)


@kills(3)
@pytest.mark.parametrize("live", [streamed, awaited])
def test_an_agent_survives_kills(
    live: Callable[[Path], Any], points: int, tmp_path: Path, rng: random.Random
) -> None:
    survives(live, tmp_path, rng, points, appends=20, settle=person)
