"""Type variables of public classes: without a type behind its name a class is one of Any."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    Result = TypeVar("Result", default=Any)
    Chunk = TypeVar("Chunk", default=Any)
    # What a function gives whose chunks are streamed.
    Chunks = (
        AsyncIterable[Chunk] | Iterable[Chunk] | Awaitable[AsyncIterable[Chunk] | Iterable[Chunk]]
    )
else:
    from typing import TypeVar

    Result, Chunk, Chunks = TypeVar("Result"), TypeVar("Chunk"), Any
