"""Real processes on real files: killed, stopped, forked, locked out, short of space, and read."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from zlib import crc32

import pytest

from eventlog import DamagedError, EventLog, LogError, LogLockedError, LogReader
from eventlog.errors import FencedError, UnsupportedFormatError
from eventlog.files.posix import OSFiles
from eventlog.format.frame import HEADER_SIZE, SegmentHeader, decode_segment_header
from eventlog.read.segment_files import read_mark

HEAD = """
import gc, os, sys, time, signal
from eventlog import *
from eventlog.errors import *
"""

ROOT = Path(__file__).parents[2]
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Run Python code in a new process; what is left of it is killed in the end."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, *args: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", HEAD + textwrap.dedent(code), *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str], text: str = "") -> None:
    assert process.stdin is not None
    process.stdin.write(text + "\n")
    process.stdin.flush()


APPEND_FOR_EVER = """
    log = EventLog.open(sys.argv[1], segment_size=20_000)
    for n in range(log.last_lsn + 1, 1_000_000):
        log.append("event", {"n": n, "data": "x" * (n % 300)})
        if n % 7 == 0:
            log.commit()
            print(n)
"""


HOLD = """
    log = EventLog.open(sys.argv[1], segment_size=int(sys.argv[2]))
    for n in range(3):
        log.append("event", "old")
    log.commit()
    print("ready")
    sys.stdin.readline()
    try:
        for n in range(int(sys.argv[3])):
            log.append("event", "late" * 20)
        log.commit()
        print("committed")
    except FencedError as exc:
        print("FencedError", exc)
    try:
        log.append("event", "later")
        log.commit()
        print("committed")
    except FencedError as exc:
        print("FencedError", exc)
    os._exit(0)
"""


def test_a_second_process_is_told_at_once_who_has_the_log(tmp_path: Path, start: Start) -> None:
    holder = start(HOLD, tmp_path / "log", 10_000, 0)
    assert line(holder) == "ready"
    before = contents(tmp_path / "log")
    with pytest.raises(LogLockedError, match=rf"process {holder.pid} on") as caught:
        EventLog.open(tmp_path / "log")
    assert (caught.value.pid, caught.value.host) == (holder.pid, socket.gethostname())
    assert contents(tmp_path / "log") == before
    holder.kill()
    holder.wait()
    with EventLog.open(tmp_path / "log") as log:
        assert log.last_lsn == 3


@pytest.mark.parametrize("late", [1, 50], ids=["same segment", "rolls"])
@pytest.mark.parametrize("how", ["takeover", "LOCK deleted", "LOCK replaced"])
@pytest.mark.parametrize("reopened", [False, True])
def test_nothing_a_writer_does_counts_once_it_has_lost_the_log(
    tmp_path: Path, start: Start, late: int, how: str, reopened: bool
) -> None:
    path = tmp_path / "log"
    with EventLog.open(path) as log:
        if reopened:  # then the old owner goes on in a segment that it did not make
            log.append("event", "first")
    old = start(HOLD, path, 1000, late)
    assert line(old) == "ready"
    os.kill(old.pid, signal.SIGSTOP)
    kept = 3 + reopened
    if how != "takeover":
        (path / "LOCK").unlink()
    if how == "LOCK replaced":
        (path / "LOCK").touch(0o600)
    new = EventLog.open(path, takeover=how == "takeover")
    assert (new.last_lsn, new.report.damaged) == (kept, ())
    new.append("event", "new 1")
    new.commit()
    os.kill(old.pid, signal.SIGCONT)
    tell(old)
    assert line(old).startswith("FencedError")
    assert line(old).startswith("FencedError"), "an error that comes once may be missed"
    assert old.wait() == 0
    mark = read_mark(OSFiles().open_directory(str(path)))
    assert mark is not None and mark[2].durable == kept + 1, "the mark was written over"
    new.append("event", "new 2")
    new.close()
    bodies = (["first"] if reopened else []) + ["old"] * 3 + ["new 1", "new 2"]
    with EventLog.open(path) as log:
        assert log.report.damaged == () and log.report.clean
        assert [record.body for record in log.records()] == bodies
        assert log.fetch({kept, kept + 1, 99}).keys() == {kept, kept + 1}


def test_what_a_stopped_writer_appends_is_not_seen_before_the_new_owner_appends(
    tmp_path: Path,
) -> None:
    old = EventLog.open(tmp_path / "log")
    old.append("event", "old")
    new = EventLog.open(tmp_path / "log", takeover=True)
    old.append("event", "late")
    assert [record.body for record in new.records()] == ["old"]
    with pytest.raises(FencedError):
        old.close()
    new.close()
    with EventLog.open(tmp_path / "log") as log:
        assert [record.body for record in log.records()] == ["old"]


def test_a_writer_that_made_a_segment_while_it_lost_the_log_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had looked at the lock just before; the new owner's segment comes behind its own."""
    old = EventLog.open(tmp_path / "log", segment_size=300)
    old.append("event", "old")
    looked = LogReader.tail

    def tail(reader: LogReader) -> object:
        found = looked(reader)
        with monkeypatch.context() as patch:
            patch.setattr(old._appender.owner, "check", lambda: None)
            for _ in range(2):
                old.append("event", "late" * 50)
        return found

    monkeypatch.setattr(LogReader, "tail", tail)
    new = EventLog.open(tmp_path / "log", takeover=True)
    monkeypatch.undo()
    new.append("event", "new")
    assert len(list((tmp_path / "log").glob("*.seg"))) == 4
    old._release()
    new._release()
    with EventLog.open(tmp_path / "log", segment_size=300) as log:
        assert log.report.damaged == ()
        log.append("event", "newer")
        assert [record.body for record in log.records()] == ["old", "new", "newer"]
        assert [record.lsn for record in log.records(2)] == [2, 3]


def test_a_forked_child_cannot_append_and_does_not_keep_the_lock(
    tmp_path: Path, start: Start
) -> None:
    parent = start(
        """
        log = EventLog.open(sys.argv[1])
        log.append("event", 1)
        log.commit()
        if os.fork() == 0:
            for call in (lambda: log.append("event", 2), log.commit, log.latest_snapshot):
                try:
                    call()
                    print("no error")
                except LogError as exc:
                    print("refused", "made by fork" in str(exc))
            log.close()
        sys.stdin.readline()  # the child outlives its parent
        """,
        tmp_path / "log",
    )
    assert [line(parent) for _ in range(3)] == ["refused True"] * 3
    with pytest.raises(LogLockedError):
        EventLog.open(tmp_path / "log")
    parent.kill()
    parent.wait()
    with EventLog.open(tmp_path / "log") as log:
        assert log.last_lsn == 1


def test_a_fork_while_another_thread_commits_leaves_both_usable(
    tmp_path: Path, start: Start
) -> None:
    process = start(
        """
        import threading
        log = EventLog.open(sys.argv[1])
        stop = False
        def work():
            while not stop:
                log.append("event", 1); log.commit()
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads: thread.start()
        for _ in range(20):
            pid = os.fork()
            if pid == 0:
                log.close()
                own = EventLog.open(sys.argv[1] + str(os.getpid()))
                own.append("event", 1); own.commit_behind()
                for _ in range(1000):
                    if own.durable_lsn: break
                    time.sleep(0.01)
                os._exit(0 if own.durable_lsn == 1 else 1)
            assert os.waitpid(pid, 0)[1] == 0
        stop = True
        for thread in threads: thread.join()
        log.close()
        print("done")
        """,
        tmp_path / "log",
    )
    assert process.communicate(timeout=60)[0].strip() == "done"


def test_a_follower_sees_every_record_over_rolls_restarts_and_kills(
    tmp_path: Path, start: Start, rng: random.Random
) -> None:
    seen: list[int] = []
    wanted = 3000
    EventLog.open(tmp_path / "log").close()

    def follow() -> None:
        with EventLog.read(tmp_path / "log") as reader:
            for record in reader.records(follow=True):
                seen.append(record.body["n"])
                if len(seen) == wanted:
                    return

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    while follower.is_alive():
        process = start(APPEND_FOR_EVER, tmp_path / "log")
        line(process)
        time.sleep(rng.random() / 5)
        process.kill()
        process.communicate()
    assert seen == list(range(1, wanted + 1))


def test_readers_beside_a_busy_writer_never_see_damage(tmp_path: Path) -> None:
    """Small appends, batches, rolls, closes and reopenings, against all ways of reading."""
    hammer(tmp_path / "log", 3)


@pytest.mark.crash
def test_readers_beside_a_busy_writer_never_see_damage_for_a_minute(tmp_path: Path) -> None:
    hammer(tmp_path / "log", 60)


BUSY = """
    import random
    n = 0
    while True:
        with EventLog.open(sys.argv[1], segment_size=3000) as log:
            for _ in range(random.randrange(60)):
                what = random.randrange(8)
                if what < 4:
                    log.append("event", "x" * random.randrange(100))
                elif what < 6:
                    log.append_batch([("event", "y" * random.randrange(400))] * 3)
                elif what < 7:
                    log.append_snapshot("s")
                if random.random() < 0.5:
                    log.commit()
        n += 1
        if n == 40:
            print("full"); sys.stdin.readline(); n = 0
"""


def hammer(path: Path, seconds: float) -> None:
    EventLog.open(path).close()
    deadline = time.monotonic() + seconds
    damaged: list[object] = []
    passes = 0
    while time.monotonic() < deadline:
        writer = subprocess.Popen(
            [sys.executable, "-u", "-c", HEAD + textwrap.dedent(BUSY), str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        while writer.poll() is None and time.monotonic() < deadline:
            with EventLog.read(path) as reader:
                lsns = [r.lsn for r in reader.records(on_damage=damaged.append)]
                assert lsns == list(range(1, len(lsns) + 1))
                assert not damaged
                found = next(reader.snapshots(damaged.append), None)
                assert found is None or found.body == "s"
                assert reader.tail().damaged == ()
                assert set(reader.fetch(set(lsns[-5:]))) == set(lsns[-5:])
                assert not damaged
                passes += 1
            if len(lsns) > 4000:
                break
        writer.kill()
        writer.communicate()
        shutil.rmtree(path)
        EventLog.open(path).close()
    assert passes > 10


def contents(path: Path) -> dict[str, tuple[bytes, int]]:
    return {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in sorted(path.iterdir())}


@pytest.mark.parametrize("state", ["clean", "live", "torn", "damaged"])
def test_reading_changes_nothing(tmp_path: Path, state: str) -> None:
    path = tmp_path / "log"
    log = EventLog.open(path, segment_size=400)
    for n in range(10):
        log.append("event", n)
        log.append_snapshot({"n": n})
    log.commit()
    if state != "live":
        log.close() if state == "clean" else log._release()
    newest = sorted(path.glob("*.seg"))[-1]
    if state == "torn":
        newest.write_bytes(newest.read_bytes().rstrip(b"\0") + b"torn")
    if state == "damaged":
        content = bytearray(newest.read_bytes())
        content[HEADER_SIZE + 60] ^= 1
        newest.write_bytes(content)
    before, modified = contents(path), path.stat().st_mtime_ns
    with EventLog.read(path) as reader:
        list(reader.records(on_damage=lambda damage: None))
        list(reader.snapshots())
        reader.latest_snapshot()
        reader.fetch({1, 5, 99})
        reader.tail()
    assert (contents(path), path.stat().st_mtime_ns) == (before, modified)
    log._release()


def test_an_unknown_version_is_not_called_damage(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log") as log:
        log.append("event", 1)
    segment = tmp_path / "log" / "00000001.seg"
    header = decode_segment_header(segment.read_bytes())
    assert isinstance(header, SegmentHeader)
    newer = bytearray(header.encode())
    newer[8] = 2
    newer[60:] = crc32(newer[:60]).to_bytes(4, "little")
    segment.write_bytes(bytes(newer) + segment.read_bytes()[HEADER_SIZE:])
    before = contents(tmp_path / "log")
    with pytest.raises(UnsupportedFormatError, match="format version 2"):
        EventLog.open(tmp_path / "log")
    with EventLog.read(tmp_path / "log") as reader, pytest.raises(UnsupportedFormatError):
        list(reader.records())
    assert contents(tmp_path / "log") == before
    newer[8:10] = (1).to_bytes(2, "little")  # a flipped bit in the version fails the CRC
    segment.write_bytes(bytes(newer) + segment.read_bytes()[HEADER_SIZE:])
    with EventLog.read(tmp_path / "log") as reader, pytest.raises(DamagedError):
        list(reader.records())


def test_a_directory_with_other_things_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("x")
    with pytest.raises(UnsupportedFormatError, match=r"thesis\.txt"):
        EventLog.open(tmp_path)
    with pytest.raises(UnsupportedFormatError):
        EventLog.read(tmp_path)
    with pytest.raises(FileNotFoundError):
        EventLog.read(tmp_path / "nothing")
    with pytest.raises(OSError):
        EventLog.open(tmp_path / "thesis.txt")
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_lost_lock_content_is_no_obstacle(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "log") as log:
        log.append("event", 1)
    for content in (b"", b"\0" * 512, b"{", b"[]", b'{"epoch": -1}', b"\xff" * 512):
        (tmp_path / "log" / "LOCK").write_bytes(content)
        with EventLog.open(tmp_path / "log") as log:
            assert (log.last_lsn, log.report.damaged) == (1, ())


def test_descriptors_and_locks_are_released(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for n in range(3):
        with EventLog.open(tmp_path / "log", segment_size=300) as log:
            for _ in range(5):
                log.append("event", "x" * 100)
            with EventLog.read(tmp_path / "log") as reader:
                assert len(list(reader.records())) == 5 * (n + 1)
        log.close()
        with pytest.raises(LogError, match="closed"):
            log.append("event", 1)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
