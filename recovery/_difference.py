"""What is different between what is recorded and what the code does now. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from eventlog._dataclass import dataclass

SHOWN_MAX = 8  # differences
SIZE_MAX = 80  # of a value as it is shown
DEPTH_MAX = 20  # below it, values are compared as a whole


class _Absent:
    def __repr__(self) -> str:
        return "(absent)"


_ABSENT = _Absent()


@dataclass(frozen=True, slots=True)
class Sides:
    """Both sides of a divergence: the record ``lsn`` (0: none), and what the code does.

    ``differences`` has a line for each difference: its path, the recorded value, the one of now.
    """

    lsn: int
    recorded: str
    found: str
    differences: tuple[str, ...] = ()


def differences(recorded: Any, found: Any) -> tuple[str, ...]:
    """Where two values differ, a line each: ``args[0].amount: 10 -> 9999``."""
    some = islice(_differences(recorded, found, "", 0), SHOWN_MAX + 1)
    lines = [f"{path or 'value'}: {_pair(a, b)}" for path, a, b in some]
    return (*lines[:SHOWN_MAX], "and more") if len(lines) > SHOWN_MAX else tuple(lines)


def _differences(a: Any, b: Any, path: str, depth: int) -> Iterator[tuple[str, Any, Any]]:
    if type(a) is dict and type(b) is dict and depth < DEPTH_MAX:
        for key in dict.fromkeys([*a, *b]):
            dot = "." if path else ""
            name = f"{dot}{key}" if type(key) is str else f"[{key!r}]"
            yield from _differences(
                a.get(key, _ABSENT), b.get(key, _ABSENT), path + name, depth + 1
            )
    elif type(a) is type(b) and type(a) in (list, tuple) and depth < DEPTH_MAX:
        for i in range(max(len(a), len(b))):
            one, other = (side[i] if i < len(side) else _ABSENT for side in (a, b))
            yield from _differences(one, other, f"{path}[{i}]", depth + 1)
    elif type(a) is not type(b) or (a != b and not (a != a and b != b)):  # NaN is NaN here
        yield path, a, b


def _pair(a: Any, b: Any) -> str:
    """Both values, cut down to where they differ."""
    one, other = repr(a), repr(b)
    if max(len(one), len(other)) > SIZE_MAX:
        same = next((i for i, (x, y) in enumerate(zip(one, other, strict=False)) if x != y),
                    min(len(one), len(other)))  # fmt: skip
        one, other = _around(one, same), _around(other, same)
    return f"{one} -> {other}"


def _around(text: str, at: int) -> str:
    start = max(0, at - SIZE_MAX // 4)
    end = start + SIZE_MAX
    return ("..." if start else "") + text[start:end] + ("..." if end < len(text) else "")
