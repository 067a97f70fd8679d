"""``recovery rm``: delete a run for good."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Annotated

import typer

from eventlog import LogError
from recovery import RecoveryError
from recovery.cli.commands.resume import logged
from recovery.cli.exit_codes import FOUND
from recovery.cli.store_options import KeyFile, RunId, StoreOption, Yes, check_there, open_store
from recovery.cli.terminal import complain, confirm, ends_politely, say
from recovery.cli.who import in_words
from recovery.ops.remove import is_left_of, remove
from recovery.reports import RemovedRun
from recovery.text import age, count, printable, size

MORE = """\b
A run that a process has is never deleted, nor a child run while its parent
may need it. A run that has not ended, or is damaged, only with --force.
No record of a deleted run remains: a run that begins under its id executes
everything again.

\b
exit codes:
  0    deleted, or would be (--dry-run); also the rest of an interrupted one
  1    refused: nothing was deleted

\b
examples:
  recovery rm run_001
  recovery rm run_001 --children --yes
  recovery rm run_001 --force --dry-run
"""

Force = Annotated[
    bool, typer.Option("--force", help="Also a run that has not ended, or is damaged.")
]
Children = Annotated[
    bool, typer.Option("--children", help="Also the runs that it has started, and they others.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")]


def command(
    run: RunId,
    store: StoreOption = None,
    force: Force = False,
    children: Children = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    key_file: KeyFile = None,
) -> None:
    """Delete a run for good. Says what goes, and asks."""
    with ends_politely(), logged(logging.WARNING, {"eventlog": logging.ERROR}):
        runs = open_store(store, key_file, reading=True)
        if is_left_of(runs.backend, run):
            remove(runs, run, dry_run=dry_run)
            verb = "would finish" if dry_run else "finished"
            return say(f"{verb} the deletion of run {run}, which had been interrupted")
        check_there(runs, run)
        try:
            would = remove(runs, run, force=force, children=children, dry_run=True)
            say("\n".join(_lines(would, time.time())))
            if dry_run:
                return
            confirm(f"Delete {count(len(would), 'run')} for good?", yes)
            gone = remove(runs, run, force=force, children=children)
        except (RecoveryError, LogError) as exc:
            said = in_words(exc).replace("force=True", "--force")
            raise complain(said.replace("children=True", "--children"), FOUND) from None
        freed = sum(one.size for one in gone)
        say(f"deleted {count(len(gone), 'run')}, {size(freed)}")


def _lines(would: Sequence[RemovedRun], now: float) -> list[str]:
    lines = [f"{printable(one.run_id)}: {told(one, now)}" for one in would]
    left = [printable(child) for one in would for child in one.children]
    if left:
        stay = count(len(left), "child run")
        lines.append(f"{stay} of it will stay (--children takes them too):")
        lines += [f"  {child}" for child in left]
    return lines


def told(one: RemovedRun, now: float) -> str:
    """State, age, records and bytes of a run."""
    when = f" {age(now - one.ended)} ago" if one.ended else ""
    return f"{one.state}{when}, {count(one.records, 'record')}, {size(one.size)}"
