"""How often a run reads its messages."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest

from eventlog import LogReader
from recovery import CheckpointStore, SyncRun
from recovery.engine import inbox
from recovery.stores.memory import MemoryStore
from recovery.testing.simulated.virtual_time import Clock
from tests.support.lives import run_sync, send

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
