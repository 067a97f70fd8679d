"""Tests a store on a server under lost connections: at each request of a run's whole life."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from recovery.agent.checkpoint_store import CheckpointStore
from recovery.declare.tool import tool
from recovery.stores.protocol import RunQueue, RunStore
from recovery.worker.worker import Worker

OpenCut = Callable[[int, str], tuple[RunStore, Callable[[], bool]]]


class FaultConformance:
    """Tests of a store whose connection ends at one request.

    A subclass has the fixture ``open_cut``, a function ``(at, fault)``. It opens the store again,
    so that its connection ends at request number ``at``: "before" the server has the request, or
    "after" it has executed it, before the answer arrives. It returns the store, and a function that
    says whether there were so many requests.

    ``faults``: others that ``open_cut`` knows. ``every``: test one request of so many.
    """

    faults: tuple[str, ...] = ("before", "after")
    every = 1

    def test_no_lost_connection_changes_a_run(self, open_cut: OpenCut) -> None:
        whole, was_there = _life(open_cut, "whole", 1 << 30, "")
        assert not was_there
        for fault in self.faults:
            at = random.randrange(self.every) + 1
            while was_there or at <= self.every:
                run_id = f"{fault.replace(' ', '-')}_{at}"
                found, was_there = _life(open_cut, run_id, at, fault)
                assert found == whole, f"{fault} request {at}"
                at += self.every
            assert at > self.every + 10, "a life has more requests"


def _life(open_cut: OpenCut, run_id: str, at: int, fault: str) -> tuple[Any, bool]:
    """What became of a run that was submitted, parked, sent something, finished and read."""
    effects: list[int] = []

    @tool
    def pay(step: int) -> int:
        effects.append(step)
        return step

    def shop(run: Any) -> Any:
        for step in run.steps():
            run.messages.append(run.call(pay, step))
            if step == 2:
                run.messages.append(run.wait_for("go"))
            if step == 3:
                return list(run.messages)

    backend, has_cut = open_cut(at, fault)
    assert isinstance(backend, RunQueue)
    store = CheckpointStore(backend)
    handle = store.submit("shop", "task", run_id)
    for state in ("waiting", "finished"):
        Worker({"shop": shop}, store, park_after_s=0).run_sync(until_idle=True)
        (entry,) = [one for one in backend.find() if one.run_id == run_id]
        assert entry.state == handle.status().state == state, f"{fault} request {at}"
        if state == "waiting":
            handle.signal("go", 7)
    reader = backend.read(run_id)
    assert reader is not None
    with reader:
        found = [(one.lsn, one.kind) for one in reader.records()]
        result = list(reader.records())[-1].body["result"]
    backend.remove(run_id, inbox=1)  # the signal
    assert run_id not in backend.run_ids()
    return (found, result, effects), has_cut()
