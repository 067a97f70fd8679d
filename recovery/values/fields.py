"""Checks that a field of a record holds a value of its declared type. Pure.

Another version, or an attacker, may have written a log. A value that is not of its field's type is
found when the record is decoded, so later code need not check it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from eventlog.format.record import Packed

_TYPES: dict[str, type] = {
    "int": int,
    "float": float,
    "bool": bool,
    "str": str,
    "bytes": bytes,
    "list": list,
    "dict": dict,
    "None": type(None),
    "Packed": Packed,
}
_INT_BITS = 64  # what msgpack has for an int: LSNs, counts and times fit


class Declared(NamedTuple):
    """The types of a field's value, and of the items of a list ("Any": of any type; "list[int]":
    pairs)."""

    name: str
    types: frozenset[type]
    items: str

    @property
    def plain(self) -> frozenset[type]:
        """Types whose values are all acceptable."""
        return self.types - {int, Packed} - ({list} if self.items != "Any" else set())

    def refuses(self, value: Any) -> bool:
        """Whether the field cannot hold this value."""
        kind = type(value)
        if kind is int:
            return int not in self.types or value.bit_length() > _INT_BITS
        if kind is Packed:  # not decoded, because it may be large
            return self.types == {list, Packed} and not _is_array(value)
        if kind not in self.types:
            return True
        return kind is list and not _holds(value, self.items)


def declared(annotations: Iterable[tuple[str, str]]) -> tuple[Declared, ...]:
    """Of (name, annotation) those whose annotation restricts the field."""
    found = []
    for name, annotation in annotations:
        types, items = set(), "Any"
        for part in annotation.split(" | "):
            outer, _, inner = part.removesuffix("]").partition("[")
            items = inner if outer == "list" else items
            types.add(outer)
        if "Any" not in types:
            found.append(Declared(name, frozenset(_TYPES[one] for one in types), items))
    return tuple(found)


def _holds(found: list[Any], items: str) -> bool:
    """Whether these are items of that type."""
    if items == "Any":
        return True
    if items == "list[int]":
        return all(type(one) is list and len(one) == 2 and _holds(one, "int") for one in found)
    if items == "int":
        return all(type(one) is int and one.bit_length() <= _INT_BITS for one in found)
    return all(type(one) is _TYPES[items] for one in found)


def _is_array(packed: Packed) -> bool:
    """Whether a msgpack document is an array, by its first byte."""
    first = packed[0] if packed else 0
    return 0x90 <= first <= 0x9F or first in (0xDC, 0xDD)
