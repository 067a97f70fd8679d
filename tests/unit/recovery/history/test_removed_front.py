"""A run's log of which the front was removed: never begun anew, and never called sound."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from logdump import main

from eventlog import EventLog
from recovery import CheckpointStore, RecoverableAgent, tool
from recovery.control.resolve import resolve
from recovery.errors import DamagedRunError
from recovery.inspect.status import status
from recovery.journal.call import Resolution
from tests.support.lives import Died

done: Counter[Any] = Counter()


@tool
def charge(step: int) -> str:
    done[step] += 1
    if step == 6:
        raise Died
    return "x" * 200


def agent(run: Any) -> None:
    for step in run.steps():
        run.messages.append(run.call(charge, step))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CheckpointStore:
    done.clear()
    store = CheckpointStore(tmp_path)
    monkeypatch.setitem(EventLog.open.__func__.__kwdefaults__, "segment_size", 1000)  # type: ignore[attr-defined]
    with pytest.raises(Died):
        RecoverableAgent(agent, store, checkpoint_every_n=2).run_with_recovery_sync("t", "run")
    return store


@pytest.mark.parametrize("which", ["checkpoint", "end"])
def test_it_is_refused_and_nothing_is_executed(
    store: CheckpointStore, tmp_path: Path, which: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with EventLog.open(tmp_path / "run") as log:
        newest = next(log.snapshots()).lsn
        assert log.truncate_before(newest if which == "checkpoint" else log.last_lsn) > 1
    before, calls = status(store, "run"), dict(done)
    assert before.state == "unreadable" and "removed by" in before.why
    with pytest.raises(DamagedRunError, match="removed by"):
        RecoverableAgent(agent, store, checkpoint_every_n=2).run_with_recovery_sync("t", "run")
    with pytest.raises(DamagedRunError):
        resolve(store, "run", before.last_lsn, Resolution.retry())
    assert dict(done) == calls and status(store, "run").last_lsn == before.last_lsn
    assert main(["verify", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().out
    assert "recovery refuses to resume" in said and "sound." not in said


def test_a_record_that_is_no_event_is_refused_and_said(
    store: CheckpointStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with EventLog.open(tmp_path / "run") as log:
        lsn = log.append("call", {"weird": []})
    assert status(store, "run").state == "damaged"
    assert main(["verify", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().out
    assert f"record {lsn} is no 'call' event" in said and "refuses to resume" in said
    assert "parks the run" not in said
