"""``recovery resume``: an agent is run on a run that is there, and why it did not end is said."""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eventlog.encryption import Encryption
from eventlog.errors import FencedError
from recovery import CheckpointStore, SyncRun, tool
from recovery import RecoverableAgent as Agent
from recovery.inspect.status import status
from recovery.stores.file import FileStore
from tests.cli.harness import Done, call, environment, raw

ROOT = Path(__file__).parents[2]
NUMBERS = itertools.count()
PATIENCE_S = 60

AGENTS = """
from eventlog.errors import FencedError
from recovery import CheckpointStore, RecoverableAgent, PermanentError, Retry, tool
from pathlib import Path
import json, os, time

@tool(after_crash="retry")
def look(what):
    with open("looked", "a") as file:
        file.write(f"{what}\\n")
    return {"found": what, "n": 1.5}

@tool
def send(what):
    return f"sent {what}"

@tool
def refuse():
    raise PermanentError("no \\x1b[31m money")

def plain(run):
    for step in run.steps():
        if step == 2:
            return look(run.task)

async def coroutine(run):
    async for step in run.steps():
        if step == 2:
            return look(run.task)

def sends(run):
    return send(run.task)

def key(run):
    return [os.environ.get("EVENTLOG_KEY"), os.path.basename(os.path.dirname(json.__file__))]

def refused(run):
    return refuse()

def raises(run):
    raise ValueError("a bug \\x1b[2J of the agent's")

def two(run, more):
    look("x")

def reads(run):
    raise FileNotFoundError(2, "no", "/no/such/file")

def fills(run):
    raise OSError(28, "full")

def waits(run):
    return run.wait_for("go")

def other(run):
    look("something else")
    return "other"

def slow(run):
    for step in run.steps():
        Path("at_work").touch()
        nap(step)

@tool(after_crash="retry")
def nap(step):
    time.sleep(0.05)

@tool
def long(what):
    Path("at_work").touch()
    time.sleep(600)

def stuck(run):
    long("x")

def make():
    return RecoverableAgent(plain, CheckpointStore("runs"))

def broken():
    raise KeyError("in the factory")

agent = RecoverableAgent(plain, CheckpointStore("runs"))
waiting = RecoverableAgent(waits, CheckpointStore("runs"), park_after_s=0)
one_store = [agent, RecoverableAgent(sends, "runs")]
two_stores = [agent, RecoverableAgent(sends, "others")]
in_memory = [RecoverableAgent(one, CheckpointStore()) for one in (plain, sends)]
NOTHING = 5
"""


def begun(run: SyncRun) -> None:
    """An agent that dies in its first step."""
    for _ in run.steps():
        raise KeyboardInterrupt


@tool(name="send")
def _dies(what: str) -> str:
    raise KeyboardInterrupt


@tool(name="send")
def _send(what: str) -> str:
    return f"sent {what}"


def _sends_and_dies(run: SyncRun) -> None:
    _send("what it was")
    raise KeyboardInterrupt


class Place:
    """A directory with the agents, in a module of its own, and a run in ``runs``."""

    def __init__(self, path: Path) -> None:
        self.path, self.module = path, f"agents_{next(NUMBERS)}"
        (path / f"{self.module}.py").write_text(AGENTS)
        self.store = CheckpointStore(path / "runs")

    def begin(self, task: object = "otters") -> None:
        """The run begins, and is interrupted."""
        with pytest.raises(KeyboardInterrupt):
            Agent(begun, self.store).run_with_recovery_sync(task, "run")

    def resume(self, agent: str, *args: str, run: str = "run") -> Done:
        return call(
            "recovery", "resume", run, "--agent", f"{self.module}:{agent}", *args, cwd=self.path
        )

    def recovery(self, *args: str) -> Done:
        return call("recovery", *args, "--store", "runs", cwd=self.path)

    def looked(self) -> str:
        path = self.path / "looked"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    before = list(sys.path)
    found = Place(tmp_path)
    yield found
    sys.path[:] = before
    sys.modules.pop(found.module, None)


@pytest.mark.parametrize("agent", ["agent", "make", "plain", "coroutine"])
def test_a_run_goes_on_to_its_end_and_its_result_is_printed(place: Place, agent: str) -> None:
    place.begin()
    where = [] if agent in ("agent", "make") else ["--store", "runs"]
    done = place.resume(agent, *where)
    assert (done.code, done.out) == (0, '{"found": "otters", "n": 1.5}\n')
    assert done.err.startswith("run run: recovery 1 from step 0; ")
    again = place.resume(agent, *where)
    assert (again.code, again.out) == (0, done.out)
    assert place.looked() == "otters\n"


def test_result_and_report_as_one_object(place: Place) -> None:
    place.begin()
    done = place.resume("agent", "--json", "--redact", "found")
    found = json.loads(done.out)
    assert (done.code, done.err) == (0, "")
    assert found["result"] == {"found": "[redacted]", "n": 1.5}
    assert (found["run_id"], found["recovery_count"]) == ("run", 1)
    assert found["report"]["executed"] == 1


def test_the_code_of_the_agent_sees_no_key_and_the_standard_library_as_it_is(place: Place) -> None:
    """A file of the directory does not stand in for a module of Python."""
    store = CheckpointStore(FileStore(place.path / "runs", encryption=Encryption(bytes(32))))
    with pytest.raises(KeyboardInterrupt):
        Agent(begun, store).run_with_recovery_sync("otters", "run")
    (place.path / "json.py").write_text("raise SystemExit('not this one')")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "recovery.cli",
            "resume",
            "run",
            "--store",
            "runs",
            "--agent",
            f"{place.module}:key",
        ],
        cwd=place.path,
        capture_output=True,
        text=True,
        check=False,
        env=environment(EVENTLOG_KEY="00" * 32, PYTHONSAFEPATH="1"),
    )
    assert (done.returncode, done.stdout) == (0, '[null, "json"]\n'), done


def test_a_call_in_doubt_is_named_with_what_to_do(place: Place) -> None:
    with pytest.raises(KeyboardInterrupt):
        Agent(lambda run: run.call(_dies, "x"), place.store).run_with_recovery_sync("x", "run")
    done = place.resume("sends", "--store", "runs")
    assert done.code == 1 and done.out == ""
    assert "it is unknown whether this took effect" in done.err and "send('x')" in done.err
    lines = done.err[done.err.index("next:") :].splitlines()
    agent = f"{place.module}:sends"
    key = status(place.store, "run").calls[0].idempotency_key[:16]
    assert [line.removeprefix("next:").partition("#")[0].strip() for line in lines] == [
        f"recovery resolve run {key} --outcome JSON --store runs",
        f"recovery resolve run {key} --retry --store runs",
        f"recovery resolve run {key} --fail TEXT --store runs",
        f"recovery resume run --agent {agent} --store runs",
    ]


def test_what_is_not_there_is_said_in_a_line(place: Place) -> None:
    place.begin()
    done = place.resume("agnt")
    assert (done.code, done.err) == (
        1,
        f"recovery: there is no agnt in module {place.module}: is it agent?\n",
    )
    done = call("recovery", "resume", "run", "--agent", "no_such.thing:x", cwd=place.path)
    assert done.code == 1 and "there is no module no_such" in done.err
    assert place.resume("NOTHING").err.startswith(f"recovery: {place.module}:NOTHING is neither")
    done = call("recovery", "resume", "run", "--agent", "rm -rf", cwd=place.path)
    assert (done.code, done.err) == (64, "recovery: 'rm -rf' is not MODULE:NAME\n")
    done = place.resume("agent", run="rum")
    assert done.code == 66 and "there is no run 'rum'" in done.err and "Is it run?" in done.err
    assert place.store.backend.run_ids() == ["run"] and place.looked() == ""


def test_agents_with_different_stores_are_refused(place: Place) -> None:
    place.begin()
    assert place.resume("one_store", run="rum").code == 66
    for agents, where in (
        ("two_stores", f"{place.path}/runs and .*/others"),
        ("in_memory", "memory and memory"),
    ):
        done = place.resume(agents, run="rum")
        said = rf"recovery: the agents have different stores \({where}\): name one\n"
        assert done.code == 64 and re.fullmatch(said, done.err), done.err


def test_what_is_no_agent_is_not_called(place: Place) -> None:
    """A tool above all, with parameters or without."""
    place.begin()
    before = status(place.store, "run").last_lsn
    for agent in ("look", "refuse"):
        done = place.resume(agent, "--store", "runs")
        said = f"recovery: {place.module}:{agent} is a tool, not an agent. Nothing was executed.\n"
        assert (done.code, done.out, done.err) == (1, "", said)
    for agent in ("two", "NOTHING"):
        assert "is neither a Recov" in place.resume(agent, "--store", "runs").err
    assert status(place.store, "run").last_lsn == before and place.looked() == ""


@pytest.mark.parametrize(
    ("code", "error"),
    [("1 / 0", "ZeroDivisionError"), ("import not_there", "ModuleNotFoundError")],
)
def test_an_error_of_the_users_module_has_its_traceback(
    place: Place, code: str, error: str
) -> None:
    place.begin()
    (place.path / f"{place.module}.py").write_text(code)
    done = place.resume("agent")
    assert done.code == 1 and "Traceback" in done.err and error in done.err
    said = " ".join(done.err.split())
    assert f" recovery: module {place.module} raised this: {error}: " in said


def test_a_module_that_executes_a_run_when_it_is_imported_does_not(place: Place) -> None:
    place.begin()
    file = place.path / f"{place.module}.py"
    file.write_text(
        f"{AGENTS}\nimport sys\nRecoverableAgent(plain).run_with_recovery_sync(1, 'new')"
    )
    done = place.resume("plain")
    assert done.code == 1 and "Traceback" not in done.err and "__main__" in done.err
    assert f"module {place.module} executes run 'new' when it is imported" in done.err
    assert not (place.path / "looked").exists()


def test_an_error_of_the_factory_has_its_traceback(place: Place) -> None:
    place.begin()
    done = place.resume("broken")
    assert done.code == 1 and "Traceback" in done.err and "in the factory" in done.err


def test_an_error_of_the_agent_has_its_traceback_and_nothing_raw(place: Place) -> None:
    place.begin()
    done = place.resume("raises", "--store", "runs")
    assert done.code == 1 and "Traceback" in done.err
    assert "a bug \\x1b[2J of the agent's" in done.err and raw(done.err) == []
    assert "its agent raised this" in done.err and "next: recovery resume run" in done.err
    assert "recovering from ValueError" in done.err  # what the library warns of


@pytest.mark.parametrize(("verb", "number"), [("open", errno.EROFS), ("pwrite", errno.ENOSPC)])
def test_a_store_that_cannot_be_written_is_not_blamed_on_the_agent(
    place: Place, monkeypatch: pytest.MonkeyPatch, verb: str, number: int
) -> None:
    """Read-only, or full. The errors that an agent raises itself stay its own."""
    place.begin()
    really = getattr(os, verb)

    def refused(*args: Any, **options: Any) -> Any:
        if verb == "pwrite" or (args[0] == "LOCK" and args[1] & os.O_RDWR):
            raise OSError(number, os.strerror(number), *(["LOCK"] if verb == "open" else []))
        return really(*args, **options)

    monkeypatch.setattr(os, verb, refused)
    done = place.resume("plain", "--store", "runs")
    lock = f"recovery: {place.path}/runs/run/LOCK: {os.strerror(number)}"
    assert done.code == 1 and done.err.startswith(f"{lock}. That was the store, not the agent")
    assert "Traceback" not in done.err and "next: recovery resume run" in done.err
    other = place.recovery("cancel", "run", "--yes")
    assert other.code == 74 and other.err.startswith(lock.replace("LOCK", "inbox/LOCK"))
    monkeypatch.undo()
    for agent, named in (("reads", " '/no/such/file'"), ("fills", "")):
        done = place.resume(agent, "--store", "runs")
        assert done.code == 1 and "its agent raised this" in done.err and named in done.err
    assert place.resume("plain", "--store", "runs").code == 0


def test_what_the_library_logs_is_shown_when_asked_for(place: Place) -> None:
    place.begin()
    assert "INFO" not in place.resume("agent").err
    place.store.backend.remove("run")
    place.begin()
    assert "INFO recovery: run run: recovery 1" in place.resume("agent", "-v").err


def test_a_failed_run_says_how_it_can_go_on(place: Place) -> None:
    place.begin()
    done = place.resume("refused", "--store", "runs")
    assert done.code == 1 and raw(done.err) == []
    assert "failed" in done.err and "money" in done.err
    assert "recovery retry run" in done.err and "recovery resolve run" in done.err
    lsn = status(place.store, "run").failed_call
    assert place.recovery("resolve", "run", f"refuse#{lsn}", "--outcome", "7").code == 0
    assert place.resume("refused", "--store", "runs").out == "7\n"


def test_a_divergence_shows_the_choices_and_can_be_accepted(place: Place) -> None:
    place.begin()
    assert place.resume("raises", "--store", "runs").code == 1
    with pytest.raises(KeyboardInterrupt):
        Agent(_sends_and_dies, place.store).resume_sync("run")
    done = place.resume("other", "--store", "runs")
    assert done.code == 1 and "diverged" in done.err and ".accept(" not in done.err
    for verb in ("resume", "accept", "fork", "cancel"):
        assert f" recovery {verb} run" in done.err
    assert place.recovery("accept", "run", "--yes", "--why", "meant").code == 0
    assert place.resume("other", "--store", "runs").out == '"other"\n'


def test_a_waiting_run_is_sent_its_signal_and_goes_on(place: Place) -> None:
    place.begin()
    done = place.resume("waiting")
    assert done.code == 1 and "recovery signal run go JSON" in done.err
    assert place.recovery("runs", "--due").out.startswith("no such runs (1 run in ")
    assert place.recovery("signal", "run", "go", '{"n": 3}').code == 0
    assert "run" in place.recovery("runs", "--due").out
    shown = place.recovery("show", "run").out
    assert "signal 'go': {\"n\": 3}" in shown and "recovery signal" not in shown
    assert place.resume("waiting").out == '{"n": 3}\n'


def test_a_run_that_a_process_has_is_left_alone(place: Place) -> None:
    place.begin()
    with pytest.raises(FencedError), place.store.claim("run"):
        done = place.resume("agent")
        assert done.code == 73 and f"is held by process {os.getpid()}" in done.err
        assert "takeover=True" not in done.err and "--takeover" in done.err
        asked = place.resume("agent", "--takeover")
        assert asked.code == 64 and "no terminal to ask at" in asked.err
        assert place.looked() == ""
        assert place.resume("agent", "--takeover", "--yes").code == 0
    assert place.looked() == "otters\n"


# -- Ctrl-C, in processes


def started(place: Place, agent: str) -> subprocess.Popen[str]:
    """A process that has the run, and is at work."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tools")])
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "recovery.cli",
            "resume",
            "run",
            "--agent",
            f"{place.module}:{agent}",
            "--store",
            "runs",
        ],
        cwd=place.path,
        env=environment(PYTHONPATH=path),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    until(lambda: (place.path / "at_work").exists() or process.poll() is not None)
    return process


def until(condition: object) -> None:
    assert callable(condition)
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_stops_it_with_nothing_in_doubt(place: Place, number: signal.Signals) -> None:
    place.begin()
    process = started(place, "slow")
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130 and out == "", err
    assert "stopping at the next safe point" in err and "next: recovery resume run" in err
    found = status(place.store, "run")
    assert found.in_doubt == () and found.owner is not None and not found.owner.alive


def test_a_second_ctrl_c_ends_it_at_once(place: Place) -> None:
    place.begin()
    process = started(place, "stuck")
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert "stopping" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == -signal.SIGINT  # 130 for a shell
    assert [one.tool for one in status(place.store, "run").in_doubt] == ["long"]
