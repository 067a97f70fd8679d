"""``recovery gc``: delete runs that have ended, by age and number."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, cast

import typer

from recovery.cli.progress import working
from recovery.cli.status_view import STYLES
from recovery.cli.store_options import AsJson, KeyFile, StoreOption, Yes, open_store
from recovery.cli.tables import Column, show_table
from recovery.cli.terminal import confirm, ends_politely, say, show_json
from recovery.cli.times import seconds_of
from recovery.inspect.states import State
from recovery.ops.gc import gc
from recovery.ops.remove import COLLECTED, OVER
from recovery.reports import RemovedRun
from recovery.stores.protocol import KeepsRemains
from recovery.text import age, count, size

MORE = """\b
A run goes when it ended longer ago than --older-than, and is none of the
--keep newest; give one of them, or both. Without either no run goes: only
what interrupted deletions have left is deleted.

\b
Never deleted are runs that a process has, that have not ended or are
damaged, children of a run that may be resumed, and the origin of an
unfinished fork. Failed runs only with --state failed: they can be resumed
after the call that failed is resolved. No record of a deleted run remains: a
run that begins under its id executes everything again.

\b
exit codes:
  0    done (also when there was nothing to delete)

\b
examples:
  recovery gc --older-than 30d --dry-run
  recovery gc --older-than 30d --keep 100 --yes
  recovery gc --keep 0 --state cancelled --state undone
  recovery gc --older-than 12h --yes --json | jq -r .run_id
"""

OlderThan = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Only runs that ended so long ago: 90s, 15min, 12h, 30d."),
]
Keep = Annotated[int | None, typer.Option(metavar="N", min=0, help="Keep the N that ended last.")]
States = Annotated[
    list[str] | None,
    typer.Option(
        "--state",
        metavar="STATE",
        help=f"Which runs: {', '.join(COLLECTED)}; by default all but the last two. Repeatable.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")]


def command(
    store: StoreOption = None,
    older_than: OlderThan = None,
    keep: Keep = None,
    state: States = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Delete runs that have ended, by age and number."""
    with ends_politely():
        older_than_s = None if older_than is None else seconds_of("--older-than", older_than)
        states = tuple(cast("list[State]", state)) if state else OVER
        runs = open_store(store, key_file, reading=True)
        chosen = older_than_s is not None or keep is not None

        def collect(dry_run: bool) -> list[RemovedRun]:
            with working("reading the runs" if dry_run else "deleting runs"):
                return gc(
                    runs, older_than_s=older_than_s, keep=keep, states=states, dry_run=dry_run
                )

        found = collect(True)
        if found and not dry_run:
            if not as_json:
                _show(found)
            confirm(f"Delete {count(len(found), 'run')} for good?", yes)
        left = len(runs.backend.unswept()) if isinstance(runs.backend, KeepsRemains) else 0
        gone = found if dry_run else collect(False)
        if as_json:
            for one in gone:
                show_json(asdict(one) | {"removed": not dry_run})
            return
        if dry_run and found:
            _show(found)
        say(_summary(gone, dry_run, left, chosen))


COLUMNS = (
    Column("RUN", folded=(8, None)),
    Column("STATE"),
    *(Column(title, right=True) for title in ("ENDED", "RECORDS", "SIZE")),
)


def _show(found: Sequence[RemovedRun]) -> None:
    now = time.time()
    rows = [
        [
            (one.run_id, ""),
            (one.state, STYLES.get(one.state, "")),
            (age(now - one.ended), ""),
            (f"{one.records:,}", ""),
            (size(one.size), ""),
        ]
        for one in found
    ]
    show_table(COLUMNS, rows)


def _summary(gone: Sequence[RemovedRun], dry_run: bool, left: int, chosen: bool) -> str:
    parts = []
    if left:
        verb = "would finish" if dry_run else "finished"
        parts.append(f"{verb} {count(left, 'deletion')} that had been interrupted")
    if not chosen:
        parts.append("no run is chosen: say which, with --older-than or --keep")
    elif gone:
        verb, freed = "would delete" if dry_run else "deleted", sum(one.size for one in gone)
        parts.append(f"{verb} {count(len(gone), 'run')}, {size(freed)}")
    else:
        parts.append("nothing to delete: no run that has ended is so old, or beyond so many")
    return "\n".join(parts)
