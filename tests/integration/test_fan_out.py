"""Very many children in one process with the file descriptors that a process has by default."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from recovery import CheckpointStore
from recovery.control.relatives import children
from tests.support.processes import ENVIRONMENT

LIMIT = 64

AGENT = """
import asyncio, json, os, resource, sys
from recovery import CheckpointStore, RecoverableAgent, tool
from recovery.stores.file import FileStore

resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
store = CheckpointStore(FileStore(sys.argv[1], "process"))
at_work, most, descriptors, executed, many = 0, 0, 0, 0, asyncio.Event()

@tool
async def send(what):
    global executed, descriptors
    executed += 1
    descriptors = max(descriptors, len(os.listdir("/proc/self/fd")))
    await asyncio.wait_for(many.wait(), 120)
    return what

async def sub(run):
    global at_work, most
    at_work += 1
    most = max(most, at_work)
    if at_work == int(sys.argv[3]):  # as many as there may be
        many.set()
    result = await run.call(send, run.task)
    at_work -= 1
    return result

async def agent(run):
    return sum(await asyncio.gather(*(run.child(sub, i) for i in range(int(sys.argv[2])))))

for _ in range(2):
    found = asyncio.run(RecoverableAgent(agent, store).run_with_recovery("task", "run"))
    print(json.dumps([found["result"], executed, most, descriptors]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors in /proc")
@pytest.mark.parametrize("count", [250, pytest.param(1000, marks=pytest.mark.crash)])
def test_a_thousand_children_at_once(tmp_path: Path, count: int) -> None:
    arguments = [sys.executable, "-c", AGENT, str(tmp_path), str(count), str(LIMIT)]
    done = subprocess.run(arguments, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    first, again = map(json.loads, done.stdout.splitlines())
    assert first[:2] == again[:2] == [sum(range(count)), count]
    assert first[2] == LIMIT
    assert first[3] < LIMIT * 4 + 50
    assert len(children(CheckpointStore(tmp_path), "run")) == count
