"""Equal calls of which the agent cancelled one, and received the outcome of another. Pure.

Equal calls of a scope are distinguished by the order in which the agent makes them. The agent's own
sleeps can change that order. Then the code that is about to cancel its call has matched the record
of another call. So a call with the record of a cancelled one waits until the agent cancels it, or
cancels an equal call. In the second case the two calls exchange their records.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from recovery.journal.call_key import CallKey
from recovery.replay.recorded_call import RecordedCall


@dataclass(slots=True, eq=False)
class EqualCalls:
    """The calls that wait for the agent to cancel them, as it did when they were recorded."""

    _waiting: dict[CallKey, list[RecordedCall]] = field(default_factory=dict)
    # What a waiting call became by an exchange, by the LSN of the cancelled call.
    _exchanged: dict[int, RecordedCall] = field(default_factory=dict)

    def wait(self, cancelled: RecordedCall) -> None:
        """Add a call that waits."""
        self._waiting.setdefault(cancelled.key.nth(0), []).append(cancelled)

    def exchanged(self, cancelled: RecordedCall) -> RecordedCall | None:
        """Return the record that this call has in exchange for its own; None while it waits."""
        return self._exchanged.get(cancelled.lsn)

    def end(self, cancelled: RecordedCall) -> RecordedCall | None:
        """Remove a call that waits; returns the record that it has in exchange, if any."""
        self._leave(cancelled)
        return self._exchanged.pop(cancelled.lsn, None)

    def exchange(self, call: RecordedCall) -> bool:
        """Give this record to an equal call that waits, because the agent has cancelled the code
        that matched it before it was served. Returns whether there is such a call."""
        for cancelled in self._waiting.get(call.key.nth(0), ()):
            self._leave(cancelled)
            self._exchanged[cancelled.lsn] = call
            return True
        return False

    def _leave(self, cancelled: RecordedCall) -> None:
        key = cancelled.key.nth(0)
        left = [one for one in self._waiting.pop(key, ()) if one is not cancelled]
        if left:
            self._waiting[key] = left
