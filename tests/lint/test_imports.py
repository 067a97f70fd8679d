"""What importing the library imports: little, and nothing heavy before it is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT

# Modules that take a millisecond and more, are imported by neither asyncio nor msgpack, and of
# which a run that does not use them needs none.
HEAVY = set(
    """
    cryptography email h11 hashlib hmac http numpy pydantic pytest random rich sqlite3 statistics
    tempfile typer unittest xml
    recovery.agent.run_handle recovery.calls.stream recovery.cli recovery.graph recovery.ops
    recovery.inspect.status recovery.testing
    eventlog.crypto.xaes eventlog.read.verify eventlog.testing
    """.split()
)
MODULES_MAX = 75  # of others: what an import costs is what it brings from elsewhere

BEFORE = "import asyncio, sys, msgpack, xxhash\nbefore = set(sys.modules)\n"
AFTER = "\nimport json\nprint(json.dumps(sorted(set(sys.modules) - before)))"
AGENT = """
from recovery import CheckpointStore, RecoverableAgent, tool
@tool(after_crash="retry")
async def twice(n):
    return {"n": 2 * n}
async def agent(run):
    async for step in run.steps():
        run.state["n"] = step
        run.messages.append(await run.call(twice, step))
        if step == 4:
            return run.messages[-1]
store = CheckpointStore(sys.argv[1])
asyncio.run(RecoverableAgent(agent, store, 2).run_with_recovery("task", "run"))
"""


def run(code: str, *args: str) -> Any:
    """What a process of its own prints, as JSON."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code, *args], env=env, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("what", ["import recovery", AGENT], ids=["import", "run"])
def test_nothing_heavy_is_imported(what: str, tmp_path: Path) -> None:
    imported = run(BEFORE + what + AFTER, str(tmp_path / "store"))
    assert "recovery.agent.recoverable" in imported
    assert {name for name in imported if name in HEAVY or name.partition(".")[0] in HEAVY} == set()
    others = [name for name in imported if not name.startswith(("eventlog", "recovery"))]
    assert len(others) <= MODULES_MAX, others


def test_log_alone_does_not_import_the_runtime(tmp_path: Path) -> None:
    code = """
from eventlog import EventLog
with EventLog.open(sys.argv[1]) as log:
    log.append("greeting", {"text": "hello"})
    log.commit()
"""
    imported = run(BEFORE + code + AFTER, str(tmp_path / "log"))
    assert not [name for name in imported if name.startswith("recovery") or name in HEAVY]
