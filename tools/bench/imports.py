"""What it takes to import the library, and its size."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import replace

from ._bench import Bench, Chart
from ._result import Aim, Result, found, median
from ._worker import ROOT, Subject, Worker, in_turns, results

TITLE = "Importing the library"
ABOUT = """\
Whole processes, from their start to their end, without what one takes that imports nothing (in the
last row). `recovery` imports asyncio, which is its yardstick, and everything that an agent needs;
integrations, stores for servers and commands are imported by those who use them."""
UNIT = "ms more than the interpreter"
YARDSTICK = "import asyncio"
CHART = Chart("bars", log=False)

CASE, ALONE = "imports", "the interpreter"
KINDS = (
    ("agent-eventlog, import recovery", "imports:Recovery"),
    ("agent-eventlog, import eventlog", "imports:EventLog"),
    (YARDSTICK, "imports:Asyncio"),
    (ALONE, "imports:Nothing"),
)
ROUNDS, MORE_MS = 40, 40


def run(bench: Bench) -> list[Result]:
    """In turns; then the wheel is built."""
    subjects = [Subject(name, kind) for name, kind in KINDS]
    measured = in_turns(subjects, bench.place(), {}, turn=1, rounds=bench.times(ROUNDS, 5))
    alone = [turn[0] for turn in measured[ALONE][0]]
    more = {
        name: ([[turn[0] - start] for turn, start in zip(turns, alone, strict=True)], size)
        for name, (turns, size) in measured.items()
        if name != ALONE
    }
    made = []
    for one, subject in zip(results(CASE, more, YARDSTICK, 1000), subjects, strict=False):
        with Worker(subject, bench.place(), {}) as worker:
            made.append(replace(one, size=None, note=f"{worker.ask('modules')} modules"))
    made[0] = replace(made[0], note=made[0].note + _wheel(bench))
    return [*made, Result(CASE, ALONE, median(alone) * 1000, count=len(alone))]


def aims(results: Sequence[Result]) -> list[Aim]:
    """Beside asyncio, which it needs."""
    ours, asyncio = (found(results, CASE, name).median for name in (KINDS[0][0], YARDSTICK))
    return [Aim("import recovery, ms more than import asyncio", MORE_MS, ours - asyncio)]


def _wheel(bench: Bench) -> str:
    """The size of the distribution; nothing where it cannot be built without the network."""
    place = bench.place()
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(place),
    ]
    alone = [] if bench.peers else ["--no-build-isolation"]  # else its build system is installed
    if subprocess.run([*build, *alone, str(ROOT)], check=False, capture_output=True).returncode:
        return ""
    (wheel,) = place.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        installed = sum(entry.file_size for entry in archive.infolist())
    return f"; a wheel of {wheel.stat().st_size >> 10} KB, {installed >> 10} KB installed"
