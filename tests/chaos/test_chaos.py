"""Workers that are killed, stopped and cut off finish their runs, each effect once.

Whoever judges them sees faults.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.chaos.agents import opened
from tests.chaos.chaos import Plan, chaos
from tests.chaos.judge import judge, notes
from tests.support.postgres import Server


def plan(rng: random.Random) -> Plan:
    return Plan(
        rng.getrandbits(32), runs=6, steps=4, seconds=8, pause_s=(0.3, 1), away_s=(2, 3), faults=5
    )


def paid(bank: Path) -> list[str]:
    return [line for line in bank.read_text().splitlines() if json.loads(line)[1]]


def effect_twice(place: Path) -> None:
    bank = place / "bank-run-0"
    bank.write_text(bank.read_text() + paid(bank)[-1] + "\n")


def effect_missing(place: Path) -> None:
    """All are, for a single one may be in doubt."""
    bank = place / "bank-run-1"
    gone = paid(bank)
    bank.write_text("\n".join(line for line in bank.read_text().splitlines() if line not in gone))


def old_fence(place: Path) -> None:
    with (place / "bank-run-2").open("a") as file:
        file.write('[0, "", "pay", 1]\n')


def commit_lost(place: Path) -> None:
    with (place / "commits").open("a") as file:
        file.write('[0, 1, "run-3", 1, 100000]\n')


def is_end(note: list[Any], run_id: str) -> bool:
    """Whether it is of an end of the run; one that a killed worker has noted may be lost."""
    return bool(note[2] == run_id and note[5] == "run_finished")


def stale_record(place: Path) -> None:
    """The end of a run was appended only by an owner that had lost it."""
    lines = notes(place, "appends")
    for one in lines:
        one[3] = 0 if is_end(one, "run-4") else one[3]
    (place / "appends").write_text("".join(json.dumps(one) + "\n" for one in lines))


def stranger(place: Path) -> None:
    """The end of a run was appended by an owner that has not noted it."""
    kept = [one for one in notes(place, "appends") if not is_end(one, "run-5")]
    (place / "appends").write_text("".join(json.dumps(one) + "\n" for one in kept))


FAULTS: dict[Callable[[Path], None], str] = {
    effect_twice: "run-0: the effect",
    effect_missing: "run-1: the effect",
    old_fence: "run-2: an effect of an old fence",
    commit_lost: "run-3: owner 1 was told that LSN 100000 is durable: lost",
    stale_record: "run-4: LSN",
    stranger: "run-5: LSN",
}


def test_each_run_finishes_with_each_effect_once(tmp_path: Path, rng: random.Random) -> None:
    where, made = str(tmp_path / "store"), plan(rng)
    found = chaos(where, tmp_path, made)
    assert found.bad == [], str(found)
    assert found.faults.total() > 0 and found.effects >= 6 * 4
    for fault, said in FAULTS.items():  # the judge is judged
        fault(tmp_path)
        again = judge(opened(where), tmp_path, made.all_runs(), [])
        assert any(one.startswith(said) for one in again.bad), (said, again.bad)


def test_a_run_that_is_not_finished_is_bad(tmp_path: Path) -> None:
    found = chaos(str(tmp_path / "store"), tmp_path, Plan(1, 1, 1, 10_000, 0, end_s=3))
    assert found.bad[0].startswith("not finished")
    assert any("run-0" in one and "not finished" in one for one in found.bad[1:])


def test_on_postgresql(postgres: object, tmp_path: Path, rng: random.Random) -> None:
    server = Server()  # of its own: it is killed
    try:
        found = chaos(server.url(), tmp_path, plan(rng), server)
    finally:
        server.remove()
    assert found.bad == [], str(found)
    assert found.faults.total() > 0
