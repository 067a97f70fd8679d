"""What went wrong in DBOS 3.4.0 when it was really run (docs/comparison.md), done to this library.

Each test does what was done there: 30 steps and a SIGKILL inside step 20, right behind its effect;
30 random bits flipped, one at a time, in the store of a run of 210 steps.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eventlog import LogError
from eventlog.testing import SimulatedDisk
from recovery import CheckpointStore, RecoverableAgent, Resolution, SyncRun, tool
from recovery.control.resolve import resolve
from recovery.errors import DamagedRunError
from recovery.stores.log_store import LogStore
from tests.support.processes import ENVIRONMENT

STEPS, KILLED_IN = 30, 20

AGENT = """
import json, os, sys, time
from recovery import CheckpointStore, InDoubtError, RecoverableAgent, tool

home, effects, kill_in = sys.argv[1], sys.argv[2], int(sys.argv[3])

@tool
def charge(step):
    with open(effects, "a") as file:
        file.write(f"{step}\\n")
    if step == kill_in:
        print("inside", flush=True)
        time.sleep(600)
    return {"step": step, "text": "x" * 100}

def agent(run):
    for step in run.steps():
        run.messages.append(charge(step))
        if step == STEPS:
            return [message["step"] for message in run.messages]

runner = RecoverableAgent(agent, CheckpointStore(home))
try:
    print(json.dumps(runner.run_with_recovery_sync("charge them", "run")["result"]))
except InDoubtError as parked:
    print(json.dumps([[call.tool, call.args, call.lsn] for call in parked.calls]))
""".replace("STEPS", str(STEPS))


class Process:
    """An agent in a process of its own, killed behind the effect of one step."""

    def __init__(self, tmp_path: Path) -> None:
        self.home, self.effects = tmp_path / "home", tmp_path / "effects"
        self.source = tmp_path / "agent.py"
        self.source.write_text(AGENT)

    def command(self, kill_in: int) -> list[str]:
        return [sys.executable, str(self.source), str(self.home), str(self.effects), str(kill_in)]

    def killed(self) -> None:
        process = subprocess.Popen(
            self.command(KILLED_IN), env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "inside\n"
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()

    def resumed(self) -> Any:
        done = subprocess.run(
            self.command(0), env=ENVIRONMENT, stdout=subprocess.PIPE, check=True, timeout=120
        )
        return json.loads(done.stdout)

    def counted(self) -> Counter[str]:
        return Counter(self.effects.read_text().split())


ONCE = Counter(map(str, range(1, STEPS + 1)))


def test_a_kill_behind_the_effect_of_a_step_does_not_repeat_it(tmp_path: Path) -> None:
    process = Process(tmp_path)
    process.killed()
    for _ in range(2):  # however often: it waits for somebody who knows
        ((name, args, lsn),) = process.resumed()
        assert (name, args) == ("charge", [KILLED_IN])
    assert process.counted()[str(KILLED_IN)] == 1
    happened = Resolution.outcome({"step": KILLED_IN, "text": "it is in the books"})
    resolve(CheckpointStore(process.home), "run", lsn, happened)
    assert process.resumed() == list(range(1, STEPS + 1))
    assert process.counted() == ONCE


executed: Counter[Any] = Counter()


class DiesError(Exception):
    pass


# -- flipped bits

LENGTH, DONE, EVERY, FLIPS = 210, 200, 20, 30


def long_agent(last: int) -> Callable[[SyncRun], Any]:
    def agent(run: SyncRun) -> Any:
        for step in run.steps():
            found = run.call(make, step)
            run.messages.append(found)
            run.state["sum"] = run.state.get("sum", 0) + found["number"]
            if step == last < LENGTH:
                raise DiesError
            if step == LENGTH:
                return [list(run.messages), run.state["sum"]]
        raise AssertionError

    return agent


@tool
def make(step: int) -> dict[str, Any]:
    executed[step] += 1
    return {"number": step * 7919, "text": f"{step} " + "otter " * 300, "raw": bytes(200)}


def on(disk: SimulatedDisk) -> CheckpointStore:
    return CheckpointStore(LogStore("runs", disk, "power"))


def test_flipped_bits_never_hand_a_wrong_value_to_a_run(rng: random.Random, figures: Any) -> None:
    whole = RecoverableAgent(long_agent(LENGTH), CheckpointStore())
    expected = whole.run_with_recovery_sync("t", "run")["result"]
    crashed = SimulatedDisk(seed=1)
    with pytest.raises(DiesError):
        died = RecoverableAgent(long_agent(DONE), on(crashed), EVERY, max_recoveries=0)
        died.run_with_recovery_sync("t", "run")
    ends: Counter[str] = Counter()
    for _ in range(FLIPS):
        disk = crashed.after_process_death()
        files = disk.directories["runs/run"]
        name = rng.choice(sorted(name for name in files if name.endswith(".seg")))
        file: Any = files[name]
        at = rng.randrange(len(bytes(file.content).rstrip(b"\0")))  # where there is something
        file.content[at] ^= 1 << rng.randrange(8)
        file.durable, file.pending = bytes(file.content), []
        executed.clear()
        try:
            runner = RecoverableAgent(long_agent(LENGTH), on(disk), EVERY)
            result = runner.run_with_recovery_sync("t", "run")["result"]
        except (DamagedRunError, LogError) as exc:
            ends[type(exc).__name__] += 1
            assert not executed  # it was told, before anything was done
        else:
            ends["whole"] += 1
            assert result == expected, f"bit flipped at {at} of {name}"
        assert all(step > DONE for step in executed), executed
    figures.add("flipped bits of a run's log", **ends)
