"""Keys of encrypted logs, and what is encrypted under them."""

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
# Somebody may have forged a log with another key id in each frame. More are asked for again.
KEYS_MAX = 64

_CHECKED = b"agent-eventlog key check"
_HEX_KEY = re.compile(r"[0-9A-Fa-f]{64}")


class Key:
    """A key in use. ``head`` is what payloads under it begin with (see format.envelope)."""

    def __init__(self, key_id: str, secret: bytes) -> None:
        import hmac  # noqa: PLC0415 - only where something is encrypted

        self._aead = _aead()(secret)
        # Tells a wrong key from damage, and nothing of the key.
        self.check = hmac.digest(secret, _CHECKED, "sha256")[:CHECK_SIZE]
        self.head = encode_head(key_id, self.check)

    def encrypt(self, nonce: bytes, data: bytes, place: bytes) -> bytes:
        """Ciphertext and tag of ``data``, which is to be at ``place``."""
        return self._aead.encrypt(nonce, data, place + self.head)

    def decrypt(self, nonce: bytes, data: bytes, place: bytes) -> bytes | None:
        """What was encrypted for this place under this key; None if this was not."""
        return self._aead.decrypt(nonce, data, place + self.head)


class Encryption:
    """How a log is encrypted: with which key it is written, and where keys for reading are.

    ``key``: 32 random bytes, or a function that gives them for a key id (None: there is no such
    key; what it raises passes through). It is asked when a key id is first met. ``key_id``, 1 to 64
    printable ASCII characters, names the key for what is written from now on; it stands in the
    log in clear. A key of bytes is tried for every id. To change keys, give a function that knows
    the old ones, and a new ``key_id``: the log goes on in a new segment, and what was written
    under the old key stays so.

    ``accept_clear``: take up logs that were begun in clear. What they hold in clear is read, and
    believed as in any log in clear; what is appended is encrypted. Without it such a log is
    refused (NotEncryptedError), so that nobody without the key can put records into a log.

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
        """Whether both write under the same key, and read the same: the same bytes or function."""
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
    """Keys as they stand in a key file, as a function for ``Encryption``.

    One in a line, 64 hexadecimal digits, its id before it: ``2026-11 9f86d0...``. A key without
    an id is for all ids that have no line of their own. Empty lines and those with ``#`` in front
    say nothing. Raises ValueError, without showing what it has read.
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
    """What a file with keys holds. ValueError when every user of the machine can read or change it:
    then it keeps nobody out. A group that was let in may."""
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
