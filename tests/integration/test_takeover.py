"""Acceptance 7, for runs: one process works on a run, whatever the others do."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eventlog import EventLog, LogError
from recovery import CheckpointStore, RecoverableAgent, Run, tool
from recovery.journal.encoding import decode
from recovery.journal.events import CallIntended, CallReturned
from tests.support.processes import Start, said, started, until

AGENT = """
import asyncio, json, os, sys, time
from pathlib import Path
from eventlog import LogError
from recovery import CheckpointStore, RecoverableAgent, tool

home, effects, role = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]

@tool
def send(what):
    with effects.open("a") as file:
        file.write(f"{role} {what}\\n")
    return f"{role} {what}"

async def agent(run):
    async for step in run.steps():
        run.messages.append(await run.call(send, step))
        run.state["by"] = role
        if role == "first" and step == 4:
            print("waiting", flush=True)
            while not (home.parent / "go on").exists():  # stopped, and continued, in here
                time.sleep(0.01)
        if step == 8:
            return run.messages

of = RecoverableAgent(agent, CheckpointStore(home), checkpoint_every_n=2)
try:
    found = asyncio.run(of.run_with_recovery("task", "run", takeover=role == "taker"))
    print(json.dumps({"result": found["result"], "from": found["recovered_from_step"]}))
except LogError as exc:
    print(json.dumps({"error": type(exc).__name__, "text": str(exc)}))
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with started(AGENT, tmp_path / "home", tmp_path / "effects") as start:
        yield start


def records(tmp_path: Path) -> list[tuple[int, str, bytes]]:
    with EventLog.read(tmp_path / "home" / "run") as log:
        return [(record.lsn, record.kind, record.packed) for record in log.records()]


def test_the_second_process_gets_the_error_at_once(start, tmp_path):
    """It does not wait for the first, which waits for this test."""
    first = until(start("first"), "waiting")
    second = said(start("second"))
    assert second["error"] == "LogLockedError"
    assert f"process {first.pid} on {socket.gethostname()}" in second["text"]
    (tmp_path / "go on").touch()
    assert said(first)["result"] == [f"first {n}" for n in range(1, 9)]
    # Later ones get the result, and execute nothing.
    assert said(start("third"))["result"] == [f"first {n}" for n in range(1, 9)]
    assert len((tmp_path / "effects").read_text().splitlines()) == 8


def test_a_run_is_taken_over_from_a_stopped_process_and_what_that_writes_never_counts(
    start, tmp_path
):
    first = until(start("first"), "waiting")
    first.send_signal(signal.SIGSTOP)
    assert said(start("second"))["error"] == "LogLockedError"  # stopped is not dead
    taken = said(start("taker"))
    expected = [f"first {n}" for n in range(1, 5)] + [f"taker {n}" for n in range(5, 9)]
    # The last checkpoint of the first was that of step 2: what it has done since is in the log.
    assert taken == {"result": expected, "from": 2}
    before = records(tmp_path)
    (tmp_path / "go on").touch()
    first.send_signal(signal.SIGCONT)
    fenced = said(first)
    assert fenced["error"] == "FencedError"
    assert "taken over by process" in fenced["text"]
    assert records(tmp_path) == before
    effects = (tmp_path / "effects").read_text().splitlines()
    assert effects == expected  # the first never came to the effect of step 5
    assert said(start("third"))["result"] == expected


def test_a_dead_process_needs_no_takeover(start, tmp_path):
    first = until(start("first"), "waiting")
    first.kill()
    first.wait()
    expected = [f"first {n}" for n in range(1, 5)] + [f"second {n}" for n in range(5, 9)]
    assert said(start("second"))["result"] == expected


def test_a_forked_child_of_an_agent_cannot_append(tmp_path):
    """The child has the agent's memory; the log is not its to write to."""

    @tool
    def send(what: str) -> str:
        with (tmp_path / "effects").open("a") as file:
            file.write(f"{what}\n")
        return what

    async def agent(run: Run) -> Any:
        await run.call(send, "before")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                try:
                    send("in the child")
                except BaseException as exc:
                    cause = getattr(exc, "error", exc)
                    code = 7 if isinstance(cause, LogError) and "fork" in str(cause) else 2
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)  # noqa: ASYNC222 - nothing else is to run
        await run.call(send, "after")
        return os.waitstatus_to_exitcode(status)

    with CheckpointStore(tmp_path / "home") as store:
        of = RecoverableAgent(agent, store)
        assert asyncio.run(of.run_with_recovery("task", "run"))["result"] == 7
        assert (tmp_path / "effects").read_text().split() == ["before", "after"]
        with EventLog.read(tmp_path / "home" / "run") as log:
            events = [decode(record) for record in log.records()]
    assert [type(e) for e in events if isinstance(e, CallIntended | CallReturned)] == [
        CallIntended,
        CallReturned,
    ] * 2
