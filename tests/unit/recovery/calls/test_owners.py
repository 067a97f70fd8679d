"""What a run knows of its owners: its fence, and calls that a former owner may still execute."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from threading import Timer
from typing import Any

import pytest

from eventlog import EventLog, Packed
from eventlog.files.memory import MemoryFiles
from recovery import (
    CheckpointConfig,
    CheckpointManager,
    CheckpointStore,
    InDoubtError,
    RecoverableAgent,
    Resolution,
    current_call,
    tool,
)
from recovery.call_journal import CallJournal
from recovery.errors import RecoveryError, WaitingError
from recovery.graph import Graph, GraphExecutor
from recovery.journal.events import RunResumed, RunStarted
from recovery.stores.log_store import LogStore
from recovery.stores.memory import MemoryStore
from recovery.testing.simulated.virtual_time import Clock
from tests.support.lives import RUN, Died, disk_store, recorded, run


class ServersClock(MemoryFiles):
    ahead_s = 0.0

    def time_ns(self) -> int:
        return super().time_ns() + int(self.ahead_s * 1e9)


class LeaseStore(LogStore):
    """A store with leases: that of an owner that died has ``expired``, or all were released."""

    expired = False

    def __init__(self) -> None:
        self.clock = ServersClock()
        super().__init__("leases", self.clock, "power")

    def claim(self, run_id: str, takeover: bool = False) -> EventLog:
        log = super().claim(run_id, takeover=True)
        former = "worker a" if self.expired else ""
        log.former_owner = lambda: former * self.expired  # type: ignore[method-assign]
        return log


class Bank:
    """A service that a process may still be about to call when it has lost its run."""

    def __init__(self, timeout_s: float | None) -> None:
        self.paid: list[int] = []
        self.dies = True

        limit: Any = {} if timeout_s is None else {"timeout_s": timeout_s}

        @tool(reconcile=self.find, **limit)
        async def pay() -> str:
            if self.dies:
                raise Died
            call = current_call()
            assert call is not None
            self.paid.append(call.fence)
            return "paid"

        self.pay = pay

    def find(self, call: Any) -> Resolution:
        return Resolution.outcome("found") if self.paid else Resolution.retry()

    async def agent(self, run: Any) -> Any:
        async for _ in run.steps():
            return await run.call(self.pay)


def died(bank: Bank, store: LeaseStore, expired: bool = True) -> CheckpointStore:
    """A process has died in the tool; the next one finds that its lease has expired."""
    of = CheckpointStore(store)
    bank.dies = True
    with pytest.raises(Died):
        run(bank.agent, of, park_after_s=0)
    bank.dies, store.expired = False, expired
    return of


def parked(bank: Bank, store: CheckpointStore) -> InDoubtError:
    with pytest.raises(InDoubtError) as caught:
        run(bank.agent, store, park_after_s=0)
    assert bank.paid == []
    return caught.value


def test_after_an_expired_lease_a_call_stays_in_doubt_for_its_time_out() -> None:
    bank, backend = Bank(60), LeaseStore()
    store = died(bank, backend)
    first = parked(bank, store)
    backend.clock.ahead_s = 59
    again = parked(bank, store)
    assert first.wake_at == again.wake_at
    assert "worker a, which had the run before, may still execute it until" in str(again)
    backend.clock.ahead_s = 61
    assert run(bank.agent, store, park_after_s=0)["result"] == "paid"
    resumed = recorded(store, RunStarted, RunResumed)
    assert [one.fence for one in resumed] == [1, 2, 3, 4]
    assert [one.former for one in resumed[1:]] == ["worker a"] * 3
    assert bank.paid == [4]


@pytest.mark.parametrize(("park_after_s", "lets_go"), [(None, 0), (100, 0), (None, 5)])
def test_a_run_that_may_wait_as_long_waits_for_a_former_owner(
    park_after_s: float | None, lets_go: int, clock: Clock
) -> None:
    bank, backend = Bank(60), LeaseStore()

    async def agent(run: Any) -> Any:
        if lets_go:
            asyncio.get_running_loop().call_later(lets_go, setattr, backend, "expired", False)
        return await bank.agent(run)

    store, began, ahead = died(bank, backend), time.monotonic(), clock.ahead
    assert run(agent, store, park_after_s=park_after_s)["result"] == "paid"
    assert time.monotonic() - began >= (lets_go or 59)  # some of it perhaps in real time
    assert clock.ahead - ahead < (lets_go or 59) + 3


def test_an_attempt_of_the_owner_that_expired_last_has_time_from_then_on() -> None:
    bank, backend = Bank(60), LeaseStore()
    store = died(bank, backend)
    parked(bank, store)
    backend.clock.ahead_s = 100
    died(bank, backend)  # the second attempt, by another owner
    backend.clock.ahead_s = 150
    parked(bank, store)
    backend.clock.ahead_s = 211
    assert run(bank.agent, store, park_after_s=0)["result"] == "paid"


def test_after_a_lease_that_was_released_a_call_is_as_after_a_dead_process() -> None:
    bank, backend = Bank(None), LeaseStore()
    assert run(bank.agent, died(bank, backend, expired=False))["result"] == "paid"


def test_a_call_without_time_out_is_decided_by_a_person() -> None:
    bank, backend = Bank(None), LeaseStore()
    store = died(bank, backend)
    backend.clock.ahead_s = 1e6
    (call,) = parked(bank, store).calls
    with pytest.raises(RecoveryError, match=r"worker a, which had the run .* --retry --force"):
        store.run(RUN).resolve(call, Resolution.retry())
    store.run(RUN).resolve(call, Resolution.retry(), who="ann", why="worker a is off", force=True)
    assert run(bank.agent, store)["result"] == "paid"


def test_what_the_hook_finds_is_believed_at_once() -> None:
    bank, backend = Bank(None), LeaseStore()
    store = died(bank, backend)
    bank.paid.append(1)
    assert run(bank.agent, store)["result"] == "found"


def test_an_error_of_the_agent_is_no_change_of_owner() -> None:
    """The same process recovers the run: it has the log, and its fence."""
    bank, backend, errors = Bank(60), LeaseStore(), [ConnectionError()]

    async def agent(run: Any) -> Any:
        async for _ in run.steps():
            if errors:
                raise errors.pop()
            return await run.call(bank.pay)

    backend.expired, bank.dies = True, False
    store = CheckpointStore(backend)
    assert run(agent, store, max_recoveries=1)["result"] == "paid"
    assert bank.paid == [1]
    assert [(one.fence, one.former) for one in recorded(store, RunResumed)] == [(1, None)]


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_every_kind_of_call_has_the_fence(kind: str) -> None:
    seen: dict[str, list[int]] = {}

    def fence(of: str) -> str:
        call = current_call()
        assert call is not None
        assert call.headers["Fence"] == str(call.fence)
        seen.setdefault(of, []).append(call.fence)
        if seen[of] == [1] and of == "nested":
            raise Died
        return of

    def noting(of: str) -> Any:
        return tool(after_crash="retry", name=of)(lambda: fence(of))

    @tool(after_crash="retry")
    async def outer() -> str:
        noting("nested")()
        return fence("outer")

    async def child(run: Any) -> Any:
        return await run.call(noting("child"))

    async def agent(run: Any) -> Any:
        await run.child(child, "task")
        return await run.call(outer)

    def plain(run: Any) -> Any:
        return run.call(noting("plain"))

    store = CheckpointStore(MemoryStore()) if kind == "memory" else disk_store()
    with pytest.raises(Died):
        run(agent, store)
    run(agent, store)
    assert seen == {"child": [1], "nested": [1, 2], "outer": [2]}
    again = RecoverableAgent(plain, store)
    again.run_with_recovery_sync("task", "plain")
    graph = Graph("graph")
    graph.node("node", after_crash="park")(lambda context: {"of": fence("node")})
    manager = CheckpointManager(store, CheckpointConfig())
    executor = GraphExecutor(checkpoint_manager=manager)
    asyncio.run(executor.execute(graph, "goal", {}, run_id="graph"))
    for _ in range(2):
        with CallJournal(store, "journal") as journal:
            journal.call_sync(noting("journal"), call_id=str(_))
    assert seen["plain"] == seen["node"] == [1]
    assert seen["journal"] == [1, 2]


def test_a_compensation_that_a_former_owner_may_still_make_stays_in_doubt() -> None:
    backend, bank = LeaseStore(), Bank(60)
    store = CheckpointStore(backend)

    @tool(reconcile=bank.find, timeout_s=60)
    def refund(call: Any, result: Any) -> None:
        if bank.dies:
            raise Died
        now = current_call()
        assert now is not None
        bank.paid.append(now.fence)

    @tool(undo=refund)
    def buy() -> str:
        return "bought"

    run(lambda run: run.call(buy), store)
    undo = partial(store.run(RUN).undo, tools=[buy])
    with pytest.raises(Died):
        undo()
    backend.expired, bank.dies = True, False
    refund_later = Timer(0.5, setattr, (backend.clock, "ahead_s", 61))
    refund_later.start()
    undo()
    assert not refund_later.is_alive(), "it has waited for the time-out"
    assert bank.paid == [3]


def test_an_operator_sees_no_fence() -> None:
    store = disk_store()
    asks = tool(needs_approval=True, name="ask")(lambda: None)
    with pytest.raises(WaitingError):
        run(lambda run: run.call(asks), store, park_after_s=0)
    (call,) = store.run(RUN).pending()
    assert call.fence == 0
    assert list(call.headers) == ["Idempotency-Key"]


def test_the_fences_of_an_imported_run_go_on() -> None:
    bank = Bank(60)
    backend = LeaseStore()
    for _ in range(3):
        store = died(bank, backend, expired=False)
    moved = CheckpointStore(MemoryStore())
    reader = store.backend.read(RUN)
    assert reader is not None
    with reader, moved.backend.claim(RUN) as log:
        for record in reader.records():
            log.append(record.kind, Packed(record.packed))
    assert run(bank.agent, moved)["result"] == "paid"
    assert bank.paid == [4]
