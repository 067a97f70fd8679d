"""docs/benchmarks.md, and what else is said of speed, is what was measured."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))  # the last: what is installed comes first
report = importlib.import_module("tools.bench.report")  # noqa: TID251 - not installed
FIGURES = ROOT / "docs" / "benchmarks"


def test_the_page_is_made_of_the_figures() -> None:
    assert report.PAGE.read_text() == report.page(FIGURES), "renew it: make bench-report"


def test_everything_was_measured() -> None:
    for name in (*report.BENCHMARKS, report.SOAK):
        assert (FIGURES / f"{name}.json").exists(), f"make bench NAMES={name}"
        assert (FIGURES / f"{name}.svg").exists()
        assert f"(benchmarks/{name}.svg)" in report.PAGE.read_text()


def test_the_soak_was_long_and_sound() -> None:
    figures = json.loads((FIGURES / "soak.json").read_text())
    assert figures["minutes"] >= 60 and figures["agents"] >= 200
    assert figures["wrong"] == [] and figures["leaks"] == []
    assert figures["totals"]["kills"] > 50


def median(name: str, case: str, subject: str) -> float:
    figures = json.loads((FIGURES / f"{name}.json").read_text())
    return next(
        float(one["median"])
        for one in figures["results"]
        if (one["case"], one["subject"]) == (case, subject)
    )
