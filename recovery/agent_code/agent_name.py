"""Names an agent's function, as ``recovery resume --agent`` takes it where it can be imported."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from types import MethodType
from typing import Any

NAME_MAX = 200  # characters; a longer one is not kept


def agent_name(agent_fn: Callable[..., Any]) -> str | None:
    """``module:qualname`` where that names the function, else its qualified name; None for this
    library's own functions, and where it has no name.

    A function of the main program is named by the program's file, from whose directory it can be
    imported.
    """
    while isinstance(agent_fn, functools.partial):
        agent_fn = agent_fn.func
    name, module = getattr(agent_fn, "__qualname__", ""), getattr(agent_fn, "__module__", "")
    if type(name) is not str or type(module) is not str or not name:
        return None
    if module.partition(".")[0] == "recovery":
        return None
    if not isinstance(agent_fn, MethodType) and _named(module, name) is agent_fn:
        where = _importable(module)
        name = f"{where}:{name}" if where else name
    return name if len(name) <= NAME_MAX else None


def _named(module: str, name: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return getattr(found, "agent_fn", found)  # a RecoverableAgent may have replaced its function


def _importable(module: str) -> str:
    """The name by which a module is imported; "" for a program without a file."""
    if module != "__main__":
        return module
    main = sys.modules["__main__"]
    if (spec := getattr(main, "__spec__", None)) is not None:  # python -m
        return str(spec.name)
    stem = Path(getattr(main, "__file__", None) or "").stem
    return stem if stem.isidentifier() else ""
