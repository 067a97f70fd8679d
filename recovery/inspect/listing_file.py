"""Keeps what a listing has read of each run, in one file beside the runs.

An entry counts while every file of its run is the same: inode, size, and times of its last change.
A file that changed in the last two seconds may change again without getting another time, so
entries of such runs are not kept. The file may be deleted at any time, and is never flushed.
"""

from __future__ import annotations

import json
import os
import stat
import time
from contextlib import closing, suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import xxhash

from eventlog.files.file_systems import KNOWN, MEMORY
from eventlog.files.posix import OSFiles
from recovery.stores.file import LISTING, NEW_LISTING, FileStore, delete_listing
from recovery.stores.protocol import INBOX

# The coarsest times that these file systems give have a second.
SETTLED_NS = 2_000_000_000
# On others, times or inode numbers may be a server's, or may not be kept.
_FILE_SYSTEMS = KNOWN | MEMORY | {""}
ENTRY_MAX, LISTING_MAX = 8 << 10, 256 << 20  # bytes
FILES_MAX = 32  # of a run
ADDED_MIN = 100  # reading fewer runs costs less than keeping them

Files = list[list[Any]]  # of a run: path in the store, inode, size, times


def files_of(root: str, run_id: str) -> Files | None:
    """The files of a run, before it is read; None if they may be changing, or are too many."""
    now = time.time_ns()
    try:
        found = [_seen(root, run_id)]
        names = os.listdir(f"{root}/{run_id}")
        found += [_seen(root, f"{run_id}/{name}") for name in names]
        if INBOX in names:
            inside = f"{run_id}/{INBOX}"
            found += [_seen(root, f"{inside}/{name}") for name in os.listdir(f"{root}/{inside}")]
    except OSError:
        return None
    settled = all(max(times) < now - SETTLED_NS for _, _, _, *times in found)
    return found if settled and len(found) <= FILES_MAX else None


def _seen(root: str, path: str) -> list[Any]:
    found = os.lstat(f"{root}/{path}")
    return [path, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def _is_same(root: str, files: Files) -> bool:
    # A name that was added or removed changes the times of its directory.
    return bool(files) and all(_seen(root, one[0]) == one for one in files)


class ListingFile:
    """The entries of one store's runs, for one listing."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._lines: dict[str, str] = {}  # those that were there
        self._kept: dict[str, str] = {}
        self._added = 0

    @classmethod
    def of(cls, store: FileStore) -> ListingFile | None:
        """The file of a store; None where it must not be used: for encrypted runs, in a directory
        of another user, and where times of files do not say whether a file was changed."""
        if store.encryption is not None:
            return None
        try:
            with closing(OSFiles().open_directory(store.root)) as directory:
                kind = OSFiles().mount(directory).kind
            if kind not in _FILE_SYSTEMS or os.stat(store.root).st_uid != os.geteuid():
                return None
        except OSError:
            return None
        made = cls(store.root)
        with suppress(OSError, ValueError):  # none yet, or damaged
            made._lines = _read(f"{store.root}/{LISTING}")
        return made

    def get(self, run_id: str) -> Any:
        """What was kept of a run; None if there is nothing, or the run has changed since."""
        line = self._lines.get(run_id)
        try:
            if line is None:
                return None
            files, kept = json.loads(line)
            if not _is_same(self._root, files):
                return None
        except (OSError, ValueError, TypeError, RecursionError):
            return None
        self._kept[run_id] = line
        return kept

    def add(self, run_id: str, files: Files, content: str) -> None:
        """Keep this JSON of a run whose files were these before it was read."""
        line = f"[{json.dumps(files, separators=(',', ':'))},{content}]"
        if len(line) <= ENTRY_MAX:  # a larger one is read as fast from its log
            self._kept[run_id] = line
            self._added += 1

    def save(self, run_ids: set[str]) -> None:
        """Replace the file, if enough is new, or if it has runs that are not among these."""
        if self._added < ADDED_MIN and self._lines.keys() <= run_ids:
            return
        body = "".join(f"{run_id}\t{line}\n" for run_id, line in self._kept.items()).encode()
        try:
            _write(self._root, _header(body) + body)
            # A run that was removed meanwhile must not be kept in the file. Its remover deletes
            # the file after the run: so it deletes this one, or the run is found missing here.
            if any(not os.path.isdir(f"{self._root}/{run_id}") for run_id in self._kept):
                delete_listing(self._root)
        except OSError:  # a full disk, a directory that is read-only: the next listing reads all
            with suppress(OSError):
                os.unlink(f"{self._root}/{NEW_LISTING}")


def _read(path: str) -> dict[str, str]:
    """The lines of the file by run id; ValueError if it is not as it was written."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(fd, "rb") as file:
        found = os.fstat(fd)
        ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
        if not ours or found.st_mode & 0o022 or found.st_size > LISTING_MAX:
            raise ValueError("another user may have written it")
        header, _, body = file.read().partition(b"\n")
    if header + b"\n" != _header(body):
        raise ValueError("damaged, or of another version")
    lines = (line.partition("\t") for line in body.decode().splitlines())
    return {run_id: line for run_id, _, line in lines}


def _header(body: bytes) -> bytes:
    # Another version may find another status in the same log.
    return f"agent-eventlog listing {release()} {xxhash.xxh3_64_hexdigest(body)}\n".encode()


def release() -> str:
    """The version of this library; "" if it is not installed."""
    try:
        return version("agent-eventlog")
    except PackageNotFoundError:
        return ""


def _write(root: str, data: bytes) -> None:
    new = f"{root}/{NEW_LISTING}"
    with suppress(FileNotFoundError):  # of a listing that was killed
        os.unlink(new)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    with open(os.open(new, flags, 0o600), "wb") as file:
        file.write(data)
    os.replace(new, f"{root}/{LISTING}")
