"""``recovery copy``: copy runs to another store, byte for byte."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from shlex import join
from typing import Annotated

import typer

from eventlog import LogError
from recovery.cli.exit_codes import FOUND
from recovery.cli.progress import working
from recovery.cli.store_options import AsJson, KeyFile, complete_runs, open_store
from recovery.cli.terminal import complain, ends_politely, hint, note, say, show_json
from recovery.cli.who import in_words
from recovery.errors import RecoveryError
from recovery.history.checkpoint_store_base import CheckpointStoreBase
from recovery.inspect.status import status
from recovery.ops.copy_run import copy_run, move_run
from recovery.ops.remove import children_below
from recovery.text import count, size

MORE = """\b
The frames are copied as they are, so checksums, encryption and idempotency
keys stay. Each run is held meanwhile: a live one is refused, and no process
resumes it. The copy is compared with the original. Child runs are runs of
their own: name them too, or say --all.

\b
Both copies can be resumed: then side effects after the last common record
happen twice. So with --move, or remove the original: recovery rm. A --move
that was killed may leave both: repeat it. It keeps the one that was resumed.

\b
exit codes:
  0    copied
  1    a run could not be copied; the others were

\b
examples:
  recovery copy run_001 --to postgresql://db.example/agents
  recovery copy run_001 --from postgresql://db.example/agents --to /tmp/runs
  recovery copy --all --move --to postgresql://db.example/agents
"""

Runs = Annotated[
    list[str] | None,
    typer.Argument(metavar="[RUN]...", help="The ids of runs.", autocompletion=complete_runs),
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="PATH|URL",
        help="Where the runs are. By default $EVENTLOG_HOME, else ~/.eventlog.",
        show_default=False,
    ),
]
To = Annotated[str, typer.Option("--to", metavar="PATH|URL", help="Where they are copied to.")]
All = Annotated[bool, typer.Option("--all", help="All runs of the store.")]
Move = Annotated[bool, typer.Option("--move", help="Remove each original after its copy.")]


def command(
    to: To,
    run: Runs = None,
    where: From = None,
    every: All = False,
    move: Move = False,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Copy runs to another store, byte for byte."""
    with ends_politely():
        store = open_store(where, key_file, reading=True)
        source = store.backend
        target = CheckpointStoreBase(to).backend
        if bool(run) == every:
            raise ValueError("name the runs to copy, or say --all")
        if source.address and source.address == target.address:
            raise ValueError(f"--from and --to are the same store: {source.address}")
        failed, copied, total = 0, 0, 0
        below: dict[str, None] = {}
        for run_id in run or source.run_ids():
            children = [] if every else _children(store, run_id)
            try:
                with working(f"copying {run_id}"):
                    done = (move_run if move else copy_run)(source, target, run_id)
            except (LogError, RecoveryError, OSError) as exc:
                failed += 1
                complain(f"{run_id}: {in_words(exc)}", FOUND)
                continue
            copied, total = copied + 1, total + done
            below |= dict.fromkeys(children)
            if as_json:
                show_json({"run_id": run_id, "size": done, "moved": move})
        if not as_json:
            say(f"{'moved' if move else 'copied'} {count(copied, 'run')}, {size(total)}")
        there = target.run_ids() if below else []
        if left := [child for child in below if child not in there]:
            what = count(len(left), "child run")
            note(f"not copied: {what}, which a parent may need to resume")
            hint([_again(left, where, to, move, key_file)], err=True)
        raise typer.Exit(FOUND if failed else 0)


def _children(store: CheckpointStoreBase, run_id: str) -> list[str]:
    """The existing runs that a run has started; none if its log, or theirs, cannot be read."""
    with suppress(LogError, RecoveryError, OSError):
        return [one.run_id for one in children_below(store, status(store, run_id), {run_id})]
    return []


def _again(
    runs: Iterable[str], where: str | None, to: str, move: bool, key_file: str | None
) -> str:
    """The command that copies these runs as well."""
    given = [("--from", where), ("--to", to), ("--key-file", key_file)]
    options = [word for name, value in given if value is not None for word in (name, value)]
    return join(["recovery", "copy", *runs, *["--move"] * move, *options])
