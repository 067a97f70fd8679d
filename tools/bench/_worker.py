"""Subjects, each in a process of its own, and their steps measured in turns.

A subject is a class: made with a directory of its own and a case (a dict), it has ``step(number)``,
or ``turn(count)`` that gives the seconds of each of so many steps; perhaps ``close()``, and methods
that a benchmark asks by name. Being in processes of their own, subjects share no caches, no
garbage collector and no event loop, and those of other packages run under another Python.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from ._result import Result, median, p99, ratio

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("_serve.py")

WARM_UP = 3  # turns that are not counted, at most; at least one, and one for five that are

# The system calls by which data, or names, are made durable.
_FLUSHES = ("fsync", "fdatasync", "sync_file_range", "msync", "syncfs", "sync")


class SubjectError(Exception):
    """A subject could not be measured."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured: ``kind`` is "module:Class" in tools.bench.subjects. ``root``: the checkout
    whose code it runs."""

    name: str
    kind: str
    python: str = sys.executable
    root: Path = ROOT


class Worker:
    """A subject at work; a context manager."""

    def __init__(
        self,
        subject: Subject,
        directory: Path,
        case: Mapping[str, Any],
        prefix: Sequence[str] = (),
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.name = subject.name
        command = [*prefix, subject.python, str(PROGRAM), f"tools.bench.subjects.{subject.kind}"]
        self._process = subprocess.Popen(
            [*command, str(directory), json.dumps(dict(case))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=_environment(subject.root),
        )
        try:
            self._answer()
        except BaseException:
            self._process.kill()
            self._process.communicate()
            raise

    def ask(self, call: str, **args: Any) -> Any:
        """What the method of the subject returns (as JSON has it)."""
        assert self._process.stdin is not None
        print(json.dumps({"call": call, "args": args}), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None and self._process.stderr is not None
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else {}
        if "value" not in answer:
            error = answer.get("error") or self._process.stderr.read()[-2000:]
            raise SubjectError(f"{self.name}: {error or 'its process ended'}")
        return answer["value"]

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Let it close, and wait for that; or kill it when something is amiss."""
        if exc is not None:
            self._process.kill()
        self._process.communicate()


def _environment(root: Path) -> dict[str, str]:
    # What is imported was compiled before, as what pip has installed is.
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(root)}


def in_turns(
    subjects: Sequence[Subject],
    directory: Path,
    case: Mapping[str, Any],
    *,
    turn: int,
    rounds: int,
    clock: str = "steps",
) -> dict[str, tuple[list[list[float]], float]]:
    """Turns of ``turn`` steps of each subject, ``rounds`` times: by name, the seconds of each
    counted turn's steps, and bytes on disk for each step, once it is closed.

    ``clock``: "steps" times each step; "cpu" gives one figure a turn, of CPU per step.
    """
    places = {one.name: directory / str(i) for i, one in enumerate(subjects)}
    times: dict[str, list[list[float]]] = {one.name: [] for one in subjects}
    warm_up = max(1, min(WARM_UP, rounds // 5))
    with ExitStack() as held:
        workers = [held.enter_context(Worker(one, places[one.name], case)) for one in subjects]
        empty = {name: size_of(place) for name, place in places.items()}
        for number in range(warm_up + rounds):
            for worker in workers:
                took = worker.ask(clock, first=number * turn + 1, count=turn)
                if number >= warm_up:
                    times[worker.name].append(took)
    # Closed: without what is taken ahead, or not yet where it belongs.
    steps = (warm_up + rounds) * turn
    sizes = {name: (size_of(place) - empty[name]) / steps for name, place in places.items()}
    return {name: (times[name], sizes[name]) for name in times}


def results(
    case: str,
    measured: Mapping[str, tuple[list[list[float]], float]],
    yardstick: str,
    scale: float,
    flushes: Callable[[str], float | None] = lambda name: None,
) -> list[Result]:
    """As Results, in seconds times ``scale``."""
    found = []
    for name, (turns, size) in measured.items():
        flat = [value for turn in turns for value in turn]
        tail = p99(flat)
        found.append(
            Result(
                case,
                name,
                median(flat) * scale,
                None if tail is None else tail * scale,
                statistics.fmean(flat) * scale,
                len(flat),
                ratio(turns, measured[yardstick][0]),
                size,
                flushes(name),
            )
        )
    return found


def flushes(subject: Subject, directory: Path, case: Mapping[str, Any]) -> float | None:
    """How many flushes a step takes, as the operating system sees it; None without strace."""
    if shutil.which("strace") is None:
        return None
    few, many = (_flushes(subject, directory / f"{n}", case, n) for n in (20, 120))
    return max(0.0, (many - few) / 100)  # what is flushed behind may be more in the shorter one


def _flushes(subject: Subject, directory: Path, case: Mapping[str, Any], count: int) -> int:
    directory.mkdir(parents=True)
    trace = directory.with_suffix(".strace")
    watched = ",".join(f"?{name}" for name in _FLUSHES)
    prefix = ("strace", "-f", "-qq", "-e", f"trace={watched}", "-o", str(trace))
    with Worker(subject, directory, {**case, "real_time": False}, prefix) as worker:
        worker.ask("steps", first=1, count=count)
        seen = trace.read_text()  # what closing takes is not a step's
    return len(re.findall(r"^\d+ +\w+\(", seen, re.MULTILINE))


def size_of(directory: Path) -> int:
    """Bytes of all files in a directory, but for SQLite's WAL, which goes when it is closed."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return sum(path.stat().st_size for path in files if not path.name.endswith(("-wal", "-shm")))
