"""``python -m tools.bench.report``: docs/benchmarks.md from the figures in docs/benchmarks/."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tabulate import tabulate

from . import soak
from .__main__ import BENCHMARKS
from ._result import Aim, Result, number, table
from ._worker import ROOT

SOAK = "soak"
PAGE = ROOT / "docs" / "benchmarks.md"

HEAD = """\
# Benchmarks

<!-- Made by `make bench-report` from docs/benchmarks/*.json, which `make bench` writes. -->

Everything here is measured by `make bench`, which needs nothing but this repository: each subject
works in a process of its own, in turns with the others, and the ratio within a run is what counts.
Absolute times say more about the machine, which was a small and shared one. Where an aim was not
met, it says so.
"""


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(PAGE.with_suffix("")))


def page(directory: Path) -> str:
    """The page, of all benchmarks that have figures in ``directory``."""
    figures = {
        name: json.loads((directory / f"{name}.json").read_text())
        for name in (*BENCHMARKS, SOAK)
        if (directory / f"{name}.json").exists()
    }
    sections = [
        _soak(one) if name == SOAK else _section(name, one) for name, one in figures.items()
    ]
    return "\n".join([HEAD, *sections, _where(figures)])


def _section(name: str, figures: dict[str, Any]) -> str:
    module = BENCHMARKS[name]
    results = [Result(**one) for one in figures["results"]]
    aims = [Aim(**{key: one[key] for key in one if key != "met"}) for one in figures["aims"]]
    return "\n".join(
        [
            f"## {module.TITLE}\n",
            f"{module.ABOUT}\n",
            f"![{module.TITLE}](benchmarks/{name}.svg)\n",
            table(module.UNIT, module.YARDSTICK, results, "github") + "\n",
            *(f"- {aim}" for aim in aims),
            *([""] if aims else []),
        ]
    )


def _soak(figures: dict[str, Any]) -> str:
    rows = [
        [what, number(before), number(after)] for what, (before, after) in figures["grown"].items()
    ]
    totals = ", ".join(f"{what} {number(value)}" for what, value in figures["totals"].items())
    grown = tabulate(
        rows,
        ["", "second quarter", "last quarter"],
        tablefmt="github",
        disable_numparse=True,
        colalign=["left", "right", "right"],
    )
    wrong = [f"- WRONG: {what}" for what in figures["wrong"]]
    return "\n".join(
        [
            f"## {figures['agents']} agents, {figures['minutes']:g} minutes\n",
            f"{soak.__doc__}".partition("\n\n")[2],
            f"In all: {totals}; seed {figures['seed']}.\n",
            "![memory, times, descriptors and files](benchmarks/soak.svg)\n",
            grown + "\n",
            *(
                wrong
                or [
                    "Nothing was wrong."
                    if not figures["leaks"]
                    else f"GROWN: {', '.join(figures['leaks'])}."
                ]
            ),
            "",
        ]
    )


def _where(figures: dict[str, Any]) -> str:
    """What the figures were measured on: each of its facts, and for which of them."""
    facts: dict[tuple[str, str], list[str]] = {}
    for name, one in figures.items():
        for fact in one["environment"].items():
            facts.setdefault(fact, []).append(name)
    rows = [
        [what, value, "" if len(names) == len(figures) else ", ".join(names)]
        for (what, value), names in sorted(facts.items())
    ]
    listed = tabulate(rows, ["", "", "for"], tablefmt="github", disable_numparse=True)
    return f"## What it was measured on\n\n{listed}\n"


if __name__ == "__main__":
    main()
