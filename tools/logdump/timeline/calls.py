"""Turns the calls of a run into bars on a timeline, with their phases and states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from eventlog.dump import Json
from logdump.timeline.layout import Bar, place
from logdump.timeline.texts import DECODED_SIZE_MAX, Texts
from recovery.inspect.calls_without_outcome import OpenCall
from recovery.inspect.run_event import RunEvent
from recovery.journal.call_key import outer_call
from recovery.journal.events import (
    AttemptFailed,
    CallAbandoned,
    CallDecided,
    CallFailed,
    CallIntended,
    CallResolved,
    CallRetried,
    CallReturned,
    ChildStarted,
    SignalTaken,
)
from recovery.journal.usage import usage_from
from recovery.text import printable
from recovery.values.render import readable

LOST = "(intent lost)"  # in place of the tool of a call whose first record is damaged
# The states of a call, and their words.
STATES: dict[str, Json] = {
    "done": "returned",
    "failed": "failed",
    "doubt": "in doubt",
    "left": "given up",
    "waiting": "waiting",
    "running": "under way",
    "again": "cut short",
}
_STATES: dict[str, str] = {
    "in doubt": "doubt",
    "under way": "running",
    "asks": "waiting",
    "waits": "waiting",
    "to be made again": "again",
}


@dataclass(slots=True)
class _Call:
    """A call as far as the events have described it. ``phases``: (what, from, to), by LSN.

    What: "work", "wait" (for a time, a signal, an approval, or the next attempt), "failed" (an
    attempt that failed), "cut" (an attempt during which the process died), "lost" (unknown, and no
    process works on it), "left" (an attempt that no code waits for any more).
    """

    bar: Bar
    about: dict[str, Json]
    began_as: str
    state: str = ""  # once it is over
    phases: list[tuple[str, int, int]] = field(default_factory=list)
    history: list[Json] = field(default_factory=list)
    now: str = ""  # the current phase, and since when
    since: int = 0

    def begin(self, phase: str, lsn: int) -> None:
        self.now, self.since = phase, lsn

    def turn(self, phase: str, lsn: int) -> None:
        """End the current phase as ``phase``."""
        if self.now:
            self.phases.append((phase, self.since, lsn))
        self.now, self.bar.last = "", max(self.bar.last, lsn)

    def settle(self, stands: OpenCall | None, live: bool, ends: tuple[int, int]) -> None:
        """End the call with this state if it has no outcome. See Calls.settle."""
        if self.now:
            goes_on = self.now == "wait" or (self.now == "work" and live)
            until = ends[0] if goes_on else max(ends[1], self.since)
            self.turn("cut" if self.now == "work" and not live else self.now, until)
        if stands is not None and not self.state:
            self.state, self.about["then"] = _STATES[stands.state], stands.then
            self.about["key"] = printable(stands.idempotency_key)
        self.state = self.state or "left"  # no code asks for it any more

    def as_json(self) -> Json:
        """Its known fields, without empty ones."""
        found: dict[str, Json] = {
            name: value for name, value in self.about.items() if value not in ("", 0, None, False)
        }
        phases: list[Json] = [list(phase) for phase in self.phases]
        found |= {"state": self.state, "lane": self.bar.lane, "phases": phases}
        return found | {"history": self.history} if self.history else found


class Calls:
    """Collects what happens to calls, in the order of the log.

    ``shown_from``: the LSN of the first record that is shown. ``life_from``: the LSN at which the
    present process resumed the run. ``uid``: of the run, if it is known.
    """

    def __init__(self, texts: Texts) -> None:
        self.shown_from = self.life_from = 0
        self.uid = ""
        # Calls and their tools, by the LSN of their outcome.
        self.outcomes: dict[int, tuple[int, str]] = {}
        self._texts = texts
        self._calls: dict[int, _Call] = {}
        self._open: dict[int, _Call] = {}

    def add(self, event: RunEvent) -> bool:
        """Add an event; returns whether it is an event of a call."""
        add = _ADD.get(type(event.recorded))
        if add is not None:
            add(self, event, event.recorded)
        return add is not None

    @property
    def idle(self) -> bool:
        """Whether all calls that have not ended only wait, and there are some."""
        phases = {call.now for call in self._open.values()}
        return "wait" in phases and "work" not in phases

    @property
    def at_work(self) -> int:
        """How many calls are being executed, as far as the log says."""
        return sum(call.now == "work" for call in self._open.values())

    def cut(self, lsn: int) -> int:
        """Their process has died, after this record; returns how many were at work."""
        cut = [call for call in self._open.values() if call.now == "work"]
        for call in cut:
            call.turn("cut", lsn)
            call.begin("lost", lsn)
        return len(cut)

    def drop(self, lsns: list[int], lsn: int) -> None:
        """The code may do without these calls since record ``lsn``."""
        for call in (self._calls[one] for one in lsns if one in self._calls):
            call.about["dropped"] = lsn

    def settle(self, stands: Mapping[int, OpenCall], live: bool, ends: tuple[int, int]) -> None:
        """End all calls. ``stands``: the states of calls without an outcome. ``ends``: the LSN of
        the last record, and of the last record by the process that had the run."""
        for lsn, call in self._calls.items():
            call.settle(stands.get(lsn), live, ends)

    def as_json(self) -> list[Json]:
        """All of them."""
        return [call.as_json() for call in self._calls.values()]

    def lanes(self) -> int:
        """Give each call its lane; returns the number of lanes. Call ``settle`` before."""
        return place(
            [
                call.bar
                for call in self._calls.values()
                if call.about.get("outer") not in self._calls
            ]
        )

    def _add_call(self, event: RunEvent, held: CallIntended) -> None:
        outer = self._calls.get(outer_call(held.scope))
        bar = Bar(event.lsn, event.lsn)
        about: dict[str, Json] = {
            "lsn": event.lsn,
            "tool": printable(held.tool) or LOST,
            "id": printable(held.call_id),
            "step": event.step,
            "after": printable(held.after_crash),
            "size": held.size,
            "child": printable(held.child),
            "outer": outer_call(held.scope),
            "args": self._arguments(held),
        }
        if self.uid and held.after_crash not in ("wait", "retry"):
            about["key"] = printable(held.idempotency_key(self.uid))
        asks = held.after_crash == "wait" or held.asks_until is not None
        call = _Call(bar, about, "wait" if asks else "work")
        if held.asks_until is not None:
            about["asks"] = True
        call.begin(call.began_as, event.lsn)
        self._calls[event.lsn] = self._open[event.lsn] = call
        if outer is not None:
            outer.bar.inside.append(bar)

    def _arguments(self, held: CallIntended) -> Json:
        if not isinstance(held.args, bytes):
            return None  # too large to be recorded
        value = readable(held.args) if len(held.args) <= DECODED_SIZE_MAX else None
        match value:
            case [list(args), dict(kwargs)] if args:
                value = {f"{i}": arg for i, arg in enumerate(args)} | kwargs
            case [list(), dict(kwargs)]:
                value = kwargs
            case None:
                return ["", len(held.args)]
        return self._texts.value(value, held.tool)

    def _known(self, event: RunEvent) -> _Call:
        """The call of an event. A call that began before the first shown record is shown from
        there; of a call whose first record is lost the tool is unknown."""
        call = self._calls.get(event.call)
        if call is None:
            first = self.shown_from if event.call < self.shown_from else event.lsn
            about: dict[str, Json] = {
                "lsn": event.call,
                "tool": printable(event.tool) or LOST,
                "id": printable(event.call_id),
                "step": event.step,
                "earlier": True,
            }
            call = _Call(Bar(first, event.lsn), about, "work")
            call.begin("work", first)
            self._calls[event.call] = self._open[event.call] = call
        return call

    def _note(self, call: _Call, event: RunEvent, text: str, more: str = "") -> None:
        tool = event.tool
        line: list[Json] = [event.lsn, self._texts.text(text, tool)]
        call.history.append([*line, self._texts.text(more, tool)] if more else line)

    def _add_decided(self, event: RunEvent, held: CallDecided) -> None:
        call = self._known(event)
        self._note(call, event, f"{'approved' if held.approved else 'denied'}{_by(held)}")
        if held.approved:
            call.turn("wait", event.lsn)
            call.begin("work", event.lsn)

    def _add_retried(self, event: RunEvent, held: CallRetried) -> None:
        call = self._known(event)
        self._note(call, event, f"attempt {held.attempt} began")
        call.about["attempts"] = held.attempt
        if call.now == "work":  # of a session that recorded nothing
            call.turn("cut", event.lsn)
        call.turn(call.now, event.lsn)
        call.begin("work", event.lsn)
        self._open[event.call] = call
        call.state = ""

    def _add_attempt_failed(self, event: RunEvent, held: AttemptFailed) -> None:
        call = self._known(event)
        self._note(call, event, f"attempt {held.attempt} failed: {event.error}", held.traceback)
        call.turn("failed", event.lsn)
        call.begin("wait", event.lsn)

    def _add_abandoned(self, event: RunEvent, held: CallAbandoned) -> None:
        call = self._known(event)
        self._note(call, event, f"attempt {held.attempt} was abandoned: {held.why}")
        call.turn("left", event.lsn)
        if held.went_on:
            self._end(event, call, "left")
        else:
            call.begin("lost", event.lsn)

    def _add_returned(self, event: RunEvent, held: CallReturned) -> None:
        call = self._known(event)
        used = usage_from(held.usage)
        if used is not None:
            call.about["tokens"] = [used.input_tokens, used.output_tokens]
            call.about["cost"] = used.cost
        if isinstance(held, SignalTaken):
            self._note(call, event, f"signal {held.name!r} taken")
        call.about["result"] = self._texts.packed(held.value, event.tool)
        self.outcomes[event.lsn] = event.call, event.tool
        self._end(event, call, "done")

    def _add_failed(self, event: RunEvent, held: CallFailed) -> None:
        call = self._known(event)
        call.about["error"] = self._texts.text(event.error, event.tool)
        if held.traceback:
            call.about["traceback"] = self._texts.text(held.traceback, event.tool)
        self._end(event, call, "failed")

    def _add_resolved(self, event: RunEvent, held: CallResolved) -> None:
        call = self._known(event)
        self._note(call, event, f"resolved: {held.how}{_by(held)}")
        if held.how == "retry":
            call.state = ""
            self._open[event.call] = call
            return
        if held.how == "fail":
            call.about["error"] = self._texts.packed(held.value, event.tool)
        else:
            call.about["result"] = self._texts.packed(held.value, event.tool)
            self.outcomes[event.lsn] = event.call, event.tool
        self._end(event, call, "failed" if held.how == "fail" else "done")

    def _add_child(self, event: RunEvent, held: ChildStarted) -> None:
        call = self._known(event)
        call.about["child"] = printable(held.run_id)
        self._note(call, event, f"run {held.run_id} has begun")

    def _end(self, event: RunEvent, call: _Call, state: str) -> None:
        if call.now == "lost" and not isinstance(event.recorded, CallResolved):
            # Resumed without a record of its own, as waits and child runs are.
            back = self.life_from
            if back > call.since:
                call.turn("lost", back)
                call.begin(call.began_as, back)
        call.turn("failed" if state == "failed" and call.now == "work" else call.now, event.lsn)
        call.state, call.about["end"] = state, event.lsn
        self._open.pop(event.call, None)
        for lsn in [
            lsn
            for lsn, inner in self._open.items()
            if inner.about.get("outer") == event.call
            and inner.about.get("after") in ("retry", "wait")
        ]:
            inner = self._open.pop(lsn)
            inner.turn("left", event.lsn)
            inner.state = "left"


def _by(held: CallDecided | CallResolved) -> str:
    return (held.who and f" by {held.who}") + (held.why and f": {held.why}")


_ADD: dict[type, Callable[[Calls, RunEvent, Any], None]] = {
    CallIntended: Calls._add_call,
    CallDecided: Calls._add_decided,
    CallRetried: Calls._add_retried,
    AttemptFailed: Calls._add_attempt_failed,
    CallAbandoned: Calls._add_abandoned,
    CallReturned: Calls._add_returned,
    SignalTaken: Calls._add_returned,
    CallFailed: Calls._add_failed,
    CallResolved: Calls._add_resolved,
    ChildStarted: Calls._add_child,
}
