"""``recovery retry``: repeat the call whose failure ended a run."""

from __future__ import annotations

from typing import Annotated

import typer

from recovery.cli.agents import Agents
from recovery.cli.call_argument import tool_of
from recovery.cli.commands import resume
from recovery.cli.commands.show import commands_for
from recovery.cli.store_options import (
    KeyFile,
    RunId,
    SignWith,
    StoreOption,
    Who,
    Why,
    signer,
    store_of,
)
from recovery.cli.terminal import ends_politely, hint, say
from recovery.cli.who import who_or_login
from recovery.control.resolve import retry
from recovery.inspect.status import status
from recovery.text import printable_lines

MORE = """\b
For a run that failed because a tool raised. Mend the tool first. Outcomes
from before are served from the log; the failed call is made again, under the
same idempotency key. If it took effect nevertheless, say what it returned
instead: recovery resolve RUN CALL --outcome JSON.

\b
exit codes:
  0    recorded; with --agent: finished, its result is printed
  1    refused, or the run is parked again

\b
examples:
  recovery retry run_001 --agent trips:agent
  recovery retry run_001 --why "the tool is mended"
"""

Agent = Annotated[
    str | None,
    typer.Option(
        "--agent",
        metavar="MODULE:NAME",
        help="Resume the run with it at once.",
        show_default=False,
    ),
]


def command(
    run: RunId,
    agent: Agent = None,
    who: Who = None,
    why: Why = "",
    sign: SignWith = None,
    store: StoreOption = None,
    key_file: KeyFile = None,
) -> None:
    """Make the failed call of a run again, and resume from there."""
    with ends_politely():
        runs = Agents(agent, store, key_file).store if agent else None
        runs = runs or store_of(run, store, key_file)
        call = retry(runs, run, who=who_or_login(who), why=why, sign=signer(sign))
        name = tool_of(runs, run, call) or "LSN "
        said = f"{name}#{call} of run {run}: to be made again"
        if agent is not None:  # then its result is printed
            typer.echo(printable_lines(said), err=True)
        else:
            say(said)
            commands = commands_for(runs, run, store, key_file)
            return hint(commands.next(status(runs, run))[:1])
    resume.command(agent, run, store=store, key_file=key_file)
