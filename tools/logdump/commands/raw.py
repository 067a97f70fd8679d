"""Shows the bytes of a log with their meaning, for checks without the rest of the library."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from zlib import crc32

from eventlog import LogReader
from eventlog.files.api import File
from eventlog.format.frame import (
    ALIGNMENT,
    ENCRYPTED,
    FOOTER,
    FRAME_SIZE,
    HEADER_SIZE,
    KINDS,
    PAYLOAD_SIZE_MAX,
    RECORDS,
    SEGMENT_MAGIC,
    SNAPSHOT,
    TRAILER_SIZE,
    frame_at,
    frames_ahead,
    padded,
)
from eventlog.format.names import segment_name
from eventlog.read.segment_files import identify, read_segment
from recovery import text

_FRAME = struct.Struct("<4sIIIQQQII")
_SEGMENT = struct.Struct("<8sHHI16sQQQ4sI")
_NAMES = {RECORDS: "records", SNAPSHOT: "snapshot", FOOTER: "footer"}
_LINE = 16  # bytes


@dataclass
class Raw:
    """Shows bytes, at most ``most`` of each payload, or none of it when it is to be ``hidden``.

    Lines are of plain ASCII, and no wider than 80 columns.
    """

    reader: LogReader
    most: int
    hidden: bool

    def frame(self, number: int, offset: int) -> Iterator[str]:
        """The fields of a frame at an offset, whatever they hold, and its bytes."""
        salt = self._salt(number)
        with _opened(self.reader, number) as file:
            head = file.read(FRAME_SIZE, offset)
            if len(head) < FRAME_SIZE:
                yield f"  segment {number}, offset {offset}: {len(head)} bytes, no frame"
                yield from hexdump(head, offset)
                return
            size = _FRAME.unpack(head)[2]
            payload = file.read(min(size, PAYLOAD_SIZE_MAX), offset + FRAME_SIZE)
            end = offset + FRAME_SIZE + size
            padding = file.read(padded(end) - end, end) if len(payload) == size else b""
        yield from (f"  {line}" for line in _fields(number, offset, head, payload, salt, padding))
        yield from hexdump(head, offset)
        yield from self._payload(payload, offset + FRAME_SIZE)
        if padding and (any(padding) or len(payload) <= self.most):
            yield from hexdump(padding, end)

    def place(self, number: int, offset: int, size: int) -> Iterator[str]:
        """Bytes that are damaged: as a frame, if one should begin there, else as plain bytes."""
        if size and offset < HEADER_SIZE:
            yield from self.header(number)
        elif size >= FRAME_SIZE and offset % ALIGNMENT == 0:
            yield from self.frame(number, offset)
        elif size:
            with _opened(self.reader, number) as file:
                yield from hexdump(file.read(min(size, self.most), offset), offset)

    def at(self, number: int, offset: int) -> Iterator[str]:
        """The bytes, and the offset of the next sound frame."""
        if offset < HEADER_SIZE:
            yield from self.header(number)
            return
        yield from self.frame(number, offset)
        salt, buf = self._salt(number), read_segment(self.reader._directory, number)
        if salt is not None and frame_at(buf, offset, salt) is None:
            after = next(frames_ahead(buf, offset, salt), None)
            if after is None:
                yield "  no sound frame header after it"
            else:
                yield f"  next sound frame header: LSN {after.lsn}, at {number}:{after.offset}"

    def header(self, number: int) -> Iterator[str]:
        """The header of a segment."""
        with _opened(self.reader, number) as file:
            head = file.read(HEADER_SIZE, 0)
        yield f"  {segment_name(number)}: segment header"
        if len(head) == HEADER_SIZE:
            magic, version, flags, own, log_id, first, oldest, epoch, salt, crc = _SEGMENT.unpack(
                head
            )
            yield (
                f"  magic {'ok' if magic == SEGMENT_MAGIC else 'BAD'}, version {version}, "
                f"flags {flags:#x}, number {own}, salt {salt.hex()}"
            )
            yield f"  log id {log_id.hex()}, epoch {epoch}"
            yield f"  first LSN {first}, oldest LSN {oldest}, header CRC {_crc(crc, head[:60], 0)}"
        yield from hexdump(head, 0)

    def footer(self, number: int) -> Iterator[str]:
        """The footer and the trailer at the end of a segment, if it has them."""
        with _opened(self.reader, number) as file:
            base = max(0, file.size - TRAILER_SIZE)
            trailer = file.read(TRAILER_SIZE, base)
        salt = self._salt(number)
        offset = int.from_bytes(trailer[8:], "little")
        if len(trailer) < TRAILER_SIZE or trailer[:4] != salt or not HEADER_SIZE <= offset < base:
            yield f"  {segment_name(number)}: no trailer at its end: it was not sealed"
            return
        yield from self.frame(number, offset)
        crc = _crc(int.from_bytes(trailer[4:8], "little"), trailer[8:], _seed(salt))
        yield f"  trailer: footer at offset {offset}, CRC {crc}"
        yield from hexdump(trailer, base)

    def _payload(self, payload: bytes, offset: int) -> Iterator[str]:
        if self.hidden:
            yield f"  {len(payload)} bytes of payload: [redacted]"
            return
        yield from hexdump(payload[: self.most], offset)
        if len(payload) > self.most:
            yield f"  ... {len(payload) - self.most:,} more bytes (--bytes N shows more)"

    def _salt(self, number: int) -> bytes | None:
        header = self.reader.listing.header(number)
        if header is not None:
            return header.salt
        found = identify(read_segment(self.reader._directory, number))
        return found[0] if found else None


def _fields(
    number: int, offset: int, head: bytes, payload: bytes, salt: bytes | None, padding: bytes
) -> Iterator[str]:
    """The fields of a frame's header, each with its verdict."""
    marker, head_crc, size, kind, lsn, durable, snapshot, count, crc = _FRAME.unpack(head)
    seed = _seed(salt)
    name = _NAMES.get(kind & 0xFF, "unknown") + (" encrypted" if kind & ENCRYPTED else "")
    known = "" if kind in KINDS else " UNKNOWN"
    last = f"-{lsn + count - 1}" if count > 1 else ""
    yield f"segment {number}, offset {offset}: frame of LSN {lsn}{last}, {name}"
    wrong = "" if marker == salt else f" BAD (the segment's salt is {salt.hex() if salt else '?'})"
    yield f"marker {marker.hex()}{wrong}, header CRC {_crc(head_crc, head[8:], seed)}"
    over = " BAD (more than there can be)" if size > PAYLOAD_SIZE_MAX else ""
    missing = f" (only {len(payload):,} are there)" if len(payload) < size and not over else ""
    held = text.count(count, "record")
    yield f"payload of {size:,} bytes{over}{missing}, kind {kind:#x}{known}, {held}"
    yield f"durable mark {durable}, last snapshot {snapshot}"
    clean = "zero" if not any(padding) else "NOT ZERO"
    rest = f", padding of {text.count(len(padding), 'byte')}: {clean}" if padding else ""
    whole = "" if over or missing else f"payload CRC {_crc(crc, payload, seed)}{rest}"
    if whole:
        yield whole


def _seed(salt: bytes | None) -> int:
    return int.from_bytes(salt or b"", "little")


def _crc(found: int, of: bytes, seed: int) -> str:
    """A CRC in the log, and whether it matches the bytes."""
    right = crc32(of, seed)
    return f"{found:08x} ok" if found == right else f"{found:08x} BAD (of these: {right:08x})"


def hexdump(data: bytes, offset: int) -> Iterator[str]:
    """Bytes as ``hexdump -C`` shows them; ``offset`` is that of the first."""
    for at in range(0, len(data), _LINE):
        line = data[at : at + _LINE]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)
        yield f"  {offset + at:08x}  {line.hex(' '):<47}  {text}"


class _opened:  # noqa: N801 - used as a function is
    """A segment, open for reading. A context manager."""

    def __init__(self, reader: LogReader, number: int) -> None:
        self._file: File = reader._directory.open(segment_name(number))
        self.size = self._file.size()

    def __enter__(self) -> _opened:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()

    def read(self, size: int, offset: int) -> bytes:
        return self._file.pread(max(0, min(size, self.size - offset)), offset)
