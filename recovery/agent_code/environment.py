"""Names what an agent runs in: Python, packages, host. Divergences may come from its changes."""

from __future__ import annotations

import platform
import socket
import sys
from functools import lru_cache

from recovery.journal.events import RunStarted
from recovery.text import quoted

PACKAGES_MAX, VERSION_MAX = 200, 50  # packages; characters of a version
SHOWN_MAX = 20  # differences in a text


def environment() -> dict[str, str]:
    """The versions of Python and of all imported packages that say theirs, and the host."""
    return _environment(len(sys.modules))  # it changes by imports only


@lru_cache(maxsize=1)
def _environment(_modules: int) -> dict[str, str]:
    found = {"host": socket.gethostname(), "Python": platform.python_version()}
    for name, module in sorted(sys.modules.items()):
        if "." in name or name in sys.stdlib_module_names or len(found) > PACKAGES_MAX:
            continue
        version = getattr(module, "__dict__", {}).get("__version__")
        if isinstance(version, str) and len(version) <= VERSION_MAX:
            found[name] = str(version)
    return found


def changed_environment(started: RunStarted | None) -> str:
    """A line about what differs from the environment in which a run began; "" if nothing does, or
    its record does not say. A package that only one of the two has imported is no difference."""
    recorded, now = started.environment if started is not None else None, environment()
    found = [
        f"{name} {before} -> {now[name]}"
        for name, before in (recorded or {}).items()
        if type(before) is str and now.get(name, before) != before
    ]
    more = [f"{len(found) - SHOWN_MAX} more"] if len(found) > SHOWN_MAX else []
    said = quoted(", ".join([*found[:SHOWN_MAX], *more]))
    return f"Since the run began, its environment has changed: {said}.\n" if found else ""
