"""What happens in a run, for those who watch it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import field, fields
from typing import Any

from eventlog import Damage, Packed, Record, Snapshot
from eventlog._dataclass import dataclass
from recovery._errors import UnreadableValueError
from recovery._event_text import text_of
from recovery._events import (
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
    skim,
)
from recovery._history import packed_of_ref, value_of_ref
from recovery._keys import outer_call, step_of
from recovery._parts import Fetch, Parts, Values, stands_in
from recovery._progress import CallMade, Progress, ProgressTally
from recovery._values import Ref, pack, unpack, unpack_map

RECENT_SIZE_MAX = 8 << 20  # of outcomes kept, for messages are often references to them

# The field that `value` gives, where an event has one that stands for it.
_VALUES: dict[type[Event], str] = {
    RunStarted: "task", CallIntended: "args", CallReturned: "value", SignalTaken: "value",
    ValueRecorded: "value", MessagesChanged: "new", RunFinished: "result",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunEvent:
    """Something that happened in a run, as it is recorded.

    ``kind``: "run_started", "run_resumed", "step", "call", "attempt_failed", "retry", "abandoned"
    (nobody waits for the call any more), "outcome", "failure", "resolved", "value", "messages",
    "snapshot" (a checkpoint), "accepted", "dropped", "run_parked", "run_finished", "run_failed",
    "agent_raised" (an error of the agent's own code), "run_undone", "run_cancelled", "signal" (the
    outcome of a wait for one); "damage" for what is lost (``damage``); later versions may have
    others.
    ``lsn``: the record; to go on behind it, ``events(..., after=lsn)``. ``timestamp``: seconds
    since 1970. ``step``: to which it belongs; 0 before the first.

    Of a call: ``tool``, ``call_id`` (the model's, or ""), ``call`` (the LSN of its intent, the same
    in all its events), ``attempt`` (from 1), ``duration_s`` (of the attempt, once it has ended).
    ``error``: what went wrong, in a line. ``progress``: how far the run is, with this event.

    ``value`` and ``body`` are decoded when they are asked for. ``str()`` says it all in a line.
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
    _held: Event | Record | None = field(default=None, repr=False, compare=False)
    _teller: Teller | None = field(default=None, repr=False, compare=False)

    @property
    def value(self) -> Any:
        """The value in it: a call's arguments as [positional, by name] (None when only their
        digest is recorded), what a call or the agent returned, the task, the new messages. None
        where there is none. DamagedRunError when a message is lost, UnreadableValueError when a
        type in it is not registered here.
        """
        name = _VALUES.get(type(self._held))  # type: ignore[arg-type]
        return None if name is None else self.body[name]

    @property
    def body(self) -> dict[str, Any]:
        """All that is recorded, by the names of its fields; raises as ``value``."""
        if self._held is None:
            return {}
        if isinstance(self._held, Record):
            return _foreign(self._held)
        held = self._held
        body = {one.name: _plain(getattr(held, one.name)) for one in fields(held)}
        if isinstance(held, MessagesChanged) and self._teller is not None:
            body["new"] = [self._teller.message(item) for item in body["new"]]
        return body

    @property
    def recorded(self) -> Event | Record | None:
        """What is recorded, for those who need not decode it: values that may be large are Packed.
        The record itself where this version does not know the kind; None for what is no event."""
        return self._held

    @property
    def size(self) -> int:
        """Bytes of the values in it, as they are recorded; they are not decoded for that."""
        held = self._held
        if held is None or isinstance(held, Record):
            return len(held.packed) if held is not None else 0
        values = (getattr(held, one.name) for one in fields(held))
        return sum(len(value) for value in values if type(value) is Packed)

    def __str__(self) -> str:
        return f"LSN {self.lsn}, step {self.step}: {text_of(self)}"


def _plain(value: Any) -> Any:
    # What the process has at hand is given out as a copy, as what is read from a log.
    return unpack(value if type(value) is Packed else pack(value, "value"))


def _foreign(record: Record) -> dict[str, Any]:
    """The body of a kind that this version does not know."""
    try:
        body = unpack(record.packed)
    except (ValueError, UnreadableValueError):
        return {"packed": record.packed}
    return body if isinstance(body, dict) else {"body": body}


class Teller:
    """Makes RunEvents of what is recorded, in the order of the log."""

    def __init__(self, run_id: str, tally: ProgressTally, fetch: Fetch) -> None:
        self.run_id, self.tally = run_id, tally
        self.served: Callable[[], int] = lambda: 0
        self._fetch = fetch
        self._lsn = self._time_ns = 0
        self._recent: OrderedDict[int, Packed] = OrderedDict()
        self._recent_size = 0

    def read(self, item: Record | Damage) -> RunEvent:
        """What a log holds next, not yet counted."""
        if isinstance(item, Damage):
            return self._damaged(item)
        if isinstance(item, Snapshot):
            return self._snapshot(item)
        try:
            event = skim(item)
        except ValueError as exc:
            return self._damaged(Damage(0, 0, len(item.packed), item.lsn, item.lsn, str(exc)))
        if event is None:
            return self._event(item.kind, item.lsn, item.time_ns, None, {"_held": item})
        self.tally.observe(item.lsn, item.time_ns, event)
        return self.tell(item.lsn, item.time_ns, event)

    def tell(self, lsn: int, time_ns: int, event: Event) -> RunEvent:
        """What the tally has just seen."""
        call = lsn if isinstance(event, CallIntended) else getattr(event, "call", 0)
        about: dict[str, Any] = {"call": call, "_held": event, "_teller": self}
        made = self._about(call)
        step = made.step if made is not None else step_of(getattr(event, "scope", ""))
        if made is not None:
            about |= {"tool": made.tool, "call_id": made.call_id, "attempt": made.attempt}
        if made is not None and isinstance(event, CallReturned | CallFailed | AttemptFailed):
            about["duration_s"] = max(0, time_ns - made.since_ns) / 1e9
        if isinstance(event, AgentRaised):
            step = event.step
        if isinstance(event, CallFailed | AttemptFailed | RunFailed | AgentRaised):
            about["error"] = f"{event.type.removeprefix('builtins.')}: {event.message}"
        if isinstance(event, CallReturned) and type(event.value) is Packed:
            self._remember(lsn, event.value)
        return self._event(event.kind, lsn, time_ns, step, about)

    def checkpoint(self, lsn: int, time_ns: int, step: int) -> RunEvent:
        """A checkpoint was taken at the end of ``step``."""
        return self._event("snapshot", lsn, time_ns, step, {})

    def message(self, item: Any) -> Any:
        """A recorded message: itself, or what it refers to."""
        if not stands_in(item):
            return item
        return value_of_ref(Values(self._fetch, self._recent), self.run_id, item)

    def packed_message(self, item: Ref | Parts) -> bytes:
        """The message that something stands for, packed; DamagedRunError when it is lost."""
        return packed_of_ref(Values(self._fetch, self._recent), self.run_id, item)

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
        """A checkpoint knows what was counted before it, also where that is not there any more."""
        carried, step = carried_by(record)
        if carried is not None:
            self.tally.restore(carried)
        return self.checkpoint(record.lsn, record.time_ns, step or self.tally.step)

    def _about(self, call: int) -> CallMade | None:
        made = self.tally.about
        if not call or (made is not None and made.tool):
            return made
        record = self._fetch({call}).get(call)  # begun before the checkpoint at which we began
        try:
            intent = skim(record) if record is not None else None
        except ValueError:
            intent = None
        if record is None or not isinstance(intent, CallIntended):
            return made
        known = made or CallMade("", "", 0, outer_call(intent.scope), 1, record.time_ns)
        step = step_of(intent.scope)
        return known._replace(tool=intent.tool, call_id=intent.call_id,
                              step=self.tally.step if step is None else step)  # fmt: skip

    def _remember(self, lsn: int, packed: Packed) -> None:
        self._recent[lsn] = packed
        self._recent_size += len(packed)
        while self._recent_size > RECENT_SIZE_MAX:
            self._recent_size -= len(self._recent.popitem(last=False)[1])


def carried_by(record: Record) -> tuple[Any, int]:
    """What a checkpoint carries of the progress, and its step; (None, 0) where that is nothing."""
    try:
        parts = unpack_map(record.packed)
        carried = unpack_map(parts["carried"])[ProgressTally.name]
        value, step = unpack(carried), unpack(parts["step"])
        ProgressTally().restore(value)
        return value, step if type(step) is int else 0
    except (KeyError, ValueError):
        return None, 0
