"""Both commands, driven: called in this process, and as processes on a terminal or in a pipe.

    done = call("logdump", "verify", "finished", cwd=runs)      in this process
    done = processes.on_terminal("logdump", "dump", "finished")  a real pseudo-terminal, 80 columns
    golden("logdump-verify-finished", done.transcript())         as in tests/cli/golden, or a diff

In all of them it is the same time, so that ages are the same.
"""

from __future__ import annotations

import atexit
import contextlib
import difflib
import fcntl
import functools
import io
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import IO
from unicodedata import east_asian_width
from unittest import mock

import logdump
import typer.main

import recovery.cli

HERE = Path(__file__).parent
RUNS = HERE.parent / "data" / "runs"
GOLDEN = HERE / "golden"
NOW = 1_777_885_200.0 + 2 * 3600  # two hours after the golden runs began
DIFF_LINES_MAX = 60
PATIENCE_S = 60.0  # for a process that hangs
MAINS: dict[str, Callable[[list[str]], int]] = {
    "logdump": logdump.main,
    "recovery": recovery.cli.main,
}

# To make the parser of all commands takes most of the time of one.
one_parser = functools.partial(
    mock.patch, "typer.main.get_command", functools.cache(typer.main.get_command)
)

# Colours and the like, which the commands send themselves; no other escape sequence ever.
SGR = re.compile(r"\x1b\[[0-9;]*m")
# Besides, where a line is drawn anew: to its start, clear it, hide and show the cursor, move up.
LIVE = re.compile(r"\x1b\[(?:[0-9]*[AGK]|\?25[hl]|[0-9;]*m)|\r(?!\n)")


@dataclass(frozen=True)
class Done:
    """What a command printed, and its exit code. ``shown``: all of it, on a terminal."""

    args: tuple[str, ...]
    code: int
    out: str = ""
    err: str = ""
    shown: str = ""

    def transcript(self) -> str:
        """As golden files have it: what was typed, what came, how it ended."""
        parts = [f"$ {' '.join(self.args)}", self.out.rstrip("\n")]
        if self.err:
            parts.append("[stderr]\n" + self.err.rstrip("\n"))
        if self.code:
            parts.append(f"[exit code {self.code}]")
        return "\n".join(part for part in parts if part) + "\n"


def environment(**more: str) -> dict[str, str]:
    """The environment of a command: nothing of whoever runs the tests, but where Python is."""
    kept = {name: os.environ[name] for name in ("PATH", "EVENTLOG_HOME") if name in os.environ}
    return (
        {"HOME": "/nonexistent", "LANG": "C.UTF-8", "COLUMNS": "80", "TZ": "UTC", "PAGER": ""}
        | kept
        | more
    )


def call(tool: str, *args: str, cwd: Path, env: dict[str, str] | None = None) -> Done:
    """Call the command in this process, its output in a pipe of 80 columns."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with (
        contextlib.chdir(cwd),
        mock.patch.dict(os.environ, environment(**env or {}), clear=True),
        mock.patch.multiple(time, time=lambda: NOW, time_ns=lambda: int(NOW * 1e9)),
        one_parser(),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        zone_of_environment(),
    ):
        try:
            code = MAINS[tool](list(args))
        except SystemExit as ended:
            code = int(ended.code or 0)
    printed = [stream.buffer.getvalue().decode() for stream in (out, err)]
    return Done((tool, *args), code, *printed)


@contextlib.contextmanager
def zone_of_environment() -> Iterator[None]:
    """Local time is that of $TZ, which must be put back before this ends."""
    time.tzset()
    try:
        yield
    finally:
        os.environ.pop("TZ", None)
        time.tzset()


# -- golden outputs


def golden(name: str, found: str) -> None:
    """AssertionError, with a diff, unless that is what tests/cli/golden/NAME.txt has."""
    path = GOLDEN / f"{name}.txt"
    wanted = path.read_text("utf-8") if path.exists() else ""
    if found != wanted:
        lines = difflib.unified_diff(
            wanted.splitlines(), found.splitlines(), f"golden/{name}.txt", "now", lineterm="", n=2
        )
        raise AssertionError(
            "\n".join(islice(lines, DIFF_LINES_MAX))
            + "\nIf that is as it should be: python -m tests.cli.golden"
        )


def neutral(text: str, store: Path) -> str:
    """Without what differs from machine to machine, and from version to version. A line is as wide
    as the path in it."""
    text = text.replace(str(store), "{store}").replace(os.path.realpath(store), "{store}")
    text = text.replace(version("agent-eventlog"), "{version}")
    return "\n".join(line.rstrip(" ") for line in text.split("\n"))


# -- what may reach a terminal


def raw(text: str, *, live: bool = False) -> list[str]:
    """What a terminal would act upon and the command did not send itself: nothing, if all is well.

    ``live``: lines may be drawn anew.
    """
    text = (LIVE if live else SGR).sub("", text)
    return sorted({repr(c) for c in text if not c.isprintable() and c != "\n"})


def columns(line: str) -> int:
    """How many columns of a terminal a line takes."""
    text = SGR.sub("", line)
    return len(text) + sum(east_asian_width(c) in "WF" for c in text)


# -- processes


class _Server:
    """The process that starts them. All tests of a process have one: it imports everything."""

    def __init__(self) -> None:
        path = os.pathsep.join(str(Path(part).absolute()) for part in sys.path if part)
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "error", HERE / "server.py", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=environment(PYTHONPATH=path, PYTHONUTF8="1"),
            )
        self.socket.settimeout(PATIENCE_S)
        atexit.register(self.end)

    def end(self) -> None:
        self.socket.close()
        self._process.wait(PATIENCE_S)


_server = functools.cache(_Server)


class Processes:
    """Starts the commands as processes, in the directory ``cwd``. A context manager."""

    def __init__(self, cwd: Path) -> None:
        self.cwd = cwd
        self._is_running = False  # a command whose exit code nobody has asked for

    def __enter__(self) -> Processes:
        self._socket = _server().socket
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_running:  # the test failed meanwhile: its exit code would be the next one's
            _server().end()
            _server.cache_clear()

    def on_terminal(
        self,
        tool: str,
        *args: str,
        keys: bytes = b"",
        size: tuple[int, int] = (24, 80),
        env: dict[str, str] | None = None,
    ) -> Done:
        """Run it on a pseudo-terminal of so many lines and columns, until it ends.

        ``keys`` are typed once it has shown something; ``\\x03`` is Ctrl-C.
        """
        given = environment(**{"TERM": "xterm-256color"} | (env or {}))
        del given["COLUMNS"]
        master, slave = pty.openpty()
        try:
            termios.tcsetwinsize(slave, size)
            pid = self._start(tool, args, given, [slave] * 3)
            os.close(slave)
            shown = _shown(master, keys, pid)
        finally:
            os.close(master)
        code = self._code()
        return Done((tool, *args), code, shown=shown.decode().replace("\r\n", "\n"))

    def in_closed_pipe(self, tool: str, *args: str) -> Done:
        """Run it with an output that nobody reads any more."""
        reading, writing = os.pipe()
        os.close(reading)
        with tempfile.TemporaryFile() as err:
            try:
                self._start(tool, args, environment(), [writing, writing, err.fileno()])
            finally:
                os.close(writing)
            return self._done(tool, args, err)

    def interrupted(self, tool: str, *args: str) -> Done:
        """Run it, and interrupt it when it waits, because nobody reads what it prints."""
        reading, writing = os.pipe()
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
        os.write(writing, bytes(4096))
        with tempfile.TemporaryFile() as err:
            try:
                pid = self._start(tool, args, environment(), [writing, writing, err.fileno()])
                _until_it_waits(pid)
                os.kill(pid, signal.SIGINT)
                os.close(writing)
                writing = -1
                while os.read(reading, 1 << 16):  # else it would wait again, to flush the rest
                    pass
                return self._done(tool, args, err)
            finally:
                os.close(reading)
                if writing >= 0:
                    os.close(writing)

    def _start(
        self, tool: str, args: Sequence[str], env: dict[str, str], files: Sequence[int]
    ) -> int:
        request = {"tool": tool, "args": args, "env": env, "cwd": str(self.cwd), "now": NOW}
        self._is_running = True
        socket.send_fds(self._socket, [json.dumps(request).encode()], files)
        return int(self._socket.recv(100))

    def _code(self) -> int:
        code = int(self._socket.recv(100))
        self._is_running = False
        return code

    def _done(self, tool: str, args: Sequence[str], err: IO[bytes]) -> Done:
        code = self._code()
        err.seek(0)
        return Done((tool, *args), code, err=err.read().decode())


def _shown(master: int, keys: bytes, pid: int) -> bytes:
    """What comes to the terminal until the process has ended."""
    shown = b""
    while True:
        if not select.select([master], [], [], PATIENCE_S)[0]:
            raise TimeoutError(f"the process neither writes nor ends: {shown!r}")
        try:
            part = os.read(master, 1 << 16)
        except OSError:  # Linux: all on the other side have closed it
            return shown
        if not part:
            return shown
        shown += part
        if keys:
            _until_it_waits(pid)  # a Ctrl-C just before it reads would be seen at the next key only
            os.write(master, keys)
            keys = b""


def _until_it_waits(pid: int) -> None:
    """Until the process sleeps, and does so again a moment later: in a write to what is full, or a
    read of what is not there yet."""
    deadline = time.monotonic() + PATIENCE_S
    sleeps = 0
    while sleeps < 5:
        stat = Path(f"/proc/{pid}/stat").read_text()
        sleeps = sleeps + 1 if stat.rpartition(")")[2].split()[0] == "S" else 0
        if time.monotonic() > deadline:
            raise TimeoutError("the process goes on and on")
        time.sleep(0.005)
