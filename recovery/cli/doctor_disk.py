"""Checks the file system of a store: its kind, its behaviour in trials, and its speed."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from eventlog import EventLog
from eventlog.errors import UnsupportedFormatError
from eventlog.files.api import Directory
from eventlog.files.file_systems import MEMORY, Mount, judge
from eventlog.files.posix import OSFiles
from eventlog.write.log import Durability

Level = Literal["ok", "warning", "problem"]
ROUNDS = 64
PAYLOAD = "x" * 200
SLOW_S = 0.05
# Less than any device needs; a system call that does nothing takes about 1 us.
NOTHING_S = 5e-6
_LEVELS: dict[str, Level] = {"ok": "ok", "warning": "warning", "refused": "problem"}
DURABILITIES: tuple[Durability, ...] = ("power", "process", "none")


@dataclass(frozen=True, slots=True)
class Check:
    """A check and its result. ``todo``: the remedy, if there is one."""

    name: str
    level: Level
    text: str
    todo: str = ""

    @classmethod
    def of(cls, name: str, text: str, todo: str = "") -> Check:
        """A warning if there is something ``todo``."""
        return cls(name, "warning" if todo else "ok", text, todo)


def disk(place: str) -> Iterator[Check]:
    """The checks of the file system of directory ``place``, in which a log is made for them.

    The log has the name of an unfinished removal: if this process is killed, the next removal
    deletes it.
    """
    files = OSFiles()
    opened = files.open_directory(place)
    mount = files.mount(opened)
    opened.close()
    yield from by_name(mount)
    path = f"{place}/.doctor.removed-{files.random_bytes(4).hex()}"
    durability: Durability = "process" if judge(mount, "power").level == "refused" else "power"
    try:
        with EventLog.open(path, durability, files=files) as log:
            directory = files.open_directory(path)
            try:
                yield flushes(log, directory, mount)
                yield locks(directory)
                yield names(files, directory)
                yield times(directory)
            finally:
                directory.close()
    finally:
        files.delete(path)


def by_name(mount: Mount) -> Iterator[Check]:
    """The kind of the file system, its options and its device."""
    options = f", {','.join(mount.options)}" if mount.options else ""
    text = f"{mount}{options}" if mount.kind else "its kind is unknown on this system"
    yield Check("file system", "ok", text)
    for durability in DURABILITIES:
        found = judge(mount, durability)
        yield Check(durability, _LEVELS[found.level], found.what, found.todo)
    cache = write_cache(mount.source)
    if cache:
        means = "none that loses anything, as far as the device says"
        if cache == "write back":
            means = "loses its content with the power, so it is flushed at each commit"
        yield Check("write cache", "ok", f"{cache}: {means}")


def write_cache(device: str) -> str:
    """The device's cache, as the kernel knows it: "write back", "write through", or ""."""
    if not device.startswith("/dev/"):
        return ""
    try:
        number = Path(device).stat().st_rdev
        path = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()
        if (path / "partition").exists():
            path = path.parent
        return (path / "queue/write_cache").read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def flushes(log: EventLog, directory: Directory, mount: Mount) -> Check:
    """The time of a durable append, and of a plain write with a flush."""
    ours, plain = [], []
    file = directory.open("plain", write=True, create=True)
    try:
        for number in range(ROUNDS):
            began = time.perf_counter()
            log.append("doctor", {"number": number, "payload": PAYLOAD})
            log.commit()
            between = time.perf_counter()
            file.pwrite(PAYLOAD.encode(), number * len(PAYLOAD))
            file.sync()
            plain.append(time.perf_counter() - between)
            ours.append(between - began)
    finally:
        file.close()
    took, beside = _speed_text(ours), f"; a write and a flush {_speed_text(plain)}"
    text = f"a durable append takes {took}{beside}"
    if log.durability != "power":
        text = f"an append takes {took} (not flushed){beside}"
    median = statistics.median(plain)
    todo = ""
    if median < NOTHING_S and mount.kind not in MEMORY:
        text += ". No device is that fast: flushes do not reach it"
        todo = "Look at the cache settings of the virtual machine, container or mount."
    elif median > SLOW_S:
        text += ". That is slow"
        todo = "Each side effect waits for one: use another disk, or batch calls."
    return Check.of("flush", text, todo)


def _speed_text(seconds: list[float]) -> str:
    ordered = sorted(seconds)
    late = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return f"{statistics.median(seconds) * 1000:.2f} ms (99 %: {late * 1000:.2f} ms)"


def locks(directory: Directory) -> Check:
    """Whether a lock refuses another process, and is free again afterwards."""
    first = directory.open("locked", write=True, create=True)
    second = directory.open("locked", write=True)
    try:
        held = first.lock(1) and not second.lock(1)
        first.close()
        if held and second.lock(1):
            return Check("locks", "ok", "a second opening is refused, and gets the lock afterwards")
    finally:
        first.close()
        second.close()
    return Check(
        "locks",
        "problem",
        "what one process has locked another one gets as well",
        "Two processes could write to one run: use another file system.",
    )


def names(files: OSFiles, directory: Directory) -> Check:
    """Whether names are made, moved, flushed and refused as logs need it."""
    directory.sync()
    directory.open("first", write=True, create=True).close()
    directory.publish("first", "second")
    files.make_directory(f"{directory.path}/a").close()
    files.move(f"{directory.path}/a", f"{directory.path}/b")
    found = "rename, directory flush"
    path = Path(directory.path, "link")
    try:
        path.hardlink_to(Path(directory.path, "second"))
        path.unlink()
        found += ", hard links"
    except OSError:
        found += "; no hard links (renames do)"
    try:
        path.symlink_to("second")
    except OSError:
        return Check("names", "ok", found)
    try:
        directory.open("link").close()
    except UnsupportedFormatError:
        return Check("names", "ok", f"{found}, links refused")
    return Check(
        "names",
        "problem",
        f"{found}; a symbolic link is followed",
        "O_NOFOLLOW does nothing here: use another file system.",
    )


def times(directory: Directory) -> Check:
    """Whether the file system's clock agrees with that of this machine: a server has its own."""
    file = directory.open("plain", write=True)
    file.pwrite(b"now", 0)
    file.sync()
    file.close()
    apart = Path(directory.path, "plain").stat().st_mtime - time.time()
    text = f"files have times {abs(apart):.1f} s {'ahead of' if apart > 0 else 'behind'} this clock"
    # FAT counts in steps of 2 s.
    return Check.of("file times", text, "Set both clocks (NTP)." if abs(apart) > 2 else "")
