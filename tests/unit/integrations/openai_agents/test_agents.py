"""What the integration promises besides crashes, and what it refuses."""

from __future__ import annotations

import asyncio
import functools
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("agents")

import agents
from agents import (
    Agent,
    ApplyPatchTool,
    FunctionTool,
    GuardrailFunctionOutput,
    InputGuardrail,
    InputGuardrailTripwireTriggered,
    ModelSettings,
    RunConfig,
    RunContextWrapper,
    RunState,
    SQLiteSession,
    WebSearchTool,
    function_tool,
)
from pydantic import BaseModel

from recovery import (
    ApprovalDeniedError,
    Budget,
    CheckpointStore,
    RecoverableAgent,
    RecoveryError,
    Run,
    current_call,
    tool,
)
from recovery.errors import BudgetError, RunFailedError, WaitingError
from recovery.integrations.openai_agents import Runner, recorded
from recovery.journal.events import CallFailed, CallIntended
from tests.support.lives import RUN
from tests.support.lives import recorded as events
from tests.support.openai_agents_shop import QUIET, FakeModel, answered, calls, says
from tests.support.paths import ROOT

Store = CheckpointStore


class Found(BaseModel):
    name: str
    size: int = 3


@pytest.fixture
def store() -> CheckpointStore:
    return CheckpointStore()


class DiedError(BaseException):
    """The process ends where the agent would return."""


def lived(store: CheckpointStore, fn: Callable[[Run], Any], **options: Any) -> Any:
    """The result of a run whose process dies at its end, and of one that makes it again."""
    results: list[Any] = []

    async def dies_once(run: Run) -> Any:
        results.append(await fn(run))
        if len(results) == 1:
            raise DiedError
        return results[-1]

    agent = RecoverableAgent(dies_once, store, check_locals=False, **options)
    try:
        asyncio.run(agent.run_with_recovery("task", RUN))
    except DiedError:
        calls_made = len(events(store, CallIntended))
        again = asyncio.run(agent.run_with_recovery("task", RUN))["result"]
        assert again == results[0] and len(events(store, CallIntended)) == calls_made
    return results[0]


def one_call(name: str, **arguments: Any) -> FakeModel:
    """A model that calls one tool, and answers with what it gave."""

    def decide(instructions: str, items: list[Any]) -> list[Any]:
        if not answered(items):
            return [calls(name, "c1", **arguments)]
        return [says(str(items[-1]["output"]))]

    return FakeModel(decide)


async def output(agent: Agent[Any], **options: Any) -> Any:
    return (await Runner.run(agent, "go", run_config=QUIET, **options)).final_output


def asks(*tools: Any, model: FakeModel | None = None, **more: Any) -> Callable[[Run], Any]:
    """An agent function that runs an agent with these tools, whose model calls the first one."""
    agent = Agent("one", model=model or one_call(tools[0].name), tools=list(tools), **more)

    async def fn(run: Run) -> Any:
        return await output(agent)

    return fn


# -- tools


def test_a_tool_knows_its_call_and_what_is_recorded_has_its_arguments(store: Store) -> None:
    known: list[Any] = []

    @function_tool
    async def pay(cents: int, to: str = "bob") -> str:
        known.append(current_call())
        return "paid"

    assert lived(store, asks(pay, model=one_call("pay", cents=5))) == "paid"
    call = known[0]
    assert (call.tool, call.call_id, call.args) == ("pay", "c1", (5, "bob"))
    assert len(call.idempotency_key) == 32
    assert len(known) == 1


def test_options_of_tool_count(store: Store) -> None:
    tried: list[int] = []

    @function_tool(name_override="look")
    @tool(name="find", retry=3, after_crash="retry", redact=["secret"])
    def search(query: str, secret: str) -> str:
        tried.append(1)
        if len(tried) < 3:
            raise OSError("not now")
        return f"found {query}"

    model = one_call("look", query="x", secret="sesame")
    assert lived(store, asks(search, model=model)) == "found x"
    assert len(tried) == 3
    intent = next(one for one in events(store, CallIntended) if one.tool == "find")
    assert "sesame" not in str(intent.args)


def test_an_error_is_recorded_and_the_model_is_told_of_it_as_without_a_run(store: Store) -> None:
    class OwnError(Exception):
        pass

    def text(context: Any, error: Exception) -> str:
        return f"{type(error).__name__}: {error}"

    @function_tool(failure_error_function=text)
    async def fails() -> str:
        raise OwnError("no such thing")

    assert lived(store, asks(fails)) == "OwnError: no such thing"
    assert len(events(store, CallFailed)) == 1


def test_an_error_that_the_tool_does_not_handle_ends_the_run_of_the_sdk(store: Store) -> None:
    @function_tool(failure_error_function=None)
    async def fails() -> str:
        raise LookupError("no such thing")

    with pytest.raises(RunFailedError, match=r"UserError: .*no such thing(.|\n)*recovery retry"):
        lived(store, asks(fails))


def test_what_a_tool_returns_keeps_its_type(store: Store) -> None:
    seen: list[Any] = []

    @function_tool
    async def find() -> Found:
        return Found(name="x")

    async def fn(run: Run) -> Any:
        agent = Agent("one", model=one_call("find"), tools=[find])
        result = await Runner.run(agent, "go", run_config=QUIET)
        seen.extend(one.output for one in result.new_items if hasattr(one, "output"))
        return result.final_output

    assert lived(store, fn) == "name='x' size=3"
    assert seen == [Found(name="x")] * 2


def test_methods_defaults_and_keyword_only_parameters_are_called_as_the_sdk_does(
    store: Store,
) -> None:
    class Mail:
        async def send(
            self, context: agents.RunContextWrapper[Any], to: str, *, copies: int
        ) -> str:
            return f"{copies} to {to}, {context.context}"

    send = function_tool(Mail().send)
    agent = Agent("one", model=one_call("send", to="bob", copies=2), tools=[send])

    async def fn(run: Run) -> Any:
        return await output(agent, context="here")

    assert lived(store, fn) == "2 to bob, here"


def test_the_context_is_no_argument_also_where_a_person_approves(store: Store) -> None:
    @function_tool
    @tool(needs_approval=True, redact=["card"])
    def pay(context: RunContextWrapper[Any], cents: int, card: str = "none") -> str:
        assert current_call() is not None
        return f"{context.context} paid {cents} by {card}"

    agent = Agent("one", model=one_call("pay", cents=5, card="4111"), tools=[pay])

    async def fn(run: Run) -> Any:
        return await output(agent, context="ann")

    with pytest.raises(WaitingError):
        lived(store, fn, park_after_s=0)
    (call,) = store.run(RUN).pending()
    assert call.args[0] == 5 and "4111" not in str(call)
    store.run(RUN).approve(call, who="bob")
    assert lived(store, fn) == "ann paid 5 by 4111"
    (intent,) = [one for one in events(store, CallIntended) if one.tool == "pay"]
    assert len(intent.args[0]) == 2 and intent.call_id == "c1"


def test_a_handmade_tool_is_recorded_with_its_json(store: Store) -> None:
    made: list[str] = []

    async def invoke(context: Any, text: str) -> str:
        made.append(text)
        return "done"

    handmade = FunctionTool("do", "Do.", {"type": "object", "properties": {}}, invoke, False)
    model = one_call("do", a=1)
    assert lived(store, asks(handmade, model=model)) == "done"
    assert made == ['{"a": 1}']
    intent = next(one for one in events(store, CallIntended) if one.tool == "do")
    assert intent.args[0] == [{"a": 1}] and intent.call_id == "c1"


def test_a_denied_call_is_not_made_and_the_model_is_told(store: Store) -> None:
    told: list[Exception] = []

    def text(context: Any, error: Exception) -> str:
        told.append(error)
        return "denied"

    @function_tool(failure_error_function=text)
    @tool(needs_approval=True)
    async def pay(cents: int) -> str:
        raise AssertionError

    fn = asks(pay, model=one_call("pay", cents=5))
    with pytest.raises(WaitingError):
        lived(store, fn, park_after_s=0)
    (call,) = store.run(RUN).pending()
    assert call.args == (5,)
    store.run(RUN).deny(call, who="ann", why="too much")
    assert lived(store, fn) == "denied"
    assert isinstance(told[0], ApprovalDeniedError)


def test_a_policy_of_the_sdk_that_cannot_see_a_default_asks_as_without_a_run(store: Store) -> None:
    async def is_large(context: Any, arguments: dict[str, Any], call_id: str) -> bool:
        return bool(arguments.get("cents", 0) > 100)

    @function_tool(needs_approval=is_large)
    async def pay(cents: int = 1000) -> str:
        return "paid"

    async def fn(run: Run) -> Any:
        agent = Agent("one", model=one_call("pay"), tools=[pay])
        result = await Runner.run(agent, "go", run_config=QUIET)
        return [one.raw_item.name for one in result.interruptions]

    outside = asyncio.run(_interrupted(pay))
    assert lived(store, fn) == outside  # versions differ


async def _interrupted(pay: Any) -> list[str]:
    agent = Agent("one", model=one_call("pay"), tools=[pay])
    result = await agents.Runner.run(agent, "go", run_config=QUIET)
    return [one.raw_item.name for one in result.interruptions]


# -- models


def test_a_named_model_is_that_of_the_provider_and_recorded(store: Store) -> None:
    asked: list[str] = []

    class Provider(agents.ModelProvider):
        def get_model(self, model_name: str | None) -> Any:
            asked.append(str(model_name))
            return FakeModel(lambda instructions, items: [says("hello")], "of-provider")

    async def fn(run: Run) -> Any:
        config = RunConfig(model_provider=Provider(), tracing_disabled=True)
        agent = Agent("one", model="some-model")
        return (await Runner.run(agent, "go", run_config=config)).final_output

    assert lived(store, fn) == "hello" and {*asked} == {"some-model"}
    (intent,) = events(store, CallIntended)
    assert intent.tool == "model" and intent.args[0][0]["model"] == "of-provider"


def test_a_model_of_the_config_is_recorded(store: Store) -> None:
    async def fn(run: Run) -> Any:
        model = FakeModel(lambda instructions, items: [says("hello")])
        config = RunConfig(model=model, tracing_disabled=True)
        return (await Runner.run(Agent("one"), "go", run_config=config)).final_output

    assert lived(store, fn) == "hello"
    assert [one.tool for one in events(store, CallIntended)] == ["model"]


def test_tokens_count_for_budgets(store: Store) -> None:
    @function_tool
    def look() -> str:
        return "seen"

    with pytest.raises(BudgetError):
        lived(store, asks(look), budget=Budget(tokens=100))


def test_the_sdk_retries_a_model_and_each_try_is_recorded(store: Store) -> None:
    from agents import ModelRetrySettings

    tries: list[int] = []

    def decide(instructions: str, items: list[Any]) -> list[Any]:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("gone")
        return [says("hello")]

    settings = ModelSettings(
        retry=ModelRetrySettings(
            max_retries=3,
            backoff={"initial_delay": 0.0, "max_delay": 0.0, "jitter": False},
            policy=lambda context: True,
        )
    )
    agent = Agent("one", model=FakeModel(decide), model_settings=settings)

    async def fn(run: Run) -> Any:
        return await output(agent)

    assert lived(store, fn) == "hello" and len(tries) == 3
    assert len(events(store, CallFailed)) == 2


def test_a_chain_of_responses_is_kept_and_a_conversation_of_the_server_refused(
    store: Store,
) -> None:
    @function_tool
    def look() -> str:
        return "seen"

    agent = Agent("one", model=one_call("look"), tools=[look])

    async def chained(run: Run) -> Any:
        return await output(agent, auto_previous_response_id=True)

    assert lived(store, chained) == "seen"
    models = [one.args[0][0] for one in events(store, CallIntended) if one.tool == "model"]
    assert [one.get("previous_response_id") for one in models] == [None, "resp_1"]

    async def held(run: Run) -> Any:
        return await output(agent, conversation_id="conv_1")

    with pytest.raises(ValueError, match="conversation_id= names a conversation"):
        lived(CheckpointStore(), held)


# -- agents


def test_the_agent_itself_is_as_it_was() -> None:
    model = one_call("f")
    one = Agent("one", model=model)
    other = Agent("other", model=model, handoffs=[one])
    one.handoffs.append(other)
    copy = recorded(one)
    assert one.model is model and one.handoffs == [other] and copy is not one
    assert copy.handoffs[0].handoffs[0] is copy, "a circle is one"
    assert recorded(copy) is copy


def test_outside_of_a_run_it_does_what_the_sdk_does() -> None:
    @function_tool
    def look(x: int) -> str:
        return f"seen {x}, {current_call()}"

    agent = Agent("one", model=one_call("look", x=1), tools=[look, WebSearchTool()])
    assert asyncio.run(output(agent)) == "seen 1, None"
    assert asyncio.run(output(recorded(agent))) == "seen 1, None"
    asyncio.set_event_loop(loop := asyncio.new_event_loop())
    assert Runner.run_sync(agent, "go", run_config=QUIET).final_output == "seen 1, None"
    asyncio.set_event_loop(None)
    loop.close()


def test_a_guardrail_stops_the_run_again(store: Store) -> None:
    made: list[int] = []

    def decide(instructions: str, items: list[Any]) -> list[Any]:
        made.append(1)
        return [says("hello")]

    async def guard(context: Any, agent: Any, given: Any) -> Any:
        judge = Agent("judge", model=FakeModel(decide))
        said = await Runner.run(judge, given, run_config=QUIET)
        return GuardrailFunctionOutput(said.final_output, tripwire_triggered=True)

    async def fn(run: Run) -> Any:
        guarded = Agent("one", model=FakeModel(decide), input_guardrails=[InputGuardrail(guard)])
        try:
            return await output(guarded)
        except InputGuardrailTripwireTriggered as exc:
            return f"stopped: {exc.guardrail_result.output.output_info}"

    assert lived(store, fn) == "stopped: hello" and len(made) <= 2


# -- what is refused


def test_an_agent_as_a_tool_that_would_not_be_recorded_is_refused(store: Store) -> None:
    inner = Agent("inner", model=one_call("f"))
    with pytest.raises(TypeError, match=r"recorded\(agent\)\.as_tool"):
        lived(store, asks(inner.as_tool("inner", "Ask.")))
    assert events(store, CallIntended) == []


def test_a_decorator_above_a_tool_is_not_left_out_in_silence(store: Store) -> None:
    @tool
    def pay(cents: int) -> int:
        return cents

    @functools.wraps(pay)
    def checked(*args: Any, **kwargs: Any) -> Any:
        return pay(*args, **kwargs)

    with pytest.raises(TypeError, match="pay is a @tool with a decorator above it"):
        lived(store, asks(function_tool(checked)))


def test_a_tool_of_this_machine_is_refused(store: Store) -> None:
    with pytest.raises(TypeError, match="is a ApplyPatchTool: it works on this machine"):
        lived(store, asks(ApplyPatchTool(editor=object())))


def test_a_session_that_asks_a_model_is_refused(store: Store) -> None:
    class Compacting(SQLiteSession):
        async def run_compaction(self, args: Any = None) -> None: ...

    async def fn(run: Run) -> Any:
        with closing(Compacting("s")) as session:
            return await output(Agent("one", model=one_call("f")), session=session)

    with pytest.raises(ValueError, match="a Compacting cannot be recorded"):
        lived(store, fn)


def test_a_state_of_agents_that_are_not_recorded_is_refused(store: Store) -> None:
    @function_tool(needs_approval=True)
    async def pay() -> str:
        return "paid"

    agent = Agent("one", model=one_call("pay"), tools=[pay])

    async def interrupted() -> Any:
        result = await agents.Runner.run(agent, "go", run_config=QUIET)
        return result.to_state().to_json()

    told = json.loads(json.dumps(asyncio.run(interrupted())))

    async def goes_on(of: Any) -> Any:
        state = await RunState.from_json(of, told)
        for item in state.get_interruptions():
            state.approve(item)
        return (await Runner.run(of, state, run_config=QUIET)).final_output

    async def wrong(run: Run) -> Any:
        return await goes_on(agent)

    async def right(run: Run) -> Any:
        return await goes_on(recorded(agent))

    with pytest.raises(ValueError, match=r"RunState\.from_json\(recorded\(agent\)"):
        lived(store, wrong)
    other = CheckpointStore()
    assert lived(other, right) == "paid"
    assert [one.tool for one in events(other, CallIntended)] == ["pay", "model"]


def test_a_plain_agent_and_run_sync_are_refused(store: Store) -> None:
    agent = Agent("one", model=one_call("f"))

    def plain(run: Any) -> Any:
        return Runner.run_sync(agent, "go", run_config=QUIET).final_output

    with pytest.raises(RuntimeError, match="Make the agent function async"):
        RecoverableAgent(plain, store).run_with_recovery_sync("task", RUN)


# -- the package


def test_the_library_imports_nothing_of_it(tmp_path: Path) -> None:
    said = "import recovery, recovery.cli, sys; assert not {'agents', 'openai'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", said], check=True, cwd=ROOT)


def test_an_error_of_ours_is_none_that_a_model_is_told(store: Store) -> None:
    """A result that cannot be recorded stops the run, and is in doubt."""

    @function_tool
    async def opens() -> Any:
        return object()

    with pytest.raises(RecoveryError, match="object"):
        lived(store, asks(opens))
    assert store.run(RUN).status().state != "finished"
