"""Tests whether a store of runs keeps what RunStore promises: for every store, a user's own too.

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def open_store(self, tmp_path):
            return lambda: MyStore(tmp_path)      # two calls: as two processes would open it

For a store on a server, made of a LogServer, ``ServerConformance`` has more: commits whose outcome
is unknown, statements that are executed late, and leases that run out. ``FaultConformance`` ends
the connection at each request of a run's whole life.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from eventlog import LogError, LogLockedError, WritableLog
from eventlog.errors import FencedError, UnreachableError
from eventlog.remote.log_server import Batch, LostConnectionError
from recovery.agent.checkpoint_store import CheckpointStore
from recovery.agent.recoverable import RecoverableAgent
from recovery.declare.tool import tool
from recovery.stores.protocol import RunStore
from recovery.stores.remote_store import RemoteStore
from recovery.testing.conformance_parts.of_faults import FaultConformance
from recovery.testing.conformance_parts.of_logs import (
    RUN,
    LogConformance,
    OpenStore,
    records,
    until,
    written,
)
from recovery.testing.conformance_parts.of_runs import RunConformance

__all__ = ["FaultConformance", "FaultyLogServer", "ServerConformance", "StoreConformance"]


class StoreConformance(LogConformance, RunConformance):
    """Tests of one store. A subclass has the fixture ``open_store``: a function that opens the same
    store again, as another process would. It is empty at first.

    Optionally also ``damage``: a function that changes one byte of a stored frame of a run.
    """


class FaultyLogServer:
    """A server of logs whose connection is lost where a test says so.

    ``faults``: for the next calls of ``append`` and ``resolve``: "before" (the server has not
    executed it), "after" (it has), "late" (it does after the next ``resolve``), "" (nothing).
    """

    def __init__(self, inner: Any) -> None:
        self.inner, self.address = inner, inner.address
        self.faults: list[str] = []
        self.appends = 0
        self._late: list[tuple[Sequence[Batch], float]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def append(self, batches: Sequence[Batch], lease_s: float) -> set[int]:
        """See LogServer."""
        self.appends += 1
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "before":
            raise LostConnectionError("cut before the server had the statement")
        if fault == "late":
            self._late.append((batches, lease_s))
            raise LostConnectionError("cut while the server waits")
        accepted: set[int] = self.inner.append(batches, lease_s)
        if fault == "after":
            raise LostConnectionError("cut before the answer came")
        return accepted

    def resolve(self, batches: Sequence[Batch]) -> dict[int, tuple[int, bool]]:
        """See LogServer."""
        fault = self.faults.pop(0) if self.faults else ""
        if fault:
            raise LostConnectionError("cut again")
        found: dict[int, tuple[int, bool]] = self.inner.resolve(batches)
        for late in self._late:
            self.inner.append(*late)
        self._late.clear()
        return found


class ServerConformance(StoreConformance):
    """Tests of a store that is made of a LogServer (see RemoteStore).

    A subclass also has the fixture ``open_faulty``: a function that opens the store with these
    options: ``lease_s``, ``patience_s``, and ``wrap``, a function that is given the log_server and
    returns the one to use.
    """

    @pytest.mark.parametrize("fault", ["before", "after", "late"])
    @pytest.mark.parametrize("more", [[], ["before"], ["before", "before"]])
    def test_an_append_of_unknown_outcome_is_there_once(
        self, open_store: OpenStore, open_faulty: Any, fault: str, more: list[str]
    ) -> None:
        store = open_faulty(wrap=FaultyLogServer)
        with store.claim(RUN) as log:
            written(log, 1)
            store.log_server.faults = [fault, *more]
            written(log, 2)
            assert log.durable_lsn == 2
            written(log, 3)
        assert [body for _, _, body in records(open_store())] == [1, 2, 3]

    def test_the_same_fault_at_each_statement_of_a_run(
        self, open_store: OpenStore, open_faulty: Any
    ) -> None:
        effects: list[int] = []

        @tool
        def pay(step: int) -> int:
            effects.append(step)
            return step

        def agent(run: Any) -> Any:
            for step in run.steps():
                run.messages.append(run.call(pay, step))
                if step == 4:
                    return list(run.messages)

        for fault in ("before", "after", "late"):
            at, was_there = 0, True
            while was_there:
                store = open_faulty(wrap=FaultyLogServer)
                effects.clear()
                store.log_server.faults = [*[""] * at, fault]
                made = RecoverableAgent(agent, CheckpointStore(store))
                result = made.run_with_recovery_sync("task", f"{fault}_{at}")
                assert result["result"] == effects == [1, 2, 3, 4], (fault, at)
                was_there = not store.log_server.faults
                at += 1
            assert at > 4

    def test_a_stale_batch_of_unknown_outcome_is_refused(
        self, open_store: OpenStore, open_faulty: Any
    ) -> None:
        store = open_faulty(wrap=FaultyLogServer)
        log = store.claim(RUN)
        written(log, 1)
        new = open_store().claim(RUN, takeover=True)
        store.log_server.faults = ["before"]
        log.append("value", "stale")
        with pytest.raises(FencedError):
            log.commit()
        log.close()
        written(new, 2)
        new.close()
        assert [body for _, _, body in records(open_store())] == [1, 2]

    def test_what_arrived_before_a_takeover_is_kept(
        self, open_store: OpenStore, open_faulty: Any
    ) -> None:
        store = open_faulty(wrap=FaultyLogServer)
        log = store.claim(RUN)
        store.log_server.faults = ["after", "again"]
        log.append("value", 1)
        taken: list[WritableLog] = []
        inner = store.log_server.inner.append

        def append(*values: Any) -> Any:
            found = inner(*values)
            if not taken:
                taken.append(open_store().claim(RUN, takeover=True))
            return found

        store.log_server.inner.append = append
        log.commit()
        assert log.durable_lsn == 1 and taken[0].last_lsn == 1
        log.append("value", "stale")
        with pytest.raises(FencedError):
            log.commit()
        log.close()
        taken[0].close()

    def test_patience_ends_in_an_error_that_says_what_is_known(
        self, open_store: OpenStore, open_faulty: Any
    ) -> None:
        store: RemoteStore = open_faulty(wrap=FaultyLogServer, patience_s=0.3)
        log = store.claim(RUN)
        written(log, 1)
        log_server: Any = store.log_server
        log_server.faults = ["before"] * 1000
        log.append("value", 2)
        with pytest.raises(UnreachableError, match="has not answered"):
            log.commit()
        with pytest.raises(LogError):
            log.append("value", 3)
        log.close()
        log_server.faults = []
        with open_store().claim(RUN, takeover=True) as after:
            assert after.last_lsn == 1

    def test_a_post_of_unknown_outcome_is_there_once(
        self, open_store: OpenStore, open_faulty: Any
    ) -> None:
        open_store().claim(RUN).close()
        body = {"uid": "u", "name": "go", "value": 1, "who": ""}
        for i, fault in enumerate(("before", "after", "late")):
            store = open_faulty(wrap=FaultyLogServer)
            store.log_server.faults = [fault]
            assert store.post(RUN, "signal", body) == i + 1
        inbox = open_store().inbox(RUN)
        assert inbox is not None
        with inbox:
            assert [record.lsn for record in inbox.records()] == [1, 2, 3]

    def test_a_lease_is_renewed_and_runs_out(self, open_store: OpenStore, open_faulty: Any) -> None:
        live = open_faulty(lease_s=1.0)
        log = live.claim(RUN)
        written(log, 1)
        time.sleep(2.5)
        with pytest.raises(LogLockedError):
            open_store().claim(RUN)

        class Deaf(FaultyLogServer):  # as a process that was stopped
            def append(self, batches: Sequence[Batch], lease_s: float) -> set[int]:
                if not any(batch.pieces for batch in batches):
                    return {batch.key for batch in batches}
                return super().append(batches, lease_s)

        stopped = open_faulty(lease_s=1.0, wrap=Deaf)
        old = stopped.claim("stopped")
        written(old, 1)
        until(lambda: _may_be_claimed(open_store(), "stopped"))
        new = open_store().claim("stopped")
        assert new.former_owner() and new.epoch == old.epoch + 1
        old.append("value", "stale")
        with pytest.raises(FencedError):
            old.commit()
        for one in (old, new, log):
            one.close()

    def test_what_waits_goes_out_in_one_statement(self, open_faulty: Any) -> None:
        store = open_faulty(wrap=FaultyLogServer)
        logs = [store.claim(f"run_{i}") for i in range(20)]
        for log in logs:
            log.append("value", 1)
        assert log.group is not None
        store.log_server.appends = 0
        left, done = len(logs), threading.Event()

        def ended(log: WritableLog, error: Exception | None) -> None:
            nonlocal left
            assert error is None and log.durable_lsn == 1
            left -= 1
            if not left:
                done.set()

        log.group.commit(logs, ended)
        assert done.wait(60) and store.log_server.appends == 1
        for log in logs:
            log.close()


def _may_be_claimed(store: RunStore, run_id: str) -> bool:
    reader = store.read(run_id)
    assert reader is not None
    with reader:
        owner = reader.owner()
    return owner is not None and not owner.alive
