"""Logs of format version 1, byte for byte. These files are never edited."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from eventlog import EventLog

DATA = Path(__file__).parents[1] / "data"
_spec = importlib.util.spec_from_file_location("make_golden", DATA / "make_golden.py")
assert _spec is not None and _spec.loader is not None
golden = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(golden)

EXPECTED: dict[str, list[tuple[str, object]]] = {
    "closed": [
        *(("event", body) for body in golden.BODIES),
        ("part", 0), ("part", 1), ("part", 2),
        ("snapshot", {"step": 3, "messages": ["a", "b"]}),
        ("tool_result", {"call": 7}),
    ],
    "rolled": [
        *(("event", {"n": n, "data": "x" * 40}) for n in range(6)),
        ("snapshot", {"n": 5}),
        *(("event", {"n": n, "data": "x" * 40}) for n in range(6, 12)),
    ],
    "torn": [("event", {"n": n}) for n in range(5)],
    "recovered": [*(("event", {"n": n}) for n in range(5)), ("more", 6)],
    "taken_over": [("event", "old"), ("event", "new")],
}  # fmt: skip
SNAPSHOTS = {"closed": 13, "rolled": 7}
NAMES = sorted(EXPECTED)


def files(name: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((DATA / "v1" / name).iterdir())}


def test_every_golden_log_is_tested() -> None:
    assert sorted(path.name for path in (DATA / "v1").iterdir()) == NAMES
    assert sorted(log.__name__ for log in golden.LOGS) == NAMES


@pytest.mark.parametrize("log", golden.LOGS, ids=lambda log: log.__name__)
def test_the_same_bytes_are_written(log: object) -> None:
    made = golden.make(log)
    assert made == files(log.__name__)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", NAMES)
def test_the_same_records_are_read(name: str) -> None:
    with EventLog.read(DATA / "v1" / name) as reader:
        records = list(reader.records())
        assert [(record.kind, record.body) for record in records] == EXPECTED[name]
        assert [record.lsn for record in records] == list(range(1, len(records) + 1))
        assert all(record.time_ns > 1_700_000_000 * 10**9 for record in records)
        newest = reader.latest_snapshot()
        assert (newest.lsn if newest else None) == SNAPSHOTS.get(name)
        assert reader.tail().damaged == ()


@pytest.mark.parametrize("name", NAMES)
def test_they_are_recovered_and_appended_to(name: str, tmp_path: Path) -> None:
    shutil.copytree(DATA / "v1" / name, tmp_path / "log")
    with EventLog.open(tmp_path / "log") as log:
        assert log.report.damaged == ()
        assert log.report.clean == (name != "torn")
        assert (log.report.torn_size > 0) == (name == "torn")
        assert log.append("more", 1) == len(EXPECTED[name]) + 1


def test_types_are_read_as_they_were_written() -> None:
    with EventLog.read(DATA / "v1" / "closed") as reader:
        bodies = [record.body for record in reader.records()][: len(golden.BODIES)]
    assert [repr(body) for body in bodies] == [repr(body) for body in golden.BODIES]


def test_a_version_that_is_there_is_not_written_again() -> None:
    made = subprocess.run(
        [sys.executable, str(DATA / "make_golden.py")],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(DATA.parents[1])},
        check=False,
    )
    assert (made.returncode, "never written again" in made.stderr) == (1, True)
