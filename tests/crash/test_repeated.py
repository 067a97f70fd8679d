"""Commands that were killed midway, and are repeated: the repetition does the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from recovery import CheckpointStore, RecoverableAgent, tool
from recovery.cli.app import run
from recovery.cli.exit_codes import FOUND, OK
from recovery.errors import StoppedError


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
