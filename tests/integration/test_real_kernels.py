"""Disks that really fill up: small file systems, limits on the size of files, no inodes left."""

from __future__ import annotations

import errno
import json
import shutil
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eventlog import EventLog
from recovery import CheckpointStore, Resolution
from recovery.control.resolve import resolve
from tests.integration.kernels import KINDS, Ended, mounted, needed, no_prlimit, python, run

PAGE = 4096
SEGMENT_SIZE = 6000
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
on_each_kind = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.crash] * (kind == "xfs")) for kind in KINDS]
)


def body(n: int) -> dict[str, Any]:
    """What record ``n`` holds."""
    return {"n": n, "data": "x" * (n * 371 % 1200)}


def append(log: EventLog, n: int) -> int:
    return log.append_snapshot(body(n)) if n % 5 == 0 else log.append("event", body(n))


def write(path: Path, acknowledge: Callable[[int], None], count: int = 30) -> None:
    """``count`` records more, from opening to closing."""
    with EventLog.open(path, segment_size=SEGMENT_SIZE) as log:
        for n in range(log.last_lsn + 1, log.last_lsn + count + 1):
            append(log, n)
            log.commit()
            acknowledge(n)


def check_kept(path: Path, acknowledged: int) -> None:
    """Nothing acknowledged is lost, what is there is a prefix, and the log can be gone on with."""
    with EventLog.open(path, segment_size=SEGMENT_SIZE) as log:
        assert log.report.damaged == (), log.report
        assert log.last_lsn >= acknowledged, log.report
        last = log.last_lsn
    more: list[int] = []
    write(path, more.append)
    with EventLog.open(path) as log:
        assert (log.report.clean, log.report.damaged, log.last_lsn) == (True, (), last + 30)
        assert [r.body for r in log.records()] == [body(n) for n in range(1, last + 31)]


# Where the error came from: the function of the log that was at work.
STAGES = {
    "make_directory": "the log's directory",
    "claim": "LOCK",
    "create": "a segment",
    "publish": "a segment's name",
    "_new_segment": "MARK",
    "_note_durable": "MARK",
    "seal": "a footer",
    "write": "a frame",
}


def fails(path: Path, acknowledged: list[int], count: int = 30) -> str:
    """Write until the disk is full; the stage at which it was, "" if all of it went in."""
    try:
        write(path, acknowledged.append, count)
    except OSError as exc:
        assert exc.errno in FULL, exc
        names = [frame.name for frame in traceback.extract_tb(exc.__traceback__)]
        return next((STAGES[name] for name in reversed(names) if name in STAGES), names[-1])
    return ""


@on_each_kind
def test_a_disk_that_fills_up_at_any_stage_loses_nothing_acknowledged(kind: str) -> None:
    """From no free space at all to enough of it, page by page: a new log, and one to go on with."""
    stages: Counter[str] = Counter()
    step = PAGE * 8 if kind == "xfs" else PAGE  # it keeps so much back for itself
    with mounted(kind) as mount:
        for spare in range(0, 60 * step, step):
            new, old = mount.path / f"new-{spare}", mount.path / f"old-{spare}"
            acknowledged_new: list[int] = []
            acknowledged_old: list[int] = []
            write(old, acknowledged_old.append, 7)
            mount.fill(spare)
            found = fails(old, acknowledged_old), fails(new, acknowledged_new)
            stages.update(found)
            mount.free()
            check_kept(old, len(acknowledged_old))
            check_kept(new, len(acknowledged_new))
            shutil.rmtree(old)
            shutil.rmtree(new)
            if found == ("", ""):
                break
    print(f"{kind}: {dict(stages)}")
    assert "" in stages, "the disk never was large enough"
    wanted = {"tmpfs": {"LOCK", "MARK", "a segment", "a frame"}, "xfs": {"a segment"}}
    assert stages.keys() >= wanted.get(kind, {"a frame"}), stages


@pytest.mark.parametrize("kind", ["tmpfs", "ext4", "ext4 with journal"])  # xfs always makes more
def test_no_inode_left_is_a_full_disk(kind: str) -> None:
    stages = []
    with mounted(kind) as mount:
        write(mount.path / "old", lambda n: None, 7)
        for spare in range(30):
            path, acknowledged = mount.path / f"log-{spare}", list[int]()
            mount.use_up_inodes(spare)
            stages.append(fails(path, acknowledged))
            mount.free()
            check_kept(path, len(acknowledged))
            shutil.rmtree(path)
            if not stages[-1]:
                break
        mount.use_up_inodes()
        acknowledged = []
        assert fails(mount.path / "old", acknowledged)
        mount.free()
        check_kept(mount.path / "old", 7 + len(acknowledged))
    print(f"{kind}: {stages}")
    assert stages[0] == "the log's directory" and stages[-1] == ""
    assert {"LOCK", "MARK", "a segment"} <= set(stages)


# -- processes

WRITER = """
from pathlib import Path
def body(n):
    return {"n": n, "data": "x" * (n * 371 % 1200)}
log = EventLog.open(sys.argv[1], segment_size=6000)
say("READY")
try:
    for n in range(log.last_lsn + 1, 100_000):
        log.append_snapshot(body(n)) if n % 5 == 0 else log.append("event", body(n))
        log.commit()
        say("ACK", n)
except OSError as exc:
    say("ERROR", errno.errorcode[exc.errno])
for call in (lambda: log.append("event", body(n)), log.commit):
    try:
        call()
        say("IT WENT ON")
    except WriterFailedError as exc:
        say("REFUSED", exc)
if len(sys.argv) > 2:
    os.kill(os.getpid(), signal.SIGKILL)
log.close()
"""


def check_full(ended: Ended, path: Path, error: str) -> None:
    assert ended.after("ERROR ") == [error], ended
    assert "IT WENT ON" not in ended.lines
    for refused in ended.after("REFUSED "):
        assert f"Everything up to LSN {ended.acknowledged} is safe" in refused
        assert "close this log and open it again" in refused
        assert str(path) in refused
    assert len(ended.after("REFUSED ")) == 2


@on_each_kind
@pytest.mark.parametrize("killed", [False, True], ids=["closed", "killed"])
def test_a_writer_runs_into_a_full_disk_and_another_goes_on(kind: str, killed: bool) -> None:
    with mounted(kind) as mount:
        outside, inside = mount.path / "log", mount.inside / "log"
        command = mount.command(python(WRITER, inside, *["killed"] * killed))
        acknowledged = 0
        for _ in range(2):
            mount.fill((60 if kind == "xfs" else 23) * PAGE)
            ended = run(command)
            check_full(ended, inside, "ENOSPC")
            assert ended.acknowledged > acknowledged, ended
            acknowledged = ended.acknowledged
            mount.free()
        check_kept(outside, acknowledged)


def test_the_error_names_the_log_and_what_to_do() -> None:
    with mounted("tmpfs") as mount:
        mount.fill(8 * PAGE)
        with pytest.raises(OSError) as caught, EventLog.open(mount.path / "log") as log:
            for n in range(1, 1000):
                append(log, n)
                log.commit()
        said = "\n".join(getattr(caught.value, "__notes__", []))
        assert caught.value.errno == errno.ENOSPC
        assert str(mount.path / "log") in said
        assert f"up to LSN {log.durable_lsn} is safe" in said
        assert "open it again" in said
        with pytest.raises(OSError) as caught:
            EventLog.open(mount.path / "another")
        said = "\n".join(getattr(caught.value, "__notes__", []))
        assert str(mount.path / "another") in said


AGENT = """
import asyncio, json
from recovery import CheckpointStore, RecoverableAgent, InDoubtError, tool

@tool
def send(step):
    with open(sys.argv[2], "a") as effects:
        effects.write(f"{step}\\n")
    return {"step": step, "data": "x" * 700}

@tool(after_crash="retry")
async def look(step):
    return "y" * (step * 331 % 1500)

async def agent(run):
    async for step in run.steps():
        run.messages.append(await run.call(look, step))
        run.messages.append(await run.call(send, step))
        run.state[f"key {step % 3}"] = [step] * 50
        if step == 60:
            return len(run.messages)

of = RecoverableAgent(agent, CheckpointStore(sys.argv[1]), checkpoint_every_n=3)
try:
    found = asyncio.run(of.run_with_recovery("task", "run"))
    say("RESULT", json.dumps([found["result"], found["recovery_count"]]))
except OSError as exc:
    say("ERROR", errno.errorcode[exc.errno])
except LogError as exc:
    say("LOGERROR", type(exc).__name__)
except InDoubtError as exc:
    say("DOUBT", json.dumps([[call.lsn, call.args[0]] for call in exc.calls]))
"""


def settle_doubts(home: Path, effects: Path, ended: Ended) -> None:
    """A person looks at what the agent did, and says so."""
    for found in ended.after("DOUBT "):
        for lsn, step in json.loads(found):
            done = str(step) in effects.read_text().split()
            value = {"step": step, "data": "x" * 700}
            how = Resolution.outcome(value) if done else Resolution.retry()
            with CheckpointStore(home) as store:
                resolve(store, "run", lsn, how, who="test")


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.crash] * (kind != "tmpfs")) for kind in KINDS]
)
def test_an_agent_resumes_after_the_disk_was_full_and_does_nothing_twice(
    kind: str, tmp_path: Path
) -> None:
    """It gets a little more space each time: every time it dies at another stage."""
    effects = tmp_path / "effects"
    effects.touch()
    errors = 0
    with mounted(kind) as mount:
        command = mount.command(python(AGENT, mount.inside / "home", effects))
        for spare in range(0, 400 * PAGE, 4 * PAGE):
            mount.fill(spare)
            ended = run(command)
            mount.free()
            if ended.after("RESULT "):
                break
            full = ended.after("ERROR ") == ["ENOSPC"]
            late = ended.after("LOGERROR ") == ["WriterFailedError"]  # a flush behind ran into it
            assert full or late or ended.after("DOUBT "), ended
            errors += full or late
            settle_doubts(mount.path / "home", effects, ended)
    assert ended.after("RESULT ")[0].startswith("[120, "), ended
    assert errors >= 3
    assert effects.read_text().split() == [str(step) for step in range(1, 61)]


# -- short writes: the kernel writes up to the limit, and then nothing (EFBIG)

LIMITED = """
import json, resource
from pathlib import Path
def body(n):
    return {"n": n, "data": "x" * (n * 371 % 1200)}
def at(limit):
    path = Path(sys.argv[1], str(limit))
    acknowledged, error = 0, 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        with EventLog.open(path, segment_size=6000) as log:
            for n in range(1, 25):
                log.append_snapshot(body(n)) if n % 5 == 0 else log.append("event", body(n))
                log.commit()
                acknowledged = n
    except OSError as exc:
        error = exc.errno
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    with EventLog.open(path, segment_size=6000) as log:
        assert log.report.damaged == () and log.last_lsn >= acknowledged, (limit, log.report)
        found = [r.body for r in log.records()]
        assert found == [body(n) for n in range(1, log.last_lsn + 1)], limit
        log.append("event", body(log.last_lsn + 1))
        last = log.last_lsn
    with EventLog.open(path) as log:
        assert (log.report.clean, log.report.damaged, log.last_lsn) == (True, (), last), limit
    for file in path.iterdir():
        file.unlink()
    path.rmdir()
    return acknowledged, error
found = [at(limit) for limit in range(*map(int, sys.argv[2:5]))]
say("FOUND", json.dumps(found))
"""


def limits(*steps: int) -> list[list[int]]:
    with mounted("tmpfs") as mount:  # where a flush takes no time
        ended = run(mount.command(python(LIMITED, mount.inside, *steps)), timeout_s=600)
    assert ended.code == 0, ended
    found: list[list[int]] = json.loads(ended.after("FOUND ")[0])
    return found


@pytest.mark.parametrize("step", [97, pytest.param(1, marks=pytest.mark.crash)])
def test_short_writes_at_many_limits(step: int) -> None:
    found = limits(0, 8600, step)
    print(f"{len(found)} limits, {sum(error != 0 for _, error in found)} with a short write")
    assert {error for _, error in found} == {0, errno.EFBIG}
    assert found[0] == [0, errno.EFBIG] and found[-1] == [24, 0]
    # More space never loses more.
    counts = [acknowledged for acknowledged, _ in found]
    assert len(set(counts)) > 3, counts


@pytest.mark.parametrize("limit", [0, 300, 512, 3000, 5001])
def test_a_writer_that_was_started_with_a_limit(tmp_path: Path, limit: int) -> None:
    needed(no_prlimit())
    path = tmp_path / "log"
    ended = run(["prlimit", f"--fsize={limit}:{limit}", *python(WRITER, path)])
    if "READY" in ended.lines:
        check_full(ended, path, "EFBIG")
    else:  # not even LOCK could be written
        assert limit < 512 and "File too large" in ended.err, ended
    check_kept(path, ended.acknowledged)
