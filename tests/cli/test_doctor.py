"""``recovery doctor`` as people call it."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cli.harness import RUNS, Processes, call, columns, raw

DOCTOR = ("recovery", "doctor", "--store", ".")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RUNS, tmp_path / "runs"))


def test_it_finds_the_damaged_runs_and_changes_nothing(store: Path) -> None:
    before = sorted(path.relative_to(store) for path in store.rglob("*"))
    done = call(*DOCTOR, cwd=store)
    assert done.code == 1 and done.err == ""
    problem = next(line for line in done.out.splitlines() if line.startswith("problem"))
    assert "damaged" in problem and "-> recovery status --store ." in done.out
    assert done.out.splitlines()[-1].startswith("1 problem, ")
    assert sorted(path.relative_to(store) for path in store.rglob("*")) == before


def test_why_runs_cannot_be_read_is_for_show_to_say(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key is not always what is missing."""
    really = os.open

    def refused(path: str, *args: Any, **options: Any) -> int:
        if path.endswith("finished"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return really(path, *args, **options)

    monkeypatch.setattr(os, "open", refused)
    told = call(*DOCTOR, "--json", cwd=store).out
    (todo,) = [
        one["todo"]
        for one in json.loads(told)["checks"]
        if one["level"] == "warning" and "unreadable" in one["text"]
    ]
    assert todo == "recovery status --store ."
    assert (
        "finished"
        in call("recovery", "runs", "--state", "unreadable", "--store", ".", cwd=store).out
    )
    for run, why in (("finished", "finished: Permission denied"), ("encrypted", "the key")):
        shown = call("recovery", "show", run, "--store", ".", cwd=store)
        assert why in " ".join((shown.out + shown.err).split()), shown


def test_an_empty_store_is_well(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    done = call(*DOCTOR, "--json", cwd=tmp_path)
    found = json.loads(done.out)
    assert set(found) == {"ok", "checks"} and found["ok"] is (done.code == 0)
    assert all(set(check) == {"name", "level", "text", "todo"} for check in found["checks"])
    levels = {check["name"]: check["level"] for check in found["checks"]}
    assert levels["locks"] == levels["names"] == levels["runs"] == "ok"
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    done = call("recovery", "doctor", "--store", "new", cwd=tmp_path)
    assert "not made yet" in done.out and list(tmp_path.iterdir()) == []


def test_on_a_terminal_it_fits_and_nothing_is_raw(tmp_path: Path) -> None:
    path = tmp_path / "a\x1b[31mb\u202e"
    shutil.copytree(RUNS, path)
    (path / ".a\x1b[2J.removed-01234567").mkdir()
    with Processes(path) as processes:
        shown = processes.on_terminal(*DOCTOR)
        plain = processes.on_terminal(*DOCTOR, env={"NO_COLOR": "1"})
        closed = processes.in_closed_pipe(*DOCTOR)
    assert shown.code == 1 and raw(shown.shown) == []
    assert all(columns(line) <= 80 for line in shown.shown.splitlines())
    assert "\x1b[3" in shown.shown and "\x1b[3" not in plain.shown
    assert (closed.code, closed.err) == (141, "")
    assert sorted(one.name for one in path.iterdir() if one.name.startswith(".")) == [
        ".a\x1b[2J.removed-01234567"
    ]


@pytest.mark.parametrize("words", [("--store", "http://x"), ("--nonsense",), ("run",)])
def test_wrong_usage_is_said_in_a_line(words: tuple[str, ...], tmp_path: Path) -> None:
    done = call("recovery", "doctor", *words, cwd=tmp_path)
    assert done.code in (1, 64) and done.out == "" and "Traceback" not in done.err
