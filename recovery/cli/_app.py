"""The command line: one module for each command, put together here."""

from __future__ import annotations

import logging
import sys

import typer

from recovery.cli import (
    _approve,
    _cancel,
    _crashtest,
    _doctor,
    _fork,
    _gc,
    _resolve,
    _resume,
    _retry,
    _rm,
    _runs,
    _show,
    _signal,
    _undo,
)
from recovery.cli._exit import FOUND
from recovery.cli._terminal import because, complain

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
app.command("resume", epilog=_resume.MORE)(_resume.command)
app.command("retry", epilog=_retry.MORE)(_retry.command)
app.command("resolve", epilog=_resolve.MORE)(_resolve.command)
app.command("signal", epilog=_signal.MORE)(_signal.command)
app.command("approve", epilog=_approve.MORE)(_approve.yes)
app.command("deny", epilog=_approve.MORE)(_approve.no)
app.command("cancel", epilog=_cancel.CANCEL_MORE)(_cancel.command)
app.command("fork", epilog=_fork.FORK_MORE)(_fork.command)
app.command("checkpoints", epilog=_fork.CHECKPOINTS_MORE)(_fork.checkpoints)
app.command("accept", epilog=_cancel.ACCEPT_MORE)(_cancel.accepted)
app.command("undo", epilog=_undo.MORE)(_undo.command)
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
    except OSError as exc:  # while it shows help: commands end by themselves
        complain(because(exc), FOUND)
        return FOUND
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0
