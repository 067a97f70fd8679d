"""What the state machine of the runtime found, each as a case of its own."""

from __future__ import annotations

from typing import Any

from eventlog import EventLog
from eventlog.testing import SimulatedDisk
from recovery import CheckpointStore, RecoverableAgent
from recovery.stores.log_store import LogStore


class KilledError(Exception):
    pass


def damage_newest_checkpoint(disk: SimulatedDisk) -> None:
    with EventLog.read("runs/run", files=disk) as reader:
        newest = next(iter(reader.snapshots()))
    for name, file in disk.directories["runs/run"].items():
        at = bytes(file.content).find(newest.packed) if name.endswith(".seg") else -1
        if at >= 0:
            file.content[at + 5] ^= 1


def test_no_checkpoint_is_taken_while_later_steps_are_replayed() -> None:
    """Values recorded in later steps stood before it in the log, and were asked for anew."""
    disk = SimulatedDisk(seed=1)
    seen: list[list[str]] = []

    def agent(run: Any) -> None:
        asked = []
        for _ in run.steps():
            asked.append(run.uuid())
            if run.step == 3:
                seen.append(asked)
                raise KilledError

    def resume(every: int) -> None:
        store = CheckpointStore(LogStore("runs", disk, "power"))
        runner = RecoverableAgent(agent, store, every, max_recoveries=0)
        try:
            runner.run_with_recovery_sync("task", "run")
        except KilledError:
            return
        raise AssertionError("the agent was not started")

    resume(2)  # a checkpoint at the end of step 2
    damage_newest_checkpoint(disk)
    resume(1)  # from the beginning; a checkpoint at the end of step 1 would hide those of step 2
    resume(1)
    assert len({asked[-1] for asked in seen}) == 1, seen
