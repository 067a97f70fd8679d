"""EventLog as its users see it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock
from unittest.mock import Mock

import pytest

from eventlog import EventLog, LogError, LogReader, Record, Snapshot
from eventlog.errors import WriterFailedError
from eventlog.format.frame import FRAME_SIZE, HEADER_SIZE, padded
from eventlog.format.record import encode_payload
from eventlog.testing import SimulatedDisk
from eventlog.write.appender import BUFFER_SIZE
from eventlog.write.group_commit import Committable, Committer, commit_all
from tests.support.paths import ROOT


def test_what_was_appended_is_read() -> None:
    with EventLog.open("log", files=SimulatedDisk()) as log:
        assert (log.last_lsn, log.durable_lsn, list(log.records())) == (0, 0, [])
        assert log.append("a", {"n": 1}) == 1
        assert log.append_batch([("b", 2), ("c", [3])]) == [2, 3]
        assert log.append_snapshot({"n": 4}) == 4
        assert (log.last_lsn, log.durable_lsn) == (4, 0)
        log.commit()
        assert log.durable_lsn == 4
        found = [(r.lsn, r.kind, r.body, type(r)) for r in log.records(start=2)]
        assert found == [
            (2, "b", 2, Record),
            (3, "c", [3], Record),
            (4, "snapshot", {"n": 4}, Snapshot),
        ]
        newest = log.latest_snapshot()
        assert newest is not None and (newest.lsn, newest.body) == (4, {"n": 4})
        assert log.fetch({2, 3, 9}).keys() == {2, 3}
        assert log.fetch(set()) == {}


def test_of_a_new_log_nothing_is_looked_at_and_what_is_asked_for_early_is_found() -> None:
    """An iterator that was made before the first record gives what is there when it is asked."""
    with EventLog.open("log", files=SimulatedDisk()) as log:
        early, early_snapshots = log.records(), log.snapshots()
        read = AssertionError("it is read")
        with mock.patch.multiple(
            LogReader, records=Mock(side_effect=read), snapshots=Mock(side_effect=read)
        ):
            assert list(log.records()) == [] and list(log.snapshots()) == []
        log.append("a", 1)
        log.append_snapshot({"n": 1})
        assert [record.kind for record in early] == ["a", "snapshot"]
        assert [snapshot.lsn for snapshot in early_snapshots] == [2]


def test_process_durability_survives_the_process_without_a_flush() -> None:
    disk = SimulatedDisk()
    log = EventLog.open("log", "process", files=disk)
    log.append("event", 1)
    flushes = disk.calls.count("sync")
    for n in range(2, 50):
        log.append("event", n)
        log.commit()
    assert disk.calls.count("sync") == flushes
    after = disk.after_process_death()
    log._release()
    with EventLog.open("log", files=after) as again:
        assert again.last_lsn == 49


def test_no_durability_leaves_a_prefix() -> None:
    disk = SimulatedDisk()
    log = EventLog.open("log", "none", files=disk)
    for n in range(3000):
        log.append("event", {"n": n, "data": "x" * 50})
    written = sum(len(f.content) for f in disk.directories["log"].values())
    assert written % BUFFER_SIZE < 5000 < written
    after = disk.after_process_death()
    log._release()
    with EventLog.open("log", files=after) as again:
        bodies = [r.body["n"] for r in again.records()]
        assert 500 < len(bodies) < 3000 and bodies == list(range(len(bodies)))


def test_a_report_says_what_was_found() -> None:
    disk = SimulatedDisk()
    with EventLog.open("log", files=disk) as log:
        assert str(log.report).startswith("new log, last LSN 0")
        log.append("event", 1)
    with EventLog.open("log", files=disk) as log:
        assert (log.report.clean, log.report.last_lsn, log.report.replayed) == (True, 1, 1)
        assert str(log.report).startswith("closed cleanly, last LSN 1, 1 records verified")
        log.append("event", 2)
        log.commit()
        crashed = disk.after_process_death()
    crashed.directories["log"]["00000001.seg"].content[-4000:-3990] = b"torn bytes"
    with EventLog.open("log", files=crashed) as log:
        assert (log.report.clean, log.report.torn_size > 0) == (False, True)
        assert "torn tail of" in str(log.report)
    with EventLog.open("log", files=crashed) as log:
        assert log.report.torn_size == 0


def test_a_closed_log_takes_nothing() -> None:
    log = EventLog.open("log", files=SimulatedDisk())
    log.append("event", 1)
    log.close()
    log.close()
    for call in (log.commit, log.latest_snapshot, lambda: log.append("event", 1), log.records):
        with pytest.raises(LogError, match="closed"):
            call()


def test_after_a_clean_close_a_missing_segment_is_reported_after_a_power_loss_too() -> None:
    """The mark file, which knows of it, is on the disk as well."""
    disk = SimulatedDisk()
    with EventLog.open("log", files=disk) as log:
        log.append("event", 1)
    for seed in range(20):
        after = disk.after_power_loss(seed)
        del after.directories["log"]["00000001.seg"]
        with EventLog.read("log", files=after) as reader:
            assert [(one.first_lsn, one.last_lsn) for one in reader.tail().damaged] == [(1, 1)]


def test_a_log_that_was_not_closed_says_so(tmp_path: Path) -> None:
    with pytest.warns(ResourceWarning, match="not closed"):
        EventLog.open(tmp_path / "log").__del__()
    EventLog.open(tmp_path / "log").close()


ENDS = """
import sys, threading
from eventlog import EventLog
from eventlog.write.group_commit import committer

log = EventLog.open(sys.argv[1])
log.cycle = log
held = threading.Event()

def holds():
    with committer._wake:
        held.set()
        threading.Event().wait()

threading.Thread(target=holds, daemon=True).start()
held.wait()
del log  # the garbage collector finds it, when the process ends
"""


def test_a_process_ends_whose_log_is_open_and_whose_committer_was_interrupted(
    tmp_path: Path,
) -> None:
    """At the end, Python stops daemon threads where they are: perhaps with a lock, for ever."""
    words = [sys.executable, "-c", ENDS, str(tmp_path / "log")]
    subprocess.run(words, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True, timeout=60)
    EventLog.open(tmp_path / "log").close()


@pytest.mark.parametrize(
    "wrong", [{"durability": "some"}, {"segment_size": 64}, {"segment_size": 1 << 33}]
)
def test_wrong_arguments_are_refused(wrong: dict[str, Any]) -> None:
    disk = SimulatedDisk()
    with pytest.raises(ValueError):
        EventLog.open("log", files=disk, **wrong)
    assert not disk.directories


def test_an_opening_that_writes_nothing_changes_no_segment() -> None:
    disk = SimulatedDisk()
    with EventLog.open("log", files=disk) as log:
        log.append("event", 1)
        crashed = disk.after_process_death()
    for files in (disk, crashed):
        EventLog.open("log", files=files).close()
        before = bytes(files.directories["log"]["00000001.seg"].content)
        for _ in range(3):
            EventLog.open("log", files=files).close()
        assert bytes(files.directories["log"]["00000001.seg"].content) == before
        assert sorted(files.directories["log"]) == ["00000001.seg", "LOCK", "MARK"]


def test_a_payload_with_the_salt_in_it_goes_to_another_segment() -> None:
    """So that the search for frames cannot be led astray by what is in a payload."""
    disk = SimulatedDisk()
    with EventLog.open("log", files=disk) as log:
        log.append("event", 1)
        own = bytes(disk.directories["log"]["00000001.seg"].content)
        log.append("event", own)
        log.append("event", 2)
        assert [r.body for r in log.records()] == [1, own, 2]
    assert "00000002.seg" in disk.directories["log"]
    for name, file in disk.directories["log"].items():
        if name.endswith(".seg"):
            assert own not in file.content or file.content[56:60] not in own


@pytest.mark.parametrize("size", range(0, 200, 4))
def test_old_bytes_that_turn_up_again_after_a_recovery_are_no_records(size: int) -> None:
    """A file system may show the blocks again that recovery had cut off: other salt, no frames.

    At one of the sizes the old third record lies right behind the new second one, at its offset.
    """
    disk = SimulatedDisk()
    log = EventLog.open("log", files=disk)
    log.append("event", "kept")
    log.commit()
    kept = len(disk.directories["log"]["00000001.seg"].content.rstrip(b"\0"))
    log.append("event", "lost 2")
    log.append("event", "lost 3")
    old = bytes(disk.directories["log"]["00000001.seg"].content)
    after = disk.after_process_death()
    log._release()
    after.directories["log"]["00000001.seg"].content[kept + 8 :] = b""
    log = EventLog.open("log", files=after)
    assert log.last_lsn == 1
    log.append("event", "x" * size)
    log.commit()
    for name, file in after.directories["log"].items():
        if name.endswith(".seg"):  # what was there before, wherever nothing else is
            end = len(file.content.rstrip(b"\0"))
            end += -end % 8
            file.content[end:] = old[end:]
    again = after.after_process_death()
    log._release()
    with EventLog.open("log", files=again) as log:
        assert [r.body for r in log.records()] == ["kept", "x" * size]


def test_a_roll_right_after_an_opening_adds_no_second_footer() -> None:
    disk = SimulatedDisk()
    with EventLog.open("log", files=disk, segment_size=300) as log:
        log.append("event", 1)
    before = bytes(disk.directories["log"]["00000001.seg"].content)
    with EventLog.open("log", files=disk, segment_size=300) as log:
        log.append("event", "x" * 300)
        assert bytes(disk.directories["log"]["00000001.seg"].content) == before


@pytest.mark.parametrize("size", range(8))
def test_a_segment_is_filled_to_its_size_and_no_further(size: int) -> None:
    payload = encode_payload(1, [("event", "x" * size)])
    exact = HEADER_SIZE + 2 * padded(FRAME_SIZE + len(payload))
    for segment_size, segments in ((exact, 2), (exact - 1, 3)):
        disk = SimulatedDisk()
        with EventLog.open("log", files=disk, segment_size=segment_size) as log:
            for _ in range(3):
                log.append("event", "x" * size, time_ns=1)
        assert len([name for name in disk.directories["log"] if name.endswith(".seg")]) == segments


def test_a_record_larger_than_a_segment_has_one_to_itself() -> None:
    disk = SimulatedDisk()
    with EventLog.open("log", files=disk, segment_size=1000) as log:
        for size in (10, 5000, 10):
            log.append("event", "x" * size)
        assert [len(r.body) for r in log.records()] == [10, 5000, 10]
    assert len([name for name in disk.directories["log"] if name.endswith(".seg")]) == 3


def test_threads_share_flushes_and_lsns(tmp_path: Path) -> None:
    acknowledged: list[int] = []
    with EventLog.open(tmp_path / "log", segment_size=20_000) as log:

        def work(name: int) -> None:
            for n in range(60):
                lsn = log.append("event", [name, n])
                log.append_batch([("part", name)] * 3)
                log.commit()
                assert log.durable_lsn >= lsn
                acknowledged.append(lsn)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        records = list(log.records())
    assert len(set(acknowledged)) == 8 * 60
    assert [r.lsn for r in records] == list(range(1, 8 * 60 * 4 + 1))
    for name in range(8):
        mine = [r.body[1] for r in records if r.kind == "event" and r.body[0] == name]
        assert mine == list(range(60))


def test_closing_while_others_append_and_commit_loses_nothing_acknowledged(tmp_path: Path) -> None:
    for _ in range(10):
        log = EventLog.open(tmp_path / "log", segment_size=3000)
        acknowledged = [0]
        errors: list[BaseException] = []

        def work(
            log: EventLog = log,
            acknowledged: list[int] = acknowledged,
            errors: list[BaseException] = errors,
        ) -> None:
            try:
                while True:
                    lsn = log.append("event", "x" * 30)
                    log.commit_behind()
                    log.commit()
                    acknowledged.append(lsn)
            except LogError as exc:
                errors.append(exc)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        while len(acknowledged) < 20:
            time.sleep(0.001)
        log.close()
        for thread in threads:
            thread.join()
        assert all("closed" in str(error) for error in errors) and len(errors) == 4
        with EventLog.open(tmp_path / "log") as again:
            assert again.report.clean and again.last_lsn >= max(acknowledged)


def test_a_failure_behind_reaches_the_next_call_once_told_close_is_quiet() -> None:
    disk = SimulatedDisk()
    log = EventLog.open("log", files=disk)
    log.append("event", 1)
    disk.fail_at("sync", 0, 5)
    log.commit_now(1)
    with pytest.raises(WriterFailedError, match="Everything up to LSN 0 is safe"):
        log.append("event", 2)
    log.close()


def test_a_failure_that_the_caller_saw_is_not_raised_again_by_close() -> None:
    disk = SimulatedDisk()
    log = EventLog.open("log", files=disk)
    log.append("a", 1)
    disk.fail_at("write", 0, errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        log.append("a", 2)
    log.commit_now(1)  # behind: it finds the writer failed, which is known
    log.close()


def test_a_failure_behind_that_nobody_saw_is_raised_by_close() -> None:
    disk = SimulatedDisk()
    log = EventLog.open("log", files=disk)
    log.append("event", 1)
    disk.fail_at("sync", 0, 5)
    log.commit_now(1)
    with pytest.raises(WriterFailedError):
        log.close()
    log.close()
    EventLog.open("log", files=disk).close()


def test_many_logs_are_committed_several_at_once() -> None:
    """Each once; a disk that takes its time for one does not keep the others waiting."""
    meeting, done = threading.Barrier(4), list[int]()

    class Log:
        def __init__(self, number: int) -> None:
            self.number = number

        def commit_now(self, lsn: int) -> None:
            meeting.wait(30)  # until four are at it
            done.append(self.number)

    logs: dict[Committable, int] = {Log(number): 0 for number in range(32)}
    commit_all(logs)
    assert sorted(done) == list(range(32)) and not logs


def test_logs_are_committed_though_there_can_be_no_more_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = []

    class Log:
        def commit_now(self, lsn: int) -> None:
            done.append(self)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    commit_all({Log(): 0 for _ in range(32)})
    assert len(done) == 32


@pytest.mark.parametrize("then", ["append", "commit", "behind", "read", "close"])
def test_a_held_record_is_written_with_what_comes_next(then: str) -> None:
    disk = SimulatedDisk()
    log = EventLog.open("log", files=disk)
    log.append("a", 1)
    content = disk.directories["log"]["00000001.seg"].content
    before, written = bytes(content), len(disk.calls)
    assert log.append("held", 2, hold=True) == 2 and log.append("held", 3, hold=True) == 3
    assert (bytes(content), len(disk.calls), log.last_lsn) == (before, written, 3)
    if then == "append":
        assert log.append("b", 4) == 4
        assert len(disk.calls) == written + 1  # one write for all three
    elif then == "commit":
        log.commit()
        assert log.durable_lsn == 3
    elif then == "behind":
        log.commit_now(3)  # as a thread does after commit_behind
    elif then == "read":
        assert [record.lsn for record in log.records()] == [1, 2, 3]
    else:
        log.close()
    with EventLog.read("log", files=disk) as reader:
        assert [record.lsn for record in reader.records()] == [1, 2, 3, 4][: log.last_lsn]
    log.close()
    with EventLog.open("log", files=disk) as log:  # of a segment that was sealed, and goes on
        last = log.append("held", 5, hold=True)
    with EventLog.open("log", files=disk) as log:
        assert log.last_lsn == last


def test_a_held_record_that_cannot_be_written_fails_the_log() -> None:
    disk = SimulatedDisk()
    log = EventLog.open("log", files=disk)
    log.append("a", 1)
    log.append("held", 2, hold=True)
    disk.fail_at("write", 0, errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        log.commit()
    with pytest.raises(WriterFailedError):
        log.append("b", 3)
    log.close()


def test_commit_behind_writes_a_held_record_soon(tmp_path: Path) -> None:
    """Without a later record too."""
    with EventLog.open(tmp_path / "log") as log:
        log.append("held", 1, hold=True)
        log.commit_behind()
        deadline = time.monotonic() + 30
        while not _held_is_there(tmp_path / "log"):
            assert time.monotonic() < deadline
            time.sleep(0.001)


def _held_is_there(path: Path) -> bool:
    with EventLog.read(path) as reader:
        return [record.kind for record in reader.records()] == ["held"]


def test_where_nothing_is_flushed_no_record_is_held_and_no_thread_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr("eventlog.write.log.committer.request", lambda log, lsn: asked.append(log))
    with EventLog.open(tmp_path / "log", "process") as log:
        log.append("held", 1, hold=True)
        log.commit_behind()
        assert _held_is_there(tmp_path / "log") and not asked


def test_in_a_forked_child_a_log_is_closed_whoever_held_its_locks() -> None:
    log = EventLog.open("log", files=SimulatedDisk())
    log.append("event", 1)
    held: Any = None  # by a thread that the child has not
    log._appender._lock = log._appender._sync_lock = held
    log._forked()
    with pytest.raises(LogError, match="made by fork"):
        log.append("event", 2)
    log.__del__()  # says nothing: the child has nothing to close


def test_what_was_flushed_meanwhile_is_not_flushed_behind() -> None:
    disk = SimulatedDisk()
    with EventLog.open("log", files=disk) as log:
        log.append("event", 1)
        log.commit()
        calls, reads = len(disk.calls), disk.reads
        log.commit_now(1)
        assert len(disk.calls) == calls and disk.reads == reads
        log.append("event", 2)
        log.commit_now(1)  # which is flushed: record 2 has come later, and has its time yet
        assert log.durable_lsn == 1
        log.commit_now(2)
        assert log.durable_lsn == 2


def test_the_committer_keeps_no_log_alive() -> None:
    import gc
    import weakref

    class Log:
        done = threading.Event()

        def commit_now(self, lsn: int) -> None:
            self.done.set()

    committer = Committer()
    log = Log()
    committer.request(log, 1)
    assert log.done.wait(10)
    gone = weakref.ref(log)
    del log
    deadline = time.monotonic() + 10
    while gone() is not None and time.monotonic() < deadline:
        time.sleep(0.01)
        gc.collect()
    assert gone() is None


def test_the_committer_waits_longer_for_each_log_that_asks_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Log:
        def commit_now(self, lsn: int) -> None:
            committed.release()

    def sleep(seconds: float) -> None:
        asked = logs[len(sleeps) * 300 :][:300]
        sleeps.append(seconds)
        for log in (*asked, closed):
            committer.request(log, 1)
        committer.forget(closed)

    committed, sleeps = threading.Semaphore(0), list[float]()
    committer, logs, closed = Committer(), [Log() for _ in range(599)], Log()
    monkeypatch.setattr("eventlog.write.group_commit.time", Mock(sleep=sleep))
    committer.request(Log(), 1)
    assert committed.acquire(timeout=10)
    assert sleeps == pytest.approx([0.01, 0.291, 0.299])
    for _ in range(599):
        assert committed.acquire(timeout=10)
    assert not committed.acquire(blocking=False)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_committer_outlives_what_ends_its_thread() -> None:
    class Log:
        def __init__(self, error: type[BaseException] | None) -> None:
            self.error, self.done = error, threading.Event()

        def commit_now(self, lsn: int) -> None:
            self.done.set()
            if self.error is not None:
                raise self.error

    committer = Committer()
    fatal, other = Log(SystemExit), Log(None)
    committer.request(fatal, 1)
    assert fatal.done.wait(10)
    deadline = time.monotonic() + 10
    while not other.done.wait(0.05) and time.monotonic() < deadline:
        committer.request(other, 1)  # as each record does that comes
    assert other.done.is_set()


def test_a_log_commits_by_itself_while_no_thread_can_be_started() -> None:
    class Log:
        def commit_now(self, lsn: int) -> None:
            committed.append(lsn)
            done.set()

    committer, log, committed, done = Committer(), Log(), list[int](), threading.Event()
    with pytest.MonkeyPatch.context() as patched:
        refused = Mock(Thread=Mock(side_effect=RuntimeError("can't start new thread")))
        patched.setattr("eventlog.write.group_commit.threading", refused)
        for lsn in (1, 2):
            committer.request(log, lsn)
    assert committed == [1, 2]
    done.clear()
    committer.request(log, 3)
    assert done.wait(30) and committed == [1, 2, 3]


@pytest.mark.parametrize("call", ["append", "commit", "close", "roll"])
def test_ctrl_c_at_any_call_of_the_operating_system(call: str) -> None:
    for at in range(30):
        disk = SimulatedDisk()
        log = EventLog.open("log", files=disk, segment_size=300)
        log.append("event", 1)
        log.commit()
        step, left = disk.step, [at]

        def interrupted(*args: Any, step: Any = step, left: list[int] = left) -> int:
            left[0] -= 1
            if left[0] == -1:
                raise KeyboardInterrupt
            return int(step(*args))

        disk.step = interrupted  # type: ignore[method-assign,assignment]
        try:
            log.append("event", "x" * (300 if call == "roll" else 10))
            if call in ("commit", "close"):
                log.commit()
            log.close()
            done = True
        except KeyboardInterrupt:
            done = False
            log._release()
        disk.step = step  # type: ignore[method-assign]
        with EventLog.open("log", files=disk) as again:
            assert again.report.damaged == ()
            assert again.last_lsn == 2 if done else again.last_lsn in (1, 2)
        if done:
            return
    raise AssertionError("never came to the end")


def test_a_failed_write_of_buffered_records_fails_the_writer_whoever_asked_for_it() -> None:
    disk = SimulatedDisk()
    log = EventLog.open("log", "none", files=disk)
    log.append("event", 1)
    disk.fail_at("create", 0, errno.ENOSPC)
    disk.fail_at("write", 0, errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        list(log.records())
    with pytest.raises(WriterFailedError):
        log.append("event", 2)
    log.close()
    with EventLog.open("log", files=disk) as log:
        assert log.report.damaged == () and log.last_lsn == 0


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOENT])
@pytest.mark.parametrize(
    ("records", "verb", "act"),
    [
        (0, "create", lambda log: log._appender.begin_at(5)),
        (0, "create", lambda log: log.append("event", 1)),
        (0, "publish", lambda log: log.append("event", 1)),
        (2, "write", lambda log: log.append("event", 1)),
        (2, "write", lambda log: log.append_snapshot(1)),
        (2, "sync", lambda log: log.commit()),
        (2, "create", lambda log: log.append("event", "x" * 400)),
        (2, "create", lambda log: log.roll()),
        (2, "create", lambda log: log.truncate_before(3)),
        (2, "sync directory", lambda log: log.truncate_before(3)),
    ],
)
def test_after_a_failure_of_anything_that_writes_no_record_is_taken(
    records: int, verb: str, act: Callable[[EventLog], object], error: int
) -> None:
    disk = SimulatedDisk()
    log = EventLog.open("log", files=disk, segment_size=600)
    for _ in range(records):
        log.append("event", "x" * 300)
    disk.fail_at(verb, 0, error)
    with pytest.raises(OSError, match=os.strerror(error)):
        act(log)
    with pytest.raises(WriterFailedError):
        log.append("event", 1)
    log.close()
    with EventLog.open("log", files=disk) as log:
        assert (log.report.damaged, log.last_lsn) == ((), records)


def test_an_error_of_the_disk_says_where_and_what_to_do() -> None:
    disk = SimulatedDisk()
    log = EventLog.open("log", files=disk)
    log.append("event", 1)
    log.commit()
    disk.fail_at("write", 0, errno.ENOSPC)
    with pytest.raises(OSError) as caught:
        log.append("event", 2)
    assert caught.value.errno == errno.ENOSPC
    assert (
        "log accepts no more records. Everything up to LSN 1 is safe" in caught.value.__notes__[0]
    )
    log.close()
    disk.fail_at("truncate", 0, errno.EIO)
    with pytest.raises(OSError) as caught:
        EventLog.open("log", files=disk)
    assert "could not be opened. Nothing acknowledged is lost" in caught.value.__notes__[-1]


def test_recovery_writes_into_no_segment_but_the_one_that_it_verified() -> None:
    """The last segment is empty and its header damaged: the log ends in the one before."""
    disk = SimulatedDisk()
    log = EventLog.open("log", files=disk, segment_size=200)
    log.append("event", "x" * 200)
    log.commit()
    disk.fail_at("write", 3, errno.ENOSPC)  # the roll has made a segment, the record is not in it
    with pytest.raises(OSError, match="No space"):
        log.append("event", "y" * 200)
    log.close()
    after = disk.after_process_death()
    after.directories["log"]["00000002.seg"].content[20] ^= 1
    damaged = bytes(after.directories["log"]["00000002.seg"].content)
    with EventLog.open("log", files=after) as log:
        assert log.append("event", 2) == 2
    assert bytes(after.directories["log"]["00000002.seg"].content) == damaged
    with EventLog.read("log", files=after) as reader:
        assert [record.lsn for record in reader.records(on_damage=lambda damage: None)] == [1, 2]


def test_a_footer_whose_flush_failed_is_renewed_before_the_log_goes_on() -> None:
    """The kernel takes the footer for written; what comes behind it is flushed, it is not."""
    disk = SimulatedDisk()
    log = EventLog.open("log", files=disk)
    log.append("event", 1)
    log.commit()
    disk.fail_at("sync", 1, errno.EIO)  # the second of closing: that of the footer
    with pytest.raises(OSError, match="Input/output"):
        log.close()
    same = disk.after_process_death()
    with EventLog.open("log", files=same) as log:
        log.append("event", 2)
        log.commit()
        for seed in range(40):
            with EventLog.open("log", files=same.after_power_loss(seed)) as after:
                assert after.report.damaged == () and after.last_lsn == 2


@pytest.mark.parametrize("takeover", [False, True])
def test_a_record_whose_flush_failed_is_renewed_where_the_file_stays_as_it_is(
    takeover: bool,
) -> None:
    """The segment is damaged, or its writer may live. The kernel takes the record for written."""
    disk = SimulatedDisk()
    log = EventLog.open("log", files=disk)
    for number in (1, 2):
        log.append("event", number)
        log.commit()
    log.append("event", 3)
    disk.fail_at("sync", 0, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        log.commit()
    if not takeover:
        disk = disk.after_process_death()
        disk.directories["log"]["00000001.seg"].content[HEADER_SIZE + FRAME_SIZE] ^= 1
    with EventLog.open("log", files=disk, takeover=takeover) as new:
        assert (len(new.report.damaged), new.durable_lsn) == (0 if takeover else 1, 3)
        for seed in range(40):
            with EventLog.read("log", files=disk.after_power_loss(seed)) as reader:
                assert reader.tail().next_lsn == 4 and reader.fetch({3}), seed
    log._release()


def test_what_is_renewed_around_damage_stays_in_its_place() -> None:
    """The file of marks is lost; the header of the last record, which is torn, has a mark yet."""
    disk = SimulatedDisk()
    log = EventLog.open("log", files=disk)
    for n in (1, 2, 3, 4):
        log.append("event", n)
    log.commit()
    log.append("event", 5)
    disk = disk.after_process_death()
    log.close()
    del disk.directories["log"]["MARK"]
    content = disk.directories["log"]["00000001.seg"].content
    size = padded(FRAME_SIZE + len(encode_payload(log.last_time_ns, [("event", 1)])))
    for n in (2, 5):
        content[HEADER_SIZE + (n - 1) * size + FRAME_SIZE] ^= 1
    before = bytes(content)
    with EventLog.open("log", files=disk) as log:
        (damage,) = log.report.damaged
        assert (damage.first_lsn, damage.last_lsn, log.last_lsn) == (2, 2, 4)
        assert bytes(disk.directories["log"]["00000001.seg"].content) == before


def test_what_was_not_known_durable_is_renewed_together() -> None:
    disk = SimulatedDisk()
    log = EventLog.open("log", files=disk)
    for n in range(300):
        log.append("event", n)
    after = disk.after_process_death()
    log.close()
    with EventLog.open("log", files=after) as log:
        assert log.last_lsn == 300
        assert after.calls.count("write") == 4  # LOCK, all records, the footer, MARK
