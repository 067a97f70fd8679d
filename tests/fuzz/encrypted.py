"""Any frame with the flag of encryption, in any segment: never read as what it is not."""

from __future__ import annotations

from eventlog import Damage, EventLog
from eventlog.dump import verify
from eventlog.encryption import Encryption
from eventlog.errors import (
    EncryptedLogError,
    NotEncryptedError,
    UnsupportedFormatError,
    WrongKeyError,
)
from eventlog.format.envelope import decode_envelope
from eventlog.format.frame import ENCRYPTED, RECORDS, SNAPSHOT, SegmentHeader, encode_frame
from eventlog.format.names import segment_name
from eventlog.testing import SimulatedDisk
from tests.fuzz._choices import Choices

KEY = Encryption(bytes(range(32)))
SALT = b"\xa1\xa2\xa3\xa4"


def encrypted(data: bytes) -> None:
    """Whoever has not the key cannot make a record; who has it reads, refuses, or says why."""
    choices = Choices(data)
    flagged, kind = choices.flag(), choices.pick((RECORDS, SNAPSHOT))
    header = SegmentHeader(1, bytes(16), 1, 1, 1, SALT, flagged)
    head = KEY.find("1")
    assert head is not None
    payload = (head.head if choices.flag() else b"") + choices.rest()[: 1 << 16]
    if SALT in payload or not payload:
        return
    disk = SimulatedDisk()
    directory = disk.make_directory("log")
    frame = encode_frame(SALT, kind | ENCRYPTED, 1, payload, (1, 0, 0))
    content = header.encode() + frame
    directory.open(segment_name(1), write=True, create=True).pwrite(content, 0)
    directory.open("LOCK", write=True, create=True)
    for key in (None, KEY):
        damaged: list[Damage] = []
        with EventLog.read("log", files=disk, encryption=key) as reader:
            try:
                list(verify(reader))
                found = list(reader.records(on_damage=damaged.append))
                assert found == [] and [damage.first_lsn for damage in damaged] == [1]
            except (EncryptedLogError, UnsupportedFormatError) as exc:
                assert key is None or isinstance(exc, WrongKeyError | UnsupportedFormatError)
    _opened(disk, payload)


def _opened(disk: SimulatedDisk, payload: bytes) -> None:
    """It goes on, or says why not before it writes anything."""
    before = len(disk.calls)
    try:
        with EventLog.open("log", files=disk, encryption=KEY) as log:
            assert log.append("event", 1) == 2
        envelope = decode_envelope(payload) if payload[0] == 1 else None
        assert envelope is None or envelope.check == KEY.find("1").check  # type: ignore[union-attr]
    except (WrongKeyError, UnsupportedFormatError, NotEncryptedError):
        assert len(disk.calls) == before
