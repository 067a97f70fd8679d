"""Draws the output of ``logdump stats`` on one screen. Needs Rich."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from eventlog import LogReader, Record
from logdump.context import Context
from logdump.stats.log_statistics import PARTS, LogStatistics, ToolTotals
from recovery.cli.status_view import grid
from recovery.inspect.calls_without_outcome import packed_value
from recovery.journal.encoding import decode_shallow
from recovery.journal.events import CallIntended
from recovery.replay.error_counts import RunError
from recovery.text import columns, count, cut, duration, printable, size
from recovery.values.render import arguments_text, readable

if TYPE_CHECKING:
    from logdump.stats.frames import Frames

ROWS_MAX = 6  # of a table, on the screen
NAME_WIDTH_MAX = 24
SPARKS_MAX = 40
SPARKS, PLAIN_SPARKS = "▁▂▃▄▅▆▇█", "_.-=+*#@"
SLOW = 5.0  # growth of bytes per step, last tenth against first, that is shown yellow

Row = tuple[str, str, str]
Cell = Callable[[ToolTotals], str]

# Columns of a tool: heading, value, and whether the column is needed.
_NUMBERS: tuple[tuple[str, Cell, Callable[[ToolTotals], object]], ...] = (
    ("calls", lambda t: f"{t.calls:,}", lambda t: True),
    ("tries", lambda t: f"{t.attempts:,}", lambda t: t.attempts - t.calls),
    ("failed", lambda t: f"{t.failed:,}", lambda t: t.failed),
    ("open", lambda t: f"{t.open:,}", lambda t: t.open),
    ("total", lambda t: _taken(t, t.durations.total_ns), lambda t: t.durations.count),
    (
        "median",
        lambda t: "~" * (not t.durations.exact) + _taken(t, t.durations.median_ns()),
        lambda t: t.durations.count,
    ),
    ("max", lambda t: _taken(t, t.durations.longest_ns), lambda t: t.durations.count),
)
_SIZES: tuple[tuple[str, Cell, Callable[[ToolTotals], object]], ...] = (
    ("args", lambda t: size(t.arguments_size), lambda t: t.arguments_size),
    ("results", lambda t: size(t.results_size), lambda t: t.results_size),
    ("tokens in", lambda t: f"{t.used.input_tokens:,}", lambda t: t.used.input_tokens),
    ("out", lambda t: f"{t.used.output_tokens:,}", lambda t: t.used.output_tokens),
    ("cost", lambda t: f"{t.used.cost:,.6g}", lambda t: t.used.cost),
)


class Screen:
    """Draws the statistics of a log."""

    def __init__(
        self, context: Context, reader: LogReader, statistics: LogStatistics, frames: Frames
    ) -> None:
        self.context, self.reader, self.statistics, self.frames = (
            context,
            reader,
            statistics,
            frames,
        )
        self.console = context.console

    def show(self, by: str | None) -> None:
        """Draw the screen, or the whole of one table."""
        if by is None:
            self.console.print(grid(self._rows()))
        if by in (None, "tool") and self.statistics.tools:
            self._tools(None if by else ROWS_MAX)
        if by is None and self.statistics.slow:
            self._slowest()
        if by is None and self.statistics.steps:
            self._parts()
        if by in (None, "kind") and self.statistics.kinds:
            self._kinds(None if by else ROWS_MAX)

    # -- in lines

    def _rows(self) -> Iterator[Row]:
        statistics, frames = self.statistics, self.frames
        yield "log", self._log(), ""
        if frames.hidden:
            text = (
                f"{count(frames.hidden, 'record')} under the key {frames.key_id}: not looked into"
            )
            yield "encrypted", f"{text} (--key-file)", "yellow"
        if statistics.is_run:
            yield "run", self._run(), ""
            yield "time", self._time(), ""
        if statistics.recoveries.count:
            yield "recovered", self._recovered(), ""
        if statistics.errors.last is not None:
            yield (
                "errors",
                _errors(statistics.errors.last),
                "" if statistics.errors.last.is_past else "red",
            )
        if statistics.checkpoints.count:
            yield "snapshots" if not statistics.is_run else "checkpoints", self._checkpoints(), ""
        if statistics.steps:
            yield "growth", *self._growth()
        if frames.torn:
            yield "torn", f"{size(frames.torn)} never acknowledged, not counted", "yellow"
        for finding in frames.shown:
            yield "NOT COUNTED", finding.text, "bold red"
        if frames.problems > len(frames.shown):
            yield "", f"and {frames.problems - len(frames.shown)} more: logdump verify", "bold red"
        if statistics.unreadable:
            text = f"{count(statistics.unreadable, 'record')} make no sense; counted by kind alone"
            yield "UNREADABLE", text, "bold red"

    def _log(self) -> str:
        statistics, frames = self.statistics, self.frames
        records = statistics.records + frames.hidden
        lsns = f", LSN {frames.first_lsn}-{frames.last_lsn}" if records else ""
        parts = [f"{count(records, 'record')}{lsns}, in {count(frames.frames, 'frame')}"]
        if not frames.hidden:
            parts.append(f"{size(statistics.size)} of bodies")
            if frames.size:
                over = frames.size - statistics.size
                parts.append(f"frames add {size(over)} ({over / frames.size:.0%} of them)")
        else:
            parts.append(f"{size(frames.size)} of frames")
        parts.append(f"{size(frames.on_disk)} on disk in {count(frames.segments, 'segment')}")
        return "; ".join(parts)

    def _run(self) -> str:
        tools, used = self.statistics.tools.values(), self.statistics.used
        attempts = sum(tool.attempts for tool in tools)
        failed, still = sum(tool.failed for tool in tools), sum(tool.open for tool in tools)
        parts = [count(self.statistics.steps, "step"), count(self.statistics.calls, "call")]
        if attempts != self.statistics.calls:
            parts.append(count(attempts, "attempt"))
        parts += [f"{failed} failed"] * bool(failed) + [f"{still} open"] * bool(still)
        if used.input_tokens or used.output_tokens:
            parts.append(f"{used.input_tokens:,} + {used.output_tokens:,} tokens")
        if used.cost:
            parts.append(f"cost {used.cost:,.6g}")
        return ", ".join(parts)

    def _time(self) -> str:
        spent = self.statistics.time
        wall = spent.last_ns - spent.first_ns
        own = spent.at_work_ns - spent.in_tools_ns - spent.waiting_ns
        parallel = ""
        if spent.parallel_ns:
            parallel = f" ({spent.parallel_ns / spent.in_tools_ns:.0%} of it in several at once)"
        return (
            f"{_time(wall)} from first to last record, {_time(spent.at_work_ns)} at work: "
            f"{_time(spent.in_tools_ns)} in tools{parallel}, {_time(spent.waiting_ns)} waiting, "
            f"{_time(own)} in the agent's own code"
        )

    def _recovered(self) -> str:
        found = self.statistics.recoveries
        parts = [f"{found.count}x: {count(found.replayed, 'record')} replayed"]
        served = found.served
        if served.outcomes:
            text = f"{count(served.outcomes, 'outcome')} among them served from the log"
            spared = []
            if served.input_tokens or served.output_tokens:
                spared.append(f"{served.input_tokens + served.output_tokens:,} tokens")
            spared += [f"cost {served.cost:,.6g}"] * bool(served.cost)
            parts.append(
                f"{text}{' (' + ', '.join(spared) + ' not spent again)' if spared else ''}"
            )
        if found.repeated:
            parts.append(f"{count(found.repeated, 'call')} made again")
        if found.unknown:
            parts.append(f"of {found.unknown} the checkpoint is not in the log")
        return ", ".join(parts)

    def _checkpoints(self) -> str:
        found, whole = self.statistics.checkpoints, max(1, self.statistics.size)
        return (
            f"{found.count:,}, {size(found.size)} ({found.size / whole:.0%} of the bodies); "
            f"mean {size(found.size // found.count)}, largest {size(found.largest)} "
            f"(LSN {found.largest_lsn})"
        )

    def _growth(self) -> tuple[str, str]:
        first, last = (sum(tenth) for tenth in self.statistics.growth.tenths())
        text = f"{size(round(first))} per step in the first tenth, {size(round(last))} in the last"
        many = self.statistics.growth.per_step()
        if len(many) > 1:
            is_plain = not (self.console.encoding or "").lower().startswith("utf")
            text += f"  {_sparkline(many, PLAIN_SPARKS if is_plain else SPARKS)}"
        return text, "yellow" if last > SLOW * first else ""

    # -- in tables

    def _tools(self, most: int | None) -> None:
        found = sorted(  # tools with open calls first, then those that took the longest
            self.statistics.tools.items(),
            key=lambda item: (not item[1].open, -item[1].durations.total_ns, -item[1].calls),
        )
        shown = [tool for _, tool in found]
        numbers, sizes = (
            [(name, cell) for name, cell, there in known if any(map(there, shown))]
            for known in (_NUMBERS, _SIZES)
        )
        for cells_of in self._fitting(found, numbers, sizes):
            table = _table("tool", *(name for name, _ in cells_of))
            for name, tool in found[:most]:
                cells = [cell(tool) for _, cell in cells_of]
                style = "yellow" if tool.failed or tool.open else ""
                table.add_row(Text(_name(name)), *cells, style=style)
            self._print(table)
        self._more(len(found), most, "tool")

    def _fitting(
        self,
        found: list[tuple[str, ToolTotals]],
        numbers: list[tuple[str, Cell]],
        sizes: list[tuple[str, Cell]],
    ) -> list[list[tuple[str, Cell]]]:
        """All columns in one table where the terminal is wide enough, else in two."""
        whole = [*numbers, *sizes]
        widths = [max(len(name), *(len(cell(tool)) for _, tool in found)) for name, cell in whole]
        named = max(len(_name(name)) for name, _ in found)
        if named + sum(width + 1 for width in widths) <= self.console.width or not sizes:
            return [whole]
        return [numbers, sizes]

    def _slowest(self) -> None:
        slow = self.statistics.slow
        intents = self.reader.fetch({-lsn for _, lsn, *_ in slow})
        rows = []
        for ns, lsn, tool, call_id, step, attempt in slow:
            again = f" (try {attempt})" if attempt > 1 else ""
            named = cut(printable(f"{tool} {call_id}".strip()), NAME_WIDTH_MAX)
            given = self._arguments(intents.get(-lsn))
            rows.append((f"{named}#{-lsn}{again}", f"{step:,}", _time(ns), given))
        taken = sum(
            max(len(head), *(columns(row[i]) for row in rows)) + 1
            for i, head in enumerate(("slowest", "step", "took"))
        )
        table = _table("slowest", "step", "took")
        table.add_column("arguments", no_wrap=True)
        room = max(0, self.console.width - taken)
        for name, at, took, given in rows:
            table.add_row(Text(name), at, took, Text(cut(given, room)))
        self._print(table)

    def _arguments(self, record: Record | None) -> str:
        try:
            event = decode_shallow(record) if record is not None else None
        except ValueError:
            event = None
        if not isinstance(event, CallIntended):
            return ""
        packed = packed_value(event.args)
        if packed is None:
            return f"{size(event.size)}, by digest"
        return arguments_text(self.context.redaction.shown(readable(packed), event.tool), 60)[1:-1]

    def _parts(self) -> None:
        first, last = self.statistics.growth.tenths()
        table = _table("what grows", "bytes", "first tenth", "last tenth", "of all")
        whole = max(1, self.statistics.size)
        for i, part in enumerate(PARTS):
            total = self.statistics.parts[part]
            if total:
                table.add_row(
                    part,
                    size(total),
                    f"{size(round(first[i]))}/step",
                    f"{size(round(last[i]))}/step",
                    f"{total / whole:.0%}",
                )
        self._print(table)

    def _kinds(self, most: int | None) -> None:
        table = _table("kind", "records", "bytes", "mean", "of all")
        whole = max(1, self.statistics.size)
        found = sorted(self.statistics.kinds.items(), key=lambda item: -item[1].size)
        for name, kind in found[:most]:
            table.add_row(
                Text(_name(name)),
                f"{kind.records:,}",
                size(kind.size),
                size(kind.size // kind.records),
                f"{kind.size / whole:.0%}",
            )
        self._print(table)
        self._more(len(found), most, "kind")

    def _print(self, table: Table) -> None:
        self.console.print()
        self.console.print(table)

    def _more(self, there: int, most: int | None, by: str) -> None:
        if most is not None and there > most:
            self.console.print(f"and {there - most} more: --by {by}")


def _table(name: str, *columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column(name, no_wrap=True, overflow="ellipsis")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _name(name: str) -> str:
    return cut(printable(name), NAME_WIDTH_MAX)


def _time(ns: int) -> str:
    return duration(ns / 1e9)


def _taken(tool: ToolTotals, ns: int) -> str:
    return _time(ns) if tool.durations.count else "-"


def _sparkline(numbers: list[float], sparks: str) -> str:
    """As many characters as fit, each the mean of its stretch, scaled from 0 to the largest."""
    each = -(-len(numbers) // SPARKS_MAX)
    means = [
        sum(numbers[i : i + each]) / len(numbers[i : i + each])
        for i in range(0, len(numbers), each)
    ]
    top = max(means) or 1.0
    return "".join(sparks[min(len(sparks) - 1, int(mean / top * len(sparks)))] for mean in means)


def _errors(last: RunError) -> str:
    """The errors of the agent's own code, without their messages, which may hold any value."""
    often = f", {last.in_a_row} times in a row" if last.in_a_row > 1 else ""
    past = "; the run has got further since" if last.is_past else ""
    where = f" at {last.place}" if last.place else ""
    kind = last.type.removeprefix("builtins.")
    newest = f"{kind} in step {last.step}{where}{often}{past}"
    return f"{last.total}x by the agent's own code; the last: {newest}"
