"""Workers that are killed and stopped finish their runs, each effect once; judges see faults."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.chaos.chaos import Verdict, chaos, judge

SIZE, FAULTS_MAX = (3, 6, 4), 5


def effect_twice(place: Path) -> None:
    bank = place / "bank-run-0"
    paid = [line for line in bank.read_text().splitlines() if json.loads(line)[1]]
    bank.write_text(bank.read_text() + paid[-1] + "\n")


def effect_missing(place: Path) -> None:
    bank = place / "bank-run-1"
    lines = bank.read_text().splitlines()
    gone = next(line for line in lines if json.loads(line)[1])
    bank.write_text("\n".join(line for line in lines if line != gone) + "\n")


def old_fence(place: Path) -> None:
    with (place / "bank-run-2").open("a") as file:
        file.write('[0, "", 1]\n')


def commit_lost(place: Path) -> None:
    with (place / "commits").open("a") as file:
        file.write('[0, 1, "run-3", 1, 100000]\n')


def stale_record(place: Path) -> None:
    """The middle record of a run was appended only by an owner that had lost it."""
    notes = [json.loads(line) for line in (place / "appends").read_text().splitlines()]
    of_run = [one for one in notes if one[2] == "run-4" and one[4]]
    for one in of_run:
        one[3] += 1
    whats = [one[4] for one in of_run]
    middle = next(one for one in of_run[3:] if whats.count(one[4]) == 1)
    middle[3] = 0
    (place / "appends").write_text("".join(json.dumps(one) + "\n" for one in notes))


def person(place: Path) -> None:
    with (place / "persons").open("a") as file:
        file.write('[0, 1, "run-5", "in doubt"]\n')


FAULTS: dict[Callable[[Path], None], str] = {
    effect_twice: "run-0: 4 of 4 effects, 5 times",
    effect_missing: "run-1: 3 of 4 effects, 3 times",
    old_fence: "run-2: an effect of an old fence",
    commit_lost: "run-3: owner 1 was told that LSN 100000 is durable: lost",
    stale_record: "run-4: LSN",
    person: "run-5: a person was asked",
}


def test_each_run_finishes_with_each_effect_once(tmp_path: Path, rng: random.Random) -> None:
    where = str(tmp_path / "store")
    found = chaos(where, tmp_path, rng, SIZE, 150, FAULTS_MAX)
    assert found.bad == [], str(found)
    assert found.effects == 24
    assert found.kills + found.stops > 0
    for fault, said in FAULTS.items():  # the judge is judged
        fault(tmp_path)
        again = Verdict(SIZE[1])
        judge(where, tmp_path, SIZE, [], again)
        assert any(one.startswith(said) for one in again.bad), (said, again.bad)


def test_a_run_that_is_not_finished_is_bad(tmp_path: Path) -> None:
    found = chaos(str(tmp_path / "store"), tmp_path, random.Random(1), (1, 1, 10_000), 3)
    assert found.bad[0].startswith("not finished")
    assert any("not finished" in one for one in found.bad[1:])


def test_on_postgresql(postgres: Any, tmp_path: Path, rng: random.Random) -> None:
    found = chaos(postgres.url(), tmp_path, rng, SIZE, 150, FAULTS_MAX)
    assert found.bad == [], str(found)
    assert found.effects == 24
