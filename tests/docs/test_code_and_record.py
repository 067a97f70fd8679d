"""Each Python block of docs/code-and-record.md is a program of its own: it runs as it stands.

A block starts a process in an empty directory, with `EVENTLOG_HOME` there. What it prints is what
the block of plain text after it shows, where there is one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "code-and-record.md"
BLOCK = re.compile(r"```python\n(?P<code>.*?)```(?:\n\n?```text\n(?P<out>.*?)```)?", re.S)


def programs() -> list[tuple[int, str, str | None]]:
    text = PAGE.read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, found.start()) + 1, found["code"], found["out"])
        for found in BLOCK.finditer(text)
    ]


@pytest.mark.parametrize(
    ("code", "out"), [pytest.param(code, out, id=f"line-{at}") for at, code, out in programs()]
)
def test_a_program_of_the_page_runs(code: str, out: str | None, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(code, encoding="utf-8")
    found = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"EVENTLOG_HOME": str(tmp_path / "home")},
        check=False,
    )
    assert found.returncode == 0, found.stderr
    if out is not None:
        assert found.stdout == out
