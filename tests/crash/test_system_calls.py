"""A black box: real processes under strace, every system call held against the rules of durability.

This is what the simulated disk takes for granted of the files module: which call comes before
which, and on which descriptor. The recording is checked too: it must rebuild the real directory.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from eventlog import EventLog, Record
from eventlog.files.api import Directory, File
from eventlog.testing import SimulatedDisk
from tests.conftest import Figures
from tests.integration.kernels import FORK, KILLED, Ended, needed, no_strace, python, run, traced
from tests.integration.system_calls import WATCHED, Call, Inode, Replica, recorded

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
    what = choose.randrange(9)
    if what < 4:
        log.append("event", text(n))
    elif what < 6:
        log.append_batch([("event", text(n + k)) for k in range(choose.randrange(1, 5))])
    elif what < 7:
        lsn = log.append_snapshot({"text": text(n)})
        if choose.random() < 0.3:  # frees what is before the snapshot, which is durable then
            log.truncate_before(lsn)
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
    # Not one for each acknowledgement: some commits find that the committer was there first.
    assert min(replica.counts["fdatasync"], replica.counts["acknowledged"]) >= runs
    assert replica.counts["linkat"] >= len(replica.segments(log))
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


# -- crash images from a recording


class Playback:
    """The recorded calls once more, on a simulated disk: what a power loss may leave of them."""

    def __init__(self, replica: Replica) -> None:
        self.disk = SimulatedDisk()
        self._replica = replica
        self._files: dict[Inode, File] = {}

    def _directory(self, path: str) -> tuple[Directory, str]:
        return self.disk.make_directory(str(Path(path).parent)), Path(path).name

    def apply(self, call: Call) -> bool:
        """Do what a call did that succeeded; whether it changed anything."""
        before = len(self.disk.calls)
        if call.result < 0:
            return False
        of_a_file = call.name in ("pwrite64", "ftruncate", "fdatasync", "fsync")
        inode = self._replica.inode(call) if of_a_file else None
        if call.name == "openat":
            self._open(call)
        elif call.name == "linkat":
            directory, name = self._directory(call.path(2))
            directory.publish(Path(call.path(0)).name, name)
        elif call.name == "unlinkat":
            directory, name = self._directory(call.path(0))
            if name in directory.names():  # a temporary name went with publish
                directory.remove(name)
        elif call.name == "fsync" and inode is None:
            self.disk.make_directory(call.directory(0)).sync()
        elif inode is not None:
            self._change(call, self._files[inode])
        return len(self.disk.calls) > before

    def _open(self, call: Call) -> None:
        inode = self._replica.names.get(call.path(0))
        if inode is not None and inode not in self._files:
            directory, name = self._directory(call.path(0))
            self._files[inode] = directory.open(name, write=True, create=True)

    def _change(self, call: Call, file: File) -> None:
        if call.name == "pwrite64":
            file.pwrite(call.data(1)[: call.result], int(call.args[3]))
        elif call.name == "ftruncate":
            file.truncate(int(call.args[1]))
        elif call.name == "fdatasync":
            file.sync()


def check_image(disk: SimulatedDisk, log: str, replica: Replica, truth: dict[int, bytes]) -> None:
    """Recover one image: everything acknowledged is there, what is there is a prefix."""
    with EventLog.open(log, files=disk, segment_size=5000) as opened:
        assert opened.report.damaged == ()
        assert opened.last_lsn >= replica.acknowledged
        found = {record.lsn: record.packed for record in opened.records(opened.oldest_lsn)}
        assert sorted(found) == list(range(opened.oldest_lsn, opened.last_lsn + 1))
        assert all(truth[lsn] == packed for lsn, packed in found.items() if lsn in truth)
        more = opened.append("event", "more")
        opened.commit()
    with EventLog.open(log, files=disk) as opened:
        assert opened.report.clean and opened.last_lsn == more


def records(log: str) -> list[Record]:
    with EventLog.read(log) as reader:
        return list(reader.records(on_damage=print))


def crash_images(tmp_path: Path, seed: int, per_call: int) -> tuple[int, int]:
    """Record two writers, the first of them killed; recover what a power loss after each call may
    leave. How many calls and distinct images there were."""
    replica = Replica(root(tmp_path))
    log = replica.root + "/log"
    recordings, truth = [], dict[int, bytes]()
    for number in (1, 2):
        args = [log, f"{seed} {number}", 2500, 20, *["killed"] * (number % 2)]
        recordings.append(record(tmp_path, python(WRITER, *args))[1])
        truth |= {record.lsn: record.packed for record in records(log)}
    playback, images, calls = Playback(replica), set[bytes](), 0
    choose = random.Random(seed)
    for calls_of_one in recordings:
        for call in replica.play(recorded(calls_of_one)):
            if not playback.apply(call):
                continue
            calls += 1
            for _ in range(per_call):
                after = playback.disk.after_power_loss(choose.getrandbits(32))
                image = after.image()
                if image not in images:
                    images.add(image)
                    check_image(after, log, replica, truth)
    assert replica.violations == []
    replica.check_against_disk()
    simulated = playback.disk.directories[log]
    assert {n: bytes(f.content) for n, f in simulated.items()} == {
        path.name: path.read_bytes() for path in Path(log).iterdir()
    }
    return calls, len(images)


def test_what_a_power_loss_leaves_of_a_recorded_writer_can_be_recovered(
    tmp_path: Path, figures: Figures
) -> None:
    needed(no_strace())
    calls, images = crash_images(tmp_path, 1, 2)
    figures.add("power losses of recorded writers", calls=calls, states=images)
    assert images > calls / 2


@pytest.mark.crash
def test_what_a_power_loss_leaves_of_many_recorded_writers_can_be_recovered(
    tmp_path: Path, rng: random.Random, figures: Figures
) -> None:
    needed(no_strace())
    calls = images = 0
    for number in range(5):
        path = tmp_path / str(number)
        path.mkdir()
        found = crash_images(path, rng.getrandbits(32), 40)
        calls, images = calls + found[0], images + found[1]
    figures.add("power losses of recorded writers", calls=calls, states=images)
