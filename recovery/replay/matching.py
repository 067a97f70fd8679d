"""Matches the code of a replayed run with its record. Pure: events in, answers out.

replay/decide_call.py decides what becomes of a call that the agent makes.

An outcome is served when everything that was recorded before it has been replayed, so that
coroutines continue in the recorded order. A new call waits until every recorded call has been
matched. If a recorded call is never matched, the code has changed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, assert_never

from recovery.journal import events as ev
from recovery.journal.call_key import BEFORE_STEPS, UNDO_CALL, CallKey, outer_call
from recovery.journal.events import CallIntended, Event
from recovery.replay.by_identity import AlikeCalls, AnyArguments
from recovery.replay.calls_before_loop import BeforeLoop
from recovery.replay.equal_calls import EqualCalls
from recovery.replay.lost_records import LostRecords, losses_in
from recovery.replay.past_attempts import PastAttempts
from recovery.replay.recorded_call import (
    RECORDED_ANEW,
    About,
    RecordedCall,
    RecordedChange,
    dropped_by,
    put_in_doubt,
)
from recovery.replay.side_effects import SideEffects


@dataclass(slots=True, eq=False)
class Replay:
    """The records that the code has not yet matched.

    ``matches`` counts those that it has matched: a growing count is progress.
    """

    changes: deque[RecordedChange] = field(default_factory=deque)
    matches: int = 0
    # Calls up to this LSN that have an outcome are optional: served if the code makes them again,
    # and not expected.
    optional_up_to: int = 0
    before_loop: BeforeLoop = field(default_factory=BeforeLoop)
    losses: LostRecords | None = None  # what may have been among records that are lost
    # The calls and values of attempts that are over.
    earlier: PastAttempts = field(default_factory=PastAttempts)
    side_effects: SideEffects = field(default_factory=SideEffects)
    equal: EqualCalls = field(default_factory=EqualCalls)
    # From which LSN on which code was executed, by its digest ("": unknown).
    codes: list[tuple[int, str]] = field(default_factory=list)
    _calls: dict[CallKey, RecordedCall] = field(default_factory=dict)
    _by_lsn: dict[int, RecordedCall] = field(default_factory=dict)
    _values: dict[tuple[str, str, int], tuple[int, ev.ValueRecorded]] = field(default_factory=dict)
    _steps: dict[int, int] = field(default_factory=dict)
    _step_ns: int = 0
    _tools: set[str] = field(default_factory=set)  # the tools of recorded calls
    _dropped: set[int] = field(default_factory=set)  # records that the code may leave out
    # The (LSN, scope) of records that are still to be replayed, in the order of the log. Records
    # that were replayed out of that order stay in _matched until their position comes.
    _expected: deque[tuple[int, str]] = field(default_factory=deque)
    _matched: set[int] = field(default_factory=set)
    _alike: AlikeCalls | None = None  # the unmatched calls, by the identity of the present code
    # Contains all unmatched calls, and maybe matched ones.
    _unmatched: deque[RecordedCall] = field(default_factory=deque)

    @classmethod
    def of(
        cls,
        events: Iterable[tuple[int, int, Event]],
        optional: int = 0,
        at: tuple[int, int] = (0, 0),
    ) -> Replay:
        """The replay of (LSN, time in ns, event) in the order of the log. ``at``: the step and the
        LSN of the checkpoint with which it begins."""
        step, behind = at
        replay = cls(before_loop=BeforeLoop(behind, optional))
        known = list(events)
        replay.losses = losses_in(known, step)
        dropped = replay._dropped = dropped_by(event for _, _, event in known)
        replay.codes = [
            (lsn, event.code or "")
            for lsn, _, event in known
            if isinstance(event, ev.RunStarted | ev.RunResumed)
        ]
        for lsn, time_ns, event in known:
            is_in_checkpoint = lsn <= behind and isinstance(event, ev.MessagesChanged)
            if not (is_in_checkpoint or (lsn in dropped and isinstance(event, RECORDED_ANEW))):
                replay._add(lsn, time_ns, event)
        replay._note_unclaimed()
        # A call inside a call that is itself served is not made again; side effects are kept.
        calls = replay._calls = {
            call.key: call
            for call in replay._calls.values()
            if call.is_open_effect
            or not replay._covered(call.key.scope, call.lsn, lambda outer: outer.has_outcome)
        }
        placed = [call for call in calls.values() if call.lsn not in dropped and call.is_placed]
        opened = [(call.lsn, call.key.scope) for call in placed]
        opened += [(call.last_lsn, call.key.scope) for call in placed if call.has_outcome]
        opened += [(lsn, value.scope) for lsn, value in replay._values.values() if lsn]
        opened += [(recorded.lsn, "") for recorded in replay.changes]
        opened += [(lsn, "") for lsn in replay._steps.values()]
        replay.optional_up_to = optional
        replay._unmatched.extend(calls.values())
        # A call that was made again after others keeps no position: its outcome has one.
        gone = {
            one
            for _, _, event in known
            if isinstance(event, ev.HistoryDropped)
            for one in event.records
        }
        replay._expected = deque(
            sorted(one for one in opened if one[0] > optional and one[0] not in gone)
        )
        return replay

    def _note_unclaimed(self) -> None:
        if (losses := self.losses) is not None:
            for call in self._by_lsn.values():
                if call.lsn in losses.assumed and call.is_open_effect:
                    call.unclaimed_outcomes = losses.unclaimed_outcomes(call.key)

    def _add(self, lsn: int, time_ns: int, event: Event) -> None:
        match event:
            case CallIntended():
                self._add_call(lsn, time_ns, event)
            case (
                ev.CallReturned()
                | ev.CallFailed()
                | ev.CallResolved()
                | ev.CallRetried()
                | ev.AttemptFailed()
                | ev.CallAbandoned()
                | ev.CallDecided()
            ):
                self._add_about(lsn, time_ns, event)
            case ev.DivergenceAccepted(inbox=True):
                self._forget_heard()
            case ev.HistoryDropped():
                self._rename(event)
            case ev.ValueRecorded():
                drawn = event.scope, event.name, event.occurrence
                self._values[drawn] = lsn, event
                self.earlier.add_value(drawn)
            case ev.MessagesChanged():
                self._add_change(lsn, event)
            case ev.RunParked(calls=calls):
                for stopped in (self._by_lsn[call] for call in calls if call in self._by_lsn):
                    stopped.parked_run = isinstance(stopped.last, ev.CallFailed)
            case ev.RecordsLost(snapshot=False):
                put_in_doubt(self._by_lsn.values())
            case ev.StepStarted():
                self._steps[event.step], self._step_ns = lsn, time_ns
            case (
                ev.RunStarted()
                | ev.RunResumed()
                | ev.RunFinished()
                | ev.RunFailed()
                | ev.RunUndone()
                | ev.RunCancelled()
                | ev.AgentRaised()
                | ev.ChildStarted()
                | ev.DivergenceAccepted()
                | ev.RecordsLost()
                | ev.LogRepaired()
            ):
                pass  # the code does not do these again; or ``of`` handles them
            case _:
                assert_never(event)

    def _add_call(self, lsn: int, time_ns: int, event: CallIntended) -> None:
        key = event.identity
        call = RecordedCall(lsn, time_ns, event, key, self._step_ns or time_ns)
        self._calls[key] = self._by_lsn[lsn] = call
        self.before_loop.add(call, self._by_lsn.get(outer_call(key.scope)))
        self._tools.add(key.tool)
        self.side_effects.add(call)
        self.earlier.add_call(call)

    def _forget_heard(self) -> None:
        for call in self._by_lsn.values():  # messages are numbered again
            call.last_decision = 0, 0

    def _rename(self, event: ev.HistoryDropped) -> None:
        """Give a call the identity of the call that changed code makes in its place."""
        call = self._by_lsn.get(event.call)
        if call is not None:
            now = event.call_id or "", event.digest or b"", event.occurrence or 0
            self.rename(call, CallKey(call.key.scope, call.key.tool, *now))

    def rename(self, call: RecordedCall, key: CallKey) -> None:
        """From here on the recorded call has this identity."""
        self._calls.pop(call.key, None)
        call.key = key
        self._calls[key] = call

    def _add_about(self, lsn: int, time_ns: int, event: About | ev.CallDecided) -> None:
        about = self._by_lsn.get(event.call)
        if about is None or (isinstance(event, ev.CallResolved) and event.undo):
            return  # of a call before the checkpoint, which had its outcome there; or for an undo
        about.apply(lsn, time_ns, event)
        match event:
            case ev.AttemptFailed():
                self._end_attempt(about.lsn)
            case ev.CallFailed():
                if about.key.tool != UNDO_CALL:  # an undo repeats the failed calls inside by itself
                    self._end_attempt(about.lsn)
            case ev.CallReturned() | ev.CallResolved(how="outcome" | "fail"):
                self.earlier.forget(about.lsn)
            case ev.CallResolved() | ev.CallRetried() | ev.CallAbandoned() | ev.CallDecided():
                pass  # the attempt continues
            case _:
                assert_never(event)

    def _end_attempt(self, lsn: int) -> None:
        calls, values = self.earlier.end_attempt(lsn)
        self._calls.update(calls)
        for key in values:
            self._values[key] = 0, self._values[key][1]

    def _add_change(self, lsn: int, event: ev.MessagesChanged) -> None:
        if self.losses is not None and self.losses.refers_to_lost(event):
            self.losses.cannot_read_change(max(self._steps, default=0))
        else:
            self.changes.append(RecordedChange(lsn, event))

    # -- what the code replays

    def match(self, key: CallKey) -> RecordedCall | None:
        """The recorded call of this identity; each is matched once."""
        call = self._calls.pop(key, None)
        if call is not None:
            self.matches += not call.is_placed
            self.mark_replayed(call.lsn if call.is_placed else 0)
            self.before_loop.made_again(call)
            self._pass_by()
            if call.has_outcome:
                self.forget(call.lsn)
        return call

    def distinguish_waits(self, key: CallKey, timed: bool) -> None:
        """If the wait of this identity has a time-out, and the code makes one without, or the other
        way round: exchange its record for that of an equal wait of the right kind.

        Equal waits come in another order in a later attempt, or if they were open beside each
        other. One without a time-out must not raise the TimeoutError of another.
        """
        call = self._calls.get(key)
        if call is None or call.is_timed == timed:
            return
        for other in self._calls.values():
            equal = other.key.nth(0) == key.nth(0) and other.is_timed == timed
            if equal and call.may_come_after(other):
                call.key, before = other.key, call.key
                self._calls |= {call.key: call, before: other}
                other.key = before
                return

    @property
    def has_unmatched(self) -> bool:
        """Whether there are recorded calls that have not been matched."""
        return bool(self._calls)

    def match_counterpart(self, key: CallKey) -> RecordedCall | None:
        """The recorded call before the loop in whose place this one is made; matched once."""
        call = self.before_loop.counterpart(key, self._calls)
        if call is None:
            return None
        call.is_counterpart = True
        return self.match(call.key)

    def enter_loop(self) -> list[tuple[str, int, int]]:
        """Stop expecting the calls before the loop that the code has not made again. Returns what
        ``BeforeLoop.unsure`` says of the others."""
        passed = {*self.before_loop.passed(self._calls.values())}
        passed |= {lsn for lsn, value in self._values.values() if value.scope == BEFORE_STEPS}
        self._matched |= passed & {lsn for lsn, _ in self._expected}
        return list(self.before_loop.unsure())

    def match_alike(
        self, key: CallKey, digest_now: Callable[[Any], bytes | None]
    ) -> RecordedCall | None:
        """The first recorded call to which the present code would give this identity.

        It was recorded under another one: since then a parameter was made keyword-only, say, or
        was given a default, or is redacted.
        """
        if self._alike is None:
            self._alike = AlikeCalls(self._calls.values())
        found = [one for one in self._alike.find(key, digest_now) if one.key in self._calls]
        if self.losses is not None:  # an equal call may be another one, and this one lost
            found = [one for one in found if one.key.digest != key.digest]
        return self.match(found[0].key) if found else None

    def match_any_arguments(self) -> None:
        """From here on a call matches the next recorded one of its tool and scope."""
        self._alike = AnyArguments(self._calls.values())

    def forget(self, lsn: int) -> None:
        """Forget a matched call that has an outcome, and the calls inside it, to free memory."""
        for one in (lsn, *self.earlier.forget(lsn)):
            self._by_lsn.pop(one, None)
            self.side_effects.forget(one)

    def end_attempt(self, lsn: int, recorded: Iterable[tuple[int, int, Event]]) -> None:
        """End an attempt at this call. ``recorded``: all records of the call and inside it, as for
        ``of``."""
        for one in self.earlier.forget(lsn):
            self._by_lsn.pop(one, None)
        key = None
        for entry in recorded:
            if isinstance(entry[2], ev.RecordsLost):
                put_in_doubt(self.earlier.inside(lsn))
            else:
                self._add(*entry)
                key = key or self._by_lsn[lsn].key
        if key is not None:
            self._calls.pop(key, None)  # it is in flight
        inside = list(self.earlier.inside(lsn))
        self._unmatched.extend(inside)
        scopes = self.earlier.scopes((lsn, *(call.lsn for call in inside)))
        gone = {one[0] for one in self._expected if one[1] in scopes}
        self._expected = deque(one for one in self._expected if one[0] not in gone)
        self._matched -= gone

    def take_value(self, scope: str, name: str, occurrence: int) -> ev.ValueRecorded | None:
        """The recorded value of a time, a random number, an id or another such answer."""
        found = self._values.get((scope, name, occurrence))
        lsn, _ = self.value_of(scope, name, occurrence)
        self.mark_replayed(lsn)
        return None if found is None else found[1]

    def value_of(self, scope: str, name: str, occurrence: int) -> tuple[int, Any]:
        """The same for a value that takes time: its LSN, for ``mark_replayed`` at the end, and the
        value; (0, None) if there is none."""
        lsn, recorded = self._values.pop((scope, name, occurrence), (0, None))
        if recorded is None and self.losses is not None:
            self.losses.redrawn |= not self.exhausted
        return lsn, None if recorded is None else recorded.value

    def take_change(self, recorded: RecordedChange) -> None:
        """Note that the code makes this change of the messages again."""
        self.changes.remove(recorded)
        self.mark_replayed(recorded.lsn)

    def take_step(self, step: int) -> bool:
        """Match the beginning of this step; whether it is recorded."""
        lsn = self._steps.pop(step, 0)
        self.mark_replayed(lsn)
        return lsn > 0

    def mark_replayed(self, lsn: int) -> None:
        """Note that the code has replayed this record; an outcome: that it has been served."""
        if lsn:
            self.matches += 1
            # Invariant: LSNs in _matched are still to be removed from _expected, which is in the
            # order of the log. (An outcome in its turn is not: all up to it was removed.)
            if self._expected and self._expected[0][0] <= lsn:
                self._matched.add(lsn)

    # -- the replay order

    def add_outcome(self, lsn: int) -> None:
        """Add a new outcome, after all that is recorded so far; 0: it has no position."""
        if lsn:
            self._expected.append((lsn, ""))

    def is_next(self, lsn: int) -> bool:
        """Whether everything that was recorded before this outcome has been replayed."""
        self._skip()
        return not self._expected or self._expected[0][0] >= lsn

    def stop_waiting(self, up_to: int) -> None:
        """Stop expecting records up to this LSN: the code may leave them out."""
        while self._expected and self._expected[0][0] <= up_to:
            self._matched.discard(self._expected.popleft()[0])

    def _skip(self) -> None:
        while self._expected:
            lsn, scope = self._expected[0]
            if lsn not in self._matched and not (scope and self._covered(scope, lsn)):
                return
            self._matched.discard(lsn)
            self._expected.popleft()

    # -- code that has changed

    def knows_tool(self, tool: str) -> bool:
        """Whether a call of this tool is recorded."""
        return tool in self._tools

    def code_at(self, lsn: int) -> str:
        """The digest of the code that wrote a record; "" if it is unknown."""
        return next((code for at, code in sorted(self.codes, reverse=True) if at <= lsn), "")

    def pass_over(self, inside: int = 0) -> list[int]:
        """Stop expecting the unmatched calls and messages; returns their LSNs. ``inside``: only
        those inside this call (LSN)."""
        calls = [one for one in self.unmatched() if not inside or inside in self.around(one)]
        new = {call.lsn for call in calls}
        if not inside:
            new |= {one.lsn for one in self.changes}
            self.changes.clear()
        passed = new | {call.last_lsn for call in calls}
        self._dropped |= new
        self._matched |= passed & {lsn for lsn, _ in self._expected}
        return sorted(new)

    def recorded(self) -> Iterable[RecordedCall]:
        """All calls that are recorded after the checkpoint, and not forgotten."""
        return self._by_lsn.values()

    # -- unmatched calls

    def resembling(self, key: CallKey) -> RecordedCall | None:
        """An unmatched call with the same call id in the same scope, but of another identity."""
        if not key.call_id:
            return None
        place = key.scope, key.call_id
        for call in self._calls.values():
            if (call.key.scope, call.key.call_id) == place and not self._is_optional(call):
                return call
        return None

    def unmatched(self) -> list[RecordedCall]:
        """Recorded calls that the code has not made again. A call that has an outcome, or that the
        agent cancelled, covers the calls inside it, except side effects in doubt."""
        return [call for call in self._calls.values() if self._is_unmatched(call)]

    def discard_unmatched(self) -> list[int]:
        """Stop expecting all records that the code has not replayed; returns their LSNs.

        If the code makes one of these calls again, it is still served, because its effect has
        happened; and so are recorded values. A step begins again.
        """
        left = {call.lsn for call in self._calls.values()}
        left |= {lsn for lsn, _ in self._values.values() if lsn} | {*self._steps.values()}
        left |= {recorded.lsn for recorded in self.changes}
        new = sorted(left - self._dropped)
        self._dropped |= left
        for gone in (self.changes, self._steps, self._expected):
            gone.clear()
        return new

    def in_doubt(self) -> list[RecordedCall]:
        """Calls that were started, and of which no record says how they ended."""
        return [call for call in self.unmatched() if call.in_doubt]

    def covered_in_doubt(self) -> list[RecordedCall]:
        """Side effects in doubt inside calls that are over, so that the code does not make them
        again."""
        return [
            call
            for call in self._calls.values()
            if call.is_open_effect and self._covered(call.key.scope, call.lsn)
        ]

    def in_doubt_inside(self, lsn: int) -> list[RecordedCall]:
        """Side effects in doubt inside this call that the code has not made again."""
        return [
            call
            for call in self._calls.values()
            if call.is_open_effect and lsn in self.around(call)
        ]

    def around(self, call: RecordedCall) -> list[int]:
        """The calls (LSNs) inside which it was made, the innermost last."""
        outer = outer_call(call.key.scope)
        if not 0 < outer < call.lsn:
            return []
        known = self._by_lsn.get(outer)
        return [*(self.around(known) if known is not None else ()), outer]

    def settled(self, lsn: int, event: About) -> None:
        """Take in record ``lsn``, which resolves a call in doubt."""
        call = self._by_lsn.get(event.call)
        if call is not None:
            call.apply(lsn, call.last_ns, event)

    def undecided(self) -> list[RecordedCall]:
        """Calls that await approval."""
        return [call for call in self.unmatched() if call.is_undecided]

    @property
    def exhausted(self) -> bool:
        """Whether everything recorded has been replayed: all that comes now is new."""
        self._pass_by()
        return not self._unmatched and not self.changes

    def _pass_by(self) -> None:
        # Invariant: a call that was matched, covered or optional stays so. Calls are added only at
        # the end, when an attempt is over; records that are written now are not replayed. So each
        # call is examined once.
        while self._unmatched and not self._is_unmatched(self._unmatched[0]):
            self._unmatched.popleft()

    def later_steps(self, step: int) -> bool:
        """Whether a step after ``step`` began, or may have, that the code has not reached again.

        A checkpoint taken here would hide what may be among lost records.
        """
        may_have = self.losses is not None and self.losses.covers_step(step + 1)
        return bool(self._steps) or may_have

    def _is_unmatched(self, call: RecordedCall) -> bool:
        if call.key not in self._calls or self._is_optional(call):
            return False
        return call.is_open_effect or not self._covered(call.key.scope, call.lsn)

    def _is_optional(self, call: RecordedCall) -> bool:
        past = call.from_past_attempt and not call.is_open_effect
        if past or self.before_loop.may_miss(call) or call.lsn in self._dropped:
            return True
        return call.has_outcome and call.lsn <= self.optional_up_to

    def _covered(
        self,
        scope: str,
        lsn: int,
        over: Callable[[RecordedCall], bool] = lambda outer: outer.has_outcome or outer.cancelled,
    ) -> bool:
        """Whether a record of this scope was made inside a call that is over."""
        outer_lsn = outer_call(scope)
        if not 0 < outer_lsn < lsn:
            return False
        outer = self._by_lsn.get(outer_lsn)
        return outer is None or over(outer) or self._covered(outer.key.scope, outer_lsn, over)
