"""Decides which calls may have been recorded among lost records. Pure.

A repair puts placeholders where records were. Any of them may have been the intent of a call, which
may have taken effect. So a call that is not recorded is in doubt if it could have been made there:

* a call of a step that may have begun before the gap ended. The next step that is known to have
  begun after the gap, before the repair, ends that. Where none is, a gap of n records reaches
  over n steps at most: each step that began in it takes one;
* a call made inside a call that had begun before the gap ended;
* a call made inside one that is itself in doubt for this reason.

The number of calls that were assumed so far does not shorten a gap. To ask about a call that was
never made is safe; to make one again is not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import assert_never

from recovery.journal.call_key import CallKey, outer_call, step_of
from recovery.journal.events import (
    CallAbandoned,
    CallFailed,
    CallIntended,
    CallResolved,
    CallReturned,
    Event,
    HistoryDropped,
    LogRepaired,
    MessagesChanged,
    RecordsLost,
    RunStarted,
    SignalTaken,
    StepStarted,
    ValueRecorded,
)
from recovery.journal.forked_from import ForkedFrom
from recovery.values.backrefs import is_reference


@dataclass(slots=True, eq=False)
class Gap:
    """Records ``first`` to ``last`` are lost. ``last_step``: the highest step that may have begun
    before it ended. ``repaired``: the LSN of the record that says so; 0: a repair was interrupted.
    """

    first: int
    last: int
    begun: int  # the highest step that is known to have begun before it
    last_step: int
    repaired: int = 0
    about: str = ""  # who repaired it, and why
    is_bounded: bool = False

    def __str__(self) -> str:
        lsns = f"LSN {self.first}" + (f"-{self.last}" if self.last > self.first else "")
        return (
            f"{lsns}{self.about}; in doubt: calls of steps up to {self.last_step} without a record"
        )


@dataclass(slots=True, eq=False)
class LostRecords:
    """The gaps in the part of a log that is replayed, and the calls that may be in them.

    ``step`` is the step that had ended where that part begins. ``redrawn``: whether the code drew
    a new time, random number or id in place of one that may be lost. ``input_changed``: whether
    the code may do something else than it did, because it received other values.
    """

    step: int
    gaps: list[Gap] = field(default_factory=list)
    assumed: set[int] = field(default_factory=set)  # intents of calls that may have been made
    redrawn: bool = False
    input_changed: bool = False
    upto_change: int = 0  # the highest step in which a change of the messages cannot be read
    origin: ForkedFrom | None = None  # the run of whose records the first ones here are copies
    _high: int = 0  # the highest step that may have begun
    _declared: list[tuple[int, int]] = field(default_factory=list)
    _signals: list[SignalTaken] = field(default_factory=list)  # of waits whose intents are lost
    # (call, LSN, step) of outcomes whose calls are lost.
    unclaimed: list[tuple[int, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._high = self.step

    @property
    def last_step(self) -> int:
        """The highest step whose calls may be among the lost records."""
        return max((gap.last_step for gap in self.gaps), default=0)

    def observe(self, lsn: int, event: Event) -> None:
        """Take in the next event of the log, or one that is recorded now."""
        match event:
            case RecordsLost(last=last, snapshot=False) if last >= lsn:
                self._lose(lsn, last)
            case LogRepaired():
                self._declare(lsn, event)
            case RunStarted():
                self.origin = ForkedFrom.of(event)
            case StepStarted(step=step):
                self._begin(step)
            case HistoryDropped():
                # Steps begin again: a later record does not say when a step first began.
                for gap in self.gaps:
                    gap.is_bounded = gap.is_bounded or not gap.repaired
            case CallIntended(lost=True):
                self.assumed.add(lsn)
            case ValueRecorded():
                self.input_changed |= self._is_repaired
            case CallReturned() | CallFailed() | CallResolved() | CallAbandoned():
                self._end(lsn, event)

    def may_contain(self, scope: str) -> bool:
        """Whether the record of a call or value of this scope may be lost, if there is none."""
        outer = outer_call(scope)
        if outer:  # an assumed call may be recorded inside a call whose intent is lost
            return outer in self.assumed or any(outer < gap.last for gap in self.gaps)
        step = step_of(scope)
        return step is not None and self.covers_step(step)

    def covers_step(self, step: int) -> bool:
        """Whether records of this step may be lost."""
        return bool(self.gaps) and step <= self.last_step

    def unclaimed_outcomes(self, key: CallKey | None = None) -> tuple[int, ...]:
        """The outcomes (LSNs) in the log whose calls are lost; ``key``: those that may be of the
        call of this identity."""
        step = step_of(key.scope) if key is not None else None
        return tuple(
            lsn
            for call, lsn, begun in self.unclaimed
            if step is None
            or (step <= begun and any(g.first <= call and step <= g.last_step for g in self.gaps))
        )

    @property
    def in_copies(self) -> bool:
        """Whether some of the lost records came here with a fork. A call among them was made in
        another run, maybe a distant ancestor, and has its idempotency key from there."""
        return self.origin is not None and self.gaps[0].first <= self.origin.until

    @property
    def uid_of_copies(self) -> str:
        """The uid of the run in which a lost call was made, if all lost records came here with a
        fork; else ""."""
        if self.origin is None or self.gaps[-1].last > self.origin.until:
            return ""
        return self.origin.uid

    def hold(self, lsn: int) -> bool:
        """Whether this record is lost."""
        return any(gap.first <= lsn <= gap.last for gap in self.gaps)

    def refers_to_lost(self, change: MessagesChanged) -> bool:
        """Whether a change of the messages cannot be read, because it refers to a lost record."""
        items = change.new if isinstance(change.new, list) else []
        return any(self.hold(lsn) for item in items if is_reference(item) for lsn in item.lsns)

    def cannot_read_change(self, step: int) -> None:
        """Note that a change recorded in this step refers to a lost record, so it is lost too."""
        self.upto_change = max(self.upto_change, step)

    def signal(self, names: tuple[str, ...], several: bool) -> SignalTaken | None:
        """The first signal of these names that was taken by a wait whose intent is lost: the signal
        is not sent again. ``several``: whether that wait was for one of several names."""
        return next(
            (one for one in self._signals if one.name in names and bool(one.several) == several),
            None,
        )

    def undeclared(self) -> list[Gap]:
        """Gaps that no record declares, because their repair was interrupted."""
        return [gap for gap in self.gaps if self._next_undeclared(gap.first) <= gap.last]

    def _next_undeclared(self, lsn: int) -> int:
        for first, last in sorted(self._declared):
            if first <= lsn <= last:
                lsn = last + 1
        return lsn

    # -- in the order of the log

    def _lose(self, first: int, last: int) -> None:
        count, known = last - first + 1, self.gaps[-1] if self.gaps else None
        if known is not None and known.last == first - 1 and not known.repaired:
            known.last, known.last_step = last, known.last_step + count
        else:
            # The last of them may be an intent; each of the others the beginning of a step.
            self.gaps.append(Gap(first, last, self.step, self._high + count - 1))
        self._high += count

    def _declare(self, lsn: int, event: LogRepaired) -> None:
        self._declared += event.ranges
        said = ": ".join(filter(None, (f"by {event.who}" * bool(event.who), event.why)))
        for gap in self.gaps:
            if not gap.repaired and any(a <= gap.last and gap.first <= b for a, b in event.ranges):
                gap.repaired, gap.about = lsn, f" (repaired{said and f' {said}'})"

    def _begin(self, step: int) -> None:
        for gap in self.gaps:
            # Steps begin one after the other. One that began after the loss did not in it.
            if not gap.repaired and not gap.is_bounded and step > gap.begun:
                gap.last_step, gap.is_bounded = min(gap.last_step, step - 1), True
        if step > self.step:
            self.step = self._high = step

    @property
    def _is_repaired(self) -> bool:
        return any(gap.repaired for gap in self.gaps)

    def _end(
        self, lsn: int, event: CallReturned | CallFailed | CallResolved | CallAbandoned
    ) -> None:
        """Note the outcome of a call; an earlier outcome of it may be among the lost records."""
        call = event.call
        if self.hold(call):
            if isinstance(event, SignalTaken):
                self._signals.append(event)
            elif isinstance(event, CallReturned | CallFailed):
                self.unclaimed.append((call, lsn, self.step))
        elif call in self.assumed or any(gap.repaired and call < gap.last for gap in self.gaps):
            match event:
                case SignalTaken() if self._taken_again(event):
                    pass  # the outcome that the code received then
                case CallResolved(how="retry") | CallAbandoned(went_on=False):
                    pass  # not yet
                case CallResolved(how="outcome", who=who) if who != "after_crash=report":
                    pass  # an operator knows the outcome that the code received then
                case CallReturned() | CallFailed() | CallResolved() | CallAbandoned():
                    self.input_changed = True
                case _:
                    assert_never(event)

    def _taken_again(self, event: SignalTaken) -> bool:
        this = event.uid, event.name, event.inbox
        left = [one for one in self._signals if (one.uid, one.name, one.inbox) != this]
        known, self._signals = len(left) < len(self._signals), left
        return known


def losses_in(events: Iterable[tuple[int, int, Event]], step: int) -> LostRecords | None:
    """The gaps in these (LSN, time in ns, event), after the end of ``step``; None if there are
    none."""
    known = list(events)
    if not any(isinstance(event, RecordsLost) for _, _, event in known):
        return None
    losses = LostRecords(step)
    for lsn, _, event in known:
        losses.observe(lsn, event)
    return losses if losses.gaps else None
