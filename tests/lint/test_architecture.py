"""docs/architecture.md describes the tree as it is."""

from __future__ import annotations

import ast
import re

import pytest

from tests.lint.test_layers import ROOMS
from tests.support.paths import ROOT

PAGE = (ROOT / "docs/architecture.md").read_text()


def told(package: str, name: str) -> str:
    """The row of a room: its name, and the first sentences of its docstring."""
    path = ROOT / package / name
    shown = f"{name}/" if path.is_dir() else f"{name}.py"
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    doc = ast.get_docstring(ast.parse(file.read_text())) or ""
    first = " ".join(doc.split("\n\n")[0].split("\n"))
    return f"| `{shown}` | {first} |"


@pytest.mark.parametrize("package", ROOMS)
def test_every_room_has_its_line_in_order(package: str) -> None:
    section = PAGE.split(f"## The rooms of {package}\n")[1].split("\n## ")[0]
    rows = [line for line in section.split("\n") if line.startswith("| `")]
    assert rows == [told(package, name) for name in ROOMS[package] if name]


def test_the_files_to_read_first_are_there_and_as_long_as_is_said() -> None:
    files = re.findall(r"^\| `(recovery/\S+\.py)`", PAGE, re.MULTILINE)
    said = re.search(r"about ([\d,]+) lines", PAGE)
    assert len(files) == 6 and said is not None
    lines = sum((ROOT / file).read_text().count("\n") for file in files)
    assert abs(lines - int(said[1].replace(",", ""))) < 200
