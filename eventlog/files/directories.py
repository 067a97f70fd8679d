"""Opens and makes directories, name by name, so that no link on the path is followed."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

from eventlog.errors import LogError

NO_LINK = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW


class NamedErrors:
    """Adds the path to errors of the system calls inside this context, which know a descriptor or
    a name at most."""

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, exc: object, trace: object) -> None:
        if isinstance(exc, OSError):
            self.name(exc)

    def name(self, error: OSError) -> None:
        """Put the path of the file into the error, if it has none."""
        if os.sep not in str(error.filename):
            error.filename = self._path
            if error.filename2 is not None:  # set to None, it would be shown: "-> None"
                del error.filename2


@contextlib.contextmanager
def closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


def opened_in(fd: int, name: str, path: str) -> int:
    """Opens the directory of this name in an open one; ``path`` is for error messages."""
    with NamedErrors(path):
        try:
            return os.open(name, NO_LINK, dir_fd=fd)
        except OSError as exc:
            if exc.errno in (errno.ELOOP, errno.ENOTDIR) and _is_link(fd, name):
                raise LogError(
                    f"{path}: {name!r} is a symbolic link, which may lead out of the store: it is "
                    "not followed. Nothing was read or written there. Put the directory in its "
                    "place."
                ) from None
            raise


def _is_link(fd: int, name: str) -> bool:
    return stat.S_ISLNK(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode)


def is_anothers(fd: int, path: str, name: str) -> bool:
    """Whether root must give a directory made here to its owner, who could not open it otherwise.

    If neither root nor the owner runs this, raises LogError before anything is made.
    """
    owner, user = os.fstat(fd).st_uid, os.geteuid()
    if owner in (user, 0):  # root can open a directory of any user
        return False
    if user and _is_missing(fd, name):
        raise LogError(
            f"{path} belongs to user {owner}, who could not open what user {user} (this process) "
            "makes in it, and would be locked out. Nothing was written. Do it as that user, or as "
            "root, whose files there are given to the owner."
        )
    return not user


def give_to_owner(fd: int, directory: int) -> None:
    """Give a directory that root has made to the owner of its parent."""
    if os.fstat(fd).st_uid == 0:
        owner = os.fstat(directory)
        os.fchown(fd, owner.st_uid, owner.st_gid)


def _is_missing(fd: int, name: str) -> bool:
    with contextlib.suppress(FileNotFoundError):
        os.stat(name, dir_fd=fd, follow_symlinks=False)
        return False
    return True


def _make_for_owner(fd: int, name: str) -> None:
    """Make a directory as root; it belongs to its owner as soon as it has its name."""
    temporary = f"{name}.{os.urandom(8).hex()}"
    os.mkdir(temporary, 0o700, dir_fd=fd)
    try:
        with closing(os.open(temporary, NO_LINK, dir_fd=fd)) as inside:
            give_to_owner(inside, fd)
        if not _is_missing(fd, name):
            raise FileExistsError(errno.EEXIST, "it is there already", name)
        os.rename(temporary, name, src_dir_fd=fd, dst_dir_fd=fd)
    except BaseException:
        os.rmdir(temporary, dir_fd=fd)
        raise


def made_in(fd: int, name: str, path: str, *, for_owner: bool = False) -> int:
    """As opened_in, but makes the directory durably if it is missing. Closes ``fd``.

    ``for_owner``: the new directory belongs to the owner of its parent.
    """
    with closing(fd):
        made = False
        with (
            contextlib.suppress(FileExistsError),
            NamedErrors(path),
        ):  # another process made it; or a file
            if for_owner and is_anothers(fd, os.path.dirname(path), name):
                _make_for_owner(fd, name)
            else:
                os.mkdir(name, 0o700, dir_fd=fd)
            made = True
        inside = opened_in(fd, name, path)
        # The name is in the parent: without this a power loss takes the whole log. If the directory
        # is empty, another process may have made it, and died before it synced the parent.
        if made or _is_empty(inside):
            with contextlib.suppress(*([] if made else [PermissionError])):
                os.fsync(fd)
        return inside


def _is_empty(fd: int) -> bool:
    """Whether a directory is empty; reads one name, also from a directory with a million."""
    with os.scandir(fd) as entries:
        return next(entries, None) is None


def made_with_parents(path: str) -> int:
    """Open the directory at this path; make it and its missing parents durably."""
    parent, name = os.path.split(os.path.abspath(path))
    if os.path.isdir(path) or not name:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if name and _is_empty(fd):
            with contextlib.suppress(PermissionError), closing(made_with_parents(parent)) as above:
                os.fsync(above)
        return fd
    return made_in(made_with_parents(parent), name, path)
