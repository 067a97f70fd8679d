"""The record against which a run is replayed. Pure: events in, answers out.

A call that the agent makes is looked up by its identity and is one of

    recorded    it has an outcome: that is served, nothing is executed
    resolved    somebody decided that it is to be made again
    in doubt    it was started, and nothing says how it ended
    new         the record does not know it

Outcomes are served in the order in which they were recorded, so that coroutines go on in the
order in which they first did. A new side effect waits until every recorded call has been claimed:
a recorded call that nobody claims any more means that the code has changed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from recovery._events import (
    CallFailed,
    CallIntended,
    CallResolved,
    CallRetried,
    CallReturned,
    Event,
    MessagesChanged,
    StepStarted,
    ValueRecorded,
)
from recovery._keys import CallKey, outer_call


@dataclass(slots=True)
class RecordedCall:
    """A call as the log knows it. ``last`` is the newest event about it."""

    lsn: int
    time_ns: int
    intent: CallIntended
    key: CallKey
    attempts: int = 1
    last: CallReturned | CallFailed | CallResolved | CallRetried | None = None
    last_lsn: int = 0

    @property
    def done(self) -> bool:
        """Whether its outcome is known, so that it is never executed again."""
        match self.last:
            case CallReturned() | CallFailed():
                return True
            case CallResolved(how=how):
                return how != "retry"
        return False

    @property
    def to_retry(self) -> bool:
        """Whether somebody decided that it is to be made again."""
        return isinstance(self.last, CallResolved) and self.last.how == "retry"


@dataclass(slots=True)
class RecordedChange:
    """A recorded change of the messages, its new ones by digest."""

    lsn: int
    change: MessagesChanged


@dataclass(slots=True)
class Replay:
    """What the record holds and the code has not yet claimed."""

    steps: set[int] = field(default_factory=set)
    changes: deque[RecordedChange] = field(default_factory=deque)
    claims: int = 0
    _calls: dict[CallKey, RecordedCall] = field(default_factory=dict)
    _by_lsn: dict[int, RecordedCall] = field(default_factory=dict)
    _values: dict[tuple[str, str, int], ValueRecorded] = field(default_factory=dict)
    _undelivered: deque[RecordedCall] = field(default_factory=deque)
    _delivered: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, events: Iterable[tuple[int, int, Event]]) -> Replay:
        """The replay of (LSN, time in ns, event) in the order of the log."""
        replay = cls()
        for lsn, time_ns, event in events:
            replay._add(lsn, time_ns, event)
        # Nobody asks for a call inside a call that is itself served.
        replay._calls = {call.key: call for call in replay.unclaimed()}
        done = (call for call in replay._calls.values() if call.done)
        replay._undelivered = deque(sorted(done, key=lambda call: call.last_lsn))
        return replay

    def _add(self, lsn: int, time_ns: int, event: Event) -> None:
        match event:
            case CallIntended():
                key = CallKey(event.scope, event.tool, event.call_id, event.digest,
                              event.occurrence)  # fmt: skip
                self._calls[key] = self._by_lsn[lsn] = RecordedCall(lsn, time_ns, event, key)
            case CallReturned() | CallFailed() | CallResolved() | CallRetried():
                call = self._by_lsn.get(event.call)
                if call is None:
                    return  # of a call before the checkpoint, which had its outcome there
                call.last, call.last_lsn = event, lsn
                if isinstance(event, CallRetried):
                    call.attempts = event.attempt
            case ValueRecorded():
                self._values[event.scope, event.name, event.occurrence] = event
            case MessagesChanged():
                self.changes.append(RecordedChange(lsn, event))
            case StepStarted():
                self.steps.add(event.step)

    def claim(self, key: CallKey) -> RecordedCall | None:
        """The recorded call of this identity; each is given out once."""
        call = self._calls.pop(key, None)
        if call is not None:
            self.claims += 1
        return call

    def take_value(self, scope: str, name: str, occurrence: int) -> ValueRecorded | None:
        """The recorded answer of the outside world."""
        return self._values.pop((scope, name, occurrence), None)

    def resembling(self, key: CallKey) -> RecordedCall | None:
        """An unclaimed call with the same model's call id in the same scope, but not the same."""
        if not key.call_id:
            return None
        return next((call for call in self._calls.values()
                     if (call.key.scope, call.key.call_id) == (key.scope, key.call_id)),
                    None)  # fmt: skip

    def unclaimed(self) -> list[RecordedCall]:
        """Recorded calls that the code has not made again. Calls inside a call that has an
        outcome are covered by it."""
        return [call for call in self._calls.values() if not self._covered(call)]

    def in_doubt(self) -> list[RecordedCall]:
        """Calls that were started and of which nothing says how they ended."""
        return [call for call in self.unclaimed() if not call.done and not call.to_retry]

    def _covered(self, call: RecordedCall) -> bool:
        lsn = outer_call(call.key.scope)
        if not 0 < lsn < call.lsn:
            return False
        outer = self._by_lsn.get(lsn)
        return outer is None or outer.done or self._covered(outer)

    def is_next(self, call: RecordedCall) -> bool:
        """Whether every outcome recorded before this call's has been served."""
        self._skip()
        return not self._undelivered or self._undelivered[0].last_lsn >= call.last_lsn

    def deliver(self, call: RecordedCall) -> None:
        """This call's outcome is served."""
        self._delivered.add(call.lsn)
        self._skip()

    @property
    def all_delivered(self) -> bool:
        """Whether every recorded outcome has been served."""
        self._skip()
        return not self._undelivered

    def _skip(self) -> None:
        while self._undelivered:
            first = self._undelivered[0]
            if first.lsn not in self._delivered and not self._covered(first):
                return
            self._delivered.discard(first.lsn)
            self._undelivered.popleft()

    @property
    def used_up(self) -> bool:
        """Whether nothing recorded is left: what comes now is new."""
        return not self.changes and not self.unclaimed()
