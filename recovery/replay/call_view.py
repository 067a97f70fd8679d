"""Shows a recorded call, and its outcome, to its tool or to an operator. Pure."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from recovery.journal.call import Arguments, Call, Parameters
from recovery.journal.events import CallFailed, CallIntended, CallResolved, CallReturned
from recovery.replay.recorded_call import RecordedCall
from recovery.text import SEALED_TEXT, shorten
from recovery.values.sealed import Subjects

Outcome = CallReturned | CallFailed | CallResolved


class CallOutcome(NamedTuple):
    """The outcome of a call: its LSN and event, and the exception if it was raised just now.

    ``raised``: how many attempts at the call have raised, in all processes.
    """

    lsn: int
    event: Outcome
    cause: Exception | None = None
    raised: int = 0


class Failure(NamedTuple):
    """An exception that the agent received from a call; the call (LSN), and how often it raised."""

    error: Exception
    call: int
    raised: int


class OfRun(Protocol):
    """The names of the run of a call."""

    @property
    def run_id(self) -> str: ...
    @property
    def uid(self) -> str: ...
    @property
    def fence(self) -> int: ...


def call_view(
    run: OfRun,
    lsn: int,
    intent: CallIntended,
    given: Arguments,
    attempt: tuple[int, int],
    form: Parameters | None = None,
) -> Call:
    """The public view of a call. ``attempt``: its number, and the time at which it began;
    ``form``: of its function."""
    number, started_ns = attempt
    return Call(
        run.run_id,
        lsn,
        intent.scope,
        intent.tool,
        *given,
        intent.call_id,
        intent.idempotency_key(run.uid),
        number,
        started_ns,
        run.fence,
        intent.subject.keys if isinstance(intent.subject, Subjects) else (),
        form,
    )


def recorded_call_view(run: OfRun, made: RecordedCall) -> Call:
    """The public view of a recorded call, with the arguments that its record has."""
    given = made.intent.arguments or ((), {})
    return call_view(run, made.lsn, made.intent, given, (made.attempts, made.time_ns))


def call_text(recorded: RecordedCall) -> str:
    """The text of a recorded call, with its arguments if the log has them."""
    args = recorded.intent.args
    shown = f"arguments of {recorded.intent.size} bytes" if args is None else shorten(args)
    if recorded.intent.subject is not None:
        shown = SEALED_TEXT
    state = "asking for approval" if recorded.lacks_approval else "in doubt"
    return f"{recorded.key}: {shown}, {'with an outcome' if recorded.has_outcome else state}"
