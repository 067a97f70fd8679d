"""Tools of MCP servers, called in a run: a real server and a real client, in one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from mcp import Client, MCPError, types
from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel

from recovery import ApprovalDeniedError, CheckpointStore, ParkedError, Resolution, Run, SyncRun
from recovery.agent.replay_order import STRICT_WAIT_S
from recovery.engine.task_state import Blocking
from recovery.errors import DivergenceError, InDoubtError
from recovery.integrations.mcp import RecordedClient
from recovery.journal.events import CallIntended, CallReturned
from tests.support.lives import (
    RUN,
    Died,
    after_death,
    disk_store,
    executed,
    recorded,
    run,
    run_sync,
)

pytestmark = pytest.mark.usefixtures("fresh")

# The client wraps what is raised in its block.
DIED = "the process died|unhandled errors in a TaskGroup"
READS = types.ToolAnnotations(read_only_hint=True)


class Confirmation(BaseModel):
    sure: bool


class Weather(BaseModel):
    city: str
    degrees: float


def server() -> MCPServer:
    made = MCPServer("post office")

    @made.tool()
    def send(to: str, text: str = "") -> str:
        executed[to] += 1
        return f"sent to {to}"

    @made.tool(annotations=READS)
    def weather(city: str) -> Weather:
        executed[city] += 1
        return Weather(city=city, degrees=21.5)

    @made.tool()
    def fails(what: str) -> str:
        executed[what] += 1
        raise ValueError(f"no {what}")

    @made.tool()
    def raw() -> types.CallToolResult:
        executed["raw"] += 1
        content: Any = [
            types.TextContent(type="text", text="seen"),
            types.ImageContent(type="image", data="AAAA", mime_type="image/png"),
        ]
        found = {"n": 1, "parts": [1.5, None]}
        return types.CallToolResult(
            content=content, structured_content=found, is_error=True, _meta={"cost": 0.25}
        )

    @made.tool()
    async def asks(what: str, ctx: Context[Any, Any]) -> str:
        answer: Any = await ctx.elicit(f"sure of {what}?", Confirmation)
        executed[what] += 1
        return f"{what}: {answer.action} {answer.data.sure}"

    @made.tool()
    async def needs_input(
        what: str, ctx: Context[Any, Any]
    ) -> types.CallToolResult | types.InputRequiredResult:
        executed["round"] += 1
        if not ctx.input_responses:
            schema: Any = {"type": "object", "properties": {"sure": {"type": "boolean"}}}
            asked = types.ElicitRequestFormParams(message=what, requested_schema=schema)
            wanted: Any = {"sure": types.ElicitRequest(params=asked)}
            return types.InputRequiredResult(input_requests=wanted, request_state="half")
        answer: Any = ctx.input_responses["sure"]
        said = f"{what}: {answer.content} {ctx.request_state}"
        return types.CallToolResult(content=[types.TextContent(type="text", text=said)])

    @made.resource("notes://today")
    def today() -> str:
        executed["notes"] += 1
        return "buy milk"

    @made.prompt()
    def greet(name: str) -> str:
        executed["prompt"] += 1
        return f"greet {name}"

    return made


async def confirms(context: Any, params: Any) -> types.ElicitResult:
    executed["asked"] += 1
    return types.ElicitResult(action="accept", content={"sure": True})


@asynccontextmanager
async def connected(
    of: MCPServer | None = None, kind: str = "client", **options: Any
) -> AsyncIterator[RecordedClient[Any]]:
    client = Client(of or server(), elicitation_callback=confirms, **_mode(kind))
    async with client:
        yield RecordedClient(client if kind != "session" else client.session, "post", **options)


def _mode(kind: str) -> dict[str, Any]:
    return {"mode": "legacy"} if kind in ("legacy", "session") else {}


def dumped(value: Any) -> Any:
    assert isinstance(value, BaseModel)
    return [type(value).__name__, value.model_dump(by_alias=True, exclude_unset=True)]


Made = Callable[[Any], Awaitable[Any]]
CALLS: dict[str, Made] = {
    "call": lambda mcp: mcp.call_tool("send", {"to": "ann", "text": "hello"}),
    "structured": lambda mcp: mcp.call_tool("weather", {"city": "Oslo"}),
    "error": lambda mcp: mcp.call_tool("fails", {"what": "it"}),
    "all that a result has": lambda mcp: mcp.call_tool("raw"),
    "elicitation": lambda mcp: mcp.call_tool("asks", {"what": "this"}),
    "input in rounds": lambda mcp: mcp.call_tool("needs_input", {"what": "this"}),
    "tools": lambda mcp: mcp.list_tools(),
    "resources": lambda mcp: mcp.list_resources(),
    "prompts": lambda mcp: mcp.list_prompts(),
    "prompt": lambda mcp: mcp.get_prompt("greet", {"name": "ann"}),
    "resource": lambda mcp: mcp.read_resource("notes://today"),
}


# A server asks its client by a request of its own, or by what newer ones return instead.
OF_ONE_KIND = {
    ("elicitation", "client"),
    ("input in rounds", "legacy"),
    ("input in rounds", "session"),
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (name, kind)
        for name in CALLS
        for kind in ("client", "legacy", "session")
        if (name, kind) not in OF_ONE_KIND
    ],
)
def test_what_a_server_said_is_served_whole(name: str, kind: str) -> None:
    async def unrecorded() -> Any:
        client = Client(server(), elicitation_callback=confirms, **_mode(kind))
        async with client:
            return dumped(await CALLS[name](client if kind != "session" else client.session))

    expected = asyncio.run(unrecorded())
    effects, store, found = dict(executed), CheckpointStore(), list[Any]()
    executed.clear()

    async def agent(run: Run) -> None:
        async with connected(kind=kind) as mcp:
            found.append(dumped(await CALLS[name](mcp)))
        if run.recovery_count == 0:
            raise OSError("once more")

    run(agent, store)
    assert found == [expected, expected]
    assert executed == effects
    assert len(recorded(store, CallIntended)) == 1


def test_the_log_has_the_call_as_the_server_got_it() -> None:
    store = CheckpointStore()

    async def agent(run: Run) -> None:
        async with connected() as mcp:
            await mcp.call_tool("send", {"to": "ann"}, call_id="toolu_1", meta={"trace": "t"})

    run(agent, store)
    (intent,) = recorded(store, CallIntended)
    assert (intent.tool, intent.call_id, intent.after_crash) == ("post.send", "toolu_1", "park")
    assert intent.args == [[], {"to": "ann", "_meta": {"trace": "t"}}]
    (outcome,) = recorded(store, CallReturned)
    assert outcome.value["content"] == [{"type": "text", "text": "sent to ann"}]


@pytest.mark.parametrize(
    ("options", "listed", "policies"),
    [
        ({}, True, ["park", "park"]),
        ({"trust_read_only": True}, False, ["park", "park"]),
        ({"trust_read_only": True}, True, ["park", "retry"]),
        ({"tools": {"send": {"after_crash": "retry"}}}, True, ["retry", "park"]),
        (
            {"trust_read_only": True, "tools": {"weather": {"after_crash": "report"}}},
            True,
            ["park", "report"],
        ),
        (
            {"trust_read_only": True, "tools": {"weather": {"timeout_s": 5}}},
            True,
            ["park", "retry"],
        ),
    ],
)
def test_policies_are_those_of_the_user(options: Any, listed: bool, policies: list[str]) -> None:
    store = CheckpointStore()

    async def agent(run: Run) -> None:
        async with connected(**options) as mcp:
            if listed:
                await mcp.list_tools()
            await mcp.call_tool("send", {"to": "ann"})
            await mcp.call_tool("weather", {"city": "Oslo"})
        if run.recovery_count == 0:
            raise OSError("once more")

    run(agent, store)
    intents = [one for one in recorded(store, CallIntended) if "()" not in one.tool]
    assert [one.after_crash for one in intents] == policies
    assert executed == {"ann": 1, "Oslo": 1}


def test_a_tool_that_was_cut_is_in_doubt_and_one_that_reads_is_called_again() -> None:
    store, dies = disk_store(), ["weather", "send"]

    async def agent(run: Run) -> Any:
        async with connected(tools={"weather": {"after_crash": "retry"}}) as mcp:
            found = []
            for name, given in [("weather", {"city": "Oslo"}), ("send", {"to": "ann"})]:
                client: Any = mcp._client
                call, die = client.call_tool, name in dies

                async def cut(
                    *args: Any, call: Any = call, die: bool = die, name: str = name, **more: Any
                ) -> Any:
                    made = await call(*args, **more)
                    if die:
                        dies.remove(name)
                        raise Died(DIED)
                    return made

                client.call_tool = cut
                found.append((await mcp.call_tool(name, given)).content[0].text)
                client.call_tool = call
            return found

    for _ in range(2):
        with pytest.raises(BaseException, match=DIED):
            run(agent, store)
        store = after_death(store)
    with pytest.raises(InDoubtError, match=r"post\.send"):
        run(agent, store)
    assert executed == {"Oslo": 2, "ann": 1}
    (call,) = store.run(RUN).status().in_doubt
    store.run(RUN).resolve(call.lsn, Resolution.outcome("it was sent"))
    assert run(agent, store)["result"][1] == "it was sent"
    assert executed == {"Oslo": 2, "ann": 1}


def test_a_model_is_told_of_an_unknown_outcome() -> None:
    store, lives = disk_store(), 0

    async def agent(run: Run) -> Any:
        nonlocal lives
        lives += 1
        async with connected(tools={"send": {"after_crash": "report"}}) as mcp:
            if lives == 1:

                async def dies(*args: Any, **more: Any) -> Any:
                    raise Died(DIED)

                mcp._client.call_tool = dies
            found = await mcp.call_tool("send", {"to": "ann"})
            return [found.is_error, found.content[0].text]

    with pytest.raises(BaseException, match=DIED):
        run(agent, store)
    is_error, text = run(agent, after_death(store))["result"]
    assert is_error and "The outcome of post.send is unknown" in text


@pytest.mark.parametrize("code", [types.CONNECTION_CLOSED, types.REQUEST_TIMEOUT])
@pytest.mark.parametrize("repeatable", [False, True])
def test_a_side_effect_without_an_answer_is_in_doubt(code: int, repeatable: bool) -> None:
    store = CheckpointStore()
    tools: Any = {"send": {"after_crash": "retry"}} if repeatable else None

    async def agent(run: Run) -> Any:
        async with connected(tools=tools) as mcp:

            async def broken(*args: Any, **more: Any) -> Any:
                raise MCPError(code, "gone")

            mcp._client.call_tool = broken
            try:
                await mcp.call_tool("send", {"to": "ann"})
            except MCPError as exc:
                return [exc.code, exc.message]

    if repeatable:
        assert run(agent, store)["result"] == [code, "gone"]
    else:
        with pytest.raises(InDoubtError):
            run(agent, store)


def test_an_error_of_the_protocol_is_the_sdks_and_is_served() -> None:
    found: list[Any] = []

    async def agent(run: Run) -> None:
        async with connected() as mcp:
            with pytest.raises(MCPError) as raised:
                await mcp.get_prompt("none")
            found.append([raised.value.code, raised.value.message, raised.value.data])
        if run.recovery_count == 0:
            raise OSError("once more")

    run(agent, CheckpointStore())
    assert found[0] == found[1] and found[0][0] < 0


def test_a_call_that_needs_approval_is_asked_for_before_the_server_is() -> None:
    store = CheckpointStore()

    async def agent(run: Run) -> Any:
        async with connected(tools={"send": {"needs_approval": True}}) as mcp:
            try:
                await mcp.call_tool("send", {"to": "ann"})
            except ApprovalDeniedError:
                return "denied"

    with pytest.raises(ParkedError):
        run(agent, store, park_after_s=0)
    (asked,) = store.run(RUN).pending()
    assert (asked.tool, asked.kwargs) == ("post.send", {"to": "ann"})
    store.run(RUN).deny(asked, who="me", why="no")
    assert run(agent, store)["result"] == "denied"
    assert executed == {}


def test_another_call_stops_the_run_and_other_metadata_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(STRICT_WAIT_S, Blocking.UNKNOWN, 0.5)  # how long another order is awaited
    store, given, meta = disk_store(), {"to": "ann"}, {"trace": "a"}

    async def agent(run: Run) -> None:
        async with connected() as mcp:
            await mcp.call_tool("send", given, meta=meta)
            raise Died(DIED)

    with pytest.raises(BaseException, match=DIED):
        run(agent, store)
    meta = {"trace": "b"}
    with pytest.raises(BaseException, match=DIED):
        run(agent, after_death(store))
    given = {"to": "bob"}
    with pytest.raises(DivergenceError, match=r"identity\.to: 'ann' -> 'bob'"):
        run(agent, after_death(store))
    assert executed == {"ann": 1}


def test_calls_side_by_side_and_servers_of_other_names() -> None:
    async def agent(run: Run) -> Any:
        async with Client(server()) as one, Client(server()) as two:
            first, second = RecordedClient(one, "one"), RecordedClient(two, "two")
            calls = [mcp.call_tool("send", {"to": "ann"}) for mcp in (first, second, first)]
            found = await asyncio.gather(*calls)
        if run.recovery_count == 0:
            raise OSError("once more")
        return [each.content[0].text for each in found]

    store = CheckpointStore()
    assert run(agent, store)["result"] == ["sent to ann"] * 3
    assert executed == {"ann": 3}
    assert sorted(one.tool for one in recorded(store, CallIntended)) == [
        *("one.send", "one.send", "two.send")
    ]


def test_a_session_of_a_client_is_recorded_too() -> None:
    store = CheckpointStore()

    async def agent(run: Run) -> None:
        async with connected(kind="legacy") as mcp:
            assert mcp.server_info.name == "post office"
            session = mcp.session
            assert isinstance(session, RecordedClient)
            await session.call_tool("send", {"to": "ann"})

    run(agent, store)
    assert [one.tool for one in recorded(store, CallIntended)] == ["post.send"]


def test_outside_of_a_run_it_is_the_client() -> None:
    async def main() -> None:
        async with connected() as mcp:
            found = await mcp.call_tool("send", {"to": "ann"}, call_id="x")
            assert found.content[0].text == "sent to ann"
            assert {one.name for one in (await mcp.list_tools()).tools} >= {"send", "weather"}

    asyncio.run(main())


def test_in_a_plain_agent_with_a_loop_of_its_own() -> None:
    def agent(run: SyncRun) -> Any:
        async def main() -> Any:
            async with connected() as mcp:
                return (await mcp.call_tool("send", {"to": "ann"})).content[0].text

        found = asyncio.run(main())
        if run.recovery_count == 0:
            raise OSError("once more")
        return found

    assert run_sync(agent, CheckpointStore())["result"] == "sent to ann"
    assert executed == {"ann": 1}


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda client: RecordedClient(cast(Any, server()), "x"), "takes a client of mcp"),
        (lambda client: RecordedClient(client, ""), "name is that of the server"),
        (lambda client: RecordedClient(client, "x", tools={"a": {"retries": 1}}), "no option"),
    ],
)
def test_mistakes_are_said_at_once(make: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        make(Client(server()))
