"""``recovery rm`` and ``gc``: what they ask, what they refuse, what is gone afterwards."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from recovery.stores.file import FileStore
from tests.cli.harness import RUNS, Processes, call


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RUNS, tmp_path / "runs"))


@pytest.fixture
def processes(store: Path) -> Iterator[Processes]:
    with Processes(store) as started:
        yield started


def left(store: Path) -> set[str]:
    return {path.name for path in store.iterdir()}


ALL = {path.name for path in RUNS.iterdir()} if RUNS.exists() else set()
RM = ("recovery", "rm", "--store", ".")
GC = ("recovery", "gc", "--store", ".")


def test_rm_asks_on_a_terminal(store: Path, processes: Processes) -> None:
    refused = processes.on_terminal(*RM, "finished", keys=b"n\n")
    assert refused.code == 1 and "Delete 1 run for good? [y/N]" in refused.shown, refused
    assert "nothing was changed" in refused.shown and left(store) == ALL
    agreed = processes.on_terminal(*RM, "finished", keys=b"y\n")
    assert agreed.code == 0 and "deleted 1 run" in agreed.shown
    assert left(store) == ALL - {"finished"}


def test_rm_with_nobody_to_ask_needs_yes(store: Path) -> None:
    done = call(*RM, "finished", cwd=store)
    assert done.code == 64 and "say --yes" in done.err and left(store) == ALL
    done = call(*RM, "finished", "--yes", cwd=store)
    assert (done.code, done.err) == (0, "") and left(store) == ALL - {"finished"}
    assert done.out.startswith("finished: finished ") and "\ndeleted 1 run, " in done.out


@pytest.mark.parametrize("run", ["crashed_in_doubt", "damaged_payload", "encrypted", "parked"])
def test_rm_says_that_it_takes_force(run: str, store: Path) -> None:
    done = call(*RM, run, "--yes", cwd=store)
    assert done.code == 1 and "--force" in done.err and "force=True" not in done.err
    assert left(store) == ALL
    assert call(*RM, run, "--yes", "--force", cwd=store).code == 0
    assert left(store) == ALL - {run}


def test_rm_never_deletes_what_it_does_not_know(store: Path) -> None:
    done = call(*RM, "unsupported", "--yes", "--force", cwd=store)
    assert done.code == 1 and "version" in done.err and len(done.err.splitlines()) == 1
    assert left(store) == ALL


def test_rm_says_which_children_stay_and_takes_them_on_demand(store: Path) -> None:
    below = {name for name in ALL if name.startswith("parent+")}
    done = call(*RM, "parent", "--dry-run", cwd=store)
    assert "2 child runs of it will stay (--children takes them too)" in done.out
    assert all(name in done.out for name in below) and left(store) == ALL
    done = call(*RM, "parent", "--children", "--yes", cwd=store)
    assert "deleted 3 runs" in done.out and left(store) == ALL - below - {"parent"}


@pytest.mark.parametrize("words", [(*RM, "finished", "--force"), (*GC, "--keep", "0")])
def test_a_run_that_a_process_has_stays(words: tuple[str, ...], store: Path) -> None:
    with FileStore(store).claim("finished"):
        done = call(*words, "--yes", cwd=store)
        assert "finished" in left(store)
    if "rm" in words:
        assert done.code == 1 and "is held by process" in done.err and left(store) == ALL
        assert "takeover=True" not in done.err
    else:
        assert done.code == 0


def test_gc_asks_on_a_terminal(store: Path, processes: Processes) -> None:
    refused = processes.on_terminal(*GC, "--keep", "6", keys=b"n\n")
    assert refused.code == 1 and "for good? [y/N]" in refused.shown and left(store) == ALL
    agreed = processes.on_terminal(*GC, "--keep", "6", keys=b"y\n")
    assert agreed.code == 0 and "deleted " in agreed.shown and left(store) < ALL


def test_gc_with_nobody_to_ask_needs_yes_and_then_does_what_it_said(store: Path) -> None:
    assert call(*GC, "--keep", "0", cwd=store).code == 64
    assert left(store) == ALL
    said = call(*GC, "--keep", "0", "--dry-run", "--json", cwd=store)
    would = [json.loads(line) for line in said.out.splitlines()]
    assert left(store) == ALL and not any(one["removed"] for one in would)
    done = call(*GC, "--keep", "0", "--yes", "--json", cwd=store)
    gone = [json.loads(line) for line in done.out.splitlines()]
    assert [one | {"removed": True} for one in would] == gone
    assert left(store) == ALL - {one["run_id"] for one in gone}
    assert {one["state"] for one in gone} <= {"finished", "cancelled", "undone"}
    assert call(*GC, "--keep", "0", "--yes", cwd=store).out.startswith("nothing to delete")


def test_gc_of_failed_runs_is_asked_for(store: Path) -> None:
    done = call(*GC, "--keep", "0", "--state", "failed", "--yes", cwd=store)
    assert done.code == 0 and left(store) == ALL - {"failed"}


def test_gc_keeps_what_is_young(store: Path) -> None:
    assert call(*GC, "--older-than", "3h", "--yes", cwd=store).out.startswith("nothing to delete")
    assert call(*GC, "--older-than", "90min", "--yes", cwd=store).code == 0
    assert left(store) < ALL


def test_gc_alone_finishes_what_was_interrupted(store: Path) -> None:
    (store / "finished").rename(store / ".finished.removed-0123abcd")
    done = call(*GC, cwd=store)
    assert done.code == 0 and left(store) == ALL - {"finished"}
    assert done.out == (
        "finished 1 deletion that had been interrupted\n"
        "no run is chosen: say which, with --older-than or --keep\n"
    )


@pytest.mark.parametrize(
    "words",
    [
        ("--older-than", "x"),
        ("--older-than", "5"),
        ("--older-than", "-5d"),
        ("--keep", "-1"),
        ("--older-than", "1e9d"),
        ("--keep", "many"),
        ("--keep", "1", "--state", "running"),
    ],
)
def test_gc_refuses_what_makes_no_sense(words: tuple[str, ...], store: Path) -> None:
    done = call(*GC, *words, "--yes", cwd=store)
    assert done.code == 64 and done.out == "" and "Traceback" not in done.err
    assert left(store) == ALL
