"""An agent of the OpenAI Agents SDK with all that it can have, and a model that needs no network.

The model goes by its input alone, as a process that comes later has no other memory. Effects go to
``outside``; bodies of requests that reach the model, to a file there.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import mcp.types
from agents import (
    Agent,
    FunctionTool,
    Model,
    ModelResponse,
    RunConfig,
    RunHooks,
    SQLiteSession,
    Usage,
    function_tool,
    handoff,
    set_trace_processors,
)
from agents.mcp import MCPServer
from agents.tool_context import ToolContext
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseCreatedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDeltaEvent,
    ResponseUsage,
)
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails

from recovery import CheckpointStore, Run, tool
from recovery.integrations.openai_agents import Runner, recorded, wire
from recovery.journal.events import CallIntended
from tests.support import outside
from tests.support.framework_lives import (
    AGAIN,
    ended,
    fails_at_first,
    keep_request,
    meets,
    requests,
)
from tests.support.kill_sweep import RUNS
from tests.support.lives import recorded as lives_recorded

set_trace_processors([])  # else the SDK sends traces over the network
QUIET = RunConfig(tracing_disabled=True)
Decide = Callable[[str, list[Any]], list[Any]]


# -- the model


def says(text: str) -> ResponseOutputMessage:
    part = ResponseOutputText(text=text, type="output_text", annotations=[])
    return ResponseOutputMessage(
        id="msg_1", content=[part], role="assistant", status="completed", type="message"
    )


def calls(name: str, call_id: str, **arguments: Any) -> ResponseFunctionToolCall:
    return ResponseFunctionToolCall(
        call_id=call_id, name=name, arguments=json.dumps(arguments), type="function_call"
    )


class FakeModel(Model):
    """``decide``: from the instructions and the input items to the output items. ``place``: where
    requests are written down; their answers must not be in the log then."""

    def __init__(self, decide: Decide, name: str = "fake", place: Path | None = None) -> None:
        self.decide, self.model, self.place = decide, name, place

    def _output(self, instructions: Any, given: Any, tools: Any) -> list[Any]:
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        if self.place is not None:
            keep_request(self.place, [instructions, items, [one.name for one in tools]])
        return self.decide(instructions or "", items)

    async def get_response(
        self, system_instructions: Any, input: Any, *rest: Any, **named: Any
    ) -> ModelResponse:
        output = self._output(system_instructions, input, rest[1] if rest else ())
        await asyncio.sleep(0)
        used = Usage(requests=1, input_tokens=100, output_tokens=10, total_tokens=110)
        return ModelResponse(output=output, usage=used, response_id="resp_1")

    async def stream_response(
        self, system_instructions: Any, input: Any, *rest: Any, **named: Any
    ) -> AsyncIterator[Any]:
        output = self._output(system_instructions, input, rest[1] if rest else ())
        used = ResponseUsage(
            input_tokens=100,
            output_tokens=10,
            total_tokens=110,
            input_tokens_details=InputTokensDetails.model_validate(
                {"cached_tokens": 0, "cache_write_tokens": 0}
            ),
            output_tokens_details=OutputTokensDetails(reasoning_tokens=0),
        )
        begun = Response(
            id="resp_1",
            created_at=0,
            model="fake",
            object="response",
            output=[],
            parallel_tool_calls=True,
            tool_choice="auto",
            tools=[],
        )
        yield ResponseCreatedEvent(response=begun, sequence_number=0, type="response.created")
        for number, word in enumerate(("one ", "two ", "three"), 1):
            await asyncio.sleep(0)
            yield ResponseTextDeltaEvent(
                content_index=0,
                delta=word,
                item_id="msg_1",
                logprobs=[],
                output_index=0,
                sequence_number=number,
                type="response.output_text.delta",
            )
        done = begun.model_copy(update={"output": output, "usage": used})
        yield ResponseCompletedEvent(response=done, sequence_number=4, type="response.completed")


def answered(items: list[Any]) -> set[str]:
    """The ids of the calls that have an output."""
    return {one["call_id"] for one in items if one.get("type") == "function_call_output"}


# -- the tools


@function_tool
@tool(**AGAIN)
def search(query: str) -> list[str]:
    """Search."""
    fails_at_first()
    return [f"{query} 1", f"{query} 2"]  # it may be made again


@function_tool
async def reserve(context: ToolContext[Any], item: str, count: int = 1) -> str:
    """Reserve."""
    await meets("reserve", "reserve")
    return outside.did(f"reserve {item}", f"{count} {item}")


@function_tool
async def weather(city: str) -> str:
    """Tell the weather."""
    if city == "nowhere":
        raise LookupError("there is no such city")
    return outside.did(f"weather {city}", "sunny")


@function_tool
@tool(needs_approval=True)
async def charge(cents: int) -> str:
    """Charge the customer."""
    return outside.did(f"charge {cents}", f"paid {cents}")


@function_tool
async def note(text: str) -> str:
    """Take a note."""
    return outside.did(f"note {text}", "noted")


class Stock(MCPServer):
    """An MCP server in memory."""

    @property
    def name(self) -> str:
        return "stock"

    async def connect(self) -> None: ...

    async def cleanup(self) -> None: ...

    async def list_tools(self, *context: Any, **named: Any) -> list[Any]:
        schema = {"type": "object", "properties": {"item": {"type": "string"}}}
        told = {"name": "count", "description": "Count.", "inputSchema": schema}
        return [mcp.types.Tool.model_validate(told)]

    async def call_tool(self, tool_name: str, arguments: Any, *more: Any, **named: Any) -> Any:
        text = {"type": "text", "text": f"7 {arguments['item']}"}
        told = outside.did(f"mcp {tool_name}", {"content": [text], "isError": False})
        return mcp.types.CallToolResult.model_validate(told)

    async def list_prompts(self) -> Any:
        raise NotImplementedError

    async def get_prompt(self, name: str, arguments: Any = None) -> Any:
        raise NotImplementedError


# -- the agents


def triage_decides(instructions: str, items: list[Any]) -> list[Any]:
    done = answered(items)
    if "c1" not in done:
        return [
            calls("search", "c1", query="shoes"),
            calls("reserve", "c2", item="shoes"),
            calls("reserve", "c3", item="shoes"),
        ]
    if "c4" not in done:
        return [calls("weather", "c4", city="nowhere")]
    if "c5" not in done:
        return [calls("weather", "c5", city="Bonn")]
    if "c6" not in done:
        return [calls("transfer_to_billing", "c6")]
    if "c10" not in done:
        return [calls("clerk", "c10", input="what happened?")]
    return [says("all is well")]


def billing_decides(instructions: str, items: list[Any]) -> list[Any]:
    done = answered(items)
    if "c7" not in done:
        return [calls("charge", "c7", cents=500), calls("count", "c8", item="shoes")]
    return [calls("transfer_to_triage", "c9")]


def clerk_decides(instructions: str, items: list[Any]) -> list[Any]:
    if "c11" not in answered(items):
        return [calls("note", "c11", text="paid")]
    return [says("a short report")]


def shop() -> Agent[Any]:
    """Two agents that hand off to one another, and one that is a tool."""
    model = partial(FakeModel, place=outside.place())
    clerk = Agent("clerk", model=model(clerk_decides), tools=[note])
    triage = Agent("triage", instructions="Help.", model=model(triage_decides))
    billing = Agent(
        "billing",
        instructions=lambda context, agent: f"You are {agent.name}.",
        model=model(billing_decides),
        tools=[charge],
        mcp_servers=[Stock()],
        handoffs=[triage],
    )
    triage.tools = [
        search,
        reserve,
        weather,
        recorded(clerk).as_tool("clerk", "Ask the clerk."),
    ]
    triage.handoffs = [handoff(billing)]
    return triage


class Bodies(RunHooks[Any]):
    """What the SDK asks models, served or not."""

    def __init__(self) -> None:
        self.all: list[Any] = []

    async def on_llm_start(self, context: Any, agent: Any, prompt: Any, items: Any) -> None:
        self.all.append([agent.name, prompt, json.loads(json.dumps(items))])


async def plainly(run: Run) -> Any:
    """Run the agent, not streamed."""
    return await told(
        run, lambda hooks: Runner.run(shop(), run.task, hooks=hooks, run_config=QUIET)
    )


async def streamed(run: Run) -> Any:
    """The same, streamed."""

    async def read(hooks: Bodies) -> Any:
        result = Runner.run_streamed(shop(), run.task, hooks=hooks, run_config=QUIET)
        async for _ in result.stream_events():
            pass
        return result

    return await told(run, read)


@tool(after_crash="retry")
async def approved(name: str) -> bool:
    """Whether a person has approved, who is asked outside."""
    return name == "refund"


def refund_decides(instructions: str, items: list[Any]) -> list[Any]:
    asked = sum(one.get("role") == "user" for one in items)
    done = answered(items)
    if asked == 1 and not done:
        return [calls("refund", "r1", cents=20), calls("erase", "r2"), calls("search", "r3")]
    if asked == 2 and "r4" not in done:
        return [calls("refund", "r4", cents=30)]
    return [says(f"answer {asked}")]


@function_tool(needs_approval=True)
async def refund(cents: int) -> str:
    """Refund."""
    return outside.did(f"refund {cents}", f"refunded {cents}")


@function_tool(needs_approval=True)
async def erase() -> str:
    """Erase all."""
    return outside.did("erase", "erased")


async def by_handmade(context: Any, text: str) -> str:
    return outside.did("handmade", f"handmade {text}")


async def chats(run: Run) -> Any:
    """Two turns of a conversation in a session, with approvals of the SDK's own."""
    handmade = FunctionTool("search", "Search.", {"type": "object"}, by_handmade, False)
    model = FakeModel(refund_decides, place=outside.place())
    clerk = Agent("clerk", model=model, tools=[refund, erase, handmade])
    file, all_told = outside.place() / "session.db", []
    with closing(SQLiteSession("chat", file)) as session:
        for text in ("refund me", "and again"):

            async def ask(hooks: Bodies, text: str = text) -> Any:
                options: dict[str, Any] = {"session": session, "hooks": hooks, "run_config": QUIET}
                result = await Runner.run(clerk, text, **options)
                while result.interruptions:
                    state = result.to_state()
                    for item in result.interruptions:
                        if await run.call(approved, item.raw_item.name):
                            state.approve(item)
                        else:
                            state.reject(item)
                    result = await Runner.run(clerk, state, **options)
                return result

            all_told.append(await told(run, ask))
    with closing(SQLiteSession("chat", file)) as again:
        return [all_told, await again.get_items()]


async def told(run: Run, ask: Callable[[Bodies], Any]) -> Any:
    """What came of it: all items and messages, and the bodies of all requests."""
    hooks = Bodies()
    result = await ask(hooks)
    used = result.context_wrapper.usage
    return {
        "output": result.final_output,
        "last agent": result.last_agent.name,
        "input list": result.to_input_list(),
        "items": [[type(one).__name__, one.agent.name] for one in result.new_items],
        "responses": [one.response_id for one in result.raw_responses],
        "bodies": hooks.all,
        "usage": [used.requests, used.input_tokens, used.output_tokens],
        "ours": [run.usage().input_tokens, run.usage().output_tokens],
    }


def live(agent: Callable[[Run], Any]) -> Callable[[Path], Any]:
    """A life of a process that runs the agent."""

    def lives(place: Path) -> Any:
        result = ended(place, agent, "buy shoes")["result"]
        intents = lives_recorded(CheckpointStore(place / RUNS), CallIntended)
        asked = [one.args[0][0] for one in intents if one.tool == "model"]
        return json.loads(json.dumps([result, asked, requests(place)]))

    return lives


async def _warm() -> None:
    """What each process would do once, so that forked ones need not."""
    model = FakeModel(clerk_decides)
    wire.response(wire.reply(await model.get_response("", "")))
    async for event in model.stream_response("", ""):
        wire.stream_event(wire.event(event))


asyncio.run(_warm())
