"""A black box: real processes under strace, every system call held against the rules of durability.

This is what the simulated disk takes for granted of the files module: which call comes before
which, and on which descriptor. The recording is checked too: it must rebuild the real directory.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from tests.integration.kernels import FORK, KILLED, Ended, needed, no_strace, python, run, traced
from tests.integration.system_calls import WATCHED, Replica, recorded

WRITER = (
    FORK
    + """
import random
choose = random.Random(sys.argv[2])
def text(n):
    return "x" * (n * 137 % 500)
log = EventLog.open(sys.argv[1], segment_size=int(sys.argv[3]))
begin = log.last_lsn
while log.last_lsn < begin + int(sys.argv[4]):
    n = log.last_lsn + 1
    what = choose.randrange(8)
    if what < 4:
        log.append("event", text(n))
    elif what < 6:
        log.append_batch([("event", text(n + k)) for k in range(choose.randrange(1, 5))])
    elif what < 7:
        log.append_snapshot({"text": text(n)})
    else:
        log.commit_behind()
    if choose.random() < 0.6:
        log.commit()
        say("ACK", log.last_lsn)
if sys.argv[5:] == ["killed"]:
    os.kill(os.getpid(), signal.SIGKILL)
log.close()
say("ACK", log.last_lsn)
"""
)

AGENT = (
    FORK
    + """
import asyncio
from recovery import CheckpointStore, RecoverableAgent, tool

@tool
def send(step):
    fd = os.open(sys.argv[1] + "/effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, b"%d\\n" % step)
    os.close(fd)
    return step

@tool(after_crash="retry")
async def look(step):
    return "y" * (step * 331 % 900)

async def agent(run):
    async for step in run.steps():
        run.messages.append(await run.call(look, step))
        run.messages.append(await run.call(send, step))
        run.state[f"key {step % 3}"] = [step] * 50
        if step == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        if step == 12:
            return len(run.messages)

of = RecoverableAgent(agent, CheckpointStore(sys.argv[1] + "/home"), checkpoint_every_n=3)
found = asyncio.run(of.run_with_recovery("task", "run"))
say("RESULT", found["result"])
"""
)


def record(tmp_path: Path, command: list[str]) -> tuple[Ended, Path]:
    """Run the command; what it said, and its calls."""
    path = tmp_path / f"calls {len(list(tmp_path.iterdir()))}"
    return run(traced(command, calls=WATCHED, record=path)), path


def root(tmp_path: Path) -> Path:
    path = tmp_path / "root"
    path.mkdir()
    return path


# -- the rules


def check_writers(tmp_path: Path, seed: int, size: int, runs: int) -> Replica:
    """Writers one after the other on one log, every second one killed."""
    replica = Replica(root(tmp_path))
    log = replica.root + "/new/directories/log"
    for number in range(runs):
        args = [log, f"{seed} {number}", size, 20, *["killed"] * (number % 2)]
        ended, calls = record(tmp_path, python(WRITER, *args))
        assert ended.code == (KILLED if number % 2 else 0), ended
        for _ in replica.play(recorded(calls)):
            pass
        assert replica.violations == []
        assert replica.acknowledged == ended.acknowledged > 0
        replica.check_against_disk()
    assert replica.counts["fdatasync"] >= replica.counts["acknowledged"] >= runs
    assert replica.counts["linkat"] == len(replica.segments(log))
    return replica


def test_what_a_writer_acknowledges_is_on_the_disk_before(tmp_path: Path) -> None:
    needed(no_strace())
    print(check_writers(tmp_path, 1, 2500, 3).counts)


@pytest.mark.crash
@pytest.mark.parametrize("size", [200, 1000, 6000, 50_000])
def test_what_many_writers_acknowledge_is_on_the_disk_before(
    tmp_path: Path, size: int, rng: random.Random
) -> None:
    needed(no_strace())
    total: Counter[str] = Counter()
    for number in range(10):
        path = tmp_path / str(number)
        path.mkdir()
        total.update(check_writers(path, rng.getrandbits(32), size, 4).counts)
    print(dict(total))


def test_what_leads_to_an_effect_is_on_the_disk_before(tmp_path: Path) -> None:
    """An agent, killed in two steps: before each of its effects the intent is durable, and all
    before the intent; before its result is handed on, everything."""
    needed(no_strace())
    replica = Replica(root(tmp_path))
    for step in (4, 9, 0):
        ended, calls = record(tmp_path, python(AGENT, replica.root, step))
        assert ended.code == (KILLED if step else 0), ended
        for _ in replica.play(recorded(calls)):
            pass
        assert replica.violations == []
        replica.check_against_disk()
    assert ended.lines == ["RESULT 24"]
    assert replica.counts["effects"] == 12 + 1
