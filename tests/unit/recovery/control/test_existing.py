"""A run that is not there, or is only just being made, and what is asked for from outside."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eventlog.errors import UnsupportedFormatError
from eventlog.format import frame
from eventlog.testing import SimulatedDisk
from recovery import CheckpointStore, RecoverableAgent, RecoveryError, Resolution, SyncRun
from recovery.agent.undo_run import undo
from recovery.control.cancel import cancel
from recovery.control.relatives import children, lineage, parent
from recovery.control.resolve import accept, resolve
from recovery.control.send import approve, deny, pending, signal
from recovery.errors import WaitingError
from recovery.inspect.compare import compare
from recovery.inspect.follow import events
from recovery.ops.fork import fork
from tests.support.lives import disk_store, run

# Each public function that reads a run's log, or writes to it for somebody outside.
ASKED: dict[str, Callable[[Any], Any]] = {
    "accept": lambda store: accept(store, "run"),
    "approve": lambda store: approve(store, "run", 1),
    "cancel": lambda store: cancel(store, "run"),
    "children": lambda store: children(store, "run"),
    "compare": lambda store: compare(store, "run", "run"),
    "deny": lambda store: deny(store, "run", 1),
    "events": lambda store: list(events(store, "run", until="now")),
    "fork": lambda store: fork(store, "run", "another"),
    "lineage": lambda store: lineage(store, "run"),
    "parent": lambda store: parent(store, "run"),
    "pending": lambda store: pending(store, "run"),
    "resolve": lambda store: resolve(store, "run", 1, Resolution.retry()),
    "signal": lambda store: signal(store, "run", "go"),
    "undo": lambda store: undo(store, "run", tools=[]),
}
BEING_MADE = pytest.mark.parametrize("being_made", [False, True], ids=["nowhere", "being made"])


def empty(being_made: bool) -> SimulatedDisk:
    """A disk without the run; or as a claim leaves it that a crash cuts short at its first call."""
    disk = SimulatedDisk()
    if being_made:
        disk.make_directory("home/run")
    return disk


@BEING_MADE
@pytest.mark.parametrize("as_backend", [False, True], ids=["CheckpointStore", "RunStore"])
@pytest.mark.parametrize("asked", ASKED)
def test_there_is_no_run_and_none_is_made(asked: str, as_backend: bool, being_made: bool) -> None:
    disk = empty(being_made)
    store, before = disk_store(disk), disk.image()
    with pytest.raises(RecoveryError, match="there is no run 'run'"):
        ASKED[asked](store.backend if as_backend else store)
    assert disk.image() == before


@pytest.mark.parametrize("asked", ["signal", "events", "fork"])
def test_the_error_names_the_store_most_often_the_wrong_one(asked: str, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    with pytest.raises(RecoveryError, match=f"there is no run 'run' in {tmp_path}/runs"):
        ASKED[asked](CheckpointStore(tmp_path / "runs"))


@BEING_MADE
def test_a_run_that_is_not_there_has_no_checkpoints(being_made: bool) -> None:
    store = disk_store(empty(being_made))
    assert store.load_latest("run") is None
    assert store.run("run").checkpoints() == []
    assert not (found := store.check("run"))
    assert found.reason == "there is no run 'run'"


def test_what_a_claim_has_begun_is_run() -> None:
    assert run(lambda run: run.task, disk_store(empty(True)))["result"] == "task"


@pytest.mark.parametrize("asked", ASKED)
def test_a_run_of_a_newer_library_is_not_said_to_be_missing(
    asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: CheckpointStore = disk_store()
    with monkeypatch.context() as newer:
        newer.setattr(frame, "VERSION", 2)
        run(lambda run: None, store)
    with pytest.raises(UnsupportedFormatError, match="format version 2"):
        ASKED[asked](store)


def test_the_cancellation_of_a_copied_log_is_not_of_the_run_that_it_was_copied_from(
    tmp_path: Path,
) -> None:
    """A directory that somebody has copied has the first record of the other run."""
    store = CheckpointStore(tmp_path)

    def waits(run: SyncRun) -> None:
        run.wait_for("go")

    with pytest.raises(WaitingError):
        RecoverableAgent(waits, store, park_after_s=0).run_with_recovery_sync(None, "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    store.run("copy").cancel()
    assert store.run("run").status().state == "waiting"
    assert store.run("run").status().unread == ()
    assert store.run("copy").status().state == "cancelled"
