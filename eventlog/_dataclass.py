"""Dataclasses whose methods are made when they are first called. Pure.

``dataclasses.dataclass`` compiles up to six functions a class, which takes 0.3 to 0.6 ms. There are
about a hundred of them here, and most processes use a few: the others would be half of what
importing this library costs.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

PLAIN_MAX = 10  # objects of a class before its __init__ is worth 0.3 ms

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(*, frozen=False, eq=True, slots=False, kw_only=False):
        """As ``dataclasses.dataclass``, for classes that make none of its methods themselves but
        ``__repr__`` and ``__hash__``."""

        def made(cls):
            own = vars(cls)
            wanted = {}
            if "__repr__" not in own:
                wanted["__repr__"] = {"repr": True}
            if eq:
                wanted["__eq__"] = {"eq": True}
            if eq and frozen and own.get("__hash__") is None:
                wanted["__hash__"] = {"unsafe_hash": True}
            elif eq and not frozen:
                cls.__hash__ = None
            if frozen:
                cls.__setattr__, cls.__delattr__ = _refuse_to_set, _refuse_to_delete
                if slots:
                    cls.__setstate__ = _set_state
            cls = dataclasses.dataclass(
                init=False, repr=False, eq=False, slots=slots, kw_only=kw_only
            )(cls)
            for name, options in wanted.items():
                setattr(cls, name, _later(cls, name, options))
            cls.__init__ = _plain(cls, _later(cls, "__init__", {"init": True, "frozen": frozen}))
            return cls

        return made


_NONE_OF_THEM: dict[str, Any] = {
    "init": False, "repr": False, "eq": False, "match_args": False,
}  # fmt: skip


def _later(cls: Any, name: str, options: dict[str, Any]) -> Any:
    """A method that makes way for the true one when it is first called."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        # That of a class with the same fields. Two threads make the same. (One without a docstring
        # would be given one, with its signature, which takes as long as the method.)
        namespace: dict[str, Any] = {"__annotations__": {}, "__doc__": cls.__doc__}
        if hasattr(cls, "__post_init__"):
            namespace["__post_init__"] = cls.__post_init__
        for one in dataclasses.fields(cls):
            namespace["__annotations__"][one.name] = one.type
            namespace[one.name] = dataclasses.field(
                default=one.default, default_factory=one.default_factory, init=one.init,
                repr=one.repr, hash=one.hash, compare=one.compare, kw_only=one.kw_only,
            )  # fmt: skip
        like: Any = dataclasses.dataclass(**_NONE_OF_THEM | options)(
            type(cls.__name__, (), namespace)
        )
        true = vars(like)[name]
        true.__qualname__, true.__module__ = f"{cls.__qualname__}.{name}", cls.__module__
        setattr(cls, name, true)
        return true(self, *args, **kwargs)

    return method


def _plain(cls: Any, true: Any) -> Any:
    """An ``__init__`` that is slow and needs no making, for the first few calls: most classes are
    used a few times in a process. Wrong arguments are for the true one to name."""
    fields, missing = dataclasses.fields(cls), dataclasses.MISSING
    places = [one.name for one in fields if one.init and not one.kw_only]
    known = {one.name for one in fields if one.init}
    needed = known - {
        one.name for one in fields if (one.default, one.default_factory) != (missing, missing)
    }
    calls = 0

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        given = dict(zip(places, args, strict=False)) | kwargs
        whole = len(given) == len(args) + len(kwargs) and needed <= given.keys() <= known
        if calls > PLAIN_MAX or not whole:
            return true(self, *args, **kwargs)
        for one in fields:
            if one.name not in given:
                made = one.default_factory
                given[one.name] = one.default if made is missing else made()
            if given[one.name] is not missing:  # else it is for __post_init__ to set
                object.__setattr__(self, one.name, given[one.name])
        if hasattr(cls, "__post_init__"):
            self.__post_init__()

    return method


def _refuse_to_set(self: Any, name: str, value: Any) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _set_state(self: Any, state: tuple[None, dict[str, Any]]) -> None:
    # What copying does instead of setting attributes.
    for name, value in state[1].items():
        object.__setattr__(self, name, value)
