"""Folds the events of a log into recorded calls and changes of the messages. Pure.

``RecordedCall.apply`` alone decides what a call's events make of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, assert_never

from eventlog.errors import RefusedValueError
from recovery.errors import ApprovalDeniedError, PermanentError
from recovery.journal.call_key import CallKey
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
from recovery.values.sealed import Subjects
from recovery.values.type_names import public_name, type_name

# Another attempt at the call would not change these failures.
_FINAL = {type_name(kind) for kind in (ApprovalDeniedError, PermanentError, RefusedValueError)}


def is_final(type_name: str) -> bool:
    """Whether a failure of the type with this recorded name stays the outcome of its call."""
    return public_name(type_name) in _FINAL


# Dropped events that the code records again when it comes to them; dropped calls are served.
RECORDED_ANEW = (MessagesChanged, StepStarted)


# Events which show that the code has made a call again, and continued with it.
MADE_AGAIN = (AttemptFailed, CallAbandoned, CallDecided, CallFailed, CallRetried, CallReturned)


def dropped_by(events: Iterable[Event]) -> set[int]:
    """The records (LSNs) that the code may leave out since a divergence was accepted, except calls
    that it has made again since then."""
    dropped: set[int] = set()
    for event in events:
        if isinstance(event, HistoryDropped):
            dropped.update(event.records)
        elif isinstance(event, MADE_AGAIN):
            dropped.discard(event.call)
    return dropped


# The events about a call after its intent.
About = CallReturned | CallFailed | CallResolved | CallRetried | AttemptFailed | CallAbandoned

State = Literal["open", "returned", "failed", "to be made again", "abandoned"]


def state_after(event: About) -> State:
    """The state of a call whose newest event this is; "open" before there is one."""
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
    """Attempts at a call that have ``raised``; ``failed`` counts those since an operator last
    decided to retry it, which count for its Retry."""

    failed: int = 0
    raised: int = 0

    def next(self) -> Tries:
        """The counts after one more attempt has raised."""
        return Tries(self.failed + 1, self.raised + 1)


_UNTRIED = Tries()


@dataclass(slots=True, eq=False)
class RecordedCall:
    """A call, from its events. ``last`` is the newest event about it.

    ``attempts``: how many have begun. ``since_ns``: when its step began. Values stay as the events
    have them.
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
    again_lsn: int = 0  # where its newest attempt began, if that is not its intent
    decided: CallDecided | None = None
    # The last decision that counted: its LSN in the inbox, and when it was made (ns since 1970).
    last_decision: tuple[int, int] = (0, 0)
    # Whether records after the last one about it are lost, so that it may have continued.
    uncertain: bool = False
    # Whether the attempt (at the call around it) in which it was made is over: see past_attempts.
    from_past_attempt: bool = False
    # Whether the run parked because it had failed: resuming the run executes it again.
    parked_run: bool = False
    place: str | None = None  # whether before the loop of steps: see CallIntended.loop
    # Outcomes (LSNs) in the log whose calls are lost: one may be of this call.
    unclaimed_outcomes: tuple[int, ...] = ()
    is_counterpart: bool = False  # whether it was found by its tool and order: see before_loop

    @classmethod
    def of(cls, lsn: int, time_ns: int, intent: CallIntended) -> RecordedCall:
        """The call of an intent, before any other event about it."""
        return cls(lsn, time_ns, intent, intent.identity, time_ns)

    def apply(self, lsn: int, time_ns: int, event: About | CallDecided) -> None:
        """Take in the next event about it."""
        self.uncertain = False
        if isinstance(event, CallDecided):
            self.decided = event
            self.last_decision = max(self.last_decision, (event.inbox, event.sent or 0))
            if event.approved:  # from here on it may have begun, whatever its state was
                self.last, self.again_lsn = None, lsn
            return
        has_begun = event.begun if isinstance(event, CallAbandoned) else type(event) is CallRetried
        if has_begun and self.lacks_approval and self.intent.after_crash != "retry":
            self.uncertain = True  # its approval is lost: no side effect begins without a record
        self.last, self.last_lsn, self.last_ns = event, lsn, time_ns
        self.parked_run = False
        self.from_past_attempt = self.from_past_attempt and isinstance(
            event, CallAbandoned | CallResolved
        )
        match event:
            case CallRetried(attempt=attempt):
                self.attempts, self.again_lsn = attempt, lsn
            case AttemptFailed():
                self.tries = self.tries.next()
            case CallFailed():
                self.tries = Tries(0, self.tries.raised + 1)
            case CallReturned() | CallResolved() | CallAbandoned():
                pass
            case _:
                assert_never(event)
        if self.is_to_be_repeated and not self.may_have_run:
            self.decided = None  # another attempt needs another approval

    @property
    def state(self) -> State:
        """Its state."""
        return "open" if self.last is None else state_after(self.last)

    @property
    def value(self) -> Any:
        """Its result, or the value that it was resolved with; None if there is none."""
        return getattr(self.last, "value", None)

    @property
    def is_placed(self) -> bool:
        """Whether it has a position in the replay order. A call before the loop of a resumed run
        was recorded after earlier steps, but is replayed before them."""
        return not (self.intent.lost or self.from_past_attempt or self.place == RESUMED)

    @property
    def replay_position(self) -> int:
        """The position of its outcome in the replay order; 0 if it has none."""
        return self.last_lsn if self.is_placed else 0

    @property
    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Its arguments; None when they were too large to be recorded."""
        return self.intent.arguments

    @property
    def is_timed(self) -> bool:
        """Whether it is a wait with a time-out."""
        return self.arguments is not None and self.arguments[1].get("timeout") is not None

    def may_come_after(self, other: RecordedCall) -> bool:
        """Whether the code may make this call after the other one, or before it: both were open at
        once, or an attempt that is over has made them."""
        both_open = max(self.lsn, other.lsn) < min(
            one.last_lsn or math.inf for one in (self, other)
        )
        return both_open or (self.from_past_attempt and other.from_past_attempt)

    @property
    def is_forgotten(self) -> bool:
        """Whether it belongs to a subject that was forgotten."""
        return isinstance(self.intent.subject, Subjects) and self.intent.subject.forgotten

    @property
    def asks_until(self) -> float:
        """Until when it can be approved or denied (seconds since 1970), if it needs approval."""
        until = self.intent.asks_until
        return math.inf if until is None else float(until)

    @property
    def has_outcome(self) -> bool:
        """Whether its outcome is known, so that it is never executed again."""
        state = self.state
        return state == "returned" or (state == "failed" and not self._fails_anew)

    @property
    def _fails_anew(self) -> bool:
        """Whether its failure is no outcome: the next attempt around it, or resuming the run,
        executes it again."""
        if not isinstance(self.last, CallFailed):
            return False
        return self.parked_run or (self.from_past_attempt and not is_final(self.last.type))

    @property
    def may_have_run(self) -> bool:
        """Whether it may have taken effect: it does more than wait, and has the approval that it
        needs."""
        if self.intent.after_crash == "wait":
            return False
        if self.uncertain or (self.intent.lost and self.last is None):
            return True
        return not self.lacks_approval

    @property
    def lacks_approval(self) -> bool:
        """Whether it needs approval before it begins, and no approval is recorded."""
        yes = self.decided is not None and self.decided.approved
        return self.intent.asks_until is not None and not yes

    @property
    def is_undecided(self) -> bool:
        """Whether it awaits the approval that it needs."""
        over = self.has_outcome or self.cancelled or self.may_have_run
        return self.intent.asks_until is not None and self.decided is None and not over

    @property
    def is_to_be_repeated(self) -> bool:
        """Whether it is known to need another execution, so that it is not in doubt."""
        if self.uncertain:
            return False
        if isinstance(self.last, CallAbandoned):
            return self.was_not_begun
        return self.state == "to be made again" or self._fails_anew

    @property
    def cancelled(self) -> bool:
        """Whether the agent cancelled it and continued, so that it does the same on replay."""
        return isinstance(self.last, CallAbandoned) and self.last.went_on

    @property
    def was_not_begun(self) -> bool:
        """Whether the agent cancelled it before it began."""
        return isinstance(self.last, CallAbandoned) and not self.last.begun

    @property
    def in_doubt(self) -> bool:
        """Whether it was started, and no record says how it ended."""
        return self.may_have_run and not (
            self.has_outcome or self.is_to_be_repeated or self.cancelled
        )

    @property
    def is_open_effect(self) -> bool:
        """Whether it is in doubt and must not be repeated: it stays in doubt until it is resolved,
        whatever becomes of the calls around it."""
        return self.intent.after_crash != "retry" and self.in_doubt


def fold(
    calls: dict[int, RecordedCall], lsn: int, time_ns: int, event: Event | None
) -> RecordedCall | None:
    """Take in the next event of a log: an intent, or an event about one of ``calls`` (by LSN).
    Returns the call, if it is known."""
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


@dataclass(slots=True, eq=False)
class RecordedChange:
    """A recorded change of the messages, with digests of the new ones."""

    lsn: int
    change: MessagesChanged


def put_in_doubt(calls: Iterable[RecordedCall]) -> None:
    """Mark calls as uncertain, because lost records may have been about any of them."""
    for call in calls:
        call.uncertain = not call.has_outcome
