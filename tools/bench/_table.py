"""Results as tables, for terminals and for the documentation."""

from __future__ import annotations

from collections.abc import Sequence

from tabulate import tabulate

from ._result import Result


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
