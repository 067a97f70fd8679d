"""``recovery runs``: list the runs of a store, with the state of each."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from recovery import CheckpointStore
from recovery.cli.commands.show import commands_for
from recovery.cli.doctor_checks import low_space
from recovery.cli.status_view import STYLES, as_json_object
from recovery.cli.store_options import AsJson, KeyFile, Redact, StoreOption, open_store
from recovery.cli.terminal import ends_politely, hint, output, say, show_json
from recovery.inspect.status import STATES
from recovery.inspect.status import runs as all_runs
from recovery.reports import RunStatus
from recovery.text import age, count, printable
from recovery.values.render import Redaction

MORE = """\b
examples:
  recovery runs
  recovery runs --state interrupted --state "in doubt"
  recovery runs --in-doubt --json | jq -r .run_id
  recovery runs --sort last --limit 20

\b
--json prints an object a run, the first of what recovery show --json has.
Child runs are indented under the run that started them (with --sort id).
"""

ORDERS: dict[str, Callable[[RunStatus], float] | None] = {
    "id": None,
    "last": lambda one: -one.last,
    "age": lambda one: one.started or math.inf,
}

States = Annotated[
    list[str] | None,
    typer.Option("--state", metavar="STATE", help=f"Only runs that are: {', '.join(STATES)}."),
]
InDoubt = Annotated[bool, typer.Option("--in-doubt", help="Only runs with calls in doubt.")]
Due = Annotated[bool, typer.Option("--due", help="Only runs that would continue if resumed now.")]
Match = Annotated[str, typer.Option(metavar="TEXT", help="Only runs with this in their id.")]


Sort = Annotated[
    str,
    typer.Option(metavar="id|last|age", help="By id, the latest activity first, the oldest first."),
]
Limit = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Only the first N.", show_default=False)
]


def command(
    store: StoreOption = None,
    state: States = None,
    in_doubt: InDoubt = False,
    due: Due = False,
    match: Match = "",
    sort: Sort = "id",
    limit: Limit = None,
    key_file: KeyFile = None,
    redact: Redact = None,
    as_json: AsJson = False,
) -> None:
    """The runs of a store: state, step, age, last activity, owner, and what a person decides."""
    with ends_politely():
        if wrong := {*(state or ())} - {*STATES}:
            raise ValueError(f"no such state: {', '.join(wrong)}; one of {', '.join(STATES)}")
        if sort not in ORDERS:
            raise ValueError(f"--sort {sort}: one of {', '.join(ORDERS)}")
        now = time.time()
        there = open_store(store, key_file, reading=True)
        found: Iterable[RunStatus] = (
            one
            for one in all_runs(there)
            if (not state or one.state in state)
            and match in one.run_id
            and (not in_doubt or one.in_doubt)
            and (one.due or not due)
        )
        if (order := ORDERS[sort]) is not None:
            found = sorted(found, key=order)
        found = islice(found, limit)
        if as_json:
            any_shown = False
            for one in found:
                show_json(as_json_object(one, Redaction(redact or ())))
                any_shown = True
            if not any_shown:
                typer.echo(_none(there), err=True)
            return
        shown = list(found)
        # Columns that are empty for all runs are left out.
        unread, raised = any(one.unread for one in shown), any(_error(one) for one in shown)
        table = _table(unread, raised)
        depths: dict[str, int] = {}
        for one in shown:
            above = one.parent.run_id if one.parent is not None and order is None else ""
            depths[one.run_id] = depths.get(above, -1) + 1
            cells = _cells(one, now, depths[one.run_id])
            sent = [Text(str(len(one.unread) or "-"), "cyan")] * unread
            errors = [Text(printable(_error(one) or "-"), "red")] * raised
            table.add_row(*cells, *sent, *errors)
        if table.row_count:
            output().print(table)
        else:
            say(_none(there))
        if low := low_space(there):
            say(low)
        for one in shown:
            if one.crash_loop:
                say(f"{one.run_id}: {one.crash_loop}")
                hint([commands_for(there, one.run_id, store, key_file).of("show")])


def _none(store: CheckpointStore) -> str:
    there = len(store.backend.run_ids())
    return f"no such runs ({count(there, 'run')} in the store)" if there else "no runs"


def _table(unread: bool, raised: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("RUN", overflow="fold", min_width=8)
    table.add_column("STATE", no_wrap=True)
    for name in ("STEP", "AGE", "LAST"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("OWNER", overflow="fold", max_width=16)
    table.add_column("TO DECIDE", overflow="fold", max_width=16)
    if unread:
        table.add_column("UNREAD", justify="right", no_wrap=True)
    if raised:
        table.add_column("ERROR", overflow="fold", max_width=20)
    return table


def _cells(one: RunStatus, now: float, depth: int) -> tuple[Text, ...]:
    owner = one.owner if one.owner is not None and one.owner.alive else None
    is_over = one.state in ("cancelled", "undone")
    asking = [f"approve {call.name}" for call in one.calls if call.state == "asks" and not is_over]
    doubt = [call.name for call in one.in_doubt if call.after_crash == "park"]
    texts = (
        "  " * depth + one.run_id,
        one.state,
        str(one.progress.step or "-"),
        _ago(one.started, now),
        _ago(one.last, now),
        f"{owner.pid}@{owner.host}" if owner else "-",
        ", ".join([*doubt, *asking]) or "-",
    )
    decide = "bold red" if doubt else STYLES["asks"] if asking else ""
    styles = ("", STYLES.get(one.state, ""), "", "", "", "", decide)
    return tuple(Text(printable(text), style) for text, style in zip(texts, styles, strict=True))


def _error(one: RunStatus) -> str:
    """The last error of its agent, if the run has not got past it; and a crash loop."""
    if one.crash_loop:
        return f"crashed {one.crashes}x"
    error = one.error
    if error is None or error.is_past:
        return ""
    often = f" {error.in_a_row}x" if error.in_a_row > 1 else ""
    return f"{error.type.rpartition('.')[2]}{often}"


def _ago(seconds: float, now: float) -> str:
    return age(now - seconds) if seconds else "-"
