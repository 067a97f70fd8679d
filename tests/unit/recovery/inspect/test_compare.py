"""Comparing runs: what is a difference, what is none, and how it is told."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from eventlog.testing import SimulatedDisk
from recovery import (
    CheckpointStore,
    InDoubtError,
    RecoverableAgent,
    RecoveryError,
    Resolution,
    Run,
    SyncRun,
    register,
    tool,
)
from recovery.control.resolve import accept, resolve
from recovery.errors import DivergenceError, RunFailedError
from recovery.history.find_run import reader_of
from recovery.inspect.compare import compare
from recovery.inspect.outline import outline_run
from recovery.ops.fork import fork
from recovery.reports import Comparison
from recovery.stores.log_store import LogStore
from recovery.values.codec import BY_NAME
from tests.support.lives import Died

answers: dict[str, Any] = {}


@tool
def send(what: str, to: str = "ann", **more: Any) -> Any:
    answer = answers.get(what, {"sent": what, "text": "y" * 40})
    if isinstance(answer, BaseException):
        raise answer
    return answer


@tool
def both(what: str) -> list[Any]:
    return [send(f"{what} first"), send(f"{what} second")]


def agent(run: SyncRun) -> Any:
    run.call(send, "0 before")
    run.messages.append({"task": run.task})
    for step in run.steps():
        run.messages.append(run.call(send, f"{step} send", call_id=f"id-{step}"))
        run.state["steps"] = step
        run.call(both, f"{step} both")
        if step == 4:
            return [step, len(run.messages)]


@pytest.fixture
def store() -> CheckpointStore:
    answers.clear()
    return CheckpointStore()


def run(
    store: CheckpointStore,
    run_id: str,
    fn: Callable[..., Any] = agent,
    task: str = "t",
    every: int = 2,
) -> Any:
    return RecoverableAgent(fn, store, every).run_with_recovery_sync(task, run_id)["result"]


def found(comparison: Comparison) -> list[tuple[int, str, str, str, str]]:
    return [(one.step, one.what, one.where, one.a, one.b) for one in comparison.differences]


def test_a_run_is_like_itself_and_like_another_of_the_same(store):
    run(store, "a")
    run(store, "b")
    comparison = compare(store, "a", "b")
    assert comparison.alike
    assert (comparison.a.steps, comparison.a.calls, comparison.a.end) == (4, 17, "finished")
    assert str(comparison) == (
        "a: 4 steps, 17 calls, finished\nb: 4 steps, 17 calls, finished\nno difference"
    )
    assert compare(store.backend, "a", "a").alike


@pytest.mark.parametrize("at_step", [0, 1, 2, 3, None])
def test_a_fork_with_the_same_code_is_like_its_parent(store, at_step):
    run(store, "a")
    link = fork(store, "a", "b", at_step=at_step)
    run(store, "b")
    comparison = compare(store, "a", "b")
    assert comparison.alike, str(comparison)
    assert comparison.b.forked_from == link
    assert comparison.since == (0 if at_step in (0, 1) else 2)
    assert f"forked from a at the end of step {link.step} (LSN {link.lsn})" in str(comparison)
    backwards = compare(store, "b", "a")
    assert (backwards.alike, backwards.since) == (True, comparison.since)


def test_a_fork_that_has_not_run_is_behind(store):
    run(store, "a")
    fork(store, "a", "b", at_step=3)
    (steps, end) = compare(store, "a", "b").differences
    assert (steps.step, steps.what, steps.a, steps.b) == (4, "steps", "4 steps", "3 steps")
    assert (end.what, end.b, end.lsn_b) == ("end", "open", 0)


def test_arguments_differ_by_value_where_they_are_recorded_else_by_digest(store):
    def other(run: SyncRun) -> Any:
        run.call(send, "a", to="bob", call_id="x")
        run.call(send, "a" * 5000)
        run.call(send, "c", more={"deep": [1, {"n": 2}]})

    def one(run: SyncRun) -> Any:
        run.call(send, "a", call_id="x")
        run.call(send, "b" * 5000)
        run.call(send, "c", more={"deep": [1, {"n": 3}]})

    run(store, "a", one)
    run(store, "b", other)
    first, second, third = found(compare(store, "a", "b"))
    assert first[1:] == ("arguments", "send x args[1]", "(absent)", "'bob'")
    assert second[1:3] == ("arguments", "send")
    assert second[3].startswith("digest ") and second[3] != second[4]
    assert third[1:] == ("arguments", "send more.deep[1].n", "3", "2")


def test_what_one_alone_does_is_a_difference(store):
    def more(run: SyncRun) -> Any:
        run.call(both, "x")
        run.call(send, "more")

    def less(run: SyncRun) -> Any:
        run.call(both, "x")

    run(store, "a", more)
    run(store, "b", less)
    (one,) = compare(store, "a", "b").differences
    assert (one.what, one.where, one.a, one.b) == ("call", "send", "send('more')", "")
    assert one.lsn_a and not one.lsn_b
    (one,) = compare(store, "b", "a").differences
    assert (one.a, one.b) == ("", "send('more')")


def test_failures_doubt_and_ends_are_compared(store):
    run(store, "a")
    answers["3 send"] = ValueError("no")
    with pytest.raises(RunFailedError):
        run(store, "failed")
    answers["3 send"] = Died()
    with pytest.raises(Died):
        run(store, "dead")
    (outcome, *rest) = compare(store, "failed", "dead").differences
    assert (outcome.step, outcome.where) == (3, "send id-3")
    assert (outcome.a, outcome.b) == ("failed: 'builtins.ValueError: no'", "in doubt")
    assert [(one.what, one.b) for one in rest] == [("end", "open")]
    assert "failed: " in rest[0].a
    comparison = compare(store, "a", "failed")
    assert [one.what for one in comparison.differences] == [
        "outcome",
        "call",
        "messages",
        "steps",
        "end",
    ]
    with pytest.raises(InDoubtError) as caught:
        run(store, "dead")
    resolve(store, "dead", caught.value.calls[0].lsn, Resolution.outcome("by hand"))
    assert compare(store, "a", "dead").differences[0].b == "'by hand'"


def test_messages_tasks_and_states_are_compared(store):
    run(store, "a")
    run(store, "b", task="u")
    assert found(compare(store, "a", "b")) == [
        (0, "task", "", "'t'", "'u'"),
        (0, "messages", "", "messages[0:0] = [{'task': 't'}]", "messages[0:0] = [{'task': 'u'}]"),
    ]
    fork(store, "a", "changed", at_step=2, state={"steps": 9}, messages=["hello"])
    run(store, "changed")
    comparison = compare(store, "a", "changed")
    assert [(one.step, one.what, one.where) for one in comparison.differences] == [
        (2, "state", ".steps"),
        (2, "messages", "[0]"),
        (2, "messages", "[1]"),
        (2, "messages", "[2]"),
        (4, "end", "[1]"),
    ]
    assert [one.b for one in comparison.differences[1:4]] == ["'hello'", "(absent)", "(absent)"]
    fork(store, "a", "task", at_step=2, task="u")
    run(store, "task", task="u")
    assert [one.what for one in compare(store, "a", "task").differences] == ["task"]


def test_the_order_of_concurrent_calls_is_no_difference(store):
    def racing(late: str) -> Callable[..., Any]:
        async def one(run: Run, name: str) -> Any:
            await asyncio.sleep(0.02 if name == late else 0)
            return await run.call(send, name)

        async def fn(run: Run) -> Any:
            return await asyncio.gather(one(run, "x"), one(run, "y"))

        return fn

    run(store, "a", racing("x"))
    run(store, "b", racing("y"))
    assert compare(store, "a", "b").alike


def sends(*whats: str, die: bool = False) -> Callable[[SyncRun], Any]:
    """An agent that sends these, one after the other; ``step N`` begins a step."""

    def agent(run: SyncRun) -> Any:
        steps = iter(run.steps())
        for what in whats:
            if what.startswith("step"):
                next(steps)
            else:
                run.messages.append(run.call(send, what, to=f"to {what}"))
        if die:
            raise Died
        return "done"

    return agent


def accepted(
    store: CheckpointStore, old: Callable[[SyncRun], Any], new: Callable[[SyncRun], Any]
) -> Comparison:
    """Run ``a`` was begun by the old code and goes on with the new one, which has made ``b``."""
    with pytest.raises(Died):
        run(store, "a", old, every=9)
    with pytest.raises(DivergenceError):
        run(store, "a", new, every=9)
    accept(store, "a")
    assert run(store, "a", new, every=9) == run(store, "b", new, every=9) == "done"
    return both_ways(store, "a", "b")


def both_ways(store: CheckpointStore, a: str, b: str) -> Comparison:
    comparison, backwards = compare(store, a, b), compare(store, b, a)
    turned = [
        (step, what, where, there, here) for step, what, where, here, there in found(backwards)
    ]
    assert sorted(found(comparison)) == sorted(turned)
    return comparison


def test_a_call_that_was_dropped_and_is_made_again_is_no_difference(store):
    old = sends("step 1", "one", "two", "three", die=True)
    comparison = accepted(store, old, sends("step 1", "ONE", "two", "three"))
    # What the old code has done and the new one does not is done all the same, and said.
    (one,) = comparison.differences
    assert (one.step, one.what, one.where, one.b) == (1, "call", "send", "")
    assert one.a == "send('one', 'to one') (dropped)"
    assert one.lsn_a and not one.lsn_b
    assert (comparison.a.calls, comparison.b.calls) == (4, 3)


def test_a_dropped_call_stands_in_for_none_that_counts(store):
    accepted(store, sends("step 1", "one", die=True), sends("step 1", "two"))
    run(store, "c", sends("step 1", "three"))
    assert [one[1:] for one in found(both_ways(store, "a", "c")) if one[1] != "messages"][:2] == [
        ("call", "send", "send('one', 'to one') (dropped)", ""),
        ("arguments", "send args[0]", "'two'", "'three'"),
    ]


def test_a_dropped_call_that_is_known_to_be_made_again_counts(store):
    old, new = sends("one", "two"), sends("ONE", "two")
    answers["two"] = Died()
    with pytest.raises(Died):
        run(store, "a", old)
    with pytest.raises(InDoubtError) as caught:
        run(store, "a", old)
    resolve(store, "a", caught.value.calls[0].lsn, Resolution.retry())
    accept(store, "a")
    answers.clear()
    run(store, "a", new)
    run(store, "b", sends("ONE", "TWO"))
    assert [one[1:] for one in found(both_ways(store, "a", "b")) if one[1] != "messages"] == [
        ("call", "send", "send('one', 'to one') (dropped)", ""),
        ("arguments", "send args[0]", "'two'", "'TWO'"),
        ("arguments", "send args[1]", "'to two'", "'to TWO'"),
    ]


def test_what_was_dropped_is_told_with_what_was_made_inside_it(store):
    def old(run: SyncRun) -> Any:
        run.call(send, "old")
        run.call(both, "x")
        raise Died

    def new(run: SyncRun) -> Any:
        run.call(send, "new")
        run.call(both, "x")
        return "done"

    comparison = accepted(store, old, new)
    assert [one[2:] for one in found(comparison)] == [("send", "send('old') (dropped)", "")]
    assert (comparison.a.calls, comparison.b.calls) == (5, 4)


def test_steps_that_only_the_old_code_came_to_are_not_compared(store):
    old = sends("step 1", "one", "step 2", "two", "step 3", "three", die=True)
    comparison = accepted(store, old, sends("step 1", "one", "step 2"))
    assert [one[:4] for one in found(comparison)] == [
        (2, "call", "send", "send('two', 'to two') (dropped)")
    ]
    assert (comparison.a.steps, comparison.a.calls) == (2, 2)


def test_a_damaged_run_is_compared_as_far_as_it_can_be_read():
    disk = SimulatedDisk(seed=1)
    store = CheckpointStore(LogStore("runs", disk, "power"))
    run(store, "a")
    run(store, "b")
    (name,) = [name for name in disk.directories["runs/b"] if name.endswith(".seg")]
    file: Any = disk.directories["runs/b"][name]
    at = bytes(file.content).index(b"3 both second") + 3
    file.content[at] ^= 1
    comparison = compare(store, "a", "b")
    assert len(comparison.b.damage) == 1
    assert not comparison.a.damage
    assert "DAMAGE: segment 1" in str(comparison)
    assert {one.step for one in comparison.differences} == {3}


def test_side_by_side(store):
    run(store, "a")
    answers["3 send"] = {"sent": "a very long answer " * 9, "text": "y" * 40}
    fork(store, "a", "b", at_step=2)
    run(store, "b")
    lines = str(compare(store, "a", "b")).splitlines()
    assert lines[2:4] == [
        "compared from the end of step 2 on",
        "2 differences, the first in step 3:",
    ]
    columns = [line.index(name) for line, name in zip(lines[4:6], ("a", "'3 send'"), strict=True)]
    assert columns[0] == columns[1]
    assert lines[5].startswith("3     outcome send id-3.sent  '3 send' (LSN ")
    assert "'a very long answer a very .." in lines[5]
    assert lines[6].startswith("3     messages ")
    with pytest.raises(RecoveryError, match="there is no run 'c'"):
        compare(store, "a", "c")


class Money:
    """A type that is registered while runs are made, and not when they are compared."""

    def __init__(self, cents: int) -> None:
        self.cents = cents


@tool
def pay(price: Money) -> Money:
    return Money(price.cents + answers.get("tip", 0))


def paying(run: SyncRun) -> Any:
    for step in run.steps():
        run.state["paid"] = run.call(pay, Money(step))
        run.messages.append({"paid": run.state["paid"]})
        if step == 3:
            return run.state["paid"]


def test_runs_are_compared_without_the_types_in_them(store):
    register(Money, name="test.money", encode=lambda m: m.cents, decode=Money, frozen=True)
    try:
        RecoverableAgent(paying, store, 1).run_with_recovery_sync(Money(7), "a")
        fork(store, "a", "b", at_step=2, state={"paid": Money(9)}, messages=[Money(8)])
        RecoverableAgent(paying, store, 1).run_with_recovery_sync(Money(7), "b")
        answers["tip"] = 1
        RecoverableAgent(paying, store, 1).run_with_recovery_sync(Money(8), "c")
    finally:
        del BY_NAME["test.money"]
    comparison = compare(store, "a", "c")
    assert comparison.differences[0].what == "task"
    assert found(comparison)[:3] == [
        (0, "task", ".test.money", "7", "8"),
        (1, "outcome", "pay.test.money", "1", "2"),
        (
            1,
            "messages",
            "",
            "messages[0:0] = [{'paid': {'test.money': 1}}]",
            "messages[0:0] = [{'paid': {'test.money': 2}}]",
        ),
    ]
    assert found(both_ways(store, "a", "b"))[:4] == [
        (2, "state", ".paid.test.money", "2", "9"),
        (2, "messages", "[0].paid", "{'test.money': 1}", "(absent)"),
        (2, "messages", "[0].test.money", "(absent)", "8"),
        (2, "messages", "[1]", "{'paid': {'test.money': 2}}", "(absent)"),
    ]


def test_a_lost_message_is_like_nothing_but_itself():
    disk = SimulatedDisk(seed=1)
    store = CheckpointStore(LogStore("runs", disk, "power"))
    run(store, "a")
    run(store, "b")
    (name,) = [name for name in disk.directories["runs/b"] if name.endswith(".seg")]
    file: Any = disk.directories["runs/b"][name]
    file.content[bytes(file.content).index(b"2 send") + 2] ^= 1
    assert compare(store, "b", "b").alike
    comparison = both_ways(store, "a", "b")
    assert not comparison.alike and comparison.b.damage


def test_the_values_of_a_run_are_not_kept(store):
    """Memory is for what was called, not for what came of it."""
    answers.update(
        {
            f"{step} {which}": "x" * 500_000 + str(step)
            for step in range(1, 5)
            for which in ("send", "both first")
        }
    )
    run(store, "a")
    run(store, "b")
    with reader_of(store, "a") as one, reader_of(store, "b") as other:
        outline_run(one, "a")  # what is imported and cached the first time
        tracemalloc.start()
        told = outline_run(one, "a"), outline_run(other, "b")
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert told[0].reached == told[1].reached == 4
    assert held < 200_000
