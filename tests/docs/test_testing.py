"""docs/testing.md shows the figures of the last full run, and they are figures of success."""

from __future__ import annotations

import json

from tests.figures import BEGIN, END, FIGURES, PAGE, rendered


def test_the_page_is_made_of_the_figures() -> None:
    page = PAGE.read_text(encoding="utf-8")
    shown = page.partition(BEGIN)[2].partition(END)[0]
    assert shown == rendered(json.loads(FIGURES.read_text())), "renew it: python -m tests.figures"


def test_the_last_full_run_is_what_the_page_says_it_was() -> None:
    figures = json.loads(FIGURES.read_text())
    sweeps = figures["sweeps"]["found"]
    assert sweeps["power losses, exhaustive"]["states"] > 500_000
    assert sum(one["seconds"] for one in figures["fuzz"]["found"].values()) > 3600
