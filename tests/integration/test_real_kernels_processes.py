"""Many processes on one machine: contending, killed, stopped, forked; and clocks that lie."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from eventlog import EventLog
from eventlog.errors import FencedError
from eventlog.files.posix import OSDirectory
from recovery import CheckpointStore, Resolution
from recovery.control.resolve import resolve
from tests.integration.kernels import ENVIRONMENT, needed, no_faketime, python, run

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a program; what is left of it is killed in the end."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, *args: object) -> subprocess.Popen[str]:
        started.append(
            subprocess.Popen(
                python(code, *args),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=ENVIRONMENT,
                text=True,
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


# -- many writers for one log

CONTENDER = """
import json
stop = time.monotonic() + 300
sys.stdin.readline()
while time.monotonic() < stop:
    try:
        log = EventLog.open(sys.argv[1], segment_size=3000)
    except LogLockedError as exc:
        say("LOCKED", json.dumps([exc.pid, exc.host]))
        open(f"{sys.argv[1]}.refused.{os.getpid()}", "w").close()
        time.sleep(0.005)
        continue
    say("OWN", log.last_lsn)
    while not os.path.exists(sys.argv[2]):
        log.append("event", {"pid": os.getpid(), "data": "x" * (log.last_lsn % 200)})
        log.commit()
        say("ACK", log.last_lsn)
        open(f"{sys.argv[1]}.acknowledged", "w").close()
        time.sleep(0.001)
    log.close()
    break
"""


def owner_of(path: Path) -> int | None:
    """The process that the lock file names."""
    try:
        found = json.loads((path / "LOCK").read_bytes())
    except (FileNotFoundError, ValueError):  # the first owner is just writing it
        return None
    pid: int | None = found.get("pid")
    return pid


def test_many_writers_contend_for_one_log_and_owners_are_killed(
    tmp_path: Path, start: Start, rng: random.Random
) -> None:
    """One owns it at a time; the others are told who; when the owner dies another goes on."""
    path, enough, count = tmp_path / "log", tmp_path / "enough", 6
    processes = [start(CONTENDER, path, enough) for _ in range(count)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    while len(list(tmp_path.glob("log.refused.*"))) < count // 2:
        time.sleep(0.01)
    living = list(processes)
    while len(living) > 2:
        pid = owner_of(path)
        owner = next((one for one in living if one.pid == pid and one.poll() is None), None)
        time.sleep(rng.uniform(0.0, 0.06))
        if owner is not None:
            owner.kill()
            living.remove(owner)
    while not Path(f"{path}.acknowledged").exists():  # all may have been killed before that
        time.sleep(0.01)
    enough.touch()
    said = {one.pid: one.communicate(timeout=60)[0] for one in processes}
    acknowledged: dict[int, int] = {}  # LSN: who was told so
    for pid, text in said.items():
        for found in text[: text.rfind("\n") + 1].splitlines():
            word, _, rest = found.partition(" ")
            if word == "ACK":
                assert acknowledged.setdefault(int(rest), pid) == pid, "two owners at one time"
            elif word == "LOCKED":
                named, host = json.loads(rest)
                # Nobody is named only in the moment before the first owner has said who it is.
                assert named in said or (named, host) == (None, None)
                assert host in (socket.gethostname(), None)
    with EventLog.open(path) as log:
        assert log.report.damaged == ()
        assert log.last_lsn >= max(acknowledged)
        pids = {record.lsn: record.body["pid"] for record in log.records()}
    assert {lsn: pids[lsn] for lsn in acknowledged} == acknowledged


STOPPED = """
try:
    log = EventLog.open(sys.argv[1], segment_size=2000, takeover=sys.argv[2] == "taker")
    def behind():
        while True:
            try:
                log.commit()
            except LogError:
                return
    threading.Thread(target=behind, daemon=True).start()
    while True:
        lsn = log.append("event", {"by": sys.argv[2], "data": "x" * 150})
        log.commit()
        say("ACK", lsn)
except Exception as exc:
    say(type(exc).__name__)
    os._exit(0)
"""


class Owner:
    """A process that appends until it is fenced, and says so in a file."""

    def __init__(self, path: Path, how: str) -> None:
        self.said = path.with_name(f"said-{len(list(path.parent.iterdir()))}")
        with self.said.open("wb") as out:
            self.process = subprocess.Popen(python(STOPPED, path, how), stdout=out, env=ENVIRONMENT)

    def words(self) -> list[str]:
        return self.said.read_text().split()

    def after(self, count: int) -> None:
        """Wait until it has acknowledged ``count`` records."""
        while self.words().count("ACK") < count:
            assert self.process.poll() is None, self.words()[-3:]
            time.sleep(0.001)


def test_an_owner_that_loses_the_log_while_it_makes_a_segment_is_fenced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was found: the new owner clears away what is in the making."""
    old = EventLog.open(tmp_path / "log", segment_size=300)
    old.append("event", "old")
    publish = OSDirectory.publish

    def late(directory: OSDirectory, temporary: str, name: str) -> None:
        monkeypatch.undo()
        EventLog.open(tmp_path / "log", takeover=True).close()
        publish(directory, temporary, name)

    monkeypatch.setattr(OSDirectory, "publish", late)
    try:
        with pytest.raises(FencedError):
            old.append("event", "late" * 50)
    finally:
        old._release()
    with EventLog.open(tmp_path / "log") as log:
        assert [record.body for record in log.records()] == ["old"]


def test_an_unfinished_segment_that_its_maker_renames_meanwhile_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new owner lists it, and the old one, which lives, renames it before it is deleted."""
    with EventLog.open(tmp_path / "log") as old:
        old.append("event", "old")
    names = OSDirectory.names
    gone = "00000009.seg.0a0b0c0d.new"
    monkeypatch.setattr(OSDirectory, "names", lambda directory: [*names(directory), gone])
    with EventLog.open(tmp_path / "log") as log:
        assert [record.body for record in log.records()] == ["old"]


def test_owners_stopped_at_random_moments_never_acknowledge_what_does_not_count(
    tmp_path: Path, rng: random.Random
) -> None:
    """Each is stopped in the middle of its work, wherever that is, taken over from, continued."""
    path = tmp_path / "log"
    owners = [Owner(path, "first")]
    try:
        for turn in range(6):
            owners[-1].after(rng.randrange(1, 30))
            os.kill(owners[-1].process.pid, signal.SIGSTOP)
            if turn % 3 == 0:  # stopped is not dead
                refused = Owner(path, "polite")
                refused.process.wait(timeout=60)
                assert refused.words() == ["LogLockedError"]
            owners.append(Owner(path, "taker"))
            if rng.random() < 0.7:
                os.kill(owners[-2].process.pid, signal.SIGCONT)
        owners[-1].after(3)
        owners[-1].process.kill()
        for owner in owners:
            owner.process.send_signal(signal.SIGCONT)
            owner.process.wait(timeout=60)
    finally:
        for owner in owners:
            owner.process.kill()
            owner.process.wait()
    acknowledged: Counter[int] = Counter()
    for owner in owners:
        words = owner.words()
        assert owner is owners[-1] or words[-1] == "FencedError", words[-3:]
        acknowledged.update(int(word) for word in words if word.isdigit())
    with EventLog.open(path) as log:
        assert log.report.damaged == ()
        lsns = [record.lsn for record in log.records()]
    assert lsns == list(range(1, len(lsns) + 1))
    assert max(acknowledged) <= len(lsns)
    assert set(acknowledged.values()) == {1}, "one LSN was acknowledged by two owners"


# -- forks

FORKING = """
import subprocess
log = EventLog.open(sys.argv[1], segment_size=2000)
children = []
for n in range(1, 100_000):
    log.append("event", n)
    log.commit()
    say("ACK", n)
    if n % 20 == 0 and len(children) < 4:
        pid = os.fork()
        if pid == 0:
            try:
                log.append("event", "child")
            except LogError:
                say("REFUSED")
            time.sleep(60)
            os._exit(0)
        children.append(pid)
        children.append(subprocess.Popen(["sleep", "60"], close_fds=False).pid)
        say("CHILDREN", *children)
"""


def test_a_killed_owner_whose_children_live_has_let_go(tmp_path: Path, start: Start) -> None:
    """Children made by fork, and programs started by it with all inheritable descriptors."""
    owner = start(FORKING, tmp_path / "log")
    children: list[int] = []
    refused = acknowledged = 0
    try:
        while len(children) < 4 or refused < 2:
            word, *rest = line(owner).split()
            if word == "CHILDREN":
                children = [int(pid) for pid in rest]
            refused += word == "REFUSED"
            acknowledged = int(rest[0]) if word == "ACK" else acknowledged
        owner.kill()
        owner.wait()
        for child in children:
            os.kill(child, 0)  # alive
        with EventLog.open(tmp_path / "log") as log:
            assert log.last_lsn >= acknowledged and log.report.damaged == ()
            bodies = [record.body for record in log.records()]
            assert bodies == list(range(1, log.last_lsn + 1))
    finally:
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


# -- many agents

AGENT = """
import asyncio, json
from recovery import CheckpointStore, InDoubtError, RecoverableAgent, tool

home, run_ids = sys.argv[1], sys.argv[2:]

async def one(run_id):
    @tool
    async def send(step):
        fd = os.open(f"{home}-effects-{run_id}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(fd, f"{step}\\n".encode())
        os.close(fd)
        await asyncio.sleep(0)
        return step * 2

    @tool(after_crash="retry")
    async def look(step):
        return "y" * (step * 331 % 900)

    async def agent(run):
        async for step in run.steps():
            run.messages.append(await run.call(look, step))
            run.messages.append(await run.call(send, step))
            run.state[f"key {step % 3}"] = run.now()
            if step == 25:
                return [m for m in run.messages if isinstance(m, int)]

    of = RecoverableAgent(agent, CheckpointStore(home), checkpoint_every_n=3)
    try:
        found = await of.run_with_recovery("task", run_id)
        say("RESULT", json.dumps([run_id, found["result"]]))
    except InDoubtError as exc:
        say("DOUBT", json.dumps([run_id, [[call.lsn, call.args[0]] for call in exc.calls]]))

async def main():
    await asyncio.gather(*map(one, run_ids))

asyncio.run(main())
"""


def many_agents(tmp_path: Path, start: Start, rng: random.Random, kills: int) -> None:
    home, run_ids = tmp_path / "home", [f"run-{n}" for n in range(8)]
    effects = {run_id: Path(f"{home}-effects-{run_id}") for run_id in run_ids}
    results: dict[str, Any] = {}
    doubts = done = 0
    while len(results) < len(run_ids):
        left = [run_id for run_id in run_ids if run_id not in results]
        rng.shuffle(left)
        processes = [start(AGENT, home, *left[n::3]) for n in range(3) if left[n::3]]
        for process in processes:
            if done < kills:
                before = sum(path.stat().st_size for path in effects.values() if path.exists())
                enough, deadline = before + rng.randrange(10, 90), time.monotonic() + 2
                while time.monotonic() < deadline and process.poll() is None:
                    if sum(p.stat().st_size for p in effects.values() if p.exists()) > enough:
                        break
                    time.sleep(0.001)
                process.kill()
                done += 1
        for process in processes:
            text = process.communicate(timeout=60)[0]
            assert process.returncode in (0, -signal.SIGKILL)
            for found in text[: text.rfind("\n") + 1].splitlines():
                word, _, rest = found.partition(" ")
                run_id, what = json.loads(rest)
                if word == "RESULT":
                    results[run_id] = what
                    continue
                for lsn, step in what:
                    happened = effects[run_id].exists() and str(step) in (
                        effects[run_id].read_text().split()
                    )
                    how = Resolution.outcome(step * 2) if happened else Resolution.retry()
                    with CheckpointStore(home) as store:
                        resolve(store, run_id, lsn, how, who="test")
                    doubts += 1
    print(f"{done} kills, {doubts} calls in doubt")
    assert results == {run_id: [step * 2 for step in range(1, 26)] for run_id in run_ids}
    for path in effects.values():
        assert path.read_text().split() == [str(step) for step in range(1, 26)]


def test_many_agents_in_many_processes_do_everything_once(
    tmp_path: Path, start: Start, rng: random.Random
) -> None:
    many_agents(tmp_path, start, rng, 5)


@pytest.mark.crash
def test_many_agents_killed_very_often_do_everything_once(
    tmp_path: Path, start: Start, rng: random.Random
) -> None:
    for number in range(8):
        path = tmp_path / str(number)
        path.mkdir()
        many_agents(path, start, rng, 12)


# -- clocks

CLOCK = """
from recovery import CheckpointStore
takeover = sys.argv[2] == "takeover"
log = EventLog.open(sys.argv[1], segment_size=1500, takeover=takeover)
assert not log.report.damaged, log.report
say("YEAR", time.gmtime().tm_year)
for n in range(5):
    log.append("event", {"lsn": log.last_lsn + 1, "data": "x" * 100})
    log.append_snapshot({"lsn": log.last_lsn + 1})
    log.commit()
    say("ACK", log.last_lsn)
if sys.argv[2] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "stopped":
    sys.stdin.readline()
    try:
        log.append("event", "late")
        log.commit()
        say("IT WENT ON")
    except FencedError:
        say("FENCED")
    os._exit(0)
log.close()
"""
YEARS = ["2031", "2003", "2026", "2001", "2037", "1999"]


def at(year: str, command: list[str]) -> list[str]:
    """The command with a clock of that year; monotonic time stays as it is."""
    needed(no_faketime())
    return ["faketime", "--exclude-monotonic", "-f", f"@{year}-02-03 04:05:06", *command]


def test_a_clock_that_jumps_back_by_years_changes_nothing_of_a_log(tmp_path: Path) -> None:
    """Order, validity, the newest snapshot: none of them depends on when a record says it was."""
    path = tmp_path / "log"
    for number, year in enumerate(YEARS):
        how = "killed" if number % 2 else "closed"
        ended = run(at(year, python(CLOCK, path, how)))
        assert ended.after("YEAR ") == [year] and ended.acknowledged == 10 * (number + 1), ended
        with EventLog.read(path) as log:
            snapshot = log.latest_snapshot()
            assert snapshot is not None and snapshot.body == {"lsn": ended.acknowledged}
    with EventLog.open(path) as log:
        assert log.report.damaged == ()
        records = list(log.records())
        assert [record.lsn for record in records] == [record.body["lsn"] for record in records]
        years = [str(time.gmtime(record.time_ns // 10**9).tm_year) for record in records[::10]]
    assert years == YEARS, "a record's time is what the clock said"


@pytest.mark.parametrize("years", [("2031", "2003"), ("2003", "2031")])
def test_a_takeover_between_machines_whose_clocks_are_apart(
    tmp_path: Path, start: Start, years: tuple[str, str]
) -> None:
    """The epoch decides, whatever the clocks say."""
    path = tmp_path / "log"
    old = subprocess.Popen(
        at(years[0], python(CLOCK, path, "stopped")),
        env=ENVIRONMENT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        for _ in range(6):
            said = line(old)
        assert said == "ACK 10"
        refused = run(at(years[1], python(CLOCK, path, "closed")))
        assert "LogLockedError" in refused.err and f"since {years[0]}" in refused.err
        ended = run(at(years[1], python(CLOCK, path, "takeover")))
        assert ended.acknowledged == 20, ended
        out, _ = old.communicate("\n", timeout=60)
    finally:
        old.kill()
        old.communicate()
    assert out == "FENCED\n"
    with EventLog.open(path) as log:
        assert (log.last_lsn, log.report.damaged) == (20, ())
        assert "late" not in [record.body for record in log.records()]


CLOCK_AGENT = """
import asyncio, json
from recovery import CheckpointStore, RecoverableAgent, tool

@tool
def send(step):
    with open(sys.argv[1] + "-effects", "a") as effects:
        effects.write(f"{step}\\n")
    return step

async def agent(run):
    begun = run.now()
    async for step in run.steps():
        run.messages.append(await run.call(send, step))
        now = run.now()
        say("NOW", json.dumps([step, begun, now]))
        run.state.setdefault("times", [])
        run.state["times"] = [*run.state["times"], now]
        await run.call(send, -step)  # behind the time: a replay of this step has to claim it
        if step == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        if step == 12:
            return [begun, run.state["times"]]

of = RecoverableAgent(agent, CheckpointStore(sys.argv[1]), checkpoint_every_n=2)
found = asyncio.run(of.run_with_recovery("task", "run"))
say("RESULT", json.dumps([found["result"], found["recovered_from_step"]]))
"""


def test_an_agent_sees_the_times_that_were_recorded_whatever_the_clock_says(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    seen: dict[int, Any] = {}
    for year, step in (("2031", 3), ("2003", 5), ("2026", 9), ("2001", 0)):
        ended = run(at(year, python(CLOCK_AGENT, home, step)))
        for said in ended.after("NOW "):
            number, *times = json.loads(said)
            assert seen.setdefault(number, times) == times, "replay saw another time"
    result, step = json.loads(ended.after("RESULT ")[0])
    assert result == [seen[1][0], [seen[n][1] for n in range(1, 13)]]
    assert step == 8, "the newest checkpoint, which the clock says is the older one"
    years = [time.gmtime(seen[n][1]).tm_year for n in (1, 4, 6, 10)]
    assert years == [2031, 2003, 2026, 2001]
    effects = Path(f"{home}-effects").read_text().split()
    assert effects == [str(sign * n) for n in range(1, 13) for sign in (1, -1)]
