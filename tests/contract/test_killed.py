"""Agents as people write them end as if nobody had killed them: by SIGKILL at each record in real
processes, and at every crash point of a disk in memory."""

from __future__ import annotations

import random
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from recovery import CheckpointStore
from recovery.testing import crash_everywhere
from tests.contract.killed import process, programs
from tests.support import outside
from tests.support.scale import scaled

PLAIN = process.plain()
CASES = [pytest.param(programs, name, id=name) for name in programs.ALL]
IN_PLAIN_CODE = [pytest.param(PLAIN, name, id=f"{name}-plain") for name in programs.PLAIN]


@pytest.mark.parametrize("module, name", CASES + IN_PLAIN_CODE)
def test_an_agent_that_is_killed_ends_like_one_that_is_not(
    module: ModuleType, name: str, tmp_path: Path, rng: random.Random, figures: Any
) -> None:
    first = process.Program(name, module, tmp_path / "first")
    whole = first.lives()
    result, expected = whole[-1].said, outside.counted()
    # Each record of each life: those at which the run parks, and is resumed, included.
    points = [(life, at) for life, end in enumerate(whole) for at in range(1, end.appends + 1)]
    for life, at in rng.sample(points, min(len(points), scaled(1, 1000))):
        again = rng.choice([0, 1, 2, 3, 5])
        one = process.Program(name, module, tmp_path / f"{life}-{at}")
        lives = one.lives(*[0] * life, at, again)
        assert "killed" in [end.how for end in lives], f"record {at} of life {life} was not reached"
        assert lives[-1].said == result, (life, at, again, lives)
        assert outside.counted() == expected, (life, at, again, lives)
    figures.add("agents killed at each record", programs=1, points=len(points))


# What is wrong with it stands in the way of the run without a crash, too.
NOT_WORKING = {"gets_what_cannot_be_recorded", "has_a_tool_that_fails_once"}
WORKING = [case for case in CASES if case.values[1] not in NOT_WORKING]
WORKING += [  # what differs in plain code is found by the kills above, too
    pytest.param(*case.values, id=case.id, marks=pytest.mark.crash)
    for case in IN_PLAIN_CODE
    if case.values[1] not in NOT_WORKING
]


@pytest.mark.parametrize("module, name", WORKING)
def test_an_agent_that_crashes_in_memory_ends_like_one_that_does_not(
    module: ModuleType, name: str, tmp_path: Path
) -> None:
    one = process.Program(name, module, tmp_path / "run")
    signals = list(one.signals)

    def sends(store: CheckpointStore, run_id: str) -> None:
        for number, (what, value) in enumerate(signals):
            store.run(run_id).signal(what, value, key=f"{number}")

    report = crash_everywhere(
        lambda: one.agent(CheckpointStore()),
        "task",
        setup=outside.nothing,
        effects=lambda: sorted(outside.counted().elements()),
        resolve=outside.truth,
        answer=sends if signals else None,
        points=scaled(3, 400),
    )
    assert report.ok, str(report)
