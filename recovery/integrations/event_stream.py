"""Parses the events that a model's provider streams (server-sent events), and writes them again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

Event = list[Any]  # its name, and its data
EVENT_STREAM = "text/event-stream"


class EventParser:
    """The events in the bytes of a stream; the bytes themselves where they are no events."""

    def __init__(self, answer: Any) -> None:
        self._is_events = EVENT_STREAM in answer.headers.get("content-type", "")
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Event | bytes]:
        if not self._is_events:
            yield data
            return
        self._rest += data
        # A line may end with CR, LF or both. The last byte may be half of an end.
        text, held = (self._rest[:-1], b"\r") if self._rest.endswith(b"\r") else (self._rest, b"")
        *events, rest = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n\n")
        self._rest = rest + held
        for event in events:
            yield from _event_in(event)

    def end(self) -> Iterator[Event | bytes]:
        yield from _event_in(self._rest.rstrip(b"\r"))


def _event_in(lines: bytes) -> Iterator[Event]:
    name, data = "", []
    for line in lines.decode("utf-8", "replace").split("\n"):
        key, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if key == "event":
            name = value
        elif key == "data":
            data.append(value)
    if name or data:
        text = "\n".join(data)
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        yield [name, found if isinstance(found, dict | list) else text]


def is_last(event: Event | bytes) -> bool:
    """Whether it says that no other follows, as OpenAI does."""
    return isinstance(event, list) and isinstance(event[1], str) and event[1].startswith("[DONE]")


def as_written(event: Event | bytes) -> bytes:
    """An event as it came."""
    if isinstance(event, bytes):
        return event
    name, data = event
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    lines = [f"event: {name}"] * bool(name) + [f"data: {line}" for line in text.split("\n")]
    return "\n".join([*lines, "", ""]).encode()
