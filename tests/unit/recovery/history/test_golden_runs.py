"""The golden runs in tests/data: made the same from the same code, and read the same ever after."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import recovery
from eventlog import EventLog
from eventlog.encryption import Encryption
from recovery import CheckpointStore
from recovery.history.load import load
from tests.data import make_runs, second_rules, trip
from tests.data.make_runs import RUNS, Maker

# How it stands with each: its state, its last LSN, and the calls that are not over.
STATES = {
    "cancelled": ("cancelled", 40, []),
    "crash_loop": ("interrupted", 16, []),
    "crashed_in_doubt": ("interrupted", 58, ["send_mail#58"]),
    "damaged_early": ("interrupted", 58, ["send_mail#58"]),
    "damaged_frame": ("interrupted", 58, ["send_mail#58"]),
    "damaged_header": ("interrupted", 58, ["send_mail#58"]),
    "damaged_payload": ("damaged", 58, ["tickets#49", "send_mail#58"]),
    "damaged_snapshot": ("interrupted", 58, ["send_mail#58"]),
    "encrypted": ("unreadable", 58, []),
    "failed": ("failed", 43, []),
    "finished": ("finished", 74, []),
    "foreign": ("unreadable", 0, []),
    "forked": ("finished", 32, []),
    "missing_segment": ("damaged", 58, ["send_mail#58"]),
    "origin": ("finished", 74, []),
    "parent": ("finished", 9, []),
    "parent+look_around-95c44703cb9bfda7": ("finished", 5, []),
    "parent+look_around-db3f7288895a418b": ("finished", 5, []),
    "parked": ("in doubt", 60, ["send_mail#58"]),
    "resolved": ("finished", 77, []),
    "sleeping": ("waiting", 8, ["sleep#7"]),
    "torn": ("interrupted", 66, ["search#66"]),
    "unsupported": ("unreadable", 0, []),
    "waiting": ("waiting", 39, ["charge#38"]),
}


def stored() -> dict[str, bytes]:
    return {
        path.relative_to(RUNS).as_posix(): path.read_bytes()
        for path in sorted(RUNS.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("encryption", [None, Encryption(make_runs.KEY, make_runs.KEY_ID)])
def test_the_same_is_read(encryption: Encryption | None) -> None:
    found = {
        run.run_id: (run.state, run.last_lsn, [call.name for call in run.calls])
        for run in recovery.CheckpointStore(RUNS, encryption=encryption).runs()
    }
    if encryption is not None:  # under which what is in clear is refused
        assert found["encrypted"] == ("interrupted", 58, ["send_mail#58"])
    else:
        assert found == STATES


def test_a_finished_run_is_what_the_agent_made(tmp_path: Path) -> None:
    shutil.copytree(RUNS, tmp_path / "runs")
    with CheckpointStore(tmp_path / "runs") as store:
        result = recovery.RecoverableAgent(trip.book_trip, store).run_with_recovery_sync(
            trip.TASK, "finished"
        )
    assert len(result["result"]["trip"]) == 7 and result["recovery_count"] == 2
    usage = result["usage"]
    said = sum(20 + len(text) for text, _ in trip.SCRIPT)
    assert (usage.steps, usage.input_tokens, usage.output_tokens) == (8, 8850, said)


def test_as_a_checkout_leaves_them_they_can_be_read(tmp_path: Path) -> None:
    """Modes are not kept there, and a checkout may be for reading alone."""
    shutil.copytree(RUNS / "finished", tmp_path / "run")
    for path in [*(tmp_path / "run").rglob("*"), tmp_path / "run"]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    with EventLog.read(tmp_path / "run") as reader:
        assert sum(1 for _ in reader.records()) == 74
    for path in [tmp_path / "run", *(tmp_path / "run").rglob("*")]:
        path.chmod(0o755)


def test_nothing_else_is_stored() -> None:
    # The runs alone: where their segments end depends on the version that made them.
    made = {name for run in make_runs.RUNS_MADE for name in make_runs.make(run)}
    assert {name.partition("/")[0] for name in stored()} == {
        name.partition("/")[0] for name in made
    }
    made = {name for run in second_rules.MADE for name in second_rules.make(run)}
    assert {path.name for path in second_rules.RUNS.iterdir()} == {
        name.partition("/")[0] for name in made
    }


def test_they_are_small() -> None:
    assert sum(map(len, stored().values())) < 300_000


def test_what_is_redacted_is_in_none_of_them() -> None:
    assert trip.CARD.encode() not in b"".join(stored().values())


@pytest.mark.parametrize("run", second_rules.MADE, ids=lambda run: run.__name__)
def test_a_run_of_the_second_rules_is_resumed(
    run: Callable[[Maker], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, result, executed = second_rules.MADE[run]
    shutil.copytree(second_rules.RUNS, tmp_path / "runs")
    made: list[str] = []
    monkeypatch.setattr(trip.World, "enter", lambda world, name: made.append(name))
    with make_runs._fixed(Maker(7)), CheckpointStore(tmp_path / "runs") as store:
        found = recovery.RecoverableAgent(agent, store, checkpoint_every_n=2)
        assert found.resume_sync(run.__name__)["result"] == result
    assert made == executed
    with CheckpointStore(second_rules.RUNS) as store:  # as they were made
        log = store.backend.read(run.__name__)
        assert log is not None
        with log:
            assert load(log, run.__name__).rules == 2
