"""(c) From a crash to going on: a new process, until the agent makes its first new call."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from ._measure import Result, progress, result

TITLE = "resume: process start to the first new call of a run of that many steps, killed"
YARDSTICK = 'python -c "import msgpack, xxhash, asyncio", from its start as well'

STEPS = (100, 10_000)
COUNT = 20
PROGRAM = Path(__file__).with_name("_agent.py")
IMPORTS = "import msgpack, xxhash, asyncio, time; print(time.monotonic())"


def run(directory: Path, scale: float) -> list[Result]:
    """Crash a run of each length once; resume copies of what it left."""
    return [_steps(directory, max(10, int(steps * scale)), scale) for steps in STEPS]


def _steps(directory: Path, steps: int, scale: float) -> Result:
    progress(f"resume: a run of {steps:,} steps")
    crashed = directory / f"crashed-{steps}"
    command = [sys.executable, str(PROGRAM), "crash", str(crashed), str(steps)]
    done = subprocess.run(command, env=_environment(), check=False, capture_output=True, text=True)
    if done.returncode != -signal.SIGKILL:
        raise RuntimeError(f"the agent was to kill itself, and did not:\n{done.stderr}")
    progress("resume: resuming it")
    resumed, imports = [], []
    for i in range(max(3, int(COUNT * scale))):
        copy = directory / f"resumed-{steps}-{i}"
        shutil.copytree(crashed, copy)
        resumed.append(_until_it_says([str(PROGRAM), "resume", str(copy), str(steps)]))
        imports.append(_until_it_says(["-c", IMPORTS]))
        shutil.rmtree(copy)
    return result(f"{steps:,} steps", resumed, imports)


def _until_it_says(arguments: list[str]) -> float:
    """Seconds from starting a Python to the time that it prints."""
    began = time.monotonic()
    done = subprocess.run([sys.executable, *arguments], env=_environment(), check=True,
                          capture_output=True, text=True)  # fmt: skip
    return float(done.stdout) - began


def _environment() -> dict[str, str]:
    root = str(Path(__file__).parents[2])
    return {**os.environ, "PYTHONPATH": root}
