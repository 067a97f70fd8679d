"""Prints records for dump: as a line, the whole value, its bytes, or JSON."""

from __future__ import annotations

from typing import Any

from eventlog import LogReader
from eventlog.format.json_values import json_text
from eventlog.read.verify import Finding
from logdump.columns import Columns, value_text
from logdump.commands.raw import Raw
from logdump.context import Context
from logdump.rows import Row
from logdump.show import as_line
from recovery.text import cut, size
from recovery.values.render import HIDDEN, Redaction, Term, pretty, readable, short

# A larger value is not decoded for the little that a line shows.
DECODED_SIZE_MAX = 4 << 20

# Fields of a run's events that hold, or may quote, arguments or results of a tool.
_OF_TOOLS = ("args", "value", "message", "traceback")


def shown_value(packed: bytes, kind: str, tool: str, redaction: Redaction) -> Any:
    """The readable value of a record of this kind, about a call of this tool, without parts that
    must not be shown."""
    value = redaction.shown(readable(packed), kind)
    if tool and redaction.hides(tool) and isinstance(value, dict):
        value |= {name: Term(HIDDEN) for name in _OF_TOOLS if name in value}
    return value


class Values:
    """The values of records, without hidden parts. ``whole``: of any size."""

    def __init__(self, redaction: Redaction, whole: bool = False) -> None:
        self._redaction, self._whole = redaction, whole or redaction.everything
        self._known: tuple[int, Any] = (0, None)  # the readable value of the record of this LSN

    def of(self, row: Row) -> Any:
        """The readable value; None when there is no key."""
        if row.record is None:
            return None
        if self._known[0] != row.lsn:
            shown = shown_value(row.record.packed, row.kind, row.tool, self._redaction)
            self._known = row.lsn, shown
        return self._known[1]

    def short(self, row: Row, width: int) -> str:
        """Its main field, in so many columns."""
        if row.hidden is not None:
            return cut(f"encrypted under the key {row.hidden.key_id}", width)
        if row.size > DECODED_SIZE_MAX and not self._whole:
            return short(Term(f"<{size(row.size)}; --full shows it>"), width)
        return value_text(row.kind, self.of(row), width)


class Lines:
    """Prints records and problems of one log in the requested form.

    ``is_run``: whether it is a run's; None to see by the first record.
    """

    def __init__(self, context: Context, reader: LogReader, is_run: bool | None) -> None:
        self._context, self._args, self._out = context, context.args, context.out
        self._reader, self._is_run = reader, is_run
        self._raw = Raw(reader, self._args.bytes_shown, bool(self._args.redact))
        self._colour = context.console.color_system is not None and not context.console.no_color
        self._columns: Columns | None = None
        self._values = Values(context.redaction, self._args.full)
        self._frame = (0, 0)  # segment and offset that --raw has shown last
        self.has_said = False  # whether anything was printed
        if is_run is not None and not self._args.as_json:
            self._begin(is_run)

    def text(self, row: Row) -> str:
        """The whole value on one line, without hidden parts."""
        return short(self._values.of(row), None)

    def show(self, item: Row | Finding) -> None:
        """Print the item."""
        self.has_said = True
        if isinstance(item, Row):
            self._show_row(item)
        elif self._args.as_json:
            self._print(as_line(item.as_json()))
        else:
            columns = self._columns or Columns(self._context.width, True, self._colour)
            self._print(columns.problem(item, self._out.isatty()))
            if self._args.raw and item.segment:
                self._segment(item.segment)
                self._print_all(self._raw.place(item.segment, item.offset, item.size))

    def end(self) -> None:
        """The log has no more items."""
        if self._args.headers and self._frame[0]:
            self._print_all(self._raw.footer(self._frame[0]))

    def _begin(self, is_run: bool) -> Columns:
        self._columns = Columns(self._context.width, is_run, self._colour)
        self._print(self._columns.heading())
        return self._columns

    def _show_row(self, row: Row) -> None:
        if self._args.as_json:
            self._print(self._json(row))
            return
        columns = self._columns or self._begin(row.event is not None)
        if self._args.raw:
            self._segment(row.segment)
        self._print(columns.line(row, lambda width: self._values.short(row, width)))
        if self._args.raw and self._frame != (row.segment, row.offset):
            self._frame = row.segment, row.offset
            self._print_all(self._raw.frame(row.segment, row.offset))
        if self._args.full and row.record is not None:
            for line in pretty(self._values.of(row), 4):
                self._print(line)

    def _segment(self, number: int) -> None:
        """With --headers, the bytes between segments."""
        before = self._frame[0]
        if self._args.headers and number != before:
            if before:
                self._print_all(self._raw.footer(before))
            self._print_all(self._raw.header(number))
        if number != before:
            self._frame = number, 0

    def _json(self, row: Row) -> str:
        head = as_line(row.as_json())
        if row.record is None:
            return head
        hidden = self._args.redact
        body = as_line(self._values.of(row)) if hidden else json_text(row.record.packed)
        return f'{head[:-1]}, "body": {body}}}'

    def _print(self, line: str) -> None:
        self._out.write(f"{line}\n")

    def _print_all(self, lines: Any) -> None:
        self._out.writelines(f"{line}\n" for line in lines)
