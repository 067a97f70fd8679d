"""docs/architecture.md describes the tree as it is."""

from __future__ import annotations

import re

import pytest

from tests.lint.test_layers import ROOMS
from tests.support.paths import ROOT

PAGE = (ROOT / "docs/architecture.md").read_text()


@pytest.mark.parametrize("package", ROOMS)
def test_every_room_is_on_the_page_in_order(package: str) -> None:
    section = PAGE.split(f"## The rooms of {package}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    assert re.findall(r"`(\w+)`", " ".join(rows)) == [name for name in ROOMS[package] if name]


def test_the_files_to_read_first_are_there_and_as_long_as_is_said() -> None:
    files = re.findall(r"^\| `(recovery/\S+\.py)`", PAGE, re.MULTILINE)
    said = re.search(r"about ([\d,]+) lines", PAGE)
    assert len(files) == 6 and said is not None
    lines = sum((ROOT / file).read_text().count("\n") for file in files)
    assert abs(lines - int(said[1].replace(",", ""))) < 200
