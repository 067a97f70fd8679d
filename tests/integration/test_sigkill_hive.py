"""Hive's loop and its graph executors, their process killed with SIGKILL at a record."""

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
SUBJECTS = ["loop", "GraphExecutor", "Orchestrator"]

# A line of the file is one effect. It dies when it has appended so many records: before what comes
# next, and with what the last one says not yet done.
PROCESS = """
import asyncio, json, os, signal, sys, uuid
from types import SimpleNamespace
from eventlog import EventLog
from recovery import RecoverableAgent, Resolution, current_call, tool
from recovery.integrations import hive
from tests.support import hive_graphs, hive_loop
from tests.unit.integrations.hive.test_hive_graph import Node, fan_out
from tests.unit.integrations.hive.test_hive_loop import LLM

home, subject, records = sys.argv[1], sys.argv[2], int(sys.argv[3])
os.environ["HIVE_HOME"] = home
file = os.open(home + "/effects", os.O_APPEND | os.O_RDWR | os.O_CREAT)
with open(home + "/effects") as known:
    effects = dict(line.rstrip("\\n").split(" ", 1) for line in known)

append, count = EventLog.append, 0
def counted(self, *args):
    global count
    lsn = append(self, *args)
    count += 1
    if count == records:
        os.kill(os.getpid(), signal.SIGKILL)
    return lsn
EventLog.append = counted

def look(call):
    done = effects.get(call.idempotency_key)
    return Resolution.retry() if done is None else Resolution.outcome(f"sent {done}")

def send(key, what):
    os.write(file, f"{key} {what}\\n".encode())
    return f"sent {what}"

async def loop():
    files = hive_loop.FileConversationStore(home + "/conversations")
    def executor(use):
        sent = send(hive.current_call().idempotency_key, use.input["item"])
        return hive_loop.ToolResult(use.id, sent)
    llm = LLM(SimpleNamespace(items=12, batch=12, new_id=lambda at: uuid.uuid4().hex))
    with hive.RecordedLoop("run", executor, files, after_crash={"send": look}) as session:
        agent = hive_loop.AgentLoop(tool_executor=session.tool_executor,
                                    conversation_store=session.conversation_store)
        said = await agent.execute(hive_loop.AgentContext(llm))
    parts = await files.read_parts()
    return [said, sorted(part["content"] for part in parts if part["role"] == "tool")]

@tool(reconcile=look)
def send_once(what):
    return send(current_call().idempotency_key, what)

async def graph():
    spec = fan_out(8)
    async def agent(run):
        nodes = {node.id: Node(lambda ctx: {ctx.node_id: send_once(ctx.node_id)})
                 for node in spec.nodes}
        registry = hive.recorded_nodes(run, nodes, after_crash="retry")
        executor = getattr(hive_graphs, subject)(None, node_registry=registry)
        return hive.recorded_result(run, await executor.execute(spec, "goal", {}))
    made = RecoverableAgent(agent, hive.default_store(), max_recoveries=0)
    done = await made.run_with_recovery("task", "run")
    return [done["result"]["success"], done["result"]["output"]]

result = asyncio.run(loop() if subject == "loop" else graph())
print(json.dumps([result, count]))
"""


def process(home: Path, subject: str, records: int) -> Any:
    """What it came to, and the records that it appended; None if it was killed."""
    home.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, str(home), subject, str(records)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == -signal.SIGKILL:
        return None
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def effects(home: Path) -> Counter[str]:
    return Counter(line.split(" ", 1)[1] for line in (home / "effects").read_text().splitlines())


def killed_at(base: Path, subject: str, points: list[int]) -> None:
    nodes = ["first", *(f"b{i}" for i in range(8)), "join"]
    wanted: Any = ["all done", sorted(f"sent {item}" for item in range(12))]
    if subject != "loop":
        wanted = [True, {name: f"sent {name}" for name in nodes}]
    for point in points:
        home = base / str(point)
        assert process(home, subject, point) is None
        found, _ = process(home, subject, 0)
        assert found == wanted, point
        done = map(str, range(12)) if subject == "loop" else nodes
        assert effects(home) == Counter(done), point


@pytest.mark.parametrize(("subject", "last"), [("loop", 30), ("GraphExecutor", 36)])
def test_no_tool_is_called_twice_when_the_process_was_killed(tmp_path, subject, last, rng):
    killed_at(tmp_path, subject, [rng.randint(8, last)])


@pytest.mark.crash
@pytest.mark.parametrize("subject", SUBJECTS)
def test_no_tool_is_called_twice_wherever_the_process_was_killed(tmp_path, subject):
    _, last = process(tmp_path / "count", subject, 0)
    killed_at(tmp_path, subject, random.Random(0).sample(range(1, last), 20))
