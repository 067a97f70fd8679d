"""Begins objects again in a forked child.

It has none of its parent's threads, and these may have held locks.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")
_begin: WeakKeyDictionary[Any, Callable[[Any], None]] = WeakKeyDictionary()


def in_forked_child(one: T, begin: Callable[[T], None]) -> None:
    """Call ``begin(one)`` in each forked child, as long as the object is used."""
    _begin[one] = begin


def not_in_child(one: object) -> None:
    """Do nothing with this object in a forked child any more."""
    _begin.pop(one, None)


def _begin_all() -> None:
    for one, begin in list(_begin.items()):
        begin(one)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_all)
