"""examples/divergence.py, run as users run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_three_choices(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples/divergence.py"), str(tmp_path)]
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    lines = out.splitlines()
    assert lines[0] == "killed after: ['Hello to ann', 'Hello to bob']"
    assert "  different: args[1]: 'Hello' -> 'Good morning'" in lines
    for choice in ("accept", "fork", "abort"):
        assert any(line.startswith(f"  {choice}  ") for line in lines), out
    assert lines[-5:-1] == [
        "sent to ann",
        "sent to bob",
        "sent to carl",
        "all in all: ['Hello to ann', 'Hello to bob', 'Good morning to bob', "
        "'Good morning to carl']",
    ]
    assert lines[-1] == "sent to ann sent to bob"  # the fork executes nothing anew
