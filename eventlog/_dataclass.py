"""Dataclasses whose methods are made when they are first called. Pure.

``dataclasses.dataclass`` compiles up to six functions a class, which takes 0.3 to 0.6 ms. There are
about a hundred of them here, and most processes use a few: the others would be half of what
importing this library costs.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(*, frozen=False, eq=True, slots=False, kw_only=False):
        """As ``dataclasses.dataclass``, for classes that make none of its methods themselves but
        ``__repr__`` and ``__hash__``."""

        def made(cls):
            own = vars(cls)
            wanted = {"__init__": {"init": True}}
            if "__repr__" not in own:
                wanted["__repr__"] = {"repr": True}
            if eq:
                wanted["__eq__"] = {"eq": True}
            if eq and frozen and own.get("__hash__") is None:
                wanted["__hash__"] = {"eq": True}
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
                setattr(cls, name, _later(cls, name, {"frozen": frozen} | options))
            return cls

        return made


_NONE_OF_THEM: dict[str, Any] = {"init": False, "repr": False, "eq": False}


def _later(cls: Any, name: str, options: dict[str, Any]) -> Any:
    """A method that makes way for the true one when it is first called."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        # As those of a class with the same fields. Two threads make the same.
        fields = [
            (one.name, one.type, dataclasses.field(
                default=one.default, default_factory=one.default_factory, init=one.init,
                repr=one.repr, hash=one.hash, compare=one.compare, kw_only=one.kw_only,
            ))
            for one in dataclasses.fields(cls)
        ]  # fmt: skip
        namespace = {key: getattr(cls, key) for key in ("__post_init__",) if hasattr(cls, key)}
        like = dataclasses.make_dataclass(
            cls.__name__, fields, namespace=namespace, **{**_NONE_OF_THEM, **options}
        )
        true = vars(like)[name]
        true.__qualname__, true.__module__ = f"{cls.__qualname__}.{name}", cls.__module__
        setattr(cls, name, true)
        return true(self, *args, **kwargs)

    return method


def _refuse_to_set(self: Any, name: str, value: Any) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _set_state(self: Any, state: tuple[None, dict[str, Any]]) -> None:
    # What copying does instead of setting attributes.
    for name, value in state[1].items():
        object.__setattr__(self, name, value)
