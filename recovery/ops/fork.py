"""Forks a run: begins a new run as another one was at the end of a step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from os import urandom
from typing import Any, TypedDict, Unpack

from eventlog import Damage, LogRecords, Packed, Snapshot, WritableLog
from recovery.errors import DamagedRunError, RecoveryError
from recovery.history.choose_checkpoint import Start, lowest_step, read_whole, starts
from recovery.history.find_run import Store, backend_of, claim, reader_of
from recovery.history.first_record import started_of
from recovery.history.inventory import stored_checkpoints
from recovery.history.load import (
    Ended,
    Item,
    items_from,
    items_of,
    packed_of_ref,
    prologue_of,
    tallies_of,
)
from recovery.history.restore_checkpoint import Restored, checked_body
from recovery.history.subject_values import keys_in, values_of
from recovery.history.write_checkpoint import CheckpointMeta, CheckpointWriter
from recovery.journal.call_key import UNDO_CALL, outer_call
from recovery.journal.encoding import decode_shallow, encode
from recovery.journal.events import (
    AgentRaised,
    CallIntended,
    DivergenceAccepted,
    Event,
    HistoryDropped,
    MessagesChanged,
    RunFinished,
    RunParked,
    RunResumed,
    RunStarted,
    RunUndone,
    StepStarted,
)
from recovery.journal.forked_from import ForkedFrom
from recovery.journal.messages import Messages
from recovery.ops.record_copy import RecordCopier, RecordList, pieces
from recovery.option_checks import check_count, check_names
from recovery.replay.matching import Replay
from recovery.replay.recorded_call import RECORDED_ANEW, RecordedCall, dropped_by, fold
from recovery.stores.protocol import RunStore, check_run_id
from recovery.values.backrefs import CompositeMessage, RecordedValues, is_reference
from recovery.values.pack import pack, pack_list
from recovery.values.types import Ref

# Events about the state of the other run, not about its work.
_LEFT_OUT = AgentRaised | RunStarted | RunParked | Ended | DivergenceAccepted

_KEPT = ("signed", "agent", "agent_object", "subject")  # of the first record of the origin


def _is_left_out(event: Event) -> bool:
    return not event.call if isinstance(event, HistoryDropped) else isinstance(event, _LEFT_OUT)


class Changes(TypedDict, total=False):
    """What a fork changes in the run it comes from, and by whom, and why."""

    task: Any
    state: dict[str, Any]
    messages: list[Any]
    who: str
    why: str


@dataclass(slots=True)
class _ForkSource:
    """The part of a run that is copied into its fork: everything up to the end of ``step``.

    ``base`` is the checkpoint to begin with. ``prologue``: the events of the code before the first
    step, from before the checkpoint. ``tail``: the events after it. ``dropped``: records among them
    that the code may do without. ``later``: events that were recorded after the step.
    """

    step: int
    lsn: int
    seen: int
    base: Restored | None
    prologue: list[Item]
    tail: list[Item]
    dropped: set[int]
    later: list[Item] = field(default_factory=list)

    @property
    def entries(self) -> list[tuple[int, int, Any]]:
        return [(r.lsn, r.time_ns, event) for r, event in (*self.prologue, *self.tail)]

    def calls_in_flight(self) -> list[int]:
        """The calls (LSNs) that are not over."""
        calls = Replay.of(self.entries).unmatched()
        return [call.lsn for call in calls if not (call.has_outcome or call.cancelled)]


def fork(
    store: Store,
    run_id: str,
    new_run_id: str,
    *,
    at_step: int | None = None,
    **changes: Unpack[Changes],
) -> ForkedFrom:
    """See RunHandle.fork. Returns the link, as lineage does."""
    return fork_and_tell(store, run_id, new_run_id, at_step, changes)[0]


def fork_and_tell(
    store: Store, run_id: str, new_run_id: str, at_step: int | None, changes: Changes
) -> tuple[ForkedFrom, list[RecordedCall]]:
    """``fork``; returns also the side effects of the run after the step, which the fork repeats."""
    if run_id == check_run_id(new_run_id):
        raise ValueError(f"a fork of {run_id!r} needs a run_id of its own")
    check_count("at_step", at_step, 0, none=True)
    check_names("fork", changes, Changes.__annotations__)
    if at_step is None and not changes.keys() <= {"who", "why"}:
        raise ValueError("give at_step= with task=, state= or messages=: it says when they change")
    begun = _begun(backend_of(store), run_id, new_run_id)
    with reader_of(store, run_id) as reader:
        made = _Fork(reader, run_id, changes, backend_of(store))
        link, draft = made.draft(new_run_id, at_step, begun)
    with claim(store, new_run_id) as log:
        _write(log, draft, new_run_id)
    return link, made.later_effects


def _begun(backend: RunStore, run_id: str, new_run_id: str) -> RunStarted | None:
    """The first record of a fork to which nothing was added; RecoveryError for another run."""
    reader = backend.read(new_run_id)
    if reader is None:
        return None
    with reader:
        last = 0
        for record in reader.records(1, on_damage=lambda damage: None):
            last = record.lsn
        started = started_of(reader) if last else None
    link = ForkedFrom.of(started)
    if last and (link is None or link.run_id != run_id or last > link.until):
        raise RecoveryError(f"run {new_run_id!r} exists. Nothing was written: choose another id.")
    return started


def _write(log: WritableLog, draft: RecordList, run_id: str) -> None:
    there = list(log.records(1))
    for record, wanted in zip(there, draft.records, strict=False):
        if (record.kind, record.packed) != (wanted.kind, wanted.packed):
            raise RecoveryError(
                f"run {run_id!r} exists: a fork, finished or not, of something else (LSN "
                f"{record.lsn} differs). Nothing was written. Fork with the same arguments as "
                "then, or choose another id."
            )
    if len(there) > len(draft.records):
        raise RecoveryError(f"run {run_id!r} exists. Nothing was written: choose another id.")
    for wanted in draft.records[len(there) :]:
        if wanted.is_snapshot:
            log.append_snapshot(wanted.packed)
        else:
            log.append(wanted.kind, wanted.packed, time_ns=wanted.time_ns)
    log.commit()


class _Fork:
    """A fork of a run, made from the log of that run."""

    def __init__(self, log: LogRecords, run_id: str, changes: Changes, backend: RunStore) -> None:
        self.log, self.run_id, self.changes = log, run_id, changes
        self.source = started_of(log, decode_shallow)  # its task stays as it is in the log
        self.subjects = values_of(run_id, backend)
        self.subjects.run = keys_in(getattr(self.source, "subject", None))
        self.above = ForkedFrom.of(self.source)
        self.later_effects: list[RecordedCall] = []

    def draft(
        self, new_run_id: str, at_step: int | None, begun: RunStarted | None
    ) -> tuple[ForkedFrom, RecordList]:
        """The records of the new run; ``begun``: the first of them, if it is written already."""
        before = ForkedFrom.of(begun)
        part = self._part(at_step, before.seen if before else 1 << 63)
        self.later_effects = _effects(part.later)
        new_task = "task" in self.changes
        if not self.changes.keys() <= {"who", "why"}:
            part = self._changed(part)
        source = self.source
        if source is None and not new_task:
            raise RecoveryError(f"no agent has run {self.run_id!r}: give the fork a task=")
        draft = RecordList()
        draft.append("", Packed())  # replaced by the first record, which has their number
        copier = RecordCopier(source.uid if source else "", draft, self._packed_of)
        self._copy(part.prologue, copier, new_task)
        base = self._checkpoint(part.base, new_run_id, draft, copier) if part.base else 0
        self._copy(part.tail, copier, new_task)
        dropped = sorted(copier.at[lsn] for lsn in part.dropped if lsn in copier.at)
        if dropped:
            draft.append(*encode(HistoryDropped(dropped)))
        until = len(draft.records)
        optional_up_to = self.above.optional if self.above else 0
        link = ForkedFrom(
            self.run_id,
            source.uid if source else "",
            part.step,
            part.lsn,
            self.changes.get("who", ""),
            self.changes.get("why", ""),
            part.seen,
            until,
            base,
            until
            if new_task
            else max((at for lsn, at in copier.at.items() if lsn <= optional_up_to), default=0),
        )
        task = source.task if source is not None else None
        if source is None or new_task:
            task = pack(self.changes["task"], "task")
        uid = begun.uid if begun is not None else urandom(16).hex()
        salt = (source.salt or source.uid) if source else ""
        rules = source.rules if source else None
        started = RunStarted(
            new_run_id,
            task,
            uid,
            None,
            link.packable(),
            salt,
            rules,
            **{name: getattr(source, name, None) for name in _KEPT},
        )
        packed = encode(self.subjects.of_event(started))[1]
        draft.records[0] = replace(draft.records[0], kind=started.kind, packed=packed)
        return link, draft

    # -- what goes into it

    def _part(self, at_step: int | None, up_to: int) -> _ForkSource:
        lost: list[Damage] = []

        def read(snapshot: Snapshot) -> Start | None:
            is_later = snapshot.lsn > up_to or (
                at_step is not None and checked_body(snapshot)["step"] > at_step
            )
            return None if is_later else read_whole(self.log, snapshot)

        def behind(start: Start) -> list[Item]:
            lost.clear()
            items = items_from(self.log, start.lsn + 1, [], lost)
            return [one for one in items if one[0].lsn <= up_to]

        start, items = next(starts(self.log, read, behind))
        first = items_of(start.prologue)
        dropped = dropped_by(event for _, event in (*first, *items))
        items = [
            (r, event)
            for r, event in items
            if not (r.lsn in dropped and isinstance(event, RECORDED_ANEW))
        ]
        part = _ForkSource(0, 0, 0, start.restored, first, items, dropped)
        return self._cut(part, at_step, lost)

    def _cut(self, part: _ForkSource, at_step: int | None, lost: list[Damage]) -> _ForkSource:
        """The part up to the end of the step, with the calls in flight then."""
        base, items = part.base, part.tail
        part.seen = items[-1][0].lsn if items else base.lsn if base else 0
        if base is not None and base.step == at_step and lost:
            items = []  # the checkpoint suffices
            part.seen = base.lsn
            lost = []
        end = self._end(part, items, at_step, bool(lost))
        part.lsn, part.tail = end - 1, []
        taken: set[int] = set()
        for record, event in items:
            about = getattr(event, "call", 0), outer_call(getattr(event, "scope", ""))
            # The outcome of a call in flight, and its nested calls, are copied with the call.
            if record.lsn >= end and taken.isdisjoint(about):
                part.later.append((record, event))
                continue
            part.tail.append((record, event))
            if isinstance(event, CallIntended):
                taken.add(record.lsn)
        self._check_others(part)
        missed = [
            one for one in lost if part.calls_in_flight() or one.first_lsn < end or end > part.seen
        ]
        if missed:
            error = DamagedRunError(self.run_id, missed)
            error.add_note(self._where())
            raise error
        return part

    def _check_others(self, part: _ForkSource) -> None:
        """Refuse what can belong only to the other run: a child at work, an undo."""
        open_calls = {lsn: event for lsn, _, event in part.entries if lsn in part.calls_in_flight()}
        for lsn, call in open_calls.items():
            if call.child or call.tool == UNDO_CALL:
                what = f"child run {call.child!r}" if call.child else "an undo"
                raise self._refused(
                    f"run {self.run_id!r} has {what} in flight (LSN {lsn}). Let it "
                    "end first, or fork at a step before it"
                )
        if any(isinstance(event, RunUndone) for _, event in part.tail):
            raise self._refused(f"run {self.run_id!r} was undone: fork it at a step, with at_step=")

    def _end(
        self, part: _ForkSource, items: list[Item], at_step: int | None, is_damaged: bool
    ) -> int:
        """The LSN of the first record after the step; sets which step that is."""
        base = part.base
        steps = [(r.lsn, e.step) for r, e in items if isinstance(e, StepStarted)]
        reached = max((step for _, step in steps), default=base.step if base else 0)
        part.step = reached if at_step is None else at_step
        end = min((lsn for lsn, step in steps if step > part.step), default=part.seen + 1)
        if is_damaged:
            return end
        is_cut = self.log.oldest_lsn > 1  # a submission, at LSN 1, is no item
        if base is None and (not items or is_cut or (self.above and self.above.base)):
            why = ": retention has removed it" if is_cut else ""
            raise self._refused(
                f"what run {self.run_id!r} did up to the end of step {part.step} "
                f"is not in its log{why}"
            )
        is_over = (
            at_step is None
            or end <= part.seen
            or (base is not None and base.step == reached == at_step)
            or (reached == at_step and any(isinstance(e, RunFinished) for _, e in items))
        )
        if not is_over:
            raise self._refused(
                f"run {self.run_id!r} has not reached the end of step {at_step}: "
                f"it is in step {reached} (None takes everything)"
            )
        return end

    def _copy(self, items: list[Item], copier: RecordCopier, new_task: bool) -> None:
        for record, event in items:
            # With another task, the code before the first step may change other messages.
            if _is_left_out(event) or (new_task and isinstance(event, MessagesChanged)):
                continue
            copier.copy(record, event)

    # -- the checkpoint that it begins with

    def _checkpoint(
        self, base: Restored, run_id: str, draft: RecordList, copier: RecordCopier
    ) -> int:
        """Write the checkpoint into the draft, after the conversation; returns its LSN."""
        refs: list[Ref | None] = []
        for start, stop in pieces(base.messages):
            new = pack_list([Packed(one) for one in base.messages[start:stop]])
            lsn = draft.append(*encode(MessagesChanged(start, start, new)))
            refs += [Ref(lsn, i) for i in range(stop - start)]
        messages = Messages()
        messages.restore(base.messages, refs)
        self.subjects.restored((), base.sealed)
        prologue = (1, *(copier.at[lsn] for lsn in base.prologue if lsn in copier.at))
        what = CheckpointMeta(
            run_id,
            base.step,
            base.timestamp,
            "",
            base.recoveries,
            prologue,
            base.tool_results,
            carried=base.carried,
            timestamp_text=base.timestamp_text,
            removed=base.removed,
        )
        writer = CheckpointWriter(draft, None, self.subjects.state_value)
        return writer.write(what, base.state, messages)

    def _changed(self, part: _ForkSource) -> _ForkSource:
        """The part with the changes, at the boundary that they apply to."""
        base = part.base
        if base is not None and base.step == part.step:
            part.base = self._with_changes(base)
            return part
        if "state" in self.changes:
            return self._bounded(part)
        if base is None and part.step == 0 and "messages" not in self.changes:
            return part  # only the code before the first step, which runs again
        raise self._refused(
            f"run {self.run_id!r} has no checkpoint at the end of step {part.step}, so its state "
            "there is not known: give state= too"
        )

    def _bounded(self, part: _ForkSource) -> _ForkSource:
        """The part with a checkpoint at its end, which has the changed state."""
        calls_in_flight = part.calls_in_flight()
        outlived = any(record.lsn > part.lsn for record, _ in part.tail)
        later = lowest_step(event for _, event in part.later)
        if calls_in_flight or outlived or later <= part.step:
            what = (
                f"call LSN {calls_in_flight[0]}"
                if calls_in_flight
                else "a task that it had started"
            )
            where = f"the end of step {part.step} of run {self.run_id!r}"
            raise self._refused(f"at {where}, {what} was in flight: its state cannot be changed")
        base = part.base
        tail = [(r.lsn, r.time_ns, event) for r, event in part.tail]
        needed = prologue_of(tail, base)
        time_ns = tail[-1][1] if tail else int(base.timestamp * 1e9) if base else 0
        made = Restored(
            part.lsn,
            "",
            self.run_id,
            part.step,
            time_ns / 1e9,
            (base.recoveries if base else 0) + sum(isinstance(e, RunResumed) for *_, e in tail),
            {},
            self._conversation(part),
            [],
            sorted(needed),
            None,
            "",
            tallies_of(tail, base).to_checkpoint(),
        )
        prologue = [*part.prologue, *(one for one in part.tail if one[0].lsn in needed)]
        return replace(part, base=self._with_changes(made), prologue=prologue, tail=[])

    def _with_changes(self, base: Restored) -> Restored:
        if "state" in self.changes:
            base = replace(base, state=dict(self.changes["state"]), removed=None)
        if "messages" in self.changes:
            given = self.changes["messages"]
            self.subjects.restored(base.messages, {})
            packed = [pack(one, f"messages[{i}]") for i, one in enumerate(given)]
            base = replace(base, messages=list(map(self.subjects.message, packed)))
        return base

    def _conversation(self, part: _ForkSource) -> list[bytes]:
        """The messages at the end of the part."""
        messages = list(part.base.messages) if part.base else []
        # After a checkpoint, messages of the code before the first step do not count.
        entered = part.base is None
        for _, event in part.tail:
            entered = entered or isinstance(event, StepStarted)
            if isinstance(event, MessagesChanged) and entered:
                messages[event.start : event.stop] = [
                    self._packed_of(item) if is_reference(item) else pack(item, "")
                    for item in event.new
                ]
        return messages

    def _packed_of(self, item: Ref | CompositeMessage) -> bytes:
        """The message that a reference stands for."""
        return packed_of_ref(RecordedValues(self.log.fetch), self.run_id, item)

    # -- what to say

    def _refused(self, what: str) -> RecoveryError:
        return RecoveryError(f"{what}. Nothing was written. {self._where()}")

    def _where(self) -> str:
        steps = sorted(
            {
                one.step
                for one in stored_checkpoints(self.log)
                if one.validity and one.step is not None
            }
        )
        return f"Steps with a sound checkpoint: {', '.join(map(str, steps)) or 'none'}."


def _effects(items: list[Item]) -> list[RecordedCall]:
    """The side effects among records, in the order of the log."""
    calls: dict[int, RecordedCall] = {}
    for record, event in items:
        fold(calls, record.lsn, record.time_ns, event)
    return [
        call
        for call in calls.values()
        if call.intent.after_crash != "retry" and call.may_have_run and not call.was_not_begun
    ]
