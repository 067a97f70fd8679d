"""Workers begin submitted runs, and resume those that nobody executes."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.error import HTTPError

import pytest

from eventlog import LogError, LogLockedError
from eventlog.errors import UnreachableError
from recovery import CheckpointStore, RecoverableAgent, Run, SyncRun, current_call, tool
from recovery.errors import TaskMismatchError
from recovery.stores.postgres import PostgresStore
from recovery.worker import Worker
from recovery.worker.health import serve
from recovery.worker.worker import LOOK_FULL_S
from tests.support.postgres import Server
from tests.support.processes import started, until

paid: Counter[str] = Counter()  # by idempotency key


@tool
def pay(cents: int) -> int:
    call = current_call()
    assert call is not None
    paid[call.idempotency_key] += 1
    return cents


async def shop(run: Run) -> int:
    total = 0
    async for step in run.steps():
        run.state["total"] = total = run.state.get("total", 0) + await run.call(pay, run.task)
        if step == 2:
            break
    return total


@pytest.fixture(autouse=True)
def no_effects() -> Iterator[None]:
    paid.clear()
    yield


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.remove()


@pytest.fixture(params=["memory", "file", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CheckpointStore]:
    if request.param == "memory":
        yield CheckpointStore()
    elif request.param == "file":
        yield CheckpointStore(tmp_path / "runs")
    else:
        yield CheckpointStore(request.getfixturevalue("server").url())


def work(store: CheckpointStore, agents: Any, **options: Any) -> Worker:
    worker = Worker(agents, store, **options)
    worker.run_sync(until_idle=True)
    return worker


def states(store: CheckpointStore) -> dict[str, str]:
    return {one.run_id: one.state for one in store.runs()}


# -- submitting


def test_submitted_runs_are_executed_once(store: CheckpointStore) -> None:
    handles = [store.submit("shop", i, f"run_{i}") for i in range(5)]
    assert {one.status().state for one in handles} == {"submitted"}
    assert handles[3].status().task == 3
    worker = work(store, shop)
    assert states(store) == {f"run_{i}": "finished" for i in range(5)}
    assert worker.stats.ended == {("shop", "finished"): 5}
    assert paid.total() == 10 and set(paid.values()) == {1}
    work(store, shop)
    assert paid.total() == 10
    assert asyncio.run(handles[4].result()) == 8


def test_a_run_can_be_submitted_again_only_as_it_was(store: CheckpointStore) -> None:
    for _ in range(2):
        store.submit("shop", {"to": "Ann"}, "run")
    for agent, task, told in (
        ("shop", {"to": "Bob"}, "is about another task"),
        ("other", {"to": "Ann"}, "is about another agent(?s:.*)shop(?s:.*)other"),
    ):
        with pytest.raises(TaskMismatchError, match=told):
            store.submit(agent, task, "run")
    assert states(store) == {"run": "submitted"}


def test_a_submission_that_is_in_doubt_is_repeated_under_its_id(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = store.backend.submit  # type: ignore[attr-defined]

    def lost(submission: Any) -> bool:
        submit(submission)
        raise ConnectionResetError

    with monkeypatch.context() as broken:
        broken.setattr(store.backend, "submit", lost)
        with pytest.raises(ConnectionResetError) as told:
            store.submit("shop", 3)
        with pytest.raises(ConnectionResetError) as named:
            store.submit("shop", 3, "mine")
    (run_id,) = re.findall(r"run_id='(\w+)'", "".join(told.value.__notes__))
    assert not hasattr(named.value, "__notes__")
    store.submit("shop", 3, run_id)
    work(store, shop)
    assert states(store) == {run_id: "finished", "mine": "finished"} and paid.total() == 4


def test_what_was_submitted_begins_with_that_task_only(store: CheckpointStore) -> None:
    from recovery import RecoverableAgent

    store.submit("shop", 7, "run")
    agent = RecoverableAgent(shop, store)
    with pytest.raises(TaskMismatchError):
        asyncio.run(agent.run_with_recovery(8, "run"))
    assert not paid
    assert asyncio.run(agent.run_with_recovery(7, "run"))["result"] == 14


def test_what_is_sent_before_a_run_begins_is_there_when_it_does(store: CheckpointStore) -> None:
    """A web hook may come while no worker is alive; so may a cancellation."""

    async def waits(run: Run) -> Any:
        return await run.wait_for("paid")

    early, never = (store.submit("waits", None, one, delay_s=0.05) for one in ("early", "never"))
    early.signal("paid", 5, who="bank", key="hook-1")
    early.signal("paid", 5, who="bank", key="hook-1")
    (sent,) = early.status().unread
    assert (early.status().state, sent.about, sent.refused) == ("submitted", "paid", "")
    never.cancel(why="a mistake")
    assert never.status().state == "cancelled"
    time.sleep(0.05)
    work(store, {"waits": waits})
    assert states(store) == {"early": "finished", "never": "cancelled"}
    assert asyncio.run(early.result()) == 5


def test_what_was_sent_to_a_run_that_is_removed_is_not_for_the_next(store: CheckpointStore) -> None:
    async def waits(run: Run) -> Any:
        return await run.wait_for("paid", timeout=0)

    store.submit("waits", None, "run").signal("paid", 5)
    store.run("run").cancel()
    store.gc(keep=0)
    store.submit("waits", None, "run")
    work(store, {"waits": waits})
    assert "paid" not in str(store.run("run").status().unread)
    assert store.run("run").status().state in ("failed", "finished")


def test_a_removed_run_is_not_begun_again(store: CheckpointStore) -> None:
    store.submit("shop", 1, "run")
    work(store, shop)
    store.gc(older_than_s=0)
    work(store, shop)
    assert states(store) == {} and paid.total() == 2
    store.submit("shop", 1, "run")
    assert states(store) == {"run": "submitted"}


def test_the_most_urgent_runs_go_first_and_none_too_early(store: CheckpointStore) -> None:
    order: list[int] = []

    def plain(run: SyncRun) -> None:
        order.append(run.task)

    for priority in (1, 3, 2):
        store.submit("plain", priority, priority=priority)
    early = store.submit("plain", 9, priority=9, delay_s=3600)
    work(store, plain, concurrency=1)
    assert order == [3, 2, 1] and early.status().state == "submitted"
    due = time.time() + 0.3
    late = store.submit("plain", 4, delay_s=0.3)
    worker = Worker(plain, store, concurrency=1)
    thread = threading.Thread(target=worker.run_sync, daemon=True)
    thread.start()
    while late.status().state != "finished":
        time.sleep(0.02)
    worker.stop()
    thread.join()
    assert late.status().started >= due


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"agent": ""}, "agent is a text"),
        ({"limit_key": "k" * 201}, "limit_key is a text"),
        ({"delay_s": -1}, "delay_s is a number"),
        ({"priority": 2**40}, "priority is a whole number"),
        ({"run_id": "a/b"}, "run_id"),
        ({"task": object()}, "task"),
    ],
)
def test_a_mistake_is_told_before_anything_is_written(words: dict[str, Any], said: str) -> None:
    store = CheckpointStore()
    with pytest.raises((ValueError, TypeError), match=said):
        store.submit(**{"agent": "shop", "task": 1, **words})
    assert states(store) == {}


# -- limits


def test_two_workers_together_exceed_no_limit(store: CheckpointStore) -> None:
    at_work: Counter[str] = Counter()
    most: Counter[str] = Counter()
    lock = threading.Lock()

    def plain(run: SyncRun) -> None:
        with lock:
            for what in ("all", run.task):
                at_work[what] += 1
                most[what] = max(most[what], at_work[what])
        time.sleep(0.03)
        with lock:
            at_work.subtract(("all", run.task))

    for i in range(12):
        store.submit("plain", "ab"[i % 2], limit_key="ab"[i % 2])
    workers = [Worker(plain, store, per_agent=3, per_key=2) for _ in range(2)]
    threads = [threading.Thread(target=one.run_sync) for one in workers]
    for thread in threads:
        thread.start()
    while set(states(store).values()) != {"finished"}:
        time.sleep(0.02)
    for one, thread in zip(workers, threads, strict=True):
        one.stop()
        thread.join()
    assert most["a"] <= 2 and most["b"] <= 2 and most["all"] <= 3
    assert sum(one.stats.ended.get(("plain", "finished"), 0) for one in workers) == 12


# -- stopping, waiting, quarantine


def test_a_stopped_worker_hands_its_runs_over(store: CheckpointStore) -> None:
    begun = threading.Event()

    async def slow(run: Run) -> str:
        await run.call(pay, 1)
        begun.set()
        return str(await run.wait_for("go"))

    store.submit("slow", None, "run")
    first = Worker(slow, store, park_after_s=60)
    thread = threading.Thread(target=first.run_sync)
    thread.start()
    assert begun.wait(10)
    first.stop()
    thread.join()
    assert first.stats.ended == {("slow", "stopped"): 1}
    store.run("run").signal("go")
    work(store, slow)
    assert states(store) == {"run": "finished"} and set(paid.values()) == {1}


def test_a_run_that_waits_frees_its_place(store: CheckpointStore) -> None:
    def waits(run: SyncRun) -> Any:
        return run.wait_for("paid")

    handles = [store.submit("waits", None, name) for name in ("one", "other")]
    worker = Worker(waits, store, concurrency=1, park_after_s=0)
    worker.run_sync(until_idle=True)
    assert worker.stats.ended == {("waits", "parked"): 2}
    handles[1].signal("paid", 5)
    work(store, waits, park_after_s=0)
    assert [one.status().state for one in handles] == ["waiting", "finished"]


def test_a_short_outage_quarantines_no_run(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recovery.worker.worker.RETRY_MIN_S", 0.02)
    monkeypatch.setattr("recovery.agent.agent_errors.BACKOFF_S", 0.001)
    executed = Counter[str]()

    def calls_out(run: SyncRun) -> str:
        executed["calls_out"] += 1
        if executed["calls_out"] <= 8:  # of two executions, each with three recoveries
            raise ConnectionError("the network is down")
        return "done"

    store.submit("calls_out", None, "run")
    worker = work(store, calls_out)
    assert states(store) == {"run": "finished"} and not worker.stats.quarantined


def test_a_run_that_fails_at_one_place_again_and_again_is_left_alone(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recovery.worker.worker.RETRY_MIN_S", 0.02)
    executed = Counter[str]()

    def broken(run: SyncRun) -> int:
        executed["broken"] += 1
        run.call(pay, 1)
        return len(run.task)

    store.submit("broken", 5, "run")
    store.submit("shop", 5, "sound")
    worker = work(store, [broken, shop])
    assert executed["broken"] == 3
    (why,) = worker.stats.quarantined.values()
    assert "TypeError" in why and "3 times in a row" in why
    assert store.run("run").status().needs_person == why
    work(store, [broken, shop])
    assert executed["broken"] == 3

    def mended(run: SyncRun) -> int:
        return int(run.call(pay, 1)) + int(run.task)

    assert work(store, {"broken": mended}).stats.quarantined.keys() == {"run"}
    work(store, {"broken": mended}, retry_quarantined=True)
    assert states(store) == {"run": "finished", "sound": "finished"}
    assert set(paid.values()) == {1}


def test_a_pause_that_is_over_does_not_have_a_worker_look_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("recovery.worker.worker.RETRY_MIN_S", 0.02)

    def broken(run: SyncRun) -> int:
        return len(run.task)

    def pause_s() -> float:
        if worker.stats.quarantined:
            worker.stop()
        pauses.append(asked())
        return pauses[-1]

    store = CheckpointStore()
    store.submit("broken", 5, "run")
    worker, pauses = Worker(broken, store, concurrency=1), list[float]()
    asked = worker._pause_s
    monkeypatch.setattr(worker, "_pause_s", pause_s)
    worker.run_sync()
    assert pauses[-1] > 1
    worker._put_off("other", 0.0)
    assert worker._pause_s() <= 0  # it may not have been looked at since
    worker._running["run"] = Mock()  # there is no room
    assert worker._pause_s() == LOOK_FULL_S


def test_a_run_is_not_begun_by_a_worker_that_was_stopped_just_before(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, worker = store.submit("shop", 5, "run"), Worker(shop, store)
    start = worker._start

    def start_and_stop(entry: Any) -> None:
        start(entry)
        worker.stop()

    monkeypatch.setattr(worker, "_start", start_and_stop)
    worker.run_sync()
    assert handle.status().state == "submitted" and not paid
    assert worker.stats.ended == {}


def test_a_worker_that_is_cancelled_stops_its_runs(store: CheckpointStore) -> None:
    async def endless(run: Run) -> None:
        async for step in run.steps():
            await run.call(pay, step)
            begun.set()

    async def main() -> None:
        working = asyncio.ensure_future(worker.run())
        await begun.wait()
        working.cancel()
        await asyncio.wait([working])
        assert working.cancelled()

    store.submit("endless", None, "run")
    begun, worker = asyncio.Event(), Worker(endless, store, grace_s=60)
    asyncio.run(main())
    assert worker.stats.ended == {("endless", "stopped"): 1}


@pytest.mark.parametrize("turns", range(4))
def test_a_worker_that_is_cancelled_just_when_something_changes_stops(turns: int) -> None:
    async def main() -> None:
        working = asyncio.ensure_future(worker.run())
        await asyncio.sleep(0.05)  # until it waits
        worker._wake()
        for _ in range(turns):
            await asyncio.sleep(0)
        working.cancel()
        await asyncio.wait([working], timeout=10)
        assert working.cancelled()

    worker = Worker(shop, CheckpointStore())
    asyncio.run(main())


def test_a_worker_that_was_idle_can_run_again(store: CheckpointStore) -> None:
    worker = Worker(shop, store)
    for number in range(2):
        store.submit("shop", number, f"run_{number}")
        worker.run_sync(until_idle=True)
    assert states(store) == {"run_0": "finished", "run_1": "finished"}


def test_workers_leave_the_runs_of_other_agents_alone(store: CheckpointStore) -> None:
    store.submit("other", 1, "run")
    work(store, shop)
    assert states(store) == {"run": "submitted"}


@pytest.mark.parametrize(
    "error", [LogError("the store is away"), RuntimeError("can't start new thread")]
)
def test_a_store_that_fails_between_two_questions_does_not_end_a_worker(
    store: CheckpointStore,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    store.submit("stranger", None, "run")
    worker = Worker({"agent": lambda run: run.task}, store)
    find, errors = worker._queue.find, [error]

    def find_or_fail(**asked: Any) -> Any:
        if "states" in asked and errors:
            worker._wake()
            raise errors.pop()
        return find(**asked)

    monkeypatch.setattr(worker._queue, "find", find_or_fail)
    thread = threading.Thread(target=worker.run_sync)
    thread.start()
    ends = time.monotonic() + 30
    while "waits for agent stranger" not in caplog.text and time.monotonic() < ends:
        time.sleep(0.01)
    worker.stop()
    thread.join()
    assert "waits for agent stranger" in caplog.text and worker.stats.store_errors == 1


def test_impossible_workers_are_refused() -> None:
    store = CheckpointStore()
    for agents, options, said in (
        ([shop, shop], {}, "one name"),
        ({}, {}, "needs an agent"),
        (shop, {"per_agent": {"shpo": 1}}, "names 'shpo'"),
        (shop, {"concurrency": 0}, "concurrency"),
    ):
        with pytest.raises(ValueError, match=said):
            Worker(agents, store, **options)
    with pytest.raises(ValueError, match="where the runs are"):
        Worker(shop)


# -- health


def test_health_and_metrics(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "runs")
    store.submit("shop", 1, "run")
    worker = work(store, shop)
    server = serve(worker, "127.0.0.1", 0)
    base = f"http://127.0.0.1:{server.server_port}"

    def got(path: str) -> str:
        with urllib.request.urlopen(base + path, timeout=60) as answer:
            return str(answer.read().decode())

    try:
        assert json.loads(got("/healthz")) == {
            "ok": True,
            "due": 0,
            "running": [],
            "quarantined": {},
            "store_away_s": 0,
        }
        metrics = got("/metrics")
        with socket.create_connection(("127.0.0.1", server.server_port)):  # and asks nothing
            assert got("/metrics")
        assert 'eventlog_worker_runs_total{agent="shop",outcome="finished"} 1.0' in metrics
        assert "eventlog_worker_quarantined 0.0" in metrics
        worker._looked -= 1000
        for path, code in (("/healthz", "503"), ("/", "404")):
            with pytest.raises(HTTPError, match=code) as refused:
                got(path)
            refused.value.close()  # Python 3.14 warns of a response that nobody closes
    finally:
        server.shutdown()
        server.server_close()


def test_agents_of_one_place_have_one_store(tmp_path: Path) -> None:
    first, second = (RecoverableAgent(shop, str(tmp_path / "runs")) for _ in range(2))
    Worker({"one": first, "two": second}).store.submit("two", 5, "run")
    Worker({"one": first, "two": second}).run_sync(until_idle=True)
    assert CheckpointStore(tmp_path / "runs").run("run").status().state == "finished"
    with pytest.raises(ValueError, match=f"different stores .{tmp_path}/runs and .*other"):
        Worker({"one": first, "two": RecoverableAgent(shop, str(tmp_path / "other"))})
    with pytest.raises(ValueError, match=r"different stores \(memory and memory"):
        Worker({name: RecoverableAgent(shop, CheckpointStore()) for name in ("one", "two")})


def test_a_lost_race_is_no_outcome_and_all_that_is_due_is_counted(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recovery.worker.worker.LOOK_FULL_S", 0.05)
    others, raced = CheckpointStore(store.backend), threading.Event()
    seen: list[int] = []

    def agent(run: SyncRun) -> Any:
        if run.run_id == "run-0":
            ends = time.monotonic() + 60
            while worker.stats.due != 4 and time.monotonic() < ends:
                time.sleep(0.01)
            seen.append(worker.stats.due)
        return run.task

    claim = type(store.backend).claim

    def later(backend: Any, run_id: str, takeover: bool = False) -> Any:
        if run_id == "run-1" and not raced.is_set():
            raced.set()
            raise LogLockedError(run_id, 1, "another", "now")
        return claim(backend, run_id, takeover)

    monkeypatch.setattr(type(store.backend), "claim", later)
    for number in range(5):
        others.submit("agent", number, f"run-{number}")
    worker = Worker({"agent": agent}, store, concurrency=1)
    worker.run_sync(until_idle=True)
    assert raced.is_set() and seen == [4]
    assert dict(worker.stats.ended) == {("agent", "finished"): 5}


DYING = """
import sys, time
from recovery import CheckpointStore, tool
from recovery.stores.postgres import PostgresStore
from recovery.worker import Worker

@tool(after_crash="retry")
def work():
    print("working", flush=True)
    time.sleep(600)

store = CheckpointStore(PostgresStore(sys.argv[1], lease_s=3600))
Worker({"agent": lambda run: run.call(work)}, store).run_sync()
"""


def test_on_a_server_the_runs_of_a_process_that_died_here_are_taken_before_its_lease_ends(
    server: Server,
) -> None:
    url = server.url()
    store = CheckpointStore(PostgresStore(url, lease_s=3600))
    store.submit("agent", None, "run")
    here = tool(after_crash="retry", name="work")(lambda: "here")
    worker = Worker({"agent": lambda run: run.call(here)}, store)
    with started(DYING, url) as start:
        other = until(start("other"), "working")
        thread = threading.Thread(target=worker.run_sync, daemon=True)
        thread.start()
        other.kill()
        other.wait()
        ends = time.monotonic() + 60
        while (state := store.run("run").status().state) != "finished" and time.monotonic() < ends:
            time.sleep(0.05)
    worker.stop()
    thread.join()
    assert state == "finished"


def test_an_outage_is_told_once_when_it_begins_and_once_when_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    alone = Server()
    try:
        backend = PostgresStore(alone.url(), patience_s=0.5)
        store = CheckpointStore(backend)
        store.submit("agent", None, "run", delay_s=3600)
        worker = Worker({"agent": lambda run: run.task}, store)
        thread = threading.Thread(target=worker.run_sync, daemon=True)
        thread.start()
        alone.stop()
        ends = time.monotonic() + 60
        while not worker.stats.away_s and time.monotonic() < ends:
            worker._wake()
            time.sleep(0.05)
        assert worker.stats.store_errors == 1
        for _ in range(3):
            with pytest.raises(UnreachableError):
                backend.find(due=True)
        alone.start()
        backend.find(due=True)
        assert worker.stats.away_s == 0.0 and worker.stats.store_errors == 1
        worker.stop()
        thread.join()
        # Before the server is removed: that is the next outage for the thread that listens to it.
        records = list(caplog.records)
    finally:
        alone.remove()
    told = "".join(one.getMessage() for one in records if one.levelno >= logging.WARNING)
    assert (told.count("takes no connection: "), told.count("answers again, after")) == (1, 1)
    assert not any(one.exc_info for one in records)
