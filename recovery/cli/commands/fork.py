"""``recovery fork`` and ``recovery checkpoints``: make a new run from an existing one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

import typer

from recovery import RecoveryError
from recovery.cli.commands.show import resume_command
from recovery.cli.exit_codes import FOUND
from recovery.cli.pager import paged
from recovery.cli.store_options import (
    AsJson,
    Imports,
    KeyFile,
    RunId,
    StoreOption,
    Who,
    Why,
    imported,
    store_of,
)
from recovery.cli.tables import Cell, Column, show_table
from recovery.cli.terminal import because, complain, ends_politely, hint, say, show_json
from recovery.cli.times import when
from recovery.cli.value_arguments import VALUE, value_given
from recovery.cli.who import who_or_login
from recovery.history.find_run import reader_of
from recovery.history.inventory import StoredCheckpoint, stored_checkpoints
from recovery.ops.fork import fork_and_tell
from recovery.text import size

NAMES_MAX = 10  # of side effects, that are listed

FORK_MORE = """\b
NEW_ID is as RUN was at the end of step N (0: before the first; without --at
everything recorded so far). It shares nothing with RUN, which is only read.
When it is run, what RUN did up to there is served. What comes after is done
again: side effects that RUN has made after step N are made a second time,
with new idempotency keys. The command lists them. A fork executes nothing.
With --task, --state or --messages it continues with these from there.

\b
exit codes:
  0    made, durably
  1    refused: no such step, or NEW_ID exists

\b
examples:
  recovery fork run_001 run_001b --at 4
  recovery fork run_001 what-if --at 4 --state '{"plan": []}' --why "cheaper"
  recovery fork run_001 again --at 0 --task @task.json
"""
CHECKPOINTS_MORE = """\b
A recovery begins with the newest one that is sound, and so does a fork.

\b
examples:
  recovery checkpoints run_001
  recovery checkpoints run_001 --json | jq 'select(.sound) | .step'
"""

New = Annotated[str, typer.Argument(metavar="NEW_ID", help="The id of the new run.")]
At = Annotated[
    int | None,
    typer.Option(metavar="STEP", min=0, help="At the end of which step.", show_default=False),
]


def _change(what: str) -> Any:
    return typer.Option(metavar="JSON", help=f"Another {what}: {VALUE}", show_default=False)


def command(
    run: RunId,
    new_id: New,
    at: At = None,
    task: Annotated[str | None, _change("task")] = None,
    state: Annotated[str | None, _change("run.state (an object)")] = None,
    messages: Annotated[str | None, _change("run.messages (an array)")] = None,
    why: Why = "",
    who: Who = None,
    imports: Imports = None,
    store: StoreOption = None,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Make a new run that begins as another one was at the end of a step."""
    with ends_politely():
        if new_id == "NEW_ID":
            raise ValueError("NEW_ID stands for an id of your choice, as in run_002")
        given = {"task": task, "state": state, "messages": messages}
        changes: Any = {
            name: value_given(text, f"--{name}") for name, text in given.items() if text is not None
        }
        for name, kind, what in (("state", dict, "object"), ("messages", list, "array")):
            if not isinstance(changes.get(name, kind()), kind):
                raise ValueError(f"--{name} is a JSON {what}")
        if changes and at is None:
            raise ValueError("--at STEP is needed with --task, --state or --messages: it says when")
        imported(imports)
        runs = store_of(run, store, key_file)
        try:
            changes |= {"who": who_or_login(who), "why": why}
            link, effects = fork_and_tell(runs, run, new_id, at, changes)
        except RecoveryError as exc:
            said = str(exc).replace("None takes", "without --at it takes")
            raise complain(said, FOUND) from None
        except OSError as exc:  # nothing is removed: the files may not be of this fork
            raise complain(
                f"{because(exc)}. Run {new_id} is not whole, if it is there at all. "
                "Remove the cause, and the same command makes it whole.",
                FOUND,
            ) from None
        names = [f"{one.intent.tool}#{one.lsn}" for one in effects]
        if as_json:
            return show_json(asdict(link) | {"new_run_id": new_id, "made_again": names})
        say(f"run {new_id}: as run {run} was at the end of step {link.step} (LSN {link.lsn})")
        if names:
            more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
            say(
                f"run {run} has made these side effects since, and {new_id} would make them again "
                f"if it does the same: {', '.join(names[:NAMES_MAX])}{more}"
            )
        hint([resume_command(runs, new_id, store, key_file)])


def checkpoints(
    run: RunId,
    store: StoreOption = None,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """The checkpoints of a run, the newest first, and whether they are sound."""
    with ends_politely(), paged():
        runs = store_of(run, store, key_file, reading=True)
        with reader_of(runs, run) as reader:
            found = stored_checkpoints(reader)
        if as_json:
            for one in found:
                show_json(_json(one))
        elif found:
            show_table(COLUMNS, list(_rows(found)))
        else:
            say("no checkpoints: a recovery replays from the first record")


def _json(one: StoredCheckpoint) -> dict[str, Any]:
    return {
        "checkpoint_id": one.checkpoint_id,
        "step": one.step,
        "lsn": one.lsn,
        "time": one.timestamp,
        "size": one.size,
        "sound": one.validity.sound,
        "reason": one.validity.reason,
    }


COLUMNS = (
    Column("STEP", right=True),
    Column("LSN", right=True),
    Column("TAKEN"),
    Column("SIZE", right=True),
    Column("", folded=(None, None)),
)


def _rows(found: list[StoredCheckpoint]) -> Iterator[list[Cell]]:
    for one in found:
        step = "?" if one.step is None else str(one.step)
        taken = when(one.timestamp) if one.timestamp else "-"
        sound = str(one.validity), "" if one.validity else "bold red"
        yield [(step, ""), (str(one.lsn), ""), (taken, ""), (size(one.size), ""), sound]
