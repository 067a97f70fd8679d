"""Starts a command, ``recovery`` or ``logdump``, and says which package it lacks.

The packages that both need besides the library are in the extra ``[cli]``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from recovery.cli.exit_codes import INTERRUPTED, USAGE
from recovery.cli.streams import open_closed

EXTRA = {"typer", "rich", "click", "h11"}
Run = Callable[[list[str]], int]


def start(program: str, load: Callable[[], Run], argv: list[str] | None) -> int:
    """Run the command that ``load`` imports; returns its exit code. While it is loaded, Ctrl-C
    ends it quietly."""
    open_closed()
    try:
        run = load()
        from recovery.cli.key_options import take_from_environment  # noqa: PLC0415 - takes long

        take_from_environment()
        return run(sys.argv[1:] if argv is None else argv)
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] not in EXTRA:
            raise
        sys.stderr.write(
            f"{program}: the command needs {exc.name}, which is not installed: "
            "pip install 'agent-eventlog[cli]'\n"
        )
        return USAGE
    except KeyboardInterrupt:  # commands handle it themselves
        return INTERRUPTED
