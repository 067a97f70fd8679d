"""The pytest plugin as its users have it: in a fresh directory, with tests of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

from recovery.testing import pytest_plugin

AGENT = """
from recovery import tool

SENT = []

@tool(after_crash="retry")
def ask_model(messages):
    return {"content": "done", "call": len(messages) < 3}

@tool
def send_email(to):
    SENT.append(to)
    return "sent"

def log_it(what):
    SENT.append(what)

async def agent(run):
    async for step in run.steps():
        reply = await run.call(ask_model, run.messages)
        run.messages.append(reply)
        if not reply["call"]:
            return reply["content"]
        run.messages.append(await run.call(send_email, "ann"))

async def hasty(run):
    log_it("began")
    return await agent(run)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "my_agent.py").write_text(AGENT)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\nfilterwarnings = error\n")
    return tmp_path


def run_pytest(project: Path, test: str, *args: str) -> tuple[int, str]:
    """What pytest says about a test file in the project, in a process of its own."""
    (project / "test_it.py").write_text("from my_agent import *\n" + test)
    plugins = ["-p", "recovery.testing.pytest_plugin", "-p", "no:asyncio", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *plugins]
    path = os.pathsep.join(part for part in sys.path if part)
    # Without all the plugins that happen to be installed here, which take longer than the tests.
    environment = os.environ | {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment.pop("CI", None)  # with it, the last lines say each failure once more
    done = subprocess.run(
        [*command, *args], cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


FIXTURE = """
def test_my_agent_survives(crash_everywhere):
    report = crash_everywhere(agent, "a task")
    assert report.effects == {"ask_model": 3, "send_email": 2}
"""


def test_a_good_agent_passes_and_the_figures_are_printed(project: Path) -> None:
    code, out = run_pytest(project, FIXTURE)
    assert code == 0, out
    (line,) = [line for line in out.splitlines() if line.startswith("crash tests:")]
    assert line.startswith("crash tests: 1 agent, ")
    assert line.endswith(" resumptions, seed 0 (repeat with --crash-seed=0)")
    assert "EventLog" not in out


def test_a_bad_agent_fails_with_a_report_to_read(project: Path) -> None:
    test = "def test_it(crash_everywhere): crash_everywhere(hasty, 'x', watch=[log_it])\n"
    code, out = run_pytest(project, test)
    assert code == 1, out
    assert "RAN TWICE: log_it('began') took place twice; without a crash once" in out
    assert "What to do: " in out
    assert "crash_everywhere(hasty" not in out  # the report alone, no traceback of ours
    assert "crash tests: 1 agent, " in out


def test_five_lines_are_enough_without_the_fixture(project: Path) -> None:
    test = """
import pytest
from recovery.testing import crash_everywhere

@pytest.mark.parametrize("one", [agent, hasty])
def test_my_agent_survives(one):
    report = crash_everywhere(one, "x", watch=[log_it])
    assert report.ok, str(report)
"""
    code, out = run_pytest(project, test)
    assert code == 1 and "1 failed, 1 passed" in out
    assert "AssertionError: hasty: 1 fault, at " in out
    assert "RAN TWICE: log_it('began')" in out


def test_the_command_line_says_how_much_and_which(project: Path) -> None:
    test = """
def test_a(crash_everywhere): assert crash_everywhere(agent, points=9).points <= 7
def test_b(crash_everywhere): assert crash_everywhere(agent).seed == 5
def test_c(crash_everywhere):
    report = crash_everywhere(agent, points=["before send_email#1 took effect"])
    assert report.points == 1
"""
    code, out = run_pytest(project, test, "--crash-points", "7", "--crash-seed", "5")
    assert code == 0, out
    assert "crash tests: 3 agents, " in out
    assert "seed 5 (repeat with --crash-seed=5)" in out
    code, out = run_pytest(project, FIXTURE, "--crash-points", "all")
    (line,) = [line for line in out.splitlines() if line.startswith("crash tests:")]
    words = line.replace(",", "").split()
    assert words[4] == words[8], line  # tried of possible
    assert run_pytest(project, FIXTURE, "--crash-points", "few")[0] == pytest.ExitCode.USAGE_ERROR


REPLAY = """
from recovery import CheckpointStore, RecoverableAgent

def recorded():
    store = CheckpointStore("runs")
    RecoverableAgent(agent, store).run_with_recovery_sync("a task", "r")
    SENT.clear()
    return store

async def edited(run):
    async for step in run.steps():
        await run.call(send_email, "bob")

def test_same(replay_run):
    assert replay_run(recorded(), agent, "r").result == "done"
    assert SENT == []

def test_other(replay_run):
    replay_run("runs/r", edited)
"""


def test_a_replay_fails_with_the_difference_alone(project: Path) -> None:
    code, out = run_pytest(project, REPLAY)
    assert code == 1, out
    assert "1 failed, 1 passed" in out
    assert out.count("run 'r' diverged in step 1; no new side effect") == 1
    assert "now: send_email" in out
    assert "Traceback" not in out and "accept(" not in out


def test_a_session_without_crash_tests_says_nothing(project: Path) -> None:
    code, out = run_pytest(project, "def test_nothing(): pass\n")
    assert code == 0
    assert "crash tests" not in out


def test_the_plugin_imports_little(project: Path) -> None:
    test = """
import sys
def test_nothing():
    assert "recovery.testing.pytest_plugin" in sys.modules
    assert "recovery.testing.simulated.crash" not in sys.modules
    assert "recovery.testing.replaying" not in sys.modules
    assert "eventlog.testing" not in sys.modules
"""
    code, out = run_pytest(project, test)
    assert code == 0, out


def test_pytest_finds_the_plugin_of_the_installed_library() -> None:
    (found,) = distribution("agent-eventlog").entry_points.select(group="pytest11")
    assert found.name == found.value == pytest_plugin.__name__
    assert found.load() is pytest_plugin


def test_the_library_itself_does_not_import_pytest() -> None:
    probe = (
        "import sys, recovery, recovery.testing; recovery.testing.crash_everywhere; "
        "sys.exit('pytest' in sys.modules)"
    )
    path = os.pathsep.join(part for part in sys.path if part)
    done = subprocess.run(
        [sys.executable, "-c", probe], env=os.environ | {"PYTHONPATH": path}, check=False
    )
    assert done.returncode == 0
