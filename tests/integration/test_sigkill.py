"""Acceptance 6: a real agent, killed with SIGKILL at random instants, a new process each time.

Its effects are counted by another process, which outlives all of them.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from recovery import CheckpointStore, Resolution
from recovery.control.resolve import resolve
from tests.support.processes import ENVIRONMENT

KILLS = 15
STEPS = 45

# The outside world: notes what it is told, one line per connection, one connection after the
# other, and answers when it has noted it.
COUNTER = """
import socket, sys

with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
    print(server.getsockname()[1], flush=True)
    while True:
        client, _ = server.accept()
        with client, client.makefile("rb") as told:
            try:
                line = told.readline()
                if line.endswith(b"\\n"):
                    with open(sys.argv[1], "ab") as file:
                        file.write(line)
                    client.sendall(b"ok\\n")
            except ConnectionError:
                pass  # the agent was killed
"""

AGENT = """
import asyncio, json, os, signal, socket, sys, threading
from recovery import CheckpointStore, InDoubtError, RecoverableAgent, current_call, tool

home, port, steps, dies_after, moment = sys.argv[1], *map(int, sys.argv[2:5]), float(sys.argv[5])
noted = 0

def is_noted():
    # From inside: a killer in another process may come late, and find the run finished.
    global noted
    if 0 <= dies_after <= noted:
        threading.Timer(moment, os.kill, (os.getpid(), signal.SIGKILL)).start()
    noted += 1

def note(kind, what):
    with socket.create_connection(("127.0.0.1", port)) as world:
        world.sendall(f"{kind} {what} {current_call().idempotency_key}\\n".encode())
        assert world.recv(10) == b"ok\\n"
    is_noted()

@tool
def send(what):
    note("send", what)
    return {"sent": what, "text": "x" * 100}

@tool
async def asend(what):
    await asyncio.to_thread(note, "asend", what)
    return f"sent {what}"

@tool(after_crash="retry")
async def look(what):
    note("look", what)
    return [what]

@tool(after_crash="report")
def report(what):
    note("report", what)
    return "reported"

async def agent(run):
    run.messages.append({"role": "system", "seed": run.uuid()})
    async for step in run.steps():
        run.messages.append(await run.call(look, [step, len(run.messages)]))
        run.messages.append(await run.call(send, f"{step}"))
        run.messages += await asyncio.gather(asend(f"{step} a"), asend(f"{step} b"))
        answer = await run.call(report, f"{step}")
        run.messages.append(str(answer)[:8])
        if step % 7 == 0:
            run.messages[1:4] = [{"summary": step}]
        run.state[f"step {step % 5}"] = [step, run.now(), run.random()]
        if step == steps:
            return [len(run.messages), sorted(run.state)]

agent = RecoverableAgent(agent, CheckpointStore(home), checkpoint_every_n=3)
is_noted()
try:
    found = asyncio.run(agent.run_with_recovery({"steps": steps}, "run"))
except InDoubtError as exc:
    calls = [[call.lsn, call.tool, call.args[0], call.idempotency_key] for call in exc.calls]
    print(json.dumps({"in doubt": calls}), flush=True)
else:
    found |= {"report": str(found["report"]), "usage": str(found["usage"])}
    print(json.dumps(found), flush=True)
"""


class World:
    """The counting process and what it has noted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()
        self.process = subprocess.Popen(
            [sys.executable, "-c", COUNTER, path], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.port = self.process.stdout.readline().strip()

    def effects(self) -> list[tuple[str, str, str]]:
        """What was done: after this nothing of a process that is dead comes in any more."""
        with socket.create_connection(("127.0.0.1", int(self.port))) as last_in_line:
            last_in_line.shutdown(socket.SHUT_WR)
            assert last_in_line.recv(10) == b""
        lines = (line.rsplit(" ", 1) for line in self.path.read_text().splitlines())
        return [(*head.split(" ", 1), key) for head, key in lines]  # type: ignore[misc]

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def live(
    home: Path, world: World, dies_after: int, moment: float
) -> subprocess.CompletedProcess[str]:
    """A process that is killed a moment after so many new effects; -1: that is not."""
    return subprocess.run(
        [sys.executable, "-c", AGENT, home, world.port, str(STEPS), str(dies_after), str(moment)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.slow
def test_an_agent_killed_again_and_again_does_everything_once(
    tmp_path: Path, rng: random.Random
) -> None:
    home, world = tmp_path / "home", World(tmp_path / "effects")
    store = CheckpointStore(home)
    kills, doubts, outcome = 0, Counter[str](), dict[str, Any]()
    try:
        while "result" not in outcome:
            dies_after = rng.randrange(8) if kills < KILLS else -1
            agent = live(home, world, dies_after, rng.uniform(0.0, 0.005))
            if agent.returncode == -signal.SIGKILL:
                kills += 1
            assert agent.returncode in (0, -signal.SIGKILL), agent.stderr
            outcome = json.loads(agent.stdout) if agent.stdout.endswith("}\n") else {}
            for lsn, tool, what, key in outcome.get("in doubt", []):
                # A person looks into the world, and says what is there.
                happened = (tool, what, key) in world.effects()
                result = {"sent": what, "text": "x" * 100} if tool == "send" else f"sent {what}"
                how = Resolution.outcome(result) if happened else Resolution.retry()
                resolve(store, "run", lsn, how, who="test")
                doubts["happened" if happened else "did not"] += 1
        effects = world.effects()
    finally:
        world.close()
    print(f"{kills} kills; in doubt: {dict(doubts)}; {outcome['report']}")
    assert kills == KILLS
    times = Counter((kind, what) for kind, what, _ in effects)
    for kind, names in (
        ("send", [str(step) for step in range(1, STEPS + 1)]),
        ("asend", [f"{step} {who}" for step in range(1, STEPS + 1) for who in "ab"]),
    ):
        assert {what: times[kind, what] for what in names} == dict.fromkeys(names, 1)
    # These may be missing (reported as unknown to the agent), and are never done twice.
    assert all(times["report", str(step)] <= 1 for step in range(1, STEPS + 1))
    assert sum(times["report", str(step)] for step in range(1, STEPS + 1)) >= STEPS - kills
    # Every attempt at a call carried the same key, and no other call did.
    keys = {(kind, what, key) for kind, what, key in effects}
    assert len({key for *_, key in keys}) == len(keys) == len(times)
    assert outcome["recovery_count"] >= kills // 2
    with contextlib.closing(store):
        assert store.validate("run")
