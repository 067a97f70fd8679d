"""Runs from the first step to what a crash leaves."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any

import pytest

from eventlog import EventLog
from eventlog.testing import SimulatedDisk
from recovery import (
    CheckpointStore,
    InDoubtError,
    RecoverableAgent,
    Resolution,
    SyncRun,
    tool,
)
from recovery.inspect.status import status
from recovery.values.pack import unpack
from tests.support.lives import Died, Disk


def run(agent: Callable[[SyncRun], Any], disk: SimulatedDisk, every: int = 3) -> Any:
    store = CheckpointStore(Disk(disk))
    return RecoverableAgent(agent, store, every).run_with_recovery_sync("task", "run")["result"]


def die_in(agent: Callable[[SyncRun], Any], disk: SimulatedDisk) -> SimulatedDisk:
    with pytest.raises(Died):
        run(agent, disk)
    return disk.after_process_death()


def damage_checkpoint(disk: SimulatedDisk, step: int) -> None:
    """Flip a bit of the checkpoint that was taken at the end of a step."""
    with EventLog.read("home/run", files=disk) as log:
        packed = {unpack(one.packed)["step"]: one.packed for one in log.snapshots()}[step]
    for file in disk.directories["home/run"].values():
        at = bytes(file.content).find(packed)
        if at >= 0:
            file.content[at + 30] ^= 1


def eight_steps(deaths: int, executed: list[int]) -> Callable[[SyncRun], Any]:
    """An agent that makes a call in each step and dies in the last, so often."""
    left = [deaths]

    @tool
    def send(step: int) -> int:
        executed.append(step)
        return step

    def agent(run: SyncRun) -> Any:
        for step in run.steps():
            run.messages.append(run.call(send, step))
            run.state["step"] = step
            if step == 8:
                if left[0]:
                    left[0] -= 1
                    raise Died
                return [run.state["step"], *run.messages]
        raise AssertionError

    return agent


def test_a_checkpoint_whose_base_is_damaged_leads_to_one_with_another() -> None:
    executed: list[int] = []
    agent, disk = eight_steps(1, executed), SimulatedDisk()
    with pytest.raises(Died):
        run(agent, disk, every=1)
    disk = disk.after_process_death()
    damage_checkpoint(disk, 6)  # the 7th says how it differs from the 6th, the 5th does not
    store = CheckpointStore(Disk(disk))
    found = RecoverableAgent(agent, store, 1).run_with_recovery_sync("task", "run")
    assert found["recovered_from_step"] == 5
    assert found["result"] == [8, *range(1, 9)]
    assert executed == list(range(1, 9))


def test_no_checkpoint_is_taken_while_records_of_later_steps_are_replayed() -> None:
    """It would stand behind them, and they would be forgotten."""
    executed: list[int] = []
    agent, disk = eight_steps(2, executed), SimulatedDisk()
    for death in range(2):
        with pytest.raises(Died):
            run(agent, disk, every=2)
        disk = disk.after_process_death()
        if death == 0:
            damage_checkpoint(disk, 6)  # then the next recovery begins at the one before
    assert run(agent, disk, every=2) == [8, *range(1, 9)]
    assert executed == list(range(1, 9))


def test_a_checkpoint_that_a_thread_outlived_is_passed_over() -> None:
    """Only the code of the step that started the thread starts it again."""
    executed: list[str] = []
    deaths = [1]

    @tool
    def send(what: str) -> str:
        executed.append(what)
        return what

    def late(inside: contextvars.Context, go: threading.Event) -> None:
        if go.wait(10):
            inside.run(send, "late")

    def agent(run: SyncRun) -> Any:
        go, threads = threading.Event(), list[threading.Thread]()
        for step in run.steps():
            if step == 1:
                threads.append(threading.Thread(target=late, args=(contextvars.copy_context(), go)))
                threads[0].start()
            if step == 2:
                go.set()
                for thread in threads:
                    thread.join()
                if deaths and deaths.pop():
                    raise Died
                return "done"
        raise AssertionError

    disk = SimulatedDisk()
    with pytest.raises(Died):
        run(agent, disk, every=1)
    with EventLog.read("home/run", files=disk) as log:
        assert log.latest_snapshot() is not None
    store = CheckpointStore(Disk(disk.after_process_death()))
    told = status(store, "run")  # says what the recovery does
    assert (told.checkpoint, told.checkpoint_step) == (0, 0)
    result = RecoverableAgent(agent, store, 1).run_with_recovery_sync("task", "run")
    assert (result["result"], result["recovered_from_step"]) == ("done", 0)
    assert executed == ["late"]


def test_a_reconcile_hook_asks_anew_at_each_recovery() -> None:
    """What it was told the last time may not be true any more."""
    asked = []

    @tool(after_crash="retry")
    def ask() -> int:
        asked.append("status")
        return len(asked)

    def reconcile(call: Any) -> Resolution:
        return Resolution.unknown() if ask() == 1 else Resolution.outcome("was sent")

    @tool(reconcile=reconcile)
    def send() -> str:
        raise Died

    def agent(run: SyncRun) -> Any:
        return run.call(send)

    disk = die_in(agent, SimulatedDisk())
    with pytest.raises(InDoubtError):
        run(agent, disk)
    assert run(agent, disk) == "was sent"


def test_large_arguments_are_recorded_by_digest() -> None:
    disk = SimulatedDisk()
    given = "x" * 100_000
    found = run(lambda run: run.call(len, given) + run.call(len, "short"), disk)
    assert found == len(given) + len("short")
    with EventLog.read("home/run", files=disk) as log:
        calls = [record for record in log.records() if record.kind == "call"]
    assert [record.body.get("args") for record in calls] == [None, [["short"], {}]]
    assert max(len(record.packed) for record in calls) < 1000
