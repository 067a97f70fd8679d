"""Who may write: the lock file and the epoch.

``LOCK`` is always there and never unlinked. It holds the owner as one line of JSON and, beyond
its content, one lockable byte for each epoch. The owner under epoch E holds byte E, so an owner
that died has let go of it (the kernel drops locks with the process), and one that was stopped has
not. To claim is to hold byte E (nobody owns the log) and byte E + 1, and then to write E + 1 into
the file. A forced takeover skips the first: byte E is still held by the old owner, who finds
another epoch in the file at its next commit, and raises instead of acknowledging.

The argument for takeover, with O the old owner and N the new one. O: write frames, flush, read
LOCK, acknowledge. N: write LOCK, read the segments. If O's reading of LOCK came before N's writing,
O's frames were in the segment before N read it, so N has them. If it came after, O does not
acknowledge. Either way nothing acknowledged is lost. What O writes later lies behind the point
where N's first segment takes up the LSNs, and does not count (see Segment.superseded_at).
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from eventlog.errors import FencedError, LogError, LogLockedError
from eventlog.files.api import Directory, File, Files, write_all
from eventlog.format.frame import EPOCH_MAX

LOCK_NAME = "LOCK"
_CONTENT_SIZE = 512  # within one page, so that it is read as it was written


@dataclass(frozen=True, slots=True)
class LogOwner:
    """Who has a log, or had it last, as its lock file says.

    ``since``: UTC, as in "2026-11-21T20:15:00Z". ``alive``: whether the log is held now. Where it
    is held by a machine that does not share its locks with this one, or on a platform without
    Linux' locks, that is not known, and False.
    """

    epoch: int
    pid: int | None
    host: str | None
    since: str | None
    alive: bool

    def __str__(self) -> str:
        who = f"process {self.pid} on {self.host}" if self.pid is not None else "a process"
        return f"{who}, since {self.since}"


class Owner:
    """The right to append, under ``epoch``.

    ``contested``: an earlier owner may be alive and still writing, because the log was taken from
    it, or because the lock file that it holds is no longer there.
    """

    def __init__(
        self, directory: Directory, file: File, epoch: int, content: bytes, owner_may_be_alive: bool
    ) -> None:
        self._directory, self._file, self._content = directory, file, content
        self.epoch, self.owner_may_be_alive = epoch, owner_may_be_alive
        # For as long as it is open: no other file gets its number before it is closed.
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

    def close(self) -> None:
        """Let go of the log."""
        self._file.close()


def owner_of(directory: Directory) -> LogOwner | None:
    """The present or last owner; None when nothing says that there was one. Takes no lock."""
    try:
        file = directory.open(LOCK_NAME)
    except FileNotFoundError:
        return None
    try:
        epoch = _read_epoch(file)
        found = _parse(file.pread(_CONTENT_SIZE, 0))
        alive = file.held(epoch + 1, first=epoch)
    finally:
        file.close()
    if not epoch:
        return None
    return LogOwner(epoch, found.get("pid"), found.get("host"), found.get("since"), alive)


def claim(files: Files, directory: Directory, last_epoch: int, takeover: bool) -> Owner:
    """Become the owner under a higher epoch than ``last_epoch`` and any owner before.

    Raises LogLockedError, at once, when the log is held and ``takeover`` is false, or when
    somebody else is just taking it over.
    """
    file = directory.open(LOCK_NAME, write=True, create=True)
    try:
        # A lock file that knows less than the segments was removed, replaced, or lost to a power
        # failure. It cannot tell whether somebody holds the one that was here before.
        owner_may_be_alive = _read_epoch(file) < last_epoch
        while True:
            epoch = max(_read_epoch(file), last_epoch)
            if epoch >= EPOCH_MAX:
                raise LogError(
                    f"{directory.path} claims to have had {epoch} owners, which is more than there "
                    "can be: its files were forged or damaged. Nothing was changed."
                )
            free = file.lock(epoch)
            # Whoever held an earlier epoch and is still alive has been stuck since a takeover.
            owner_may_be_alive = owner_may_be_alive or not free or file.held(epoch)
            if not ((free or takeover) and file.lock(epoch + 1)):
                found = _parse(file.pread(_CONTENT_SIZE, 0))
                raise LogLockedError(
                    directory.path, found.get("pid"), found.get("host"), found.get("since")
                )
            if _read_epoch(file) <= epoch:
                break
            # An owner came and went between reading and locking: its epoch must not be reused.
        content = _content(files, epoch + 1)
        file.truncate(_CONTENT_SIZE)
        write_all(file, content, 0)
    except BaseException:
        file.close()
        raise
    return Owner(directory, file, epoch + 1, content, owner_may_be_alive)


def claim_if_linked(files: Files, directory: Directory, last_epoch: int, takeover: bool) -> Owner:
    """``claim`` for a log that is still where it was opened.

    Whoever removes a log holds it while he renames its directory (see remove). So either he
    finds it held by us, or we find, now that we hold it, that it is not there any more: nobody
    writes into a log that is about to be deleted.
    """
    try:
        owner = claim(files, directory, last_epoch, takeover)
    except FileNotFoundError:  # the directory is deleted already, so nothing can be made in it
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


def _content(files: Files, epoch: int) -> bytes:
    pid, host = files.process()
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(files.time_ns() // 1_000_000_000))
    line = json.dumps({"epoch": epoch, "pid": pid, "host": host[:255], "since": since})
    return line.encode().ljust(_CONTENT_SIZE - 1) + b"\n"


def _parse(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):  # empty, or lost in a power failure: no old owner then
        return {}
    if not isinstance(found, dict):
        return {}
    # It ends up in error messages and on terminals, and anybody may have edited the file.
    names = {key: found.get(key) for key in ("host", "since")}
    shown = {key: repr(name)[1:-1] for key, name in names.items() if isinstance(name, str)}
    numbers = {key: found.get(key) for key in ("epoch", "pid")}
    return shown | {key: number for key, number in numbers.items() if type(number) is int}


def _read_epoch(file: File) -> int:
    epoch = _parse(file.pread(_CONTENT_SIZE, 0)).get("epoch")
    # Bounded, for it comes from a file.
    return epoch if type(epoch) is int and 0 < epoch <= EPOCH_MAX else 0
