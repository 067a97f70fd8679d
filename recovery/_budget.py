"""What a run may use up, and what its calls have used."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Literal, Self

from eventlog._dataclass import dataclass
from recovery._errors import BudgetError, RunFailedError
from recovery._events import RunFailed, RunParked
from recovery._keys import UNDO_CALL, UNDO_PREFIX
from recovery._options import check_names, check_one_of, check_seconds
from recovery._tool import Scope, ToolSpec
from recovery._usage import Usage, recognised, recorded_usage

if TYPE_CHECKING:
    from recovery._core import RunCore

_logger = logging.getLogger("recovery")

_NOTHING = [0, 0, 0.0]
# A limit of what models use is looked at after so many calls that did not say what they used, and
# at the end of the run.
UNMEASURED_MAX = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of a run, over all its lives; None for none.

    ``steps`` and ``calls`` (each attempt at a call counts) are exact, also for concurrent calls.
    ``tokens``, ``cost`` and ``seconds`` are looked at before each new step and each new call: what
    a call will use is known when it has ended, so that calls under way may go beyond them.
    ``seconds`` is the time for which a process had the run.

    ``on_exceeded``: "park" (BudgetError; raise the budget and run again) or "fail". What is
    replayed is never stopped, and counts once.
    """

    steps: int | None = None
    calls: int | None = None
    seconds: float | None = None
    tokens: int | None = None
    cost: float | None = None
    on_exceeded: Literal["park", "fail"] = "park"

    def __new__(cls, *args: Any, **given: Any) -> Self:
        if args:
            raise TypeError("Budget takes each limit by its name, as in Budget(steps=100)")
        check_names("Budget", given, cls.__dataclass_fields__)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        for name in ("steps", "calls", "seconds", "tokens", "cost"):
            limit = getattr(self, name)
            unit = "dollars or the like" if name == "cost" else name
            check_seconds(f"Budget({name}=)", limit, above=False, unit=unit)
        check_one_of("Budget(on_exceeded=)", self.on_exceeded, ("park", "fail"))

    def reached(self, used: Usage, what: Literal["step", "call"]) -> list[str]:
        """The limits that a new step or call would exceed, or that are exceeded, a line each."""
        names = ["steps" if what == "step" else "calls", "seconds", "tokens", "cost"]
        limits = [(name, getattr(used, name), getattr(self, name)) for name in names]
        return [
            f"{name}: {_shown(spent)} of {_shown(limit)}"
            for name, spent, limit in limits
            if limit is not None and spent >= limit
        ]


def _shown(amount: float) -> str:
    return f"{amount:,}" if isinstance(amount, int) else f"{amount:,.4f}".rstrip("0").rstrip(".")


def admit(run: RunCore, what: Literal["step", "call"], tool: str = "") -> None:
    """Stop the run if a new step or call goes beyond its budget. What undoes it always may be done.

    Invariant: nothing can come between this and the record of what is admitted, for both are made
    while the run's mutex is held: so no two calls are admitted for one.
    """
    budget = run.settings.budget
    if budget is None:
        return
    around = run.here().call
    if _undoes(tool) or (around is not None and _undoes(around.tool)):
        return
    used = run.used()
    reached = budget.reached(used, what)
    if not reached:
        return
    error = BudgetError(run.run_id, used, reached)
    if budget.on_exceeded == "park":
        run.emit(RunParked([], why=f"budget used up: {'; '.join(reached)}"))
        run.commit()
        run.stop(error)
    cause = "recovery.BudgetError", "; ".join(reached), ""
    run.emit(RunFailed(*cause))
    run.commit()
    run.stop(RunFailedError(run.run_id, cause, 0))


def _undoes(tool: str) -> bool:
    return tool == UNDO_CALL or tool.startswith(UNDO_PREFIX)


def warn_if_unmeasured(run: RunCore) -> None:
    """Say so when a limit counts for nothing, because no call has said what it used."""
    budget = run.settings.budget
    if budget is None or not run.unmeasured:
        return
    used = run.used()
    names = [name for name in ("tokens", "cost") if getattr(budget, name) is not None]
    if names and not used.tokens and not used.cost:
        _logger.warning(
            "run %s: Budget(%s) has stopped nothing and cannot: no call has said what it used. "
            "Return the model's reply as the SDK gives it, or say it by @tool(usage=...).",
            run.run_id,
            ", ".join(f"{name}=" for name in names),
        )


def measured(run: RunCore, spec: ToolSpec, scope: Scope, value: Any) -> list[Any] | None:
    """What is recorded of what a call used, by what it returned; None when that does not say so.

    A tool that hands on the reply of a model that it has called counts for nothing: the call inside
    it does. What goes wrong here is logged, for a result that was paid for is not to be lost.
    """
    try:
        if spec.usage is not None:
            return recorded_usage(spec.usage(value))
        if scope.metered:
            return _NOTHING
        usage = recognised(value)
        if usage is not None:
            return recorded_usage(usage)
        run.unmeasured += 1
        if run.unmeasured == UNMEASURED_MAX:
            warn_if_unmeasured(run)
        return None
    except Exception:
        _logger.exception("run %s: what %s used is not known, and not counted", run.run_id,
                          spec.name)  # fmt: skip
        return None
