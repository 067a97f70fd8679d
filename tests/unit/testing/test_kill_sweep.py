"""The sweep that kills programs finds those that lose or repeat what they have done."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from recovery import CheckpointStore, RecoverableAgent, tool
from tests.support import outside
from tests.support.kill_sweep import RUNS, sweep


@tool
def send(what: str) -> str:
    return outside.did(what, f"sent {what}")


@tool(after_crash="retry")
def sends_again(what: str) -> str:
    return outside.did(what, f"sent {what}")


def recorded(place: Path, made: Any = send) -> Any:
    def agent(run: Any) -> list[str]:
        return [made(what) for what in "ab"]

    store = CheckpointStore(place / RUNS)
    return RecoverableAgent(agent, store, max_recoveries=0).run_with_recovery_sync("t", "run")[
        "result"
    ]


def begins_again(place: Path) -> Any:
    return recorded(place, sends_again)


def ends_otherwise_resumed(place: Path) -> Any:
    first = not (place / RUNS).exists()
    return {"said": recorded(place), "first": first}


def test_a_program_that_records_its_effects_survives(tmp_path: Path, rng: random.Random) -> None:
    found = sweep(recorded, tmp_path, rng)
    assert found.bad == []
    assert found.points == 2 * found.appends > 8
    assert found.doubted >= 2


@pytest.mark.parametrize(
    "program, said",
    [
        (begins_again, "effects made too often"),
        (ends_otherwise_resumed, ".first: False for True"),
    ],
)
def test_one_that_does_not_is_found(
    program: Any, said: str, tmp_path: Path, rng: random.Random
) -> None:
    found = sweep(program, tmp_path, rng)
    assert any(said in one for one in found.bad), found
