"""Makes each operation of an agent one call of the run: named, recorded, compared."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BoundDurableOperation,
    CapabilityOperationId,
    DurableOperation,
    DurableOperationBackend,
    DurableOperationId,
    EventStreamHandlerId,
    ModelCancelSuspendedResponseId,
    ModelCompactMessagesId,
    ModelRequestId,
    ModelRequestParams,
    ToolsetCallToolId,
    ToolsetGetInstructionsId,
    ToolsetGetToolsId,
    ToolsetValidateToolArgumentsId,
    durable_unit_scope,
)
from pydantic_ai.exceptions import ToolFailed, UserError
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import RunContext
from pydantic_ai.usage import RunUsage
from pydantic_core import PydanticSerializationError

from recovery import OutcomeUnknown
from recovery.integrations.framework_calls import all_arguments, as_call, plain
from recovery.integrations.pydantic_ai.policies import RETRY, policy_of

try:  # of later versions: no telemetry of what is served from the log
    from pydantic_ai.durable_exec import record_durable_unit
except ImportError:

    def record_durable_unit(*, executed: bool) -> None: ...


WITH_USAGE = "recovery.tool_with_usage"  # the kind of an outcome

# In messages and events: what is of the process that made them. Beside it, what users have put in,
# in which these names may stand for anything.
OF_PROCESS = {"timestamp", "run_id", "conversation_id"}
OF_USERS = {"args", "content", "data", "metadata", "provider_details", "vendor_metadata"}

_body: ContextVar[Callable[[], Awaitable[Any]]] = ContextVar("recovery_pydantic_ai_body")


async def _perform(**arguments: Any) -> Any:
    """Every operation as a function: of its arguments as they are recorded."""
    return await _body.get()()


class Backend(DurableOperationBackend[Any]):
    def __init__(self, agent_name: str, model: Mapping[str, Any]) -> None:
        self._agent_name, self._model = agent_name, model

    def bind(
        self, operation: DurableOperation[Any, Any, Any]
    ) -> BoundDurableOperation[Any, Any, Any]:
        of = operation.operation_id
        policy: Mapping[str, Any]
        match of:
            case ModelRequestId():
                policy = self._model
            case ToolsetCallToolId() | CapabilityOperationId():
                policy = {}
            case (
                ModelCompactMessagesId()
                | ModelCancelSuspendedResponseId()
                | EventStreamHandlerId()
                | ToolsetGetToolsId()
                | ToolsetGetInstructionsId()
                | ToolsetValidateToolArgumentsId()
            ):
                policy = RETRY
            case _:  # of later versions: it may have effects
                policy = {}
        return Operation(operation, self._agent_name, policy)

    def config_for_tool(
        self,
        operation: DurableOperation[Any, Any, Any],
        *,
        tool: object | None,
        tool_name: str,
    ) -> Any:
        definition = getattr(tool, "tool_def", None)
        return policy_of(definition.metadata, tool_name) if definition is not None else {}

    def registrations(self) -> Sequence[Callable[..., object]]:
        return ()


@dataclass(frozen=True)
class Operation:
    """An operation of Pydantic AI, each time as one call of the run."""

    operation: DurableOperation[Any, Any, Any]
    agent_name: str
    policy: Mapping[str, Any]

    async def __call__(self, params: Any, *, config: Any = None) -> Any:
        of, executed = self.operation.operation_id, False
        is_tool = isinstance(of, ToolsetCallToolId)

        async def body() -> Any:
            nonlocal executed
            executed = True
            with durable_unit_scope():
                return await (_call_tool if is_tool else _run)(self.operation, params)

        policy = {**self.policy, **config} if is_tool and config else dict(self.policy)
        policy["identity"] = all_arguments if is_tool else _compared
        name = name_of(of, self.agent_name, params)
        call = as_call(_perform, name, policy, call_id_of(of, params))
        token = _body.set(body)
        try:
            recorded = await call(**arguments_of(of, params))
        finally:
            _body.reset(token)
        record_durable_unit(executed=executed)
        if isinstance(recorded, OutcomeUnknown):
            raise ToolFailed(str(recorded)) if is_tool else UserError(str(recorded))
        return (_load_tool if is_tool else _load)(self.operation, params, recorded)


async def _run(operation: DurableOperation[Any, Any, Any], params: Any) -> Any:
    value = await operation.handler(params)
    try:
        return operation.result_codec.dump(value)
    except (PydanticSerializationError, TypeError):
        return getattr(value, "result", value)  # which the run refuses: the call has no outcome


def _load(operation: DurableOperation[Any, Any, Any], params: Any, recorded: Any) -> Any:
    return operation.result_codec.load(recorded)


async def _call_tool(operation: DurableOperation[Any, Any, Any], params: Any) -> Any:
    """Call a tool; its outcome as it is recorded: what the tool has returned, where that is plain.

    So ``recovery resolve --outcome``, ``undo=`` and ``reconcile=`` have to do with results alone.
    ModelRetry, files and the like are recorded as Pydantic AI encodes them. A tool that has used
    models (agents, with ``usage=ctx.usage``) has what they used in its outcome.
    """
    before = deepcopy(params.ctx.usage)  # other calls change it meanwhile
    context = replace(params.ctx, usage=deepcopy(before))
    payload = await _run(operation, replace(params, ctx=context))
    spent = context.usage - before
    if spent.has_values() or spent.requests or spent.tool_calls:
        return {"kind": WITH_USAGE, "outcome": payload, "usage": JSON_CODEC.dump(RunUsage, spent)}
    match payload:
        case {"kind": "tool_return", "result": result, **rest} if not any(rest.values()):
            return payload if _has_kind(result) else result
    return payload


def _load_tool(operation: DurableOperation[Any, Any, Any], params: Any, recorded: Any) -> Any:
    if _has_kind(recorded):
        if recorded["kind"] == WITH_USAGE:
            params.ctx.usage.incr(JSON_CODEC.load(RunUsage, recorded["usage"]))
            recorded = recorded["outcome"]
        with suppress(ValidationError):  # else a person, or reconcile=, has given such a result
            return operation.result_codec.load(recorded)
    return operation.result_codec.load(
        {"kind": "tool_return", "result": recorded, "content_file_digests": []}
    )


def _has_kind(result: Any) -> bool:
    return isinstance(result, dict) and "kind" in result


def name_of(of: DurableOperationId, agent: str, params: Any) -> str:
    """The name of the call: it is in the logs of users, so it must never change."""
    if isinstance(of, ToolsetCallToolId):
        return str(params.name)
    if isinstance(of, ToolsetValidateToolArgumentsId):
        return f"{params.name}.validate"
    match of:
        case ModelRequestId():
            what = "model"
        case ModelCompactMessagesId():
            what = "compact_messages"
        case ModelCancelSuspendedResponseId():
            what = "cancel_suspended_response"
        case EventStreamHandlerId():
            what = "event"
        case ToolsetGetToolsId():
            what = f"{of.toolset_id}.get_tools"
        case ToolsetGetInstructionsId():
            what = f"{of.toolset_id}.get_instructions"
        case CapabilityOperationId():
            what = f"{of.capability_id}.{of.operation}"
        case _:  # of a later version
            what = type(of).__name__
    return f"{agent}.{what}"


def call_id_of(of: DurableOperationId, params: Any) -> str:
    """The id that the model gave to a call of a tool; the step of a request to a model."""
    context = getattr(params, "ctx", None) or getattr(params, "run_context", None)
    if context is None:
        return ""
    return (
        f"step {context.run_step}" if isinstance(of, ModelRequestId) else context.tool_call_id or ""
    )


def arguments_of(of: DurableOperationId, params: Any) -> dict[str, Any]:
    """What is recorded of an operation before it begins."""
    if isinstance(params, ModelRequestParams):
        return {
            "model": cast(ModelRequestId, of).model_name,
            "messages": JSON_CODEC.dump(list[ModelMessage], params.messages),
            "settings": plain(params.model_settings or {}),
            "parameters": _request_parameters(params.model_request_parameters),
        }
    if isinstance(of, ToolsetCallToolId | ToolsetValidateToolArgumentsId):
        return cast(dict[str, Any], plain(params.tool_args))
    values = {one.name: getattr(params, one.name) for one in fields(params)}
    return {
        name: plain(value)
        for name, value in values.items()
        if not isinstance(value, RunContext) and value is not None
    }


_PARAMETERS = TypeAdapter(ModelRequestParameters)


def _request_parameters(given: ModelRequestParameters) -> Any:
    """The tools and outputs as the model receives them, without metadata of this process."""
    shown = _PARAMETERS.dump_python(given, exclude_defaults=True)
    for tools in ("function_tools", "output_tools"):
        for one in shown.get(tools, ()):
            one.pop("metadata", None)
    return plain(shown)


def _compared(**arguments: Any) -> Any:
    """What of the recorded arguments tells operations apart."""
    return {name: _without_process(value) for name, value in arguments.items()}


def _without_process(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: one if key in OF_USERS else _without_process(one)
            for key, one in value.items()
            if key not in OF_PROCESS
        }
    return list(map(_without_process, value)) if isinstance(value, list) else value
