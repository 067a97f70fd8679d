"""A recorded call as its tool or an operator sees it, and how it ended. Pure."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from recovery.journal.call import Arguments, Call
from recovery.journal.events import CallFailed, CallIntended, CallResolved, CallReturned
from recovery.replay.recorded_call import RecordedCall
from recovery.text import shorten

Outcome = CallReturned | CallFailed | CallResolved


class CallOutcome(NamedTuple):
    """How a call ended: its event, where that is, and the exception if it was raised just now.

    ``raised``: how many attempts at it have raised, in whatever process.
    """

    lsn: int
    event: Outcome
    cause: Exception | None = None
    raised: int = 0


class Failure(NamedTuple):
    """An exception of a call as the agent got it; the call (LSN), and how often it has raised."""

    error: Exception
    call: int
    raised: int


class OfRun(Protocol):
    """What tells the run of a call."""

    @property
    def run_id(self) -> str: ...
    @property
    def uid(self) -> str: ...


def call_of(
    run: OfRun,
    lsn: int,
    intent: CallIntended,
    given: Arguments,
    attempt: tuple[int, int],
) -> Call:
    """The call as its tool or an operator sees it; ``attempt`` is its number and when it began."""
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
    )


def recorded_call(run: OfRun, made: RecordedCall) -> Call:
    """The same of a recorded call, with the arguments that its record has."""
    given = made.intent.arguments or ((), {})
    return call_of(run, made.lsn, made.intent, given, (made.attempts, made.time_ns))


def describe(recorded: RecordedCall) -> str:
    """A recorded call for a person: with its arguments where the log has them."""
    args = recorded.intent.args
    shown = f"arguments of {recorded.intent.size} bytes" if args is None else shorten(args)
    return f"{recorded.key}: {shown}, {'with an outcome' if recorded.has_outcome else 'in doubt'}"
