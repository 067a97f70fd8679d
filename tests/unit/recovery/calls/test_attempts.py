"""Attempts, time-outs and cancellation of calls, each over crashes."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

import recovery.agent.drivers
import recovery.agent.recoverable
import recovery.calls.attempts
from recovery import (
    CheckpointStore,
    InDoubtError,
    PermanentError,
    RecoverableAgent,
    Resolution,
    Retry,
    Run,
    SyncRun,
    current_call,
    tool,
)
from recovery.agent.run import execution_of
from recovery.calls.waiting import is_due
from recovery.control.resolve import resolve
from recovery.control.send import signal
from recovery.errors import RunFailedError
from recovery.journal.events import AttemptFailed, CallAbandoned, CallIntended
from tests.support.lives import (
    RUN,
    Died,
    after_death,
    die_in,
    disk_store,
    executed,
    recorded,
    run,
    run_sync,
)


class Pauses:
    """Time that passes only where something waits for it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []
        self.lethal = self.runs = False

    def time(self) -> float:
        self.now += self.runs
        assert self.now < 1010 or not self.runs, "a call waits for ever"
        return self.now

    def sleep(self, seconds: float) -> None:
        if self.lethal:
            raise Died
        self.now += seconds
        self.slept.append(seconds)

    def module(self) -> SimpleNamespace:
        return SimpleNamespace(time=self.time, monotonic=lambda: self.now, sleep=self.sleep)


pytestmark = pytest.mark.usefixtures("fresh", "clock")


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> Pauses:
    pauses = Pauses()
    monkeypatch.setattr(recovery.agent.drivers, "time", pauses.module())
    return pauses


def sync(agent: Any, store: CheckpointStore, **options: Any) -> Any:
    return run_sync(agent, store, **options)["result"]


# -- attempts


@tool(retry=Retry(attempts=3, delay_s=10, jitter=0))
def flaky(what: str, failures: int) -> Any:
    executed[what] += 1
    call = current_call()
    assert call is not None
    assert call.attempt == executed[what]
    if executed[what] <= failures:
        raise ConnectionError(f"attempt {call.attempt}")
    return call.attempt


def test_a_call_that_raises_is_made_again_after_a_pause_that_grows(pauses: Pauses) -> None:
    store = disk_store()
    assert sync(lambda run: run.call(flaky, "a", 2), store) == 3
    assert executed == {"a": 3}
    assert sum(pauses.slept) == pytest.approx(10 + 20)
    assert [one.attempt for one in recorded(store, AttemptFailed)] == [1, 2]
    assert [one.message for one in recorded(store, AttemptFailed)] == ["attempt 1", "attempt 2"]


def test_the_last_failure_is_the_outcome() -> None:
    store = disk_store()
    with pytest.raises(RunFailedError, match="attempt 3"):
        sync(lambda run: run.call(flaky, "a", 9), store)
    assert executed == {"a": 3}


def test_an_async_call_is_made_again() -> None:
    @tool(retry=Retry(attempts=4, delay_s=0), after_crash="retry")
    async def search(what: str) -> int:
        executed[what] += 1
        if executed[what] < 4:
            raise TimeoutError
        return executed[what]

    async def agent(run: Run) -> Any:
        return await run.call(search, "x")

    assert run(agent, disk_store())["result"] == 4


def test_attempts_survive_the_crash_and_so_does_the_time_of_the_next(pauses: Pauses) -> None:
    def agent(run: SyncRun) -> Any:
        return run.call(flaky, "a", 9)

    store = disk_store()
    pauses.lethal = True
    with pytest.raises(Died):  # between the first attempt and the second
        sync(agent, store)
    pauses.lethal = False
    store = after_death(store)
    pauses.now += 4
    with pytest.raises(RunFailedError, match="attempt 3"):
        sync(agent, store)
    assert executed == {"a": 3}  # the first was in the process that died
    assert sum(pauses.slept) == pytest.approx(6 + 20)


def test_a_run_that_parks_names_each_call_once_that_would_park_it_next() -> None:
    async def act(what: str) -> None:
        executed[what] += 1
        await asyncio.Event().wait()

    async def agent(run: Run) -> Any:
        reported = tool(after_crash="report", name="reported")(act)
        calls: Any = (act, "a"), (act, "b"), (reported, "c")
        tasks = [asyncio.create_task(run.call(*one)) for one in calls]
        if len(executed) < 3:
            while len(executed) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            raise Died
        return await asyncio.gather(*tasks)

    store = die_in(agent, disk_store())
    with pytest.raises(InDoubtError) as caught:
        run(agent, store)
    assert sorted((one.tool, *one.args) for one in caught.value.calls) == [
        ("act", "a"),
        ("act", "b"),
    ]


def test_an_attempt_that_a_crash_cut_short_is_in_doubt_as_any() -> None:
    @tool(retry=Retry(attempts=5, delay_s=0))
    def pay() -> str:
        executed["pay"] += 1
        if executed["pay"] == 1:
            raise ConnectionError("refused")
        raise Died

    store = disk_store()
    with pytest.raises(Died):
        sync(lambda run: run.call(pay), store)
    store = after_death(store)
    with pytest.raises(InDoubtError):
        sync(lambda run: run.call(pay), store)
    assert executed == {"pay": 2}


def test_only_the_errors_that_count_are_tried_again() -> None:
    @tool(retry=Retry(delay_s=0, on=(ConnectionError, TimeoutError)))
    def read(error: str) -> None:
        executed[error] += 1
        raise {"io": ConnectionResetError, "value": ValueError, "never": PermanentError}[error]("x")

    def agent(run: SyncRun) -> None:
        for error in ("io", "value"):
            with pytest.raises((ConnectionResetError, ValueError)):
                run.call(read, error)
        run.call(read, "never")

    with pytest.raises(RunFailedError):
        sync(agent, disk_store())
    assert executed == {"io": 3, "value": 1, "never": 1}


def test_a_permanent_error_is_not_tried_again_whatever_counts() -> None:
    retry = Retry(on=lambda error: True)
    assert retry.again(ValueError(), 2)
    assert not retry.again(ValueError(), 3)
    assert not retry.again(PermanentError(), 1)


def test_pauses_are_bounded_and_jittered() -> None:
    retry = Retry(attempts=10**6, delay_s=1, factor=2, max_delay_s=60, jitter=0.5)
    assert [retry.pause_s(OSError(), n, 0.0) for n in (1, 2, 3, 7, 5000)] == [1, 2, 4, 60, 60]
    assert retry.pause_s(OSError(), 3, 0.999) == pytest.approx(2, abs=0.01)
    asked = Retry(delay_s=lambda error, failed: float(str(error)) + failed)
    assert asked.pause_s(OSError("7"), 2, 0.5) == 9
    for wrong in ({"attempts": 0}, {"factor": -1}, {"jitter": 2}, {"max_delay_s": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Retry(**wrong)  # type: ignore[arg-type]


def test_a_replayed_call_is_served_whatever_it_took() -> None:
    def agent(run: SyncRun) -> Any:
        got = run.call(flaky, "a", 2)
        executed["agent"] += 1
        if executed["agent"] == 1:
            raise Died
        return got

    store = disk_store()
    with pytest.raises(Died):
        sync(agent, store)
    assert sync(agent, after_death(store)) == 3
    assert executed["a"] == 3


# -- time-outs


@tool(timeout_s=0.01)
async def hang(what: str) -> str:
    executed[what] += 1
    if executed[what] == 1:
        await asyncio.Event().wait()
    return f"{what} done"


def test_a_side_effect_that_times_out_is_in_doubt() -> None:
    async def agent(run: Run) -> Any:
        return await run.call(hang, "pay")

    store = disk_store()
    with pytest.raises(InDoubtError) as caught:
        run(agent, store)
    assert [one.why for one in recorded(store, CallAbandoned)] == ["timeout"]
    with pytest.raises(InDoubtError):  # the next process knows no more
        run(agent, store)
    resolve(store, "run", caught.value.calls[0].lsn, Resolution.outcome("paid"))
    assert run(agent, store)["result"] == "paid"
    assert executed == {"pay": 1}


@pytest.mark.usefixtures("clock")  # the second attempt is in time
@pytest.mark.parametrize("happened", [True, False, None])
def test_reconciling_after_a_time_out(happened: bool | None) -> None:
    how = {
        True: Resolution.outcome("found it"),
        False: Resolution.retry(),
        None: Resolution.unknown(),
    }[happened]
    asked = tool(reconcile=lambda call: how, retry=Retry(delay_s=0))(hang)

    async def agent(run: Run) -> Any:
        return await run.call(asked, "pay")

    if happened is None:
        with pytest.raises(InDoubtError):
            run(agent, disk_store())
        return
    assert run(agent, disk_store())["result"] == ("found it" if happened else "pay done")
    assert executed["pay"] == (1 if happened else 2)


def test_a_time_out_that_did_not_happen_fails_without_a_retry() -> None:
    asked = tool(reconcile=lambda call: Resolution.retry())(hang)

    async def agent(run: Run) -> str:
        with pytest.raises(TimeoutError, match=r"hang took longer than 0.01 s"):
            await run.call(asked, "pay")
        return "gave up"

    store = disk_store()
    assert run(agent, store)["result"] == "gave up"
    assert run(agent, store)["result"] == "gave up"
    assert executed == {"pay": 1}


@pytest.mark.parametrize("options", [{"after_crash": "retry"}, {"on_timeout": "fail"}])
def test_a_time_out_that_is_a_failure_is_tried_again(options: Any) -> None:
    again = tool(retry=Retry(delay_s=0), timeout_s=2, **options)(hang)  # in a thread of its own
    assert run(lambda run: run.call(again, "x"), disk_store())["result"] == "x done"
    assert executed == {"x": 2}


@pytest.mark.parametrize("how", ["raises", "takes too long", "is tried again"])
@pytest.mark.parametrize("calls_before", [False, True])
def test_what_a_failed_attempt_left_at_work_makes_no_calls(how: str, calls_before: bool) -> None:
    async def agent(run: Run) -> Any:
        ended = asyncio.Event()
        left: list[asyncio.Task[None]] = []

        async def goes_on() -> None:
            await ended.wait()
            await run.call(send, "late")

        options: Any = {
            "takes too long": {"timeout_s": 600},
            "is tried again": {"retry": Retry(2, delay_s=0, jitter=0)},
        }

        @tool(after_crash="retry", **options.get(how, {}))
        async def order() -> str:
            if left:
                return "second attempt"
            left.append(asyncio.create_task(goes_on()))
            if calls_before:
                await run.call(send, "in time")
            if how == "takes too long":
                loop = asyncio.get_running_loop()
                clock = loop.time
                loop.time = lambda: clock() + 3600  # type: ignore[method-assign]
                await asyncio.sleep(9)
            raise OSError("no")

        try:
            found = await run.call(order)
        except OSError as exc:
            found = type(exc).__name__
        ended.set()
        await asyncio.gather(*left, return_exceptions=True)
        return found

    store = CheckpointStore()
    for _ in range(2):  # the second time it is replayed
        found = run(agent, store)["result"]
        assert found == {"raises": "OSError", "takes too long": "TimeoutError"}.get(
            how, "second attempt"
        )
        assert executed == {"in time": 1} if calls_before else not executed


def test_a_time_out_of_the_tool_s_own_is_an_exception_like_any() -> None:
    @tool(timeout_s=60)
    async def own() -> None:
        async with asyncio.timeout(0):
            await asyncio.sleep(1)

    async def agent(run: Run) -> str:
        with pytest.raises(TimeoutError):
            await run.call(own)
        return "caught"

    store = disk_store()
    assert run(agent, store)["result"] == "caught"
    assert recorded(store, CallAbandoned) == []


def test_a_plain_tool_that_takes_too_long_is_left_alone() -> None:
    release, ended = threading.Event(), threading.Event()

    @tool(timeout_s=0.01, on_timeout="fail")
    def slow() -> str:
        release.wait(30)
        ended.set()
        return "too late"

    def agent(run: SyncRun) -> str:
        with pytest.raises(TimeoutError):
            run.call(slow)
        return "went on"

    store = disk_store()
    assert sync(agent, store) == "went on"
    release.set()
    assert ended.wait(30)
    assert sync(agent, store) == "went on"


def test_a_plain_tool_with_a_time_out_makes_calls_and_knows_its_key() -> None:
    @tool
    def inner(x: int) -> int:
        executed["inner"] += 1
        return x + 1

    @tool(timeout_s=60)
    def outer() -> tuple[int, str] | list[Any]:
        call = current_call()
        assert call is not None
        return [inner(1), call.idempotency_key]

    store = disk_store()
    first = sync(lambda run: run.call(outer), store)
    assert first[0] == 2
    assert sync(lambda run: run.call(outer), store) == first
    assert executed["inner"] == 1


# -- cancellation by the agent


@tool(after_crash="retry")
async def ask(what: str) -> str:
    executed[what] += 1
    await asyncio.Event().wait()
    raise AssertionError


@tool
async def send(what: str) -> str:
    executed[what] += 1
    return f"sent {what}"


def cancelling(function: Any, *args: Any) -> Any:
    """An agent that cancels a call and goes on, and whose process dies once, after that."""

    async def agent(run: Run) -> Any:
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                await run.call(function, *args)
        sent = await run.call(send, "next")
        if executed["agent"] == 0:
            executed["agent"] += 1
            raise Died
        return sent

    return agent


async def impatient(run: Run) -> list[str]:
    done = []
    try:
        async with asyncio.timeout(30):
            await run.call(ask, "a")
    except TimeoutError:
        done.append(await run.call(send, "gave up on a"))
    if executed["agent"] == 0:
        executed["agent"] += 1
        raise Died
    return done


def test_what_the_agent_cancelled_is_cancelled_on_replay() -> None:
    store = die_in(impatient, disk_store())
    found = run(impatient, store)
    assert found["result"] == ["sent gave up on a"]
    assert executed == {"a": 1, "gave up on a": 1, "agent": 1}
    (event,) = recorded(store, CallAbandoned)
    assert (event.why, event.went_on, event.begun) == ("cancelled", True, True)


def test_a_side_effect_that_the_agent_cancels_is_in_doubt() -> None:
    slow = tool(timeout_s=600)(hang)

    async def parking(run: Run) -> Any:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await run.call(slow, "pay")
        return await run.call(send, "a reminder")

    store = disk_store()
    with pytest.raises(InDoubtError) as caught:
        run(parking, store)
    assert executed == {"pay": 1}
    resolve(store, "run", caught.value.calls[0].lsn, Resolution.outcome("paid"))

    async def done(run: Run) -> Any:
        return await run.call(slow, "pay")

    assert run(done, store)["result"] == "paid"


def test_a_failing_sibling_cancels_on_replay_as_it_did() -> None:
    @tool
    async def fail() -> None:
        executed["fail"] += 1
        await asyncio.sleep(0.001)
        raise ValueError("no")

    async def agent(run: Run) -> Any:
        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(run.call(ask, "a"))
                group.create_task(run.call(fail))
        sent = await run.call(send, "both over")
        if executed["agent"] == 0:
            executed["agent"] += 1
            raise Died
        return sent

    store = die_in(agent, disk_store())
    assert run(agent, store)["result"] == "sent both over"
    assert executed == {"a": 1, "fail": 1, "both over": 1, "agent": 1}


def test_a_call_that_is_cancelled_when_it_lets_a_wait_go_first_is_in_no_doubt() -> None:
    store = CheckpointStore()

    async def agent(run: Run) -> Any:
        async def pays() -> None:
            for _ in range(1000):
                if is_due(execution_of(run)):
                    break
                await asyncio.sleep(0)
            await run.call(send, "pay")

        signal(store, RUN, "enough")
        task = asyncio.create_task(pays())
        await run.wait_for("enough")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return await run.call(send, "after")

    assert run(agent, store)["result"] == "sent after"
    assert executed == {"after": 1}
    assert [one.tool for one in recorded(store, CallIntended)] == ["wait_for", "send", "send"]
    (abandoned,) = recorded(store, CallAbandoned)
    assert (abandoned.why, abandoned.begun) == ("cancelled", False)


def test_an_agent_that_does_not_cancel_any_more_gets_an_outcome(
    monkeypatch: pytest.MonkeyPatch, pauses: Pauses
) -> None:
    monkeypatch.setattr(recovery.calls.attempts, "LATE_S", 0.0)
    store = die_in(impatient, disk_store())

    @tool(name="ask", after_crash="retry")
    async def answers(what: str) -> str:
        executed["again"] += 1
        return "an answer"

    async def patient(run: Run) -> list[str]:
        assert await run.call(answers, "a") == "an answer"
        return [await run.call(send, "gave up on a")]

    pauses.runs = True
    assert run(patient, store)["result"] == ["sent gave up on a"]
    assert (executed["again"], executed["gave up on a"]) == (1, 1)


@pytest.mark.parametrize("asks", [False, True])
def test_a_wait_that_is_not_cancelled_any_more_is_seen_to_wait(
    monkeypatch: pytest.MonkeyPatch, asks: bool
) -> None:
    monkeypatch.setattr(recovery.agent.drivers, "time", time)  # the real one
    monkeypatch.setattr(recovery.calls.attempts, "LATE_S", 0.0)
    pay = tool(name="pay", needs_approval=True)(send)

    async def waits(run: Run) -> Any:
        return await (run.call(pay, "bob") if asks else run.wait_for("go"))

    async def hasty(run: Run) -> Any:
        with suppress(TimeoutError):
            async with asyncio.timeout(30):
                await waits(run)
        await run.call(send, "next")
        raise Died

    async def patient(run: Run) -> Any:
        return [await waits(run), await run.call(send, "next")]

    async def outside(store: CheckpointStore) -> Any:
        running = asyncio.ensure_future(
            RecoverableAgent(patient, store).run_with_recovery("task", "run")
        )
        handle = store.run("run")
        async with asyncio.timeout(30):
            while not (handle.pending() if asks else handle.status().calls):
                assert not running.done(), running.result()
                await asyncio.sleep(0.01)
        if asks:
            (call,) = handle.pending()
            handle.approve(call, who="ann")
        else:
            (open_call,) = handle.status().calls
            assert (open_call.tool, open_call.state) == ("wait_for", "waits")
            handle.signal("go", 7)
        return (await asyncio.wait_for(running, 30))["result"]

    store = die_in(hasty, disk_store())
    assert asyncio.run(outside(store)) == ["sent bob" if asks else 7, "sent next"]
    assert executed == {"next": 1, **({"bob": 1} if asks else {})}


def test_the_agent_has_as_long_to_cancel_a_call_as_it_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recovery.calls.attempts, "LATE_S", 0.0)
    store = die_in(impatient, disk_store())
    assert run(impatient, store)["result"] == ["sent gave up on a"]
    assert executed == {"a": 1, "gave up on a": 1, "agent": 1}


def test_a_run_that_is_cancelled_from_outside_records_nothing_of_it() -> None:
    async def agent(run: Run) -> Any:
        return await run.call(ask, "a")

    async def outside(store: CheckpointStore) -> None:
        task = asyncio.ensure_future(
            RecoverableAgent(agent, store).run_with_recovery("task", "run")
        )
        while not executed["a"]:  # noqa: ASYNC110
            await asyncio.sleep(0)
        task.cancel()
        await task

    store = disk_store()
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(outside(store))
    assert recorded(store, CallAbandoned) == []


def test_a_call_that_was_cancelled_before_it_began_is_no_effect(monkeypatch: Any) -> None:
    async def never(self: Any) -> None:
        await asyncio.Event().wait()

    async def agent(run: Run) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(recovery.agent.drivers.Drivers, "_commit", never)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.001):
                    await run.call(send, "never")
        return await run.call(send, "next")

    store = disk_store()
    assert run(agent, store)["result"] == "sent next"
    (event,) = recorded(store, CallAbandoned)
    assert (event.went_on, event.begun) == (True, False)
    assert executed == {"next": 1}


def test_a_call_that_had_not_begun_when_the_agent_raised_is_in_no_doubt() -> None:
    async def never(self: Any) -> None:
        await asyncio.Event().wait()

    async def agent(run: Run) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            if run.recovery_count == 0:
                patch.setattr(recovery.agent.drivers.Drivers, "_commit", never)
            async with asyncio.TaskGroup() as group:
                sending = group.create_task(run.call(send, "once"))
                await asyncio.sleep(0.01)
                if run.recovery_count == 0:
                    raise OSError("of the agent's own")
        return sending.result()

    store = disk_store()
    assert run(agent, store)["result"] == "sent once"
    (event,) = recorded(store, CallAbandoned)
    assert (event.went_on, event.begun) == (False, False)
    assert executed == {"once": 1}


@pytest.mark.parametrize("in_doubt", [False, True])
def test_a_tool_whose_time_is_over_earlier_than_before_the_crash_tidies_up(in_doubt: bool) -> None:
    """It is not as far, for it sleeps before its calls: what it had made then is not missed."""

    @tool
    async def pay() -> None:
        executed["paid"] += 1
        if in_doubt:
            raise Died

    async def agent(run: Run) -> Any:
        executed["agent"] += 1
        dies = executed["agent"] == 1

        @tool(after_crash="retry", timeout_s=0.4)
        async def order() -> None:
            try:
                await asyncio.sleep(0 if dies else 60)
                await run.call(pay)
                raise Died
            finally:
                if not dies:
                    await send("tidied up")

        with pytest.raises(TimeoutError):
            await run.call(order)
        return await send("next")

    store = die_in(agent, disk_store())
    if in_doubt:
        with pytest.raises(InDoubtError) as caught:
            run(agent, store)
        (call,) = caught.value.calls
        resolve(store, "run", call.lsn, Resolution.outcome(None))
    assert run(agent, store)["result"] == "sent next"
    assert executed == {"paid": 1, "tidied up": 1, "next": 1, "agent": 2 + in_doubt}


def test_calls_inside_a_cancelled_call_are_no_divergence() -> None:
    @tool(after_crash="retry")
    async def outer() -> None:
        await send("inside")
        await asyncio.Event().wait()

    agent = cancelling(outer)
    store = die_in(agent, disk_store())
    assert run(agent, store)["result"] == "sent next"
    assert executed == {"inside": 1, "next": 1, "agent": 1}


# -- policies for one call, and for one agent


def test_a_tool_can_be_told_otherwise_for_one_call() -> None:
    @tool(name="mail", raises=[KeyError])
    def mail(to: str) -> str:
        executed[to] += 1
        if executed[to] == 1:
            raise Died
        return to

    safe = tool(after_crash="retry")(mail)
    assert safe.tool_spec.name == "mail"  # type: ignore[attr-defined]
    assert safe.tool_spec.raises == (KeyError,)  # type: ignore[attr-defined]
    assert mail.tool_spec.after_crash == "park"  # type: ignore[attr-defined]
    store = die_in(lambda run: run.call(safe, "a"), disk_store())
    assert run(lambda run: run.call(safe, "a"), store)["result"] == "a"


@pytest.mark.parametrize("policy", ["retry", {"mail": "retry", "other": "park"}])
def test_an_agent_can_decide_for_its_tools(policy: Any) -> None:
    @tool
    def mail(to: str) -> str:
        executed[to] += 1
        if executed[to] == 1:
            raise Died
        return to

    store = die_in(lambda run: run.call(mail, "a"), disk_store())
    agent = lambda run: run.call(mail, "a")  # noqa: E731
    with pytest.raises(InDoubtError):
        run(agent, store, after_crash={"other": "retry"})
    assert run(agent, store, after_crash=policy)["result"] == "a"
    with pytest.raises(ValueError, match="after_crash is"):
        RecoverableAgent(agent, store, after_crash="sometimes")  # type: ignore[call-overload]


def test_an_idempotency_key_is_a_header() -> None:
    seen: list[Any] = []

    @tool(retry=Retry(delay_s=0))
    def post() -> None:
        call = current_call()
        assert call is not None
        seen.append(call.headers)
        if len(seen) == 1:
            raise ConnectionError

    sync(lambda run: run.call(post), disk_store())
    assert seen[0] == seen[1]
    assert list(seen[0]) == ["Idempotency-Key", "Fence"]
    assert len(seen[0]["Idempotency-Key"]) == 32
