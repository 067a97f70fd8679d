"""``recovery status``: say which runs need a person, and how many can be resumed."""

from __future__ import annotations

from typing import Annotated

import typer

from recovery.agent_code.agent_name import UNKNOWN, agent_option
from recovery.cli.commands.show import commands_for
from recovery.cli.doctor_checks import low_space
from recovery.cli.exit_codes import FOUND, OK
from recovery.cli.store_options import AsJson, KeyFile, Redact, StoreOption, open_store
from recovery.cli.terminal import ends_politely, hint, say, show_json
from recovery.inspect.listing import listed
from recovery.reports import RunStatus
from recovery.text import count
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

\b
examples:
  recovery status
  recovery status --check --store /srv/agents     # in a monitor
  recovery status --json | jq -r '.need_a_person[].run_id'
"""

SHOWN_MAX = 5  # runs with a command

Check = Annotated[
    bool, typer.Option("--check", help="Exit with 1 if a run needs a person, or the disk is full.")
]


def command(
    check: Check = False,
    store: StoreOption = None,
    key_file: KeyFile = None,
    redact: Redact = None,
    as_json: AsJson = False,
) -> None:
    """Which runs need a person, and why; and how many can be resumed."""
    with ends_politely():
        there = open_store(store, key_file, reading=True)
        redaction = Redaction(redact or ())
        needs: list[tuple[RunStatus, str]] = []
        due: list[str] = []
        agents: set[str] = set()  # of the runs that are due
        total = 0
        for one in listed(there):
            total += 1
            if why := one.needs_person:
                needs.append((one, redaction.text(why, "why")))
            if one.due and not why:  # resuming it gets it no further
                due.append(one.run_id)
                agents.add(agent_option(one.agent_object, one.agent))
        commands = commands_for(there, "", store, key_file)
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
            show_json({"runs": total, "need_a_person": persons, "due": due, "disk": low})
        else:
            for one, why in needs:
                left = "; workers leave it alone (quarantined)" * one.quarantined
                say(f"{one.run_id}: {why}{left}")
            if low:
                say(low)
            where = f" in {there.backend.address}" if store is None else ""
            need = "needs" if len(needs) == 1 else "need"
            say(
                f"{count(total, 'run')}{where}: {len(needs):,} {need} a person, "
                f"{len(due):,} can be resumed"
            )
            todo = [commands.show(one) for one, _ in needs[:SHOWN_MAX]]
            if due:
                commands.agent = agent_option(*agents) if len(agents) == 1 else UNKNOWN
                todo.append(commands.resume_due())
            hint(todo)
        raise typer.Exit(FOUND if check and (needs or low) else OK)
