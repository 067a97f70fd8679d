"""Implements the file protocols with the system calls of Linux and macOS.

``Files`` is the seam: ``OSFiles`` makes system calls; ``eventlog.testing`` and the in-memory store
have their own implementations. Each method says what a crash may leave.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import stat
import struct
import time

try:
    import fcntl
except ImportError as error:
    raise ImportError(
        "agent-eventlog locks its files with `fcntl`, which this Python does not have: it runs on "
        "Linux and macOS. On Windows, use it in WSL."
    ) from error

from eventlog.errors import LogError, UnsupportedFormatError
from eventlog.files.api import Directory, Files
from eventlog.files.directories import (
    NO_LINK,
    NamedErrors,
    closing,
    give_to_owner,
    is_anothers,
    made_in,
    made_with_parents,
    opened_in,
)
from eventlog.files.file_systems import Mount, Verdict, judge, mount_in

_logger = logging.getLogger("eventlog")

_F_FULLFSYNC = getattr(fcntl, "F_FULLFSYNC", None)  # macOS: fsync alone leaves the drive's cache
_F_OFD_SETLK = getattr(fcntl, "F_OFD_SETLK", None)  # Linux 3.15 and later
_LOCK_BYTES = 1 << 32  # slots lie beyond the lock file's content, which must stay readable


def _flock(start: int, size: int, kind: int = fcntl.F_WRLCK) -> bytes:
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, start, size, 0)


class OSFile:
    """A file by its descriptor."""

    _fd = -1  # Ctrl-C may come before the file is open

    def __init__(self, fd: int, path: str) -> None:
        self._fd, self._path = fd, NamedErrors(path)

    def pread(self, size: int, offset: int) -> bytes:
        with self._path:
            data = os.pread(self._fd, size, offset)
            while 0 < len(data) < size:  # the end, or more than the system reads at once (2 GiB)
                part = os.pread(self._fd, size - len(data), offset + len(data))
                if not part:
                    break
                data += part
            return data

    def pwrite(self, data: bytes, offset: int) -> int:
        try:  # faster than `with self._path`, by half
            return os.pwrite(self._fd, data, offset)
        except OSError as exc:
            self._path.name(exc)
            raise

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        with self._path:
            os.ftruncate(self._fd, size)

    def sync(self) -> None:
        with self._path:
            if _F_FULLFSYNC is not None:
                fcntl.fcntl(self._fd, _F_FULLFSYNC)
            else:
                os.fdatasync(self._fd)

    def lock(self, slot: int) -> bool:
        try:
            if _F_OFD_SETLK is None:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            else:
                fcntl.fcntl(self._fd, _F_OFD_SETLK, _flock(_LOCK_BYTES + slot, 1))
        except OSError as exc:
            if exc.errno in (errno.EACCES, errno.EAGAIN):
                return False
            raise
        return True

    def unlock(self, slot: int) -> None:
        if _F_OFD_SETLK is None:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        else:
            fcntl.fcntl(self._fd, _F_OFD_SETLK, _flock(_LOCK_BYTES + slot, 1, fcntl.F_UNLCK))

    def held(self, slots: int, first: int = 0) -> bool:
        if _F_OFD_SETLK is None or slots <= first:
            return False
        asked = _flock(_LOCK_BYTES + first, slots - first)
        found = fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, asked)
        return bool(struct.unpack_from("h", found)[0] != fcntl.F_UNLCK)

    def identity(self) -> object:
        found = os.fstat(self._fd)
        return found.st_dev, found.st_ino

    def close(self) -> None:
        fd, self._fd = self._fd, -1  # closing twice must not close a new file of the same number
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()  # Ctrl-C between two lines must not leave a lock behind


class _Descriptor:
    """The number of an open file, which is closed when no object refers to this one."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


class OSDirectory:
    """A directory by its descriptor, so renaming or replacing its path changes nothing.

    Thread-safe. When one thread closes it, running calls of other threads complete.
    """

    def __init__(self, path: str, fd: int, *, in_store: bool = False) -> None:
        self.path, self._in_store = path, in_store
        self._descriptor: _Descriptor | None = _Descriptor(fd)

    def _held(self) -> _Descriptor:
        """The descriptor, open for as long as its user has it; OSError once this is closed."""
        descriptor = self._descriptor
        if descriptor is None:
            raise OSError(errno.EBADF, "the log was closed", self.path)
        return descriptor

    def _at(self, name: str) -> NamedErrors:
        return NamedErrors(os.path.join(self.path, name))

    def names(self) -> list[str]:
        with NamedErrors(self.path):
            # On a descriptor of its own: two threads that list through one descriptor share its
            # offset, and each misses the names that the other one has read.
            here = self._held()
            own = os.open(".", NO_LINK, dir_fd=here.number)
            try:
                return os.listdir(own)
            finally:
                os.close(own)

    def open(self, name: str, *, write: bool = False, create: bool = False) -> OSFile:
        # O_NONBLOCK: opening a FIFO must not wait for its other end.
        flags = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        flags |= os.O_RDWR if write else os.O_RDONLY
        flags |= os.O_CREAT if create else 0
        try:
            with self._at(name):
                here = self._held()
                another = create and self._in_store and is_anothers(here.number, self.path, name)
                fd = os.open(name, flags, 0o600, dir_fd=here.number)
                if another:
                    give_to_owner(fd, here.number)
        except OSError as exc:
            if exc.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
                raise self._foreign(name) from None
            raise
        file, found = OSFile(fd, os.path.join(self.path, name)), os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise self._foreign(name)
        if write and found.st_nlink > 1:
            raise LogError(
                f"{self.path}/{name} has {found.st_nlink} names (hard links): what is written to "
                "it would show up under the others too. Nothing was written. Copy the log instead."
            )
        return file

    def _foreign(self, name: str) -> LogError:
        return UnsupportedFormatError(
            f"{self.path}/{name} is not a regular file (a link, pipe, device or directory). These "
            "are refused inside a log; nothing was read from it or changed."
        )

    def publish(self, temporary: str, name: str) -> None:
        with self._at(name):
            self._publish(temporary, name)

    def _publish(self, temporary: str, name: str) -> None:
        here = self._held()
        fd = here.number
        try:
            os.link(temporary, name, src_dir_fd=fd, dst_dir_fd=fd)
        except OSError as exc:
            if exc.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK):
                raise
            # No hard links here, and a rename would replace: so check first, under the log's lock.
            if self.identity(name) is not None:
                raise FileExistsError(errno.EEXIST, "segment exists") from None
            os.rename(temporary, name, src_dir_fd=fd, dst_dir_fd=fd)
        else:
            os.unlink(temporary, dir_fd=fd)

    def replace(self, temporary: str, name: str) -> None:
        with self._at(name):
            here = self._held()
            os.replace(temporary, name, src_dir_fd=here.number, dst_dir_fd=here.number)

    def remove(self, name: str) -> None:
        try:
            with self._at(name):
                here = self._held()
                os.unlink(name, dir_fd=here.number)
        except IsADirectoryError:
            raise self._foreign(name) from None

    def sync(self) -> None:
        with NamedErrors(self.path):
            here = self._held()
            os.fsync(here.number)

    def identity(self, name: str) -> object:
        here = self._held()
        try:
            found = os.stat(name, dir_fd=here.number, follow_symlinks=False)
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def is_linked(self) -> bool:
        try:
            found = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return os.path.samestat(found, self._stat())

    def _stat(self) -> os.stat_result:
        here = self._held()
        return os.fstat(here.number)

    def device(self) -> int:
        return self._stat().st_dev

    def mount_id(self) -> str:
        """The id of its mount in /proc/self/mountinfo; "" when the system does not give it. The
        device is not enough: on btrfs each file system has another one than its mount."""
        here = self._held()
        try:
            with open(f"/proc/self/fdinfo/{here.number}", encoding="ascii") as lines:
                found = (line.partition(":") for line in lines)
                return next((value.strip() for key, _, value in found if key == "mnt_id"), "")
        except OSError:
            return ""

    def writable_by(self) -> str:
        """Users who can change its content besides this user, root and a group with access."""
        found = self._stat()
        if found.st_uid not in (os.geteuid(), 0):
            return f"it belongs to user {found.st_uid}"
        if found.st_mode & stat.S_IWOTH:
            return f"its mode is {stat.S_IMODE(found.st_mode):04o}"
        if not found.st_mode & stat.S_IXOTH:
            return ""
        here = self._held()
        for name in self.names():
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                file = os.stat(name, dir_fd=here.number, follow_symlinks=False)
                if stat.S_ISREG(file.st_mode) and file.st_mode & stat.S_IWOTH:
                    return f"{name!r} has mode {stat.S_IMODE(file.st_mode):04o}"
        return ""

    def close(self) -> None:
        self._descriptor = None


def _empty(fd: int, path: str) -> None:
    """Delete everything in directory ``path``. Works by descriptors, so a name that is replaced by
    a link meanwhile cannot lead elsewhere."""
    with os.scandir(fd) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_directory in found:
        inner = os.path.join(path, name)
        with (
            contextlib.suppress(FileNotFoundError),
            NamedErrors(inner),
        ):  # another deletes it as well
            if not is_directory:
                os.unlink(name, dir_fd=fd)
                continue
            inside = os.open(name, NO_LINK, dir_fd=fd)
            try:
                _empty(inside, inner)
            finally:
                os.close(inside)
            os.rmdir(name, dir_fd=fd)


class OSFiles:
    """The real file system, clock and entropy.

    ``beneath``: a directory below which no link is followed. So a user who can write there cannot
    redirect a log to another directory.
    """

    _beneath: str | None = None

    def __init__(self, beneath: str | None = None) -> None:
        self._beneath = beneath

    def make_directory(self, path: str) -> OSDirectory:
        base, names = self._split(path)
        fd = made_with_parents(base)
        for depth, name in enumerate(names):
            # A new run belongs to the user who makes it; its inbox to the owner of the run.
            fd = made_in(fd, name, path, for_owner=depth > 0)
        directory = OSDirectory(path, fd, in_store=bool(names))
        if who := directory.writable_by():
            # A warning, not an error: containers and shared volumes need it, and no code comes from
            # a log. The modes are not changed: they are the user's decision.
            _logger.warning(
                "%s can be changed by others (%s). A user who can write to it can forge what a "
                "resumed run takes for done: chmod 700 it, or give the log a directory of your own",
                path,
                who,
            )
        return directory

    def open_directory(self, path: str) -> OSDirectory:
        return OSDirectory(path, self._opened(path), in_store=bool(self._split(path)[1]))

    def list_directories(self, path: str) -> list[str]:
        try:
            with closing(self._opened(path)) as fd, os.scandir(fd) as entries:
                return sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))
        except FileNotFoundError:
            return []

    def move(self, path: str, new: str) -> None:
        parent, name = os.path.split(os.path.abspath(path))
        new_parent, new_name = os.path.split(os.path.abspath(new))
        with closing(self._opened(parent)) as fd, closing(self._opened(new_parent)) as to:
            with NamedErrors(path):
                os.rename(name, new_name, src_dir_fd=fd, dst_dir_fd=to)
            os.fsync(to)

    def delete(self, path: str) -> None:
        parent, name = os.path.split(os.path.abspath(path))
        with contextlib.suppress(FileNotFoundError), closing(self._opened(parent)) as fd:
            with closing(opened_in(fd, name, path)) as inside:
                _empty(inside, path)
            os.rmdir(name, dir_fd=fd)

    def delete_empty(self, path: str) -> None:
        parent, name = os.path.split(os.path.abspath(path))
        with contextlib.suppress(OSError), closing(self._opened(parent)) as fd:
            os.rmdir(name, dir_fd=fd)

    def _split(self, path: str) -> tuple[str, list[str]]:
        """A directory whose path may contain links, and the names below it, which may not."""
        if self._beneath is None:
            return path, []
        prefix, names = f"{self._beneath}{os.sep}", path.split(os.sep)
        if path.startswith(prefix) and not {"", os.curdir, os.pardir} & {*names[1:]}:
            return self._beneath, path.removeprefix(prefix).split(os.sep)  # the usual case
        inside = os.path.relpath(path, self._beneath)
        if inside == os.curdir:
            return path, []
        names = inside.split(os.sep)
        return (path, []) if os.pardir in names else (self._beneath, names)

    def _opened(self, path: str) -> int:
        base, names = self._split(path)
        if names:  # a missing directory, such as most inboxes, is not searched name by name
            os.stat(path, follow_symlinks=False)
        fd = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for name in names:
            with closing(fd):
                fd = opened_in(fd, name, path)
        return fd

    def mount(self, directory: Directory) -> Mount:
        assert isinstance(directory, OSDirectory)
        device, mount_id = directory.device(), directory.mount_id()
        try:
            with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
                text = mounts.read()
        except OSError:  # not Linux
            return Mount("")
        name = f"{os.major(device)}:{os.minor(device)}"
        return mount_in(text, mount_id, name) or Mount("")

    time_ns = staticmethod(time.time_ns)
    random_bytes = staticmethod(os.urandom)

    def process(self) -> tuple[int, str]:
        return os.getpid(), socket.gethostname()


_warned: set[Verdict] = set()


def check_file_system(files: Files, directory: Directory) -> None:
    """Refuse durability="power" where the file system is known not to give it; warn of doubtful
    ones, once each."""
    found = judge(files.mount(directory), "power")
    if found.level == "refused":
        raise LogError(f"{directory.path}: {found.what}. Nothing was written. {found.todo}")
    if found.level == "warning" and found not in _warned:
        _warned.add(found)
        _logger.warning("%s: %s. %s", directory.path, found.what, found.todo)
