"""Approvals: a call that asks begins with one yes to exactly its arguments, or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace
from typing import Any

import pytest

from recovery import (
    ApprovalDeniedError,
    CheckpointStore,
    InDoubtError,
    RecoverableAgent,
    RecoveryError,
    Resolution,
    current_call,
    tool,
)
from recovery.calls.approval import ApprovalRequest
from recovery.control.cancel import cancel
from recovery.control.resolve import resolve
from recovery.control.send import approve, deny, pending
from recovery.errors import RunFailedError, WaitingError
from recovery.journal.call import Call
from recovery.journal.events import CallAbandoned, CallDecided, CallIntended, RunStarted
from recovery.journal.inbox_messages import DECISION, UID, Message
from recovery.ops.fork import fork
from recovery.stores.memory import MemoryStore
from recovery.testing.simulated.virtual_time import Clock, Loop
from tests.support.lives import RUN, Died, recorded


class Bank:
    """What payments were made, and by which calls."""

    def __init__(self, store: CheckpointStore, kind: str, clock: Clock) -> None:
        self.store, self.kind, self.clock = store, kind, clock
        self.paid: list[tuple[int, str]] = []
        self.dies = False

    def tool(self, **given: Any) -> Any:
        def pay(amount: int, to: str) -> str:
            self.paid.append((amount, to))
            if self.dies:
                raise Died
            return f"paid {amount}"

        async def pay_async(amount: int, to: str) -> str:
            return pay(amount, to)

        options: Any = {"needs_approval": True, "name": "pay"} | given
        return tool(**options)(pay if self.kind == "plain" else pay_async)

    def run(self, *payments: tuple[int, str], **options: Any) -> Any:
        """Make the payments, one after the other; what came of each."""
        park_after_s = options.pop("park_after_s", 1)
        pay = options.pop("pay", None) or self.tool(**options)

        async def agent(run: Any) -> list[str]:
            got = []
            for amount, to in payments:
                try:
                    got.append(await run.call(pay, amount, to))
                except ApprovalDeniedError as exc:
                    got.append(str(exc))
            return got

        def plain(run: Any) -> list[str]:
            got = []
            for amount, to in payments:
                try:
                    got.append(run.call(pay, amount, to))
                except ApprovalDeniedError as exc:
                    got.append(str(exc))
            return got

        chosen = plain if self.kind == "plain" else agent
        return self.live(
            RecoverableAgent(chosen, self.store, max_recoveries=0, park_after_s=park_after_s)
        )

    def live(self, agent: RecoverableAgent) -> Any:
        if self.kind == "plain":
            return agent.run_with_recovery_sync("task", RUN)["result"]
        loop = Loop(self.clock)
        try:
            return loop.run_until_complete(agent.run_with_recovery("task", RUN))["result"]
        finally:
            loop.close()

    def asked(self, *payments: tuple[int, str], **options: Any) -> Any:
        """Run until it parks; the calls that wait."""
        with pytest.raises(WaitingError):
            self.run(*payments, **options)
        return pending(self.store, RUN)

    def events(self, kind: type[Any]) -> list[Any]:
        return recorded(self.store, kind)


@pytest.fixture(params=["async", "plain"])
def bank(request: pytest.FixtureRequest, clock: Clock) -> Bank:
    return Bank(CheckpointStore(), request.param, clock)


ALICE, MALLORY = (10, "alice"), (9999, "mallory")


def test_a_call_waits_for_a_yes_and_is_asked_about_once(
    bank: Bank, caplog: pytest.LogCaptureFixture
) -> None:
    (call,) = bank.asked(ALICE)
    assert (call.tool, call.args, call.kwargs, call.run_id) == ("pay", ALICE, {}, RUN)
    assert abs(call.started_ns / 1e9 - time.time()) < 60
    for _ in range(3):
        assert bank.asked(ALICE) == [call]
    assert len(bank.events(CallIntended)) == 1
    assert bank.paid == []
    approve(bank.store, RUN, call, who="ann", why="invoice 7")
    assert bank.run(ALICE) == ["paid 10"]
    assert bank.run(ALICE) == ["paid 10"]
    assert bank.paid == [ALICE]
    assert caplog.text.count(f"recovery approve run {call.idempotency_key}") == 4  # as it waits
    (decided,) = bank.events(CallDecided)
    wanted = CallDecided(call.lsn, True, "ann", "invoice 7", 1)
    assert replace(decided, sent=None, uid=None) == wanted
    assert pending(bank.store, RUN) == []


def test_a_yes_never_runs_another_call(bank: Bank) -> None:
    (call,) = bank.asked(ALICE)
    approve(bank.store, RUN, call)
    other = CheckpointStore()
    elsewhere = Bank(other, bank.kind, bank.clock)
    (wanted,) = elsewhere.asked(MALLORY)
    assert wanted.lsn == call.lsn
    # The message itself, in the inbox of a run in which the same LSN is another call.
    reader = bank.store.backend.inbox(RUN)
    assert reader is not None
    with reader:
        (record,) = reader.records()
    other.backend.post(RUN, record.kind, decode_body(record))
    assert elsewhere.asked(MALLORY) == [wanted]
    assert elsewhere.paid == []
    with pytest.raises(RecoveryError, match="does not wait for approval"):
        approve(other, RUN, call)


def decode_body(record: Any) -> dict[str, Any]:
    body = record.body
    del body["key"]
    return dict(body)


def test_a_yes_is_spent_once(bank: Bank) -> None:
    (call,) = bank.asked(ALICE, ALICE)
    approve(bank.store, RUN, call)
    (second,) = bank.asked(ALICE, ALICE)
    assert bank.paid == [ALICE]
    assert second.idempotency_key != call.idempotency_key
    with pytest.raises(RecoveryError, match="does not wait for approval"):
        approve(bank.store, RUN, call)
    approve(bank.store, RUN, second)
    assert bank.run(ALICE, ALICE) == ["paid 10", "paid 10"]


def test_a_no_is_an_outcome(bank: Bank) -> None:
    (call,) = bank.asked(ALICE)
    deny(bank.store, RUN, call.lsn, who="bob", why="too much")
    said = "pay was denied by bob: too much. It was not executed."
    assert bank.run(ALICE, (9999, "x"), needs_approval=lambda c: c.args == ALICE) == [
        said,
        "paid 9999",
    ]
    assert bank.paid == [(9999, "x")]
    assert bank.run(ALICE, (9999, "x")) == [said, "paid 9999"]


def test_the_last_decision_counts_that_is_there_when_the_call_begins(bank: Bank) -> None:
    (call,) = bank.asked(ALICE)
    for decide in (approve, deny, approve, deny):
        decide(bank.store, RUN, call)
    assert bank.run(ALICE)[0].startswith("pay was denied")
    assert bank.paid == []


def test_a_decision_counts_until_the_deadline_if_none_counted_after_it() -> None:
    asks = ApprovalRequest(50.0, last_decision=(3, 40 * 10**9))
    for lsn, time_s, signature, counts in [
        (4, 50, b"", True),
        (4, 51, b"", False),
        (3, 45, b"", False),
        (4, 39, b"", True),
        (4, 40, b"signed", False),
        (4, 41, b"signed", True),
    ]:
        made = Message(lsn, time_s * 10**9, DECISION, signature=signature)
        assert asks.counts(made) is counts, made


def test_a_no_to_a_call_that_has_begun_is_too_late_and_says_so(bank: Bank) -> None:
    (call,) = bank.asked(ALICE)
    approve(bank.store, RUN, call, who="ann")
    bank.dies = True
    with pytest.raises(Died):
        bank.run(ALICE)
    with pytest.raises(RecoveryError, match="does not wait for approval: it has begun"):
        deny(bank.store, RUN, call)
    with pytest.raises(InDoubtError):
        bank.run(ALICE)
    assert bank.paid == [ALICE]


def test_a_no_that_crosses_the_beginning_is_answered(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    (call,) = bank.asked(ALICE)
    approve(bank.store, RUN, call, who="ann")
    post = type(bank.store.backend).post

    def late(store: Any, *args: Any) -> int:
        monkeypatch.undo()
        bank.run(ALICE)
        return post(store, *args)

    # Looked at before it began, and sent after.
    monkeypatch.setattr(type(bank.store.backend), "post", late)
    with pytest.raises(RecoveryError, match="too late: the call has begun, approved by ann"):
        deny(bank.store, RUN, call)
    assert bank.paid == [ALICE]


def test_a_run_tells_of_a_no_that_came_after_the_call_began(
    bank: Bank, caplog: pytest.LogCaptureFixture
) -> None:
    (call,) = bank.asked(ALICE)
    approve(bank.store, RUN, call, who="ann")
    said = {"approved": False, "who": "bob", "why": "", "call": call.lsn}
    (begun,) = bank.events(RunStarted)

    def pay(amount: int, to: str) -> None:
        bank.store.backend.post(RUN, DECISION, said | {"of": call.idempotency_key, UID: begun.uid})

    async def pay_async(amount: int, to: str) -> None:
        pay(amount, to)

    made = tool(needs_approval=True, name="pay")(pay if bank.kind == "plain" else pay_async)
    with pytest.raises(WaitingError):  # for the yes to the second payment
        bank.run(ALICE, MALLORY, pay=made)
    (told,) = [one.message for one in caplog.records if "too late" in one.message]
    assert "message 2 (denied by bob) came too late: the call has begun" in told
    assert told.endswith(call.idempotency_key)


def test_a_predicate_tells_which_calls_ask(bank: Bank) -> None:
    seen: list[Any] = []

    def dear(call: Any) -> bool:
        seen.append(call)
        return bool(call.args[0] > 100)

    pay = bank.tool(needs_approval=dear)
    (call,) = bank.asked((10, "a"), (500, "b"), pay=pay)
    assert call.args == (500, "b")
    assert bank.paid == [(10, "a")]
    assert [(one.lsn, one.tool, one.args, one.attempt) for one in seen] == [
        (0, "pay", (10, "a"), 1),
        (0, "pay", (500, "b"), 1),
    ]
    # What was recorded counts, whatever the code says now.
    assert bank.asked((10, "a"), (500, "b"), needs_approval=False) == [call]


def test_large_arguments_are_shown_whole(bank: Bank) -> None:
    to = "x" * 50_000
    (call,) = bank.asked((10, to))
    assert call.args == (10, to)


def test_a_call_denied_for_good_asks_anew_when_it_is_to_be_made_again(bank: Bank) -> None:
    pay = bank.tool()

    def plain(run: Any) -> Any:
        return run.call(pay, *ALICE)

    async def agent(run: Any) -> Any:
        return await run.call(pay, *ALICE)

    chosen = RecoverableAgent(plain if bank.kind == "plain" else agent, bank.store, park_after_s=1)
    with pytest.raises(WaitingError):
        bank.live(chosen)
    (call,) = pending(bank.store, RUN)
    deny(bank.store, RUN, call)
    with pytest.raises(RunFailedError) as failed:
        bank.live(chosen)
    resolve(bank.store, RUN, failed.value.call, Resolution.retry())
    with pytest.raises(WaitingError):
        bank.live(chosen)
    assert pending(bank.store, RUN) == [call]
    approve(bank.store, RUN, call)
    bank.dies = True
    with pytest.raises(Died):
        bank.live(chosen)
    bank.dies = False
    with pytest.raises(InDoubtError):
        bank.live(chosen)
    assert bank.paid == [ALICE]
    resolve(bank.store, RUN, failed.value.call, Resolution.retry())
    assert bank.live(chosen) == "paid 10"


def test_a_cancelled_run_asks_nobody(bank: Bank) -> None:
    (call,) = bank.asked(ALICE)
    cancel(bank.store, RUN)
    assert pending(bank.store, RUN) == []
    with pytest.raises(RecoveryError, match="does not wait for approval"):
        approve(bank.store, RUN, call)


def test_the_agent_may_give_up_waiting(clock: Clock) -> None:
    bank = Bank(CheckpointStore(), "async", clock)
    pay = bank.tool()

    async def agent(run: Any) -> Any:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(50):
                await run.call(pay, *ALICE)
        return await run.call(pay, *MALLORY)

    runner = RecoverableAgent(agent, bank.store, max_recoveries=0, park_after_s=100)
    with pytest.raises(WaitingError):
        bank.live(runner)
    (call,) = pending(bank.store, RUN)
    assert call.args == MALLORY
    (abandoned,) = bank.events(CallAbandoned)
    given_up = abandoned.call
    assert (abandoned.why, abandoned.begun) == ("cancelled", False)
    with pytest.raises(RecoveryError, match="does not wait for approval"):
        approve(bank.store, RUN, given_up)
    approve(bank.store, RUN, call)
    assert bank.live(runner) == "paid 9999"
    assert pending(bank.store, RUN) == []
    assert bank.paid == [MALLORY]


def test_impossible_options_are_refused() -> None:
    async def later(call: Any) -> bool:
        return True

    with pytest.raises(TypeError, match="not an async one"):
        tool(needs_approval=later)(print)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="approval_timeout_s"):
        tool(needs_approval=True, approval_timeout_s=0)(print)


def test_a_stream_begins_with_a_yes(clock: Clock) -> None:
    bank = Bank(CheckpointStore(), "async", clock)

    @tool(needs_approval=True, combine="".join, split=list)
    async def words(amount: int) -> Any:
        bank.paid.append((amount, "stream"))
        yield "a"
        yield "b"

    async def agent(run: Any) -> list[str]:
        return [chunk async for chunk in words(10)]

    of = RecoverableAgent(agent, bank.store, max_recoveries=0, park_after_s=1)
    with pytest.raises(WaitingError):
        bank.live(of)
    assert bank.paid == []
    (call,) = pending(bank.store, RUN)
    approve(bank.store, RUN, call)
    assert bank.live(of) == ["a", "b"]
    assert bank.paid == [(10, "stream")]


def test_a_fork_asks_anew_for_what_waits(bank: Bank) -> None:
    (call,) = bank.asked(ALICE)
    fork(bank.store, RUN, "other")
    approve(bank.store, RUN, call)
    (other,) = pending(bank.store, "other")
    assert (other.args, other.run_id) == (ALICE, "other")
    assert bank.run(ALICE) == ["paid 10"]
    assert pending(bank.store, "other") == [other]


@pytest.mark.parametrize("by_name", [True, False])
def test_a_function_of_the_call_has_its_arguments_by_name(by_name: bool) -> None:
    seen: list[dict[str, Any]] = []

    def is_large(call: Call) -> bool:
        seen.append(call.arguments)
        return bool(call.arguments["amount"] > 100)

    @tool(needs_approval=is_large)
    def charge(order: int, amount: int, *, note: str = "none") -> dict[str, Any]:
        call = current_call()
        assert call is not None
        return call.arguments

    def agent(run: Any) -> Any:
        return charge(amount=5, order=1) if by_name else charge(1, 5)

    store = CheckpointStore(MemoryStore())
    given = {"order": 1, "amount": 5, "note": "none"}
    found = RecoverableAgent(agent, store).run_with_recovery_sync(None, "run")
    assert found["result"] == given and seen == [given]
