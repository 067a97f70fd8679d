"""Draws the output of ``logdump diff``. Needs Rich."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from logdump.diff.text import pieces
from recovery.cli.status_view import grid
from recovery.inspect.compare import compared
from recovery.inspect.differences import Ended, FoundDifference, RunComparison, Side, read_alike
from recovery.text import count, printable
from recovery.values.diff import ABSENT, differing
from recovery.values.render import Term, arguments_text, short

VALUE_MAX = 300  # characters of a value
WHOLE_MAX = 60  # of a text that is shown unchanged
ROWS_MAX = 20  # differing paths shown of a changed message

_STYLES = {"-": "red", "+": "green"}
_MARKS = {"-": ("[-", "-]"), "+": ("{+", "+}")}


class Screen:
    """Draws differences, one after the other."""

    def __init__(self, console: Console, comparing: RunComparison) -> None:
        self.console, self.comparing = console, comparing
        self.shown = 0
        self._about: tuple[Any, ...] = ()

    def head(self) -> None:
        """Which runs these are."""
        runs = [
            (mark, run, f"bold {_STYLES[mark]}")
            for mark, run in (("-", self.comparing.a), ("+", self.comparing.b))
        ]
        self.console.print(
            grid(
                [
                    (mark, line, style if not i else "bold red")
                    for mark, run, style in runs
                    for i, line in enumerate(str(compared(run)).splitlines())
                ]
            )
        )
        if self.comparing.from_step:
            self._line(f"compared from the end of step {self.comparing.from_step} on")

    def show(self, one: FoundDifference) -> None:
        """A difference; those of one call go under one heading."""
        if not self.shown:
            self._first(one)
        lsns = one.a.lsn if one.a else 0, one.b.lsn if one.b else 0
        about = one.step, one.what, one.name, lsns
        if about != self._about:
            self.console.print()
            self._heading(one, lsns)
        self._about = about
        self.shown += 1
        table = Table.grid(padding=(0, 1))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for label, text in self._rows(one):
            table.add_row(label, text)
        self.console.print(table)

    def end(self, left: int) -> None:
        """The number of differences."""
        alike = f"{count(self.comparing.alike, 'call')} alike"
        found = self.shown + left
        if found:
            self.console.print()
        text = count(found, "difference") if found else "no difference"
        shown = f" ({self.shown} shown: --all)" if left else ""
        self._line(f"{text}{shown}; {alike}")

    def _first(self, one: FoundDifference) -> None:
        before = ""
        if self.comparing.before is not None:
            step, a, b = self.comparing.before
            lsns = f"LSN {a.lsn}" if a.lsn == b.lsn else f"LSN {a.lsn} | {b.lsn}"
            before = f"; before it alike: {a.name} in step {step} ({lsns})"
        where = f"in step {one.step}" if one.step else "before the first step"
        self._line(f"first divergence {where}: {_words(one)}{before}", "bold")

    def _heading(self, one: FoundDifference, lsns: tuple[int, int]) -> None:
        text = Text(f"step {one.step}  {printable(_words(one))}", "bold")
        if any(lsns):
            text.append(f"  LSN {lsns[0] or '-'} | {lsns[1] or '-'}", "not bold dim")
        self.console.print(text, overflow="fold")

    def _rows(self, one: FoundDifference) -> Iterator[tuple[str, Text]]:
        """Paths, and below each the values of the first and the second run."""
        a, b = one.a, one.b
        if one.what == "messages" and a and b and a.head and a.head == b.head:
            yield from _messages(a, b)
            return
        if one.path:
            yield "", Text(printable(one.path.removeprefix(".")), "italic")
        if a and b and not a.head and not b.head:
            yield from _pair(a.value, b.value)
            return
        for mark, side in (("-", a), ("+", b)):
            if side is not None:
                yield f"  {mark}", Text(_side(one, side), _STYLES[mark])

    def _line(self, text: str, style: str = "") -> None:
        self.console.print(Text(printable(text), style), overflow="fold")


def _messages(a: Side, b: Side) -> Iterator[tuple[str, Text]]:
    """The differences within the same change of messages."""
    found: Iterator[tuple[str, Any, Any]] = (
        (f"messages[{a.start + i}]{path if path[:1] in ('', '[') else '.' + path}", here, there)
        for i, (one, other) in enumerate(zip_longest(a.value, b.value, fillvalue=ABSENT))
        for path, here, there in differing(one, other, "", read_alike)
    )
    i = -1
    for i, (path, here, there) in enumerate(found):
        if i == ROWS_MAX:
            yield "", Text("and more")
            return
        yield "", Text(printable(path), "italic")
        yield from _pair(here, there)
    if i < 0:
        yield "", Text(f"{a.head}: what differs is hidden")


def _words(one: FoundDifference) -> str:
    """The difference, in words."""
    alone = one.a is None or one.b is None
    match one.what:
        case "call":
            which = "first" if one.b is None else "second"
            return f"{one.name}, which only the {which} run made" if alone else one.name
        case "arguments" | "outcome":
            return f"{one.what} of {one.name}"
        case "steps":
            return f"steps {one.name}".strip()
    return one.what


def _side(one: FoundDifference, side: Side) -> str:
    """A value that only one run has, or that has different kinds."""
    dropped = " (dropped)" if side.dropped else ""
    if one.what == "call":
        return f"{printable(side.head)}{arguments_text(side.value, VALUE_MAX)}{dropped}"
    head = f"{side.head} = " if side.head else ""
    return f"{head}{_value(side.value)}"


def _value(value: Any) -> str:
    if isinstance(value, Ended):
        return ", ".join(f"{end}: {short(what, VALUE_MAX)}" for end, what in value.items())
    return short(Term("(absent)") if value is ABSENT else value, VALUE_MAX)


def _pair(a: Any, b: Any) -> Iterator[tuple[str, Text]]:
    """Two values, one below the other; of long texts, the parts that differ."""
    texts = type(a) is str and type(b) is str
    if texts and max(len(a), len(b)) > WHOLE_MAX:
        for mark, found in zip("-+", pieces(a, b), strict=True):
            yield f"  {mark}", _marked(mark, found)
        return
    for mark, value in (("-", a), ("+", b)):
        yield f"  {mark}", Text(_value(value), _STYLES[mark])


def _marked(mark: str, found: list[tuple[str, bool]]) -> Text:
    opening, closing = _MARKS[mark]
    text = Text('"')
    for part, differs in found:
        quoted = short(part, None)[1:-1]
        style = f"bold {_STYLES[mark]}" if differs else ""
        text.append(f"{opening}{quoted}{closing}" if differs and part else quoted, style)
    return text.append('"')
