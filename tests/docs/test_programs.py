"""Python blocks of these pages are programs: each runs as it stands, in the order of the page.

The blocks of a page share an empty directory, with `EVENTLOG_HOME` in it. A block with a file name
as its title is that file; the others are run. What a program prints is what the block of plain text
after it shows, where there is one. On other pages, a block that no test runs says that it is a
fragment, and is Python all the same.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.paths import ROOT

DOCS = ROOT / "docs"
PAGES = [
    *("checkpoints", "code-and-record", "deploy", "workers", "encryption", "erase-a-person"),
    *("moving", "schedules", "start", "values", "wrong-result"),
]
RUN_ELSEWHERE = {  # by a test of their own, with what the programs need
    *("agent-framework", "call-journal", "claude-agent", "crashtest", "debugging", "format"),
    *("google-adk", "graphs", "hive", "langgraph", "langgraph-tools", "openai-agents"),
    *(
        "opentelemetry",
        "other-frameworks",
        "providers",
        "pydantic-ai",
        "removing-runs",
        "testing-agents",
    ),
}
BLOCK = re.compile(
    r'```python(?: title="(?P<title>[^"]*)")?\n(?P<code>.*?)```(?:\n\n?```text\n(?P<out>.*?)```)?',
    re.S,
)


def run(place: Path, *args: str) -> str:
    found = subprocess.run(
        [sys.executable, *args],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"EVENTLOG_HOME": str(place / "home")},
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.mark.parametrize("page", PAGES)
def test_the_programs_of_a_page_run(page: str, tmp_path: Path) -> None:
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    blocks = list(BLOCK.finditer(text))
    assert blocks
    for found in blocks:
        if "langgraph" in found["code"] and find_spec("langgraph") is None:
            continue
        name = found["title"] or "program.py"
        (tmp_path / name).write_text(found["code"], encoding="utf-8")
        if found["title"]:
            continue
        out = run(tmp_path, name)
        if found["out"] is not None:
            line = text.count("\n", 0, found.start()) + 1
            assert out == found["out"], f"{page}.md, line {line}"


def test_a_block_that_no_test_runs_says_that_it_is_a_fragment() -> None:
    pages = {page.stem for page in DOCS.glob("*.md") if "```python\n" in page.read_text("utf-8")}
    assert pages - {*PAGES} == RUN_ELSEWHERE


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_a_fragment_is_python(page: Path) -> None:
    for found in BLOCK.finditer(page.read_text(encoding="utf-8")):
        if found["title"] == "fragment":
            compile(found["code"], page.name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
