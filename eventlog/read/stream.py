"""The sound part of a segment, read piece by piece: memory for one piece, however large it is.

A piece stays in the processor's cache while it is checked, which reading a segment as a whole
does not: that costs more than the checks. What is not plain, or does not fit into a piece, is left
to those who look closer, and so is a footer.
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

    ``passed`` is given all bytes up to there, from the beginning of the segment if that is where
    the first frame is.
    """
    offset, lsn = start
    # Of the last segment all is read at once, soon after the listing said that it is the last: a
    # reader may take its time between two pieces, and a new owner the log.
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
            buf = b""  # let go of before the next one is read
    finally:
        file.close()
