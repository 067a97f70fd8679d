"""examples/openai_agents.py: killed in the middle, and resumed by ``recovery``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.installed import skip_without
from tests.support.paths import ROOT

skip_without("agents")

EXAMPLES = ROOT / "examples"
ASKED = ["model: Serve.", "model: Serve.", "model: Take the money."]


def run(*command: str, place: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=EXAMPLES,
        env=os.environ | {"EXAMPLE_BANK": str(place), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_payment_that_a_kill_cut_short_is_made_once(tmp_path: Path) -> None:
    died = run("openai_agents.py", str(tmp_path), "--die", place=tmp_path)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert died.stdout.splitlines() in ([], ASKED)  # a pipe may lose what was not flushed
    resume = ("-m", "recovery.cli", "resume", "order-42", "--agent", "openai_agents:agent")
    ended = run(*resume, "--store", str(tmp_path), place=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["model: Take the money.", '"The shoes are paid."']
    assert len((tmp_path / "payments").read_text().splitlines()) == 1
