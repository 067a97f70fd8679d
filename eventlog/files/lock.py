"""Decides which process may write: the lock file and the epoch.

``LOCK`` is always there and never unlinked. It holds the owner as one line of JSON. Beyond its
content it has one lockable byte for each epoch. The owner under epoch E holds byte E. When an owner
dies, the kernel drops its lock; an owner that was stopped keeps it. One that gives the log up while
its threads may still act keeps a lower byte instead.

To claim a log, a process locks byte E (so no other process owns the log) and byte E + 1, and then
writes E + 1 into the file. A forced takeover skips byte E: the old owner still holds it. At its
next commit the old owner finds another epoch in the file, and raises instead of acknowledging.

Why takeover is safe, with O the old owner and N the new one. O: write frames, flush, read LOCK,
acknowledge. N: write LOCK, read the segments. If O read LOCK before N wrote it, then N reads O's
frames in the segment. If O read LOCK later, O does not acknowledge. Either way no acknowledged
record is lost. What O writes later is after the LSN where N's first segment begins, and does not
count (see Segment.superseded_at).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from eventlog.errors import FencedError, LogError, LogLockedError
from eventlog.files.api import Directory, File, Files, write_all
from eventlog.format.frame import EPOCH_MAX

LOCK_NAME = "LOCK"
_CONTENT_SIZE = 512  # within one page, so that a read gets it as one write wrote it


@dataclass(frozen=True, slots=True)
class LogOwner:
    """The present or last owner of a log, as its lock file says.

    ``since``: UTC, as in "2026-11-21T20:15:00Z". ``alive``: whether the owner holds the log now.
    It is False when that is unknown: the owner is on a machine that does not share its locks with
    this one, or the platform lacks Linux' locks.
    """

    epoch: int
    pid: int | None
    host: str | None
    since: str | None
    alive: bool

    def __str__(self) -> str:
        return f"{_named({'pid': self.pid, 'host': self.host})}, since {self.since}"


class Owner:
    """The right to append, under ``epoch``.

    ``former``: an earlier owner that may be alive and still writing, in words; "" if all have
    ended. The log was taken from it, or the lock file that it holds was removed, or it has given
    the log up while its threads act (see may_still_act).
    """

    def __init__(
        self, directory: Directory, file: File, epoch: int, content: bytes, former: str
    ) -> None:
        self._directory, self._file, self._content = directory, file, content
        self.epoch, self.former = epoch, former
        self._is_durable = self._is_closed = self._acts = False
        self._mutex = threading.Lock()
        # Whether the kernel tells when it ends: not if it holds a lock file that is gone.
        self._is_seen = bool(former) and file.held(epoch)
        # Kept open: while it is, no other file gets its inode number.
        self._identity = file.identity()

    def check(self) -> None:
        """Raise FencedError when a newer owner has the log. Two system calls, about 2 us."""
        if self._file.pread(_CONTENT_SIZE, 0) != self._content:
            found = _parse(self._file.pread(_CONTENT_SIZE, 0))
            raise FencedError(
                f"{self._directory.path} was taken over by process {found.get('pid')} on "
                f"{found.get('host')} (epoch {found.get('epoch')}, ours {self.epoch}). What was "
                "committed before is kept; what was appended since does not count."
            )
        if self._directory.identity(LOCK_NAME) != self._identity:
            raise FencedError(
                f"{self._directory.path}/{LOCK_NAME} was removed or replaced under its owner; "
                "another process may have the log. What was committed before is kept."
            )

    def living_former(self) -> str:
        """``former``, as it is now: "" as soon as the kernel says that all have ended."""
        if self._is_seen and not self._file.held(self.epoch):
            self.former = ""
        return self.former

    def make_durable(self) -> None:
        """Flush the epoch in the lock file, once, before a segment of this epoch is made.

        Invariant: no power loss leaves a lower epoch in the lock file than in a segment. So such a
        lock file was removed or replaced, and its owner may live.
        """
        if not self._is_durable:
            self._file.sync()
            self._is_durable = True

    def may_still_act(self, acts: bool) -> None:
        """See WritableLog.may_still_act. May come after ``close``."""
        with self._mutex:
            self._acts = acts
            if self._is_closed:
                self._file.close()

    def close(self) -> None:
        """Release the log."""
        with self._mutex:
            self._is_closed = True
            if self._acts and any(map(self._file.lock, reversed(range(self.epoch)))):
                self._file.unlock(self.epoch)  # free, but a later owner finds the lower byte held
            else:
                self._file.close()

    def close_after_fork(self) -> None:
        """Release what a forked child has of it. Threads of the parent may hold the mutex."""
        self._file.close()


def owner_of(directory: Directory) -> LogOwner | None:
    """The present or last owner; None when there was none. Takes no lock."""
    with _opened(directory) as file:
        if file is None or not (epoch := _read_epoch(file)):
            return None
        found = _parse(file.pread(_CONTENT_SIZE, 0))
        alive = file.held(epoch + 1, first=epoch)
        return LogOwner(epoch, found.get("pid"), found.get("host"), found.get("since"), alive)


def former_of(directory: Directory) -> str:
    """An owner before the last one that is alive, in words; "" if there is none. Takes no lock.

    While the last one is alive, there may be one: it holds the lock of the one before it as well.
    """
    with _opened(directory) as file:
        if file is None:
            return ""
        found, epoch = _parse(file.pread(_CONTENT_SIZE, 0)), _read_epoch(file)
        return f"an owner before {_named(found)}" if epoch and file.held(epoch) else ""


@contextmanager
def _opened(directory: Directory) -> Iterator[File | None]:
    """The lock file, to read it alone; None when there was no owner."""
    try:
        file = directory.open(LOCK_NAME)
    except FileNotFoundError:
        yield None
        return
    try:
        yield file
    finally:
        file.close()


def claim(files: Files, directory: Directory, last_epoch: int, takeover: bool) -> Owner:
    """Become the owner under a higher epoch than ``last_epoch`` and any owner before.

    Raises LogLockedError, at once, when the log is held and ``takeover`` is false, or when
    another process is taking it over.
    """
    file = directory.open(LOCK_NAME, write=True, create=True)
    try:
        # A lock file whose epoch is lower than that of the segments was removed or replaced (see
        # make_durable). An owner may still hold the other file.
        former = "a process whose lock file is gone" if _read_epoch(file) < last_epoch else ""
        while True:
            epoch = max(_read_epoch(file), last_epoch)
            if epoch >= EPOCH_MAX:
                raise LogError(
                    f"{directory.path} claims to have had {epoch} owners, which is more than there "
                    "can be: its files were forged or damaged. Nothing was changed."
                )
            free, last = file.lock(epoch), _parse(file.pread(_CONTENT_SIZE, 0))
            if not free:
                former = _named(last)
            elif file.held(epoch):  # its threads still act, or one before was stuck in a takeover
                former = former or f"{_named(last)}, or one before it"
            if not ((free or takeover) and file.lock(epoch + 1)):
                raise _locked(directory, file)
            if _read_epoch(file) <= epoch:
                break
            # An owner came and went between reading and locking: its epoch must not be reused.
        content = _content(files, epoch + 1)
        file.truncate(_CONTENT_SIZE)
        write_all(file, content, 0)
    except BaseException:
        file.close()
        raise
    return Owner(directory, file, epoch + 1, content, former)


def hold(directory: Directory) -> File:
    """Keep other processes away from a removed log, until the file is closed.

    Takes the locks of a claim and writes no owner, so that it works on a full disk. A removed log
    has no owner that would have to be fenced. Raises LogLockedError when another process has it.
    """
    file = directory.open(LOCK_NAME, write=True)
    try:
        epoch = _read_epoch(file)
        if file.lock(epoch) and file.lock(epoch + 1) and _read_epoch(file) == epoch:
            return file
        raise _locked(directory, file)
    except BaseException:
        file.close()
        raise


def _locked(directory: Directory, file: File) -> LogLockedError:
    found = _parse(file.pread(_CONTENT_SIZE, 0))
    return LogLockedError(directory.path, found.get("pid"), found.get("host"), found.get("since"))


def claim_if_linked(files: Files, directory: Directory, last_epoch: int, takeover: bool) -> Owner:
    """``claim`` for a log whose path still leads to the directory that was opened.

    A process that removes a log holds the log while it renames the directory (see remove). So
    either that process finds the log held by us, or we find now that its path is gone. No process
    writes into a log that is about to be deleted.
    """
    try:
        owner = claim(files, directory, last_epoch, takeover)
    except FileNotFoundError:  # the directory is deleted, so no file can be made in it
        raise _gone(directory) from None
    if directory.is_linked():
        return owner
    owner.close()
    raise _gone(directory)


def _gone(directory: Directory) -> LogError:
    return LogError(
        f"{directory.path} was removed or moved away while it was being opened. Nothing was "
        "written. Open it again: if it is still gone, that begins a new log."
    )


def _named(owner: dict[str, Any]) -> str:
    pid = owner.get("pid")
    return f"process {pid} on {owner.get('host')}" if pid is not None else "a process"


def _content(files: Files, epoch: int) -> bytes:
    pid, host = files.process()
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(files.time_ns() // 1_000_000_000))
    line = json.dumps({"epoch": epoch, "pid": pid, "host": host[:255], "since": since})
    return line.encode().ljust(_CONTENT_SIZE - 1) + b"\n"


def _parse(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):  # empty: a power failure, or no owner yet
        return {}
    if not isinstance(found, dict):
        return {}
    # It appears in error messages and on terminals, and any user may have edited the file.
    names = {key: found.get(key) for key in ("host", "since")}
    shown = {key: repr(name)[1:-1] for key, name in names.items() if isinstance(name, str)}
    numbers = {key: found.get(key) for key in ("epoch", "pid")}
    return shown | {key: number for key, number in numbers.items() if type(number) is int}


def _read_epoch(file: File) -> int:
    epoch = _parse(file.pread(_CONTENT_SIZE, 0)).get("epoch")
    # Bounded, for it comes from a file.
    return epoch if type(epoch) is int and 0 < epoch <= EPOCH_MAX else 0
