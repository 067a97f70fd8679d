"""A side effect begins only after its intent is durable."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest

from eventlog import EventLog
from eventlog.testing import SimulatedDisk
from recovery import CheckpointStore, RecoverableAgent, Resolution, RunResult, tool
from recovery.journal.events import CallIntended
from tests.support.lives import RUN, Disk, recorded


def run(made: Any, disk: SimulatedDisk) -> RunResult:
    async def agent(run: Any) -> Any:
        return await run.call(made)

    recoverable = RecoverableAgent(agent, CheckpointStore(Disk(disk)))
    return asyncio.run(recoverable.run_with_recovery("task", RUN))


def intents_after_power_losses(disk: SimulatedDisk) -> list[int]:
    found = []
    for seed in range(8):
        with EventLog.read(f"home/{RUN}", files=disk.after_power_loss(seed)) as log:
            found.append([record.kind for record in log.records()].count("call"))
    return found


def effect_on(disk: SimulatedDisk, intents: list[int], **options: Any) -> Any:
    """A tool that looks for its intent in what a power loss at this moment may leave."""

    @tool(**options)
    def effect() -> None:
        intents.extend(intents_after_power_losses(disk))

    return effect


@pytest.mark.parametrize("policy", ["park", "report", "reconcile"])
def test_every_policy_but_retry_has_its_intent_durable_first(policy: Any) -> None:
    disk, intents = SimulatedDisk(), list[int]()
    options: Any = {"after_crash": policy}
    if policy == "reconcile":
        options = {"reconcile": lambda call: Resolution.unknown()}
    run(effect_on(disk, intents, **options), disk)
    assert intents == [1] * 8


def test_no_side_effect_begins_whose_intent_could_not_be_flushed() -> None:
    began = []
    for nth in range(100):
        disk, intents = SimulatedDisk(), list[int]()
        disk.fail_at("sync", nth, errno.EIO)
        try:
            run(effect_on(disk, intents), disk)
        except OSError:
            began.append(bool(intents))
        else:
            break  # there are fewer flushes
        assert intents in ([], [1] * 8)
    assert True in began and False in began


def test_the_time_limit_of_a_side_effect_is_in_its_intent() -> None:
    """The next owner waits no longer for a former one; for a repeatable call it does not wait."""
    store = CheckpointStore()

    def agent(run: Any) -> None:
        run.call(tool(timeout_s=5)(abs), 1)
        run.call(tool(timeout_s=5, after_crash="retry")(len), [])

    RecoverableAgent(agent, store).run_with_recovery_sync("task", RUN)
    assert [one.timeout_s for one in recorded(store, CallIntended)] == [5, None]
