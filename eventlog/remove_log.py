"""Removes a log for good.

While its lock is held, the log's directory durably gets a name that no log has. Then it is deleted,
file by file. So after a crash either the log is complete, or it is gone. Remains of it have a name
that ``removed_from`` knows, and ``purge_removed`` deletes them.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Collection, Mapping
from contextlib import ExitStack

from eventlog.errors import FencedError, LogError, LogLockedError, UnsupportedFormatError
from eventlog.files.api import Directory, Files
from eventlog.files.lock import LOCK_NAME, Owner, claim_if_linked, hold
from eventlog.files.posix import OSFiles
from eventlog.format.names import MARK_NAME, is_unfinished, segment_number
from eventlog.read.reader import LogReader

__all__ = ["purge_removed", "remove", "removed_from"]

_REMOVED = re.compile(r"\.(.+)\.removed-[0-9a-f]{8}")


def remove(
    path: str | os.PathLike[str],
    at: int | None = None,
    *,
    also: Mapping[str, int | None] | None = None,
    files: Files | None = None,
) -> None:
    """Delete the log in directory ``path``; it is durably gone when this returns.

    After a crash in between, the log is either complete or gone. If it is gone, its last files may
    remain in a directory of another name, which ``purge_removed`` deletes.

    ``at``: delete only if the newest record has that LSN (None: in any case). ``also``: logs that
    the directory may contain (none), each with its ``at``; 0 is that of a log that does not exist.
    ``files``: a file system for tests (the real one). Needs no key for an encrypted log. If it
    raises one of these, nothing was removed: FileNotFoundError; UnsupportedFormatError when the
    directory holds no log, or other files too; LogLockedError when a process has one of the logs
    open, this one included; LogError when one of them ends at another LSN. An OSError says that the
    removal has to be repeated, or purged.
    """
    files, path, also = files or OSFiles(), os.fspath(path), also or {}
    directory = files.open_directory(path)
    with ExitStack() as held:
        held.callback(directory.close)
        _check_nothing_else(directory, also)
        owner = _claimed_at(files, directory, at)
        held.callback(owner.close)
        for name, end in also.items():
            if end is not None:
                # Made if it is missing: so no other process makes it, and writes into it, from now
                # until it is gone.
                inner = files.make_directory(f"{path}/{name}")
                held.callback(inner.close)
                held.callback(_claimed_at(files, inner, end).close)
        _move_and_delete(files, path, owner)


def _claimed_at(files: Files, directory: Directory, at: int | None) -> Owner:
    """Claim a log if its newest record has this LSN (None: in any case)."""
    reader = LogReader(files, directory)
    owner = claim_if_linked(files, directory, reader.listing.last_epoch(), takeover=False)
    try:
        last = reader.tail().next_lsn - 1
        if at not in (None, last):
            raise LogError(
                f"{directory.path} ends at LSN {last}, not at {at}: another process has used it "
                "since it was read. Nothing was removed. Look at it again."
            )
    except BaseException:
        owner.close()
        raise
    return owner


def removed_from(name: str) -> str:
    """The name of the log whose interrupted removal left the directory ``name``; "" for another
    directory."""
    found = _REMOVED.fullmatch(name)
    return found[1] if found else ""


def purge_removed(root: str | os.PathLike[str], *, files: Files | None = None) -> int:
    """Delete the remains of interrupted removals in directory ``root``; the number of logs.

    Leaves alone what another process is removing now. ``files``: a file system for tests. Raises
    OSError for remains that cannot be deleted; all others are gone then.
    """
    files, root, done = files or OSFiles(), os.fspath(root), 0
    failed: list[tuple[str, OSError | LogError]] = []
    for name in filter(removed_from, files.list_directories(root)):
        try:
            done += _finished(files, f"{root}/{name}")
        except (OSError, LogError) as exc:  # of this one; the others are still deleted
            failed.append((f"{root}/{name}", exc))
    if failed:
        path, why = failed[0]
        more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        of_system = why if isinstance(why, OSError) else OSError(errno.EIO, str(why))
        raise OSError(
            of_system.errno,
            f"what a removal has left could not be deleted: {of_system.strerror}{more}",
            of_system.filename or path,
        ) from why
    return done


def _finished(files: Files, path: str) -> bool:
    try:
        directory = files.open_directory(path)
    except FileNotFoundError:
        return False
    held = None
    try:
        if directory.identity(LOCK_NAME) is not None:
            held = hold(directory)
        # Rename again first: the process that renamed it may have died before that was durable.
        # If the old name came back after a power loss, the log would lack the deleted files.
        _move_and_delete(files, path, None)
    except (FileNotFoundError, LogLockedError):  # another process is removing it
        return False
    finally:
        if held is not None:
            held.close()
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
        # Another owner took the log over in between, perhaps before it checked the directory's
        # name. So rename it back. A later owner finds that it is gone.
        files.move(trash_path, path)
        raise
    files.delete(trash_path)


def _check_nothing_else(directory: Directory, also: Collection[str]) -> None:
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
