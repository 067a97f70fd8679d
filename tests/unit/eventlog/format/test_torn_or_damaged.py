"""The verdict on bytes that are no frame: torn, or damaged; and what it costs."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import pytest

from eventlog import Damage, EventLog
from eventlog.errors import UnsupportedFormatError
from eventlog.format import frame as frame_module
from eventlog.format import torn_or_damaged
from eventlog.format.durable_mark import DurableMark
from eventlog.format.frame import (
    ENCRYPTED,
    FOOTER,
    FRAME_SIZE,
    HEADER_SIZE,
    LSN_MAX,
    PAYLOAD_SIZE_MAX,
    RECORDS,
    SNAPSHOT,
    Frame,
    encode_frame,
)
from eventlog.format.torn_or_damaged import End, Segment, start_of
from eventlog.testing import SimulatedDisk

SALT = b"\x11\x22\x33\x44"


def frame(lsn: int, durable: int = 0, payload: bytes = b"p" * 8, **more: int) -> bytes:
    marks = (lsn, durable, more.get("snapshot", 0))
    return encode_frame(SALT, more.get("kind", RECORDS), more.get("count", 1), payload, marks)


def walk(
    body: bytes, mark: DurableMark | None = None, limit: int | None = None
) -> tuple[list[int], list[Damage], End]:
    """LSNs, damage and end."""
    segment = Segment(1, bytes(HEADER_SIZE) + body, SALT, mark or DurableMark(), limit)
    lsns: list[int] = []
    damaged: list[Damage] = []
    for item in segment.walk(HEADER_SIZE, 1):
        if isinstance(item, End):
            return lsns, damaged, item
        if isinstance(item, Damage):
            damaged.append(item)
        else:
            lsns.append(item[0].lsn)
    raise AssertionError("a walk ends with an End")


def broken(whole: bytes, at: int) -> bytes:
    return whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]


def strange() -> Iterator[bytes]:
    """Frames whose CRCs hold, and which are not what a writer of ours leaves there."""
    yield from (frame(2, payload=b"p" * size) for size in range(17))
    yield from (frame(2, kind=kind, count=0) for kind in (FOOTER, RECORDS))
    yield from (frame(2, kind=kind) for kind in (SNAPSHOT | ENCRYPTED, FOOTER | ENCRYPTED, 9))
    yield from (frame(lsn) for lsn in (1, 3, LSN_MAX, LSN_MAX + 1))
    yield from (frame(2, durable=durable) for durable in (1, 2, LSN_MAX, LSN_MAX + 1))
    yield from (frame(2, count=count) for count in (8, 9, 1 << 31))
    yield frame(2, payload=b"p") + bytes(8)
    head = struct.pack("<IIQQQII", PAYLOAD_SIZE_MAX + 1, RECORDS, 2, 0, 0, 1, 0)
    yield SALT + struct.pack("<I", zlib.crc32(head, struct.unpack("<I", SALT)[0])) + head


def judged(body: bytes, limit: int | None, base: int, careful: bool) -> list[object]:
    """All that a walk yields from ``base`` on, where LSN 1 is; without the loop of sound frames
    when it is to be ``careful``."""
    segment = Segment(1, body, SALT, DurableMark(2), limit, base)
    items: list[object] = []
    try:
        items += segment.walk(base, 1, (lambda frame: True) if careful else None)
    except UnsupportedFormatError as exc:
        items.append(str(exc))
    return items


@pytest.mark.parametrize("base", [0, HEADER_SIZE, 1 << 20])
@pytest.mark.parametrize("limit", [None, 1, 3, 4])
def test_the_loop_of_sound_frames_takes_nothing_that_a_closer_look_does_not(
    limit: int | None, base: int
) -> None:
    for odd in strange():
        body = frame(1) + odd + frame(3, durable=2, payload=b"123") + bytes(24)
        assert judged(body, limit, base, False) == judged(body, limit, base, True)
    body = frame(1, payload=b"p" * 5) + frame(2, payload=b"") + frame(3, durable=1)
    for bit in range(8 * len(body)):
        flipped = bytearray(body)
        flipped[bit // 8] ^= 1 << bit % 8
        assert judged(bytes(flipped), limit, base, False) == judged(
            bytes(flipped), limit, base, True
        )
    for cut in range(len(body)):
        assert judged(body[:cut], limit, base, False) == judged(body[:cut], limit, base, True)


def test_a_walk_from_the_middle_says_what_one_from_the_beginning_says() -> None:
    frames = [frame(1), frame(2, payload=b"abc"), broken(frame(3), 50), frame(4, durable=3)]
    whole = bytes(HEADER_SIZE) + b"".join(frames) + b"torn"
    base, first = HEADER_SIZE + len(frames[0]), len(frames[0]) + HEADER_SIZE
    all_of_it = list(Segment(1, whole, SALT, DurableMark(1), None).walk(HEADER_SIZE, 1))
    behind = list(Segment(1, whole[base:], SALT, DurableMark(1), None, base).walk(first, 2))
    assert all_of_it[1:] == behind
    damage, end = behind[1], behind[-1]
    assert isinstance(damage, Damage) and isinstance(end, End)
    assert damage.offset == HEADER_SIZE + len(frames[0]) + len(frames[1])
    assert end.offset == len(whole) - 4 and end.torn_size == 4


@pytest.mark.parametrize("at", [0, 5, 9, 20, FRAME_SIZE])
def test_a_bad_frame_that_nothing_calls_durable_is_torn_with_all_behind_it(at: int) -> None:
    lsns, damaged, end = walk(frame(1) + broken(frame(2), at) + frame(3, durable=1))
    assert (lsns, damaged, end.next_lsn, end.torn_frames) == ([1], [], 2, 1)
    assert end.torn_size > 0


@pytest.mark.parametrize("at", [0, 5, 9, 20, FRAME_SIZE])
def test_a_bad_frame_that_a_later_one_calls_durable_is_damage(at: int) -> None:
    lsns, (damage,), end = walk(frame(1) + broken(frame(2), at) + frame(3, durable=2))
    assert (lsns, damage.first_lsn, damage.last_lsn) == ([1, 3], 2, 2)
    assert (damage.offset, damage.size) == (HEADER_SIZE + 56, 56)
    assert (end.next_lsn, end.torn_size) == (4, 0)


def test_a_bad_last_frame_is_damage_when_the_mark_file_covers_it() -> None:
    body = frame(1) + broken(frame(2), 20)
    assert walk(body, DurableMark(1))[1] == []
    lsns, (damage,), end = walk(body, DurableMark(2))
    assert (lsns, damage.first_lsn, damage.last_lsn, end.next_lsn) == ([1], 2, 2, 3)
    assert not damage.snapshot


def test_a_later_segment_makes_all_before_it_durable() -> None:
    lsns, (damage,), end = walk(frame(1), limit=4)
    assert (lsns, damage.first_lsn, damage.last_lsn, end.next_lsn) == ([1], 2, 3, 4)
    assert walk(frame(1) + frame(2) + frame(3), limit=2) == ([1], [], End(120, 2, 0, 0))


def wanting(body: bytes, wanted: int, durable: int, limit: int | None = None) -> list[object]:
    """What a walk gives that wants one record: LSNs, and of damage the first and the last."""
    segment = Segment(1, bytes(HEADER_SIZE) + body, SALT, DurableMark(durable), limit)
    return [
        (item.first_lsn, item.last_lsn) if isinstance(item, Damage) else item[0].lsn
        for item in segment.walk(HEADER_SIZE, 1, lambda frame: frame.lsn == wanted)
        if not isinstance(item, End)
    ]


def test_the_payload_of_a_frame_that_is_not_wanted_is_not_read_if_the_log_cannot_end_there() -> (
    None
):
    hurt, batch = broken(frame(2), FRAME_SIZE), broken(frame(2, count=2), FRAME_SIZE)
    assert wanting(frame(1) + hurt + frame(3), 3, durable=2) == [3]
    assert wanting(frame(1) + hurt + frame(3), 3, durable=0, limit=4) == [3]
    assert wanting(frame(1) + hurt + frame(3), 3, durable=1) == [], "it may be torn"
    assert wanting(frame(1) + batch + frame(4), 4, durable=3) == [4]
    assert wanting(frame(1) + batch + frame(4), 4, durable=2) == [(2, 3), 4]
    assert wanting(frame(1) + hurt, 9, durable=2) == []
    assert wanting(frame(1) + hurt[:-8], 9, durable=2) == [(2, 2)], "a part of it is missing"
    over = frame(2, payload=bytes(16) + frame(9) + bytes(16))
    assert wanting(frame(1) + broken(over, FRAME_SIZE) + frame(3), 3, durable=2) == [(2, 2), 3]


def test_a_mark_that_covers_nothing_lost_makes_a_torn_tail_no_damage() -> None:
    lsns, damaged, end = walk(frame(1) + frame(2, durable=1) + b"torn", DurableMark(2))
    assert (lsns, damaged, end.torn_size) == ([1, 2], [], 4)


def test_a_frame_that_lacks_its_end_costs_itself() -> None:
    """Its header says how long it was; other frames, or nothing, are where its end should be."""
    cut = frame(2, payload=bytes(150))[:56]
    lsns, (damage,), _ = walk(frame(1) + cut + b"".join(frame(n, durable=2) for n in (3, 4, 5)))
    assert (lsns, damage.first_lsn, damage.last_lsn, damage.size) == ([1, 3, 4, 5], 2, 2, 56)
    lsns, (damage,), end = walk(frame(1) + cut, DurableMark(2))
    assert (lsns, damage.first_lsn, damage.last_lsn, damage.size) == ([1], 2, 2, 56)
    assert end.offset == damage.offset + damage.size


def test_a_missing_frame_is_a_gap() -> None:
    lsns, (damage,), _ = walk(frame(1) + frame(4, durable=3))
    assert (lsns, damage.what) == ([1, 4], "gap in LSNs")
    assert (damage.first_lsn, damage.last_lsn, damage.size) == (2, 3, 0)


def test_a_repeated_frame_is_no_record() -> None:
    lsns, damaged, _ = walk(frame(1) + frame(2) + frame(2) + frame(3, durable=2))
    assert (lsns, [d.lost for d in damaged]) == ([1, 2], [])
    lsns, damaged, _ = walk(frame(1) + frame(2) + frame(2) + frame(3, durable=3))
    assert (lsns, [d.lost for d in damaged]) == ([1, 2, 3], [0])


@pytest.mark.parametrize("at", [5, FRAME_SIZE])
@pytest.mark.parametrize("last", [False, True])
def test_a_lost_snapshot_is_called_one(at: int, last: bool) -> None:
    """Also the last frame of the log, of which only the mark file knows."""
    body = frame(1) + broken(frame(2, kind=SNAPSHOT), at)
    body += b"" if last else frame(3, durable=2, snapshot=2)
    _, (damage,), _ = walk(body, DurableMark(2, 2))
    assert damage.snapshot and damage.lost == 1
    assert "(a snapshot)" in str(damage)
    assert (damage.what == "snapshot fails its CRC") == (at == FRAME_SIZE)


@pytest.mark.parametrize("snapshot", [2, 3])
def test_two_lost_records_are_not_called_a_snapshot(snapshot: int) -> None:
    kinds = (SNAPSHOT, RECORDS) if snapshot == 2 else (RECORDS, SNAPSHOT)
    lost = [broken(frame(lsn, kind=kind), 5) for lsn, kind in zip((2, 3), kinds, strict=True)]
    body = frame(1) + b"".join(lost) + frame(4, durable=3, snapshot=snapshot)
    _, (damage,), _ = walk(body, DurableMark(3, snapshot))
    assert (damage.snapshot, damage.lost) == (False, 2)


def test_padding_that_is_not_zero_is_damage_if_durable_and_torn_if_not() -> None:
    whole = frame(2, payload=b"abc")
    body = frame(1) + whole[:-1] + b"\x01"
    assert walk(body, DurableMark(1))[:2] == ([1], [])
    lsns, (damage,), end = walk(body, DurableMark(2))
    assert (lsns, damage.what) == ([1, 2], "padding is not zero")
    assert (damage.first_lsn, damage.last_lsn, damage.lost, end.next_lsn) == (2, 1, 0, 3)


def test_an_unknown_kind_is_not_called_damage() -> None:
    with pytest.raises(UnsupportedFormatError, match="newer library"):
        walk(frame(1) + frame(2, kind=9))


def test_salt_and_lsn_are_known_without_the_segment_header() -> None:
    assert start_of(bytes(HEADER_SIZE) + frame(7)) == (SALT, 7)
    assert start_of(bytes(HEADER_SIZE) + broken(frame(7), 9)) is None
    assert start_of(bytes(HEADER_SIZE)) is None


def forged(size: int, what: str) -> bytes:
    """Adversarial bytes: as many candidates as fit, each of them made to cost."""
    if what == "markers":
        return SALT * (size // 4)
    if what == "headers":  # every header sound, every length beyond the end
        head = [frame(lsn, 1 << 40, b"")[:FRAME_SIZE] for lsn in range(2, 2 + size // FRAME_SIZE)]
        return b"".join(_resized(h, 60 << 20) for h in head)
    if what == "overlapping":  # every header sound, every length to the end, every CRC wrong
        count = size // FRAME_SIZE
        return b"".join(
            _resized(frame(lsn, 1 << 40, b"")[:FRAME_SIZE], size - (lsn + 1) * FRAME_SIZE - 8)
            for lsn in range(2, count)
        )
    return b"".join(broken(frame(lsn, lsn, b"12345678"), lsn % 50) for lsn in range(2, size // 56))


def _resized(head: bytes, size: int) -> bytes:
    checked = struct.pack("<I", max(0, size)) + head[12:]
    seed = int.from_bytes(SALT, "little")
    return head[:4] + zlib.crc32(checked, seed).to_bytes(4, "little") + checked


@pytest.mark.parametrize("what", ["markers", "headers", "overlapping", "damage"])
def test_the_search_ahead_is_linear_in_adversarial_bytes(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted, not timed: bytes that are hashed or copied, and candidates looked at."""
    cost = {"bytes": 0, "looks": 0}
    at, of = frame_module.frame_at, frame_module.payload_of

    def counted_crc(data: bytes, seed: int = 0) -> int:
        cost["bytes"] += len(data)
        return zlib.crc32(data, seed)

    def counted_at(buf: bytes, offset: int, salt: bytes, base: int = 0) -> Frame | None:
        cost["looks"] += 1
        return at(buf, offset, salt, base)

    def counted_of(buf: bytes, found: Frame, salt: bytes, base: int = 0) -> bytes | None:
        if found.payload_end <= len(buf):
            cost["bytes"] += found.size
        return of(buf, found, salt, base)

    monkeypatch.setattr(frame_module, "crc32", counted_crc)
    monkeypatch.setattr(frame_module, "frame_at", counted_at)
    monkeypatch.setattr(torn_or_damaged, "frame_at", counted_at)
    monkeypatch.setattr(torn_or_damaged, "payload_of", counted_of)
    costs = []
    for size in (1 << 18, 1 << 20):
        cost.update(bytes=0, looks=0)
        walk(frame(1) + forged(size, what), DurableMark(1 << 40))
        costs.append(dict(cost))
    small, large = costs
    assert large["bytes"] <= 4.5 * small["bytes"] + 1000 <= 60 << 20
    assert large["looks"] <= 4.5 * small["looks"] + 100


def test_two_mebibytes_of_forged_frames_are_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    at = frame_module.frame_at

    def counted(buf: bytes, offset: int, salt: bytes, base: int = 0) -> Frame | None:
        nonlocal looks
        looks += 1
        return at(buf, offset, salt, base)

    monkeypatch.setattr(frame_module, "frame_at", counted)
    walk(frame(1) + forged(2 << 20, "headers"), DurableMark(1 << 40))
    assert looks <= (2 << 20) // FRAME_SIZE + 2


def test_what_may_be_late_is_damage_when_the_segment_after_it_is_lost() -> None:
    """An owner that had lost the log wrote LSN 3; the new one's, in the next segment, is gone."""
    disk = SimulatedDisk()
    old = EventLog.open("log", files=disk)
    for lsn in (1, 2):
        old.append("event", lsn)
        old.commit()
    new = EventLog.open("log", files=disk, takeover=True)
    old.append("event", "late")
    assert new.append("event", "counts") == 3
    new.commit()
    old._release()
    new._release()
    lost = disk.after_process_death()
    del lost.directories["log"]["00000002.seg"].content[20:]
    for _ in range(2):
        damaged: list[Damage] = []
        with EventLog.read("log", files=lost) as reader:
            found = {record.lsn: record.body for record in reader.records(on_damage=damaged.append)}
        assert 3 not in found and found[1] == 1
        assert {lsn for d in damaged for lsn in range(d.first_lsn, d.last_lsn + 1)} >= {3}
        with EventLog.open("log", files=lost) as log:
            assert log.append("event", "more") > 3
