"""Retention by whole segments: what goes was asked for, and nothing that stays looks lost."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import eventlog.read.reader
import eventlog.read.segments
from eventlog import Damage, EventLog, LogError
from eventlog.dump import verify
from eventlog.errors import FencedError, WriterFailedError
from eventlog.files.api import File
from eventlog.format.names import segment_name
from eventlog.testing import SimulatedDisk

SEGMENT_SIZE = 900  # four of these records


def filled(disk: SimulatedDisk, records: int = 30) -> EventLog:
    log = EventLog.open("log", files=disk, segment_size=SEGMENT_SIZE)
    for lsn in range(1, records + 1):
        assert log.append("event", body(lsn)) == lsn
    return log


def body(lsn: int) -> dict[str, object]:
    return {"lsn": lsn, "text": "x" * 100}


def lsns(disk: SimulatedDisk, start: int = 1) -> list[int]:
    with EventLog.read("log", files=disk) as reader:
        return [record.lsn for record in reader.records(start)]


def names(disk: SimulatedDisk) -> list[str]:
    return sorted(name for name in disk.directories["log"] if name.endswith(".seg"))


def test_whole_segments_go_and_all_else_stays() -> None:
    disk = SimulatedDisk()
    log = filled(disk)
    assert log.truncate_before(14) == 13
    assert names(disk)[0] == "00000004.seg"
    assert [record.body for record in log.records()] == [body(lsn) for lsn in range(13, 31)]
    assert [record.lsn for record in log.records(20)] == list(range(20, 31))
    assert set(log.fetch({3, 13, 30})) == {13, 30}
    assert log.append("event", body(31)) == 31
    log.close()
    with EventLog.open("log", files=disk, segment_size=SEGMENT_SIZE) as log:
        assert log.report.damaged == () and log.last_lsn == 31
        assert log.truncate_before(13) == 13, "there is no more to go"
        log.append("event", body(32))
    assert lsns(disk) == list(range(13, 33))
    with EventLog.read("log", files=disk) as reader:
        assert list(verify(reader)) == []


def test_a_write_that_fails_while_the_removal_begins_leaves_every_segment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That of another thread, between the look at the segments and their removal."""
    disk = SimulatedDisk()
    log = filled(disk)
    before = log._reader.listing.before

    def meanwhile(lsn: int) -> tuple[int, list[int]]:
        disk.fail_at("sync", 0, errno.EIO)
        log.append("event", body(31))
        with pytest.raises(OSError, match="Input/output"):
            log.commit()
        return before(lsn)

    monkeypatch.setattr(log._reader.listing, "before", meanwhile)
    there = names(disk)
    with pytest.raises(WriterFailedError):
        log.truncate_before(14)
    log.close()
    assert names(disk) == there
    EventLog.open("log", files=disk).close()
    assert lsns(disk)[:30] == list(range(1, 31))


def test_nothing_is_done_when_nothing_can_go() -> None:
    disk = SimulatedDisk()
    with filled(disk, 3) as log:
        calls = len(disk.calls)
        assert [log.truncate_before(lsn) for lsn in (0, 1, 3, 4)] == [1, 1, 1, 1]
        assert len(disk.calls) == calls
        with pytest.raises(ValueError, match="ends at LSN 3"):
            log.truncate_before(5)


def test_an_empty_log_has_nothing_to_give() -> None:
    with EventLog.open("log", files=SimulatedDisk()) as log:
        assert log.truncate_before(1) == 1


@pytest.mark.parametrize("durability", ["power", "process", "none"])
def test_what_is_kept_is_durable_before_anything_goes(durability: str) -> None:
    disk = SimulatedDisk()
    log = EventLog.open("log", durability, files=disk, segment_size=SEGMENT_SIZE)  # type: ignore[arg-type]
    for lsn in range(1, 31):
        log.append("event", body(lsn))
    log.truncate_before(14)
    for seed in range(50):
        assert lsns(disk.after_power_loss(seed))[-1] == 30
    log.close()


def test_a_crash_at_any_call_leaves_a_log_without_gaps() -> None:
    calls = 0
    while True:
        disk = SimulatedDisk()
        log = filled(disk)
        log.commit()
        disk.crash_at(calls)
        try:
            log.truncate_before(14)
        except BaseException:
            for seed in range(60):
                check(disk.after_power_loss(seed))
            check(disk.after_process_death())
        else:
            break
        finally:
            log._release()
        calls += 1
    assert calls > 10


def check(disk: SimulatedDisk) -> None:
    with EventLog.open("log", files=disk, segment_size=SEGMENT_SIZE) as log:
        assert log.report.damaged == ()
        found = [record.lsn for record in log.records()]
        assert found in (list(range(1, 31)), list(range(13, 31)))
        log.append("event", body(31))
        assert log.truncate_before(14) == 13, "what the crash left goes with the next"
    assert lsns(disk) == list(range(13, 32))
    assert names(disk)[0] == "00000004.seg"


def test_a_segment_that_a_crash_has_left_does_not_count() -> None:
    disk = SimulatedDisk()
    log = filled(disk)
    old = {name: disk.directories["log"][name] for name in names(disk)[:3]}
    log.truncate_before(14)
    log.close()
    disk.directories["log"]["00000002.seg"] = old["00000002.seg"]
    assert lsns(disk) == list(range(13, 31))
    with EventLog.read("log", files=disk) as reader:
        assert list(verify(reader)) == []


def test_a_missing_segment_behind_what_was_removed_is_still_missed() -> None:
    disk = SimulatedDisk()
    log = filled(disk)
    log.truncate_before(14)
    log.close()
    del disk.directories["log"]["00000004.seg"]
    with EventLog.read("log", files=disk) as reader:
        damaged: list[object] = []
        found = [record.lsn for record in reader.records(on_damage=damaged.append)]
    assert found == list(range(17, 31)) and len(damaged) == 1
    assert "LSN 13-16" in str(damaged[0])


@pytest.mark.parametrize("records", [0, 1, 9])
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("before", [14, 31])
def test_records_may_have_been_removed_on_purpose_if_the_header_that_would_say_so_is_damaged(
    before: int, times: int, records: int
) -> None:
    """The newest one alone says so, until there is another segment. All else is there."""
    disk, lost = SimulatedDisk(), list[Damage]()
    log = filled(disk)
    for _ in range(times):
        oldest = log.truncate_before(before)
    for lsn in range(31, 31 + records):
        log.append("event", body(lsn))
    log.close()
    there = list(range(oldest, 31 + records))
    disk.open_directory("log").open(names(disk)[-1], write=True).pwrite(b"x", 20)
    for _ in range(2):  # the second time behind a sound header
        damaged: list[Damage] = []
        with EventLog.read("log", files=disk) as reader:
            found = [record.lsn for record in reader.records(on_damage=damaged.append)]
            told = [item.text for item in verify(reader)]
        assert found == there
        lost = [one for one in damaged if one.lost]
        assert all(one.last_lsn < oldest and "or removed on purpose" in one.what for one in lost)
        assert bool(lost) == any("or removed on purpose" in text for text in told)
        with EventLog.open("log", files=disk) as log:
            there.append(log.append("event", body(0)))
    assert lost or records == 9, "then another header says it"


def test_a_segment_that_is_missing_behind_others_was_not_removed_on_purpose() -> None:
    disk, damaged = SimulatedDisk(), list[Damage]()
    filled(disk).close()
    disk.open_directory("log").open(names(disk)[-1], write=True).pwrite(b"x", 20)
    disk.open_directory("log").remove(segment_name(3))
    with EventLog.read("log", files=disk) as reader:
        list(reader.records(on_damage=damaged.append))
    (lost,) = (one for one in damaged if one.lost)
    assert lost.first_lsn > 1 and "on purpose" not in str(lost)


def test_what_cannot_be_read_is_not_removed() -> None:
    disk = SimulatedDisk()
    filled(disk).close()
    other = SimulatedDisk(seed=9)
    filled(other).close()
    disk.directories["log"]["00000001.seg"] = other.directories["log"]["00000001.seg"]
    disk.directories["log"]["00000002.seg"].content[3] ^= 1
    with EventLog.open("log", files=disk, segment_size=SEGMENT_SIZE) as log:
        assert log.truncate_before(14) == 13
    assert names(disk)[:3] == ["00000001.seg", "00000002.seg", "00000004.seg"]
    assert lsns(disk) == list(range(13, 31))


def test_readers_at_work_pass_over_what_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = Mock(side_effect=[None] * 100)
    monkeypatch.setattr(eventlog.read.reader, "time", Mock(sleep=few))  # whoever waits in vain ends
    with EventLog.open(tmp_path / "log", segment_size=SEGMENT_SIZE) as log:
        for lsn in range(1, 31):
            log.append("event", body(lsn))
        log.append_snapshot("state")
        with EventLog.read(tmp_path / "log") as reader:
            records = reader.records()
            followed = reader.records(follow=True)
            first = [next(records).lsn, next(followed).lsn]
            log.truncate_before(14)
            rest = [record.lsn for record in records]
            assert rest[-19:] == list(range(13, 32)) and rest[:-19] == [2, 3, 4], first
            assert [next(followed).lsn for _ in range(22)] == rest
            log.append("event", 32)
            assert next(followed).lsn == 32
            assert reader.latest_snapshot() is not None


@pytest.mark.parametrize("what", ["records", "fetch", "snapshots", "verify"])
def test_a_listing_may_be_older_than_the_files(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """A reader lists the segments, the writer removes some, the reader opens them."""
    disk = SimulatedDisk()
    log = filled(disk)
    reader = EventLog.read("log", files=disk)
    numbers = reader.listing.numbers
    calls: list[int] = []

    def stale() -> list[int]:
        found: list[int] = numbers()
        if not calls:
            calls.append(log.truncate_before(14))
        return found

    reads: dict[str, Callable[[], object]] = {
        "records": lambda: [record.lsn for record in reader.records()] == list(range(13, 31)),
        "fetch": lambda: sorted(reader.fetch({2, 14})) == [14],
        "snapshots": lambda: list(reader.snapshots()) == [],
        "verify": lambda: list(verify(reader)) == [],
    }
    monkeypatch.setattr(reader.listing, "numbers", stale)
    assert reads[what]()
    log.close()


READS: list[Callable[[Any], object]] = [
    lambda reader: reader.tail(),
    lambda reader: list(reader.snapshots()),
    lambda reader: list(reader.records()),
]


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("times", [1, 100])
def test_a_segment_that_is_listed_and_not_there_is_looked_for_again_and_not_for_ever(
    read: Callable[[Any], object], times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them once, or the last one always."""
    disk = SimulatedDisk()
    filled(disk).close()
    reader = EventLog.read("log", files=disk)
    *others, last = reader.listing.numbers()
    for number in (*others, last):
        reader.listing.header(number)
    looked, file_of = Counter[str](), reader._directory.open

    def gone(name: str) -> File:
        looked[name] += 1
        assert looked.total() < 300, "it looks for ever"
        if looked[name] <= times and name in map(segment_name, (last, *others * (times == 1))):
            raise FileNotFoundError(name)
        return file_of(name)

    monkeypatch.setattr(reader._directory, "open", gone)
    for module in (eventlog.read.reader, eventlog.read.segments):
        monkeypatch.setattr(module, "RETRIES_MAX", 2 if read is READS[2] else 20)
    with pytest.raises(FileNotFoundError) if times > 1 else nullcontext():
        read(reader)


def test_an_owner_that_has_lost_the_log_removes_nothing() -> None:
    disk = SimulatedDisk()
    old = filled(disk)
    old.commit()
    new = EventLog.open("log", files=disk, segment_size=SEGMENT_SIZE, takeover=True)
    before = names(disk)
    with pytest.raises(FencedError):
        old.truncate_before(14)
    assert names(disk)[: len(before)] == before
    assert [record.lsn for record in new.records()] == list(range(1, 31))
    new.close()
    old.close()


@pytest.mark.parametrize("verb", ["remove", "sync directory", "publish", "sync"])
def test_a_failure_on_the_way_loses_nothing(verb: str) -> None:
    disk = SimulatedDisk()
    log = filled(disk)
    log.commit()
    disk.fail_at(verb, 0, errno.EIO)
    with pytest.raises(OSError):
        log.truncate_before(14)
    log.close()
    check(disk)


# -- a log of less than a segment


def short(disk: SimulatedDisk, records: int = 10) -> EventLog:
    log = EventLog.open("log", files=disk)
    for lsn in range(1, records + 1):
        log.append("event", body(lsn))
    return log


def test_a_log_of_less_than_a_segment_gives_back_what_is_before_a_roll() -> None:
    disk = SimulatedDisk()
    with short(disk) as log:
        assert log.truncate_before(11) == 1, "all is in one segment"
        log.roll()
        assert log.append("event", body(11)) == 11
        assert log.truncate_before(11) == 11
        assert [record.body for record in log.records()] == [body(11)]
        assert names(disk) == ["00000002.seg", "00000003.seg"], "the later header says what went"
    assert lsns(disk) == [11]
    with EventLog.open("log", files=disk) as log:
        assert log.report.clean and log.report.damaged == ()
        assert log.append("event", body(12)) == 12
    with EventLog.read("log", files=disk) as reader:
        assert list(verify(reader)) == []


@pytest.mark.parametrize("durability", ["power", "process", "none"])
def test_a_rolled_log_closes_cleanly_and_rolling_an_empty_segment_does_nothing(
    durability: str,
) -> None:
    disk = SimulatedDisk()
    with EventLog.open("log", durability, files=disk) as log:  # type: ignore[arg-type]
        log.roll()
        assert names(disk) == [], "a log without records has no segment"
        log.append("event", body(1))
        log.roll()
        calls = len(disk.calls)
        log.roll()
        assert len(disk.calls) == calls
    assert names(disk) == ["00000001.seg", "00000002.seg"]
    with EventLog.open("log", files=disk) as log:
        assert log.report.clean
        assert log.append("event", body(2)) == 2
    assert lsns(disk) == [1, 2]
    with pytest.raises(LogError, match="closed"):
        log.roll()


def test_a_crash_at_any_call_of_a_roll_loses_nothing() -> None:
    calls = 0
    while True:
        disk = SimulatedDisk()
        log = short(disk)
        log.commit()
        disk.crash_at(calls)
        try:
            log.roll()
        except BaseException:
            for after in (*map(disk.after_power_loss, range(40)), disk.after_process_death()):
                with EventLog.open("log", files=after) as opened:
                    assert opened.report.damaged == ()
                    assert opened.append("event", body(11)) == 11
                assert lsns(after) == list(range(1, 12))
        else:
            break
        finally:
            log._release()
        calls += 1
    assert calls > 5


def test_a_roll_that_fails_fails_the_writer_and_what_was_appended_stays() -> None:
    disk = SimulatedDisk()
    log = short(disk)
    log.commit()
    disk.fail_at("sync", 0, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        log.roll()
    with pytest.raises(WriterFailedError):
        log.append("event", body(11))
    log.close()
    assert lsns(disk) == list(range(1, 11))
