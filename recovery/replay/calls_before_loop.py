"""Matches recorded calls before the loop of steps, in a run resumed from a checkpoint. Pure.

The checkpoint holds the state and messages that this code had prepared. Of its calls:

    made again              served by identity, else by tool and order: their arguments may hold
                            the restored state and messages
    not made again          not expected, except a side effect in doubt
    new                     executed, and recorded as calls of a resumed run: such a call has no
                            position in the replay order, because it precedes all of it

A task that was started before the loop and runs beside it is replayed from its own beginning. Its
calls beside the loop are served by identity and in order. The run diverges if they are not made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from recovery.journal.call_key import BEFORE_STEPS, CallKey
from recovery.journal.events import BEFORE, BESIDE, RESUMED

if TYPE_CHECKING:
    from recovery.replay.recorded_call import RecordedCall

Kind = tuple[str, bool]  # a tool, and whether it was given a call id


@dataclass(slots=True, eq=False)
class BeforeLoop:
    """The recorded calls of the code before the loop.

    ``behind``: the LSN of the checkpoint from which the run is resumed; 0 where it is replayed from
    its beginning. ``foreign``: records up to this LSN are of another run, with another task, so
    none of its calls are served by order.
    """

    behind: int = 0
    foreign: int = 0
    _calls: dict[Kind, list[RecordedCall]] = field(default_factory=dict)
    _made: Counter[Kind] = field(default_factory=Counter)  # so far, in this process
    # Those that were served in the place of others. Such a call may still be made itself.
    _lent: dict[CallKey, RecordedCall] = field(default_factory=dict)

    def add(self, call: RecordedCall, outer: RecordedCall | None) -> None:
        """Note a recorded call, and the call around it, and whether it was made before the loop."""
        call.place = outer.place if outer is not None else call.intent.loop
        if outer is not None or call.key.scope != BEFORE_STEPS:
            return
        if call.place is None:  # older libraries did not say which tasks ran beside the loop
            call.place = BEFORE if call.lsn <= self.behind else BESIDE
        if call.place == BEFORE and self.behind and call.lsn > self.foreign:
            self._calls.setdefault(_kind(call.key), []).append(call)

    def may_miss(self, call: RecordedCall) -> bool:
        """Whether the code may leave out this call, or make another one in its place."""
        is_history = call.place == RESUMED or (call.place == BEFORE and self.behind > 0)
        return is_history and not (call.in_doubt and call.intent.after_crash != "retry")

    def made_again(self, call: RecordedCall) -> None:
        """Note that this recorded call was matched."""
        if call.place == BEFORE:
            self._made[_kind(call.key)] += 1

    def counterpart(self, key: CallKey, left: Container[CallKey]) -> RecordedCall | None:
        """The call of the same tool in whose place one of another identity is made: the one with
        its call id, else the one at its position. ``left``: the unmatched calls."""
        kind = _kind(key)
        calls, nth = self._calls.get(kind, []), self._made[kind]
        chosen = calls[nth : nth + 1]
        if key.call_id:
            chosen = [call for call in calls if call.key.call_id == key.call_id][:1]
        for call in chosen:
            if call.key in left and (call.has_outcome or call.cancelled):
                self._lent[call.key] = call
                return call
        self._made[kind] += 1
        return None

    def lent(self, key: CallKey) -> RecordedCall | None:
        """The call of this identity, if another one was served its outcome: it has one, so it is
        not executed again."""
        call = self._lent.get(key)
        if call is None or not call.has_outcome:
            return None
        self._made[_kind(key)] += 1
        call.is_counterpart = False
        return call

    def unsure(self) -> Iterator[tuple[str, int, int]]:
        """Tools of which calls were served by order, though the code has made fewer or more calls
        (the first number) than are recorded (the second): so the order says little."""
        for kind in dict.fromkeys(map(_kind, self._lent)):
            (tool, has_id), made, recorded = kind, self._made[kind], len(self._calls[kind])
            if made != recorded and not has_id:
                yield tool, made, recorded

    def passed(self, left: Iterable[RecordedCall]) -> Iterator[int]:
        """The records (LSNs) of these calls that are not expected once the loop is entered."""
        for call in left:
            if call.place == BEFORE and self.behind:
                yield from (call.lsn, call.last_lsn)


def _kind(key: CallKey) -> Kind:
    return key.tool, bool(key.call_id)
