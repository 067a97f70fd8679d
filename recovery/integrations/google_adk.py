"""Agents of Google's Agent Development Kit, recorded: the extra ``google-adk``.

    agent = Agent(name="shop", model="gemini-2.5-flash", tools=[pay])
    app = App(name="shop", root_agent=agent, plugins=[EventLogPlugin()])
    shop = recoverable(app, "runs")
    done = await shop.run_with_recovery("Pay 10 to bob", "order-42")

A run that a crash has interrupted starts again from its first line; what was recorded is served.
See docs/google-adk.md.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Mapping
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
    same,
)
from recovery.integrations.versions import check_version

check_version("google-adk", "2.13")

from google.adk.events.event_actions import EventActions  # noqa: E402 - their version first
from google.adk.flows.llm_flows.functions import (  # noqa: E402
    REQUEST_CONFIRMATION_FUNCTION_CALL_NAME,
    generate_client_function_call_id,
)
from google.adk.models import BaseLlm, LLMRegistry, LlmRequest, LlmResponse  # noqa: E402
from google.adk.plugins.base_plugin import BasePlugin  # noqa: E402
from google.adk.runners import InMemoryRunner  # noqa: E402
from google.adk.tools import BaseTool  # noqa: E402
from google.genai import types  # noqa: E402
from pydantic_core import to_jsonable_python  # noqa: E402

__all__ = ["EventLogPlugin", "RecordedLlm", "approvals", "recoverable"]

WITH_ACTIONS = "recovery.tool_with_actions"  # the kind of an outcome
# Callbacks that ADK does not call where a plugin answers for the model.
SKIPPED = ("before_model_callback", "after_model_callback", "on_model_error_callback")


class EventLogPlugin(BasePlugin):
    """Records what the agents of an app do in a run: ``App(..., plugins=[EventLogPlugin()])``.

    It makes each call itself, so no plugin after it sees one: put it last. Outside of a run it does
    nothing. ``tools``: options by the names of tools, as ``recovery.tool`` takes them:
    ``{"search": {"after_crash": "retry"}, "pay": {"needs_approval": True}}``. A tool that is not
    named there is a side effect that parks the run when a crash leaves it in doubt. ``model``:
    options of requests, such as ``{"retry": 3}``; they are safe to repeat. ``name``: of the plugin,
    which must be unique in its app.
    """

    def __init__(
        self,
        *,
        tools: Mapping[str, Mapping[str, Any]] | None = None,
        model: Mapping[str, Any] | None = None,
        name: str = "agent_eventlog",
    ) -> None:
        super().__init__(name)
        self._tools = checked_by_name(tools)
        self._model = _of_model(model)

    async def before_run_callback(self, *, invocation_context: Any) -> None:
        """Refuse live mode."""
        if async_run() is not None and invocation_context.live_request_queue is not None:
            raise RuntimeError(
                "run_live cannot be recorded, for it calls no plugins: use run_async"
            )

    async def before_model_callback(
        self, *, callback_context: Any, llm_request: LlmRequest
    ) -> LlmResponse | None:
        """Ask the model, or serve what it has answered."""
        run = async_run()
        if run is None:
            return None
        context = callback_context.get_invocation_context()
        agent = context.agent
        llm = await agent.canonical_model_async(callback_context)
        if isinstance(llm, RecordedLlm):
            return None
        for one in SKIPPED:
            if getattr(agent, one, None):
                raise TypeError(
                    f"{one}= of agent {agent.name!r} would not be called, because a plugin answers "
                    "for its model: give the agent model=RecordedLlm.of(...)"
                )
        context.increment_llm_call_count()

        async def ask(request: dict[str, Any]) -> list[dict[str, Any]]:
            return [_told(one) async for one in llm.generate_content_async(llm_request)]

        told = await run.call(as_call(ask, MODEL, self._model), _request(llm_request))
        return _response(told[-1])

    async def before_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: Any
    ) -> Any:
        """Call the tool, or serve what it has given."""
        if (
            async_run() is None
            or type(tool) is BaseTool
            or await _waits(tool, tool_args, tool_context)
        ):
            return None  # ADK says that there is no such tool, or asks for a confirmation
        context = tool_context.get_invocation_context()
        agent = context.agent
        given = {"tool": tool, "args": tool_args, "tool_context": tool_context}
        before = getattr(agent, "canonical_before_tool_callbacks", ())
        if (answer := await _first(before, given)) is not None:
            return answer
        try:
            outcome = await self._called(tool, tool_args, tool_context)
        except ApprovalDeniedError as exc:
            return {"error": str(exc)}
        except (RecoveryError, LogError):
            raise
        except Exception as exc:  # as ADK does, which does not call them for a plugin
            told = {"tool": tool, "tool_args": tool_args, "tool_context": tool_context}
            answer = await context.plugin_manager.run_on_tool_error_callback(**told, error=exc)
            if answer is None:
                on_error = getattr(agent, "canonical_on_tool_error_callbacks", ())
                answer = await _first(on_error, {**given, "error": exc})
            if answer is None:
                raise
            return answer
        if outcome is None:  # None would have ADK call the tool again
            later = tool.is_long_running or getattr(tool, "_defers_response", False)
            return {} if later else {"result": None}
        return outcome

    async def _called(self, of: BaseTool, args: dict[str, Any], context: Any) -> Any:
        before = _dumped(context.actions)

        async def call(**arguments: Any) -> Any:
            result = _plain(await of.run_async(args=args, tool_context=context))
            actions = _dumped(context.actions)
            if actions == before:
                return result
            return {"kind": WITH_ACTIONS, "result": result, "actions": actions}

        options = {**self._tools.get(of.name, {}), "identity": all_arguments}
        made = as_call(call, of.name, options, context.function_call_id)
        outcome = await made(**_plain(args))
        match outcome:
            case {"kind": "recovery.tool_with_actions", "result": result, "actions": actions}:
                _act(context, actions)
                return result
            case OutcomeUnknown():
                return {"error": str(outcome)}
        return outcome


class RecordedLlm(BaseLlm):
    """A model whose answers are recorded, chunks of streams included: ``Agent(model=...)``.

    It is for agents that stream, or have callbacks around the model. The plugin records the tools,
    and leaves such a model alone. Make it with ``RecordedLlm.of("gemini-2.5-flash")``: that fills
    ``model`` (its name), ``inner`` (the model itself) and ``options`` (of requests).
    """

    inner: Any
    options: Any = None

    @classmethod
    def of(cls, model: str | BaseLlm, **options: Any) -> RecordedLlm:
        """The model, recorded. ``options``: of requests, such as ``retry=3``."""
        inner = LLMRegistry.new_llm(model) if isinstance(model, str) else model
        return cls(model=inner.model, inner=inner, options=_of_model(options))

    @property
    def capabilities(self) -> Any:
        """What the model can do."""
        return self.inner.capabilities

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncIterator[LlmResponse]:
        """Ask the model, or serve what it has answered: that in whole responses."""
        run, inner = async_run(), self.inner
        if run is None:
            async for one in inner.generate_content_async(llm_request, stream):
                yield one
            return

        async def ask(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
            async for one in inner.generate_content_async(llm_request, stream):
                yield _told(one)

        options = {**self.options, "combine": _combined, "split": same}
        whole = []  # ADK calls the tools of an answer before it asks for the next one
        async with run.stream(as_call(ask, MODEL, options), _request(llm_request)) as answers:
            async for told in answers:
                if told.get("partial"):
                    yield _response(told)
                else:
                    whole.append(told)
        for told in whole:
            yield _response(told)


def recoverable(
    app: Any,
    store: CheckpointStore | str | PathLike[str] | None = None,
    *,
    user_id: str = "user",
    approval_timeout_s: float | None = None,
    **options: Any,
) -> RecoverableAgent[str]:
    """A RecoverableAgent whose task is the prompt, and whose result is the text of the answer.

    ``app``: the App, with an EventLogPlugin. ``user_id``: of its sessions ("user").

    Tools that require a confirmation wait for ``recovery approve``, for ``approval_timeout_s`` at
    most. ``store`` and ``options`` are those of RecoverableAgent. The session is in memory. For
    anything else, write an agent function with a runner of its own. ValueError for an app without
    an EventLogPlugin.
    """
    if not any(isinstance(one, EventLogPlugin) for one in app.plugins):
        raise ValueError(
            f"app {app.name!r} has no EventLogPlugin, so nothing of it would be recorded. Make it "
            "with App(..., plugins=[EventLogPlugin()])"
        )

    async def run_agent(run: Run) -> str:
        runner = InMemoryRunner(app=app)
        session = await runner.session_service.create_session(
            app_name=app.name, user_id=user_id, session_id=run.uuid()
        )
        message: Any = types.UserContent(run.task)
        text = ""
        while message is not None:
            events = [
                event
                async for event in runner.run_async(
                    user_id=user_id, session_id=session.id, new_message=message
                )
            ]
            texts = [_text(event) for event in events if event.is_final_response()]
            text = next((one for one in reversed(texts) if one), text)
            message = await approvals(events, timeout_s=approval_timeout_s)
        return text

    run_agent.__name__ = app.name
    return RecoverableAgent(run_agent, store, **options)


async def approvals(
    events: Iterable[Any], *, timeout_s: float | None = None
) -> types.Content | None:
    """Ask for the confirmations that ``events`` request: the message that answers them, or None.

    Each request is a call ``TOOL.approval`` of the run, which waits for ``recovery approve``. It is
    denied when there was no decision for ``timeout_s``.
    """
    parts = []
    for request in [one for event in events for one in event.get_function_calls()]:
        if request.name != REQUEST_CONFIRMATION_FUNCTION_CALL_NAME:
            continue
        of = request.args["originalFunctionCall"]
        denied = await denial(
            of["name"], of["id"], _plain(of.get("args") or {}), timeout_s=timeout_s
        )
        answer = types.FunctionResponse(
            id=request.id, name=request.name, response={"confirmed": denied is None}
        )
        parts.append(types.Part(function_response=answer))
    return types.Content(role="user", parts=parts) if parts else None


def _text(event: Any) -> str:
    parts = event.content.parts or () if event.content else ()
    return "".join(part.text for part in parts if part.text and not part.thought)


# -- models


def _of_model(options: Mapping[str, Any] | None) -> dict[str, Any]:
    made = checked(MODEL, {"after_crash": "retry", "usage": _used, **(options or {})})
    return {**made, "identity": same}  # with which the log has the arguments whole


def _request(request: LlmRequest) -> dict[str, Any]:
    """What a model is asked, as it is recorded: without ``http_options``."""
    config = _plain(request.config.model_copy(update={"http_options": None}))
    asked = {
        "model": request.model,
        "contents": [_plain(one) for one in request.contents],
        "config": config,
        "previous_interaction_id": getattr(request, "previous_interaction_id", None),
    }
    return {key: value for key, value in asked.items() if value not in (None, [], {})}


def _plain(value: Any) -> Any:
    return to_jsonable_python(
        value,
        exclude_none=True,
        bytes_mode="base64",
        fallback=lambda one: getattr(one, "__qualname__", f"<{type(one).__qualname__}>"),
    )


def _told(response: LlmResponse) -> dict[str, Any]:
    """An answer as it is recorded: its calls have ids, which ADK else draws in each process."""
    if response.content is not None and not response.partial:
        for part in response.content.parts or ():
            if part.function_call is not None and not part.function_call.id:
                part.function_call.id = generate_client_function_call_id()
    told: dict[str, Any] = json.loads(response.model_dump_json(exclude_none=True))
    return told


def _response(told: dict[str, Any]) -> LlmResponse:
    return LlmResponse.model_validate_json(json.dumps(told))


def _combined(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What of a stream is recorded: the responses that are no part of a later one."""
    return [one for one in chunks if not one.get("partial")]


def _used(recorded: list[dict[str, Any]]) -> Usage:
    """The tokens of recorded responses: the last of them has those of the whole answer."""
    counts = [one["usage_metadata"] for one in recorded if one.get("usage_metadata")]
    last = counts[-1] if counts else {}
    output = (last.get("candidates_token_count") or 0) + (last.get("thoughts_token_count") or 0)
    return Usage(last.get("prompt_token_count") or 0, output)


# -- tools


async def _waits(of: BaseTool, args: dict[str, Any], context: Any) -> bool:
    """Whether the call requires a confirmation that it does not have."""
    if context.tool_confirmation is not None:
        return not context.tool_confirmation.confirmed
    required = getattr(of, "check_require_confirmation", None)
    return bool(required is not None and await required(args, context))


async def _first(callbacks: Any, given: Mapping[str, Any]) -> Any:
    """What the first callback says that says anything."""
    for callback in callbacks:
        said = callback(**given)
        if isawaitable(said):
            said = await said
        if said is not None:
            return said
    return None


def _dumped(actions: EventActions) -> dict[str, Any]:
    dumped: dict[str, Any] = json.loads(actions.model_dump_json(exclude_defaults=True))
    return dumped


def _act(context: Any, told: Mapping[str, Any]) -> None:
    """Do what a tool has done to the session beside its result."""
    given = EventActions.model_validate(told)
    context.state.update(given.state_delta)
    for name in given.model_fields_set - {"state_delta"}:
        setattr(context.actions, name, getattr(given, name))
