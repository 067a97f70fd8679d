"""Assembles the command line from one module for each command."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from recovery.cli.commands import (
    approve,
    cancel,
    copy,
    crashtest,
    debug,
    doctor,
    export,
    forget,
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
    worker,
)
from recovery.cli.parser import arranged, parser
from recovery.cli.parser import run as parse

app = parser(
    "recovery",
    "Runs of agents that survive crashes: see them, decide about them, and test agents for it.",
    """\b
examples:
  recovery runs
  recovery show run_001
  recovery resume run_001 --agent trips:agent""",
)

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
app.command("copy", epilog=copy.MORE)(copy.command)
app.command("debug", epilog=debug.MORE)(debug.command)
app.command("undo", epilog=undo.MORE)(undo.command)
app.command("rm", epilog=rm.MORE)(rm.command)
app.command("gc", epilog=gc.MORE)(gc.command)
app.command("forget", epilog=forget.MORE)(forget.command)
app.command("doctor", epilog=doctor.MORE)(doctor.command)
app.command("worker", epilog=worker.WORKER_MORE)(worker.worker)
app.command("submit", epilog=worker.SUBMIT_MORE)(worker.submit)
app.command("crashtest", epilog=crashtest.MORE)(crashtest.command)


def run(argv: Sequence[str]) -> int:
    """Run a command; returns its exit code."""
    return parse(app, arranged(argv, _by_path))


def _by_path(words: list[str]) -> list[str]:
    """A run may be named by the path of its log."""
    if len(words) > 1 and os.sep in words[1] and any(Path(words[1]).glob("*.seg")):
        path = Path(words[1]).resolve()
        return [words[0], "--store", str(path.parent), path.name, *words[2:]]
    return words
