"""Plans that are made while they are executed, each step judged."""

from __future__ import annotations

import asyncio
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest

from recovery import CheckpointManager, InDoubtError, Resolution, tool
from recovery.graph import (
    ExecutionResult,
    FlexibleGraphExecutor,
    Judgment,
    NodeContext,
    PlanLimits,
    PlanStep,
    StepOutcome,
    feedback_of,
)
from recovery.stores.memory import MemoryStore

RUN = "run"
called: list[Any] = []


def note(what: Any) -> str:
    called.append(what)
    return f"noted {what}"


def fails(what: Any) -> None:
    called.append(what)
    raise ValueError(f"no {what}")


FUNCTIONS = {"note": note, "fails": fails}


@pytest.fixture(autouse=True)
def _fresh() -> None:
    called.clear()


def step(name: str, function: str = "note", *after: str, **inputs: Any) -> dict[str, Any]:
    return {
        "id": name,
        "function": function,
        "inputs": inputs or {"what": name},
        "depends_on": after,
    }


def execute(
    *plans: list[Any],
    judge: Any = None,
    limits: PlanLimits | None = None,
    manager: CheckpointManager | None = None,
) -> tuple[ExecutionResult, list[str]]:
    """Each time that a plan is asked for, the next one; the result, and why it was asked."""
    asked: list[str] = []

    def planner(context: NodeContext) -> list[Any]:
        asked.append(feedback_of(context))
        return plans[len(asked) - 1]

    executor = FlexibleGraphExecutor(
        planner, FUNCTIONS, judge, limits, checkpoint_manager=manager or CheckpointManager(None)
    )
    return asyncio.run(executor.execute("goal", {"given": 5}, RUN)), asked


def test_a_plan_is_executed_in_the_order_of_what_its_steps_depend_on() -> None:
    plan = [
        step("c", "note", "a", "b", what="$b"),
        step("a"),
        PlanStep("b", "note", {"what": "$given"}),
    ]
    result, asked = execute(plan)
    assert result.success
    assert called == ["a", 5, "noted 5"]
    assert result.output == {"given": 5, "a": "noted a", "b": "noted 5", "c": "noted noted 5"}
    assert asked == [""]


def test_an_empty_plan_is_done() -> None:
    assert execute([])[0].path == ["plan"]


class Action(Enum):
    ACCEPT = "accept"
    RETRY = "retry"


def test_a_judge_has_steps_tried_again() -> None:
    seen: list[Any] = []

    async def judge(step: PlanStep, outcome: StepOutcome, context: NodeContext) -> Any:
        seen.append((step.id, outcome.result, outcome.error, outcome.attempt, context.goal))
        action = Action.RETRY if outcome.attempt < 3 else Action.ACCEPT
        return SimpleNamespace(action=action, feedback="again")

    result, _ = execute([step("a")], judge=judge)
    assert result.success
    assert [attempt for *_, attempt, _ in seen] == [1, 2, 3]
    assert seen[0] == ("a", "noted a", None, 1, "goal")
    assert called == ["a", "a", "a"]


def test_without_a_judge_what_raises_is_tried_again_and_then_planned_anew() -> None:
    limits = PlanLimits(retries_per_step=2)
    result, asked = execute([step("a"), step("b", "fails")], [step("a"), step("c")], limits=limits)
    assert result.success
    assert called == ["a", "b", "b", "b", "c"]
    assert asked == ["", "step 'b' failed 3 times: ValueError: no b"]
    assert result.output == {"given": 5, "a": "noted a", "c": "noted c"}


def test_a_judge_has_a_new_plan_made_and_accepted_steps_stay_so() -> None:
    def judge(step: PlanStep, outcome: StepOutcome, context: NodeContext) -> Any:
        return ("replan", "not b") if step.id == "b" else "accept"

    result, asked = execute(
        [step("a"), step("b")], [step("a"), step("c", "note", "a")], judge=judge
    )
    assert (result.success, asked, called) == (True, ["", "not b"], ["a", "b", "c"])


def test_steps_that_cannot_be_made_have_a_new_plan_made() -> None:
    result, asked = execute(
        [step("a", "note", "b")],
        [step("a", "nothing")],
        [step("a")],
        limits=PlanLimits(retries_per_step=0),
    )
    assert result.success
    assert asked[1] == "no step can be made: a depend on steps that are not accepted"
    assert asked[2] == (
        "step 'a' failed 1 times: there is no function 'nothing'. "
        "The functions are: 'note', 'fails'"
    )


def test_attempts_are_counted_for_each_plan_anew() -> None:
    plans = [[step("a", "fails")], [step("a", "fails")], [step("a")]]
    _, asked = execute(*plans, limits=PlanLimits(retries_per_step=2))
    assert asked[1:] == ["step 'a' failed 3 times: ValueError: no a"] * 2


def test_limits_leave_a_run_that_goes_on_with_higher_ones() -> None:
    manager = CheckpointManager(MemoryStore())
    plans = [[step("a", "fails")]] * 5
    limits = PlanLimits(retries_per_step=1, plans=2)
    result, _ = execute(*plans, limits=limits, manager=manager)
    assert result.error == (
        "node 'plan' would be visited more than 2 times, by work => plan. "
        "The planner was last told: step 'a' failed 2 times: ValueError: no a"
    )
    executor = FlexibleGraphExecutor(
        lambda context: [step("a")], FUNCTIONS, checkpoint_manager=manager
    )
    assert asyncio.run(executor.resume(RUN)).output == {"given": 5, "a": "noted a"}
    result, _ = execute(
        [step("a", "fails")],
        limits=PlanLimits(retries_per_step=9, steps=4),
        manager=CheckpointManager(MemoryStore()),
    )
    assert "node 'work' would be visited more than 4 times" in str(result.error)


@pytest.mark.parametrize(
    ("answer", "then"),
    [
        ("accept", ["a", "b"]),
        (("retry", "try"), ["a", "a", "b"]),
        (["replan", "another"], ["a", "c"]),
    ],
)
def test_an_escalated_step_waits_for_a_person(answer: Any, then: list[str]) -> None:
    manager = CheckpointManager(MemoryStore())
    plans = [[step("a"), step("b")], [step("c")]]

    def planner(context: NodeContext) -> list[Any]:
        return plans[bool(feedback_of(context))]

    def judge(step: PlanStep, outcome: StepOutcome, context: NodeContext) -> Any:
        return "escalate" if called == ["a"] else Judgment("accept")

    executor = FlexibleGraphExecutor(planner, FUNCTIONS, judge, checkpoint_manager=manager)
    assert asyncio.run(executor.execute("goal", {}, RUN)).paused_at == "person"
    manager.store.run(RUN).signal("person", answer)
    result = asyncio.run(executor.resume(RUN))
    assert (result.success, called) == (True, then)


@pytest.mark.parametrize(
    ("plan", "judge", "error"),
    [
        ([step("a"), step("a")], None, "two steps of one id"),
        ([{"name": "a"}], None, "which is no PlanStep"),
        ([step("a")], lambda *what: "perhaps", "the judge said 'perhaps'"),
    ],
)
def test_planners_and_judges_that_make_no_sense(plan: Any, judge: Any, error: str) -> None:
    manager = CheckpointManager(MemoryStore())
    result, _ = execute(plan, judge=judge, manager=manager)
    assert error in str(result.error)


def test_a_step_in_doubt_parks_and_a_judge_is_asked_again() -> None:
    manager = CheckpointManager(MemoryStore())
    judged: list[str] = []

    class Died(BaseException):
        pass

    @tool
    def pay() -> str:
        called.append("pay")
        if called.count("pay") == 1:
            raise Died
        return "paid"

    def judge(step: PlanStep, outcome: StepOutcome, context: NodeContext) -> str:
        judged.append(outcome.result)
        if len(judged) == 1:
            raise Died
        return "accept"

    def executor() -> FlexibleGraphExecutor:
        functions = {"pay": pay}
        plan = [PlanStep("a", "pay")]
        return FlexibleGraphExecutor(lambda _: plan, functions, judge, checkpoint_manager=manager)

    with pytest.raises(Died):
        asyncio.run(executor().execute("goal", {}, RUN))
    with pytest.raises(InDoubtError) as parked:
        asyncio.run(executor().resume(RUN))
    manager.store.run(RUN).resolve(parked.value.calls[0].lsn, Resolution.outcome("paid once"))
    with pytest.raises(Died):
        asyncio.run(executor().resume(RUN))
    result = asyncio.run(executor().resume(RUN))
    assert result.output == {"a": "paid once"}
    assert (called, judged) == (["pay"], ["paid once", "paid once"])
