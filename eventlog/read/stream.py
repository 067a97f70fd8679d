"""Reads the sound part of a segment piece by piece, with memory for one piece.

A piece stays in the processor's cache while it is checked. A whole segment would not, which costs
more than the checks. This stops at a footer, at a frame larger than a piece, and at anything that
is not a sound record; the caller examines the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from eventlog.files.api import Directory
from eventlog.format.frame import ALIGNMENT, FOOTER, HEADER_SIZE, KINDS, Frame, sound_frames
from eventlog.format.names import segment_name
from eventlog.read.segments import SegmentInfo

PIECE_SIZE = 1 << 20
_KINDS = tuple(kind for kind in KINDS if kind != FOOTER)


def sound_in_pieces(
    directory: Directory,
    info: SegmentInfo,
    start: tuple[int, int],
    passed: Callable[[bytes], object] = len,
) -> Iterator[tuple[Frame, bytes]]:
    """Frames and payloads from ``start``, an offset and the LSN there, as far as all is sound.

    ``passed`` is given all bytes before the place where this stops; from the beginning of the
    segment if ``start`` is its first frame.
    """
    offset, lsn = start
    # Not for the last segment, which is read at once, soon after the listing: between two pieces
    # the caller may pause, and a new owner may take the log.
    if (
        info.header is None
        or info.superseded_at is None
        or info.successor_unreadable
        or offset % ALIGNMENT
    ):
        return
    file = directory.open(segment_name(info.number))
    try:
        if offset == HEADER_SIZE:
            passed(file.pread(HEADER_SIZE, 0))
        while True:
            begin, buf = offset, file.pread(PIECE_SIZE, offset)
            offset, lsn = yield from sound_frames(
                buf, begin, (offset, lsn), info.superseded_at, info.header.salt, _KINDS
            )
            passed(buf[: offset - begin])
            if offset == begin:
                return
            buf = b""  # released before the next piece is read
    finally:
        file.close()
