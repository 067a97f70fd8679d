"""Loads a run's history: the newest checkpoint that verifies, and the events after it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from eventlog import Damage, LogRecords, Packed, Record
from recovery.errors import DamagedRunError, RecoveryError, UnreadableValueError
from recovery.history.choose_checkpoint import Start, beginning_gone, read_whole, starts
from recovery.history.restore_checkpoint import Restored
from recovery.history.signed_resolutions import Resolutions
from recovery.history.subject_values import SubjectValues, sealed_outcome
from recovery.journal.call_key import BEFORE_STEPS
from recovery.journal.contract_version import CURRENT, Rules, version_of
from recovery.journal.encoding import decode
from recovery.journal.events import (
    AgentRaised,
    CallIntended,
    CallResolved,
    CallReturned,
    DivergenceAccepted,
    Event,
    HistoryDropped,
    MessagesChanged,
    RecordsLost,
    RunCancelled,
    RunFailed,
    RunFinished,
    RunResumed,
    RunStarted,
    RunUndone,
    StepStarted,
)
from recovery.journal.forked_from import ForkedFrom
from recovery.journal.signed_statement import RESOLVE, has_to_be_signed
from recovery.replay.lost_records import LostRecords
from recovery.replay.matching import Replay
from recovery.replay.running_totals import Accumulators, CodeTally
from recovery.values.backrefs import CompositeMessage, RecordedValues, is_reference, resolve
from recovery.values.pack import pack, unpack
from recovery.values.types import Ref

if TYPE_CHECKING:
    from recovery.journal.signed_statement import Signatures

_logger = logging.getLogger("recovery")

Entry = tuple[int, int, Event]  # LSN, time in ns, event
Ended = RunFinished | RunFailed | RunUndone | RunCancelled
Item = tuple[Record, Event]


class Listener(Protocol):
    """Receives each event after it is recorded."""

    def count_served(self, served: Callable[[], int]) -> None: ...
    def event(self, lsn: int, time_ns: int, event: Event, packed: Packed) -> None: ...
    def checkpoint(self, lsn: int, time_ns: int, step: int) -> None: ...
    def close(self) -> None: ...


class SpanListener(Listener, Protocol):
    """A listener that emits spans, and has to know in which of them the present code is."""

    def enter(self, scope: Any) -> Callable[[], None] | None: ...


@dataclass(slots=True, eq=False)
class History:
    """A run, read from its log and ready to be replayed."""

    run_id: str
    log: LogRecords
    restored: Restored | None
    entries: list[Entry]
    replay: Replay
    prologue: list[int]
    started: RunStarted | None
    ended: Ended | None
    recoveries: int
    damage: tuple[Damage, ...]
    broken: tuple[str, ...]
    tallies: Accumulators
    accepted: bool = False  # whether the code may diverge once
    origin: ForkedFrom | None = None
    listeners: tuple[Listener, ...] = ()
    spans: SpanListener | None = None  # one of them
    size: int = 0  # bytes of the records after the checkpoint, which a recovery has to read
    whole: bool = False  # see load
    code: str = ""  # the digest of the agent's present code; "" if it is unknown
    subjects: SubjectValues = field(default_factory=SubjectValues)
    replayed: int = field(init=False)
    _values: RecordedValues = field(init=False)

    def __post_init__(self) -> None:
        self.replayed = len(self.entries)
        if self.restored is not None:
            code = self.restored.carried.get(CodeTally.name, "")
            self.replay.codes.append((self.restored.lsn, code))
        self._values = RecordedValues(
            self.log.fetch,
            {
                lsn: event.value
                for lsn, _, event in self.entries
                if self.replay.changes
                if isinstance(event, CallReturned | CallResolved)
            },
        )

    def forget_values(self) -> None:
        """Free recorded values, when no recorded message is left that the code may still replay."""
        self._values = RecordedValues(self.log.fetch)

    @property
    def uid(self) -> str:
        """The id that distinguishes the run from others of its name: an agent has begun it."""
        assert self.started is not None
        return self.started.uid

    @property
    def fence(self) -> int:
        """0: for a process that only reads the run, see Call."""
        return 0

    @property
    def rules(self) -> int:
        """The version of the contract that the run was begun under; 1 for runs of older libraries.

        If a later version gives a record another meaning, the run keeps to its own version.
        """
        return version_of(self.started.rules if self.started is not None else None)

    def rules_to_raise(self) -> Rules | None:
        """The rules to record once in a run of an older library, so that the older library refuses
        it from now on."""
        known = self.rules >= CURRENT or any(
            isinstance(event, RunResumed) and event.rules is not None
            for _, _, event in self.entries
        )
        return None if known else Rules(CURRENT)

    @property
    def step(self) -> int:
        """The step at whose end the checkpoint was taken; 0 without one."""
        return self.restored.step if self.restored else 0

    @property
    def has_another_task(self) -> bool:
        """Whether it begins, as a fork, with a checkpoint of a run that had another task."""
        origin, restored = self.origin, self.restored
        return bool(origin and origin.optional and restored and restored.lsn <= origin.until)

    def packed_of(self, item: Any) -> bytes:
        """A recorded message, packed: itself, or the message that it refers to."""
        if not is_reference(item):
            return pack(item, "message")
        return packed_of_ref(self._values, self.run_id, item)


def packed_of_ref(values: RecordedValues, run_id: str, item: Ref | CompositeMessage) -> bytes:
    """The packed message that is elsewhere in the log of a run; DamagedRunError when it is lost."""
    try:
        return resolve(values, [item])[0][0]
    except (KeyError, IndexError, TypeError, ValueError) as exc:
        lsn = getattr(exc, "lsn", min(item.lsns))
        lost = Damage.of_records(lsn, lsn, "holds a message that a later record refers to")
        raise DamagedRunError(run_id, [lost]) from None


def value_of_ref(values: RecordedValues, run_id: str, item: Ref | CompositeMessage) -> Any:
    """The same as a value."""
    packed = packed_of_ref(values, run_id, item)
    try:
        return unpack(packed)
    except UnreadableValueError as exc:
        raise exc.at(min(item.lsns)) from exc.__cause__
    except ValueError as exc:
        lsn = min(item.lsns)
        raise DamagedRunError(run_id, [Damage.of_records(lsn, lsn, str(exc))]) from None


def load(
    log: LogRecords, run_id: str, approvers: Signatures | None = None, *, whole: bool = False
) -> History:
    """Read a run's history; changes nothing. ``approvers``: resolutions without a signature of
    theirs are left out. ``whole``: for an agent that takes no checkpoints, and is replayed from its
    first line: no checkpoint of the run is used, if it can be read from its beginning.

    If a checkpoint is damaged, an earlier one is used, or none at all. Raises DamagedRunError when
    other records are lost: one of them may be a call that was made.
    """
    damage: list[Damage] = []
    broken: list[str] = []
    lost: list[Damage] = []
    before: list[Entry] = []

    def behind(start: Start) -> list[Item]:
        lost.clear()
        counting = Resolutions(run_id, approvers)
        before[:] = [_entry(item) for item in counting.of_items(items_of(start.prologue))]
        items = items_from(log, start.lsn + 1, damage, lost, repaired=True)
        return list(counting.of_items(items))

    usual = starts(log, partial(read_whole, log), behind, damage.append, broken.append)
    start, items = _beginning(log, run_id, behind, lost, usual) if whole else next(usual)
    restored = start.restored
    tail = [_entry(item) for item in items]
    entries = before + tail
    if restored is None and log.oldest_lsn > 1:
        lost.append(beginning_gone(log, broken))
    if lost:
        raise DamagedRunError(run_id, lost)
    for reason in broken:
        _logger.warning("run %s: %s; an earlier one stands in", run_id, reason)
    started = next((e for _, _, e in entries if isinstance(e, RunStarted)), None)
    origin = ForkedFrom.of(started)
    at = (restored.step, restored.lsn) if restored else (0, 0)
    replay = Replay.of(entries, origin.optional if origin else 0, at)
    if replay.losses is not None and (lost := unrepaired(replay.losses, started)):
        raise DamagedRunError(run_id, lost)
    if origin is not None:
        last = max(restored.lsn if restored else 0, entries[-1][0])
        origin.check(run_id, last, restored.lsn if restored else 0, (*damage, *broken))
    return History(
        run_id,
        log,
        restored,
        entries,
        replay,
        list(prologue_of(tail, restored)),
        started,
        ended_by(entries),
        (restored.recoveries if restored else 0)
        + sum(isinstance(e, RunResumed) for _, _, e in tail),
        tuple(dict.fromkeys(damage)),
        tuple(broken),
        tallies_of(tail, restored),
        _accepted(tail),
        origin,
        size=sum(len(record.packed) for record, _ in items),
        whole=whole,
        subjects=_subject_values(entries, (*start.prologue, *(record for record, _ in items))),
    )


def _beginning(
    log: LogRecords,
    run_id: str,
    behind: Callable[[Start], list[Item]],
    lost: list[Damage],
    usual: Iterator[tuple[Start, list[Item]]],
) -> tuple[Start, list[Item]]:
    """The beginning of the log; else the usual start. So it is where records are missing, and for a
    fork, whose checkpoint may hold another state than its records lead to."""
    if log.oldest_lsn == 1:
        start = Start()
        items = behind(start)
        began = next((event for _, event in items if isinstance(event, RunStarted)), None)
        is_cut = lost or any(isinstance(event, RecordsLost) for _, event in items)
        if not is_cut and ForkedFrom.of(began) is None:
            return start, items
    start, items = next(usual)
    if start.lsn:
        _logger.warning(
            "run %s: it cannot be replayed from its first record, so it resumes from %s: local "
            "variables are fresh, though checkpoint_every_n is None.",
            run_id,
            start,
        )
    return start, items


def _subject_values(entries: Iterable[Entry], records: Iterable[Record]) -> SubjectValues:
    """What the records say of subjects."""
    outcomes = (one for one in records if one.kind in ("outcome", "signal", "resolved"))
    sealed = {one.lsn: keys for one in outcomes if (keys := sealed_outcome(one.packed))}
    found = SubjectValues(sealed)
    for lsn, _, event in entries:
        if isinstance(event, CallIntended):
            found.note_call(lsn, event.subject)
    return found


def unrepaired(losses: LostRecords, started: RunStarted | None) -> list[Damage]:
    """The gaps with which the run cannot be recovered."""
    lost = losses.undeclared()
    what = "lost, and the repair of the log was interrupted: `logdump repair` finishes it"
    if not lost and started is None:
        # It says what the task was, and makes the idempotency keys of all calls.
        lost, what = losses.gaps[:1], "lost, and with them the record with which the run began"
    return [Damage.of_records(gap.first, gap.last, what) for gap in lost]


def items_of(prologue: Iterable[Record]) -> list[Item]:
    """The events of the code before the first step, from a checkpoint."""
    return [item for record in prologue for item in _item(record, [])]


def items_from(
    log: LogRecords, start: int, damage: list[Damage], lost: list[Damage], repaired: bool = False
) -> Iterator[Item]:
    """The events from LSN ``start`` on; reports damage, and the records that are lost by it.

    Records that were lost before a repair are reported too. A caller that handles them
    (``repaired``) gets them among the events instead.
    """

    def on_damage(found: Damage) -> None:
        (damage if found.snapshot or not found.lost else lost).append(found)

    for record in log.records(start, on_damage=on_damage):
        if record.kind != RecordsLost.kind:
            yield from _item(record, lost)
            continue
        for item in _item(record, lost):
            assert isinstance(item[1], RecordsLost)
            if item[1].last and (repaired or item[1].snapshot):
                yield item
            elif item[1].last:
                on_damage(Damage.of_records(record.lsn, item[1].last, "lost before a repair"))


def decoded(
    log: LogRecords, start: int, damage: list[Damage], lost: list[Damage]
) -> Iterator[Entry]:
    """``items_from``, without the records."""
    return map(_entry, items_from(log, start, damage, lost))


def _item(record: Record, lost: list[Damage]) -> list[Item]:
    try:
        event = decode(record)
    except ValueError as exc:
        lost.append(Damage.of_records(record.lsn, record.lsn, str(exc)))
        return []
    return [] if event is None else [(record, event)]


def _entry(item: Item) -> Entry:
    record, event = item
    return record.lsn, record.time_ns, event


def prologue_of(tail: list[Entry], restored: Restored | None) -> dict[int, None]:
    """The LSNs that the code before the first step needs on replay."""
    needed = dict.fromkeys(restored.prologue if restored else [])
    before = restored is None
    for lsn, _, event in tail:
        before = before and not isinstance(event, StepStarted)
        scope, call = getattr(event, "scope", ""), getattr(event, "call", 0)
        if isinstance(event, AgentRaised):
            continue
        if isinstance(event, MessagesChanged):  # a checkpoint holds the messages
            continue
        if isinstance(event, RunResumed):
            if event.rules is not None:  # so that an older library always sees it
                needed[lsn] = None
            continue
        if before or scope == BEFORE_STEPS or call in needed:
            needed[lsn] = None
        if isinstance(event, HistoryDropped) and not needed.keys().isdisjoint(event.records):
            needed[lsn] = None
    return needed


def tallies_of(tail: list[Entry], restored: Restored | None) -> Accumulators:
    """The totals of the checkpoint and the events after it."""
    tallies = Accumulators(restored.carried if restored else {})
    for entry in tail:
        tallies.observe(*entry)
    return tallies


def _accepted(tail: list[Entry]) -> bool:
    accepted = False
    for _, _, event in tail:
        match event:
            case HistoryDropped(drift=None):  # other drift was harmless, and used up no acceptance
                accepted = False
            case DivergenceAccepted(inbox=None):
                accepted = True
    return accepted


def ended_by(entries: Iterable[Entry]) -> Ended | None:
    """How a run ended, if it did."""
    ended: Ended | None = None
    for _, _, event in entries:
        if isinstance(event, Ended):
            ended = event
        elif (
            isinstance(event, CallResolved)
            and isinstance(ended, RunFailed)
            and event.call == ended.call
        ):
            ended = None  # the failed call was resolved, so the run continues
        elif isinstance(event, RunResumed) and isinstance(ended, RunFinished):
            ended = None  # a conversation, which was opened again
    return ended


def check_known(history: History, approvers: Signatures | None) -> None:
    """Raise RecoveryError if an agent would continue by a resolution that this process cannot
    verify."""
    if approvers is not None or not has_to_be_signed(RESOLVE, history.started, None):
        return
    for _, _, event in history.entries:
        if isinstance(event, CallResolved) and not event.by_policy:
            raise RecoveryError(
                f"run {history.run_id!r} cannot continue here: the resolution of call {event.call} "
                f"by {event.who!r} counts only when it is signed, and the store of this process "
                "has no approvers= to verify it with. Nothing was executed. Give the store the "
                "approvers= that it had."
            )
