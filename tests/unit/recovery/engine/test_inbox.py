"""How often a run reads its messages, and one that it cannot read again."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise

import pytest

from eventlog import LogReader
from recovery import CheckpointStore, Run, SyncRun
from recovery.engine import inbox
from recovery.errors import DamagedRunError
from recovery.stores.memory import MemoryStore
from recovery.testing.simulated.virtual_time import Clock
from tests.support.lives import RUN, run, run_sync, send

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.mark.parametrize(("runs", "steps"), [(1, 3), (1000, 18)])
def test_a_busy_run_looks_for_messages_now_and_then_and_less_often_beside_many(
    runs: int, steps: int, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []

    class Store(MemoryStore):
        def inbox(self, run_id: str) -> LogReader | None:
            looked.extend(at[-1:])
            return super().inbox(run_id)

    def agent(run: SyncRun) -> None:
        for number in range(60):
            at.append(number)
            clock.ahead += 0.07
            run.call(send, number)

    at = list[int]()
    monkeypatch.setattr(inbox, "runs_at_work", range(runs))
    monkeypatch.setattr(time, "monotonic", lambda: clock.ahead)
    run_sync(agent, CheckpointStore(Store()))
    assert {after - before for before, after in pairwise(looked)} == {steps}


def test_a_run_that_waits_looks_each_time(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore()

    async def agent(run: Run) -> float:
        began = clock.ahead
        asyncio.get_running_loop().call_later(0.05, store.run(RUN).signal, "a")
        await run.wait_for("a")
        return clock.ahead - began

    monkeypatch.setattr(time, "monotonic", lambda: clock.ahead)
    assert run(agent, store)["result"] < 0.1


def test_a_signal_that_is_gone_when_it_is_taken_stops_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = CheckpointStore()

    def agent(run: SyncRun) -> None:
        store.run(RUN).signal("a")
        monkeypatch.setattr(LogReader, "fetch", lambda reader, lsns: {})
        run.wait_for("a")

    with pytest.raises(DamagedRunError, match="cannot be read again; LSN 1 lost") as stopped:
        run_sync(agent, store)
    assert "logdump repair RUN/inbox" in stopped.value.__notes__[0]
