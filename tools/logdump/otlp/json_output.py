"""Encodes OTLP/JSON: protobuf's JSON, ids in hex, enums as numbers, 64-bit integers as strings."""

from __future__ import annotations

import json
from typing import Any

INTERNAL, CLIENT = 1, 3  # kinds of spans
ERROR = 2  # status
_TIME_MAX = (1 << 64) - 1


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
    """Attributes: str, int, float, bool."""
    return [{"key": key, "value": _value(value)} for key, value in given.items()]


def time(time_ns: int) -> str:
    """A time, limited to the range of the field."""
    return str(min(max(time_ns, 0), _TIME_MAX))


def text(value: str) -> str:
    """Text without lone surrogates, which protobuf cannot hold."""
    return value.encode("utf-8", "replace").decode("utf-8")


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"stringValue": text(str(value))}
