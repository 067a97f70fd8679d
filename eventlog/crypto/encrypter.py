"""Encrypts payloads that are appended to a log."""

from __future__ import annotations

from collections.abc import Callable

from eventlog.crypto.keys import Key
from eventlog.errors import RefusedValueError
from eventlog.format.envelope import NONCE_SIZE, TAG_SIZE, place_of
from eventlog.format.frame import PAYLOAD_SIZE_MAX, Frame, SegmentHeader


class Encrypter:
    """Encrypts what is appended, under one key, with nonces from ``random_bytes``."""

    def __init__(self, key: Key, random_bytes: Callable[[int], bytes]) -> None:
        self._key, self._random_bytes = key, random_bytes
        self.head = key.head
        self.overhead = len(key.head) + NONCE_SIZE + TAG_SIZE

    def check_size(self, payload: bytes) -> None:
        """Raise RefusedValueError for a payload that would be too large encrypted."""
        if len(payload) + self.overhead > PAYLOAD_SIZE_MAX:
            limit = PAYLOAD_SIZE_MAX - self.overhead
            raise RefusedValueError(
                "body",
                f"{len(payload)} bytes; one append to an encrypted log holds at most "
                f"{limit} bytes. Keep the value elsewhere and record a reference to it.",
            )

    def encrypt(self, header: SegmentHeader, frame: Frame, payload: bytes) -> bytes:
        """``payload`` encrypted for ``frame``, all of whose fields but size and CRC are known."""
        place = place_of(header.log_id, header.number, frame)
        while True:
            nonce = self._random_bytes(NONCE_SIZE)
            sealed = self.head + nonce + self._key.encrypt(nonce, payload, place)
            # No payload contains the salt: readers never search payloads for frames.
            if header.salt not in sealed:
                return sealed
