"""Real kernels for tests: processes, small file systems, system calls that fail on command.

Each right is tried once per session, for real; a test that needs one that the machine does not
give is skipped, and says which and why.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

ENVIRONMENT = os.environ | {
    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    "PYTHONDONTWRITEBYTECODE": "1",
}
HEAD = """
import errno, os, signal, sys, threading, time
from eventlog import *
from eventlog.errors import *
def say(*words):  # one write, at once
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
"""

# Before the interesting part of a program: strace counts the calls of each process by itself, so
# those of a child begin with it, whatever starting Python took.
FORK = """
pid = os.fork()
if pid:
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os._exit(code if code >= 0 else 128 - code)
"""
KILLED = 128 + 9  # what that parent ends with when its child was killed


def python(code: str, *args: object) -> list[str]:
    """The command for a program, which has the names of eventlog, and ``say`` to print."""
    return [sys.executable, "-c", HEAD + textwrap.dedent(code), *map(str, args)]


@dataclass(frozen=True, slots=True)
class Ended:
    """What a program said, and how it ended."""

    code: int
    lines: list[str]
    err: str

    def after(self, word: str) -> list[str]:
        """What came after ``word`` at the start of a line."""
        return [line.removeprefix(word).strip() for line in self.lines if line.startswith(word)]

    @property
    def acknowledged(self) -> int:
        """The number of the last whole ``ACK`` line; 0 if there is none."""
        return int((self.after("ACK ") or ["0"])[-1])


def run(command: Sequence[str], timeout_s: float = 120) -> Ended:
    """Run a program to its end."""
    done = subprocess.run(
        command, capture_output=True, text=True, env=ENVIRONMENT, timeout=timeout_s, check=False
    )
    whole = done.stdout[: done.stdout.rfind("\n") + 1]  # a killed one may leave half a line
    return Ended(done.returncode, whole.splitlines(), done.stderr)


# -- tools and rights


def _tried(command: Sequence[str]) -> str:
    """Why a command does not work here; "" if it does."""
    if shutil.which(command[0]) is None:
        return f"{command[0]} is not installed"
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False, env=ENVIRONMENT
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        return f"{command[0]} does not work here: {exc}"
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        return f"{command[0]} does not work here: {said[-1] if said else done.returncode}"
    return ""


@functools.cache
def no_strace() -> str:
    """Why strace cannot make a system call of a child fail; "" if it can."""
    program = "import os; r, w = os.pipe(); pid = os.fork(); pid or os.fsync(r)"
    inject = ["-e", "trace=fsync", "-e", "inject=fsync:retval=0:when=1"]
    return _tried(
        ["strace", "-f", "--seccomp-bpf", "-o", os.devnull, *inject, sys.executable, "-c", program]
    )


@functools.cache
def no_prlimit() -> str:
    """Why prlimit cannot limit the size of files; "" if it can."""
    return _tried(["prlimit", "--fsize=4096:4096", "true"])


@functools.cache
def no_faketime() -> str:
    """Why faketime cannot set the clock of a process; "" if it can."""
    is_then = "import sys, time; sys.exit(time.gmtime().tm_year != 2001)"
    return _tried(["faketime", "-f", "@2001-02-03 04:05:06", sys.executable, "-c", is_then])


def needed(reason: str) -> None:
    """Skip this test if something that it needs is not to be had."""
    if reason:
        pytest.skip(reason)


# -- strace


def traced(
    command: Sequence[str],
    *,
    calls: str,
    record: Path | str = os.devnull,
    inject: str = "",
    path: Path | None = None,
) -> list[str]:
    """The command under strace: ``calls`` (of ``path`` alone, if it is given) are recorded whole,
    one of them fails as told. Each process and thread counts its calls by itself.
    """
    needed(no_strace())
    options = ["-f", "-y", "-xx", "-s", str(1 << 24), "-o", str(record)]
    options += ["-e", "signal=none", "-e", f"trace={calls}"]
    options += ["-e", f"inject={inject}"] if inject else []
    if "signal=" not in inject:  # faster, but it cannot bring a signal in
        options.append("--seccomp-bpf")
    options += ["-P", str(path)] if path else []
    return ["strace", *options, *command]


# -- file systems

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class Mount:
    """A file system in a mount namespace of its own, which lives as long as one process.

    Nobody else sees the mount, and whatever ends the test ends it too: the kernel undoes it with
    the last process in the namespace, which waits for its standard input to be closed.
    ``inside``: where it is mounted, for processes started by ``command``. ``path``: the same
    place for this process, which is outside of the namespace.
    """

    def __init__(self, how: str, size: int) -> None:
        """``how`` mounts on ``$where``; it may use the sparse file ``$image`` of ``size`` bytes."""
        # In memory where possible: what is tested is a full disk, not a slow one.
        self._home = tempfile.TemporaryDirectory(
            prefix="mount-", dir=MEMORY, ignore_cleanup_errors=True
        )
        self.inside = Path(self._home.name, "at")
        image = Path(self._home.name, "image")
        self.inside.mkdir()
        image.touch()
        os.truncate(image, size)
        unshare = ["unshare", "--mount", "--propagation", "private"]
        if os.geteuid():
            unshare.append("--map-root-user")
        script = f'where="$1" image="$2"\n{how} || exit 1\necho mounted; exec cat'
        self.holder = subprocess.Popen(
            [*unshare, "sh", "-c", script, "sh", str(self.inside), str(image)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.holder.stdout is not None
        self.failed = ""
        if self.holder.stdout.readline() != "mounted\n":
            said = self.holder.communicate()[1].strip().splitlines()
            self.failed = said[-1] if said else "no reason given"
        self.path = Path(f"/proc/{self.holder.pid}/root{self.inside}")

    def command(self, command: Sequence[str]) -> list[str]:
        """The command as it runs where the file system is mounted."""
        user = ["--user", "--preserve-credentials"] if os.geteuid() else []
        return ["nsenter", "--target", str(self.holder.pid), "--mount", *user, *command]

    def close(self) -> None:
        """Undo the mount: with the last process in its namespace it goes."""
        with suppress(OSError):
            self.holder.communicate()
        self._home.cleanup()

    # -- the free space

    def fill(self, spare: int = 0) -> None:
        """Take all free space except about ``spare`` bytes."""
        filler = self.path / "filler"
        piece = bytes(1 << 20)
        with filler.open("ab", buffering=0) as file:
            while piece:
                try:
                    file.write(piece)
                except OSError:  # full for this size; go down to single bytes
                    piece = piece[: len(piece) // 2]
            file.truncate(max(0, filler.stat().st_size - spare))
            os.fsync(file.fileno())  # a journal gives freed blocks back when it has been written

    def free(self) -> None:
        """Give the space back."""
        (self.path / "filler").unlink(missing_ok=True)
        for link in self.path.glob("inode-*"):
            link.unlink()

    def use_up_inodes(self, spare: int = 0) -> None:
        """Make files until there are no inodes left except ``spare``."""
        made = 0
        with suppress(OSError):
            while True:
                (self.path / f"inode-{made}").touch()
                made += 1
        for number in range(min(spare, made)):
            (self.path / f"inode-{number}").unlink()


TMPFS = 'mount -t tmpfs -o size={size},nr_inodes=200 tmpfs "$where"'
EXT4 = 'mkfs.ext4 -q -F -m 0 -N 64 {options} "$image" && mount -o loop "$image" "$where"'
XFS = 'mkfs.xfs -q -f "$image" && mount -o loop "$image" "$where"'
KINDS = {
    "tmpfs": (TMPFS.format(size="1m"), 0),
    "ext4": (EXT4.format(options="-b 4096 -O ^has_journal"), 2 << 20),
    "ext4 with journal": (EXT4.format(options="-b 1024 -J size=1"), 8 << 20),
    "xfs": (XFS, 300 << 20),
}


@functools.cache
def no_mount(kind: str) -> str:
    """Why a file system of this kind cannot be mounted here; "" if it can."""
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        return "unshare and nsenter (util-linux) are not installed"
    mount = Mount(*KINDS[kind])
    try:
        if mount.failed:
            return f"{kind} cannot be mounted here: {mount.failed}"
        return _tried(mount.command(["touch", str(mount.inside / "x")]))
    finally:
        mount.close()


@contextmanager
def mounted(kind: str) -> Iterator[Mount]:
    """A file system of this kind, until the end of the block; the test is skipped without it."""
    needed(no_mount(kind))
    mount = Mount(*KINDS[kind])
    try:
        assert not mount.failed, mount.failed
        yield mount
    finally:
        mount.close()
