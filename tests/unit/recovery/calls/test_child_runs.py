"""Runs that start runs."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import eventlog.write.log
from eventlog.testing import SimulatedDisk
from recovery import (
    CheckpointStore,
    ChildFailedError,
    InDoubtError,
    PermanentError,
    RecoverableAgent,
    RecoveryError,
    Resolution,
    Run,
    SyncRun,
    tool,
)
from recovery.agent.run import execution_of
from recovery.agent.undo_run import undo
from recovery.calls import child_slots
from recovery.calls.child_slots import ChildSlots
from recovery.control.cancel import _end_child, cancel
from recovery.control.relatives import children, is_child, parent
from recovery.control.resolve import resolve
from recovery.control.send import signal
from recovery.errors import (
    ChildParkedError,
    RunCancelledError,
    RunFailedError,
    StoppedError,
    TaskMismatchError,
    WaitingError,
)
from recovery.history.load import load
from recovery.inspect.states import OPEN
from recovery.inspect.status import status
from recovery.journal.encoding import decode, encode
from recovery.journal.events import CallAbandoned, ChildStarted, RunCancelled, RunStarted
from recovery.ops.fork import fork
from recovery.reports import ChildRun
from tests.support.lives import (
    Died,
    Disk,
    die_in,
    disk_store,
    executed,
    recorded,
    run,
    run_sync,
    send,
)

pytestmark = pytest.mark.usefixtures("fresh", "clock", "in_order")


async def sub(run: Run) -> str:
    return str(await run.call(send, run.task))


def plain_sub(run: SyncRun) -> str:
    return str(run.call(send, run.task))


def test_a_child_is_a_run_of_its_own_linked_both_ways() -> None:
    async def agent(run: Run) -> Any:
        return await run.child(sub, "otters", name="first")

    store = CheckpointStore()
    assert run(agent, store)["result"] == "sent otters"
    (child,) = children(store, "run")
    assert child == ChildRun(child.run_id, "sub", "first", 2, "finished")
    assert child.run_id.startswith("run+sub-")
    link = parent(store, child.run_id)
    assert link is not None
    assert (link.run_id, link.lsn) == ("run", 2)
    assert parent(store, "run") is None
    assert store.backend.run_ids() == ["run", child.run_id]
    assert run(agent, store)["result"] == "sent otters"
    assert executed == {"otters": 1}


@pytest.mark.parametrize("child", [sub, plain_sub])
def test_plain_parents_and_async_ones_have_children_of_either_kind(child: Any) -> None:
    async def agent(run: Run) -> Any:
        return await asyncio.gather(*(run.child(child, i) for i in range(3)))

    def plain(run: SyncRun) -> Any:
        return [run.child(child, i) for i in range(3)]

    store = CheckpointStore()
    assert run(agent, store)["result"] == ["sent 0", "sent 1", "sent 2"]
    assert run_sync(plain, CheckpointStore())["result"] == ["sent 0", "sent 1", "sent 2"]
    assert executed == {0: 2, 1: 2, 2: 2}


# -- crashes


def test_equal_children_are_told_apart_by_their_order_and_others_by_name() -> None:
    async def agent(run: Run) -> Any:
        await run.child(sub, "x")
        await run.child(sub, "x")
        await run.child(sub, "x", name="third")

    store = CheckpointStore()
    run(agent, store)
    assert executed == {"x": 3}
    assert len({child.run_id for child in children(store, "run")}) == 3


def test_run_ids_of_childrens_children_are_valid_however_deep() -> None:
    async def a_rather_long_name_for_an_agent_function(run: Run) -> Any:
        if run.task == 0:
            return [run.run_id]
        return [
            run.run_id,
            *await run.child(a_rather_long_name_for_an_agent_function, run.task - 1),
        ]

    async def agent(run: Run) -> Any:
        return await run.child(a_rather_long_name_for_an_agent_function, 7)

    store = CheckpointStore()
    ids = run(agent, store)["result"]
    assert len(set(ids)) == 8
    assert max(map(len, ids)) == 128
    assert all(one.startswith("run+a_rather_long_name") for one in ids)
    assert sorted(store.backend.run_ids()) == sorted(["run", *ids])
    assert [child.run_id for child in children(store, ids[5])] == [ids[6]]
    link = parent(store, ids[6])
    assert link is not None and link.run_id == ids[5]


def test_names_of_agents_that_no_run_id_can_have() -> None:
    store = CheckpointStore()

    def agent(run: SyncRun) -> Any:
        return run.task

    agent.__name__ = "äh/../x"
    assert run_sync(lambda run: run.child(agent, 1), store)["result"] == 1
    assert children(store, "run")[0].run_id.startswith("run+_h_.._x-")


# -- children that fail


class GiveUpError(PermanentError):
    pass


async def give_up(run: Run) -> None:
    executed["gave up"] += 1
    raise GiveUpError("no use")


def test_a_failed_child_is_an_outcome_that_the_parent_may_handle() -> None:
    seen: list[Any] = []

    async def agent(run: Run) -> str:
        try:
            await run.child(give_up, "task")
        except ChildFailedError as exc:
            seen.append((str(exc), exc.run_id, exc.type_name, exc.message, exc.call))
        if len(seen) == 1:
            raise ConnectionError("lost")
        return "handled"

    store = CheckpointStore()
    assert run(agent, store)["result"] == "handled"
    assert seen[0] == seen[1]
    (child,) = children(store, "run")
    assert child.state == "failed"
    name = f"{__name__}.GiveUpError"
    assert seen[0] == (
        f"child run {child.run_id!r} failed: {name}: no use",
        child.run_id,
        name,
        "no use",
        0,
    )
    assert executed == {"gave up": 1}


def test_a_child_whose_error_is_huge_still_fails_as_a_child() -> None:
    async def child(run: Run) -> None:
        raise PermanentError("\N{OTTER}" * 100_000)

    async def agent(run: Run) -> int:
        try:
            await run.child(child, "task")
        except ChildFailedError as exc:
            return len(exc.message)
        return 0

    assert run(agent, CheckpointStore())["result"] == 4000


@tool
def flaky(what: str) -> str:
    executed[what] += 1
    if executed[what] == 1:
        raise ValueError(f"{what} failed")
    return f"{what} done"


async def uses_flaky(run: Run) -> str:
    return f"child: {await run.call(flaky, 'flaky')}"


async def hopes(run: Run) -> str:
    await run.call(send, "before")
    return f"parent: {await run.child(uses_flaky, 'task')}"


async def hopes_twice(run: Run) -> str:
    return f"top: {await run.child(hopes, 'task')}"


def failed_of(run_id: str, store: CheckpointStore, agent: Any) -> RunFailedError:
    with pytest.raises(RunFailedError) as failed:
        asyncio.run(RecoverableAgent(agent, store).run_with_recovery("task", run_id))
    return failed.value


@pytest.mark.parametrize("how", ["retry", "outcome", "fail"])
def test_settling_the_failed_call_inside_a_child_lets_both_go_on(how: str) -> None:
    store = CheckpointStore()
    for _ in range(2):
        failure = failed_of("run", store, hopes_twice)
        assert "child" in failure.message
        assert executed == {"before": 1, "flaky": 1}
    (middle,) = children(store, "run")
    (inner,) = children(store, middle.run_id)
    lsn = failed_of(inner.run_id, store, uses_flaky).call
    resolution = {
        "retry": Resolution.retry(),
        "outcome": Resolution.outcome("given"),
        "fail": Resolution.fail("give up"),
    }[how]
    resolve(store, inner.run_id, lsn, resolution)
    if how == "fail":
        assert "give up" in failed_of("run", store, hopes_twice).message
    else:
        expected = {"retry": "flaky done", "outcome": "given"}[how]
        assert run(hopes_twice, store)["result"] == f"top: parent: child: {expected}"
    assert executed == {"before": 1, "flaky": 1 + (how == "retry")}


@pytest.mark.parametrize("is_another_there", [False, True])
@pytest.mark.parametrize("gone", ["the child", "the child's child"])
def test_the_failure_of_a_child_whose_log_is_gone_stands(gone: str, is_another_there: bool) -> None:
    store = CheckpointStore()
    failure = failed_of("run", store, hopes_twice)
    (middle,) = children(store, "run")
    (inner,) = children(store, middle.run_id)
    lost = middle.run_id if gone == "the child" else inner.run_id
    drop(store, lost)
    if is_another_there:
        RecoverableAgent(lambda run: None, store).run_with_recovery_sync("task", lost)
    assert failed_of("run", store, hopes_twice).message == failure.message
    assert executed == {"before": 1, "flaky": 1}


def test_retrying_the_call_of_the_parent_retries_what_failed_in_the_child() -> None:
    store = CheckpointStore()
    failure = failed_of("run", store, hopes_twice)
    resolve(store, "run", failure.call, Resolution.retry())
    assert run(hopes_twice, store)["result"] == "top: parent: child: flaky done"
    assert executed == {"before": 1, "flaky": 2}


def test_a_retry_from_above_counts_for_one_failure() -> None:
    @tool
    def broken() -> None:
        executed["broken"] += 1
        raise ValueError("broken")

    async def child(run: Run) -> None:
        await run.call(broken)

    async def agent(run: Run) -> None:
        await run.child(child, "task")

    store = CheckpointStore()
    failure = failed_of("run", store, agent)
    for tries in (2, 3):
        resolve(store, "run", failure.call, Resolution.retry())
        for _ in range(2):
            failure = failed_of("run", store, agent)
            assert executed == {"broken": tries}


def test_a_retry_from_above_that_a_crash_hides_still_counts_once() -> None:
    disk = SimulatedDisk()
    before: list[SimulatedDisk] = []

    @tool
    def broken() -> None:
        executed["broken"] += 1
        before.append(disk.after_process_death())
        raise ValueError("broken")

    async def child(run: Run) -> None:
        await run.call(broken)

    async def agent(run: Run) -> None:
        await run.child(child, "task")

    store = CheckpointStore(Disk(disk))
    failure = failed_of("run", store, agent)
    resolve(store, "run", failure.call, Resolution.retry())
    failed_of("run", store, agent)
    # The process died when the failure was in the child's log, and not yet in the parent's.
    after = disk.after_process_death()
    after.directories["home/run"] = before[1].directories["home/run"]
    failed_of("run", CheckpointStore(Disk(after)), agent)
    assert executed == {"broken": 2}


def test_a_failure_that_was_handled_stands_whatever_becomes_of_the_child() -> None:
    async def agent(run: Run) -> str:
        try:
            return str(await run.child(uses_flaky, "task"))
        except ChildFailedError:
            await run.call(send, "sorry")
            if run.recovery_count == 0:
                raise ConnectionError("lost") from None
            return "sorry"

    store = CheckpointStore()
    with pytest.raises(ConnectionError):
        run(agent, store, max_recoveries=0)
    (child,) = children(store, "run")
    resolve(
        store, child.run_id, failed_of(child.run_id, store, uses_flaky).call, Resolution.retry()
    )
    assert run(agent, store)["result"] == "sorry"
    asyncio.run(RecoverableAgent(uses_flaky, store).run_with_recovery("task", child.run_id))
    assert executed == {"flaky": 2, "sorry": 1}


# -- children that cannot go on


def test_a_parked_child_parks_its_parent_when_all_others_have_ended() -> None:
    doubtful = True

    async def child(run: Run) -> Any:
        if run.task == 3 and doubtful:
            raise Died
        for i in range(5):
            await asyncio.sleep(0)
            await run.call(send, f"{run.task}.{i}")
        return run.task

    @tool
    async def dies() -> str:
        if doubtful:
            raise Died
        return "went well"

    async def doubt(run: Run) -> Any:
        return await run.call(dies)

    async def agent(run: Run) -> Any:
        first = asyncio.gather(*(run.child(child, i) for i in range(3)))
        return [await run.child(doubt, "x"), await first]

    store = CheckpointStore()
    with pytest.raises(Died):
        run(agent, store)
    doubtful = False
    with pytest.raises(ChildParkedError) as parked:
        run(agent, store)
    assert [executed[f"{i}.4"] for i in range(3)] == [1, 1, 1]
    ((run_id, error),) = parked.value.children
    assert isinstance(error, InDoubtError)
    assert "dies()" in str(parked.value) and run_id in str(parked.value)
    (call,) = error.calls
    assert call.run_id == run_id
    assert Counter(one.state for one in children(store, "run")) == {"finished": 3, "open": 1}
    resolve(store, run_id, call.lsn, Resolution.outcome("happened"))
    assert run(agent, store)["result"] == ["happened", [0, 1, 2]]
    assert max(executed.values()) == 1


def test_a_childs_own_error_parks_the_parent_and_is_no_outcome() -> None:
    broken = True

    async def child(run: Run) -> str:
        await run.call(send, "once")
        if broken:
            raise KeyError("a bug")
        return "fixed"

    async def agent(run: Run) -> Any:
        try:
            return await run.child(child, "task")
        except Exception:
            return "swallowed"

    store = CheckpointStore()
    with pytest.raises(ChildParkedError, match="KeyError: 'a bug'"):
        run(agent, store)
    broken = False
    assert run(agent, store)["result"] == "fixed"
    assert executed == {"once": 1}


def test_a_child_that_sleeps_by_itself_gets_to_its_end_before_its_parent_parks() -> None:
    async def fails(run: Run) -> None:
        raise OSError

    async def sleeps(run: Run) -> None:
        await asyncio.sleep(0.3)
        await run.call(send, "slept")

    async def agent(run: Run) -> None:
        await asyncio.gather(run.child(fails, "a"), run.child(sleeps, "b"))

    with pytest.raises(ChildParkedError):
        run(agent, CheckpointStore(), max_recoveries=0)
    assert executed == {"slept": 1}


def test_a_child_parks_its_parent_when_a_tool_beside_it_only_waits_any_more() -> None:
    async def agent(run: Run) -> Any:
        async def both() -> Any:
            return await asyncio.gather(run.call(send, "quick"), run.wait_for("go"))

        return await asyncio.gather(awaits_stuck(run), run.call(tool(after_crash="retry")(both)))

    store = CheckpointStore()
    parked_by(store, agent)
    executed["fixed"] = 1
    signal(store, "run", "go", 7)
    assert run(agent, store)["result"] == ["done", ["sent quick", 7]]
    assert executed == {"in the child": 1, "fixed": 1, "quick": 1}


async def goes_on(run: Run) -> Any:
    """What another child does beside one that is stuck: ``run.task`` says what."""

    @tool(after_crash="retry")
    async def works(seconds: float) -> str:
        await run.call(send, "begins")
        await asyncio.sleep(seconds)
        return str(await run.call(send, "worked"))

    match run.task:
        case "waits":
            return await run.wait_for("go")
        case "works":
            return await run.call(works, 30)
        case "works and waits":
            return await asyncio.gather(run.call(works, 30), run.wait_for("go"))
        case "waits inside a call":
            return await run.call(tool(after_crash="retry")(run.wait_for), "go")
        case "its child waits":
            return await run.child(goes_on, "waits")
        case "its child works":
            return await run.child(goes_on, "works")
        case "one child waits and one works":
            return await asyncio.gather(
                run.child(goes_on, "waits"), run.child(goes_on, "works and waits")
            )


@pytest.mark.parametrize(
    "what",
    [
        "waits",
        "works",
        "works and waits",
        "waits inside a call",
        "its child waits",
        "its child works",
        "one child waits and one works",
    ],
)
def test_a_stuck_child_parks_the_parent_when_all_others_wait_or_have_ended(what: str) -> None:
    async def agent(run: Run) -> Any:
        return await asyncio.gather(awaits_stuck(run), run.child(goes_on, what))

    store = CheckpointStore()
    parked_by(store, agent)
    assert executed["worked"] == ("works" in what), "it had time to get to its end"
    executed["fixed"] = 1
    for run_id in store.backend.run_ids():
        if run_id != "run" and status(store, run_id).state != "finished":
            signal(store, run_id, "go", 7)
    assert run(agent, store)["result"][0] == "done"
    assert executed["worked"] == ("works" in what)


def test_a_parked_child_that_its_parent_gives_up_is_forgotten() -> None:
    async def agent(run: Run) -> Any:
        beside = asyncio.create_task(run.call(tool(after_crash="retry")(asyncio.sleep), 20))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                await awaits_stuck(run)
        await beside
        return await run.child(stuck, "other", max_recoveries=0)

    store = CheckpointStore()
    ((_, error),) = parked_by(store, agent).children
    assert isinstance(error, KeyError)
    assert [one.state for one in children(store, "run")] == ["cancelled", "open"]


def test_a_side_effect_of_a_child_that_does_not_end_with_its_parent_is_cancelled() -> None:
    @tool
    async def endless() -> None:
        try:
            await asyncio.sleep(10_000)
        finally:
            executed["cancelled"] += 1

    async def child(run: Run) -> None:
        await run.call(endless)

    async def agent(run: Run) -> None:
        left = asyncio.create_task(run.child(child, "task"))
        await asyncio.sleep(1)
        raise ConnectionError(f"lost {left.done()}")

    store = CheckpointStore()

    async def outer() -> int:
        with pytest.raises(ConnectionError, match="lost False"):
            await RecoverableAgent(agent, store, max_recoveries=0).run_with_recovery("task", "run")
        return executed["cancelled"]

    assert asyncio.run(outer()) == 1
    (made,) = children(store, "run")
    assert [call.tool for call in status(store, made.run_id).in_doubt] == ["endless"]


def test_the_end_of_another_run_is_an_error_of_the_child_like_any() -> None:
    async def asks_another(run: Run) -> None:
        raise RunFailedError("another", ("OSError", "gone", ""), 0)

    async def agent(run: Run) -> None:
        await run.child(asks_another, "a")

    with pytest.raises(ChildParkedError, match="'another' failed"):
        run(agent, CheckpointStore(), max_recoveries=0)


# -- children and their logs


def parked_by(store: CheckpointStore, agent: Any, **options: Any) -> ChildParkedError:
    with pytest.raises(ChildParkedError) as parked:
        run(agent, store, **options)
    return parked.value


async def stuck(run: Run) -> str:
    await run.call(send, "in the child")
    if not executed["fixed"]:
        raise KeyError("a bug")
    return "done"


async def awaits_stuck(run: Run) -> Any:
    return await run.child(stuck, "task", max_recoveries=0)


def drop(store: CheckpointStore, run_id: str) -> None:
    """Delete a run, as a person would."""
    backend: Any = store.backend
    del backend.files.directories[backend._path(run_id)]


@pytest.mark.parametrize("is_empty", [False, True])
def test_a_child_whose_log_is_gone_is_not_started_again(is_empty: bool) -> None:
    store = CheckpointStore()
    parked_by(store, awaits_stuck)
    (child,) = children(store, "run")
    drop(store, child.run_id)
    if is_empty:  # somebody has put an empty one in its place
        store.claim(child.run_id).close()
    for _ in range(2):
        parked = parked_by(store, awaits_stuck)
        assert "its log is gone" in str(parked)
        key = status(store, "run").calls[0].idempotency_key
        assert f"store.run('run').resolve({key!r}, " in str(parked)
    assert executed == {"in the child": 1}
    assert (store.backend.run_ids() == ["run"]) is not is_empty
    executed["fixed"] = 1
    resolve(store, "run", child.call, Resolution.retry())
    assert run(awaits_stuck, store)["result"] == "done"
    assert executed == {"in the child": 2, "fixed": 1}


def test_another_run_under_the_id_of_a_child_is_left_alone() -> None:
    store = CheckpointStore()
    parked_by(store, awaits_stuck)
    (child,) = children(store, "run")
    drop(store, child.run_id)
    other = RecoverableAgent(sub, store).run_with_recovery_sync("task", child.run_id)
    assert other["result"] == "sent task"
    assert "is no child of call" in str(parked_by(store, awaits_stuck))
    assert executed == {"in the child": 1, "task": 1}


def test_a_child_of_the_same_call_with_another_task_is_left_alone() -> None:
    store = CheckpointStore()
    parked_by(store, awaits_stuck)
    (child,) = children(store, "run")
    link = parent(store, child.run_id)
    assert link is not None
    drop(store, child.run_id)
    with store.claim(child.run_id) as log:
        log.append(*encode(RunStarted(child.run_id, "other", "uid", link.packable())))
    assert "is about another task" in str(parked_by(store, awaits_stuck))
    assert executed == {"in the child": 1}


def test_a_parent_that_was_begun_anew_has_other_children() -> None:
    async def agent(run: Run) -> Any:
        return await run.child(sub, "x")

    store = CheckpointStore()
    run(agent, store)
    before = set(store.backend.run_ids())
    drop(store, "run")
    run(agent, store)
    assert len(set(store.backend.run_ids()) - before) == 1
    assert executed == {"x": 2}


def test_a_child_can_be_run_by_itself_while_its_parent_is_not() -> None:
    store = CheckpointStore()
    parked_by(store, awaits_stuck)
    (child,) = children(store, "run")
    with pytest.raises(TaskMismatchError):
        RecoverableAgent(stuck, store).run_with_recovery_sync("other", child.run_id)
    executed["fixed"] = 1
    alone = RecoverableAgent(stuck, store).run_with_recovery_sync("task", child.run_id)
    assert alone["result"] == "done"
    assert run(awaits_stuck, store)["result"] == "done"
    assert executed == {"in the child": 1, "fixed": 1}


# -- what can be a child


def test_a_recoverable_agent_as_child_has_its_own_options() -> None:
    store, steps = CheckpointStore(), 4

    async def child(run: Run) -> Any:
        async for step in run.steps():
            if step == steps:
                return step

    every = RecoverableAgent(child, store, 1)

    async def agent(run: Run) -> Any:
        a = await run.child(every, "task")
        with pytest.raises(TypeError, match="options"):
            await run.child(every, "task", max_recoveries=1)
        b = await run.child(child, "task", checkpoint_every_n=2)
        return a, b

    run(agent, store)
    first, second = (one.run_id for one in children(store, "run"))
    for child_id, expected in ((first, 3), (second, 1)):
        with store.backend.read(child_id) as reader:  # type: ignore[union-attr]
            assert len(list(reader.snapshots())) == expected


def test_a_child_lives_in_the_store_of_its_parent(tmp_path: Path) -> None:
    async def agent(run: Run) -> Any:
        return await run.child(RecoverableAgent(sub, CheckpointStore()), "x")

    with pytest.raises(ValueError, match="store"):
        run(agent, CheckpointStore(), max_recoveries=0)
    child = RecoverableAgent(sub, CheckpointStore(tmp_path))

    async def good(run: Run) -> Any:
        return await run.child(child, "x")

    assert run(good, CheckpointStore(tmp_path))["result"] == "sent x"
    assert executed == {"x": 1}


def test_what_is_no_agent_is_refused() -> None:
    async def agent(run: Run) -> Any:
        await run.child("researcher", "x")  # type: ignore[call-overload]

    with pytest.raises(TypeError, match="agent_fn"):
        run(agent, CheckpointStore(), max_recoveries=0)


def test_a_plain_parent_in_a_loop_cannot_have_an_async_child() -> None:
    async def main() -> None:
        RecoverableAgent(
            lambda run: run.child(sub, "x"), CheckpointStore(), max_recoveries=0
        ).run_with_recovery_sync("task", "run")

    with pytest.raises(RuntimeError, match="sub is async and needs a thread without an event loop"):
        asyncio.run(main())


# -- the end of the parent, and cancellation


async def slow(run: Run) -> str:
    await run.call(send, f"{run.task} begins")
    begun["slow"].set()
    await asyncio.sleep(60)
    await run.call(send, f"{run.task} ends")
    return "done"


begun: dict[str, asyncio.Event] = {}


def test_a_child_that_nobody_awaits_does_not_outlive_its_parent() -> None:
    async def agent(run: Run) -> str:
        begun["slow"] = asyncio.Event()
        task = asyncio.create_task(run.child(slow, "a"))
        await begun["slow"].wait()
        assert not task.done()
        return "returned"

    store = CheckpointStore()

    async def main() -> Any:
        result = await RecoverableAgent(agent, store).run_with_recovery("task", "run")
        assert len(asyncio.all_tasks()) == 1
        return result

    assert asyncio.run(main())["result"] == "returned"
    assert executed == {"a begins": 1}
    (child,) = children(store, "run")
    assert isinstance(how_ended(store, child.run_id), RunCancelled)
    store.claim(child.run_id).close()  # nobody holds it


def test_children_stop_with_their_parent_and_are_resumed_with_it() -> None:
    async def agent(run: Run) -> Any:
        begun["slow"] = asyncio.Event()
        if run.recovery_count == 0:
            asyncio.get_running_loop().call_later(30, runner.stop)
            return await asyncio.gather(run.child(slow, "a"), run.child(slow, "b"))
        return await asyncio.gather(run.child(slow, "a"), run.child(slow, "b"))

    store = CheckpointStore()
    runner = RecoverableAgent(agent, store)
    with pytest.raises(StoppedError):
        asyncio.run(runner.run_with_recovery("task", "run"))
    assert executed == {"a begins": 1, "b begins": 1}
    for child in children(store, "run"):
        assert child.state == "open"
        with store.claim(child.run_id) as log:
            assert not load(log, child.run_id).replay.in_doubt()


# -- many at once


def test_no_more_children_are_at_work_than_are_allowed_at_any_depth() -> None:
    at_work: Counter[int] = Counter()
    most: Counter[int] = Counter()

    async def child(run: Run) -> int:
        depth = run.task[0]
        at_work[depth] += 1
        most[depth] = max(most[depth], at_work[depth])
        await asyncio.sleep(0.001)
        if depth < 3:
            await asyncio.gather(*(run.child(child, [depth + 1, i]) for i in range(4)))
        at_work[depth] -= 1
        return 1

    async def agent(run: Run) -> int:
        return sum(await asyncio.gather(*(run.child(child, [1, i]) for i in range(8))))

    store = CheckpointStore()
    assert run(agent, store, max_children=3)["result"] == 8
    assert most == {1: 3, 2: 3, 3: 3}
    assert len(store.backend.run_ids()) == 1 + 8 + 32 + 128


def test_those_that_wait_for_a_place_stop_too() -> None:
    slept = []

    async def child(run: Run) -> None:
        await asyncio.sleep(300)
        slept.append(run.task)

    async def agent(run: Run) -> Any:
        asyncio.get_running_loop().call_later(30, runner.stop)
        return await asyncio.gather(*(run.child(child, i) for i in range(5)))

    store = CheckpointStore()
    runner = RecoverableAgent(agent, store, max_children=2)
    with pytest.raises(StoppedError):
        asyncio.run(runner.run_with_recovery("task", "run"))
    assert len(store.backend.run_ids()) == 3
    assert slept == []


def test_those_that_wait_for_a_place_in_threads_stop_too() -> None:
    at_work, stopped, parents = threading.Barrier(2), threading.Event(), list[Any]()

    def child(run: SyncRun) -> None:
        if at_work.wait(60) == 0:
            while len(parents[0].sessions) < 5:
                time.sleep(0.001)
            runner.stop()
            stopped.set()
        stopped.wait(60)  # else its place would be free before all have been stopped

    def agent(run: SyncRun) -> None:
        parents.append(execution_of(run).children)
        start: Any = run.child
        with ThreadPoolExecutor(5) as pool:
            made = [pool.submit(copy_context().run, start, child, i) for i in range(5)]
        for one in made:
            one.result()

    store = CheckpointStore()
    runner = RecoverableAgent(agent, store, max_children=2)
    with pytest.raises(StoppedError):
        runner.run_with_recovery_sync("task", "run")
    assert len(store.backend.run_ids()) == 3


def test_a_cancelled_wait_for_a_place_leaves_it_to_the_next() -> None:
    async def child(run: Run) -> int:
        await asyncio.sleep(0.02)
        return int(run.task)

    async def agent(run: Run) -> Any:
        first = asyncio.create_task(run.child(child, 1))
        await asyncio.sleep(0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.005):
                await run.child(child, 2)
        return [await first, await run.child(child, 3)]

    assert run(agent, CheckpointStore(), max_children=1)["result"] == [1, 3]


def test_threads_of_a_plain_parent_have_as_many_children_side_by_side_as_are_allowed() -> None:
    at_work: list[int] = []
    most: list[int] = []

    def child(run: SyncRun) -> Any:
        at_work.append(run.task)
        most.append(len(at_work))
        time.sleep(0.02)
        at_work.remove(run.task)
        return run.call(send, run.task)

    def agent(run: SyncRun) -> Any:
        def one(i: int) -> Any:
            return run.child(child, i)

        with ThreadPoolExecutor(4) as pool:
            return list(pool.map(one, range(12)))

    result = run_sync(agent, CheckpointStore(), max_children=2)["result"]
    assert result == [f"sent {i}" for i in range(12)]
    assert max(most) == 2


@pytest.mark.parametrize("wrong", [0, -1])
def test_max_children_is_at_least_one(wrong: int) -> None:
    with pytest.raises(ValueError, match="max_children"):
        RecoverableAgent(sub, CheckpointStore(), max_children=wrong)


# -- cancellation


async def waits(run: Run) -> str:
    await run.call(send, f"{run.task} begins")
    await run.wait_for("go")
    await run.call(send, f"{run.task} goes")
    return "went"


def how_ended(store: CheckpointStore, run_id: str) -> Any:
    with store.backend.read(run_id) as reader:  # type: ignore[union-attr]
        return load(reader, run_id).ended


async def gives_up_waiting(run: Run) -> Any:
    """Awaits a child for a moment, does without it, and fails once after that."""
    try:
        async with asyncio.timeout(5):
            found = await run.child(waits, "a")
    except TimeoutError:
        found = "too late"
    run.messages.append(await run.call(send, f"found {found}"))
    if run.recovery_count == 0:
        raise ConnectionError("lost")
    return [found, *run.messages]


def test_a_child_that_the_agent_no_longer_awaits_ends_for_good() -> None:
    store = CheckpointStore()
    assert run(gives_up_waiting, store)["result"] == ["too late", "sent found too late"]
    assert executed == {"a begins": 1, "found too late": 1}
    (child,) = children(store, "run")
    assert child.state == "cancelled"
    ended = how_ended(store, child.run_id)
    assert isinstance(ended, RunCancelled)
    assert ended.who == "run run"
    with pytest.raises(RunCancelledError):
        RecoverableAgent(waits, store).run_with_recovery_sync("a", child.run_id)


def test_a_child_is_cancelled_when_the_record_that_it_is_cannot_be_lost_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the parent would await it again after a power loss, and find it cancelled."""
    disk, kept = SimulatedDisk(), list[bool]()
    store = disk_store(disk)

    def cancels(*of: Any, **said: Any) -> None:
        after = recorded(disk_store(disk.after_power_loss(0)), CallAbandoned)
        kept.append([one.went_on for one in after] == [True])
        cancel(*of, **said)

    monkeypatch.setattr("recovery.calls.child_runs.cancel", cancels)
    assert run(gives_up_waiting, store)["result"] == ["too late", "sent found too late"]
    assert kept and all(kept)


def test_a_child_that_a_crash_kept_from_its_end_ends_when_its_parent_is_resumed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def agent(run: Run) -> Any:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                await run.child(waits, "a")
        found = await run.call(send, "without it")
        if executed["agent"] == 0:
            executed["agent"] += 1
            raise Died
        return found

    def too_late(*args: Any, **kwargs: Any) -> None:
        raise RecoveryError

    def states() -> list[str]:
        return [status(store, one.run_id).state for one in children(store, "run")]

    with monkeypatch.context() as patch:
        patch.setattr("recovery.calls.child_runs.cancel", too_late)
        store = die_in(agent, disk_store())
    assert states() == ["interrupted"]
    assert run(agent, store)["result"] == "sent without it"
    assert states() == ["cancelled"]


def test_a_task_group_that_fails_takes_its_children_along() -> None:
    async def agent(run: Run) -> Any:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(run.child(waits, "a"))
                group.create_task(run.child(waits, "b"))
                await asyncio.sleep(30)
                group.create_task(run.child(give_up, "c"))
        except* ChildFailedError:
            found = await run.call(send, "handled")
        return found

    store = CheckpointStore()
    assert run(agent, store)["result"] == "sent handled"
    assert [one.state for one in children(store, "run")] == ["cancelled", "cancelled", "failed"]
    for child in children(store, "run")[:2]:
        assert isinstance(how_ended(store, child.run_id), RunCancelled)


@pytest.mark.parametrize("dies", [False, True])
def test_children_of_a_run_that_gives_up_end_with_it(
    monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    """Also when the process dies as soon as the end of the parent is recorded."""

    async def agent(run: Run) -> None:
        left = asyncio.create_task(run.child(waits, "a"))
        await asyncio.sleep(30)
        raise PermanentError(f"enough {left.done()}")

    store = CheckpointStore()
    if dies:
        with monkeypatch.context() as patch, pytest.raises(Died):
            patch.setattr("recovery.agent.agent_errors.cancel_children", Mock(side_effect=Died))
            run(agent, store)
        assert [one.state for one in children(store, "run")] == ["open"]
    assert failed_of("run", store, agent).message == "enough False"
    (child,) = children(store, "run")
    assert isinstance(how_ended(store, child.run_id), RunCancelled)


def test_children_of_a_failure_that_can_be_settled_go_on_with_their_parent() -> None:
    async def agent(run: Run) -> Any:
        return await asyncio.gather(run.child(waits, "a"), run.child(uses_flaky, "b"))

    store = CheckpointStore()
    failure = failed_of("run", store, agent)
    assert [one.state for one in children(store, "run")] == ["open", "failed"]
    (waiting, _) = children(store, "run")
    assert how_ended(store, waiting.run_id) is None
    resolve(store, "run", failure.call, Resolution.retry())
    signal(store, waiting.run_id, "go")
    assert run(agent, store)["result"] == ["went", "child: flaky done"]
    assert executed == {"a begins": 1, "a goes": 1, "flaky": 2}


async def has_waiting_children(run: Run) -> Any:
    return await asyncio.gather(run.child(waits, "a"), run.child(awaits_waits, "b"))


async def awaits_waits(run: Run) -> Any:
    return await run.child(waits, "c")


def all_runs(store: CheckpointStore) -> list[str]:
    return [run_id for run_id in store.backend.run_ids() if "inbox" not in run_id]


def test_whoever_cancels_a_live_run_cancels_its_children_and_theirs() -> None:
    store = CheckpointStore()

    async def cancelled() -> None:
        asyncio.get_running_loop().call_later(30, cancel, store, "run")
        await RecoverableAgent(has_waiting_children, store).run_with_recovery("task", "run")

    with pytest.raises(RunCancelledError):
        asyncio.run(cancelled())
    for run_id in all_runs(store):
        assert isinstance(how_ended(store, run_id), RunCancelled), run_id
    assert executed == {"a begins": 1, "c begins": 1}


def open_runs(store: CheckpointStore) -> list[str]:
    return [one.run_id for one in store.runs(state=OPEN)]


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("ended", [0, 1, 2])
def test_a_cancellation_that_was_killed_before_all_children_had_ended_is_repeated(
    ended: int, live: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``ended``: children that had ended when the process died."""
    store = CheckpointStore()
    calls = Counter[str]()

    def end(*of: Any) -> bool:
        calls["end"] += 1
        if calls["end"] > ended:
            raise Died
        return _end_child(*of)

    async def works(until: Callable[[], object]) -> None:
        asyncio.get_running_loop().call_later(30, until)
        await runner.run_with_recovery("task", "run")

    runner = RecoverableAgent(has_waiting_children, store)
    by_hand = partial(cancel, store, "run", who="ann")
    if not live:
        with pytest.raises(StoppedError):
            asyncio.run(works(runner.stop))
    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr("recovery.control.cancel._end_child", end)
        asyncio.run(works(by_hand)) if live else by_hand()
    assert isinstance(how_ended(store, "run"), RunCancelled)
    left = open_runs(store)
    assert len(left) == 3 - ended
    for run_id in left:
        agent = awaits_waits if "awaits" in run_id.rpartition("+")[2] else waits
        with pytest.raises(RecoveryError, match=r"has ended \(cancelled\).*Nothing was executed"):
            RecoverableAgent(agent, store).resume_sync(run_id)
    assert open_runs(store) == left
    cancel(store, "run", who="bob")
    for run_id in left:
        gone = how_ended(store, run_id)
        assert isinstance(gone, RunCancelled) and gone.who == "ann"
    with pytest.raises(RecoveryError, match=r"has ended \(cancelled\): cancel was not sent"):
        cancel(store, "run")
    assert executed == {"a begins": 1, "c begins": 1}


def test_a_child_that_finds_its_parent_cancelled_begins_no_step() -> None:
    @tool(after_crash="retry")
    async def work() -> None:
        cancel(store, "run")
        await asyncio.sleep(1)

    async def child(run: Run) -> None:
        async for _ in run.steps():
            await run.call(work)

    async def agent(run: Run) -> None:
        await run.child(child, "task")

    store = CheckpointStore()
    with pytest.raises(RunCancelledError):
        run(agent, store)
    (made,) = children(store, "run")
    kinds = [event.kind for event in store.run(made.run_id).events()]
    assert kinds == ["run_started", "step", "call", "outcome", "run_cancelled"]


def test_children_that_a_crash_left_open_end_when_the_cancelled_run_is_looked_at() -> None:
    store = CheckpointStore()
    parked_by(store, awaits_stuck)
    (child,) = children(store, "run")
    with store.claim("run") as log:  # the process died before it came to the children
        log.append(*encode(RunCancelled("me", "")))
    with pytest.raises(RunCancelledError):
        run(awaits_stuck, store)
    assert isinstance(how_ended(store, child.run_id), RunCancelled)


def test_a_child_that_somebody_cancels_is_a_failed_child() -> None:
    async def agent(run: Run) -> str:
        try:
            return str(await run.child(waits, "a"))
        except ChildFailedError as exc:
            return f"{exc.type_name}: {exc.message}"

    store = CheckpointStore()

    async def cancelled() -> Any:
        def act() -> None:
            (child,) = children(store, "run")
            cancel(store, child.run_id, who="me", why="enough")

        asyncio.get_running_loop().call_later(30, act)
        return await RecoverableAgent(agent, store).run_with_recovery("task", "run")

    result = asyncio.run(cancelled())["result"]
    assert result.startswith("recovery.RunCancelledError: run 'run+waits-")
    assert result.endswith("was cancelled by me: enough")
    assert run(agent, store)["result"] == result


def test_a_child_that_is_parked_while_it_waits_parks_its_parent_with_it() -> None:
    async def agent(run: Run) -> Any:
        return await asyncio.gather(
            run.child(waits, "a", park_after_s=0.05), run.call(send, "beside")
        )

    store = CheckpointStore()
    ((child, error),) = parked_by(store, agent).children
    assert isinstance(error, WaitingError)
    signal(store, child, "go")
    assert run(agent, store)["result"] == ["went", "sent beside"]
    assert executed == {"beside": 1, "a begins": 1, "a goes": 1}


# -- what a power loss may take


class NobodyFlushes:
    def request(self, log: object, lsn: int) -> None: ...

    def forget(self, log: object) -> None: ...


def test_before_a_child_does_anything_its_parent_durably_knows_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(eventlog.write.log, "committer", NobodyFlushes())
    disk = SimulatedDisk()
    known: list[Any] = []

    @tool(after_crash="retry")
    def look() -> None:
        for seed in range(20):
            after = CheckpointStore(Disk(disk.after_power_loss(seed)))
            (child,) = children(after, "run")
            link = parent(after, child.run_id)
            with after.backend.read("run") as reader:  # type: ignore[union-attr]
                begun = [
                    event
                    for record in reader.records(1)
                    if isinstance(event := decode(record), ChildStarted)
                ]
            known.append((child, link, begun))

    async def child(run: Run) -> None:
        await run.call(look)

    async def agent(run: Run) -> None:
        await run.child(child, "task")

    run(agent, CheckpointStore(Disk(disk)))
    assert len(known) == 20
    for found, link, begun in known:
        assert link is not None and (link.run_id, link.lsn) == ("run", found.call)
        assert begun == [ChildStarted(found.call, found.run_id)]


def test_a_fork_is_served_what_children_returned_and_waits_for_those_at_work() -> None:
    store = CheckpointStore()
    parked_by(store, awaits_stuck)
    (child,) = children(store, "run")
    with pytest.raises(RecoveryError, match="child"):
        fork(store, "run", "fork")
    executed["fixed"] = 1
    assert run(awaits_stuck, store)["result"] == "done"
    fork(store, "run", "fork")
    forked = asyncio.run(RecoverableAgent(awaits_stuck, store).run_with_recovery("task", "fork"))
    assert forked["result"] == "done"
    assert executed == {"in the child": 1, "fixed": 1}
    assert [one.run_id for one in children(store, "fork")] == [child.run_id]
    assert not is_child(store, child.run_id, "fork")
    assert is_child(store, child.run_id, "run")


def test_a_child_that_was_undone_from_outside_is_a_failed_child() -> None:
    async def agent(run: Run) -> str:
        try:
            return str(await run.child(stuck, "task", max_recoveries=0))
        except ChildFailedError as exc:
            return exc.type_name

    store = CheckpointStore()
    parked_by(store, agent)
    (child,) = children(store, "run")
    undo(store, child.run_id, tools=[send], who="me")
    assert run(agent, store)["result"] == "recovery.RunUndoneError"


@pytest.mark.parametrize("leaves", [False, True])
def test_a_signal_handler_may_withdraw_a_request_that_is_just_being_ended(
    monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    class Place(Future[bool]):
        def set_result(self, result: bool) -> None:
            if self in due:
                due.clear()
                places.withdraw(self)
            super().set_result(result)

    due: list[Future[bool]] = []
    monkeypatch.setattr(child_slots, "Future", Place)
    places = ChildSlots(1)
    first, second, third = places.ask(), places.ask(), places.ask()
    due.append(second)
    if leaves:
        places.leave(first)
        assert third.result(0)
    else:
        places.withdraw(second)
        assert not third.done()
    assert not due and not second.result(0)
