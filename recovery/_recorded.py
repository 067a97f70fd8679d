"""Calls and changes of the messages, as the log knows them. Pure."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from eventlog._dataclass import dataclass
from eventlog._errors import RefusedValueError
from recovery._errors import ApprovalDeniedError, PermanentError
from recovery._events import (
    RESUMED,
    AttemptFailed,
    CallAbandoned,
    CallDecided,
    CallFailed,
    CallIntended,
    CallResolved,
    CallRetried,
    CallReturned,
    MessagesChanged,
)
from recovery._keys import CallKey

# Failures that stay: to make the call again would change nothing about them.
STAYS = {f"{kind.__module__}.{kind.__qualname__}"
          for kind in (ApprovalDeniedError, PermanentError, RefusedValueError)}  # fmt: skip

# What is recorded of a call after its intent.
About = CallReturned | CallFailed | CallResolved | CallRetried | AttemptFailed | CallAbandoned


class Tries(NamedTuple):
    """Attempts at a call that have ``raised``; ``failed`` of them since it was last made again by
    somebody's decision: these count for its Retry."""

    failed: int = 0
    raised: int = 0

    def next(self) -> Tries:
        """One more has raised."""
        return Tries(self.failed + 1, self.raised + 1)


@dataclass(slots=True)
class RecordedCall:
    """A call as the log knows it. ``last`` is the newest event about it.

    ``attempts`` were begun. ``since_ns``: when its step began.
    """

    lsn: int
    time_ns: int
    intent: CallIntended
    key: CallKey
    since_ns: int
    attempts: int = 1
    tries: Tries = Tries()
    last: About | None = None
    last_lsn: int = 0
    last_ns: int = 0
    decided: CallDecided | None = None
    # The last decision that counted: its LSN in the inbox, and when it was made (ns since 1970).
    heard: tuple[int, int] = (0, 0)
    # Whether records are lost behind the last one about it, so that it may have gone on.
    unsure: bool = False
    # Whether it was made in an attempt, at a call around it, that is over: see _earlier.
    past: bool = False
    # Whether the run stood still because it had failed: whoever resumes it has it made again.
    stood_still: bool = False
    place: str | None = None  # whether before the loop of steps: see CallIntended.loop

    @property
    def is_placed(self) -> bool:
        """Whether it has a place in the order of the record. What was made before the loop of a
        resumed run came behind what the steps had recorded by then, and comes before it now."""
        return not (self.intent.lost or self.past or self.place == RESUMED)

    @property
    def turn(self) -> int:
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
    def done(self) -> bool:
        """Whether its outcome is known, so that it is never executed again."""
        match self.last:
            case CallReturned():
                return True
            case CallFailed():
                return not (self.failed_with_its_attempt or self.stood_still)
            case CallResolved(how=how):
                return how != "retry"
        return False

    @property
    def failed_with_its_attempt(self) -> bool:
        """Whether it failed in an attempt that is over: then the next one makes it again."""
        last = self.last
        return self.past and isinstance(last, CallFailed) and last.type not in STAYS

    @property
    def begun(self) -> bool:
        """Whether it may have taken effect: it does more than wait, and somebody has approved it
        if somebody had to."""
        if self.intent.after_crash == "wait":
            return False
        if self.unsure or self.intent.lost:
            return True
        yes = self.decided is not None and self.decided.approved
        return self.intent.asks_until is None or yes

    @property
    def to_retry(self) -> bool:
        """Whether it is known that it has to be made again, so that it is not in doubt."""
        if self.unsure:
            return False
        match self.last:
            case CallResolved(how=how):
                return how == "retry"
            case CallAbandoned(begun=begun):
                return not begun
            case CallFailed():
                return self.failed_with_its_attempt or self.stood_still
        return isinstance(self.last, AttemptFailed)

    @property
    def cancelled(self) -> bool:
        """Whether the agent cancelled it and went on, so that it does the same on replay."""
        return isinstance(self.last, CallAbandoned) and self.last.went_on

    @property
    def in_doubt(self) -> bool:
        """Whether it was started and nothing says how it ended."""
        return self.begun and not (self.done or self.to_retry or self.cancelled)

    @property
    def is_open_effect(self) -> bool:
        """Whether it is in doubt and not to be repeated: it stays so until it is settled, whatever
        becomes of the calls around it."""
        return self.intent.after_crash != "retry" and self.in_doubt


@dataclass(slots=True)
class RecordedChange:
    """A recorded change of the messages, its new ones by digest."""

    lsn: int
    change: MessagesChanged
