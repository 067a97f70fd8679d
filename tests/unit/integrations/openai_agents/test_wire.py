"""What models answer is read back as it came: the fields that were set, and only these."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

pytest.importorskip("agents")

from agents import Agent, FunctionTool, ModelResponse, ModelSettings, Usage, WebSearchTool, handoff
from agents.agent_output import AgentOutputSchema
from agents.items import TResponseOutputItem
from openai.types.responses import Response, ResponseCompletedEvent, ResponseUsage
from pydantic import TypeAdapter

from recovery.integrations.openai_agents import wire
from recovery.values.pack import pack, unpack

ITEMS: list[dict[str, Any]] = [
    {
        "type": "message",
        "id": "m",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "yes", "annotations": []}],
    },
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "status": None},
    {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x"},
    {
        "type": "web_search_call",
        "id": "w",
        "status": "completed",
        "action": {"type": "search", "query": "q"},
    },
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "of_later": {"a": 1}},
]


def item(told: dict[str, Any]) -> Any:
    return TypeAdapter(TResponseOutputItem).validate_python(told)


def carried(value: Any) -> Any:
    """Through the log."""
    return unpack(pack(value, "value"))


@pytest.mark.parametrize("told", ITEMS, ids=lambda one: str(len(str(one))))
def test_an_item_is_sent_again_as_it_came(told: dict[str, Any]) -> None:
    answered = ModelResponse(output=[item(told)], usage=Usage(requests=1), response_id="r")
    read = wire.response(carried(wire.reply(answered)))
    assert read.to_input_items() == answered.to_input_items()
    assert read.output[0].model_dump(exclude_unset=True) == item(told).model_dump(
        exclude_unset=True
    )
    assert type(read.output[0]) is type(answered.output[0])


def test_all_fields_of_a_reply_are_carried_those_of_later_versions_too() -> None:
    answered = ModelResponse(
        output=[item(ITEMS[0])],
        usage=Usage(requests=2, input_tokens=7, output_tokens=3, total_tokens=10),
        response_id="r",
    )
    if any(one.name == "request_id" for one in dataclasses.fields(ModelResponse)):
        answered.request_id = "req"
    if any(one.name == "raw_usage" for one in dataclasses.fields(ModelResponse)):
        answered.raw_usage = {"of": {"the": "provider"}}
    assert wire.response(carried(wire.reply(answered))) == answered
    assert (
        wire.usage(wire.reply(answered)).input_tokens,
        wire.usage(wire.reply(answered)).output_tokens,
    ) == (7, 3)


def completed(output: list[Any], **more: Any) -> ResponseCompletedEvent:
    response = Response.model_validate(
        {
            "id": "r",
            "created_at": 0,
            "model": "m",
            "object": "response",
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            **more,
        }
    )
    return ResponseCompletedEvent(response=response, sequence_number=9, type="response.completed")


def test_an_event_is_read_as_it_came_with_what_sdks_attach_to_a_reply() -> None:
    event = completed([ITEMS[1]])
    event.response._request_id = "req"
    object.__setattr__(event.response, "_of_an_sdk", {"tokens": 3})
    read = wire.stream_event(carried(wire.event(event)))
    assert read.response._request_id == "req" and read.response._of_an_sdk == {"tokens": 3}
    told = event.response.model_dump(exclude_unset=True)
    assert read.response.model_dump(exclude_unset=True) == told


def test_of_a_stream_its_last_event_is_recorded_with_the_items_that_came_before() -> None:
    done = {"type": "response.output_item.done", "item": ITEMS[0], "output_index": 0}
    last = wire.event(completed([]))
    recorded = wire.combined([{"type": "response.created"}, done, last])
    assert recorded == [{**last, "response": {**last["response"], "output": [ITEMS[0]]}}]
    assert wire.combined([done]) == [done], "of one that was left before its end, all"
    assert wire.combined([]) == []


def test_the_usage_of_a_stream_is_that_of_its_reply() -> None:
    used = {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7}
    details = {"cached_tokens": 0, "cache_write_tokens": 0}
    whole = ResponseUsage.model_validate(
        {**used, "input_tokens_details": details, "output_tokens_details": {"reasoning_tokens": 0}}
    )
    recorded = wire.combined([wire.event(completed([ITEMS[0]], usage=whole))])
    assert (wire.usage(recorded).input_tokens, wire.usage(recorded).output_tokens) == (5, 2)
    assert wire.usage([]).tokens == 0


async def _never(*_: Any) -> str:
    return ""


def test_a_request_has_all_that_is_sent_and_no_object_of_the_process() -> None:
    tool = FunctionTool("f", "It does.", {"type": "object", "properties": {}}, _never, False)
    asked = {
        "system_instructions": "Help.",
        "input": [{"role": "user", "content": "hello"}],
        "model_settings": ModelSettings(temperature=0.5, extra_args={"prompt_cache_key": "drawn"}),
        "tools": [tool, WebSearchTool()],
        "output_schema": AgentOutputSchema(list[int]),
        "handoffs": [handoff(Agent("other"))],
        "tracing": object(),
        "previous_response_id": None,
    }
    request = carried(wire.request(object(), asked))
    assert request["tools"][0] == {
        "name": "f",
        "description": "It does.",
        "parameters": {"type": "object", "properties": {}},
    }
    assert request["tools"][1]["type"] == "WebSearchTool"
    assert request["handoffs"][0]["name"] == "transfer_to_other"
    assert request["output_schema"]["schema"]["type"] == "object"
    assert request["model_settings"]["temperature"] == 0.5
    assert "tracing" not in request and "previous_response_id" not in request
    assert " at 0x" not in str(request)
    other = asked | {
        "model_settings": ModelSettings(temperature=0.5, extra_args={"prompt_cache_key": "x"})
    }
    assert wire.compared(wire.request(object(), other)) == wire.compared(request)
    colder = asked | {"model_settings": ModelSettings(temperature=0.1)}
    assert wire.compared(wire.request(object(), colder)) != wire.compared(request)
