"""A journal of calls, as loops that have their own checkpoints use it."""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from eventlog import EventLog, LogLockedError, RefusedValueError
from eventlog.errors import WriterFailedError
from eventlog.testing import SimulatedDisk
from recovery import (
    ApprovalDeniedError,
    CheckpointStore,
    InDoubtError,
    OutcomeUnknown,
    RecoverableAgent,
    RecoveryError,
    Resolution,
    ToolError,
    current_call,
    tool,
)
from recovery.call_journal import CallJournal, journal_execution
from recovery.call_journal.journal_execution import JournalExecution
from recovery.cli.next_steps import Commands
from recovery.errors import (
    AmbiguousCallError,
    DamagedRunError,
    LeftBehindError,
    RunCancelledError,
    Stop,
)
from recovery.journal.events import CallIntended, CallReturned
from tests.support.lives import RUN, Died, after_death, disk_store, recorded
from tests.unit.recovery.agent.test_repaired import damage, lose

effects: Counter[Any] = Counter()
keys: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    effects.clear()
    keys.clear()
    yield


def send(to: str) -> dict[str, str]:
    call = current_call()
    assert call is not None
    effects[to] += 1
    keys.append(call.idempotency_key)
    return {"sent": to}


def dies(to: str) -> str:
    send(to)
    raise Died


def die_in(store: CheckpointStore, function: Callable[..., Any], *args: Any, **given: Any) -> Any:
    """A process that dies in this call; the store that the next process finds."""
    journal = CallJournal(store, RUN)
    with pytest.raises(Died):
        journal.call_sync(function, *args, **given)
    journal.close()
    return after_death(store)


# -- what is served


def test_a_call_is_served_by_its_id_in_any_order_as_often_as_it_is_asked_for() -> None:
    store = disk_store()
    with CallJournal(store, RUN) as journal:
        made = [journal.call_sync(send, to, call_id=f"id {to}") for to in "abc"]
    for _ in range(2):
        with CallJournal(store, RUN) as journal:
            again = [journal.call_sync(send, to, call_id=f"id {to}") for to in "cabc"]
    assert again == [made[2], *made]
    assert effects == {"a": 1, "b": 1, "c": 1}


def test_another_tool_id_or_argument_is_another_call() -> None:
    store = disk_store()
    for _ in range(2):
        with CallJournal(store, RUN) as journal:
            journal.call_sync(send, "a", call_id="1")
            journal.call_sync(send, "a", call_id="2")
            journal.call_sync(send, "b", call_id="1")
            journal.call_sync(tool(name="other")(send), "a", call_id="1")
            # By name or position, and by a partial: the same one.
            journal.call_sync(functools.partial(send, to="a"), call_id="1")
    assert effects == {"a": 3, "b": 1}
    assert len(set(keys)) == 4


def test_calls_from_many_threads_and_tasks_are_each_made_once() -> None:
    store = disk_store()

    def in_threads(journal: CallJournal) -> list[Any]:
        with ThreadPoolExecutor(8) as pool:
            return list(
                pool.map(lambda n: journal.call_sync(send, f"t{n}", call_id=f"t{n}"), range(40))
            )

    async def in_tasks(journal: CallJournal) -> list[Any]:
        return await asyncio.gather(
            *(journal.call(send, f"a{n}", call_id=f"a{n}") for n in range(40))
        )

    for _ in range(2):
        with CallJournal(store, RUN) as journal:
            assert in_threads(journal) == [{"sent": f"t{n}"} for n in range(40)]
            assert asyncio.run(in_tasks(journal)) == [{"sent": f"a{n}"} for n in range(40)]
    assert len(effects) == 80
    assert set(effects.values()) == {1}


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_one_that_is_asked_for_while_it_is_under_way_is_waited_for(kind: str) -> None:
    def slow(to: str) -> dict[str, str]:
        time.sleep(0.05)
        return send(to)

    async def tasks(journal: CallJournal) -> list[Any]:
        return await asyncio.gather(*(journal.call(slow, "a", call_id="1") for _ in range(5)))

    with CallJournal(disk_store(), RUN) as journal:
        if kind == "tasks":
            found = asyncio.run(tasks(journal))
        else:
            with ThreadPoolExecutor(5) as pool:
                found = list(
                    pool.map(lambda _: journal.call_sync(slow, "a", call_id="1"), range(5))
                )
    assert found == [{"sent": "a"}] * 5
    assert effects == {"a": 1}


def test_one_that_is_under_way_in_the_present_loop_is_awaited_and_cannot_be_held_up() -> None:
    async def slow(to: str) -> dict[str, str]:
        await asyncio.sleep(0.01)
        return send(to)

    async def loop(journal: CallJournal) -> list[Any]:
        first = asyncio.ensure_future(journal.start(slow, "a", call_id="1"))
        await asyncio.sleep(0)
        with pytest.raises(
            RecoveryError, match=r"in flight in the event loop.*await journal\.call"
        ):
            journal.call_sync(slow, "a", call_id="1")
        return [await journal.start(slow, "a", call_id="1"), await first]

    with CallJournal(disk_store(), RUN) as journal:
        assert asyncio.run(loop(journal)) == [{"sent": "a"}] * 2
    assert effects == {"a": 1}


def test_a_loop_that_tries_again_what_failed_has_the_same_failures_and_results_again() -> None:
    store = disk_store()

    def flaky(to: str) -> dict[str, str]:
        sent = send(to)
        if effects[to] < 3:
            raise ConnectionError(f"no line, {effects[to]}")
        return sent

    def tried(journal: CallJournal) -> list[Any]:
        found: list[Any] = []
        while len(found) < 3:
            try:
                found.append(journal.call_sync(flaky, "a", call_id="1"))
            except ConnectionError as exc:
                found.append(str(exc))
        return found

    for _ in range(3):
        with CallJournal(store, RUN) as journal:
            assert tried(journal) == ["no line, 1", "no line, 2", {"sent": "a"}]
    assert effects == {"a": 3}
    assert len(set(keys)) == 3


def test_without_ids_equal_calls_are_calls_of_their_own_and_each_takes_one_outcome() -> None:
    store = disk_store()

    def number() -> int:
        effects["n"] += 1
        return effects["n"]

    with CallJournal(store, RUN) as journal:
        assert [journal.call_sync(number) for _ in range(3)] == [1, 2, 3]
    with CallJournal(store, RUN) as journal:
        assert [journal.call_sync(number) for _ in range(4)] == [1, 2, 3, 4]
    with CallJournal(store, RUN) as journal:
        assert [journal.call_sync(number) for _ in range(5)] == [1, 2, 3, 4, 5]


class Account:
    def __init__(self, owner: str) -> None:
        self.owner = owner

    def pay(self, amount: int) -> str:
        effects[self.owner, amount] += 1
        return f"{self.owner} paid {amount}"


def test_methods_lambdas_partials_async_and_nested_tools() -> None:
    store = disk_store()

    def note(n: int) -> int:
        effects["l"] += 1
        return n

    @tool
    async def inner(n: int) -> int:
        await asyncio.sleep(0)
        effects["inner", n] += 1
        return n

    @tool
    async def outer(n: int) -> int:
        return sum(await asyncio.gather(*map(inner, range(n))))

    for _ in range(2):
        with CallJournal(store, RUN) as journal:
            assert journal.call_sync(Account("Ada").pay, 1, call_id="1") == "Ada paid 1"
            assert journal.call_sync(lambda n: note(n) or n, 7, call_id="2") == 7
            assert journal.call_sync(functools.partial(send, "p"), call_id="3") == {"sent": "p"}
            assert asyncio.run(journal.call(outer, 4, call_id="4")) == 6
            assert journal.call_sync(outer, 3, call_id="5") == 3
    assert effects.pop("l") == 1
    assert effects == {("Ada", 1): 1, "p": 1} | {("inner", n): 2 for n in range(3)} | {
        ("inner", 3): 1
    }


def test_a_lambda_needs_an_id_and_a_generator_is_refused() -> None:
    def chunks() -> Iterator[int]:
        yield 1

    with CallJournal(disk_store(), RUN) as journal:
        with pytest.raises(TypeError, match="generator"):
            journal.call_sync(chunks)
        with pytest.raises(TypeError, match="call_id is text"):
            journal.call_sync(send, "a", call_id=7)  # type: ignore[call-overload]
    with pytest.raises(AmbiguousCallError), CallJournal(disk_store(), RUN) as journal:
        journal.call_sync(lambda: 1)


def test_huge_values_are_served_and_what_cannot_be_recorded_is_refused() -> None:
    store, large = disk_store(), "x" * 3_000_000

    def echo(text: str) -> list[str]:
        effects["echo"] += 1
        return [text, text]

    for _ in range(2):
        with CallJournal(store, RUN) as journal:
            assert journal.call_sync(echo, large, call_id="1") == [large, large]
    assert effects == {"echo": 1}
    with CallJournal(store, RUN) as journal, pytest.raises(RefusedValueError, match="object"):
        journal.call_sync(echo, object(), call_id="2")
    with pytest.raises(RecoveryError, match="cannot be"), CallJournal(store, RUN) as journal:
        journal.call_sync(lambda: send("a") and object(), call_id="3")
    with CallJournal(store, RUN) as journal:
        assert [call.call_id for call in journal.in_doubt()] == ["3"]


# -- a model that is asked again


def test_a_model_that_is_asked_again_gives_other_ids_and_gets_what_the_loop_does_not_know() -> None:
    store = disk_store()
    with CallJournal(store, RUN) as journal:
        for n in range(4):
            journal.call_sync(send, "a", call_id=f"old {n}")
    with CallJournal(store, RUN, known=["old 0", "old 1"]) as journal:
        for n in range(3):
            journal.call_sync(send, "a", call_id=f"new {n}")
    assert effects == {"a": 5}
    # Which outcome answers which id is known from now on.
    with CallJournal(store, RUN, known=["new 1"]) as journal:
        for one in ("new 0", "new 2", "old 2", "old 3"):
            journal.call_sync(send, "a", call_id=one)
    assert effects == {"a": 7}


def test_a_loop_that_does_not_say_what_it_knows_is_served_by_id_alone() -> None:
    store = disk_store()
    with CallJournal(store, RUN) as journal:
        journal.call_sync(send, "a", call_id="old")
    with CallJournal(store, RUN) as journal:
        journal.call_sync(send, "a", call_id="new")
    assert effects == {"a": 2}


def test_a_call_in_doubt_is_in_doubt_under_any_id() -> None:
    store = die_in(disk_store(), tool(name="send")(dies), "a", call_id="old")
    with pytest.raises(InDoubtError), CallJournal(store, RUN) as journal:
        journal.call_sync(send, "a", call_id="new")
    assert effects == {"a": 1}
    [call] = store.run(RUN).status().in_doubt
    assert call.idempotency_key == keys[0]
    store.run(RUN).resolve(call, Resolution.outcome({"sent": "by hand"}))
    for asked in ("new", "new", "newer"):
        with CallJournal(store, RUN, known=[]) as journal:
            assert journal.call_sync(send, "a", call_id=asked) == {"sent": "by hand"}
    assert effects == {"a": 1}


# -- calls in doubt


def test_a_call_in_doubt_stops_the_journal_whatever_the_loop_catches() -> None:
    store = die_in(disk_store(), tool(name="send")(dies), "a", call_id="1")
    shown = []
    with pytest.raises(InDoubtError) as caught, CallJournal(store, RUN) as journal:
        assert [call.tool for call in journal.in_doubt()] == ["send"]
        for n in range(3):
            try:
                journal.call_sync(send, "a", call_id="1")
                journal.call_sync(send, "b", call_id=f"b{n}")
            except Exception as exc:
                shown.append(exc)
            except Stop:
                pass
    assert [call.kwargs or call.args for call in caught.value.calls] == [("a",)]
    assert shown == []
    assert effects == {"a": 1}
    status = store.run(RUN).status()
    assert (status.state, status.kind) == ("in doubt", "journal")
    assert [call.name for call in status.in_doubt] == [f"send#{caught.value.calls[0].lsn}"]


@pytest.mark.parametrize(
    "how, said, made",
    [
        (Resolution.outcome({"sent": "a"}), {"sent": "a"}, 1),
        (Resolution.retry(), {"sent": "a"}, 2),
        (Resolution.fail("never"), "never", 1),
    ],
)
def test_it_is_resolved_and_the_loop_goes_on(how: Resolution, said: Any, made: int) -> None:
    store = die_in(disk_store(), tool(name="send")(dies), "a", call_id="1")
    with pytest.raises(InDoubtError) as caught, CallJournal(store, RUN) as journal:
        journal.call_sync(send, "a", call_id="1")
    store.run(RUN).resolve(caught.value.calls[0], how, who="ops")
    for _ in range(2):
        with CallJournal(store, RUN) as journal:
            assert journal.in_doubt() == []
            try:
                assert journal.call_sync(send, "a", call_id="1") == said
            except ToolError as exc:
                assert said in str(exc)
    assert effects == {"a": made}
    assert len(set(keys)) == 1


def test_the_policies_of_a_tool_and_of_the_journal() -> None:
    def found(call: Any) -> Resolution:
        return Resolution.outcome({"found": call.kwargs or call.args})

    cases: list[tuple[Any, Any, Any]] = [
        ({"after_crash": "retry"}, {}, {"sent": "a"}),
        ({"after_crash": "report"}, {}, OutcomeUnknown),
        ({"reconcile": found}, {}, {"found": ("a",)}),
        ({}, {"after_crash": "retry"}, {"sent": "a"}),
        ({}, {"after_crash": {"send": "report"}}, OutcomeUnknown),
    ]
    for options, given, expected in cases:
        effects.clear()
        keys.clear()
        made: Any = tool(name="send", **options)
        store = die_in(disk_store(), made(dies), "a", call_id="1")
        for _ in range(2):
            with CallJournal(store, RUN, **given) as journal:
                result = journal.call_sync(made(send), "a", call_id="1")
                assert expected in (result, type(result))
        assert len(set(keys)) == 1


def test_what_nobody_asks_for_again_can_be_finished_with_what_it_was_called_with() -> None:
    store = die_in(disk_store(), tool(name="send", after_crash="retry")(dies), "a", call_id="1")
    with CallJournal(store, RUN) as journal:
        assert journal.call_sync(send, "other", call_id="2") == {"sent": "other"}
        again = tool(after_crash="retry")(send)
        for call in journal.unfinished():
            done = journal.call_sync(again, *call.args, call_id=call.call_id, **call.kwargs)
        assert done == {"sent": "a"}
        assert journal.unfinished() == []
    assert effects == {"a": 2, "other": 1}


def test_arguments_of_unfinished_calls_are_whole() -> None:
    large = "x" * 100_000
    store = die_in(disk_store(), dies, large, call_id="1")
    with CallJournal(store, RUN) as journal:
        assert [call.args for call in journal.in_doubt()] == [(large,)]


@pytest.mark.usefixtures("clock")
def test_a_call_that_the_loop_cancels_is_in_doubt_or_made_again() -> None:
    async def slow(to: str) -> None:
        send(to)
        await asyncio.sleep(60)

    async def loop(journal: CallJournal, made: Any) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await journal.call(made, "a", call_id="1")
        await journal.call(send, "b", call_id="2")

    with pytest.raises(InDoubtError), CallJournal(disk_store(), RUN) as journal:
        asyncio.run(loop(journal, slow))
    assert effects == {"a": 1}
    store = disk_store()
    with CallJournal(store, RUN) as journal:
        asyncio.run(loop(journal, tool(on_timeout="fail")(slow)))
        assert journal.call_sync(tool(name="slow")(send), "a", call_id="1") == {"sent": "a"}
    with CallJournal(store, RUN) as journal:  # the one that was not cancelled counts
        assert journal.unfinished() == []
        assert journal.call_sync(tool(name="slow")(send), "a", call_id="1") == {"sent": "a"}
    assert effects == {"a": 3, "b": 1}


def test_a_call_that_the_loop_cancels_while_its_outcome_is_flushed_is_not_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commit, commits = JournalExecution._commit, list[int]()

    async def loop(journal: CallJournal) -> None:
        flushing = asyncio.Event()

        async def slow(run: JournalExecution) -> None:
            commits.append(run.log.last_lsn)
            if len(commits) == 2:  # of the outcome; the first one is of the intent
                flushing.set()
                await asyncio.Event().wait()
            await commit(run)

        monkeypatch.setattr(EventLog, "commit_behind", lambda log: None)  # no flush by luck
        monkeypatch.setattr(JournalExecution, "_commit", slow)
        call = asyncio.ensure_future(journal.call(send, "a", call_id="1"))
        await flushing.wait()
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled()
        assert await journal.call(send, "a", call_id="1") == {"sent": "a"}
        assert commits == [commits[0], commits[1], commits[1]]  # durable before it is served

    with CallJournal(disk_store(), RUN) as journal:
        asyncio.run(loop(journal))
    assert effects == {"a": 1}


def test_a_time_out_of_a_side_effect_is_in_doubt() -> None:
    @tool(timeout_s=0.05)
    async def slow() -> None:
        await asyncio.sleep(60)

    with pytest.raises(InDoubtError), CallJournal(disk_store(), RUN) as journal:
        journal.call_sync(slow, call_id="1")


# -- approvals, cancellation


def test_a_call_that_needs_approval_begins_when_it_is_approved(tmp_path: Path) -> None:
    pay = tool(needs_approval=True, name="pay")(send)

    def decide(yes: bool) -> None:
        handle = CheckpointStore(tmp_path).run(RUN)
        while not (asking := [call for call in handle.status().calls if call.state == "asks"]):
            time.sleep(0.01)
        assert effects == {}
        (handle.approve if yes else handle.deny)(asking[0].lsn, who="ops")

    for yes in (True, False):
        with CallJournal(tmp_path, RUN) as journal, ThreadPoolExecutor(1) as pool:
            decided = pool.submit(decide, yes)
            try:
                assert journal.call_sync(pay, f"{yes}", call_id="1") == {"sent": "True"}
            except ApprovalDeniedError:
                assert not yes
            decided.result()
            journal.forget()
        assert effects == ({"True": 1} if yes else {})
        effects.clear()


def test_an_operator_can_cancel_it(tmp_path: Path) -> None:
    with pytest.raises(RunCancelledError), CallJournal(tmp_path, RUN) as journal:
        journal.call_sync(send, "a", call_id="1")
        CheckpointStore(tmp_path).run(RUN).cancel(who="ops")
        for n in range(100):
            journal.call_sync(lambda: time.sleep(0.01), call_id=f"s{n}")
    with pytest.raises(RecoveryError, match="was ended"):
        CallJournal(tmp_path, RUN)


# -- forgetting


def test_what_is_forgotten_is_a_new_call_with_another_key_and_the_rest_stays() -> None:
    store = disk_store()
    with CallJournal(store, RUN) as journal:
        for to in "abc":
            journal.call_sync(send, to, call_id=to)
        assert journal.forget(["a", "nothing"]) == 1
        for to in "abc":
            journal.call_sync(send, to, call_id=to)
    assert effects == {"a": 2, "b": 1, "c": 1}
    with CallJournal(store, RUN) as journal:
        assert journal.call_sync(send, "b", call_id="b") == {"sent": "b"}
        assert journal.forget() == 3
        assert store.run(RUN).status().state == "running"
    assert store.run(RUN).status().state == "finished"
    with CallJournal(store, RUN) as journal:
        for to in "abc":
            journal.call_sync(send, to, call_id=to)
    assert effects == {"a": 3, "b": 2, "c": 2}
    assert len(set(keys)) == len(keys)
    assert store.run(RUN).status().state == "interrupted"
    with CallJournal(store, RUN) as journal, pytest.raises(TypeError, match="a collection"):
        journal.forget("abc")


def test_a_call_in_doubt_is_not_forgotten() -> None:
    store = die_in(disk_store(), tool(name="send")(dies), "a", call_id="1")
    with CallJournal(store, RUN, known=["1"]) as journal:
        assert journal.forget() == 0
        assert [call.call_id for call in journal.in_doubt()] == ["1"]


def test_opening_reads_what_is_not_forgotten_and_the_store_may_remove_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_execution, "CHECKPOINT_SIZE", 100_000)
    store = CheckpointStore(tmp_path, retention="latest_only", durability="none")
    text = "x" * 20_000

    def echo(text: str) -> str:
        return text

    with CallJournal(store, RUN) as journal:
        for n in range(1500):
            journal.call_sync(echo, text, call_id=f"{n}")
            journal.forget([f"{n}"])
        journal.call_sync(send, "a", call_id="last")
    size = sum(one.stat().st_size for one in (tmp_path / RUN).rglob("*.seg"))
    assert size < 40 << 20  # 57 MiB if nothing is forgotten; a thread removes what is
    assert store.run(RUN).status().replayed < 40
    with CallJournal(store, RUN) as journal:
        assert journal.call_sync(send, "a", call_id="last") == {"sent": "a"}
        assert journal.call_sync(send, "b", call_id="last") == {"sent": "b"}
    assert effects == {"a": 1, "b": 1}


def test_what_is_in_doubt_or_unknown_survives_a_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal_execution, "CHECKPOINT_SIZE", 1)
    store = disk_store()
    with CallJournal(store, RUN) as journal:
        journal.call_sync(send, "a", call_id="1")
        journal.call_sync(send, "b", call_id="2")
        for _ in range(3):
            journal.forget(["1"])
    store = die_in(store, tool(name="send")(dies), "c", call_id="3")
    for _ in range(3):
        with CallJournal(store, RUN) as journal:
            journal.forget(["1"])
            assert journal.call_sync(send, "b", call_id="2") == {"sent": "b"}
            assert [call.call_id for call in journal.in_doubt()] == ["3"]
    assert effects == {"a": 1, "b": 1, "c": 1}


# -- what goes wrong


@pytest.mark.parametrize("verb", ["write", "sync"])
def test_a_full_disk_stops_the_loop_whatever_it_catches_and_nothing_is_made_twice(
    verb: str,
) -> None:
    disk = SimulatedDisk()

    def loop(fails: bool) -> None:
        with CallJournal(disk_store(disk), RUN) as journal:
            for n in range(12):
                if n == 6 and fails:
                    disk.fail_at(verb, 0, errno.ENOSPC)
                try:
                    journal.call_sync(send, f"{n}", call_id=f"{n}")
                except Exception:
                    effects["swallowed"] += 1

    with pytest.raises((OSError, WriterFailedError)):
        loop(True)
    assert effects["swallowed"] == 0
    assert 6 <= sum(effects.values()) <= 7
    while True:
        try:
            loop(False)
            break
        except InDoubtError as exc:
            for call in exc.calls:
                made = call.idempotency_key in keys
                how = Resolution.outcome({"sent": "?"}) if made else Resolution.retry()
                disk_store(disk).run(RUN).resolve(call, how)
    assert effects == {f"{n}": 1 for n in range(12)}


def test_no_power_loss_takes_an_outcome_that_the_loop_had() -> None:
    for seed in range(40):
        disk = SimulatedDisk()
        journal = CallJournal(disk_store(disk), RUN)
        given = [journal.call_sync(send, f"{n}", call_id=f"{n}") for n in range(5)]
        left = disk.after_power_loss(seed)
        journal.close()
        with CallJournal(disk_store(left), RUN) as journal:
            again = [journal.call_sync(send, f"{n}", call_id=f"{n}") for n in range(5)]
        assert again == given
        assert effects == {f"{n}": 1 for n in range(5)}
        effects.clear()


def test_a_damaged_record_is_found_and_nothing_is_executed() -> None:
    store = disk_store()
    with CallJournal(store, RUN) as journal:
        for to in "abc":
            journal.call_sync(send, to, call_id=to)

    damage(store, lambda event: isinstance(event, CallReturned) and event.value == {"sent": "b"})
    with pytest.raises(DamagedRunError):
        CallJournal(store, RUN)
    assert effects == {"a": 1, "b": 1, "c": 1}


@pytest.mark.parametrize(
    "hit",
    [
        lambda event: isinstance(event, CallReturned) and event.value == {"sent": "b"},
        lambda event: isinstance(event, CallIntended) and event.call_id == "b",
    ],
)
def test_after_a_repair_a_call_that_may_be_lost_is_in_doubt_until_the_loop_is_further(
    hit: Callable[[Any], bool],
) -> None:
    store = disk_store()
    with CallJournal(store, RUN) as journal:
        for to in "abc":
            journal.call_sync(send, to, call_id=to)
    lose(store, hit)
    with pytest.raises(InDoubtError), CallJournal(store, RUN) as journal:
        assert journal.call_sync(send, "a", call_id="a") == {"sent": "a"}
        journal.call_sync(send, "b", call_id="b")
    assert effects == {"a": 1, "b": 1, "c": 1}
    [call] = store.run(RUN).status().in_doubt
    assert call.idempotency_key == keys[1]
    store.run(RUN).resolve(call, Resolution.outcome({"sent": "b"}))
    with CallJournal(store, RUN) as journal:
        assert journal.call_sync(send, "b", call_id="b") == {"sent": "b"}
        journal.forget()  # the loop has saved a checkpoint behind it
        assert journal.call_sync(send, "d", call_id="d") == {"sent": "d"}
    assert effects == {"a": 1, "b": 1, "c": 1, "d": 1}


def test_a_second_process_is_refused_until_the_first_lets_go(tmp_path: Path) -> None:
    script = (
        "import sys, time; from recovery.call_journal import CallJournal\n"
        f"journal = CallJournal({str(tmp_path)!r}, {RUN!r})\n"
        "print('open', flush=True); sys.stdin.readline(); journal.close(); print('closed')\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(LogLockedError):
            CallJournal(tmp_path, RUN)
        assert CheckpointStore(tmp_path).run(RUN).status().state == "running"
        print(file=other.stdin, flush=True)
        assert other.stdout.readline() == "closed\n"
    with CallJournal(tmp_path, RUN), pytest.raises(LogLockedError):
        CallJournal(tmp_path, RUN)
    CallJournal(tmp_path, RUN).close()


def test_ctrl_c_lets_go_and_leaves_the_call_in_doubt(tmp_path: Path) -> None:
    script = (
        "import time; from recovery.call_journal import CallJournal\n"
        "def slow():\n    print('begun', flush=True); time.sleep(60)\n"
        f"with CallJournal({str(tmp_path)!r}, {RUN!r}) as journal:\n"
        "    try: journal.call_sync(slow, call_id='1')\n"
        "    except Exception: pass\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "begun\n"
        os.kill(other.pid, signal.SIGINT)
        assert "KeyboardInterrupt" in other.communicate(timeout=60)[1]
    with CallJournal(tmp_path, RUN) as journal:
        assert [call.tool for call in journal.in_doubt()] == ["slow"]


def test_an_operator_is_shown_how_a_journal_goes_on(tmp_path: Path) -> None:
    journal = CallJournal(tmp_path, RUN)
    with pytest.raises(Died):
        journal.call_sync(dies, "a", call_id="1")
    journal.close()
    shown = CheckpointStore(tmp_path).run(RUN).status()
    assert (shown.state, shown.kind) == ("interrupted", "journal")
    commands = Commands(RUN, None).next(shown)
    key = keys[0][:16]
    assert [one.partition("   #")[0] for one in commands[:3]] == [
        f"recovery resolve run {key} {how}" for how in ("--outcome JSON", "--retry", "--fail TEXT")
    ]
    assert commands[3:] == ["# run its program again, which opens CallJournal('run')"]


def test_a_journal_that_is_closed_or_belongs_to_an_agent_is_refused(tmp_path: Path) -> None:
    with CallJournal(tmp_path, RUN) as journal:
        journal.call_sync(send, "a", call_id="1")
    for act in (
        lambda: journal.call_sync(send, "b", call_id="2"),
        lambda: asyncio.run(journal.call(send, "b", call_id="2")),
        journal.forget,
        journal.in_doubt,
    ):
        with pytest.raises(RecoveryError, match="is closed"):
            act()
    agent = RecoverableAgent(lambda run: 1, tmp_path)
    agent.run_with_recovery_sync("task", "agents")
    with pytest.raises(RecoveryError, match="is no journal"):
        CallJournal(tmp_path, "agents")
    assert CheckpointStore(tmp_path).run("agents").status().state == "finished"


def test_what_is_still_at_work_when_it_is_closed_is_in_doubt_and_records_nothing() -> None:
    store, go = disk_store(), threading.Event()

    def waits() -> str:
        go.wait(10)
        return "late"

    with ThreadPoolExecutor(1) as pool:
        journal = CallJournal(store, RUN)
        late = pool.submit(journal.call_sync, waits, call_id="1")
        while not recorded(store, CallIntended):
            time.sleep(0.005)
        journal.close()
        go.set()
        assert isinstance(late.exception(), Stop | RecoveryError)
    with CallJournal(store, RUN) as journal:
        assert [call.tool for call in journal.in_doubt()] == ["waits"]


def test_who_leaves_with_an_error_is_told_that_error_and_not_that_the_log_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A call beside it is about to commit, in a thread, when the log is closed.
    commit, close = JournalExecution.commit, EventLog.close
    at_it, closed, ended = threading.Event(), threading.Event(), threading.Event()

    def late(run: JournalExecution) -> None:
        at_it.set()
        closed.wait(10)
        try:
            commit(run)
        finally:
            ended.set()

    def closing(log: EventLog) -> None:
        close(log)
        closed.set()
        ended.wait(10)

    async def loop() -> BaseException | None:
        with pytest.raises(ZeroDivisionError), CallJournal(disk_store(), RUN) as journal:
            monkeypatch.setattr(JournalExecution, "commit", late)
            monkeypatch.setattr(EventLog, "close", closing)
            beside = asyncio.ensure_future(journal.call(send, "a", call_id="1"))
            await asyncio.to_thread(at_it.wait, 10)
            raise ZeroDivisionError
        journal.check()
        await asyncio.wait([beside])
        return beside.exception()

    assert isinstance(asyncio.run(loop()), LeftBehindError)
    assert not effects
