"""What a run's log tells of it, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import Any

from eventlog import Damage, Snapshot
from eventlog._dataclass import dataclass
from recovery._events import (
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
    RunStarted,
    RunUndone,
    StepStarted,
)
from recovery._history import Entry, RunRecords, checkpoints, decoded, ended_by, value_of_ref
from recovery._keys import outer_call, step_of
from recovery._lineage import ForkedFrom
from recovery._parts import Values, stands_in
from recovery._replay import RECORDED_ANEW, dropped_by
from recovery._shorten import shorten
from recovery._snapshots import checked_body
from recovery._values import unpack


@dataclass(slots=True)
class CallTold:
    """A call, how it ended, and the calls that were made inside it.

    ``dropped``: since a divergence was accepted the code may do without it, and nothing tells
    whether it has: where it makes the call again, it is served what the record has.
    """

    lsn: int
    intent: CallIntended
    last: Event | None = None
    outcome_lsn: int = 0
    dropped: bool = False
    inside: list[CallTold] = field(default_factory=list)

    @property
    def identity(self) -> tuple[str, str, bytes, int]:
        """What it is, wherever it was made."""
        intent = self.intent
        return intent.tool, intent.call_id, intent.digest, intent.occurrence

    @property
    def name(self) -> str:
        """Its tool, and its id if the model gave it one."""
        return f"{self.intent.tool} {self.intent.call_id}".strip()

    @property
    def arguments(self) -> Any:
        """[positional, by name] where they are recorded, else None."""
        return self.intent.args

    @property
    def shown(self) -> str:
        """The call for a person."""
        dropped = " (dropped)" if self.dropped else ""
        if self.arguments is None:
            return f"{self.name}(arguments of {self.intent.size} bytes){dropped}"
        args, kwargs = self.arguments
        parts = [shorten(arg, 80) for arg in args] + [
            f"{k}={shorten(v, 80)}" for k, v in kwargs.items()
        ]
        return f"{self.name}({', '.join(parts)}){dropped}"

    @property
    def outcome(self) -> tuple[str, Any]:
        """How it ended: a word for it, and the value or the reason."""
        match self.last:
            case CallReturned(value=value) | CallResolved(how="outcome", value=value):
                return "returned", value
            case CallFailed(type=kind, message=message):
                return "failed", f"{kind}: {message}"
            case CallResolved(how="fail", value=value):
                return "failed", f"resolved as failed: {value}"
            case CallResolved() | AttemptFailed():
                return "to be made again", None
            case CallAbandoned(why=why):
                return "given up", why
        return "in doubt", None

    def all(self) -> Iterator[CallTold]:
        """It and the calls inside it."""
        yield self
        for call in self.inside:
            yield from call.all()


@dataclass(slots=True)
class ChangeTold:
    """A change of the messages: ``removed`` of them, ``behind`` the end of the list by so many."""

    lsn: int
    start: int
    behind: int
    removed: int
    new: list[Any]

    @property
    def compared(self) -> list[Any]:
        """What makes it another change; where it is in the list is counted from the end."""
        return [self.behind, self.removed, self.new]

    @property
    def shown(self) -> str:
        """The change for a person."""
        return f"messages[{self.start}:{self.start + self.removed}] = {shorten(self.new)}"


@dataclass(slots=True)
class StepTold:
    """What was done in a step."""

    calls: list[CallTold] = field(default_factory=list)
    changes: list[ChangeTold] = field(default_factory=list)


@dataclass(slots=True)
class RunTold:
    """A run as its log tells of it, behind step ``since``.

    ``began_with``: the messages there. ``state``: that of the checkpoint at the step asked for.
    """

    run_id: str
    task: Any = None
    origin: ForkedFrom | None = None
    since: int = 0
    reached: int = 0
    end: tuple[str, Any] = ("open", None)
    end_lsn: int = 0
    damage: list[Damage] = field(default_factory=list)
    steps: dict[int, StepTold] = field(default_factory=dict)
    began_with: list[Any] = field(default_factory=list)
    state: dict[str, Any] | None = None

    def step(self, number: int) -> StepTold:
        """What was done in a step."""
        return self.steps.setdefault(number, StepTold())

    def messages_at(self, step: int) -> list[Any]:
        """The messages at the end of a step."""
        messages = list(self.began_with)
        for number in sorted(self.steps):
            for change in self.steps[number].changes if number <= step else ():
                messages[change.start : change.start + change.removed] = change.new
        return messages


def tell(log: RunRecords, run_id: str, state_at: int = 0) -> RunTold:
    """Read all that a log holds of a run, and its state at the end of a step; damage is passed
    over, and noted."""
    told = RunTold(run_id)
    entries = _counting(list(decoded(log, 1, told.damage, told.damage)))
    started = next((event for _, _, event in entries if isinstance(event, RunStarted)), None)
    told.task = started.task if started else None
    told.origin = ForkedFrom.of(started)
    _read_checkpoints(log, told, state_at)
    base = told.origin.base if told.origin else 0
    calls: dict[int, CallTold] = {}
    told.reached = told.since
    length = len(told.began_with)
    for lsn, _, event in entries:
        match event:
            case StepStarted(step=step):
                told.reached = max(told.reached, step)
            case CallIntended(scope=scope):
                calls[lsn] = CallTold(lsn, event)
                outer, began = calls.get(outer_call(scope)), step_of(scope)
                at = told.reached if began is None else began
                if outer is not None or not outer_call(scope):  # else inside of what is lost
                    (outer.inside if outer else told.step(at).calls).append(calls[lsn])
            # Before its first step a fork has what it began with, whatever its code said there.
            case MessagesChanged() if not base or told.reached > told.since:
                new = [_value(log, run_id, item) for item in event.new]
                change = ChangeTold(lsn, event.start, length - event.start,
                                    event.stop - event.start, new)  # fmt: skip
                told.step(told.reached).changes.append(change)
                length += len(new) - change.removed
            case CallReturned() | CallFailed() | CallResolved() | AttemptFailed() | CallAbandoned():
                if event.call in calls:
                    calls[event.call].last, calls[event.call].outcome_lsn = event, lsn
            case CallRetried(call=call) if call in calls:
                calls[call].last, calls[call].dropped = None, False
            case HistoryDropped(records=records):
                for call in calls.keys() & set(records):
                    calls[call].dropped = True
    for number, later in told.steps.items():
        if number > told.reached:  # the code has not come to it again
            later.calls = [call for call in later.calls if not call.dropped]
    _read_end(entries, told)
    return told


def _counting(entries: list[Entry]) -> list[Entry]:
    """Without what was dropped, and is recorded anew if it was done again."""
    dropped = dropped_by(event for *_, event in entries)
    return [one for one in entries
            if not (one[0] in dropped and isinstance(one[2], RECORDED_ANEW))]  # fmt: skip


def _read_checkpoints(log: RunRecords, told: RunTold, state_at: int) -> None:
    base = told.origin.base if told.origin else 0

    def wanted(snapshot: Snapshot) -> bool:
        return snapshot.lsn == base or checked_body(snapshot)["step"] == state_at > 0

    for restored, _ in checkpoints(log, told.damage, [], wanted):
        if restored is not None and restored.step == state_at and told.state is None:
            told.state = restored.state
        if restored is not None and restored.lsn == base:
            told.since = restored.step
            told.began_with = [unpack(message) for message in restored.messages]


def _read_end(entries: list[Entry], told: RunTold) -> None:
    ended = ended_by(entries)
    match ended:
        case RunFinished(result=result):
            told.end = "finished", result
        case RunFailed(type=kind, message=message):
            told.end = "failed", f"{kind}: {message}"
        case RunCancelled(who=who, why=why):
            told.end = "cancelled", f"{who}: {why}"
        case RunUndone(who=who, why=why):
            told.end = "undone", f"{who}: {why}"
    told.end_lsn = next((lsn for lsn, _, event in entries if event is ended), 0)


def _value(log: RunRecords, run_id: str, item: Any) -> Any:
    return value_of_ref(Values(log.fetch), run_id, item) if stands_in(item) else item
