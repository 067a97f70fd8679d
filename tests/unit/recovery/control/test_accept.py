"""Code that diverged goes on when somebody accepts it, and its history counts from there."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from recovery import (
    CheckpointStore,
    RecoverableAgent,
    RecoveryError,
    Resolution,
    Run,
    SyncRun,
    tool,
)
from recovery.control.resolve import accept, resolve
from recovery.errors import DivergenceError
from recovery.journal.encoding import decode
from recovery.journal.events import DivergenceAccepted, HistoryDropped
from recovery.ops.fork import fork
from tests.support.lives import Died, after_death, die_in, disk_store, executed, run, run_sync, send

pytestmark = pytest.mark.usefixtures("fresh")


@tool
def dies(what: str) -> str:
    executed[what] += 1
    if executed[what] == 1:
        raise Died
    return what


def resume(agent: Callable[[SyncRun], Any], store: CheckpointStore, every: int = 3) -> Any:
    return run_sync(agent, store, checkpoint_every_n=every)["result"]


def died(
    agent: Callable[[SyncRun], Any], store: CheckpointStore, every: int = 3
) -> CheckpointStore:
    with pytest.raises(Died):
        resume(agent, store, every)
    return after_death(store)


def steps(what: Callable[[int], list[str]], die_at: tuple[int, ...] = (), last: int = 4) -> Any:
    """An agent that sends in each step what it is told, and keeps it."""

    def agent(run: SyncRun) -> Any:
        run.messages.append(run.call(send, "hello"))
        for step in run.steps():
            run.state["at"] = run.now()
            for one in what(step):
                run.messages.append(run.call(send, f"{one} {step}"))
            run.state["done"] = step
            if step in die_at and not executed["died", step]:
                executed["died", step] += 1
                raise Died
            if step == last:
                return list(run.messages)
        raise AssertionError

    return agent


def old(step: int) -> list[str]:
    return ["a", "b"]


CHANGED = {
    "other arguments": lambda step: ["a", "B"],
    "one call less": lambda step: ["a"],
    "one call more, in front": lambda step: ["new", "a", "b"],
    "all different": lambda step: ["x"],
}


@pytest.mark.parametrize("what", CHANGED)
@pytest.mark.parametrize("every", [1, 9])
def test_the_new_code_goes_on_and_every_later_resumption_with_it(what: str, every: int) -> None:
    store = died(steps(old, (2,)), disk_store(), every)
    before = Counter(executed)
    new = steps(CHANGED[what], (3,))
    with pytest.raises(DivergenceError):
        resume(new, store, every)
    assert executed == before
    accept(store, "run", who="me", why="fixed the prompt")
    store = died(new, store, every)  # it goes on, and dies again, after the divergence
    expected = [
        f"sent {one} {step}"
        for step in (1, 2, 3, 4)
        for one in (old if (every, step) == (1, 1) else CHANGED[what])(step)
    ]
    found = resume(new, store, every)
    assert found == ["sent hello", *expected]
    again = {
        one: count for one, count in executed.items() if not isinstance(one, tuple) and count > 1
    }
    assert not again, "what was dropped and is asked for again is served"
    assert resume(new, store, every) == found


def test_what_the_new_code_does_as_the_old_one_is_served() -> None:
    store = died(steps(old, (2,)), disk_store(), 9)
    new = steps(lambda step: ["a", "b"] if step == 1 else ["a", "c"])
    accept(store, "run")
    resume(new, store, 9)
    assert executed["a 1"] == executed["b 1"] == executed["a 2"] == executed["hello"] == 1


def test_the_old_code_diverges_from_then_on() -> None:
    store = died(steps(old, (2,)), disk_store(), 9)
    accept(store, "run")
    store = died(steps(lambda step: ["x"], (3,)), store, 9)
    with pytest.raises(DivergenceError):
        resume(steps(old), store, 9)


def test_it_holds_for_one_divergence() -> None:
    store = died(steps(old, (2,)), disk_store(), 9)
    accept(store, "run")
    store = died(steps(lambda step: ["x"], (3,)), store, 9)
    with pytest.raises(DivergenceError):
        resume(steps(lambda step: ["y"]), store, 9)
    accept(store, "run")
    assert resume(steps(lambda step: ["y"]), store, 9)[-1] == "sent y 4"


@pytest.mark.parametrize("greeted", [True, False])
def test_code_before_the_first_step_may_diverge(greeted: bool) -> None:
    store = died(steps(old, (2,)), disk_store(), 1)

    def new(run: SyncRun) -> Any:
        if greeted:
            run.messages.append(run.call(send, "good morning"))
        for step in run.steps():
            run.messages.append(run.call(send, f"c {step}"))
            if step == 3 and not executed["died again"]:
                executed["died again"] += 1
                raise Died
            if step == 4:
                return list(run.messages)

    with pytest.raises(DivergenceError):
        resume(new, store, 1)
    accept(store, "run")
    store = died(new, store, 1)
    found = resume(new, store, 1)
    # The conversation is that of the checkpoint, which the old code had taken; and so is what was
    # sent before the loop, by whatever words.
    assert found[:3] == ["sent hello", "sent a 1", "sent b 1"]
    assert not executed["good morning"]


@pytest.mark.parametrize("beside", ["a task", "the code before the loop"])
def test_what_was_dropped_of_the_time_before_the_loop_stays_so_behind_a_checkpoint(
    beside: str,
) -> None:
    def agent_of(word: str, die_at: int) -> Any:
        async def greets(run: Run) -> None:
            await run.call(send, word)

        async def agent(run: Run) -> str:
            task = asyncio.create_task(greets(run))
            if beside == "the code before the loop":
                await task
            async for step in run.steps():
                await run.call(send, f"step {step}")
                if step == die_at:
                    raise Died
                if step == 5:
                    await task
                    return word
            raise AssertionError

        return agent

    store = die_in(agent_of("hello", 2), disk_store(), checkpoint_every_n=9)
    with pytest.raises(DivergenceError):
        run(agent_of("good morning", 0), store, checkpoint_every_n=1)
    accept(store, "run", why="more polite")
    store = die_in(agent_of("good morning", 4), store, checkpoint_every_n=1)
    assert run(agent_of("good morning", 0), store, checkpoint_every_n=1)["result"]
    assert set(executed.values()) == {1} and len(executed) == 7


def test_an_agent_that_returns_early_may() -> None:
    store = died(steps(old, (2,)), disk_store(), 9)

    def new(run: SyncRun) -> str:
        return "done"

    accept(store, "run")
    assert resume(new, store, 9) == "done"


def test_a_call_in_doubt_is_not_forgotten() -> None:
    def first(run: SyncRun) -> Any:
        return run.call(dies, "pay 10")

    def second(run: SyncRun) -> Any:
        return run.call(dies, "pay 11")

    executed["pay 11"] = 1  # so that this one lives
    store = died(first, disk_store())
    accept(store, "run")
    with pytest.raises(DivergenceError, match="is in doubt, and would be forgotten") as caught:
        resume(second, store)
    assert executed["pay 11"] == 1
    resolve(store, "run", caught.value.in_doubt, Resolution.outcome("paid"))
    assert resume(second, store) == "pay 11"


def test_a_read_in_doubt_keeps_nobody_from_going_on() -> None:
    """Whoever needs it makes it again: nothing is there to be found out or resolved."""

    @tool(after_crash="retry")
    def reads(page: str) -> str:
        executed[page] += 1
        if page == "old":
            raise Died
        return page

    def first(run: SyncRun) -> Any:
        run.call(send, "a")
        return run.call(reads, "old")

    def second(run: SyncRun) -> Any:
        run.call(send, "b")
        return run.call(reads, "new")

    store = died(first, disk_store())
    accept(store, "run")
    assert resume(second, store) == "new"
    assert executed["a"] == executed["b"] == executed["old"] == 1


def test_the_record_says_who_and_what() -> None:
    store = died(steps(old, (2,)), disk_store(), 9)
    accept(store, "run", who="me", why="because")
    resume(steps(lambda step: ["x"]), store, 9)
    reader = store.backend.read("run")
    assert reader is not None
    with reader:
        records = {record.lsn: record for record in reader.records()}
    found = [decode(record) for record in records.values()]
    assert DivergenceAccepted("me", "because") in found
    (dropped,) = [event for event in found if isinstance(event, HistoryDropped)]
    assert {records[lsn].kind for lsn in dropped.records} >= {"call", "messages"}


def test_the_error_names_the_choices() -> None:
    store = died(steps(old, (2,)), disk_store(), 9)
    with pytest.raises(DivergenceError) as caught:
        resume(steps(lambda step: ["x"]), store, 9)
    text = str(caught.value)
    for choice in (
        "accept  store.run('run').accept(",
        "fork    store.run('run').fork(",
        "abort   store.run('run').cancel()",
    ):
        assert choice in text


def test_what_cannot_be_accepted() -> None:
    store = disk_store()
    with pytest.raises(RecoveryError, match="there is no run"):
        accept(store, "run")
    resume(steps(old), store)
    with pytest.raises(RecoveryError, match="has ended"):
        accept(store, "run")


@pytest.mark.parametrize("at_step", [None, 1, 2])
@pytest.mark.parametrize("every", [1, 9])
def test_a_fork_knows_what_was_dropped(at_step: int | None, every: int) -> None:
    store = died(steps(old, (2,)), disk_store(), every)
    accept(store, "run")
    new = steps(lambda step: ["x", "b"], (3,))  # the second call is one of those dropped
    store = died(new, store, every)
    executed_before = Counter(executed)
    fork(store, "run", "copy", at_step=at_step)
    of = RecoverableAgent(new, store, every)
    found = of.run_with_recovery_sync("task", "copy")["result"]
    first = ["sent a 1", "sent b 1"] if every == 1 else ["sent x 1", "sent b 1"]
    assert found[:3] == ["sent hello", *first]
    assert found[3:5] == ["sent x 2", "sent b 2"]
    anew = executed - executed_before
    kept = 3 if at_step is None else at_step
    assert not [one for one in anew if isinstance(one, str) and int(one.split()[1]) <= kept], anew
    assert resume(new, store, every) == found
