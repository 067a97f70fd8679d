"""Finds the recorded calls that are side effects, or contain some. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from recovery.journal.call_key import outer_call
from recovery.journal.events import SignalTaken
from recovery.replay.recorded_call import RecordedCall


class SideEffects:
    """The recorded calls that are side effects, and the calls around those."""

    def __init__(self) -> None:
        self._calls: dict[int, RecordedCall] = {}
        self._around: set[int] = set()  # calls (LSNs) inside which a side effect was begun

    def add(self, call: RecordedCall) -> None:
        """Add a call; the calls around it have been added before."""
        self._calls[call.lsn] = call
        if _is_side_effect(call):
            self._around.update(self._outer(call))

    def forget(self, lsn: int) -> None:
        """Forget a call that was made again and is over."""
        self._calls.pop(lsn, None)
        self._around.discard(lsn)

    def has(self, call: RecordedCall) -> bool:
        """Whether the call, or one inside it, may have been a side effect."""
        return _is_side_effect(call) or call.lsn in self._around

    def among(self, calls: Iterable[RecordedCall]) -> list[RecordedCall]:
        """The side effects among these calls, and inside them."""
        lsns = {call.lsn for call in calls}
        return [
            call
            for call in self._calls.values()
            if _is_side_effect(call) and not lsns.isdisjoint((call.lsn, *self._outer(call)))
        ]

    def in_doubt(self, calls: Iterable[RecordedCall]) -> list[RecordedCall]:
        """The side effects in doubt among these calls."""
        return [call for call in calls if call.in_doubt and _is_side_effect(call)]

    def _outer(self, call: RecordedCall) -> Iterator[int]:
        """The calls around this one, the innermost first."""
        around: RecordedCall | None = call
        while around is not None:
            lsn = outer_call(around.key.scope)
            if not 0 < lsn < around.lsn:  # none; or a forged log
                return
            yield lsn
            around = self._calls.get(lsn)


def _is_side_effect(call: RecordedCall) -> bool:
    if isinstance(call.last, SignalTaken) or call.intent.child:
        return True
    return call.intent.after_crash not in ("retry", "wait")
