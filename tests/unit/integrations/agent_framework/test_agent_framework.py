"""Agents of the Agent Framework in recorded runs: what is recorded, refused, and comes back."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

pytest.importorskip("agent_framework")

from agent_framework import (
    Agent,
    Content,
    FunctionInvocationContext,
    MiddlewareFailure,
    MiddlewareTermination,
    SlidingWindowStrategy,
    UserInputRequiredException,
    tool,
)

from eventlog import LogError
from recovery import (
    Budget,
    CheckpointStore,
    InDoubtError,
    RecoverableAgent,
    Resolution,
    Retry,
    Run,
    SyncRun,
    current_run,
)
from recovery.errors import BudgetError, WaitingError
from recovery.integrations.agent_framework import approvals, recorded, recoverable
from recovery.journal.events import CallIntended
from recovery.stores import MemoryStore
from tests.support.agent_framework_shop import FakeClient, calls, says, without_drawn
from tests.support.framework_lives import die_in_the_program_of
from tests.support.lives import RUN, Died
from tests.support.lives import recorded as events


@pytest.fixture
def store() -> CheckpointStore:
    return CheckpointStore(MemoryStore())


def client(*contents: list[Content] | str) -> FakeClient:
    """A client whose model says these texts and calls, one answer after the other."""

    def turn(one: Any) -> Callable[[Any], list[Content]]:
        return lambda _: (
            [says(one)] if isinstance(one, str) else [Content.from_dict(c.to_dict()) for c in one]
        )

    return FakeClient([turn(one) for one in contents])


def agent_of(*contents: Any, tools: Any = (), policies: Any = None, **options: Any) -> Any:
    options.setdefault("middleware", recorded(tools=policies))
    return Agent(client(*contents), name="shop", tools=list(tools), **options)


def lived(store: CheckpointStore, agent: Any, fn: Any = None) -> Any:
    """The messages of a run whose process dies at its end, and of one that makes it again."""
    told: list[Any] = []

    async def dies_once(run: Run) -> str:
        answer = await (fn(run) if fn else agent.run(run.task))
        messages = [one.to_dict() for one in answer.messages]
        told.append(without_drawn([answer.text, answer.usage_details, *messages]))
        if len(told) == 1:
            raise Died
        return str(answer.text)

    of: RecoverableAgent[str] = RecoverableAgent(dies_once, store, check_locals=False)
    with pytest.raises(Died):
        asyncio.run(of.run_with_recovery("Go", RUN))
    asked, made = len(agent.client.seen), len(events(store, CallIntended))
    asyncio.run(of.run_with_recovery("Go", RUN))
    assert told[0] == told[1] and asked == len(agent.client.seen)
    assert made == len(events(store, CallIntended))
    return told[0]


def results(told: list[Any]) -> list[Any]:
    """What tools gave to the model."""
    contents = [one for message in told[2:] for one in message["contents"]]
    return [one["result"] for one in contents if one["type"] == "function_result"]


def run(agent: Any, store: CheckpointStore, **options: Any) -> str:
    of = recoverable(agent, store, park_after_s=0, **options)
    return str(asyncio.run(of.run_with_recovery("Go", RUN))["result"])


def count(n: int) -> int:
    """Count."""
    return n + 1


def test_what_is_in_the_log(store: CheckpointStore) -> None:
    agent = agent_of([calls("c1", "count", n=1)], "two", tools=[count], instructions="Count.")
    assert run(agent, store) == "two"
    found = [one for one in store.run(RUN).events(until="now") if one.kind in ("call", "outcome")]
    assert [(one.kind, one.tool, one.call_id) for one in found if one.kind == "call"] == [
        ("call", "model", ""),
        ("call", "count", "c1"),
        ("call", "model", ""),
    ]
    request = found[0].value[0][0]
    assert request["model"] == "shop" and request["instructions"] == "Count."
    assert request["messages"][0]["contents"][0]["text"] == "Go"
    assert request["tools"][0]["name"] == "count"
    assert found[2].value == [[], {"n": 1}] and found[3].value == "2"


@pytest.mark.parametrize("stream", [False, True])
def test_a_run_is_made_again_without_a_request_or_a_call(
    stream: bool, store: CheckpointStore
) -> None:
    made = []

    async def pay(cents: int) -> str:
        """Pay."""
        made.append(cents)
        return f"paid {cents}, {len(made)}"

    twice = [calls("c1", "pay", cents=1), calls("c2", "pay", cents=1)]
    agent = agent_of(twice, "all is paid", tools=[pay])

    async def ask(run: Run) -> Any:
        if stream:
            return await agent.run(run.task, stream=True).get_final_response()
        return await agent.run(run.task)

    told = lived(store, agent, ask)
    assert results(told) == ["paid 1, 1", "paid 1, 2"] and made == [1, 1]


@pytest.mark.filterwarnings("ignore:An actionable function_call:FutureWarning")
def test_calls_without_an_id_are_told_apart_by_their_order(store: CheckpointStore) -> None:
    made: list[int] = []

    async def pay() -> str:
        """Pay."""
        made.append(1)
        return str(len(made))

    call = Content.from_dict({"type": "function_call", "call_id": "", "name": "pay"})
    agent = agent_of([call, call], "done", tools=[pay])
    assert results(lived(store, agent)) == ["1", "2"]
    assert [one.call_id for one in events(store, CallIntended) if one.tool == "pay"] == ["", ""]


def test_an_exception_of_a_tool_is_what_the_framework_makes_of_it(store: CheckpointStore) -> None:
    def fail() -> str:
        """Fail."""
        raise KeyError("no such thing")

    agent = agent_of([calls("c1", "fail")], "sorry", tools=[fail])
    agent.client.function_invocation_configuration["include_detailed_errors"] = True
    assert results(lived(store, agent)) == ["Error: Function failed. Exception: 'no such thing'"]


def test_a_tool_is_tried_again(store: CheckpointStore) -> None:
    tries = []

    async def flaky() -> str:
        """Fail twice."""
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("try again")
        return "well"

    policies = {"flaky": {"retry": Retry(3, delay_s=0), "after_crash": "retry"}}
    agent = agent_of([calls("c1", "flaky")], "done", tools=[flaky], policies=policies)
    assert results(lived(store, agent)) == ["well"] and len(tries) == 3


def test_contents_that_are_no_text_are_kept(store: CheckpointStore) -> None:
    def draw() -> Content:
        """Draw."""
        return Content.from_data(b"\x00png", "image/png")

    told = lived(store, agent_of([calls("c1", "draw")], "done", tools=[draw]))
    (content,) = [
        one
        for message in told[2:]
        for one in message["contents"]
        if one["type"] == "function_result"
    ]
    assert content["items"][0]["uri"].startswith("data:image/png;base64,")


class Shape(BaseModel):
    size: int


def test_an_answer_with_a_shape_has_its_value_again(store: CheckpointStore) -> None:
    agent = agent_of('{"size": 3}', default_options={"response_format": Shape})
    values = []

    async def ask(run: Run) -> Any:
        answer = await agent.run(run.task)
        values.append(answer.value)
        return answer

    lived(store, agent, ask)
    assert values == [Shape(size=3)] * 2


# -- people


@pytest.mark.parametrize("approves", [True, False])
def test_a_policy_asks_for_an_approval(approves: bool, store: CheckpointStore) -> None:
    agent = agent_of(
        [calls("c1", "count", n=1)],
        "done",
        tools=[count],
        policies={"count": {"needs_approval": True}},
    )
    with pytest.raises(WaitingError):
        run(agent, store)
    (request,) = store.run(RUN).pending()
    assert (request.tool, request.kwargs) == ("count", {"n": 1})
    if approves:
        store.run(RUN).approve(request, who="ann")
    else:
        store.run(RUN).deny(request, who="ann", why="too much")
    assert run(agent, store) == "done"
    result = agent.client.seen[-1]["messages"][-1]["contents"][0]["result"]
    assert result == ("2" if approves else str(result)) and ("too much" in result) != approves


@pytest.mark.filterwarnings("ignore:An actionable function_call:FutureWarning")
@pytest.mark.parametrize("call_id", ["c1", ""], ids=["an id", "no id of the model"])
@pytest.mark.parametrize("approves", [True, False])
def test_the_framework_asks_for_an_approval(
    approves: bool, call_id: str, store: CheckpointStore
) -> None:
    made = []

    @tool(approval_mode="always_require")
    def refund(cents: int) -> str:
        """Refund."""
        made.append(cents)
        return "refunded"

    agent = agent_of([calls(call_id, "refund", cents=3)], "done", tools=[refund])
    with pytest.raises(WaitingError):
        run(agent, store)
    (request,) = store.run(RUN).pending()
    assert (request.tool, request.kwargs) == ("refund.approval", {"cents": 3})
    assert request.call_id == call_id
    if approves:
        store.run(RUN).approve(request, who="ann")
    else:
        store.run(RUN).deny(request, who="ann", why="no")
    assert run(agent, store) == "done"
    assert made == ([3] if approves else [])


def test_an_approval_that_nobody_gives_is_denied(store: CheckpointStore) -> None:
    @tool(approval_mode="always_require")
    def refund() -> str:
        """Refund."""
        raise AssertionError

    agent = agent_of([calls("c1", "refund")], "done", tools=[refund])
    of = recoverable(agent, store, approval_timeout_s=0.05)
    assert asyncio.run(of.run_with_recovery("Go", RUN))["result"] == "done"


def test_a_request_that_is_no_approval_is_the_users(store: CheckpointStore) -> None:
    async def ask(run: Run) -> None:
        class Answer:
            user_input_requests = (Content.from_text("what?"),)

        with pytest.raises(ValueError, match="answer it yourself"):
            await approvals(Answer())

    asyncio.run(RecoverableAgent(ask, store).run_with_recovery("Go", RUN))


@pytest.mark.parametrize(
    "resolution, given",
    [(Resolution.outcome("paid"), "paid"), (Resolution.outcome({"cents": 1}), '{"cents": 1}')],
)
def test_a_call_in_doubt_is_resolved(
    resolution: Resolution, given: str, store: CheckpointStore
) -> None:
    async def pay() -> str:
        """Pay."""
        raise Died

    agent = agent_of([calls("c1", "pay")], "done", tools=[pay])
    with pytest.raises(Died):
        run(agent, store)
    with pytest.raises(InDoubtError):
        run(agent, store)
    (call,) = store.run(RUN).status().in_doubt
    store.run(RUN).resolve(call, resolution)
    assert run(agent, store) == "done"
    assert agent.client.seen[-1]["messages"][-1]["contents"][0]["result"] == given


def test_a_call_in_doubt_is_reported(store: CheckpointStore) -> None:
    async def pay() -> str:
        """Pay."""
        raise Died

    policies = {"pay": {"after_crash": "report"}}
    agent = agent_of([calls("c1", "pay")], "done", tools=[pay], policies=policies)
    with pytest.raises(Died):
        run(agent, store)
    assert run(agent, store) == "done"
    assert "unknown" in agent.client.seen[-1]["messages"][-1]["contents"][0]["result"]


# -- what ends the framework's loop


def test_a_tool_that_ends_the_loop_does_so_again(store: CheckpointStore) -> None:
    def stop(ctx: FunctionInvocationContext) -> str:
        """Stop."""
        raise MiddlewareTermination("enough", result="that is all")

    agent = agent_of([calls("c1", "stop")], tools=[stop])
    assert results(lived(store, agent)) == ["that is all"]


def test_a_tool_that_asks_for_input_does_so_again(store: CheckpointStore) -> None:
    def ask() -> str:
        """Ask."""
        raise UserInputRequiredException(
            [Content.from_oauth_consent_request(consent_link="https://example.org/consent")]
        )

    told = lived(store, agent_of([calls("c1", "ask")], tools=[ask]))
    assert "https://example.org/consent" in json.dumps(told)


def test_what_is_wrong_with_the_log_ends_the_run(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ordinary exception would be told to the model, and the run would continue."""
    executed = []

    async def pay() -> str:
        """Pay."""
        executed.append(1)
        return "paid"

    agent = agent_of([calls("c1", "pay")], "done", tools=[pay])

    async def fails(run: Run) -> None:
        def refuse(function: Any, name: str, *options: Any) -> Any:
            if name == "pay":
                raise LogError("the log is broken")
            return real(function, name, *options)

        module = sys.modules["recovery.integrations.agent_framework"]
        real = vars(module)["as_call"]
        monkeypatch.setattr(module, "as_call", refuse)
        with pytest.raises(MiddlewareFailure, match="LogError: the log is broken"):
            await agent.run(run.task)

    asyncio.run(RecoverableAgent(fails, store).run_with_recovery("Go", RUN))
    assert executed == [] and len(agent.client.seen) == 1


# -- limits and refusals


def test_tokens_count_for_budgets_once(store: CheckpointStore) -> None:
    agent = agent_of([calls("c1", "count", n=1)], "done", tools=[count])
    with pytest.raises(BudgetError):
        run(agent, store, budget=Budget(tokens=5))
    of = recoverable(agent, store, budget=Budget(tokens=30))
    assert asyncio.run(of.run_with_recovery("Go", RUN))["usage"].input_tokens == 21


def test_outside_of_a_run_it_does_nothing() -> None:
    agent = agent_of([calls("c1", "count", n=1)], "two", tools=[count])
    assert current_run() is None
    assert asyncio.run(agent.run("Go")).text == "two"


@pytest.mark.parametrize(
    "options, why",
    [
        ({"default_options": {"conversation_id": "conv_1"}}, "the server holds the conversation"),
        ({"compaction_strategy": SlidingWindowStrategy(keep_last_groups=2)}, "CompactionProvider"),
    ],
)
def test_what_cannot_be_replayed_is_refused(options: Any, why: str, store: CheckpointStore) -> None:
    agent = agent_of("done", **options)

    async def ask(run: Run) -> None:
        with pytest.raises(MiddlewareFailure, match=why):
            await agent.run(run.task)

    asyncio.run(RecoverableAgent(ask, store).run_with_recovery("Go", RUN))
    assert agent.client.seen == []


def test_a_chain_of_responses_is_no_conversation(store: CheckpointStore) -> None:
    agent = agent_of("done", default_options={"conversation_id": "resp_1"})
    lived(store, agent)


def test_a_plain_agent_function_is_refused(store: CheckpointStore) -> None:
    agent = agent_of("done")

    def ask(run: SyncRun) -> None:
        with pytest.raises(RuntimeError, match="async agent function"):
            asyncio.run(agent.run("Go"))

    RecoverableAgent(ask, store).run_with_recovery_sync("Go", RUN)


def test_wrong_options_and_agents_are_refused(store: CheckpointStore) -> None:
    with pytest.raises(TypeError, match="no_such"):
        recorded(tools={"pay": {"no_such": 1}})
    with pytest.raises(ValueError, match="after_crash"):
        recorded(model={"after_crash": "never"})
    with pytest.raises(ValueError, match="middleware=recorded"):
        recoverable(agent_of("done", middleware=None), store)


# -- tools of an MCP server


def test_tools_of_an_mcp_server_are_called_once(store: CheckpointStore) -> None:
    mcp = pytest.importorskip("mcp")
    from agent_framework import MCPStreamableHTTPTool
    from mcp.server.mcpserver import MCPServer

    sent, server = list[str](), MCPServer("post")

    @server.tool()
    def send(to: str) -> dict[str, str]:
        """Send."""
        if to == "nobody":
            raise ValueError("who?")
        sent.append(to)
        return {"to": to}

    asked = [calls("c1", "send", to="ann"), calls("c2", "send", to="ann")]
    model = client([*asked, calls("c3", "send", to="nobody")], [calls("c4", "send", to="bob")], "")
    needs = {"send": {"needs_approval": lambda call: call.kwargs == {"to": "bob"}}}
    told: list[Any] = []

    async def dies_once(run: Run) -> None:
        async with mcp.Client(server) as connected:
            tools = MCPStreamableHTTPTool("post", mcp_client=connected)
            agent = Agent(model, name="shop", tools=[tools], middleware=recorded(tools=needs))
            answer = await agent.run(run.task)
            messages = without_drawn([one.to_dict() for one in answer.messages])
        told.append(["", None, *messages])
        if len(told) == 1:
            raise Died

    of = RecoverableAgent(dies_once, store, check_locals=False, park_after_s=0)
    with pytest.raises(WaitingError):
        asyncio.run(of.run_with_recovery("Go", RUN))
    (request,) = store.run(RUN).pending()
    store.run(RUN).approve(request, who="ann")
    with pytest.raises(Died):
        asyncio.run(of.run_with_recovery("Go", RUN))
    asyncio.run(of.run_with_recovery("Go", RUN))
    assert sent == ["ann", "ann", "bob"] and len(model.seen) == 3
    assert results(told[0]) == results(told[1])
    assert results(told[0])[:2] == ['{"to": "ann"}'] * 2 and "Error" in results(told[0])[2]


# -- in a shell


def test_a_run_is_resumed_in_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("typer")
    die_in_the_program_of("docs/agent-framework.md", tmp_path, monkeypatch)
    resume = ("-m", "recovery.cli", "resume", "order-42", "--agent", "shop:shop")
    ended = subprocess.run([sys.executable, *resume], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == "Ann has the money."
