"""Runs that an earlier release wrote are resumed; runs of this one are refused by earlier ones."""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eventlog import EventLog
from recovery import (
    ApprovalDeniedError,
    CheckpointManager,
    CheckpointStore,
    PermanentError,
    RecoverableAgent,
    Resolution,
    Retry,
    ToolError,
    current_call,
    tool,
)
from recovery.control.resolve import resolve
from recovery.control.send import approve, pending
from recovery.errors import UnreadableValueError
from recovery.graph import Graph, GraphExecutor, NodeContext
from recovery.history.load import load
from recovery.journal.contract_version import Rules
from recovery.journal.events import CallFailed, CallIntended
from recovery.journal.rebuilt_errors import rebuilt
from recovery.replay import recorded_call
from recovery.values.codec import BY_NAME
from recovery.values.pack import pack
from recovery.values.type_names import type_name
from tests.data import make_runs, trip
from tests.support.lives import RUN, recorded

# By run: what is executed when it is resumed, once a person has said what they are asked.
EXECUTED = {
    "crashed_in_doubt": ["ask_model", "search", "ask_model"],
    "damaged_header": ["ask_model", "search", "ask_model"],
    "damaged_snapshot": ["ask_model", "search", "ask_model"],
    "parked": ["ask_model", "search", "ask_model"],
    "resolved": [],
    "torn": ["search", "ask_model"],
    "waiting": [
        "charge",
        "ask_model",
        "tickets",
        "ask_model",
        "send_mail",
        "ask_model",
        "search",
        "ask_model",
    ],
}


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
        self.attempts: list[int] = []
        self.left = failures

    async def pay(self, context: NodeContext) -> str:
        @tool
        def charge() -> str:
            call = current_call()
            assert call is not None
            self.paid.append(call.idempotency_key)
            return "receipt"

        receipt = charge()
        self.attempts.append(context.attempt)
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
    monkeypatch.setattr("recovery.agent.begin_run.Rules", lambda version: None)


@pytest.mark.usefixtures("first_rules")
def test_each_attempt_at_a_node_is_a_call_of_its_own() -> None:
    desk, store = Desk(2), CheckpointStore()
    began = time.monotonic()
    for _ in range(2):  # the second time it is replayed
        result = desk.live(store, retry=Retry(3, delay_s=0.1, jitter=0))
        assert (result.success, result.output) == (True, {"pay": "receipt"})
        assert desk.attempts == [1, 2, 3]
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


def library_errors(kind: type[Exception] = Exception) -> Iterator[type[Exception]]:
    for one in kind.__subclasses__():
        if one.__module__.startswith(("recovery", "eventlog")) and one.__name__[0] != "_":
            yield one
        yield from library_errors(one)


def test_no_record_names_the_module_that_defines_an_error() -> None:
    names = sorted({(type_name(kind), kind) for kind in library_errors()}, key=str)
    assert len(names) > 30
    for name, kind in names:
        assert re.fullmatch(r"(recovery|eventlog)\.[A-Za-z]\w*", name), (name, kind)
    assert len({name for name, _ in names}) == len(names), "two types are recorded under one name"


@pytest.mark.parametrize("module", ["recovery", "recovery.errors", "recovery.errors"])
def test_an_error_is_found_whichever_module_defined_it(module: str) -> None:
    error = ApprovalDeniedError("charge", "ann", "too dear")
    failed = CallFailed(1, f"{module}.ApprovalDeniedError", str(error), pack([*error.args], ""))
    assert [type(rebuilt(failed, (), rules)) for rules in (1, 2)] == [ApprovalDeniedError] * 2
    ended = CallFailed(1, "builtins.StopIteration", "x", pack(["x"], ""))
    assert [type(rebuilt(ended, kinds, 1)) for kinds in [(), (StopIteration,)]] == [
        ToolError,
        StopIteration,
    ]
    assert recorded_call.is_final(failed.type)


@pytest.mark.usefixtures("first_rules")
@pytest.mark.parametrize("wrong", [ValueError("no"), PermanentError("no")])
@pytest.mark.parametrize("is_handled", [False, True])
def test_a_recorded_failure_of_a_node_is_tried_again_by_nobody_but_who_resumes_it(
    wrong: Exception, is_handled: bool
) -> None:
    made = 0
    alive = False

    async def pay(context: NodeContext) -> str:
        nonlocal made
        made += 1
        if made > 9:
            raise KeyboardInterrupt  # it would be tried for ever
        if made > 4 and not isinstance(wrong, PermanentError):
            return "paid"
        raise wrong

    async def handle(context: NodeContext) -> str:
        if not alive:
            raise SystemExit  # a crash
        return "handled"

    graph = Graph("order")
    graph.node("pay", pay, retry=Retry(2, delay_s=0, jitter=0))
    if is_handled:
        graph.node("handle", handle)
        graph.edge("pay", "handle", "on_failure")

    def live() -> tuple[int, dict[str, Any]]:
        executor = GraphExecutor(checkpoint_manager=manager)
        found = asyncio.run(executor.execute(graph, "goal", {}, RUN))
        return made, found.output

    manager = CheckpointManager(CheckpointStore())
    tries = 1 if isinstance(wrong, PermanentError) else 2
    if is_handled:
        with pytest.raises(SystemExit):
            live()
        alive = True
        assert [live() for _ in range(2)] == [(tries, {"handle": "handled"})] * 2
    else:
        paid = [(tries, {})] * 3 if tries == 1 else [(2, {}), (4, {}), (5, {"pay": "paid"})]
        assert [live() for _ in range(3)] == paid
