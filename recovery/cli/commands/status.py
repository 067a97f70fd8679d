"""``recovery status``: say which runs need a person, and how many can be resumed."""

from __future__ import annotations

from typing import Annotated

import typer

from recovery.agent_code.agent_name import UNKNOWN, agent_option
from recovery.cli.commands.show import commands_for
from recovery.cli.doctor_checks import low_space
from recovery.cli.exit_codes import FOUND, NO_KEY, OK
from recovery.cli.next_steps import Commands
from recovery.cli.status_view import VALUE_MAX
from recovery.cli.store_options import (
    AsJson,
    KeyFile,
    OneRun,
    Redact,
    StoreOption,
    open_store,
    store_of,
)
from recovery.cli.terminal import ends_politely, hint, say, show_json
from recovery.inspect.listing import listed
from recovery.inspect.status import status
from recovery.reports import RunStatus
from recovery.text import count, cut
from recovery.values.render import Redaction

MORE = """\b
A run needs a person if a call is in doubt or asks for approval, its code has
diverged, raises an error that unchanged code raises again (a KeyError), or
dies or fails at the same place again and again, its log is damaged, it is
parked for a limit, or it has failed. Each run is read from its newest
checkpoint on; no lock is taken and no run is changed.

\b
exit codes:
  0    no run needs a person; or without --check
  1    with --check: a run needs a person, or the disk is full
  77   RUN is encrypted, and its key was not given

\b
examples:
  recovery status
  recovery status run_001                         # with its next commands
  recovery status --check --store /srv/agents     # in a monitor
  recovery status --json | jq -r '.need_a_person[].run_id'
"""

SHOWN_MAX = 5  # runs with a command

Check = Annotated[
    bool, typer.Option("--check", help="Exit with 1 if a run needs a person, or the disk is full.")
]


def command(
    run: OneRun = None,
    check: Check = False,
    store: StoreOption = None,
    key_file: KeyFile = None,
    redact: Redact = None,
    as_json: AsJson = False,
) -> None:
    """Which runs need a person, and why; and how many can be resumed."""
    with ends_politely():
        redaction = Redaction(redact or ())
        needs: list[tuple[RunStatus, str]] = []
        due: list[RunStatus] = []
        total = 0
        if run is None:
            there = open_store(store, key_file, reading=True)
            found = listed(there)
        else:
            there = store_of(run, store, key_file, reading=True)
            found = iter([status(there, run)])
        for one in found:
            total += 1
            if why := one.needs_person:
                needs.append((one, redaction.text(why, "why")))
            elif one.due:  # else resuming it gets it no further
                due.append(one)
        commands = commands_for(there, run or "", store, key_file)
        low = low_space(there, commands.on_store)
        if as_json:
            persons = [
                {
                    "run_id": one.run_id,
                    "agent": one.agent,
                    "why": why,
                    "quarantined": one.quarantined,
                }
                for one, why in needs
            ]
            ids = [one.run_id for one in due]
            show_json({"runs": total, "need_a_person": persons, "due": ids, "disk": low})
        else:
            say_causes(needs)
            if run is not None and not needs:
                why = redaction.text(one.why, "why")
                say(f"{run}: {one.state}{why and ': '}{why}")
            if low:
                say(low)
            if run is None:
                where = f" in {there.backend.address}" if store is None else ""
                need = "needs" if len(needs) == 1 else "need"
                say(
                    f"{count(total, 'run')}{where}: {len(needs):,} {need} a person, "
                    f"{len(due):,} can be resumed"
                )
            hint(commands.next(one) if run is not None else _next(commands, needs, due))
        if run is not None and needs and needs[0][0].needs_key:
            raise typer.Exit(NO_KEY)
        raise typer.Exit(FOUND if check and (needs or low) else OK)


def say_causes(needs: list[tuple[RunStatus, str]]) -> None:
    """A line for each run that needs a person, with why: `recovery show` has all of a long text."""
    for one, why in needs:
        left = "; workers leave it alone (quarantined)" * one.quarantined
        say(f"{one.run_id}: {cut(' '.join(why.split()), VALUE_MAX)}{left}")


def _next(
    commands: Commands, needs: list[tuple[RunStatus, str]], due: list[RunStatus]
) -> list[str]:
    todo = [commands.show(one) for one, _ in needs[:SHOWN_MAX]]
    if due:
        agents = {agent_option(one.agent_object, one.agent) for one in due}
        commands.agent = agents.pop() if len(agents) == 1 else UNKNOWN
        todo.append(commands.resume_due())
    return todo
