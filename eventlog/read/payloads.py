"""Decrypts payloads, and rejects those that the owner of the key did not write.

A segment is encrypted under one key, or not encrypted, as a whole; its header says which. After an
encrypted segment no segment is unencrypted. So without the key an attacker can remove records (see
docs/encryption.md), but not add any, except where ``accept_clear`` accepts unencrypted segments.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from eventlog.crypto.encrypter import Encrypter
from eventlog.crypto.keys import Encryption, Key
from eventlog.errors import (
    EncryptedLogError,
    NotEncryptedError,
    UnsupportedFormatError,
    WrongKeyError,
)
from eventlog.format.envelope import Envelope, decode_envelope, place_of
from eventlog.format.frame import ENCRYPTED, FOOTER, SNAPSHOT, Frame
from eventlog.format.record import Record, decode_payload
from eventlog.read.segments import Listing, SegmentInfo

_NONSENSE = "payload is not what its header says"


class Decoder:
    """Decodes sound frames of one log: to records, or to the reason why they do not count."""

    def __init__(self, path: str, listing: Listing, encryption: Encryption | None) -> None:
        self._path, self._listing, self.encryption = path, listing, encryption
        # The number of the last segment that was checked, and of the first encrypted one (0: none).
        # One tuple, replaced as a whole: several threads may read.
        self._encrypted_from = 0, 0
        self._in_clear: SegmentInfo | None = None  # the unencrypted segment that was checked last

    def encrypter(self, random_bytes: Callable[[int], bytes]) -> Encrypter | None:
        """The encrypter of a writer of this log; None when it writes unencrypted.

        Raises before anything is written: EncryptedLogError when the log is encrypted and no key
        was given; WrongKeyError when the newest segment with records is under another key;
        NotEncryptedError when that segment is unencrypted and ``accept_clear`` is false.
        """
        for number in reversed(self._listing.numbers()):
            with suppress(FileNotFoundError):  # removed meanwhile, by its owner
                if self._check_segment(number):
                    break
        if self.encryption is None:
            return None
        return Encrypter(self._find(self.encryption, self.encryption.key_id), random_bytes)

    def _check_segment(self, number: int) -> bool:
        """Whether the segment shows the key of the log; raises when the key is another one."""
        header = self._listing.header(number)
        frame, payload = self._listing.first_frame(number)
        if frame is not None and frame.kind != FOOTER and frame.flags == ENCRYPTED:
            envelope = None
            try:
                envelope = decode_envelope(payload)
            except UnsupportedFormatError:
                if header is None or header.encrypted:  # else the flag is forged
                    raise
            if envelope is not None:
                self._key_of(envelope)
                return True
        if self.encryption is None:
            if header is not None and header.encrypted:
                raise EncryptedLogError(self._path, None)
            return header is not None
        if frame is None or frame.kind == FOOTER or frame.flags:
            return False
        if not self.encryption.accept_clear:
            raise NotEncryptedError(self._path)
        return True

    def records(self, info: SegmentInfo, frame: Frame, payload: bytes) -> list[Record] | str:
        """The records of a frame whose CRCs match, or the reason why they do not count.

        Raises EncryptedLogError without a key, WrongKeyError with another key than theirs, and
        NotEncryptedError for unencrypted records that are not accepted.
        """
        if frame.flags & ENCRYPTED:
            plain = self._decrypt(info, frame, payload)
            return plain if isinstance(plain, str) else _decoded(frame, plain)
        if info is not self._in_clear:
            if self.encryption is not None or (info.header and info.header.encrypted):
                wrong = self._forged_in_clear(info)
                if wrong:
                    return wrong
                if self.encryption is not None and not self.encryption.accept_clear:
                    raise NotEncryptedError(self._path)
            self._in_clear = info
        return _decoded(frame, payload)

    def examine(
        self, info: SegmentInfo, frame: Frame, payload: bytes
    ) -> list[Record] | Envelope | str:
        """As ``records``; an encrypted frame without a key gives its Envelope."""
        if self.encryption is not None:
            return self.records(info, frame, payload)
        if frame.flags & ENCRYPTED:
            return self._envelope(info, payload)
        if info is not self._in_clear:
            wrong = self._forged_in_clear(info)
            if wrong:
                return wrong
            self._in_clear = info
        return _decoded(frame, payload)

    def _forged_in_clear(self, info: SegmentInfo) -> str:
        """Why an unencrypted record cannot be this log's; "" when it can."""
        if info.header is not None and info.header.encrypted:
            return "unencrypted, in an encrypted segment: not written with the key"
        looked_up_to, first = self._encrypted_from
        if info.number > looked_up_to:
            looked_up_to = max(self._listing.numbers(), default=0)
            first = self._listing.first_encrypted()
            self._encrypted_from = looked_up_to, first
        if 0 < first < info.number:
            return "unencrypted, after encrypted segments: not written with the key"
        return ""

    def _envelope(self, info: SegmentInfo, payload: bytes) -> Envelope | str:
        if info.header is not None and not info.header.encrypted:
            return "encrypted, in an unencrypted segment"
        return decode_envelope(payload) or _NONSENSE

    def _decrypt(self, info: SegmentInfo, frame: Frame, payload: bytes) -> bytes | str:
        envelope = self._envelope(info, payload)
        if isinstance(envelope, str):
            return envelope
        key = self._key_of(envelope)
        # All segments and the mark file have the log's id: a lost header does not lose it.
        log_id = info.header.log_id if info.header is not None else self._listing.log_id()
        if log_id is None:
            return "cannot be decrypted: the log's id is lost"
        where = place_of(log_id, info.number, frame)
        plain = key.decrypt(envelope.nonce, envelope.sealed, where)
        if plain is None:
            return "fails its authentication: not written here with the key"
        return plain

    def _key_of(self, envelope: Envelope) -> Key:
        if self.encryption is None:
            raise EncryptedLogError(self._path, envelope.key_id)
        key = self._find(self.encryption, envelope.key_id)
        if key.check != envelope.check:
            raise WrongKeyError(self._path, envelope.key_id, "the key that was given is another")
        return key

    def _find(self, encryption: Encryption, key_id: str) -> Key:
        key = encryption.find(key_id)
        if key is None:
            raise WrongKeyError(self._path, key_id, "no key was given for that id")
        return key


def _decoded(frame: Frame, payload: bytes) -> list[Record] | str:
    what = "snapshot does not match its digest" if frame.kind == SNAPSHOT else _NONSENSE
    return decode_payload(frame, payload) or what
