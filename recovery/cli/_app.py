"""The command line: one module for each command, put together here."""

from __future__ import annotations

import sys

import typer

from recovery.cli import _crashtest

app = typer.Typer(
    name="recovery",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # a traceback of ours is a bug, and is to look like one
    rich_markup_mode=None,  # help keeps its line breaks, in a pipe too
)


@app.callback()
def recovery() -> None:
    """Runs of agents that survive crashes, and tests of that for any agent."""


app.command("crashtest", epilog=_crashtest.MORE)(_crashtest.command)


def run(argv: list[str] | None) -> int:
    """Run a command; its exit code. Wrong usage is told in one line, and is 2."""
    try:
        app(sys.argv[1:] if argv is None else argv, prog_name="recovery")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0
