"""Reads a log: every record as a JSON-able object, every problem as a finding. Writes nothing.

    with EventLog.read(path) as reader:
        for item in dump(reader): ...          # dicts, ready for json.dumps
        for finding in verify(reader): ...     # nothing when the log is sound

Both read the log once, a segment at a time, take no lock, and work on a live log. There they do not
show the newest records, and may report a record that is being written as a torn tail (they read
again before they report it).

Bodies become JSON without loss, as ``to_json`` says. The ``bit`` of a finding is TORN (1), DAMAGED
(2), MISSING (4, a segment), BAD_SNAPSHOT (8), GAP (16, in the LSNs) or NOT_A_LOG (32).
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator

from eventlog.format.frame import LSN_MAX, SNAPSHOT
from eventlog.format.json_values import Json, from_json, to_json
from eventlog.format.record import Record, Snapshot, unpack
from eventlog.read.reader import LogReader
from eventlog.read.verify import (
    BAD_SNAPSHOT,
    DAMAGED,
    GAP,
    MISSING,
    NOT_A_LOG,
    TORN,
    DecodedFrame,
    EncryptedFrame,
    Finding,
    Totals,
    examine,
)

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


def dump(reader: LogReader, first: int = 1, last: int = LSN_MAX) -> Iterator[dict[str, Json]]:
    """Each record as a dict, and each problem as one in its position, from ``first`` to ``last``.

    Records have "type" ("record" or "snapshot"), "segment", "offset" (of their frame: records of
    one batch share it), "lsn", "kind", "time" (UTC), "time_ns", "size" (bytes of the packed body)
    and "body". For problems see ``Finding.as_json``.

    Without the key, an encrypted record has None for "kind", "time" and "time_ns". Its "size" is
    that of its frame's payload. It has "encrypted", the id of the key, instead of "body". Raises
    WrongKeyError with another key. The index is used to find LSN ``first``, so the cost depends on
    the records asked for, not on the log.
    """
    for item in examine_between(reader, first, last):
        if isinstance(item, Finding):
            yield item.as_json()
        elif isinstance(item, DecodedFrame):
            for record in item.records:
                yield {
                    **described(item.segment, item.offset, record),
                    "body": to_json(record.packed),
                }
        else:
            frame = item.frame
            lsns = range(max(first, frame.lsn), min(last + 1, frame.lsn + frame.count))
            yield from (hidden(item, lsn) for lsn in lsns)


def verify(
    reader: LogReader, segment: int = 0, totals: Totals | None = None
) -> Generator[Finding, None, Totals]:
    """Check every byte of the log that counts; yields the problems in order.

    Checks frames and their CRCs, padding, headers, footers and their digests, LSN continuity,
    snapshot digests, and that bodies can be decoded. Without the key of an encrypted log it cannot
    check the last two, nor that the records were written with the key.

    ``segment``: check only this one. Returns totals (the value of ``yield from``), which are
    ``totals`` if given: an object to be filled meanwhile. Raises WrongKeyError with another key.
    """
    totals = Totals() if totals is None else totals
    for item in examine(reader, totals, segment):
        if isinstance(item, DecodedFrame):
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


def examine_between(
    reader: LogReader, first: int, last: int
) -> Iterator[DecodedFrame | EncryptedFrame | Finding]:
    """Records and problems of LSN ``first`` to ``last``, beginning where the index says."""
    for item in examine(reader, Totals(), first=first):
        if isinstance(item, DecodedFrame):
            if item.records[0].lsn > last:
                return
            if item.records[0].lsn < first or item.records[-1].lsn > last:
                item.records = [one for one in item.records if first <= one.lsn <= last]
                if not item.records:
                    continue
        elif isinstance(item, EncryptedFrame):
            if item.frame.lsn > last:
                return
        elif item.first_lsn <= item.last_lsn:
            if item.first_lsn > last:
                return
            if item.last_lsn < first:
                continue
        yield item


def described(segment: int, offset: int, record: Record) -> dict[str, Json]:
    """The fields of a record in ``dump``, except its body."""
    return {
        "type": "snapshot" if isinstance(record, Snapshot) else "record",
        "segment": segment,
        "offset": offset,
        "lsn": record.lsn,
        "kind": record.kind,
        "time": utc(record.time_ns),
        "time_ns": record.time_ns,
        "size": len(record.packed),
    }


def hidden(found: EncryptedFrame, lsn: int) -> dict[str, Json]:
    """The fields of an encrypted record in ``dump``, without the key."""
    frame = found.frame
    return {
        "type": "snapshot" if frame.kind == SNAPSHOT else "record",
        "segment": found.segment,
        "offset": frame.offset,
        "lsn": lsn,
        "kind": None,
        "time": None,
        "time_ns": None,
        "size": frame.size,
        "encrypted": found.key_id,
    }


def utc(time_ns: int) -> str:
    """``time_ns`` as ``dump`` gives it."""
    seconds, ns = divmod(time_ns, 1_000_000_000)
    try:
        return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{ns:09d}Z"
    except (OverflowError, ValueError, OSError):  # a time that no clock gives
        return f"{time_ns} ns"


def _undecodable(found: DecodedFrame) -> Iterator[Finding]:
    for record in found.records:
        try:
            unpack(record.packed)
        except ValueError as exc:
            lsn = record.lsn
            yield Finding(
                DAMAGED,
                found.segment,
                found.offset,
                0,
                lsn,
                lsn,
                f"the body of LSN {lsn} is {exc}; its frame is sound, so it was written "
                "so and reading it raises",
            )
