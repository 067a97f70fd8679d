"""Implements ``recovery``: the command for runs of agents, and for testing them.

The packages that it needs besides the library are in the extra ``[cli]``.
"""

from __future__ import annotations

import sys

from recovery.cli.exit_codes import INTERRUPTED, USAGE
from recovery.cli.streams import open_closed

EXTRA = {"typer", "rich", "click", "h11"}


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    open_closed()
    try:
        from recovery.cli.app import run  # noqa: PLC0415 - needs the extra
        from recovery.cli.key_options import take_from_environment  # noqa: PLC0415

        take_from_environment()
        return run(argv)
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] not in EXTRA:
            raise
        sys.stderr.write(
            f"recovery: the command needs {exc.name}, which is not installed: "
            "pip install 'agent-eventlog[cli]'\n"
        )
        return USAGE
    except KeyboardInterrupt:  # while it is loaded; commands handle it themselves
        return INTERRUPTED
