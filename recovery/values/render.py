"""Renders recorded values for people, without their types. Hides secrets."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from eventlog.format.json_values import Json, to_json
from recovery.text import count, cut, printable, written
from recovery.values.codec import REGISTERED, codec_numbered
from recovery.values.pack import EXT_PARTS
from recovery.values.sealed import EXT_SEALED, Sealed, opened
from recovery.values.types import Ref

PREVIEW_SIZE = 12  # bytes shown of a binary value
HIDDEN = "[redacted]"


class Term(str):
    """Text that describes a value, and so is shown without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class Redaction:
    """What is hidden: values under keys, of parameters and of tools that match a pattern.

    Patterns are those of file names (``*``, ``?``, ``[ab]``), case counts; ``*`` hides every value.
    """

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        self._patterns = tuple(patterns)
        self.everything = "*" in self._patterns
        self.hides_any = bool(self._patterns)

    def hides(self, name: str) -> bool:
        """Whether the value of this name is hidden."""
        return any(fnmatchcase(name, pattern) for pattern in self._patterns)

    def shown(self, value: Any, name: str = "") -> Any:
        """A readable value without hidden parts; ``name``: of its owner."""
        if not self._patterns:
            return value
        if self.everything or (name and self.hides(name)):
            return Term(HIDDEN)
        if isinstance(value, dict):
            return {key: self.shown(part, key) for key, part in value.items()}
        return [self.shown(part) for part in value] if isinstance(value, list) else value

    def text(self, text: str, name: str = "") -> str:
        """Text that may quote a value, such as an error, without hidden parts."""
        return HIDDEN if self._patterns and (self.everything or self.hides(name)) else text


def readable(packed: bytes) -> Any:
    """A packed value as lists, dicts with str keys, numbers, str, and Terms for other types."""
    return readable_json(to_json(packed))


def readable_json(value: Json) -> Any:
    """The same of a value as ``eventlog.dump`` gives it. Never raises."""
    if isinstance(value, list):
        return [readable_json(part) for part in value]
    if not isinstance(value, dict):
        return value
    tag, inner = next(iter(value.items()), ("", None))
    if not tag.startswith("$"):
        return {key: readable_json(part) for key, part in value.items()}
    match tag, inner:
        case "$float", str(text):
            return Term(text)
        case "$map", list(pairs):
            return _map(pairs)
        case "$ext", [int(code), str(data)]:
            return _extension(code, b64decode(data))
        case "$msgpack", str(data):
            return Term(f"<not msgpack: {_preview(b64decode(data))}>")
    return Term(f"<{_preview(b64decode(str(inner)))}>")


def _map(pairs: list[Any]) -> Any:
    made = [(readable_json(key), readable_json(part)) for key, part in pairs]
    names = [key if isinstance(key, str) else Term(short(key, 60)) for key, _ in made]
    if len({*names}) < len(names):
        return [[key, part] for key, part in made]
    return dict(zip(names, (part for _, part in made), strict=True))


def _extension(code: int, data: bytes) -> Any:
    """The rendering of an extension value of this library."""
    try:
        if code == REGISTERED:
            name, parts = readable(data)
            return {str(name): parts}
        if code == EXT_SEALED:
            found = opened(data)
            return Term(repr(found)) if isinstance(found, Sealed) else readable(found)
        if code == EXT_PARTS:
            return Term("<message made of values elsewhere in the log>")
        codec = codec_numbered(code)
        if not codec.atom:
            return readable(data)
        value = codec.decode(data)
        if isinstance(value, Ref):
            return Term(f"<as in LSN {value.lsn}>")
        return Term(written(value) if type(value) is int else str(value))
    except Exception:  # bytes that make no sense, an unknown number, a library that is missing
        return Term(f"<ext {code}, {_preview(data)}>")


def _preview(data: bytes) -> str:
    more = "..." if len(data) > PREVIEW_SIZE else ""
    return f"{count(len(data), 'byte')} {data[:PREVIEW_SIZE].hex()}{more}"


def short(value: Any, width: int | None) -> str:
    """A readable value on one line, cut at ``width`` columns (None: whole)."""
    parts, length = [], 0
    for part in _pieces(value, width):
        parts.append(part)
        length += len(part)
        if width is not None and length > width:
            break
    text = "".join(parts)
    return text if width is None else cut(text, width)


def arguments_text(shown: Any, width: int | None) -> str:
    """The arguments of a call on one line, in parentheses; each is cut at ``width`` columns."""
    match shown:
        case [list(args), dict(kwargs)]:
            parts = [short(arg, width) for arg in args]
            parts += [f"{printable(name)}={short(arg, width)}" for name, arg in kwargs.items()]
            return f"({', '.join(parts)})"
    return f"({short(shown, width)})"


def pretty(value: Any, indent: int = 0) -> Iterator[str]:
    """A readable value as lines, as JSON would be; each line of text that has several is marked."""
    room = " " * indent
    if isinstance(value, dict) and value:
        for key, part in value.items():
            yield from _under(f"{room}{printable(key)}:", part, indent)
    elif isinstance(value, list) and value:
        for part in value:
            yield from _under(f"{room}-", part, indent)
    elif isinstance(value, str) and "\n" in value:
        yield from (f"{room}| {printable(line)}" for line in value.splitlines())
    else:
        yield room + (printable(value) if isinstance(value, str) else short(value, None))


def _under(head: str, part: Any, indent: int) -> Iterator[str]:
    if (isinstance(part, (dict, list)) and part) or (isinstance(part, str) and "\n" in part):
        yield head
        yield from pretty(part, indent + 2)
    else:
        yield f"{head} {next(pretty(part))}"


def _pieces(value: Any, limit: int | None) -> Iterator[str]:
    """The text of a value, complete only up to ``limit`` characters."""
    if isinstance(value, Term):
        yield printable(value)
    elif isinstance(value, str):
        yield _quoted(value if limit is None else value[: limit + 1])
    elif isinstance(value, list):
        yield "["
        for i, part in enumerate(value):
            yield ", " if i else ""
            yield from _pieces(part, limit)
        yield "]"
    elif isinstance(value, dict):
        yield "{"
        for i, (key, part) in enumerate(value.items()):
            yield ", " if i else ""
            yield from _pieces(key, limit)
            yield ": "
            yield from _pieces(part, limit)
        yield "}"
    else:
        yield json.dumps(value)


def _quoted(text: str) -> str:
    """The text that JSON would have, with letters of all languages unescaped."""
    return printable(json.dumps(text, ensure_ascii=False))
