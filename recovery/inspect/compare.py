"""Compares two runs; the first difference comes first."""

from __future__ import annotations

from dataclasses import dataclass

from eventlog import LogRecords
from recovery.history.find_run import Store, reader_of
from recovery.inspect.differences import FoundDifference, RunComparison, Side, as_types
from recovery.inspect.outline import RunOutline, outline_run
from recovery.journal.forked_from import ForkedFrom
from recovery.text import count, shorten

PATHS_MAX = 5  # differences that are shown of two values
WIDTH_MAX = 56  # of a column of text


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between two runs.

    ``what``: "task", "state", "messages", "call" (made by one run only), "arguments", "outcome",
    "steps" or "end". ``where`` is more specific. ``a`` and ``b``: the values in the runs, as text,
    empty where one has none; ``lsn_a`` and ``lsn_b``: their records, or 0.
    """

    step: int
    what: str
    where: str
    a: str
    b: str
    lsn_a: int = 0
    lsn_b: int = 0


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """A run that was compared: how far it is, how it ended ("open": it has not), its origin.

    ``since``: the step after which its log has everything; a fork's beginning is not in its log.
    ``damage``: parts of the log that could not be read, and so were not compared.
    """

    run_id: str
    steps: int
    calls: int
    end: str
    since: int
    forked_from: ForkedFrom | None
    damage: tuple[str, ...]

    def __str__(self) -> str:
        text = (
            f"{self.run_id}: {count(self.steps, 'step')}, {count(self.calls, 'call')}, {self.end}"
        )
        if self.forked_from is not None:
            link = self.forked_from
            text += f"; forked from {link.run_id} at the end of step {link.step} (LSN {link.lsn})"
        return text + "".join(f"\n  DAMAGE: {found}" for found in self.damage)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs and their differences, in the order of the steps. ``str()`` shows it side by side.

    ``since``: steps up to this one were not compared, because one of the logs lacks them.
    """

    a: ComparedRun
    b: ComparedRun
    since: int
    differences: tuple[Difference, ...]

    @property
    def alike(self) -> bool:
        """Whether no difference was found."""
        return not self.differences

    def __str__(self) -> str:
        lines = [str(self.a), str(self.b)]
        if self.since:
            lines.append(f"compared from the end of step {self.since} on")
        if self.alike:
            return "\n".join([*lines, "no difference"])
        rows = [("step", "", self.a.run_id, self.b.run_id)]
        for one in self.differences:
            what = f"{one.what} {one.where}".strip()
            rows.append((str(one.step), what, _cell(one.a, one.lsn_a), _cell(one.b, one.lsn_b)))
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        count = len(self.differences)
        many = "one difference, in" if count == 1 else f"{count} differences, the first in"
        lines.append(f"{many} step {rows[1][0]}:")
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
            lines.append("  ".join([*cells, row[3]]).rstrip())
        return "\n".join(lines)


def compare(store: Store, run_a: str, run_b: str) -> Comparison:
    """See RunHandle.compare."""
    with reader_of(store, run_a) as log_a, reader_of(store, run_b) as log_b:
        comparing = RunComparison(
            *outline_both((log_a, run_a), (log_b, run_b)), as_types, PATHS_MAX
        )
        found = tuple(map(_difference, comparing.found()))
        return Comparison(compared(comparing.a), compared(comparing.b), comparing.from_step, found)


def outline_both(
    a: tuple[LogRecords, str], b: tuple[LogRecords, str]
) -> tuple[RunOutline, RunOutline]:
    """Outlines of two runs, with their states where the later one begins."""
    one, other = outline_run(*a), outline_run(*b)
    since = max(one.from_step, other.from_step)
    return (outline_run(*a, since), outline_run(*b, since)) if since else (one, other)


def compared(outline: RunOutline) -> ComparedRun:
    """The summary of a run that was compared."""
    calls = sum(1 for step in outline.steps.values() for call in step.calls for _ in call.all())
    return ComparedRun(
        outline.run_id,
        outline.reached,
        calls,
        outline.end[0],
        outline.from_step,
        outline.origin,
        tuple(map(str, outline.damage)),
    )


def _difference(found: FoundDifference) -> Difference:
    space = " " if found.what == "arguments" and found.path else ""
    sides = _text(found, found.a), _text(found, found.b)
    lsns = found.a.lsn if found.a else 0, found.b.lsn if found.b else 0
    return Difference(found.step, found.what, f"{found.name}{space}{found.path}", *sides, *lsns)


def _text(found: FoundDifference, side: Side | None) -> str:
    if side is None:
        return ""
    if found.what == "messages" and side.head:
        return f"{side.head} = {shorten(side.value)}"
    if found.what != "call":
        return shorten(side.value)
    given = str(side.value)
    match side.value:
        case [list(args), dict(kwargs)]:
            parts = [shorten(arg, 80) for arg in args]
            given = ", ".join([*parts, *(f"{k}={shorten(v, 80)}" for k, v in kwargs.items())])
    return f"{side.head}({given}){' (dropped)' if side.dropped else ''}"


def _cell(text: str, lsn: int) -> str:
    text = " ".join(text.split())
    half = WIDTH_MAX // 2 - 2
    text = text if len(text) <= WIDTH_MAX else f"{text[:half]} .. {text[-half:]}"
    return f"{text} (LSN {lsn})" if lsn and text else text or "-"
