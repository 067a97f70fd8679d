"""Agents of Pydantic AI in recorded runs: what is recorded, and what comes back."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel

from recovery import (
    Budget,
    Call,
    CheckpointStore,
    InDoubtError,
    RecoverableAgent,
    Resolution,
    Retry,
    Run,
    SyncRun,
    Usage,
    current_call,
)
from recovery.agent_code.agent_name import agent_name
from recovery.errors import BudgetError, RunFailedError, UnrecordedResultError, WaitingError
from recovery.stores import MemoryStore

pytest.importorskip("pydantic_ai")

from pydantic_ai import (
    Agent,
    ApprovalRequired,
    BinaryContent,
    CallDeferred,
    DeferredToolRequests,
    FunctionToolset,
    ModelRetry,
    RunContext,
    ToolReturn,
    durable_exec,
)
from pydantic_ai.capabilities import SetToolMetadata
from pydantic_ai.exceptions import ModelHTTPError, UserError
from pydantic_ai.messages import (
    ModelMessagesTypeAdapter,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.usage import RequestUsage, UsageLimits

from recovery.integrations.pydantic_ai import (
    EventLogDurability,
    ToolPolicy,
    recoverable,
)
from recovery.integrations.pydantic_ai.operations import Backend, name_of

Turn = str | list[tuple[str, dict[str, Any]]]


class Receipt(BaseModel):
    number: int


class Process(BaseException):
    """Dies here."""


def saying(*turns: Turn, asked: list[Any] | None = None) -> Any:
    """A model that says these texts and calls, one after the other."""

    def ask(messages: list[Any], info: Any) -> Any:
        turn = sum(isinstance(one, ModelResponse) for one in messages)
        if asked is not None:
            asked.append(messages)
        now = turns[turn]
        if isinstance(now, str):
            return ModelResponse(parts=[TextPart(now)])
        parts = [
            ToolCallPart(name, args, tool_call_id=f"{turn}-{at}")
            for at, (name, args) in enumerate(now)
        ]
        return ModelResponse(parts=parts)

    return FunctionModel(ask, model_name="fake")


def agent_of(model: Any, *tools: Any, **options: Any) -> Any:
    options.setdefault("capabilities", [EventLogDurability()])
    return Agent(model, name="shop", tools=tools, **options)


def new_store() -> CheckpointStore:
    return CheckpointStore(MemoryStore())


def run(agent: Any, store: CheckpointStore, **options: Any) -> Any:
    done: RecoverableAgent[Any] = recoverable(agent, store, **options)
    return asyncio.run(done.run_with_recovery("Go", "r1"))["result"]


def calls(store: CheckpointStore) -> list[tuple[str, str]]:
    """Tool and call id of each call of the run."""
    found = store.run("r1").events(until="now")
    return [(event.tool, event.call_id) for event in found if event.kind == "call"]


def outcomes(store: CheckpointStore) -> dict[str, Any]:
    found = store.run("r1").events(until="now")
    return {event.tool: event.value for event in found if event.kind == "outcome"}


# -- names and forms that are in users' logs


def test_the_names_of_calls_never_change() -> None:
    """They are in users' logs: a run that was begun under a name is resumed by it."""

    def check(ctx: RunContext[None], n: int) -> None:
        if n < 0:
            raise ModelRetry("positive")

    from pydantic_ai import Tool

    def count(n: int) -> int:
        return n

    store = new_store()
    agent = agent_of(saying([("count", {"n": 1})], "done"), Tool(count, args_validator=check))
    assert run(agent, store) == "done"
    assert calls(store) == [
        ("shop.model", "step 1"),
        ("count.validate", "0-0"),
        ("count", "0-0"),
        ("shop.model", "step 2"),
    ]


class LaterId:
    """Of an operation that a later version of the framework has."""


OPERATIONS = [
    (durable_exec.ModelRequestId(model_name="m"), "shop.model", "retry"),
    (durable_exec.ModelCompactMessagesId(model_name="m"), "shop.compact_messages", "retry"),
    (
        durable_exec.ModelCancelSuspendedResponseId(model_name="m"),
        "shop.cancel_suspended_response",
        "retry",
    ),
    (durable_exec.EventStreamHandlerId(), "shop.event", "retry"),
    (durable_exec.ToolsetGetToolsId("mcp", toolset_id="city"), "shop.city.get_tools", "retry"),
    (durable_exec.ToolsetGetInstructionsId("city"), "shop.city.get_instructions", "retry"),
    (durable_exec.ToolsetCallToolId("mcp", toolset_id="city"), "pay", None),
    (
        durable_exec.CapabilityOperationId("workspace", operation="call"),
        "shop.workspace.call",
        None,
    ),
    (LaterId(), "shop.LaterId", None),
]


@pytest.mark.parametrize(
    ("of", "name", "after_crash"), OPERATIONS, ids=[one[1] for one in OPERATIONS]
)
def test_the_names_of_operations_never_change_and_only_some_are_repeated(
    of: Any, name: str, after_crash: str | None
) -> None:
    assert name_of(of, "shop", SimpleNamespace(name="pay")) == name
    operation: Any = SimpleNamespace(operation_id=of)
    bound: Any = Backend("shop", {"after_crash": "retry"}).bind(operation)
    assert bound.policy.get("after_crash") == after_crash


def test_a_request_is_in_the_log_whole() -> None:
    store = new_store()
    agent = agent_of(saying([("count", {"n": 1})], "done"), instructions="Count! " * 1000)

    @agent.tool_plain
    def count(n: int) -> int:
        """Count to n."""
        return n

    run(agent, store)
    asked = [
        event.value[1]
        for event in store.run("r1").events(until="now")
        if event.kind == "call" and event.tool == "shop.model"
    ]
    assert [len(one["messages"]) for one in asked] == [1, 3]
    assert asked[0]["model"] == "fake"
    assert asked[0]["messages"][0]["parts"][0]["content"] == "Go"
    assert asked[0]["messages"][0]["instructions"].startswith("Count! Count!")
    (told,) = asked[0]["parameters"]["function_tools"]
    assert (told["name"], told["description"]) == ("count", "Count to n.")
    assert asked[1]["messages"][2]["parts"][0]["content"] == 1


@pytest.mark.parametrize(
    "returned, recorded",
    [
        ("paid", "paid"),
        (None, None),
        ([1, {"a": 2.5}], [1, {"a": 2.5}]),
        (date(2026, 1, 2), "2026-01-02"),
        ({"kind": "receipt"}, {"kind": "tool_return", "result": {"kind": "receipt"}}),
        (ToolReturn("paid", metadata={"id": 7}), {"kind": "tool_return"}),
        (BinaryContent(b"png", media_type="image/png"), {"kind": "tool_return"}),
    ],
)
def test_a_tool_gives_the_model_the_same_the_first_time_and_on_replay(
    returned: Any, recorded: Any
) -> None:
    times: list[int] = []

    def look() -> Any:
        times.append(1)
        return returned

    def lived(store: CheckpointStore, dies: bool) -> Any:
        asked: list[Any] = []

        def ask(messages: list[Any], info: Any) -> Any:
            if len(messages) == 1:
                return ModelResponse(parts=[ToolCallPart("look", {}, tool_call_id="1")])
            asked.append(messages[-1].parts[0])
            if dies:
                raise Process
            return ModelResponse(parts=[TextPart("done")])

        with pytest.raises(Process) if dies else pytest.MonkeyPatch.context():
            run(agent_of(FunctionModel(ask), look), store)
        return asked

    store = new_store()
    first = lived(store, True)
    again = lived(store, False)
    assert len(times) == 1
    assert isinstance(again[0], ToolReturnPart)
    assert again[0].content == first[0].content
    assert again[0].metadata == first[0].metadata
    assert type(again[0].content) is type(first[0].content)
    found = outcomes(store)["look"]
    if isinstance(recorded, dict):
        assert found.items() >= recorded.items()
    else:
        assert found == recorded


# -- what happens to a call that was cut short


def cut_short(agent: Callable[[list[str]], Agent[None, Any]], then: Any = None) -> Any:
    """A run whose tool ``pay`` dies behind its effect, and what it ends with, resumed."""
    store, paid = new_store(), list[str]()
    with pytest.raises(Process):
        run(agent(paid), store)
    if then is not None:
        with pytest.raises(InDoubtError):
            run(agent(paid), store)
        (call,) = store.run("r1").status().in_doubt
        assert (call.tool, call.call_id) == ("pay", "0-0")
        store.run("r1").resolve(call, then)
    return run(agent(paid), store), paid


def payer(paid: list[str], policy: ToolPolicy | None = None, in_thread: bool = False) -> Any:
    model = saying([("pay", {"cents": 5})], "done")
    agent = agent_of(FunctionModel(lambda m, i: answered(m) or model.function(m, i)))
    metadata = None if policy is None else {"recovery": policy}

    def pay(cents: int) -> str:
        call = current_call()
        assert call is not None and call.kwargs == {"cents": 5}
        paid.append(call.idempotency_key)
        if len(paid) == 1:
            raise Process
        return "paid"

    async def pay_async(cents: int) -> str:
        return pay(cents)

    agent.tool_plain(name="pay", metadata=metadata)(pay if in_thread else pay_async)
    return agent


def answered(messages: list[Any]) -> ModelResponse | None:
    """The model repeats what the tool has said."""
    part = messages[-1].parts[0]
    said = part.content if isinstance(part, ToolReturnPart) else None
    return None if said is None else ModelResponse(parts=[TextPart(f"{part.outcome}: {said}")])


@pytest.mark.parametrize("in_thread", [False, True])
def test_a_tool_cut_short_is_in_doubt_and_takes_a_plain_outcome(in_thread: bool) -> None:
    result, paid = cut_short(
        lambda paid: payer(paid, in_thread=in_thread), Resolution.outcome("receipt 7")
    )
    assert (result, len(paid)) == ("success: receipt 7", 1)


def test_an_outcome_that_looks_like_one_of_the_framework_is_one() -> None:
    given = Resolution.outcome({"kind": "receipt", "number": 7})
    result, paid = cut_short(payer, given)
    assert (result, len(paid)) == ("success: {'kind': 'receipt', 'number': 7}", 1)


def test_policies_are_said_in_metadata() -> None:
    result, paid = cut_short(lambda paid: payer(paid, ToolPolicy(after_crash="retry")))
    assert (result, len(paid), len(set(paid))) == ("success: paid", 2, 1)

    result, paid = cut_short(lambda paid: payer(paid, ToolPolicy(after_crash="report")))
    assert result.startswith("failed: The outcome of pay is unknown")
    assert len(paid) == 1

    def reconcile(call: Call) -> Resolution:
        assert call.kwargs == {"cents": 5}
        return Resolution.outcome("it was paid")

    result, paid = cut_short(lambda paid: payer(paid, ToolPolicy(reconcile=reconcile)))
    assert (result, len(paid)) == ("success: it was paid", 1)


def test_tools_of_toolsets_get_a_policy_by_a_capability() -> None:
    def agent(paid: list[str]) -> Any:
        def pay(cents: int) -> str:
            paid.append("paid")
            if len(paid) == 1:
                raise Process
            return "paid"

        return agent_of(
            saying([("pay", {"cents": 5})], "done"),
            toolsets=[FunctionToolset([pay], id="bank")],
            capabilities=[
                EventLogDurability(),
                SetToolMetadata(tools=["pay"], recovery=ToolPolicy(after_crash="retry")),
            ],
        )

    assert cut_short(agent) == ("done", ["paid", "paid"])


def test_a_request_cut_short_is_asked_again() -> None:
    store, asked = new_store(), []

    def ask(messages: list[Any], info: Any) -> Any:
        asked.append(len(messages))
        if len(asked) == 1:
            raise Process
        return ModelResponse(parts=[TextPart("done")])

    with pytest.raises(Process):
        run(agent_of(FunctionModel(ask)), store)
    assert run(agent_of(FunctionModel(ask)), store) == "done"
    assert asked == [1, 1]


def test_a_tool_that_opts_out_is_not_recorded() -> None:
    store = new_store()
    agent = agent_of(saying([("clock", {})], "done"))
    agent.tool_plain(name="clock", metadata={"recovery": False})(lambda: "noon")
    assert run(agent, store) == "done"
    assert {tool for tool, _ in calls(store)} == {"shop.model"}


def test_failed_attempts_of_a_tool_and_of_a_model_are_made_again() -> None:
    tried: list[str] = []

    def ask(messages: list[Any], info: Any) -> Any:
        tried.append("model")
        if tried == ["model"]:
            raise ModelHTTPError(503, "fake")
        return saying([("look", {})], "done").function(messages, info)

    def look() -> str:
        tried.append("look")
        if tried.count("look") == 1:
            raise ConnectionError
        return "seen"

    agent = agent_of(
        FunctionModel(ask),
        capabilities=[EventLogDurability(model=ToolPolicy(retry=Retry(2, delay_s=0)))],
    )
    agent.tool_plain(metadata={"recovery": ToolPolicy(retry=Retry(2, delay_s=0))})(look)
    assert run(agent, new_store()) == "done"
    assert tried == ["model", "model", "look", "look", "model"]


def test_a_tool_that_raises_ends_the_run_and_is_made_again_by_retry() -> None:
    store, tried = new_store(), []

    def look() -> str:
        tried.append(1)
        if len(tried) == 1:
            raise ConnectionError("no net")
        return "seen"

    done: RecoverableAgent[Any] = recoverable(agent_of(saying([("look", {})], "done"), look), store)
    with pytest.raises(RunFailedError, match="no net"):
        asyncio.run(done.run_with_recovery("Go", "r1"))
    assert asyncio.run(done.retry("r1"))["result"] == "done"


def test_a_model_to_fall_back_to_is_asked_the_same_way_on_replay() -> None:
    def broken(messages: list[Any], info: Any) -> Any:
        raise ModelHTTPError(503, "broken")

    store, asked = new_store(), list[Any]()
    model = FallbackModel(FunctionModel(broken), saying([("look", {})], "done", asked=asked))

    def look() -> str:
        if len(asked) == 1:
            asked.append("died")
            raise Process
        return "seen"

    agent = agent_of(model)
    agent.tool_plain(metadata={"recovery": ToolPolicy(after_crash="retry")})(look)
    with pytest.raises(Process):
        run(agent, store)
    assert run(agent, store) == "done"
    assert len(asked) == 3


def test_a_result_that_cannot_be_recorded_is_no_outcome() -> None:
    store = new_store()
    agent = agent_of(saying([("look", {})], "done"))
    agent.tool_plain(name="look")(object)
    with pytest.raises(UnrecordedResultError, match="look"):
        run(agent, store)
    (call,) = store.run("r1").status().in_doubt
    assert call.tool == "look"


def test_undo_gets_the_result_of_the_tool() -> None:
    undone: list[Any] = []

    def unpay(call: Call, outcome: Any) -> None:
        undone.append((call.kwargs, outcome))

    agent = agent_of(saying([("pay", {"cents": 5})], "done"))
    policy = ToolPolicy(undo=unpay)
    agent.tool_plain(name="pay", metadata={"recovery": policy})(lambda cents: {"number": cents})

    async def regret(run: Run) -> Any:
        await agent.run("Go")
        return len(await run.undo())

    done = RecoverableAgent(regret, new_store())
    assert asyncio.run(done.run_with_recovery("Go", "r1"))["result"] == 1
    assert undone == [({"cents": 5}, {"number": 5})]


# -- approvals


def refunder(asked: list[Any], raises: bool, **options: Any) -> Any:
    model = saying([("refund", {"cents": 3}), ("refund", {"cents": 4})], "done", asked=asked)
    agent = agent_of(model, **options)

    def refund(ctx: RunContext[None], cents: int) -> str:
        if raises and not ctx.tool_call_approved:
            raise ApprovalRequired
        return f"refunded {cents}"

    agent.tool(requires_approval=not raises)(refund)
    return agent


@pytest.mark.parametrize("raises", [False, True])
def test_approvals_are_asked_for_in_the_log(raises: bool) -> None:
    store, asked = new_store(), list[Any]()
    handle = store.run("r1")
    with pytest.raises(WaitingError):
        run(refunder(asked, raises), store, park_after_s=0)
    first, second = handle.pending()
    assert (first.tool, first.kwargs) == ("refund.approval", {"cents": 3})
    handle.approve(first, who="ann")
    handle.deny(second, who="ann", why="too much")
    assert run(refunder(asked, raises), store, park_after_s=0) == "done"
    parts = [part for message in asked[-1] for part in message.parts]
    said = [(one.outcome, one.content) for one in parts if isinstance(one, ToolReturnPart)]
    assert said == [
        ("success", "refunded 3"),
        ("denied", "refund was denied: too much"),
    ]
    assert len(asked) == 2


def test_an_approval_that_nobody_gives_is_denied_in_the_end() -> None:
    capability = EventLogDurability(approval_timeout_s=0.01)
    asked: list[Any] = []
    assert run(refunder(asked, True, capabilities=[capability]), new_store()) == "done"
    parts = [part for message in asked[-1] for part in message.parts]
    said = [one.outcome for one in parts if isinstance(one, ToolReturnPart)]
    assert said == ["denied", "denied"]


def test_an_agent_that_returns_its_requests_for_approval_is_answered_by_its_caller() -> None:
    store, asked = new_store(), list[Any]()
    agent = refunder(asked, True, output_type=[str, DeferredToolRequests])

    async def serve(run: Run) -> Any:
        first = await agent.run("Go")
        assert isinstance(first.output, DeferredToolRequests)
        answers = first.output.build_results(approve_all=True)
        history = first.all_messages()
        last = await agent.run(message_history=history, deferred_tool_results=answers)
        return last.output

    done = RecoverableAgent(serve, store)
    assert asyncio.run(done.run_with_recovery("Go", "r1"))["result"] == "done"
    assert [tool for tool, _ in calls(store)].count("refund.approval") == 0


def test_a_call_that_is_made_elsewhere_needs_an_output_for_it() -> None:
    async def elsewhere() -> str:
        raise CallDeferred

    with pytest.raises(UserError, match="`DeferredToolRequests` is not among output types"):
        run(agent_of(saying([("elsewhere", {})]), elsewhere), new_store(), max_recoveries=0)


# -- usage


def test_what_models_use_counts_for_budgets() -> None:
    def ask(messages: list[Any], info: Any) -> Any:
        usage = RequestUsage(input_tokens=70, output_tokens=30)
        return ModelResponse([ToolCallPart("look", {})], usage=usage)

    agent, store = agent_of(FunctionModel(ask, model_name="gpt-4o")), new_store()
    agent.tool_plain(name="look")(lambda: "seen")
    with pytest.raises(BudgetError):
        run(agent, store, budget=Budget(tokens=250))
    used = store.run("r1").status().progress.usage
    assert (used.input_tokens, used.output_tokens) == (210, 90)
    assert used.cost == pytest.approx(210 * 2.5e-6 + 90 * 1e-5)


def test_a_usage_of_ones_own() -> None:
    def used(response: ModelResponse) -> Usage:
        return Usage(len(response.parts), 0, cost=1.5)

    agent = agent_of(
        saying("done"), capabilities=[EventLogDurability(model=ToolPolicy(usage=used))]
    )
    store = new_store()
    run(agent, store)
    assert store.run("r1").status().progress.usage.cost == 1.5


# -- agents in agents


async def die(root: list[asyncio.Task[Any]]) -> None:
    """The run is cancelled from outside: nothing is recorded of that, as if the process died."""
    root[-1].cancel()
    await asyncio.Event().wait()


def lives(done: RecoverableAgent[Any], root: list[asyncio.Task[Any]]) -> Any:
    """The result, and how many lives it took."""

    async def live() -> Any:
        task = asyncio.current_task()
        assert task is not None
        root.append(task)
        return (await done.run_with_recovery("Go", "r1"))["result"]

    while True:
        try:
            return asyncio.run(live()), len(root)
        except asyncio.CancelledError:
            continue


def test_parallel_agents_get_their_own_answers_again() -> None:
    """Six at once, in an order that differs each time, with one that is inside another."""
    looked, root = list[str](), list[asyncio.Task[Any]]()

    def ask(messages: list[Any], info: Any) -> Any:
        prompt = messages[0].parts[0].content
        if len(messages) == 1:
            return ModelResponse([ToolCallPart("look", {"what": prompt}, tool_call_id="same")])
        return ModelResponse([TextPart(str(messages[-1].parts[0].content))])

    agent = agent_of(FunctionModel(ask))

    @agent.tool_plain(metadata={"recovery": ToolPolicy(after_crash="retry")})
    async def look(what: str) -> str:
        await asyncio.sleep((hash((what, len(root))) % 7) / 1000)
        if what.startswith("in "):
            return str((await agent.run(what.removeprefix("in "))).output)
        looked.append(what)
        if len(looked) in (4, 6):
            await die(root)
        return f"seen {what}"

    async def many(run: Run) -> list[str]:
        prompts = ["a", "a", "b", "in c", "in a", "d"]
        found = await asyncio.gather(*(agent.run(one) for one in prompts))
        return [one.output for one in found]

    result, count = lives(RecoverableAgent(many, new_store()), root)
    assert result == ["seen a", "seen a", "seen b", "seen c", "seen a", "seen d"]
    assert count == 3


@pytest.mark.parametrize("dies_in", ["shop", "expert", ""])
def test_what_an_agent_inside_a_tool_uses_is_counted_again(dies_in: str) -> None:
    root: list[asyncio.Task[Any]] = []

    async def said_by(who: str, messages: list[Any], calls: list[Any]) -> ModelResponse:
        if len(messages) == 1:
            return ModelResponse(calls)
        if who == dies_in and len(root) == 1:
            await die(root)
        return ModelResponse([TextPart("because")])

    async def think(messages: list[Any], info: Any) -> Any:
        return await said_by("expert", messages, [ToolCallPart("look", {})])

    async def ask(messages: list[Any], info: Any) -> Any:
        return await said_by("shop", messages, [ToolCallPart("ask", {}), ToolCallPart("ask", {})])

    expert: Any = Agent(FunctionModel(think), name="expert", capabilities=[EventLogDurability()])
    # The other expert's call may be cut short when the process dies in this one's request.
    repeatable = {"recovery": ToolPolicy(after_crash="retry")}
    expert.tool_plain(name="look", metadata=repeatable)(lambda: "seen")
    shop = agent_of(FunctionModel(ask))

    @shop.tool(metadata=repeatable, name="ask")
    async def ask_expert(ctx: RunContext[Any]) -> Any:
        limits = UsageLimits(request_limit=20)
        return (await expert.run("why?", usage=ctx.usage, usage_limits=limits)).output

    async def serve(run: Run) -> list[int]:
        used = (await shop.run("Go")).usage
        return [used.requests, used.tool_calls]

    done = RecoverableAgent(serve, new_store())
    assert lives(done, root) == ([6, 4], 2 if dies_in else 1)


# -- ways to run an agent


def test_a_plain_agent_function_can_run_an_agent() -> None:
    store = new_store()
    agent = agent_of(saying([("look", {}), ("look_again", {})], "done"))
    agent.tool_plain(name="look")(lambda: "seen")

    async def look_again() -> str:
        return "seen again"

    agent.tool_plain(look_again)

    def serve(run: SyncRun) -> str:
        return str(asyncio.run(agent.run(str(run.task))).output)

    done = RecoverableAgent(serve, store)
    assert done.run_with_recovery_sync("Go", "r1")["result"] == "done"
    assert len(calls(store)) == 4


def test_output_types_of_the_agent_come_back() -> None:
    model = TestModel(custom_output_args={"number": 7})
    agent = agent_of(model, output_type=Receipt)
    store = new_store()
    assert run(agent, store) == Receipt(number=7)
    assert run(agent, store) == Receipt(number=7)


def test_without_a_run_the_agent_is_as_it_was() -> None:
    assert asyncio.run(agent_of(saying("done")).run("Go")).output == "done"


def test_an_agent_in_steps_goes_on_from_its_checkpoint() -> None:
    store, asked, died = new_store(), list[Any](), list[int]()
    agent = agent_of(saying("one", "two", "three", "four", asked=asked))

    async def chat(run: Run) -> Any:
        async for _ in run.steps():
            history = ModelMessagesTypeAdapter.validate_python(run.state.get("history", []))
            answer = await agent.run("Next", message_history=history)
            run.state["history"] = ModelMessagesTypeAdapter.dump_python(
                answer.all_messages(), mode="json"
            )
            if answer.output == "three" and not died:
                died.append(1)
                raise Process
            if answer.output == "four":
                return answer.output

    done = RecoverableAgent(chat, store, checkpoint_every_n=1)
    with pytest.raises(Process):
        asyncio.run(done.run_with_recovery("Go", "r1"))
    assert asyncio.run(done.run_with_recovery("Go", "r1"))["result"] == "four"
    assert len(asked) == 4


def test_time_limits_count_from_when_the_run_began() -> None:
    store, left = new_store(), list[Any]()
    agent = agent_of(saying([("look", {})], "done"))

    @agent.tool(metadata={"recovery": ToolPolicy(after_crash="retry")})
    async def look(ctx: RunContext[None]) -> str:
        left.append(ctx.deadline)
        if len(left) == 1:
            raise Process
        return "seen"

    async def serve(run: Run) -> Any:
        return (await agent.run("Go", timeout=60)).output

    done = RecoverableAgent(serve, store)
    with pytest.raises(Process):
        asyncio.run(done.run_with_recovery("Go", "r1"))
    assert asyncio.run(done.run_with_recovery("Go", "r1"))["result"] == "done"
    assert left[0] == left[1]


# -- mistakes


@pytest.mark.parametrize(
    "policy, said",
    [
        ({"after_crsh": "retry"}, "no option 'after_crsh'; there are after_crash, "),
        ({"after_crash": "again"}, "after_crash"),
        ({"needs_approval": True}, "requires_approval=True"),
        ({"redact": ["cents"]}, "encrypt the store"),
        ("retry", "is a ToolPolicy, not 'retry'"),
    ],
)
def test_a_wrong_policy_is_an_error_when_the_agent_is_made(policy: Any, said: str) -> None:
    from pydantic_ai import Tool

    def pay(cents: int) -> str:
        return "paid"

    with pytest.raises((UserError, TypeError, ValueError), match=said):
        agent_of("test", Tool(pay, metadata={"recovery": policy}))
    with pytest.raises((UserError, TypeError, ValueError), match=said):
        EventLogDurability(model=policy)


def test_an_agent_that_would_not_be_recorded_is_refused() -> None:
    with pytest.raises(ValueError, match=r"capabilities=\[EventLogDurability\(\)\]"):
        recoverable(Agent("test", name="shop"))
    with pytest.raises(UserError, match="name"):
        Agent("test", capabilities=[EventLogDurability()])


def test_toolsets_of_one_run_are_refused() -> None:
    agent = agent_of(saying("done"))

    async def serve(run: Run) -> Any:
        return (await agent.run("Go", toolsets=[FunctionToolset([], id="more")])).output

    done = RecoverableAgent(serve, new_store(), max_recoveries=0)
    with pytest.raises(UserError, match="agent-eventlog"):
        asyncio.run(done.run_with_recovery("Go", "r1"))


# -- from outside

PROGRAM = """
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel
from recovery.integrations.pydantic_ai import EventLogDurability, recoverable

agent = Agent(TestModel(), name="shop", capabilities=[EventLogDurability()])

@agent.tool_plain(requires_approval=True)
def refund(cents: int) -> str:
    return "refunded"

shop = recoverable(agent, "runs", park_after_s=0)
"""


def python(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)


def test_a_run_is_resumed_in_a_shell(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    store, shop = CheckpointStore(tmp_path / "runs"), dict[str, Any]()
    exec(PROGRAM, shop)  # noqa: S102
    with pytest.raises(WaitingError):
        run(shop["agent"], store, park_after_s=0)
    (call,) = store.run("r1").pending()
    store.run("r1").approve(call, who="ann")
    done = python(tmp_path, "-m", "recovery.cli", "resume", "r1", "--agent", "program:shop")
    assert done.returncode == 0, done.stderr
    assert json.loads(json.loads(done.stdout)) == {"refund": "refunded"}


def test_a_run_is_told_by_the_name_of_its_agent() -> None:
    agent = Agent(TestModel(), name="shop", capabilities=[EventLogDurability()])
    assert agent_name(recoverable(agent, new_store()).agent_fn) == "shop"
