"""Assembles the command line from one module for each command."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from recovery.cli.commands import (
    approve,
    cancel,
    crashtest,
    debug,
    doctor,
    export,
    fork,
    gc,
    resolve,
    resume,
    retry,
    rm,
    runs,
    show,
    signal,
    status,
    undo,
)
from recovery.cli.exit_codes import FOUND
from recovery.cli.terminal import because, complain

app = typer.Typer(
    name="recovery",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # a traceback of this library is a bug, and looks like one
    rich_markup_mode=None,  # help keeps its line breaks, in a pipe too
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version("agent-eventlog"))
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option("--version", help="The version.", callback=_print_version, is_eager=True),
]


@app.callback()
def recovery(_version: Version = False) -> None:
    """Runs of agents that survive crashes: see them, decide about them, and test agents for it."""


app.command("runs", epilog=runs.MORE)(runs.command)
app.command("status", epilog=status.MORE)(status.command)
app.command("show", epilog=show.MORE)(show.command)
app.command("resume", epilog=resume.MORE)(resume.command)
app.command("retry", epilog=retry.MORE)(retry.command)
app.command("resolve", epilog=resolve.MORE)(resolve.command)
app.command("signal", epilog=signal.MORE)(signal.command)
app.command("approve", epilog=approve.MORE)(approve.yes)
app.command("deny", epilog=approve.MORE)(approve.no)
app.command("cancel", epilog=cancel.CANCEL_MORE)(cancel.command)
app.command("fork", epilog=fork.FORK_MORE)(fork.command)
app.command("checkpoints", epilog=fork.CHECKPOINTS_MORE)(fork.checkpoints)
app.command("accept", epilog=cancel.ACCEPT_MORE)(cancel.accepted)
app.command("export", epilog=export.MORE)(export.command)
app.command("debug", epilog=debug.MORE)(debug.command)
app.command("undo", epilog=undo.MORE)(undo.command)
app.command("rm", epilog=rm.MORE)(rm.command)
app.command("gc", epilog=gc.MORE)(gc.command)
app.command("doctor", epilog=doctor.MORE)(doctor.command)
app.command("crashtest", epilog=crashtest.MORE)(crashtest.command)


def arranged(argv: Sequence[str]) -> list[str]:
    """The words in the order of the parser: --store and --key-file may come before the command, and
    a run may be named by the path of its log."""
    words, front = list(argv), list[str]()
    while words and words[0].partition("=")[0] in ("--store", "--key-file"):
        size = 1 if "=" in words[0] else 2
        front, words = front + words[:size], words[size:]
    if len(words) > 1 and os.sep in words[1] and any(Path(words[1]).glob("*.seg")):
        path = Path(words[1]).resolve()
        front, words[1] = [*front, "--store", str(path.parent)], path.name
    return [*words[:1], *front, *words[1:]]


def run(argv: list[str] | None) -> int:
    """Run a command; returns its exit code. Wrong usage is reported in one line, with code 2."""
    for name in ("eventlog", "recovery"):  # their warnings are shown by the commands, or raised
        logging.getLogger(name).addHandler(logging.NullHandler())
    try:
        app(arranged(sys.argv[1:] if argv is None else argv), prog_name="recovery")
    except OSError as exc:  # of the help; commands handle their own
        complain(because(exc), FOUND)
        return FOUND
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0
