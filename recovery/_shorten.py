"""Values for people to read. Pure."""

from __future__ import annotations

from typing import Any

from eventlog._record import kind_name


def shorten(value: Any, size: int = 400) -> str:
    """``repr(value)``, its middle left out when it is long; whatever a user's __repr__ does."""
    try:
        text = repr(value)
    except Exception as exc:
        text = f"<{kind_name(value)}, whose repr raised {type(exc).__name__}>"
    return text if len(text) <= size else f"{text[: size // 2]} ... {text[-size // 2 :]}"


def written(value: Any) -> str:
    """``repr(value)``; of integers with more digits than Python writes, in hex."""
    try:
        return repr(value)
    except ValueError:
        if type(value) is int:
            return hex(value)
        if not isinstance(value, tuple | frozenset):
            raise
        return f"{kind_name(value)}({', '.join(map(written, value))})"
