"""One segment file: made, written, sealed, read back."""

from __future__ import annotations

import struct
from bisect import bisect_right
from zlib import crc32

import msgpack
import xxhash

from eventlog._dataclass import dataclass
from eventlog._files import Directory, File, write_all
from eventlog._frame import (
    FILE_SIZE_MAX,
    FOOTER,
    FRAME_SIZE,
    HEADER_SIZE,
    LSN_MAX,
    NUMBER_MAX,
    PAYLOAD_SIZE_MAX,
    TRAILER_SIZE,
    Frame,
    SegmentHeader,
    decode_segment_header,
    decode_trailer,
    encode_frame,
    encode_trailer,
    frame_at,
    padded,
    payload_of,
)
from eventlog._scan import Mark, start_of

SUFFIX = ".seg"
MARK_NAME = "MARK"

INDEX_STEP = 64 << 10  # one index entry for so many bytes: 128 entries in 8 MiB
# Zero-filled space ahead: the file doubles up to 256 KiB at a time, so a short run stays short and
# a long one changes its size (which costs a journal commit) once in a hundred records. More at a
# time is no faster, and whoever's record it goes with waits for all of it.
PREALLOCATE_MIN, PREALLOCATE_MAX = 16 << 10, 256 << 10
_ZEROS = memoryview(bytes(PREALLOCATE_MAX + 4096))

_PIECE = 256 << 10  # files are read in pieces that stay in the processor's cache

_MARK = struct.Struct("<8s16sQQQ")
_MARK_MAGIC = b"evmark\r\n"


def segment_name(number: int) -> str:
    """The file name of a segment."""
    return f"{number:08d}{SUFFIX}"


def segment_number(name: str) -> int | None:
    """The number in a segment's file name, or None for any other name."""
    stem = name.removesuffix(SUFFIX)
    if stem == name or not 8 <= len(stem) <= 10 or not (stem.isascii() and stem.isdigit()):
        return None
    number = int(stem)
    return number if 0 < number <= NUMBER_MAX and segment_name(number) == name else None


def is_unfinished(name: str) -> bool:
    """Whether it is the name of a segment in the making, which counts for nothing."""
    stem, _, salt = name.removesuffix(".new").rpartition(".")
    return name.endswith(".new") and len(salt) == 8 and segment_number(stem) is not None


@dataclass(frozen=True, slots=True)
class Footer:
    """What a sealed segment says of itself. Everything in it can be rebuilt by a scan."""

    offset: int
    next_lsn: int
    snapshot: int
    clean: bool
    index: list[tuple[int, int]]
    digest: bytes

    def stretch(self, lsn: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """The (LSN, offset) at which the indexed stretch with record ``lsn`` begins and ends."""
        after = max(1, bisect_right(self.index, (lsn, 1 << 63)))
        ends = [*self.index[after : after + 1], (self.next_lsn, self.offset)]
        return self.index[after - 1], ends[0]


def read_footer(buf: bytes, salt: bytes, base: int = 0) -> Footer | None:
    """The footer that the segment ends with; None when there is none that holds.

    ``buf`` is what the segment holds from ``base`` on.
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
    except Exception:  # a footer that makes no sense is rebuilt by a scan like one that is lost
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

    ``buf`` is what the segment holds from ``base`` on, ``before`` what has seen all before that.
    """
    digest = xxhash.xxh3_128() if before is None else before.copy()
    digest.update(memoryview(buf)[: footer.offset - base])
    return bool(digest.digest() == footer.digest)


class SegmentWriter:
    """Appends frames to one segment. Not thread-safe; its log holds the lock.

    Invariant: bytes before ``end`` are never written again, so that nothing which a crash may
    tear was acknowledged before.
    """

    def __init__(
        self,
        file: File,
        header: SegmentHeader,
        end: int,
        index: list[tuple[int, int]],
        preallocate: bool,
    ) -> None:
        self.file, self.header, self.end, self.index = file, header, end, index
        self.salt, self.rare = header.salt, max(header.salt)  # see _frame.holds
        self.dirty = False  # whether it lacks a footer behind what is in it
        self._allocated = end
        self._preallocate = preallocate

    @classmethod
    def create(
        cls, directory: Directory, header: SegmentHeader, preallocate: bool
    ) -> SegmentWriter:
        """Make a segment; it is durable, with its name, when this returns.

        Raises FileExistsError when there is one of that number. A crash before the name is given
        leaves a temporary file that counts for nothing; after it, a whole and empty segment.
        """
        name = segment_name(header.number)
        temporary = f"{name}.{header.salt.hex()}.new"  # nobody else's, whoever else is at work
        file = directory.open(temporary, write=True, create=True)
        try:
            file.truncate(0)
            write_all(file, header.encode(), 0)
            file.sync()
            directory.publish(temporary, name)
            directory.sync()
        except BaseException:
            file.close()
            raise
        writer = cls(file, header, HEADER_SIZE, [(header.first_lsn, HEADER_SIZE)], preallocate)
        writer.dirty = True
        return writer

    def write(self, frame: bytes, lsn: int) -> None:
        """Append a frame; with the operating system when this returns, durable after sync."""
        start, size, data = self.end, len(frame), frame
        end = self.end = start + size
        self.dirty = True
        if end > self._allocated and self._preallocate:
            ahead = min(max(end, PREALLOCATE_MIN), PREALLOCATE_MAX)
            data = frame + _ZEROS[: -(-(end + ahead) // 4096) * 4096 - end]
        written = write_all(self.file, data, start, size)
        if data is not frame:
            self._allocated = start + written
        if start - self.index[-1][1] >= INDEX_STEP:
            self.index.append((lsn, start))

    def seal(self, mark: Mark, clean: bool) -> None:
        """End the segment with a footer, trimmed and durable when this returns.

        A crash in the middle leaves a torn footer behind sound records, which is a torn tail.
        """
        digest = _digest(self.file, self.end)
        flat = [part for entry in self.index for part in entry]
        body = bytes(msgpack.packb([clean, flat, digest]))
        body = body.ljust(padded(len(body)), b"\0") + encode_trailer(self.header.salt, self.end)
        marks = (mark.durable + 1, mark.durable, mark.snapshot)
        frame = encode_frame(self.header.salt, FOOTER, 0, body, marks)
        # The records must be durable before a footer says so.
        self.file.sync()
        write_all(self.file, frame, self.end)
        self.end += len(frame)
        self.file.truncate(self.end)
        self._allocated = self.end
        self.file.sync()


def _digest(file: File, size: int) -> bytes:
    digest = xxhash.xxh3_128()
    for offset in range(0, size, _PIECE):
        digest.update(file.pread(min(_PIECE, size - offset), offset))
    return digest.digest()


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

    Somebody may have put any file here, and a sparse one of terabytes costs nothing: of zeros at
    the end only so many are read as a frame can have, and nothing beyond what a segment can be.
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
    """Where the last byte is that is not zero, to within a piece."""
    end, zeros = min(size, FILE_SIZE_MAX), bytes(_PIECE)
    while end > 0:
        start = max(0, end - _PIECE)
        if file.pread(end - start, start) != zeros[: end - start]:
            break
        end = start
    return end


def identify(buf: bytes) -> tuple[bytes, int] | None:
    """Salt and first LSN of a segment; None when neither its header nor anything else tells.

    Every frame starts with the salt, so the first one has it too. When a whole sector is gone, with
    header and first frame, the footer at the other end has both.
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


def encode_mark(log_id: bytes, epoch: int, mark: Mark) -> bytes:
    """The content of the mark file."""
    checked = _MARK.pack(_MARK_MAGIC, log_id, epoch, mark.durable, mark.snapshot)
    return checked + crc32(checked).to_bytes(4, "little")


def read_mark(directory: Directory) -> tuple[bytes, int, Mark] | None:
    """Log id, epoch and mark of the mark file; None when it is lost or torn, which is no damage."""
    try:
        file = directory.open(MARK_NAME)
    except FileNotFoundError:
        return None
    try:
        content = file.pread(_MARK.size + 4, 0)
    finally:
        file.close()
    checked, crc = content[: _MARK.size], content[_MARK.size :]
    if len(crc) != 4 or crc32(checked).to_bytes(4, "little") != crc:
        return None
    magic, log_id, epoch, durable, snapshot = _MARK.unpack(checked)
    if magic != _MARK_MAGIC or durable > LSN_MAX:
        return None
    return log_id, epoch, Mark(durable, snapshot)


assert TRAILER_SIZE % 8 == 0
