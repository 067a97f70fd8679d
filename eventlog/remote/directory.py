"""Shows a log on a server as the files that it would be, so that every reader of files reads it."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from typing import NoReturn

from eventlog.errors import UnsupportedFormatError
from eventlog.files.lock import LOCK_NAME
from eventlog.format.durable_mark import DurableMark, encode_mark
from eventlog.format.frame import HEADER_SIZE
from eventlog.format.names import MARK_NAME, segment_name, segment_number
from eventlog.remote.log_server import Head, Loaded, LogServer, Piece
from eventlog.remote.log_url import url_of


class RemoteFile:
    """One file of a log on a server, for reading."""

    def __init__(self, data: bytes | bytearray, held: bool = False) -> None:
        self._data, self._held = data, held

    def pread(self, size: int, offset: int) -> bytes:
        return bytes(self._data[offset : offset + size])

    def size(self) -> int:
        return len(self._data)

    def held(self, slots: int, first: int = 0) -> bool:
        return self._held

    def close(self) -> None:
        pass

    def pwrite(self, data: bytes, offset: int) -> NoReturn:
        raise _read_only()

    def truncate(self, size: int) -> NoReturn:
        raise _read_only()

    def sync(self) -> NoReturn:
        raise _read_only()

    def lock(self, slot: int) -> NoReturn:
        raise _read_only()

    def unlock(self, slot: int) -> NoReturn:
        raise _read_only()

    def identity(self) -> object:
        return id(self._data)


class PartialFile(RemoteFile):
    """A segment of which only the header is here; the rest is loaded when it is read."""

    def __init__(self, directory: RemoteDirectory, number: int, header: bytes) -> None:
        super().__init__(header)
        self._directory, self._number = directory, number

    def pread(self, size: int, offset: int) -> bytes:
        if offset + size > HEADER_SIZE:
            self._data = self._directory.whole(self._number)
        return super().pread(size, offset)

    def size(self) -> int:
        self._data = self._directory.whole(self._number)
        return super().size()


class RemoteDirectory:
    """The files of a log on a server: its segments, MARK and LOCK, as of the newest load.

    Its writer adds what it has appended. Thread-safe.
    """

    def __init__(self, log_server: LogServer, loaded: Loaded) -> None:
        self.path = url_of(log_server.address, loaded.head.name)
        self._log_server, self._lock = log_server, threading.Lock()
        self.head: Head = loaded.head
        self._segments: dict[int, bytearray] = {}
        self._partial: set[int] = set()
        self.is_fresh = True  # whether no reader has read it since it was loaded
        self.apply(loaded)

    # -- what its writer and its watcher change

    def apply(self, loaded: Loaded) -> bool:
        """Add what was loaded; whether anything is new."""
        with self._lock:
            changed = (loaded.head.next_lsn, loaded.head.first) != (
                self.head.next_lsn,
                self.head.first,
            )
            self.head = loaded.head
            self._partial |= loaded.partial - self._segments.keys()
            self._put(loaded.pieces)
            for number in [one for one in self._segments if one < loaded.head.first]:
                del self._segments[number]
                self._partial.discard(number)
            return changed or bool(loaded.pieces)

    def _put(self, pieces: list[Piece]) -> None:
        for number, at, data in pieces:
            held = self._segments.setdefault(number, bytearray())
            if at > len(held):  # pieces between were lost: their place fails its checksums
                held.extend(bytes(at - len(held)))
            held[at : at + len(data)] = data

    def extend(self, number: int, data: bytes) -> None:
        """Add what the writer has appended, whether it is on the server yet or not."""
        with self._lock:
            self._segments.setdefault(number, bytearray()).extend(data)

    def forget(self, number: int) -> None:
        """Keep only the header of a segment, which is on the server."""
        with self._lock:
            held = self._segments.get(number)
            if held is not None:
                self._segments[number] = held[:HEADER_SIZE]
                self._partial.add(number)

    def drop_before(self, number: int) -> None:
        """Forget segments that were removed."""
        with self._lock:
            for old in [one for one in self._segments if one < number]:
                del self._segments[old]
                self._partial.discard(old)

    def end(self) -> tuple[int, int]:
        """The last segment that is here, and its size."""
        with self._lock:
            last = max(self._segments, default=0)
            return last, len(self._segments[last]) if last else 0

    def refresh(self) -> bool:
        """Load what is new; whether anything is."""
        loaded = self._log_server.load(self.head.name, self.end())
        if loaded is None or loaded.head.key != self.head.key:
            return False
        return self.apply(loaded)

    def whole(self, number: int) -> bytearray:
        """A segment with all its bytes."""
        if number in self._partial:
            pieces = self._log_server.segment(self.head.key, number)
            if not pieces:
                raise _missing(segment_name(number))
            with self._lock:
                if number in self._partial:  # else it was removed, or loaded by another thread
                    self._partial.discard(number)
                    self._segments[number] = bytearray()
                    self._put(pieces)
        found = self._segments.get(number)
        if found is None:
            raise _missing(segment_name(number))
        return found

    # -- files

    def names(self) -> list[str]:
        with self._lock:
            return [LOCK_NAME, MARK_NAME, *map(segment_name, sorted(self._segments))]

    def open(self, name: str, *, write: bool = False, create: bool = False) -> RemoteFile:
        if write or create:
            raise _read_only()
        if name == LOCK_NAME:
            return RemoteFile(_lock_content(self.head), self.head.is_alive)
        if name == MARK_NAME:
            return RemoteFile(self._mark())
        number = segment_number(name)
        with self._lock:
            held = None if number is None else self._segments.get(number)
            if number is None or held is None:
                raise _missing(name)
            if number in self._partial:
                return PartialFile(self, number, bytes(held))
            return RemoteFile(held)

    def _mark(self) -> bytes:
        # What is on the server is durable, and its head says where it ends.
        head = self.head
        return encode_mark(head.log_id, head.epoch, DurableMark(head.next_lsn - 1, head.snapshot))

    def identity(self, name: str) -> object:
        return name if name in self.names() else None

    def is_linked(self) -> bool:
        return True

    def publish(self, temporary: str, name: str) -> NoReturn:
        raise _read_only()

    def replace(self, temporary: str, name: str) -> NoReturn:
        raise _read_only()

    def remove(self, name: str) -> NoReturn:
        raise _read_only()

    def sync(self) -> NoReturn:
        raise _read_only()

    def close(self) -> None:
        pass


def _lock_content(head: Head) -> bytes:
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(head.since_ns // 1_000_000_000))
    owner = {"pid": head.owner.pid, "host": head.owner.host[:255], "since": since}
    return json.dumps({"epoch": head.epoch, **owner}).encode()


def _missing(name: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)


def _read_only() -> UnsupportedFormatError:
    return UnsupportedFormatError(
        "a log on a server is not changed as files are. Nothing was written. Copy the run to a "
        "directory first: recovery copy RUN --to DIRECTORY"
    )
