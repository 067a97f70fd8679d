"""Agents of Microsoft's Agent Framework, recorded: the extra ``agent-framework``.

    agent = Agent(client, name="shop", tools=[pay], middleware=recorded())
    shop = recoverable(agent, "runs")
    done = await shop.run_with_recovery("Pay 10 to bob", "order-42")

A run that a crash has interrupted starts again from its first line; what was recorded is served.
See docs/agent-framework.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from inspect import isawaitable
from os import PathLike
from typing import Any

from eventlog import LogError
from recovery import (
    ApprovalDeniedError,
    CheckpointStore,
    OutcomeUnknown,
    RecoverableAgent,
    RecoveryError,
    Run,
    Usage,
)
from recovery.integrations.framework_calls import (
    MODEL,
    all_arguments,
    as_call,
    async_run,
    checked,
    checked_by_name,
    denial,
    plain,
)
from recovery.integrations.versions import check_version

check_version("agent-framework-core", "1.21", extra="agent-framework")

from agent_framework import (  # noqa: E402 - their version first
    ChatContext,
    ChatMiddleware,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationContext,
    FunctionMiddleware,
    FunctionTool,
    Message,
    MiddlewareFailure,
    MiddlewareTermination,
    ResponseStream,
    UserInputRequiredException,
)
from pydantic import BaseModel  # noqa: E402

__all__ = ["approvals", "recorded", "recoverable"]

DRAWN = re.compile("af-call-[0-9a-f]{32}")  # ids that the framework draws in each process
CONTENTS, ENDS, ASKS = "contents", "ends the loop", "asks for input"  # outcomes that are no text

Next = Callable[[], Awaitable[None]]


def recorded(
    *, tools: Mapping[str, Mapping[str, Any]] | None = None, model: Mapping[str, Any] | None = None
) -> list[Any]:
    """The middleware that records an agent in runs: ``middleware=recorded()``.

    With middleware of your own, put it last: ``[*mine, *recorded()]``. Outside of a run it does
    nothing. ``tools``: options by the names of tools, as ``recovery.tool`` takes them:
    ``{"search": {"after_crash": "retry"}, "pay": {"needs_approval": True}}``. A tool that is not
    named there is a side effect that parks the run when a crash leaves it in doubt. ``model``:
    options of requests, such as ``{"retry": 3}``; they are safe to repeat.
    """
    of_model = checked(MODEL, {"after_crash": "retry", "usage": used, **(model or {})})
    return [RecordedRequests(of_model), RecordedTools(checked_by_name(tools))]


def recoverable(
    agent: Any,
    store: CheckpointStore | str | PathLike[str] | None = None,
    *,
    approval_timeout_s: float | None = None,
    **options: Any,
) -> RecoverableAgent[str]:
    """A RecoverableAgent whose task is the prompt, and whose result is the text of the answer.

    Calls of tools with ``approval_mode="always_require"`` wait for ``recovery approve``, for
    ``approval_timeout_s`` at most. ``store`` and ``options`` are those of RecoverableAgent. For
    anything else, write an agent function that awaits ``agent.run``. ValueError for an agent
    without the middleware of ``recorded``.
    """
    if not any(isinstance(one, RecordedRequests) for one in agent.middleware or ()):
        raise ValueError(
            f"agent {agent.name!r} has no middleware that records, so nothing of it would be "
            "recorded. Make it with Agent(..., middleware=recorded())"
        )

    async def run_agent(run: Run) -> str:
        session = agent.create_session(session_id=run.uuid())
        answer = await agent.run(run.task, session=session)
        while answer.user_input_requests:
            answers = await approvals(answer, timeout_s=approval_timeout_s)
            answer = await agent.run(answers, session=session)
        return str(answer.text)

    run_agent.__name__ = agent.name or run_agent.__name__
    return RecoverableAgent(run_agent, store, **options)


async def approvals(answer: Any, *, timeout_s: float | None = None) -> Message:
    """Ask for the approvals that ``answer``, an agent's, requests: the message that answers them.

    Each request is a call ``TOOL.approval`` of the run, which waits for ``recovery approve``. It is
    denied when there was no decision for ``timeout_s``. ValueError for requests of another kind.
    """
    replies = []
    for request in answer.user_input_requests:
        if request.type != "function_approval_request":
            raise ValueError(f"a {request.type} asks for more than an approval: answer it yourself")
        of = request.function_call
        denied = await denial(
            of.name, _id_of(of.call_id), of.parse_arguments() or {}, timeout_s=timeout_s
        )
        replies.append(request.to_function_approval_response(denied is None))
    return Message("user", replies)


def _id_of(call_id: str | None) -> str:
    """The model's id of a call; "" for one that the framework has drawn."""
    return "" if call_id is None or DRAWN.fullmatch(call_id) else call_id


# -- requests to models


class RecordedRequests(ChatMiddleware):
    """Serves requests that have an answer in the log, and records the others."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = {"identity": compared, **options}

    async def process(self, context: ChatContext, call_next: Next) -> None:
        """See ChatMiddleware."""
        run = async_run()
        if run is None:
            return await call_next()
        request = _request(context)
        shape = (context.options or {}).get("response_format")

        if not context.stream:

            async def ask(request: dict[str, Any]) -> dict[str, Any]:
                await call_next()
                return _reply(context.result)

            told = await run.call(as_call(ask, MODEL, self._options), request)
            context.result = _response(told, shape)
            return None

        async def ask_streaming(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
            await call_next()
            async for update in context.result:
                yield update.to_dict()

        async def updates() -> AsyncIterator[ChatResponseUpdate]:
            options = {**self._options, "combine": combined, "split": split}
            async with run.stream(as_call(ask_streaming, MODEL, options), request) as stream:
                async for told in stream:
                    yield ChatResponseUpdate.from_dict(told)

        context.result = ResponseStream(
            updates(),
            finalizer=lambda all: ChatResponse.from_updates(all, output_format_type=shape),
        )
        return None


def _request(context: ChatContext) -> dict[str, Any]:
    """What a model is asked, as it is recorded. MiddlewareFailure for what cannot be replayed."""
    options = dict(context.options or {})
    held = options.get("conversation_id")
    if held is not None and not str(held).startswith("resp_"):
        raise MiddlewareFailure(
            f"the server holds the conversation {held!r}, and changes it with each request. After "
            "a crash it is unknown whether the request that was cut short is in it. The model was "
            "not asked. Use a session with a history of its own: default_options={'store': False}"
        )
    of_client = getattr(context.client, "compaction_strategy", None)
    if of_client is not None or context.kwargs.get("compaction_strategy") is not None:
        raise MiddlewareFailure(
            "compaction_strategy= changes the messages below the middleware, where it is not "
            "recorded. The model was not asked. Use a CompactionProvider among context_providers="
        )
    name = options.pop("model", None) or getattr(context.client, "model", None)
    asked = {
        "model": name if isinstance(name, str) else None,
        "messages": [one.to_dict() for one in context.messages],
        **{key: plain(value, _sent) for key, value in sorted(options.items())},
    }
    return {key: value for key, value in asked.items() if value not in (None, [], {})}


def _sent(value: Any) -> Any:
    if isinstance(value, FunctionTool):
        return value.to_json_schema_spec()["function"]
    if isinstance(value, type) and issubclass(value, BaseModel):
        return {"name": value.__name__, "schema": value.model_json_schema()}
    return value


def compared(request: dict[str, Any]) -> Any:
    """The part of a request that tells it from others: ids that were drawn are numbered instead,
    and ``additional_properties`` are not sent to models."""
    return _compared(request, {})


def _compared(value: Any, numbers: dict[str, str]) -> Any:
    if isinstance(value, str):
        return DRAWN.sub(lambda of: numbers.setdefault(of[0], f"id {len(numbers)}"), value)
    if isinstance(value, dict):
        kept = {key: one for key, one in value.items() if key != "additional_properties"}
        return {key: _compared(one, numbers) for key, one in kept.items()}
    return [_compared(one, numbers) for one in value] if isinstance(value, list) else value


def _reply(response: Any) -> dict[str, Any]:
    if not isinstance(response, ChatResponse):
        raise TypeError(f"the model's answer is a ChatResponse, not {response!r:.80}")
    told: dict[str, Any] = response.to_dict()
    return told


def _response(told: dict[str, Any], shape: Any) -> ChatResponse:
    return ChatResponse.from_dict({**told, "response_format": shape})


def combined(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """What of a stream is recorded: the response that its updates make."""
    return _reply(ChatResponse.from_updates(list(map(ChatResponseUpdate.from_dict, chunks))))


def split(recorded: dict[str, Any]) -> list[dict[str, Any]]:
    """The updates that a recorded response gives: one for each message."""
    return [one.to_dict() for one in _response(recorded, None).to_updates()]


def used(recorded: dict[str, Any]) -> Usage:
    """The tokens of a recorded response."""
    counts = recorded.get("usage_details") or {}
    return Usage(counts.get("input_token_count") or 0, counts.get("output_token_count") or 0)


# -- tools


class RecordedTools(FunctionMiddleware):
    """Serves calls of tools that have an outcome in the log, and records the others."""

    def __init__(self, options: Mapping[str, Mapping[str, Any]]) -> None:
        self._options = options

    async def process(self, context: FunctionInvocationContext, call_next: Next) -> None:
        """See FunctionMiddleware."""
        if async_run() is None:
            return await call_next()

        async def call(**arguments: Any) -> Any:
            try:
                await call_next()
            except MiddlewareTermination as exc:
                given = context.result if exc.result is None else exc.result
                return {ENDS: str(exc), CONTENTS: None if isawaitable(given) else _outcome(given)}
            except UserInputRequiredException as exc:
                return {ASKS: str(exc), CONTENTS: [one.to_dict() for one in exc.contents]}
            return _outcome(context.result)

        name = context.function.name
        options = {**self._options.get(name, {}), "identity": all_arguments}
        call_id = _id_of(context.metadata.get("call_id"))
        try:
            outcome = await as_call(call, name, options, call_id)(**plain(context.arguments))
        except ApprovalDeniedError as exc:
            outcome = str(exc)
        except (RecoveryError, LogError) as exc:  # an ordinary exception is an outcome of the tool
            raise MiddlewareFailure(f"{type(exc).__name__}: {exc}") from exc
        match outcome:
            case {"ends the loop": why, "contents": result}:
                context.result = None if result is None else _result(result)
                raise MiddlewareTermination(why)
            case {"asks for input": why, "contents": list(contents)}:
                raise UserInputRequiredException(list(map(Content.from_dict, contents)), why)
        context.result = _result(outcome)
        return None


def _outcome(result: Any) -> Any:
    """What a tool gives to the model, as it is recorded: its text, if that is all."""
    if isinstance(result, Content):
        result = [result]
    if not isinstance(result, list) or not all(isinstance(one, Content) for one in result):
        return plain(result)
    contents = [one.to_dict() for one in result]
    match contents:
        case [{"type": "text", "text": str(text), **rest}] if not any(rest.values()):
            return text
    return {CONTENTS: contents}


def _result(outcome: Any) -> Any:
    """The outcome as the framework takes it; also one that a person, or a policy, has given."""
    match outcome:
        case {"contents": [{"type": str()}, *_] as contents} if len(outcome) == 1:
            return list(map(Content.from_dict, contents))
        case str() | OutcomeUnknown():
            return str(outcome)
    return json.dumps(outcome, default=str)
