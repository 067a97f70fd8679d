"""Makes dataclasses that cost little to define.

``dataclass(frozen=True, slots=True)`` compiles six methods for each class, and that takes half a
millisecond. The runtime has a hundred such classes, and an import defines them all.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from reprlib import recursive_repr
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def light_dataclass(cls: type[T]) -> type[T]:
    """A dataclass with slots, for which ``__init__`` alone is compiled.

    Equality, hash and representation are shared functions, with the results of dataclasses. Type
    checkers refuse an assignment to a field, but nothing does so at run time. Therefore classes of
    the public interface are frozen dataclasses instead.
    """
    made = dataclass(slots=True, eq=False, repr=False)(cls)
    for name, method in (("__eq__", _equal), ("__hash__", _hash), ("__repr__", _repr)):
        if name not in vars(cls):
            setattr(made, name, method)
    return made


def _values(one: Any) -> tuple[Any, ...]:
    return tuple(getattr(one, each.name) for each in fields(one))


def _equal(one: Any, other: object) -> bool:
    return _values(one) == _values(other) if type(other) is type(one) else NotImplemented


def _hash(one: Any) -> int:
    return hash(_values(one))


@recursive_repr()
def _repr(one: Any) -> str:
    inner = ", ".join(f"{each.name}={getattr(one, each.name)!r}" for each in fields(one))
    return f"{type(one).__qualname__}({inner})"
