"""``python -m tools.bench.report``: docs/benchmarks.md from the figures in docs/benchmarks/."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .__main__ import BENCHMARKS
from ._result import Aim, Result
from ._table import table
from ._worker import ROOT

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
    sections = [HEAD]
    for name in BENCHMARKS:
        figures = directory / f"{name}.json"
        if figures.exists():
            sections.append(_section(name, json.loads(figures.read_text())))
    return "\n".join(sections)


def _section(name: str, figures: dict[str, Any]) -> str:
    module = BENCHMARKS[name]
    results = [Result(**one) for one in figures["results"]]
    aims = [Aim(**{key: one[key] for key in one if key != "met"}) for one in figures["aims"]]
    environment = "; ".join(f"{key}: {value}" for key, value in figures["environment"].items())
    parts = [
        f"## {module.TITLE}\n",
        f"{module.ABOUT}\n",
        f"![{module.TITLE}](benchmarks/{name}.svg)\n",
        table(module.UNIT, module.YARDSTICK, results, "github") + "\n",
        *(f"- {aim}" for aim in aims),
        *([""] if aims else []),
        f"<small>{environment}</small>\n",
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    main()
