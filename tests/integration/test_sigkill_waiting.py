"""Real processes: killed with SIGKILL while they wait, and sent to by others while they live."""

from __future__ import annotations

import json
import os
import random
import signal as signals
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from recovery import CheckpointStore, RecoveryError
from recovery.control.cancel import cancel
from recovery.control.send import approve, pending, signal
from recovery.errors import RunCancelledError

RUN = "run"
KILLS, PAYMENTS = 8, 6
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}

# A line of the file of effects is one effect; what is written survives the process.
AGENT = """
import json, os, sys
from recovery import CheckpointStore, RecoverableAgent, Resolution, current_call, tool

home, effects, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
world = os.open(effects, os.O_APPEND | os.O_RDWR | os.O_CREAT)

def look(call):
    with open(effects) as file:
        paid = any(line.split()[1] == call.idempotency_key for line in file)
    return Resolution.outcome(call.args[0]) if paid else Resolution.retry()

@tool(needs_approval=True, reconcile=look)
def pay(what):
    os.write(world, f"{what} {current_call().idempotency_key}\\n".encode())
    return what

def agent(run):
    for step in run.steps():
        run.messages.append(run.wait_for("order"))
        run.messages.append(run.call(pay, step))
        run.sleep(0.02)
        if step == count:
            return list(run.messages)

done = RecoverableAgent(agent, CheckpointStore(home), 2).run_with_recovery_sync("task", "run")
print(json.dumps(done["result"]))
"""

SENDER = """
import sys
from recovery.control.send import signal
from recovery.stores.file import FileStore
for number in range(int(sys.argv[2])):
    signal(FileStore(sys.argv[1]), "run", "order", number, key=f"order {number}")
"""


def start(tmp_path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", AGENT, tmp_path / "home", tmp_path / "effects", str(PAYMENTS)],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def sender(tmp_path: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", SENDER, tmp_path / "home", str(PAYMENTS)],
        env=ENVIRONMENT,
        stderr=subprocess.DEVNULL,
    )


def until_it_began(store: CheckpointStore, process: subprocess.Popen[str]) -> None:
    while not any(run.uid for run in store.runs()):  # a log may have no record yet
        assert process.poll() is None
        time.sleep(0.01)


@pytest.mark.slow
def test_killed_at_random_while_others_send_and_approve(tmp_path: Path, rng: random.Random) -> None:
    store = CheckpointStore(tmp_path / "home")
    for kills in range(10_000):
        process = start(tmp_path)
        until_it_began(store, process)
        sending = sender(tmp_path)
        # They are killed, too, wherever they are; what they repeat is there once.
        deadline = time.monotonic() + (rng.uniform(0, 1.0) if kills < KILLS else 60)
        while process.poll() is None and time.monotonic() < deadline:
            for call in pending(store, RUN):
                try:
                    approve(store, RUN, call, who="ann")
                except RecoveryError:
                    assert process.poll() is not None or pending(store, RUN) != [call]
            time.sleep(0.01)
        sending.kill()
        sending.wait()
        if process.poll() is not None:
            break
        process.send_signal(signals.SIGKILL)
        process.communicate()
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    numbers = [x for step in range(1, PAYMENTS + 1) for x in (step - 1, step)]
    assert json.loads(output) == numbers
    paid = Counter(line.split()[0] for line in (tmp_path / "effects").read_text().splitlines())
    assert paid == Counter(str(step) for step in range(1, PAYMENTS + 1))


def test_a_live_process_hears_of_its_end(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "home")
    process = start(tmp_path)
    until_it_began(store, process)
    signal(store, RUN, "order", 0)
    while not pending(store, RUN):
        assert process.poll() is None
        time.sleep(0.01)
    cancel(store, RUN, who="ann", why="enough")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"{RunCancelledError.__name__}: run 'run' was cancelled by ann: enough" in errors
    assert (tmp_path / "effects").read_text() == ""
    with pytest.raises(RecoveryError, match="has ended"):
        signal(store, RUN, "order")
