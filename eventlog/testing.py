"""A simulated disk: forgets what was not flushed, tears writes, fails when told to.

    disk = SimulatedDisk(seed=7)
    log = EventLog.open("log", files=disk)
    ...
    disk.crash_at(13)          # the 13th call from now raises Crash, its write torn
    ...
    after = disk.after_power_loss()   # a new disk as the power loss may have left it

What the model keeps: everything synced; of writes not synced, any subset, any of them cut to a
prefix or with some of their 512-byte sectors missing; sizes grown or not, with zeros or old bytes
in what no write filled; names not made durable by a directory sync may be missing. A sync that
fails drops what it was to write for good: the process still reads it, later syncs report success.
``after_process_death`` keeps all writes.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable

from eventlog._memory import MemoryDirectory, MemoryFile, MemoryFiles, OpenMemoryFile

SECTOR = 512


class Crash(BaseException):
    """The process died here. Not an Exception, so that nothing under test survives it."""


class _Inode(MemoryFile):
    """A file whose durable state is known: ``durable`` bytes, and writes that may be lost."""

    def __init__(self) -> None:
        super().__init__()
        self.durable = b""
        # (offset, data) of a write, or (size, None) of a truncation, since the last sync
        self.pending: list[tuple[int, bytes | None]] = []

    def sync(self) -> None:
        # Not simply the content: a failed sync may have dropped a part of that.
        durable = bytearray(self.durable)
        for offset, data in self.pending:
            _put(durable, offset, data, b"")
        self.durable, self.pending = bytes(durable), []

    def after_power_loss(self, choose: random.Random) -> bytes:
        """One content that the disk may hold."""
        content = bytearray(self.durable)
        stale = bytes(self.content) if choose.random() < 0.3 else b""
        stale = stale[choose.choice((0, 8, 64, SECTOR)) :]
        for offset, data in self.pending:
            fate = choose.random()
            if data is None:
                if fate < 0.5:
                    _put(content, offset, None, stale)
                continue
            if fate < 0.3:
                continue
            kept = _torn(data, choose) if fate < 0.7 else [(0, data)]
            grown = offset + len(data) if choose.random() < 0.3 else 0
            for at, part in kept:
                _put(content, offset + at, part, stale)
            if grown > len(content):
                _put(content, grown, b"", stale)
        return bytes(content)


def _put(content: bytearray, offset: int, data: bytes | None, stale: bytes) -> None:
    """A write, or a truncation; what it grows over without filling holds ``stale`` bytes."""
    if data is None:
        del content[offset:]
    gap = offset - len(content)
    if gap > 0:
        content.extend(stale[len(content) :][:gap].ljust(gap, b"\0"))
    if data is not None:
        content[offset : offset + len(data)] = data


def _torn(data: bytes, choose: random.Random) -> list[tuple[int, bytes]]:
    if len(data) <= SECTOR or choose.random() < 0.5:
        return [(0, data[: choose.randrange(len(data) + 1)])]
    sectors = [(at, data[at : at + SECTOR]) for at in range(0, len(data), SECTOR)]
    return [sector for sector in sectors if choose.random() < 0.5]


class _OpenFile(OpenMemoryFile):
    def __init__(self, disk: SimulatedDisk, inode: _Inode) -> None:
        super().__init__(inode)
        self._disk, self._file = disk, inode

    def pwrite(self, data: bytes, offset: int) -> int:
        def torn(size: int) -> None:
            self._file.pending.append((offset, data[:size]))
            OpenMemoryFile.pwrite(self, data[:size], offset)

        data = data[: self._disk.step("write", torn, len(data))]
        self._file.pending.append((offset, data))
        return super().pwrite(data, offset)

    def truncate(self, size: int) -> None:
        self._disk.step("truncate")
        self._file.pending.append((size, None))
        super().truncate(size)

    def sync(self) -> None:
        try:
            self._disk.step("sync")
        except OSError:
            self._file.pending = []
            raise
        self._file.sync()


class _Directory(MemoryDirectory):
    def __init__(self, disk: SimulatedDisk, path: str) -> None:
        super().__init__(path, disk.directories[path])
        self._disk = disk

    def open(self, name: str, *, write: bool = False, create: bool = False) -> OpenMemoryFile:
        if create and name not in self.entries:
            self._disk.step("create")
            self.entries[name] = _Inode()
        if name not in self.entries:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        inode = self.entries[name]
        assert isinstance(inode, _Inode)
        return _OpenFile(self._disk, inode)

    def publish(self, temporary: str, name: str) -> None:
        self._disk.step("publish")
        super().publish(temporary, name)

    def remove(self, name: str) -> None:
        self._disk.step("remove")
        super().remove(name)

    def sync(self) -> None:
        self._disk.step("sync directory")
        self._disk.durable_names[self.path] = dict(self.entries)


class SimulatedDisk(MemoryFiles):
    """Files that crash and fail on command. Time and randomness come from ``seed``."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.seed = seed
        self.calls: list[str] = []
        self.durable_names: dict[str, dict[str, MemoryFile]] = {}
        self._random = random.Random(seed)
        self._clock = 1_700_000_000_000_000_000
        self._crash_at: int | None = None
        self._torn_size = 0
        self._faults: dict[tuple[str, int], OSError] = {}
        self._short: dict[int, int] = {}
        self._dead = False

    # -- what a test says

    def crash_at(self, call: int, torn_size: int = 0) -> None:
        """Raise Crash at the ``call``-th changing call from now (from 0), before it takes effect.

        A write leaves its first ``torn_size`` bytes.
        """
        self._crash_at, self._torn_size = len(self.calls) + call, torn_size

    def fail_at(self, verb: str, nth: int, error: int) -> None:
        """Fail the ``nth`` call of ``verb`` from now (from 0) with ``errno`` ``error``."""
        self._faults[verb, self.calls.count(verb) + nth] = OSError(error, os.strerror(error))

    def shorten_at(self, nth: int, size: int) -> None:
        """Have the ``nth`` write from now (from 0) write ``size`` bytes only, and say so."""
        self._short[self.calls.count("write") + nth] = size

    def after_process_death(self) -> SimulatedDisk:
        """The disk for the next process: every write is there, every lock is gone."""
        return self._copy(lambda inode: (bytes(inode.content), inode), self.directories)

    def after_power_loss(self, seed: int | None = None) -> SimulatedDisk:
        """One disk that a power loss at this moment may leave, chosen by ``seed``."""
        choose = random.Random(self.seed if seed is None else seed)
        directories = {}
        for path, entries in self.directories.items():
            durable = self.durable_names.get(path, {})
            names = dict(durable)
            for name in sorted(set(entries) | set(durable)):
                if entries.get(name) is not durable.get(name) and choose.random() < 0.5:
                    names.pop(name, None)
                    if name in entries:
                        names[name] = entries[name]
            directories[path] = names

        def content(inode: _Inode) -> tuple[bytes, None]:
            return inode.after_power_loss(choose), None

        return self._copy(content, directories)

    # -- what the engine does

    def step(self, verb: str, torn: Callable[[int], None] | None = None, size: int = 0) -> int:
        """Count a changing call; crash or fail if this is the one. How much of a write to do."""
        if self._dead:
            raise Crash
        number, nth = len(self.calls), self.calls.count(verb)
        fault = self._faults.pop((verb, nth), None)
        self.calls.append(verb)
        if number == self._crash_at:
            self._dead = True
            if torn is not None:
                torn(min(self._torn_size, size))
            raise Crash
        if fault is not None:
            raise fault
        return min(size, self._short.pop(nth, size)) if verb == "write" else size

    def make_directory(self, path: str) -> MemoryDirectory:
        self.directories.setdefault(path, {})
        self.durable_names.setdefault(path, {})
        return _Directory(self, path)

    def open_directory(self, path: str) -> MemoryDirectory:
        super().open_directory(path)
        return _Directory(self, path)

    def time_ns(self) -> int:
        self._clock += 1_000_000
        return self._clock

    def random_bytes(self, size: int) -> bytes:
        return self._random.randbytes(size)

    def process(self) -> tuple[int, str]:
        return 1, "simulated"

    def _copy(
        self,
        content: Callable[[_Inode], tuple[bytes, _Inode | None]],
        directories: dict[str, dict[str, MemoryFile]],
    ) -> SimulatedDisk:
        after = SimulatedDisk(self.seed + 1)
        after._clock = self._clock
        copies: dict[int, _Inode] = {}
        for path, entries in directories.items():
            after.directories[path] = {}
            for name, inode in entries.items():
                assert isinstance(inode, _Inode)
                if id(inode) not in copies:
                    data, before = content(inode)
                    copy = copies[id(inode)] = _Inode()
                    copy.content = bytearray(data)
                    # After a process death the unsynced writes are still unsynced.
                    copy.durable = before.durable if before else data
                    copy.pending = list(before.pending) if before else []
                after.directories[path][name] = copies[id(inode)]
            # What is found after a power loss is on the disk; after a process death it may not be.
            durable = entries if directories is not self.directories else self.durable_names[path]
            after.durable_names[path] = {
                name: after.directories[path][name]
                for name in entries
                if name in durable and durable[name] is entries[name]
            }
        return after
