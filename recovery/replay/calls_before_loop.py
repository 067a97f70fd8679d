"""What is recorded of the code before the loop of steps, for a run that is resumed from a
checkpoint. Pure.

That code is history then, as state and messages are what the checkpoint has. Of its calls

    made again              each is served, by its identity, else by its tool and order: its
                            arguments may hold the restored state and messages
    not made again          nobody misses them; but for a side effect in doubt
    new                     they are made, and recorded as those of a resumed run: such a call has
                            no place in the order of the record, for it comes before all of it

A task that was started before the loop and runs beside it is replayed from its own beginning: what
it does beside the loop is served by identity and in order, and missed when it is not made again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from recovery.journal.events import BEFORE, BESIDE, RESUMED
from recovery.journal.keys import BEFORE_STEPS, CallKey

if TYPE_CHECKING:
    from recovery.replay.recorded_call import RecordedCall

Kind = tuple[str, bool]  # a tool, and whether it was given a call id


@dataclass(slots=True)
class BeforeLoop:
    """The recorded calls of the code before the loop. ``behind``: the LSN of the checkpoint with
    which the run is resumed; 0 where it is replayed from its beginning. ``foreign``: up to this LSN
    it is what another run has done with another task, so none of it is served by order."""

    behind: int = 0
    foreign: int = 0
    _calls: dict[Kind, list[RecordedCall]] = field(default_factory=dict)
    _made: Counter[Kind] = field(default_factory=Counter)  # so far, in this process

    def add(self, call: RecordedCall, outer: RecordedCall | None) -> None:
        """A recorded call, and the one inside which it was made: what is known of its place."""
        call.place = outer.place if outer is not None else call.intent.loop
        if outer is not None or call.key.scope != BEFORE_STEPS:
            return
        if call.place is None:  # older libraries did not say which tasks ran beside the loop
            call.place = BEFORE if call.lsn <= self.behind else BESIDE
        if call.place == BEFORE and self.behind and call.lsn > self.foreign:
            self._calls.setdefault(_kind(call.key), []).append(call)

    def may_miss(self, call: RecordedCall) -> bool:
        """Whether the code may do without this call, or do something else in its place."""
        is_history = call.place == RESUMED or (call.place == BEFORE and self.behind > 0)
        return is_history and not (call.in_doubt and call.intent.after_crash != "retry")

    def made_again(self, call: RecordedCall) -> None:
        """This recorded call was matched."""
        if call.place == BEFORE:
            self._made[_kind(call.key)] += 1

    def counterpart(self, key: CallKey, left: Container[CallKey]) -> RecordedCall | None:
        """The call in whose place one of another identity is made: of its tool that with its call
        id, else the one that was made when so many had been. ``left``: what is unmatched."""
        kind = _kind(key)
        calls, nth = self._calls.get(kind, []), self._made[kind]
        chosen = calls[nth : nth + 1]
        if key.call_id:
            chosen = [call for call in calls if call.key.call_id == key.call_id][:1]
        for call in chosen:
            if call.key in left and (call.has_outcome or call.cancelled):
                return call
        self._made[kind] += 1
        return None

    def passed(self, left: Iterable[RecordedCall]) -> Iterator[int]:
        """The records (LSNs) of these calls, for which nobody waits once the loop is entered."""
        for call in left:
            if call.place == BEFORE and self.behind:
                yield from (call.lsn, call.last_lsn)


def _kind(key: CallKey) -> Kind:
    return key.tool, bool(key.call_id)
