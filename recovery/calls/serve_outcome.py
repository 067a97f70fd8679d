"""Hands the outcome of a call to the agent: the same when it is made as when it is replayed."""

from __future__ import annotations

from typing import Any, assert_never

from eventlog import Packed
from recovery.declare.spec import ToolSpec
from recovery.engine.execution import Execution
from recovery.errors import ToolError
from recovery.journal.events import CallFailed, CallResolved, CallReturned
from recovery.replay.call_view import CallOutcome, Failure
from recovery.values.pack import pack, unpack
from recovery.values.sealed import Sealed, is_forgotten


def serve(run: Execution, spec: ToolSpec, call: int, outcome: CallOutcome) -> Any:
    """Hand an outcome to the agent: the same on the first execution as on replay."""
    if isinstance(outcome.event, CallReturned) and outcome.event.usage is not None:
        run.current_scope().metered = True
    what = f"the outcome of call {call} ({spec.name})"
    match outcome.event:
        case CallReturned(value=value) | CallResolved(how="outcome", value=value):
            packed = value if type(value) is Packed else pack(value, "outcome")
            if (keys := run.subjects.sealed.get(outcome.lsn)) is None:
                run.conversation.remember(packed, outcome.lsn)
                return unpack(packed)
            value = unpack(packed)
            run.check_readable(value, what)
            if not isinstance(value, Sealed):
                run.subjects.note(packed, keys)
            return value
        case CallFailed() as failed:
            run.check_readable(failed.sealed, what)
            keys = run.subjects.of_call(call)
            if keys and not is_forgotten(keys):  # else its text stands for what is forgotten
                run.subjects.note_error(failed, keys)
            from recovery.journal.rebuilt_errors import rebuilt  # noqa: PLC0415 - only where a call has failed

            exc = rebuilt(failed, spec.raises, run.rules, outcome.cause)
        case CallResolved(value=reason):
            packed = reason if type(reason) is Packed else pack(reason, "reason")
            reason = unpack(packed)
            run.check_readable(reason, what)
            if (keys := run.subjects.of_call(call)) and not is_forgotten(keys):
                run.subjects.note(packed, keys)
            exc = ToolError("resolved as failed", str(reason), "")
        case _:
            assert_never(outcome.event)
    run.failures.append(Failure(exc, call, outcome.raised))
    raise exc from exc.__cause__
