"""What returned inside a node is never executed again: a visit that is tried again is one call."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import recovery
from recovery import (
    CheckpointManager,
    CheckpointStore,
    InDoubtError,
    PermanentError,
    Resolution,
    Retry,
    current_call,
    tool,
)
from recovery.control.resolve import resolve
from recovery.engine.execution_base import ExecutionBase
from recovery.graph import FlexibleGraphExecutor, Graph, GraphExecutor, NodeContext, PlanStep
from recovery.inspect.status import status
from recovery.journal.contract_version import Rules
from recovery.journal.events import AttemptFailed, CallFailed, CallIntended, RunParked
from recovery.testing import crash_everywhere
from tests.support.lives import RUN, recorded
from tests.support.scale import scaled

sent: Counter[str] = Counter()  # by idempotency key
raised: Counter[str] = Counter()


pytestmark = pytest.mark.usefixtures("in_order")


@pytest.fixture(autouse=True)
def _fresh() -> None:
    sent.clear()
    raised.clear()


@tool
async def charge(cents: int) -> str:
    call = current_call()
    assert call is not None
    sent[call.idempotency_key] += 1
    if cents > 1000:
        await asyncio.sleep(1)
    return "receipt"


def fail(what: str, times: int) -> None:
    """What an author did not think of; and then it works, as things do."""
    raised[what] += 1
    if raised[what] <= times:
        raise ValueError(f"{what} {raised[what]}")


def of_node(**options: Any) -> Graph:
    graph = Graph("order")

    async def pay(context: NodeContext) -> str:
        receipt = await charge(100)
        fail("node", 2)
        return receipt

    graph.node("pay", pay, **options)
    return graph


def of_edge() -> Graph:
    graph = Graph("order")

    async def pay(context: NodeContext) -> str:
        return await charge(100)

    def paid(output: Any, memory: Any) -> bool:
        fail("edge", 2)
        return True

    graph.node("pay", pay)
    graph.node("thank", lambda context: "thanks")
    graph.edge("pay", "thank", paid)
    return graph


def of_branches() -> Graph:
    graph = of_node()

    async def other(context: NodeContext) -> str:
        return await charge(200)

    graph.node("start", lambda context: None)
    graph.node("other", other)
    graph.edge("start", "pay")
    graph.edge("start", "other")
    graph._start = "start"
    return graph


def flexible(manager: CheckpointManager) -> FlexibleGraphExecutor:
    def plan(context: NodeContext) -> list[PlanStep]:
        return [PlanStep("pay", "charge", {"cents": 100})]

    def judge(step: PlanStep, outcome: Any, context: NodeContext) -> str:
        fail("judge", 2)
        return "accept"

    return FlexibleGraphExecutor(plan, {"charge": charge}, judge, checkpoint_manager=manager)


def live(manager: CheckpointManager, made: Callable[[], Graph] | None) -> Any:
    if made is None:
        return asyncio.run(flexible(manager).execute("sell", run_id=RUN))
    executor = GraphExecutor(checkpoint_manager=manager)
    return asyncio.run(executor.execute(made(), "sell", run_id=RUN))


SUBJECTS: dict[str, tuple[Callable[[], Graph] | None, int, int]] = {  # lives, charges
    "a node": (of_node, 3, 1),
    "a node with a Retry": (lambda: of_node(retry=Retry(3, 0.0)), 1, 1),
    "an edge": (of_edge, 3, 1),
    "branches": (of_branches, 3, 2),
    "a judge": (None, 3, 1),
}


@pytest.fixture(params=["memory", "file"])
def manager(request: pytest.FixtureRequest, tmp_path: Any) -> CheckpointManager:
    return CheckpointManager(CheckpointStore() if request.param == "memory" else tmp_path)


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_failure_after_tools_returned_repeats_none_of_them(
    manager: CheckpointManager, name: str
) -> None:
    made, lives, charges = SUBJECTS[name]
    for number in range(1, lives + 1):
        result = live(manager, made)
        assert result.success == (number == lives)
        if not result.success:
            stands = status(manager.store, RUN)
            assert (stands.state, stands.why) == ("parked", result.error)
            assert result.error.endswith(str(number))
    assert result.total_retries == 2
    assert list(sent.values()) == [1] * charges
    calls = Counter(
        (one.scope, one.tool, one.call_id, one.digest)
        for one in recorded(manager.store, CallIntended)
    )
    assert set(calls.values()) == {1}


def test_a_death_before_it_stands_still_does_not_try_again(tmp_path: Any) -> None:
    """The failure is recorded, and that the run stands still is not: nobody was told."""
    store = CheckpointStore()
    manager = CheckpointManager(store)

    class DiedError(BaseException):
        pass

    emit = ExecutionBase.record

    def dies(self: Any, event: Any, **options: Any) -> int:
        if isinstance(event, RunParked):
            raise DiedError
        return int(emit(self, event, **options))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ExecutionBase, "record", dies)
        with pytest.raises(DiedError):
            live(manager, of_node)
    assert len(recorded(store, CallFailed)) == 1
    for errors in (1, 2):  # told; and then asked
        assert live(manager, of_node).error.endswith(f"node {errors}")
        assert raised["node"] == errors
    assert live(manager, of_node).success
    assert list(sent.values()) == [1]


def test_a_person_can_settle_the_node_that_failed(manager: CheckpointManager) -> None:
    assert not live(manager, of_node).success
    (call,) = status(manager.store, RUN).calls
    assert (call.tool, call.state) == ("node pay", "to be made again")
    resolve(manager.store, RUN, call.lsn, Resolution.outcome({"pay": "by cheque"}))
    result = live(manager, of_node)
    assert (result.success, result.output) == (True, {"pay": "by cheque"})
    assert (raised["node"], sent.total()) == (1, 1)


@pytest.mark.usefixtures("clock")
def test_a_node_that_takes_too_long_parks_for_what_is_in_doubt_in_it(
    manager: CheckpointManager,
) -> None:
    def slow() -> Graph:
        graph = Graph("order")

        async def pay(context: NodeContext) -> str:
            return await charge(2000)

        graph.node("pay", pay, timeout_s=0.7, retry=Retry(4, 0.0))
        return graph

    with pytest.raises(InDoubtError) as caught:
        live(manager, slow)
    (call,) = caught.value.calls
    assert call.tool == "charge"
    assert recorded(manager.store, AttemptFailed) == []
    resolve(manager.store, RUN, call.lsn, Resolution.outcome("receipt"))
    assert live(manager, slow).output == {"pay": "receipt"}
    assert list(sent.values()) == [1]


def test_an_output_that_cannot_be_recorded_repeats_nothing(manager: CheckpointManager) -> None:
    def odd() -> Graph:
        graph = Graph("order")

        async def pay(context: NodeContext) -> Any:
            receipt = await charge(100)
            return {"receipt": object() if len(lives) < 3 else receipt}

        graph.node("pay", pay)
        return graph

    lives: list[Any] = []
    for _ in range(3):
        lives.append(None)
        try:
            ended = live(manager, odd)
        except Exception as exc:
            ended = exc
    assert ended.success
    assert list(sent.values()) == [1]


@pytest.mark.parametrize("name", ["a node with a Retry", "a judge"])
def test_a_crash_anywhere_repeats_none_of_them(name: str) -> None:
    made, _, _ = SUBJECTS[name]

    def reset() -> None:
        sent.clear()
        raised.clear()

    def agent() -> Any:
        raised["judge"] = 2  # which works, here: a run that stands still is not resumed by itself
        executor = (
            flexible(CheckpointManager(CheckpointStore())).executor
            if made is None
            else GraphExecutor()
        )
        graph = flexible(CheckpointManager(CheckpointStore())).graph if made is None else made()
        return executor.agent(recovery.graph.walk.Walk(graph))

    report = crash_everywhere(
        agent,
        {"graph": "order" if made else "flexible", "goal": "sell", "input": {}},
        setup=reset,
        effects=lambda: max(sent.values(), default=0),
        resolve=lambda call: (
            Resolution.outcome("receipt") if sent[call.idempotency_key] else Resolution.retry()
        ),
        points=scaled(12, 1000),
    )
    wrong = [one for one in report.failures if one.kind in ("forgotten", "stuck", "ran twice")]
    assert not wrong, str(report)
    assert report.effects["charge"] == 1


class BlockedError(PermanentError):
    """The card is blocked."""


@pytest.mark.parametrize(
    "rules, kind", [(1, PermanentError), (2, PermanentError), (2, BlockedError)]
)
def test_a_node_that_failed_for_good_is_tried_again_only_if_somebody_says_so(
    rules: int, kind: type[PermanentError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "recovery.agent.begin_run.Rules", Rules if rules == 2 else lambda version: None
    )
    manager, graph, entered = CheckpointManager(CheckpointStore()), Graph("order"), Counter[str]()

    async def pay(context: NodeContext) -> str:
        entered["pay"] += 1
        receipt = await charge(100)
        if entered["pay"] == 1:
            raise kind("blocked")
        return receipt

    graph.node("pay", pay, retry=Retry(3, delay_s=0))
    for _ in range(3):
        result = asyncio.run(
            GraphExecutor(checkpoint_manager=manager).execute(graph, "goal", {}, RUN)
        )
        assert (result.success, entered["pay"], sum(sent.values())) == (False, 1, 1)
        assert "blocked" in str(result.error)
    (parked,) = recorded(manager.store, RunParked)[-1:]
    assert (parked.calls, len(parked.stays)) == ([], 1)
    resolve(manager.store, RUN, parked.stays[0], Resolution.retry(), who="ann")
    result = asyncio.run(GraphExecutor(checkpoint_manager=manager).execute(graph, "goal", {}, RUN))
    assert (result.output, entered["pay"]) == ({"pay": "receipt"}, 2)
    assert len(sent) == 1, "under the same key"
    with pytest.raises(recovery.RecoveryError):
        resolve(manager.store, RUN, parked.stays[0], Resolution.retry())
