"""Which recorded calls did something that is not to be done twice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from recovery.journal.events import SignalTaken
from recovery.journal.keys import outer_call
from recovery.replay.recorded_call import RecordedCall


class SideEffects:
    """The recorded calls, by what they did outside: themselves, or calls inside them."""

    def __init__(self) -> None:
        self._calls: dict[int, RecordedCall] = {}
        self._around: set[int] = set()  # calls (LSNs) inside which a side effect was begun

    def add(self, call: RecordedCall) -> None:
        """A call begins. Those around it are known."""
        self._calls[call.lsn] = call
        if _is_side_effect(call):
            self._around.update(self._outer(call))

    def forget(self, lsn: int) -> None:
        """The call was made again, and is over: nobody asks for it any more."""
        self._calls.pop(lsn, None)
        self._around.discard(lsn)

    def has(self, call: RecordedCall) -> bool:
        """Whether the call, or one inside it, may have done what is not to be done twice."""
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
        """Those among these calls that are side effects, and of which nobody knows the end."""
        return [call for call in calls if call.in_doubt and _is_side_effect(call)]

    def _outer(self, call: RecordedCall) -> Iterator[int]:
        """The calls around this one, the innermost first."""
        around: RecordedCall | None = call
        while around is not None:
            lsn = outer_call(around.key.scope)
            if not 0 < lsn < around.lsn:  # none; or a log that somebody has made up
                return
            yield lsn
            around = self._calls.get(lsn)


def _is_side_effect(call: RecordedCall) -> bool:
    if isinstance(call.last, SignalTaken) or call.intent.child:
        return True
    return call.intent.after_crash not in ("retry", "wait")
