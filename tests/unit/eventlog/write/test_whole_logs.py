"""Logs from the first append to what is read after a crash."""

from __future__ import annotations

import errno
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import eventlog.format.torn_or_damaged
import eventlog.read.reader
from eventlog import Damage, EventLog
from eventlog.errors import FencedError
from eventlog.files.lock import LOCK_NAME
from eventlog.format.frame import (
    FRAME_SIZE,
    HEADER_SIZE,
    RECORDS,
    Frame,
    encode_frame,
    frame_at,
    frames_ahead,
)
from eventlog.read.segment_files import read_mark
from eventlog.testing import SimulatedDisk
from eventlog.write.group_commit import Committer
from eventlog.write.segment_writer import SegmentWriter

linux = pytest.mark.skipif(sys.platform != "linux", reason="about the system calls of Linux")


def test_every_bit_of_a_frame_header_is_under_its_own_crc() -> None:
    """The length too, although a wrong one is found out by the payload's CRC: not as torn."""
    salt = b"\x11\x22\x33\x44"
    whole = encode_frame(salt, RECORDS, 1, b"payload", (7, 6, 5))
    for bit in range(8 * FRAME_SIZE):
        buf = bytearray(whole)
        buf[bit // 8] ^= 1 << bit % 8
        assert frame_at(bytes(buf), 0, salt) is None, f"bit {bit}"


def frames_of(disk: SimulatedDisk) -> tuple[bytearray, list[Frame]]:
    """The bytes of the first segment, to be changed, and its frames."""
    content = disk.directories["log"]["00000001.seg"].content
    return content, list(frames_ahead(bytes(content), HEADER_SIZE, bytes(content[56:60])))


def test_a_lost_record_is_not_called_a_snapshot() -> None:
    """A run goes on without a lost snapshot; a lost record may be a call that was made."""
    disk = SimulatedDisk()
    log = EventLog.open("log", files=disk)
    log.append_snapshot({})
    for lsn in range(2, 7):
        log.append("event", lsn)
    log.commit()
    content, frames = frames_of(disk)
    content[frames[3].offset] ^= 1  # nothing of it is found, not even its header
    found: list[Damage] = []
    assert [record.lsn for record in log.records(on_damage=found.append)] == [1, 2, 3, 5, 6]
    assert [(d.first_lsn, d.last_lsn, d.snapshot) for d in found] == [(4, 4, False)]
    log._release()


def test_frames_of_the_segment_before_are_no_records_of_this_one() -> None:
    """Blocks that recovery cut off may turn up again, at any place behind a new record."""
    disk = SimulatedDisk()
    log = EventLog.open("log", files=disk)
    log.append("event", "kept")
    log.commit()
    log.append("event", "lost 2")
    log.append("event", "lost 3")
    content, frames = frames_of(disk)
    old = bytes(content[frames[2].offset : frames[2].end])
    after = disk.after_process_death()
    log._release()
    del after.directories["log"]["00000001.seg"].content[frames[1].offset + 8 :]
    log = EventLog.open("log", files=after)
    assert log.append("event", "new 2") == 2
    log.commit()
    again = after.after_process_death()
    log._release()
    segment = again.directories["log"]["00000002.seg"].content
    end = next(frames_ahead(bytes(segment), HEADER_SIZE, bytes(segment[56:60]))).end
    segment[end : end + len(old)] = old
    with EventLog.open("log", files=again) as log:
        assert [record.body for record in log.records()] == ["kept", "new 2"]


def test_a_frame_cannot_hold_more_records_than_bytes() -> None:
    """It would use up the LSNs of four billion records that never were."""
    disk = SimulatedDisk()
    log = EventLog.open("log", files=disk)
    log.append("event", 1)
    content, (frame,) = frames_of(disk)
    payload = bytes(content[frame.payload_offset : frame.payload_end])
    forged = encode_frame(bytes(content[56:60]), RECORDS, (1 << 32) - 1, payload, (1, 0, 0))
    content[frame.offset : frame.end] = forged
    disk = disk.after_process_death()
    log._release()
    with EventLog.open("log", files=disk) as log:
        assert log.append("event", 2) == 1


def test_a_sealed_segment_without_its_first_sector_is_read_by_its_footer() -> None:
    disk = SimulatedDisk()
    with EventLog.open("log", files=disk) as log:
        for lsn in range(1, 11):
            log.append("event", [lsn, "x" * 100])
    content, frames = frames_of(disk)
    kept = [frame.lsn for frame in frames if frame.offset >= 512 and frame.count]
    content[:512] = bytes(512)
    found: list[Damage] = []
    with EventLog.read("log", files=disk) as reader:
        assert [record.lsn for record in reader.records(on_damage=found.append)] == kept
    lost = {lsn for d in found for lsn in range(d.first_lsn, d.last_lsn + 1)}
    assert lost == set(range(1, 11)) - set(kept) and kept


def test_frames_that_a_disk_put_over_a_payload_are_read_there() -> None:
    disk = SimulatedDisk()
    with EventLog.open("log", files=disk) as log:
        for lsn, size in enumerate([1, 1000, 1, 1, 1, 1], 1):
            log.append("event", [lsn, "x" * size])
    content, frames = frames_of(disk)
    over, first, last = frames[1], frames[2], frames[3]
    moved = bytes(content[first.offset : last.end])
    content[first.offset : last.end] = bytes(len(moved))
    at = over.offset + 512
    content[at : at + len(moved)] = moved
    found: list[Damage] = []
    with EventLog.read("log", files=disk) as reader:
        records = list(reader.records(on_damage=found.append))
    assert [record.body[0] for record in records] == [1, 3, 4, 5, 6]
    assert {lsn for d in found for lsn in range(d.first_lsn, d.last_lsn + 1)} == {2}


def test_nothing_behind_a_torn_frame_is_fetched() -> None:
    """The log ends with it, also for a reader that has no interest in that frame."""
    disk = SimulatedDisk()
    log = EventLog.open("log", files=disk)
    log.append("event", 1)
    log.commit()
    log.append("event", "torn")
    log.append("event", "out of order")
    content, frames = frames_of(disk)
    content[frames[1].payload_offset] ^= 1
    with EventLog.read("log", files=disk) as reader:
        assert [record.lsn for record in reader.records()] == [1]
        assert list(reader.fetch({3})) == []
        assert list(reader.fetch({1, 3})) == [1]
    log._release()


def test_a_segment_full_of_damage_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimulatedDisk()
    log = EventLog.open("log", files=disk)
    for lsn in range(1, 101):
        log.append("event", lsn)
    log.commit()
    content, frames = frames_of(disk)
    for frame in frames[::2]:
        content[frame.payload_offset] ^= 1
    searches = []

    def search(*args: Any) -> Any:
        searches.append(args)
        return frames_ahead(*args)

    monkeypatch.setattr(eventlog.format.torn_or_damaged, "frames_ahead", search)
    found: list[Damage] = []
    assert len(list(log.records(on_damage=found.append))) == len(found) == 50
    assert len(searches) <= 3  # one for each time that the bytes were read
    log._release()


def test_a_flush_vouches_only_for_what_was_written_before_it_began() -> None:
    disk = SimulatedDisk()
    log = EventLog.open("log", files=disk)
    log.append("event", 1)
    writer = log._appender._writer
    assert writer is not None
    sync = writer.file.sync

    def meanwhile() -> None:
        sync()
        log.append("event", 2)  # by another thread, while the device was at work

    writer.file.sync = meanwhile  # type: ignore[method-assign]
    log.commit()
    found = read_mark(disk.open_directory("log"))
    assert found is not None
    assert (log.durable_lsn, found[2].durable, log.last_lsn) == (1, 1, 2)
    writer.file.sync = sync  # type: ignore[method-assign]
    log.close()


def test_a_follower_reads_the_end_of_a_segment_that_was_rolled_meanwhile() -> None:
    disk = SimulatedDisk()
    with EventLog.open("log", files=disk, segment_size=600) as log:
        log.append("event", "x" * 20)
        with EventLog.read("log", files=disk) as reader:
            follower = reader.records(follow=True)
            assert next(follower).lsn == 1
            for _ in range(12):
                log.append("event", "x" * 20)
            assert len([name for name in disk.directories["log"] if name.endswith("seg")]) > 2
            assert [next(follower).lsn for _ in range(12)] == list(range(2, 14))


def test_epochs_go_up_though_the_lock_file_is_lost() -> None:
    disk = SimulatedDisk()
    for _ in range(2):  # each leaves a segment of its own epoch
        log = EventLog.open("log", files=disk)
        log.append("event", 1)
        log.commit()
        log._release()
        disk = disk.after_process_death()
    del disk.directories["log"][LOCK_NAME]
    EventLog.open("log", files=disk).close()
    assert json.loads(disk.directories["log"][LOCK_NAME].content)["epoch"] == 3


def test_an_older_version_of_a_closed_segment_is_reported() -> None:
    """As a backup that is copied back leaves it: sound in itself, and closed cleanly."""
    disk = SimulatedDisk()
    for body in (1, 2):
        if body == 2:
            older = bytes(disk.directories["log"]["00000001.seg"].content)
        with EventLog.open("log", files=disk) as log:
            log.append("event", body)
    disk.directories["log"]["00000001.seg"].content[:] = older
    with EventLog.open("log", files=disk) as log:
        assert [(d.first_lsn, d.last_lsn) for d in log.report.damaged] == [(2, 2)]
        assert log.append("event", 3) == 3


class Asking:
    """Asks a committer for a commit and waits for it."""

    def __init__(self, committer: Committer) -> None:
        self._done = threading.Event()
        committer.request(self, 1)
        self.served = self._done.wait(10)

    def commit_now(self, lsn: int) -> None:
        self._done.set()


def test_the_committer_wakes_for_every_request() -> None:
    committer = Committer()
    for _ in range(2):
        assert Asking(committer).served
        deadline = time.monotonic() + 10
        while not committer._wake._waiters:  # type: ignore[attr-defined]
            assert time.monotonic() < deadline, "it does not go to sleep"
            time.sleep(0.001)


def test_the_lock_file_is_the_same_for_ever() -> None:
    """Were it removed, two processes could each hold a lock of their own."""
    disk = SimulatedDisk()
    log = EventLog.open("log", files=disk)
    lock = disk.directories["log"][LOCK_NAME]
    log.append("event", 1)
    log.close()
    EventLog.open("log", files=disk).close()
    stuck = EventLog.open("log", files=disk)
    EventLog.open("log", files=disk, takeover=True).close()
    stuck._release()
    assert disk.directories["log"][LOCK_NAME] is lock


@pytest.mark.parametrize("epoch", [10**30, 1 << 63, -5, 1 << 48])
def test_a_forged_epoch_in_the_lock_file_is_no_obstacle(tmp_path: Path, epoch: int) -> None:
    path = tmp_path / "log"
    EventLog.open(path).close()
    (path / LOCK_NAME).write_text(json.dumps({"epoch": epoch}))
    for body in range(2):
        with EventLog.open(path) as log:
            log.append("event", body)
    assert json.loads((path / LOCK_NAME).read_text())["epoch"] < 10
    with EventLog.read(path) as reader:
        assert [record.body for record in reader.records()] == [0, 1]


def test_an_opening_that_fails_leaves_the_log_to_the_next() -> None:
    disk = SimulatedDisk()
    log = EventLog.open("log", files=disk)
    log.append("event", 1)
    log._release()
    disk = disk.after_process_death()
    disk.fail_at("sync", 0, errno.EIO)
    with pytest.raises(OSError):
        EventLog.open("log", files=disk)
    with EventLog.open("log", files=disk) as log:
        assert log.last_lsn == 1


def test_a_takeover_in_the_middle_of_retention_keeps_what_the_new_owner_knows_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The new owner has listed the log before the old one's last segment was there."""
    disk = SimulatedDisk()
    old = EventLog.open("log", files=disk, segment_size=600)
    for lsn in range(1, 21):
        old.append("event", [lsn, "x" * 100])
    create = SegmentWriter.create
    owners: list[EventLog] = []
    made: list[SegmentWriter] = []
    calls: list[tuple[Any, ...]] = []

    def racing(*args: Any) -> SegmentWriter:
        calls.append(args)
        if len(calls) == 1:  # the old owner's, in its retention: a takeover comes in between
            owners.append(EventLog.open("log", files=disk, segment_size=600, takeover=True))
            return made.pop()
        if len(calls) == 2:  # the new owner's: the old one is faster
            made.append(create(*calls[0]))
        return create(*args)

    monkeypatch.setattr(SegmentWriter, "create", racing)
    with pytest.raises(FencedError):
        old.truncate_before(12)
    (new,) = owners
    new.append("event", "of the new owner")
    with EventLog.read("log", files=disk) as reader:
        assert [record.lsn for record in reader.records()] == list(range(1, 22))
    new.close()
    old._release()


@pytest.mark.parametrize("verb", ["create", "publish"])
def test_who_loses_the_log_while_it_rolls_leaves_the_next_segment_to_the_new_owner(
    monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """The new owner has taken the number, or removed the unfinished file."""
    disk = SimulatedDisk()
    old = EventLog.open("log", files=disk)
    old.append("old", 1)
    kind: Any = SegmentWriter if verb == "create" else type(old._appender._directory)
    original = getattr(kind, verb)
    owners: list[EventLog] = []

    def racing(*args: Any) -> Any:
        monkeypatch.setattr(kind, verb, original)
        owners.append(EventLog.open("log", files=disk, takeover=True))
        owners[0].append("new", 2)
        owners[0].commit()
        return original(*args)

    monkeypatch.setattr(kind, verb, racing)
    with pytest.raises(FencedError):
        old.roll()
    with EventLog.read("log", files=disk) as reader:
        assert [record.kind for record in reader.records()] == ["old", "new"]
    owners[0].close()
    old._release()
