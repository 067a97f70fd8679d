"""Encodes OTLP/JSON: protobuf's JSON, ids in hex, enums as numbers, 64-bit integers as strings."""

from __future__ import annotations

import json
from typing import Any

from recovery.inspect.span import Span

INTERNAL, CLIENT = 1, 3  # kinds of spans
ERROR = 2  # status


def request(service: str, release: str, spans: list[str]) -> str:
    """A request of these spans (as ``line`` has them), as one line of ASCII."""
    resource = line({"attributes": attributes({"service.name": service})})
    scope = line({"name": "agent-eventlog", "version": release})
    inner = f'{{"scope":{scope},"spans":[{",".join(spans)}]}}'
    return f'{{"resourceSpans":[{{"resource":{resource},"scopeSpans":[{inner}]}}]}}'


def line(value: dict[str, Any]) -> str:
    """An object as ASCII without line ends."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def attributes(given: dict[str, Any]) -> list[dict[str, Any]]:
    """Attributes: str, int, float, bool, or a list of str."""
    return [{"key": key, "value": _value(value)} for key, value in given.items()]


def span_line(span: Span, trace: str) -> str:
    """A complete span."""
    drawn: dict[str, Any] = {"traceId": trace, "spanId": span.id}
    if span.parent:
        drawn["parentSpanId"] = span.parent
    drawn |= {
        "name": span.name,
        "kind": CLIENT if span.model else INTERNAL,
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": attributes(span.attributes),
    }
    if span.events:
        drawn["events"] = [
            {"timeUnixNano": str(at), "name": what, "attributes": attributes(about)}
            for what, at, about in span.events
        ]
    if span.dropped_events:
        drawn["droppedEventsCount"] = span.dropped_events
    if span.links:
        drawn["links"] = [{"traceId": there, "spanId": one} for there, one in span.links]
    if span.error is not None:
        drawn["status"] = {"code": ERROR, "message": span.error}
    return line(drawn)


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [_value(one) for one in value]}}
    return {"stringValue": value}
