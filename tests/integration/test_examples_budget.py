"""The example of a budget, as its user runs it; and that it survives, budget and all."""

from __future__ import annotations

import random
import runpy
import subprocess
import sys
from pathlib import Path

from recovery import Budget, CheckpointStore, RecoverableAgent
from recovery.testing import crash_everywhere

EXAMPLE = Path(__file__).parents[2] / "examples" / "budget.py"


def test_it_parks_once_and_ends_when_the_limit_is_lifted() -> None:
    done = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, check=True)
    parked, _, finished = done.stdout.partition("\n\n")
    assert "run 'run_001' is parked, its budget is used up:\n  tokens: 203 of 200" in parked
    assert "Used so far: 7 steps, 7 attempts, 203 tokens, cost 0.0013" in parked
    used = "20 steps, 20 attempts, 370 tokens, cost 0.0025"
    assert finished.startswith(f"Hm. Why? And then? For {used}")


def test_it_survives_a_crash_anywhere(rng: random.Random) -> None:
    ponder = runpy.run_path(str(EXAMPLE))["ponder"]
    report = crash_everywhere(
        lambda: RecoverableAgent(ponder, CheckpointStore(), budget=Budget(tokens=1000)),
        "otters",
        points=25,
        seed=rng.randrange(1 << 20),
    )
    assert report.ok, str(report)
    assert report.reference == repr("Hm. Why? And then?")
    assert report.effects == {"think": 20}
