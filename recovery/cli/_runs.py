"""``recovery runs``: the runs of a store, and how it stands with each."""

from __future__ import annotations

import time
from typing import Annotated, get_args

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from recovery import RunStatus
from recovery import runs as all_runs
from recovery._status import State
from recovery.cli._status import STYLES, as_json_object, is_due
from recovery.cli._store import AsJson, KeyFile, Redact, StoreOption, open_store
from recovery.cli._terminal import ends_politely, output, say, show_json
from recovery.cli._text import age, printable
from recovery.cli._values import Redaction

MORE = """\b
examples:
  recovery runs
  recovery runs --state interrupted --state "in doubt"
  recovery runs --in-doubt --json | jq -r .run_id

\b
--json prints an object a run, as recovery show does.
"""

STATES = get_args(State)

States = Annotated[
    list[str] | None,
    typer.Option("--state", metavar="STATE", help=f"Only runs that are: {', '.join(STATES)}."),
]
InDoubt = Annotated[bool, typer.Option("--in-doubt", help="Only runs with calls in doubt.")]
Due = Annotated[bool, typer.Option("--due", help="Only runs that go on when they are run again.")]
Match = Annotated[str, typer.Option(metavar="TEXT", help="Only runs with this in their id.")]


def command(
    store: StoreOption = None,
    state: States = None,
    in_doubt: InDoubt = False,
    due: Due = False,
    match: Match = "",
    key_file: KeyFile = None,
    redact: Redact = None,
    as_json: AsJson = False,
) -> None:
    """The runs of a store: state, step, age, last activity, owner, calls in doubt."""
    with ends_politely():
        if wrong := {*(state or ())} - {*STATES}:
            raise ValueError(f"no such state: {', '.join(wrong)}; one of {', '.join(STATES)}")
        now = time.time()
        found = (
            one for one in all_runs(open_store(store, key_file, reading=True))
            if (not state or one.state in state) and match in one.run_id
            and (not in_doubt or one.in_doubt) and (not due or is_due(one, now))
        )  # fmt: skip
        if as_json:
            for one in found:
                show_json(as_json_object(one, Redaction(redact or ())))
            return
        table = _table()
        for one in found:
            table.add_row(*_cells(one, now))
        if table.row_count:
            output().print(table)
        else:
            say("no such runs")


def _table() -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("RUN", overflow="fold", min_width=8)
    table.add_column("STATE", no_wrap=True)
    for name in ("STEP", "AGE", "LAST"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("OWNER", overflow="fold")
    table.add_column("IN DOUBT", overflow="fold")
    return table


def _cells(one: RunStatus, now: float) -> tuple[Text, ...]:
    owner = one.owner if one.owner is not None and one.owner.alive else None
    texts = (
        one.run_id, one.state, str(one.progress.step or "-"), _ago(one.started, now),
        _ago(one.last, now), f"{owner.pid}@{owner.host}" if owner else "-",
        ", ".join(call.name for call in one.in_doubt) or "-",
    )  # fmt: skip
    styles = ("", STYLES.get(one.state, ""), "", "", "", "", "bold red" if one.in_doubt else "")
    return tuple(Text(printable(text), style)
                 for text, style in zip(texts, styles, strict=True))  # fmt: skip


def _ago(seconds: float, now: float) -> str:
    return age(now - seconds) if seconds else "-"
