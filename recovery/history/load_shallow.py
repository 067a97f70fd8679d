"""Loads a run's history without its values, for tools that have no code of the run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from eventlog import Damage, LogRecords, ReadableLog, Record
from recovery.errors import DamagedRunError, UnreadableValueError
from recovery.history.choose_checkpoint import Start, beginning_gone, read_shallow, starts
from recovery.history.inventory import needs
from recovery.history.load import Ended, Entry, ended_by, unrepaired
from recovery.history.restore_checkpoint import BrokenCheckpointError
from recovery.history.signed_resolutions import Resolutions
from recovery.journal.call import Call
from recovery.journal.encoding import decode_shallow
from recovery.journal.events import (
    CallIntended,
    CallResolved,
    CallReturned,
    LogRepaired,
    MessagesChanged,
    RunStarted,
    SignalTaken,
    ValueRecorded,
)
from recovery.journal.forked_from import ForkedFrom
from recovery.replay.call_view import call_view
from recovery.replay.matching import Replay
from recovery.replay.recorded_call import RecordedCall
from recovery.replay.running_totals import Accumulator
from recovery.values.pack import PACKED_NONE, unpack

if TYPE_CHECKING:
    from recovery.journal.signed_statement import Signatures

Tally = TypeVar("Tally", bound=Accumulator)

# The field of each event whose value is dropped.
_VALUES: dict[type, str] = {
    CallReturned: "value",
    SignalTaken: "value",
    CallResolved: "value",
    ValueRecorded: "value",
    MessagesChanged: "new",
}


@dataclass(slots=True, eq=False)
class ShallowHistory:
    """A run from its newest checkpoint on, as ``history.load`` reads it; no type is needed.

    The checkpoint is not restored, and so not wholly verified. ``damage``: all damage found;
    ``lost``: the part of it that forbids a recovery. ``tail``: the entries after the checkpoint.
    """

    run_id: str
    start: Start
    entries: list[Entry]
    tail: list[Entry]
    replay: Replay
    started: RunStarted | None
    origin: ForkedFrom | None
    ended: Ended | None
    damage: list[Damage]
    lost: list[Damage]

    @property
    def uid(self) -> str:
        """See History.uid."""
        return self.started.uid if self.started is not None else ""

    @property
    def fence(self) -> int:
        """0: for a process that only reads the run, see Call."""
        return 0

    def check(self) -> None:
        """Raise the error that forbids a recovery: DamagedRunError, or RecoveryError for a fork
        that was not finished."""
        if self.lost:
            raise DamagedRunError(self.run_id, self.lost)
        if self.origin is not None:
            last = max(self.start.lsn, self.entries[-1][0])
            self.origin.check(self.run_id, last, self.start.lsn, tuple(self.damage))

    def open_calls(self) -> list[RecordedCall]:
        """The calls without an outcome that a recovery would replay."""
        return [one for one in self.replay.unmatched() if not (one.has_outcome or one.cancelled)]

    def tallied(self, one: Tally) -> Tally:
        """An accumulator, with what it wants to know of the run."""
        with suppress(KeyError, ValueError):  # of a version with other contents
            one.from_checkpoint(self.start.carried[one.name])
        for entry in self.tail:
            if type(entry[2]) in one.wants:
                one.observe(*entry)
        return one

    def keys(self) -> dict[int, str]:
        """The idempotency keys of the calls that were read, by LSN."""
        return {
            lsn: event.idempotency_key(self.uid)
            for lsn, _, event in self.entries
            if isinstance(event, CallIntended)
        }

    def call(self, made: RecordedCall) -> Call:
        """The public view of a recorded call; arguments that cannot be read here are ``...``."""
        given: Any = None
        try:
            given = unpack(made.intent.args) if made.intent.args is not None else None
        except (UnreadableValueError, ValueError):
            given = [[...], {}]
        args, kwargs = given if given is not None else ([], {})
        return call_view(
            self, made.lsn, made.intent, (tuple(args), kwargs), (made.attempts, made.time_ns)
        )


def load_shallow(
    log: LogRecords, run_id: str, approvers: Signatures | None = None
) -> ShallowHistory:
    """Read a run from its newest checkpoint on; changes nothing. Reports lost records.

    ``approvers``: see history.load.
    """
    damage: list[Damage] = []
    lost: list[Damage] = []
    before: list[Entry] = []

    def behind(start: Start) -> list[Entry]:
        lost.clear()
        counting = Resolutions(run_id, approvers)
        before[:] = counting.of_entries(shallow_events(start.prologue, lost))
        later = shallow_events(log.records(start.lsn + 1, on_damage=lost.append), lost)
        return list(_without_values(counting.of_entries(later)))

    for start, tail in starts(log, partial(read_shallow, log), behind, damage.append):
        if not _needs_what_is_lost(log, start, tail):
            break
    if not start.lsn and log.oldest_lsn > 1:
        lost.append(beginning_gone(log, []))
    entries = [*before, *tail]
    started = next((event for _, _, event in entries if isinstance(event, RunStarted)), None)
    origin = ForkedFrom.of(started)
    replay = Replay.of(entries, origin.optional if origin else 0, (start.step, start.lsn))
    if replay.losses is not None:
        lost += unrepaired(replay.losses, started)
    return ShallowHistory(
        run_id,
        start,
        entries,
        tail,
        replay,
        started,
        origin,
        ended_by(entries),
        [*damage, *lost],
        [one for one in lost if one.lost and not one.snapshot],
    )


def _needs_what_is_lost(log: LogRecords, start: Start, tail: list[Entry]) -> bool:
    """Whether the checkpoint could not be restored, because a later repair declares records lost.

    A checkpoint that was taken after a repair refers to no record that was lost before.
    """
    ranges = [one for _, _, event in tail if isinstance(event, LogRepaired) for one in event.ranges]
    if start.snapshot is None or not ranges:
        return False
    try:
        _, needed = needs(log, start.snapshot)
    except BrokenCheckpointError:
        return True
    return any(first <= lsn <= last for lsn in needed for first, last in ranges)


def _without_values(entries: Iterable[Entry]) -> Iterator[Entry]:
    """The entries without their values, which together may be larger than memory. The last entry
    keeps its value, to be shown."""
    before: tuple[int, int, Any] | None = None
    for entry in entries:
        if before is not None:
            lsn, time_ns, event = before
            name = _VALUES.get(type(event))
            yield before if name is None else (lsn, time_ns, replace(event, **{name: PACKED_NONE}))
        before = entry
    if before is not None:
        yield before


def shallow_events(records: Iterable[Record], lost: list[Damage]) -> Iterator[Entry]:
    """The events of records, without decoding values; adds senseless records to ``lost``."""
    for record in records:
        try:
            event = decode_shallow(record)
        except ValueError as exc:
            lost.append(Damage.of_records(record.lsn, record.lsn, str(exc)))
            continue
        if event is not None:
            yield record.lsn, record.time_ns, event


def ended_in(log: ReadableLog) -> Ended | None:
    """How the run has ended, as far as its log can be read."""
    # A run that has ended takes no checkpoint, so all decisions are after the last one.
    start = log.tail().snapshot or 1
    return ended_by(shallow_events(log.records(start, on_damage=lambda damage: None), []))
