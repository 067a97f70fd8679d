"""Implements the capability that records what an agent does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, TypeVar, Union, get_args, get_origin

from genai_prices import calc_price
from pydantic_ai import Agent
from pydantic_ai.agent import AbstractAgent, EventStreamHandler
from pydantic_ai.capabilities import AbstractCapability, WrapRunHandler
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    DurabilityEngineSpec,
    DurableOperationBackend,
    conversation_id_from_run_id,
)
from pydantic_ai.messages import ModelResponse, ToolCallPart
from pydantic_ai.models import Model
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import (
    AgentDepsT,
    DeferredToolRequests,
    DeferredToolResults,
    RunContext,
    ToolApproved,
    ToolDenied,
)

from recovery import (
    CheckpointStore,
    RecoverableAgent,
    Run,
    Usage,
    current_run,
)
from recovery.integrations.framework_calls import denial
from recovery.integrations.pydantic_ai.operations import Backend
from recovery.integrations.pydantic_ai.policies import (
    KEY,
    RETRY,
    ToolPolicy,
    check_toolset,
    checked,
)

try:  # of later versions: no telemetry of what is served from the log
    from pydantic_ai.durable_exec import replay_scope
except ImportError:
    replay_scope = nullcontext

Output = TypeVar("Output")


class EventLogDurability(BaseDurabilityCapability[AgentDepsT]):
    """Records what an agent does outside, wherever it runs inside a run of a RecoverableAgent.

    Elsewhere the agent is as it would be without it. ``model``: the policy of requests to models;
    its ``usage`` gets the ModelResponse. ``approval_timeout_s``: how long a call waits for
    ``recovery approve``. ``models``, ``event_stream_handler`` and ``name`` are those of all
    durability capabilities of Pydantic AI. The agent, and its toolsets, need names that stay.
    """

    engine_spec: ClassVar[DurabilityEngineSpec] = DurabilityEngineSpec(
        engine_name="agent-eventlog",
        durable_unit_noun="call",
        durable_container_noun="run",
        codec=JSON_CODEC,
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        toolset_lifecycles={
            "function": "enter-always",
            "mcp": "enter-in-durable-unit",  # a run that is only replayed needs no server
            "dynamic": "enter-never",
        },
        tool_config_key=KEY,
    )

    def __init__(
        self,
        *,
        model: ToolPolicy | None = None,
        approval_timeout_s: float | None = None,
        models: Mapping[str, Model] | None = None,
        event_stream_handler: EventStreamHandler[AgentDepsT] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(models=models, event_stream_handler=event_stream_handler, name=name)
        self._approval_timeout_s = approval_timeout_s
        policy = {**RETRY, "usage": used, **checked(model or {}, "model=", "model")}
        self._model_policy = {**policy, "usage": _of_response(policy["usage"])}

    def for_agent(self, agent: AbstractAgent[AgentDepsT, Any]) -> AbstractCapability[AgentDepsT]:
        for toolset in agent.toolsets:
            toolset.apply(check_toolset)
        return super().for_agent(agent)

    def get_durable_operation_backend(self) -> DurableOperationBackend[Any]:
        return Backend(self.name, self._model_policy)

    @property
    def in_durable_context(self) -> bool:
        return current_run() is not None

    def get_default_run_id(self) -> str | None:
        run = current_run()
        return run.uuid() if run is not None else None

    def get_default_conversation_id(self, run_id: str) -> str | None:
        return conversation_id_from_run_id(run_id) if self.in_durable_context else None

    def get_run_clock(self) -> Callable[[], datetime] | None:
        run = current_run()
        return None if run is None else lambda: datetime.fromtimestamp(run.now(), UTC)

    async def get_run_start_time(self, run_id: str) -> datetime | None:
        clock = self.get_run_clock()
        return clock() if clock is not None else None

    async def wrap_run(
        self, ctx: RunContext[AgentDepsT], *, handler: WrapRunHandler
    ) -> AgentRunResult[Any]:
        with ExitStack() as around:
            run = current_run()
            if run is not None:
                around.enter_context(replay_scope())
            if isinstance(run, Run):
                around.enter_context(Agent.using_sleep(run.sleep))
            return await super().wrap_run(ctx, handler=handler)

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[AgentDepsT], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """Ask for approvals, which ``recovery show`` names, if the run does not return them."""
        agent = ctx.agent
        if current_run() is None or agent is None or _returns_requests(agent.output_type):
            return None
        answers = await asyncio.gather(*map(self._answer, requests.approvals))
        ids = (call.tool_call_id for call in requests.approvals)
        return DeferredToolResults(approvals=dict(zip(ids, answers, strict=True)))

    async def _answer(self, call: ToolCallPart) -> ToolApproved | ToolDenied:
        denied = await denial(
            call.tool_name, call.tool_call_id, call.args_as_dict(), self._approval_timeout_s
        )
        if denied is None:
            return ToolApproved()
        return ToolDenied(f"{call.tool_name} was denied: {denied.why}")


def recoverable(
    agent: AbstractAgent[AgentDepsT, Output],
    store: CheckpointStore | str | Path | None = None,
    *,
    deps: AgentDepsT = None,  # as Agent.run has it
    **options: Any,
) -> RecoverableAgent[Output]:
    """A RecoverableAgent whose task is the prompt, and whose result is the output of the agent.

    ``store`` and ``options`` are those of RecoverableAgent, ``deps`` those of ``Agent.run``. For
    more than one prompt, or for a result with messages, write an agent function that awaits
    ``agent.run``. Raises ValueError if the agent has no EventLogDurability.
    """
    if EventLogDurability.from_agent(agent) is None:
        raise ValueError(
            f"agent {agent.name!r} has no EventLogDurability, so nothing of it would be recorded. "
            "Make it with Agent(..., capabilities=[EventLogDurability()])"
        )

    async def run_agent(run: Run) -> Output:
        return (await agent.run(run.task, deps=deps)).output

    run_agent.__name__ = run_agent.__qualname__ = agent.name or "agent"
    kinds = [one for one in _flat(agent.output_type) if isinstance(one, type)]
    if kinds:  # the function is of the user's code, as that names the types that it returns
        run_agent.__annotations__["return"] = Union[tuple(kinds)]  # noqa: UP007 - of a list
        run_agent.__module__ = kinds[0].__module__
    return RecoverableAgent(run_agent, store, **options)


def _returns_requests(output_type: Any) -> bool:
    """Whether an agent returns its requests for approval to its caller."""
    return any(one is DeferredToolRequests for one in _flat(output_type))


def _flat(output_type: Any) -> Iterator[Any]:
    """What an agent may return: one of a list, or of a union."""
    for one in output_type if isinstance(output_type, Sequence) else [output_type]:
        is_union = isinstance(one, UnionType) or str(get_origin(one)) == "typing.Union"
        yield from get_args(one) if is_union else [one]


def _of_response(measure: Callable[[ModelResponse], Usage]) -> Callable[[Any], Usage]:
    return lambda result: measure(JSON_CODEC.load(ModelResponse, result))


def used(response: ModelResponse) -> Usage:
    """What a request to a model has used, in tokens and dollars."""
    usage = response.usage
    cost = usage.cost
    if cost is None and response.model_name:
        with suppress(LookupError):
            price = calc_price(usage, response.model_name, provider_id=response.provider_name)
            cost = price.total_price
    return Usage(usage.input_tokens, usage.output_tokens, float(cost or 0))
