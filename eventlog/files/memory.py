"""Implements the file protocols in memory, for logs that may end with the process."""

from __future__ import annotations

import contextlib
import errno
import os
import time

from eventlog.files.file_systems import Mount


class MemoryFile:
    """The bytes of one file and its locks; shared by all openings of the file."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.locks: dict[int, object] = {}


class OpenMemoryFile:
    """One opening of a file in memory."""

    def __init__(self, inode: MemoryFile) -> None:
        self._inode = inode
        self._slots: set[int] = set()  # that this opening has locked

    def pread(self, size: int, offset: int) -> bytes:
        return bytes(self._inode.content[offset : offset + size])

    def pwrite(self, data: bytes, offset: int) -> int:
        content = self._inode.content
        if len(content) < offset:
            content.extend(bytes(offset - len(content)))
        content[offset : offset + len(data)] = data
        return len(data)

    def size(self) -> int:
        return len(self._inode.content)

    def truncate(self, size: int) -> None:
        content = self._inode.content
        del content[size:]
        content.extend(bytes(size - len(content)))

    def sync(self) -> None:
        pass

    def lock(self, slot: int) -> bool:
        is_ours = self._inode.locks.setdefault(slot, self) is self
        if is_ours:
            self._slots.add(slot)
        return is_ours

    def unlock(self, slot: int) -> None:
        with contextlib.suppress(KeyError):  # not locked by this opening
            self._slots.remove(slot)
            del self._inode.locks[slot]

    def held(self, slots: int, first: int = 0) -> bool:
        locks = list(self._inode.locks.items())
        return any(first <= slot < slots and holder is not self for slot, holder in locks)

    def identity(self) -> object:
        return self._inode

    def close(self) -> None:
        with contextlib.suppress(KeyError):  # two threads may close it: each slot is popped once
            while True:
                del self._inode.locks[self._slots.pop()]


class MemoryDirectory:
    """A directory in memory."""

    def __init__(self, files: MemoryFiles, path: str) -> None:
        entries = files.directories.get(path)
        if entries is None:
            raise _missing(path)
        self.path, self.entries, self._files = path, entries, files

    def is_linked(self) -> bool:
        return self._files.directories.get(self.path) is self.entries

    def names(self) -> list[str]:
        return list(self.entries)

    def open(self, name: str, *, write: bool = False, create: bool = False) -> OpenMemoryFile:
        found = self.entries.get(name)
        if found is None:
            if not create:
                raise _missing(name)
            found = self.entries.setdefault(name, MemoryFile())
        return OpenMemoryFile(found)

    def publish(self, temporary: str, name: str) -> None:
        file = self.entries.get(temporary)
        if file is None:
            raise _missing(temporary)
        if self.entries.setdefault(name, file) is not file:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        del self.entries[temporary]

    def replace(self, temporary: str, name: str) -> None:
        self.entries[name] = self.entries.pop(temporary)

    def remove(self, name: str) -> None:
        if self.entries.pop(name, None) is None:
            raise _missing(name)

    def sync(self) -> None:
        pass

    def identity(self, name: str) -> object:
        return self.entries.get(name)

    def close(self) -> None:
        pass


class MemoryFiles:
    """A file system in memory. Not for several processes; not shared with a forked child.

    Thread-safe, because each change and each read is one operation on a dict.
    """

    def __init__(self) -> None:
        self.directories: dict[str, dict[str, MemoryFile]] = {}

    def make_directory(self, path: str) -> MemoryDirectory:
        self.directories.setdefault(path, {})
        return MemoryDirectory(self, path)

    def open_directory(self, path: str) -> MemoryDirectory:
        return MemoryDirectory(self, path)

    def list_directories(self, path: str) -> list[str]:
        inside = "" if path == "." else path.rstrip("/") + "/"
        return sorted(
            p[len(inside) :]
            for p in list(self.directories)
            if p.startswith(inside) and "/" not in p[len(inside) :]
        )

    def move(self, path: str, new: str) -> None:
        if path not in self.directories:
            raise _missing(path)
        if new in self.directories:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), new)
        for one in self._within(path):
            self.directories[new + one[len(path) :]] = self.directories.pop(one)

    def delete(self, path: str) -> None:
        for one in self._within(path):
            self.directories.pop(one, {}).clear()

    def delete_empty(self, path: str) -> None:
        if self._within(path) == [path] and not self.directories[path]:
            self.delete(path)

    def _within(self, path: str) -> list[str]:
        """The directory and those in it, the innermost first."""
        paths = list(self.directories)
        return sorted((p for p in paths if f"{p}/".startswith(f"{path}/")), reverse=True)

    def mount(self, directory: object) -> Mount:
        return Mount("memory")

    def time_ns(self) -> int:
        return time.time_ns()

    def random_bytes(self, size: int) -> bytes:
        return os.urandom(size)

    def process(self) -> tuple[int, str]:
        return os.getpid(), "memory"


def _missing(name: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
