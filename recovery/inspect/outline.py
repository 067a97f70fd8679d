"""Outlines a run from its log, step by step, without its values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from eventlog import Damage, LogRecords, Packed, Record, Snapshot
from eventlog.light_dataclass import light_dataclass
from recovery.history.choose_checkpoint import readable
from recovery.history.first_record import started_of
from recovery.history.load_shallow import shallow_events
from recovery.history.restore_checkpoint import Restored, checked_body, prologue_in, restore
from recovery.journal.call_key import outer_call, step_of
from recovery.journal.encoding import decode_shallow
from recovery.journal.events import (
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
from recovery.journal.forked_from import ForkedFrom
from recovery.replay.recorded_call import RECORDED_ANEW, About, state_after
from recovery.values.backrefs import RecentValues, RecordedValues, parse_reference, resolve
from recovery.values.pack import split_list
from recovery.values.types import Ref, digest

ARGUMENTS = -1  # in place of the index of a value: the arguments of a call


@light_dataclass
class StoredValue:
    """The position of a value in the log: record ``lsn``, and its index there.

    Values are compared by their digests, and read only to be shown.
    """

    lsn: int
    index: int
    digest: bytes


EndDetail = StoredValue | str | None


@dataclass(slots=True)
class CallOutline:
    """A call, how it ended, and the nested calls.

    ``arguments``: where they are recorded, else None. ``end``: a word for how it ended, and the
    value or the reason. ``dropped``: since a divergence was accepted the code may do without it.
    The log does not say whether it has: if the code makes the call again, it is served the record.
    """

    lsn: int
    identity: tuple[str, str, bytes, int]  # without its scope
    size: int
    arguments: StoredValue | None
    end: tuple[str, EndDetail] = ("in doubt", None)
    outcome_lsn: int = 0
    dropped: bool = False
    inside: list[CallOutline] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Its tool, and its id if the model gave it one."""
        tool, call_id, *_ = self.identity
        return f"{tool} {call_id}".strip()

    @property
    def outcome(self) -> tuple[str, bytes | str | None]:
        """How it ended, for comparison."""
        end, what = self.end
        return end, what.digest if isinstance(what, StoredValue) else what

    def all(self) -> Iterator[CallOutline]:
        """This call and the nested ones."""
        yield self
        for call in self.inside:
            yield from call.all()


@dataclass(slots=True)
class MessageChange:
    """A change of the messages: ``removed`` of them, replaced by ``new``.

    ``from_end``: how far before the end of the list the change begins.
    """

    lsn: int
    start: int
    from_end: int
    removed: int
    new: list[StoredValue]

    @property
    def position(self) -> tuple[int, int]:
        """The range of messages that it replaces, counted from the end of the list."""
        return self.from_end, self.removed

    @property
    def comparison_key(self) -> tuple[tuple[int, int], list[bytes]]:
        """The parts that distinguish it from another change."""
        return self.position, [stored.digest for stored in self.new]

    @property
    def head(self) -> str:
        """The change for people, without the new messages."""
        return f"messages[{self.start}:{self.start + self.removed}]"


@dataclass(slots=True)
class StepOutline:
    """The calls and changes of a step."""

    calls: list[CallOutline] = field(default_factory=list)
    changes: list[MessageChange] = field(default_factory=list)


@dataclass(slots=True)
class RunOutline:
    """A run as its log has it, from the end of step ``from_step`` on.

    ``initial_messages``: the messages there. ``state``: of the checkpoint at the step asked for.
    Memory grows with the number of calls and messages, not with their size.
    """

    run_id: str
    log: LogRecords
    task: Packed | None = None
    origin: ForkedFrom | None = None
    from_step: int = 0
    reached: int = 0
    end: tuple[str, Packed | str | None] = ("open", None)
    end_lsn: int = 0
    started_lsn: int = 0
    damage: list[Damage] = field(default_factory=list)
    steps: dict[int, StepOutline] = field(default_factory=dict)
    initial_messages: list[StoredValue] = field(default_factory=list)
    state: dict[str, Packed] | None = None

    def step(self, number: int) -> StepOutline:
        """The calls and changes of a step."""
        return self.steps.setdefault(number, StepOutline())

    def messages_at(self, step: int) -> list[StoredValue]:
        """The messages at the end of a step."""
        messages = list(self.initial_messages)
        for number in sorted(self.steps):
            for change in self.steps[number].changes if number <= step else ():
                messages[change.start : change.start + change.removed] = change.new
        return messages

    def value(self, stored: StoredValue) -> Packed | None:
        """A value; None when it is lost."""
        try:
            if stored.index == ARGUMENTS:
                event = decode_shallow(self.log.fetch({stored.lsn})[stored.lsn])
                args = event.args if isinstance(event, CallIntended) else None
                return args if type(args) is Packed else None
            (packed,), _ = resolve(RecordedValues(self.log.fetch), [Ref(stored.lsn, stored.index)])
            return Packed(packed)
        except (KeyError, IndexError, TypeError, ValueError):
            return None


def outline_run(log: LogRecords, run_id: str, state_at: int = 0) -> RunOutline:
    """Read everything that a log has of a run, and its state at the end of a step. Damage is
    skipped and noted. No type of a value has to be registered."""
    outline = RunOutline(run_id, log)
    builder = _OutlineBuilder(outline)
    start = _read_checkpoints(builder, state_at)
    length = len(outline.initial_messages)
    for lsn, _, event in shallow_events(
        log.records(1, on_damage=outline.damage.append), outline.damage
    ):
        if lsn < start or (lsn in builder.dropped and isinstance(event, RECORDED_ANEW)):
            continue  # a call that was repeated has a new record
        if isinstance(event, MessagesChanged):
            length = builder.changed(lsn, event, length)
        else:
            builder.observe(lsn, event)
    for number, later in outline.steps.items():
        if number > outline.reached:  # the code has not reached it again
            later.calls = [call for call in later.calls if not call.dropped]
    outline.damage = list(dict.fromkeys(outline.damage))
    return outline


class _OutlineBuilder:
    """The state that the interpretation of the next record needs."""

    def __init__(self, outline: RunOutline) -> None:
        self.outline = outline
        self.dropped: set[int] = set()
        self._calls: dict[int, CallOutline] = {}
        self._outcomes: dict[int, bytes] = {}  # their digests
        self._recent = RecentValues()
        kinds = HistoryDropped.kind, RunStarted.kind
        read = outline.log.records(1, on_damage=lambda damage: None)
        for lsn, _, event in shallow_events((one for one in read if one.kind in kinds), []):
            if isinstance(event, HistoryDropped):
                self.dropped.update(event.records)
            elif isinstance(event, RunStarted) and not outline.started_lsn:
                outline.started_lsn = lsn
        started = started_of(outline.log, decode_shallow)
        if started is not None:
            outline.task, outline.origin = _packed(started.task), ForkedFrom.of(started)

    def observe(self, lsn: int, event: Event) -> None:
        """Add a record."""
        outline = self.outline
        match event:
            case StepStarted(step=step):
                outline.reached = max(outline.reached, step)
            case CallIntended():
                self._intended(lsn, event)
            case (
                CallReturned()
                | CallFailed()
                | CallResolved()
                | CallRetried()
                | AttemptFailed()
                | CallAbandoned()
            ):
                self._about(lsn, event)
                if isinstance(event, CallResolved) and outline.end[0] == "failed":
                    outline.end, outline.end_lsn = ("open", None), 0  # resolved: it can be resumed
            case HistoryDropped(records=records):
                for made in self._calls.keys() & set(records):
                    self._calls[made].dropped = True
            case RunFinished(result=result):
                outline.end, outline.end_lsn = ("finished", _packed(result)), lsn
            case RunFailed(type=kind, message=message):
                outline.end, outline.end_lsn = ("failed", f"{kind}: {message}"), lsn
            case RunCancelled() | RunUndone():
                word = "cancelled" if isinstance(event, RunCancelled) else "undone"
                outline.end, outline.end_lsn = (word, f"{event.who}: {event.why}"), lsn

    def observe_prologue(self, record: Record) -> None:
        """Add a record of the code before the first step, which a checkpoint keeps."""
        with suppress(ValueError):
            event = decode_shallow(record)
            if event is not None and not isinstance(event, MessagesChanged):
                self.observe(record.lsn, event)

    def _about(self, lsn: int, event: About) -> None:
        if isinstance(event, CallReturned | CallResolved):
            self._remember(lsn, _packed(event.value))
        call = self._calls.get(event.call)
        if call is None:
            return
        call.end = self._ended(lsn, event)
        if isinstance(event, CallRetried):
            call.dropped = False
        else:
            call.outcome_lsn = lsn

    def _intended(self, lsn: int, event: CallIntended) -> None:
        outline, packed = self.outline, _packed(event.args)
        stored = None if packed is None else StoredValue(lsn, ARGUMENTS, digest(packed))
        identity = event.tool, event.call_id, event.digest, event.occurrence
        call = self._calls[lsn] = CallOutline(lsn, identity, event.size, stored)
        within = outer_call(event.scope)
        outer, began = self._calls.get(within), step_of(event.scope)
        at = outline.reached if began is None else began
        if outer is not None or not within:  # else its outer call is lost
            (outer.inside if outer else outline.step(at).calls).append(call)

    def changed(self, lsn: int, event: MessagesChanged, length: int) -> int:
        """Add a change of so many messages; returns their number after it."""
        outline = self.outline
        # Before its first step a fork keeps the messages it began with, whatever its code changed.
        if outline.origin and outline.origin.base and outline.reached <= outline.from_step:
            return length
        try:
            items = split_list(event.new) if type(event.new) is Packed else []
        except ValueError as exc:
            outline.damage.append(Damage.of_records(lsn, lsn, str(exc)))
            return length
        change = MessageChange(
            lsn,
            event.start,
            length - event.start,
            event.stop - event.start,
            [self._held(lsn, i, item) for i, item in enumerate(items)],
        )
        outline.step(outline.reached).changes.append(change)
        return length + len(items) - change.removed

    def _held(self, lsn: int, index: int, item: Packed) -> StoredValue:
        """A message: in its record, or where a reference in the record points."""
        try:
            found = parse_reference(item)
            if found is None:
                return StoredValue(lsn, index, digest(item))
            if isinstance(found, Ref) and not found.index and found.lsn in self._outcomes:
                return StoredValue(found.lsn, 0, self._outcomes[found.lsn])
            (packed,), _ = resolve(RecordedValues(self.outline.log.fetch, self._recent), [found])
            return StoredValue(lsn, index, digest(packed))
        except (KeyError, IndexError, TypeError, ValueError):
            return StoredValue(lsn, index, b"lost %d %d" % (lsn, index))  # equals only itself

    def _remember(self, lsn: int, packed: Packed | None) -> None:
        packed = packed or Packed(b"\xc0")
        self._outcomes[lsn] = digest(packed)
        self._recent.remember(lsn, packed)

    def _ended(self, lsn: int, event: About) -> tuple[str, EndDetail]:
        state = state_after(event)
        match event:
            case CallFailed(type=kind, message=message):
                return state, f"{kind}: {message}"
            case CallAbandoned(why=why):
                return "given up", why
        if state == "open":
            return "in doubt", None
        return state, None if state == "to be made again" else StoredValue(
            lsn, 0, self._outcomes[lsn]
        )


def _read_checkpoints(builder: _OutlineBuilder, state_at: int) -> int:
    """Read where the run begins, for a fork or a run whose beginning was removed, and its state at
    the end of a step. Returns the LSN from which the outline begins."""
    outline, start = builder.outline, 1
    base = outline.origin.base if outline.origin else 0
    pruned = outline.log.oldest_lsn > 1

    def read(snapshot: Snapshot) -> Restored | None:
        if pruned or snapshot.lsn == base or checked_body(snapshot)["step"] == state_at > 0:
            return restore(outline.log.fetch, snapshot, lambda packed: packed)
        return None

    for restored in readable(outline.log, read, outline.damage.append):
        if restored.step == state_at > 0 and outline.state is None:
            outline.state = restored.state
        if pruned or restored.lsn == base:  # for a pruned run the oldest one that can be restored
            outline.from_step = outline.reached = restored.step
            outline.initial_messages = list(_messages(restored))
            start = restored.lsn + 1 if pruned else 1
            oldest = restored
    if start > 1:
        found = prologue_in(outline.log.fetch, oldest.prologue, oldest.generation)
        for lsn in sorted(found):
            builder.observe_prologue(found[lsn])
    return start


def _messages(restored: Restored) -> Iterator[StoredValue]:
    for packed, ref in zip(restored.messages, restored.refs, strict=True):
        assert ref is not None  # every message of a checkpoint is recorded
        yield StoredValue(ref.lsn, ref.index, digest(packed))


def _packed(value: object) -> Packed | None:
    return value if type(value) is Packed else None
