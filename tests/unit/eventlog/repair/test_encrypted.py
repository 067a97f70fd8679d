"""Encrypted logs are repaired with their keys: what is lost is marked under them, not in clear."""

from __future__ import annotations

from typing import Any

import pytest

from eventlog import EventLog
from eventlog.dump import verify
from eventlog.encryption import Encryption
from eventlog.errors import EncryptedLogError, WrongKeyError
from eventlog.repair import LOST, plan, repair
from eventlog.testing import SimulatedDisk

pytest.importorskip("cryptography")

KEYS = {"old": b"o" * 32, "new": b"n" * 32}


def key(key_id: str) -> Encryption:
    return Encryption(KEYS.get, key_id=key_id, accept_clear=True)


def three_ages() -> SimulatedDisk:
    """A log that was begun in clear, and went on under one key and then under another."""
    disk = SimulatedDisk(seed=4)
    for encryption in (None, key("old"), key("new")):
        with EventLog.open("log", files=disk, segment_size=900, encryption=encryption) as log:
            for n in range(8):
                log.append("event", {"n": n, "text": "y" * 60})
    return disk


def segments(disk: SimulatedDisk) -> list[str]:
    return sorted(name for name in disk.directories["log"] if name.endswith(".seg"))


def damaged(how: str, name: str) -> SimulatedDisk:
    disk = three_ages()
    content = disk.directories["log"][name].content
    if how == "missing":
        del disk.directories["log"][name]
    elif how == "header":
        content[20] ^= 1
    elif how == "record":
        content[len(content) // 2] ^= 1
    else:
        size = len(content) if how == "all zeros" else 200
        content[:size] = bytes(size)
    return disk


def records(disk: SimulatedDisk) -> dict[int, Any]:
    with EventLog.read("log", files=disk, encryption=key("new")) as reader:
        return {record.lsn: record for record in reader.records(on_damage=lambda damage: None)}


HOW = ("missing", "header", "record", "all zeros", "first bytes")


@pytest.mark.parametrize("which", range(6))
@pytest.mark.parametrize("how", HOW)
def test_whatever_is_damaged_is_repaired_under_the_key_that_it_is_under(
    how: str, which: int
) -> None:
    disk = damaged(how, segments(three_ages())[which])
    before = records(disk)
    done = repair("log", files=disk, encryption=key("new"))
    after = records(disk)
    assert list(after) == list(range(1, max(after) + 1))
    assert {lsn: after[lsn] for lsn in before} == before
    assert {lsn for lsn in after if after[lsn].kind == LOST} == {
        lsn for loss in done.lost for lsn in range(loss.first_lsn, loss.last_lsn + 1)
    }
    for encryption in (None, key("new")):
        with EventLog.read("log", files=disk, encryption=encryption) as reader:
            assert [finding for finding in verify(reader) if finding.bit] == []
    with EventLog.open("log", files=disk, encryption=key("new")) as log:
        assert log.append("more", 1) == max(after) + 1


def test_without_the_key_it_is_said_and_not_done() -> None:
    disk = damaged("record", segments(three_ages())[-1])
    files = {name: bytes(file.content) for name, file in disk.directories["log"].items()}
    with EventLog.read("log", files=disk) as reader:
        planned = plan(reader)
    assert planned.encrypted and planned.lost
    wrong = Encryption(lambda key_id: b"x" * 32, accept_clear=True)
    for encryption, error in ((None, EncryptedLogError), (wrong, WrongKeyError)):
        with pytest.raises(error):
            repair("log", files=disk, encryption=encryption)
    assert files == {name: bytes(file.content) for name, file in disk.directories["log"].items()}
    assert list(disk.directories) == ["log"]
