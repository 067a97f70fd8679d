"""Hive's objects as values that can be recorded, and back, without importing anything of Hive."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import SimpleNamespace
from typing import Any

from eventlog import RefusedValueError
from recovery.values.pack import pack


def fields_of(found: Any) -> dict[str, Any]:
    """The fields of an object: of a dataclass those that it declares."""
    if is_dataclass(found):
        return {one.name: getattr(found, one.name) for one in fields(found)}
    return dict(vars(found))


def packable(value: Any) -> bool:
    """Whether a value can be recorded."""
    try:
        pack(value, "value")
    except RefusedValueError:
        return False
    return True


def recordable(found: Any) -> dict[str, Any]:
    """The fields of an object that can be recorded; what else it has is not."""
    return {name: value for name, value in fields_of(found).items() if packable(value)}


def plain(value: Any) -> Any:
    """A value that can be recorded, and is the same in each process for what is the same to Hive.

    An object is its fields, and one without any its type: never its address.
    """
    match value:
        case None | bool() | int() | float() | str() | bytes():
            return value
        case Mapping():
            return {str(key): plain(one) for key, one in value.items()}
        case list() | tuple():
            return [plain(one) for one in value]
        case type():
            return f"{value.__module__}.{value.__qualname__}"
    held = fields_of(value) if hasattr(value, "__dict__") or is_dataclass(value) else {}
    return {"type": type(value).__qualname__, **{key: plain(held[key]) for key in sorted(held)}}


def type_beside(neighbour: type, name: str) -> Any:
    """The type of this name in the module of another one, or of one of its bases; where there is
    none, what makes objects with any attributes."""
    for kind in neighbour.__mro__:
        found = getattr(sys.modules.get(kind.__module__), name, None)
        if isinstance(found, type):
            return found
    return SimpleNamespace


def made(kind: Any, held: Mapping[str, Any]) -> Any:
    """An object of this type with these fields; a field that the type does not have (any more) is
    left out."""
    if is_dataclass(kind):
        known = {one.name for one in fields(kind)}
        held = {name: value for name, value in held.items() if name in known}
    return kind(**held)


class Standin:
    """In the place of an object of Hive's: all that it does not do itself, that one does."""

    def __init__(self, real: Any) -> None:
        self._real = real

    @property  # for executors ask with isinstance whether a node is an AgentLoop
    def __class__(self) -> Any:
        return self._real.__class__

    @__class__.setter
    def __class__(self, kind: Any) -> None:
        raise TypeError("a recorded object keeps its type")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)
