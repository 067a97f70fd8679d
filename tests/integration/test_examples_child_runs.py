"""examples/child_runs.py: run as users run it, and killed at every point."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recovery import CheckpointStore, RecoverableAgent, tool
from recovery.testing import crash_everywhere

ROOT = Path(__file__).parents[2]
FOUND = [
    "What do otters eat? Crabs and sea urchins.",
    "Where do otters sleep? On their backs, holding hands.",
    "Why is the sky green? (nothing is known about 'Why is the sky green?')",
    "research: finished",
    "research: finished",
    "research: failed",
]


@pytest.fixture
def child_runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import child_runs

    yield child_runs
    del sys.modules["child_runs"]


def test_it_runs_and_its_result_stays(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples/child_runs.py"), str(tmp_path)]
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        assert done.stdout.splitlines() == FOUND


@pytest.mark.parametrize("points", [30, pytest.param("all", marks=pytest.mark.crash)])
def test_it_survives_being_killed_anywhere(
    child_runs: Any, points: Any, rng: random.Random
) -> None:
    report = crash_everywhere(
        lambda: RecoverableAgent(child_runs.researcher, CheckpointStore()),
        task=child_runs.QUESTIONS,
        points=points,
        seed=rng.randrange(1 << 20),
    )
    assert report.ok, str(report)
    assert report.effects == {"search": 5, "ask_model": 2}


def test_a_child_in_doubt_is_settled_by_the_operator_of_the_crash_test() -> None:
    done: list[str] = []

    @tool
    def send(what: str) -> str:
        done.append(what)
        return what

    async def sub(run: Any) -> str:
        return str(await run.call(send, run.task))

    async def agent(run: Any) -> list[str]:
        return [await run.child(sub, "a"), await run.child(RecoverableAgent(sub), "b")]

    report = crash_everywhere(
        agent, task="t", setup=done.clear, effects=lambda: done, points=60, power_loss=True
    )
    assert report.ok, str(report)
    assert {found.tool for found in report.findings if found.kind == "in doubt"} == {"send"}
