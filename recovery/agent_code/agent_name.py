"""Names agents and their functions, as ``recovery resume --agent`` takes them."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import MethodType
from typing import Any

NAME_MAX = 200  # characters; a longer one is not kept
UNKNOWN = "MODULE:NAME"
_IMPORTABLE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", re.ASCII)


def agent_option(*named: str | None) -> str:
    """The agent for a command: the first name in the record of a run that can be imported. It is
    text: a person decides whether to type the command."""
    can = (name for name in named if name and _IMPORTABLE.fullmatch(name))
    return next(can, UNKNOWN)


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


def module_at_work() -> str:
    """The module that is being imported, or the main program; "" in a thread."""
    frame = sys._getframe()
    while frame.f_code.co_name != "<module>":
        if frame.f_back is None:
            return ""
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", ""))


def object_name(agent: Any, agent_fn: Callable[..., Any], made_in: str) -> str | None:
    """``module:name`` of an agent with options, or of the dict or list with it; None if neither is
    a global name of the module of its function, or of ``made_in``."""
    while isinstance(agent_fn, functools.partial):
        agent_fn = agent_fn.func
    for module in dict.fromkeys((made_in, getattr(agent_fn, "__module__", ""))):
        if type(module) is str and (where := _importable(module)):
            for name, value in list(vars(sys.modules.get(module, object)).items()):
                if _holds(value, agent) and (module != "__main__" or _is_imported(name)):
                    return f"{where}:{name}"
    return None


def _holds(value: Any, agent: Any) -> bool:
    several = value.values() if type(value) is dict else value
    return value is agent or (
        type(value) in (dict, list, tuple) and any(one is agent for one in several)
    )


def _is_imported(name: str) -> bool:
    """Whether the main program has this name when it is imported, and not only under
    ``if __name__ == "__main__"``: its line begins with it."""
    source = _source_of(getattr(sys.modules["__main__"], "__file__", None) or "")
    return re.search(rf"^((async )?def )?{re.escape(name)}\b *[:=(]", source, re.M) is not None


@functools.cache
def _source_of(path: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except (OSError, ValueError):
        return ""


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
