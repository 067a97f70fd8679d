"""Each Python block of docs/openai-agents.md is a program of its own: it runs as it stands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_programs import BLOCK
from tests.support.paths import ROOT

pytest.importorskip("agents.testing")

from recovery.integrations import openai_agents

PAGE = ROOT / "docs" / "openai-agents.md"


def test_the_programs_of_the_page_run(tmp_path: Path) -> None:
    blocks = list(BLOCK.finditer(PAGE.read_text(encoding="utf-8")))
    started = []
    for number, found in enumerate(blocks):
        place = tmp_path / str(number)
        place.mkdir()
        (place / "program.py").write_text(found["code"], encoding="utf-8")
        home = os.environ | {"EVENTLOG_HOME": str(place / "home")}
        command = [sys.executable, "-W", "error", "program.py"]
        process = subprocess.run(
            command, cwd=place, env=home, capture_output=True, text=True, check=False
        )
        assert process.returncode == 0, process.stderr
        assert process.stdout == (found["out"] or "")
        started.append(number)
    assert len(started) == 3


def test_every_public_name_is_told_of_and_has_a_docstring() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name in openai_agents.__all__:
        assert name in text, name
        assert getattr(openai_agents, name).__doc__, name
