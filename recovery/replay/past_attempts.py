"""Keeps the calls of past attempts at a call, to serve them to the next attempt. Pure.

Each attempt runs the tool's function from the start, in the same process as after a crash. The
calls inside it are served or executed again:

    returned                        it is served
    failed                          it is executed again, as one more attempt at the same call
    denied, or failed for good      the failure is served: another attempt would change nothing
    in doubt                        its own policy decides, when it is made again

Times, random numbers and ids are served. The next attempt may leave out any of these calls, and
may make others: only a side effect in doubt has to be made again before any new call.

Equal calls are distinguished by their occurrence. In the next attempt, those that returned come
first, so that a call which succeeded the second time is not executed a second time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from recovery.journal.call_key import CallKey, call_scope, outer_call

if TYPE_CHECKING:
    from recovery.replay.recorded_call import RecordedCall

ValueKey = tuple[str, str, int]  # scope, name, occurrence


@dataclass(slots=True, eq=False)
class PastAttempts:
    """Calls and values that were recorded inside calls without a result, by the LSN of these."""

    _calls: dict[int, list[RecordedCall]] = field(default_factory=dict)
    _values: dict[int, list[ValueKey]] = field(default_factory=dict)
    # Of equal calls in an attempt, the first, second, ...: which occurrences these are in the log.
    _order: dict[CallKey, list[int]] = field(default_factory=dict)

    def add_call(self, call: RecordedCall) -> None:
        """Add a call whose intent is recorded."""
        outer = outer_call(call.key.scope)
        if outer:
            self._calls.setdefault(outer, []).append(call)
            # Older logs do not distinguish attempts, and have equal intents.
            if call.key.occurrence in self._order.get(call.key.nth(0), ()):
                del self._order[call.key.nth(0)]

    def add_value(self, key: ValueKey) -> None:
        """Add a recorded value."""
        outer = outer_call(key[0])
        if outer:
            self._values.setdefault(outer, []).append(key)

    def has_calls_inside(self, lsn: int) -> bool:
        """Whether any call or value was recorded inside this call."""
        return lsn in self._calls or lsn in self._values

    def inside(self, lsn: int) -> Iterable[RecordedCall]:
        """The calls that were made inside this one, at any depth."""
        for call in self._calls.get(lsn, ()):
            yield call
            yield from self.inside(call.lsn)

    def end_attempt(self, lsn: int) -> tuple[dict[CallKey, RecordedCall], list[ValueKey]]:
        """End an attempt at this call; returns the calls and values for the next one."""
        found: dict[CallKey, RecordedCall] = {}
        for call in self.inside(lsn):
            call.from_past_attempt = True
            if call.has_outcome or call.key not in found or not found[call.key].has_outcome:
                found[call.key] = call
        equal: dict[CallKey, list[RecordedCall]] = {}
        for call in sorted(
            found.values(), key=lambda one: (not one.has_outcome, one.key.occurrence)
        ):
            equal.setdefault(call.key.nth(0), []).append(call)
        for key, calls in equal.items():
            self._order[key] = [call.key.occurrence for call in calls]
        around = (lsn, *(call.lsn for call in found.values()))
        return found, [key for one in around for key in self._values.get(one, ())]

    def renumbered(self, key: CallKey) -> CallKey:
        """The same call, with its occurrence as the log counts it."""
        order = self._order.get(key.nth(0)) if self._order else None
        if order is None:
            return key
        later = key.occurrence - len(order)
        return key.nth(order[key.occurrence - 1] if later <= 0 else max(order) + later)

    def forget(self, lsn: int) -> list[int]:
        """Forget a call that has no next attempt; returns the LSNs of the calls inside it."""
        if not self.has_calls_inside(lsn):
            return []
        calls = [call.lsn for call in self.inside(lsn)]
        for one in (lsn, *calls):
            self._calls.pop(one, None)
            self._values.pop(one, None)
        return calls

    @staticmethod
    def scopes(lsns: Iterable[int]) -> set[str]:
        """The scopes of the calls inside these calls."""
        return set(map(call_scope, lsns))
