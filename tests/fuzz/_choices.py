"""Decisions drawn from a fuzzer's bytes: the same bytes, the same decisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgpack

T = TypeVar("T")

DEPTH_MAX = 5


class Choices:
    """Takes decisions from the front of ``data``; when it is used up, each is the first one."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, size: int) -> bytes:
        """The next bytes; fewer at the end."""
        taken = self._data[self._at : self._at + size]
        self._at += len(taken)
        return taken

    def rest(self) -> bytes:
        """All that is left."""
        return self.take(len(self._data))

    def __bool__(self) -> bool:
        """Whether anything is left."""
        return self._at < len(self._data)

    def number(self, least: int, most: int) -> int:
        """From ``least`` to ``most``, both included."""
        span = most - least + 1
        size = max(1, ((span - 1).bit_length() + 7) // 8)
        return least + int.from_bytes(self.take(size), "little") % span

    def flag(self) -> bool:
        return self.number(0, 255) % 2 == 1

    def pick(self, options: Sequence[T]) -> T:
        return options[self.number(0, min(255, len(options) - 1))]

    def blob(self, most: int) -> bytes:
        return self.take(self.number(0, most))

    def value(self, depth: int = 0) -> Any:
        """Any value that msgpack knows, extensions and odd keys among them."""
        which = self.number(0, 13 if depth < DEPTH_MAX else 10)
        if which <= 10:
            return _SCALARS[which](self)
        count = self.number(0, 4)
        if which <= 12:
            return [self.value(depth + 1) for _ in range(count)]
        return {self._key(): self.value(depth + 1) for _ in range(count)}

    def _key(self) -> Any:
        return self.pick((self.pick(_WORDS), self.number(0, 9), self.blob(4), None))


_EDGES = (
    -1,
    1 << 31,
    1 << 32,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
    -(1 << 63),
    0.0,
    -0.0,
    1.5,
    float("inf"),
    float("nan"),
)
_WORDS = (
    "",
    "$bytes",
    "$map",
    "value",
    "new",
    "call",
    "kind",
    "messages",
    "state",
    "keep",
    "bases",
    "index",
    "step",
    "version",
    "\x00\x1b[2J\u202e",
)

_SCALARS: tuple[Callable[[Choices], Any], ...] = (
    lambda choices: choices.number(0, 127),
    lambda choices: choices.pick(_EDGES),
    lambda choices: None,
    Choices.flag,
    lambda choices: choices.blob(40),
    lambda choices: choices.blob(20).decode("utf-8", "replace"),
    lambda choices: choices.blob(20).decode("latin-1"),
    lambda choices: choices.pick(_WORDS),
    lambda choices: msgpack.ExtType(choices.number(0, 127), choices.blob(20)),
    lambda choices: msgpack.ExtType(
        choices.number(1, 3), msgpack.packb([choices.number(0, 9), choices.number(0, 3)])
    ),
    lambda choices: msgpack.Timestamp(choices.number(0, 1 << 32), 0),
)
