"""Look at a log: every record as a JSON-able object, every problem as a finding. Reads only.

    with EventLog.read(path) as reader:
        for item in dump(reader): ...          # dicts, ready for json.dumps
        for finding in verify(reader): ...     # nothing when the log is sound

Both go through the log once, a segment at a time, take no lock, and work on a live log. What they
may show wrongly there: records of the last moments are not seen; a record that was being written
may show up as a torn tail (they look again before they say so).

Bodies become JSON without loss, as ``to_json`` says.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator

from eventlog._examine import (
    BAD_SNAPSHOT,
    DAMAGED,
    GAP,
    MISSING,
    NOT_A_LOG,
    TORN,
    Finding,
    Found,
    Hidden,
    Totals,
    examine,
)
from eventlog._frame import SNAPSHOT
from eventlog._json import Json, from_json, to_json
from eventlog._reader import LogReader
from eventlog._record import Record, Snapshot, unpack

__all__ = [
    "BAD_SNAPSHOT",
    "DAMAGED",
    "GAP",
    "MISSING",
    "NOT_A_LOG",
    "TORN",
    "Finding",
    "Json",
    "Totals",
    "dump",
    "from_json",
    "to_json",
    "verify",
]


def dump(reader: LogReader) -> Iterator[dict[str, Json]]:
    """Each record as a dict, and each problem as one in its place.

    Records have "type" ("record" or "snapshot"), "segment", "offset" (of their frame: records of
    one batch share it), "lsn", "kind", "time" (UTC), "time_ns", "size" (bytes of the packed body)
    and "body"; problems as in ``Finding.as_json``. Of an encrypted record, without the key, "kind",
    "time" and "time_ns" are None, "size" is that of its frame's payload, and in place of the body
    is "encrypted", the id of the key. Raises WrongKeyError with another key.
    """
    for item in examine(reader, Totals()):
        if isinstance(item, Finding):
            yield item.as_json()
        elif isinstance(item, Found):
            yield from (_record_as_json(item, record) for record in item.records)
        else:
            yield from _hidden_as_json(item)


def verify(reader: LogReader, segment: int = 0) -> Generator[Finding, None, Totals]:
    """Check every byte of the log that counts; what is wrong with it, in order.

    Frames and their CRCs, padding, headers, footers and their digests, LSN continuity, snapshot
    digests, and that bodies can be decoded. Without the key of an encrypted log all but the last
    two, and what only the key can tell: that records were written with it. ``segment``: of this one
    alone, whatever else is there. Returns totals (the value of ``yield from``). Raises
    WrongKeyError with another key.
    """
    totals = Totals()
    for item in examine(reader, totals, segment):
        if isinstance(item, Found):
            try:
                for record in item.records:
                    unpack(record.packed)
            except ValueError:
                totals.exit_code |= DAMAGED
                yield from _undecodable(item)
        elif isinstance(item, Finding):
            totals.exit_code |= item.bit
            yield item
    return totals


def _record_as_json(found: Found, record: Record) -> dict[str, Json]:
    return {
        "type": "snapshot" if isinstance(record, Snapshot) else "record",
        "segment": found.segment, "offset": found.offset, "lsn": record.lsn, "kind": record.kind,
        "time": _utc(record.time_ns), "time_ns": record.time_ns, "size": len(record.packed),
        "body": to_json(record.packed),
    }  # fmt: skip


def _hidden_as_json(hidden: Hidden) -> Iterator[dict[str, Json]]:
    frame = hidden.frame
    for lsn in range(frame.lsn, frame.lsn + frame.count):
        yield {
            "type": "snapshot" if frame.kind == SNAPSHOT else "record",
            "segment": hidden.segment, "offset": frame.offset, "lsn": lsn, "kind": None,
            "time": None, "time_ns": None, "size": frame.size, "encrypted": hidden.key_id,
        }  # fmt: skip


def _utc(time_ns: int) -> str:
    seconds, ns = divmod(time_ns, 1_000_000_000)
    try:
        return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{ns:09d}Z"
    except (OverflowError, ValueError, OSError):  # a time that no clock of ours has given
        return f"{time_ns} ns"


def _undecodable(found: Found) -> Iterator[Finding]:
    for record in found.records:
        try:
            unpack(record.packed)
        except ValueError as exc:
            lsn = record.lsn
            yield Finding(DAMAGED, found.segment, found.offset, 0, lsn, lsn,
                          f"the body of LSN {lsn} is {exc}; its frame is sound, so it was written "
                          "so and reading it raises")  # fmt: skip
