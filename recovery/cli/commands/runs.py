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
from recovery.cli.times import time_ns_of
from recovery.inspect.listing import listed
from recovery.inspect.status import STATES
from recovery.reports import RunStatus
from recovery.text import age, count, printable
from recovery.values.render import Redaction

MORE = """\b
examples:
  recovery runs
  recovery runs --state interrupted --state "in doubt"
  recovery runs --in-doubt --json | jq -r .run_id
  recovery runs --sort last --limit 20
  recovery runs --since yesterday

\b
--json prints an object a run, the first of what recovery show --json has.
Child runs are indented under the run that started them (with --sort id).
"""

ORDERS: dict[str, Callable[[RunStatus], float] | None] = {
    "id": None,
    "last": lambda one: -one.last,
    "age": lambda one: one.started or math.inf,
}

TITLES = ("RUN", "STATE", "STEP", "AGE", "LAST", "OWNER", "TO DECIDE")
NUMBERS = ("STEP", "AGE", "LAST", "UNREAD")
# The least and the largest width of columns whose texts are folded.
FOLDED = {"RUN": (8, None), "OWNER": (None, 16), "TO DECIDE": (None, 16), "ERROR": (None, 20)}
TABLE_MAX = 200  # rows of a table; more are printed as plain lines

Row = list[tuple[str, str]]  # texts and styles

States = Annotated[
    list[str] | None,
    typer.Option("--state", metavar="STATE", help=f"Only runs that are: {', '.join(STATES)}."),
]
InDoubt = Annotated[bool, typer.Option("--in-doubt", help="Only runs with calls in doubt.")]
Due = Annotated[bool, typer.Option("--due", help="Only runs that would continue if resumed now.")]
Since = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Only runs with a record since then: RFC 3339, yesterday, '10 min', 2h.",
        show_default=False,
    ),
]
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
    since: Since = None,
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
        after = -math.inf if since is None else time_ns_of("--since", since, now) / 1e9
        there = open_store(store, key_file, reading=True)
        found: Iterable[RunStatus] = (
            one
            for one in listed(there)
            if (not state or one.state in state)
            and match in one.run_id
            and (not in_doubt or one.in_doubt)
            and (one.due or not due)
            and one.last >= after
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
        rows = _rows(shown, now, nested=order is None)
        if len(shown) > TABLE_MAX:
            _print_plain(rows)
        elif shown:
            output().print(_table(rows))
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


def _rows(shown: list[RunStatus], now: float, *, nested: bool) -> list[Row]:
    """The header and the rows; columns that are empty for all runs are left out."""
    unread, raised = any(one.unread for one in shown), any(_error(one) for one in shown)
    titles = (*TITLES, *["UNREAD"] * unread, *["ERROR"] * raised)
    rows: list[Row] = [[(title, "") for title in titles]]
    depths: dict[str, int] = {}
    for one in shown:
        above = one.parent.run_id if one.parent is not None and nested else ""
        depths[one.run_id] = depths.get(above, -1) + 1
        row = _cells(one, now, depths[one.run_id])
        row += [(str(len(one.unread) or "-"), "cyan")] * unread
        row += [(_error(one) or "-", "red")] * raised
        rows.append([(printable(text), style) for text, style in row])
    return rows


def _table(rows: list[Row]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for title, _ in rows[0]:
        if title in FOLDED:
            min_width, max_width = FOLDED[title]
            table.add_column(title, overflow="fold", min_width=min_width, max_width=max_width)
        else:
            table.add_column(title, justify="right" if title in NUMBERS else "left", no_wrap=True)
    for row in rows[1:]:
        table.add_row(*(Text(text, style) for text, style in row))
    return table


def _print_plain(rows: list[Row]) -> None:
    """The same without a table of Rich, which takes 0.4 ms a row."""
    widths = [max(len(row[i][0]) for row in rows) for i in range(len(rows[0]))]
    aligned = [">" if title in NUMBERS else "<" for title, _ in rows[0]]
    line = "  ".join(f"{{:{side}{width}}}" for side, width in zip(aligned, widths, strict=True))
    typer.echo("\n".join(line.format(*(text for text, _ in row)).rstrip() for row in rows))


def _cells(one: RunStatus, now: float, depth: int) -> Row:
    owner = one.owner if one.owner is not None and one.owner.alive else None
    calls = () if one.state in ("cancelled", "undone") else one.calls
    asking = [f"approve {call.name}" for call in calls if call.state == "asks"]
    doubt = [c.name for c in calls if c.state == "in doubt" and c.after_crash == "park"]
    return [
        ("  " * depth + one.run_id, ""),
        (one.state, STYLES.get(one.state, "")),
        (str(one.progress.step or "-"), ""),
        (_ago(one.started, now), ""),
        (_ago(one.last, now), ""),
        (f"{owner.pid}@{owner.host}" if owner else "-", ""),
        (
            ", ".join([*doubt, *asking]) or "-",
            "bold red" if doubt else STYLES["asks"] if asking else "",
        ),
    ]


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
