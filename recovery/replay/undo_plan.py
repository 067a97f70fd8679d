"""Plans which calls of a run an undo compensates. Pure: the events of a log in, a plan out.

A call is undone if its tool names a compensation, it is known to have happened, and nothing else
undoes it:

    returned, or resolved with an outcome     it is undone
    failed, resolved as failed or to retry    it did not happen: there is nothing to undo
    started, and no record says how it ended,
    as after a crash or a cancellation        in doubt: it must be resolved first
    inside a call that is itself undone       that call's compensation covers it
    inside a compensation                     it is part of an undo
    happened in the run that this is a fork   that run may undo it
    of, before it was forked

The log is read from its beginning, whatever checkpoints there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from recovery.journal.call_key import UNDO_CALL, outer_call
from recovery.journal.events import AttemptFailed, CallAbandoned, CallResolved, Event, StepStarted
from recovery.replay.recorded_call import RecordedCall, fold


@dataclass(slots=True)
class UndoPlan:
    """The plan of the undo whose own call is record ``undo_call_lsn``: of the calls before it.

    ``since``: only of calls that were made after this step began. An outcome that was recorded
    after ``undo_call_lsn`` counts too: an undo waits for it, so the plan is always the same.
    """

    undo_call_lsn: int
    since: int = 0
    first_lsn: int = 1  # of the log: 1 unless its beginning was removed
    begins: int = 0  # the LSN at which step ``since`` began
    repeats: dict[int, int] = field(
        default_factory=dict
    )  # failed tries that were decided to repeat
    forked: int = 0  # up to this LSN the records are those of the run that it was forked from
    base: int = 0  # the LSN of the checkpoint that the fork began with
    _made: dict[int, RecordedCall] = field(default_factory=dict)

    def add(self, lsn: int, time_ns: int, event: Event) -> None:
        """Take in the next event of the log."""
        match event:
            case StepStarted(step=step) if step == self.since and not self.begins:
                self.begins = lsn
            case CallResolved(call=self.undo_call_lsn, how="retry"):
                self._repeat()
            case _:
                fold(self._made, lsn, time_ns, event)

    def _repeat(self) -> None:
        """Repeat the failed compensations of this undo, which had failed itself."""
        self.repeats = {}
        for one in self._made.values():
            # Invariant: each of them has a recorded failure. One that is to be made again, or was
            # cut short before it began, is executed when the undo comes to it: that is its repeat.
            if one.state == "failed" and outer_call(one.intent.scope) == self.undo_call_lsn:
                call = one.intent.undoes
                self.repeats[call] = self.repeats.get(call, 0) + 1

    @property
    def begins_in_the_log(self) -> bool:
        """Whether the log still has all calls that there may be to undo."""
        return self._start > 0 if self.since else self.first_lsn == 1

    @property
    def _start(self) -> int:
        """The LSN after which it undoes; 0 if step ``since`` is not in the log."""
        # A fork's log does not have the steps up to the checkpoint that it began with. As long as
        # that checkpoint is there, so are all calls of the fork itself.
        return self.begins or (self.base if self.first_lsn <= self.base else 0)

    def calls_to_undo(self) -> list[RecordedCall]:
        """The calls to undo, newest outcome first."""
        done = {one.intent.undoes for one in self._compensations() if one.state == "returned"}
        found = [one for one in self._concerned() if one.state == "returned"]
        found = [one for one in found if one.lsn not in done]
        return sorted(found, key=lambda one: one.last_lsn, reverse=True)

    def in_doubt(self) -> list[RecordedCall]:
        """The calls that must be resolved first: calls to undo, and compensations of an earlier
        undo."""
        calls = [one for one in self._concerned() if _may_have_happened(one)]
        ours = [one for one in self._compensations() if one.intent.after_crash != "retry"]
        return calls + [one for one in ours if _may_have_happened(one)]

    def in_flight(self) -> list[RecordedCall]:
        """The calls that may still be executing: earlier undos, and calls that are retried."""
        calls = [one for one in self._concerned() if isinstance(one.last, AttemptFailed)]
        return calls + [
            one for one in self._before() if one.intent.tool == UNDO_CALL and one.state == "open"
        ]

    def _before(self) -> Iterator[RecordedCall]:
        return (one for one in self._made.values() if one.lsn < self.undo_call_lsn)

    def _concerned(self) -> Iterator[RecordedCall]:
        start = self._start if self.since else 0
        for one in self._before():
            is_ours = one.state != "returned" or one.last_lsn > self.forked
            is_meant = one.intent.undo and one.lsn > start and is_ours
            if is_meant and not self._is_covered(one):
                yield one

    def _compensations(self) -> Iterator[RecordedCall]:
        for one in self._before():
            outer = self._made.get(outer_call(one.intent.scope))
            if outer is not None and outer.intent.tool == UNDO_CALL:
                yield one

    def _is_covered(self, one: RecordedCall) -> bool:
        while (outer := self._made.get(outer_call(one.intent.scope))) is not None:
            if outer.intent.tool == UNDO_CALL:
                return True
            if outer.intent.undo and outer.state == "returned":
                return True
            one = outer
        return False


def _may_have_happened(one: RecordedCall) -> bool:
    """Whether it was started, and no record says how it ended."""
    return one.state == "open" or (isinstance(one.last, CallAbandoned) and one.last.begun)
