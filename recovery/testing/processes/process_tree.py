"""Runs one session of an agent: a process, all that it starts, and their certain end.

Every process of a session has the session's token in its environment. So processes that left the
process group are found, and a new process with the number of a dead one is never killed.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

TOKEN = "CRASHTEST_LIFE"
TAIL_SIZE = 4000  # of what a process printed, when it has failed
END_S = 10.0  # how long killed processes may take to end
POLL_S = 0.002

Kill = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a session: ``code`` as a shell gives it (None: the time limit was reached)."""

    code: int | None
    killed: bool
    stdout: Path
    stderr: Path

    def tail(self) -> str:
        """The end of what it printed."""
        parts = [(path.name, _tail(path)) for path in (self.stdout, self.stderr)]
        return "\n".join(f"{name}:\n{text}" for name, text in parts if text) or "(it said nothing)"

    def last_line(self) -> str:
        """The last error that it printed, or its last output."""
        lines = (_tail(self.stderr) or _tail(self.stdout)).splitlines()
        return lines[-1].strip() if lines else "it said nothing"


def new_token() -> str:
    """The token in the environment of a session, as ``$CRASHTEST_LIFE``."""
    return secrets.token_hex(16)


class Life:
    """A process from its start to the end of the last process that it has started.

    A context manager: after the block none of its processes is alive. ``kill`` may be called from
    any thread, and returns when the signal was sent.
    """

    def __init__(
        self, command: Sequence[str], cwd: Path, environment: Mapping[str, str], output: Path
    ) -> None:
        self._token = environment[TOKEN]
        self._stdout, self._stderr = output.with_suffix(".out"), output.with_suffix(".err")
        self._killed = False
        self._lock = threading.Lock()  # between the kill and the end of the process's number
        with self._stdout.open("wb") as stdout, self._stderr.open("wb") as stderr:
            self._process = subprocess.Popen(
                command,
                cwd=cwd,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,  # a group of its own; Ctrl-C is for the crash test
            )

    def kill(self) -> None:
        """SIGKILL to the process group. Its leader is not reaped yet, so the number is its own."""
        self._killed = True
        self._kill_group()

    def _kill_group(self) -> None:
        with self._lock, suppress(ProcessLookupError, PermissionError):
            if self._process.returncode is None:
                os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self, limit_s: float, kill_after_s: float | None = None) -> Ended:
        """Let it run; kill it after ``kill_after_s``, or when ``limit_s`` is over."""
        began = time.monotonic()
        moments = [limit_s] if kill_after_s is None else [kill_after_s, limit_s]
        while not self._ended():
            passed = time.monotonic() - began
            if passed >= limit_s:
                self._end()
                return Ended(None, False, self._stdout, self._stderr)
            if passed >= moments[0]:
                self.kill()
                moments = [limit_s]
            time.sleep(max(0.0, min(POLL_S, moments[0] - passed)))
        code = self._end()
        return Ended(code, self._killed and code < 0, self._stdout, self._stderr)

    def _ended(self) -> bool:
        """Whether the process has ended; it stays a zombie, so its number is not reused."""
        how = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._process.pid, how) is not None

    def _end(self) -> int:
        """Kill its remaining processes, wait until they are gone, and reap the process."""
        if self._process.returncode is not None:
            return self._process.returncode
        deadline = time.monotonic() + END_S
        while True:
            self._kill_group()
            if (not kill_all(self._token) and self._ended()) or time.monotonic() > deadline:
                break
            time.sleep(POLL_S)
        with self._lock:
            return self._process.wait()

    def __enter__(self) -> Life:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()


def end_all(token: str) -> None:
    """Kill all processes of a session, and wait until they are gone."""
    deadline = time.monotonic() + END_S
    while kill_all(token) and time.monotonic() < deadline:
        time.sleep(POLL_S)


def kill_all(token: str) -> int:
    """Kill all processes of a session; returns how many there were."""
    return sum(_kill_carrier(pid, token) for pid in list(_carriers(token)))


def _carriers(token: str) -> Iterator[int]:
    """The processes that were started with this token; a zombie has no environment."""
    if sys.platform != "linux":
        return  # only the process group can be found
    wanted = f"{TOKEN}={token}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # ended meanwhile, or another user's
            if wanted in path.read_bytes().split(b"\0"):
                yield int(path.parent.name)


def _kill_carrier(pid: int, token: str) -> bool:
    """Kill a process by a handle taken before its token was read, so it is the right one."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        found = f"{TOKEN}={token}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
        if found:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        return found
    except OSError:
        return False
    finally:
        os.close(handle)


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_SIZE))
        return file.read().decode(errors="replace").strip()
