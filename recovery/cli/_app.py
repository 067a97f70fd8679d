"""The command line: one module for each command, put together here."""

from __future__ import annotations

import logging
import sys

import typer

from recovery.cli import _crashtest, _doctor, _gc, _rm, _runs, _show

app = typer.Typer(
    name="recovery",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # a traceback of ours is a bug, and is to look like one
    rich_markup_mode=None,  # help keeps its line breaks, in a pipe too
)


@app.callback()
def recovery() -> None:
    """Runs of agents that survive crashes: see them, decide about them, and test agents for it."""


app.command("runs", epilog=_runs.MORE)(_runs.command)
app.command("show", epilog=_show.MORE)(_show.command)
app.command("rm", epilog=_rm.MORE)(_rm.command)
app.command("gc", epilog=_gc.MORE)(_gc.command)
app.command("doctor", epilog=_doctor.MORE)(_doctor.command)
app.command("crashtest", epilog=_crashtest.MORE)(_crashtest.command)


def run(argv: list[str] | None) -> int:
    """Run a command; its exit code. Wrong usage is told in one line, and is 2."""
    for name in ("eventlog", "recovery"):  # what they warn of is shown, or raised
        logging.getLogger(name).addHandler(logging.NullHandler())
    try:
        app(sys.argv[1:] if argv is None else argv, prog_name="recovery")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0
