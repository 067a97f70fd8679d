"""Deadlines hold whoever was awake: what was sent later than a deadline does not count."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from recovery import ApprovalDeniedError, CheckpointStore, RecoverableAgent, RecoveryError, tool
from recovery.control.send import approve, deny, pending, signal
from recovery.errors import WaitingError
from recovery.inspect.status import status
from recovery.journal.call import Call
from recovery.journal.inbox_messages import DECISION
from recovery.testing.simulated.virtual_time import Clock, Loop, virtual_time

RUN = "run"
DAY = 86_400.0
paid: list[int] = []


@tool(needs_approval=True, approval_timeout_s=3600)
def pay(amount: int) -> str:
    paid.append(amount)
    return "paid"


async def paying(run: Any) -> str:
    try:
        return str(await run.call(pay, 10))
    except ApprovalDeniedError:
        return "denied"


def paying_plain(run: Any) -> str:
    try:
        return str(run.call(pay, 10))
    except ApprovalDeniedError:
        return "denied"


@pytest.fixture
def clock() -> Iterator[Clock]:
    paid.clear()
    clock = Clock()
    clock.begin()
    with virtual_time(clock):
        yield clock


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Any) -> CheckpointStore:
    return CheckpointStore(None if request.param == "memory" else tmp_path / "runs")


def run(clock: Clock, agent: Callable[[Any], Any], store: CheckpointStore, **options: Any) -> Any:
    runner = RecoverableAgent(agent, store, max_recoveries=0, **options)
    if not inspect.iscoroutinefunction(agent):
        return runner.run_with_recovery_sync("task", RUN)["result"]
    loop = Loop(clock)
    try:
        return loop.run_until_complete(runner.run_with_recovery("task", RUN))["result"]
    finally:
        loop.close()


def parked(clock: Clock, agent: Any, store: CheckpointStore) -> None:
    with pytest.raises(WaitingError):
        run(clock, agent, store, park_after_s=1)


AGENTS = pytest.mark.parametrize("agent", [paying, paying_plain])


@AGENTS
@pytest.mark.parametrize("decide", [approve, deny])
def test_a_decision_after_its_deadline_is_refused_where_it_is_given(
    clock: Clock, store: CheckpointStore, agent: Any, decide: Any
) -> None:
    parked(clock, agent, store)
    (call,) = pending(store, RUN)
    clock.ahead += 3 * DAY
    assert pending(store, RUN) == []
    (asking,) = status(store, RUN).calls
    assert asking.then.startswith("denies it: no decision came until ")
    with pytest.raises(RecoveryError, match=r"too late: .* could be decided until .* UTC"):
        decide(store, RUN, call, who="ann")
    assert status(store, RUN).unread == ()
    assert run(clock, agent, store) == "denied"
    assert paid == []


def said(store: CheckpointStore, call: Call, *, approved: bool) -> dict[str, Any]:
    return {"uid": status(store, RUN).uid, "of": call.idempotency_key, "approved": approved}


@AGENTS
def test_a_yes_that_got_in_after_the_deadline_does_not_count(
    clock: Clock, store: CheckpointStore, agent: Any
) -> None:
    parked(clock, agent, store)
    (call,) = pending(store, RUN)
    clock.ahead += 3601
    # As of a sender that had looked at the clock before, and then had to wait for the inbox.
    store.backend.post(RUN, DECISION, said(store, call, approved=True))
    assert [message.wanted for message in status(store, RUN).unread] == [False]
    assert run(clock, agent, store) == "denied"
    assert paid == []


@AGENTS
@pytest.mark.parametrize("late_no", [False, True])
def test_a_yes_in_time_counts_whenever_the_run_is_taken_up(
    clock: Clock, store: CheckpointStore, agent: Any, late_no: bool
) -> None:
    parked(clock, agent, store)
    (call,) = pending(store, RUN)
    clock.ahead += 3000
    approve(store, RUN, call)
    clock.ahead += 3 * DAY
    if late_no:
        store.backend.post(RUN, DECISION, said(store, call, approved=False))
    assert run(clock, agent, store) == "paid"
    assert paid == [10]


def test_a_yes_that_crosses_its_deadline_is_told_so(
    clock: Clock, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    parked(clock, paying, store)
    (call,) = pending(store, RUN)
    post = store.backend.post

    def late(*args: Any, **kwargs: Any) -> int:
        clock.ahead += 3601  # another sender has the inbox for so long
        return post(*args, **kwargs)

    monkeypatch.setattr(store.backend, "post", late)
    with pytest.raises(RecoveryError, match="What was sent does not count"):
        approve(store, RUN, call)
    assert run(clock, paying, store) == "denied"


# -- signals


async def waiting(run: Any) -> list[Any]:
    got: list[Any] = []
    for seconds in (100, None):
        try:
            got.append(await run.wait_for("a", seconds))
        except TimeoutError:
            got.append("too late")
    return got


def waiting_plain(run: Any) -> list[Any]:
    got: list[Any] = []
    for seconds in (100, None):
        try:
            got.append(run.wait_for("a", seconds))
        except TimeoutError:
            got.append("too late")
    return got


@pytest.mark.parametrize("agent", [waiting, waiting_plain])
@pytest.mark.parametrize(("after", "got"), [(90, [1, 2]), (110, ["too late", 1])])
def test_a_signal_counts_for_a_wait_by_when_it_was_sent(
    clock: Clock, store: CheckpointStore, agent: Any, after: float, got: list[Any]
) -> None:
    parked(clock, agent, store)
    clock.ahead += after
    signal(store, RUN, "a", 1)
    assert [sent.wanted for sent in status(store, RUN).unread] == [after < 100]
    clock.ahead += DAY
    signal(store, RUN, "a", 2)
    assert run(clock, agent, store) == got


@pytest.mark.parametrize(("after", "answer"), [(50, "yes"), (150, "nobody answered")])
def test_an_answer_and_a_sleep_beside_it_end_in_the_order_of_their_times(
    clock: Clock, store: CheckpointStore, after: float, answer: str
) -> None:
    async def reminder(run: Any) -> str:
        nap = asyncio.create_task(run.sleep(100))  # made first, and looked at first
        reply = asyncio.create_task(run.wait_for("answer"))
        done, left = await asyncio.wait({nap, reply}, return_when=asyncio.FIRST_COMPLETED)
        for task in left:
            task.cancel()
        return "nobody answered" if reply not in done else str(reply.result())

    parked(clock, reminder, store)
    clock.ahead += after
    signal(store, RUN, "answer", "yes")
    clock.ahead += 3 * DAY  # nobody was awake
    assert run(clock, reminder, store) == answer


def test_a_message_has_the_time_of_its_sender(clock: Clock, store: CheckpointStore) -> None:
    parked(clock, waiting, store)
    clock.ahead += 7
    before = time.time()
    signal(store, RUN, "a", 1)
    (sent,) = status(store, RUN).unread
    assert before <= sent.timestamp <= time.time()
