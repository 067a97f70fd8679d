"""docs/guarantees.md names tests; each of them is there, and each guarantee has some."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text()


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(tests/[\w/]+\.py)`", PAGE))
    assert len(named) > 10
    missing = {name for name in named if not (ROOT / name).is_file()}
    assert not missing


def test_every_guarantee_names_tests() -> None:
    sections = re.split(r"^## ", PAGE, flags=re.M)
    guarantees = [section for section in sections if re.match(r"G\d ", section)]
    assert [section[:2] for section in guarantees] == [f"G{i}" for i in range(1, 9)]
    assert all("\nTests: `tests/" in section for section in guarantees)
