"""Any bytes as frames, headers and trailers."""

from __future__ import annotations

from eventlog.errors import UnsupportedFormatError
from eventlog.format.footer import read_footer
from eventlog.format.frame import (
    FRAME_SIZE,
    HEADER_SIZE,
    decode_segment_header,
    decode_trailer,
    encode_frame,
    frame_at,
    frames_ahead,
    payload_of,
)
from eventlog.format.torn_or_damaged import start_of
from tests.fuzz._bytes import repaired, salt_of


def frame(data: bytes) -> None:
    """What is taken for a frame is one, byte for byte; anything else is None."""
    buf = repaired(data[1:], bool(data[0] & 2)) if data and data[0] & 1 else data
    salt = salt_of(buf[56:60])
    ahead = {}
    for found in frames_ahead(buf, 0, salt):
        assert found.offset not in ahead and found.offset % 8 == 0
        ahead[found.offset] = found
    for offset in range(len(buf) + 1):
        found_at = frame_at(buf, offset, salt)
        assert found_at == (ahead.get(offset) if offset % 8 == 0 else found_at)
        payload = None if found_at is None else payload_of(buf, found_at, salt)
        if found_at is not None and payload is not None:
            marks = found_at.lsn, found_at.durable, found_at.snapshot
            kind = found_at.kind | found_at.flags
            whole = encode_frame(salt, kind, found_at.count, payload, marks)
            size = FRAME_SIZE + len(payload)
            assert whole[:size] == buf[offset : offset + size]
            assert found_at.end % 8 == 0 and 0 <= found_at.end - found_at.payload_end < 8
    _whole(buf, salt)


def _whole(buf: bytes, salt: bytes) -> None:
    try:
        header = decode_segment_header(buf)
    except UnsupportedFormatError:
        header = None
    if header is not None:
        assert header.encode() == buf[:HEADER_SIZE]
    offset = decode_trailer(buf, salt)
    footer = read_footer(buf, salt)
    if footer is not None:
        assert footer.offset == offset and footer.offset < len(buf)
        for lsn in (0, footer.next_lsn, 1 << 64):
            (_, begin), (_, end) = footer.stretch(lsn)
            assert HEADER_SIZE <= begin <= end <= footer.offset
    start = start_of(buf)
    assert start is None or start[0] == buf[HEADER_SIZE : HEADER_SIZE + 4]
