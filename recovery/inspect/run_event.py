"""Defines the events of a run, and builds them from its records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from eventlog import Damage, Packed, Record, Snapshot
from recovery.errors import RecoveryError, UnreadableValueError
from recovery.history.load import packed_of_ref, value_of_ref
from recovery.journal.call_key import outer_call, step_of
from recovery.journal.encoding import decode_shallow
from recovery.journal.events import (
    AgentRaised,
    AttemptFailed,
    CallFailed,
    CallIntended,
    CallReturned,
    Event,
    MessagesChanged,
    RunFailed,
    RunFinished,
    RunStarted,
    SignalTaken,
    ValueRecorded,
)
from recovery.replay.progress import CallMade, Progress, ProgressTally
from recovery.text import count, shorten
from recovery.values.backrefs import (
    CompositeMessage,
    Fetch,
    RecentValues,
    RecordedValues,
    is_reference,
)
from recovery.values.pack import pack, unpack, unpack_map
from recovery.values.types import Ref

# The field that `value` returns, for events that have such a field.
_VALUES: dict[type[Event], str] = {
    RunStarted: "task",
    CallIntended: "args",
    CallReturned: "value",
    SignalTaken: "value",
    ValueRecorded: "value",
    MessagesChanged: "new",
    RunFinished: "result",
}


SHOWN_SIZE = 80  # characters of a value in a line
DECODED_SIZE_MAX = 64 << 10  # of an event that is decoded for a line of text


@dataclass(frozen=True, slots=True)
class RunEvent:
    """An event of a run, as it is recorded.

    ``kind``: "run_started", "run_resumed", "step", "call", "attempt_failed", "retry", "abandoned"
    (no code waits for the call any more), "outcome", "failure", "resolved", "value", "messages",
    "snapshot" (a checkpoint), "accepted", "dropped", "run_parked", "run_finished", "run_failed",
    "agent_raised" (an error of the agent's own code), "run_undone", "run_cancelled", "signal" (the
    outcome of a wait for one); "damage" for lost records (``damage``); later versions may have
    others.

    ``lsn``: of the record; ``events(..., after=lsn)`` continues after it. ``timestamp``: seconds
    since 1970. ``step``: the step that it belongs to; 0 before the first.

    Of a call: ``tool``, ``call_id`` (the model's, or ""), ``call`` (the LSN of its intent, the same
    in all its events), ``attempt`` (from 1; 0 if it began before the checkpoint where reading
    began), ``duration_s`` (of the attempt, once it has ended and its beginning was read).
    ``error``: what went wrong, in a line. ``progress``: how far the run is, with this event.

    ``value`` and ``body`` are decoded when they are read. ``str()`` describes it in a line.
    """

    run_id: str
    kind: str
    lsn: int
    timestamp: float
    step: int
    progress: Progress
    tool: str = ""
    call: int = 0
    call_id: str = ""
    attempt: int = 0
    duration_s: float | None = None
    error: str = ""
    damage: Damage | None = None
    _recorded: Event | Record | None = field(default=None, repr=False, compare=False)
    _reader: EventReader | None = field(default=None, repr=False, compare=False)

    @property
    def value(self) -> Any:
        """The value in it: a call's arguments as [positional, by name] (None when only their
        digest is recorded), the result of a call or the agent, the task, the new messages. None
        where there is none. DamagedRunError when a message is lost, UnreadableValueError when a
        type in it is not registered here.
        """
        name = _VALUES.get(type(self._recorded))  # type: ignore[arg-type]
        return None if name is None else self.body[name]

    @property
    def body(self) -> dict[str, Any]:
        """All fields of the record, by name; raises as ``value``."""
        if self._recorded is None:
            return {}
        if isinstance(self._recorded, Record):
            return _foreign(self._recorded)
        recorded = self._recorded
        body = {one.name: _plain(getattr(recorded, one.name)) for one in fields(recorded)}
        if isinstance(recorded, MessagesChanged) and self._reader is not None:
            body["new"] = [self._reader.message(item) for item in body["new"]]
        return body

    @property
    def recorded(self) -> Event | Record | None:
        """The recorded event, undecoded: values that may be large are Packed. The record itself
        where this version does not know the kind; None where there is no event."""
        return self._recorded

    @property
    def size(self) -> int:
        """Bytes of the values in it, as they are recorded; does not decode them."""
        recorded = self._recorded
        if recorded is None or isinstance(recorded, Record):
            return len(recorded.packed) if recorded is not None else 0
        values = (getattr(recorded, one.name) for one in fields(recorded))
        return sum(len(value) for value in values if type(value) is Packed)

    def __str__(self) -> str:
        return f"LSN {self.lsn}, step {self.step}: {text_of(self)}"


def _plain(value: Any) -> Any:
    # A value of this process is copied, as if it were read from a log.
    return unpack(value if type(value) is Packed else pack(value, "value"))


def _foreign(record: Record) -> dict[str, Any]:
    """The body of a kind that this version does not know."""
    try:
        body = unpack(record.packed)
    except (ValueError, UnreadableValueError):
        return {"packed": record.packed}
    return body if isinstance(body, dict) else {"body": body}


class EventReader:
    """Makes RunEvents of records, in the order of the log."""

    def __init__(self, run_id: str, tally: ProgressTally, fetch: Fetch) -> None:
        self.run_id, self.tally = run_id, tally
        self.served: Callable[[], int] = lambda: 0
        self._fetch = fetch
        self._lsn = self._time_ns = 0
        self._recent = RecentValues()

    def from_log(self, item: Record | Damage) -> RunEvent:
        """The event of the next item of a log, which is counted here."""
        if isinstance(item, Damage):
            return self._damaged(item)
        if isinstance(item, Snapshot):
            return self._snapshot(item)
        try:
            event = decode_shallow(item)
        except ValueError as exc:
            return self._damaged(Damage.of_records(item.lsn, item.lsn, str(exc)))
        if event is None:
            return self._event(item.kind, item.lsn, item.time_ns, None, {"_recorded": item})
        self.tally.observe(item.lsn, item.time_ns, event)
        return self.build(item.lsn, item.time_ns, event)

    def build(self, lsn: int, time_ns: int, event: Event) -> RunEvent:
        """The event that the tally has just counted."""
        call = lsn if isinstance(event, CallIntended) else getattr(event, "call", 0)
        about: dict[str, Any] = {"call": call, "_recorded": event, "_reader": self}
        made = self._about(call)
        step = made.step if made is not None else step_of(getattr(event, "scope", ""))
        if made is not None:
            about |= {"tool": made.tool, "call_id": made.call_id, "attempt": made.attempt}
        has_ended = isinstance(event, CallReturned | CallFailed | AttemptFailed)
        if made is not None and made.attempt and has_ended:
            about["duration_s"] = max(0, time_ns - made.since_ns) / 1e9
        if isinstance(event, AgentRaised):
            step = event.step
        if isinstance(event, CallFailed | AttemptFailed | RunFailed | AgentRaised):
            about["error"] = f"{event.type.removeprefix('builtins.')}: {event.message}"
        if isinstance(event, CallReturned) and type(event.value) is Packed:
            self._recent.remember(lsn, event.value)
        return self._event(event.kind, lsn, time_ns, step, about)

    def checkpoint(self, lsn: int, time_ns: int, step: int) -> RunEvent:
        """A checkpoint was taken at the end of ``step``."""
        return self._event("snapshot", lsn, time_ns, step, {})

    def message(self, item: Any) -> Any:
        """A recorded message, with its reference resolved."""
        if not is_reference(item):
            return item
        return value_of_ref(RecordedValues(self._fetch, self._recent), self.run_id, item)

    def packed_message(self, item: Ref | CompositeMessage) -> bytes:
        """The packed message of a reference; DamagedRunError when it is lost."""
        return packed_of_ref(RecordedValues(self._fetch, self._recent), self.run_id, item)

    def _event(
        self, kind: str, lsn: int, time_ns: int, step: int | None, about: dict[str, Any]
    ) -> RunEvent:
        self._lsn, self._time_ns = lsn, time_ns
        step = self.tally.step if step is None else step
        progress = self.tally.progress(self.served())
        return RunEvent(self.run_id, kind, lsn, time_ns / 1e9, step, progress, **about)

    def _damaged(self, found: Damage) -> RunEvent:
        lsn = found.last_lsn if found.lost else self._lsn
        about = {"error": str(found), "damage": found}
        return self._event("damage", lsn, self._time_ns, None, about)

    def _snapshot(self, record: Snapshot) -> RunEvent:
        """A checkpoint has the counts from before it, also if those records were removed."""
        carried, step = carried_by(record)
        if carried is not None:
            self.tally.from_checkpoint(carried)
        return self.checkpoint(record.lsn, record.time_ns, step or self.tally.step)

    def _about(self, call: int) -> CallMade | None:
        made = self.tally.about
        if not call or (made is not None and made.tool):
            return made
        intent = self._intent(call)  # begun before the checkpoint where reading began
        if intent is None:
            return made
        known = made or CallMade("", "", 0, outer_call(intent.scope), 0, 0)
        return known._replace(
            tool=intent.tool, call_id=intent.call_id, step=self._step_of(call, intent.scope)
        )

    def _intent(self, call: int) -> CallIntended | None:
        record = self._fetch({call}).get(call)
        try:
            intent = decode_shallow(record) if record is not None else None
        except ValueError:
            return None
        return intent if isinstance(intent, CallIntended) else None

    def _step_of(self, call: int, scope: str) -> int:
        """The step of a call in this scope, which may be another call."""
        while 0 < (outer := outer_call(scope)) < call:
            intent = self._intent(outer)
            call, scope = outer, intent.scope if intent is not None else ""
        step = step_of(scope)
        return self.tally.step if step is None else step


def carried_by(record: Record) -> tuple[Any, int]:
    """The progress in a checkpoint, and its step; (None, 0) where it has none."""
    try:
        parts = unpack_map(record.packed)
        carried = unpack_map(parts["carried"])[ProgressTally.name]
        value, step = unpack(carried), unpack(parts["step"])
        ProgressTally().from_checkpoint(value)
        return value, step if type(step) is int else 0
    except (KeyError, ValueError):
        return None, 0


def text_of(event: RunEvent) -> str:
    """The line, without its position in the log."""
    try:
        return line_of(event)
    except (RecoveryError, ValueError) as exc:
        return f"{event.kind}: {exc}".splitlines()[0]


def line_of(event: RunEvent) -> str:
    """As ``text_of``. DamagedRunError when a message is lost, UnreadableValueError when a type is
    not registered here."""
    if event.kind == "damage":
        return f"DAMAGE: {event.error}"
    if event.size > DECODED_SIZE_MAX:
        return f"{event.tool or event.kind}: {event.kind} of {event.size:,} bytes"
    return _text(event, event.body)


def _text(event: RunEvent, body: dict[str, Any]) -> str:
    tool = event.tool or f"call {event.call}"
    after = "" if event.duration_s is None else f" after {event.duration_s:.2f} s"
    lines: dict[str, Callable[[], str]] = {
        "run_started": lambda: f"run {event.run_id} started: {_short(body['task'])}",
        "run_resumed": lambda: (
            f"resumed, recovery {body['recovery']}, after step {body['from_step']}"
        ),
        "step": lambda: f"step {body['step']} began",
        "call": lambda: f"{tool}({_arguments(body)})",
        "retry": lambda: f"{tool}: attempt {body['attempt']}",
        "attempt_failed": lambda: f"{tool}: attempt {body['attempt']} failed{after}: {event.error}",
        "abandoned": lambda: f"{tool}: abandoned ({body['why']})",
        "outcome": lambda: f"{tool} returned {_short(body['value'])}{after}",
        "failure": lambda: f"{tool} failed{after}: {event.error}",
        "resolved": lambda: (
            f"{tool} resolved: {body['how']} {_short(body['value'])}"
            f"{body['who'] and ' by ' + body['who']}"
        ),
        "value": lambda: f"{body['name']}() = {_short(body['value'])}",
        "messages": lambda: f"messages[{body['start']}:{body['stop']}] = {_short(body['new'])}",
        "snapshot": lambda: f"checkpoint at the end of step {event.step}",
        "run_parked": lambda: f"parked: {body['why'] or 'calls in doubt'}",
        "run_undone": lambda: f"aborted, to be undone{body['who'] and ' by ' + body['who']}",
        "decided": lambda: (
            f"{tool} {'approved' if body['approved'] else 'denied'}"
            f"{body['who'] and ' by ' + body['who']}"
            f"{body['why'] and ': ' + body['why']}"
        ),
        "signal": lambda: f"signal {body['name']!r} taken: {_short(body['value'])}{after}",
        "run_cancelled": lambda: (
            f"cancelled{body['who'] and ' by ' + body['who']}{body['why'] and ': ' + body['why']}"
        ),
        "lost": lambda: f"lost: records up to LSN {body['last']}" if body["last"] else "lost",
        "repaired": lambda: (
            f"repaired{body['who'] and ' by ' + body['who']}"
            f"{body['why'] and ': ' + body['why']}; lost: LSN "
            + ", ".join(f"{one}-{last}" for one, last in body["lost"])
        ),
        "dropped": lambda: (
            f"the code has drifted: {body['drift']}"
            if body["drift"]
            else f"divergence accepted: {count(len(body['records']), 'record')} expected no more"
        ),
        "run_finished": lambda: f"finished: {_short(body['result'])}",
        "run_failed": lambda: f"failed: {event.error}",
        "agent_raised": lambda: (
            f"the agent raised {event.error}{body['place'] and ' at ' + body['place']}"
        ),
    }
    line = lines.get(event.kind)
    return f"{event.kind} {_short(body)}" if line is None else line().replace("\n", " ")


def _arguments(body: dict[str, Any]) -> str:
    match body["args"]:
        case [list(args), dict(kwargs)]:
            shown = [_short(arg) for arg in args]
            return ", ".join(shown + [f"{name}={_short(arg)}" for name, arg in kwargs.items()])
    return f"{body['size']} bytes"


def _short(value: Any) -> str:
    return shorten(value, SHOWN_SIZE)
