"""Encodes and decodes encrypted payloads. Pure; docs/format.md is the spec.

    0        suite       u8, 1: XAES-256-GCM
    1        size        u8, of the key id
    2        key id      printable ASCII
    2 + n    key check   8 bytes, to tell a wrong key from damage
   10 + n    nonce       24 bytes, random
   34 + n    ciphertext  as long as what it holds, then the tag of 16 bytes

The bytes before the nonce are the *head*. Associated data binds a payload to its log, its segment
and the header of its frame.
"""

from __future__ import annotations

import re
import struct

from eventlog.errors import UnsupportedFormatError
from eventlog.format.frame import Frame
from eventlog.light_dataclass import light_dataclass

XAES_256_GCM = 1
CHECK_SIZE, NONCE_SIZE, TAG_SIZE = 8, 24, 16

# Key ids are shown on terminals and written in key files: no spaces, no control characters.
KEY_ID = re.compile(r"[!-~]{1,64}")

# Log id, segment number and salt, then bytes 12 to 44 of the frame: kind and flags, LSN, durable
# mark, last snapshot, record count. The sizes and CRCs that are left out add no information.
_PLACE = struct.Struct("<16sI4sIQQQI")


@light_dataclass
class Envelope:
    """The parts of an encrypted payload. ``sealed`` is the ciphertext with its tag."""

    key_id: str
    check: bytes
    nonce: bytes
    sealed: bytes
    head: bytes


def encode_head(key_id: str, check: bytes) -> bytes:
    """What an encrypted payload begins with."""
    assert KEY_ID.fullmatch(key_id)
    assert len(check) == CHECK_SIZE
    return bytes((XAES_256_GCM, len(key_id))) + key_id.encode() + check


def decode_envelope(payload: bytes) -> Envelope | None:
    """The parts of an encrypted payload; None when it is none.

    Raises UnsupportedFormatError for a suite that this library does not know.
    """
    if not payload:
        return None
    if payload[0] != XAES_256_GCM:
        raise UnsupportedFormatError(
            f"a payload is encrypted in a way that this library does not know ({payload[0]}). "
            "The log is not damaged: use a newer library."
        )
    id_end = 2 + int.from_bytes(payload[1:2])
    head_end = id_end + CHECK_SIZE
    nonce_end = head_end + NONCE_SIZE
    key_id = payload[2:id_end].decode("ascii", "replace")
    if len(payload) < nonce_end + TAG_SIZE or not KEY_ID.fullmatch(key_id):
        return None
    return Envelope(
        key_id,
        payload[id_end:head_end],
        payload[head_end:nonce_end],
        payload[nonce_end:],
        payload[:head_end],
    )


def place_of(log_id: bytes, number: int, frame: Frame) -> bytes:
    """The associated data that binds a payload to its position, unique for each frame of a log."""
    return _PLACE.pack(
        log_id,
        number,
        frame.salt,
        frame.kind | frame.flags,
        frame.lsn,
        frame.durable,
        frame.snapshot,
        frame.count,
    )
