"""examples/time_travel.py, as users run it; and its agents, killed everywhere, in forks too."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recovery import CheckpointStore, RecoverableAgent
from recovery.ops.fork import fork
from recovery.testing import crash_everywhere

ROOT = Path(__file__).parents[2]
WISHES = ["train to Oslo", "hotel", "boat trip", "museum"]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import time_travel

    yield time_travel
    del sys.modules["time_travel"]


def test_the_trips_are_planned_and_stay_planned(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples/time_travel.py"), str(tmp_path)]
    first, second = (
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
        for _ in range(2)
    )
    assert "rich:   train to Oslo for 90, hotel for 120, boat trip for 60, museum for 15" in first
    assert "cheap:  train to Oslo for 90, hotel for 120, museum for 15" in first
    assert "asked for them: boat trip, museum, museum\n" in first
    assert "rich comes from trip, step 2: a gift (ann)" in first
    assert "4 differences, the first in step 3:" in first
    assert second == first.replace("boat trip, museum, museum\n", "nothing\n")


def test_the_page_shows_what_the_example_prints(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples/time_travel.py"), str(tmp_path)]
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    page = " ".join((ROOT / "docs/time-travel.md").read_text().split())
    shown = " ".join(out[out.index("trip: 4 steps") :].split("4     steps")[0].split())
    shown = shown.partition(" 3 messages")[0]
    assert shown in page


def test_the_agent_survives_everywhere(example: Any) -> None:
    def agent() -> Any:
        return RecoverableAgent(example.plan, CheckpointStore(), checkpoint_every_n=1)

    report = crash_everywhere(agent, WISHES, points=60)
    assert report.ok, str(report)


def test_its_forks_ask_for_nothing_twice(example: Any) -> None:
    store = CheckpointStore()
    agent = RecoverableAgent(example.plan, store, checkpoint_every_n=3)
    agent.run_with_recovery_sync(WISHES, "trip")
    for step in range(5):
        example.asked.clear()
        fork(store, "trip", f"fork-{step}", at_step=step)
        agent.run_with_recovery_sync(WISHES, f"fork-{step}")
        assert example.asked == WISHES[step:]
