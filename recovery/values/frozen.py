"""Defines dicts, lists and sets that refuse to be changed in place, for messages.

A message in ``run.messages`` is recorded. A change of the dict in place would not be recorded, and
would be lost by a crash. So it raises, and says how to change a message.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, NoReturn, TypeVar

K = TypeVar("K")
V = TypeVar("V")


def _refuse(self: object, *args: object, **kwargs: object) -> NoReturn:
    raise TypeError(
        "messages are recorded values and cannot be changed in place: assign a new one, as in "
        "run.messages[i] = {**run.messages[i], 'content': ...}"
    )


class RecordedDict(dict[K, V]):
    """A dict of a run: in a record it is a plain one."""

    __slots__ = ()


class FrozenDict(RecordedDict[Any, Any]):
    """A dict that cannot be changed; copies of it are plain dicts."""

    __slots__ = ()
    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = _refuse
    __ior__ = _refuse

    def __copy__(self) -> dict[Any, Any]:
        return dict(self)

    def __deepcopy__(self, memo: object) -> Any:
        return thaw(self)

    def __reduce__(self) -> tuple[type[dict[Any, Any]], tuple[dict[Any, Any]]]:
        return dict, (thaw(self),)


class FrozenList(list[Any]):
    """A list that cannot be changed; copies of it are plain lists."""

    __slots__ = ()
    __setitem__ = __delitem__ = append = extend = insert = pop = remove = clear = _refuse
    __iadd__ = __imul__ = sort = reverse = _refuse

    def __copy__(self) -> list[Any]:
        return list(self)

    def __deepcopy__(self, memo: object) -> Any:
        return thaw(self)

    def __reduce__(self) -> tuple[type[list[Any]], tuple[list[Any]]]:
        return list, (thaw(self),)


class FrozenSet(set[Any]):
    """A set that cannot be changed; copies of it are plain sets. (A frozenset is another type.)"""

    __slots__ = ()
    add = discard = remove = pop = clear = update = _refuse
    difference_update = intersection_update = symmetric_difference_update = _refuse
    __ior__ = __iand__ = __isub__ = __ixor__ = _refuse

    def copy(self) -> set[Any]:
        return set(self)

    def __copy__(self) -> set[Any]:
        return set(self)

    def __deepcopy__(self, memo: object) -> Any:
        return thaw(self)

    def __reduce__(self) -> tuple[type[set[Any]], tuple[list[Any]]]:
        return set, (list(thaw(self)),)


def thaw(value: Any) -> Any:
    """A deep, plain copy."""
    if isinstance(value, FrozenDict):
        return {key: thaw(part) for key, part in value.items()}
    if isinstance(value, FrozenList):
        return [thaw(part) for part in value]
    if isinstance(value, FrozenSet):
        return {thaw(part) for part in value}
    return deepcopy(value)
