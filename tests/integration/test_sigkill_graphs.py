"""Graphs whose process is killed with SIGKILL at a record, resumed in a new process from the id."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

ENVIRONMENT = os.environ | {
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)])
}
SUBJECTS = ["chain", "fan_out", "loop", "flexible"]

# A line of the file is one effect; what is written survives the process. It dies when it has
# appended so many records: before what comes next, and with what the last one says not yet done.
PROCESS = """
import asyncio, json, os, signal, sys
from eventlog import EventLog
from recovery import CheckpointManager
from tests.support import graphs

home, effects, subject, records = *sys.argv[1:4], int(sys.argv[4])
world = graphs.World()

class Lasting(dict):
    def __setitem__(self, key, what):
        os.write(file, f"{key} {what}\\n".encode())
        super().__setitem__(key, what)

file = os.open(effects, os.O_APPEND | os.O_RDWR | os.O_CREAT)
with open(effects) as known:
    world.effects = Lasting(line.rstrip("\\n").split(" ", 1) for line in known)

count = 0
def dies(append):
    def counted(self, *args):
        global count
        lsn = append(self, *args)
        count += 1
        if count == records:
            os.kill(os.getpid(), signal.SIGKILL)
        return lsn
    return counted
EventLog.append = dies(EventLog.append)
EventLog.append_snapshot = dies(EventLog.append_snapshot)

manager = CheckpointManager(home)
done = graphs.finished_visits(manager)
result = asyncio.run(graphs.resume(getattr(graphs, subject), world, manager))
again = sorted(set(world.entered) & done)
print(json.dumps([result.success, result.output, result.path, again, count]))
"""


def process(tmp_path: Path, subject: str, records: int) -> Any:
    """What an execution, or a resumption, came to; None if it was killed."""
    args = [str(tmp_path / "home"), str(tmp_path / "effects"), subject, str(records)]
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, *args],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == -signal.SIGKILL:
        return None
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def effects(tmp_path: Path) -> Counter[str]:
    lines = (tmp_path / "effects").read_text().splitlines()
    keys = Counter(line.split(" ", 1)[0] for line in lines)
    assert set(keys.values()) <= {1}
    return Counter(line.split(" ", 1)[1] for line in lines)


def killed_at(base: Path, subject: str, points: list[int], wanted: tuple[Any, Any]) -> None:
    for point in points:
        tmp_path = base / str(point)
        tmp_path.mkdir()
        assert process(tmp_path, subject, point) is None
        success, output, path, again, _ = process(tmp_path, subject, 0)
        assert success
        assert again == [], "a finished node was executed again"
        assert ([output, path], effects(tmp_path)) == wanted


def whole(tmp_path: Path, subject: str) -> tuple[tuple[Any, Any], int]:
    (tmp_path / "whole").mkdir()
    success, output, path, _, records = process(tmp_path / "whole", subject, 0)
    assert success
    return ([output, path], effects(tmp_path / "whole")), records


@pytest.mark.slow
@pytest.mark.parametrize("subject", SUBJECTS)
def test_killed_at_a_record_and_resumed_from_the_id(
    tmp_path: Path, subject: str, rng: random.Random
) -> None:
    wanted, records = whole(tmp_path, subject)
    killed_at(tmp_path, subject, sorted(rng.sample(range(1, records), 2)), wanted)


@pytest.mark.crash
@pytest.mark.parametrize("subject", SUBJECTS)
def test_killed_at_every_record_and_resumed_from_the_id(tmp_path: Path, subject: str) -> None:
    wanted, records = whole(tmp_path, subject)
    killed_at(tmp_path, subject, [*range(1, records + 1)], wanted)
