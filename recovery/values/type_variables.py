"""Defines the type variables of public classes, with Any as default."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Result = TypeVar("Result", default=Any)
    Chunk = TypeVar("Chunk", default=Any)
    # The type of the chunks of a streaming function.
    Chunks = (
        AsyncIterable[Chunk] | Iterable[Chunk] | Awaitable[AsyncIterable[Chunk] | Iterable[Chunk]]
    )
else:
    from typing import TypeVar

    Result, Chunk, Chunks = TypeVar("Result"), TypeVar("Chunk"), Any
