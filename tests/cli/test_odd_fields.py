"""Whatever a field of a record holds, each command says something of it, and of the rest."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recovery import CheckpointStore, RecoverableAgent, Run, tool
from recovery.errors import RunFailedError
from tests.cli.harness import call
from tests.cli.odd_fields import FORGED, HUGE, ODD, Case, cases, commands, make, wrong
from tests.conftest import Figures


def swept(some: list[Case], each: int, rng: random.Random, folder: Path) -> None:
    """Each of the cases with so many of the commands."""
    called = commands()
    found = [one for case in some for one in wrong(case, folder, rng.sample(called, each))]
    assert not found, "\n".join(found)


def test_odd_values_of_random_fields(rng: random.Random, tmp_path: Path) -> None:
    swept(rng.sample([*cases()], 30), 5, rng, tmp_path)


@pytest.mark.crash
@pytest.mark.parametrize("part", range(10))
def test_every_odd_value_of_every_field(
    part: int, rng: random.Random, tmp_path: Path, figures: Figures
) -> None:
    some = [*cases()][part::10]
    swept(some, 8, rng, tmp_path)
    figures.add("odd values in records", values=len(some), commands=8 * len(some))


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_an_integer_of_more_digits_than_python_prints(command: list[str], tmp_path: Path) -> None:
    assert HUGE.bit_length() > sys.get_int_max_str_digits() * 3.4
    for case in (Case("outcome", "value", "huge"), Case("checkpoint", "timestamp", "huge")):
        assert not [*wrong(case, tmp_path, [command])]


@pytest.mark.parametrize("value", ["infinite", "no number"])
def test_a_wait_until_what_is_no_time_does_not_end_by_itself(value: str, tmp_path: Path) -> None:
    case = Case("run_parked", "wake_at", value)
    assert not [*wrong(case, tmp_path, [["recovery", "show", "--store", ".", "odd"]])]
    make(tmp_path / "store", case)
    assert CheckpointStore(tmp_path / "store").run("odd").status().wake_at is None


@pytest.mark.parametrize("record, field", [("run_parked", "calls"), ("abandoned", "attempt")])
@pytest.mark.parametrize("value", ["half", "map", "nothing", "huge"])
def test_one_odd_record_does_not_hide_the_rest_of_the_store(
    record: str, field: str, value: str, tmp_path: Path
) -> None:
    make(tmp_path, Case(record, field, value))
    done = call("recovery", "runs", "--store", ".", "--json", cwd=tmp_path)
    said = {one["run_id"]: one["state"] for one in map(json.loads, done.out.splitlines())}
    assert said == {"odd": "damaged", "sound": "interrupted"}
    done = call("recovery", "doctor", "--store", ".", cwd=tmp_path)
    assert "odd" in "".join(done.out.split()) and "Traceback" not in done.err  # a path may wrap


@tool
def grains() -> int:
    return HUGE


async def counts(run: Run) -> int:
    return int(await run.call(grains))


def test_a_huge_result_of_an_honest_tool_is_shown_by_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(tmp_path)
    assert RecoverableAgent(counts, store).run_with_recovery_sync("t", "run")["result"] == HUGE
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    agent = f"{__name__}:counts"
    done = call("recovery", "resume", "--store", ".", "run", "--agent", agent, cwd=tmp_path)
    assert done.code == 0 and hex(HUGE)[:40] in done.out.replace("\n", ""), done


def test_every_kind_of_value_is_tried_in_every_field() -> None:
    found = {(case.record, case.field) for case in cases()}
    assert ("messages", "new") in found and ("carried", "signals") in found
    assert len([*cases()]) == len(found) * (len(ODD) + 1)


@tool
def remote() -> str:
    raise ConnectionError(f"refused\n\n{FORGED} rm -rf /\nnext:  rm")


async def asks(run: Run) -> str:
    return str(await run.call(remote))


async def asks_by_itself(run: Run) -> str:
    raise ConnectionError(f"refused\n{FORGED} rm -rf /")


@pytest.mark.parametrize("agent", [asks, asks_by_itself])
def test_the_lines_of_a_remote_text_are_marked(
    agent: Callable[[Run], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises((RunFailedError, ConnectionError)) as caught:
        RecoverableAgent(agent, CheckpointStore(tmp_path), 1).run_with_recovery_sync("t", "run")
    texts = [str(caught.value)] if agent is asks else []
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    name = f"{__name__}:{agent.__name__}"
    for command in (["resume", "--agent", name], ["show"], ["retry", "--agent", name]):
        done = call("recovery", *command, "--store", ".", "run", cwd=tmp_path)
        texts.append(done.out + done.err)
    for text in texts:
        assert not [line for line in text.splitlines() if line.startswith(FORGED)], text
