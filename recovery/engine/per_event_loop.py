"""Keeps what belongs to an event loop, for as long as the loop lives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

_kept: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Any, Any]] = WeakKeyDictionary()


def of_loop(kind: Callable[[], T]) -> T:
    """The one object of this kind that the running event loop has; it must not keep the loop."""
    loop = asyncio.get_running_loop()
    kept = _kept.get(loop)
    if kept is None:
        kept = _kept[loop] = {}
    found: T | None = kept.get(kind)
    if found is None:
        found = kept[kind] = kind()
    return found
