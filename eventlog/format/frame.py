"""Encodes and decodes frames, segment headers and trailers. Pure; docs/format.md is the spec.

Segment header (64 bytes, little endian)      Frame (48 bytes, then the payload, zeros to 8)
   0  magic        8                             0  marker          the segment's salt
   8  version      u16                           4  header CRC      u32 of bytes 8..48
  10  flags        u16                           8  payload size    u32
  12  number       u32                          12  kind, flags     u32
  16  log id       16                           16  LSN             u64, of its first record
  32  first LSN    u64                          24  durable mark    u64, an LSN
  40  oldest LSN   u64                          32  last snapshot   u64, an LSN
  48  epoch        u64                          40  record count    u32
  56  salt         4                            44  payload CRC     u32
  60  CRC          u32 of bytes 0..60
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator

from eventlog.light_dataclass import light_dataclass

try:  # the same polynomial, 6 times as fast at 64 KiB; zlib's is always there
    from isal.isal_zlib import crc32
except ImportError:  # pragma: no cover - depends on what is installed
    from zlib import crc32

from dataclasses import dataclass

from eventlog.errors import UnsupportedFormatError

VERSION = 1
SEGMENT_MAGIC = b"\x89evlog\r\n"  # the trick of PNG: shows transfers that mangle bytes or line ends
HEADER_SIZE = 64
FRAME_SIZE = 48
ALIGNMENT = 8

RECORDS, SNAPSHOT, FOOTER = 1, 2, 3
_KIND_MASK = 0xFF  # the rest of the field are flags
ENCRYPTED = 1 << 8  # of records and snapshots: the payload is as in format.envelope

KINDS = (RECORDS, SNAPSHOT, FOOTER, RECORDS | ENCRYPTED, SNAPSHOT | ENCRYPTED)

_SEGMENT_ENCRYPTED = 1  # flag of a segment: all its records are

# Largest payload: bounds the memory that a reader needs before it can check anything (as raft-wal).
PAYLOAD_SIZE_MAX = 64 << 20

# Largest size that a user may set for a segment, which is read as a whole; Kafka's default. The
# file may be larger by one frame and a footer. Bytes beyond that are never read.
SEGMENT_SIZE_MAX = 1 << 30
FILE_SIZE_MAX = SEGMENT_SIZE_MAX + 2 * PAYLOAD_SIZE_MAX

# A writer of one record each nanosecond gets there in 292 years. Forged bytes may claim a higher
# LSN, after which no LSN would be left for the writer.
LSN_MAX = (1 << 63) - 1
BEYOND = 1 << 64  # above every LSN and every offset
NUMBER_MAX = (1 << 32) - 1  # of a segment: the field in its header has 32 bits
EPOCH_MAX = (1 << 48) - 1  # no log is opened that often

_SEGMENT = struct.Struct("<8sHHI16sQQQ4s")
# The bytes that the header's CRC covers. Kind, flags and the reserved bytes are one u32 here: a
# flag of a newer version makes an unknown kind, which a reader refuses instead of misreading it.
_FRAME_CHECKED = struct.Struct("<IIQQQII")
_FRAME_HEAD = struct.Struct("<4sI")
_FRAME = struct.Struct(_FRAME_HEAD.format + _FRAME_CHECKED.format[1:])
_TRAILER = struct.Struct("<4sIQ")
_CRC = struct.Struct("<I")
TRAILER_SIZE = _TRAILER.size

_PADDING = [bytes(-size % ALIGNMENT) for size in range(ALIGNMENT)]

assert _SEGMENT.size + _CRC.size == HEADER_SIZE
assert _FRAME_HEAD.size + _FRAME_CHECKED.size == FRAME_SIZE

Buffer = bytes | bytearray | memoryview
Marks = tuple[int, int, int]  # LSN of the frame, durable LSN, LSN of the newest snapshot


@light_dataclass
class SegmentHeader:
    """The first 64 bytes of a segment."""

    number: int
    log_id: bytes
    first_lsn: int
    oldest_lsn: int
    epoch: int
    salt: bytes
    encrypted: bool = False

    def encode(self) -> bytes:
        """The header as bytes, its CRC last."""
        assert (len(self.log_id), len(self.salt)) == (16, 4)
        checked = _SEGMENT.pack(
            SEGMENT_MAGIC,
            VERSION,
            self.encrypted * _SEGMENT_ENCRYPTED,
            self.number,
            self.log_id,
            self.first_lsn,
            self.oldest_lsn,
            self.epoch,
            self.salt,
        )
        return checked + _CRC.pack(crc32(checked))


def decode_segment_header(buf: Buffer) -> SegmentHeader | None:
    """The header at the start of ``buf``; None when it is damaged or truncated.

    Raises UnsupportedFormatError when the header is sound but of another version: every version
    keeps magic, version, flags and CRC where they are, so a flipped bit never passes for one.
    """
    if len(buf) < HEADER_SIZE:
        return None
    magic, version, flags, number, log_id, first, oldest, epoch, salt = _SEGMENT.unpack_from(buf)
    if magic != SEGMENT_MAGIC or _CRC.unpack_from(buf, 60)[0] != crc32(bytes(buf[:60])):
        return None
    if version != VERSION or flags & ~_SEGMENT_ENCRYPTED:
        raise UnsupportedFormatError(
            f"format version {version} (flags {flags:#x}); this library reads version {VERSION}. "
            "The log is not damaged: use a newer library."
        )
    if not 0 < oldest <= first <= LSN_MAX or epoch > EPOCH_MAX:  # no writer of ours wrote this
        return None
    return SegmentHeader(number, log_id, first, oldest, epoch, salt, bool(flags))


@dataclass(slots=True)  # not frozen: opening a log makes one for each frame, and must be fast
class Frame:
    """The header of a frame found at ``offset``; its payload may or may not be sound.

    ``kind`` is without ``flags``; ``flags`` are masked, but not shifted.
    """

    offset: int
    size: int
    kind: int
    lsn: int
    durable: int
    snapshot: int
    count: int
    crc: int
    end: int
    salt: bytes = b""
    flags: int = 0

    @property
    def payload_offset(self) -> int:
        return self.offset + FRAME_SIZE

    @property
    def payload_end(self) -> int:
        return self.offset + FRAME_SIZE + self.size


def padded(offset: int) -> int:
    """The next offset at which a frame can start."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def encode_frame(salt: bytes, kind: int, count: int, payload: bytes, marks: Marks) -> bytes:
    """A whole frame, padded. ``kind`` with its flags."""
    assert len(payload) <= PAYLOAD_SIZE_MAX
    size = len(payload)
    (seed,) = _CRC.unpack(salt)
    checked = _FRAME_CHECKED.pack(size, kind, *marks, count, crc32(payload, seed))
    head = _FRAME_HEAD.pack(salt, crc32(checked, seed))
    return b"".join((head, checked, payload, _PADDING[size % ALIGNMENT]))


def frame_at(buf: bytes, offset: int, salt: bytes, base: int = 0) -> Frame | None:
    """The frame whose header is sound at ``offset``, or None. Does not check the payload.

    ``buf``: the bytes of the segment from offset ``base`` on.
    """
    at = offset - base
    if at + FRAME_SIZE > len(buf):
        return None
    marker, header_crc, size, kind, lsn, durable, snapshot, count, crc = _FRAME.unpack_from(buf, at)
    # A record takes more than a byte, so a higher count is forged: its records never existed.
    if marker != salt or size > PAYLOAD_SIZE_MAX or count > size or max(lsn, durable) > LSN_MAX:
        return None
    if crc32(buf[at + 8 : at + FRAME_SIZE], _CRC.unpack(salt)[0]) != header_crc:
        return None
    end = padded(offset + FRAME_SIZE + size)
    flags = kind & ~_KIND_MASK
    return Frame(
        offset, size, kind & _KIND_MASK, lsn, durable, snapshot, count, crc, end, salt, flags
    )


def payload_of(buf: bytes, frame: Frame, salt: bytes, base: int = 0) -> bytes | None:
    """The frame's payload when all of it is there and its CRC matches, else None."""
    start, end = frame.payload_offset - base, frame.payload_end - base
    if end > len(buf):  # checked before the slice: many copies of a long tail would add up
        return None
    payload = buf[start:end]
    return payload if crc32(payload, _CRC.unpack(salt)[0]) == frame.crc else None


def new_salt(random_bytes: Callable[[int], bytes], plain_head: bytes) -> bytes:
    """A salt that is not in ``plain_head``, the plain head of a segment's first payload."""
    while True:
        # No zero bytes, so that runs of zeros are never mistaken for a frame.
        salt = bytes(byte or 0xA5 for byte in random_bytes(4))
        if salt not in plain_head:
            return salt


def contains_salt(buf: bytes, salt: bytes) -> bool:
    """Whether ``buf`` contains the salt; no payload of a segment contains the segment's salt."""
    # Text and msgpack lack some byte of nearly every salt, most often the highest one. Searching
    # for one byte is 50 times as fast as searching for four.
    return all(byte in buf for byte in sorted(salt, reverse=True)) and salt in buf


def sound_frames(
    buf: bytes,
    base: int,
    start: tuple[int, int],
    limit: int,
    salt: bytes,
    kinds: tuple[int, ...] = KINDS,
) -> Generator[tuple[Frame, bytes], None, tuple[int, int]]:
    """Yields frames and payloads until the first byte that is damaged, torn or unknown.

    ``start``: an offset and the LSN there. ``limit``: the LSN to stop at. The value of ``yield
    from``: the offset and LSN where this stopped, for Segment.walk. The checks are those of
    ``frame_at`` and ``payload_of``, inlined: in the benchmark "Reading a whole log" ("verify and
    decode") that saves a quarter of the time.
    """
    offset, lsn = start
    at, size_of_buf, seed = offset - base, len(buf), int.from_bytes(salt, "little")
    unpack = _FRAME.unpack_from
    while lsn < limit and at + FRAME_SIZE <= size_of_buf:
        marker, header_crc, size, kind, found, durable, snapshot, count, crc = unpack(buf, at)
        first = at + FRAME_SIZE
        last = first + size
        if marker != salt or found != lsn or last > size_of_buf or size > PAYLOAD_SIZE_MAX:
            break
        if crc32(buf[at + 8 : first], seed) != header_crc or count > size:
            break
        if kind not in kinds or lsn > LSN_MAX or durable > LSN_MAX:
            break
        payload = buf[first:last]
        if crc32(payload, seed) != crc or not buf.startswith(_PADDING[last & 7], last):
            break
        end = last + (-last & 7)
        yield (
            Frame(
                at + base,
                size,
                kind & _KIND_MASK,
                lsn,
                durable,
                snapshot,
                count,
                crc,
                end + base,
                salt,
                kind & ~_KIND_MASK,
            ),
            payload,
        )
        at, lsn = end, lsn + count
    return at + base, lsn


def frames_ahead(buf: bytes, offset: int, salt: bytes, base: int = 0) -> Iterator[Frame]:
    """Every sound frame header at or after ``offset``, in order.

    Takes linear time for any bytes. A candidate costs one header CRC, and its length is not
    followed. Only bytes that match the segment's salt are candidates.
    """
    at = buf.find(salt, offset - base)
    while at >= 0:
        if at % ALIGNMENT == 0:
            frame = frame_at(buf, at + base, salt, base)
            if frame is not None:
                yield frame
        at = buf.find(salt, padded(at + 1))


def encode_trailer(salt: bytes, footer_offset: int) -> bytes:
    """The last 16 bytes of a sealed segment: marker, CRC of the offset, offset of its footer."""
    offset = footer_offset.to_bytes(8, "little")
    return _TRAILER.pack(salt, crc32(offset, _CRC.unpack(salt)[0]), footer_offset)


def decode_trailer(buf: bytes, salt: bytes) -> int | None:
    """The footer's offset when ``buf`` ends in a trailer of this segment, else None."""
    if len(buf) < HEADER_SIZE + TRAILER_SIZE:
        return None
    marker, crc, offset = _TRAILER.unpack_from(buf, len(buf) - TRAILER_SIZE)
    if marker != salt or crc != crc32(buf[-8:], _CRC.unpack(salt)[0]):
        return None
    return int(offset)
