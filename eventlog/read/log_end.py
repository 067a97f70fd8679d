"""Describes the end of a log, and the records there that are not known to be durable."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

from eventlog.errors import Damage
from eventlog.format.durable_mark import DurableMark
from eventlog.format.footer import INDEX_STEP
from eventlog.format.frame import HEADER_SIZE, SNAPSHOT, Frame, SegmentHeader, encode_frame
from eventlog.light_dataclass import light_dataclass
from eventlog.read.segments import SegmentInfo


@light_dataclass
class Tail:
    """Where a log ends. ``number``: of its last segment; 0 for a log without segments.

    ``end_number``: of the segment that holds the end; an earlier one if the last is unreadable.
    """

    number: int
    end_number: int
    next_lsn: int
    oldest_lsn: int = 1
    header: SegmentHeader | None = None
    offset: int = 0
    snapshot: int = 0
    records: int = 0
    size: int = 0
    clean: bool = False
    torn_size: int = 0
    torn_frames: int = 0
    damaged: tuple[Damage, ...] = ()
    index: list[tuple[int, int]] = field(default_factory=list)
    sealed: bool = False  # whether it ends with a footer
    unflushed: tuple[tuple[int, bytes], ...] = ()  # offset and bytes of frames not known durable


def newest_snapshot(frames: list[Frame], mark: DurableMark) -> int:
    """The newest snapshot of a log that ends with these frames; 0 when none is known."""
    if not frames:  # what is before an empty segment is durable; only a power loss makes MARK lag
        return mark.snapshot
    return frames[-1].lsn if frames[-1].kind == SNAPSHOT else frames[-1].snapshot


def index_of(info: SegmentInfo, frames: list[Frame]) -> list[tuple[int, int]]:
    """The index of a segment with these frames, as its writer makes it."""
    index = [(info.first_lsn, HEADER_SIZE)]
    for frame in frames:
        if frame.offset - index[-1][1] >= INDEX_STEP:
            index.append((frame.lsn, frame.offset))
    return index


def encoded(
    frames: list[Frame], unflushed: list[tuple[Frame, bytes]], salt: bytes
) -> Iterator[tuple[int, bytes]]:
    """The frames that no later frame calls durable, as they were verified: not read again.

    Consecutive frames are joined, because one write of all takes as long as a write of one.
    """
    known = max((frame.durable for frame in frames), default=0)
    parts: list[bytes] = []
    start = end = 0
    for frame, payload in unflushed:
        if frame.lsn <= known:
            continue
        if frame.offset != end and parts:
            yield start, b"".join(parts)
            parts = []
        start, end = start if parts else frame.offset, frame.end
        marks = (frame.lsn, frame.durable, frame.snapshot)
        kind = frame.kind | frame.flags
        parts.append(encode_frame(salt, kind, frame.count, payload, marks))
    if parts:
        yield start, b"".join(parts)
