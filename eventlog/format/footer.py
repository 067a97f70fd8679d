"""Encodes and decodes the footer of a segment: its index, and a digest of the segment. Pure."""

from __future__ import annotations

from bisect import bisect_right

import msgpack
import xxhash

from eventlog.format.frame import BEYOND, FOOTER, HEADER_SIZE, decode_trailer, frame_at, payload_of
from eventlog.light_dataclass import light_dataclass

INDEX_STEP = 64 << 10  # one index entry for so many bytes: 128 entries in 8 MiB


@light_dataclass
class Footer:
    """The footer of a sealed segment. A scan can rebuild everything in it."""

    offset: int
    next_lsn: int
    snapshot: int
    clean: bool
    index: list[tuple[int, int]]
    digest: bytes

    def stretch(self, lsn: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """The (LSN, offset) at which the indexed stretch with record ``lsn`` begins and ends."""
        after = max(1, bisect_right(self.index, (lsn, BEYOND)))
        ends = [*self.index[after : after + 1], (self.next_lsn, self.offset)]
        return self.index[after - 1], ends[0]


def read_footer(buf: bytes, salt: bytes, base: int = 0) -> Footer | None:
    """The footer at the end of the segment; None when there is no sound one.

    ``buf``: the bytes of the segment from offset ``base`` on.
    """
    offset = decode_trailer(buf, salt)
    if offset is None or not base <= offset < base + len(buf):
        return None
    frame = frame_at(buf, offset, salt, base)
    if frame is None or frame.kind | frame.flags != FOOTER or frame.end != base + len(buf):
        return None
    payload = payload_of(buf, frame, salt, base)
    if payload is None:
        return None
    try:
        unpacker = msgpack.Unpacker(max_buffer_size=len(payload))
        unpacker.feed(payload)
        clean, flat, digest = unpacker.unpack()
        index = list(zip(flat[::2], flat[1::2], strict=True))
    except Exception:  # an unreadable footer is rebuilt by a scan, like one that is lost
        return None
    if not index or {type(part) for part in flat} != {int} or index != sorted(index):
        return None
    if not 0 < index[0][0] <= index[-1][0] <= frame.lsn:
        return None
    if flat[1::2] != sorted(flat[1::2]) or index[0][1] < HEADER_SIZE or index[-1][1] > frame.offset:
        return None
    return Footer(frame.offset, frame.lsn, frame.snapshot, clean is True, index, digest)


def digest_holds(
    buf: bytes, footer: Footer, base: int = 0, before: xxhash.xxh3_128 | None = None
) -> bool:
    """Whether every byte before the footer is as it was when the segment was sealed.

    ``buf``: the bytes of the segment from offset ``base`` on. ``before``: a digest of the bytes
    before ``base``.
    """
    digest = xxhash.xxh3_128() if before is None else before.copy()
    digest.update(memoryview(buf)[: footer.offset - base])
    return bool(digest.digest() == footer.digest)
