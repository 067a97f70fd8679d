"""Lays records out in columns that fit the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from eventlog.read.verify import Finding
from logdump.rows import Row
from recovery.cli.times import when_ns, zone_name
from recovery.text import columns, cut, duration, printable
from recovery.values.render import Term, short

# Name and width of the columns before the value, in several layouts. The first layout is used that
# leaves room for the value; the columns that are dropped last come first.
_LAYOUTS = tuple(
    tuple((name, int(width)) for name, width in (column.split(":") for column in layout.split()))
    for layout in (
        "LSN:9 TIME:23 STEP:4 KIND:14 TOOL:22 SIZE:8 TOOK:11",
        "LSN:9 TIME:12 STEP:4 KIND:14 TOOL:22 SIZE:8 TOOK:11",
        "LSN:9 TIME:12 STEP:4 KIND:14 TOOL:22 TOOK:11",
        "LSN:7 TIME:12 STEP:4 KIND:14 TOOL:14 TOOK:11",
        "LSN:7 TIME:8 STEP:4 KIND:14 TOOL:12",
        "LSN:7 STEP:4 KIND:12 TOOL:14",
        "LSN:7 KIND:12",
        "LSN:7",
    )
)
_VALUE_MIN = 24
_OF_RUNS = ("STEP", "TOOL", "TOOK")
_RIGHT = ("LSN", "STEP", "SIZE", "TOOK")
_KIND_MAX = 24  # a longer name of a kind is cut, a shorter one shifts its line

RED, GREEN, YELLOW, MAGENTA, CYAN, BOLD, DIM = "31", "32", "33", "35", "36", "1", "2"
_COLOURS = {
    "failure": RED,
    "attempt_failed": RED,
    "run_failed": RED,
    "agent_raised": RED,
    "abandoned": YELLOW,
    "run_parked": YELLOW,
    "run_cancelled": YELLOW,
    "run_undone": YELLOW,
    "retry": YELLOW,
    "call": CYAN,
    "outcome": GREEN,
    "signal": GREEN,
    "resolved": GREEN,
    "decided": GREEN,
    "snapshot": MAGENTA,
    "step": BOLD,
    "run_started": BOLD,
    "run_resumed": BOLD,
    "run_finished": BOLD,
    "messages": DIM,
    "value": DIM,
}


class Columns:
    """The layout of lines, for a run's log or any other."""

    def __init__(self, width: int, is_run: bool, colour: bool) -> None:
        self.width, self._colour = width, colour
        for layout in _LAYOUTS:
            self._columns = [one for one in layout if is_run or one[0] not in _OF_RUNS]
            room = width - sum(wide + 2 for _, wide in self._columns)
            if room >= max(_VALUE_MIN, 3 * width // 10):
                break

    def heading(self) -> str:
        """The line above the lines of records."""
        cells = [
            (name, f"TIME ({zone_name()})" if name == "TIME" and wide > 10 else name, wide)
            for name, wide in self._columns
        ]
        text = "  ".join(_aligned(*cell) for cell in cells)
        return self.paint(cut(f"{text}  VALUE", self.width), BOLD)

    def line(self, row: Row, value: Callable[[int], str]) -> str:
        """A record; ``value`` gives its value in so many columns."""
        cells = {name: _aligned(name, _cell(row, name, wide), wide) for name, wide in self._columns}
        start = "  ".join(cells.values()) + "  "
        room = self.width - columns(start)
        if room < 0:
            return cut(start, self.width)
        if "KIND" in cells and row.kind in _COLOURS:
            cells["KIND"] = self.paint(cells["KIND"], _COLOURS[row.kind])
        return "  ".join(cells.values()) + "  " + value(room)

    def problem(self, finding: Finding, fold: bool) -> str:
        """A problem, in its position; several lines when it is folded."""
        word, code = {0: ("note", DIM), 1: ("torn", YELLOW)}.get(finding.bit, ("DAMAGE", RED))
        place = f"segment {finding.segment}, offset {finding.offset}: " if finding.segment else ""
        text = f"{word:>{self._columns[0][1]}}  {place}{printable(finding.text)}"
        lines = textwrap.wrap(text, self.width, subsequent_indent="  ") if fold else [text]
        return "\n".join(self.paint(line, code) for line in lines)

    def paint(self, text: str, code: str) -> str:
        """Text in a colour, if colours are on."""
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour and text.strip() else text


def _aligned(name: str, text: str, width: int) -> str:
    room = " " * max(0, width - columns(text))
    return room + text if name in _RIGHT else text + room


def _cell(row: Row, name: str, width: int) -> str:
    match name:
        case "LSN":
            return str(row.lsn)
        case "STEP":
            return "" if row.step is None else str(row.step)
        case "KIND":
            return cut(printable(row.kind or "-"), _KIND_MAX)
        case "SIZE":
            return str(row.size)
        case "TIME":
            return "-" if row.record is None else _when(row.record.time_ns, width)
    if row.event is None:
        return ""
    if name == "TOOK":
        return "" if row.event.duration_s is None else duration(row.event.duration_s)
    number = f"#{row.event.call}" if row.event.call else ""  # the number that resolve takes
    return cut(printable(row.tool), max(1, width - len(number))) + number if row.tool else number


def _when(time_ns: int, width: int) -> str:
    text = when_ns(time_ns)
    return text[{23: slice(23), 12: slice(11, 23), 8: slice(11, 19)}[width]] or text


# -- values


def value_text(kind: str, body: Any, width: int) -> str:
    """The value of a record on a line; of a run's record, its main field."""
    form = _FORMS.get(kind)
    if form is not None and isinstance(body, dict):
        try:
            return cut("".join(form(body, width)), width)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
            # A record of another version, or of no run.
            pass
    return short(body, width)


def _call(body: dict[str, Any], width: int) -> Iterator[str]:
    if body["args"] is None:
        yield f"({int(body['size']):,} bytes of arguments)"
        return
    if isinstance(body["args"], Term):  # hidden
        yield f"({body['args']})"
        return
    args, named = body["args"]
    parts = [short(arg, width) for arg in args]
    parts += [f"{printable(name)}={short(part, width)}" for name, part in named.items()]
    yield f"({', '.join(parts)})"


def _failure(body: dict[str, Any], width: int) -> Iterator[str]:
    if "attempt" in body:
        yield f"attempt {int(body['attempt'])}: "
    yield f"{_said(body['type'], 200).rpartition('.')[2]}: {_said(body['message'], width)}"


def _resolved(body: dict[str, Any], width: int) -> Iterator[str]:
    yield _said(body["how"], width)
    yield "" if body.get("value") is None else f" {short(body['value'], width)}"
    yield from _who(body, width)


def _decided(body: dict[str, Any], width: int) -> Iterator[str]:
    yield "approved" if body["approved"] else "denied"
    yield from _who(body, width)


def _who(body: dict[str, Any], width: int) -> Iterator[str]:
    yield f" by {_said(body['who'], width)}" if body.get("who") else ""
    yield f": {_said(body['why'], width)}" if body.get("why") else ""


def _messages(body: dict[str, Any], width: int) -> Iterator[str]:
    start, stop = int(body["start"]), int(body["stop"])
    yield f"[{start}:{stop}] = " if stop > start else f"[{start}:] + "
    yield short(body["new"], width)


def _checkpoint(body: dict[str, Any], width: int) -> Iterator[str]:
    yield (
        f"checkpoint at the end of step {int(body['step'])}"
        if "prologue" in body
        else short(body, width)
    )


def _parked(body: dict[str, Any], width: int) -> Iterator[str]:
    calls = ", ".join(f"#{int(call)}" for call in body["calls"])
    yield _said(body.get("why"), width) or "until it is known what became of calls"
    yield f" ({calls})" if calls else ""


def _said(text: Any, width: int) -> str:
    return printable(str(text or "")[: width + 1])


_FORMS: dict[str, Callable[[dict[str, Any], int], Iterator[str]]] = {
    "call": _call,
    "outcome": lambda body, width: iter((short(body["value"], width),)),
    "signal": lambda body, width: iter(
        (_said(body["name"], width), " ", short(body["value"], width))
    ),
    "failure": _failure,
    "attempt_failed": _failure,
    "run_failed": _failure,
    "agent_raised": _failure,
    "retry": lambda body, _: iter((f"attempt {int(body['attempt'])}",)),
    "abandoned": lambda body, width: iter((_said(body["why"], width),)),
    "resolved": _resolved,
    "decided": _decided,
    "value": lambda body, width: iter(
        (_said(body["name"], width), "() = ", short(body["value"], width))
    ),
    "messages": _messages,
    "snapshot": _checkpoint,
    "step": lambda body, _: iter((f"step {int(body['step'])} begins",)),
    "run_started": lambda body, width: iter((short(body["task"], width),)),
    "run_resumed": lambda body, width: iter(
        (f"recovery {int(body['recovery'])}, from the end of step {int(body['from_step'])}",)
    ),
    "run_finished": lambda body, width: iter((short(body["result"], width),)),
    "run_parked": _parked,
    "run_undone": lambda body, width: iter(("to be undone", *_who(body, width))),
    "run_cancelled": lambda body, width: iter(("cancelled", *_who(body, width))),
}
