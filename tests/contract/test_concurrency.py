"""Concurrent agents replay; what cannot be replayed for sure, or was not awaited, is told."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import logging
import random
import re
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from recovery import (
    Budget,
    CheckpointStore,
    PermanentError,
    RecoverableAgent,
    Run,
    SyncRun,
    tool,
)
from recovery.agent import recoverable
from recovery.agent.executions import SyncExecution
from recovery.agent.replay_order import STRICT_WAIT_S
from recovery.agent.run import execution_of
from recovery.agent_code.order_warnings import races_of, warn_of_races
from recovery.control.send import signal
from recovery.declare.scope import runs_at_work
from recovery.engine.driver_effects import WaitForTurn
from recovery.engine.execution import Execution
from recovery.engine.task_state import Blocking
from recovery.errors import BudgetError, NotAwaitedError, RunFailedError
from recovery.replay.matching import Replay
from recovery.testing.processes.trial import Plan, Trial, World
from recovery.testing.simulated.simulated_life import Kill
from recovery.testing.simulated.virtual_time import Clock, virtual_time
from tests.contract.concurrency import SHAPES, sweep
from tests.support.lives import executed, run, run_sync, send

pytestmark = pytest.mark.usefixtures("fresh")

HAS_UVLOOP = importlib.util.find_spec("uvloop") is not None
LOOPS = ["asyncio", *(["uvloop"] if HAS_UVLOOP else [])]


class DiesError(Exception):
    pass


def dies_once(agent: Callable[[Run], Any]) -> Callable[[Run], Any]:
    """An agent whose first life ends with an error just before it returns."""
    lives = []

    async def dying(run: Run) -> Any:
        lives.append(run)
        found = await agent(run)
        if len(lives) == 1:
            raise DiesError
        return found

    return dying


@tool(after_crash="retry")
async def is_quick() -> None:
    pass


# -- small agents that are killed in processes


QUICK = (
    "gather_with_sleeps_behind",
    "task_groups_inside_one_another",
    "results_as_they_come",
    "run_wait_in_recorded_order",
    "pool_of_threads",
    "many_turns_and_who_comes_first",
    "pipeline",
)


@pytest.mark.parametrize("name", QUICK)
def test_a_shape_survives_kills(name: str, rng: random.Random) -> None:
    # Each in each loop is for the long run below.
    tally = sweep(name, LOOPS[QUICK.index(name) % len(LOOPS)], 2, rng.getrandbits(32))
    assert tally.sound, tally


@pytest.mark.crash
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_survives_kills(name: str, loop: str, rng: random.Random, figures: Any) -> None:
    tally = sweep(name, loop, 40, rng.getrandbits(32))
    figures.add("kills of concurrent shapes", kills=tally.kills, seconds=tally.time_s)
    assert tally.sound, tally


# -- run.wait


@pytest.mark.parametrize("return_when", [asyncio.FIRST_COMPLETED, asyncio.ALL_COMPLETED])
def test_run_wait_gives_the_recorded_tasks_in_the_recorded_order(return_when: str) -> None:
    order: list[list[str]] = []
    pauses = iter([[0.4, 0.0, 0.2], [0.0, 0.2, 0.0]])

    async def agent(run: Run) -> list[str]:
        async def one(name: str, pause: float) -> str:
            await asyncio.sleep(pause)
            return name

        tasks = [asyncio.create_task(one(*each)) for each in zip("abc", next(pauses), strict=True)]
        seen, pending = [], tasks
        while pending:
            done, pending = await run.wait(pending, return_when=return_when)
            seen += [task.result() for task in done]
            await run.call(send, str(seen))
        order.append(seen)
        return seen

    found = run(dies_once(agent), CheckpointStore())["result"]
    assert order == [["b", "c", "a"]] * 2
    assert found == ["b", "c", "a"]
    assert set(executed.values()) == {1}


def test_a_time_out_of_run_wait_is_recorded() -> None:
    at_once = iter([False, True])

    async def agent(run: Run) -> Any:
        goes_on = asyncio.Event()

        async def late() -> str:
            await goes_on.wait()
            return "late"

        if next(at_once):
            goes_on.set()
        task = asyncio.create_task(late())
        done, pending = await run.wait([task], timeout=0.001)
        await run.call(send, f"{len(done)} of {len(pending)}")
        goes_on.set()
        return await task

    assert run(dies_once(agent), CheckpointStore())["result"] == "late"
    assert executed == {"0 of 1": 1}


def test_changed_code_that_waits_for_fewer_tasks_waits_as_it_is_now() -> None:
    names = iter(["abc", "ab"])

    async def agent(run: Run) -> Any:
        tasks = [asyncio.create_task(asyncio.sleep(0, name)) for name in next(names)]
        done, pending = await run.wait(tasks)
        await run.call(send, "once")
        return [task.result() for task in done], pending

    assert run(dies_once(agent), CheckpointStore())["result"] == (["a", "b"], [])
    assert executed == {"once": 1}


def test_run_wait_in_threads() -> None:
    def agent(run: SyncRun) -> list[str]:
        with ThreadPoolExecutor(2) as pool:
            pending = [pool.submit(run.call, send, name) for name in "ab"]
            seen: list[str] = []
            while pending:
                done, pending = run.wait(pending, return_when="FIRST_COMPLETED")
                seen += [one.result() for one in done]
        run.call(send, str(len(seen)))
        return seen

    assert sorted(run_sync(agent, CheckpointStore())["result"]) == ["sent a", "sent b"]


def test_run_wait_in_threads_gives_the_recorded_ones_when_they_have_ended() -> None:
    order: list[list[int]] = []

    def agent(run: SyncRun) -> int:
        ends = [threading.Event(), threading.Event()]
        with ThreadPoolExecutor(2) as pool:
            tasks = [pool.submit(one.wait, 60) for one in ends]
            if run.recovery_count:  # the second ends after the first
                tasks[0].add_done_callback(lambda _: ends[1].set())
            ends[0 if run.recovery_count else 1].set()
            first, late = run.wait(tasks, return_when="FIRST_COMPLETED")
            seen = [tasks.index(one) for one in first if one.done()]
            ends[0].set()
            second, late = run.wait(late)
            seen += [tasks.index(one) for one in second if one.done()]
        order.append(seen)
        run.call(send, str(seen))
        if not run.recovery_count:
            raise ConnectionError
        return len(late)

    assert run_sync(agent, CheckpointStore())["result"] == 0
    assert order == [[1, 0]] * 2
    assert executed == {"[1, 0]": 1}


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({1}, "takes a list of tasks: a set has no order"),
        ([send], "asyncio.create_task"),
        ([], "no tasks"),
    ],
)
def test_run_wait_says_what_it_takes(given: Any, error: str) -> None:
    async def agent(run: Run) -> None:
        await run.wait(given)

    with pytest.raises((TypeError, ValueError), match=error):
        run(agent, CheckpointStore(), max_recoveries=0)


# -- what waits for sleeps of the agent's own


def test_a_recovery_that_waits_for_a_sleep_of_the_agent_says_so(
    caplog: pytest.LogCaptureFixture, clock: Clock
) -> None:
    async def agent(run: Run) -> None:
        await run.call(send, "before")
        await asyncio.sleep(9)  # the sleep
        await run.call(send, "behind")

    with caplog.at_level(logging.WARNING, "recovery"):
        run(dies_once(agent), CheckpointStore())
    (said,) = [one.getMessage() for one in caplog.records if "asyncio.sleep" in one.message][:1]
    line = next(
        number
        for number, text in enumerate(Path(__file__).read_text().splitlines(), 1)
        if text.endswith("# the sleep")
    )
    assert f"{__file__}:{line}." in said
    assert "run.sleep" in said


def test_a_recovery_that_makes_progress_says_nothing_of_sleeps(
    caplog: pytest.LogCaptureFixture, clock: Clock
) -> None:
    async def agent(run: Run) -> None:
        for number in range(8):
            await run.call(send, number)
            await asyncio.sleep(0.9)

    with caplog.at_level(logging.WARNING, "recovery"):
        run(dies_once(agent), CheckpointStore())
    assert clock.ahead > 14  # both lives have slept
    assert "asyncio.sleep" not in caplog.text


# -- code that takes many turns of the event loop


def test_code_that_polls_holds_up_a_recovery_only_once() -> None:
    """Code that polls may be about to make a call. That is waited for, but not each time."""
    turns: list[int] = []

    async def agent(run: Run) -> None:
        async def polls() -> None:
            while not over:
                turns[-1] += 1
                assert turns[-1] < 100_000
                await asyncio.sleep(0)

        over = False
        turns.append(0)
        poll = asyncio.create_task(polls())
        for number in range(10):
            await run.call(send, number)
        over = True
        await poll

    run(dies_once(agent), CheckpointStore())
    assert len(turns) == 2


def test_a_result_waits_for_code_that_takes_many_turns() -> None:
    """The first life had a slow tool beside it. Its replay, which has none, keeps the order."""

    async def busy(turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)

    @tool(after_crash="retry")
    async def is_slow() -> None:
        await busy(1000)

    async def agent(run: Run) -> list[str]:
        order: list[str] = []

        async def one(name: str, given: Any, turns: int) -> None:
            await run.call(given)
            await busy(turns)
            order.append(name)

        await asyncio.gather(one("first", is_quick, 200), one("second", is_slow, 0))
        await run.call(send, str(order))
        return order

    assert run(dies_once(agent), CheckpointStore())["result"] == ["first", "second"]
    assert executed == {"['first', 'second']": 1}


# -- coroutines that asyncio starts in the order of a set


async def in_a_list(run: Run) -> None:
    gate = asyncio.Lock()

    async def one(number: int) -> None:
        async with gate:
            await run.call(send, str(number))

    for each in asyncio.as_completed([one(number) for number in range(3)]):
        await each


async def by_map(run: Run) -> None:
    todo: asyncio.Queue[int] = asyncio.Queue()

    async def one(number: int) -> None:
        await run.call(send, await todo.get())

    for each in asyncio.as_completed(map(one, range(3))):
        await each


async def by_a_name(run: Run) -> None:
    gate = asyncio.Semaphore(2)

    async def one(number: int) -> None:
        async with gate:
            await run.call(send, str(number))

    some = []
    for number in range(3):
        some.append(one(number))
    for each in asyncio.as_completed(some):
        await each


async def as_tasks(run: Run) -> None:
    gate = asyncio.Semaphore(2)

    async def one(number: int) -> None:
        async with gate:
            await run.call(send, str(number))

    some = [asyncio.create_task(one(number)) for number in range(3)]
    for each in asyncio.as_completed(some):
        await each


async def without_a_gate(run: Run) -> None:
    for each in asyncio.as_completed([run.call(send, str(number)) for number in range(3)]):
        await each


@pytest.mark.parametrize(
    ("agent", "named"),
    [
        (in_a_list, True),
        (by_map, True),
        (by_a_name, True),
        (as_tasks, False),
        (without_a_gate, False),
    ],
)
def test_coroutines_that_are_started_in_any_order_are_named(agent: Any, named: bool) -> None:
    lines = Path(__file__).read_text().splitlines()
    found = races_of(agent)
    assert ["asyncio.as_completed" in lines[race.line - 1] for race in found] == [True] * named
    assert all("asyncio.create_task" in str(race) for race in found)


# -- tools in threads of a pool, and sets that tools return


def new_tool(name: str, function: Callable[..., Any]) -> Any:
    """A tool of which nothing was said yet."""
    return tool(name=f"{name} {uuid.uuid4()}", after_crash="retry")(function)


def noted(number: int) -> str:
    executed[str(number)] += 1
    return f"sent {number}"


def in_a_pool(given: Any, how: str) -> Callable[[SyncRun], Any]:
    def agent(run: SyncRun) -> Any:
        with ThreadPoolExecutor(1) as pool:
            if how == "map":
                return list(pool.map(given, [1, 2]))
            if how == "run.call":
                return [pool.submit(run.call, given, n).result() for n in (1, 2)]
            if how == "__wrapped__":
                return [pool.submit(given.__wrapped__, n).result() for n in (1, 2)]
            return [pool.submit(copy_context().run, given, n).result() for n in (1, 2)]

    return agent


def in_an_executor(given: Any, how: str) -> Callable[[Run], Any]:
    async def agent(run: Run) -> Any:
        loop = asyncio.get_running_loop()
        if how == "executor":
            return [await loop.run_in_executor(None, given, n) for n in (1, 2)]
        return [await asyncio.to_thread(given, n) for n in (1, 2)]

    return agent


@pytest.mark.parametrize(
    ("how", "recorded"),
    [
        ("map", False),
        ("executor", False),
        ("__wrapped__", False),
        ("run.call", True),
        ("copy_context", True),
        ("to_thread", True),
    ],
)
def test_a_tool_in_a_thread_without_the_run_is_named(
    how: str, recorded: bool, caplog: pytest.LogCaptureFixture
) -> None:
    given = new_tool("noted", noted)
    asynchronous = how in ("executor", "to_thread")
    runs_at_work.clear()  # of runs that other tests have left
    with caplog.at_level(logging.WARNING, "recovery"):
        with ThreadPoolExecutor(1) as pool:  # no run is at work
            assert pool.submit(given, 0).result() == "sent 0"
        found = (
            run(in_an_executor(given, how), CheckpointStore())
            if asynchronous
            else run_sync(in_a_pool(given, how), CheckpointStore())
        )
    assert found["result"] == ["sent 1", "sent 2"]
    assert found["usage"].calls == 2 * recorded
    said = [one.getMessage() for one in caplog.records if given.tool_spec.name in one.getMessage()]
    assert len(said) == (how in ("map", "executor"))
    for one in said:
        assert f"{__file__}:{noted.__code__.co_firstlineno}" in one
        assert all(way in one for way in ("asyncio.to_thread", "run.call", "copy_context().run"))


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"ann", "bob"}, True),
        (frozenset({("a", 1), ("b", 2)}), True),
        ({"ann"}, False),
        ({1, 2, 3}, False),
        (["ann", "bob"], False),
    ],
)
def test_a_set_that_a_tool_returns_is_named_once(
    value: Any, named: bool, caplog: pytest.LogCaptureFixture
) -> None:
    given = new_tool("names", lambda: value)

    def agent(run: SyncRun) -> Any:
        return [given() == value for _ in range(2)]

    with caplog.at_level(logging.WARNING, "recovery"):
        assert run_sync(agent, CheckpointStore())["result"] == [True, True]
    said = [one.getMessage() for one in caplog.records if "returned a set" in one.getMessage()]
    assert len(said) == named
    assert all("sorted(" in one for one in said)


def test_threads_look_one_at_a_time_at_what_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a call fails because the record changes while the event loop looks whose turn it is."""
    lives, guarded = list[Execution](), list[bool]()

    def watched(look: Callable[..., Any]) -> Callable[..., Any]:
        def looks(replay: Replay) -> Any:
            if lives and lives[-1].replay is replay:
                guarded.append(lives[-1].mutex._is_owned())  # type: ignore[attr-defined]
            return look(replay)

        return looks

    for name in ("unmatched", "_pass_by"):
        monkeypatch.setattr(Replay, name, watched(getattr(Replay, name)))

    async def agent(run: Run) -> Any:
        def works(name: str) -> list[str]:
            return [send(f"{name}{n}") for n in range(3 if len(lives) == 1 else 6)]

        lives.append(execution_of(run))
        return await asyncio.gather(*(asyncio.to_thread(works, name) for name in "abc"))

    run(dies_once(agent), CheckpointStore())
    assert len(executed) == 18 and set(executed.values()) == {1}
    assert guarded and all(guarded)


def test_outcomes_are_handed_to_threads_in_the_order_in_which_they_are_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread of the first outcome is slow to take it; the second one waits."""
    perform, lives = SyncExecution._perform_sync, []

    def slow(run: SyncExecution, effect: Any) -> Any:
        if (
            isinstance(effect, WaitForTurn)
            and effect.turn
            and threading.current_thread().name == "first"
        ):
            time.sleep(0.3)
        return perform(run, effect)

    monkeypatch.setattr(SyncExecution, "_perform_sync", slow)

    def agent(run: SyncRun) -> list[str]:
        lives.append(run)
        order: list[str] = []

        def works(name: str) -> None:
            if name == "second" and len(lives) == 1:
                first.wait(60)
            run.call(look, name)
            order.append(name)
            first.set()

        first = threading.Event()
        threads = [
            threading.Thread(target=works, args=(name,), name=name) for name in ("first", "second")
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        run.call(send, str(order))
        if len(lives) == 1:
            raise DiesError
        return order

    assert run_sync(agent, CheckpointStore())["result"] == ["first", "second"]
    assert len(executed) == 1


def test_a_thread_that_waits_for_its_turn_does_not_stand_for_a_task_that_sleeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(STRICT_WAIT_S, Blocking.UNKNOWN, 0.02)  # how long it waits if nothing moves
    lives = []

    async def agent(run: Run) -> str:
        lives.append(run)

        async def sleeper() -> None:
            await asyncio.sleep(0.3)
            await run.call(send, "late")

        task = asyncio.create_task(sleeper())
        if len(lives) == 1:
            await task
            raise DiesError
        loop, context = asyncio.get_running_loop(), copy_context()
        found = await loop.run_in_executor(None, context.run, send, "from a thread")
        await task
        return str(found)

    assert run(agent, CheckpointStore())["result"] == "sent from a thread"
    assert executed == {"late": 1, "from a thread": 1}


# -- what nobody awaits


@pytest.mark.parametrize("own_error", [False, True])
def test_only_errors_of_the_agents_own_are_reported_as_never_retrieved(
    own_error: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def one(run: Run, number: int) -> Any:
        try:
            return await run.call(send, number)
        except BaseException as exc:
            if own_error:
                raise KeyError("my own") from exc
            raise

    async def agent(run: Run) -> Any:
        tasks = [asyncio.create_task(one(run, number)) for number in range(4)]
        return [await first for first in asyncio.as_completed(tasks)]

    with suppress(BudgetError, KeyError):  # which keeps hold of nothing
        asyncio.run(
            RecoverableAgent(
                agent, CheckpointStore(), budget=Budget(calls=1), max_recoveries=0
            ).run_with_recovery("task", "run")
        )
    gc.collect()
    said = [one.exc_info[1] for one in caplog.records if one.name == "asyncio" and one.exc_info]
    assert all(isinstance(exc, KeyError) for exc in said)
    assert bool(said) is own_error


@tool(after_crash="retry")
async def look(what: str) -> str:
    return what


left: list[Any] = []  # what agents have made and not awaited


async def dropped(run: Run) -> None:
    run.call(send, "x")  # type: ignore[unused-coroutine]


async def kept(run: Run) -> Any:
    left.append(run.call(send, "x"))
    await asyncio.sleep(0)


async def sleeps(run: Run) -> None:
    run.sleep(5)  # type: ignore[unused-coroutine]


async def in_a_cycle(run: Run) -> None:
    circle: list[Any] = [run.call(send, "x")]
    circle.append(circle)
    del circle
    gc.collect()


async def by_another(run: Run) -> None:
    calls = [run.call(send, "x")]
    await asyncio.create_task(asyncio.to_thread(calls.clear))


async def never_begun(run: Run) -> None:
    left.append(asyncio.create_task(run.call(send, "x")))


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize(
    ("agent", "what"),
    [
        (dropped, "run.call(send, ...)"),
        (kept, "run.call(send, ...)"),
        (sleeps, "run.sleep(...)"),
        (in_a_cycle, "run.call(send, ...)"),
        (by_another, "run.call(send, ...)"),
        (never_begun, "run.call(send, ...)"),
    ],
)
def test_a_call_that_nobody_awaits_keeps_the_run_from_finishing(agent: Any, what: str) -> None:
    store = CheckpointStore()
    with pytest.raises(NotAwaitedError, match="await") as caught:
        run(agent, store)
    line = agent.__code__.co_firstlineno
    ((found, where),) = caught.value.places
    for one in left:
        one.close() if hasattr(one, "close") else None
    left.clear()
    assert found == what
    assert re.fullmatch(rf"{re.escape(__file__)}:{line + 1}", where)

    async def mended(run: Run) -> str:
        return str(await run.call(send, "x"))

    assert run(mended, store)["result"] == "sent x"
    assert executed["x"] == 1


def test_a_call_that_begins_after_the_agent_has_returned_is_not_made() -> None:
    # Beside other tasks, threads make the end of a run durable: the event loop goes on meanwhile.
    store, tried, refused = CheckpointStore(), threading.Event(), list[BaseException]()

    async def later(run: Run) -> None:
        await asyncio.sleep(0)
        try:
            await run.call(send, "x")
        except BaseException as exc:
            refused.append(exc)
        tried.set()

    async def agent(run: Run) -> str:
        left.append(asyncio.create_task(later(run)))
        commit, first = run._execution.log.commit, iter([True])
        run._execution.log.commit = lambda: (  # type: ignore[assignment, method-assign]
            next(first, False) and tried.wait(30),
            commit(),
        )
        return "done"

    async def beside() -> Any:
        other = asyncio.create_task(asyncio.sleep(3600))
        ended = await RecoverableAgent(agent, store).run_with_recovery("task", "run")
        other.cancel()
        return ended["result"]

    assert asyncio.run(beside()) == "done"
    left.clear()
    assert [type(one).__name__ for one in refused] == ["LeftBehindError"] and not executed
    assert store.run("run").status().state == "finished"


@pytest.mark.parametrize("fails", [False, True])
def test_a_thread_begins_no_call_while_it_is_recorded_how_the_agent_ended(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing was in flight when the agent ended: so nobody waits for what begins now.
    go, moved, over = threading.Event(), threading.Event(), threading.Event()
    refused: list[BaseException] = []

    @tool
    def act() -> None:
        executed["x"] += 1
        moved.set()
        over.wait(5)

    def later(run: SyncRun) -> None:
        go.wait(30)
        try:
            run.call(act)
        except BaseException as exc:
            refused.append(exc)
        moved.set()

    def agent(run: SyncRun) -> str:
        left.append(threading.Thread(target=later, args=(run,)))
        left[0].start()
        if fails:
            raise PermanentError("enough")
        return "done"

    def held(record: Callable[..., Any], *given: Any) -> Any:
        go.set()
        moved.wait(30)
        return record(*given)

    for name in ("finish", "end_if_permanent"):
        monkeypatch.setattr(recoverable, name, partial(held, getattr(recoverable, name)))
    store = CheckpointStore()
    with pytest.raises(RunFailedError) if fails else nullcontext():
        run_sync(agent, store)
    over.set()
    left.pop().join()
    assert [type(one).__name__ for one in refused] == ["LeftBehindError"] and not executed
    assert store.run("run").status().state == ("failed" if fails else "finished")


def test_a_call_that_is_closed_was_not_forgotten() -> None:
    async def agent(run: Run) -> str:
        unwanted = run.call(send, "x")
        assert "run.call(send, ...)" in repr(unwanted)
        unwanted.close()
        del unwanted
        task = asyncio.create_task(run.call(send, "y"))
        assert "run.call(send, ...)" in repr(task)  # a text with the name of what was not begun
        return str(await task)

    assert run(agent, CheckpointStore())["result"] == "sent y"
    assert executed == {"y": 1}


def test_a_task_that_is_cancelled_before_it_begins_was_not_forgotten() -> None:
    kept: list[Any] = []  # an error's traceback keeps frames

    async def agent(run: Run) -> str:
        task = asyncio.create_task(run.call(send, "x"))
        task.cancel()
        kept.extend(await asyncio.gather(task, return_exceptions=True))
        waited = asyncio.create_task(run.call(send, "z"))
        waited.cancel()
        await asyncio.wait([waited])
        del task, waited
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(run.call(look, "y"))
                raise KeyError
        except* KeyError:
            pass
        return "fine"

    assert run(agent, CheckpointStore())["result"] == "fine"
    assert not executed


@pytest.mark.parametrize("loop", LOOPS)
def test_an_outcome_is_handed_on_when_the_one_before_has_come_to_rest(loop: str) -> None:
    seen: list[str] = []

    async def agent(run: Run) -> None:
        async def one(name: str) -> None:
            seen.append(f"{await run.call(send, name)} begins")
            for _ in range(200):
                await asyncio.sleep(0)
            seen.append(f"sent {name} ends")

        await asyncio.gather(*map(one, "abc"))

    of = RecoverableAgent(dies_once(agent), CheckpointStore())
    factory = None
    if loop == "uvloop":
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(of.run_with_recovery("t", "run"))
    first = seen[: len(seen) // 2]  # in which order the threads were done
    assert sorted(first[::2]) == [f"sent {name} begins" for name in "abc"]
    assert first[1::2] == [one.replace("begins", "ends") for one in first[::2]]
    assert seen == first * 2
    assert set(executed.values()) == {1}


# -- a wait and another task come at the same time


@tool(after_crash="retry")
async def fetch(what: str) -> str:
    await asyncio.sleep(1)
    return what


class Crowd:
    """An agent with a wait that ends in ``ends`` and a task that makes a call about then, some
    turns of the loop later. What comes first cancels the other one, which still has a call to make.
    """

    def __init__(self, ends: str, pause: float, turns: int, outage: float) -> None:
        self.ends, self.pause, self.turns, self.outage = ends, pause, turns, outage
        self.clock, self.lives, self.began = Clock(), 0, 0.0
        self.sent: list[str] = []

    async def __call__(self, run: Any) -> list[str]:
        tasks = [asyncio.create_task(self.wait(run)), asyncio.create_task(self.works(run))]
        if self.ends == "both":
            tasks.append(asyncio.create_task(self.works(run, "third")))
        done, late = await run.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for one in late:
            one.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        await run.call(self.charge, "behind")
        return [one.result() for one in done]

    async def wait(self, run: Any) -> str:
        with suppress(TimeoutError):
            if self.ends == "signal":
                return str(await run.wait_for("go"))
            if self.ends == "timeout":
                await run.wait_for("never", timeout=2)
        if self.ends in ("sleep", "both"):
            await run.sleep(2)
        return "waited"

    async def works(self, run: Any, name: str = "second") -> str:
        await asyncio.sleep(self.pause)
        for _ in range(self.turns):
            await asyncio.sleep(0)
        try:
            return str(await run.call(fetch, name))
        finally:
            await run.call(self.charge, f"closes {name}")

    async def charge(self, what: str) -> None:
        self.sent.append(what)

    def new_process(self) -> RecoverableAgent[Any]:
        self.clock.ahead += self.outage * (self.lives > 0)
        self.lives += 1
        return RecoverableAgent(self.__call__, CheckpointStore())

    def answer(self, store: CheckpointStore, run_id: str) -> None:
        if self.ends == "signal" and time.time() - self.began >= 2:
            signal(store, run_id, "go", "waited", key="go")

    def lived(self, *kills: Kill) -> Trial:
        self.clock.begin()
        with virtual_time(self.clock):
            self.began = time.time()
            trial = Trial(
                World(self.new_process, None, answer=self.answer), Plan(kills), self.clock
            )
            trial.run()
        assert trial.error is None and trial.end.how == "finished", trial.end
        assert max(Counter(self.sent).values()) == 1, self.sent
        assert "behind" in self.sent
        assert self.clock.ahead < 60 + self.outage * (self.lives - 1), "it waited in vain"
        return trial


def at_one_time(choose: random.Random, deaths: int) -> None:
    given = (
        choose.choice(["sleep", "timeout", "signal", "both"]),
        choose.choice([1.0, 1.999, 2.0, 2.0, 2.0, 2.001]),
        choose.randrange(8),
        choose.choice([0.0, 1.0, 5000.0]),
    )
    calls, kill = len(Crowd(*given).lived().lives[0].calls), None
    try:
        for _ in range(deaths):
            kill = Kill("disk", choose.randrange(calls))
            Crowd(*given).lived(kill)
    except BaseException as exc:
        exc.add_note(f"{given=}, {kill=}")
        raise


@pytest.mark.parametrize(
    "given",
    [("signal", 2.0, 3, 0.0), ("signal", 1.999, 6, 5000.0), ("signal", 2.001, 5, 5000.0)],
)
def test_a_wait_that_is_over_when_another_task_makes_a_call(given: Any) -> None:
    for number in range(20, len(Crowd(*given).lived().lives[0].calls), 2):
        Crowd(*given).lived(Kill("disk", number))


@pytest.mark.parametrize(
    ("count", "kills"), [(8, 2), pytest.param(1000, 10, marks=pytest.mark.crash)]
)
def test_waits_that_are_over_in_many_orders_of_the_loop(
    count: int, kills: int, rng: random.Random
) -> None:
    for _ in range(count):
        at_one_time(random.Random(rng.getrandbits(40)), kills)


class Racer:
    async def runs(self, run: Run, count: int = 2) -> None:
        tasks = [asyncio.create_task(run.call(send, str(i))) for i in range(count)]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        done.pop()

    __call__ = runs


def test_a_race_is_named_however_the_agent_is_given(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for agent in (Racer().runs, partial(Racer().runs, count=3), Racer()):
        monkeypatch.setattr("recovery.agent_code.order_warnings._examined", set())
        caplog.clear()
        warn_of_races(agent)
        assert "asyncio.wait gives sets" in caplog.text, agent
