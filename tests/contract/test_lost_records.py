"""What a run does behind records that are lost, where a mistake would repeat or stop something."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from recovery import (
    Call,
    InDoubtError,
    RecoverableAgent,
    RecoveryError,
    Resolution,
    current_call,
    tool,
)
from recovery.control.resolve import resolve
from recovery.control.send import approve, deny, pending
from recovery.errors import RunFailedError, WaitingError
from recovery.inspect.status import status
from recovery.journal.events import CallDecided, CallIntended, RunParked, ValueRecorded
from recovery.ops.fork import fork
from tests.support.lives import RUN, Died, after_death, disk_store, executed, run_sync
from tests.unit.recovery.agent.test_repaired import a_run, lose

pytestmark = pytest.mark.usefixtures("fresh", "in_order")


def test_nobody_is_asked_about_a_call_whose_yes_may_be_lost() -> None:
    @tool(needs_approval=True)
    def pay(cents: int) -> None:
        executed[cents] += 1
        raise Died

    def agent(run: Any) -> Any:
        return run.call(pay, 5)

    store = disk_store()
    with pytest.raises(WaitingError):
        run_sync(agent, store, park_after_s=0)
    (call,) = pending(store, RUN)
    approve(store, RUN, call, who="ann")
    with pytest.raises(Died):
        run_sync(agent, store, park_after_s=0)
    store = after_death(store)
    lose(store, lambda event: isinstance(event, CallDecided))
    found = status(store, RUN)
    assert [one.lsn for one in found.in_doubt] == [call.lsn] and pending(store, RUN) == []
    assert [one.state for one in found.calls] == ["in doubt"]
    with pytest.raises(RecoveryError):
        approve(store, RUN, call, who="ann")
    with pytest.raises(InDoubtError):
        run_sync(agent, store, park_after_s=0)
    assert executed == {5: 1}


@pytest.mark.parametrize("said", ["yes", "no", ""])
def test_what_is_safe_to_repeat_begins_only_with_a_yes_whatever_is_lost_behind_its_intent(
    said: str,
) -> None:
    @tool(needs_approval=True, after_crash="retry")
    def read(what: str) -> str:
        executed[what] += 1
        return what

    def agent(run: Any) -> Any:
        return run.call(read, "secret")

    store = disk_store()
    with pytest.raises(WaitingError):
        run_sync(agent, store, park_after_s=0)
    (call,) = pending(store, RUN)
    if said:
        (approve if said == "yes" else deny)(store, RUN, call, who="ann")
    lose(store, lambda event: isinstance(event, RunParked))
    if said == "yes":  # nobody is asked again: it is still in the inbox
        assert run_sync(agent, store, park_after_s=0)["result"] == "secret"
        assert executed == {"secret": 1}
        return
    with pytest.raises(RunFailedError if said else WaitingError):
        run_sync(agent, store, park_after_s=0)
    assert executed == {}
    if not said:
        (asked,) = pending(store, RUN)
        assert asked.idempotency_key == call.idempotency_key
        approve(store, RUN, asked, who="ann")
        assert run_sync(agent, store, park_after_s=0)["result"] == "secret"


@pytest.mark.parametrize("forks", [1, 2])
def test_a_fork_does_not_repeat_a_call_of_its_parent_whose_intent_is_lost(
    forks: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A service knows the call by the idempotency key with which it was made: by the parent."""
    orders: dict[str, str] = {}

    def look(call: Call) -> Resolution:
        found = orders.get(call.idempotency_key)
        return Resolution.outcome(found) if found else Resolution.retry()

    @tool(reconcile=look)
    def order(what: str) -> str:
        executed[what] += 1
        made = current_call()
        assert made is not None
        orders[made.idempotency_key] = what
        return what

    def agent(run: Any) -> Any:
        for _ in run.steps():
            return run.call(order, "book")

    store, above = disk_store(), "parent"
    RecoverableAgent(agent, store).run_with_recovery_sync("task", above)
    if forks == 2:
        fork(store, above, "between")
        above = "between"
    fork(store, above, RUN)
    lose(store, lambda event: isinstance(event, CallIntended))
    if forks == 1:
        assert run_sync(agent, store)["result"] == "book"
    else:  # the key is that of a run further up, which the record does not name
        with pytest.raises(InDoubtError):
            run_sync(agent, store)
        assert f"from run {above!r} or one that this was forked from" in caplog.text
    assert executed == {"book": 1}


@pytest.mark.usefixtures("clock")
def test_a_call_whose_intent_is_lost_is_not_taken_for_an_equal_one_beside_it() -> None:
    orders: set[str] = set()
    lives: list[Any] = []

    def look(call: Call) -> Resolution:
        found = call.idempotency_key in orders
        return Resolution.outcome("sent") if found else Resolution.retry()

    @tool(reconcile=look)
    async def order(what: str) -> str:
        made = current_call()
        assert made is not None
        if len(lives) == 1 and made.lsn == lives[0]:
            await asyncio.sleep(0.05)  # until the other one is recorded
            raise Died
        orders.add(made.idempotency_key)
        executed[what] += 1
        return "sent"

    async def agent(run: Any) -> Any:
        async for _ in run.steps():
            return await asyncio.gather(run.call(order, "book"), run.call(order, "book"))

    def lived(store: Any) -> Any:
        return asyncio.run(RecoverableAgent(agent, store).run_with_recovery("task", RUN))

    store = disk_store()
    lives.append(3)  # LSN of the first intent
    with pytest.raises(Died):
        lived(store)
    lives.append("second")
    store = after_death(store)
    lose(store, lambda event: isinstance(event, CallIntended) and event.occurrence == 1)
    assert lived(store)["result"] == ["sent", "sent"]
    assert executed == {"book": 2} and len(orders) == 2


def test_a_read_that_was_given_a_lost_random_number_is_made_again() -> None:
    @tool(after_crash="retry")
    def read(number: float) -> float:
        executed[number] += 1
        return number

    lives = []

    def agent(run: Any) -> Any:
        lives.append(run)
        for _ in run.steps():
            found = run.call(read, run.random())
            if len(lives) == 1:
                raise Died
            return found

    store = a_run(agent)
    lose(store, lambda event: isinstance(event, ValueRecorded))
    assert run_sync(agent, store)["result"] in executed
    assert set(executed.values()) == {1} and len(executed) == 2


@pytest.mark.parametrize("id_is_lost", [True, False])
def test_a_service_that_finds_nothing_is_not_believed_where_the_arguments_may_have_been_others(
    id_is_lost: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The id that an order was made with is lost with the call, and the code gets another one."""
    orders: dict[str, str] = {}

    def look(call: Call) -> Resolution:
        found = orders.get(call.idempotency_key)
        return Resolution.outcome(found) if found else Resolution.retry()

    @tool(reconcile=look)
    def order(number: str) -> str:
        executed["order"] += 1
        made = current_call()
        assert made is not None
        orders[made.idempotency_key] = number
        if executed["order"] == 1:
            raise Died
        return number

    def agent(run: Any) -> Any:
        for _ in run.steps():
            return run.call(order, run.uuid())

    store = a_run(agent)
    gone = (ValueRecorded, CallIntended) if id_is_lost else CallIntended
    lose(store, lambda event: isinstance(event, gone))
    if not id_is_lost:
        assert run_sync(agent, store)["result"] in orders.values()
        assert executed == {"order": 1} and "other arguments" not in caplog.text
        return
    for _ in range(2):
        with pytest.raises(InDoubtError) as stopped:
            run_sync(agent, store)
        assert "may have been made with other arguments" in caplog.text
        assert executed == {"order": 1}
        caplog.clear()
    (call,) = stopped.value.calls
    resolve(store, RUN, call.lsn, Resolution.retry(), who="ann")  # a person is believed
    assert run_sync(agent, store)["result"] == orders[call.idempotency_key]
    assert executed == {"order": 2}
