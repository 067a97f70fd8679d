"""Tests whether a store of runs keeps what RunStore promises: for every store, a user's own too.

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def open_store(self, tmp_path):
            return lambda: MyStore(tmp_path)      # two calls: as two processes would open it

For a store on a server, made of an Engine, ``ServerConformance`` has more: lost connections before
and after each statement, statements that are executed late, and leases that run out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from eventlog import DamagedError, LogError, LogLockedError, LogReader, Snapshot, WritableLog
from eventlog.dump import verify
from eventlog.errors import FencedError, UnreachableError
from eventlog.remote.engine import Batch, LostConnectionError
from recovery.agent.checkpoint_store import CheckpointStore
from recovery.agent.recoverable import RecoverableAgent
from recovery.declare.tool import tool
from recovery.errors import InDoubtError, TaskMismatchError
from recovery.journal.submission import Submission
from recovery.stores.protocol import RunQueue, RunStore, TakesSubmissions
from recovery.stores.remote_store import RemoteStore

__all__ = ["FaultyEngine", "ServerConformance", "StoreConformance"]

OpenStore = Callable[[], RunStore]
Damage = Callable[[str], None]

RUN = "run_001"


def _records(store: RunStore, run_id: str = RUN) -> list[tuple[int, str, Any]]:
    reader = store.read(run_id)
    assert reader is not None
    with reader:
        if isinstance(reader, LogReader):
            assert [found for found in verify(reader) if found.bit] == []
        return [(record.lsn, record.kind, record.body) for record in reader.records()]


def _written(log: WritableLog, *values: Any) -> None:
    for value in values:
        log.append("value", value)
    log.commit()


class StoreConformance:
    """Tests of one store. A subclass has the fixture ``open_store``: a function that opens the same
    store again, as another process would. It is empty at first.

    Optionally also ``damage``: a function that changes one byte of a stored frame of a run.
    """

    @pytest.fixture
    def damage(self) -> Damage | None:
        """None: damage is not tested."""
        return None

    # -- one writer

    def test_what_is_committed_is_read_by_others(self, open_store: OpenStore) -> None:
        one, other = open_store(), open_store()
        assert one.read(RUN) is None and one.run_ids() == [] and one.size(RUN) == 0
        with one.claim(RUN) as log:
            assert (log.last_lsn, log.epoch) == (0, 1) and not log.former_owner()
            _written(log, 1, {"two": [2.5, None, b"\0\xff"]}, "dritter")
            assert log.durable_lsn == log.last_lsn == 3
            found = _records(other)
            assert found == [
                (1, "value", 1),
                (2, "value", {"two": [2.5, None, b"\0\xff"]}),
                (3, "value", "dritter"),
            ]
            assert [record.body for record in log.records(2)] == [one[2] for one in found[1:]]
        assert other.run_ids() == [RUN] and other.size(RUN) > 0
        with other.claim(RUN) as log:
            assert log.last_lsn == 3 and log.report.last_lsn == 3 and not log.report.damaged

    def test_a_batch_is_all_there_and_snapshots_are_found(self, open_store: OpenStore) -> None:
        with open_store().claim(RUN) as log:
            assert log.append_batch([("a", 1), ("b", 2), ("c", 3)]) == [1, 2, 3]
            assert log.append_snapshot({"state": 1}) == 4
            log.append("d", 4)
            log.append_snapshot({"state": 2})
            log.commit()
        reader = open_store().read(RUN)
        assert reader is not None
        with reader:
            kinds = [record.kind for record in reader.records()]
            assert kinds == ["a", "b", "c", "snapshot", "d", "snapshot"]
            assert [one.body for one in reader.snapshots()] == [{"state": 2}, {"state": 1}]
            newest = reader.latest_snapshot()
            assert isinstance(newest, Snapshot) and newest.lsn == 6
            assert {lsn: one.body for lsn, one in reader.fetch({2, 5, 99}).items()} == {2: 2, 5: 4}
            assert reader.tail().next_lsn == 7 and reader.durable_lsn() == 6

    def test_one_process_has_a_run_and_hands_it_over(self, open_store: OpenStore) -> None:
        one, other = open_store(), open_store()
        log = one.claim(RUN)
        _written(log, 1)
        with pytest.raises(LogLockedError) as held:
            other.claim(RUN)
        assert RUN in str(held.value)
        reader = other.read(RUN)
        assert reader is not None
        with reader:
            owner = reader.owner()
        assert owner is not None and owner.alive and owner.epoch == log.epoch
        log.close()
        with other.claim(RUN) as after:  # at once
            assert after.epoch > log.epoch and after.last_lsn == 1
            assert not after.former_owner()
        with pytest.raises(LogError):
            log.append("value", 2)

    def test_a_stale_owner_is_refused(self, open_store: OpenStore) -> None:
        one, other = open_store(), open_store()
        old = one.claim(RUN)
        _written(old, "kept")
        new = other.claim(RUN, takeover=True)
        assert new.epoch > old.epoch and new.former_owner() and new.last_lsn == 1
        old.append("value", "stale")
        with pytest.raises(FencedError):
            old.commit()
        _written(new, "new")
        with pytest.raises(LogError):
            _written(old, "stale again")
        old.close()
        with pytest.raises(LogError):
            old.commit()
        _written(new, "newer")
        assert [body for _, _, body in _records(one)] == ["kept", "new", "newer"]
        new.close()
        with other.claim(RUN) as last:
            assert last.epoch > new.epoch and last.last_lsn == 3

    def test_one_of_many_claims_wins(self, open_store: OpenStore) -> None:
        stores = [open_store() for _ in range(6)]
        start = threading.Barrier(len(stores))

        def claim(store: RunStore) -> WritableLog | None:
            start.wait()
            try:
                return store.claim(RUN)
            except LogLockedError:
                return None

        with ThreadPoolExecutor(len(stores)) as threads:
            logs = [log for log in threads.map(claim, stores) if log is not None]
        assert len(logs) == 1
        logs[0].close()

    def test_threads_append_and_commit(self, open_store: OpenStore) -> None:
        store = open_store()
        logs = [store.claim(f"run_{i}") for i in range(4)]

        def append(i: int) -> None:
            for number in range(25):
                logs[i % 4].append("value", [i, number])
                logs[i % 4].commit()

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(append, range(8)))
        for i, log in enumerate(logs):
            log.close()
            found = [body for _, _, body in _records(open_store(), f"run_{i}")]
            for thread in (i, i + 4):
                assert [n for t, n in found if t == thread] == [*range(25)]

    def test_large_records_and_truncation(self, open_store: OpenStore) -> None:
        with open_store().claim(RUN) as log:
            for i in range(6):
                log.append("large", {"i": i, "data": bytes([i]) * 700_000})
                log.commit_behind()
            log.roll()
            keep = log.append("small", "kept")
            log.commit()
            assert log.fetch({2})[2].body["i"] == 1
            oldest = log.truncate_before(keep)
            assert 1 < oldest <= keep and log.oldest_lsn == oldest
            log.append("small", "last")
        reader = open_store().read(RUN)
        assert reader is not None
        with reader:
            found = list(reader.records())
            assert [one.body for one in found][-2:] == ["kept", "last"]
            assert found[0].lsn == reader.oldest_lsn == oldest
        assert open_store().size(RUN) < 5_000_000

    def test_a_follower_sees_what_comes(self, open_store: OpenStore) -> None:
        with open_store().claim(RUN) as log:
            _written(log, 1)
            reader = open_store().read(RUN)
            assert reader is not None
            with reader:
                arrivals = reader.arrivals()
                assert _drained(arrivals) == [1]
                _written(log, 2, 3)
                assert _drained(arrivals) == [2, 3]
                log.roll()
                _written(log, 4)
                assert _drained(arrivals) == [4]
                assert [one.body for one in reader.records()] == [1, 2, 3, 4]

    def test_impossible_ids_are_refused(self, open_store: OpenStore) -> None:
        store = open_store()
        for run_id in ("", "../up", "a/b", ".hidden", "x" * 200, "new\nline"):
            for act in (store.claim, store.read, store.inbox, store.remove, store.size):
                with pytest.raises(ValueError):
                    act(run_id)

    def test_damage_is_found(self, open_store: OpenStore, damage: Damage | None) -> None:
        if damage is None:
            pytest.skip("the store says no way to damage a frame")
        with open_store().claim(RUN) as log:
            for i in range(20):
                _written(log, {"i": i, "text": "x" * 50})
        damage(RUN)
        reader = open_store().read(RUN)
        assert reader is not None
        with reader:
            with pytest.raises(DamagedError):
                list(reader.records())
            lost: list[Any] = []
            sound = [record.lsn for record in reader.records(on_damage=lost.append)]
            gone = {lsn for one in lost for lsn in range(one.first_lsn, one.last_lsn + 1)}
            assert gone and gone.isdisjoint(sound) and gone | {*sound} == {*range(1, 21)}
        with open_store().claim(RUN) as log:
            assert log.last_lsn == 20, "what is lost keeps its numbers"

    # -- messages

    def test_messages_are_numbered_and_posted_once(self, open_store: OpenStore) -> None:
        one, other = open_store(), open_store()
        one.claim(RUN).close()
        assert one.inbox(RUN) is None
        body = {"uid": "u", "name": "go", "value": 1, "who": ""}
        assert other.post(RUN, "signal", body, key="k") == 1
        assert one.post(RUN, "signal", body | {"value": 2}) == 2
        assert one.post(RUN, "signal", body, key="k") == 1, "posted before, under this key"
        with pytest.raises(ValueError):
            one.post(RUN, "signal", body | {"value": 3}, key="k")
        with ThreadPoolExecutor(6) as threads:
            post = [threads.submit(open_store().post, RUN, "signal", body) for _ in range(12)]
            assert sorted(one.result() for one in post) == [*range(3, 15)]
        inbox = open_store().inbox(RUN)
        assert inbox is not None
        with inbox:
            assert inbox.durable_lsn() == 14
            assert [record.lsn for record in inbox.records()] == [*range(1, 15)]
        assert one.run_ids() == [RUN], "an inbox is no run"

    def test_messages_reach_a_live_run(self, open_store: OpenStore) -> None:
        made = RecoverableAgent(_two_signals, CheckpointStore(open_store()), park_after_s=None)
        with ThreadPoolExecutor(1) as thread:
            running = thread.submit(made.run_with_recovery_sync, "task", RUN)
            handle = CheckpointStore(open_store()).run(RUN)
            _until(lambda: RUN in open_store().run_ids() and handle.status().calls)
            handle.signal("go", 1)
            handle.signal("go", 2)
            assert running.result(60)["result"] == [1, 2]

    # -- removal

    def test_removal(self, open_store: OpenStore) -> None:
        store = open_store()
        with pytest.raises(FileNotFoundError):
            store.remove(RUN)
        log = store.claim(RUN)
        _written(log, 1, 2)
        with pytest.raises(LogLockedError):
            open_store().remove(RUN)
        log.close()
        store.post(RUN, "signal", {"uid": "u", "name": "go", "value": 1, "who": ""})
        with pytest.raises(LogError):
            store.remove(RUN, at=1)
        assert len(_records(store)) == 2
        open_store().remove(RUN, at=2)
        assert store.run_ids() == [] and store.read(RUN) is None and store.inbox(RUN) is None
        assert store.sweep() == 0
        with store.claim(RUN) as log:  # the id is free
            assert log.last_lsn == 0
            _written(log, "another")
        assert [body for _, _, body in _records(open_store())] == ["another"]

    # -- agents

    def test_an_agent_resumes_and_repeats_no_side_effect(self, open_store: OpenStore) -> None:
        made: list[int] = []
        dies = [3, 7, 12]

        @tool
        def pay(step: int) -> int:
            made.append(step)
            return step * 10

        def agent(run: Any) -> Any:
            for step in run.steps():
                run.messages.append({"paid": run.call(pay, step)})
                if dies and step == dies[0]:
                    dies.pop(0)
                    raise _Died
                if step == 15:
                    return run.state.get("n", 0) + len(run.messages)
                run.state["n"] = step

        for life in range(4):
            store = CheckpointStore(open_store())
            recoverable = RecoverableAgent(agent, store, max_recoveries=0, check_locals=False)
            try:
                result = recoverable.run_with_recovery_sync("task", RUN)
            except _Died:
                assert life < 3
        assert result["result"] == 14 + 15 and made == [*range(1, 16)]
        assert result["recovery_count"] == 3
        status = CheckpointStore(open_store()).run(RUN).status()
        assert (status.state, status.damage) == ("finished", ())

    def test_a_call_without_an_outcome_is_in_doubt(self, open_store: OpenStore) -> None:
        made: list[str] = []

        @tool
        def pay() -> None:
            made.append("paid")
            store.backend.claim(RUN, takeover=True).close()  # as after a death: no outcome arrives

        def agent(run: Any) -> Any:
            run.call(pay)

        store = CheckpointStore(open_store())
        with pytest.raises(LogError):
            RecoverableAgent(agent, store, max_recoveries=0).run_with_recovery_sync("task", RUN)
        again = CheckpointStore(open_store())
        with pytest.raises(InDoubtError):
            RecoverableAgent(agent, again, max_recoveries=0).run_with_recovery_sync("task", RUN)
        assert made == ["paid"] and again.run(RUN).status().state == "in doubt"

    # -- submissions, and what a queue does besides

    def test_a_run_is_submitted_once(self, open_store: OpenStore) -> None:
        one, other = open_store(), open_store()
        if not isinstance(one, TakesSubmissions) or not isinstance(other, TakesSubmissions):
            pytest.skip("the store takes no submissions")
        assert one.submit(Submission(RUN, {"n": 1}, agent="shop"))
        assert not other.submit(Submission(RUN, {"n": 1}, agent="shop")), "submitted before"
        with pytest.raises(TaskMismatchError):
            other.submit(Submission(RUN, {"n": 2}, agent="shop"))
        found = other.submission(RUN)
        assert found is not None and (found.task, found.agent) == ({"n": 1}, "shop")
        assert other.submission("another") is None
        made = RecoverableAgent(lambda run: run.task, CheckpointStore(open_store()))
        assert made.run_with_recovery_sync({"n": 1}, RUN)["result"] == {"n": 1}
        assert not one.submit(Submission(RUN, {"n": 1}, agent="shop"))

    def test_the_key_of_a_subject_is_made_once_and_destroyed(self, open_store: OpenStore) -> None:
        keys = [getattr(open_store(), "subject_keys", None) for _ in range(4)]
        one, other = keys[:2]
        if one is None or other is None:
            pytest.skip("this store keeps no keys of subjects")
        with ThreadPoolExecutor(4) as pool:
            ids = {*pool.map(lambda each: each.id_of("ann"), keys)}
        assert len(ids) == 1 and one.id_of("bob") not in ids
        key_id = ids.pop()
        data = one.seal((key_id,), b"value")
        _until(lambda: other.open(data) == b"value")
        other.forget("ann")
        assert other.has_forgotten(key_id) and other.open(data) is other.open(data) is not None
        _until(lambda: one.subjects() == ["bob"] and one.has_forgotten(key_id))
        assert one.seal((key_id,), b"value") is None
        assert one.id_of("ann") != key_id

    def test_submitted_runs_are_listed_and_begun_once(self, open_store: OpenStore) -> None:
        one, other = _queues(open_store)
        now = one.time_ns()
        late = now + 3600 * 10**9
        assert one.submit(Submission("b", {"n": 1}, agent="shop"))
        assert one.submit(Submission("a", "t", agent="shop", priority=5, limit_key="k"))
        assert one.submit(Submission("c", "t", agent="shop", not_before_ns=late))
        assert one.submit(Submission("d", "t", agent="mail"))
        assert [(run.run_id, run.state) for run in other.find()] == [
            (name, "submitted") for name in "abcd"
        ]
        due = other.find(due=True, agents=["shop"])
        assert [run.run_id for run in due] == ["a", "b"], "by priority; c is not due yet"
        assert (due[0].limit_key, due[0].priority) == ("k", 5)
        assert due[0].owner is None or not due[0].owner.alive
        assert [run.run_id for run in other.find(after="b", limit=1)] == ["c"]

        made = RecoverableAgent(lambda run: run.task, CheckpointStore(open_store()))
        made.run_with_recovery_sync({"n": 1}, "b")
        states = {run.run_id: run.state for run in other.find(agents=["shop"])}
        assert states == {"a": "submitted", "b": "finished", "c": "submitted"}
        assert [run.run_id for run in other.find(states=["finished"])] == ["b"]
        assert "b" not in [run.run_id for run in other.find(due=True)]
        open_store().remove("a")
        assert "a" not in [run.run_id for run in other.find()]

    def test_a_run_is_due_when_it_can_make_progress(self, open_store: OpenStore) -> None:
        one, other = _queues(open_store)
        store = CheckpointStore(open_store())
        waits = RecoverableAgent(_one_signal, store, park_after_s=0)
        with pytest.raises(Exception, match=RUN):
            waits.run_with_recovery_sync("task", RUN)
        assert [run.state for run in other.find()] == ["waiting"] and not other.find(due=True)
        CheckpointStore(open_store()).run(RUN).signal("go", 7)
        assert [run.run_id for run in other.find(due=True)] == [RUN], "it was sent something"
        assert waits.resume_sync(RUN)["result"] == 7
        assert not other.find(due=True) and [run.state for run in one.find()] == ["finished"]

        with open_store().claim("cut") as log:
            log.append("run_resumed", {})
            log.commit()
            assert [run.state for run in other.find(states=["running"])] == ["running"]
            assert not other.find(due=True)
        assert [run.state for run in other.find(due=True)] == ["interrupted"], "handed over"

    def test_a_waiting_worker_is_woken(self, open_store: OpenStore) -> None:
        one, other = _queues(open_store)
        while other.wait(0.5):
            pass
        with ThreadPoolExecutor(1) as thread:
            woken = thread.submit(other.wait, 50)
            began = time.monotonic()
            one.submit(Submission("x", 1))
            assert woken.result(60) and time.monotonic() - began < 50


class _Died(Exception):  # noqa: N818 - what a test raises where a process would die
    pass


def _one_signal(run: Any) -> Any:
    return run.wait_for("go")


def _two_signals(run: Any) -> Any:
    return [run.wait_for("go"), run.wait_for("go")]


def _drained(arrivals: Iterator[Any]) -> list[Any]:
    """What comes until nothing does; a server may take a moment."""
    found: list[Any] = []
    until = time.monotonic() + 30
    while not found and time.monotonic() < until:
        for item in arrivals:
            if item is None:
                break
            found.append(item.body)
        else:
            return found
    return found


def _until(holds: Callable[[], Any]) -> None:
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


def _queues(open_store: OpenStore) -> tuple[RunQueue, RunQueue]:
    one, other = open_store(), open_store()
    if not isinstance(one, RunQueue) or not isinstance(other, RunQueue):
        pytest.skip("the store is no RunQueue")
    return one, other


class FaultyEngine:
    """An engine whose connection is lost where a test says so.

    ``faults``: for the next calls of ``append`` and ``resolve``: "before" (the server has not
    executed it), "after" (it has), "late" (it does after the next ``resolve``), "" (nothing).
    """

    def __init__(self, inner: Any) -> None:
        self.inner, self.address = inner, inner.address
        self.faults: list[str] = []
        self.appends = 0
        self._late: list[tuple[Sequence[Batch], float]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def append(self, batches: Sequence[Batch], lease_s: float) -> set[int]:
        """See Engine."""
        self.appends += 1
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "before":
            raise LostConnectionError("cut before the server had the statement")
        if fault == "late":
            self._late.append((batches, lease_s))
            raise LostConnectionError("cut while the server waits")
        accepted: set[int] = self.inner.append(batches, lease_s)
        if fault == "after":
            raise LostConnectionError("cut before the answer came")
        return accepted

    def resolve(self, batches: Sequence[Batch]) -> dict[int, tuple[int, bool]]:
        """See Engine."""
        fault = self.faults.pop(0) if self.faults else ""
        if fault:
            raise LostConnectionError("cut again")
        found: dict[int, tuple[int, bool]] = self.inner.resolve(batches)
        for late in self._late:
            self.inner.append(*late)
        self._late.clear()
        return found


class ServerConformance(StoreConformance):
    """Tests of a store that is made of an Engine (see RemoteStore).

    A subclass also has the fixture ``open_faulty``: a function that opens the store with these
    options: ``lease_s``, ``patience_s``, and ``wrap``, a function that is given the engine and
    returns the one to use.
    """

    @pytest.mark.parametrize("fault", ["before", "after", "late"])
    @pytest.mark.parametrize("more", [[], ["before"], ["before", "before"]])
    def test_an_append_of_unknown_outcome_is_there_once(
        self, open_store: OpenStore, open_faulty: Any, fault: str, more: list[str]
    ) -> None:
        store = open_faulty(wrap=FaultyEngine)
        with store.claim(RUN) as log:
            _written(log, 1)
            store.engine.faults = [fault, *more]
            _written(log, 2)
            assert log.durable_lsn == 2
            _written(log, 3)
        assert [body for _, _, body in _records(open_store())] == [1, 2, 3]

    def test_the_same_fault_at_each_statement_of_a_run(
        self, open_store: OpenStore, open_faulty: Any
    ) -> None:
        effects: list[int] = []

        @tool
        def pay(step: int) -> int:
            effects.append(step)
            return step

        def agent(run: Any) -> Any:
            for step in run.steps():
                run.messages.append(run.call(pay, step))
                if step == 4:
                    return list(run.messages)

        for fault in ("before", "after", "late"):
            at, was_there = 0, True
            while was_there:
                store = open_faulty(wrap=FaultyEngine)
                effects.clear()
                store.engine.faults = [*[""] * at, fault]
                made = RecoverableAgent(agent, CheckpointStore(store))
                result = made.run_with_recovery_sync("task", f"{fault}_{at}")
                assert result["result"] == effects == [1, 2, 3, 4], (fault, at)
                was_there = not store.engine.faults
                at += 1
            assert at > 4

    def test_a_stale_batch_of_unknown_outcome_is_refused(
        self, open_store: OpenStore, open_faulty: Any
    ) -> None:
        store = open_faulty(wrap=FaultyEngine)
        log = store.claim(RUN)
        _written(log, 1)
        new = open_store().claim(RUN, takeover=True)
        store.engine.faults = ["before"]
        log.append("value", "stale")
        with pytest.raises(FencedError):
            log.commit()
        log.close()
        _written(new, 2)
        new.close()
        assert [body for _, _, body in _records(open_store())] == [1, 2]

    def test_what_arrived_before_a_takeover_is_kept(
        self, open_store: OpenStore, open_faulty: Any
    ) -> None:
        store = open_faulty(wrap=FaultyEngine)
        log = store.claim(RUN)
        store.engine.faults = ["after", "again"]
        log.append("value", 1)
        taken: list[WritableLog] = []
        inner = store.engine.inner.append

        def append(*values: Any) -> Any:
            found = inner(*values)
            if not taken:
                taken.append(open_store().claim(RUN, takeover=True))
            return found

        store.engine.inner.append = append
        log.commit()
        assert log.durable_lsn == 1 and taken[0].last_lsn == 1
        log.append("value", "stale")
        with pytest.raises(FencedError):
            log.commit()
        log.close()
        taken[0].close()

    def test_patience_ends_in_an_error_that_says_what_is_known(
        self, open_store: OpenStore, open_faulty: Any
    ) -> None:
        store: RemoteStore = open_faulty(wrap=FaultyEngine, patience_s=0.3)
        log = store.claim(RUN)
        _written(log, 1)
        engine: Any = store.engine
        engine.faults = ["before"] * 1000
        log.append("value", 2)
        with pytest.raises(UnreachableError, match="has not answered"):
            log.commit()
        with pytest.raises(LogError):
            log.append("value", 3)
        log.close()
        engine.faults = []
        with open_store().claim(RUN, takeover=True) as after:
            assert after.last_lsn == 1

    def test_a_post_of_unknown_outcome_is_there_once(
        self, open_store: OpenStore, open_faulty: Any
    ) -> None:
        open_store().claim(RUN).close()
        body = {"uid": "u", "name": "go", "value": 1, "who": ""}
        for i, fault in enumerate(("before", "after", "late")):
            store = open_faulty(wrap=FaultyEngine)
            store.engine.faults = [fault]
            assert store.post(RUN, "signal", body) == i + 1
        inbox = open_store().inbox(RUN)
        assert inbox is not None
        with inbox:
            assert [record.lsn for record in inbox.records()] == [1, 2, 3]

    def test_a_lease_is_renewed_and_runs_out(self, open_store: OpenStore, open_faulty: Any) -> None:
        live = open_faulty(lease_s=1.0)
        log = live.claim(RUN)
        _written(log, 1)
        time.sleep(2.5)
        with pytest.raises(LogLockedError):
            open_store().claim(RUN)

        class Deaf(FaultyEngine):  # as a process that was stopped
            def append(self, batches: Sequence[Batch], lease_s: float) -> set[int]:
                if not any(batch.pieces for batch in batches):
                    return {batch.key for batch in batches}
                return super().append(batches, lease_s)

        stopped = open_faulty(lease_s=1.0, wrap=Deaf)
        old = stopped.claim("stopped")
        _written(old, 1)
        _until(lambda: _may_be_claimed(open_store(), "stopped"))
        new = open_store().claim("stopped")
        assert new.former_owner() and new.epoch == old.epoch + 1
        old.append("value", "stale")
        with pytest.raises(FencedError):
            old.commit()
        for one in (old, new, log):
            one.close()

    def test_what_waits_goes_out_in_one_statement(self, open_faulty: Any) -> None:
        store = open_faulty(wrap=FaultyEngine)
        logs = [store.claim(f"run_{i}") for i in range(20)]
        for log in logs:
            log.append("value", 1)
        assert log.group is not None
        store.engine.appends = 0
        left, done = len(logs), threading.Event()

        def ended(log: WritableLog, error: Exception | None) -> None:
            nonlocal left
            assert error is None and log.durable_lsn == 1
            left -= 1
            if not left:
                done.set()

        log.group.commit(logs, ended)
        assert done.wait(60) and store.engine.appends == 1
        for log in logs:
            log.close()


def _may_be_claimed(store: RunStore, run_id: str) -> bool:
    reader = store.read(run_id)
    assert reader is not None
    with reader:
        owner = reader.owner()
    return owner is not None and not owner.alive
