"""Stops a run for a result that cannot be recorded, and explains what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from eventlog import RefusedValueError
from recovery.declare.spec import ToolSpec
from recovery.errors import UnrecordedResultError
from recovery.journal.call import Call
from recovery.journal.events import RunFinished
from recovery.text import SEALED_TEXT, shorten, store_option
from recovery.values.sealed import Personal, hidden

if TYPE_CHECKING:
    from recovery.engine.execution import Execution
    from recovery.engine.execution_base import ExecutionBase

SHOWN_SIZE = 2000  # characters of the value in the error: a person may have to give it to resolve

_THEN = {
    "report": "Run it again: the agent gets an OutcomeUnknown for the call.",
    "retry": "Then run it again: the call is repeatable, so it is made again.",
    "reconcile": "Run it again: the tool's reconcile function is asked what became of the call.",
}


def refuse_result(
    run: ExecutionBase, spec: ToolSpec, call: Call, refused: RefusedValueError, value: Any
) -> NoReturn:
    """Stop the run; the call stays open.

    The agent's code cannot catch that: it would continue with a value that a replay cannot give it.
    """
    then = _THEN.get(spec.after_crash) or (
        "The call has taken effect and is in doubt: it is not made again unasked. Say what it "
        f"returned, store.run({run.run_id!r}).resolve({call.idempotency_key!r}, "
        f"Resolution.outcome(value)) or `recovery resolve {run.run_id} {call.idempotency_key} "
        f"--outcome JSON{store_option(run.store.backend)}`, and run it again."
    )
    run.stop(_error(run, (spec.name, call.lsn), refused, value, then))


def finish(run: Execution, result: Any) -> RunFinished:
    """Record the result of the agent function; stop the run if it cannot be recorded."""
    try:
        return run.finish(result)
    except RefusedValueError as exc:
        path = exc.value_path if exc.value_path.startswith("result") else "result"
        then = "Then run it again: its calls are served from the log, and none is made again."
        run.stop(_error(run, ("", 0), RefusedValueError(path, exc.reason), result, then))


def _way_out(call: tuple[str, int], refused: RefusedValueError) -> str:
    named = "tool" if call[1] else "agent function"
    if "cannot be carried" in refused.reason:
        return (
            f"To have it recorded, name its type in the return annotation of the {named}, or "
            "recovery.register the type, or return plain data."
        )
    return f"Correct the {named}."


def _error(
    run: ExecutionBase, call: tuple[str, int], refused: RefusedValueError, value: Any, then: str
) -> UnrecordedResultError:
    """The error for a value that cannot be recorded, without any secret of the run."""
    scrub = run.scrubber.scrub
    shown = scrub(shorten(value, 10 * SHOWN_SIZE))
    if type(value) is Personal or run.subjects.of_call(call[1]) or run.subjects.run:
        root = f"result of {call[0]}" if call[0] else "result"
        shown, refused = SEALED_TEXT, hidden(refused, root)
    if len(shown) > SHOWN_SIZE:
        shown = f"{shown[: SHOWN_SIZE // 2]} ... {shown[-SHOWN_SIZE // 2 :]}"
    parts = scrub(refused.value_path), scrub(refused.reason)
    error = UnrecordedResultError(
        run.run_id, call, parts, shown, f"{_way_out(call, refused)}\n{then}"
    )
    error.__cause__ = refused
    return error
