"""Implements a disk in memory that crashes and fails on command."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product

import xxhash

from eventlog.files.memory import MemoryDirectory, MemoryFile, MemoryFiles, OpenMemoryFile
from eventlog.testing.model import Write, chosen, kept, torn_once, whole


class Crash(BaseException):
    """The process died here. Not an Exception, so that the code under test cannot survive it."""


class _Inode(MemoryFile):
    """A file: its durable content, and the writes that are not durable, or may not be.

    ``ghost``: former content of its blocks, which may appear where the file grows.
    """

    def __init__(self, content: bytes = b"", ghost: bytes = b"") -> None:
        super().__init__()
        self.content = bytearray(content)
        self.durable = content
        self.writes: list[Write] = []
        self.ghost = bytearray(ghost)

    def add(self, write: Write) -> None:
        self.writes.append(write)
        if write.data is not None:
            gap = write.offset - len(self.ghost)
            self.ghost += bytes(max(0, gap))
            self.ghost[write.offset : write.offset + len(write.data)] = write.data

    def sync(self) -> None:
        for write in self.writes:
            write.durable = write.durable or not write.clean
        while self.writes and self.writes[0].durable:
            self.durable = kept(self.durable, self.writes.pop(0))

    def copy(self) -> _Inode:
        copy = _Inode(bytes(self.content), bytes(self.ghost))
        copy.durable, copy.writes = self.durable, [replace(write) for write in self.writes]
        return copy

    def forget(self) -> None:
        """A flush has failed: the pages of its writes are marked clean from now on."""
        for write in self.writes:
            write.clean = write.clean or not write.durable


class _OpenFile(OpenMemoryFile):
    def __init__(self, disk: SimulatedDisk, inode: _Inode) -> None:
        super().__init__(inode)
        self._disk, self._file = disk, inode

    def pread(self, size: int, offset: int) -> bytes:
        return self._disk.read(super().pread(size, offset))

    def pwrite(self, data: bytes, offset: int) -> int:
        def torn(size: int) -> None:
            self._file.add(Write(offset, data[:size]))
            OpenMemoryFile.pwrite(self, data[:size], offset)

        data = bytes(data[: self._disk.step("write", torn, len(data))])
        self._file.add(Write(offset, data))
        return super().pwrite(data, offset)

    def truncate(self, size: int) -> None:
        self._disk.step("truncate")
        self._file.add(Write(size, None))
        super().truncate(size)

    def sync(self) -> None:
        try:
            self._disk.step("sync")
        except OSError:
            self._file.forget()
            raise
        self._file.sync()


class _Directory(MemoryDirectory):
    def __init__(self, disk: SimulatedDisk, path: str) -> None:
        super().__init__(disk, path)
        self._disk, self._changes = disk, disk.changes[path]
        self._durable = disk.durable_names[path]

    def open(self, name: str, *, write: bool = False, create: bool = False) -> OpenMemoryFile:
        if create and name not in self.entries:
            self._disk.step("create")
            self._set(name, self._disk.inode())
        if name not in self.entries:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return _OpenFile(self._disk, _inode(self.entries[name]))

    def publish(self, temporary: str, name: str) -> None:
        self._disk.step("publish")
        super().publish(temporary, name)
        self._changes += [(name, _inode(self.entries[name])), (temporary, None)]

    def replace(self, temporary: str, name: str) -> None:
        self._disk.step("replace")
        super().replace(temporary, name)
        self._changes += [(name, _inode(self.entries[name])), (temporary, None)]

    def remove(self, name: str) -> None:
        self._disk.step("remove")
        super().remove(name)
        self._changes.append((name, None))

    def sync(self) -> None:
        self._disk.step("sync directory")
        self._changes.clear()
        self._durable.clear()
        self._durable.update(self.entries)

    def _set(self, name: str, inode: _Inode) -> None:
        self.entries[name] = inode
        self._changes.append((name, inode))


def _renamed(path: str, old: str, new: str) -> str:
    """The name of a directory when ``old``, which it is or is in, is named ``new``."""
    return new + path[len(old) :] if f"{path}/".startswith(f"{old}/") else path


def _inode(file: MemoryFile) -> _Inode:
    assert isinstance(file, _Inode)
    return file


class SimulatedDisk(MemoryFiles):
    """Files that crash and fail on command. Time and randomness come from ``seed``.

    Calls that change something are counted in ``calls``, by their verbs: "create", "write",
    "truncate", "sync", "publish", "replace", "remove", "sync directory"; of whole
    directories "rename" and "remove directory". ``reads`` counts reads.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.seed = seed
        self.calls: list[str] = []
        self.reads = 0
        # By directory: what its last sync made durable, and the changes since, name by name.
        self.durable_names: dict[str, dict[str, MemoryFile]] = {}
        self.changes: dict[str, list[tuple[str, _Inode | None]]] = {}
        # Directories renamed (path, new path) and deleted (path, "") that no sync has made durable.
        # They reach the disk in this order, as in a journal.
        self.moves: list[tuple[str, str]] = []
        self._random = random.Random(seed)
        self._clock = 1_700_000_000_000_000_000
        self._crash_at: int | None = None
        self._torn_size = 0
        self._faults: dict[tuple[str, int], OSError] = {}
        self._short: dict[int, int] = {}
        self._wrong: dict[int, int] = {}
        self._dead = False
        self._newest: _Inode | None = None

    # -- what a test says

    def crash_at(self, call: int, torn_size: int = 0) -> None:
        """Raise Crash at the ``call``-th changing call from now (from 0), before it takes effect.

        A write leaves its first ``torn_size`` bytes.
        """
        self._crash_at, self._torn_size = len(self.calls) + call, torn_size

    def fail_at(self, verb: str, nth: int, error: int) -> None:
        """Fail the ``nth`` call of ``verb`` from now (from 0) with ``errno`` ``error``.

        The verbs are those of ``calls``, and "read".
        """
        self._faults[verb, self._count(verb) + nth] = OSError(error, os.strerror(error))

    def shorten_at(self, nth: int, size: int) -> None:
        """Have the ``nth`` write from now (from 0) write ``size`` bytes only, and say so."""
        self._short[self._count("write") + nth] = size

    def misread_at(self, nth: int, bit: int) -> None:
        """Have the ``nth`` read from now (from 0) return one bit wrong; the file stays right."""
        self._wrong[self.reads + nth] = bit

    def after_process_death(self) -> SimulatedDisk:
        """The disk for the next process: every write is there, every lock is gone."""
        after = self._next()
        copies = {id(inode): inode.copy() for inode in self._inodes()}
        after.moves = list(self.moves)
        for path, entries in self.directories.items():
            after.directories[path] = {n: copies[id(inode)] for n, inode in entries.items()}
        for path, durable in self.durable_names.items():
            after.durable_names[path] = {n: copies[id(inode)] for n, inode in durable.items()}
            after.changes[path] = [(n, copies[id(i)] if i else None) for n, i in self.changes[path]]
        return after

    def after_power_loss(self, seed: int | None = None) -> SimulatedDisk:
        """One disk that a power loss at this moment may leave, chosen by ``seed``.

        Any number of writes may be torn.
        """
        choose = random.Random(self.seed if seed is None else seed)
        contents = {
            id(i): chosen(i.durable, i.writes, bytes(i.ghost), choose) for i in self._inodes()
        }
        names = {path: self._some_names(path, choose) for path in self.durable_names}
        return self._lost(self._placed(names, choose.randint(0, len(self.moves))), contents)

    def power_losses(
        self, torn: bool = True, wanted: Callable[[bytes], bool] = lambda image: True
    ) -> Iterator[SimulatedDisk]:
        """Every disk that a power loss at this moment may leave, each once.

        Any of the changes of names and any of the writes that no sync made durable, with ``torn``
        at most one write torn. The number grows with two to the power of these: for short
        histories. Disks whose ``image`` is not ``wanted`` are not made at all.
        """
        inodes = self._inodes()
        names = [
            self._placed(dict(zip(self.durable_names, choice, strict=True)), moved)
            for choice in product(*(self._names(path) for path in self.durable_names))
            for moved in range(len(self.moves) + 1)
        ]
        seen: set[bytes] = set()
        for contents in _contents(inodes, torn):
            held = {id(inode): pair for inode, pair in zip(inodes, contents, strict=True)}
            for choice in names:
                image = _image(choice, lambda file: held[id(file)][1])  # noqa: B023 - called here
                if image not in seen and wanted(image):
                    seen.add(image)
                    yield self._lost(choice, {key: pair[0] for key, pair in held.items()})

    def image(self) -> bytes:
        """A digest of all names and contents: equal for equal disks."""
        return _image(self.directories, lambda file: _digest(bytes(file.content)))

    # -- what the engine does

    def step(self, verb: str, torn: Callable[[int], None] | None = None, size: int = 0) -> int:
        """Count a changing call; crash or fail if it is due. Returns how much of a write to do."""
        if self._dead:
            raise Crash
        number, nth = len(self.calls), self._count(verb)
        self.calls.append(verb)
        if number == self._crash_at:
            self._dead = True
            if torn is not None:
                torn(min(self._torn_size, size))
            raise Crash
        self._fail(verb, nth)
        return min(size, self._short.pop(nth, size)) if verb == "write" else size

    def read(self, data: bytes) -> bytes:
        """Count a read; if it is due, fail it, or have it return wrong bytes."""
        nth, self.reads = self.reads, self.reads + 1
        self._fail("read", nth)
        bit = self._wrong.pop(nth, None)
        if bit is None or not data:
            return data
        wrong = bytearray(data)
        wrong[bit // 8 % len(data)] ^= 1 << bit % 8
        return bytes(wrong)

    def inode(self) -> _Inode:
        """A new file, in blocks that the file deleted last may have had."""
        self._newest = _Inode(ghost=bytes(self._newest.ghost) if self._newest else b"")
        return self._newest

    def make_directory(self, path: str) -> MemoryDirectory:
        if path not in self.directories:
            self._settle()  # a sync makes the name durable, and all names beside it
        for names in (self.directories, self.durable_names):
            names.setdefault(path, {})
        self.changes.setdefault(path, [])
        return _Directory(self, path)

    def open_directory(self, path: str) -> MemoryDirectory:
        super().open_directory(path)
        return _Directory(self, path)

    def move(self, path: str, new: str) -> None:
        self.step("rename")
        super().move(path, new)
        for one in list(self.durable_names):
            there = _renamed(one, path, new)
            self.durable_names[there] = self.durable_names.pop(one)
            self.changes[there] = self.changes.pop(one)
        self.moves.append((path, new))
        self.step("sync directory")
        self._settle()

    def delete(self, path: str) -> None:
        for one in self._within(path):
            for name in sorted(self.directories[one]):
                self.step("remove")
                del self.directories[one][name]
                self.changes[one].append((name, None))
            self.step("remove directory")
            del self.directories[one]
            self.moves.append((one, ""))

    def time_ns(self) -> int:
        self._clock += 1_000_000
        return self._clock

    def random_bytes(self, size: int) -> bytes:
        return self._random.randbytes(size)

    def process(self) -> tuple[int, str]:
        return 1, "simulated"

    # -- how it is done

    def _count(self, verb: str) -> int:
        return self.reads if verb == "read" else self.calls.count(verb)

    def _fail(self, verb: str, nth: int) -> None:
        fault = self._faults.pop((verb, nth), None)
        if fault is not None:
            raise fault

    def _inodes(self) -> list[_Inode]:
        """All files that have a name, may have had one, or may still have it after a power loss."""
        found: dict[int, _Inode] = {}
        for path in self.durable_names:
            present = self.directories.get(path, {})
            named = [*present.values(), *self.durable_names[path].values()]
            for file in [*named, *(inode for _, inode in self.changes[path] if inode)]:
                found.setdefault(id(file), _inode(file))
        return list(found.values())

    def _names(self, path: str) -> list[dict[str, MemoryFile]]:
        """What the directory may list: any of the changes since its last sync, in their order."""
        found = [dict(self.durable_names[path])]
        for name, inode in self.changes[path]:
            for before in list(found):
                names = {n: file for n, file in before.items() if n != name}
                if inode is not None:
                    names[name] = inode
                if names not in found:
                    found.append(names)
        return found

    def _some_names(self, path: str, choose: random.Random) -> dict[str, MemoryFile]:
        """One of ``_names``; there are twice as many for each change."""
        arrives = choose.choice((0.0, 0.5, 0.5, 1.0))
        names = dict(self.durable_names[path])
        for name, inode in self.changes[path]:
            if choose.random() < arrives:
                names.pop(name, None)
                if inode is not None:
                    names[name] = inode
        return names

    def _settle(self) -> None:
        """Make names of directories durable, and drop the deleted ones for good."""
        for path in self._deleted(len(self.moves)):
            if path not in self.directories:
                del self.durable_names[path], self.changes[path]
        self.moves.clear()

    def _deleted(self, count: int) -> set[str]:
        """The directories deleted by the first so many of ``moves``, by the names that they have in
        ``durable_names``: one around them may have been renamed since."""
        found: set[str] = set()
        for number, (path, new) in enumerate(self.moves):
            if new:
                found = {_renamed(one, path, new) for one in found}
            elif number < count:
                found.add(path)
        return found

    def _placed(
        self, names: dict[str, dict[str, MemoryFile]], moved: int
    ) -> dict[str, dict[str, MemoryFile]]:
        """The same when only the first so many of ``moves`` have reached the disk."""
        deleted = self._deleted(moved)
        placed = {path: n for path, n in names.items() if path not in deleted}
        for old, new in reversed(self.moves[moved:]):
            if new:
                placed = {_renamed(path, new, old): n for path, n in placed.items()}
        return placed

    def _lost(
        self, names: dict[str, dict[str, MemoryFile]], contents: dict[int, bytes]
    ) -> SimulatedDisk:
        after = self._next()
        copies: dict[int, _Inode] = {}
        for path, entries in names.items():
            for file in entries.values():
                if id(file) not in copies:
                    copies[id(file)] = _Inode(contents[id(file)], bytes(_inode(file).ghost))
            after.directories[path] = {n: copies[id(file)] for n, file in entries.items()}
            after.durable_names[path] = dict(after.directories[path])
            after.changes[path] = []
        return after

    def _next(self) -> SimulatedDisk:
        after = SimulatedDisk(self.seed + 1)
        after._clock = self._clock
        return after


Held = tuple[bytes, bytes]  # a content and its digest


def _contents(inodes: Sequence[_Inode], torn: bool) -> Iterator[tuple[Held, ...]]:
    """Contents of all these files: all combinations of whole writes, then with one write torn."""
    intact = [[_held(c) for c in sorted(whole(i.durable, i.writes))] for i in inodes]
    yield from product(*intact)
    for i, inode in enumerate(inodes if torn else ()):
        seen = {digest for _, digest in intact[i]}
        for content in torn_once(inode.durable, inode.writes, bytes(inode.ghost)):
            held = _held(content)
            if held[1] not in seen:
                seen.add(held[1])
                yield from product(*intact[:i], [held], *intact[i + 1 :])


def _held(content: bytes) -> Held:
    return content, _digest(content)


def _digest(content: bytes) -> bytes:
    return xxhash.xxh3_128_digest(content)


def _image(
    directories: dict[str, dict[str, MemoryFile]], digest_of: Callable[[MemoryFile], bytes]
) -> bytes:
    """A digest of directories, names and digests of contents, in any order."""
    lines = [f"{path}/\0".encode() for path in directories]
    lines += [
        f"{path}/{name}\0".encode() + digest_of(file)
        for path, entries in directories.items()
        for name, file in entries.items()
    ]
    return _digest(b"".join(sorted(lines)))
