"""Whose turn it is: who is waited for, how long, and what is handed on when."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from recovery import CheckpointStore, InDoubtError, RecoverableAgent, Run, SyncRun, tool
from recovery.agent.replay_order import STRICT_WAIT_S, WARN_AFTER_S, ThreadReplayOrder
from recovery.engine.driver_effects import WaitForTurn
from recovery.engine.task_state import Blocking, threads_blocking
from recovery.errors import DivergenceError, LeftBehindError, StoppedError
from recovery.testing.simulated.virtual_time import Clock, Loop, bury, virtual_time
from tests.support.lives import Died, after_death, die_in, disk_store, executed, run

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture
def clock() -> Iterator[Clock]:
    clock = Clock()
    with virtual_time(clock):
        clock.begin()
        yield clock


@tool
async def send(what: Any) -> Any:
    executed[what] += 1
    return what


@tool(after_crash="retry")
async def look(what: Any, seconds: float = 0) -> Any:
    executed[what] += 1
    await asyncio.sleep(seconds)
    return what


def run_in(clock: Clock, job: Coroutine[Any, Any, Any]) -> Any:
    loop, tasks = Loop(clock), []

    def held(loop: Any, coroutine: Any, **options: Any) -> Any:
        """A task that is buried with the loop: none is left to the garbage collector before."""
        tasks.append(asyncio.Task(coroutine, loop=loop, **options))
        return tasks[-1]

    loop.set_task_factory(held)
    try:
        return loop.run_until_complete(asyncio.wait_for(job, WAITS_FOR_EVER_S))
    finally:
        bury(loop)


def twice(clock: Clock, agent: Callable[[Run], Any]) -> Any:
    """Run an agent that raises in its first life; what its second one returns."""
    of = RecoverableAgent(agent, CheckpointStore(), max_recoveries=1)
    return run_in(clock, of.run_with_recovery("t", "run"))["result"]


@tool
def look_at(what: str) -> str:
    executed[what] += 1
    return what


class DiesError(Exception):
    pass


WAITS_FOR_EVER_S = 1500


# -- what threads wait for


def test_threads_at_work_are_told_from_idle_ones() -> None:
    go, stop = threading.Event(), list[bool]()

    def spin() -> None:
        while not stop:  # not by an event, whose code is that of locks
            sum(range(1000))

    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        (idle,) = pool._threads
        blocked = threading.Thread(target=go.wait)
        busy = threading.Thread(target=spin)
        for thread in (blocked, busy):
            thread.start()
        while threads_blocking([busy], ()) is not Blocking.RUNNABLE:
            pass  # it has only just started
        assert threads_blocking([busy], ()) is Blocking.RUNNABLE
        while threads_blocking([blocked], ()) is not Blocking.UNKNOWN:
            pass
        while threads_blocking([idle], ()) is not Blocking.ON_REPLAY:
            pass
        assert threads_blocking([idle, blocked], ()) is Blocking.UNKNOWN
        assert threads_blocking([], ()) is Blocking.ON_REPLAY
        go.set()
        stop.append(True)


# -- how long is waited


@pytest.mark.parametrize("new", [True, False])
def test_a_wrapper_may_sleep_for_minutes_before_a_recorded_call(
    clock: Clock, caplog: pytest.LogCaptureFixture, new: bool
) -> None:
    """A new call says that it waits; an outcome waits for those before it."""

    async def agent(run: Run) -> Any:
        async def slow() -> Any:
            await asyncio.sleep(400 if run.recovery_count else 0)
            return await run.call(send, "slow")

        async def quick() -> Any:
            await asyncio.sleep(0 if run.recovery_count else 5)
            if not run.recovery_count:
                if not new:
                    await run.call(send, "quick")
                raise DiesError
            return await run.call(send, "quick")

        return await asyncio.gather(slow(), quick())

    assert twice(clock, agent) == ["slow", "quick"]
    assert executed == {"slow": 1, "quick": 1}
    assert clock.ahead > 400
    assert any("has waited" in one.getMessage() for one in caplog.records) is new


def test_changed_code_beside_tasks_that_all_wait_is_told_at_once(clock: Clock) -> None:
    async def agent(run: Run) -> None:
        names = "xb" if run.recovery_count else "ab"
        await asyncio.gather(*(run.call(send, name) for name in names))
        raise DiesError

    with pytest.raises(DivergenceError) as caught:
        twice(clock, agent)
    assert caught.value.differences == ("args[0]: 'a' -> 'x'",)
    assert clock.ahead < 1
    assert executed == {"a": 1, "b": 1}


def test_a_plain_tool_called_directly_beside_a_task_is_told_from_an_edit(clock: Clock) -> None:
    @tool
    def plain(what: str) -> None:
        executed[what] += 1

    async def agent(run: Run) -> None:
        async def beside() -> None:
            await asyncio.sleep(1 if run.recovery_count else 0)
            await run.call(send, "beside")

        task = asyncio.create_task(beside())
        await asyncio.sleep(0.5)
        if not run.recovery_count:
            await task
            raise DiesError
        plain("direct")

    with pytest.raises(DivergenceError, match=r"`await run.call\(...\)` can"):
        twice(clock, agent)
    assert executed == {"beside": 1}


def test_a_new_call_says_what_it_waits_for(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "recovery")

    async def heartbeat() -> None:
        while True:  # noqa: ASYNC110 - as agents do
            await asyncio.sleep(3)

    async def agent(run: Run) -> None:
        beat = asyncio.create_task(heartbeat(), name="beat")
        try:
            await run.call(send, "new" if run.recovery_count else "old")
            raise DiesError
        finally:
            beat.cancel()

    with pytest.raises(DivergenceError):
        twice(clock, agent)
    warnings = [r.getMessage() for r in caplog.records if "has waited" in r.getMessage()]
    assert "'old'" in warnings[0]
    assert f"beat at {__file__}:" in warnings[0]
    assert len(warnings) < 10
    assert WARN_AFTER_S < clock.ahead < 1000
    assert executed == {"old": 1}


def test_a_new_call_that_waits_is_stopped_at_once(clock: Clock) -> None:
    async def agent(run: Run) -> None:
        async def slow() -> None:
            await asyncio.sleep(400 if run.recovery_count else 0)
            await run.call(send, "slow")

        async def quick() -> None:
            if not run.recovery_count:
                await asyncio.sleep(5)
                raise DiesError
            asyncio.get_running_loop().call_later(10, of.stop)
            await run.call(send, "quick")

        await asyncio.gather(slow(), quick())

    of = RecoverableAgent(agent, CheckpointStore(), max_recoveries=1)
    with pytest.raises(StoppedError):
        run_in(clock, of.run_with_recovery("t", "run"))
    assert 10 < clock.ahead < 20
    assert executed == {"slow": 1}


@pytest.mark.parametrize("action", ["call", "message"])
def test_what_a_cancelled_tool_has_left_does_nothing_more(clock: Clock, action: str) -> None:
    @tool(after_crash="retry")
    async def leaves(run: Run) -> None:
        async def later() -> None:
            await asyncio.sleep(5)
            if action == "call":
                await run.call(send, "late")
            else:
                run.messages.append("late")

        tasks.append(asyncio.create_task(later()))
        await run.call(look, "inside")
        await asyncio.sleep(100)

    async def agent(run: Run) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                await run.call(tool(after_crash="retry")(partial(leaves, run)))
        await asyncio.sleep(50)

    tasks: list[asyncio.Task[None]] = []
    of = RecoverableAgent(agent, CheckpointStore())
    run_in(clock, of.run_with_recovery("t", "run"))
    assert isinstance(tasks[0].exception(), LeftBehindError)
    assert executed == {"inside": 1}


def test_a_sleep_behind_all_that_is_recorded_is_nobodys_business(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "recovery")

    async def agent(run: Run) -> None:
        await run.call(look, "a")
        await asyncio.sleep(10)
        if not run.recovery_count:
            raise DiesError

    twice(clock, agent)
    assert clock.ahead > 15
    assert not [one for one in caplog.records if "its recovery waits" in one.getMessage()]


def test_a_heartbeat_holds_up_no_outcome(clock: Clock) -> None:
    async def heartbeat() -> None:
        while True:  # noqa: ASYNC110 - as agents do
            await asyncio.sleep(1)

    async def agent(run: Run) -> Any:
        beat = asyncio.create_task(heartbeat())
        try:
            names = "ba" if run.recovery_count else "ab"  # asked for in another order
            found = [await run.call(look, name) for name in names]
            if not run.recovery_count:
                raise DiesError
            return found
        finally:
            beat.cancel()

    assert twice(clock, agent) == ["b", "a"]
    assert executed == {"a": 1, "b": 1}
    assert clock.ahead < 60


def test_a_checkpoint_covers_what_a_replay_has_postponed(clock: Clock) -> None:
    lives: list[str] = []

    async def agent(run: Run) -> Any:
        async def says() -> None:
            if not lives:  # the second time, it is before what is recorded
                await asyncio.sleep(5)
            run.messages.append("once")

        async def calls() -> None:
            await run.call(look, "a")
            if not lives:
                lives.append("first")
                raise Died
            await asyncio.sleep(1)

        async for step in run.steps():
            if step == 2:
                lives.append("again")
                if len(lives) == 2:
                    raise Died
                return list(run.messages)
            await asyncio.gather(says(), calls())

    async def job() -> Any:
        for _ in range(2):
            with pytest.raises(Died):
                await of.run_with_recovery("t", "run")
        return await of.run_with_recovery("t", "run")

    of = RecoverableAgent(agent, CheckpointStore(), 1)
    ended = run_in(clock, job())
    assert (ended["result"], ended["report"].drift) == (["once"], ())


def test_a_call_that_waits_for_its_turn_when_the_run_ends_does_not_wait_for_ever(
    clock: Clock,
) -> None:
    left: list[asyncio.Task[Any]] = []

    async def agent(run: Run) -> None:
        if run.recovery_count:
            left.append(asyncio.create_task(run.call(look, "new")))
            await asyncio.sleep(1)
        else:
            await run.call(look, "recorded")
        raise DiesError

    async def job() -> None:
        of = RecoverableAgent(agent, CheckpointStore(), max_recoveries=0)
        for _ in range(2):
            with pytest.raises(DiesError):
                await of.run_with_recovery("t", "run")
        await asyncio.wait(left, timeout=5)
        assert left[0].done() and left[0].exception() is not None

    run_in(clock, job())
    assert executed == {"recorded": 1}


def test_code_that_sleeps_between_its_calls_is_waited_for_each_time(clock: Clock) -> None:
    lives = []

    async def slow(run: Run, order: list[Any], ended: asyncio.Event) -> None:
        for n in range(4):
            for _ in range(4):
                await asyncio.sleep(0.01)
            order.append(await run.call(look, n))
        ended.set()

    async def agent(run: Run) -> list[Any]:
        lives.append(1)
        order: list[Any] = []
        ended = asyncio.Event()

        @tool(after_crash="retry")
        async def last() -> str:
            await ended.wait()
            return "last"

        async def fast() -> None:
            order.append(await run.call(last))

        await asyncio.gather(fast(), slow(run, order, ended))
        if len(lives) == 1:
            raise OSError
        return order

    assert twice(clock, agent) == [0, 1, 2, 3, "last"]


def test_a_read_that_is_made_again_comes_behind_what_was_recorded_then(clock: Clock) -> None:
    @tool(after_crash="retry")
    async def asks() -> str:
        executed["asks"] += 1
        if executed["asks"] == 1:
            await asyncio.Event().wait()
        return "an answer"

    async def agent(run: Run) -> list[str]:
        order: list[str] = []

        async def asking() -> None:
            order.append(await run.call(asks))

        async def looking() -> None:
            for _ in range(40):
                await asyncio.sleep(0)
            order.append(await run.call(look, "a page"))
            if executed["asks"] == 1:
                raise DiesError

        await asyncio.gather(asking(), looking())
        return order

    assert twice(clock, agent) == ["a page", "an answer"]
    assert executed == {"asks": 2, "a page": 1}


def test_threads_of_an_async_agent_get_their_results_in_the_recorded_order() -> None:
    order: list[str] = []
    killed: list[CheckpointStore] = []
    b_has, a_asks, died = (threading.Event() for _ in range(3))

    @tool(after_crash="retry")
    def outer(what: str) -> str:
        if what == ("b" if killed else "a"):
            (a_asks if killed else b_has).wait(30)
        elif killed:
            a_asks.set()
        order.append(str(look_at(what)))
        b_has.set()
        if len(order) == 2:  # and neither of the outer calls has an outcome
            killed.append(after_death(store))
            died.set()
        died.wait(30)
        return order[-1]

    async def agent(run: Run) -> Any:
        return await asyncio.gather(run.call(outer, "a"), run.call(outer, "b"))

    store = disk_store()
    run(agent, store)
    run(agent, killed[0])
    assert order == ["b", "a"] * 2
    assert executed == {"a": 1, "b": 1}


def test_a_thread_of_a_plain_agent_may_take_its_time_before_a_recorded_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("recovery.agent.replay_order.GRACE_S", 0.01)

    def agent(run: SyncRun) -> Any:
        life = min(run.recovery_count, 1)

        def work() -> Any:
            if life:
                sum(i % 7 for i in range(2_000_000))  # longer than any grace
            return run.call(look, "in a thread")

        with ThreadPoolExecutor(1) as pool:
            started = pool.submit(work)
            if not life:
                started.result()
                raise DiesError
            return [run.call(look, "new"), started.result()]

    of = RecoverableAgent(agent, CheckpointStore(), max_recoveries=1)
    found = of.run_with_recovery_sync("t", "run")["result"]
    assert found == ["new", "in a thread"]
    assert executed == {"new": 1, "in a thread": 1}


def test_threads_that_were_there_before_the_run_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(STRICT_WAIT_S, Blocking.RUNNABLE, 60.0)
    names, over = iter(["old", "new"]), threading.Event()

    def busy() -> None:
        while not over.is_set():
            sum(range(1000))

    def agent(run: SyncRun) -> None:
        run.call(look_at, next(names))
        raise DiesError

    other = threading.Thread(target=busy)
    other.start()
    began = time.monotonic()
    try:
        with pytest.raises(DivergenceError):
            RecoverableAgent(agent, CheckpointStore()).run_with_recovery_sync("t", "run")
        assert time.monotonic() - began < 50
    finally:
        over.set()
        other.join()


OTHER = threading.Thread()


@pytest.mark.parametrize(
    ("turn", "held", "beside", "in_flight", "home", "seconds"),
    [
        (7, Blocking.ON_REPLAY, 0, 1, True, 0.0),
        (7, Blocking.UNKNOWN, 1, 1, True, 0.1),  # whoever holds it up is no call of the agent
        (7, Blocking.UNKNOWN, 1, 2, True, 0.5),
        (7, Blocking.UNKNOWN, 1, 1, False, 0.5),
        (7, Blocking.RUNNABLE, 1, 1, True, 10.0),
        (0, Blocking.ON_REPLAY, 1, 2, True, 0.1),
        (0, Blocking.UNKNOWN, 1, 2, True, 60.0),
        (0, Blocking.UNKNOWN, 1, 1, False, 60.0),
        (0, Blocking.RUNNABLE, 1, 1, True, 600.0),
    ],
)
@pytest.mark.parametrize("before_loop", [False, True])
def test_a_thread_waits_as_long_as_others_may_go_on(
    turn: int,
    held: Blocking,
    beside: int,
    in_flight: int,
    home: bool,
    seconds: float,
    before_loop: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [0.0]

    def sleep(pause: float) -> None:
        now[0] += pause

    module = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr("recovery.agent.replay_order.time", module)
    monkeypatch.setattr("recovery.agent.replay_order.threads_blocking", lambda *args: held)
    monkeypatch.setattr(ThreadReplayOrder, "_others", lambda *args: [OTHER] * beside)
    run: Any = SimpleNamespace(
        run_id="run",
        replay=SimpleNamespace(matches=0),
        is_closed=False,
        in_flight=in_flight,
        before_loop=before_loop,
        missing=lambda: (3, "the call"),
    )
    turns = ThreadReplayOrder(run)
    if not home:
        turns._home = OTHER
    assert not turns.wait(WaitForTurn(lambda: False, turn))
    if before_loop:  # where calls may be left out
        seconds = min(seconds, 0.5)
    assert now[0] == pytest.approx(seconds, abs=0.01)
    assert bool(caplog.records) == (seconds > WARN_AFTER_S)
    run.is_closed, now[0] = True, 0.0
    assert not turns.wait(WaitForTurn(lambda: False, turn))
    assert now[0] == 0


def test_an_outcome_waits_a_moment_for_what_other_code_may_still_ask_for_first(
    clock: Clock,
) -> None:
    """Edited code asks for its results in another order, beside a task that waits for something."""

    async def agent(run: Run) -> Any:
        waits = asyncio.create_task(asyncio.Event().wait())
        if run.recovery_count:
            second = await run.call(send, "second")
            waits.cancel()
            return [await run.call(send, "first"), second]
        await asyncio.gather(run.call(send, "first"), run.call(send, "second"))
        raise Died

    store = die_in(agent, disk_store())
    before = clock.ahead
    assert run(agent, store)["result"] == ["first", "second"]
    assert clock.ahead - before < 5
    assert executed == {"first": 1, "second": 1}


@pytest.mark.parametrize("at_home", [True, False])
def test_a_new_call_waits_for_what_is_recorded_and_goes_on_in_another_loop(at_home: bool) -> None:
    """The one that is recorded is made again after a moment; the new one would be at once."""

    async def agent(run: Run) -> Any:
        async def recorded() -> Any:
            await asyncio.sleep(0.2)
            return await run.call(send, "recorded")

        async def new() -> Any:
            return await run.call(send, "new") if run.recovery_count else None

        def elsewhere() -> Any:
            return asyncio.run(new())

        found = await asyncio.gather(recorded(), new() if at_home else asyncio.to_thread(elsewhere))
        if not run.recovery_count:
            raise Died
        return found

    store = die_in(agent, disk_store())
    assert run(agent, store)["result"] == ["recorded", "new"]
    assert executed == {"recorded": 1, "new": 1}


# -- the end of a run that was stopped in a task


def test_a_run_that_is_stopped_in_a_worker_ends_where_its_consumer_waits() -> None:
    @tool
    async def cut(what: str) -> None:
        executed[what] += 1
        if executed[what] == 1:
            raise KeyboardInterrupt  # as a process that ends does

    async def agent(run: Run) -> Any:
        done: asyncio.Queue[Any] = asyncio.Queue()

        async def worker() -> None:
            try:
                done.put_nowait(await run.call(cut, "job"))
            except BaseException:  # nobody awaits this task
                if not run.recovery_count:
                    raise

        task = asyncio.create_task(worker())
        found = await done.get()
        await task
        return found

    of = RecoverableAgent(agent, CheckpointStore())
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(of.run_with_recovery("t", "run"))

    async def outer() -> int:
        with pytest.raises(InDoubtError):
            async with asyncio.timeout(20) as timer:
                await of.run_with_recovery("t", "run")
        assert not timer.expired()
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    assert asyncio.run(outer()) == 0
    assert executed == {"job": 1}
