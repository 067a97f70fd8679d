"""Measures the usage of calls, and stops a run that exceeds its budget."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Literal

from recovery.declare.scope import Scope
from recovery.declare.spec import ToolSpec
from recovery.errors import BudgetError, RunFailedError
from recovery.journal.call_key import UNDO_CALL, UNDO_PREFIX
from recovery.journal.events import RunFailed, RunParked
from recovery.journal.usage import recognised, recorded_usage

if TYPE_CHECKING:
    from recovery.engine.execution_base import ExecutionBase

_logger = logging.getLogger("recovery")
_NOTHING = [0, 0, 0.0]
# After so many calls of unknown usage, and at the end of the run, a budget of tokens or cost is
# checked for whether it limits anything.
UNMEASURED_MAX = 10


def admit(run: ExecutionBase, what: Literal["step", "call"], tool: str = "") -> None:
    """Stop the run if a new step or call exceeds its budget. An undo is always admitted.

    Invariant: this check and the record of the admitted step or call are made under the run's
    mutex. So two calls cannot use the same remainder of a budget.
    """
    budget = run.settings.budget
    if budget is None:
        return
    around = run.current_scope().call
    if _undoes(tool) or (around is not None and _undoes(around.tool)):
        return
    used = run.used()
    reached = budget.reached(used, what)
    if not reached:
        return
    error = BudgetError(run.run_id, used, reached)
    if budget.on_exceeded == "park":
        run.record(RunParked([], why=f"budget used up: {'; '.join(reached)}"))
        run.commit()
        run.stop(error)
    cause = "recovery.BudgetError", "; ".join(reached), ""
    run.record(RunFailed(*cause))
    run.commit()
    run.stop(RunFailedError(run.run_id, cause, 0))


def _undoes(tool: str) -> bool:
    return tool == UNDO_CALL or tool.startswith(UNDO_PREFIX)


def warn_if_unmeasured(run: ExecutionBase) -> None:
    """Warn of a limit without effect, because no call's usage is known."""
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


def measured(run: ExecutionBase, spec: ToolSpec, scope: Scope, value: Any) -> list[Any] | None:
    """The usage of a call, from its result, as it is recorded; None when the result has none.

    If a tool returns the reply of a model that it called by a nested call, the nested call counts.
    Errors are logged and not raised, because a result that was paid for must not be lost.
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
    except Exception as exc:
        lsn = scope.call.lsn if scope.call is not None else 0
        line = "run %s: what %s used is not known, and not counted\n%s"
        _logger.error(line, run.run_id, spec.name, run.told(exc, lsn))
        return None
