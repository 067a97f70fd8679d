"""Timing in turns, and what a figure needs beside it to mean anything.

Absolute times of a durable write say more about the machine than about the code: what a flush
costs differs by orders of magnitude, virtual disks acknowledge from a cache, and on an idle kernel
with a slow tick a waiter wakes up milliseconds late. So everything is a ratio to a yardstick that
is measured in turns with it (A B A B), and the process asks for real-time scheduling where it may.
"""

from __future__ import annotations

import contextlib
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from eventlog._files import OSFiles

Step = Callable[[int], object]

WARM_UP = 5  # rounds that are not counted


@dataclass(frozen=True, slots=True)
class Result:
    """Times in milliseconds of what is measured, and of its yardstick."""

    name: str
    count: int
    median_ms: float
    p99_ms: float
    yardstick_median_ms: float
    yardstick_p99_ms: float

    @property
    def ratio(self) -> float:
        return self.median_ms / self.yardstick_median_ms

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio}


def in_turns(
    name: str,
    measured: Step,
    yardstick: Step,
    count: int,
    *,
    turn: int = 1,
    before: Callable[[], object] | None = None,
) -> Result:
    """Call both ``count`` times with a running number, ``turn`` calls of one, then of the other.

    ``before`` is called before each round of two turns, and is not timed.
    """
    times: tuple[list[float], list[float]] = ([], [])
    rounds = -(-count // turn)
    for number in range(-WARM_UP, rounds):
        if before is not None:
            before()
        for step, taken in zip((measured, yardstick), times, strict=True):
            for i in range(turn):
                began = time.perf_counter()
                step((number + WARM_UP) * turn + i + 1)
                if number >= 0:
                    taken.append(time.perf_counter() - began)
    return result(name, *times)


def result(name: str, measured_s: list[float], yardstick_s: list[float]) -> Result:
    """The figures of two lists of seconds."""
    return Result(name, len(measured_s), _median(measured_s), _p99(measured_s),
                  _median(yardstick_s), _p99(yardstick_s))  # fmt: skip


def _median(times_s: list[float]) -> float:
    return statistics.median(times_s) * 1000


def _p99(times_s: list[float]) -> float:
    ordered = sorted(times_s)
    return ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] * 1000


def table(title: str, yardstick: str, results: list[Result]) -> str:
    """The results as a table for people."""
    width = max(len(one.name) for one in results)
    heads = "  ".join(f"{head:>10}" for head in ("median", "p99", "yardstick", "p99"))
    lines = [title, f"yardstick: {yardstick}", "", f"{'':{width}}  {heads}  ratio"]
    for one in results:
        times = (one.median_ms, one.p99_ms, one.yardstick_median_ms, one.yardstick_p99_ms)
        columns = "  ".join(f"{f'{ms:.3f} ms':>10}" for ms in times)
        lines.append(f"{one.name:{width}}  {columns}  {one.ratio:5.2f}")
    return "\n".join(lines) + "\n"


def real_time() -> str:
    """Ask for real-time scheduling; the scheduling that we have now."""
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        return "SCHED_FIFO 1"
    return "default (waking up after a flush may take a tick of the kernel; trust only ratios)"


def environment(directory: Path, scheduling: str) -> dict[str, str]:
    """What the figures were measured on."""
    files = OSFiles()
    opened = files.open_directory(str(directory))
    kind = files.file_system(opened)
    opened.close()
    packages = ("msgpack", "xxhash", "isal")
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": _git("rev-parse", "--short", "HEAD") + _dirty(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        **{name: _version(name) for name in packages},
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpus": str(os.cpu_count()),
        "scheduling": scheduling,
        "file system": f"{kind} ({_mount(directory)})",
        "directory": str(directory),
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _mount(directory: Path) -> str:
    """Device and options of the file system that holds ``directory``."""
    best = ("", "unknown")
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mounts").read_text().splitlines():
            device, point, _, options = line.split()[:4]
            if directory.is_relative_to(point) and len(point) >= len(best[0]):
                best = (point, f"{device}, {options}")
    return best[1]


def _git(*args: str) -> str:
    done = subprocess.run(["git", *args], capture_output=True, text=True, check=False,
                          cwd=Path(__file__).parent)  # fmt: skip
    return done.stdout.strip() or "unknown"


def _dirty() -> str:
    sources = ("../../eventlog", "../../recovery")
    changed = _git("status", "--porcelain", "--untracked-files=no", *sources)
    return "" if changed == "unknown" else " and uncommitted changes"


def progress(text: str) -> None:
    """Say on a terminal what is being measured."""
    if sys.stderr.isatty():
        print(f"... {text}", file=sys.stderr)
