"""How it stands with a run, from outside: its state, its calls, what a recovery would do."""

from __future__ import annotations

import asyncio
import dataclasses
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from eventlog import EventLog
from eventlog.encryption import Encryption
from recovery import (
    CheckpointStore,
    InDoubtError,
    ParkedError,
    PermanentError,
    RecoverableAgent,
    RecoveryError,
    Resolution,
    SyncRun,
    register,
    tool,
)
from recovery.agent.undo_run import undo
from recovery.control.cancel import cancel
from recovery.control.resolve import resolve
from recovery.control.send import approve
from recovery.errors import RunFailedError
from recovery.inspect.status import runs, status
from recovery.reports import RunStatus
from recovery.stores.memory import MemoryStore
from recovery.values.codec import BY_NAME
from tests.support.lives import RUN, Died, after_death, die_in, disk_store, executed, run, run_sync

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture
def fresh() -> None:
    executed.clear()


@tool
def charge(amount: int, to: str) -> str:
    executed["charge"] += 1
    if executed["charge"] == 1:
        raise Died
    return "charged"


@tool(after_crash="retry")
def search(words: str) -> str:
    executed["search"] += 1
    if executed["search"] == 1:
        raise Died
    return words


async def charging(run: Any) -> str:
    async for step in run.steps():
        if step == 3:
            return str(await run.call(charge, 5, to="ann", call_id="c1"))
        run.messages.append(step)
    return ""


def test_an_interrupted_run_and_its_call_in_doubt() -> None:
    store = die_in(charging, disk_store(), checkpoint_every_n=1)
    found = status(store, RUN)
    assert (found.state, found.progress.step, found.checkpoint_step) == ("interrupted", 3, 2)
    (call,) = found.calls
    assert found.in_doubt == (call,)
    assert (call.tool, call.call_id, call.step, call.state) == ("charge", "c1", 3, "in doubt")
    assert call.name == f"charge#{call.lsn}" and "until it is resolved" in call.then
    assert call.arguments == [[5, "ann"], {}]
    assert found.task == "task" and 0 < found.started <= found.last
    with pytest.raises(InDoubtError) as caught:
        run(charging, store, checkpoint_every_n=1)
    (same,) = caught.value.calls
    assert (same.lsn, same.idempotency_key) == (call.lsn, call.idempotency_key)
    parked = status(store, RUN)
    assert (parked.state, parked.why, parked.recoveries) == ("in doubt", call.name, 1)
    resolve(store, RUN, call.lsn, Resolution.retry())
    settled = status(store, RUN)
    assert (settled.state, settled.in_doubt) == ("interrupted", ())
    assert [c.state for c in settled.calls] == ["to be made again"]
    assert run(charging, store, checkpoint_every_n=1)["result"] == "charged"
    done = status(store, RUN)
    assert (done.state, done.calls, done.owner and done.owner.alive) == ("finished", (), False)


@pytest.mark.parametrize("policy", ["retry", "report", "reconcile"])
def test_what_a_recovery_does_with_a_call_is_what_it_says(policy: str) -> None:
    asked = []

    def find_out(call: Any) -> Resolution:
        asked.append(call)
        return Resolution.outcome("found")

    @tool(**({"reconcile": find_out} if policy == "reconcile" else {"after_crash": policy}))
    def pay() -> str:
        executed["pay"] += 1
        if executed["pay"] == 1:
            raise Died
        return "paid"

    async def agent(run: Any) -> Any:
        return type(await run.call(pay)).__name__

    store = die_in(agent, disk_store())
    (call,) = status(store, RUN).calls
    words = {"retry": "makes it again", "report": "tells the agent", "reconcile": "asks the tool"}
    assert (call.state, call.after_crash) == ("in doubt", policy)
    assert call.then.startswith(words[policy])
    run(agent, store)
    assert executed["pay"] == 1 + (policy == "retry") and len(asked) == (policy == "reconcile")


def test_a_live_run_is_running_and_its_call_under_way() -> None:
    store = disk_store()
    seen: list[RunStatus] = []

    @tool
    def look() -> None:
        seen.append(status(store, RUN))

    async def agent(run: Any) -> None:
        await run.call(look)

    run(agent, store)
    (found,) = seen
    assert (found.state, found.in_doubt) == ("running", ())
    assert [c.state for c in found.calls] == ["under way"]
    assert found.owner is not None and found.owner.alive and found.owner.pid is not None


def test_a_stuck_earlier_owner_is_not_the_present_one() -> None:
    store = disk_store()
    old = store.backend.claim(RUN)
    assert isinstance(old, EventLog)
    store.backend.claim(RUN, takeover=True).close()
    reader = store.backend.read(RUN)
    assert reader is not None
    with reader:
        owner = reader.owner()
    assert owner is not None and (owner.epoch, owner.alive) == (2, False)
    old._release()


def test_waiting_for_an_approval_and_for_a_time() -> None:
    @tool(needs_approval=True)
    def pay() -> str:
        return "paid"

    async def agent(run: Any) -> Any:
        return await run.call(pay)

    store = disk_store()
    with pytest.raises(ParkedError):
        run(agent, store, park_after_s=0)
    found = status(store, RUN)
    (call,) = found.calls
    assert (found.state, call.state) == ("waiting", "asks") and "approv" in call.then
    approve(store, RUN, call.lsn)
    assert run(agent, store)["result"] == "paid"


@pytest.mark.parametrize("hours", [-1, 1])
def test_what_is_due_is_decided_by_the_clock_of_the_store(hours: int) -> None:
    class Elsewhere(MemoryStore):
        def time_ns(self) -> int:
            return time.time_ns() + hours * 3600 * 10**9

    @tool(needs_approval=True, approval_timeout_s=1800)
    async def refund() -> None: ...

    async def waits(run: Any) -> None:
        if run.task == "sleeps":
            await run.sleep(1800)
        await refund()

    backend = Elsewhere()
    store = CheckpointStore(backend)
    agent = RecoverableAgent(waits, store, park_after_s=0)
    for task in ("sleeps", "asks"):
        with pytest.raises(ParkedError):
            asyncio.run(agent.run_with_recovery(task, task))
    store.submit("any", "task", "later", delay_s=1)
    has_come = hours > 0
    for one in (store.run("sleeps").status(), *store.runs(state="waiting")):
        assert one.due == has_come and round(one.clock_ahead_s / 3600) == hours
    assert not store.run("later").status().due
    assert ("denies it" in store.run("asks").status().calls[0].then) == has_come
    assert (store.run("asks").pending() == []) == has_come


def test_failed_cancelled_undone_and_empty() -> None:
    def failing(run: SyncRun) -> None:
        raise PermanentError("no way")

    store = disk_store()
    with pytest.raises(RunFailedError):
        run_sync(failing, store)
    found = status(store, RUN)
    assert (found.state, found.why) == ("failed", "recovery.PermanentError: no way")

    store = die_in(charging, disk_store())
    cancel(store, RUN, who="ann", why="enough")
    found = status(store, RUN)
    assert (found.state, found.why) == ("cancelled", "ann: enough")
    assert [call.tool for call in found.in_doubt] == ["charge"]

    store = disk_store()
    run_sync(lambda run: 1, store)
    undo(store, RUN, tools=[], who="bob")
    assert status(store, RUN).state == "undone"

    store = disk_store()
    store.backend.claim("new").close()
    assert status(store, "new").state == "empty"
    with pytest.raises(RecoveryError, match="no run"):
        status(store, "missing")


def test_a_failed_call_that_can_be_resolved_is_named() -> None:
    @tool
    def fails() -> None:
        raise ValueError("bad")

    async def agent(run: Any) -> None:
        await run.call(fails)

    store = disk_store()
    with pytest.raises(RunFailedError) as caught:
        run(agent, store)
    found = status(store, RUN)
    assert found.state == "failed" and "ValueError: bad" in found.why
    assert f"call {caught.value.call} can be made again: recovery retry" in found.why


def test_no_type_need_be_registered() -> None:
    @register(name="Money")
    @dataclasses.dataclass(frozen=True)
    class Money:
        amount: int

    async def agent(run: Any) -> None:
        run.state["money"] = Money(3)
        async for step in run.steps():
            if step == 2:
                await run.call(charge, Money(5), to="ann")

    store = die_in(agent, disk_store(), task=Money(7), checkpoint_every_n=1)
    del BY_NAME["Money"]
    found = status(store, RUN)
    assert (found.state, found.checkpoint_step) == ("interrupted", 1)
    assert found.packed_task is not None and found.calls[0].packed is not None
    with pytest.raises(RecoveryError):
        found.calls[0].arguments  # noqa: B018


def test_damage_is_told_and_what_is_left_is_read() -> None:
    store = die_in(charging, disk_store())
    disk = store.backend.disk  # type: ignore[attr-defined]
    content = disk.directories[f"home/{RUN}"]["00000001.seg"].content
    content[-200] ^= 1  # in the intent of the call
    found = status(store, RUN)
    assert found.damage or found.torn
    assert found.state in ("interrupted", "damaged")


def test_runs_tells_of_each_and_of_those_that_cannot_be_read(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    RecoverableAgent(lambda run: 1, store).run_with_recovery_sync("a", "a")
    key = Encryption(lambda key_id: b"k" * 32, "k")
    EventLog.open(tmp_path / "b", encryption=key).close()
    with EventLog.open(tmp_path / "b", encryption=key) as log:
        log.append("run_started", {})
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "00000001.seg").write_bytes(b"something else" * 10)
    (tmp_path / "d").mkdir()
    found = {one.run_id: one.state for one in runs(store)}
    assert found == {"a": "finished", "b": "unreadable", "c": "unreadable"}


def test_what_is_read_does_not_grow_with_the_run() -> None:
    async def agent(run: Any) -> None:
        async for step in run.steps():
            if step == 200:
                raise Died

    store = die_in(agent, disk_store(), checkpoint_every_n=10)
    assert status(after_death(store), RUN).replayed < 15


def test_values_are_not_held_however_large_they_are_together(tmp_path):
    @tool(after_crash="retry")
    def fetch(n: int) -> str:
        return "x" * (1 << 20)

    def fetching(run: SyncRun) -> None:
        for n in range(40):
            run.messages.append(str(n) + fetch(n))

    store = CheckpointStore(tmp_path)
    run_sync(fetching, store)
    tracemalloc.start()
    try:
        found = status(store, RUN)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (found.state, found.progress.usage.calls) == ("finished", 40)
    assert peak < 20 << 20  # a segment, and some values; all of them are 80 MiB
