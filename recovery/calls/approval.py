"""Calls that somebody has to approve before they begin.

The intent says that the call asks, and until when; so it is asked once. The record of the yes is
what separates a call that has not begun, however often its process dies, from one that may have
taken effect. Decisions are bound to the idempotency key of the call, which covers the run, the
tool, the arguments and the occurrence: no other call can spend them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from eventlog import Packed
from recovery.calls.waiting import wait
from recovery.declare.spec import ToolSpec
from recovery.engine.call_in_progress import CallInProgress
from recovery.engine.driver_effects import Commit, Effect, Perform, Sleep, Waiting
from recovery.engine.execution import Execution
from recovery.errors import ApprovalDeniedError, RecoveryError
from recovery.journal.call import Arguments, Call
from recovery.journal.events import CallDecided, CallIntended
from recovery.journal.failure import failure
from recovery.journal.inbox_messages import Message
from recovery.replay.call_view import CallOutcome, call_of
from recovery.replay.recorded_call import RecordedCall


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """A call that asks for approval, until a time (seconds since 1970, or for ever).

    ``decided`` is what was recorded already, ``last_decision`` the last message that counted (its
    LSN, and when it was made): one about an earlier attempt at the call, which was denied, counts
    no more.
    """

    until: float
    decided: CallDecided | None = None
    last_decision: tuple[int, int] = (0, 0)
    signed: bool = False  # whether it says that only what is signed counts

    def counts(self, made: Message) -> bool:
        """Whether a decision about the call was made in time, after the one that counted last."""
        return made.is_after(self.last_decision) and made.time_ns / 1e9 <= self.until

    @classmethod
    def of(cls, recorded: RecordedCall) -> ApprovalRequest | None:
        """What a recorded call asks for; None if nothing, or if a yes to it is recorded.

        One that may have begun in records that are lost asks again: a yes that was given then is
        still in the inbox, and counts.
        """
        if not recorded.lacks_yes:
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
    """What a new call asks for; None if nothing."""
    needed = spec.needs_approval
    if callable(needed):
        needed = bool(needed(call_of(run, 0, event, given, (1, time.time_ns()))))
    if not needed:
        return None
    limit = spec.approval_timeout_s
    return ApprovalRequest(math.inf if limit is None else run.wall_clock() + limit)


def await_approval(
    run: Execution, spec: ToolSpec, call: Call, asking: ApprovalRequest, packed: Packed
) -> Generator[Effect, Any, CallOutcome | None]:
    """Wait for a decision: None when the call may begin, else how it ended.

    ``packed``: the arguments with which the call would begin now.
    """
    around = run.current_scope().calls
    if asking.signed and run.recipient.approvers is None:
        run.stop(
            RecoveryError(
                f"run {run.run_id!r} cannot go on here: a yes to {call} counts only when it is "
                "signed, and the store of this process has no approvers= to know it by. Nothing "
                "was executed. Give the store the approvers= that it had."
            )
        )
    try:
        yield Commit()  # what somebody is asked about stays what it is
        denied = yield Perform(_decided(run, spec, call, asking, packed))
        # Invariant: no call that needs a yes begins before the yes is durable in the run's log.
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
        yield from wait(run, waiting)
        made = news()
        decided = CallDecided(call.lsn, False, "", "nobody decided in time")
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
