"""The messages of a run: their changes recorded, or matched with what is recorded already."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Any

from eventlog import Packed
from recovery._difference import differences
from recovery._errors import RecoveryError, Sides
from recovery._events import MessagesChanged
from recovery._replay import RecordedChange
from recovery._shorten import shorten
from recovery._values import Ref, digest, pack, pack_list, pack_ref, unpack

if TYPE_CHECKING:
    from recovery._core import RunCore
    from recovery._history import History

RECENT_OUTCOMES = 256  # a message equal to one of these is recorded as a reference to it
REF_SIZE_MIN = 32  # below this the value itself is as short as a reference


class Conversation:
    """Records each change of a run's messages; guarded by the run's mutex."""

    def __init__(self, run: RunCore, history: History) -> None:
        self._run, self._history = run, history
        self._recent: OrderedDict[bytes, Ref] = OrderedDict()

    def remember(self, packed: bytes, lsn: int) -> None:
        """An outcome that a message may soon be equal to."""
        if len(packed) >= REF_SIZE_MIN:
            self._recent[digest(packed)] = Ref(lsn)
            if len(self._recent) > RECENT_OUTCOMES:
                self._recent.popitem(last=False)

    def record(self, start: int, stop: int, packed: list[bytes]) -> list[Ref | None]:
        """Record ``messages[start:stop] = packed``; where in the log each new message is."""
        run = self._run
        with run.mutex:
            run.act()
            call = run.here().call
            if call is not None:
                raise RecoveryError(
                    f"run.messages was changed inside a call of {call.tool}, which is not executed "
                    "again on replay: return the message, and let the agent append it"
                )
            again = self._match(start, stop, packed)
            if again is not None:
                return again
            refs: list[Ref | None] = [
                self._recent.get(digest(one)) if len(one) >= REF_SIZE_MIN else None
                for one in packed
            ]
            new = pack_list([
                Packed(one) if ref is None else pack_ref(ref)
                for ref, one in zip(refs, packed, strict=True)
            ])  # fmt: skip
            lsn = run.note(MessagesChanged(start, stop, new))
            return [ref or (Ref(lsn, i) if lsn else None) for i, ref in enumerate(refs)]

    def shown(self, recorded: RecordedChange) -> str:
        """A recorded change for a person."""
        return _shown(recorded.change, self._values_of(recorded.change))

    def _match(self, start: int, stop: int, packed: list[bytes]) -> list[Ref | None] | None:
        """Where the new messages are, if the change is recorded: it is not written twice.

        Tasks that run side by side are known by what they change, not by when: nothing makes them
        come in the order in which they did, and what counts is what the code does now.
        """
        run = self._run
        if not run.replay.changes:
            return None  # the way of every change but on replay: no look at the tasks around
        alone = run.alone()
        for recorded in run.replay.changes:
            change = recorded.change
            values = run.attempt(partial(self._values_of, change))
            same = (stop - start, packed) == (
                change.stop - change.start, [pack(value, "") for value in values],
            )  # fmt: skip
            if same and (start == change.start or not alone):
                run.replay.take_change(recorded)
                return [item if isinstance(item, Ref) else Ref(recorded.lsn, i)
                        for i, item in enumerate(change.new)]  # fmt: skip
            if alone:
                new = [unpack(one) for one in packed]
                found = differences(
                    {"start": change.start, "stop": change.stop, "messages": values},
                    {"start": start, "stop": stop, "messages": new},
                )
                run.diverge(Sides(recorded.lsn, _shown(change, values),
                                  _shown(MessagesChanged(start, stop), new), found))  # fmt: skip
                return None  # it was accepted
        return None

    def _values_of(self, change: MessagesChanged) -> list[Any]:
        return [self._history.value_of(item) for item in change.new]


def _shown(change: MessagesChanged, values: list[Any]) -> str:
    return f"messages[{change.start}:{change.stop}] = {shorten(values)}"
