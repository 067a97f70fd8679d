"""The search through what a program leaves open: which answers were given, which were tried.

The interpreter runs again and again from the beginning, each time with other answers. Where it
stands as it stood before with other answers, it need not go on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tests.model import values as v

T = TypeVar("T")
FEW = 20  # endings that are tried before it pays to know where the interpreter stands
PLAIN = (str, int, float, bool, type(None), bytes)


class Known(BaseException):
    """All that may come from here was tried."""


class Impossible(BaseException):
    """These answers do not lead to what has happened: rule and text."""

    def __init__(self, rule: str, what: str) -> None:
        super().__init__(rule, what)
        self.rule, self.what = rule, what


class Search:
    """The answers of one run of the interpreter, and of those before it. ``cut``: whether there
    were too many."""

    def __init__(self, most: int) -> None:
        self.most, self.tried, self.asked, self.cut = most, 0, 0, False
        self._answers: list[list[int]] = []
        self._changed = -1  # the answer in which this run first differs from the last one
        self._stood = 0  # how many answers there were when it was last asked where it stands
        self._seen: dict[Any, list[Counter[str]]] = {}

    def pick(self, options: Sequence[T]) -> T:
        """One of them, the likeliest first."""
        if len(options) == 1:
            return options[0]
        if self.asked == len(self._answers):
            self._answers.append([0, len(options)])
        number = self._answers[self.asked][0]
        self.asked += 1
        return options[number]

    def next(self) -> bool:
        """Begin again with other answers; whether there are any."""
        del self._answers[self.asked :]
        while self._answers and self._answers[-1][0] + 1 >= self._answers[-1][1]:
            self._answers.pop()
        if not self._answers:
            return False
        self._answers[-1][0] += 1
        self._changed, self.asked, self._stood = len(self._answers) - 1, 0, 0
        self.tried += 1
        self.cut = self.tried >= self.most
        return not self.cut

    def stands(self, place: Callable[[], Any], may: Counter[str]) -> None:
        """Known is raised where the interpreter stood here before, with all of this allowed."""
        if self.asked in (0, self._stood):
            return  # no answer since it was asked last
        self._stood = self.asked
        if self.tried < FEW or self.asked <= self._changed:
            return
        known = self._seen.setdefault(place(), [])
        if any(may <= other for other in known):
            raise Known
        known.append(Counter(may))


def frozen(value: Any) -> Any:
    """The value as a key."""
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, list | tuple):
        return (type(value).__name__, *map(frozen, value))
    if isinstance(value, dict):
        return ("dict", *((key, frozen(value[key])) for key in sorted(value)))
    if isinstance(value, set):
        return ("set", *sorted(value))
    if hasattr(value, "parts"):
        return frozen(value.parts())
    return v.full(value)
