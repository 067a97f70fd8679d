"""docs/benchmarks.md, and what else is said of speed, is what was measured."""

from __future__ import annotations

import json
import sys

from tests.support.paths import ROOT

sys.path.append(str(ROOT / "tools"))  # behind what is installed

from bench import __main__ as bench
from bench import report
from bench._result import number

FIGURES = ROOT / "docs" / "benchmarks"


def test_the_page_is_made_of_the_figures() -> None:
    assert report.PAGE.read_text() == report.page(FIGURES), "renew it: make bench-report"


def test_everything_was_measured() -> None:
    for name in (*bench.BENCHMARKS, report.SOAK):
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


def test_what_the_readme_says_of_speed() -> None:
    ours = "agent-eventlog"
    short, long = (median("resume", f"{steps:,} steps", ours) for steps in (1_000, 1_000_000))
    news = median("growth", "100 steps", "what is new") / 1000
    early, late = (median("growth", f"{steps:,} steps", ours) / 1000 for steps in (100, 10_000))
    said = (
        f"one flush per step with a side effect, none per step without; resuming takes "
        f"{long:.0f} ms at 1,000,000 steps, {short:.0f} ms at 1,000; a step with {news:.1f} KB of "
        f"new data takes {early:.1f} KB on disk, {late:.1f} KB after 10,000 steps"
    )
    assert said in (ROOT / "README.md").read_text()
    flushes = json.loads((FIGURES / "step.json").read_text())["results"]
    found = {one["case"]: one["flushes"] for one in flushes if one["subject"] == ours}
    assert round(found["side effect"]) == 1 and round(found["read-only call"]) == 0


def test_what_is_said_of_many_runs() -> None:
    page = (ROOT / "docs" / "scaling.md").read_text()
    for name in ("scaling", "postgres"):
        figures = json.loads((FIGURES / f"{name}.json").read_text())["results"]
        ours = [one for one in figures if one["subject"].startswith("agent-eventlog")]
        left_out = ("one commit", *(one["case"] for one in ours if "CPU" in one["case"]))
        said = [number(one["median"]) for one in ours if one["case"] not in left_out]
        assert len(said) > 2 and [one for one in said if one not in page] == []
