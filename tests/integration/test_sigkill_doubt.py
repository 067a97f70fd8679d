"""A tool that times out around a payment, killed with SIGKILL at each record."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from recovery import CheckpointStore, Resolution, resolve, status
from recovery.stores.file import FileStore
from recovery.testing._forgotten import forgotten

ENVIRONMENT = os.environ | {
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)])
}
# It dies when it has appended so many records. A line of the file is one effect, by its key.
PROCESS = """
import asyncio, json, os, signal, sys
from eventlog import EventLog
from recovery import CheckpointStore, InDoubtError, RecoverableAgent, current_call, tool
from recovery.stores.file import FileStore

home, effects, records = sys.argv[1], sys.argv[2], int(sys.argv[3])

@tool
async def charge(cents):
    with open(effects, "a") as file:
        file.write(current_call().idempotency_key + "\\n")
    await asyncio.sleep(0.5)
    return "receipt"

@tool(timeout_s=0.05, after_crash="retry")
async def order(cents):
    return await charge(cents)

async def agent(run):
    for i in range(2):
        try:
            return await run.call(order, 100, call_id=f"c{i}")
        except TimeoutError:
            pass
    return "gave up"

append, count = EventLog.append, 0
def dies(self, *args):
    global count
    lsn = append(self, *args)
    count += 1
    if count == records:
        os.kill(os.getpid(), signal.SIGKILL)
    return lsn
EventLog.append = dies

made = RecoverableAgent(agent, CheckpointStore(FileStore(home)))
try:
    ended = made.run_with_recovery_sync("task", "run")["result"]
except InDoubtError as exc:
    ended = [call.tool for call in exc.calls]
print(json.dumps([ended, count]))
"""


def process(tmp_path: Path, records: int) -> Any:
    """What a life came to, and how many records it wrote; None if it was killed."""
    args = [str(tmp_path / "home"), str(tmp_path / "effects"), str(records)]
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, *args], env=ENVIRONMENT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode == -signal.SIGKILL:
        return None
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def charged(tmp_path: Path) -> Counter[str]:
    effects = tmp_path / "effects"
    return Counter(effects.read_text().split() if effects.exists() else [])


def settle(tmp_path: Path) -> None:
    """Say the truth about each payment in doubt, of which none may be missing."""
    backend = FileStore(tmp_path / "home")
    assert list(forgotten(backend)) == []
    store = CheckpointStore(backend)
    for call in status(store, "run").in_doubt if list(backend.run_ids()) else ():
        if call.tool == "charge":
            known = charged(tmp_path)[call.idempotency_key]
            how = Resolution.outcome("receipt") if known else Resolution.retry()
            resolve(store, "run", call.lsn, how)


@pytest.mark.parametrize("life", [1, 2])
def test_it_is_paid_once_wherever_the_process_is_killed(tmp_path: Path, life: int) -> None:
    records, killed = 0, True
    while killed:
        records, killed = records + 1, False
        place = tmp_path / str(records)
        place.mkdir()
        ended: Any = None
        for number in range(1, 8):
            ended = process(place, records if number == life else 0)
            killed |= ended is None
            settle(place)
            if ended is not None and ended[0] == "receipt":
                break
        assert ended is not None
        assert ended[0] == "receipt"
        assert list(charged(place).values()) == [1]
    assert records > 3
