"""Pairs each record with its position and its meaning in the run of the log, in order."""

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
from recovery.journal.encoding import decode_shallow
from recovery.replay.progress import ProgressTally

# To show the middle of a log, so many records before it are read, to know the step and the calls
# in flight. No more than the segment has, because records may be large.
WARM_UP = 2000
_LOOKED_AT = 20  # records that are read to see whether the log is a run's


@dataclass(slots=True)
class Row:
    """A record. ``record`` is None when it is encrypted and there is no key (``hidden``).

    ``event``: its meaning; None in a log that is no run. ``step``: None where it is unknown.
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
        """The tool of the record's call; "" where it is unknown."""
        return self.record.kind if self.record is not None else ""

    @property
    def tool(self) -> str:
        """The id of the record's call; "" when it is about no call."""
        return self.event.tool if self.event is not None else ""

    @property
    def size(self) -> int:
        """Bytes of the packed body; without a key, of the frame's payload."""
        if self.record is not None:
            return len(self.record.packed)
        return self.hidden.frame.size if self.hidden is not None else 0

    def as_json(self) -> dict[str, Json]:
        """The fields that ``logdump dump --json`` has for it, except the body."""
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
    """Interprets records, which must come in order from LSN ``first`` on."""

    def __init__(self, reader: LogReader, run_id: str, first: int) -> None:
        self._events = EventReader(run_id, ProgressTally(), reader.fetch)
        begin = _begin(reader, first)
        self.is_run = _is_run(reader, begin)
        self._knows_step = begin <= 1  # else as soon as a record says it
        if self.is_run and begin < first:
            for record in islice(reader.records(begin, on_damage=_pass_over), first - begin):
                if record.lsn < first:
                    self._event_of(record)

    def row(self, segment: int, offset: int, record: Record) -> Row:
        """The record with its meaning."""
        event = self._event_of(record) if self.is_run else None
        step = None if event is None or not (event.step or self._knows_step) else event.step
        if step is not None and step >= 1 << 63:  # forged: it has more digits than Python prints
            step = None
        return Row(segment, offset, record.lsn, record, event, step)

    def _event_of(self, record: Record) -> RunEvent | None:
        if record.kind == "step" or isinstance(record, Snapshot):
            self._knows_step = True
        try:
            return self._events.from_log(record)
        except (LogError, RecoveryError, ValueError, TypeError):  # not written by a run
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
    """The LSN to read from, to know the meaning of record ``first``."""
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
        return decode_shallow(record) is not None
    except (RecoveryError, ValueError):
        return False


def _pass_over(_: object) -> None:
    """Ignores damage, which is reported where it is shown."""
