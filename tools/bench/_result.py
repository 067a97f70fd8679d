"""What a benchmark finds, what it is held against, and both as tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tabulate import tabulate


@dataclass(frozen=True, slots=True)
class Result:
    """Figures of one subject in one case, in the benchmark's unit.

    ``ratio``: its median to that of the yardstick, of turns side by side. ``size``: bytes on disk
    for each step. ``flushes``: of files and directories, for each step; None: not counted.
    """

    case: str
    subject: str
    median: float
    p99: float | None = None
    mean: float | None = None
    count: int = 1
    ratio: float | None = None
    size: float | None = None
    flushes: float | None = None
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Aim:
    """What was aimed at. ``limit`` is the most ``found`` may be, or with ``at_least`` the least."""

    what: str
    limit: float
    found: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        return self.found >= self.limit if self.at_least else self.found <= self.limit

    def __str__(self) -> str:
        sign = "at least" if self.at_least else "at most"
        verdict = "met" if self.met else "NOT MET"
        return f"{self.what}: {self.found:.3g}, aim {sign} {self.limit:g}: {verdict}"

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "met": self.met}


def median(values: Sequence[float]) -> float:
    """The middle one; NaN where there is none."""
    return statistics.median(values) if values else float("nan")


def p99(values: Sequence[float]) -> float | None:
    """The 99th percentile; None for fewer than a hundred."""
    return sorted(values)[len(values) * 99 // 100] if len(values) >= 100 else None


def ratio(turns: Sequence[Sequence[float]], yardstick: Sequence[Sequence[float]]) -> float:
    """How the two compare, turn by turn, so that a machine that slows down slows down both."""
    return median([median(a) / median(b) for a, b in zip(turns, yardstick, strict=True)])


def found(results: Sequence[Result], case: str, subject: str) -> Result:
    """The result of a subject in a case; KeyError when it was not measured."""
    for one in results:
        if (one.case, one.subject) == (case, subject):
            return one
    raise KeyError(f"{subject}, {case}")


def table(unit: str, yardstick: str, results: Sequence[Result], form: str = "simple") -> str:
    """A row for each result; columns that none of them has are left out."""
    columns: dict[str, list[str]] = {
        "case": [one.case for one in results],
        "": [one.subject for one in results],
        f"median, {unit}": [number(one.median) for one in results],
        "99th percentile": [number(one.p99) for one in results],
        "mean": [number(one.mean) for one in results],
        f"to {yardstick}": [number(one.ratio, "x") for one in results],
        "bytes on disk": [number(one.size) for one in results],
        "flushes": [number(one.flushes) for one in results],
        "note": [one.note for one in results],
    }
    cases = columns["case"]
    columns["case"] = ["" if i and cases[i - 1] == case else case for i, case in enumerate(cases)]
    used = {head: column for head, column in columns.items() if any(column)}
    align = ["left" if head in ("case", "", "note") else "right" for head in used]
    return tabulate(used, headers="keys", tablefmt=form, disable_numparse=True, colalign=align)


def number(value: float | None, sign: str = "") -> str:
    """Three digits that matter, and commas from a thousand on."""
    if value is None:
        return ""
    if abs(value) >= 1000:
        return f"{value:,.0f}{sign}"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    shown = f"{value:.{digits}f}"
    return f"{shown.rstrip('0').rstrip('.') if '.' in shown else shown}{sign}"
