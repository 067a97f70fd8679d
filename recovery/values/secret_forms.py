"""Lists the forms in which a secret value may be quoted in a text."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from recovery.text import written
from recovery.values.codec import codec_of

# Keys that look like this are no secrets: texts without them would be unreadable.
_NAME = re.compile(r"[A-Za-z_.-]+")
_PARTS_MAX = 100_000


def parts(value: Any) -> Iterator[Any]:
    """The scalars inside a value, and keys that are more than names."""
    todo, seen = [value], 0
    while todo and seen < _PARTS_MAX:
        part, seen = todo.pop(), seen + 1
        if isinstance(part, dict):
            todo += part.values()
            todo += (key for key in part if not (type(key) is str and _NAME.fullmatch(key)))
        elif isinstance(part, list | tuple | set | frozenset):
            todo += part
        elif (codec := codec_of(type(part))) is not None and not codec.atom:
            todo.append(codec.encode(part))
        elif part is not None and not isinstance(part, bool):
            yield part


def forms(part: Any) -> Iterator[str]:
    """The forms in which such a value is quoted: plain, with quotes, escaped, line by line."""
    if isinstance(part, str):
        yield from _quoted(part)
        for line in part.splitlines() if "\n" in part else ():
            yield line.strip()
    elif isinstance(part, bytes | bytearray):
        data = bytes(part)
        yield from _quoted(data.decode("utf-8", "ignore"))
        yield from (repr(data)[2:-1], data.hex(), base64.b64encode(data).decode())
        yield base64.urlsafe_b64encode(data).decode()
    else:
        text = written(part)
        yield text
        with suppress(Exception):  # of the value's own methods
            yield from _quoted(str(part))
            yield f"{part:,}"
        for name in ("isoformat", "hex"):  # of dates and times; of a UUID
            form = getattr(part, name, None)
            with suppress(Exception):
                yield str(form() if callable(form) else form or "")


def _quoted(text: str) -> Iterator[str]:
    from urllib.parse import quote, quote_plus  # noqa: PLC0415 - only where something is redacted

    yield text
    yield (once := repr(text)[1:-1])
    yield repr(once)[1:-1]  # in a text that is one of several arguments of an exception
    yield json.dumps(text)[1:-1]
    yield json.dumps(text, ensure_ascii=False)[1:-1]
    with suppress(UnicodeEncodeError):  # a lone surrogate
        yield from (quote(text), quote(text, safe=""), quote_plus(text))
        yield base64.b64encode(text.encode()).decode()
