"""Reads a sealed segment from where its footer's index points, instead of from its beginning.

The index only says where to look: each frame passes the same checks as in a scan. If anything is
not as expected, a scan finds out why. So the time from a crash to resuming does not grow with the
history (see the benchmark "From a crash to going on").
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator

from eventlog.files.api import Directory, File
from eventlog.format.durable_mark import DurableMark
from eventlog.format.footer import Footer, read_footer
from eventlog.format.frame import (
    ALIGNMENT,
    FILE_SIZE_MAX,
    FRAME_SIZE,
    HEADER_SIZE,
    PAYLOAD_SIZE_MAX,
    TRAILER_SIZE,
    Frame,
    decode_trailer,
    frame_at,
    padded,
)
from eventlog.format.names import segment_name
from eventlog.format.torn_or_damaged import Segment
from eventlog.read.segments import SegmentInfo

Wanted = Callable[[Frame], bool]

# One record of so many is wanted: to verify all payloads takes less than to skip some of them.
DENSE = 4
_TAIL_SIZE = 4096  # the footer of 8 MiB has 128 index entries, in 1.5 KiB


class Sealed:
    """A segment that ends with a sound footer, open for reading. A context manager."""

    def __init__(self, file: File, info: SegmentInfo, salt: bytes, footer: Footer) -> None:
        self._file, self._info, self._salt, self.footer = file, info, salt, footer

    @classmethod
    def open(cls, directory: Directory, info: SegmentInfo) -> Sealed | None:
        """None when the segment's header is damaged, or it has no sound footer."""
        if info.header is None:
            return None
        file = directory.open(segment_name(info.number))
        footer = None
        try:
            footer = _footer(file, info.header.salt)
        finally:
            if footer is None:
                file.close()
        return None if footer is None else cls(file, info, info.header.salt, footer)

    def __enter__(self) -> Sealed:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()

    def start(self, lsn: int) -> tuple[int, int] | None:
        """An LSN at or before ``lsn`` and the offset of its frame."""
        (first, offset), _ = self.footer.stretch(lsn)
        sound = self.has_frame(first, offset) and self._info.first_lsn <= first <= lsn
        return (first, offset) if sound and offset % ALIGNMENT == 0 else None

    def has_frame(self, lsn: int, offset: int) -> bool:
        """Whether a frame with this LSN begins at this offset."""
        frame = frame_at(self._file.pread(FRAME_SIZE, offset), offset, self._salt, offset)
        return frame is not None and frame.lsn == lsn

    def frames(self, lsns: set[int], mark: DurableMark) -> Iterator[tuple[Frame, bytes] | None]:
        """The frames with these records and their payloads, in order; ends with None when a frame
        is not where the index says."""
        left = sorted(lsns)
        while left:
            (first, offset), (behind, end) = self.footer.stretch(left[0])
            count = bisect_left(left, behind)
            here = set(left[:count])
            if not here or not self._info.first_lsn <= first <= left[0] or offset % ALIGNMENT:
                yield None
                return
            buf = self._file.pread(end - offset, offset)
            info = self._info
            segment = Segment(info.number, buf, self._salt, mark, info.superseded_at, offset)
            wanted, last = with_any_of(here), left[count - 1]
            dense = DENSE * len(here) >= behind - first
            for item in segment.walk(offset, first, None if dense else wanted):
                if not isinstance(item, tuple):
                    yield None
                    return
                frame, _ = item
                if frame.lsn in here or (frame.count > 1 and wanted(frame)):
                    yield item
                if frame.lsn + frame.count > last:
                    break
            left = left[count:]


def with_any_of(lsns: set[int]) -> Wanted:
    """A predicate: whether a frame holds one of these records."""
    ordered = sorted(lsns)

    def wanted(frame: Frame) -> bool:
        if frame.count == 1:
            return frame.lsn in lsns
        at = bisect_left(ordered, frame.lsn)
        return at < len(ordered) and ordered[at] < frame.lsn + frame.count

    return wanted


def _footer(file: File, salt: bytes) -> Footer | None:
    size = file.size()
    if not HEADER_SIZE + TRAILER_SIZE < size <= FILE_SIZE_MAX:
        return None
    base = max(0, size - _TAIL_SIZE)
    buf = file.pread(size - base, base)
    offset = decode_trailer(buf, salt)
    if offset is None or not 0 < size - offset <= padded(FRAME_SIZE + PAYLOAD_SIZE_MAX):
        return None
    if offset < base:
        base, buf = offset, file.pread(size - offset, offset)
    return read_footer(buf, salt, base)
