"""The Python blocks of docs/openai-agents.md are one program, which runs as it stands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_programs import BLOCK
from tests.support.paths import ROOT

pytest.importorskip("agents.testing")


PAGE = ROOT / "docs" / "openai-agents.md"


def test_the_page_runs(tmp_path: Path) -> None:
    found = BLOCK.finditer(PAGE.read_text(encoding="utf-8"))
    blocks = [one for one in found if not one["title"]]  # the others are fragments
    (tmp_path / "program.py").write_text("".join(found["code"] for found in blocks))
    process = subprocess.run(
        [sys.executable, "-W", "error", "program.py"],
        cwd=tmp_path,
        env=os.environ | {"EVENTLOG_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout == "".join(found["out"] or "" for found in blocks) != ""
