"""Defines the protocols for files, locks, clock and randomness that a log needs."""

from __future__ import annotations

from typing import Protocol

from eventlog.files.file_systems import Mount


class File(Protocol):
    """One open file. Closing it drops its locks."""

    def pread(self, size: int, offset: int) -> bytes:
        """Up to ``size`` bytes; fewer at the end of the file."""

    def pwrite(self, data: bytes, offset: int) -> int:
        """Returns the number of bytes written, perhaps fewer. Not durable until ``sync``."""

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Make data and size durable, but not the name (see Directory.sync)."""

    def lock(self, slot: int) -> bool:
        """Try to hold ``slot`` for this open file alone; False when another has it."""

    def unlock(self, slot: int) -> None:
        """Hold ``slot`` no more."""

    def held(self, slots: int, first: int = 0) -> bool:
        """Whether another open file holds any of the slots from ``first`` to below ``slots``.

        False on platforms where only an attempt to lock would tell.
        """

    def identity(self) -> object:
        """Equal for two openings of the same file, also under different names."""

    def close(self) -> None: ...


class Directory(Protocol):
    """The directory of one log. Names are plain names in it; links are never followed."""

    path: str

    def is_linked(self) -> bool:
        """Whether its path still leads to it; it may have been renamed, removed or replaced."""

    def names(self) -> list[str]: ...

    def open(self, name: str, *, write: bool = False, create: bool = False) -> File:
        """Raises FileNotFoundError; LogError when it is not a regular file."""

    def publish(self, temporary: str, name: str) -> None:
        """Give a file its name, atomically; raises FileExistsError when the name is taken."""

    def replace(self, temporary: str, name: str) -> None:
        """Give a file the name of another one, atomically: after a power loss the name leads to
        one of the two files."""

    def remove(self, name: str) -> None: ...

    def sync(self) -> None:
        """Make names durable."""

    def identity(self, name: str) -> object:
        """As File.identity, by name; None when there is no such file."""

    def close(self) -> None: ...


class Files(Protocol):
    """Where logs live."""

    def make_directory(self, path: str) -> Directory:
        """Open the directory; if it is missing, make it durably, for its owner alone."""

    def open_directory(self, path: str) -> Directory: ...

    def list_directories(self, path: str) -> list[str]:
        """Names of the directories in ``path``; none when ``path`` does not exist."""

    def move(self, path: str, new: str) -> None:
        """Rename a directory within its parent, durably. Raises FileNotFoundError; OSError when
        the new name is taken."""

    def delete(self, path: str) -> None:
        """Delete a directory and everything in it. Deletes links, not their targets.

        Missing files are no error. Not durable: after a crash any part of it may remain.
        """

    def delete_empty(self, path: str) -> None:
        """Delete a directory if nothing is in it. Else, and if it is missing, nothing happens."""

    def mount(self, directory: Directory) -> Mount:
        """The file system that the directory is on; its kind is "" when unknown."""

    def time_ns(self) -> int: ...

    def random_bytes(self, size: int) -> bytes: ...

    def process(self) -> tuple[int, str]:
        """This process' id and host, for the lock file."""


def write_all(file: File, data: bytes, offset: int, need: int | None = None) -> int:
    """Write ``data``, and at least its first ``need`` bytes; returns the number written.

    Continues after a short write, which shows the error that caused it (ENOSPC, EFBIG).
    """
    need = len(data) if need is None else need
    written = file.pwrite(data, offset)
    while written < need:
        more = file.pwrite(data[written:need], offset + written)
        if more <= 0:
            raise OSError(f"a write of {need - written} bytes wrote none")
        written += more
    return written
