"""Provides FlexibleGraphExecutor: makes plans while it executes them, and judges each step.

It is a graph of three nodes, on the same executor: one plans, one makes the next step of the plan
and has it judged, one waits for a person.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Unpack

from recovery.declare.settings import Options
from recovery.graph.checkpoint_manager import CheckpointManager
from recovery.graph.executor import ExecutionResult, GraphExecutor
from recovery.graph.graph import Graph
from recovery.graph.node import NodeContext, NodeFailedError, NodeResult
from recovery.graph.state import END
from recovery.graph.walk import called
from recovery.option_checks import check_callable, check_names, check_takes

OURS = "plan:"  # prefix of this executor's own keys in the memory
PLAN, FEEDBACK, REVISION = f"{OURS}steps", f"{OURS}feedback", f"{OURS}revision"
ACTIONS = ("accept", "retry", "replan", "escalate")


@dataclass(frozen=True, slots=True)
class PlanStep:
    """A step of a plan: ``function`` (its name) is called with ``inputs``.

    An input "$KEY" is what the memory has under KEY; the result of a step is there under its
    ``id``. ``depends_on``: the steps that are to be accepted before (none). ``description``: text
    for people ("").
    """

    id: str
    function: str
    inputs: dict[str, Any] = field(default_factory=dict)
    depends_on: tuple[str, ...] = ()
    description: str = ""

    @classmethod
    def of(cls, given: Any) -> PlanStep:
        """Not for users: from a planner's output, a PlanStep, or a dict of its fields."""
        try:
            if isinstance(given, PlanStep):
                step = given
            else:
                check_names("a step", given, cls.__annotations__)
                step = cls(**given)
            step._check()
        except (TypeError, AttributeError) as exc:
            raise NodeFailedError(
                f"the planner gave {given!r:.200}, which is no PlanStep(id, function, inputs, "
                f"depends_on, description) and no dict of these: {exc}"
            ) from None
        return replace(step, depends_on=tuple(step.depends_on), inputs=dict(step.inputs))

    def _check(self) -> None:
        for name in ("id", "function"):
            if not isinstance(getattr(self, name), str):
                raise TypeError(f"{name} is text, not {getattr(self, name)!r:.80}")
        if not isinstance(self.inputs, Mapping):
            raise TypeError(f"inputs is a dict, not {self.inputs!r:.80}")
        if isinstance(self.depends_on, str):
            raise TypeError(f"depends_on is a tuple of ids: write ({self.depends_on!r},)")

    def recorded(self) -> dict[str, Any]:
        """As it is kept in the memory."""
        return {
            "id": self.id,
            "function": self.function,
            "inputs": self.inputs,
            "depends_on": list(self.depends_on),
            "description": self.description,
        }


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """The outcome of a step: its ``result``, or the ``error`` that it raised. ``attempt`` counts
    the attempts at this step in this revision of the plan, from 1."""

    result: Any
    error: str | None
    attempt: int


@dataclass(frozen=True, slots=True)
class Judgment:
    """The decision about a step. ``action``: "accept", "retry", "replan" or "escalate" (to a
    person). ``feedback``: the reason, for the planner ("")."""

    action: str
    feedback: str = ""

    @classmethod
    def of(cls, given: Any) -> Judgment:
        """Not for users: from a judge's answer, an action, (action, feedback), or an object that
        has both."""
        if isinstance(given, tuple) and len(given) == 2:
            given = cls(*given)
        action = given if isinstance(given, str) else getattr(given, "action", given)
        action = action.value if isinstance(action, Enum) else action
        if action not in ACTIONS:
            raise NodeFailedError(f"the judge said {action!r:.200}, which is none of {ACTIONS}")
        return cls(str(action), str(getattr(given, "feedback", "") or ""))


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """The limits. ``retries_per_step`` in a revision of the plan; then the planner is called again.
    ``steps`` made and ``plans`` requested in all; then the run parks."""

    retries_per_step: int = 3
    steps: int = 100
    plans: int = 10


class FlexibleGraphExecutor:
    """Executes plans that are made at run time, each step of them judged.

    ``planner``: a function, async or plain, of a NodeContext; gives the steps of the plan
    (PlanSteps, or dicts of their fields). When it is called again, the memory has the accepted
    results, and ``feedback_of(context)`` the reason; accepted steps stay so, by their ids.
    ``functions``: the functions that steps can call, by name: tools, or plain functions, which
    count as side effects. ``judge``: a function of the PlanStep, its StepOutcome and the
    NodeContext; returns a Judgment, an action, or (action, feedback). Without one, steps that
    raised are retried, and others accepted. ``limits``: PlanLimits (its defaults). ``runtime``,
    ``checkpoint_manager``: as for a GraphExecutor.

    An escalated step waits for signal "person" (``RunHandle.signal``): "accept", "retry", "replan",
    or (action, feedback). Planner and judge may be called again after a crash; a step that was made
    is not made again.

    ``options``: those of a RecoverableAgent, by name: ``max_recoveries``, ``after_crash``,
    ``stop_on``, ``max_children``, ``on_event``, ``budget``, ``checkpoint_every_bytes``,
    ``park_after_s``, ``check_locals``, ``on_drift``, ``subject``, ``on_forgotten``.
    """

    def __init__(
        self,
        planner: Callable[[NodeContext], Any],
        functions: Mapping[str, Callable[..., Any]],
        judge: Callable[[PlanStep, StepOutcome, NodeContext], Any] | None = None,
        limits: PlanLimits | None = None,
        runtime: Any = None,
        checkpoint_manager: CheckpointManager | None = None,
        **options: Unpack[Options],
    ) -> None:
        check_takes("planner", planner, ("context",))
        if not isinstance(functions, Mapping):
            raise TypeError(
                "functions is a dict of functions by the names that steps call them by, such as "
                f'{{"send_mail": send_mail}}; not {functions!r:.80}'
            )
        for name, function in functions.items():
            check_callable(f"functions[{name!r}]", function, "a function")
        if judge is not None:
            check_takes("judge", judge, ("step", "outcome", "context"))
        if not isinstance(limits, PlanLimits | None):
            raise TypeError(f"limits is PlanLimits(plans=..., ...), not {limits!r:.80}")
        self._planner, self._functions = planner, dict(functions)
        self._judge = judge or judged_by_error
        self._limits = limits or PlanLimits()
        self.executor = GraphExecutor(runtime, checkpoint_manager, **options)
        self.graph = self._graph()

    async def execute(
        self, goal: Any, input_data: Mapping[str, Any] | None = None, run_id: str | None = None
    ) -> ExecutionResult:
        """Make and execute a plan for ``goal``, or resume run ``run_id``; see GraphExecutor.

        ``input_data``: the initial memory (empty).
        """
        return _cleared(await self.executor.execute(self.graph, goal, input_data, run_id))

    async def resume(self, run_id: str) -> ExecutionResult:
        """Resume run ``run_id`` from its id alone; see GraphExecutor."""
        return _cleared(await self.executor.resume(self.graph, run_id))

    def _graph(self) -> Graph:
        graph = Graph("flexible")
        graph.node("plan", self._plan, max_visits=self._limits.plans)
        graph.node("work", self._work, max_visits=self._limits.steps)
        graph.node("person", self._ask, pause=True, max_visits=self._limits.steps)
        graph.edge("plan", "work", lambda output, memory: bool(open_steps(memory)))
        return graph

    async def _plan(self, context: NodeContext) -> dict[str, Any]:
        given = await called(self._planner, context)
        if not isinstance(given, Sequence) or isinstance(given, str | bytes):
            raise NodeFailedError(f"the planner gives a list of PlanSteps, not {given!r:.200}")
        steps = [PlanStep.of(one) for one in given]
        ids = [step.id for step in steps]
        if len({*ids}) < len(ids):
            raise NodeFailedError(f"the planner gave two steps of one id: {ids}")
        revision = context.memory.read(REVISION, 0) + 1
        return {PLAN: [step.recorded() for step in steps], REVISION: revision}

    async def _work(self, context: NodeContext) -> NodeResult:
        step = next_step(context.memory)
        if step is None:
            left = ", ".join(one.id for one in open_steps(context.memory))
            why = f"no step can be made: {left} depend on steps that are not accepted"
            return NodeResult(output={FEEDBACK: why}, next_node="plan")
        outcome = await self._made(context, step)
        judgment = Judgment.of(await called(self._judge, step, outcome, context))
        return self._settled(context, step, outcome, judgment)

    async def _made(self, context: NodeContext, step: PlanStep) -> StepOutcome:
        attempt = attempts_of(context.memory, step.id) + 1
        function = self._functions.get(step.function)
        if function is None:
            known = ", ".join(map(repr, self._functions))
            why = f"there is no function {step.function!r}. The functions are: {known}"
            return StepOutcome(None, why, attempt)
        try:
            inputs = {name: _resolved(value, context) for name, value in step.inputs.items()}
            return StepOutcome(await context.call(function, **inputs), None, attempt)
        except Exception as exc:
            return StepOutcome(None, f"{type(exc).__name__}: {exc}", attempt)

    def _settled(
        self, context: NodeContext, step: PlanStep, outcome: StepOutcome, judgment: Judgment
    ) -> NodeResult:
        """The recorded result of a step, and the next node by its judgment."""
        revision = context.memory[REVISION]
        kept: dict[str, Any] = {"revision": revision, "attempts": outcome.attempt}
        output: dict[str, Any] = {FEEDBACK: judgment.feedback, f"{OURS}step {step.id}": kept}
        match judgment.action:
            case "accept":
                kept["accepted"] = True
                output[step.id] = outcome.result
                last = [one.id for one in open_steps(context.memory)] == [step.id]
                return NodeResult(output=output, next_node=END if last else "work")
            case "escalate":
                output[f"{OURS}asked"] = [step.id, outcome.result]
                return NodeResult(output=output, next_node="person")
            case "retry" if outcome.attempt <= self._limits.retries_per_step:
                return NodeResult(output=output, next_node="work")
        why = judgment.feedback or outcome.error or ""
        if judgment.action == "retry":
            why = f"step {step.id!r} failed {outcome.attempt} times: {why}"
        output[FEEDBACK] = why
        return NodeResult(output=output, next_node="plan")

    def _ask(self, context: NodeContext) -> NodeResult:
        """Apply a person's decision about a step that was escalated."""
        answer = context.answer
        said = Judgment.of(tuple(answer) if isinstance(answer, list) else answer)
        if said.action == "escalate":
            return NodeResult(next_node="person")
        step_id, result = context.memory[f"{OURS}asked"]
        step = next(one for one in open_steps(context.memory) if one.id == step_id)
        outcome = StepOutcome(result, None, 0)
        if said.action == "retry":  # however often it was tried before
            return self._settled(context, step, outcome, said)
        attempts = attempts_of(context.memory, step_id)
        return self._settled(context, step, replace(outcome, attempt=attempts), said)


def judged_by_error(step: PlanStep, outcome: StepOutcome, context: NodeContext) -> Judgment:
    """Retry steps that raised, and accept the others."""
    return Judgment("retry" if outcome.error else "accept", outcome.error or "")


def feedback_of(context: NodeContext) -> str:
    """Why the planner of ``context`` is called again; "" the first time."""
    return str(context.memory.read(FEEDBACK, ""))


def open_steps(memory: Mapping[str, Any]) -> list[PlanStep]:
    """The steps of the plan that are not accepted."""
    return [PlanStep.of(one) for one in memory[PLAN] if not _accepted(memory, one["id"])]


def next_step(memory: Mapping[str, Any]) -> PlanStep | None:
    """The first step that is not accepted, while all steps on which it depends are."""
    ready = (
        step
        for step in open_steps(memory)
        if all(_accepted(memory, one) for one in step.depends_on)
    )
    return next(ready, None)


def attempts_of(memory: Mapping[str, Any], step: str) -> int:
    """The attempts at a step in this revision of the plan."""
    kept = memory.get(f"{OURS}step {step}")
    return kept["attempts"] if kept and kept["revision"] == memory[REVISION] else 0


def _accepted(memory: Mapping[str, Any], step: str) -> bool:
    return bool(memory.get(f"{OURS}step {step}", {}).get("accepted"))


def _resolved(value: Any, context: NodeContext) -> Any:
    if not (isinstance(value, str) and value.startswith("$")):
        return value
    if value[1:] not in context.memory:
        raise LookupError(f"input {value!r}: the memory has no {value[1:]!r}")
    return context.memory[value[1:]]


def _cleared(result: ExecutionResult) -> ExecutionResult:
    """The result without this executor's own keys in the memory. An error has the reason that the
    planner was given last."""
    output = {key: value for key, value in result.output.items() if not key.startswith(OURS)}
    why, error = result.output.get(FEEDBACK), result.error
    if error and why and why not in error:
        error = f"{error}. The planner was last told: {why}"
    return replace(result, output=output, error=error)
