"""``recovery doctor``: check that this machine and this store keep the library's promises."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

import typer
from rich.table import Table
from rich.text import Text

from recovery.cli.doctor_checks import examine, examine_server
from recovery.cli.doctor_disk import Check, Level
from recovery.cli.exit_codes import FOUND, OK
from recovery.cli.next_steps import Commands
from recovery.cli.store_options import AsJson, KeyFile, StoreOption, file_store, open_store, url_in
from recovery.cli.terminal import ends_politely, output, say, show_json
from recovery.text import count, printable, size

MORE = """\b
It makes a log of its own in the store, tries locks, names and flushes with
it, and removes it again. Runs are only read.

\b
exit codes:
  0    no problem (there may be warnings)
  1    a problem was found

\b
examples:
  recovery doctor
  recovery doctor --store /srv/agents
  recovery doctor --json | jq '.checks[] | select(.level != "ok")'
"""

STYLES: dict[Level, str] = {"ok": "green", "warning": "yellow", "problem": "bold red"}
LEVEL_WIDTH, NAME_WIDTH = 7, 11


def command(store: StoreOption = None, key_file: KeyFile = None, as_json: AsJson = False) -> None:
    """Check versions, the store, its file system, the cost of a flush, and runs in trouble."""
    with ends_politely():
        levels: Counter[Level] = Counter()
        checks = []
        if url_in(store) is not None:
            backend = open_store(store, key_file, reading=True).backend
            found = examine_server(backend, Commands("", store, "", key_file).on_store)
        else:
            files = file_store(store, key_file, reading=True)
            found = examine(files, size, Commands("", store, "", key_file).on_store)
        for check in found:
            levels[check.level] += 1
            if as_json:
                checks.append(asdict(check))
            else:
                output().print(_line(check))
        if as_json:
            show_json({"ok": not levels["problem"], "checks": checks})
        else:
            said = [
                count(levels[level], level) for level in ("problem", "warning") if levels[level]
            ]
            say(", ".join(said) or "all is well")
        raise typer.Exit(FOUND if levels["problem"] else OK)


def _line(check: Check) -> Table:
    line = Table.grid(padding=(0, 1))
    line.add_column(width=LEVEL_WIDTH)
    line.add_column(width=NAME_WIDTH)
    line.add_column(overflow="fold")
    line.add_row(Text(check.level, STYLES[check.level]), check.name, Text(printable(check.text)))
    if check.todo:
        line.add_row("", "", Text(f"-> {printable(check.todo)}", "bold"))
    return line
