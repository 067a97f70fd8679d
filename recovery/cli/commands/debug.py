"""``recovery debug``: replay a run, and stop in pdb at a step or a record of it."""

from __future__ import annotations

from bdb import BdbQuit
from typing import Annotated

import typer

from recovery import RecoveryError
from recovery.cli.agents import Agents
from recovery.cli.commands.show import no_agent
from recovery.cli.exit_codes import FOUND
from recovery.cli.store_options import KeyFile, RunId, StoreOption, check_there
from recovery.cli.terminal import complain, ends_politely, their_own
from recovery.errors import CHOICES
from recovery.inspect.status import status
from recovery.text import printable_lines

MORE = """\b
The agent is searched as by `recovery resume`. It runs from its first line,
every call gets its recorded outcome, and no tool is executed. Nothing is
written to the run. Code of the agent outside of calls is executed.

It stops in pdb at the agent's line that begins the step or makes the call,
and again where the record ends, or where the agent raises. `n` and `s` step
in the agent's code, `c` continues to the end, `q` leaves. A record inside a
call, or of its outcome, is at the call.

\b
exit codes:
  0    replayed, or left with q
  1    refused; or the agent does something else than the record

\b
examples:
  recovery debug run_001 --agent trips:agent --at 3
  recovery debug run_001 --agent trips:agent --at lsn:38
  recovery debug run_001 --agent trips:agent           # where it ends
"""

At = Annotated[
    str | None,
    typer.Option(
        metavar="STEP|lsn:N",
        help="Stop at this step, or at this record. By default only where the record ends.",
        show_default=False,
    ),
]


Agent = Annotated[
    str | None,
    typer.Option("--agent", metavar="MODULE:NAME", help="The agent.", show_default=False),
]


def command(
    run: RunId,
    agent: Agent = None,
    at: At = None,
    store: StoreOption = None,
    key_file: KeyFile = None,
) -> None:
    """Replay a run in pdb: stop at a step or a call, with the agent's frames."""
    from recovery.testing.replaying.debugger import Debugger  # noqa: PLC0415 - imports pdb
    from recovery.testing.replaying.execution import Plan  # noqa: PLC0415 - as above
    from recovery.testing.replaying.recorded_run import recorded_run  # noqa: PLC0415
    from recovery.testing.replaying.replay import replay_by  # noqa: PLC0415

    with ends_politely():
        if agent is None:
            raise no_agent("debug", run, store, key_file)
        agents = Agents(agent, store, key_file)
        check_there(agents.store, run)
        found = agents.get(status(agents.store, run))
        plan = Plan(recorded_run(found.store, run, None))
        debugger = Debugger(plan, at, _say)
        try:
            ended = replay_by(plan, found)
        except RecoveryError as exc:
            raise complain(str(exc).partition(f"\n{CHOICES}")[0], FOUND) from None
        except BdbQuit:
            return
        except Exception as exc:
            debugger.post_mortem(exc)
            raise their_own(exc, f"run {run}: its agent raised this") from None
        if ended.error is not None:
            _say(f"the agent raises here, as recorded: {type(ended.error).__name__}: {ended.error}")
            debugger.post_mortem(ended.error)
        elif not ended.record_end:
            _say("the agent has returned")
        if debugger.is_waiting:
            raise complain(f"the replay has not come to --at {at}", FOUND)


def _say(text: str) -> None:
    typer.echo(printable_lines(text), err=True)
