"""Calls and changes of the messages, as the log knows them. Pure.

What becomes of a call by its events is worked out here alone: by ``RecordedCall.apply``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, assert_never

from eventlog.errors import RefusedValueError
from recovery.errors import ApprovalDeniedError, PermanentError
from recovery.journal.events import (
    RESUMED,
    AttemptFailed,
    CallAbandoned,
    CallDecided,
    CallFailed,
    CallIntended,
    CallResolved,
    CallRetried,
    CallReturned,
    Event,
    HistoryDropped,
    MessagesChanged,
    StepStarted,
)
from recovery.journal.keys import CallKey
from recovery.values.type_names import public_name, type_name

# To make the call again would change nothing about these failures.
_FINAL = {type_name(kind) for kind in (ApprovalDeniedError, PermanentError, RefusedValueError)}


def is_final(type_name: str) -> bool:
    """Whether a failure of the type recorded under this name stays the outcome of its call."""
    return public_name(type_name) in _FINAL


# Of what was dropped, code that comes to it again records these anew; calls are served to it.
RECORDED_ANEW = (MessagesChanged, StepStarted)


# The code has come to a call again, and gone on with it.
MADE_AGAIN = (AttemptFailed, CallAbandoned, CallDecided, CallFailed, CallRetried, CallReturned)


def dropped_by(events: Iterable[Event]) -> set[int]:
    """The records (LSNs) that the code may do without since a divergence was accepted; but for
    calls that it has made again since then."""
    dropped: set[int] = set()
    for event in events:
        if isinstance(event, HistoryDropped):
            dropped.update(event.records)
        elif isinstance(event, MADE_AGAIN):
            dropped.discard(event.call)
    return dropped


# What is recorded of a call after its intent.
About = CallReturned | CallFailed | CallResolved | CallRetried | AttemptFailed | CallAbandoned

State = Literal["open", "returned", "failed", "to be made again", "abandoned"]


def state_after(event: About) -> State:
    """How a call stands when this is the newest event about it; "open" before there is one."""
    match event:
        case CallReturned() | CallResolved(how="outcome"):
            return "returned"
        case AttemptFailed() | CallResolved(how="retry"):
            return "to be made again"
        case CallFailed() | CallResolved():
            return "failed"
        case CallAbandoned():
            return "abandoned"
        case CallRetried():
            return "open"
        case _:
            assert_never(event)


class Tries(NamedTuple):
    """Attempts at a call that have ``raised``; ``failed`` of them since it was last made again by
    somebody's decision: these count for its Retry."""

    failed: int = 0
    raised: int = 0

    def next(self) -> Tries:
        """One more has raised."""
        return Tries(self.failed + 1, self.raised + 1)


_UNTRIED = Tries()


@dataclass(slots=True)
class RecordedCall:
    """A call as the log knows it. ``last`` is the newest event about it.

    ``attempts`` were begun. ``since_ns``: when its step began. Values stay as the events have them.
    """

    lsn: int
    time_ns: int
    intent: CallIntended
    key: CallKey
    since_ns: int
    attempts: int = 1
    tries: Tries = _UNTRIED
    last: About | None = None
    last_lsn: int = 0
    last_ns: int = 0
    decided: CallDecided | None = None
    # The last decision that counted: its LSN in the inbox, and when it was made (ns since 1970).
    last_decision: tuple[int, int] = (0, 0)
    # Whether records are lost behind the last one about it, so that it may have gone on.
    uncertain: bool = False
    # Whether it was made in an attempt, at a call around it, that is over: see past_attempts.
    from_past_attempt: bool = False
    # Whether the run stood still because it had failed: whoever resumes it has it made again.
    stood_still: bool = False
    place: str | None = None  # whether before the loop of steps: see CallIntended.loop
    is_counterpart: bool = False  # whether it was found by its tool and order: see before_loop

    @classmethod
    def of(cls, lsn: int, time_ns: int, intent: CallIntended) -> RecordedCall:
        """The call of an intent, of which nothing else is known yet."""
        return cls(lsn, time_ns, intent, intent.identity, time_ns)

    def apply(self, lsn: int, time_ns: int, event: About | CallDecided) -> None:
        """The next event about it."""
        self.uncertain = False
        if isinstance(event, CallDecided):
            self.decided = event
            self.last_decision = max(self.last_decision, (event.inbox, event.sent or 0))
            if event.approved:  # from here on it may have begun, however it stood before
                self.last = None
            return
        self.last, self.last_lsn, self.last_ns = event, lsn, time_ns
        self.stood_still = False
        self.from_past_attempt = self.from_past_attempt and isinstance(
            event, CallAbandoned | CallResolved
        )
        match event:
            case CallRetried(attempt=attempt):
                self.attempts = attempt
            case AttemptFailed():
                self.tries = self.tries.next()
            case CallFailed():
                self.tries = Tries(0, self.tries.raised + 1)
            case CallReturned() | CallResolved() | CallAbandoned():
                pass
            case _:
                assert_never(event)
        if self.is_to_be_repeated and not self.may_have_run:
            self.decided = None  # whoever has it made again has to ask again

    @property
    def state(self) -> State:
        """How it stands."""
        return "open" if self.last is None else state_after(self.last)

    @property
    def value(self) -> Any:
        """What it returned, or was resolved with; None where there is nothing."""
        return getattr(self.last, "value", None)

    @property
    def is_placed(self) -> bool:
        """Whether it has a place in the order of the record. What was made before the loop of a
        resumed run came behind what the steps had recorded by then, and comes before it now."""
        return not (self.intent.lost or self.from_past_attempt or self.place == RESUMED)

    @property
    def replay_position(self) -> int:
        """Where its outcome stands in the order of the record; 0 where it has no place there."""
        return self.last_lsn if self.is_placed else 0

    @property
    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """What it was made with; None when that was too large to be recorded."""
        return self.intent.arguments

    @property
    def asks_until(self) -> float:
        """Until when it can be decided about (seconds since 1970), if it asks."""
        until = self.intent.asks_until
        return math.inf if until is None else float(until)

    @property
    def has_outcome(self) -> bool:
        """Whether its outcome is known, so that it is never executed again."""
        state = self.state
        return state == "returned" or (state == "failed" and not self._fails_anew)

    @property
    def _fails_anew(self) -> bool:
        """Whether its failure is not the end of it: the next attempt around it, or whoever resumes
        the run, makes it again."""
        if not isinstance(self.last, CallFailed):
            return False
        return self.stood_still or (self.from_past_attempt and not is_final(self.last.type))

    @property
    def may_have_run(self) -> bool:
        """Whether it may have taken effect: it does more than wait, and somebody has approved it
        if somebody had to."""
        if self.intent.after_crash == "wait":
            return False
        if self.uncertain or (self.intent.lost and self.last is None):
            return True
        return not self.lacks_yes

    @property
    def lacks_yes(self) -> bool:
        """Whether somebody has to approve it before it begins, and no yes is recorded."""
        yes = self.decided is not None and self.decided.approved
        return self.intent.asks_until is not None and not yes

    @property
    def is_to_be_repeated(self) -> bool:
        """Whether it is known that it has to be made again, so that it is not in doubt."""
        if self.uncertain:
            return False
        if isinstance(self.last, CallAbandoned):
            return not self.last.begun
        state = self.state
        return state == "to be made again" or (state == "failed" and self._fails_anew)

    @property
    def cancelled(self) -> bool:
        """Whether the agent cancelled it and went on, so that it does the same on replay."""
        return isinstance(self.last, CallAbandoned) and self.last.went_on

    @property
    def in_doubt(self) -> bool:
        """Whether it was started and nothing says how it ended."""
        return self.may_have_run and not (
            self.has_outcome or self.is_to_be_repeated or self.cancelled
        )

    @property
    def is_open_effect(self) -> bool:
        """Whether it is in doubt and not to be repeated: it stays so until it is settled, whatever
        becomes of the calls around it."""
        return self.intent.after_crash != "retry" and self.in_doubt


def fold(
    calls: dict[int, RecordedCall], lsn: int, time_ns: int, event: Event | None
) -> RecordedCall | None:
    """Take in the next event of a log: one that makes a call, or is about one of ``calls``, which
    are by LSN. The call, if it is known."""
    match event:
        case CallIntended():
            calls[lsn] = RecordedCall.of(lsn, time_ns, event)
            return calls[lsn]
        case (
            CallReturned()
            | CallFailed()
            | CallResolved()
            | CallRetried()
            | AttemptFailed()
            | CallAbandoned()
            | CallDecided()
        ) if (call := calls.get(event.call)) is not None:
            call.apply(lsn, time_ns, event)
            return call
    return None


@dataclass(slots=True)
class RecordedChange:
    """A recorded change of the messages, its new ones by digest."""

    lsn: int
    change: MessagesChanged


def put_in_doubt(calls: Iterable[RecordedCall]) -> None:
    """Records are lost, which may have been about any of these."""
    for call in calls:
        call.uncertain = not call.has_outcome
