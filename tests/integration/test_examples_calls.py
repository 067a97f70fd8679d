"""examples/calls.py: run as users run it, and killed at every point."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recovery import CheckpointStore, RecoverableAgent
from recovery.testing import crash_everywhere

ROOT = Path(__file__).parents[2]
FOUND = ["sunny in Lisbon", "paid 10", "no answer"]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import calls

    yield calls
    del sys.modules["calls"]


def test_it_runs_and_its_result_stays(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples/calls.py"), str(tmp_path)]
    first, second = [
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
        for _ in range(2)
    ]
    assert first.splitlines() == [*FOUND, "payments: [10]"]
    assert second.splitlines() == [*FOUND, "payments: []"]


@pytest.mark.parametrize("points", [30, pytest.param("all", marks=pytest.mark.crash)])
def test_it_survives_being_killed_anywhere(calls: Any, points: Any, rng: random.Random) -> None:
    def reset() -> None:
        calls.refusals[:] = ["503", "503"]
        calls.bank.clear()

    report = crash_everywhere(
        lambda: RecoverableAgent(calls.agent, CheckpointStore()),
        task="Lisbon",
        setup=reset,
        effects=lambda: list(calls.bank.values()),
        points=points,
        seed=rng.randrange(1 << 20),
    )
    assert report.ok, str(report)
