"""A real process with twenty child runs, killed with SIGKILL at random instants."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from recovery import CheckpointStore
from recovery.control.relatives import children, parent

KILLS, CHILDREN, STEPS = 12, 20, 4
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}

# A line of the file of effects is one effect; what is written survives the process.
AGENT = """
import asyncio, json, os, sys
from recovery import CheckpointStore, RecoverableAgent, Resolution, current_call, tool

home, effects, count, steps = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
world = os.open(effects, os.O_APPEND | os.O_RDWR | os.O_CREAT)

def look(call):
    with open(effects) as file:
        happened = any(line.split()[1] == call.idempotency_key for line in file)
    return Resolution.outcome(f"sent {call.args[0]}") if happened else Resolution.retry()

@tool(reconcile=look)
async def send(what):
    await asyncio.sleep(0.001)
    os.write(world, f"{what} {current_call().idempotency_key}\\n".encode())
    return f"sent {what}"

async def sub(run):
    async for step in run.steps():
        run.messages.append(await run.call(send, f"{run.task}.{step}"))
        if step == steps:
            return list(run.messages)

async def agent(run):
    return await asyncio.gather(*(run.child(sub, i, checkpoint_every_n=1) for i in range(count)))

found = asyncio.run(RecoverableAgent(agent, CheckpointStore(home), max_children=8)
                    .run_with_recovery("task", "run"))
print(json.dumps(found["result"]))
"""


def start(tmp_path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            AGENT,
            tmp_path / "home",
            tmp_path / "effects",
            str(CHILDREN),
            str(STEPS),
        ],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def kill_after(agent: subprocess.Popen[str], effects: Path, count: int, moment: float) -> None:
    while agent.poll() is None and effects.read_bytes().count(b"\n") < count:
        time.sleep(0.0005)
    time.sleep(moment)
    agent.kill()
    agent.communicate()


@pytest.mark.slow
def test_no_child_is_started_or_does_anything_twice(tmp_path: Path, rng: random.Random) -> None:
    effects = tmp_path / "effects"
    effects.touch()
    kills = 0
    for _ in range(KILLS):
        before = effects.read_bytes().count(b"\n")
        agent = start(tmp_path)
        kill_after(agent, effects, before + rng.randrange(1, 9), rng.uniform(0, 0.005))
        kills += agent.returncode == -9
    assert kills >= KILLS // 2
    out, err = start(tmp_path).communicate(timeout=120)
    expected = [[f"sent {i}.{step}" for step in range(1, STEPS + 1)] for i in range(CHILDREN)]
    assert out, err
    assert json.loads(out) == expected
    found = Counter(line.split()[0] for line in effects.read_text().splitlines())
    assert found == {f"{i}.{step}": 1 for i in range(CHILDREN) for step in range(1, STEPS + 1)}
    store = CheckpointStore(tmp_path / "home")
    started = children(store, "run")
    assert len(started) == len({child.run_id for child in started}) == CHILDREN
    assert sorted(store.backend.run_ids()) == sorted(["run", *(one.run_id for one in started)])
    for child in started:
        link = parent(store, child.run_id)
        assert child.state == "finished" and link is not None and link.lsn == child.call
