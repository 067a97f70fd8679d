"""Encodes and decodes the mark file: up to where a log is known to be durable. Pure."""

from __future__ import annotations

import struct
from zlib import crc32

from eventlog.format.frame import LSN_MAX
from eventlog.light_dataclass import light_dataclass


@light_dataclass
class DurableMark:
    """The highest LSN known to be durable, and the newest snapshot's LSN up to there."""

    durable: int = 0
    snapshot: int = 0


_FORMAT = struct.Struct("<8s16sQQQ")
_MAGIC = b"evmark\r\n"
MARK_SIZE = _FORMAT.size + 4


def encode_mark(log_id: bytes, epoch: int, mark: DurableMark) -> bytes:
    """The content of the mark file."""
    checked = _FORMAT.pack(_MAGIC, log_id, epoch, mark.durable, mark.snapshot)
    return checked + crc32(checked).to_bytes(4, "little")


def decode_mark(content: bytes) -> tuple[bytes, int, DurableMark] | None:
    """Log id, epoch and mark of the content; None when it is torn, which is no damage."""
    checked, crc = content[: _FORMAT.size], content[_FORMAT.size :]
    if len(crc) != 4 or crc32(checked).to_bytes(4, "little") != crc:
        return None
    magic, log_id, epoch, durable, snapshot = _FORMAT.unpack(checked)
    if magic != _MAGIC or durable > LSN_MAX:
        return None
    return log_id, epoch, DurableMark(durable, snapshot)
