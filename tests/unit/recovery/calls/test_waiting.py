"""Sleeping, signals, cancellation and parking: what a run waits for, and what others send it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock
from unittest.mock import Mock

import pytest

import recovery.calls.waiting
from eventlog import EventLog, RefusedValueError
from eventlog.files.posix import OSFile
from recovery import CheckpointStore, InDoubtError, RecoverableAgent, RecoveryError, Retry, tool
from recovery.agent.run import execution_of
from recovery.calls.waiting import wait
from recovery.control.cancel import cancel
from recovery.control.send import signal
from recovery.engine.drive import drive, drive_async
from recovery.engine.driver_effects import Waiting
from recovery.errors import (
    DamagedRunError,
    ParkedError,
    RunCancelledError,
    RunFailedError,
    StoppedError,
    WaitingError,
)
from recovery.inspect.run_event import RunEvent
from recovery.inspect.status import status
from recovery.journal.events import RunCancelled, RunParked, SignalTaken
from recovery.ops.fork import fork
from recovery.testing.simulated.virtual_time import Clock, Loop
from tests.support.lives import RUN, Died, recorded


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Any) -> CheckpointStore:
    return CheckpointStore(None if request.param == "memory" else tmp_path / "runs")


@pytest.fixture(params=["async", "plain"])
def go(request: pytest.FixtureRequest, clock: Clock) -> Callable[..., Any]:
    """Runs an agent that is written as a generator of (method, arguments) of its run."""

    def run(store: CheckpointStore, body: Callable[[Any], Any], **options: Any) -> Any:
        async def agent(run: Any) -> Any:
            return await drive_async(body(run), lambda op: getattr(run, op[0])(*op[1:]))

        def plain(run: Any) -> Any:
            return drive(body(run), lambda op: getattr(run, op[0])(*op[1:]))

        options.setdefault("max_recoveries", 0)
        if request.param == "plain":
            runner = RecoverableAgent(plain, store, **options)
            return runner.run_with_recovery_sync("task", RUN)["result"]
        return live(clock, RecoverableAgent(agent, store, **options))

    return run


def live(clock: Clock, agent: RecoverableAgent) -> Any:
    loop = Loop(clock)
    try:
        return loop.run_until_complete(agent.run_with_recovery("task", RUN))["result"]
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.close()


# -- sleeping


def test_a_sleep_ends_at_the_deadline_that_was_recorded_first(
    store: CheckpointStore, go: Any, clock: Clock
) -> None:
    woke: list[float] = []
    began = time.time()

    def agent(run: Any) -> Any:
        yield "sleep", 100 if not woke else 5000
        woke.append(time.time())

    store.claim(RUN).close()
    with pytest.raises(WaitingError) as parked:
        go(store, agent, park_after_s=10)
    assert parked.value.wake_at == pytest.approx(began + 100, abs=1)
    woke.append(0)
    clock.ahead += 50
    go(store, agent)
    assert woke[1] == pytest.approx(began + 100, abs=2)


def test_a_clock_that_is_set_back_makes_a_sleep_no_longer_than_it_was_to_be(
    store: CheckpointStore, go: Any, clock: Clock
) -> None:
    wall, monotonic = time.time, time.monotonic
    began: list[float] = []

    def agent(run: Any) -> Any:
        began.append(monotonic())
        yield "sleep", 60
        return monotonic() - began[-1]

    def behind() -> float:
        return wall() - (3600 if began and monotonic() > began[0] + 5 else 0)

    with mock.patch.object(time, "time", behind):
        assert 60 <= go(store, agent) < 63


def test_a_clock_that_is_set_forward_ends_a_sleep(store: CheckpointStore, go: Any) -> None:
    wall, monotonic = time.time, time.monotonic
    began: list[float] = []

    def agent(run: Any) -> Any:
        began.append(monotonic())
        yield "sleep", 60
        return monotonic() - began[-1]

    def ahead() -> float:
        return wall() + (10**6 if began and monotonic() > began[0] + 5 else 0)

    with mock.patch.object(time, "time", ahead):
        assert 5 <= go(store, agent) < 8


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), None])
def test_a_sleep_of_no_duration_is_refused(store: CheckpointStore, go: Any, seconds: Any) -> None:
    def agent(run: Any) -> Any:
        yield "sleep", 0
        slept.append(0)
        yield "sleep", seconds

    slept: list[int] = []
    with pytest.raises((TypeError, ValueError), match=r"run\.sleep"):
        go(store, agent)
    assert slept == [0]


@pytest.mark.parametrize(("park_after_s", "calls", "inside"), [(None, (), 0), (10, (3, 7), 7)])
def test_a_wait_looks_after_a_tenth_of_the_time_it_has_lasted_and_once_a_second(
    park_after_s: float | None, calls: Any, inside: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And says after how long it has to look at the latest."""
    now = 1000.0
    monkeypatch.setattr(recovery.calls.waiting, "time", SimpleNamespace(monotonic=lambda: now))
    run = Mock(waits=[], waiting=0, in_flight=1, idle_since=None, wall_clock=lambda: now)
    run.current_scope().calls, run.settings.park_after_s = calls, park_after_s
    run.children.idle.return_value = 0
    waiting = Waiting(9, "a wait", 1015.5, lambda: None, began=now)
    for nap in wait(run, waiting):
        assert (waiting.inside, run.waiting, run.waits) == (inside, 1, [waiting])
        lasted, left = now - 1000, 1015.5 - now
        assert nap.seconds == pytest.approx(min(max(0.02, lasted / 10), 1, left))
        parks_in = 0 if park_after_s is None else park_after_s - lasted  # then it is not worth it
        assert nap.due_s == pytest.approx(min(left, parks_in) if parks_in > 0 else left)
        now += nap.seconds
    assert (now, run.waiting, run.waits) == (1015.5, 0, [])


# -- signals


def waiter(*names: str, timeout: float | None = None) -> Callable[[Any], Any]:
    def agent(run: Any) -> Any:
        got = []
        for name in names:
            got.append((yield "wait_for", name, timeout))
        return got

    return agent


def parked(go: Any, store: CheckpointStore, agent: Any) -> WaitingError:
    with pytest.raises(WaitingError) as stop:
        go(store, agent, park_after_s=1)
    return stop.value


def test_what_was_taken_before_a_checkpoint_is_spent(store: CheckpointStore, clock: Clock) -> None:
    async def counting(run: Any) -> list[int]:
        async for step in run.steps():
            run.messages.append(await run.wait_for("a"))
            if step == 6:
                return list(run.messages)
        raise AssertionError

    for value in range(6):
        with pytest.raises(WaitingError):
            live(clock, RecoverableAgent(counting, store, 2, park_after_s=1))
        signal(store, RUN, "a", value)
    assert live(clock, RecoverableAgent(counting, store, 2)) == list(range(6))


def test_a_wait_that_times_out_raises_the_same_on_replay(
    store: CheckpointStore, go: Any, clock: Clock
) -> None:
    lives: list[str] = []

    def agent(run: Any) -> Any:
        try:
            yield "wait_for", "a", 50
        except TimeoutError as exc:
            lives.append(str(exc))
        if len(lives) == 1:
            raise Died
        return (yield "wait_for", "a", 50)

    with pytest.raises(Died):
        go(store, agent)
    signal(store, RUN, "a", "late")
    assert go(store, agent) == "late"
    assert lives == ["no signal 'a' came within 50 s"] * 2


def test_the_deadline_of_a_wait_is_the_one_recorded_first(
    store: CheckpointStore, go: Any, clock: Clock
) -> None:
    began = time.time()
    wake_at = parked(go, store, waiter("a", timeout=50)).wake_at
    assert wake_at is not None and began <= wake_at - 50 <= time.time()
    clock.ahead += 49
    with pytest.raises(RunFailedError, match="within 50 s"):
        go(store, waiter("a", timeout=1000))
    assert time.time() - began < 60


def test_two_waits_for_one_name_take_one_signal_each(store: CheckpointStore, clock: Clock) -> None:
    async def agent(run: Any) -> list[int]:
        return sorted(await asyncio.gather(run.wait_for("a"), run.wait_for("a")))

    agent_of = RecoverableAgent(agent, store, park_after_s=1)
    with pytest.raises(WaitingError) as stop:
        live(clock, agent_of)
    assert stop.value.waits_for == ("signal 'a'",) * 2
    signal(store, RUN, "a", 1)
    with pytest.raises(WaitingError) as stop:
        live(clock, agent_of)
    assert stop.value.waits_for == ("signal 'a'",)
    signal(store, RUN, "a", 2)
    assert live(clock, agent_of) == [1, 2]


def test_a_wait_without_a_time_out_does_not_end_as_an_equal_one_did_that_had_one(
    store: CheckpointStore, clock: Clock
) -> None:
    """In a second attempt, calls that returned come before those that failed."""
    failures = ["the first attempt"]

    async def agent(run: Any) -> Any:
        @tool(retry=Retry(2, delay_s=0))
        async def order() -> list[str]:
            try:
                first = await run.wait_for("a", timeout=1)
            except TimeoutError:
                first = "late"
            signal(store, RUN, "a", "paid", key="once")
            second = await run.wait_for("a")
            while failures:
                raise ConnectionError(failures.pop())
            return [first, second]

        return await order()

    assert live(clock, RecoverableAgent(agent, store)) == ["late", "paid"]


def test_open_waits_keep_their_deadlines_whichever_comes_first_after_a_crash(
    store: CheckpointStore, clock: Clock
) -> None:
    waits: list[Any] = [{"timeout": 50}, {}]

    async def agent(run: Any) -> Any:
        async def wait(options: Any) -> Any:
            try:
                return await run.wait_for("a", **options)
            except TimeoutError:
                return "late"

        return await asyncio.gather(*map(wait, waits))

    agent_of = RecoverableAgent(agent, store, park_after_s=1)
    with pytest.raises(WaitingError):
        live(clock, agent_of)
    waits.reverse()
    clock.ahead += 100
    with pytest.raises(WaitingError):
        live(clock, agent_of)
    signal(store, RUN, "a", "paid")
    assert live(clock, agent_of) == ["paid", "late"]


def test_a_signal_with_a_key_is_sent_once(store: CheckpointStore, go: Any) -> None:
    parked(go, store, waiter("a"))
    for _ in range(3):
        signal(store, RUN, "a", 1, key="first")
    signal(store, RUN, "a", 1)
    signal(store, RUN, "a", 2, key="second")
    with pytest.raises(ValueError, match="something else under 'first'"):
        signal(store, RUN, "a", 3, key="first")
    assert go(store, waiter("a", "a", "a")) == [1, 1, 2]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("a", float("inf")), "timeout is a number of seconds; None waits for ever"),
        (("a", -1), "timeout is"),
        (((),), r"a tuple of names, not \(\)"),
        ((["a"],), r"a tuple of names, not \['a'\]"),
        ((("a", 5),), r"a tuple of names, not \('a', 5\)"),
        ((("a", ""),), "name is 1 to 200"),
    ],
)
def test_a_wait_says_what_it_takes(
    store: CheckpointStore, go: Any, given: tuple[Any, ...], says: str
) -> None:
    def agent(run: Any) -> Any:
        yield "wait_for", *given

    with pytest.raises((TypeError, ValueError), match=says):
        go(store, agent)


def test_nothing_is_sent_to_a_run_that_is_not_there_or_has_ended(
    store: CheckpointStore, go: Any
) -> None:
    for send in (lambda: signal(store, RUN, "a"), lambda: cancel(store, RUN)):
        with pytest.raises(RecoveryError, match="there is no run 'run'"):
            send()
    assert store.backend.run_ids() == []
    go(store, waiter())
    for send in (lambda: signal(store, RUN, "a"), lambda: cancel(store, RUN)):
        with pytest.raises(RecoveryError, match=r"has ended \(finished\)"):
            send()
    assert store.backend.inbox(RUN) is None


def test_a_signal_that_cannot_be_carried_is_refused(store: CheckpointStore, go: Any) -> None:
    parked(go, store, waiter("a"))
    with pytest.raises(RefusedValueError, match=r"value\.x"):
        signal(store, RUN, "a", {"x": object()})
    for name in ("", "n" * 201):
        with pytest.raises(ValueError, match="name is 1 to 200"):
            signal(store, RUN, name)
        with pytest.raises(ValueError, match="name is 1 to 200"):
            go(store, waiter(name))


def test_a_message_counts_once_it_is_durable(tmp_path: Any, go: Any) -> None:
    store = CheckpointStore(tmp_path)
    parked(go, store, waiter("a"))
    with EventLog.open(tmp_path / RUN / "inbox") as inbox:
        for value in (1, 2):
            body = {"name": "a", "value": value, "uid": status(store, RUN).uid}
            inbox.append("signal", body)
            assert parked(go, store, waiter(*["a"] * value)).waits_for == ("signal 'a'",)
            inbox.commit()
        assert go(store, waiter("a", "a")) == [1, 2]


def test_the_inbox_is_read_on_from_where_it_was_left(
    tmp_path: Any, go: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(tmp_path)
    parked(go, store, waiter("a", timeout=1000))
    with EventLog.open(tmp_path / RUN / "inbox") as inbox:
        body = {"name": "other", "value": "x" * 50, "uid": status(store, RUN).uid}
        inbox.append_batch([("signal", body)] * 10_000)
    reads: list[int] = []
    pread = OSFile.pread

    def counted(file: OSFile, size: int, offset: int) -> bytes:
        reads.append(size)
        return pread(file, size, offset)

    monkeypatch.setattr(OSFile, "pread", counted)
    parked(go, store, waiter("a", timeout=1000))
    looks = len(reads)
    assert sum(reads) < 20 << 20
    reads.clear()
    with pytest.raises(RunFailedError):
        go(store, waiter("a", timeout=1000))
    assert len(reads) > 2 * looks, "it has looked often"
    assert sum(reads) < 20 << 20, "and not read it all each time"


def test_a_fork_has_an_inbox_of_its_own(store: CheckpointStore, clock: Clock) -> None:
    async def agent(run: Any) -> list[Any]:
        async for step in run.steps():
            run.messages.append(await run.wait_for("a"))
            if step == 4:
                break
        return list(run.messages)

    def go_on(run_id: str) -> Any:
        loop = Loop(clock)
        of = RecoverableAgent(agent, store, 2, park_after_s=1)
        try:
            return loop.run_until_complete(of.run_with_recovery("task", run_id))["result"]
        finally:
            loop.close()

    with pytest.raises(WaitingError):
        go_on(RUN)
    for value in range(3):
        signal(store, RUN, "a", value)
    with pytest.raises(WaitingError):
        go_on(RUN)
    fork(store, RUN, "other")
    signal(store, "other", "a", "of the fork")
    signal(store, RUN, "a", 3)
    assert go_on("other") == [0, 1, 2, "of the fork"]
    assert go_on(RUN) == [0, 1, 2, 3]


def test_damage_in_the_inbox_stops_the_run(tmp_path: Any, go: Any) -> None:
    store = CheckpointStore(tmp_path)
    parked(go, store, waiter("a"))
    for value in ("first", "second"):
        signal(store, RUN, "a", value)
    (segment,) = (tmp_path / RUN / "inbox").glob("*.seg")
    content = bytearray(segment.read_bytes())
    content[content.index(b"first")] ^= 1
    segment.write_bytes(content)
    with pytest.raises(DamagedRunError, match="LSN 1") as stop:
        go(store, waiter("a"))
    assert "inbox" in stop.value.__notes__[0]
    assert not recorded(store, SignalTaken)


# -- cancellation


def test_a_run_that_no_process_has_is_ended_at_once(store: CheckpointStore, go: Any) -> None:
    parked(go, store, waiter("a"))
    cancel(store, RUN, who="ann", why="too dear")
    (ended,) = recorded(store, RunCancelled)
    assert (ended.who, ended.why, ended.inbox) == ("ann", "too dear", 1)
    for _ in range(2):
        with pytest.raises(RunCancelledError, match="'run' was cancelled by ann: too dear"):
            go(store, waiter("a"))
    with pytest.raises(RecoveryError, match="has ended"):
        cancel(store, RUN)


def test_a_live_run_ends_at_the_next_thing_that_it_does(store: CheckpointStore, go: Any) -> None:
    done: list[str] = []

    @tool
    def act(x: str) -> None:
        if x == "first":
            cancel(store, RUN, why="enough")
            time.sleep(1)
        done.append(x)

    def agent(run: Any) -> Any:
        yield "call", act, "first"
        yield "call", act, "second"

    for _ in range(2):
        with pytest.raises(RunCancelledError, match="enough"):
            go(store, agent)
    assert done == ["first"]
    assert len(recorded(store, RunCancelled)) == 1


@pytest.mark.parametrize("wait", [("sleep", 3600), ("wait_for", "a", 3600)])
def test_a_run_that_waits_is_stopped(
    store: CheckpointStore, go: Any, clock: Clock, wait: Any
) -> None:
    runs: list[Any] = []

    def agent(run: Any) -> Any:
        runs.append(execution_of(run))
        yield wait

    def stop(event: RunEvent) -> None:
        if event.kind == "call":
            runs[0].cancel(StoppedError(RUN, "enough"))

    with pytest.raises(StoppedError, match="enough"):
        go(store, agent, on_event=stop)
    assert clock.ahead < 60


def test_a_run_that_waits_is_ended(store: CheckpointStore, go: Any) -> None:
    def cancel_it() -> None:
        cancel(store, RUN)

    def cancelling(run: Any) -> Any:
        yield "call", cancel_it
        yield "wait_for", "a"

    with pytest.raises(RunCancelledError):
        go(store, cancelling)


def test_a_cancelled_run_says_what_is_in_doubt(store: CheckpointStore, go: Any) -> None:
    @tool
    def pay() -> None:
        raise Died

    def agent(run: Any) -> Any:
        yield "call", pay

    with pytest.raises(Died):
        go(store, agent)
    with pytest.raises(InDoubtError) as doubt:
        go(store, agent)
    cancel(store, RUN)
    with pytest.raises(RunCancelledError, match="In doubt when it ended") as ended:
        go(store, agent)
    assert list(ended.value.in_doubt) == [call.lsn for call in doubt.value.calls]


# -- parking


def test_a_run_that_only_waits_parks_and_goes_on(store: CheckpointStore, go: Any) -> None:
    def agent(run: Any) -> Any:
        yield "sleep", 0.5
        return (yield "wait_for", "a", 1000)

    stop = parked(go, store, agent)
    assert stop.waits_for[0].startswith("signal 'a', until ")
    (record,) = recorded(store, RunParked)
    assert record.why == f"waits for {stop.waits_for[0]}"
    assert record.wake_at == stop.wake_at
    signal(store, RUN, "a", "here")
    assert go(store, agent, park_after_s=1) == "here"


def test_a_run_is_not_idle_while_its_child_is_at_work(store: CheckpointStore, clock: Clock) -> None:
    @tool
    async def works() -> None:
        await asyncio.sleep(100)

    async def child(run: Any) -> None:
        asyncio.get_running_loop().call_later(30, signal, store, run.run_id, "a")
        await run.wait_for("a")
        await run.call(works)
        await run.wait_for("b")

    async def agent(run: Any) -> None:
        await asyncio.gather(run.child(child, "task"), run.wait_for("b"))

    began = time.monotonic()
    with pytest.raises(ParkedError):
        live(clock, RecoverableAgent(agent, store, park_after_s=50))
    assert time.monotonic() - began > 170


def test_a_run_that_gets_signals_is_not_idle(store: CheckpointStore, clock: Clock) -> None:
    async def agent(run: Any) -> None:
        for number in range(1, 6):
            asyncio.get_running_loop().call_later(5 * number, signal, store, RUN, "tick")

        async def ticks() -> None:
            while True:
                await run.wait_for("tick")

        await asyncio.gather(run.wait_for("a"), ticks())

    began = time.monotonic()
    with pytest.raises(WaitingError):
        live(clock, RecoverableAgent(agent, store, park_after_s=8))
    assert time.monotonic() - began > 25 + 8


def test_a_run_does_not_park_while_a_call_is_at_work(store: CheckpointStore, clock: Clock) -> None:
    done: list[float] = []

    @tool
    async def slow() -> None:
        await asyncio.sleep(100)
        done.append(1)

    async def agent(run: Any) -> None:
        await asyncio.gather(run.wait_for("a"), slow())

    with pytest.raises(WaitingError):
        live(clock, RecoverableAgent(agent, store, park_after_s=10))
    assert done
    with pytest.raises(WaitingError):
        live(clock, RecoverableAgent(agent, store, park_after_s=10))
    assert done == [1]
