"""Every input that fuzzing has kept goes through its target, and every one that it found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS

HERE = Path(__file__).parent
# What has once broken a promise, under a name that says how. Never removed.
FOUND = sorted((HERE / "found").glob("*/*"))

# What is open: an index in a forged checkpoint is bounded neither from above nor by that of its
# base; recovery renews records in a segment that they are not in.
OPEN = {
    "index-of-64-bits",
    "index-below-its-base",
    "renewed-into-the-wrong-segment",
    "renewed-into-the-wrong-segment-2",
}


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_every_kept_input(target: str) -> None:
    inputs = sorted((HERE / "corpus" / target).iterdir())
    assert inputs
    for path in inputs:
        TARGETS[target](path.read_bytes())


def found(path: Path) -> object:
    still = pytest.mark.xfail(strict=True, reason="see OPEN")
    marks = [still] if path.name in OPEN else []
    return pytest.param(path, id=f"{path.parent.name}-{path.name}", marks=marks)


@pytest.mark.parametrize("path", [found(path) for path in FOUND])
def test_what_was_found_is_no_more(path: Path) -> None:
    TARGETS[path.parent.name](path.read_bytes())
