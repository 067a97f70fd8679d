"""Makes spans of a trace from the events in the log of a run. Pure.

There is one span for the run, one for each step, and one for each call. Ids are derived from the
run's uid and from LSNs, so the same log, or a longer one of the same run, gives the same ids. A
recovery records nothing for calls it replays, so each call has one span. What happened before a
fork belongs to the trace of the other run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, assert_never

from eventlog.format.record import Packed
from recovery.inspect.genai_names import ERROR_TYPE, INPUT_TOKENS, OUTPUT_TOKENS
from recovery.inspect.span import Attributes, Span, span_id
from recovery.inspect.span_values import SpanValues
from recovery.journal.call_key import outer_call, step_of
from recovery.journal.events import (
    AgentRaised,
    AttemptFailed,
    CallAbandoned,
    CallDecided,
    CallFailed,
    CallIntended,
    CallResolved,
    CallRetried,
    CallReturned,
    Event,
    HistoryDropped,
    RunCancelled,
    RunFailed,
    RunFinished,
    RunParked,
    RunResumed,
    RunStarted,
    RunUndone,
    StepStarted,
)
from recovery.journal.usage import usage_from
from recovery.replay.recorded_call import RecordedCall

_STATUS = {
    RunStarted: "running",
    RunResumed: "running",
    RunParked: "parked",
    RunFinished: "finished",
    RunFailed: "failed",
    RunUndone: "undone",
    RunCancelled: "cancelled",
}


@dataclass(slots=True)
class _Open:
    """A call without an outcome. ``own``: a record about it is of this run, not from before a
    fork."""

    span: Span
    made: RecordedCall
    own: bool
    left_out: bool  # whether another library makes its span


Fetch = Callable[[int], tuple[int, CallIntended] | None]


class Spans:
    """Makes spans of a run's events, each as soon as it has ended. Keeps only open calls.

    ``until``: the last LSN that a fork copied; 0 for a run that is no fork. ``fetch``: the time and
    the intent in the record of an LSN.
    """

    def __init__(self, uid: str, run: Span, until: int, values: SpanValues, fetch: Fetch) -> None:
        self._uid, self._run, self._until = uid, run, until
        self._values, self._fetch = values, fetch
        self._step: Span | None = None
        self._steps: list[list[int]] = []  # ranges of the steps that have spans
        self._open: dict[int, _Open] = {}
        self._inside: dict[int, list[int]] = {}  # calls made inside an open one
        self._models: set[str] = set()
        self._last_ns = run.start_ns
        self._status = "" if until else "running"
        self._alive = False  # whether a process has the run
        self._used: list[float] = [0, 0, 0]
        self._calls = self._recoveries = 0

    def observe(self, lsn: int, time_ns: int, event: Event) -> Iterator[Span]:
        """The spans that end with this event."""
        own = lsn > self._until
        if own:
            self._of_run(time_ns, event)
        match event:
            case StepStarted(step=step) if own:
                yield from self._next_step(step, time_ns)
            case CallIntended():
                self._open[lsn] = self._begun(event, lsn, time_ns, span_id(self._uid, "call", lsn))
            case CallReturned() | CallFailed():
                yield from self._ended(lsn, time_ns, event)
            case CallResolved():
                yield from self._resolved(lsn, time_ns, event)
            case AttemptFailed() | CallRetried() | CallAbandoned() | CallDecided():
                self._update(lsn, time_ns, event)
            case HistoryDropped(records=records):
                for call in (one for one in records if type(one) is int):
                    yield from self._end_calls(call, lsn, time_ns, "dropped")
        if own:
            self._last_ns = max(self._last_ns, time_ns)
            self._status = _STATUS.get(type(event), self._status)

    def lost(self, records: int) -> None:
        """Count records that could not be read."""
        about = self._run.attributes
        about["agent_eventlog.lost_records"] = about.get("agent_eventlog.lost_records", 0) + records

    def cut_off(self, oldest: int) -> None:
        """The log begins with this LSN: what was before is removed."""
        self._run.attributes["agent_eventlog.oldest_lsn"] = oldest

    def finish(self, alive: bool) -> Iterator[Span]:
        """The spans that have not ended, and the run's. ``alive``: a process has the run."""
        self._alive = alive
        for lsn, call in list(self._open.items()):
            if call.own:
                yield from self._end_calls(
                    lsn, self._until + 1, self._last_ns, self._state_of(call)
                )
        if self._step is not None:
            yield self._closed(self._step, self._last_ns)
        run, (given, made, cost) = self._run, self._used
        run.attributes |= {
            "agent_eventlog.run.status": self._status or "running",
            "agent_eventlog.calls": self._calls,
            "agent_eventlog.recoveries": self._recoveries,
        }
        if given or made or cost:
            run.attributes |= {
                INPUT_TOKENS: int(given),
                OUTPUT_TOKENS: int(made),
                "agent_eventlog.cost": float(cost),
            }
        yield self._closed(run, self._last_ns)

    # -- the run and its steps

    def _of_run(self, time_ns: int, event: Event) -> None:
        run = self._run
        match event:
            case RunStarted():
                run.attributes |= self._values.of_run("task", event.task)
            case RunResumed():
                self._resumed(time_ns, event)
            case RunParked():
                run.event("run parked", time_ns, **{"agent_eventlog.calls": len(event.calls)})
            case RunFinished():
                run.error = None
                run.attributes.pop(ERROR_TYPE, None)
                run.attributes |= self._values.of_run("result", event.result)
            case RunFailed():
                run.failed(time_ns, event)
            case AgentRaised():
                run.exception(time_ns, event)
            case RunUndone():
                run.event("run given up", time_ns)
            case RunCancelled():
                run.event("run cancelled", time_ns)

    def _resumed(self, time_ns: int, event: RunResumed) -> None:
        self._recoveries += 1
        if self._status == "running":  # no record says that it stopped: its process died
            self._run.event("process ended", self._last_ns)
            for call in self._open.values():
                call.span.event("process ended", self._last_ns)
        self._run.event(
            "run resumed",
            time_ns,
            **{
                "agent_eventlog.recovery": event.recovery,
                "agent_eventlog.from_step": event.from_step,
            },
        )
        if self._status == "failed":  # the run was resumed after its failure
            self._run.error = None
            self._run.attributes.pop(ERROR_TYPE, None)

    def _next_step(self, step: int, time_ns: int) -> Iterator[Span]:
        if self._has_step(step):
            return
        if self._step is not None:
            yield self._closed(self._step, time_ns)
        if self._steps and self._steps[-1][1] == step - 1:
            self._steps[-1][1] = step
        else:
            self._steps.append([step, step])
        about = {"agent_eventlog.step": step}
        self._step = Span(
            span_id(self._uid, "step", step),
            self._run.id,
            "step",
            f"step {step}",
            time_ns,
            attributes=about,
        )

    def _has_step(self, step: int | None) -> bool:
        return step is not None and any(first <= step <= last for first, last in self._steps)

    def _closed(self, span: Span, time_ns: int) -> Span:
        span.end_ns = max(span.start_ns, time_ns)  # clocks are set back at times
        return self._values.complete(span)

    # -- calls

    def _begun(self, intent: CallIntended, lsn: int, time_ns: int, span: str) -> _Open:
        step, outer = step_of(intent.scope), self._open.get(outer_call(intent.scope))
        parent = self._run.id
        if outer is not None:
            self._inside.setdefault(outer_call(intent.scope), []).append(lsn)
            self._mark_own(outer, lsn)
            parent = outer.span.parent if outer.left_out else outer.span.id
            step = outer.span.attributes.get("agent_eventlog.step")
        elif step is not None and self._has_step(step):
            parent = span_id(self._uid, "step", step)
        waits = intent.after_crash == "wait"
        about: Attributes = {"agent_eventlog.lsn": lsn}
        if step is not None:
            about["agent_eventlog.step"] = step
        if intent.child:
            about["agent_eventlog.child.run.id"] = intent.child
        made = Span(
            span, parent, "wait" if waits else "call", intent.tool, time_ns, attributes=about
        )
        recorded, left_out = (
            RecordedCall.of(lsn, time_ns, intent),
            self._values.is_left_out(intent.tool),
        )
        return _Open(made, recorded, lsn > self._until, left_out)

    def _mark_own(self, call: _Open | None, lsn: int) -> None:
        """A record is inside the call: so it gets a span here, also if another run began it."""
        while call is not None and not call.own and lsn > self._until:
            call.own = True
            call = self._open.get(outer_call(call.made.intent.scope))

    def _update(
        self,
        lsn: int,
        time_ns: int,
        event: AttemptFailed | CallRetried | CallAbandoned | CallDecided,
    ) -> None:
        call = self._open.get(event.call)
        if call is None and isinstance(event, CallRetried):
            call = self._begin_again(event.call, lsn)
        if call is None:
            return
        self._mark_own(call, lsn)
        call.made.apply(lsn, time_ns, event)
        match event:
            case AttemptFailed():
                call.span.exception(time_ns, event)
            case CallRetried(attempt=attempt):
                call.span.event("retry", time_ns, **{"agent_eventlog.attempt": attempt})
            case CallAbandoned(why=why):
                call.span.event("abandoned", time_ns, **{"agent_eventlog.why": why})
            case CallDecided(approved=approved):
                call.span.event("approved" if approved else "denied", time_ns)
            case _:
                assert_never(event)

    def _begin_again(self, lsn: int, retried: int) -> _Open | None:
        """A call that had an outcome, and is made again, gets another span."""
        found = self._fetch(lsn)
        if found is None:
            return None
        again = span_id(self._uid, "call", lsn, "again", retried)
        call = self._open[lsn] = self._begun(found[1], lsn, found[0], again)
        return call

    def _ended(self, lsn: int, time_ns: int, event: CallReturned | CallFailed) -> Iterator[Span]:
        call = self._open.get(event.call)
        used = usage_from(event.usage) if isinstance(event, CallReturned) else None
        if call is None:
            return
        if used is not None:
            self._models.add(call.made.intent.tool)
        if isinstance(event, CallFailed):
            call.span.failed(time_ns, event)
            yield from self._end_calls(event.call, lsn, time_ns, "failed")
            return
        if used is not None:
            call.span.attributes |= {
                INPUT_TOKENS: used.input_tokens,
                OUTPUT_TOKENS: used.output_tokens,
                "agent_eventlog.cost": float(used.cost),
            }
            if lsn > self._until:
                parts = used.input_tokens, used.output_tokens, used.cost
                self._used = [a + b for a, b in zip(self._used, parts, strict=True)]
        yield from self._end_calls(event.call, lsn, time_ns, "returned", event.value)

    def _resolved(self, lsn: int, time_ns: int, event: CallResolved) -> Iterator[Span]:
        call = self._open.get(event.call)
        about = {"agent_eventlog.how": event.how}
        if call is None:  # a call that had failed
            if lsn > self._until:
                about["agent_eventlog.lsn"] = event.call  # type: ignore[assignment]
                self._run.event("call resolved", time_ns, **about)
            return
        self._mark_own(call, lsn)
        call.span.event("resolved", time_ns, **about)
        call.made.apply(lsn, time_ns, event)
        if call.made.state != "to be made again":
            value = event.value if event.how == "outcome" else None
            yield from self._end_calls(event.call, lsn, time_ns, "resolved", value)

    def _state_of(self, call: _Open) -> str:
        """The state of a call without an outcome."""
        made = call.made
        if made.state == "to be made again":
            return made.state
        if isinstance(made.last, CallAbandoned) and not made.last.begun:
            return "not begun"
        if made.last is None and not made.may_have_run:
            return "waiting" if made.intent.after_crash == "wait" else "asks"
        return "under way" if self._alive else "in doubt"

    def _end_calls(
        self, lsn: int, at: int, time_ns: int, state: str, value: Any = None
    ) -> Iterator[Span]:
        """The spans of a call that is over, and of the open calls inside it."""
        inside = [lsn]
        for one in inside:  # grows meanwhile
            inside += self._inside.pop(one, ())
        for one in reversed(inside):  # the innermost first
            call = self._open.pop(one, None)
            if call is not None and at > self._until:
                ended = (state, value) if one == lsn else (self._state_of(call), None)
                span = self._finished_span(call, time_ns, *ended)
                if not call.left_out:
                    yield span

    def _finished_span(self, call: _Open, time_ns: int, state: str, value: Any) -> Span:
        self._calls += 1
        span, intent = call.span, call.made.intent
        if span.what == "call":
            span.model = intent.tool in self._models or self._values.is_model(intent.tool)
        packed = value if type(value) is Packed else None
        span.attributes |= self._values.of_call(span.model, intent, packed)
        span.attributes |= {
            "agent_eventlog.call.state": state,
            "agent_eventlog.attempts": call.made.attempts,
        }
        return self._closed(span, time_ns)
