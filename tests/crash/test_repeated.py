"""Commands that were killed midway, and are repeated: the repetition does the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eventlog.files.posix import OSFiles
from recovery import CheckpointStore, RecoverableAgent, tool
from recovery.cli.app import run
from recovery.cli.exit_codes import FOUND, IO_ERROR, NO_INPUT, OK
from recovery.errors import StoppedError
from tests.support.lives import refuse_deletion


@tool
def pay(step: int) -> int:
    return step


def child(run: Any) -> int:
    paid: int = run.call(pay, 1)
    agents[-1].stop()
    return paid + int(run.call(pay, 2))


def parent(run: Any) -> Any:
    return run.child(child, "task")


agents: list[RecoverableAgent[Any]] = []


def dies(*_: object) -> None:
    raise MemoryError


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    """A run "par" that is interrupted, and its child, too."""
    store = CheckpointStore(tmp_path)
    agents.append(RecoverableAgent(parent, store))
    with pytest.raises(StoppedError):
        agents[-1].run_with_recovery_sync("task", "par")
    return store


def states(store: CheckpointStore) -> list[str]:
    return [one.state for one in store.runs()]


def test_cancel(store: CheckpointStore, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (_, below), where = store.backend.run_ids(), store.backend.address
    cancel = ["cancel", "par", "--yes", "--store", where]
    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr("recovery.control.cancel.cancel_children", dies)
        run(cancel)
    assert states(store) == ["cancelled", "interrupted"]
    assert "1 child run will end with it" in capsys.readouterr().out
    assert run(["resume", below, "--agent", f"{__name__}:child", "--store", where]) == FOUND
    assert "which has ended (cancelled)" in capsys.readouterr().err
    assert run(cancel) == OK
    assert states(store) == ["cancelled", "cancelled"]
    assert "the child runs that it had left end now" in capsys.readouterr().out
    assert run(cancel) == FOUND
    told = capsys.readouterr()
    assert "has ended (cancelled): cancel was not sent" in told.err and not told.out


def test_rm(store: CheckpointStore, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rm = ["rm", "par", "--children", "--force", "--yes", "--store", store.backend.address]
    for left in (1, 0):
        with monkeypatch.context() as patch, pytest.raises(MemoryError):
            patch.setattr(OSFiles, "delete", dies)
            run(rm)
        assert len(store.backend.run_ids()) == left
    capsys.readouterr()
    assert run([*rm, "--dry-run"]) == OK
    assert capsys.readouterr().out == FINISHED.format("would finish")
    assert run(rm) == OK
    assert capsys.readouterr().out == FINISHED.format("finished")
    assert not any(Path(store.backend.address).iterdir())
    assert run(rm) == NO_INPUT
    assert "there is no run 'par'" in capsys.readouterr().err


FINISHED = "{} the deletion of run par, which had been interrupted\n"


def test_remains_that_cannot_be_deleted(
    store: CheckpointStore, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = Path(store.backend.address) / ".fin.removed-0123abcd"
    (left / "inbox").mkdir(parents=True)
    refuse_deletion(monkeypatch, OSFiles, ".fin.")
    rm = ["rm", "par", "--children", "--force", "--yes", "--store", store.backend.address]
    assert run(rm) == OK
    told = capsys.readouterr()
    assert "deleted 2 runs" in told.out and "what a removal has left could not" in told.err
    assert run(["gc", "--store", store.backend.address]) == IO_ERROR
    assert f"{left.parent}/.fin.removed-" in capsys.readouterr().err


def test_fork(tmp_path: Path, capsys: Any) -> None:
    """Killed when all of the fork was written: nobody can tell, so it is simply repeated."""
    store = CheckpointStore(tmp_path)
    RecoverableAgent(parent_of_none, store).run_with_recovery_sync("task", "run")
    fork = ["fork", "run", "new", "--why", "a try", "--store", str(tmp_path)]
    assert run(fork) == OK
    said, before = capsys.readouterr().out, store.run("new").status().last_lsn
    assert run(fork) == OK
    assert capsys.readouterr().out == said
    assert store.run("new").status().last_lsn == before
    assert run([*fork[:3], "--store", str(tmp_path)]) == FOUND
    assert "run 'new' exists" in capsys.readouterr().err


def parent_of_none(run: Any) -> Any:
    return run.call(pay, 1)
