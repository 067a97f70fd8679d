"""Agents of Google's ADK in recorded runs: what is recorded, refused, and comes back."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.adk")

from google.adk.agents import Agent
from google.adk.agents.live_request_queue import LiveRequestQueue
from google.adk.apps import App
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.runners import InMemoryRunner
from google.adk.tools import FunctionTool, LongRunningFunctionTool, ToolContext
from google.genai import types

from recovery import Budget, CheckpointStore, InDoubtError, RecoverableAgent, Resolution, Run
from recovery.errors import BudgetError, RunFailedError, WaitingError
from recovery.integrations.google_adk import EventLogPlugin, RecordedLlm, recoverable
from recovery.journal.events import CallIntended
from recovery.stores import MemoryStore
from tests.support.framework_lives import die_in_the_program_of
from tests.support.google_adk_shop import FakeLlm, calls, says
from tests.support.lives import RUN, Died
from tests.support.lives import recorded as events


@pytest.fixture
def store() -> CheckpointStore:
    return CheckpointStore(MemoryStore())


def llm(*answers: Any) -> FakeLlm:
    """A model that says these texts and calls, one answer after the other."""

    def turn(one: Any) -> Any:
        return lambda: (
            [says(one)] if isinstance(one, str) else [p.model_copy(deep=True) for p in one]
        )

    return FakeLlm(model="fake", turns=[turn(one) for one in answers], seen=[])


def app_of(model: Any, *tools: Any, policies: Any = None, plugins: Any = (), **options: Any) -> App:
    agent = Agent(name="shop", model=model, tools=list(tools), **options)
    return App(name="shop", root_agent=agent, plugins=[*plugins, EventLogPlugin(tools=policies)])


def run(app: App, store: CheckpointStore, **options: Any) -> str:
    of = recoverable(app, store, park_after_s=0, **options)
    return str(asyncio.run(of.run_with_recovery("Go", RUN))["result"])


def result(model: FakeLlm) -> Any:
    """What the last tool gave to the model."""
    return model.seen[-1]["contents"][-1]["parts"][-1]["function_response"]["response"]


def count(n: int) -> int:
    """Count."""
    return n + 1


def test_what_is_in_the_log(store: CheckpointStore) -> None:
    model = llm([calls("count", n=1)], "two")
    assert run(app_of(model, count, instruction="Count."), store) == "two"
    found = [one for one in store.run(RUN).events(until="now") if one.kind in ("call", "outcome")]
    assert [one.tool for one in found if one.kind == "call"] == ["model", "count", "model"]
    request = found[0].value[0][0]
    assert request["model"] == "fake" and "Count." in request["config"]["systemInstruction"]
    assert request["contents"] == [{"parts": [{"text": "Go"}], "role": "user"}]
    call = found[1].value[0]["content"]["parts"][0]["function_call"]
    assert found[2].call_id == call["id"] and call["id"].startswith("adk-")
    assert found[2].value == [[], {"n": 1}] and found[3].value == 2


def test_a_finished_part_is_served(store: CheckpointStore) -> None:
    """Also what a tool has done to the session."""
    made = []

    def remember(what: str, tool_context: ToolContext) -> None:
        """Remember."""
        made.append(what)
        tool_context.state["what"] = what

    model = llm([calls("remember", what="tea"), calls("remember", what="tea")], "done")
    app = app_of(model, remember, instruction="It is {what?}.")
    told = []

    async def dies_once(run: Run) -> str:
        runner = InMemoryRunner(app=app)
        got = await runner.run_debug("Go", quiet=True)
        told.append([[event.content, event.actions.state_delta] for event in got])
        if len(told) == 1:
            raise Died
        return "done"

    of = RecoverableAgent(dies_once, store, check_locals=False)
    with pytest.raises(Died):
        asyncio.run(of.run_with_recovery("Go", RUN))
    calls_made = len(events(store, CallIntended))
    asyncio.run(of.run_with_recovery("Go", RUN))
    assert told[0] == told[1] and made == ["tea", "tea"]
    assert len(model.seen) == 2 and "It is tea." in model.seen[1]["instruction"]
    assert len(events(store, CallIntended)) == calls_made


def test_a_long_running_tool_may_answer_later(store: CheckpointStore) -> None:
    def order(what: str) -> None:
        """Order."""

    model = llm([calls("order", what="tea")], "never")
    assert run(app_of(model, LongRunningFunctionTool(order)), store) == ""
    assert len(model.seen) == 1


def test_an_exception_ends_the_run_and_is_retried(store: CheckpointStore) -> None:
    tries = []

    def flaky() -> str:
        """Fail once."""
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("try again")
        return "well"

    model = llm([calls("flaky")], "done")
    with pytest.raises(RunFailedError, match="try again"):
        run(app_of(model, flaky), store)
    assert len(tries) == 1
    again = recoverable(app_of(model, flaky), store)
    assert asyncio.run(again.retry(RUN))["result"] == "done"
    assert len(tries) == 2 and len(model.seen) == 2


class Handles(BasePlugin):
    """Makes an answer of an exception."""

    async def on_tool_error_callback(self, *, error: Exception, **given: Any) -> Any:
        return {"handled": str(error)}


def fails() -> None:
    """Fail."""
    raise ValueError("no")


@pytest.mark.parametrize("by", ["plugin", "agent"])
def test_what_handles_exceptions_is_asked(by: str, store: CheckpointStore) -> None:
    def handle(tool: Any, args: Any, tool_context: Any, error: Exception) -> Any:
        return {"handled": str(error)}

    model = llm([calls("fails")], "done")
    if by == "plugin":
        app = app_of(model, fails, plugins=[Handles("handles")])
    else:
        app = app_of(model, fails, on_tool_error_callback=handle)
    assert run(app, store) == "done" and result(model) == {"handled": "no"}


def test_callbacks_before_a_tool_are_called(store: CheckpointStore) -> None:
    def guard(tool: Any, args: Any, tool_context: Any) -> Any:
        return {"refused": args["n"]}

    model = llm([calls("count", n=1)], "done")
    assert run(app_of(model, count, before_tool_callback=guard), store) == "done"
    assert result(model) == {"refused": 1}


def test_a_tool_that_is_not_there_is_the_frameworks(store: CheckpointStore) -> None:
    model = llm([calls("gone")], "done")
    assert run(app_of(model, count), store) == "done"
    assert "gone" in json.dumps(result(model))


# -- people


@pytest.mark.parametrize("how", ["policy", "framework"])
@pytest.mark.parametrize("approves", [True, False])
def test_an_approval_is_asked_for(how: str, approves: bool, store: CheckpointStore) -> None:
    model = llm([calls("count", n=1)], "done")
    if how == "policy":
        app = app_of(model, count, policies={"count": {"needs_approval": True}})
    else:
        app = app_of(model, FunctionTool(count, require_confirmation=True))
    with pytest.raises(WaitingError):
        run(app, store)
    (request,) = store.run(RUN).pending()
    name = "count" if how == "policy" else "count.approval"
    assert (request.tool, request.kwargs) == (name, {"n": 1})
    if approves:
        store.run(RUN).approve(request, who="ann")
    else:
        store.run(RUN).deny(request, who="ann", why="too much")
    assert run(app, store) == "done"
    if approves:
        assert result(model) == {"result": 2}
    else:
        assert "too much" in result(model)["error"] or "rejected" in result(model)["error"]


@pytest.mark.parametrize("policy", ["park", "report"])
def test_a_call_in_doubt(policy: Any, store: CheckpointStore) -> None:
    async def pay() -> str:
        """Pay."""
        raise Died

    model = llm([calls("pay")], "done")
    app = app_of(model, pay, policies={"pay": {"after_crash": policy}})
    with pytest.raises(Died):
        run(app, store)
    if policy == "park":
        with pytest.raises(InDoubtError):
            run(app, store)
        (call,) = store.run(RUN).status().in_doubt
        store.run(RUN).resolve(call, Resolution.outcome({"paid": 1}))
    assert run(app, store) == "done"
    assert result(model) == {"paid": 1} if policy == "park" else "unknown" in result(model)["error"]


# -- tools of an MCP server

SERVER = """
import sys
from mcp.server.mcpserver import MCPServer

server = MCPServer("post")

@server.tool()
def send(to: str) -> str:
    with open(sys.argv[1], "a") as file:
        file.write(f"{to}\\n")
    if to == "nobody":
        raise ValueError("who?")
    return f"sent to {to}"

server.run()
"""


def test_tools_of_an_mcp_server_are_called_once(store: CheckpointStore, tmp_path: Path) -> None:
    """ADK connects to no server of this process, so that this one is another."""
    mcp = pytest.importorskip("mcp")
    pytest.importorskip("mcp.server.mcpserver")
    from google.adk.tools.mcp_tool import McpToolset, StdioConnectionParams

    (tmp_path / "server.py").write_text(SERVER)
    arguments = [str(tmp_path / "server.py"), str(tmp_path / "sent")]
    twice = [calls("send", to="ann"), calls("send", to="ann")]
    model = llm(twice, [calls("send", to="nobody")], "done")
    told: list[Any] = []

    async def dies_once(run: Run) -> None:
        named = mcp.StdioServerParameters(command=sys.executable, args=arguments)
        tools = McpToolset(connection_params=StdioConnectionParams(server_params=named, timeout=60))
        try:
            runner = InMemoryRunner(app=app_of(model, tools))
            told.append([one.content for one in await runner.run_debug(run.task, quiet=True)])
        finally:
            await tools.close()
        if len(told) == 1:
            raise Died

    of = RecoverableAgent(dies_once, store, check_locals=False)
    with pytest.raises(Died):
        asyncio.run(of.run_with_recovery("Go", RUN))
    asyncio.run(of.run_with_recovery("Go", RUN))
    assert (tmp_path / "sent").read_text().split() == ["ann", "ann", "nobody"]
    assert told[0] == told[1] and len(model.seen) == 3
    (*_, given) = model.seen[1]["contents"][-1]["parts"]
    structured = given["function_response"]["response"]["structuredContent"]
    assert structured == {"result": "sent to ann"} and result(model)["isError"]


# -- limits and refusals


def test_tokens_count_for_budgets_once(store: CheckpointStore) -> None:
    app = app_of(llm([calls("count", n=1)], "done"), count)
    with pytest.raises(BudgetError):
        run(app, store, budget=Budget(tokens=5))
    of = recoverable(app, store, budget=Budget(tokens=30))
    assert asyncio.run(of.run_with_recovery("Go", RUN))["usage"].input_tokens == 21


def test_live_mode_is_refused(store: CheckpointStore) -> None:
    app = app_of(llm("done"))

    async def talks(run: Run) -> None:
        runner = InMemoryRunner(app=app)
        session = await runner.session_service.create_session(app_name="shop", user_id="user")
        queue = LiveRequestQueue()
        queue.close()
        with pytest.raises(RuntimeError, match="run_live cannot be recorded"):
            async for _ in runner.run_live(
                user_id="user", session_id=session.id, live_request_queue=queue
            ):
                pass

    asyncio.run(RecoverableAgent(talks, store).run_with_recovery("Go", RUN))


def test_callbacks_of_a_model_need_a_recorded_model(store: CheckpointStore) -> None:
    seen = []

    def after(callback_context: Any, llm_response: Any) -> None:
        seen.append(llm_response)

    with pytest.raises(RuntimeError, match="RecordedLlm"):
        run(app_of(llm("done"), after_model_callback=after), store)
    other = CheckpointStore(MemoryStore())
    app = app_of(RecordedLlm.of(llm("done"), retry=3), after_model_callback=after)
    assert run(app, other) == "done" and len(seen) == 1


def test_outside_of_a_run_it_does_nothing() -> None:
    model = llm([calls("count", n=1)], "two")

    async def plainly() -> Any:
        app = app_of(RecordedLlm.of(model), count)
        return await InMemoryRunner(app=app).run_debug("Go", quiet=True)

    assert asyncio.run(plainly())[-1].content.parts[0].text == "two"


def test_wrong_options_and_apps_are_refused(store: CheckpointStore) -> None:
    with pytest.raises(TypeError, match="no_such"):
        EventLogPlugin(tools={"pay": {"no_such": 1}})
    with pytest.raises(ValueError, match="after_crash"):
        EventLogPlugin(model={"after_crash": "never"})
    app = App(name="shop", root_agent=Agent(name="shop", model=llm("done")))
    with pytest.raises(ValueError, match="EventLogPlugin"):
        recoverable(app, store)


def test_bytes_of_an_answer_come_back(store: CheckpointStore) -> None:
    signed = types.Part(
        function_call=types.FunctionCall(name="count", args={"n": 1}), thought_signature=b"\x00\xff"
    )
    model = llm([signed], "done")
    assert run(app_of(model, count), store) == "done"
    part = model.seen[1]["contents"][1]["parts"][0]
    assert part["thought_signature"] == json.loads(signed.model_dump_json())["thought_signature"]


# -- the command


def test_the_command_resumes_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("typer")
    from recovery.cli import main

    die_in_the_program_of("docs/google-adk.md", tmp_path, monkeypatch)
    # In this process, because another one would need seconds to import ADK.
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    assert main(["resume", "order-42", "--agent", "shop:shop"]) == 0
    assert json.loads(capsys.readouterr().out) == "Ann has the money."
