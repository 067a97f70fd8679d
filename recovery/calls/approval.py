"""Waits for a person's approval before a call begins.

The intent records that the call needs approval, and until when, so the request is made once. The
recorded approval separates a call that has not begun, however often its process dies, from one
that may have taken effect. A decision is bound to the idempotency key of the call. The key covers
the run, the tool, the arguments and the occurrence, so no other call can use the decision.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Generator
from shlex import quote
from typing import Any

from eventlog import Packed
from eventlog.light_dataclass import light_dataclass
from recovery.calls.waiting import wait
from recovery.declare.parameters import form_of
from recovery.declare.spec import ToolSpec
from recovery.engine.call_in_progress import CallInProgress
from recovery.engine.driver_effects import Commit, Effect, Perform, Sleep, Waiting
from recovery.engine.execution import Execution
from recovery.errors import ApprovalDeniedError, RecoveryError
from recovery.journal.call import Arguments, Call
from recovery.journal.events import CallDecided, CallIntended
from recovery.journal.failure import failure
from recovery.journal.inbox_messages import Message
from recovery.replay.call_view import CallOutcome, call_view
from recovery.replay.recorded_call import RecordedCall
from recovery.text import store_option

_logger = logging.getLogger("recovery")


@light_dataclass
class ApprovalRequest:
    """A call that awaits approval, until a time (seconds since 1970, or for ever).

    ``decided`` is the decision that is recorded already. ``last_decision`` is the LSN and the time
    of the last message that counted: a message about an earlier, denied attempt does not count
    again.
    """

    until: float
    decided: CallDecided | None = None
    last_decision: tuple[int, int] = (0, 0)
    signed: bool = False  # whether only a signed decision counts

    def counts(self, made: Message) -> bool:
        """Whether a decision about the call was made in time, after the one that counted last."""
        return made.is_after(self.last_decision) and made.time_ns / 1e9 <= self.until

    @classmethod
    def of(cls, recorded: RecordedCall) -> ApprovalRequest | None:
        """The request of a recorded call; None if it needs no approval or its approval is recorded.

        A call that may have begun in lost records asks again. An approval that was given then is
        still in the inbox, and counts.
        """
        if not recorded.lacks_approval:
            return None
        return cls(
            recorded.asks_until,
            recorded.decided,
            recorded.last_decision,
            recorded.intent.signed is True,
        )


def approval_request(
    run: Execution, spec: ToolSpec, event: CallIntended, given: Arguments
) -> ApprovalRequest | None:
    """The request of a new call; None if it needs no approval."""
    needed = spec.needs_approval
    if callable(needed):
        begun, form = (1, time.time_ns()), form_of(spec.function)
        needed = bool(needed(call_view(run, 0, event, given, begun, form)))
    if not needed:
        return None
    limit = spec.approval_timeout_s
    return ApprovalRequest(math.inf if limit is None else run.wall_clock() + limit)


def await_approval(
    run: Execution, spec: ToolSpec, call: Call, asking: ApprovalRequest, packed: Packed
) -> Generator[Effect, Any, CallOutcome | None]:
    """Wait for a decision: returns None when the call may begin, else the call's outcome.

    ``packed``: the arguments with which the call would begin now.
    """
    around = run.current_scope().calls
    if asking.signed and run.recipient.approvers is None:
        run.stop(
            RecoveryError(
                f"run {run.run_id!r} cannot continue here: an approval of {call} counts only when "
                "it is signed, and the store of this process has no approvers= to verify it with. "
                "Nothing was executed. Give the store the approvers= that it had."
            )
        )
    try:
        yield Commit()  # a person decides about arguments that cannot change any more
        denied = yield Perform(_decided(run, spec, call, asking, packed))
        # Invariant: no call begins before the approval that it needs is durable in the run's log.
        yield Commit()
    except BaseException as exc:
        run.note_cancelled(CallInProgress(spec, call, (*around, call.lsn), begun=False), exc)
        raise
    return denied  # type: ignore[no-any-return]


def _decided(
    run: Execution, spec: ToolSpec, call: Call, asking: ApprovalRequest, packed: Packed
) -> Generator[Sleep, None, CallOutcome | None]:
    decided = asking.decided
    if decided is None:
        until = None if asking.until == math.inf else asking.until

        def news() -> Message | None:
            return run.inbox.decision(call.idempotency_key, asking.counts, packed)

        def came() -> float | None:
            found = news()
            return None if found is None else found.time_ns / 1e9

        waiting = Waiting(call.lsn, f"approval of {call}", until, came)
        if came() is None:
            _logger.warning(
                "run %s waits for the approval of %s: recovery approve %s %s%s",
                run.run_id,
                call,
                quote(run.run_id),
                call.idempotency_key,
                store_option(run.store.backend),
            )
        yield from wait(run, waiting)
        made = news()
        decided = CallDecided(call.lsn, False, "", "no decision came in time")
        if made is not None:
            decided = CallDecided(
                call.lsn,
                made.approved,
                made.who,
                made.why,
                made.lsn,
                made.time_ns,
                run.uid,
                made.signature or None,
            )
        run.record(decided)
    if decided.approved:
        run.inbox.spent(call.idempotency_key)
        return None
    denied = ApprovalDeniedError(call.tool, decided.who, decided.why)
    event = failure(call.lsn, denied, run.secrets)
    return CallOutcome(run.record(event), event, denied)
