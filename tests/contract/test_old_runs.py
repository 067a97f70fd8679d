"""Runs that an earlier release wrote are resumed; runs of this one are refused by earlier ones."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from eventlog import EventLog
from recovery import (
    CheckpointManager,
    CheckpointStore,
    RecoverableAgent,
    Resolution,
    Retry,
    approve,
    current_call,
    pending,
    resolve,
    tool,
)
from recovery._coded import BY_NAME
from recovery._errors import UnreadableValueError
from recovery._events import CallIntended
from recovery._history import load
from recovery._rules import Rules
from recovery.graph import Graph, GraphExecutor, NodeContext
from tests.data import make_runs, trip
from tests.unit.lives import RUN, recorded

# By run: what is executed when it is resumed, once a person has said what they are asked.
EXECUTED = {
    "crashed_in_doubt": ["ask_model", "search", "ask_model"],
    "damaged_header": ["ask_model", "search", "ask_model"],
    "damaged_snapshot": ["ask_model", "search", "ask_model"],
    "parked": ["ask_model", "search", "ask_model"],
    "resolved": [],
    "torn": ["search", "ask_model"],
    "waiting": ["charge", "ask_model", "tickets", "ask_model", "send_mail", "ask_model", "search",
                "ask_model"],
}  # fmt: skip


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []
    monkeypatch.setattr(trip.World, "enter", lambda world, name: made.append(name))
    return made


def resumed(path: Path, run_id: str) -> list[str]:
    """The plan that the run ends with, in a time that passes only where something waits."""
    with make_runs._fixed(make_runs.Maker(7)), CheckpointStore(path) as store:
        if run_id == "waiting":
            approve(store, run_id, pending(store, run_id)[0], who="ann")
        elif run_id not in ("resolved", "torn"):
            resolve(store, run_id, 58, Resolution.outcome("250 OK 1"), who="bob")
        agent = RecoverableAgent(trip.book_trip, store, checkpoint_every_n=2)
        return list(agent.run_with_recovery_sync(trip.TASK, run_id)["result"]["trip"])


@pytest.mark.parametrize("run_id", EXECUTED)
def test_a_run_of_the_first_release_is_resumed(
    run_id: str, tmp_path: Path, executed: list[str]
) -> None:
    shutil.copytree(make_runs.RUNS / run_id, tmp_path / run_id)
    plan = [f"{step}: {text}" for step, (text, _) in enumerate(trip.SCRIPT[:-1], 1)]
    assert resumed(tmp_path, run_id) == plan
    assert executed == EXECUTED[run_id]


@pytest.mark.parametrize("begun_by", ["the first release", "this one"])
def test_an_earlier_release_refuses_what_this_one_has_written(
    begun_by: str, tmp_path: Path, executed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if begun_by == "this one":
        with make_runs._fixed(make_runs.Maker(7)), CheckpointStore(tmp_path) as store:
            agent = RecoverableAgent(trip.plan_days, store)
            agent.run_with_recovery_sync("days", "waiting")
    else:
        shutil.copytree(make_runs.RUNS / "waiting", tmp_path / "waiting")
        resumed(tmp_path, "waiting")
    (name,) = (name for name, codec in BY_NAME.items() if codec.kind is Rules)
    monkeypatch.delitem(BY_NAME, name)  # it does not know these rules
    with (
        EventLog.read(tmp_path / "waiting") as reader,
        pytest.raises(UnreadableValueError, match=r"upgrade the package.*nothing was executed"),
    ):
        load(reader, "waiting")


# -- graphs that were begun under the first rules, whose attempts at a node are calls of their own


class Desk:
    """A node that pays and then fails, as often as it is told."""

    def __init__(self, failures: int) -> None:
        self.paid: list[str] = []  # by idempotency key
        self.left = failures

    async def pay(self, context: NodeContext) -> str:
        @tool
        def charge() -> str:
            call = current_call()
            assert call is not None
            self.paid.append(call.idempotency_key)
            return "receipt"

        receipt = charge()
        self.left -= 1
        if self.left >= 0:
            raise ValueError(f"{self.left} left")
        return receipt

    def live(self, store: CheckpointStore, **options: Any) -> Any:
        graph = Graph("order")
        graph.node("pay", self.pay, **options)
        executor = GraphExecutor(checkpoint_manager=CheckpointManager(store))
        return asyncio.run(executor.execute(graph, "goal", {}, RUN))


@pytest.fixture
def first_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recovery._beginning.Rules", lambda version: None)


@pytest.mark.usefixtures("first_rules")
def test_each_attempt_at_a_node_is_a_call_of_its_own() -> None:
    desk, store = Desk(2), CheckpointStore()
    began = time.monotonic()
    for _ in range(2):  # the second time it is replayed
        result = desk.live(store, retry=Retry(3, delay_s=0.1, jitter=0))
        assert (result.success, result.output) == (True, {"pay": "receipt"})
    assert time.monotonic() - began >= 0.3  # 0.1 and 0.2: once
    assert len(set(desk.paid)) == 3
    calls = [event.tool for event in recorded(store, CallIntended)]
    assert calls == [calls[0], "charge"] * 3


@pytest.mark.usefixtures("first_rules")
def test_a_node_that_has_failed_is_tried_again_by_whoever_resumes() -> None:
    desk, store = Desk(3), CheckpointStore()
    found = [desk.live(store, retry=Retry(2, delay_s=0, jitter=0)) for _ in range(2)]
    assert [one.success for one in found] == [False, True]
    assert len(set(desk.paid)) == 4
