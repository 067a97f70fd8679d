"""Writes one segment file: creates, appends to, and seals it."""

from __future__ import annotations

import msgpack
import xxhash

from eventlog.files.api import Directory, File, write_all
from eventlog.format.durable_mark import DurableMark
from eventlog.format.footer import INDEX_STEP
from eventlog.format.frame import (
    FOOTER,
    HEADER_SIZE,
    TRAILER_SIZE,
    SegmentHeader,
    encode_frame,
    encode_trailer,
    padded,
)
from eventlog.format.names import segment_name
from eventlog.read.segment_files import PIECE_SIZE

# Zero-filled space ahead: the file doubles, by up to 256 KiB at a time. So a short run stays short,
# and a long one changes its size (which costs a journal commit) once in a hundred records. More at
# a time is no faster, and the append that allocates has to wait for all of it.
PREALLOCATE_MIN, PREALLOCATE_MAX = 16 << 10, 256 << 10
_ZEROS = memoryview(bytes(PREALLOCATE_MAX + 4096))


class SegmentWriter:
    """Appends frames to one segment. Not thread-safe; its log holds the lock.

    Invariant: bytes before ``end`` are never written again, so bytes that a crash may tear were
    never acknowledged.
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
        self.salt, self.rarest_byte = header.salt, max(header.salt)  # see contains_salt
        self.dirty = False  # whether records follow its last footer, or it has none
        self._allocated = end
        self._preallocate = preallocate

    @classmethod
    def create(
        cls, directory: Directory, header: SegmentHeader, preallocate: bool
    ) -> SegmentWriter:
        """Make a segment; it is durable, with its name, when this returns.

        Raises FileExistsError when the number is taken. A crash before the file is renamed leaves a
        temporary file that does not count; a crash after it leaves a whole and empty segment.
        """
        name = segment_name(header.number)
        temporary = f"{name}.{header.salt.hex()}.new"  # the random salt makes the name unique
        file = directory.open(temporary, write=True, create=True)
        try:
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
        """Append a frame: the operating system has it when this returns; durable after sync."""
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

    def seal(self, mark: DurableMark, clean: bool) -> None:
        """End the segment with a footer, trimmed and durable when this returns.

        A crash in the middle leaves a torn footer after sound records, which is a torn tail.
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
        self.file.sync()


def _digest(file: File, size: int) -> bytes:
    digest = xxhash.xxh3_128()
    for offset in range(0, size, PIECE_SIZE):
        digest.update(file.pread(min(PIECE_SIZE, size - offset), offset))
    return digest.digest()


assert TRAILER_SIZE % 8 == 0
