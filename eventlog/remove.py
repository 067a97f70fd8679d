"""Removing a log for good.

While its lock is held the log's directory gets a name that no log has, durably; then it is deleted,
file by file. So after a crash the log is there, whole, or it is gone, and what may be left of it is
known by its name (``removed_from``) and deleted by whoever comes next (``purge_removed``).
"""

from __future__ import annotations

import re

from eventlog.errors import FencedError, LogError, LogLockedError, UnsupportedFormatError
from eventlog.files.api import Directory, Files
from eventlog.files.lock import LOCK_NAME, Owner, claim, claim_if_linked
from eventlog.format.names import MARK_NAME, is_unfinished, segment_number
from eventlog.read.reader import LogReader

_REMOVED = re.compile(r"\.(.+)\.removed-[0-9a-f]{8}")


def remove(
    files: Files, path: str, at: int | None = None, also: frozenset[str] = frozenset()
) -> None:
    """Delete the log in directory ``path``; durably gone when this returns.

    ``at``: only if that is the LSN of its newest record. ``also``: what may be in the directory
    besides a log. Needs no key for an encrypted log. Raises, and nothing was removed then:
    FileNotFoundError; UnsupportedFormatError when the directory holds no log, or other things too;
    LogLockedError when somebody has the log; LogError when it ends at another LSN.
    """
    directory = files.open_directory(path)
    try:
        reader = LogReader(files, directory)
        _check_nothing_else(directory, also)
        owner = claim_if_linked(files, directory, reader.listing.last_epoch(), takeover=False)
        try:
            last = reader.tail().next_lsn - 1
            if at not in (None, last):
                raise LogError(
                    f"{path} ends at LSN {last} and not at {at}, where it was looked at: somebody "
                    "has used it since. Nothing was removed. Look at it again."
                )
            _move_and_delete(files, path, owner)
        finally:
            owner.close()
    finally:
        directory.close()


def removed_from(name: str) -> str:
    """Of which log (the name of its directory) this is what an interrupted removal has left; ""
    for the name of anything else."""
    found = _REMOVED.fullmatch(name)
    return found[1] if found else ""


def purge_removed(files: Files, root: str) -> int:
    """Delete what interrupted removals have left in directory ``root``; of how many logs."""
    done = 0
    for name in files.list_directories(root):
        if removed_from(name):
            done += _finished(files, f"{root}/{name}")
    return done


def _finished(files: Files, path: str) -> bool:
    try:
        directory = files.open_directory(path)
    except FileNotFoundError:
        return False
    owner = None
    try:
        if directory.identity(LOCK_NAME) is not None:
            owner = claim(files, directory, 0, takeover=False)
        # Under another name first: whoever renamed it may have died before that was durable, and
        # what is deleted from a log that comes back under its own name would be missing there.
        _move_and_delete(files, path, owner)
    except (FileNotFoundError, LogLockedError):  # somebody else is at it
        return False
    finally:
        if owner is not None:
            owner.close()
        directory.close()
    return True


def _move_and_delete(files: Files, path: str, owner: Owner | None) -> None:
    parent, slash, name = path.rpartition("/")
    mark = f".removed-{files.random_bytes(4).hex()}"
    trash_path = f"{parent}{slash}.{removed_from(name) or name}{mark}"
    files.move(path, trash_path)
    try:
        if owner is not None:
            owner.check()
    except FencedError:
        # Taken over, by force, in between: before the new owner looked whether the log is in its
        # place, perhaps. So it is put back. Who takes it over later finds that it is gone.
        files.move(trash_path, path)
        raise
    files.delete(trash_path)


def _check_nothing_else(directory: Directory, also: frozenset[str]) -> None:
    names = directory.names()
    if LOCK_NAME not in names and not any(map(segment_number, names)):
        raise UnsupportedFormatError(f"{directory.path} is not a log. Nothing was removed.")
    others = sorted(
        name
        for name in names
        if not (
            name in {LOCK_NAME, MARK_NAME, *also} or segment_number(name) or is_unfinished(name)
        )
    )
    if others:
        raise UnsupportedFormatError(
            f"{directory.path} holds other things than a log ({others[0]!r}, {len(others)} in all)."
            " Nothing was removed. Move them away first."
        )
