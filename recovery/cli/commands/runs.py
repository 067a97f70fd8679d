"""``recovery runs``: list the runs of a store, with the state of each."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from shlex import quote
from typing import Annotated, NoReturn

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from recovery import CheckpointStore
from recovery.cli.commands.show import commands_for
from recovery.cli.commands.status import SHOWN_MAX, say_causes
from recovery.cli.doctor_checks import low_space
from recovery.cli.pager import paged
from recovery.cli.status_view import STYLES, as_json_object
from recovery.cli.store_options import AsJson, KeyFile, Redact, StoreOption, open_store
from recovery.cli.tables import Cell, Column, drawn, show_table
from recovery.cli.terminal import ends_politely, hint, note, output, say, show_json
from recovery.cli.times import time_ns_of, when
from recovery.inspect.listing import listed
from recovery.inspect.states import STATES
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
  recovery runs --watch --state running

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
WATCH_S = 2.0

Row = list[Cell]

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
Watch = Annotated[bool, typer.Option("--watch", help="Draw it again every two seconds.")]
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
    watch: Watch = False,
    since: Since = None,
    match: Match = "",
    sort: Sort = "id",
    limit: Limit = None,
    key_file: KeyFile = None,
    redact: Redact = None,
    as_json: AsJson = False,
) -> None:
    """The runs of a store: state, step, age, last activity, owner, and what a person decides."""
    with ends_politely(), paged(wanted=not watch):
        if wrong := {*(state or ())} - {*STATES}:
            raise ValueError(f"no such state: {', '.join(wrong)}; one of {', '.join(STATES)}")
        if sort not in ORDERS:
            raise ValueError(f"--sort {sort}: one of {', '.join(ORDERS)}")
        if watch and (as_json or not sys.stdout.isatty()):
            raise ValueError("--watch draws on a terminal; a program calls recovery runs again")
        after = -math.inf if since is None else time_ns_of("--since", since, time.time()) / 1e9
        there = open_store(store, key_file, reading=True)
        order, redaction = ORDERS[sort], Redaction(redact or ())

        def chosen() -> Iterator[RunStatus]:
            found: Iterable[RunStatus] = (
                one
                for one in listed(there, state or None, due)
                if (not state or one.state in state)
                and match in one.run_id
                and (not in_doubt or one.in_doubt)
                and (one.due or not due)
                and one.last >= after
            )
            return islice(found if order is None else sorted(found, key=order), limit)

        if watch:
            _watch(lambda: list(chosen()), there, nested=order is None)
        if as_json:
            any_shown = False
            for one in chosen():
                show_json(as_json_object(one, redaction))
                any_shown = True
            if not any_shown:
                note(_none(there))
            return
        shown = list(chosen())
        if shown:
            show_table(*_table(shown, time.time(), nested=order is None))
        else:
            say(_none(there))
        commands = commands_for(there, "", store, key_file)
        if low := low_space(there, commands.on_store):
            say(low)
        needs = [(one, redaction.text(why, "why")) for one in shown if (why := one.needs_person)]
        if len(needs) > SHOWN_MAX:
            say(f"{len(needs):,} runs need a person")
            hint([commands.on_store("status")])
        else:
            say_causes(needs)
            hint([commands.on_store(f"status {quote(one.run_id)}") for one, _ in needs])


def _watch(
    look: Callable[[], list[RunStatus]], there: CheckpointStore, *, nested: bool
) -> NoReturn:
    """Draw the table again and again, on a screen of its own, until Ctrl-C."""
    console = output()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            shown, now = look(), time.time()
            columns, rows = _table(shown, now, nested=nested)
            room = max(1, console.height - 6)
            more = f"and {len(rows) - room:,} more" if len(rows) > room else ""
            head = f"{there.backend.address}: {count(len(rows), 'run')} at {when(now)[11:]}"
            table = drawn(columns, rows[:room]) if rows else Text(_none(there))
            title = Text(printable(f"{head}; Ctrl-C ends this"), no_wrap=True)
            live.update(Group(title, table, Text(more)), refresh=True)
            time.sleep(WATCH_S)


def _none(store: CheckpointStore) -> str:
    there = sum(1 for _ in listed(store))
    where = store.backend.address or "this store"
    if there:
        return f"no such runs ({count(there, 'run')} in {where})"
    if others := store.backend.run_ids():
        return f"no runs in {where}: {others[0]} is none. Is the store another directory (--store)?"
    return f"no runs in {where}"


def _table(shown: list[RunStatus], now: float, *, nested: bool) -> tuple[list[Column], list[Row]]:
    """The columns and the rows; columns that are empty for all runs are left out."""
    unread, raised = any(one.unread for one in shown), any(_error(one) for one in shown)
    titles = (*TITLES, *["UNREAD"] * unread, *["ERROR"] * raised)
    columns = [Column(title, title in NUMBERS, FOLDED.get(title)) for title in titles]
    rows: list[Row] = []
    depths: dict[str, int] = {}
    for one in shown:
        above = one.parent.run_id if one.parent is not None and nested else ""
        depths[one.run_id] = depths.get(above, -1) + 1
        row = _cells(one, now, depths[one.run_id])
        row += [(str(len(one.unread) or "-"), "cyan")] * unread
        row += [(_error(one) or "-", "red")] * raised
        rows.append(row)
    return columns, rows


def _cells(one: RunStatus, now: float, depth: int) -> Row:
    owner = one.owner if one.owner is not None and one.owner.alive else None
    calls = () if one.state in ("cancelled", "undone") else one.calls
    damaged = one.state == "damaged"
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
            ", ".join(["key"] * one.needs_key or ["repair"] * damaged or [*doubt, *asking]) or "-",
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
