"""Requests and replies of models as plain data, and back. Pure.

A reply is recorded with the fields that were set, and only these. A field that is added as None
when it is read back would be in the next request, which then differs from the one that was made.
The fields of the SDK's dataclasses are taken from the classes, for later versions have more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from agents import AgentOutputSchemaBase, FunctionTool, Handoff, ModelResponse
from agents.items import TResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from recovery import Usage
from recovery.integrations.framework_calls import dumped, plain

CACHE_KEY = "prompt_cache_key"  # of the process, where the SDK draws it
DONE = "response.completed"
ENDS = (DONE, "response.incomplete", "response.failed", "error")
_TOOL = ("name", "description", "parameters")
_MARK = "attributes"  # of a reply: what it has besides its fields


# -- requests


def request(model: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What a model is asked, by the SDK's names; without what is None."""
    name = getattr(model, "model", None)
    asked: dict[str, Any] = {"model": name if isinstance(name, str) else None}
    asked |= {key: plain(value, _sent) for key, value in arguments.items() if key != "tracing"}
    return {key: value for key, value in asked.items() if value not in (None, [])}


def compared(request: dict[str, Any]) -> dict[str, Any]:
    """The part of a request that tells it from others: without a key that a process has drawn."""
    settings = request.get("model_settings", {})
    extra = {k: v for k, v in settings.get("extra_args", {}).items() if k != CACHE_KEY}
    settings = {k: v for k, v in settings.items() if k != "extra_args"}
    return {**request, "model_settings": {**settings, "extra_args": extra}}


def _sent(value: Any) -> Any:
    """What is sent of a tool, a handoff, settings."""
    match value:
        case BaseModel():
            return dumped(value)
        case FunctionTool():
            sent = value.name, value.description, value.params_json_schema
            return dict(zip(_TOOL, sent, strict=True))
        case Handoff():
            sent = value.tool_name, value.tool_description, value.input_json_schema
            return dict(zip(_TOOL, sent, strict=True))
        case AgentOutputSchemaBase():
            schema = None if value.is_plain_text() else value.json_schema()
            return {"name": value.name(), "schema": schema}
    if not is_dataclass(value):
        return value
    held = {one.name: getattr(value, one.name) for one in fields(value)}
    told = {k: v for k, v in held.items() if v is not None and not k.startswith("_")}
    return {"type": type(value).__name__, **told}


# -- replies


@cache
def _adapter(of: Any) -> TypeAdapter[Any]:
    return TypeAdapter(of)


def _dumped(kind: Any, value: Any) -> Any:
    return _adapter(kind).dump_python(
        value, mode="json", by_alias=True, exclude_unset=True, warnings=False
    )


def reply(response: ModelResponse) -> dict[str, Any]:
    """A reply as it is recorded."""
    told: dict[str, Any] = _dumped(ModelResponse, response)
    return told


def response(told: dict[str, Any]) -> ModelResponse:
    """A recorded reply as the SDK knows it."""
    return _adapter(ModelResponse).validate_python(told)


def event(of: TResponseStreamEvent) -> dict[str, Any]:
    """An event of a stream as it is recorded."""
    told: dict[str, Any] = dumped(of) if isinstance(of, BaseModel) else dict(of)
    beside = _beside(getattr(of, "response", None))
    return {**told, _MARK: beside} if beside else told


def stream_event(told: dict[str, Any]) -> TResponseStreamEvent:
    """A recorded event as the SDK knows it."""
    beside = told.get(_MARK, {})
    made = _adapter(TResponseStreamEvent).validate_python(
        {key: value for key, value in told.items() if key != _MARK}
    )
    for name, value in beside.items():
        object.__setattr__(made.response, name, value)
    return made


def _beside(response: Any) -> dict[str, Any]:
    """What the SDKs attach to a reply besides its fields: its request id, its usage as it came."""
    if not isinstance(response, BaseModel):
        return {}
    known = {*type(response).model_fields, *(response.model_extra or {})}
    found = {**vars(response), "_request_id": getattr(response, "_request_id", None)}
    kinds = (str, int, float, dict)
    return {k: v for k, v in found.items() if k not in known and isinstance(v, kinds)}


def combined(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What of the events of a stream is recorded: its last one, which has the whole reply; all of
    them where the stream was left before."""
    last = chunks[-1] if chunks else {}
    if last.get("type") not in ENDS:
        return chunks
    if last["type"] == DONE and not last["response"].get("output"):
        # Some services say in the end only that it is the end.
        done = [one["item"] for one in chunks if one["type"] == "response.output_item.done"]
        last = {**last, "response": {**last["response"], "output": done}}
    return [last]


def usage(recorded: list[dict[str, Any]] | dict[str, Any]) -> Usage:
    """The tokens that a recorded reply, or stream, has used."""
    if isinstance(recorded, list):
        recorded = (recorded[-1].get("response") if recorded else None) or {}
    used = recorded.get("usage") or {}
    return Usage(used.get("input_tokens") or 0, used.get("output_tokens") or 0)
