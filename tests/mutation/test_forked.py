"""Whatever hangs in a forked process is ended, and nothing else, however slow the machine is."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.mutation._forked import Allowed, Forked
from tests.mutation._map import TestMap
from tests.mutation._mutator import Change


def spins(seconds: float) -> None:
    began = time.process_time()
    while time.process_time() - began < seconds:
        pass


@pytest.mark.parametrize(
    ("work", "ends"),
    [
        (lambda: None, True),
        (lambda: spins(0.5), True),
        (lambda: time.sleep(0.5), True),
        (lambda: spins(60), False),
        (lambda: time.sleep(60), False),
    ],
)
def test_what_spins_or_waits_for_too_long_is_ended(work: Any, ends: bool) -> None:
    def says(say: Any) -> None:
        say(["begins"])
        work()
        say(["ended"])

    forked = Forked(says)
    said = list(forked.said(lambda _: Allowed(2.0, 1.5)))
    assert said == [["begins"], ["ended" if ends else "silent"]]
    assert (forked.spent_s > 1) is not ends


def test_the_tests_of_a_change_are_those_of_its_statement_and_all_files_get_their_turn(
    tmp_path: Path,
) -> None:
    tests = TestMap(tmp_path / "map.json")
    here, there = ("a.py", "f", 1), ("a.py", "f", 2)
    for i in range(60):
        tests.add(f"quick.py::{i}", 0.01, 0.01, [here])
        tests.add(f"other.py::{i}", 0.05, 0.05, [here, there])
    tests.add("slow.py::1", 1.0, 1.0, [here])
    tests.add("elsewhere.py::1", 0.01, 0.01, [there])
    tests.keep()
    tests = TestMap(tmp_path / "map.json")
    change = Change("a.py", "f", 1, 1, 0, 1, "a", "b")
    found = tests.of(change)
    assert len(found) == 121 and "elsewhere.py::1" not in found
    order = [name.partition(".")[0] for name in found]
    assert order[:41] == [*["quick"] * 40, "other"]
    assert order[-1] == "other", "a slow test of another file comes before the last of many"
    tests.caught(change, "slow.py::1")
    assert tests.of(change)[0] == "slow.py::1"
    assert json.loads((tmp_path / "map.json").read_text())["places"] == [[*here], [*there]]
