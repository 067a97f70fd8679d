"""What went wrong in DBOS 3.4.0 when it was really run (docs/comparison.md), done to this library.

Each test does what was done there: 30 steps and a SIGKILL inside step 20, right behind its effect;
changed arguments and dropped steps between crash and resumption; a gather of wrappers that sleep;
an edited source file; 30 random bits flipped, one at a time, in the store of a run of 210 steps.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eventlog import LogError
from eventlog.testing import SimulatedDisk
from recovery import CheckpointStore, RecoverableAgent, Resolution, Run, SyncRun, tool
from recovery.control.resolve import resolve
from recovery.errors import DamagedRunError, DivergenceError
from recovery.stores.log_store import LogStore
from recovery.testing.simulated.virtual_time import Clock, Loop, bury, virtual_time
from tests.support.processes import ENVIRONMENT

STEPS, KILLED_IN = 30, 20

AGENT = """
import json, os, sys, time
from recovery import CheckpointStore, InDoubtError, RecoverableAgent, tool

home, effects, kill_in = sys.argv[1], sys.argv[2], int(sys.argv[3])

@tool
def charge(step):
    with open(effects, "a") as file:
        file.write(f"{step}\\n")
    if step == kill_in:
        print("inside", flush=True)
        time.sleep(600)
    return {"step": step, "text": "x" * 100}

def agent(run):
    for step in run.steps():
        run.messages.append(charge(step))
        if step == STEPS:
            return [message["step"] for message in run.messages]

runner = RecoverableAgent(agent, CheckpointStore(home))
try:
    print(json.dumps(runner.run_with_recovery_sync("charge them", "run")["result"]))
except InDoubtError as parked:
    print(json.dumps([[call.tool, call.args, call.lsn] for call in parked.calls]))
""".replace("STEPS", str(STEPS))


class Process:
    """An agent in a process of its own, killed behind the effect of one step."""

    def __init__(self, tmp_path: Path) -> None:
        self.home, self.effects = tmp_path / "home", tmp_path / "effects"
        self.source = tmp_path / "agent.py"
        self.source.write_text(AGENT)

    def command(self, kill_in: int) -> list[str]:
        return [sys.executable, str(self.source), str(self.home), str(self.effects), str(kill_in)]

    def killed(self) -> None:
        process = subprocess.Popen(
            self.command(KILLED_IN), env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "inside\n"
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()

    def resumed(self) -> Any:
        done = subprocess.run(
            self.command(0), env=ENVIRONMENT, stdout=subprocess.PIPE, check=True, timeout=120
        )
        return json.loads(done.stdout)

    def counted(self) -> Counter[str]:
        return Counter(self.effects.read_text().split())


ONCE = Counter(map(str, range(1, STEPS + 1)))


def test_a_kill_behind_the_effect_of_a_step_does_not_repeat_it(tmp_path: Path) -> None:
    process = Process(tmp_path)
    process.killed()
    for _ in range(2):  # however often: it waits for somebody who knows
        ((name, args, lsn),) = process.resumed()
        assert (name, args) == ("charge", [KILLED_IN])
    assert process.counted()[str(KILLED_IN)] == 1
    happened = Resolution.outcome({"step": KILLED_IN, "text": "it is in the books"})
    resolve(CheckpointStore(process.home), "run", lsn, happened)
    assert process.resumed() == list(range(1, STEPS + 1))
    assert process.counted() == ONCE


def test_an_edited_source_file_resumes_the_run(tmp_path: Path) -> None:
    process = Process(tmp_path)
    process.killed()
    edited = AGENT.replace(
        "    for step in run.steps():\n",
        """\
    # It says where it is, now.
    for step in run.steps():
        print(f"step {step}", file=sys.stderr)
""",
    ).replace('"text": "x" * 100', '"text": "shorter"')
    assert edited != AGENT
    process.source.write_text(edited)
    ((_, _, lsn),) = process.resumed()
    resolve(CheckpointStore(process.home), "run", lsn, Resolution.outcome({"step": KILLED_IN}))
    assert process.resumed() == list(range(1, STEPS + 1))
    assert process.counted() == ONCE


# -- other code after the crash

executed: Counter[Any] = Counter()


@tool
async def send(what: Any) -> str:
    executed[what] += 1
    return f"sent {what}"


class DiesError(Exception):
    pass


def first_life(store: CheckpointStore) -> None:
    executed.clear()

    async def agent(run: Run) -> None:
        await run.call(send, "a")
        await run.call(send, "b")
        raise DiesError

    with pytest.raises(DiesError):
        asyncio.run(RecoverableAgent(agent, store, max_recoveries=0).run_with_recovery("t", "run"))


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (["a", "changed", "c"], "args[0]: 'b' -> 'changed'"),
        (["a"], "the agent returned"),
        (["b"], "the agent returned"),
        ([], "the agent returned"),
        (["a", "c"], "args[0]: 'b' -> 'c'"),
    ],
    ids=["changed arguments", "dropped last", "dropped first", "dropped all", "dropped for new"],
)
def test_changed_arguments_and_dropped_steps_are_told(second: list[str], said: str) -> None:
    store = CheckpointStore()
    first_life(store)

    async def agent(run: Run) -> list[str]:
        return [await run.call(send, what) for what in second]

    with pytest.raises(DivergenceError) as caught:
        asyncio.run(RecoverableAgent(agent, store).run_with_recovery("t", "run"))
    assert said in str(caught.value)
    assert executed == {"a": 1, "b": 1}


@pytest.fixture
def clock() -> Iterator[Clock]:
    clock = Clock()
    with virtual_time(clock):
        clock.begin()
        yield clock


def test_a_gather_of_wrappers_that_sleep_replays(clock: Clock) -> None:
    executed.clear()

    async def agent(run: Run) -> list[str]:
        async def wrapper(name: str, first: float, second: float) -> str:
            await asyncio.sleep(second if run.recovery_count else first)
            return str(await run.call(send, name))

        found = await asyncio.gather(
            wrapper("a", 3, 1), wrapper("b", 2, 2), wrapper("c", 1, 30), wrapper("d", 0, 0)
        )
        if not run.recovery_count:
            raise DiesError
        return list(found)

    of = RecoverableAgent(agent, CheckpointStore())
    loop = Loop(clock)
    result = loop.run_until_complete(of.run_with_recovery("t", "run"))["result"]
    bury(loop)
    assert result == ["sent a", "sent b", "sent c", "sent d"]
    assert executed == {"a": 1, "b": 1, "c": 1, "d": 1}


# -- flipped bits

LENGTH, DONE, EVERY, FLIPS = 210, 200, 20, 30


def long_agent(last: int) -> Callable[[SyncRun], Any]:
    def agent(run: SyncRun) -> Any:
        for step in run.steps():
            found = run.call(make, step)
            run.messages.append(found)
            run.state["sum"] = run.state.get("sum", 0) + found["number"]
            if step == last < LENGTH:
                raise DiesError
            if step == LENGTH:
                return [list(run.messages), run.state["sum"]]
        raise AssertionError

    return agent


@tool
def make(step: int) -> dict[str, Any]:
    executed[step] += 1
    return {"number": step * 7919, "text": f"{step} " + "otter " * 300, "raw": bytes(200)}


def on(disk: SimulatedDisk) -> CheckpointStore:
    return CheckpointStore(LogStore("runs", disk, "power"))


def test_flipped_bits_never_hand_a_wrong_value_to_a_run(rng: random.Random, figures: Any) -> None:
    whole = RecoverableAgent(long_agent(LENGTH), CheckpointStore())
    expected = whole.run_with_recovery_sync("t", "run")["result"]
    crashed = SimulatedDisk(seed=1)
    with pytest.raises(DiesError):
        died = RecoverableAgent(long_agent(DONE), on(crashed), EVERY, max_recoveries=0)
        died.run_with_recovery_sync("t", "run")
    ends: Counter[str] = Counter()
    for _ in range(FLIPS):
        disk = crashed.after_process_death()
        files = disk.directories["runs/run"]
        name = rng.choice(sorted(name for name in files if name.endswith(".seg")))
        file: Any = files[name]
        at = rng.randrange(len(bytes(file.content).rstrip(b"\0")))  # where there is something
        file.content[at] ^= 1 << rng.randrange(8)
        file.durable, file.pending = bytes(file.content), []
        executed.clear()
        try:
            runner = RecoverableAgent(long_agent(LENGTH), on(disk), EVERY)
            result = runner.run_with_recovery_sync("t", "run")["result"]
        except (DamagedRunError, LogError) as exc:
            ends[type(exc).__name__] += 1
            assert not executed  # it was told, before anything was done
        else:
            ends["whole"] += 1
            assert result == expected, f"bit flipped at {at} of {name}"
        assert all(step > DONE for step in executed), executed
    figures.add("flipped bits of a run's log", **ends)
