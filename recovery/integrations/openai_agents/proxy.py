"""Stands in for an object of the SDK: does some of its methods in another way, and is like it."""

from __future__ import annotations

from typing import Any


class Proxy:
    """What a subclass does not do itself, the object behind it does.

    It passes for an instance of that object's class (``isinstance``), as the SDK's checks need.
    """

    def __init__(self, inner: Any) -> None:
        object.__setattr__(self, "inner", inner)

    @property  # type: ignore[misc]  # as unittest.mock does
    def __class__(self) -> Any:
        return type(self.inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "inner"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.inner, name, value)
