"""Keeps the keys of subjects: personal values are encrypted with them, and lost with them.

A store has one document of keys, beside its runs and in none of them. Each change replaces the
document as a whole. docs/format.md has its bytes.
"""

from __future__ import annotations

import math
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from eventlog import Packed, RefusedValueError
from eventlog.after_fork import in_forked_child
from eventlog.encryption import Encryption
from eventlog.errors import UnsupportedFormatError
from eventlog.files.api import Directory, Files, write_all
from eventlog.format.envelope import decode_envelope
from eventlog.format.record import pack, unpack
from recovery.errors import RecoveryError, SubjectKeysError
from recovery.values.sealed import (
    GONE,
    KEY_ID_SIZE,
    NONCE_SIZE,
    SUBJECTS_MAX,
    KeyIds,
    add_opener,
    checked_subject,
    key_ids,
)

if TYPE_CHECKING:
    from eventlog.crypto.xaes import XAES256GCM

DIRECTORY = ".subjects"  # in the store's directory
_KEYS, _NEW, _LOCK = "keys", "keys.new", "lock"
LOCK_WAIT_S, LOCK_PAUSE_S = 10.0, 0.005

MAGIC = b"evkeys\r\n"
STAMP_SIZE = 16  # random, another one in each version of the document
HEAD_SIZE = len(MAGIC) + STAMP_SIZE
SECRET_SIZE = 32
_PLACE = b"agent-eventlog subject keys 1"
_KEYS_OF_ALL = b"agent-eventlog subjects 1"
_SEAL, _DIGEST = b"agent-eventlog sealed 1", b"agent-eventlog digest 1"


class KeyDocument(Protocol):
    """Where a store keeps its document of keys: bytes that are replaced as a whole."""

    def head(self, size: int) -> bytes:
        """The first bytes of the document, ``size`` of them; none if there is no document. Asked
        for often."""

    def read(self) -> bytes:
        """The document; empty if there is none."""

    def change(self, change: Callable[[bytes], bytes]) -> None:
        """Replace the document by what ``change`` makes of it, alone among all processes.

        Durable when this returns, and the former bytes are overwritten or gone. After a crash
        there is one of the two. Raises RecoveryError when other processes keep it.
        """


class KeyFile:
    """The document as a file, in a directory of its own. Implements KeyDocument."""

    def __init__(self, root: str, files: Files) -> None:
        self._path, self._files = f"{root}/{DIRECTORY}", files

    def head(self, size: int) -> bytes:
        """See ``KeyDocument.head``."""
        return self._read(size)

    def read(self) -> bytes:
        """See ``KeyDocument.read``."""
        return self._read(None)

    def _read(self, size: int | None) -> bytes:
        try:
            directory = self._files.open_directory(self._path)
        except FileNotFoundError:
            return b""
        try:
            while True:
                file = directory.open(_KEYS)
                try:
                    data = file.pread(file.size() if size is None else size, 0)
                    if size is not None or file.identity() == directory.identity(_KEYS):
                        return data
                finally:  # else another process has replaced it, and writes over its bytes
                    file.close()
        except FileNotFoundError:
            return b""
        finally:
            directory.close()

    def change(self, change: Callable[[bytes], bytes]) -> None:
        """See ``KeyDocument.change``."""
        directory = self._files.make_directory(self._path)
        lock = directory.open(_LOCK, write=True, create=True)
        try:
            deadline = time.monotonic() + LOCK_WAIT_S
            while not lock.lock(0):
                if time.monotonic() > deadline:
                    raise RecoveryError(
                        f"{self._path} is held by another process for {LOCK_WAIT_S:.0f} s. Nothing "
                        "was changed; try again."
                    )
                time.sleep(LOCK_PAUSE_S)
            self._replace(directory, change(self.read()))
        finally:
            lock.close()
            directory.close()

    def _replace(self, directory: Directory, new: bytes) -> None:
        # A crash up to the rename leaves the former document; _NEW is written over then.
        file = directory.open(_NEW, write=True, create=True)
        try:
            file.truncate(0)
            write_all(file, new, 0)
            file.sync()
        finally:
            file.close()
        try:
            old = directory.open(_KEYS, write=True)
        except FileNotFoundError:
            old = None
        directory.replace(_NEW, _KEYS)
        directory.sync()
        if old is not None:  # it has no name any more: its bytes are not left to the free blocks
            write_all(old, bytes(old.size()), 0)
            old.sync()
            old.close()


class SubjectKeys:
    """The keys of the subjects of one store. Thread-safe, and for any number of processes.

    ``document``: where they are kept. Each use looks whether it has changed, if the last look is
    ``look_every_s`` ago (0). A value that is encrypted meanwhile with a destroyed key is forgotten
    at once. ``encryption``: that of the store; the document is encrypted with it as well (None).
    ``random_bytes`` makes keys and nonces (os.urandom).

    ``subject``: the id of a subject. ``key_id``: that of a key, 16 bytes; ``keys``: those of all
    subjects of a value, ascending. ``packed`` is a value, ``data`` the sealed one. All methods
    raise SubjectKeysError when the document cannot be read.
    """

    def __init__(
        self,
        document: KeyDocument,
        encryption: Encryption | None = None,
        random_bytes: Callable[[int], bytes] = os.urandom,
        look_every_s: float = 0.0,
    ) -> None:
        self._document, self._encryption, self._random = document, encryption, random_bytes
        self._every_s = look_every_s
        self._begin()
        add_opener(self)
        in_forked_child(self, SubjectKeys._begin)

    def _begin(self) -> None:
        """Know nothing of the document; also in a forked child, whose parent's threads may have
        held the mutex."""
        self._mutex = threading.RLock()
        self._looked, self._head = -math.inf, b""
        self._ids: dict[str, bytes] = {}  # by subject
        self._names: dict[bytes, str] = {}  # of subjects, by id
        self._secrets: dict[bytes, bytes] = {}
        self._gone: frozenset[bytes] = frozenset()
        self._ciphers: dict[KeyIds, XAES256GCM] = {}

    def subjects(self) -> list[str]:
        """The subjects that have a key, in their order."""
        self._look()
        return sorted(self._ids)

    def id_of(self, subject: str) -> bytes:
        """The id of the subject's key, which is made if there is none: durable on return."""
        checked_subject(subject)
        with self._mutex:
            self._look()
            while subject not in self._ids:  # another process may forget it at once
                _cipher(bytes(SECRET_SIZE))  # raises ImportError where the extra is missing
                self._change(lambda now: self._with(now, subject))
            return self._ids[subject]

    def known_id(self, subject: str) -> bytes | None:
        """The id of the subject's key; None if it has none."""
        self._look()
        return self._ids.get(subject)

    def ids_of(self, subject: str) -> list[bytes]:
        """The ids of all its keys: it has several where runs of other stores were copied."""
        self._look()
        return [key_id for key_id, name in self._names.items() if name == subject]

    def forget(self, subject: str) -> None:
        """Destroy the keys of the subject; durably gone when this returns."""

        def without(now: bytes) -> bytes:
            keys, gone = self._parsed(now)
            left = [one for one in keys if one[0] != subject]
            return self._made(left, [*gone, *(one for name, one, _ in keys if name == subject)])

        with self._mutex:
            if self.ids_of(checked_subject(subject)):
                self._change(without)

    def adopt(self, other: SubjectKeys, wanted: set[bytes]) -> None:
        """Take the keys of the ids ``wanted`` from the store of ``other``, and which of them were
        destroyed there."""
        other._look()
        keys = [
            (other._names[one], one, secret)
            for one, secret in other._secrets.items()
            if one in wanted
        ]
        gone = other._gone & wanted

        def added(now: bytes) -> bytes:
            known, former = self._parsed(now)
            dead = {*former, *gone}
            there = {key_id for _, key_id, _ in known}
            new = [one for one in keys if one[1] not in there | dead]
            return self._made([one for one in known if one[1] not in dead] + new, sorted(dead))

        with self._mutex:
            self._look()
            if not ({one for _, one, _ in keys} <= self._secrets.keys() and gone <= self._gone):
                self._change(added)

    # -- values

    def seal(self, keys: KeyIds, packed: bytes) -> bytes | None:
        """The data of a sealed value; None if one of the keys was destroyed, or is unknown."""
        if len(keys) > SUBJECTS_MAX:
            raise RefusedValueError("value", f"it belongs to more than {SUBJECTS_MAX} subjects")
        cipher = self._cipher_of(keys)
        if cipher is None or cipher is GONE:
            return None
        nonce, head = self._random(NONCE_SIZE), bytes((len(keys),)) + b"".join(keys)
        return head + nonce + bytes(cipher.encrypt(nonce, packed, head))

    def open(self, data: bytes) -> Any:
        """See ``Opener.open``. ValueError if the bytes were changed."""
        keys = key_ids(data)
        cipher = self._cipher_of(keys)
        if cipher is None or cipher is GONE:
            return cipher
        at = 1 + len(keys) * KEY_ID_SIZE
        found = cipher.decrypt(data[at : at + NONCE_SIZE], data[at + NONCE_SIZE :], data[:at])
        if found is None:
            raise ValueError("a sealed value was changed")
        return found

    def has_forgotten(self, key_id: bytes) -> bool:
        """See ``Opener.has_forgotten``."""
        self._look()
        return key_id in self._gone

    def knows(self, key_id: bytes) -> bool:
        """Whether the document has the key, or that it was destroyed."""
        self._look()
        return key_id in self._secrets or key_id in self._gone

    def name_of(self, key_id: bytes) -> str | None:
        """The subject of a key; None if the key is not there."""
        self._look()
        return self._names.get(key_id)

    def digest(self, keys: KeyIds, data: bytes) -> bytes | None:
        """A digest of 16 bytes that cannot be made without the keys; None as of ``seal``."""
        with self._mutex:
            secret = self._secret_of(keys)
            if secret is None or secret is GONE:
                return None
            return _hmac(secret, _DIGEST + data)[:16]

    def _cipher_of(self, keys: KeyIds) -> Any:
        with self._mutex:
            secret = self._secret_of(keys)
            if secret is None or secret is GONE:
                return secret
            if keys not in self._ciphers:
                self._ciphers[keys] = _cipher(_hmac(secret, _SEAL))
            return self._ciphers[keys]

    def _secret_of(self, keys: KeyIds) -> Any:
        """What all of these keys together give; GONE if one was destroyed, None if one is
        unknown."""
        self._look()
        if not self._gone.isdisjoint(keys):
            return GONE
        found = [self._secrets.get(one) for one in keys]
        if None in found:
            return None
        return _hmac(_KEYS_OF_ALL, b"".join(one for one in found if one is not None))

    # -- the document

    def _change(self, change: Callable[[bytes], bytes]) -> None:
        self._document.change(change)
        self._looked = -math.inf
        self._look()

    def _look(self) -> None:
        """Read the document if it has changed."""
        with self._mutex:
            if self._every_s and time.monotonic() - self._looked < self._every_s:
                return
            self._looked = time.monotonic()
            if self._document.head(HEAD_SIZE) == self._head:
                return
            data = self._document.read()
            keys, gone = self._parsed(data)
            self._head, self._gone, self._ciphers = data[:HEAD_SIZE], frozenset(gone), {}
            self._ids = {subject: key_id for subject, key_id, _ in reversed(keys)}
            self._names = {key_id: subject for subject, key_id, _ in keys}
            self._secrets = {key_id: secret for _, key_id, secret in keys}

    def _with(self, now: bytes, subject: str) -> bytes:
        keys, gone = self._parsed(now)
        if subject not in {one for one, *_ in keys}:  # else another process has made it
            keys.append((subject, self._random(KEY_ID_SIZE), self._random(SECRET_SIZE)))
        return self._made(keys, gone)

    def _parsed(self, data: bytes) -> tuple[list[tuple[str, bytes, bytes]], list[bytes]]:
        """The keys, and the ids of destroyed ones."""
        if not data:
            return [], []
        crc, body = data[HEAD_SIZE : HEAD_SIZE + 4], data[HEAD_SIZE + 4 :]
        if data[: len(MAGIC)] != MAGIC or crc != _crc(data[:HEAD_SIZE], body):
            raise SubjectKeysError("is damaged", "Put it back from a backup")
        body = self._decrypted(body)
        try:
            document = unpack(Packed(body))
            keys = [(str(name), bytes(one), bytes(secret)) for name, one, secret in document[1]]
            return keys, list(map(bytes, document[2])) if document[0] == 1 else _unknown()
        except (ValueError, TypeError, LookupError):
            raise SubjectKeysError("is of another version", "Use a newer library") from None

    def _made(self, keys: Iterable[tuple[str, bytes, bytes]], gone: list[bytes]) -> bytes:
        body = bytes(pack([1, sorted(map(list, keys)), gone]))
        if self._encryption is not None:
            key = self._encryption.find(self._encryption.key_id)
            if key is None:
                raise SubjectKeysError(
                    f"needs the key {self._encryption.key_id!r}", "Give the store its encryption="
                )
            nonce = self._random(NONCE_SIZE)
            body = b"\x01" + key.head + nonce + key.encrypt(nonce, body, _PLACE)
        else:
            body = b"\x00" + body
        head = MAGIC + self._random(STAMP_SIZE)
        return head + _crc(head, body) + body

    def _decrypted(self, body: bytes) -> bytes:
        encryption = self._encryption
        if body[:1] == b"\x00":
            if encryption is not None and not encryption.accept_clear:
                raise SubjectKeysError(
                    "is not encrypted, and the store is",
                    "If it was made before the store was encrypted: Encryption(key, "
                    "accept_clear=True)",
                )
            return body[1:]
        try:
            envelope = decode_envelope(body[1:])
        except UnsupportedFormatError:
            envelope = None
        if envelope is None:
            raise SubjectKeysError("is of another version", "Use a newer library")
        key = encryption.find(envelope.key_id) if encryption is not None else None
        if key is None or key.check != envelope.check:
            raise SubjectKeysError(
                f"is encrypted with the key {envelope.key_id!r}, which was not given",
                "Give the store its encryption=; the commands take --key-file",
            )
        found = key.decrypt(envelope.nonce, envelope.sealed, _PLACE)
        if found is None:
            raise SubjectKeysError("was changed", "Put it back from a backup")
        return found


def _unknown() -> list[bytes]:
    raise ValueError("another version")


def _crc(head: bytes, body: bytes) -> bytes:
    return zlib.crc32(body, zlib.crc32(head)).to_bytes(4, "big")


def _hmac(secret: bytes, data: bytes) -> bytes:
    import hmac  # noqa: PLC0415 - only where there are values of subjects

    return hmac.digest(secret, data, "sha256")


def _cipher(secret: bytes) -> XAES256GCM:
    try:
        from eventlog.crypto.xaes import XAES256GCM  # noqa: PLC0415 - needs the extra
    except ImportError as exc:
        raise ImportError(
            "values of subjects are encrypted, which needs the package `cryptography`: "
            "pip install 'agent-eventlog[encryption]'"
        ) from exc
    return XAES256GCM(secret)
