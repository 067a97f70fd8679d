"""The models of ownership hold; without any one of their guards, its property fails."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.ownership.models import FAULTS, MODELS, OWNERS, check, missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"not installed: {missing()}")

GUARDS = [
    ("leases", FAULTS, "NO_EPOCH", "STALE"),
    ("leases", FAULTS, "NO_NEXT", "TWICE"),
    ("leases", (*FAULTS, "SKIP_INTENT"), "NO_FLUSH", "LOST"),
    ("leases", (*FAULTS, "SKIP_FINISHED"), "NO_RESOLVE", "INTENT"),
    ("leases", OWNERS, "NO_COMPARE", "FENCE"),
    ("leases", (*OWNERS, "TIMELY"), "NO_WAIT", "ONCE"),
    ("leases", (*OWNERS, "TIMELY"), "NO_STICKY", "ONCE"),
    ("leases", OWNERS, "TWO_STATEMENTS", "FINISHED"),
    ("files", (), "NO_NEXT_LOCK", "UNIQUE"),
    ("files", (), "NO_REREAD", "UNIQUE"),
    ("files", (), "READ_FIRST", "LOST"),
    ("files", (), "NO_CHECK", "LOST"),
    ("files", (), "CHECK_FIRST", "LOST"),
    ("files", (), "NO_KERNEL", "CLAIMABLE"),
]


@pytest.mark.parametrize(
    ("model", "bounds"),
    [
        ("leases", OWNERS),
        ("leases", FAULTS),
        ("leases", (*OWNERS, "TIMELY")),
        ("leases", (*FAULTS, "TIMELY")),
        ("files", ()),
    ],
)
def test_with_all_guards_every_property_holds(model, bounds, tmp_path: Path) -> None:
    found = check(model, tmp_path, *bounds)
    assert found.failed == "", found.said
    assert found.states > 50_000, "the model does something"


@pytest.mark.parametrize(("model", "bounds", "guard", "fails"), GUARDS)
def test_without_a_guard_its_property_fails(model, bounds, guard, fails, tmp_path: Path) -> None:
    assert check(model, tmp_path, *bounds, guard).failed == fails


def test_each_guard_that_the_models_have_is_removed_once() -> None:
    removed = {guard for _, _, guard, _ in GUARDS}
    others = {"TIMELY", "LIVES", "UNKNOWNS", "SKIP_INTENT", "SKIP_FINISHED"}
    text = "".join((MODELS / f"{model}.pml").read_text() for model in ("leases", "files"))
    assert {*re.findall(r"(?:ifn?def |defined\()(\w+)", text)} - others == removed
