"""Names types in records: module and qualified name."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

OWN = ("recovery", "eventlog")


def type_name(kind: type) -> str:
    """The name of a type, the same in each process that runs the same program.

    A type of the main script is named by the script's module instead of ``__main__``, so that it is
    the same type where that module is imported. A type of this library has its public name:
    ``recovery.PermanentError``, whichever module defines it.
    """
    module = kind.__module__
    if module in ("__main__", "__mp_main__"):
        module = _main_name()
    return public_name(f"{module}.{kind.__qualname__}")


def public_name(recorded: str) -> str:
    """The name of a type; for a type of this library, its public name.

    Older logs contain names such as ``recovery.errors.PermanentError``.
    """
    package, _, rest = recorded.partition(".")
    return f"{package}.{rest.rpartition('.')[2]}" if package in OWN else recorded


def is_named(recorded: str, kind: type) -> bool:
    """Whether a type is recorded under this name, by this version or an earlier one."""
    by_first_release = f"{kind.__module__}.{kind.__qualname__}"
    return recorded == by_first_release or public_name(recorded) == type_name(kind)


def subclasses(kinds: Iterable[type[T]]) -> Iterator[type[T]]:
    """The subclasses of these types, and their subclasses, each once."""
    todo, seen = list(kinds), set[type[T]]()
    while todo:
        for one in type.__subclasses__(todo.pop()):
            if one not in seen:
                seen.add(one)
                todo.append(one)
                yield one


def _main_name() -> str:
    main = sys.modules.get("__main__")
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return str(spec.name)
    return (inspect.getmodulename(file) if file else None) or "__main__"
