"""A directory that somebody has been at, read and opened and written to."""

from __future__ import annotations

from eventlog import Damage, EventLog, LogError, Record
from eventlog.errors import UnsupportedFormatError
from tests.fuzz._choices import Choices
from tests.fuzz._logs import PATH, Log, drawn

Found = dict[int, Record]


def directory(data: bytes) -> None:
    """Whatever is in the directory: nothing wrong is read, nothing acknowledged is lost without a
    word, and what is appended from now on stays."""
    choices = Choices(data)
    log = drawn(choices)
    before = _read(log)
    if before is None:
        return
    try:
        _goes_on(log, choices, *before)
    except LogError:  # of another version, or numbers that no log gets to
        assert log.forged or log.accidents


def _goes_on(log: Log, choices: Choices, found: Found, damaged: list[Damage]) -> None:
    size = choices.pick((900, 8 << 20))
    with EventLog.open(PATH, files=log.disk, segment_size=size) as writer:
        damaged += writer.report.damaged
        if not log.forged:
            _check(log, found, damaged)
        assert str(writer.report)
        added = [writer.append("more", n) for n in range(choices.number(1, 3))]
        assert added[0] > max(found, default=0)
        writer.commit()
        assert writer.durable_lsn == added[-1]
    after = _read(log)
    assert after is not None
    assert {lsn: after[0].get(lsn) for lsn in found} == found
    assert [after[0][lsn].body for lsn in added] == list(range(len(added)))
    assert sorted(after[0]) == sorted([*found, *added])
    with EventLog.open(PATH, files=log.disk) as writer:
        assert writer.last_lsn == added[-1] and not writer.report.torn_size


def _read(log: Log) -> tuple[Found, list[Damage]] | None:
    """Records by LSN, and damage; None for what is no log, or one of another version."""
    damaged: list[Damage] = []
    try:
        with EventLog.read(PATH, files=log.disk) as reader:
            records = list(reader.records(on_damage=damaged.append))
            snapshots = list(reader.snapshots())
            lsns = [record.lsn for record in records]
            fetched = reader.fetch(set(lsns))
    except UnsupportedFormatError:
        return None
    assert lsns == sorted(set(lsns))
    found = {record.lsn: record for record in records}
    assert all(found.get(snapshot.lsn) == snapshot for snapshot in snapshots)
    assert [one.lsn for one in snapshots] == sorted((one.lsn for one in snapshots), reverse=True)
    assert fetched == found
    return found, damaged


def _check(log: Log, found: Found, damaged: list[Damage]) -> None:
    """What is read was written there; what is not read is reported."""
    for lsn, record in found.items():
        assert (record.kind, record.packed) in log.appended.get(lsn, ())
    lost = {lsn for d in damaged for lsn in range(d.first_lsn, min(d.last_lsn, 1 << 20) + 1)}
    assert not lost & set(found), "reported as lost, and there"
    if log.accidents <= 1:
        missing = set(range(1, log.committed + 1)) - set(found)
        assert missing <= lost, f"lost without a word: {sorted(missing - lost)}"
        assert lost <= set(log.appended), "never was there"
    if log.accidents == 0:
        assert not damaged and sorted(found) == list(range(1, len(found) + 1))
