"""The messages of a run: their changes recorded, or matched with what is recorded already."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from recovery._difference import differences
from recovery._errors import RecoveryError, Sides
from recovery._events import MessagesChanged
from recovery._parts import Outcomes, Parts, refs_of
from recovery._recorded import RecordedChange
from recovery._shorten import shorten
from recovery._values import Ref, unpack

if TYPE_CHECKING:
    from recovery._core import RunCore
    from recovery._history import History


class Conversation:
    """Records each change of a run's messages; guarded by the run's mutex."""

    def __init__(self, run: RunCore, history: History) -> None:
        self._run, self._history = run, history
        restored = history.restored
        self._outcomes = Outcomes(
            restored.borrowed if restored else 0, restored.generation.first if restored else 1
        )
        self.remember = self._outcomes.remember
        self.forget_before = self._outcomes.forget_before

    def record(self, start: int, stop: int, packed: list[bytes]) -> list[Ref | None]:
        """Record ``messages[start:stop] = packed``; where in the log each new message is."""
        run = self._run
        with run.mutex:
            run.act()
            run.loop.check_messages()
            call = run.here().call
            if call is not None:
                raise RecoveryError(
                    f"run.messages was changed inside a call of {call.tool}, which is not executed "
                    "again on replay: return the message, and let the agent append it"
                )
            again = self._match(start, stop, packed)
            if again is not None:
                return again
            found, new = self._outcomes.stand_ins(packed)
            return refs_of(found, run.note(MessagesChanged(start, stop, new)))

    def shown(self, recorded: RecordedChange) -> str:
        """A recorded change for a person."""
        return _shown(recorded.change, [unpack(one) for one in self._known(recorded.change)])

    def _match(self, start: int, stop: int, packed: list[bytes]) -> list[Ref | None] | None:
        """Where the new messages are, if the change is recorded: it is not written twice.

        Tasks that run side by side are known by what they change, not by when: nothing makes them
        come in the order in which they did, and what counts is what the code does now.
        """
        run = self._run
        if not run.replay.changes:
            return None  # the way of every change but on replay: no look at the tasks around
        # Where changes may be lost, what is recorded next need not be what the code does next.
        alone = run.alone() and not self._may_be_lost()
        for recorded in run.replay.changes:
            change = recorded.change
            known = run.attempt(partial(self._known, change))
            same = (stop - start, packed) == (change.stop - change.start, known)
            if same and (start == change.start or not run.alone()):
                run.replay.take_change(recorded)
                if not run.replay.changes:
                    self._history.forget_values()
                self._outcomes.borrowed += sum(item.borrowed for item in change.new
                                               if isinstance(item, Parts))  # fmt: skip
                return refs_of(change.new, recorded.lsn)
            if alone:
                values, new = [unpack(one) for one in known], [unpack(one) for one in packed]
                found = differences(
                    {"start": change.start, "stop": change.stop, "messages": values},
                    {"start": start, "stop": stop, "messages": new},
                )
                run.diverge(Sides(recorded.lsn, _shown(change, values),
                                  _shown(MessagesChanged(start, stop), new), found))  # fmt: skip
                return None  # it was accepted
        return None

    def _may_be_lost(self) -> bool:
        losses, step = self._run.replay.losses, self._run.step
        return losses is not None and (losses.reaches(step) or step <= losses.upto_change)

    def _known(self, change: MessagesChanged) -> list[bytes]:
        return [self._history.packed_of(item) for item in change.new]


def _shown(change: MessagesChanged, values: list[Any]) -> str:
    return f"messages[{change.start}:{change.stop}] = {shorten(values)}"
