"""What programs compute with: the same for printed programs and for the oracle."""

from __future__ import annotations

import asyncio
import datetime
import re
import zlib
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

LONG = 40
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True)
class Point:
    """A registered type."""

    x: str
    y: int = 2


@dataclass(frozen=True)
class Parcel:
    """A type that nobody registers, but which the tool's annotation names."""

    x: str


class Strange:
    """A type that nobody registers: no dataclass, as many an SDK returns."""

    def __init__(self, x: str) -> None:
        self.x = x


class DeclaredError(Exception):
    """An exception that tools declare."""


class CustomError(Exception):
    """An exception that no tool declares."""


class OutcomeUnknown:
    """What an agent gets of a call of which nobody knows what became of it, by its name."""


UNKNOWN = OutcomeUnknown()


def _crc(value: Any) -> int:
    return zlib.crc32(text(value).encode())


def full(value: Any) -> str:
    """A value as a text, which says its type, and nothing that is different in each run."""
    match value:
        case str():
            return _UUID.sub("<uuid>", value)
        case list():
            return "[" + ",".join(map(full, value)) + "]"
        case tuple():
            return "(" + ",".join(map(full, value)) + ")"
        case dict():
            return "{" + ",".join(f"{key}={full(value[key])}" for key in sorted(value)) + "}"
        case float():
            return "<number>"
        case Point() | Parcel() | Strange():
            return f"{type(value).__name__}:{value.x}"
        case bytes():
            return f"bytes:{value!r}"
        case int() | Decimal() | datetime.datetime() | None:
            return f"{type(value).__name__}:{value}"
        case _:
            return type(value).__name__


def text(value: Any) -> str:
    """The same, short."""
    found = full(value)
    return found if len(found) <= LONG else f"{found[:16]}~{zlib.crc32(found.encode()):08x}"


def odd(value: Any) -> bool:
    """True for about half of all values."""
    return bool(_crc(value) & 1)


def size(value: Any, most: int) -> int:
    """1 to ``most``, by the value."""
    return 1 + (_crc(value) >> 3) % most


def mix(a: Any, b: Any) -> str:
    """A text made of both."""
    return text(f"{text(a)}+{text(b)}")


def shaped(shape: str, x: Any) -> Any:
    """The text of ``x`` as a value of another type."""
    found = text(x)
    match shape:
        case "text":
            return found
        case "tuple":
            return (found, 1)
        case "bytes":
            return found.encode()
        case "point":
            return Point(found)
        case "time":
            return datetime.datetime(2024, 5, 1, tzinfo=datetime.UTC) + datetime.timedelta(
                seconds=_crc(x) % 1000
            )
        case "decimal":
            return Decimal(_crc(x) % 1000) / 100
        case "parcel":
            return Parcel(found)
        case _:
            return Strange(found)


def refused(tool: str, x: Any) -> bool:
    """Whether people say no to this call."""
    return _crc(f"{tool}?{text(x)}") % 4 == 0


def kind(error: BaseException) -> str:
    """What the error is called, whether its type could be rebuilt or not."""
    name = type(error).__name__
    if name == "ToolError":
        made = str(getattr(error, "type_name", name)).rpartition(".")[2]
        return made if made.isidentifier() else name
    return name


def outcome(task: asyncio.Task[Any]) -> str:
    """What came of a task that has ended."""
    if task.cancelled():
        return "cancelled"
    error = task.exception()
    return text(task.result()) if error is None else kind(error)
