"""Runs that were killed: how long a new process takes until it goes on with one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from .memory import PEAK, field

PROGRAMS = Path(__file__).parents[1] / "programs"


class Killed:
    """A turn starts so many processes, one after the other, each of which resumes the same run.

    What a resumption writes is undone before the next one: new files are removed, and those that
    it changes are put back, durably, so that no later flush pays for it.
    """

    program = ""

    def __init__(self, directory: Path, case: dict[str, Any]) -> None:
        self._arguments = [str(case["steps"]), str(case.get("size", 2048))]
        place = Path(case["place"]) / type(self).__name__
        self._run, self._copies = place / "run", place / "copies"
        self._run.mkdir(parents=True, exist_ok=True)
        self._copies.mkdir(exist_ok=True)
        self._left = {path: _stamp(path) for path in self.files()}  # by the crash

    def make(self) -> dict[str, float]:
        """Let the program make the run, and kill itself; what that took."""
        began = time.monotonic()
        done = self._start("crash")
        if done.returncode != -signal.SIGKILL:
            raise RuntimeError(f"{self.program} was to kill itself, and did not:\n{done.stderr}")
        took = time.monotonic() - began
        for path in self.changing():
            shutil.copyfile(path, self._copies / path.name)
        os.sync()
        return {"seconds": took, "bytes": sum(path.stat().st_size for path in self.files())}

    def turn(self, count: int) -> list[float]:
        """Seconds from the start of the process to the first call that was not made before."""
        times = []
        for _ in range(count):
            self._put_back()
            began = time.monotonic()
            times.append(float(self._resume("resume")) - began)
        return times

    def files(self) -> list[Path]:
        return sorted(path for path in self._run.rglob("*") if path.is_file())

    def changing(self) -> list[Path]:
        """The files in which a resumption changes something; all, where they are small."""
        return self.files()

    def _resume(self, mode: str) -> str:
        done = self._start(mode)
        if done.returncode:
            how = f"and ended with {done.returncode}"
            raise RuntimeError(f"{self.program} was to resume, {how}:\n{done.stderr}")
        return done.stdout

    def _start(self, mode: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(PROGRAMS / self.program), mode, str(self._run)]
        return subprocess.run(
            command + self._arguments, check=False, capture_output=True, text=True
        )

    def _put_back(self) -> None:
        for path in self.files():
            if path not in self._left:
                path.unlink()
        for path, stamp in self._left.items():
            copy = self._copies / path.name
            if copy.exists():
                shutil.copyfile(copy, path)
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            elif _stamp(path) != stamp:
                raise RuntimeError(f"{path} was changed by a resumption")


class Ours(Killed):
    """A run of recovery."""

    program = "ours.py"

    def memory(self) -> int:
        """Bytes that a process which resumes it has at its peak, until it makes the call."""
        self._put_back()
        return field(self._resume("memory"), PEAK)

    def changing(self) -> list[Path]:
        files = self.files()
        *_, newest = (path for path in files if path.suffix == ".seg")
        return [newest, *(path for path in files if path.suffix != ".seg")]


class Graph(Killed):
    """A graph of recovery."""

    program = "graph.py"


class Dbos(Killed):
    """A workflow of DBOS."""

    program = "with_dbos.py"


class LangGraph(Killed):
    """A thread of LangGraph."""

    program = "with_langgraph.py"


class Imports:
    """The yardstick: what any process must import that does the like."""

    def __init__(self, directory: Path, case: dict[str, Any]) -> None:
        code = "import msgpack, xxhash, asyncio, time; print(time.monotonic())"
        self._command = [sys.executable, "-c", code]

    def turn(self, count: int) -> list[float]:
        times = []
        for _ in range(count):
            began = time.monotonic()
            done = subprocess.run(self._command, check=True, capture_output=True, text=True)
            times.append(float(done.stdout) - began)
        return times


def _stamp(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns
