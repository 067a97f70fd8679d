"""Somebody can write to the store, and has no key: random sequences of what he can do."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.conftest import Figures
from tests.contract.hostile_stores import run_cases


def hostile(rng: random.Random, count: int, folder: Path) -> None:
    found = run_cases(str(rng.getrandbits(32)), count, folder)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("part", range(3))
def test_what_somebody_does_who_can_write_to_the_store(
    part: int, rng: random.Random, tmp_path: Path
) -> None:
    hostile(rng, 4, tmp_path)


@pytest.mark.crash
@pytest.mark.parametrize("part", range(8))
def test_all_that_somebody_can_do_who_can_write_to_the_store(
    part: int, rng: random.Random, tmp_path: Path, figures: Figures
) -> None:
    hostile(rng, 200, tmp_path)
    figures.add("hostile stores", cases=200)
