"""Tests that a seeded bug of tests/mutants asked for: none of the others had noticed it."""

from __future__ import annotations

import contextvars
import errno
import fcntl
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import eventlog._reader
import eventlog._scan
from eventlog import Damage, EventLog, FencedError, UnsupportedFormatError, WriterFailedError
from eventlog._committer import Committer
from eventlog._files import OSFiles
from eventlog._frame import (
    FRAME_SIZE,
    HEADER_SIZE,
    RECORDS,
    Frame,
    encode_frame,
    frame_at,
    frames_ahead,
)
from eventlog._owner import LOCK_NAME
from eventlog._segment import SegmentWriter, read_mark, read_segment
from eventlog.testing import SimulatedDisk
from recovery import (
    CheckpointStore,
    DivergenceError,
    InDoubtError,
    RecoverableAgent,
    Resolution,
    SyncRun,
    current_call,
    resolve,
    tool,
)
from recovery._messages import Messages
from recovery._values import Ref, unpack
from tests.unit.lives import Died, Disk

linux = pytest.mark.skipif(sys.platform != "linux", reason="about the system calls of Linux")


# -- what the kernel is asked for, and in which order


class Kernel:
    """The changing system calls that are made on files of a log, in order: (verb, name)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, str]] = []
        self._names: dict[int, str] = {}
        self._real = {verb: getattr(os, verb) for verb in
                      ("open", "pwrite", "fdatasync", "fsync", "ftruncate", "link")}  # fmt: skip
        for verb in ("pwrite", "fdatasync", "fsync", "ftruncate"):
            monkeypatch.setattr(os, verb, self._noting(verb))
        monkeypatch.setattr(os, "open", self._open)
        monkeypatch.setattr(os, "link", self._link)

    def _open(self, path: str, *args: Any, **kwargs: Any) -> int:
        fd: int = self._real["open"](path, *args, **kwargs)
        self._names[fd] = self._short(path)
        return fd

    def _link(self, source: str, target: str, **kwargs: Any) -> None:
        self.calls.append(("link", target))
        self._real["link"](source, target, **kwargs)
        self._names = {fd: target if name == self._short(source) else name
                       for fd, name in self._names.items()}  # fmt: skip

    def _noting(self, verb: str) -> Callable[..., Any]:
        def call(fd: int, *args: Any) -> Any:
            self.calls.append((verb, self._names[fd]))
            return self._real[verb](fd, *args)

        return call

    def _short(self, path: str) -> str:
        name = Path(path).name
        return f"{name.partition('.')[0]}.new" if name.endswith(".new") else name


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    return Kernel(monkeypatch)


@linux
def test_a_new_segment_is_durable_before_it_has_a_name_and_with_it_before_it_is_used(
    tmp_path: Path, kernel: Kernel
) -> None:
    path = tmp_path / "log"
    with EventLog.open(path, segment_size=400) as log:
        for number in ("00000001", "00000002"):
            kernel.calls.clear()
            log.append("event", "x" * 300)
            made = [call for call in kernel.calls if call[1] not in ("MARK", LOCK_NAME)]
            begin = made.index(("pwrite", f"{number}.new"))
            assert made[begin:] == [
                ("pwrite", f"{number}.new"),
                ("fdatasync", f"{number}.new"),
                ("link", f"{number}.seg"),
                ("fsync", "log"),
                ("pwrite", f"{number}.seg"),
            ]


@linux
def test_a_commit_is_a_write_then_a_flush_then_the_mark(tmp_path: Path, kernel: Kernel) -> None:
    with EventLog.open(tmp_path / "log") as log:
        log.append("event", 1)
        log.commit()
        for _ in range(2):
            kernel.calls.clear()
            log.append("event", 2)
            assert kernel.calls == [("pwrite", "00000001.seg")]
            log.commit()
            assert kernel.calls[1:] == [("fdatasync", "00000001.seg"), ("pwrite", "MARK")]


@linux
def test_a_flush_that_failed_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may have dropped the pages: it would report success."""
    tried = []
    real = os.fdatasync

    def fdatasync(fd: int) -> None:
        tried.append(fd)
        if len(tried) == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd)

    log = EventLog.open(tmp_path / "log")
    log.append("event", 1)
    monkeypatch.setattr(os, "fdatasync", fdatasync)
    with pytest.raises(OSError) as caught:
        log.commit()
    assert caught.value.errno == errno.EIO
    with pytest.raises(WriterFailedError):
        log.commit()
    log.close()
    assert len(tried) == 1
    assert log.durable_lsn == 0


def test_a_short_write_of_the_kernel_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, bytes(data)[:30], at))
    log = EventLog.open(tmp_path / "log")
    log.append("event", "x" * 500)
    log.commit()
    with EventLog.read(tmp_path / "log") as reader:
        assert [record.body for record in reader.records()] == ["x" * 500]
    log.close()


def test_a_short_read_of_the_kernel_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EventLog.open(tmp_path / "log") as log:
        log.append("event", "x" * 500)
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: real(fd, min(size, 30), at))
    with EventLog.open(tmp_path / "log") as log:
        assert (log.report.clean, log.report.damaged, log.last_lsn) == (True, (), 1)
        assert [record.body for record in log.records()] == ["x" * 500]


def test_without_hard_links_a_name_is_not_taken_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", link)
    directory = OSFiles().make_directory(str(tmp_path / "log"))
    for content in (b"first", b"second"):
        file = directory.open("f.new", write=True, create=True)
        file.pwrite(content, 0)
        file.close()
        if content == b"first":
            directory.publish("f.new", "f")
    with pytest.raises(FileExistsError):
        directory.publish("f.new", "f")
    assert (tmp_path / "log" / "f").read_bytes() == b"first"
    directory.close()


@linux
def test_a_pipe_in_a_log_stops_nobody(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log") as log:
        log.append("event", 1)
    pipe = tmp_path / "log" / "00000001.seg"
    pipe.unlink()
    os.mkfifo(pipe)
    told: list[str] = []

    def read() -> None:
        try:
            with EventLog.read(tmp_path / "log") as reader:
                list(reader.records())
        except UnsupportedFormatError as exc:
            told.append(str(exc))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(10)
    hung = thread.is_alive()
    os.close(os.open(pipe, os.O_RDWR | os.O_NONBLOCK))  # the other end: whoever waits goes on
    thread.join()
    assert not hung, "reading waits for the other end of a pipe"
    assert "is not a regular file" in told[0]


@linux
def test_a_lock_that_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = fcntl.fcntl

    def no_locks(fd: int, command: int, *args: Any) -> Any:
        if command == fcntl.F_OFD_SETLK:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        return real(fd, command, *args)

    monkeypatch.setattr(fcntl, "fcntl", no_locks)
    with pytest.raises(OSError) as caught:
        EventLog.open(tmp_path / "log")
    assert caught.value.errno == errno.ENOLCK


def test_closing_twice_closes_nothing_else(tmp_path: Path) -> None:
    directory = OSFiles().make_directory(str(tmp_path / "log"))
    file = directory.open("f", write=True, create=True)
    file.close()
    other = os.open(tmp_path, os.O_RDONLY)  # has the number now
    file.close()
    os.fstat(other)
    os.close(other)
    directory.close()


# -- the log


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


def test_damage_to_a_closed_log_is_reported_when_it_is_opened() -> None:
    """Its footer is sound, and says that all before it is."""
    disk = SimulatedDisk()
    with EventLog.open("log", files=disk) as log:
        for lsn in range(1, 4):
            log.append("event", lsn)
    content, frames = frames_of(disk)
    content[frames[1].payload_offset] ^= 1
    with EventLog.open("log", files=disk) as log:
        assert not log.report.clean
        assert [(d.first_lsn, d.last_lsn) for d in log.report.damaged] == [(2, 2)]


def test_a_clean_close_is_one_after_a_power_loss_too() -> None:
    for seed in range(20):
        disk = SimulatedDisk(seed)
        with EventLog.open("log", files=disk) as log:
            log.append("event", 1)
        with EventLog.open("log", files=disk.after_power_loss(seed)) as log:
            assert (log.report.clean, log.last_lsn) == (True, 1)


def test_the_newest_of_the_snapshots_in_a_segment_comes_first() -> None:
    disk = SimulatedDisk()
    with EventLog.open("log", files=disk) as log:
        for state in range(1, 4):
            log.append_snapshot(state)
        assert [snapshot.body for snapshot in log.snapshots()] == [3, 2, 1]
        newest = log.latest_snapshot()
        assert newest is not None and newest.body == 3


def test_a_page_read_before_the_writer_had_filled_it_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reading of many pages is not atomic: a later frame is there, an earlier one is not yet."""
    disk = SimulatedDisk()
    log = EventLog.open("log", files=disk)
    for lsn in range(1, 4):
        log.append_snapshot(lsn)
        log.commit()
    del disk.directories["log"]["MARK"]  # which lags
    _, frames = frames_of(disk)
    readings = []

    def too_early(directory: Any, number: int, start: int = 0) -> bytes:
        content = bytearray(read_segment(directory, number))
        readings.append(number)
        if len(readings) == 1:
            content[frames[1].offset : frames[1].end] = bytes(frames[1].end - frames[1].offset)
        return bytes(content[start:])

    monkeypatch.setattr(eventlog._reader, "read_segment", too_early)
    monkeypatch.setattr(eventlog._reader, "sound_in_pieces", lambda *args: iter(()))
    with EventLog.read("log", files=disk) as reader:
        assert [record.lsn for record in reader.records()] == [1, 2, 3]
        assert len(readings) == 2
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

    monkeypatch.setattr(eventlog._scan, "frames_ahead", search)
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
        committer.request(self)
        self.served = self._done.wait(10)

    def commit_now(self) -> None:
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


# -- runs


def run(agent: Callable[[SyncRun], Any], disk: SimulatedDisk, every: int = 3) -> Any:
    store = CheckpointStore(Disk(disk))
    return RecoverableAgent(agent, store, every).run_with_recovery_sync("task", "run")["result"]


def die_in(agent: Callable[[SyncRun], Any], disk: SimulatedDisk) -> SimulatedDisk:
    with pytest.raises(Died):
        run(agent, disk)
    return disk.after_process_death()


@pytest.mark.parametrize("policy", ["park", "report", "reconcile"])
def test_every_policy_but_retry_has_its_intent_durable_first(policy: Any) -> None:
    disk = SimulatedDisk()
    intents = []

    def effect() -> None:
        for seed in range(8):
            with EventLog.read("home/run", files=disk.after_power_loss(seed)) as log:
                intents.append([record.kind for record in log.records()].count("call"))

    if policy == "reconcile":
        made = tool(reconcile=lambda call: Resolution.unknown())(effect)
    else:
        made = tool(after_crash=policy)(effect)
    run(lambda run: run.call(made), disk)
    assert intents == [1] * 8


def test_a_resolution_survives_a_power_loss() -> None:
    @tool
    def send() -> str:
        raise Died

    def agent(run: SyncRun) -> Any:
        return run.call(send)

    disk = die_in(agent, SimulatedDisk())
    with pytest.raises(InDoubtError) as caught:
        run(agent, disk)
    resolve(CheckpointStore(Disk(disk)), "run", caught.value.calls[0].lsn,
            Resolution.outcome("was sent"))  # fmt: skip
    for seed in range(8):
        assert run(agent, disk.after_power_loss(seed)) == "was sent"


def test_attempts_are_counted_over_recoveries() -> None:
    attempts = []

    @tool(after_crash="retry")
    def search() -> str:
        call = current_call()
        assert call is not None
        attempts.append(call.attempt)
        if len(attempts) < 4:
            raise Died
        return "found"

    def agent(run: SyncRun) -> Any:
        return run.call(search)

    disk = SimulatedDisk()
    for _ in range(3):
        disk = die_in(agent, disk)
    assert run(agent, disk) == "found"
    assert attempts == [1, 2, 3, 4]


def damage_checkpoint(disk: SimulatedDisk, step: int) -> None:
    """Flip a bit of the checkpoint that was taken at the end of a step."""
    with EventLog.read("home/run", files=disk) as log:
        packed = {unpack(one.packed)["step"]: one.packed for one in log.snapshots()}[step]
    for file in disk.directories["home/run"].values():
        at = bytes(file.content).find(packed)
        if at >= 0:
            file.content[at + 30] ^= 1


def eight_steps(deaths: int, executed: list[int]) -> Callable[[SyncRun], Any]:
    """An agent that makes a call in each step and dies in the last, so often."""
    left = [deaths]

    @tool
    def send(step: int) -> int:
        executed.append(step)
        return step

    def agent(run: SyncRun) -> Any:
        for step in run.steps():
            run.messages.append(run.call(send, step))
            run.state["step"] = step
            if step == 8:
                if left[0]:
                    left[0] -= 1
                    raise Died
                return [run.state["step"], *run.messages]
        raise AssertionError

    return agent


def test_a_checkpoint_whose_base_is_damaged_leads_to_one_with_another() -> None:
    executed: list[int] = []
    agent, disk = eight_steps(1, executed), SimulatedDisk()
    with pytest.raises(Died):
        run(agent, disk, every=1)
    disk = disk.after_process_death()
    damage_checkpoint(disk, 6)  # the 7th says how it differs from the 6th, the 5th does not
    store = CheckpointStore(Disk(disk))
    found = RecoverableAgent(agent, store, 1).run_with_recovery_sync("task", "run")
    assert found["recovered_from_step"] == 5
    assert found["result"] == [8, *range(1, 9)]
    assert executed == list(range(1, 9))


def test_no_checkpoint_is_taken_while_records_of_later_steps_are_replayed() -> None:
    """It would stand behind them, and they would be forgotten."""
    executed: list[int] = []
    agent, disk = eight_steps(2, executed), SimulatedDisk()
    for death in range(2):
        with pytest.raises(Died):
            run(agent, disk, every=2)
        disk = disk.after_process_death()
        if death == 0:
            damage_checkpoint(disk, 6)  # then the next recovery begins at the one before
    assert run(agent, disk, every=2) == [8, *range(1, 9)]
    assert executed == list(range(1, 9))


def test_a_checkpoint_that_a_thread_outlived_is_passed_over() -> None:
    """Only the code of the step that started the thread starts it again."""
    executed: list[str] = []
    deaths = [1]

    @tool
    def send(what: str) -> str:
        executed.append(what)
        return what

    def late(inside: contextvars.Context, go: threading.Event) -> None:
        if go.wait(10):
            inside.run(send, "late")

    def agent(run: SyncRun) -> Any:
        go, threads = threading.Event(), list[threading.Thread]()
        for step in run.steps():
            if step == 1:
                threads.append(threading.Thread(target=late, args=(contextvars.copy_context(), go)))
                threads[0].start()
            if step == 2:
                go.set()
                for thread in threads:
                    thread.join()
                if deaths and deaths.pop():
                    raise Died
                return "done"
        raise AssertionError

    disk = SimulatedDisk()
    with pytest.raises(Died):
        run(agent, disk, every=1)
    with EventLog.read("home/run", files=disk) as log:
        assert log.latest_snapshot() is not None
    found = RecoverableAgent(agent, CheckpointStore(Disk(disk.after_process_death())), 1)
    result = found.run_with_recovery_sync("task", "run")
    assert (result["result"], result["recovered_from_step"]) == ("done", 0)
    assert executed == ["late"]


@pytest.mark.parametrize(
    "change",
    [
        lambda messages: messages.append("new"),
        lambda messages: messages.extend(["new"]),
        lambda messages: messages.insert(1, "new"),
        lambda messages: messages.pop(0),
        lambda messages: messages.remove("b"),
        lambda messages: messages.clear(),
        lambda messages: messages.reverse(),
        lambda messages: messages.sort(reverse=True),
        lambda messages: messages.__setitem__(1, "new"),
        lambda messages: messages.__setitem__(slice(0, 2), ["new"]),
        lambda messages: messages.__delitem__(1),
        lambda messages: messages.__delitem__(slice(0, 2)),
        lambda messages: messages.__iadd__(["new"]),
        lambda messages: messages.__imul__(2),
    ],
)
def test_every_way_to_change_the_messages_is_recorded(change: Callable[[Any], Any]) -> None:
    recorded: list[Any] = []

    def recorder(start: int, stop: int, packed: list[bytes]) -> list[Ref | None]:
        recorded[start:stop] = [unpack(one) for one in packed]
        return [None] * len(packed)

    messages = Messages(recorder)
    messages.extend(["a", "b", "c"])
    change(messages)
    assert recorded == messages != ["a", "b", "c"]


def test_a_reconcile_hook_asks_anew_at_each_recovery() -> None:
    """What it was told the last time may not be true any more."""
    asked = []

    @tool(after_crash="retry")
    def ask() -> int:
        asked.append("status")
        return len(asked)

    def reconcile(call: Any) -> Resolution:
        return Resolution.unknown() if ask() == 1 else Resolution.outcome("was sent")

    @tool(reconcile=reconcile)
    def send() -> str:
        raise Died

    def agent(run: SyncRun) -> Any:
        return run.call(send)

    disk = die_in(agent, SimulatedDisk())
    with pytest.raises(InDoubtError):
        run(agent, disk)
    assert run(agent, disk) == "was sent"


def test_the_same_call_with_other_arguments_is_not_served_the_old_result() -> None:
    executed = []

    @tool
    def send(to: str) -> str:
        executed.append(to)
        return f"sent to {to}"

    def agent_to(to: str, end: bool) -> Callable[[SyncRun], Any]:
        def agent(run: SyncRun) -> Any:
            found = run.call(send, to)
            if not end:
                raise Died
            return found

        return agent

    disk = die_in(agent_to("one", False), SimulatedDisk())
    with pytest.raises(DivergenceError, match=r"(?s)one.*two"):
        run(agent_to("two", True), disk)
    assert run(agent_to("one", True), disk) == "sent to one"
    assert executed == ["one"]


def test_large_arguments_are_recorded_by_digest() -> None:
    disk = SimulatedDisk()
    given = "x" * 100_000
    found = run(lambda run: run.call(len, given) + run.call(len, "short"), disk)
    assert found == len(given) + len("short")
    with EventLog.read("home/run", files=disk) as log:
        calls = [record for record in log.records() if record.kind == "call"]
    assert [record.body.get("args") for record in calls] == [None, [["short"], {}]]
    assert max(len(record.packed) for record in calls) < 1000
