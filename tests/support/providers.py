"""Model providers as their clients see them: scripted answers over HTTP, and no network."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, cast

import anthropic
import httpx
import httpx2
import openai

Body = dict[str, Any]


def completion(text: str = "hi", **more: Any) -> Body:
    message = {"role": "assistant", "content": text, "refusal": None, **more}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m-1",
        "choices": [{"index": 0, "finish_reason": "stop", "message": message, "new_field": [1]}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }


def completion_chunks(*words: str) -> list[Any]:
    chunk: Body = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m-1"}
    choices = [{"index": 0, "delta": {"role": "assistant", "content": ""}}]
    choices += [{"index": 0, "delta": {"content": word}} for word in words]
    choices += [{"index": 0, "delta": {}, "finish_reason": "stop"}]
    found: list[Any] = [{**chunk, "choices": [{"finish_reason": None, **one}]} for one in choices]
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    return [("", one) for one in [*found, {**chunk, "choices": [], "usage": usage}, "[DONE]"]]


def response(text: str = "hi", **more: Any) -> Body:
    content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
    said = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed"}
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1.0,
        "status": "completed",
        "model": "m-1",
        "output": [{**said, "content": content}],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 3,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 2,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 5,
        },
        **more,
    }


def response_events(*words: str) -> list[Any]:
    whole = response("".join(words))
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    item = {"id": "msg_1", "type": "message", "role": "assistant"}
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    place: Body = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    events: list[Body] = [
        {"type": "response.created", "response": begun},
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {**item, "status": "in_progress", "content": []},
        },
        {"type": "response.content_part.added", **place, "part": part},
    ]
    events += [
        {"type": "response.output_text.delta", **place, "delta": word, "logprobs": []}
        for word in words
    ]
    text = "".join(words)
    events += [
        {"type": "response.output_text.done", **place, "text": text, "logprobs": []},
        {"type": "response.content_part.done", **place, "part": {**part, "text": text}},
        {"type": "response.output_item.done", "output_index": 0, "item": whole["output"][0]},
        {"type": "response.completed", "response": whole},
    ]
    return [(one["type"], {**one, "sequence_number": at}) for at, one in enumerate(events)]


def message(*content: Any, **more: Any) -> Body:
    blocks = [{"type": "text", "text": one} if isinstance(one, str) else one for one in content]
    used = {"input_tokens": 3, "output_tokens": 2, "cache_read_input_tokens": 1}
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": blocks or [{"type": "text", "text": "hi", "new_field": {"a": 1}}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": used,
        **more,
    }


def message_events(*content: Any, **more: Any) -> list[Any]:
    whole = message(*content, **more)
    begun = {**whole, "content": [], "stop_reason": None, "usage": {**whole["usage"]}}
    begun["usage"]["output_tokens"] = 1
    events: list[Body] = [{"type": "message_start", "message": begun}, {"type": "ping"}]
    for at, block in enumerate(whole["content"]):
        start, deltas = dict(block), []
        if block["type"] == "text":
            start["text"] = ""
            deltas = [{"type": "text_delta", "text": word} for word in block["text"]]
        else:
            start["input"] = {}
            text = json.dumps(block["input"])
            halves = text[: len(text) // 2], text[len(text) // 2 :]
            deltas = [{"type": "input_json_delta", "partial_json": half} for half in halves]
        events.append({"type": "content_block_start", "index": at, "content_block": start})
        events += [{"type": "content_block_delta", "index": at, "delta": one} for one in deltas]
        events.append({"type": "content_block_stop", "index": at})
    ended = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    events += [
        {"type": "message_delta", "delta": ended, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    ]
    return [(one["type"], one) for one in events]


def as_text(event: Any) -> bytes:
    name, data = event
    text = data if isinstance(data, str) else json.dumps(data)
    return (f"event: {name}\n" * bool(name) + f"data: {text}\n\n").encode()


class Stream(
    httpx2.SyncByteStream, httpx2.AsyncByteStream, httpx.SyncByteStream, httpx.AsyncByteStream
):
    """Events as a network brings them, in pieces that respect nothing; may break in the middle.
    ``stays_open``: the answer does not end with the events, for an async client."""

    def __init__(self, events: list[Any], breaks: bool = False) -> None:
        data = b": a comment\n\n" + b"".join(map(as_text, events))
        self._parts = [data[at : at + 37] for at in range(0, len(data), 37)]
        self._breaks, self.closed = breaks, False
        self.stays_open = False
        self.library: Any = httpx2

    def __iter__(self) -> Iterator[bytes]:
        yield from self._parts[: len(self._parts) // 2] if self._breaks else self._parts
        if self._breaks:
            raise self.library.ReadError("the line is dead")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self:
            yield part
        if self.stays_open:
            await asyncio.Event().wait()

    def close(self) -> None:
        self.closed = True

    async def aclose(self) -> None:
        self.closed = True


ANSWERS: dict[str, tuple[Callable[[], Body], Callable[[], list[Any]] | None]] = {
    "/v1/chat/completions": (completion, lambda: completion_chunks("he", "llo")),
    "/v1/responses": (response, lambda: response_events("he", "llo")),
    "/v1/embeddings": (
        lambda: {
            "object": "list",
            "model": "e",
            "data": [{"object": "embedding", "index": 0, "embedding": [0.25, -1.0]}],
            "usage": {"prompt_tokens": 5, "total_tokens": 5},
        },
        None,
    ),
    "/v1/models": (
        lambda: {
            "object": "list",
            "data": [{"id": "m", "object": "model", "created": 1, "owned_by": "x"}],
            "has_more": False,
        },
        None,
    ),
    "/v1/responses/resp_1": (response, None),
    "/v1/messages": (message, message_events),
    "/v1/messages/count_tokens": (lambda: {"input_tokens": 12}, None),
}


class Provider:
    """A server of both providers. ``bodies``: what it was sent; ``next``: answers to give before
    the usual ones, by request: a response, or an exception to raise."""

    def __init__(self) -> None:
        self.bodies: list[Body] = []
        self.next: list[Any] = []
        self.streams: list[Stream] = []

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        body = json.loads(request.content) if request.content else {}
        self.bodies.append(body)
        ids = {"request-id": f"req_{len(self.bodies)}", "x-request-id": f"req_{len(self.bodies)}"}
        if self.next:
            found = self.next.pop(0)
            if isinstance(found, Exception):
                raise found
            if callable(found):
                found = found(body)
            found.headers.update(ids)
            return cast(httpx2.Response, found)
        plain, streamed = ANSWERS[request.url.path]
        if body.get("stream"):
            assert streamed is not None
            return self.streamed(streamed(), ids)
        return httpx2.Response(200, headers=ids, json=plain())

    def streamed(
        self, events: list[Any], ids: dict[str, str] | None = None, breaks: bool = False
    ) -> httpx2.Response:
        self.streams.append(stream := Stream(events, breaks))
        headers = {"content-type": "text/event-stream; charset=utf-8", **(ids or {})}
        return httpx2.Response(200, headers=headers, stream=stream)

    def _http(self, sdk: Any, kind: str) -> Any:
        """An HTTP client of the library that this version of the SDK sends by."""
        names = {one.__module__.partition(".")[0] for one in sdk.DefaultHttpxClient.__mro__}
        library: Any = httpx2 if "httpx2" in names else httpx

        def handle(request: Any) -> Any:
            try:
                found = self.answer(request)
            except httpx2.HTTPError as exc:
                raise getattr(library, type(exc).__name__)(str(exc)) from None
            if library is httpx2:
                return found
            body: Any
            if isinstance(found.stream, Stream):
                found.stream.library, body = library, {"stream": found.stream}
            else:
                body = {"content": found.content}
            headers = found.headers.multi_items()
            return library.Response(found.status_code, headers=headers, **body)

        return getattr(library, kind)(transport=library.MockTransport(handle))

    def openai_client(self, **options: Any) -> openai.OpenAI:
        http = self._http(openai, "Client")
        return openai.OpenAI(api_key="key", http_client=http, **options)

    def async_openai_client(self, **options: Any) -> openai.AsyncOpenAI:
        http = self._http(openai, "AsyncClient")
        return openai.AsyncOpenAI(api_key="key", http_client=http, **options)

    def anthropic_client(self, **options: Any) -> anthropic.Anthropic:
        http = self._http(anthropic, "Client")
        return anthropic.Anthropic(api_key="key", http_client=http, **options)

    def async_anthropic_client(self, **options: Any) -> anthropic.AsyncAnthropic:
        http = self._http(anthropic, "AsyncClient")
        return anthropic.AsyncAnthropic(api_key="key", http_client=http, **options)
