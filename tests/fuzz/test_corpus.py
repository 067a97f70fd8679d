"""Every input that fuzzing has kept goes through its target, and every one that it found."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS
from tests.support.scale import scaled

HERE = Path(__file__).parent
# What has once broken a promise, under a name that says how. Never removed.
FOUND = sorted((HERE / "found").glob("*/*"))


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_kept_inputs(target: str, rng: random.Random) -> None:
    """Each with `make crash`."""
    inputs = sorted((HERE / "corpus" / target).iterdir())
    assert inputs
    for path in rng.sample(inputs, min(len(inputs), scaled(60, 1000))):
        TARGETS[target](path.read_bytes())


@pytest.mark.parametrize("path", FOUND, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_was_found_is_no_more(path: Path) -> None:
    TARGETS[path.parent.name](path.read_bytes())
