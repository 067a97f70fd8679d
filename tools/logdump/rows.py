"""Records in order, each with where it is and what it means in the run that the log is of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from eventlog import LogError, LogReader, Record, Snapshot
from eventlog.dump import Json, described, examine_between, hidden
from eventlog.errors import EncryptedLogError
from eventlog.read.verify import DecodedFrame, EncryptedFrame, Finding
from recovery import RecoveryError
from recovery.inspect.run_event import EventReader, RunEvent, carried_by
from recovery.journal.encoding import skim
from recovery.replay.progress import ProgressTally

# Where the middle of a log is shown, so many records before it are read to know the step and the
# calls under way; no more than the segment has, for records may be large.
WARM_UP = 2000
_LOOKED_AT = 20  # the records by which a run's log is known


@dataclass(slots=True)
class Row:
    """A record. ``record`` is None when it is encrypted and there is no key (``hidden``).

    ``event``: what it means; None in a log of no run. ``step``: None where it is not known.
    """

    segment: int
    offset: int
    lsn: int
    record: Record | None
    event: RunEvent | None = None
    step: int | None = None
    hidden: EncryptedFrame | None = None

    @property
    def kind(self) -> str:
        """Of the record; "" where that is not known."""
        return self.record.kind if self.record is not None else ""

    @property
    def tool(self) -> str:
        """Of the call that it is about; "" where it is about none."""
        return self.event.tool if self.event is not None else ""

    @property
    def size(self) -> int:
        """Bytes of the packed body; of the frame's payload, where that is all there is to see."""
        if self.record is not None:
            return len(self.record.packed)
        return self.hidden.frame.size if self.hidden is not None else 0

    def as_json(self) -> dict[str, Json]:
        """What ``logdump dump --json`` says of it, but for the body."""
        if self.record is None:
            assert self.hidden is not None
            return hidden(self.hidden, self.lsn)
        found = described(self.segment, self.offset, self.record)
        if self.step is not None:
            found["step"] = self.step
        if self.event is not None and self.event.call:
            found |= {
                "tool": self.event.tool,
                "call": self.event.call,
                "attempt": self.event.attempt,
            }
        if self.event is not None and self.event.duration_s is not None:
            found["duration_s"] = self.event.duration_s
        return found


class Narrator:
    """Says what records mean, which have to come in order from LSN ``first`` on."""

    def __init__(self, reader: LogReader, run_id: str, first: int) -> None:
        self._events = EventReader(run_id, ProgressTally(), reader.fetch)
        begin = _begin(reader, first)
        self.is_run = _is_run(reader, begin)
        self._knows_step = begin <= 1  # else as soon as something says it
        if self.is_run and begin < first:
            for record in islice(reader.records(begin, on_damage=_pass_over), first - begin):
                if record.lsn < first:
                    self._event_of(record)

    def row(self, segment: int, offset: int, record: Record) -> Row:
        """The record with what it means."""
        event = self._event_of(record) if self.is_run else None
        step = None if event is None or not (event.step or self._knows_step) else event.step
        return Row(segment, offset, record.lsn, record, event, step)

    def _event_of(self, record: Record) -> RunEvent | None:
        if record.kind == "step" or isinstance(record, Snapshot):
            self._knows_step = True
        try:
            return self._events.from_log(record)
        except (LogError, RecoveryError, ValueError, TypeError):  # what no run has written
            return None


def rows(reader: LogReader, narrator: Narrator, first: int, last: int) -> Iterator[Row | Finding]:
    """Records from LSN ``first`` to ``last``, and all problems there, in order."""
    for item in examine_between(reader, first, last):
        if isinstance(item, DecodedFrame):
            for record in item.records:
                yield narrator.row(item.segment, item.offset, record)
        elif isinstance(item, EncryptedFrame):
            frame = item.frame
            for lsn in range(max(first, frame.lsn), min(last + 1, frame.lsn + frame.count)):
                yield Row(item.segment, frame.offset, lsn, None, hidden=item)
        else:
            yield item


def _begin(reader: LogReader, first: int) -> int:
    """From where on to read to know what record ``first`` means."""
    if first <= 1:
        return 1
    try:
        places = reader.listing.segments_from(first - 1)[1]
    except LogError:
        return first
    return max(first - WARM_UP, places[0].first_lsn if places else 1, 1)


def _is_run(reader: LogReader, begin: int) -> bool:
    try:
        records = islice(reader.records(begin, on_damage=_pass_over), _LOOKED_AT)
        return any(_is_event(record) for record in records)
    except EncryptedLogError:
        return False
    except LogError:
        return False


def _is_event(record: Record) -> bool:
    if isinstance(record, Snapshot):
        return carried_by(record)[0] is not None
    try:
        return skim(record) is not None
    except (RecoveryError, ValueError):
        return False


def _pass_over(_: object) -> None:
    """Damage is told where it is shown."""
