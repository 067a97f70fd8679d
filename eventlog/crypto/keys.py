"""Holds the keys of encrypted logs, and encrypts and decrypts payloads with them."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from typing import TYPE_CHECKING

from eventlog.format.envelope import CHECK_SIZE, KEY_ID, encode_head

if TYPE_CHECKING:
    from eventlog.crypto.xaes import XAES256GCM

KEY_SIZE = 32
# A forged log may have another key id in each frame, so the cache is bounded.
KEYS_MAX = 64

_CHECKED = b"agent-eventlog key check"
_HEX_KEY = re.compile(r"[0-9A-Fa-f]{64}")


class Key:
    """A key in use. ``head``: the first bytes of payloads under it (see format.envelope)."""

    def __init__(self, key_id: str, secret: bytes) -> None:
        import hmac  # noqa: PLC0415 - only where something is encrypted

        self._aead = _aead()(secret)
        # Distinguishes a wrong key from damage, and discloses nothing about the key.
        self.check = hmac.digest(secret, _CHECKED, "sha256")[:CHECK_SIZE]
        self.head = encode_head(key_id, self.check)

    def encrypt(self, nonce: bytes, data: bytes, place: bytes) -> bytes:
        """Ciphertext and tag of ``data``, bound to the position ``place``."""
        return self._aead.encrypt(nonce, data, place + self.head)

    def decrypt(self, nonce: bytes, data: bytes, place: bytes) -> bytes | None:
        """The data encrypted for this position under this key; None if there is none."""
        return self._aead.decrypt(nonce, data, place + self.head)


class Encryption:
    """How a log is encrypted: the key it is written with, and the keys for reading.

    ``key``: 32 random bytes, which are tried for every key id. Or a function from a key id to its
    key, or to None for an unknown id. The function is called when a key id is first met, and its
    exceptions pass through. ``key_id``, 1 to 64 printable ASCII characters, names the key for new
    records; the log stores it unencrypted.

    To change keys, give a function that knows the old ones, and a new ``key_id``. The log continues
    in a new segment; records under the old key stay as they are.

    ``accept_clear``: open logs that were begun without a key. Their unencrypted records are read
    and believed, and new records are encrypted. Without it such a log is refused
    (NotEncryptedError), so that only holders of the key can put records into a log.

    Thread-safe; one object serves any number of logs. Raises ImportError without the extra.
    """

    def __init__(
        self,
        key: bytes | Callable[[str], bytes | None],
        key_id: str = "1",
        *,
        accept_clear: bool = False,
    ) -> None:
        if not callable(key):
            _check(key, key_id)
        if not KEY_ID.fullmatch(key_id):
            raise ValueError(f"key_id is 1 to 64 printable ASCII characters, not {key_id!r}")
        _aead()
        self.key_id, self.accept_clear = key_id, accept_clear
        self._key = key
        self._keys: dict[str, Key] = {}

    def __repr__(self) -> str:
        return f"Encryption(key_id={self.key_id!r})"  # never the key: it ends up in tracebacks

    def __eq__(self, other: object) -> bool:
        """Whether both write under the same key and read with the same key bytes or function."""
        return isinstance(other, Encryption) and self._said() == other._said()

    def __hash__(self) -> int:
        return hash(self.key_id)

    def _said(self) -> tuple[object, ...]:
        return self.key_id, self.accept_clear, self._key

    def find(self, key_id: str) -> Key | None:
        """Not for users: the key of that id, None when there is none."""
        found = self._keys.get(key_id)
        if found is None:
            secret = self._key(key_id) if callable(self._key) else self._key
            if secret is None:
                return None
            if len(self._keys) >= KEYS_MAX:
                self._keys.clear()
            found = self._keys[key_id] = Key(key_id, _check(secret, key_id))
        return found


def parse_keys(text: str) -> Callable[[str], bytes | None]:
    """The keys in ``text``, that of a key file, as a function for ``Encryption``.

    Each line has a key of 64 hexadecimal digits, and its id before it: ``2026-11 9f86d0...``. A
    key without an id is used for all ids that have no line of their own. Empty lines, and lines
    that begin with ``#``, are ignored. Raises ValueError, without showing the content.
    """
    keys: dict[str, bytes] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        key_id = words[0] if len(words) == 2 else ""
        if len(words) > 2 or not _HEX_KEY.fullmatch(words[-1]) or key_id in keys:
            raise ValueError(
                f"line {number} is no key: 64 hexadecimal digits, or a key id, a space and these; "
                "each id once"
            )
        keys[key_id] = bytes.fromhex(words[-1])
    if not keys:
        raise ValueError("there is no key in it")
    return lambda key_id: keys.get(key_id, keys.get(""))


def read_key_file(path: str | os.PathLike[str]) -> bytes:
    """The content of the key file ``path``. ValueError when every user of the machine can read or
    change it: such a key protects nothing. Access of a group is accepted."""
    with open(path, "rb") as file:  # noqa: PTH123 - pathlib is slow to import
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & (stat.S_IROTH | stat.S_IWOTH):
            raise ValueError(
                f"every user can read or change it (mode {mode:03o}), and with it the keys. "
                "chmod 600 it, and change the keys if others may have had them"
            )
        return file.read()


def _check(secret: object, key_id: object) -> bytes:
    if type(secret) is not bytes or len(secret) != KEY_SIZE:
        what = f"{len(secret)} bytes" if type(secret) is bytes else f"a {type(secret).__name__}"
        raise ValueError(
            f"the key {key_id!r} is {what}; a key is {KEY_SIZE} random bytes, as of "
            f"os.urandom({KEY_SIZE}), not a password"
        )
    return secret


def _aead() -> type[XAES256GCM]:
    try:
        from eventlog.crypto.xaes import XAES256GCM  # noqa: PLC0415 - needs the extra
    except ImportError as exc:
        raise ImportError(
            "encryption needs the package `cryptography`: pip install 'agent-eventlog[encryption]'"
        ) from exc
    return XAES256GCM
