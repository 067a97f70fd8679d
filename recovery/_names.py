"""Names types in records: their module and their qualified name."""

from __future__ import annotations

import inspect
import sys


def type_name(kind: type) -> str:
    """The name of a type, the same in each process that runs the same program.

    A type of the script that was started has the name of the script's module in place of
    ``__main__``, so that it is the same type where that module is imported.
    """
    module = kind.__module__
    if module in ("__main__", "__mp_main__"):
        module = _main_name()
    return f"{module}.{kind.__qualname__}"


def names_of(kind: type) -> tuple[str, str]:
    """The names under which a type may be recorded: now, and by the first release."""
    return type_name(kind), f"{kind.__module__}.{kind.__qualname__}"


def _main_name() -> str:
    main = sys.modules.get("__main__")
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return str(spec.name)
    return (inspect.getmodulename(file) if file else None) or "__main__"
