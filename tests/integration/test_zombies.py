"""A process is stopped inside a tool, another one takes its run, and the first one wakes up.

The bank is outside: a file of payments, under a lock. One bank compares fences, the other does not.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recovery import CheckpointStore, InDoubtError, RecoverableAgent, tool
from recovery.cli.app import run as recovery
from tests.support.processes import Start, said, started, until

AGENT = """
import fcntl, json, sys, threading, time
from pathlib import Path
from recovery import CheckpointStore, InDoubtError, RecoverableAgent, Resolution, current_call, tool

home, role, options = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])

over = threading.Event()

def bank(key="", fence=0):
    with (home / "bank").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        paid = [json.loads(line) for line in file]
        if options.get("compares") and any(fence < one["fence"] for one in paid):
            raise PermissionError(f"fence {fence} is old")
        if key:
            file.write(json.dumps({"key": key, "fence": fence, "by": role}) + "\\n")
        return paid

def find(call):
    paid = [one for one in bank() if one["key"] == call.headers["Idempotency-Key"]]
    print("looked", len(paid), flush=True)
    return Resolution.outcome(paid[0]["by"]) if paid else Resolution.retry()

policy = {"after_crash": options["policy"]} if "policy" in options else {"reconcile": find}

@tool(timeout_s=options.get("timeout_s"), **policy)
def pay(cents):
    call = current_call()
    if role == "first":
        print("paying", flush=True)
        while not (home / "wake").exists():  # stopped, and continued, in here
            time.sleep(0.01)
    try:
        bank(call.idempotency_key, int(call.headers["Fence"]))
    finally:
        over.set()
    return role

def agent(run):
    for step in run.steps():
        return run.call(pay, 100)

try:
    of = RecoverableAgent(agent, CheckpointStore(home / "runs"), park_after_s=options.get("park"))
    found = of.run_with_recovery_sync("task", "run", takeover=role == "taker")
    said = {"result": found["result"], "in_doubt": found["report"].in_doubt}
except InDoubtError as exc:
    said = {"error": "InDoubtError", "text": str(exc), "wake_at": exc.wake_at}
except Exception as exc:
    said = {"error": type(exc).__name__, "text": str(exc)}
if role == "first":  # a thread that the time-out has left pays before the process ends
    over.wait(20)
print(json.dumps(said), flush=True)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with started(AGENT, tmp_path) as start:
        yield start


def stopped(process: subprocess.Popen[str]) -> subprocess.Popen[str]:
    until(process, "paying").send_signal(signal.SIGSTOP)
    return process


def wakes(process: subprocess.Popen[str], home: Path) -> dict[str, Any]:
    (home / "wake").touch()
    process.send_signal(signal.SIGCONT)
    return said(process)


def payers(home: Path) -> list[str]:
    bank = home / "bank"
    return [json.loads(line)["by"] for line in bank.read_text().splitlines() if line]


def test_without_a_time_out_not_there_is_not_believed_while_the_process_is_alive(start, tmp_path):
    zombie = stopped(start("first"))
    found = said(start("taker"))
    assert found["error"] == "InDoubtError"
    assert found["wake_at"] is None
    named = f"process {zombie.pid} on {os.uname().nodename}, which had the run before"
    assert f"{named}, may still execute it" in found["text"]
    assert payers(tmp_path) == []
    status = CheckpointStore(tmp_path / "runs").run("run").status()
    (call,) = status.calls
    assert (status.state, status.due, call.elsewhere_until) == ("in doubt", False, None)
    assert named in call.elsewhere
    assert status.needs_person
    # Whoever comes next knows it from the record, though the process before it has ended.
    assert named in said(start("third"))["text"]
    assert wakes(zombie, tmp_path)["error"] == "FencedError"
    assert said(start("third"))["result"] == "first"
    assert payers(tmp_path) == ["first"]


def test_a_payment_of_the_old_owner_is_found_when_the_time_is_over(start, tmp_path):
    zombie = stopped(start("first", timeout_s=12))
    taker = until(start("taker", timeout_s=12), "looked 0")
    assert wakes(zombie, tmp_path)["error"] == "FencedError"
    assert said(taker)["result"] == "first"
    assert payers(tmp_path) == ["first"]


@pytest.mark.parametrize("compares", [True, False])
def test_a_bank_that_compares_fences_refuses_a_process_that_wakes_too_late(
    start, tmp_path, compares
):
    zombie = stopped(start("first", timeout_s=1, compares=compares))
    found = said(start("taker", timeout_s=1, compares=compares))
    assert found["result"] == "taker"
    assert "may still execute it until" in found["in_doubt"][0]
    assert wakes(zombie, tmp_path)["error"]
    assert payers(tmp_path) == (["taker"] if compares else ["taker", "first"])


def test_a_parked_run_says_until_when_and_the_next_process_keeps_to_that(start, tmp_path):
    zombie = stopped(start("first", timeout_s=20))
    first, second = (said(start(role, timeout_s=20, park=0)) for role in ("taker", "next"))
    assert first["wake_at"] == second["wake_at"] > time.time() - 20
    assert "may still execute it until" in second["text"]
    status = CheckpointStore(tmp_path / "runs").run("run").status()
    assert (status.state, status.wake_at) == ("in doubt", first["wake_at"])
    assert not status.needs_person
    time.sleep(max(0, first["wake_at"] - time.time()))
    assert CheckpointStore(tmp_path / "runs").run("run").status().due
    assert said(start("next", timeout_s=20, park=0))["result"] == "next"
    zombie.kill()


def test_when_the_old_owner_is_killed_the_run_goes_on_at_once(start, tmp_path):
    zombie = stopped(start("first", timeout_s=600))
    taker = until(start("taker", timeout_s=600), "looked 0")
    zombie.kill()
    assert said(taker)["result"] == "taker"
    assert payers(tmp_path) == ["taker"]


def test_after_a_process_that_is_known_to_be_dead_nothing_waits(start, tmp_path):
    dead = stopped(start("first"))
    dead.kill()
    dead.wait()
    found = said(start("second"))
    assert found["result"] == "second"
    assert "may still" not in found["in_doubt"][0]
    assert payers(tmp_path) == ["second"]


def test_a_call_that_may_be_repeated_is_made_again_at_once_and_the_report_says_so(start, tmp_path):
    zombie = stopped(start("first", policy="retry", timeout_s=600, compares=True))
    found = said(start("taker", policy="retry", timeout_s=600, compares=True))
    assert found["result"] == "taker"
    assert f"retry (after_crash=retry); process {zombie.pid} on" in found["in_doubt"][0]
    assert wakes(zombie, tmp_path)["error"] == "FencedError"
    assert payers(tmp_path) == ["taker"]


LEASES = """
import json, os, sys, time
from recovery import RecoverableAgent, tool
from recovery.stores.postgres import PostgresStore

@tool
def charge(cents):
    print("paying", flush=True)
    time.sleep(600)

store = PostgresStore(sys.argv[1], lease_s=1)
RecoverableAgent(lambda run: run.call(charge, 100), store).run_with_recovery_sync("task", "run")
"""


def test_on_a_server_all_say_who_may_still_execute_the_call_before_anybody_resumes(
    postgres: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.url()

    def says(*words: str) -> tuple[int, str]:
        code = recovery([*words, "--store", url])
        found = capsys.readouterr()
        return code, " ".join((found.out + found.err).split())

    def resumed() -> str:
        agent = RecoverableAgent(lambda run: run.call(tool(name="charge")(abs), 100), store)
        with pytest.raises(InDoubtError) as caught:
            agent.resume_sync("run")
        return str(caught.value)

    store = CheckpointStore(url)
    with started(LEASES, url) as start:
        zombie = stopped(start("first"))
        while store.run("run").status().owner.alive:  # type: ignore[union-attr] # its lease
            time.sleep(0.05)
        named = f"process {zombie.pid} on {os.uname().nodename} (owner since "
        (call,) = store.run("run").status().calls
        for _ in range(2):  # before and after it was resumed
            for words in (["status"], ["status", "run"], ["show", "run"]):
                assert named in (said := says(*words)[1]) and "may still execute it" in said
            shown = says("show", "run")[1]
            assert "--retry --force" in shown and "# only once that process has ended" in shown
            code, refused = says("resolve", "run", str(call.lsn), "--retry")
            assert code == 1 and named in refused and "Nothing was written" in refused
            assert named in resumed() and "end that process before you decide" in resumed()
        with monkeypatch.context() as patch:  # from another machine, whether it lives or not
            patch.setattr("eventlog.remote.owner_processes.machine", lambda: "another")
            zombie.kill()
            zombie.wait()
            assert named in says("status", "run")[1]
            assert says("resolve", "run", str(call.lsn), "--retry")[0] == 1
        # On its own machine it is known to have ended.
        assert "may still" not in says("status", "run")[1] + says("show", "run")[1] + resumed()
        assert says("resolve", "run", str(call.lsn), "--retry")[0] == 0
