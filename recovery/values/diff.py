"""Finds what differs between recorded values and those of the present code. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice, zip_longest
from typing import Any

from eventlog.errors import RefusedValueError
from recovery.text import shorten
from recovery.values.pack import pack

SHOWN_MAX = 8  # differences
SIZE_MAX = 80  # of a value as it is shown
REPR_MAX = 1 << 20  # of a value in which the place to show is looked for
DEPTH_MAX = 20  # below it, values are compared as a whole


class _Absent:
    def __repr__(self) -> str:
        return "(absent)"


ABSENT = _Absent()
Alike = Callable[[Any, Any], bool]


def differences(recorded: Any, found: Any) -> tuple[str, ...]:
    """Where two values differ, a line each: ``args[0].amount: 10 -> 9999``."""
    some = islice(differing(recorded, found), SHOWN_MAX + 1)
    lines = [f"{path or 'value'}: {_pair(a, b)}" for path, a, b in some]
    return (*lines[:SHOWN_MAX], "and more") if len(lines) > SHOWN_MAX else tuple(lines)


def same(a: Any, b: Any) -> bool:
    """Whether two values that can be recorded are equal, in type too.

    Compares their bytes: NaN equals NaN, and no ``__eq__`` is called.
    """
    try:
        return pack(a, "") == pack(b, "")
    except RefusedValueError:
        return a is b


def differing(
    a: Any, b: Any, path: str = "", alike: Alike = same, depth: int = 0
) -> Iterator[tuple[str, Any, Any]]:
    """The differences of two values: the path, and both values there."""
    if alike(a, b):
        return
    deep = depth < DEPTH_MAX
    if deep and type(a) is type(b) is dict and not _in_another_order(a, b, alike):
        for key in dict.fromkeys([*a, *b]):
            dot = "." if path else ""
            name = f"{dot}{key}" if isinstance(key, str) else f"[{key!r}]"
            one, other = a.get(key, ABSENT), b.get(key, ABSENT)
            yield from differing(one, other, path + name, alike, depth + 1)
    elif deep and type(a) is type(b) and type(a) in (list, tuple):
        for i, (one, other) in enumerate(zip_longest(a, b, fillvalue=ABSENT)):
            yield from differing(one, other, f"{path}[{i}]", alike, depth + 1)
    else:
        yield path, a, b


def _in_another_order(a: dict[Any, Any], b: dict[Any, Any], alike: Alike) -> bool:
    return a.keys() == b.keys() and not alike([*a], [*b])


def _pair(a: Any, b: Any) -> str:
    """Both values, cut to where they differ."""
    one, other = (shorten(value, REPR_MAX) for value in (a, b))
    if max(len(one), len(other)) > SIZE_MAX:
        at = next(
            (i for i, (x, y) in enumerate(zip(one, other, strict=False)) if x != y),
            min(len(one), len(other)),
        )
        one, other = _around(one, at), _around(other, at)
    return f"{one} -> {other}"


def _around(text: str, at: int) -> str:
    start = max(0, at - SIZE_MAX // 4)
    end = start + SIZE_MAX
    return ("..." if start else "") + text[start:end] + ("..." if end < len(text) else "")
