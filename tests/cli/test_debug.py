"""``recovery debug``: pdb stops at the agent's line, and reads its commands from a pipe."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from recovery import CheckpointStore
from tests.cli.harness import call, environment

AGENTS = """
import asyncio
from recovery import CheckpointStore, RecoverableAgent, tool

def note(what):
    with open("done", "a") as file:
        file.write(what)

@tool(after_crash="retry")
async def ask(question):
    note("a")
    return question.upper()

@tool
def pay(cents):
    note("p")
    return f"paid {cents}"

@tool
async def order(cents):
    return pay(cents)                       # inside another call

async def shop(run):
    total = 0
    async for step in run.steps():          # a step begins
        answer = await run.call(ask, f"q{step}")    # asks
        total += step
        parts = await asyncio.gather(run.call(ask, "x"), run.call(ask, "y"))  # gathers
        if step == 3:
            receipt = await run.call(order, total)  # orders
            return receipt

def plain(run):
    for step in run.steps():
        receipt = run.call(pay, step)       # pays
        if step == 2:
            return receipt

async def crashes(run):
    customers = {"ann": 1}
    await run.call(pay, 5)
    return customers["bob"]                 # no bob

async def waits(run):
    paid = await run.call(pay, 5)
    said = await run.wait_for("yes")        # waits
    return said

agents = {one.__name__: one for one in (shop, plain, crashes, waits)}
for one in agents:
    if __name__ == "__main__":
        try:
            made = RecoverableAgent(agents[one], "runs", max_recoveries=0, park_after_s=0)
            made.run_with_recovery_sync("a task", one)
        except Exception as exc:
            print(one, exc)
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("debug")
    (path / "agents.py").write_text(AGENTS)
    command = [sys.executable, "agents.py"]
    subprocess.run(command, cwd=path, env=environment(), check=True, capture_output=True)
    return path


def debug(project: Path, run: str, script: str, *args: str) -> tuple[int, str]:
    """What the command says to these lines; asserts that nothing was executed or written."""
    runs = {one: one.read_bytes() for one in (project / "runs").rglob("*") if one.is_file()}
    done = (project / "done").read_text()
    command = [sys.executable, "-m", "recovery.cli", "debug", run, "--agent", f"agents:{run}"]
    found = subprocess.run(
        [*command, "--store", "runs", *args],
        cwd=project,
        env=environment(),
        input=script,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (project / "done").read_text() == done
    assert runs == {one: one.read_bytes() for one in (project / "runs").rglob("*") if one.is_file()}
    return found.returncode, found.stderr + found.stdout


def test_it_stops_where_a_step_begins(project: Path) -> None:
    code, out = debug(project, "shop", "p total, step\nw\nn\np step\nc\n", "--at", "3")
    assert code == 0, out
    assert "step 3 begins here" in out
    assert "async for step in run.steps():" in out
    assert "(3, 2)" in out  # the step is the former one: this line sets it
    assert "asks" in out  # the next line
    assert "(Pdb) 3\n" in out
    assert "the agent has returned" in out


def test_it_stops_at_the_line_that_makes_a_call(project: Path) -> None:
    code, out = debug(project, "plain", "p step\nn\np receipt\nq\n", "--at", "lsn:6")
    assert code == 0, out
    assert "receipt = run.call(pay, step)" in out
    assert "'paid 2'" in out


@pytest.mark.parametrize("at", [3, 9, 20])
def test_every_record_is_at_a_line_of_the_agent(project: Path, at: int) -> None:
    code, out = debug(project, "shop", "p 'step', step\nc\n", "--at", f"lsn:{at}")
    if code:
        assert "the run has no record" in out
        return
    assert "agents.py" in out
    assert "shop()" in out


def test_a_record_inside_a_call_is_at_the_call(project: Path) -> None:
    with CheckpointStore(project / "runs").backend.read("shop") as log:  # type: ignore[union-attr]
        lsn = next(one.lsn for one in log.records() if "pay" in str(one.body.get("tool")))
    code, out = debug(project, "shop", "p total\nq\n", "--at", f"lsn:{lsn}")
    assert code == 0
    assert "orders" in out
    assert "(Pdb) 6\n" in out


def test_it_steps_in_the_agent_and_not_in_the_library(project: Path) -> None:
    code, out = debug(project, "shop", "s\ns\ns\ns\ns\nc\n", "--at", "1")
    assert code == 0, out
    assert "/recovery/" not in out
    assert "/lib/" not in out
    assert "gathers" in out


def test_where_the_record_ends_it_stops_and_says_so(project: Path) -> None:
    code, out = debug(project, "waits", "p paid\nc\n")
    assert code == 0, out
    assert "the record ends here" in out
    assert "said = await run.wait_for" in out
    assert "'paid 5'" in out


def test_an_error_of_the_agent_stops_at_its_line(project: Path) -> None:
    code, out = debug(project, "crashes", "p customers\nq\n")
    assert code == 0, out
    assert "the agent raises here, as recorded: KeyError" in out
    assert "no bob" in out
    assert "{'ann': 1}" in out


def test_what_is_refused(project: Path) -> None:
    assert debug(project, "shop", "", "--at", "soon")[0] == 64
    assert "has no record 999" in debug(project, "shop", "", "--at", "lsn:999")[1]
    done = call("recovery", "debug", "shop", "--store", "runs", cwd=project)
    assert done.code == 64 and "next: recovery debug shop --agent agents:" in done.err
    code, out = debug(project, "shop", "", "--at", "9")
    assert code == 1
    assert "has not come to --at 9" in out
    code, out = debug(project, "shop", "", "--agent", "agents:plain")  # the last one counts
    assert code == 1
    assert "diverged in step 1" in out
