"""Logs that are encrypted at rest: what is hidden, what is bound to its place, what is refused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from eventlog import Damage, DamagedError, EventLog, LogLockedError, RefusedValueError
from eventlog.crypto.encrypter import Encrypter
from eventlog.crypto.xaes import XAES256GCM
from eventlog.dump import BAD_SNAPSHOT, DAMAGED, NOT_A_LOG, dump, verify
from eventlog.encryption import Encryption, parse_keys
from eventlog.errors import (
    EncryptedLogError,
    NotEncryptedError,
    UnsupportedFormatError,
    WrongKeyError,
)
from eventlog.format.envelope import NONCE_SIZE, TAG_SIZE, XAES_256_GCM, decode_envelope
from eventlog.format.frame import (
    ENCRYPTED,
    FOOTER,
    FRAME_SIZE,
    HEADER_SIZE,
    RECORDS,
    SNAPSHOT,
    Frame,
    SegmentHeader,
    decode_segment_header,
    encode_frame,
    frame_at,
    frames_ahead,
)
from eventlog.format.names import segment_name
from eventlog.format.record import Packed, encode_payload
from eventlog.testing import SimulatedDisk
from tests.support.paths import ROOT

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
SECRET = "otters-are-secret"
PASSED: list[Damage] = []


def encryption(**more: Any) -> Encryption:
    return Encryption(KEY, **more)


def write(disk: SimulatedDisk, encryption: Encryption | None, path: str = "log") -> None:
    """LSN 1 a record, 2-3 a batch, 4 a snapshot, 5 a record."""
    with EventLog.open(path, files=disk, encryption=encryption) as log:
        log.append(f"kind-{SECRET}", {"text": SECRET})
        log.append_batch([("part", [SECRET, n]) for n in range(2)])
        log.append_snapshot({"state": SECRET})
        log.append("end", SECRET)
        log.commit()


@pytest.fixture
def disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    write(disk, encryption())
    return disk


def content(disk: SimulatedDisk, number: int = 1, path: str = "log") -> bytearray:
    return disk.directories[path][segment_name(number)].content


def state(disk: SimulatedDisk) -> dict[str, bytes]:
    return {name: bytes(file.content) for name, file in disk.directories["log"].items()}


def frames(buf: bytes | bytearray) -> list[Frame]:
    return [f for f in frames_ahead(bytes(buf), HEADER_SIZE, bytes(buf[56:60])) if f.kind != FOOTER]


def read(disk: SimulatedDisk, encryption: Encryption | None) -> tuple[dict[int, Any], list[Damage]]:
    """Bodies by LSN, and the damage."""
    damaged: list[Damage] = []
    with EventLog.read("log", files=disk, encryption=encryption) as reader:
        return {r.lsn: r.body for r in reader.records(on_damage=damaged.append)}, damaged


def bits(disk: SimulatedDisk, encryption: Encryption | None = None) -> int:
    with EventLog.read("log", files=disk, encryption=encryption) as reader:
        findings = verify(reader)
        while True:
            try:
                next(findings)
            except StopIteration as end:
                return int(end.value.exit_code)


def put(buf: bytearray, frame: Frame, **changed: Any) -> None:
    """Write the frame anew, with what is changed of it and with CRCs that hold."""
    payload = changed.pop("payload", bytes(buf[frame.payload_offset : frame.payload_end]))
    kind = changed.pop("kind", frame.kind | frame.flags)
    count = changed.pop("count", frame.count)
    marks = tuple(
        changed.pop(name, getattr(frame, name)) for name in ("lsn", "durable", "snapshot")
    )
    assert not changed
    whole = encode_frame(frame.salt, kind, count, payload, marks)
    assert len(whole) == frame.end - frame.offset, "the test has to keep the size"
    buf[frame.offset : frame.end] = whole


# -- the cipher


@pytest.mark.parametrize(
    ("key", "associated", "expected"),
    [
        (1, b"", "ce546ef63c9cc60765923609b33a9a1974e96e52daf2fcf7075e2271"),
        (3, b"c2sp.org/XAES-256-GCM", "986ec1832593df5443a179437fd083bf3fdb41abd740a21f71eb769d"),
    ],
)
def test_the_cipher_is_the_one_of_the_specification(key, associated, expected) -> None:
    cipher, nonce = XAES256GCM(bytes([key]) * 32), b"ABCDEFGHIJKLMNOPQRSTUVWX"
    sealed = cipher.encrypt(nonce, b"XAES-256-GCM", associated)
    assert sealed.hex() == expected
    assert cipher.decrypt(nonce, sealed, associated) == b"XAES-256-GCM"


def test_every_bit_of_what_the_cipher_is_given_counts() -> None:
    cipher, nonce, associated = XAES256GCM(KEY), bytes(range(24)), b"place"
    sealed = cipher.encrypt(nonce, b"plain", associated)
    for given in (0, 1, 2):
        parts = [nonce, sealed, associated]
        for bit in range(8 * len(parts[given])):
            changed = bytearray(parts[given])
            changed[bit // 8] ^= 1 << bit % 8
            assert cipher.decrypt(*parts[:given], bytes(changed), *parts[given + 1 :]) is None  # type: ignore[call-arg]


# -- what is hidden, and what is not


def test_a_reader_without_the_key_sees_where_records_are(disk) -> None:
    with EventLog.read("log", files=disk) as reader:
        items = list(dump(reader))
    assert [(item["type"], item["lsn"]) for item in items] == [
        ("record", 1),
        ("record", 2),
        ("record", 3),
        ("snapshot", 4),
        ("record", 5),
    ]
    for item in items:
        assert item["encrypted"] == "1" and "body" not in item
        assert item["kind"] is item["time"] is item["time_ns"] is None
        assert item["size"] in [frame.size for frame in frames(content(disk))]
    assert bits(disk) == bits(disk, encryption()) == 0
    with EventLog.read("log", files=disk, encryption=encryption()) as reader:
        assert [item["body"] for item in dump(reader)][1] == [SECRET, 0]


def test_verify_counts_what_it_has_not_looked_into(disk) -> None:
    for key, hidden in ((None, 5), (encryption(), 0)):
        with EventLog.read("log", files=disk, encryption=key) as reader:
            findings = verify(reader)
            with pytest.raises(StopIteration) as end:
                next(findings)
            totals = end.value.value
        assert (totals.records, totals.snapshots, totals.encrypted) == (5, 1, hidden)


# -- the wrong key, and none


def attempts(disk: SimulatedDisk, key: Encryption | None) -> list[Callable[[], object]]:
    """All that opens or reads a log."""

    def with_reader(call: Callable[[Any], object]) -> object:
        with EventLog.read("log", files=disk, encryption=key) as reader:
            return call(reader)

    return [
        lambda: EventLog.open("log", files=disk, encryption=key),
        lambda: EventLog.open("log", files=disk, encryption=key, takeover=True),
        lambda: with_reader(lambda reader: list(reader.records())),
        lambda: with_reader(lambda reader: list(reader.records(on_damage=PASSED.append))),
        lambda: with_reader(lambda reader: next(reader.records(5))),
        lambda: with_reader(lambda reader: reader.latest_snapshot()),
        lambda: with_reader(lambda reader: reader.fetch({3})),
    ]


WRONG = {
    "none": (None, EncryptedLogError, "no key was given"),
    "another": (Encryption(OTHER), WrongKeyError, "is another"),
    "not that id": (Encryption({"2": KEY}.get, "2"), WrongKeyError, "no key was given for that id"),
}


@pytest.mark.parametrize("which", WRONG)
@pytest.mark.parametrize("left", ["closed", "open"])
def test_without_the_key_nothing_is_read_written_or_called_damaged(which, left, disk) -> None:
    if left == "open":
        log = EventLog.open("log", files=disk, encryption=encryption())
        log.append("late", 1)
        log._release()
        disk = disk.after_process_death()
    key, error, text = WRONG[which]
    before, calls = state(disk), len(disk.calls)
    for attempt in attempts(disk, key):
        with pytest.raises(EncryptedLogError, match="Nothing is lost") as caught:
            attempt()
        assert type(caught.value) is error and text in str(caught.value)
        assert (caught.value.path, caught.value.key_id) == ("log", "1")
    assert state(disk) == before and len(disk.calls) == calls and PASSED == []
    assert read(disk, encryption())[1] == []


def test_a_wrong_key_is_told_from_damage_when_the_newest_segments_hold_no_record(disk) -> None:
    stuck = EventLog.open("log", files=disk, encryption=encryption())
    with EventLog.open("log", files=disk, encryption=encryption(), takeover=True):
        pass
    stuck._release()
    footer = frame_at(bytes(content(disk, 2)), HEADER_SIZE, bytes(content(disk, 2)[56:60]))
    assert footer is not None and footer.kind == FOOTER
    before = state(disk)
    with pytest.raises(WrongKeyError):
        EventLog.open("log", files=disk, encryption=Encryption(OTHER))
    with pytest.raises(EncryptedLogError):
        EventLog.open("log", files=disk)
    assert state(disk) == before
    with EventLog.open("log", files=disk, encryption=encryption()) as log:
        assert log.append("more", 1) == 6


def test_an_encrypted_segment_without_records_is_not_gone_on_with_in_clear() -> None:
    disk = SimulatedDisk()
    log = EventLog.open("log", files=disk, encryption=encryption())
    log._appender._writer = log._appender._new_segment(b"")
    log._release()
    disk = disk.after_process_death()
    with pytest.raises(EncryptedLogError) as caught:
        EventLog.open("log", files=disk)
    assert caught.value.key_id is None


# -- keys


def test_keys_are_asked_for_by_id_and_once() -> None:
    asked: list[str] = []
    keys = {"2026-05": KEY, "2026-11": OTHER}

    def key(key_id: str) -> bytes | None:
        asked.append(key_id)
        return keys.get(key_id)

    disk = SimulatedDisk()
    old = Encryption(key, "2026-05")
    write(disk, old)
    with EventLog.open("log", files=disk, encryption=Encryption(key, "2026-11")) as log:
        log.append("new", SECRET)
    assert asked == ["2026-05", "2026-05", "2026-11"]
    asked.clear()
    both = Encryption(key, "2026-11")
    for _ in range(2):
        found, damaged = read(disk, both)
        assert len(found) == 6 and damaged == []
    assert sorted(asked) == ["2026-05", "2026-11"]
    with EventLog.read("log", files=disk) as reader:
        assert [item["encrypted"] for item in dump(reader)] == ["2026-05"] * 5 + ["2026-11"]
    with EventLog.read(
        "log", files=disk, encryption=Encryption({"2026-11": OTHER}.get, "2026-11")
    ) as reader:
        assert next(reader.records(6)).body == SECRET
        with pytest.raises(WrongKeyError, match="2026-05"):
            next(reader.records(5))


def test_a_log_that_names_any_number_of_keys_fills_no_memory(disk) -> None:
    """A forger copies the check, which is in clear, and invents the ids."""
    first, salt = frames(content(disk))[0], bytes(content(disk)[56:60])
    sealed = bytes(content(disk)[first.payload_offset + 3 : first.payload_end])
    del content(disk)[first.offset :]
    for n in range(1, 301):
        key_id = f"{n:04}".encode()
        payload = b"\x01\x04" + key_id + sealed
        content(disk).extend(encode_frame(salt, RECORDS | ENCRYPTED, 1, payload, (n, 0, 0)))
    del disk.directories["log"]["MARK"]
    kept = encryption()
    found, damaged = read(disk, kept)
    assert found == {} and len(damaged) == 300
    assert len(kept._keys) <= 64


def test_the_key_to_write_with_must_be_there() -> None:
    disk = SimulatedDisk()
    with pytest.raises(WrongKeyError, match="'9'"):
        EventLog.open("log", files=disk, encryption=Encryption({"1": KEY}.get, "9"))
    assert disk.directories["log"] == {}


def test_what_the_callback_raises_passes_through(disk) -> None:
    def unavailable(key_id: str) -> bytes:
        raise ConnectionError(f"no answer about {key_id}")

    before = state(disk)
    with pytest.raises(ConnectionError):
        EventLog.open("log", files=disk, encryption=Encryption(unavailable))
    assert state(disk) == before


@pytest.mark.parametrize("bad", [b"", b"x" * 31, b"x" * 33, "x" * 32, None, bytearray(32), 1])
def test_what_is_no_key_is_refused(bad) -> None:
    with pytest.raises(ValueError, match="32 random bytes"):
        Encryption(bad)
    if bad is not None:
        with pytest.raises(ValueError, match="32 random bytes"):
            Encryption(lambda key_id: bad).find("1")


@pytest.mark.parametrize("bad", ["", "a b", "a\n", "\u00e9", "x" * 65])
def test_what_is_no_key_id_is_refused(bad) -> None:
    with pytest.raises(ValueError, match="printable ASCII"):
        Encryption(KEY, bad)


def test_the_key_is_not_shown() -> None:
    key = os.urandom(32)
    shown = repr(Encryption(key)) + str(Encryption(key))
    assert shown == "Encryption(key_id='1')" * 2


def test_a_key_file_has_keys_by_id() -> None:
    find = parse_keys(f"# a comment\n\n2026-05 {KEY.hex()}\n  2026-11\t{OTHER.hex().upper()}\n")
    assert [find(key_id) for key_id in ("2026-05", "2026-11", "else")] == [KEY, OTHER, None]
    only = parse_keys(KEY.hex() + "\n")
    assert only("whatever") == KEY


@pytest.mark.parametrize(
    "bad", ["", "# nothing", "abc", "a b c", f"a {KEY.hex()}\na {KEY.hex()}", KEY.hex()[:-1] + "g"]
)
def test_what_is_no_key_file_is_refused_and_not_shown(bad) -> None:
    with pytest.raises(ValueError, match="key") as caught:
        parse_keys(bad)
    assert KEY.hex()[:8] not in str(caught.value)


def test_the_extra_is_named_when_it_is_missing() -> None:
    code = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from eventlog.encryption import Encryption\n"
        "try:\n    Encryption(bytes(32))\n"
        "except ImportError as exc:\n    print(exc)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'agent-eventlog[encryption]'" in done.stdout


def test_a_log_in_clear_does_not_need_the_extra(tmp_path) -> None:
    code = (
        "import sys; sys.modules['cryptography'] = None\n"
        "import recovery, logdump.__main__\n"
        "from eventlog import EventLog\n"
        "with EventLog.open(sys.argv[1]) as log: log.append('a', 1)\n"
        "print(logdump.main(['verify', sys.argv[1]]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "log"], capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith("\n0\n")


# -- nonces


def nonces(disk: SimulatedDisk) -> list[bytes]:
    found = []
    for name, file in disk.directories["log"].items():
        if name.endswith(".seg"):
            buf = bytes(file.content)
            for frame in frames(buf):
                envelope = decode_envelope(buf[frame.payload_offset : frame.payload_end])
                assert envelope is not None
                found.append(envelope.nonce)
    return found


def test_no_nonce_comes_twice_whoever_writes_an_lsn_again() -> None:
    """A fenced owner, its successor, and copies that were put back all write the same LSNs."""
    disk = SimulatedDisk()
    write(disk, encryption())
    seen: set[bytes] = set(nonces(disk))
    assert len(seen) == 4
    lost = disk.after_process_death()  # as a backup is: the same bytes, and nothing remembered
    lost._random = disk._random  # the kernel's randomness is not put back with it
    for there in (disk, lost):
        old = EventLog.open("log", files=there, encryption=encryption())
        old.append("event", "before")
        new = EventLog.open("log", files=there, encryption=encryption(), takeover=True)
        for log in (old, new):
            assert log.append("event", str(log)) == 7
        # Fenced now, the old owner still writes.
        before = len(seen)
        seen.update(nonces(there))
        assert len(seen) == before + 3
        for log in (old, new):
            log._release()


def test_each_nonce_is_fresh_from_the_system() -> None:
    disk, asked = SimulatedDisk(), []
    inner = disk.random_bytes

    def random_bytes(size: int) -> bytes:
        asked.append(inner(size))
        return asked[-1]

    with mock.patch.object(disk, "random_bytes", random_bytes):
        write(disk, encryption())
    assert nonces(disk) == [data for data in asked if len(data) == NONCE_SIZE]


def test_recovery_writes_the_same_bytes_again_and_encrypts_nothing_anew() -> None:
    disk = SimulatedDisk()
    log = EventLog.open("log", files=disk, encryption=encryption())
    log.append("event", SECRET)
    log.append_snapshot(SECRET)
    log._release()
    after = disk.after_process_death()
    before = bytes(content(after)).rstrip(b"\0")
    writes: list[bytes] = []
    with mock.patch(
        "eventlog.write.appender.write_all", lambda file, data, offset: writes.append(bytes(data))
    ):
        again = EventLog.open("log", files=after, encryption=encryption())
        again._release()
    there = [bytes(content(after)[f.offset : f.end]) for f in frames(content(after))]
    assert [data for data in writes if len(data) > 100] == [b"".join(there)] and len(there) == 2
    assert bytes(content(after)).startswith(before)


class Chosen:
    """A key whose ciphertexts are given."""

    head = b"head"

    def __init__(self, *sealed: bytes) -> None:
        self.sealed = list(sealed)

    def encrypt(self, nonce: bytes, data: bytes, place: bytes) -> bytes:
        return self.sealed.pop(0)


def test_no_ciphertext_has_the_salt_of_its_segment() -> None:
    header = SegmentHeader(1, bytes(16), 1, 1, 1, b"salt", True)
    key: Any = Chosen(b"xxsaltxx" + bytes(TAG_SIZE), b"yyyyyyyy" + bytes(TAG_SIZE))
    frame = Frame(0, 0, RECORDS | ENCRYPTED, 1, 0, 0, 1, 0, 0, b"salt")
    numbers = iter(range(9))
    encrypter = Encrypter(key, lambda size: bytes([next(numbers)]) * size)
    sealed = encrypter.encrypt(header, frame, b"plain")
    assert sealed == b"head" + b"\1" * NONCE_SIZE + b"yyyyyyyy" + bytes(TAG_SIZE)


def test_no_segment_has_a_salt_that_is_in_the_key_id() -> None:
    salts = iter([b"abcd", b"1234"])
    disk = SimulatedDisk()
    others = disk.random_bytes
    with mock.patch.object(disk, "random_bytes", lambda n: next(salts) if n == 4 else others(n)):
        write(disk, Encryption(KEY, "xabcdx"))
    assert content(disk)[56:60] == b"1234"
    found, damaged = read(disk, encryption())
    assert len(found) == 5 and damaged == []


# -- in clear, and then encrypted


def test_a_log_in_clear_is_refused_unless_it_is_said() -> None:
    disk = SimulatedDisk()
    write(disk, None)
    before = state(disk)
    with pytest.raises(NotEncryptedError, match="accept_clear=True"):
        EventLog.open("log", files=disk, encryption=encryption())
    with pytest.raises(NotEncryptedError):
        read(disk, encryption())
    assert state(disk) == before


# -- forgers without the key


def refused(disk: SimulatedDisk, lsns: set[int], bit: int = DAMAGED) -> list[Damage]:
    """With the key these records are reported as lost, and the others are read."""
    found, damaged = read(disk, encryption())
    lost = {lsn for d in damaged for lsn in range(d.first_lsn, d.last_lsn + 1)}
    assert lost == lsns and not lsns & set(found) and lsns | set(found) == {1, 2, 3, 4, 5}
    assert bits(disk, encryption()) == bit
    with (
        pytest.raises(DamagedError),
        EventLog.read("log", files=disk, encryption=encryption()) as r,
    ):
        list(r.records())
    with EventLog.open("log", files=disk, encryption=encryption()) as log:
        assert log.append("behind", 6) == 6
    return damaged


def test_a_forged_ciphertext_does_not_count(disk) -> None:
    buf = content(disk)
    first = frames(buf)[0]
    payload = bytearray(buf[first.payload_offset : first.payload_end])
    payload[-1] ^= 1
    put(buf, first, payload=bytes(payload))
    (damage,) = refused(disk, {1})
    assert damage.what == "fails its authentication: not written here with the key"


def test_a_record_of_another_log_does_not_count(disk) -> None:
    write(disk, encryption(), "other")
    theirs = content(disk, path="other")
    frame, mine = frames(theirs)[0], frames(content(disk))[0]
    put(content(disk), mine, payload=bytes(theirs[frame.payload_offset : frame.payload_end]))
    refused(disk, {1})


def test_a_record_of_another_segment_does_not_count(disk) -> None:
    """What a fenced owner wrote at an LSN cannot stand in for what its successor wrote there."""
    old = EventLog.open("log", files=disk, encryption=encryption())
    new = EventLog.open("log", files=disk, encryption=encryption(), takeover=True)
    for log, body in ((old, "old"), (new, "new")):
        log.append("event", body)
    for log in (old, new):
        log._release()
    disk = disk.after_process_death()
    late, counts = frames(content(disk))[-1], frames(content(disk, 2))[0]
    assert late.lsn == counts.lsn == 6 and late.durable == counts.durable
    payload = bytes(content(disk)[late.payload_offset : late.payload_end])
    put(content(disk, 2), counts, payload=payload)
    found, damaged = read(disk, encryption())
    assert 6 not in found and "authentication" in damaged[0].what


def relabelled(data: bytes, number: int, log_id: bytes) -> bytes:
    """A whole segment with another number and log id in its header."""
    old = decode_segment_header(data)
    assert old is not None
    new = SegmentHeader(number, log_id, old.first_lsn, 1, old.epoch, old.salt, True)
    return new.encode() + data[HEADER_SIZE:]


def test_a_whole_segment_of_another_log_does_not_count(disk) -> None:
    """With this log's id written into its header, and its checksums right."""
    write(disk, encryption(), "other")
    mine = decode_segment_header(bytes(content(disk)))
    assert mine is not None
    content(disk)[:] = relabelled(bytes(content(disk, path="other")), 1, mine.log_id)
    found, damaged = read(disk, encryption())
    assert found == {} and {d.what.partition(":")[0] for d in damaged} == {
        "fails its authentication"
    }


def test_a_segment_under_another_number_does_not_count(disk) -> None:
    """It would be the last one then, and decide what counts."""
    mine = decode_segment_header(bytes(content(disk)))
    assert mine is not None
    disk.make_directory("log").open(segment_name(2), write=True, create=True)
    content(disk, 2)[:] = relabelled(bytes(content(disk)), 2, mine.log_id)
    found, damaged = read(disk, encryption())
    assert found == {} and "authentication" in damaged[0].what


def test_a_record_of_another_life_of_the_segment_does_not_count(disk) -> None:
    """A backup was put back, and went on otherwise: the same log, segment and LSN."""
    left = EventLog.open("log", files=disk, encryption=encryption())
    left._release()
    lives = [disk.after_process_death(), disk.after_process_death()]
    for seed, life in enumerate(lives):
        life._random.seed(seed)
        with EventLog.open("log", files=life, encryption=Encryption(KEY, "2")) as log:
            log.append("event", f"life {seed}")
    ours, theirs = (frames(content(life, 2))[0] for life in lives)
    assert ours.lsn == theirs.lsn == 6 and ours.salt != theirs.salt
    payload = bytes(content(lives[1], 2)[theirs.payload_offset : theirs.payload_end])
    put(content(lives[0], 2), ours, payload=payload)
    found, damaged = read(lives[0], encryption())
    assert 6 not in found and "authentication" in damaged[0].what


@pytest.mark.parametrize(
    ("changed", "lost", "bit"),
    [
        ({"kind": SNAPSHOT | ENCRYPTED}, {5}, BAD_SNAPSHOT),
        ({"durable": 2}, {5}, DAMAGED),
        ({"snapshot": 0}, {5}, DAMAGED),
    ],
)
def test_the_header_of_a_frame_is_bound_to_it(changed, lost, bit, disk) -> None:
    last = frames(content(disk))[-1]
    assert (last.durable, last.snapshot) == (0, 4)
    put(content(disk), last, **changed)
    found, damaged = read(disk, encryption())
    assert not lost & set(found) and "authentication" in damaged[0].what
    # The footer's digest is wrong too, where nothing else is.
    assert bits(disk, encryption()) == bit


def forged(frame: Frame, salt: bytes, kind: int = RECORDS) -> bytes:
    """A record in clear, as anybody can write it."""
    payload = encode_payload(1, [("event", "forged")])
    return encode_frame(salt, kind, 1, payload, (frame.lsn, 0, 0))


def test_a_record_in_clear_in_an_encrypted_segment_does_not_count(disk) -> None:
    last = frames(content(disk))[-1]
    del content(disk)[last.offset :]
    content(disk).extend(forged(last, last.salt))
    assert bits(disk) == bits(disk, encryption()) == DAMAGED, "seen without the key as well"
    for accept in (False, True):
        found, damaged = read(disk, encryption(accept_clear=accept))
        assert set(found) == {1, 2, 3, 4} and "unencrypted" in damaged[0].what


def test_a_segment_in_clear_behind_encrypted_ones_does_not_count(disk) -> None:
    header = decode_segment_header(bytes(content(disk)))
    assert header is not None
    later = SegmentHeader(2, header.log_id, 6, 1, header.epoch, b"\1\2\3\4")
    last = frames(content(disk))[-1]
    last.lsn = 6
    directory = disk.make_directory("log")
    directory.open(segment_name(2), write=True, create=True)
    content(disk, 2)[:] = later.encode() + forged(last, b"\1\2\3\4")
    assert bits(disk) == DAMAGED
    found, damaged = read(disk, encryption(accept_clear=True))
    assert set(found) == {1, 2, 3, 4, 5} and "unencrypted, after" in damaged[0].what
    before = state(disk)
    with pytest.raises(NotEncryptedError):
        EventLog.open("log", files=disk, encryption=encryption())
    assert state(disk) == before
    with EventLog.open("log", files=disk, encryption=encryption(accept_clear=True)) as log:
        assert log.append("more", 1) == 7


def test_a_segment_that_is_said_to_be_in_clear_gives_nothing_away(disk) -> None:
    header = decode_segment_header(bytes(content(disk)))
    assert header is not None
    clear = SegmentHeader(1, header.log_id, 1, 1, header.epoch, header.salt)
    content(disk)[:HEADER_SIZE] = clear.encode()
    assert bits(disk) & DAMAGED and bits(disk, encryption()) & DAMAGED
    found, damaged = read(disk, encryption())
    assert found == {} and all("unencrypted" in d.what or "segment" in d.what for d in damaged)
    with pytest.raises(EncryptedLogError):
        EventLog.open("log", files=disk)


# -- frames that make no sense


def alone(payload: bytes, kind: int = RECORDS | ENCRYPTED) -> SimulatedDisk:
    """An encrypted log of one frame with that payload."""
    disk, salt = SimulatedDisk(), b"\1\2\3\4"
    with EventLog.open("log", files=disk, encryption=encryption()):
        pass
    directory = disk.make_directory("log")
    directory.open(segment_name(1), write=True, create=True)
    header = SegmentHeader(1, bytes(16), 1, 1, 1, salt, True)
    content(disk)[:] = header.encode() + encode_frame(salt, kind, 1, payload, (1, 0, 0))
    return disk


def envelope(disk: SimulatedDisk) -> bytes:
    first = frames(content(disk))[0]
    return bytes(content(disk)[first.payload_offset : first.payload_end])


def test_an_envelope_cut_anywhere_is_damage(disk) -> None:
    whole = envelope(disk)
    least = 2 + 1 + 8 + NONCE_SIZE + TAG_SIZE
    for size in range(1, len(whole)):
        cut = alone(whole[:size])
        assert read(cut, encryption())[0] == {} and len(read(cut, encryption())[1]) == 1
        assert bits(cut) == (DAMAGED if size < least else 0), size
        assert bits(cut, encryption()) == DAMAGED
        if size < least:
            with EventLog.open("log", files=cut, encryption=encryption()) as log:
                assert log.append("more", 1) == 2


@pytest.mark.parametrize(
    "payload",
    [
        b"\x01",
        b"\x01\x00" + bytes(100),
        b"\x01\xff" + b"a" * 400,
        b"\x01\x01\x00" + bytes(100),
        b"\x01\x01\x1b" + bytes(100),
        b"\x01\x02\xc3\xa9" + bytes(100),
    ],
)
def test_garbage_with_the_flag_is_damage(payload) -> None:
    disk = alone(payload)
    assert bits(disk) == bits(disk, encryption()) == DAMAGED
    for key in (None, encryption()):
        found, damaged = read(disk, key)
        assert found == {} and damaged[0].what == "payload is not what its header says"
    with pytest.raises(EncryptedLogError):
        EventLog.open("log", files=disk)


@pytest.mark.parametrize("suite", [0, 2, 0x93, 255])
def test_an_unknown_suite_is_not_damage(suite) -> None:
    disk = alone(bytes([suite]) + bytes(100))
    assert suite != XAES_256_GCM
    assert bits(disk) & NOT_A_LOG and bits(disk, encryption()) & NOT_A_LOG
    before = state(disk)
    for attempt in attempts(disk, encryption())[:4]:
        with pytest.raises(UnsupportedFormatError, match="not damaged"):
            attempt()
    assert state(disk) == before


@pytest.mark.parametrize(
    "kind", [FOOTER | ENCRYPTED, RECORDS | 0x200, RECORDS | ENCRYPTED | 0x8000]
)
def test_other_flags_are_not_supported(kind, disk) -> None:
    strange = alone(envelope(disk), kind)
    assert bits(strange) & NOT_A_LOG and bits(strange, encryption()) & NOT_A_LOG
    with pytest.raises(UnsupportedFormatError):
        read(strange, encryption())
    with pytest.raises(UnsupportedFormatError):
        EventLog.open("log", files=strange, encryption=encryption())


def test_the_flag_on_a_record_in_clear_is_damage() -> None:
    disk = SimulatedDisk()
    write(disk, None)
    first = frames(content(disk))[0]
    put(content(disk), first, kind=RECORDS | ENCRYPTED)
    assert bits(disk) & DAMAGED
    found, damaged = read(disk, None)
    assert set(found) == {2, 3, 4, 5} and "an unencrypted segment" in damaged[0].what
    with EventLog.open("log", files=disk) as log:
        assert log.append("more", 6) == 6


def test_what_the_key_fits_and_is_no_payload_is_damage() -> None:
    """Only somebody with the key can write it."""
    disk = SimulatedDisk()
    with EventLog.open("log", files=disk, encryption=encryption()) as log:
        log._appender.append(RECORDS, 1, b"\xc1 no msgpack")
        log._appender.append(SNAPSHOT, 1, encode_payload(1, [("no digest", None)]))
    found, damaged = read(disk, encryption())
    assert found == {} and len(damaged) == 2 and damaged[1].snapshot
    assert bits(disk) == 0 and bits(disk, encryption()) == DAMAGED | BAD_SNAPSHOT


# -- what must go on working


def test_a_snapshot_that_was_forged_falls_back_to_an_earlier_one(disk) -> None:
    with EventLog.open("log", files=disk, encryption=encryption()) as log:
        log.append_snapshot("newest")
    newest = frames(content(disk))[-1]
    payload = bytearray(content(disk)[newest.payload_offset : newest.payload_end])
    payload[-1] ^= 1
    put(content(disk), newest, payload=bytes(payload))
    with EventLog.open("log", files=disk, encryption=encryption()) as log:
        snapshot = log.latest_snapshot()
        assert snapshot is not None and snapshot.lsn == 4
    assert bits(disk, encryption()) == BAD_SNAPSHOT


@pytest.mark.parametrize("durability", ["power", "process", "none"])
@pytest.mark.parametrize("commits", [True, False])
def test_a_lost_segment_header_costs_no_record(durability, commits) -> None:
    """Nothing can be decrypted without the log's id: it is in the mark file from the start."""
    disk = SimulatedDisk()
    log = EventLog.open("log", durability, files=disk, encryption=encryption())
    for body in range(3):
        log.append("event", body)
    if commits:
        log.commit()
    log._appender.drain()
    log._release()
    disk = disk.after_process_death()
    content(disk)[20] ^= 1
    found, damaged = read(disk, encryption())
    assert found == {1: 0, 2: 1, 3: 2} and [d.lost for d in damaged] == [0]
    with pytest.raises(EncryptedLogError):
        EventLog.open("log", files=disk)
    with pytest.raises(WrongKeyError):
        EventLog.open("log", files=disk, encryption=Encryption(OTHER))
    with EventLog.open("log", files=disk, encryption=encryption()) as log:
        assert log.append("more", 3) == 4
    assert set(read(disk, encryption())[0]) == {1, 2, 3, 4}


def test_with_header_and_mark_lost_records_are_reported_as_lost() -> None:
    disk = SimulatedDisk()
    with EventLog.open("log", files=disk, encryption=encryption()) as log:
        log.append("event", 1)
    content(disk)[20] ^= 1
    del disk.directories["log"]["MARK"]
    found, damaged = read(disk, encryption())
    assert found == {} and damaged[-1].what == "cannot be decrypted: the log's id is lost"
    assert (damaged[-1].first_lsn, damaged[-1].last_lsn) == (1, 1)


def test_a_segment_that_vanishes_while_the_key_is_looked_at_does_no_harm(disk) -> None:
    """The owner of the log removes it at this moment, and holds the log."""
    with EventLog.open("log", files=disk, encryption=encryption()) as owner:
        owner.truncate_before(6)
        numbers = [1, *owner._reader.listing.numbers()]
        with (
            mock.patch("eventlog.read.segments.Listing.numbers", lambda self: numbers),
            pytest.raises(LogLockedError),
        ):
            EventLog.open("log", files=disk, encryption=encryption())


def test_a_record_too_large_encrypted_is_refused_before_anything_is_written() -> None:
    disk, body = SimulatedDisk(), bytes(1000)
    payload = encode_payload(disk._clock, [("event", body)])
    with (
        mock.patch("eventlog.crypto.encrypter.PAYLOAD_SIZE_MAX", len(payload) + 52),
        EventLog.open("log", files=disk, encryption=encryption()) as log,
    ):
        calls = len(disk.calls)
        with pytest.raises(RefusedValueError, match=f"at most {len(payload) + 1} bytes"):
            log.append("event", body + b"xx")
        assert len(disk.calls) == calls and log.last_lsn == 0
        assert log.append("event", body + b"x") == 1
        assert frames(content(disk))[0].size == len(payload) + 52
    assert read(disk, encryption())[0] == {1: body + b"x"}


def test_segments_roll_at_the_size_that_is_written() -> None:
    for segment_size in range(400, 620, 8):
        disk = SimulatedDisk()
        with EventLog.open(
            "log", files=disk, encryption=encryption(), segment_size=segment_size
        ) as log:
            for _ in range(8):
                log.append("event", "x" * 40)
        numbers = [n for n in range(1, 9) if segment_name(n) in disk.directories["log"]]
        assert len(numbers) > 1
        assert all(frames(content(disk, n))[-1].end <= segment_size for n in numbers)
        lsns = [frame.lsn for n in numbers for frame in frames(content(disk, n))]
        assert lsns == list(range(1, 9))


def test_what_is_in_a_payload_adds_as_much_as_the_page_says(disk) -> None:
    page = (ROOT / "docs" / "encryption.md").read_text()
    said = re.search(r"(\d+) bytes and the length of the key id", page)
    first = frames(content(disk))[0]
    plain = encode_payload(disk._clock, [(f"kind-{SECRET}", Packed(b""))])
    with EventLog.read("log", files=disk, encryption=encryption()) as reader:
        packed = next(reader.records()).packed
    added = first.size - len(plain) - len(packed)
    assert said is not None and added == int(said[1]) + len("1")
    assert frame_at(bytes(content(disk)), HEADER_SIZE, bytes(content(disk)[56:60])) == first
    assert first.payload_offset == HEADER_SIZE + FRAME_SIZE
