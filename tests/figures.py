"""The figures of the last full run, and the part of docs/testing.md that is made of them.

    python -m tests.figures [--sweeps FILE] [--fuzz FILE]

Takes over what `pytest --figures FILE` and `python -m
tests.fuzz --json FILE` have written, keeps all figures in tests/data/figures.json, and renews the
page from these.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path
from typing import Any

FIGURES = Path(__file__).parent / "data" / "figures.json"
PAGE = Path(__file__).parents[1] / "docs" / "testing.md"
BEGIN, END = "<!-- figures: made by tests/figures.py -->\n", "<!-- end of figures -->\n"


def main() -> None:
    """Merge, keep, renew."""
    parser = argparse.ArgumentParser(prog="python -m tests.figures", description=__doc__)
    for part in ("sweeps", "fuzz"):
        parser.add_argument(f"--{part}", type=Path, help=f"new figures of the {part}")
    args = parser.parse_args()
    figures = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    for part in ("sweeps", "fuzz"):
        if (file := getattr(args, part)) is not None:
            found = json.loads(file.read_text())
            figures[part] = {"when": _when(), "found": found}
    FIGURES.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + BEGIN + rendered(figures) + END + after, encoding="utf-8")


def _when() -> str:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    kernel = ".".join(platform.release().split(".")[:2])
    return f"{time.strftime('%Y-%m-%d')}, {python}, {platform.system()} {kernel}"


def rendered(figures: dict[str, Any]) -> str:
    """The tables of the page."""
    parts = []
    if "sweeps" in figures:
        parts.append(_sweeps(**figures["sweeps"]))
    if "fuzz" in figures:
        parts.append(_fuzz(**figures["fuzz"]))
    return "\n" + "\n".join(parts) + "\n"


def _sweeps(when: str, found: dict[str, dict[str, float]]) -> str:
    lines = [f"`make crash` ({when}):", "", "| sweep | covered |", "|---|---|"]
    for sweep, counts in sorted(found.items()):
        shown = {what: count for what, count in counts.items() if what != "seconds"}
        covered = ", ".join(f"{count:,.0f} {what}" for what, count in shown.items())
        lines.append(f"| {sweep} | {covered} |")
    return "\n".join([*lines, ""])


def _fuzz(when: str, found: dict[str, dict[str, float]]) -> str:
    hours = sum(one["seconds"] for one in found.values()) / 3600
    tried = sum(one["executions"] for one in found.values())
    lines = [f"`make fuzz` ({when}): {hours:.1f} hours in all.", ""]
    return "\n".join([*lines, f"{tried:,.0f} inputs were tried: {', '.join(sorted(found))}.", ""])


if __name__ == "__main__":
    main()
