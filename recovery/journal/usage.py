"""Counts what calls of models use: tokens and money. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recovery.text import count

TOKENS_MAX = 1 << 53  # the largest exact float; a larger number is no count of tokens

# Where replies have it, under several names whose values are added up. Anthropic counts cached
# input separately, OpenAI within the input.
_PLACES = ("usage", "usage_metadata")
_NO_REPLIES = (str, bytes, int, float, list, tuple)
_NAMES = (
    (("prompt_tokens",), ("completion_tokens",)),
    (
        ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"),
        ("output_tokens",),
    ),
)


@dataclass(frozen=True, slots=True)
class Usage:
    """What one call of a model used, or a run so far.

    ``input_tokens``, ``output_tokens``, and ``tokens``, their sum; ``cost`` in the currency that
    the tools count in. For a run also ``steps`` begun, ``calls`` made and ``seconds`` for which a
    process had the run. Each attempt is a call; a call that was served from the log is none.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    steps: int = 0
    calls: int = 0
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens

    def __str__(self) -> str:
        parts = [count(self.steps, "step"), count(self.calls, "attempt")]
        if self.tokens:
            parts.append(f"{self.tokens:,} tokens")
        if self.cost:
            parts.append(f"cost {self.cost:,.4f}")
        return ", ".join([*parts, f"{self.seconds:,.1f} s"])


def recorded_usage(usage: Usage) -> list[Any]:
    """The usage of one call, as it is recorded; ValueError when it makes no sense."""
    tokens = usage.input_tokens, usage.output_tokens
    if not all(_is_count(count) for count in tokens) or not _is_cost(usage.cost):
        raise ValueError(f"tokens are 0 or more, and cost is a number of 0 or more: {usage!r}")
    return [*tokens, float(usage.cost)]


def usage_from(recorded: Any) -> Usage | None:
    """The recorded usage of one call; None when there is none."""
    match recorded:
        case [given, made, cost] if _is_count(given) and _is_count(made) and _is_cost(cost):
            return Usage(given, made, cost)
    return None


def recognised(value: Any) -> Usage | None:
    """The usage in a model's reply; None when it is no such reply.

    Knows the shapes of OpenAI, Anthropic and compatible services: ``usage`` with ``prompt_tokens``
    or ``input_tokens``, in dicts or in objects of any class; ``cost`` if it is there too.
    """
    if value is None or isinstance(value, _NO_REPLIES):
        return None
    for place in _PLACES:
        usage = _part(value, place)
        if usage is None:
            continue
        for given, made in _NAMES:
            counts = _sum(usage, given), _sum(usage, made)
            if counts != (None, None):
                cost = _part(usage, "cost")
                return Usage(counts[0] or 0, counts[1] or 0, cost if _is_cost(cost) else 0.0)
    return None


def _sum(usage: Any, names: tuple[str, ...]) -> int | None:
    found = [count for name in names if _is_count(count := _part(usage, name))]
    return sum(found) if found else None


def _part(value: Any, name: str) -> Any:
    if type(value) is dict or isinstance(value, Mapping):
        return value.get(name)
    try:
        return getattr(value, name, None)
    except Exception:  # a property of a foreign class
        return None


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < TOKENS_MAX


def _is_cost(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf
