"""What a log says of a run, values unread: for those who decide about runs without their code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import field, replace
from typing import Any

from eventlog import Damage, Record, Snapshot
from eventlog._dataclass import dataclass
from recovery._doubt import call_of
from recovery._errors import DamagedRunError, UnreadableValueError
from recovery._events import (
    CallIntended,
    CallResolved,
    CallReturned,
    LogRepaired,
    MessagesChanged,
    RunStarted,
    SignalTaken,
    ValueRecorded,
    skim,
)
from recovery._history import (
    Ended,
    Entry,
    RunRecords,
    beginning_gone,
    ended_by,
    reaches_behind,
    unrepaired,
)
from recovery._lineage import ForkedFrom
from recovery._recorded import RecordedCall
from recovery._replay import Replay
from recovery._snapshots import (
    BrokenCheckpointError,
    checked_body,
    checkpoints_in,
    whole_prologue,
)
from recovery._stored import needs
from recovery._tool import Call
from recovery._values import pack, unpack

# What of these is let go of.
_VALUES: dict[type, str] = {
    CallReturned: "value", SignalTaken: "value", CallResolved: "value", ValueRecorded: "value",
    MessagesChanged: "new",
}  # fmt: skip
_NONE = pack(None, "")


@dataclass(slots=True)
class Point:
    """Where reading may begin: behind a checkpoint (its LSN), or at the beginning of the log (0).

    ``prologue``: what the code before the first step recorded. ``carried``: what tallies know.
    """

    lsn: int = 0
    time_ns: int = 0
    step: int = 0
    recoveries: int = 0
    carried: dict[str, Any] = field(default_factory=dict)
    prologue: list[Record] = field(default_factory=list)
    snapshot: Snapshot | None = None


@dataclass(slots=True)
class Skimmed:
    """A run from its newest checkpoint on, as ``_history.load`` reads it; no type is needed.

    The checkpoint is not restored, and so not wholly verified. ``damage``: all that is not sound;
    ``lost``: of it, what a recovery cannot do without. ``tail``: the entries behind the checkpoint.
    """

    run_id: str
    point: Point
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

    def check(self) -> None:
        """Raise what would forbid a recovery: DamagedRunError, or RecoveryError for a fork that
        was not finished."""
        if self.lost:
            raise DamagedRunError(self.run_id, self.lost)
        if self.origin is not None:
            last = max(self.point.lsn, self.entries[-1][0])
            self.origin.check(self.run_id, last, self.point.lsn, tuple(self.damage))

    def open_calls(self) -> list[RecordedCall]:
        """The calls without an outcome that a recovery would come to."""
        return [one for one in self.replay.unclaimed() if not (one.done or one.cancelled)]

    def keys(self) -> dict[int, str]:
        """The idempotency keys of the calls that are read, by LSN."""
        return {
            lsn: event.idempotency_key(self.uid)
            for lsn, _, event in self.entries
            if isinstance(event, CallIntended)
        }

    def call(self, made: RecordedCall) -> Call:
        """A recorded call for people; what of its arguments cannot be read here is ``...``."""
        given: Any = None
        try:
            given = unpack(made.intent.args) if made.intent.args is not None else None
        except (UnreadableValueError, ValueError):
            given = [[...], {}]
        args, kwargs = given if given is not None else ([], {})
        return call_of(self, made.lsn, made.intent, (tuple(args), kwargs),
                       (made.attempts, made.time_ns))  # fmt: skip


def skim_run(log: RunRecords, run_id: str) -> Skimmed:
    """Read a run from its newest checkpoint on; changes nothing. Says what is lost."""
    damage: list[Damage] = []
    for point in _points(log, damage):
        lost: list[Damage] = []
        tail = list(_light(skimmed(log.records(point.lsn + 1, on_damage=lost.append), lost)))
        # As for a recovery, see _history.load.
        if not reaches_behind(tail, point.step) and not _needs_what_is_lost(log, point, tail):
            break
    if not point.lsn and log.oldest_lsn > 1:
        lost.append(beginning_gone(log, []))
    entries = [*skimmed(point.prologue, lost), *tail]
    started = next((event for _, _, event in entries if isinstance(event, RunStarted)), None)
    origin = ForkedFrom.of(started)
    replay = Replay.of(entries, origin.optional if origin else 0, (point.step, point.lsn))
    if replay.losses is not None:
        lost += unrepaired(replay.losses, started)
    return Skimmed(
        run_id, point, entries, tail, replay, started, origin, ended_by(entries), [*damage, *lost],
        [one for one in lost if one.lost and not one.snapshot],
    )  # fmt: skip


def _needs_what_is_lost(log: RunRecords, point: Point, tail: list[Entry]) -> bool:
    """Whether the checkpoint could not be restored: a repair behind it says what is lost.

    One that was taken behind a repair refers to nothing that was lost before.
    """
    ranges = [one for _, _, event in tail if isinstance(event, LogRepaired) for one in event.ranges]
    if point.snapshot is None or not ranges:
        return False
    try:
        _, needed = needs(log, point.snapshot)
    except BrokenCheckpointError:
        return True
    return any(first <= lsn <= last for lsn in needed for first, last in ranges)


def _points(log: RunRecords, damage: list[Damage]) -> Iterator[Point]:
    for snapshot in checkpoints_in(log, damage.append):
        try:
            body = checked_body(snapshot)
            prologue = whole_prologue(log, snapshot.lsn, body["prologue"], body["generation"])
        except BrokenCheckpointError:
            continue
        yield Point(snapshot.lsn, snapshot.time_ns, body["step"], body["recoveries"],
                    body["carried"], prologue, snapshot)  # fmt: skip
    yield Point()


def _light(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Without values that nobody decides by: all of them together may be larger than memory. The
    last entry keeps its own, to be shown."""
    before: tuple[int, int, Any] | None = None
    for entry in entries:
        if before is not None:
            lsn, time_ns, event = before
            name = _VALUES.get(type(event))
            yield before if name is None else (lsn, time_ns, replace(event, **{name: _NONE}))
        before = entry
    if before is not None:
        yield before


def skimmed(records: Iterable[Record], lost: list[Damage]) -> Iterator[Entry]:
    """The events of records, values unread; notes records that make no sense as lost."""
    for record in records:
        try:
            event = skim(record)
        except ValueError as exc:
            lost.append(Damage(0, 0, len(record.packed), record.lsn, record.lsn, str(exc)))
            continue
        if event is not None:
            yield record.lsn, record.time_ns, event
