"""What the commands print, as `python -m tests.cli.golden` has written it."""

from __future__ import annotations

import pytest

from tests.cli.golden import names, outputs
from tests.cli.harness import GOLDEN, golden


@pytest.mark.parametrize("name", sorted(names()))
def test_output_is_golden(name: str) -> None:
    golden(name, outputs(*names()[name]))


def test_no_golden_output_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(names())


def test_a_difference_is_shown() -> None:
    name = "logdump-verify"
    found = (GOLDEN / f"{name}.txt").read_text().replace("sound", "fine", 1)
    with pytest.raises(AssertionError, match=r"(?s)\n-cancelled: sound.*\n\+cancelled: fine"):
        golden(name, found)
