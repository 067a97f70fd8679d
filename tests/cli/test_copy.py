"""``recovery copy``: between directories here, with a server in tests/conformance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eventlog import EventLog
from recovery import CheckpointStore, RecoverableAgent, tool
from recovery.cli.app import run
from recovery.cli.exit_codes import FOUND, NO_INPUT, OK, USAGE


@tool
def pay(step: int) -> int:
    return step


def agent(run: Any) -> int:
    return sum(run.call(pay, step) for step in range(5))


@pytest.fixture
def stores(tmp_path: Path) -> tuple[Path, Path]:
    store = CheckpointStore(tmp_path / "from")
    for run_id in ("a", "b"):
        RecoverableAgent(agent, store).run_with_recovery_sync("task", run_id)
    uid = store.run("a").status().uid
    store.backend.post("a", "signal", {"uid": uid, "name": "go", "value": 1, "who": ""})
    return tmp_path / "from", tmp_path / "to"


def segments(run_path: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run_path)): path.read_bytes() for path in run_path.rglob("*.seg")}


def test_a_copy_has_the_same_bytes(stores: tuple[Path, Path], capsys: Any) -> None:
    source, target = stores
    assert run(["copy", "a", "--from", str(source), "--to", str(target)]) == OK
    assert segments(target / "a") == segments(source / "a") and len(segments(target / "a")) == 2
    assert "copied 1 run" in capsys.readouterr().out
    inbox = CheckpointStore(target).backend.inbox("a")
    assert inbox is not None
    with inbox:
        assert [record.body["value"] for record in inbox.records()] == [1]
    result = RecoverableAgent(agent, CheckpointStore(target)).run_with_recovery_sync("task", "a")
    assert result["result"] == 10
    assert run(["copy", "a", "b", "--from", str(source), "--to", str(target)]) == FOUND
    assert "has a run 'a' already" in capsys.readouterr().err
    assert (target / "b").is_dir(), "the others are copied"


def test_all_runs_are_moved(stores: tuple[Path, Path]) -> None:
    source, target = stores
    before = segments(source)
    assert run(["copy", "--all", "--move", "--from", str(source), "--to", str(target)]) == OK
    assert segments(target) == before and not segments(source)


@pytest.mark.parametrize("when", ["copied", "compared"])
def test_a_run_that_goes_on_while_it_is_moved_stays(
    stores: tuple[Path, Path], when: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = stores
    kind = type(CheckpointStore(source).backend)
    name = {"copied": "adopt", "compared": "remove"}[when]
    method = getattr(kind, name)

    def goes_on(self: Any, run_id: str, *more: Any) -> None:
        with CheckpointStore(source).claim("a") as log:
            log.append("note", {"paid": 7})
            log.commit()
        method(self, run_id, *more)

    monkeypatch.setattr(kind, name, goes_on)
    assert run(["copy", "a", "--move", "--from", str(source), "--to", str(target)]) == FOUND
    assert "differs from the original: the run was resumed" in capsys.readouterr().err
    with EventLog.read(source / "a") as log:
        assert [*log.records()][-1].body == {"paid": 7}


def test_a_move_that_was_killed_before_it_removed_the_original_is_repeated(
    stores: tuple[Path, Path], capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = stores
    move = ["copy", "a", "--move", "--from", str(source), "--to", str(target)]

    def dies(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(type(CheckpointStore(source).backend), "remove", dies)
        run(move)
    before = segments(source / "a")
    assert segments(target / "a") == before
    assert run(move) == OK
    assert "moved 1 run" in capsys.readouterr().out
    assert not (source / "a").exists() and segments(target / "a") == before


def test_a_run_is_not_moved_onto_another_of_its_id(stores: tuple[Path, Path], capsys: Any) -> None:
    source, target = stores
    assert run(["copy", "a", "--from", str(source), "--to", str(target)]) == OK
    with CheckpointStore(target).claim("a") as log:
        log.append("note", {"paid": 7})
        log.commit()
    before = segments(source / "a"), segments(target / "a")
    assert run(["copy", "a", "--move", "--from", str(source), "--to", str(target)]) == FOUND
    assert "has a run 'a' already" in capsys.readouterr().err
    assert (segments(source / "a"), segments(target / "a")) == before


def test_a_store_is_not_moved_into_itself(stores: tuple[Path, Path], capsys: Any) -> None:
    source, target = stores
    target.symlink_to(source)
    before = segments(source)
    assert run(["copy", "--all", "--move", "--from", str(source), "--to", str(target)]) == FOUND
    assert "has a run 'a' already" in capsys.readouterr().err
    assert segments(source) == before


def test_what_is_refused(stores: tuple[Path, Path], capsys: Any) -> None:
    source, target = map(str, stores)
    with CheckpointStore(source).claim("a"):
        assert run(["copy", "a", "--from", source, "--to", target]) == FOUND
    told = capsys.readouterr().err
    assert "is held by" in told and "takeover=True" not in told and not Path(target, "a").exists()
    assert run(["copy", "--from", source, "--to", target]) == USAGE
    assert run(["copy", "a", "--from", source, "--to", source]) == USAGE
    assert run(["copy", "nope", "--from", source, "--to", target]) == FOUND
    assert run(["copy", "a", "--from", target + "x", "--to", target]) == NO_INPUT


def test_a_crash_leaves_no_run_and_gc_deletes_its_remains(
    stores: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = map(str, stores)
    store = CheckpointStore(target)

    def dies(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(type(store.backend.files), "move", dies)  # type: ignore[attr-defined]
    with pytest.raises(MemoryError):
        run(["copy", "a", "--from", source, "--to", target])
    monkeypatch.undo()
    assert store.backend.run_ids() == [] and any(Path(target).iterdir())
    store.gc()
    assert not any(Path(target).iterdir())
