"""Prints tables: drawn on a terminal, plain rows in a pipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from recovery.cli.terminal import output
from recovery.text import columns as width_of
from recovery.text import printable

TABLE_MAX = 200  # rows that are drawn, which takes 0.4 ms each; more are printed as plain ones

Cell = tuple[str, str]  # text and style


@dataclass(frozen=True)
class Column:
    """``right``: for numbers. ``folded``: the least and the largest width; None for one line."""

    title: str
    right: bool = False
    folded: tuple[int | None, int | None] | None = None


def show_table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> None:
    """Print the rows below the titles of their columns."""
    console = output()
    if console.is_terminal and len(rows) <= TABLE_MAX:
        console.print(drawn(columns, rows))
        return
    texts = [
        [one.title for one in columns],
        *([printable(text) for text, _ in row] for row in rows),
    ]
    widths = [max(map(width_of, column)) for column in zip(*texts, strict=True)]
    for row in texts:
        cells = []
        for one, text, width in zip(columns, row, widths, strict=True):
            blank = " " * (width - width_of(text))
            cells.append(blank + text if one.right else text + blank)
        typer.echo("  ".join(cells).rstrip())


def drawn(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> Table:
    """The same as a table of Rich."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for one in columns:
        if one.folded is not None:
            least, most = one.folded
            table.add_column(one.title, overflow="fold", min_width=least, max_width=most)
        else:
            table.add_column(one.title, justify="right" if one.right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(printable(text), style) for text, style in row))
    return table
