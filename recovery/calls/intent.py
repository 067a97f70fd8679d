"""Records a call before it is made, and makes that durable before a side effect begins."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import replace
from typing import Any

from eventlog import Packed
from recovery.agent_code.call_site import call_site
from recovery.agent_code.closures import where_of
from recovery.calls.approval import ApprovalRequest, approval_request
from recovery.declare.parameters import form_of
from recovery.declare.spec import ToolSpec, function_name
from recovery.engine.call_in_progress import CallInProgress, Identified
from recovery.engine.driver_effects import Commit, Effect
from recovery.engine.execution import Execution
from recovery.engine.metering import admit
from recovery.errors import Ambiguity, AmbiguousCallError
from recovery.journal.call import Call
from recovery.journal.call_key import CallKey, nested_key
from recovery.journal.events import CallIntended
from recovery.replay.call_view import call_view
from recovery.values.pack import pack
from recovery.values.sealed import Subjects

# Arguments of tools with ``identity=`` up to this size are recorded whole, larger ones by digest:
# their digest says nothing of what is not compared.
COMPARED_IN_PART_MAX = 1 << 20


def record_intent(
    run: Execution, key: CallKey, made: Identified
) -> tuple[Call, ApprovalRequest | None]:
    """Record that a new call is about to be made."""
    event, asking = intent_of(run, key, made)
    admit(run, "call", key.tool)
    # A side effect begins after a commit, which writes the intent too.
    lsn = run.record(event, hold=not made.spec.repeatable)
    form = form_of(made.spec.function)
    return call_view(run, lsn, event, made.shown, (1, time.time_ns()), form), asking


def intent_of(
    run: Execution, key: CallKey, made: Identified
) -> tuple[CallIntended, ApprovalRequest | None]:
    """The intent of a call, and the approval that it needs."""
    spec, packed = made.spec, made.packed
    limit = run.recorded_args_size if spec.identity is None else COMPARED_IN_PART_MAX
    outer, undo, small = (
        run.current_scope().call,
        "",
        packed if len(packed) <= limit else None,
    )
    if spec.undo is not None:  # the compensation is called with its arguments
        undo, small = function_name(spec.undo), arguments_for_people(made)
    inside = nested_key(outer.idempotency_key, key) if outer is not None else ""
    event = CallIntended(
        *key,
        "wait" if spec.only_waits else spec.after_crash,
        small,
        len(packed),
        undo,
        key=inside,
        loop=run.loop.place_of(key.scope),
        timeout_s=None if spec.repeatable else spec.timeout_s,
        subject=Subjects(made.subject) if made.subject else None,
    )
    if spec.child_id is not None:
        event = replace(event, child=spec.child_id(event.idempotency_key(run.uid)))
    asking = approval_request(run, spec, event, made.shown)
    if asking is None:
        return event, None
    if made.unkeyed:
        why = Ambiguity(spec.name, "", where_of(made.origin), unkeyed=made.unkeyed)
        run.stop(AmbiguousCallError(run.run_id, run.step, why, call_site()))
    if small is None:  # recorded whole, because a person approves exactly these
        event = replace(event, args=packed)
    signed = run.recipient.approvers is not None or None
    return replace(event, asks_until=asking.until, signed=signed), asking


def arguments_for_people(made: Identified) -> Packed:
    """The arguments of a call as people may see them, whole."""
    if made.spec.undo is None:
        return made.packed
    return pack([list(made.shown[0]), dict(made.shown[1])], f"{made.spec.name}(...)")


def make_intent_durable(run: Execution, spec: ToolSpec, call: Call) -> Generator[Effect, Any, None]:
    """Commit before a side effect begins. From here on, a stop waits for the side effect's end."""
    scope = run.current_scope()
    if scope.attempt_has_ended:  # the attempt around it may have ended while it awaited approval
        run.check()
    one = CallInProgress(spec, call, (*scope.calls, call.lsn))
    run.side_effects_in_flight[call.lsn] = one
    # Invariant: no side effect starts before its intent is durable.
    try:
        yield Commit()
    except BaseException as exc:
        run.side_effects_in_flight.pop(call.lsn, None)
        run.note_cancelled(replace(one, begun=False), exc)
        raise
