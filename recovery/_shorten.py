"""Values for people to read. Pure."""

from __future__ import annotations

from typing import Any


def shorten(value: Any, size: int = 400) -> str:
    """``repr(value)``, its middle left out when it is long."""
    text = repr(value)
    return text if len(text) <= size else f"{text[: size // 2]} ... {text[-size // 2 :]}"
