"""Budgets: what is counted, where a run stands still, and that no crash is a way around."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

import eventlog.write.log
from eventlog import EventLog
from eventlog.testing import Crash, SimulatedDisk
from recovery import (
    Budget,
    CheckpointStore,
    InDoubtError,
    ParkedError,
    RecoverableAgent,
    Resolution,
    Retry,
    Run,
    SyncRun,
    Usage,
    tool,
)
from recovery.control.resolve import resolve
from recovery.errors import BudgetError, RunFailedError
from recovery.inspect.follow import events
from recovery.journal.usage import TOKENS_MAX, recognised, recorded_usage, usage_from
from recovery.testing import crash_everywhere
from recovery.testing.simulated.virtual_time import Clock
from tests.support.lives import Died, Disk, after_death, executed


@pytest.fixture(autouse=True)
def _fresh(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eventlog.write.log, "committer", SyncCommitter())


class SyncCommitter:
    """Commits behind, at once: what a thread would do a little later, at a time that repeats."""

    def request(self, log: EventLog, lsn: int) -> None:
        log.commit_now(lsn)

    def forget(self, log: EventLog) -> None: ...


@tool(after_crash="retry")
def look(what: Any) -> Any:
    executed[what] += 1
    return what


@tool(after_crash="retry")
async def alook(what: Any) -> Any:
    executed[what] += 1
    await asyncio.sleep(0)
    return what


@tool(after_crash="retry")
def ask(n: int) -> dict[str, Any]:
    executed[n] += 1
    return {"content": "x", "usage": {"prompt_tokens": 70, "completion_tokens": 30, "cost": 0.5}}


def two_a_step(run: SyncRun) -> str:
    for step in run.steps():
        run.call(look, f"{step}a")
        run.messages.append(run.call(look, f"{step}b"))
        if step == 5:
            return "done"
    raise AssertionError


async def two_a_step_async(run: Run) -> str:
    async for step in run.steps():
        await run.call(alook, f"{step}a")
        run.messages.append(await run.call(alook, f"{step}b"))
        if step == 5:
            return "done"
    raise AssertionError


def asks(run: SyncRun) -> str:
    for step in run.steps():
        run.call(ask, step)
        if step == 5:
            return "done"
    raise AssertionError


def live(function: Any, store: CheckpointStore, budget: Budget | None, **options: Any) -> Any:
    agent = RecoverableAgent(function, store, budget=budget, **options)
    return agent.run_with_recovery_sync("task", "run")


def parks(function: Any, store: CheckpointStore, budget: Budget, **options: Any) -> BudgetError:
    with pytest.raises(BudgetError) as parked:
        live(function, store, budget, **options)
    return parked.value


# -- limits


@pytest.mark.parametrize("function", [two_a_step, two_a_step_async])
@pytest.mark.parametrize("every", [1, 3, 9])
def test_calls_are_limited_exactly_and_a_higher_budget_goes_on(function: Any, every: int) -> None:
    store = CheckpointStore()
    for limit in range(10):
        error = parks(function, store, Budget(calls=limit), checkpoint_every_n=every)
        assert isinstance(error, ParkedError)
        assert (error.used.calls, error.reached) == (limit, (f"calls: {limit} of {limit}",))
        assert sum(executed.values()) == limit
    result = live(function, store, Budget(calls=10), checkpoint_every_n=every)
    assert (result["result"], result["usage"].calls, result["usage"].steps) == ("done", 10, 5)
    assert set(executed.values()) == {1}


def test_calls_inside_a_call_are_limited_as_well() -> None:
    def many(n: int) -> int:
        return sum(look(i) for i in range(n))

    def agent(run: SyncRun) -> int:
        return run.call(many, 5)

    assert parks(agent, CheckpointStore(), Budget(calls=3)).used.calls == 3
    assert sum(executed.values()) == 2  # the third is the one around them


@pytest.mark.parametrize("function", [two_a_step, two_a_step_async])
def test_steps_are_limited_exactly(function: Any) -> None:
    store = CheckpointStore()
    for limit in range(5):
        error = parks(function, store, Budget(steps=limit))
        assert error.reached == (f"steps: {limit} of {limit}",)
        assert (error.used.steps, sum(executed.values())) == (limit, 2 * limit)
    assert live(function, store, Budget(steps=5))["usage"].steps == 5


def test_a_finished_or_replayed_run_is_never_stopped() -> None:
    store = CheckpointStore()
    live(two_a_step, store, None)
    assert live(two_a_step, store, Budget(steps=0, calls=0, seconds=0))["result"] == "done"

    def dies(run: SyncRun) -> str:
        for step in run.steps():
            run.call(look, step)
            if step == 4 and run.recovery_count == 0:
                raise Died
            if step == 4:
                return "replayed"
        raise AssertionError

    store = CheckpointStore(Disk(SimulatedDisk()))
    with pytest.raises(Died):
        live(dies, store, None, checkpoint_every_n=9)
    result = live(dies, after_death(store), Budget(steps=0, calls=0, tokens=0))
    assert result["result"] == "replayed" and result["usage"].calls == 4


@pytest.mark.parametrize("way", ["gather", "group"])
def test_concurrent_calls_do_not_slip_under_the_limit(way: str) -> None:
    async def at_once(run: Run) -> list[Any]:
        calls = [run.call(alook, n) for n in range(8)]
        if way == "gather":
            return list(await asyncio.gather(*calls))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
        return [task.result() for task in tasks]

    store = CheckpointStore()
    for limit in (3, 7):
        error = parks(at_once, store, Budget(calls=limit))
        assert error.used.calls == limit and sum(executed.values()) == limit
    assert live(at_once, store, Budget(calls=8))["result"] == list(range(8))
    assert set(executed.values()) == {1}


def test_calls_that_waited_for_replay_do_not_slip_under_the_limit() -> None:
    async def agent(run: Run) -> list[Any]:
        order = [0, 1, 2, 3] if run.recovery_count == 0 else [3, 2, 1, 0]
        return sorted(await asyncio.gather(*(run.call(alook, n) for n in order)))

    store = CheckpointStore()
    parks(agent, store, Budget(calls=1))
    assert executed == {0: 1}
    error = parks(agent, store, Budget(calls=3))  # new ones wait until the recorded one is claimed
    assert error.used.calls == 3 and sum(executed.values()) == 3
    assert live(agent, store, None)["result"] == [0, 1, 2, 3]


def test_calls_from_threads_do_not_slip_under_the_limit() -> None:
    from concurrent.futures import ThreadPoolExecutor

    def threads(run: SyncRun) -> list[Any]:
        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(lambda n: run.call(look, n), range(8)))

    store = CheckpointStore()
    error = parks(threads, store, Budget(calls=5))
    assert error.used.calls == 5 and sum(executed.values()) == 5
    assert live(threads, store, Budget(calls=8))["result"] == list(range(8))


def test_an_agent_cannot_swallow_it() -> None:
    def stubborn(run: SyncRun) -> str:
        for n in range(5):
            with contextlib.suppress(Exception):
                run.call(look, n)
        return "as if nothing had been"

    parks(stubborn, CheckpointStore(), Budget(calls=2))
    assert sum(executed.values()) == 2


def test_tokens_and_cost_are_looked_at_before_each_step_and_call() -> None:
    for budget in (Budget(tokens=250), Budget(cost=1.5)):
        store = CheckpointStore()
        error = parks(asks, store, budget)
        # The third call went beyond: what it would use was known when it had ended.
        assert (error.used.tokens, error.used.cost, error.used.steps) == (300, 1.5, 3)
        assert error.used.input_tokens == 210
        result = live(asks, store, Budget(tokens=1000, cost=10))
        assert (result["usage"].tokens, result["usage"].cost) == (500, 2.5)
        executed.clear()


def test_seconds_are_those_of_processes_that_had_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the disk stamps the records; each look at it takes a millisecond."""

    def works(run: SyncRun) -> str:
        for step in run.steps():
            run.call(wait)
            if step == 6:
                return "done"
        raise AssertionError

    disk = SimulatedDisk()
    dies: list[int] = []

    @tool
    def wait() -> None:
        executed["wait"] += 1
        disk._clock += 10_000_000_000
        if executed["wait"] in dies:
            raise Died

    store = CheckpointStore(Disk(disk))
    error = parks(works, store, Budget(seconds=15), checkpoint_every_n=2)
    assert 20 <= error.used.seconds < 20.1 and executed["wait"] == 2
    disk._clock += 7 * 24 * 3600 * 10**9  # parked for a week
    dies.append(3)
    with pytest.raises(Died):
        live(works, store, Budget(seconds=1e9), checkpoint_every_n=2)
    assert isinstance(store.backend, Disk)
    disk = store.backend.disk.after_process_death()
    store = CheckpointStore(Disk(disk))
    disk._clock += 24 * 3600 * 10**9  # dead for a day
    with pytest.raises(InDoubtError) as parked:
        live(works, store, None, checkpoint_every_n=2)
    disk._clock += 24 * 3600 * 10**9  # somebody looks, and says so
    resolve(store, "run", parked.value.calls[0].lsn, Resolution.outcome(None))
    disk._clock += 24 * 3600 * 10**9
    # Of the call in which the process died, nothing says how long it took: two of three count.
    error = parks(works, store, Budget(seconds=25), checkpoint_every_n=2)
    assert 30 <= error.used.seconds < 30.1 and executed["wait"] == 4
    assert live(works, store, Budget(seconds=1e9))["usage"].seconds < 50.2


def test_a_budget_can_end_the_run_as_failed() -> None:
    store = CheckpointStore()
    for _ in range(2):
        with pytest.raises(RunFailedError, match=r"recovery\.BudgetError: calls: 3 of 3"):
            live(two_a_step, store, Budget(calls=3, on_exceeded="fail"))
    with pytest.raises(RunFailedError):
        live(two_a_step, store, Budget(calls=100))
    last = list(events(store, "run"))[-1]
    assert (last.kind, last.error) == ("run_failed", "recovery.BudgetError: calls: 3 of 3")
    assert sum(executed.values()) == 3


def test_where_it_stands_still_is_recorded() -> None:
    store = CheckpointStore()
    error = parks(two_a_step, store, Budget(steps=1, cost=0.0))
    assert error.reached == ("steps: 1 of 1",) or "cost" in error.reached[0]
    last = list(events(store, "run", until="parked"))[-1]
    assert (last.kind, last.progress.status) == ("run_parked", "parked")
    assert str(last).endswith("parked: budget used up: cost: 0 of 0")
    assert "run 'run' is parked" in str(error) and "Used so far: 0 steps, 0 attempts" in str(error)


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": -1},
        {"cost": "5"},
        {"calls": True},
        {"tokens": float("nan")},
        {"on_exceeded": "stop"},
    ],
)
def test_limits_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError), match=next(iter(wrong))):
        Budget(**wrong)


# -- what counts


def test_attempts_count() -> None:
    @tool(after_crash="retry", retry=Retry(attempts=5, delay_s=0))
    def fails() -> None:
        executed["fails"] += 1
        raise ConnectionError

    def calls(run: SyncRun) -> Any:
        return run.call(fails)

    error = parks(calls, CheckpointStore(), Budget(calls=3))
    assert (error.used.calls, executed["fails"]) == (3, 3)


def test_a_call_in_doubt_that_is_made_again_counts_twice() -> None:
    def dies(run: SyncRun) -> Any:
        return run.call(dying)

    @tool
    def dying() -> dict[str, Any]:
        executed["dying"] += 1
        if executed["dying"] == 1:
            raise Died
        return {"usage": {"input_tokens": 5, "output_tokens": 1}}

    store = CheckpointStore(Disk(SimulatedDisk()))
    with pytest.raises(Died):
        live(dies, store, None)
    store = after_death(store)
    with pytest.raises(InDoubtError) as parked:
        live(dies, store, Budget(calls=1))
    resolve(store, "run", parked.value.calls[0].lsn, Resolution.retry())
    parks(dies, store, Budget(calls=1))
    assert executed["dying"] == 1
    assert live(dies, store, Budget(calls=2))["usage"] == Usage(
        5, 1, 0.0, 0, 2, live(dies, store, None)["usage"].seconds
    )


def test_a_reply_that_is_handed_on_counts_once() -> None:
    @tool(after_crash="retry")
    def middle(n: int) -> Any:
        return ask(n)

    @tool
    def outer(n: int) -> Any:
        reply = middle(n)
        if n == 2 and executed["died"] == 0:
            executed["died"] = 1
            raise Died
        return reply

    def agent(run: SyncRun) -> None:
        for n in (1, 2):
            run.call(outer, n)

    store = CheckpointStore(Disk(SimulatedDisk()))
    with pytest.raises(Died):
        live(agent, store, None)
    store = after_death(store)
    with pytest.raises(InDoubtError) as parked:
        live(agent, store, None)
    resolve(store, "run", parked.value.calls[0].lsn, Resolution.retry())
    used = live(agent, store, None)["usage"]
    assert (used.tokens, used.calls, executed[2]) == (200, 7, 1)


def test_a_reply_of_a_tool_counts_though_calls_inside_it_use_nothing() -> None:
    @tool(after_crash="retry")
    def looks_up(n: int) -> str:
        return f"page {n}"

    @tool
    def answers(n: int) -> Any:
        looks_up(n)
        return {"usage": {"prompt_tokens": 70, "completion_tokens": 30}}

    def agent(run: SyncRun) -> None:
        run.call(answers, 1)

    assert live(agent, CheckpointStore(), None)["usage"].tokens == 100


def test_a_tool_says_itself_what_it_used() -> None:
    def used(reply: Any) -> Usage:
        return Usage(len(reply), 1, cost=0.25)

    @tool(after_crash="retry", usage=used)
    def model(text: str) -> str:
        return text

    def agent(run: SyncRun) -> None:
        run.call(model, "four")
        run.call(tool(usage=lambda reply: Usage(cost=1))(model), "as another tool")

    result = live(agent, CheckpointStore(), None)
    assert (result["usage"].tokens, result["usage"].cost) == (5, 1.25)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda reply: 1 / 0,
        lambda reply: "many",
        lambda reply: Usage(-1),
        lambda reply: Usage(cost=float("inf")),
    ],
)
def test_what_goes_wrong_in_counting_loses_no_result(
    wrong: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def agent(run: SyncRun) -> Any:
        return run.call(tool(usage=wrong)(look), "paid for")

    with caplog.at_level(logging.ERROR):
        result = live(agent, CheckpointStore(), None)
    assert (result["result"], result["usage"].tokens) == ("paid for", 0)
    assert "what look used is not known" in caplog.text


@dataclass
class Reply:
    """As objects of client libraries are."""

    usage: Any


REPLIES = [
    ({"usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}}, Usage(3, 2)),
    ({"usage": {"input_tokens": 3, "output_tokens": 2}}, Usage(3, 2)),
    (
        {
            "usage": {
                "input_tokens": 3,
                "output_tokens": 2,
                "cache_read_input_tokens": 10,
                "cache_creation_input_tokens": 100,
            }
        },
        Usage(113, 2),
    ),
    ({"usage": {"prompt_tokens": 3, "completion_tokens": 2, "cost": 0.5}}, Usage(3, 2, 0.5)),
    ({"usage": {"prompt_tokens": 3, "total_tokens": 3}}, Usage(3, 0)),
    ({"usage_metadata": {"input_tokens": 3, "output_tokens": 2}}, Usage(3, 2)),
    (Reply({"prompt_tokens": 3, "completion_tokens": 2}), Usage(3, 2)),
    (Reply(SimpleNamespace(input_tokens=3, output_tokens=2, cost=None)), Usage(3, 2)),
]


@pytest.mark.parametrize(("reply", "usage"), REPLIES)
def test_replies_of_the_usual_shapes_are_known(reply: Any, usage: Usage) -> None:
    assert recognised(reply) == usage
    assert usage_from(recorded_usage(usage)) == usage


class Nasty:
    """An object that minds being looked at."""

    @property
    def usage(self) -> Any:
        raise RuntimeError


@pytest.mark.parametrize(
    "value",
    [
        None,
        5,
        "usage",
        b"x",
        [],
        ["usage"],
        {},
        {"usage": None},
        {"usage": 5},
        {"usage": {}},
        {"usage": {"prompt_tokens": "3"}},
        {"usage": {"prompt_tokens": -3}},
        {"usage": {"input_tokens": True}},
        {"usage": {"input_tokens": TOKENS_MAX}},
        Nasty(),
        object(),
        {"usage": {"cost": 3}},
    ],
)
def test_what_is_no_reply_of_a_model_is_not_taken_for_one(value: Any) -> None:
    assert recognised(value) is None


@pytest.mark.parametrize(
    "recorded",
    [
        None,
        5,
        [],
        [1, 2],
        [1, 2, -0.5],
        [1, "2", 0.5],
        {"a": 1},
        [1, 2, float("nan")],
        [True, 2, 0.5],
    ],
)
def test_nonsense_in_a_log_counts_nothing(recorded: Any) -> None:
    assert usage_from(recorded) is None


# -- what the agent sees


@pytest.mark.parametrize("every", [1, 9])
def test_an_agent_that_looks_at_its_usage_sees_the_same_on_replay(every: int) -> None:
    seen: list[list[Usage]] = []

    async def careful(run: Run) -> Any:
        seen.append([])
        async for step in run.steps():
            seen[-1].append(run.usage())
            both = await asyncio.gather(run.call(alook, f"{step}a"), run.call(ask, step))
            seen[-1].append(run.usage())
            if run.usage().tokens >= 300:
                return both
            if step == 2 and run.recovery_count < 2:
                raise Died
        raise AssertionError

    store = CheckpointStore(Disk(SimulatedDisk()))
    for _ in range(2):
        with pytest.raises(Died):
            live(careful, store, Budget(calls=100), checkpoint_every_n=every)
        store = after_death(store)
    result = live(careful, store, Budget(calls=100), checkpoint_every_n=every)
    assert result["usage"].tokens == 300
    first, second, third = seen
    assert second[: len(first)] == first if every == 9 else second[-2:] == first[-2:]
    assert third[: len(first)] == first if every == 9 else third[:2] == first[-2:]
    assert all(type(one) is Usage for life in seen for one in life)


def test_the_usage_counts_the_time_since_the_last_record(clock: Clock) -> None:
    async def agent(run: Run) -> float:
        before = run.usage().seconds
        clock.ahead += 100
        return run.usage().seconds - before

    result = live(agent, CheckpointStore(), None)
    assert 100 <= result["result"] < 200
    assert result["report"].time_s < 600  # of real time, and not since the machine has begun


def test_the_report_and_the_result_say_what_was_used() -> None:
    store = CheckpointStore()
    result = live(asks, store, None)
    assert result["usage"] == result["report"].usage == live(asks, store, None)["usage"]
    assert "used: 5 steps, 5 attempts, 500 tokens, cost 2.5000" in str(result["report"])
    assert list(events(store, "run"))[-1].progress.usage == result["usage"]


# -- crashes


@pytest.mark.parametrize("every", [1, 3])
def test_no_crash_is_a_way_around_a_budget(every: int, rng: random.Random) -> None:
    """Killed at records, in writes and around calls; what the agent saw is what it would have."""

    async def agent(run: Run) -> Any:
        seen = run.state.setdefault("seen", [])
        async for step in run.steps():
            await asyncio.gather(*(run.call(ask, 10 * step + n) for n in range(3)))
            run.state["seen"] = [*run.state["seen"], run.usage().tokens, run.usage().steps]
            if step == 3:
                return run.state["seen"]
        raise AssertionError(seen)

    report = crash_everywhere(
        lambda: RecoverableAgent(agent, CheckpointStore(), every, budget=Budget(tokens=901)),
        "task",
        points=20,
        seed=rng.randrange(1 << 20),
    )
    assert report.ok, str(report)
    assert report.reference == repr([300, 1, 600, 2, 900, 3])


def swept(function: Any, every: int, crash: tuple[int, int] | None, limits: list[int]) -> int:
    """A run whose first process dies at this call of the disk, and each next process has the next
    budget. How many calls of the disk the last one made."""
    disk = SimulatedDisk(seed=1)
    if crash is not None:
        disk.crash_at(*crash)
    for n in range(9):
        limit = limits[min(n, len(limits) - 1)]
        store = CheckpointStore(Disk(disk))
        try:
            result = live(function, store, Budget(calls=limit), checkpoint_every_n=every)
        except BudgetError as error:
            assert error.used.calls == limit == made(disk)
        except Crash:
            pass
        else:
            assert (result["usage"].calls, result["usage"].steps) == (made(disk), 5)
            return len(disk.calls)
        disk = disk.after_process_death()
        assert made(disk) <= limit, "a call beyond the limit"
    raise AssertionError("it does not end")


def made(disk: SimulatedDisk) -> int:
    """The calls and attempts in the log."""
    reader = Disk(disk).read("run")
    if reader is None:
        return 0
    with reader:
        return sum(record.kind in ("call", "retry") for record in reader.records())


@pytest.mark.parametrize("every", [1, 3])
def test_totals_are_exact_after_a_crash_in_any_write(every: int, rng: random.Random) -> None:
    last = swept(two_a_step, every, None, [100])
    for point in sorted(rng.sample(range(last), min(last, 30))):
        swept(
            rng.choice([two_a_step, two_a_step_async]),
            every,
            (point, rng.choice([0, 1, 30, 100])),
            [6, 8, 8, 100],
        )


@pytest.mark.crash
@pytest.mark.parametrize("function", [two_a_step, two_a_step_async])
@pytest.mark.parametrize("every", [1, 3])
def test_totals_are_exact_after_a_crash_in_every_write(function: Any, every: int) -> None:
    last = swept(function, every, None, [100])
    for point in range(last):
        for torn in (0, 1, 30, 100):
            swept(function, every, (point, torn), [6, 8, 8, 100])
