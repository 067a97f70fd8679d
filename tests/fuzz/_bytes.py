"""Bytes that no writer of ours has made, with checksums that hold.

A fuzzer that had to guess a CRC-32 would never get behind one. So its bytes are taken for a segment
whose checksums somebody has put right; what is to stay wrong is said in the marker of each frame,
which is overwritten.
"""

from __future__ import annotations

import struct
from zlib import crc32

from eventlog.format.frame import (
    FOOTER,
    FRAME_SIZE,
    HEADER_SIZE,
    SEGMENT_MAGIC,
    TRAILER_SIZE,
    encode_trailer,
    padded,
)

LEAVE_PAYLOAD, LEAVE_HEADER, LEAVE_MARKER, LEAVE_LSN, LEAVE_KIND, LEAVE_PADDING = (
    1,
    2,
    4,
    8,
    16,
    32,
)


def salt_of(four: bytes) -> bytes:
    """A salt that a writer may have chosen: no zero bytes."""
    return bytes(byte or 0xA5 for byte in four.ljust(4, b"\0")[:4])


def repaired(data: bytes, leave_header: bool = False) -> bytes:
    """``data`` as a segment whose magic, version, CRCs and LSNs hold."""
    buf = bytearray(data)
    if len(buf) < HEADER_SIZE:
        return data
    buf[56:60] = salt = salt_of(bytes(buf[56:60]))
    if not leave_header:
        buf[:12] = SEGMENT_MAGIC + struct.pack("<HH", 1, 0)
        buf[60:64] = struct.pack("<I", crc32(buf[:60]))
    offset, lsn = HEADER_SIZE, int.from_bytes(buf[32:40], "little")
    while offset + FRAME_SIZE <= len(buf):
        offset, lsn = _repair_frame(buf, offset, lsn, salt)
    return bytes(buf)


def _repair_frame(buf: bytearray, offset: int, lsn: int, salt: bytes) -> tuple[int, int]:
    """Where the next one is, and its LSN."""
    seed = int.from_bytes(salt, "little")
    leave = buf[offset]
    size, kind, at, durable, snapshot, count, crc = struct.unpack_from("<IIQQQII", buf, offset + 8)
    size %= len(buf) - offset - FRAME_SIZE + 1
    if not leave & LEAVE_LSN:
        at = lsn
    if not leave & LEAVE_KIND:
        kind = 1 + kind % 3
        count = 0 if kind == FOOTER else count % 1000 or 1
    start, end = offset + FRAME_SIZE, offset + FRAME_SIZE + size
    if kind == FOOTER and padded(end) == len(buf) == end and size >= TRAILER_SIZE:
        buf[end - TRAILER_SIZE : end] = encode_trailer(salt, offset)
    if not leave & LEAVE_PAYLOAD:
        crc = crc32(buf[start:end], seed)
    struct.pack_into("<IIQQQII", buf, offset + 8, size, kind, at, durable, snapshot, count, crc)
    if not leave & LEAVE_HEADER:
        struct.pack_into("<I", buf, offset + 4, crc32(buf[offset + 8 : start], seed))
    if not leave & LEAVE_MARKER:
        buf[offset : offset + 4] = salt
    if not leave & LEAVE_PADDING:
        buf[end : padded(end)] = bytes(min(padded(end), len(buf)) - end)
    return padded(end), (at + count) % (1 << 64)
