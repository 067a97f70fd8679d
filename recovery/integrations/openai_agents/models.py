"""Models whose replies are recorded."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from typing import Any

from agents import Model, ModelResponse
from agents.items import TResponseStreamEvent

from recovery import Run, current_run, tool
from recovery.integrations.framework_calls import MODEL, same
from recovery.integrations.openai_agents import wire
from recovery.integrations.openai_agents.proxy import Proxy

_ASKED = inspect.signature(Model.get_response)

SERVER_HELD = (
    "conversation_id= names a conversation that the server holds and changes with each request. "
    "After a crash it is unknown whether the request that was cut short is in it. The model was "
    "not asked. Use session=, or previous_response_id=, or pass the conversation as input."
)


class RecordedModel(Proxy):
    """A model whose replies are served from the log when the run is made again."""

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        """Ask the model, or serve what it has answered."""
        run = current_run()
        if not isinstance(run, Run):
            return await self.inner.get_response(*args, **kwargs)
        inner = self.inner

        @tool(name=MODEL, after_crash="retry", identity=wire.compared, usage=wire.usage)
        async def ask(request: dict[str, Any]) -> dict[str, Any]:
            return wire.reply(await inner.get_response(*args, **kwargs))

        return wire.response(await run.call(ask, _request(inner, args, kwargs)))

    async def stream_response(
        self, *args: Any, **kwargs: Any
    ) -> AsyncIterator[TResponseStreamEvent]:
        """The same in events. One that was served gives its last event alone."""
        run, inner = current_run(), self.inner
        if not isinstance(run, Run):
            async for event in inner.stream_response(*args, **kwargs):
                yield event
            return

        @tool(
            name=MODEL,
            after_crash="retry",
            identity=wire.compared,
            usage=wire.usage,
            combine=wire.combined,
            split=same,
        )
        async def ask(request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
            async for event in inner.stream_response(*args, **kwargs):
                yield wire.event(event)

        async with run.stream(ask, _request(inner, args, kwargs)) as stream:
            async for told in stream:
                yield wire.stream_event(told)


def _request(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    asked = dict(_ASKED.bind(None, *args, **kwargs).arguments)
    del asked["self"]
    if asked.get("conversation_id") is not None:
        raise ValueError(SERVER_HELD)
    return wire.request(model, asked)


def recorded_model(model: Any) -> Any:
    """The model, recorded; what is no model (its name, None) as it is."""
    if not isinstance(model, Model) or type(model) is RecordedModel:
        return model
    return RecordedModel(model)


class RecordedProvider(Proxy):
    """A provider of models whose replies are recorded."""

    def get_model(self, model_name: str | None) -> Any:
        """The model of this name."""
        return recorded_model(self.inner.get_model(model_name))
