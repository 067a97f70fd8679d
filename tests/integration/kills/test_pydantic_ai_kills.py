"""Agents of Pydantic AI are killed at any append, and end as those that nobody killed.

What is compared: every message of the run, each request to a model as it was sent and as the log
has it, the events that a handler got, and effects outside. Left out: ``timestamp`` (of the process
that made a message), and ``run_id`` with the ``conversation_id`` made of it (random in each run).
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterable, AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from recovery import CheckpointStore, Run
from tests.support import outside
from tests.support.framework_lives import (
    AGAIN,
    ended,
    fails_at_first,
    keep_request,
    kills,
    meets,
    requests,
    survives,
)
from tests.support.kill_sweep import RUNS, settle
from tests.support.lives import RUN

pydantic_ai = pytest.importorskip("pydantic_ai")

from mcp.server import MCPServer  # noqa: E402
from pydantic_ai import Agent, ModelRetry, RunContext  # noqa: E402
from pydantic_ai.durable_exec import JSON_CODEC, CallToolResult, DynamicToolsResult  # noqa: E402
from pydantic_ai.mcp import MCPToolset  # noqa: E402
from pydantic_ai.messages import (  # noqa: E402
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelResponse,
    TextPart,
    ToolCallPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel  # noqa: E402
from pydantic_ai.models.test import TestModel  # noqa: E402
from pydantic_ai.tools import DeferredToolRequests  # noqa: E402
from pydantic_ai.toolsets import DynamicToolset, FunctionToolset  # noqa: E402
from pydantic_core import to_jsonable_python  # noqa: E402

from recovery.integrations.pydantic_ai import EventLogDurability, ToolPolicy  # noqa: E402

OF_PROCESS = {"timestamp", "run_id", "conversation_id"}


class Receipt(BaseModel):
    number: int
    lines: list[str]


# -- the model: it says what its script has, and every request is kept

Turns = list[list[tuple[str, dict[str, Any]]]]

TURNS: Turns = [
    [("search", {"query": "tea"}), ("pay", {"cents": 5, "to": "ann"}), ("guess", {"n": 1})],
    [("guess", {"n": 2}), ("refund", {"cents": 3}), ("weather", {"city": "Rome"})],
    [("ask_expert", {"question": "why?"}), ("translate", {"text": "tea"})],
    [("final_result", {"number": 7, "lines": ["tea"]})],
]
SHORT: Turns = [
    [("guess", {"n": 1}), ("refund", {"cents": 3})],
    [("guess", {"n": 2}), ("pay", {"cents": 5, "to": "ann"})],
    [],
]


def said(messages: list[ModelMessage]) -> int:
    return sum(isinstance(one, ModelResponse) for one in messages)


def keep(place: Path, who: str, messages: list[ModelMessage], info: AgentInfo) -> None:
    body = without_process(
        {
            "who": who,
            "messages": ModelMessagesTypeAdapter.dump_python(messages, mode="json"),
            "tools": sorted(one.name for one in info.function_tools),
            "settings": to_jsonable_python(info.model_settings),
        }
    )
    keep_request(place, body)


def without_process(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_process(one) for key, one in value.items() if key not in OF_PROCESS}
    return list(map(without_process, value)) if isinstance(value, list) else value


def model_of(place: Path, turns: Turns) -> FunctionModel:
    def ask(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        keep(place, "shop", messages, info)
        turn = said(messages)
        calls = [
            ToolCallPart(name, args, tool_call_id=f"{turn}-{at}")
            for at, (name, args) in enumerate(turns[turn])
        ]
        return ModelResponse(parts=[TextPart(f"turn {turn}"), *calls])

    async def stream(
        messages: list[ModelMessage], info: AgentInfo
    ) -> AsyncIterator[str | dict[int, DeltaToolCall]]:
        keep(place, "shop", messages, info)
        turn = said(messages)
        for word in () if turns[turn] else ("turn ", str(turn)):  # text ends a run that is streamed
            yield word
        for at, (name, args) in enumerate(turns[turn]):
            text = json.dumps(args)
            yield {at: DeltaToolCall(name, text[:4], tool_call_id=f"{turn}-{at}")}
            yield {at: DeltaToolCall(json_args=text[4:])}

    return FunctionModel(ask, stream_function=stream)


def expert_of(place: Path) -> Agent[None, str]:
    def ask(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        keep(place, "expert", messages, info)
        if said(messages):
            return ModelResponse(parts=[TextPart("because")])
        return ModelResponse(parts=[ToolCallPart("look", {}, tool_call_id="look-1")])

    expert = Agent(FunctionModel(ask), name="expert", capabilities=[EventLogDurability()])

    @expert.tool_plain
    async def look() -> str:
        return outside.did("look", "seen")

    return expert


# -- the agents


def with_tools(agent: Agent[None, Any]) -> None:
    @agent.tool
    async def pay(ctx: RunContext[None], cents: int, to: str) -> dict[str, Any]:
        await meets("pay", "guess")
        return outside.did(f"pay {cents}", {"kind": "receipt", "to": to})

    @agent.tool_plain
    async def guess(n: int) -> str:
        if n == 1:
            raise ModelRetry("higher")
        return outside.did(f"guess {n}", "right")

    @agent.tool_plain(requires_approval=True)
    def refund(cents: int) -> str:
        return outside.did(f"refund {cents}", "refunded")


def whole_agent(place: Path) -> Agent[None, Receipt]:
    expert = expert_of(place)
    server = MCPServer("weather")

    @server.tool()
    def weather(city: str) -> str:
        return f"sun in {city}"

    async def through(ctx: Any, call_tool: Any, name: str, args: dict[str, Any]) -> Any:
        return outside.did(f"{name} {args}", await call_tool(name, args))

    def translate(text: str) -> str:
        return outside.did(f"translate {text}", text.upper())

    def of_the_day(ctx: RunContext[Any]) -> FunctionToolset[Any]:
        return FunctionToolset([translate])

    agent = Agent(
        model_of(place, TURNS),
        name="shop",
        output_type=Receipt,
        instructions="Sell tea.",
        toolsets=[
            MCPToolset(server, id="weather", process_tool_call=through),
            DynamicToolset(of_the_day, id="day"),
        ],
        capabilities=[EventLogDurability()],
    )
    with_tools(agent)

    @agent.tool_plain(metadata={"recovery": AGAIN})
    def search(query: str) -> list[str]:
        fails_at_first()
        return [query, "cup"]

    @agent.tool(metadata={"recovery": ToolPolicy(after_crash="retry")})
    async def ask_expert(ctx: RunContext[Any], question: str) -> str:
        return (await expert.run(question, usage=ctx.usage)).output

    return agent


def streaming_agent(place: Path) -> Agent[None, str | DeferredToolRequests]:
    async def watch(ctx: RunContext[None], events: AsyncIterable[Any]) -> None:
        async for event in events:
            with (place / "events").open("a") as file:
                file.write(json.dumps(without_process(to_jsonable_python(event))) + "\n")

    agent = Agent(
        model_of(place, SHORT),
        name="shop",
        output_type=[str, DeferredToolRequests],
        capabilities=[EventLogDurability(event_stream_handler=watch)],
    )
    with_tools(agent)
    return agent


# -- their lives


def whole(place: Path) -> Any:
    agent = whole_agent(place)

    async def sell(run: Run) -> Any:
        result = await agent.run(run.task)
        return told(result.all_messages_json(), result.output.model_dump(), result.usage)

    return lived(place, sell)


def streamed(place: Path) -> Any:
    agent = streaming_agent(place)

    async def sell(run: Run) -> Any:
        async with agent.iter(run.task) as first:
            async for _ in first:
                pass
        assert first.result is not None
        asked = first.result.output
        assert isinstance(asked, DeferredToolRequests)
        yes = await run.wait_for("yes")
        answers = asked.build_results(approvals={one.tool_call_id: yes for one in asked.approvals})
        history = first.all_messages()
        async with agent.run_stream(message_history=history, deferred_tool_results=answers) as last:
            texts = [text async for text in last.stream_text()]
        return told(last.all_messages_json(), texts, last.usage)

    return lived(place, sell) | {"events": sorted({*(place / "events").read_text().splitlines()})}


def told(messages: bytes, output: Any, usage: Any) -> Any:
    return without_process([json.loads(messages), output, to_jsonable_python(usage)])


def lived(place: Path, agent_fn: Any) -> Any:
    """What must be as in the run that nobody killed."""
    result = ended(place, agent_fn)["result"]
    recorded = [
        [event.tool, event.call_id, without_process(to_jsonable_python(event.value))]
        for event in CheckpointStore(place / RUNS).run(RUN).events(until="now")
        if event.kind == "call" and event.tool.endswith(".model")
    ]
    return {"result": result, "bodies": requests(place), "recorded": recorded}


def person(place: Path, how: str) -> None:
    """What a person does: approve what waits for it, and look at what is in doubt."""
    run = CheckpointStore(place / RUNS).run(RUN)
    if how == "WaitingError" and not run.pending():
        return run.signal("yes", True)
    assert all(
        (call.tool, call.kwargs) == ("refund.approval", {"cents": 3}) for call in run.pending()
    )
    settle(place, how)


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """What is slow the first time, before the processes are forked."""
    agent = Agent(TestModel(), name="warm", capabilities=[EventLogDurability()])
    asyncio.run(agent.run("warm"))
    JSON_CODEC.load(CallToolResult, {"kind": "tool_return", "result": 1})
    JSON_CODEC.dump(list[ModelMessage], [ModelResponse([])])
    JSON_CODEC.dump(DynamicToolsResult, DynamicToolsResult(tools={}, instructions=None))


@kills(2)
@pytest.mark.parametrize("live", [whole, streamed])
def test_an_agent_survives_kills(
    live: Any, points: int, tmp_path: Path, rng: random.Random
) -> None:
    survives(live, tmp_path, rng, points, appends=20, settle=person)
