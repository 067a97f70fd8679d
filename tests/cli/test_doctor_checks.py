"""``recovery doctor``: each thing that it looks at, as it should be and as it should not."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest

from eventlog import EventLog
from eventlog.files.file_systems import Mount
from eventlog.files.memory import MemoryFiles
from eventlog.files.posix import OSDirectory, OSFile, OSFiles
from eventlog.remove_log import removed_from
from recovery import CheckpointStore, RecoverableAgent
from recovery.cli import doctor_checks, doctor_disk
from recovery.cli.doctor_checks import (
    Seen,
    clock,
    directory,
    examine,
    limits,
    look,
    of_runs,
    space,
    versions,
)
from recovery.cli.doctor_disk import Check, flushes, write_cache
from recovery.control.send import signal
from recovery.stores.file import FileStore

GB = 1 << 30


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    (tmp_path / "home").mkdir(mode=0o700)
    return FileStore(tmp_path / "home")


def found(store: FileStore) -> dict[str, Check]:
    return {check.name: check for check in examine(store, str, str)}


def only(checks: Iterator[Check]) -> Check:
    (check,) = checks
    return check


def test_all_is_looked_at_and_nothing_is_left(store: FileStore) -> None:
    checks = found(store)
    assert list(checks) == [
        name
        for name in (
            "system",
            "packages",
            "store",
            "space",
            "file system",
            "power",
            "process",
            "none",
            "write cache",
            "flush",
            "locks",
            "names",
            "file times",
            "runs",
            "descriptors",
            "clock",
        )
        if name != "write cache" or name in checks
    ]
    for name in ("system", "packages", "store", "flush", "locks", "names", "clock", "runs"):
        assert checks[name].level == "ok", checks[name]
    assert list(Path(store.root).iterdir()) == []


def test_its_own_log_is_known_for_what_is_left_and_not_swept_while_it_is_at_work(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    locks = doctor_disk.locks

    def watched(directory: Any) -> Check:
        seen.extend(name.name for name in Path(store.root).iterdir())
        assert store.sweep() == 0
        return locks(directory)

    monkeypatch.setattr(doctor_disk, "locks", watched)
    assert found(store)["locks"].level == "ok"
    (name,) = seen
    assert removed_from(name) == "doctor"
    Path(store.root, name).mkdir()  # what a kill leaves
    Path(store.root, name, "1").touch()
    assert store.sweep() == 1


@pytest.mark.parametrize("what", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_whatever_ends_it_leaves_nothing(
    what: Any, store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise what

    monkeypatch.setattr(doctor_disk, "flushes", fails)
    if what is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            found(store)
    else:
        check = found(store)["disk"]
        assert check.level == "problem" and "No space left" in check.text
    assert list(Path(store.root).iterdir()) == []


def test_a_store_that_is_not_made_yet_is_not_made(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "a" / "b")
    checks = found(store)
    assert checks["store"].level == "ok" and "not made yet" in checks["store"].text
    assert checks["locks"].level == "ok" and checks["runs"].text == "none"
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_leads_nowhere_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    checks = found(FileStore(tmp_path / "nowhere"))
    assert checks["store"].level == "problem" and "no directory" in checks["store"].text
    assert "runs" not in checks


def test_a_store_that_others_can_write_to_is_warned_about(store: FileStore) -> None:
    Path(store.root).chmod(0o777)
    check = only(directory(store))
    assert check.level == "warning" and "0777" in check.text and "chmod 700" in check.todo


def test_a_store_that_cannot_be_written_to_is_a_problem(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert only(directory(store)).level == "problem"
    assert "locks" not in found(store)


@pytest.mark.parametrize(
    ("free", "inodes", "level"),
    [
        (9 * GB, 10**6, "ok"),
        (GB - 1, 10**6, "warning"),
        (9 * GB, 9_999, "warning"),
        ((32 << 20) - 1, 10**6, "problem"),
        (9 * GB, 99, "problem"),
        (9 * GB, None, "ok"),
    ],
)
def test_space(
    free: int, inodes: int | None, level: str, store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = SimpleNamespace(f_bavail=free, f_frsize=1, f_favail=inodes or 0, f_files=inodes or 0)
    monkeypatch.setattr(os, "statvfs", lambda _: answer)
    check = only(space(store, str, str))
    assert (check.level, "inodes" in check.text) == (level, inodes is not None)
    assert bool(check.todo) is (level != "ok")


def test_slow_msgpack_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [check.level for check in versions()] == ["ok", "ok"]
    packer = type("Packer", (), {"__module__": "msgpack.fallback"})
    monkeypatch.setattr(msgpack, "Packer", packer)
    _, packages = versions()
    assert packages.level == "warning" and "pure Python" in packages.text


@pytest.mark.parametrize(
    ("soft", "unended", "level"),
    [
        (1024, 0, "ok"),
        (1024, 165, "ok"),
        (1024, 166, "warning"),
        (100, 0, "warning"),
        (-1, 9, "ok"),
    ],
)
def test_descriptors(soft: int, unended: int, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, 4096))
    assert only(limits(unended)).level == level


def test_a_run_takes_no_more_descriptors_than_is_said(store: FileStore) -> None:
    where = Path("/proc/self/fd")
    if not where.exists():
        pytest.skip("this system does not show a process its descriptors")
    before = len(list(where.iterdir()))
    taken: list[int] = []

    def agent(run: Any) -> None:
        for _ in run.steps():
            signal(CheckpointStore(store), "run", "x", 1)
            run.wait_for("x")
            taken.append(len(list(where.iterdir())) - before)
            return

    RecoverableAgent(agent, CheckpointStore(store)).run_with_recovery_sync("task", "run")
    assert 4 <= taken[0] <= doctor_checks.DESCRIPTORS


@pytest.mark.parametrize(
    ("now", "newest", "level"),
    [(2e9, 0.0, "ok"), (2e9, 2e9 + 59, "ok"), (2e9, 2e9 + 61, "warning"), (1e9, 0.0, "problem")],
)
def test_clock(now: float, newest: float, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: now)
    assert only(clock(newest)).level == level


def test_runs_in_trouble_and_what_was_left_are_named(store: FileStore) -> None:
    seen = Seen(Counter({"finished": 3, "damaged": 1, "in doubt": 2, "interrupted": 4}), 5.0, 3, 4)
    assert seen.unended == 7
    (Path(store.root) / ".gone.removed-0123abcd").mkdir()
    (Path(store.root) / "run.~1~").mkdir()
    (Path(store.root) / "run.~1~.part").mkdir()
    checks = list(of_runs(store, seen, str))
    assert [(check.name, check.level) for check in checks] == [
        ("runs", "ok"),
        ("runs", "problem"),
        ("runs", "warning"),
        ("runs", "warning"),
        ("removals", "warning"),
        ("backups", "ok"),
    ]
    assert checks[0].text == "10: 1 damaged, 3 finished, 2 in doubt, 4 interrupted"
    assert "of run gone" in checks[4].text and checks[5].text.startswith("1 ")
    assert all(check.todo for check in checks[1:])


# -- the disk


def test_locks_that_do_not_hold_are_a_problem(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OSFile, "lock", lambda file, slot: True)
    assert found(store)["locks"].level == "problem"


def test_a_link_that_is_followed_is_a_problem(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = OSDirectory.open

    def followed(directory: OSDirectory, name: str, **options: Any) -> OSFile:
        return opened(directory, "second" if name == "link" else name, **options)

    monkeypatch.setattr(OSDirectory, "open", followed)
    assert found(store)["names"].level == "problem"


def test_hard_links_may_be_missing(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    check = found(store)["names"]
    assert check.level == "ok" and "no hard links" in check.text


@pytest.mark.parametrize(
    ("kind", "level"), [("nfs4", "problem"), ("tmpfs", "warning"), ("ext4", "ok"), ("", "ok")]
)
def test_what_the_file_system_gives_is_said(
    kind: str, level: str, store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OSFiles, "mount", lambda *_: Mount(kind))
    checks = found(store)
    assert checks["power"].level == level and (kind or "not known") in str(checks["power"])
    assert ("not flushed" in checks["flush"].text) is (kind == "nfs4")
    assert checks["locks"].level == "ok"


def measured(mount: Mount) -> Check:
    files = MemoryFiles()
    with EventLog.open("log", files=files) as log:
        return flushes(log, files.open_directory("log"), mount)


def test_flushes_that_do_nothing_are_warned_about() -> None:
    check = measured(Mount("ext4"))
    assert check.level == "warning" and "do not reach it" in check.text
    assert measured(Mount("tmpfs")).level == "ok", "it said so already"


def test_slow_flushes_are_warned_about(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(10**6))
    monkeypatch.setattr("time.perf_counter", lambda: next(ticks) / 10)
    check = measured(Mount("ext4"))
    assert check.level == "warning" and "slow" in check.text
    assert check.text.startswith("a durable append takes 100.00 ms (99 %: 100.00 ms); a write")


def test_times_of_another_clock_are_warned_about(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time
    monkeypatch.setattr("time.time", lambda: real() - 3600)
    check = found(store)["file times"]
    assert check.level == "warning" and "3600" in check.text and "ahead of" in check.text


@pytest.mark.parametrize("device", ["", "tmpfs", "/dev/null", "/dev/no-such-device", "server:/x"])
def test_a_cache_that_cannot_be_known_is_not_guessed(device: str) -> None:
    assert write_cache(device) == ""


def test_the_cache_of_a_real_device_is_read() -> None:
    files = OSFiles()
    source = files.mount(files.open_directory("/")).source
    known = [path.read_text().strip() for path in Path("/sys/block").glob("*/queue/write_cache")]
    assert write_cache(source) in ["", *known]


def test_a_run_that_others_can_change_is_warned_about(store: FileStore) -> None:
    for run_id in ("mine", "theirs"):
        EventLog.open(Path(store.root, run_id)).close()
    Path(store.root, "theirs").chmod(0o777)
    (check,) = [one for one in of_runs(store, look(store), str) if "changed by others" in one.text]
    assert check.level == "warning" and "1 run can be changed by others: theirs" in check.text
