"""Makes each model request and tool call of an agent one call of the run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from langchain_core.messages import BaseMessage, message_chunk_to_message
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.errors import GraphInterrupt
from langgraph.types import interrupt

from recovery import ApprovalDeniedError, Usage, current_run
from recovery.integrations.framework_calls import (
    MODEL,
    all_arguments,
    as_call,
    checked,
    checked_by_name,
)
from recovery.integrations.langgraph.messages import Middleware, ModelResponse, as_answer

NOT_SENT = {"artifact", "response_metadata", "usage_metadata"}  # of messages, to a model
TOKENS = "input_tokens", "output_tokens"
INTERRUPT = "langgraph.interrupt"  # the outcome of a tool that asks a person


class RecordedCalls(Middleware):
    """Records the model requests and tool calls of an agent in its run: middleware for
    ``create_agent``, for agents without a checkpointer.

    Inside the agent function of a RecoverableAgent each of them is a call of the run. After a crash
    the agent begins again, and what has an outcome is served. Outside of a run nothing is recorded.
    It is the last of ``middleware=[...]``. For plain and async agents alike. Where a tool asks by
    ``interrupt()``, the graph has a checkpointer in memory, and is made in the agent function.

    ``policies``: options of ``recovery.tool`` by the name of a tool, such as
    ``{"search": {"after_crash": "retry"}, "pay": {"needs_approval": True}}``. Without any, a tool
    is a side effect: a call that a crash interrupts parks the run. ``model``: the same for requests
    to the model, which are made again unless they say otherwise.
    """

    def __init__(
        self,
        policies: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        model: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._policies = checked_by_name(policies)
        of_model = {"after_crash": "retry", "usage": _usage, **(model or {})}
        self._model = {**checked(MODEL, of_model), "identity": _compared}

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """See AgentMiddleware of LangChain."""
        if current_run() is None:
            return handler(request)

        def ask(**asked: Any) -> Any:
            return _reply(handler(request))

        return _response(self._asking(ask)(**_request(request)))

    async def awrap_model_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """The same in async agents."""
        if current_run() is None:
            return await handler(request)

        async def ask(**asked: Any) -> Any:
            return _reply(await handler(request))

        return _response(await self._asking(ask)(**_request(request)))

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """See AgentMiddleware of LangChain."""
        if current_run() is None:
            return handler(request)

        def call(**arguments: Any) -> Any:
            try:
                return handler(request)
            except GraphInterrupt as exc:
                return _interrupted(exc)

        asked = request.tool_call
        try:
            found = self._calling(call, asked)(**asked["args"])
        except ApprovalDeniedError as exc:
            found = exc
        return _answer(found, asked)

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """The same in async agents."""
        if current_run() is None:
            return await handler(request)

        async def call(**arguments: Any) -> Any:
            try:
                return await handler(request)
            except GraphInterrupt as exc:
                return _interrupted(exc)

        asked = request.tool_call
        try:
            found = await self._calling(call, asked)(**asked["args"])
        except ApprovalDeniedError as exc:
            found = exc
        return _answer(found, asked)

    def _asking(self, ask: Callable[..., Any]) -> Callable[..., Any]:
        return as_call(ask, MODEL, self._model)

    def _calling(self, call: Callable[..., Any], asked: Any) -> Callable[..., Any]:
        # By its arguments, not by its function: that of a call that is made again is another one.
        options = {"identity": all_arguments, **self._policies.get(asked["name"], {})}
        return as_call(call, asked["name"], options, asked["id"])


# -- the outcome of a tool


def _interrupted(exc: GraphInterrupt) -> dict[str, Any]:
    first, *more = exc.args[0]
    if more:
        raise TypeError(
            "a tool asked by several interrupts at once, which cannot be served"
        ) from exc
    return {INTERRUPT: first.value}


def _answer(found: Any, asked: Any) -> Any:
    """What a ToolNode takes of an outcome. An interrupt is made again, with the ids that it has in
    this process: after those that the graph has answers for."""
    while isinstance(found, dict) and INTERRUPT in found:
        interrupt(found[INTERRUPT])
    return as_answer(found, asked)


# -- a request to the model, and its reply


def _request(request: Any) -> dict[str, Any]:
    """What is recorded of it, and compared when the agent is executed again."""
    system, model, of = request.system_message, request.model, request.response_format
    asked = {
        "model": getattr(model, "model_name", None) or getattr(model, "model", None),
        "system": None if system is None else _plain(system),
        "messages": [_plain(message) for message in request.messages],
        "tools": [convert_to_openai_tool(one) for one in request.tools],
        "tool_choice": request.tool_choice,
        "settings": request.model_settings,
        "response_format": None if of is None else _named(of),
    }
    return {name: value for name, value in asked.items() if value}


def _plain(message: BaseMessage) -> dict[str, Any]:
    fields: dict[str, Any] = message.model_dump(
        mode="json", exclude=NOT_SENT, exclude_defaults=True
    )
    return {"type": message.type, **fields}


def _named(response_format: Any) -> str:
    schema = getattr(response_format, "schema", response_format)
    return str(getattr(schema, "__name__", None) or type(schema).__name__)


def _compared(**asked: Any) -> Any:
    """Without the ids that LangGraph draws for messages in each execution."""
    messages = [
        {name: value for name, value in message.items() if name != "id"}
        for message in asked["messages"]
    ]
    return {**asked, "messages": messages}


def _reply(response: Any) -> dict[str, Any]:
    recorded = {"messages": [message_chunk_to_message(one) for one in response.result]}
    if response.structured_response is not None:
        recorded["structured"] = response.structured_response
    return recorded


def _response(recorded: Any) -> Any:
    return ModelResponse(recorded["messages"], recorded.get("structured"))


def _usage(recorded: dict[str, Any]) -> Usage:
    counted = [getattr(one, "usage_metadata", None) or {} for one in recorded["messages"]]
    tokens = (sum(one.get(name, 0) for one in counted) for name in TOKENS)
    return Usage(*tokens)
