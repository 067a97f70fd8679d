"""Implements XAES-256-GCM (C2SP): AES-256-GCM with nonces of 192 bits. Needs ``encryption``.

AES-CMAC, as a counter-mode KDF (NIST SP 800-108r1), derives a key for each message from the key and
the first half of the nonce. The other half is the nonce of AES-256-GCM under the derived key. So
nonces can be random: after 2^80 messages under one key two are equal with a probability of 2^-32.
AES-256-GCM alone allows 2^32 messages.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB

_BLOCK_MASK = (1 << 128) - 1
_PREFIXES = (b"\x00\x01X\x00", b"\x00\x02X\x00")  # counter, label "X", separator


class XAES256GCM:
    """Encrypts and decrypts under one key of 32 bytes. Thread-safe."""

    def __init__(self, key: bytes) -> None:
        self._cipher = Cipher(AES(key), ECB())  # of single blocks that never repeat, for the KDF
        zero = int.from_bytes(self._blocks(bytes(16)), "big")
        # The first subkey of CMAC: doubling in GF(2^128).
        self._subkey = (zero << 1 & _BLOCK_MASK) ^ (0x87 if zero >> 127 else 0)

    def encrypt(self, nonce: bytes, data: bytes, associated: bytes) -> bytes:
        """The ciphertext of ``data``, its tag last. ``nonce``: 24 bytes, never used before."""
        return AESGCM(self._key_of(nonce)).encrypt(nonce[12:], data, associated)

    def decrypt(self, nonce: bytes, data: bytes, associated: bytes) -> bytes | None:
        """The plaintext; None when ``encrypt`` did not produce this with the same key, nonce and
        associated data."""
        try:
            return AESGCM(self._key_of(nonce)).decrypt(nonce[12:], data, associated)
        except InvalidTag:
            return None

    def _key_of(self, nonce: bytes) -> bytes:
        messages = (int.from_bytes(prefix + nonce[:12], "big") for prefix in _PREFIXES)
        return self._blocks(b"".join((m ^ self._subkey).to_bytes(16, "big") for m in messages))

    def _blocks(self, data: bytes) -> bytes:
        return self._cipher.encryptor().update(data)
