"""`recovery crashtest`: agents of all kinds, killed in processes of their own."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer", reason="the command needs pip install 'agent-eventlog[cli]'")
pytest.importorskip("h11", reason="the command needs pip install 'agent-eventlog[cli]'")

from recovery.cli import main
from recovery.testing.processes.counting_proxy import Proxy, Service
from recovery.testing.processes.crashtest import Kill, Limits, Runner, module_agent, planned_kills
from recovery.testing.processes.process_tree import TOKEN, Life, new_token
from recovery.testing.processes.verdict import Outcome, judge, volatile
from recovery.testing.processes.watch import Effect, Listener, Moment, Watch

PAGE = (Path(__file__).parents[2] / "docs/crashtest.md").read_text()
ENVIRONMENT = os.environ | {
    "PYTHONPATH": os.pathsep.join(str(Path(path).absolute()) for path in sys.path if path)
}

# Sends, and remembers nothing.
NAIVE = """
def send(to):
    with open("outbox.txt", "a") as file:
        file.write(to + "\\n")
    return f"sent to {to}"

def agent(task):
    return [send(to) for to in ("ann", "bob")]
"""

# The same with this library: looks into the outbox before it sends again.
RECOVERABLE = """
from pathlib import Path
from recovery import RecoverableAgent, Resolution, tool

def look(call):
    outbox = Path("outbox.txt")
    if outbox.exists() and call.args[0] in outbox.read_text().split():
        return Resolution.outcome(f"sent to {call.args[0]}")
    return Resolution.retry()

@tool(reconcile=look)
def send(to):
    with open("outbox.txt", "a") as file:
        file.write(to + "\\n")
    return f"sent to {to}"

async def run_steps(run):
    run.state["sent"] = []
    async for step in run.steps():
        run.state["sent"] = [*run.state["sent"], await run.call(send, f"{step}")]
        if step == 2:
            return run.state["sent"]

agent = RecoverableAgent(run_steps, checkpoint_every_n=1)
"""

# A script that remembers in a file, which it writes in place.
CHECKPOINT = """
import json, os

def send(to):
    with open("outbox.txt", "a") as file:
        file.write(to + "\\n")

def load():
    if not os.path.exists("state.json"):
        return []
    try:
        with open("state.json") as file:
            return json.load(file)
    except ValueError:
        return ["ann", "bob"]  # "cannot be: so it was all done"

done = load()
for to in ("ann", "bob"):
    if to not in done:
        send(to)
        done.append(to)
        with open("state.json", "w") as file:
            json.dump(done, file)
print("done", len(done))
"""


def crashtest(
    folder: Path, *args: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "recovery.cli", "crashtest", "--seed", "7", *args],
        cwd=folder,
        env=environment or ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def report_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode in (0, 1), done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["ok"] is (done.returncode == 0)
    return report


def kinds(report: dict[str, Any], *, allowed: bool = False) -> set[str]:
    return {
        found["kind"]
        for found in report["findings"]
        if found["allowed"] is allowed and found["kind"] != "in doubt"
    }


def processes_in(folder: Path) -> list[int]:
    """Processes whose working directory is below that one."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            if str(folder) in str(link.readlink()):
                found.append(int(link.parent.name))
    return found


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the command makes the directories of its runs: seen to be empty afterwards."""
    folder = tmp_path / "t"
    folder.mkdir()
    monkeypatch.setitem(ENVIRONMENT, "TMPDIR", str(folder))
    return folder


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "agent"
    folder.mkdir()
    (folder / "naive.py").write_text(NAIVE)
    (folder / "recoverable.py").write_text(RECOVERABLE)
    (folder / "checkpoint.py").write_text(CHECKPOINT)
    return folder


def test_a_naive_agent_runs_its_tools_twice(work: Path, temporary: Path) -> None:
    args = ("--tool", "naive:send", "--points", "4", "--kills", "0", "--json", "naive:agent")
    report = report_of(crashtest(work, *args))
    assert report["points"] == 4
    assert kinds(report) == {"ran twice"}
    at = {(found["what"], found["point"]) for found in report["findings"]}
    ann, bob = (f'send(to="{to}") took place twice; without a crash once' for to in ("ann", "bob"))
    after = "after send had done its work, before it returned (call {})".format
    # Not before the first call: nothing had been done then.
    assert at == {
        (ann, after(1)),
        (ann, after(2)),
        (bob, after(2)),
        (ann, "before send did anything (call 2)"),
    }
    assert report["reference"] == 'returned ["sent to ann", "sent to bob"]'
    assert report["effects"] == {"send": 2}
    assert list(temporary.iterdir()) == []
    assert not (work / "outbox.txt").exists()  # each run had a directory of its own


@pytest.mark.crash
def test_the_same_agent_with_this_library_is_clean_wherever_it_is_killed(work: Path) -> None:
    args = ("--tool", "recoverable:send", "--points", "1000", "--kills", "40", "--json")
    report = report_of(crashtest(work, *args, "recoverable:agent"))
    assert kinds(report) == set() and report["ok"]
    # Cut short at random inside of a tool, it looks; from outside that is begun again.
    assert {found["kind"] for found in report["findings"]} <= {"in doubt"}
    assert report["points"] >= report["possible"] - 45 >= 50


@pytest.mark.crash
def test_one_that_always_believes_that_it_happened_loses_what_did_not(work: Path) -> None:
    # Kills that only come after an effect do not see this.
    path = work / "recoverable.py"
    program = path.read_text().replace("Resolution.retry()", "Resolution.outcome('sent')")
    path.write_text(program.replace("step == 2", "step == 1"))
    args = ("--tool", "recoverable:send", "--points", "2", "--kills", "0", "--json")
    report = report_of(crashtest(work, *args, "recoverable:agent"))
    lost = [found for found in report["findings"] if found["kind"] == "lost"]
    assert [(found["point"], found["what"]) for found in lost] == [
        (
            "before send did anything (call 1)",
            'send(to="1") took place not at all; without a crash once',
        ),
    ]


def test_a_call_in_doubt_is_a_fault_if_strict(work: Path) -> None:
    path = work / "recoverable.py"
    path.write_text(path.read_text().replace("@tool(reconcile=look)", "@tool"))
    args = ("--tool", "recoverable:send", "--points", "1", "--kills", "0", "--strict")
    done = crashtest(work, *args, "recoverable:agent")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "IN DOUBT: the run stops, and waits for a person" in done.stdout


def test_a_checkpoint_written_in_place_is_torn_by_disk_calls(work: Path) -> None:
    args = ("--tool", "checkpoint:send", "--points", "100", "--kills", "0", "--json")
    report = report_of(crashtest(work, *args, "--", sys.executable, "checkpoint.py"))
    assert kinds(report) == {"ran twice", "lost"}
    lost = [found for found in report["findings"] if found["kind"] == "lost"]
    assert {found["what"] for found in lost} == {
        'send(to="bob") took place not at all; without a crash once'
    }
    assert all(found["point"].startswith("after disk call") for found in lost)


class Charges(http.server.BaseHTTPRequestHandler):
    """A service that charges, whoever asks and how often."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.charges.append((body, self.headers["host"]))  # type: ignore[attr-defined]
        code = 409 if b"refuse" in body else 200
        answer = b"charged " + body
        self.send_response(code)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for part in (b"one", b"two"):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


@pytest.fixture
def service() -> Iterator[http.server.ThreadingHTTPServer]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Charges) as server:
        server.charges = []  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever).start()
        yield server
        server.shutdown()


# Remembers what it has paid, after paying.
PAY = """
import os, sys, urllib.request
for n in (1, 2):
    if not os.path.exists(f"paid{n}"):
        headers = {"Idempotency-Key": f"{sys.argv[1]} {n}"} if len(sys.argv) > 1 else {}
        url = os.environ["CRASHTEST_PROXY"] + "/pay"
        urllib.request.urlopen(urllib.request.Request(url, b'{"n": %d}' % n, headers)).read()
        open(f"paid{n}", "w").close()
print("paid")
"""


@pytest.mark.parametrize("key", ["", "order"], ids=["without keys", "with idempotency keys"])
def test_requests_through_the_proxy_are_effects(
    work: Path, service: http.server.ThreadingHTTPServer, key: str
) -> None:
    (work / "pay.py").write_text(PAY)
    proxy = f"0=127.0.0.1:{service.server_port}"
    args = ("--proxy", proxy, "--points", "4", "--kills", "0", "--json")
    command = [sys.executable, "pay.py", *filter(None, [key])]
    report = report_of(crashtest(work, *args, "--", *command))
    assert report["effects"] == {"POST /pay": 2}
    assert kinds(report) == (set() if key else {"ran twice"})
    assert kinds(report, allowed=True) == ({"ran twice"} if key else set())
    after = {found["point"] for found in report["findings"]}
    answered = "after POST /pay was answered, before the agent got the answer (request {})".format
    assert after == {answered(1), answered(2)}
    # Each run pays twice, and once more if it was killed after an answer.
    charges = service.charges  # type: ignore[attr-defined]
    assert len(charges) == (2 + 4) * 2 + 2
    assert {host for _, host in charges} == {f"127.0.0.1:{service.server_port}"}


def request(port: int, method: str, body: bytes | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(connection):
        connection.request(method, "/pay?x=1", body)
        answer = connection.getresponse()
        return answer.status, answer.read()


def test_the_proxy_hands_on_and_counts(service: http.server.ThreadingHTTPServer) -> None:
    watch = Watch()
    watch.begin("life")
    with Proxy(0, Service("127.0.0.1", service.server_port), lambda: watch) as proxy:
        assert request(proxy.port, "GET") == (200, b"onetwo")
        assert watch.effects == []
        assert request(proxy.port, "POST", b"x" * 300_000) == (200, b"charged " + b"x" * 300_000)
        assert request(proxy.port, "POST", b"refuse") == (409, b"charged refuse")
        assert [(effect.name, effect.done) for effect in watch.effects] == [("POST /pay", True)]
        assert proxy.settle(5)
    with Proxy(0, Service("127.0.0.1", 1), lambda: watch) as proxy:  # nothing listens there
        assert request(proxy.port, "POST", b"x")[0] == 502
    assert len(watch.effects) == 1


# What the probe sees: sync, async that awaits, method, raising, decorated, in a thread.
SEEN = """
import asyncio, functools, os, threading

def decorated(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)
    return wrapper

@decorated
def plain(a, *rest, b=1, **more):
    return a

async def waits(a):
    for _ in range(3):
        await asyncio.sleep(0)
    open("waited", "w").close()
    return a

def fails():
    raise ValueError

class Client:
    def send(self, a):
        return a

def agent():
    plain(1, 2, b=3, c=4)
    asyncio.run(waits("x"))
    try:
        fails()
    except ValueError:
        pass
    thread = threading.Thread(target=Client().send, args=(object(),))
    thread.start()
    thread.join()
"""


def test_calls_are_seen_once_whatever_kind_they_are(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / "seen.py").write_text(SEEN)
    names = ("plain", "waits", "fails", "Client.send")
    monkeypatch.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])
    agent = module_agent("seen:agent", "null", work)
    with Listener([f"seen:{name}" for name in names], disk=True) as listener:
        seen = Runner(agent, Limits(), listener).run(Kill())
    assert not seen.failed
    assert [(effect.name, dict(effect.args), effect.done) for effect in seen.effects] == [
        ("seen:plain", {"a": "1", "b": "3", "rest": "[2]", "more": '{"c": 4}'}, True),
        ("seen:waits", {"a": '"x"'}, True),
        ("seen:fails", {}, True),
        ("seen:Client.send", {"a": '"<object object>"'}, True),
    ]
    assert sum(moment.where in ("call", "return") for moment in seen.moments) == 8
    opened, returned = Moment("disk", "open", 1), Moment("return", "seen:waits", 1)
    assert seen.moments.index(opened) < seen.moments.index(returned)  # not when it first waits


def outcome(*effects: Effect, **more: Any) -> Outcome:
    return Outcome("here", effects, (), "1", **more)


@pytest.mark.parametrize(
    ("effects", "more", "found"),
    [
        ([("send", "", True)], {}, set()),
        ([], {}, {("lost", False)}),
        ([], {"parked": "a:send"}, {("in doubt", False)}),
        ([], {"failed": "it ends with exit code 1: oops"}, {("raised", False)}),
        ([], {"failed": "it does not end", "stuck": True}, {("stuck", False)}),
        # Cut short: it may have taken place, or not.
        ([("send", "", False)], {}, set()),
        ([("send", "", False), ("send", "", True)], {}, {("in doubt", False)}),
        ([("send", "", True), ("send", "", True)], {}, {("ran twice", False)}),
        (
            [("send", "", True), ("send", "", True)],
            {"parked": "a:x"},
            {("ran twice", False), ("in doubt", False)},
        ),
        ([("send", "k", True), ("send", "k", True)], {}, {("ran twice", True)}),
        ([("send", "k", True), ("send", "l", True)], {}, {("ran twice", False)}),
        ([("send", "", True), ("pay", "", True)], {}, {("differs", False)}),
        ([("send", "", True)] + [("search", "", True)] * 3, {}, {("ran twice", True)}),
    ],
)
def test_verdicts(
    effects: list[tuple[str, str, bool]], more: dict[str, Any], found: set[tuple[str, bool]]
) -> None:
    wanted = [Effect("a:send", {}, done=True)]
    if any(name == "search" for name, *_ in effects):
        wanted.append(Effect("a:search", {}, done=True))
    made = [Effect(f"a:{name}", {}, key, done) for name, key, done in effects]
    verdict = judge(outcome(*wanted), outcome(*made, **more), frozenset(), frozenset({"search"}))
    assert {(finding.kind, finding.allowed) for finding in verdict} == found


def test_what_differs_from_run_to_run_is_not_compared() -> None:
    runs = [outcome(Effect("a:send", {"to": "ann", "id": str(n)}, done=True)) for n in range(3)]
    ignored = volatile(runs[0], runs[1])
    assert ignored == {("a:send", "id")}
    assert list(judge(runs[0], runs[2], ignored, frozenset())) == []
    other = outcome(Effect("a:send", {"to": "bob", "id": "1"}, done=True))
    assert {found.kind for found in judge(runs[0], other, ignored, frozenset())} == {
        "differs",
        "lost",
    }


def test_a_result_that_differs_is_a_finding() -> None:
    (found,) = judge(outcome(), Outcome("here", (), (), "2"), frozenset(), frozenset())
    assert (found.kind, found.what) == ("differs", "the result is 2; without a crash it is 1")
    assert list(judge(Outcome("", (), (), None), outcome(), frozenset(), frozenset())) == []


def test_effects_are_tried_first_and_a_seed_repeats_the_choice() -> None:
    moments = [Moment("disk", "write", n) for n in range(1, 31)]
    moments += [Moment("record", "record", n) for n in range(1, 6)]
    moments += [Moment("call", "a:send", 1), Moment("return", "a:send", 1)]
    reference = Outcome("", (), tuple(moments), None, time_s=1.0)
    kills = planned_kills(reference, Limits(points=10, kills=5, seed=3))
    assert kills == planned_kills(reference, Limits(points=10, kills=5, seed=3))
    assert kills != planned_kills(reference, Limits(points=10, kills=5, seed=4))
    assert {kill.at for kill in kills} >= set(moments[30:])
    assert len(kills) == 15
    assert all(0 <= after <= 1 for kill in kills for after in kill.after_s)
    assert len(planned_kills(reference, Limits(points=1, kills=0))) == 1


def test_what_is_heard_late_of_a_life_does_not_count_for_the_next() -> None:
    killed: list[str] = []
    watch = Watch(Moment("call", "send", 2))
    watch.begin("one")
    watch.attach(lambda: killed.append("one"))
    assert watch.may("call", "send", "one")
    watch.began("one", "1", Effect("send", {}))
    watch.end()
    watch.begin("two")
    assert not watch.may("call", "send", "one")
    watch.done("one", "1")  # it took place all the same
    assert [effect.done for effect in watch.effects] == [True]
    assert not watch.may("call", "send", "two")  # before it is known how to kill it
    watch.attach(lambda: killed.append("two"))
    assert watch.hit and killed == ["two"]
    assert not watch.may("disk", "write", "two")


# Ends up in a session of its own, and would write on.
DAEMON = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
time.sleep(600)
"""


def life(tmp_path: Path, program: str) -> Life:
    environment = dict(os.environ) | {TOKEN: new_token()}
    return Life([sys.executable, "-c", program], tmp_path, environment, tmp_path / "life")


def test_nothing_of_a_life_is_left(tmp_path: Path) -> None:
    with life(tmp_path, DAEMON) as process:
        while len(processes_in(tmp_path)) < 2:
            time.sleep(0.01)
        process.kill()
        ended = process.wait(60)
    assert (ended.code, ended.killed) == (-signal.SIGKILL, True)
    assert processes_in(tmp_path) == []


def test_what_outlives_a_process_that_ends_by_itself_is_killed(tmp_path: Path) -> None:
    program = DAEMON.rpartition("time.sleep(600)\n")[0] + "sys.exit(3)"
    with life(tmp_path, program) as process:
        ended = process.wait(60)
        assert (ended.code, ended.killed) == (3, False)
        assert processes_in(tmp_path) == []


def test_a_life_has_a_limit(tmp_path: Path) -> None:
    with life(tmp_path, "import time; print('waiting', flush=True); time.sleep(600)") as process:
        ended = process.wait(0.5)
    assert ended.code is None and not ended.killed
    assert processes_in(tmp_path) == []


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "terminated"])
def test_interrupted_it_leaves_no_process_and_no_traceback(
    work: Path, temporary: Path, signum: signal.Signals
) -> None:
    (work / "slow.py").write_text("import time\nprint('here', flush=True)\ntime.sleep(600)\n")
    command = [sys.executable, "-m", "recovery.cli", "crashtest", "--", sys.executable, "slow.py"]
    test = subprocess.Popen(
        command,
        cwd=work,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not processes_in(temporary):
        assert test.poll() is None
        time.sleep(0.01)
    test.send_signal(signum)
    out, err = test.communicate(timeout=60)
    assert (test.returncode, out) == (130, "")
    assert "Traceback" not in err
    deadline = time.monotonic() + 20  # what is killed takes a moment to end
    while processes_in(temporary):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert list(temporary.iterdir()) == []


def test_a_closed_pipe_is_no_error(work: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "recovery.cli",
        "crashtest",
        "--points",
        "0",
        "--kills",
        "0",
        "--",
        "echo",
        "done",
    ]
    test = subprocess.Popen(
        command,
        cwd=work,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert test.stdout is not None and test.stderr is not None
    test.stdout.close()
    err = test.stderr.read()
    test.stderr.close()
    assert (test.wait(60), err) == (141, "")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["naive:agent", "--tool", "naive:nobody"], "tool naive:nobody was never called"),
        (["naive:nobody"], "has no attribute 'nobody'"),
        (["--", "sh", "-c", "echo oh; echo oops >&2; exit 3"], "exit code 3: oops life-1.out: oh"),
        (["--", "no-such-command"], "cannot start 'no-such-command'"),
        (["naive:agent", "--proxy", "x"], "--proxy is PORT=HOST:PORT, not 'x'"),
        (["naive:agent", "--proxy", "0=ftp://a"], "'ftp://a' is not HOST:PORT"),
        (["--task", "1", "--", "true"], "--task is for module:name"),
        (["naive:agent", "--resume", "x"], "--resume is for commands"),
        (["changing:agent", "--tool", "changing:send"], "two runs without a kill differ"),
    ],
)
def test_what_cannot_be_tested_is_said_in_words(
    work: Path,
    args: list[str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (work / "changing.py").write_text(
        "import os, pathlib\n"
        "def send(): ...\n"
        "def agent():\n"
        f"    marker = pathlib.Path({str(work)!r}, 'marker')\n"
        "    if not marker.exists():\n"
        "        send()\n"
        "    marker.touch()\n"
        "    send()\n"
    )
    monkeypatch.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])
    monkeypatch.chdir(work)
    assert main(["crashtest", "--restarts", "0", *args]) == 64
    out, err = capfd.readouterr()
    assert out == "" and says in " ".join(err.replace("│", " ").split())
    assert "recovery/cli" not in err  # no traceback of the command itself


def test_without_the_extra_the_command_says_what_to_install(work: Path) -> None:
    for name in ("typer", "h11"):
        folder = work / f"without-{name}"
        folder.mkdir()
        (folder / f"{name}.py").write_text(f"raise ModuleNotFoundError('no', name={name!r})")
        path = f"{folder}:{ENVIRONMENT['PYTHONPATH']}"
        done = crashtest(work, "naive:agent", environment=ENVIRONMENT | {"PYTHONPATH": path})
        assert (done.returncode, done.stdout) == (64, "")
        assert done.stderr == (
            f"recovery: the command needs {name}, which is not installed: "
            "pip install 'agent-eventlog[cli]'\n"
        )


def test_a_large_directory_is_not_copied(work: Path) -> None:
    with (work / "large").open("wb") as file:
        file.truncate(100 * 1024 * 1024)
    done = crashtest(work, "naive:agent")
    assert done.returncode == 64 and "--fresh DIR" in done.stderr
    (work / "empty").mkdir()
    args = ("--fresh", "empty", "--points", "1", "--kills", "0", "--tool", "naive:send")
    assert crashtest(work, *args, "naive:agent").returncode in (0, 1)


def test_the_example_of_the_page_is_what_happens(tmp_path: Path) -> None:
    (tmp_path / "mailer.py").write_text(re.findall(r"```python\n(.*?)```", PAGE, re.S)[0])
    (example,) = (
        block for block in re.findall(r"```console\n(.*?)```", PAGE, re.S) if "$?" in block
    )
    command, *said = example.split("\n", 1)
    assert command.startswith("$ recovery crashtest ")
    done = subprocess.run(
        [sys.executable, "-m", "recovery.cli", *shlex.split(command)[2:]],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    shown = f"{done.stdout}$ echo $?\n{done.returncode}\n"
    # How many calls reach the disk is a matter of the Python that runs it.
    for pattern, instead in ((r"\(of \d+\)", "(of N)"), ("What to do: .*", "What to do: ...")):
        shown, said[0] = (re.sub(pattern, instead, text) for text in (shown, said[0]))
    assert shown == said[0], done.stderr


def test_every_option_is_on_the_page_or_in_the_help(work: Path) -> None:
    options = set(re.findall(r"--[a-z]+", crashtest(work, "--help").stdout))
    named = set(re.findall(r"--[a-z]+", PAGE)) - {"--continue"}
    assert named <= options
    assert {"--tool", "--proxy", "--resume", "--fresh", "--result", "--strict", "--json"} <= options
