"""Tests that a store keeps runs: messages, removal, agents, submissions and queues."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from eventlog import LogError, LogLockedError
from recovery.agent.checkpoint_store import CheckpointStore
from recovery.agent.recoverable import RecoverableAgent
from recovery.agent.run_handle import RunHandle
from recovery.declare.tool import tool
from recovery.errors import InDoubtError, RecoveryError, TaskMismatchError
from recovery.journal.submission import Submission
from recovery.stores.protocol import RunQueue, TakesSubmissions
from recovery.testing.conformance_parts.of_logs import RUN, OpenStore, records, until, written


class RunConformance:
    """Tests of messages, removal, agents and queues."""

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
            try:
                until(lambda: _has_calls(handle))
                handle.signal("go", 1)
                handle.signal("go", 2)
                assert running.result(60)["result"] == [1, 2]
            finally:
                made.stop()

    # -- removal

    def test_removal(self, open_store: OpenStore) -> None:
        store = open_store()
        with pytest.raises(FileNotFoundError):
            store.remove(RUN)
        log = store.claim(RUN)
        written(log, 1, 2)
        with pytest.raises(LogLockedError):
            open_store().remove(RUN)
        log.close()
        store.post(RUN, "signal", {"uid": "u", "name": "go", "value": 1, "who": ""})
        with pytest.raises(LogError):
            store.remove(RUN, at=1)
        with pytest.raises(LogError):
            store.remove(RUN, at=2, inbox=0)
        assert len(records(store)) == 2 and store.inbox(RUN) is not None
        open_store().remove(RUN, at=2, inbox=1)
        assert store.run_ids() == [] and store.read(RUN) is None and store.inbox(RUN) is None
        assert store.sweep() == 0
        with store.claim(RUN) as log:  # the id is free
            assert log.last_lsn == 0
            written(log, "another")
        assert [body for _, _, body in records(open_store())] == ["another"]

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

    def test_a_waiting_worker_is_woken_when_a_run_is_due(self, open_store: OpenStore) -> None:
        one, other = _queues(open_store)
        one.submit(Submission("x", 1, not_before_ns=one.time_ns() + 2 * 10**9))
        assert not other.find(due=True)
        began = time.monotonic()
        while not other.find(due=True):
            other.wait(50)
        assert time.monotonic() - began < 40, "nothing else wakes it"


class _Died(Exception):  # noqa: N818 - what a test raises where a process would die
    pass


def _has_calls(handle: RunHandle) -> bool:
    try:
        return bool(handle.status().calls)
    except RecoveryError:  # there is no run yet
        return False


def _one_signal(run: Any) -> Any:
    return run.wait_for("go")


def _two_signals(run: Any) -> Any:
    return [run.wait_for("go"), run.wait_for("go")]


def _queues(open_store: OpenStore) -> tuple[RunQueue, RunQueue]:
    one, other = open_store(), open_store()
    if not isinstance(one, RunQueue) or not isinstance(other, RunQueue):
        pytest.skip("the store is no RunQueue")
    return one, other
