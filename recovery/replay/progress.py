"""Counts how far a run is, over all its processes. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from recovery.journal.call_key import UNDO_CALL, outer_call, step_of
from recovery.journal.events import (
    AgentRaised,
    AttemptFailed,
    CallAbandoned,
    CallFailed,
    CallIntended,
    CallResolved,
    CallRetried,
    CallReturned,
    Event,
    HistoryDropped,
    MessagesChanged,
    RunCancelled,
    RunFailed,
    RunFinished,
    RunParked,
    RunResumed,
    RunStarted,
    RunUndone,
    StepStarted,
    ValueRecorded,
)
from recovery.journal.usage import Usage, usage_from

Status = Literal["running", "parked", "finished", "failed", "undone", "cancelled"]

_STATUS: dict[type[Event], Status] = {
    RunStarted: "running",
    RunResumed: "running",
    RunParked: "parked",
    RunFinished: "finished",
    RunFailed: "failed",
    RunUndone: "running",
    RunCancelled: "cancelled",
}

# Only the process that owns the run writes these, so their times are times at which it ran.
OF_ITS_PROCESS = (
    StepStarted,
    CallIntended,
    CallReturned,
    MessagesChanged,
    ValueRecorded,
    CallRetried,
    AttemptFailed,
    CallAbandoned,
    CallFailed,
    HistoryDropped,
    RunParked,
    RunFinished,
    RunFailed,
    AgentRaised,
)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is, over all its processes.

    ``status``: "running" (also when its process has died: the log does not say so), "parked",
    "finished", "failed", "cancelled" or "undone" (from outside). ``step``: the highest that has
    begun. ``usage``: steps, calls, seconds, tokens and cost so far. ``in_flight``: calls that were
    started and have not ended; ``failed``: calls that ended with an exception; ``last_tool``: the
    tool of the newest call (a further attempt at an older one does not count). ``served``: calls
    that were served from the log since the run was resumed; only its own process knows, 0
    elsewhere.
    """

    status: Status
    step: int
    usage: Usage
    in_flight: int
    failed: int
    last_tool: str
    served: int

    def __str__(self) -> str:
        flight = f", {self.in_flight} in flight" if self.in_flight else ""
        return f"{self.status}, {self.usage}{flight}"


class CallMade(NamedTuple):
    """A call in flight, from its intent. ``since_ns``: when this attempt began."""

    tool: str
    call_id: str
    step: int
    outer: int
    attempt: int
    since_ns: int
    is_effect: bool = False  # so that its tool is not to be repeated


class ProgressTally:
    """Counts the figures of Progress and budgets. ``about``: the call of the last event."""

    name, wants = "progress", frozenset[type[Event]](get_args(Event))

    def __init__(self) -> None:
        self.status: Status = "running"
        self.step = self.failed = self._failed_call = 0
        self.last_tool = ""
        self.about: CallMade | None = None
        self._undone = False  # whether the run was aborted: later calls undo it
        self._tokens = [0, 0]
        self._cost = 0.0
        self._calls = 0
        self._used_ns = self._last_ns = 0
        self._open: dict[int, CallMade] = {}  # calls without an outcome; some may be in doubt
        self._in_flight: set[int] = set()
        self._outer: set[int] = set()

    def from_checkpoint(self, carried: Any) -> None:
        """See Tally.restore."""
        match carried:
            case [
                int(step),
                int(calls),
                int(failed),
                [int(given), int(made)],
                float(cost),
                int(used_ns),
                int(last_ns),
                str(tool),
            ]:
                self.step, self._calls, self.failed, self.last_tool = step, calls, failed, tool
                self._tokens, self._cost = [given, made], cost
                self._used_ns, self._last_ns = used_ns, last_ns
            case _:
                raise ValueError(f"not what a checkpoint carries of progress: {carried!r:.200}")

    def to_checkpoint(self) -> Any:
        """See Accumulator.to_checkpoint. A checkpoint is taken while no call is in flight."""
        return [
            self.step,
            self._calls,
            self.failed,
            list(self._tokens),
            self._cost,
            self._used_ns,
            self._last_ns,
            self.last_tool,
        ]

    def usage(self, now_ns: int | None = None) -> Usage:
        """The usage up to the last event; with ``now_ns``, up to now in a process that owns the
        run."""
        used_ns = self._used_ns
        if now_ns is not None and self._last_ns:
            used_ns += max(0, now_ns - self._last_ns)
        given, made = self._tokens
        return Usage(given, made, self._cost, self.step, self._calls, used_ns / 1e9)

    def progress(self, served: int = 0) -> Progress:
        """The progress of the run."""
        return Progress(
            self.status,
            self.step,
            self.usage(),
            len(self._in_flight),
            self.failed,
            self.last_tool,
            served,
        )

    def observe(self, lsn: int, time_ns: int, event: Event) -> None:
        """See Tally.observe."""
        self._count_time(time_ns, event)
        self.about = self._open.get(getattr(event, "call", 0))
        self.status = _STATUS.get(type(event), self.status)
        match event:
            case StepStarted():
                self.step = max(self.step, event.step)
            case CallIntended():
                self.last_tool = event.tool
                self._begin(lsn, self._intended(time_ns, event))
            case CallReturned() | CallFailed():
                self._end(event)
                if self._undone and isinstance(event, CallReturned) and self._is_undo():
                    self.status = "undone"
            case RunStarted() | RunResumed():
                # Calls that the last process left open are in doubt, or made again: not in flight.
                self._in_flight.clear()
            case CallRetried():
                made = self._open.get(event.call) or CallMade("", "", self.step, 0, 1, time_ns)
                self._begin(event.call, made._replace(attempt=event.attempt, since_ns=time_ns))
            case AttemptFailed() | CallAbandoned():
                self._land(event.call)
            case CallResolved():
                self._resolve(event)
            case HistoryDropped():
                for lsn in event.records:
                    self._forget(lsn)
            case RunFailed():
                self._failed_call = event.call
            case RunUndone():
                self._undone = True

    def _count_time(self, time_ns: int, event: Event) -> None:
        # Time counts from the record that a process resumed the run. A process that died counts up
        # to its last record, because later times are unknown.
        if self._undone:
            return
        if isinstance(event, OF_ITS_PROCESS):
            if self._last_ns:
                self._used_ns += max(0, time_ns - self._last_ns)  # clocks are set back at times
            self._last_ns = time_ns
        elif isinstance(event, RunStarted | RunResumed):
            self._last_ns = time_ns

    def _intended(self, time_ns: int, event: CallIntended) -> CallMade:
        outer = outer_call(event.scope)
        within = self._open.get(outer)
        step = step_of(event.scope)
        if step is None:
            step = within.step if within is not None else self.step
        if outer:
            self._outer.add(outer)
        is_effect = event.after_crash not in ("retry", "wait")
        return CallMade(event.tool, event.call_id, step, outer, 1, time_ns, is_effect)

    def _begin(self, call: int, made: CallMade) -> None:
        self._calls += 1
        self.about = self._open[call] = made
        self._in_flight.add(call)

    def _end(self, event: CallReturned | CallFailed | CallResolved) -> None:
        self.about = self._forget(event.call)
        self.failed += isinstance(event, CallFailed)
        used = usage_from(event.usage) if isinstance(event, CallReturned) else None
        if used is not None:
            self._tokens[0] += used.input_tokens
            self._tokens[1] += used.output_tokens
            self._cost += used.cost

    def _is_undo(self) -> bool:
        return self.about is not None and self.about.tool == UNDO_CALL

    def _resolve(self, event: CallResolved) -> None:
        if event.how != "retry":
            self._end(event)
        if self.status == "failed" and event.call == self._failed_call:
            self.status = "parked"  # its call was resolved: the run continues when it is resumed

    def _land(self, call: int) -> None:
        # No record says that a wait inside a call was interrupted with it.
        self._in_flight.discard(call)
        if call in self._outer:
            for inner, made in self._open.items():
                if made.outer == call and not made.is_effect:
                    self._land(inner)

    def _forget(self, call: int) -> CallMade | None:
        self._in_flight.discard(call)
        if call in self._outer:  # its outcome covers what is open inside, but for side effects
            self._outer.discard(call)
            for inner in [
                lsn for lsn, made in self._open.items() if made.outer == call and not made.is_effect
            ]:
                self._forget(inner)
        return self._open.pop(call, None)
