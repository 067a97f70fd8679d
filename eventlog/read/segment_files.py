"""Reads the files of a log: headers, frames, marks."""

from __future__ import annotations

from eventlog.files.api import Directory, File
from eventlog.format.durable_mark import MARK_SIZE, DurableMark, decode_mark
from eventlog.format.footer import read_footer
from eventlog.format.frame import (
    FILE_SIZE_MAX,
    FRAME_SIZE,
    HEADER_SIZE,
    PAYLOAD_SIZE_MAX,
    TRAILER_SIZE,
    Frame,
    SegmentHeader,
    decode_segment_header,
    frame_at,
    padded,
    payload_of,
)
from eventlog.format.names import MARK_NAME, segment_name
from eventlog.format.torn_or_damaged import start_of

PIECE_SIZE = 256 << 10  # files are read in pieces that stay in the processor's cache


def read_header(directory: Directory, number: int) -> SegmentHeader | None:
    """The header of a segment; None when it is damaged."""
    file = directory.open(segment_name(number))
    try:
        return decode_segment_header(file.pread(HEADER_SIZE, 0))
    finally:
        file.close()


def read_first_frame(directory: Directory, number: int) -> tuple[Frame | None, bytes]:
    """The first frame of a segment with its payload; None when it is not there or not sound."""
    file = directory.open(segment_name(number))
    try:
        buf = file.pread(HEADER_SIZE + FRAME_SIZE, 0)
        salt = buf[HEADER_SIZE : HEADER_SIZE + 4]
        frame = frame_at(buf, HEADER_SIZE, salt) if len(salt) == 4 else None
        if frame is None or frame.payload_end > file.size():
            return None, b""
        payload = payload_of(buf + file.pread(frame.size, frame.payload_offset), frame, salt)
        return (None, b"") if payload is None else (frame, payload)
    finally:
        file.close()


def read_segment(directory: Directory, number: int, start: int = 0) -> bytes:
    """The bytes of a segment that can hold frames, from ``start`` on.

    A file that is no segment may be sparse, with terabytes of zeros. So this reads no more zeros at
    the end than a frame can have, and no more bytes than a segment can have.
    """
    file = directory.open(segment_name(number))
    try:
        size = file.size()
        if size > PAYLOAD_SIZE_MAX:
            size = min(size, _used(file, size) + padded(FRAME_SIZE + PAYLOAD_SIZE_MAX))
        return file.pread(max(0, size - start), start)
    finally:
        file.close()


def _used(file: File, size: int) -> int:
    """The offset of the last byte that is not zero, rounded up to a piece."""
    end, zeros = min(size, FILE_SIZE_MAX), bytes(PIECE_SIZE)
    while end > 0:
        start = max(0, end - PIECE_SIZE)
        if file.pread(end - start, start) != zeros[: end - start]:
            break
        end = start
    return end


def identify(buf: bytes) -> tuple[bytes, int] | None:
    """Salt and first LSN of a segment; None when no part of it has them.

    Every frame begins with the salt, so the first frame replaces a damaged header. If the first
    sector is lost, with header and first frame, the footer at the end has both.
    """
    header = decode_segment_header(buf)
    if header is not None:
        return header.salt, header.first_lsn
    start = start_of(buf)
    if start is not None or len(buf) < TRAILER_SIZE:
        return start
    salt = buf[-TRAILER_SIZE:][:4]
    footer = read_footer(buf, salt)
    return None if footer is None else (salt, footer.index[0][0])


def read_mark(directory: Directory) -> tuple[bytes, int, DurableMark] | None:
    """Log id, epoch and mark of the mark file; None when it is lost or torn, which is no damage."""
    try:
        file = directory.open(MARK_NAME)
    except FileNotFoundError:
        return None
    try:
        return decode_mark(file.pread(MARK_SIZE, 0))
    finally:
        file.close()
