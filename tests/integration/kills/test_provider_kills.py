"""Plain loops over providers' clients and MCP servers, killed before and after every append.

The transcript is the whole conversation, and the body of each request that a provider was sent. No
field is left out. A request that a crash cut is sent again, so that equal bodies count once.
Effects of tools are counted outside. MCP has no requests to models, and no streams.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.server.mcpserver import MCPServer

from recovery import ApprovalDeniedError, Run, SyncRun, SyncStream, tool
from recovery.integrations.anthropic import recorded_client as recorded_anthropic
from recovery.integrations.mcp import RecordedClient
from recovery.integrations.openai import recorded_client as recorded_openai
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
from tests.support.providers import Provider, message, message_events, response, response_events


def load() -> None:
    """The SDKs import much when it is first used: once here, and not in each forked process."""
    provider = Provider()
    asked: Any = [{"role": "user", "content": "hello"}]
    list(provider.openai_client().responses.create(model="m", input="x", stream=True))
    with provider.anthropic_client().messages.stream(
        model="c", max_tokens=9, messages=asked
    ) as stream:
        stream.until_done()


load()
Body = dict[str, Any]


class Scripted(Provider):
    """A provider that answers by what it is asked, and whose requests are kept in a file."""

    def __init__(
        self, place: Path, plain: Callable[[Body], Body], streamed: Callable[[Body], list[Any]]
    ) -> None:
        super().__init__()
        self._place, self._plain, self._streamed = place, plain, streamed

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        body = json.loads(request.content)
        keep_request(self._place, body, ("anthropic.messages", "openai.responses"))
        if body.get("stream"):
            return self.streamed(self._streamed(body), {"request-id": "req"})
        return httpx2.Response(200, json=self._plain(body), headers={"x-request-id": "req"})


# -- tools


@tool(**AGAIN)
async def search(what: str) -> str:
    fails_at_first()
    await meets("search", "search")
    return f"found {what}"


@tool
async def pay(cents: int) -> str:
    if cents > 50:
        raise ValueError("no more than 50")
    return outside.did(f"paid {cents}", f"paid {cents}")


@tool(needs_approval=True)
async def send_mail(to: str) -> str:
    return outside.did(f"mail to {to}", f"sent to {to}")


@tool(after_crash="retry")
def read_page(name: str) -> Iterator[str]:
    yield from ("all ", "about ", name)


TOOLS: dict[str, Any] = {
    "search": search,
    "pay": pay,
    "send_mail": send_mail,
    "read_page": read_page,
}
SCRIPT: list[list[tuple[str, Body]]] = [
    [("search", {"what": "otters"}), ("search", {"what": "cats"})],
    [("pay", {"cents": 70})],
    [("pay", {"cents": 40}), ("read_page", {"name": "dogs"})],
    [("send_mail", {"to": "ann"})],
]


async def called(name: str, given: Body, call_id: str) -> tuple[str, bool]:
    """A tool that the model asks for; an error is for the model, which may try again."""
    made = tool(call_id=call_id)(TOOLS[name])
    try:
        if name != "read_page":
            return await made(**given), False
        words = made(**given)  # in a plain agent it is read as plain code does
        read = list(words) if isinstance(words, SyncStream) else [one async for one in words]
        return "".join(read), False
    except (ValueError, ApprovalDeniedError) as exc:
        return f"error: {exc}", True


# -- Anthropic: an async loop that streams


def message_to(body: Body) -> list[Any]:
    turn = sum(one["role"] == "assistant" for one in body["messages"])
    if turn == len(SCRIPT):
        return message_events("all is done")
    uses = [
        {"type": "tool_use", "id": f"toolu_{turn}_{at}", "name": name, "input": given}
        for at, (name, given) in enumerate(SCRIPT[turn])
    ]
    return message_events("now:", *uses, stop_reason="tool_use")


def loop_of_anthropic(place: Path) -> Any:
    provider = Scripted(place, lambda body: message(), message_to)
    client = recorded_anthropic(provider.async_anthropic_client())

    async def agent(run: Run) -> Any:
        history: list[Any] = [{"role": "user", "content": run.task}]
        while True:
            async with client.messages.stream(
                model="c", max_tokens=100, messages=list(history)
            ) as stream:
                async for _ in stream.text_stream:
                    pass
                said = await stream.get_final_message()
            blocks = [one.model_dump(mode="json", exclude_unset=True) for one in said.content]
            history.append({"role": "assistant", "content": blocks})
            uses = [one for one in said.content if one.type == "tool_use"]
            if not uses:
                return [history, said.stop_reason]
            made = [called(one.name, dict(one.input), one.id) for one in uses]
            results = [
                {"type": "tool_result", "tool_use_id": use.id, "content": text, "is_error": failed}
                for use, (text, failed) in zip(uses, await asyncio.gather(*made), strict=True)
            ]
            history.append({"role": "user", "content": results})

    return {"result": ended(place, agent, "begin")["result"], "sent": requests(place)}


# -- OpenAI: a plain loop, whose conversation the provider holds


def response_to(body: Body) -> Body:
    turn = int(body.get("previous_response_id", "resp_0").partition("_")[2])
    if turn == len(SCRIPT):
        return response("all is done", id=f"resp_{turn + 1}")
    calls = [
        {
            "type": "function_call",
            "id": f"fc_{turn}_{at}",
            "call_id": f"call_{turn}_{at}",
            "name": name,
            "arguments": json.dumps(given),
            "status": "completed",
        }
        for at, (name, given) in enumerate(SCRIPT[turn])
    ]
    return response(id=f"resp_{turn + 1}", output=calls)


async def outputs(said: Any) -> list[Any]:
    """What the tools that a response calls give, all at once."""
    uses = [one for one in said.output if one.type == "function_call"]
    made = [called(one.name, json.loads(one.arguments), one.call_id) for one in uses]
    return [
        {"type": "function_call_output", "call_id": one.call_id, "output": text}
        for one, (text, _) in zip(uses, await asyncio.gather(*made), strict=True)
    ]


def loop_of_openai(place: Path) -> Any:
    provider = Scripted(place, response_to, lambda body: response_events("and ", "so on"))
    client = recorded_openai(provider.openai_client())

    def agent(run: SyncRun) -> Any:
        asked: Any = run.task
        said: Any = None
        previous: Any = {}
        while asked:
            said = client.responses.create(model="m", input=asked, **previous)
            previous = {"previous_response_id": said.id}
            asked = asyncio.run(outputs(said))
        words = []
        with client.responses.create(model="m", input="go on", stream=True) as stream:
            for event in stream:
                if event.type == "response.output_text.delta":
                    words.append(event.delta)
        kept = client.responses.create(model="m", input="keep this", conversation="conv_1")
        return [said and said.output_text, said and said._request_id, words, kept.id]

    return {"result": ended(place, agent, "begin")["result"], "sent": requests(place)}


# -- MCP: tools of a server, three calls at once


def post_office() -> MCPServer:
    server = MCPServer("post office")

    @server.tool()
    def send(to: str) -> str:
        return f"sent to {to}"

    @server.tool()
    def bill(cents: int) -> str:
        if cents > 50:
            raise ValueError("no more than 50")
        return f"billed {cents}"

    @server.tool()
    def look(at: str) -> str:
        return f"saw {at}"

    return server


def loop_of_mcp(place: Path) -> Any:
    async def agent(run: Run) -> Any:
        async with Client(post_office()) as client:
            of: Any = client
            sends = of.call_tool

            async def counted(name: str, given: Any, **more: Any) -> Any:
                result = await sends(name, given, **more)
                if name == "send":
                    await meets("post.send", "post.send")
                if name != "look":
                    kept = result.model_dump(mode="json", by_alias=True, exclude_unset=True)
                    outside.did(f"{name} {given}", kept)
                return result

            of.call_tool = counted
            options: Any = {
                "look": {"after_crash": "retry"},
                "send": {"needs_approval": lambda call: call.kwargs == {"to": "cara"}},
            }
            mcp = RecordedClient(client, "post", tools=options)
            listed = sorted(one.name for one in (await mcp.list_tools()).tools)
            at_once = await asyncio.gather(
                mcp.call_tool("send", {"to": "ann"}, call_id="a"),
                mcp.call_tool("send", {"to": "bob"}, call_id="b"),
                mcp.call_tool("look", {"at": "the sea"}),
            )
            found = [*at_once]
            found.append(await mcp.call_tool("bill", {"cents": 70}))
            found.append(await mcp.call_tool("bill", {"cents": 40 if found[-1].is_error else 70}))
            found.append(await mcp.call_tool("send", {"to": "cara"}))
            return [
                listed,
                *[one.model_dump(mode="json", by_alias=True, exclude_unset=True) for one in found],
            ]

    return ended(place, agent, "begin")["result"]


LOOPS = [loop_of_anthropic, loop_of_openai, loop_of_mcp]


@kills(2)
@pytest.mark.parametrize("loop", LOOPS, ids=lambda one: one.__name__)
def test_a_loop_survives_kills(loop: Any, points: int, tmp_path: Path, rng: random.Random) -> None:
    survives(loop, tmp_path, rng, points, appends=15)
