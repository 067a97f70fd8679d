"""Logs of format version 1, byte for byte. These files are never edited."""

from __future__ import annotations

import hmac
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import msgpack
import pytest

from eventlog import EventLog
from eventlog.crypto.xaes import XAES256GCM
from eventlog.encryption import Encryption
from tests.support.paths import TESTS

DATA = TESTS / "data"
_spec = importlib.util.spec_from_file_location("make_golden", DATA / "make_golden.py")
assert _spec is not None and _spec.loader is not None
golden = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(golden)

EXPECTED: dict[str, list[tuple[str, object]]] = {
    "closed": [
        *(("event", body) for body in golden.BODIES),
        ("part", 0),
        ("part", 1),
        ("part", 2),
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
    "encrypted": [
        ("event", {"n": 0}),
        ("part", 0),
        ("part", 1),
        ("snapshot", {"n": 2}),
        ("event", {"n": 3}),
    ],
    "begun_in_clear": [("event", "in clear"), ("event", "encrypted")],
}
SNAPSHOTS = {"closed": 13, "rolled": 7, "encrypted": 4}
UNCLOSED = ("torn", "encrypted")
KEYS = {
    "encrypted": Encryption(golden.KEYS.get, "2026-11"),
    "begun_in_clear": Encryption(golden.KEYS.get, "2026-11", accept_clear=True),
}
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
    with EventLog.read(DATA / "v1" / name, encryption=KEYS.get(name)) as reader:
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
    with EventLog.open(tmp_path / "log", encryption=KEYS.get(name)) as log:
        assert log.report.damaged == ()
        assert log.report.clean == (name not in UNCLOSED)
        assert (log.report.torn_size > 0) == (name == "torn")
        assert log.append("more", 1) == len(EXPECTED[name]) + 1


def test_an_encrypted_record_is_what_the_page_says() -> None:
    """Put together from docs/format.md alone, but for the cipher, which has its own vectors."""
    data, key = files("encrypted")["00000001.seg"], golden.KEYS["2026-05"]
    assert data[10] == 1, "the segment's flag"
    head, size = data[64 : 64 + 48], int.from_bytes(data[72:76], "little")
    assert int.from_bytes(head[12:16], "little") == 0x101
    payload = data[112 : 112 + size]
    n = payload[1]
    assert (payload[0], payload[2 : 2 + n]) == (1, b"2026-05")
    expected = hmac.digest(key, b"agent-eventlog key check", "sha256")[:8]
    assert payload[2 + n : 10 + n] == expected
    nonce, sealed = payload[10 + n : 34 + n], payload[34 + n :]
    associated = data[16:32] + data[12:16] + data[56:60] + head[12:44] + payload[: 10 + n]
    plain = XAES256GCM(key).decrypt(nonce, sealed, associated)
    assert plain is not None
    time_ns, kind, body = msgpack.unpackb(plain)
    assert time_ns > 1_700_000_000 * 10**9
    assert (kind, msgpack.unpackb(body)) == ("event", {"n": 0})


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
