"""A loop that keeps its messages and values in the journal, and puts the outcomes in itself."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from eventlog import RefusedValueError
from eventlog.repair import repair
from recovery import (
    InDoubtError,
    OutcomeUnknown,
    RecoverableAgent,
    Resolution,
    current_call,
    tool,
)
from recovery.call_journal import CallJournal, journal_execution
from recovery.errors import Stop
from recovery.inspect.status import status
from recovery.journal.events import MessagesChanged
from tests.support.lives import RUN, Died, after_death, disk_store
from tests.unit.recovery.agent.test_repaired import PATH, damage, disk_of

effects: Counter[Any] = Counter()


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    effects.clear()
    yield


def send(to: str) -> str:
    effects[to] += 1
    return f"sent {to}"


# -- messages and values


def test_messages_and_values_are_what_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    store = disk_store()
    for life in range(3):
        with CallJournal(store, RUN) as journal:
            assert list(journal.messages) == [{"life": one} for one in range(life)]
            assert journal.values == ({"at": [life - 1]} if life else {})
            journal.messages.append({"life": "?"})
            journal.messages[-1] = {"life": life}
            journal.keep("at", [life])
            if life == 1:  # behind a checkpoint
                monkeypatch.setattr(journal_execution, "CHECKPOINT_SIZE", 1)
                journal.forget()
                assert status(store, RUN).checkpoint > 0
                monkeypatch.undo()


def test_messages_are_recorded_while_calls_of_an_earlier_process_are_left() -> None:
    store = disk_store()
    with CallJournal(store, RUN) as journal:
        journal.call_sync(send, "a", call_id="1")
        store = after_death(store)
    with CallJournal(store, RUN) as journal:
        journal.messages.append("one")
        journal.keep("at", 1)
        store = after_death(store)
    with CallJournal(store, RUN) as journal:
        assert (list(journal.messages), journal.values["at"]) == (["one"], 1)


def test_the_order_of_messages_and_calls_can_be_seen() -> None:
    with CallJournal(disk_store(), RUN) as journal:
        journal.messages.append("before")
        journal.call_sync(send, "a", call_id="1")
        journal.messages.append("after")
        (call,) = journal.finished()
        assert journal.message_lsn(0) < call.lsn < call.ended < journal.message_lsn(1)
        assert journal.message_lsn(1) == journal.last_lsn


def test_a_value_that_cannot_be_recorded_is_refused_and_the_same_one_recorded_once() -> None:
    with CallJournal(disk_store(), RUN) as journal:
        journal.keep("at", {"seq": 1})
        before = journal.last_lsn
        journal.keep("at", {"seq": 1})
        with pytest.raises(RefusedValueError):
            journal.keep("at", object())
        assert (journal.values, journal.last_lsn) == ({"at": {"seq": 1}}, before)


def test_behind_a_repair_messages_and_values_are_empty_and_calls_are_not() -> None:
    store = disk_store()
    with CallJournal(store, RUN) as journal:
        journal.messages.append("one")
        journal.keep("at", 1)
        journal.messages.append("two")
        journal.call_sync(send, "a", call_id="1")
        assert journal.lost == ""
        store = after_death(store)
    damage(store, lambda event: isinstance(event, MessagesChanged) and event.start == 0)
    repair(PATH, files=disk_of(store), who="ops")
    with CallJournal(store, RUN) as journal:
        assert (list(journal.messages), journal.values, journal.lost) == ([], {}, "3-3")
        assert journal.call_sync(send, "a", call_id="1") == "sent a"
    assert effects == {"a": 1}


# -- outcomes that the loop puts in


def test_finished_calls_are_those_that_are_not_forgotten() -> None:
    store = disk_store()

    def fails(to: str) -> None:
        raise ValueError("no such box")

    with CallJournal(store, RUN) as journal:
        for name in "abc":
            journal.call_sync(send, name, call_id=name)
        with pytest.raises(ValueError):
            journal.call_sync(fails, "d", call_id="d")
        assert [one.call_id for one in journal.finished()] == ["a", "b", "c", "d"]
        assert journal.finished(["b"])[0].value == "sent b"
        assert journal.forget(journal.finished(["a"])) == 1
        store = after_death(store)
    with CallJournal(store, RUN) as journal:
        b, c, d = journal.finished()
        assert (b.tool, b.call_id, b.arguments, b.value) == ("send", "b", (("b",), {}), "sent b")
        assert (type(d.error), str(d.error)) == (ValueError, "no such box")
        journal.forget([c])
        assert [one.call_id for one in journal.finished()] == ["b", "d"]
        assert journal.call_sync(send, "b", call_id="b") == "sent b"
        assert journal.finished(["b"])[0].arguments == (("b",), {})
    assert effects == Counter("abc")


@pytest.mark.usefixtures("clock")
def test_a_call_that_the_loop_cancelled_is_finished_with_an_unknown_outcome() -> None:
    @tool(on_timeout="fail")
    async def slow() -> None:
        await asyncio.sleep(60)

    async def loop(journal: CallJournal) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await journal.call(slow, call_id="1")
        journal.keep("at", 1)

    store = disk_store()
    with CallJournal(store, RUN) as journal:
        asyncio.run(loop(journal))
        store = after_death(store)
    with CallJournal(store, RUN) as journal:
        (call,) = journal.finished()
        assert (call.call_id, type(call.value), journal.in_doubt()) == ("1", OutcomeUnknown, [])
        journal.forget([call])
    with CallJournal(store, RUN) as journal:
        assert journal.finished() == []
    assert status(store, RUN).state == "finished"


def test_a_call_in_which_the_process_ends_is_in_doubt_and_not_cancelled() -> None:
    @tool(on_timeout="fail")
    def ends() -> None:
        raise SystemExit

    store = disk_store()
    journal = CallJournal(store, RUN)
    with pytest.raises(SystemExit):
        journal.call_sync(ends, call_id="1")
    journal.call_sync(send, "a", call_id="2")  # another thread does
    journal.close()
    with CallJournal(store, RUN) as journal:
        assert [call.call_id for call in journal.in_doubt()] == ["1"]


def test_what_the_checkpoint_holds_can_be_said_when_it_is_read_from_the_journal() -> None:
    store = disk_store()
    with CallJournal(store, RUN) as journal:
        journal.call_sync(send, "a", call_id="1")
        journal.call_sync(send, "b", call_id="2")
        journal.messages.append({"answers": "1"})
        store = after_death(store)
    with CallJournal(store, RUN) as journal:
        journal.resume([message["answers"] for message in journal.messages])
        assert journal.call_sync(send, "a", call_id="8") == "sent a"  # made again on purpose
        assert journal.call_sync(send, "b", call_id="9") == "sent b"  # served
    assert effects == {"a": 2, "b": 1}


# -- doubts that the loop has itself


def test_a_call_that_the_loop_doubts_is_in_doubt_until_it_is_resolved() -> None:
    store = disk_store()
    with pytest.raises(InDoubtError) as told, CallJournal(store, RUN) as journal:
        journal.doubt(send, "a", call_id="1")
        journal.doubt(tool(after_crash="retry")(send), "b", call_id="2")
        journal.park(journal.in_doubt())
    assert [call.args for call in told.value.calls] == [("a",), ("b",)]
    assert status(store, RUN).state == "in doubt"
    store.run(RUN).resolve(told.value.calls[0].lsn, Resolution.outcome("it was sent"))
    with CallJournal(store, RUN) as journal:
        assert journal.call_sync(send, "a", call_id="1") == "it was sent"
        assert journal.call_sync(tool(after_crash="retry")(send), "b", call_id="2") == "sent b"
    assert effects == {"b": 1}


def test_a_doubt_is_decided_by_the_policy_in_the_same_process() -> None:
    asked: list[Any] = []

    def look(call: Any) -> Resolution:
        asked.append((call.args, call.idempotency_key))
        return Resolution.outcome("found")

    with CallJournal(disk_store(), RUN) as journal:
        journal.doubt(send, "a", call_id="1")
        (call,) = journal.in_doubt()
        assert journal.call_sync(tool(reconcile=look)(send), "a", call_id="1") == "found"
        assert journal.in_doubt() == []
    assert asked == [(("a",), call.idempotency_key)] and not effects


def test_a_journal_that_is_parked_executes_nothing() -> None:
    with pytest.raises(InDoubtError), CallJournal(disk_store(), RUN) as journal:
        journal.doubt(send, "a", call_id="1")
        with pytest.raises(InDoubtError):
            journal.park(journal.in_doubt())
        with pytest.raises(Stop):
            journal.call_sync(send, "b", call_id="2")
    assert not effects


# -- start


def test_a_plain_function_is_called_in_the_present_thread_and_its_result_returned() -> None:
    def here() -> int:
        assert current_call() is not None
        return threading.get_ident()

    with CallJournal(disk_store(), RUN) as journal:
        assert journal.start(here, call_id="1") == threading.get_ident()
        assert journal.finished()[0].value == threading.get_ident()
        assert journal.start(here, call_id="1") == threading.get_ident()
        assert current_call() is None


def test_what_it_returns_is_awaited_by_the_loop_that_awaits_it() -> None:
    ran: list[Any] = []

    def function(to: str) -> Any:
        ran.append((threading.current_thread(), current_call()))

        async def later() -> str:
            await asyncio.sleep(0)
            ran.append((threading.current_thread(), current_call()))
            return send(to)

        return later()

    async def loop(journal: CallJournal) -> None:
        coming = await asyncio.to_thread(journal.start, function, "a", call_id="1")
        assert not effects and journal.finished() == []
        assert await asyncio.create_task(coming) == "sent a"
        assert await asyncio.to_thread(journal.start, function, "a", call_id="1") == "sent a"

    with CallJournal(disk_store(), RUN) as journal:
        asyncio.run(loop(journal))
        (one,) = journal.finished()
        assert (one.call_id, one.value) == ("1", "sent a")
    (began, call), (ended, same) = ran
    assert began is not ended is threading.main_thread() and call == same is not None
    assert effects == {"a": 1}


def test_an_awaitable_that_raises_or_is_never_awaited() -> None:
    class Waits:
        def __await__(self) -> Iterator[None]:
            raise AssertionError("awaited")

    async def fails() -> None:
        raise ValueError("no")

    async def loop(journal: CallJournal) -> None:
        with pytest.raises(ValueError, match="no"):
            await journal.start(fails, call_id="1")
        journal.start(Waits, call_id="2").close()

    store = disk_store()
    journal = CallJournal(store, RUN)
    asyncio.run(loop(journal))
    assert [one.call_id for one in journal.finished()] == ["1"]
    journal.close()
    with CallJournal(store, RUN) as journal:
        assert [call.call_id for call in journal.in_doubt()] == ["2"]


def test_a_retry_of_a_started_call_is_made_in_the_loop() -> None:
    tries: list[Any] = []

    @tool(retry=2, after_crash="retry")
    def flaky() -> Any:
        tries.append(threading.current_thread())

        async def later() -> str:
            if len(tries) == 1:
                raise ConnectionError
            return "at last"

        return later()

    async def loop(journal: CallJournal) -> Any:
        return await journal.start(flaky, call_id="1")

    with CallJournal(disk_store(), RUN) as journal:
        assert asyncio.run(loop(journal)) == "at last"
    first, second = tries  # a plain function does not block the loop
    assert first is threading.main_thread() is not second


def test_a_started_call_has_its_time_out() -> None:
    @tool(timeout_s=0.05, on_timeout="fail")
    async def slow() -> None:
        await asyncio.sleep(60)

    @tool(timeout_s=0.05, on_timeout="fail")
    def blocks() -> None:
        over.wait(60)

    async def loop(journal: CallJournal) -> None:
        with pytest.raises(TimeoutError):
            await journal.start(slow, call_id="1")
        with pytest.raises(TimeoutError):
            journal.start(blocks, call_id="2")
        over.set()

    over = threading.Event()
    with CallJournal(disk_store(), RUN) as journal:
        asyncio.run(loop(journal))


# -- a journal of a run


def test_a_journal_of_a_run_is_in_its_store_and_collected_with_it() -> None:
    store = disk_store()

    @tool(after_crash="retry")
    async def visit(run: Any = None) -> str:
        with CallJournal(None, "visit", parent=holder["run"]) as journal:
            sent: str = journal.call_sync(send, "a", call_id="1")
            journal.forget()
            return sent

    holder: dict[str, Any] = {}

    async def agent(run: Any) -> str:
        holder["run"] = run
        return str(await run.call(visit))

    asyncio.run(RecoverableAgent(agent, store).run_with_recovery("task", RUN))
    found = status(store, "visit")
    assert found.parent is not None and found.parent.run_id == RUN and found.parent.lsn > 0
    assert {one.run_id for one in store.gc(keep=0)} == {RUN, "visit"}


def test_a_journal_without_a_store_is_refused() -> None:
    with pytest.raises(TypeError, match="needs a store"):
        CallJournal(None, RUN)


def test_a_killed_loop_that_keeps_its_messages_here_makes_no_call_twice() -> None:
    store, lives = disk_store(), 0
    while True:
        lives += 1
        points = 0

        def point(at: int = lives) -> None:
            nonlocal points
            points += 1
            if points == at:
                raise Died

        try:
            with CallJournal(store, RUN) as journal:
                known = [one["id"] for one in journal.messages]
                journal.resume(known)
                for name in "abc":
                    if name not in known:
                        point()
                        value = journal.call_sync(send, name, call_id=name)
                        point()
                        journal.messages.append({"id": name, "content": value})
                        point()
                        journal.forget([name])
                break
        except Died:
            store = after_death(store)
    assert lives > 3 and effects == Counter("abc")
    assert status(store, RUN).state == "finished"
