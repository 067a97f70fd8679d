"""examples/values.py: run as users run it, and killed at every point."""

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
from recovery.values import codec

ROOT = Path(__file__).parents[2]


@pytest.fixture
def values(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import values

    yield values
    del sys.modules["values"]
    for kind in (values.Cabin, values.Trip, values.Money):
        del codec.BY_NAME[codec.BY_TYPE.pop(kind).name]


def test_it_runs_and_its_result_stays(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples/values.py"), str(tmp_path)]
    first, second = [
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
        for _ in range(2)
    ]
    assert first == second == "{'last': 'sleeper at 20:00', 'left': Decimal('71.00'), 'seen': 2}\n"


@pytest.mark.parametrize("points", [30, pytest.param("all", marks=pytest.mark.crash)])
def test_it_survives_being_killed_anywhere(values: Any, points: Any, rng: random.Random) -> None:
    """The result, and what was booked, are the same wherever the process dies."""
    report = crash_everywhere(
        lambda: RecoverableAgent(values.agent, CheckpointStore(), 1),
        task="Lisbon",
        setup=values.booked.clear,
        effects=lambda: list(values.booked),
        points=points,
        seed=rng.randrange(1 << 20),
    )
    assert report.ok, str(report)
