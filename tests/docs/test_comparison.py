"""docs/comparison.md: each row of ours names a test, each cell of a peer has a source."""

from __future__ import annotations

import re

from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "comparison.md").read_text()
TABLE, _, REST = PAGE.partition("\n## What they do better")
BETTER, _, REST = REST.partition("\n## Four more")
MORE, _, SOURCES = REST.partition("\n## Sources")

rows = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in TABLE.splitlines()
    if line.startswith("| ") and not line.startswith("| what")
]
sources = dict(re.findall(r"^- `\[([\w-]+)\]` (\S.*)", SOURCES, re.M))


def cited(text: str) -> set[str]:
    return set(re.findall(r"\[([\w-]+)\](?!\()", text))


def test_every_row_of_ours_names_a_test_that_exists() -> None:
    assert len(rows) >= 8
    for row in rows:
        assert len(row) == 8, row
        files = re.findall(r"`(tests/[\w/]+\.py)`", row[1])
        assert files, f"{row[0]}: no test"
        for file in files:
            assert (ROOT / file).is_file(), f"{row[0]}: {file}"


def test_every_test_that_the_page_names_exists() -> None:
    for file in re.findall(r"`(tests/[\w/]+\.py)`", PAGE):
        assert (ROOT / file).is_file(), file


def test_each_of_the_six_properties_has_a_test_that_exists() -> None:
    tests = re.findall(r"^\| .* \| `(test_\w+)` \|$", MORE, re.M)
    source = (ROOT / "tests/contract/test_resume_means_resume.py").read_text()
    assert len(tests) == 6 and all(f"def {one}(" in source for one in tests)


def test_every_cell_of_a_peer_has_a_source_or_says_that_nobody_looked() -> None:
    for row in rows:
        for cell in row[2:]:
            assert cell == "—" or cited(cell), f"{row[0]}: {cell}"
    for line in re.split(r"\n- ", BETTER)[1:]:
        assert cited(line), line


def test_every_source_is_a_link_or_says_what_was_done_with_which_version() -> None:
    assert cited(TABLE) | cited(BETTER) | cited(MORE) == set(sources)
    for name, text in sources.items():
        by_us = re.match(r"(Measured|Read) by us: .*\d+\.\d+\.\d+", text)
        assert text.startswith("<https://") or by_us, name
