"""Frames, headers and trailers: bytes and back, and nothing else passes for one."""

from __future__ import annotations

import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventlog.errors import UnsupportedFormatError
from eventlog.format import frame as frame_module
from eventlog.format.frame import (
    FRAME_SIZE,
    HEADER_SIZE,
    PAYLOAD_SIZE_MAX,
    RECORDS,
    SegmentHeader,
    contains_salt,
    decode_segment_header,
    decode_trailer,
    encode_frame,
    encode_trailer,
    frame_at,
    frames_ahead,
    new_salt,
)

SALT = b"\x11\x22\x33\x44"
HEADER = SegmentHeader(3, b"i" * 16, 7, 1, 2, SALT)


def frame(payload: bytes = b"payload", lsn: int = 7, salt: bytes = SALT) -> bytes:
    return encode_frame(salt, RECORDS, 1, payload, (lsn, lsn - 1, 5))


def test_a_frame_of_another_segment_does_not_pass() -> None:
    """Nor when only its marker is made to fit: the CRCs start from the salt."""
    other = frame(salt=b"\x99\x22\x33\x44")
    assert frame_at(other, 0, SALT) is None
    assert frame_at(SALT + other[4:], 0, SALT) is None


def test_a_salt_is_in_no_run_of_zeros_and_not_in_the_payload() -> None:
    given = iter([b"abcd", b"a\0c\0"])
    assert new_salt(lambda size: next(given), b"xabcdx") == b"a\xa5c\xa5"


def test_a_length_beyond_the_limit_is_no_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_module, "PAYLOAD_SIZE_MAX", 1 << 30)
    huge = frame(b"x" * (PAYLOAD_SIZE_MAX + 1))
    monkeypatch.undo()
    assert frame_at(huge, 0, SALT) is None


def test_a_flag_that_is_not_known_makes_an_unknown_kind() -> None:
    """So that a reader refuses a frame that means something else in a later version."""
    whole = bytearray(frame())
    whole[14] = 1
    seed = int.from_bytes(SALT, "little")
    whole[4:8] = zlib.crc32(whole[8:FRAME_SIZE], seed).to_bytes(4, "little")
    found = frame_at(bytes(whole), 0, SALT)
    assert found is not None and found.kind | found.flags == 0x10001


def test_frames_ahead_are_found_on_their_boundaries_only() -> None:
    buf = b"noise---" + frame(lsn=8) + b"-" + frame(lsn=9) + b"-------" + frame(lsn=10)
    assert [found.lsn for found in frames_ahead(buf, 0, SALT)] == [8, 10]
    assert [found.lsn for found in frames_ahead(buf, 16, SALT)] == [10]


def test_no_flipped_bit_or_cut_of_a_segment_header_passes() -> None:
    whole = HEADER.encode()
    for bit in range(8 * HEADER_SIZE):
        buf = bytearray(whole)
        buf[bit // 8] ^= 1 << bit % 8
        assert decode_segment_header(bytes(buf)) is None
    for size in range(HEADER_SIZE):
        assert decode_segment_header(whole[:size]) is None


@pytest.mark.parametrize("offset", [8, 10])
def test_another_version_or_flag_is_refused_by_name(offset: int) -> None:
    buf = bytearray(HEADER.encode())
    buf[offset] += 2
    buf[60:] = zlib.crc32(buf[:60]).to_bytes(4, "little")
    with pytest.raises(UnsupportedFormatError, match="not damaged"):
        decode_segment_header(bytes(buf))


def test_a_trailer_names_the_footer() -> None:
    buf = bytes(HEADER_SIZE) + encode_trailer(SALT, 64)
    assert decode_trailer(buf, SALT) == 64
    assert decode_trailer(buf, b"\x99\x22\x33\x44") is None
    assert decode_trailer(buf[8:], SALT) is None
    for bit in range(8 * 16):
        flipped = bytearray(buf)
        flipped[HEADER_SIZE + bit // 8] ^= 1 << bit % 8
        assert decode_trailer(bytes(flipped), SALT) is None


@pytest.mark.parametrize("oldest", [0, 8, 1 << 60])
def test_a_segment_that_begins_before_the_oldest_record_of_its_log_is_none(oldest: int) -> None:
    """Its records would not count from the next roll on; fuzzing found it."""
    assert decode_segment_header(HEADER.encode()) == HEADER
    assert decode_segment_header(replace(HEADER, oldest_lsn=oldest).encode()) is None


@given(st.binary(max_size=20), st.binary(min_size=4, max_size=4), st.binary(max_size=20))
def test_a_salt_is_found_wherever_it_is(before: bytes, salt: bytes, after: bytes) -> None:
    assert contains_salt(before + salt + after, salt)
    assert contains_salt(before + after, salt) == (salt in before + after)
    mixed = bytes(salt[i % 4] for i in before)  # all of its bytes, in another order
    assert contains_salt(mixed, salt) == (salt in mixed)
