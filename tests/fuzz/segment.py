"""Any bytes as a segment: the walk over it ends, goes forward, and costs what the bytes cost."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from unittest import mock

from eventlog import Damage
from eventlog.errors import UnsupportedFormatError
from eventlog.format import frame as frame_module
from eventlog.format.durable_mark import DurableMark
from eventlog.format.frame import FRAME_SIZE, HEADER_SIZE, Buffer, Frame
from eventlog.format.torn_or_damaged import End, Segment
from tests.fuzz._bytes import repaired, salt_of

_SETTINGS = struct.Struct("<BHHH")


class Cost:
    """Counts the bytes that are looked at for their checksum."""

    def __init__(self) -> None:
        self.bytes = 0

    def crc32(self, data: Buffer, seed: int = 0) -> int:
        self.bytes += len(data)
        return _crc32(data, seed)


_crc32: Callable[[Buffer, int], int] = vars(frame_module)["crc32"]


def segment(data: bytes) -> None:
    """No bytes make a walk raise, go back, go on for ever, or cost more than in proportion."""
    if len(data) < _SETTINGS.size:
        return
    flags, durable, newest, limit = _SETTINGS.unpack_from(data)
    buf = data[_SETTINGS.size :]
    if flags & 1:
        buf = repaired(buf, leave_header=True)
    first = int.from_bytes(buf[32:40], "little") if flags & 8 else 1
    mark = DurableMark(first + durable, newest) if flags & 2 else DurableMark()
    cost = Cost()
    with mock.patch.object(frame_module, "crc32", cost.crc32):
        walked = Segment(1, buf, salt_of(buf[56:60]), mark, first + limit if flags & 4 else None)
        _walk(walked, first)
    # Frames do not overlap, so each payload once; headers where they are expected, in the search
    # ahead, and once more for a frame that is looked at again behind damage.
    candidates = len(buf) // 8 + 1
    assert cost.bytes <= 2 * len(buf) + 3 * FRAME_SIZE * candidates


def _walk(walked: Segment, first: int) -> None:
    offset, lsn, items = HEADER_SIZE, first, 0
    for item in _items(walked, first):
        items += 1
        if isinstance(item, End):
            assert item.offset >= offset and item.next_lsn >= lsn
            assert 0 <= item.torn_size <= max(0, len(walked.buf) - item.offset)
            assert 0 <= item.torn_frames <= item.torn_size / 8
            break
        if isinstance(item, Damage):
            assert item.size >= 0 and item.what and str(item)
            padding = item.lost == 0 and item.offset + item.size == offset
            assert item.offset >= min(offset, len(walked.buf)) or padding
            assert item.first_lsn >= lsn or padding
            offset, lsn = item.offset + item.size, max(lsn, item.last_lsn + 1)
        else:
            frame, payload = item
            assert frame.offset == offset and frame.lsn == lsn and len(payload) == frame.size
            offset, lsn = frame.end, lsn + frame.count
    assert items <= 3 + 3 * len(walked.buf) / 8


def _items(walked: Segment, first: int) -> Iterator[tuple[Frame, bytes] | Damage | End]:
    try:
        yield from walked.walk(HEADER_SIZE, first)
    except UnsupportedFormatError:  # a frame of a kind that is not known: said, not guessed
        return
