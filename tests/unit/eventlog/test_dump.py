"""dump and verify: what they show of sound logs, and what they say of each kind of harm."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from typing import Any
from zlib import crc32

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventlog import EventLog, Packed
from eventlog.dump import (
    BAD_SNAPSHOT,
    DAMAGED,
    GAP,
    MISSING,
    NOT_A_LOG,
    TORN,
    Finding,
    Totals,
    dump,
    from_json,
    to_json,
    verify,
)
from eventlog.format.frame import (
    FOOTER,
    HEADER_SIZE,
    SNAPSHOT,
    SegmentHeader,
    decode_segment_header,
    encode_frame,
    frame_at,
)
from eventlog.format.names import segment_name
from eventlog.format.record import encode_payload
from eventlog.testing import SimulatedDisk


def write(disk: SimulatedDisk, *, records: int = 6, segment_size: int = 8 << 20) -> None:
    """Records and batches of two in turn, a snapshot after the third append; closed cleanly."""
    with EventLog.open("log", files=disk, segment_size=segment_size) as log:
        for i in range(records):
            if i % 2:
                log.append_batch([("b", {"i": i, "text": "x" * 40}), ("b", [i])])
            else:
                log.append("a", {"i": i, "text": "y" * 40})
            if i == 2:
                log.append_snapshot({"upto": i})
            log.commit()


def content(disk: SimulatedDisk, number: int = 1) -> bytearray:
    return disk.directories["log"][segment_name(number)].content


def found(disk: SimulatedDisk) -> list[Finding]:
    findings = list(verify(EventLog.read("log", files=disk)))
    for one in findings:  # what is lost is in the text, and else nothing is
        assert one.last_lsn >= one.first_lsn - 1
        assert one.last_lsn < one.first_lsn or f"LSN {one.first_lsn}" in one.text
    return findings


def totals(disk: SimulatedDisk) -> Totals:
    walk = verify(EventLog.read("log", files=disk))
    while True:
        try:
            next(walk)
        except StopIteration as end:
            assert isinstance(end.value, Totals)
            return end.value


def bits(disk: SimulatedDisk) -> int:
    return totals(disk).exit_code


def frames(disk: SimulatedDisk, number: int = 1) -> list[Any]:
    buf = bytes(content(disk, number))
    header = decode_segment_header(buf)
    assert header is not None
    offset, all_frames = HEADER_SIZE, []
    while (frame := frame_at(buf, offset, header.salt)) is not None:
        all_frames.append(frame)
        offset = frame.end
    return all_frames


@pytest.fixture
def disk() -> SimulatedDisk:
    disk = SimulatedDisk(seed=1)
    write(disk)
    return disk


@pytest.fixture
def rolled() -> SimulatedDisk:
    disk = SimulatedDisk(seed=1)
    write(disk, records=12, segment_size=512)
    assert len(EventLog.read("log", files=disk).listing.numbers()) >= 4
    return disk


# -- sound logs


def test_dump_gives_the_records_with_their_places(disk) -> None:
    reader = EventLog.read("log", files=disk)
    items = list(dump(reader))
    records = list(reader.records())
    assert [(i["lsn"], i["kind"], i["time_ns"]) for i in items] == [
        (r.lsn, r.kind, r.time_ns) for r in records
    ]
    assert [from_json(i["body"]) for i in items] == [r.body for r in records]
    assert [i["type"] for i in items].count("snapshot") == 1
    starts = {frame.offset for frame in frames(disk) if frame.kind != FOOTER}
    assert {i["offset"] for i in items} == starts
    assert items[1]["offset"] == items[2]["offset"]  # a batch
    assert items[0]["time"] == "2023-11-14T22:13:20.002000000Z"


def test_empty_log_is_sound() -> None:
    disk = SimulatedDisk()
    EventLog.open("log", files=disk).close()
    assert found(disk) == []
    assert totals(disk) == Totals()


def test_log_is_sound_after_each_recovery() -> None:
    disk = SimulatedDisk()
    for generation in range(6):
        log = EventLog.open("log", files=disk, segment_size=600)
        for i in range(5):
            log.append("k", [generation, i, "z" * 50])
        log.append_snapshot(generation)
        if generation % 2:
            log.close()
            disk = disk.after_process_death()
        else:
            log.commit()
            log.append("lost", 1)
            after = disk.after_power_loss(generation)
            log.close()
            disk = after
    EventLog.open("log", files=disk).close()
    assert found(disk) == []


def test_superseded_bytes_are_noted_and_no_problem() -> None:
    disk = SimulatedDisk()
    old = EventLog.open("log", files=disk)
    old.append("k", 1)
    old.commit()
    new = EventLog.open("log", files=disk, takeover=True)
    new.append("k", 2)
    new.commit()
    old.append("late", 2)
    (note,) = found(disk)
    assert (note.bit, note.segment) == (0, 1) and "do not count" in note.text
    assert [i["body"] for i in dump(EventLog.read("log", files=disk)) if "lsn" in i] == [1, 2]
    new.close()
    with pytest.raises(Exception, match="taken over"):
        old.close()


def test_roll_while_reading_is_not_damage() -> None:
    disk = SimulatedDisk()
    log = EventLog.open("log", files=disk, segment_size=400)
    for i in range(10):
        log.append("k", [i, "x" * 30])
    log.commit()
    walk = dump(EventLog.read("log", files=disk))
    first = next(walk)
    for i in range(30):
        log.append("k", [i, "x" * 30])
        log.commit()
    items = [first, *walk]
    assert {i["type"] for i in items} == {"record"}
    assert [i["lsn"] for i in items] == list(range(1, len(items) + 1)) and len(items) >= 10
    log.close()


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize(
    ("caught_up", "looks", "seen"),
    [
        ([20], 1, 20),
        ([3, 3], 2, 3),  # it has moved, and then it has not
        ([2], 1, 2),
        (list(range(3, 19)), 10, 12),  # it moves on and on
    ],
)
def test_live_record_that_is_half_written_is_looked_at_again(
    caught_up: list[int], looks: int, seen: int, committed: bool, monkeypatch
) -> None:
    disk = SimulatedDisk()
    log = EventLog.open("log", files=disk)
    for n in range(20):
        log.append("k", n)
    if committed:  # then it would be damage, if it were not on its way
        log.commit()
    whole, ends = bytes(content(disk)), [frame.end for frame in frames(disk)]

    def show(count: int) -> None:
        half = whole[: ends[count - 1] + 30] if count < 20 else whole
        content(disk)[:] = half.ljust(len(whole), b"\0")

    def catch_up(seconds: float) -> None:
        assert 0 < seconds < 0.1
        slept.append(seconds)
        show(caught_up[len(slept) - 1])

    slept = list[float]()
    show(2)
    monkeypatch.setattr("eventlog.read.verify.time.sleep", catch_up)
    items = list(dump(EventLog.read("log", files=disk)))
    assert [i["lsn"] for i in items if "lsn" in i] == list(range(1, seen + 1))
    left = "damage" if committed else "torn_tail"
    assert [i["type"] for i in items if "lsn" not in i] == [left] * (seen < 20)
    assert len(slept) == looks
    show(20)
    log.close()


def test_late_seal_of_a_fenced_writer_is_no_damage(monkeypatch) -> None:
    disk = SimulatedDisk()
    old = EventLog.open("log", files=disk)
    old.append_snapshot(1)
    old.commit()
    new = EventLog.open("log", files=disk, takeover=True)
    new.append("k", 2)
    new.commit()
    # As if it had looked at LOCK just before the takeover.
    monkeypatch.setattr(old._appender.owner, "check", lambda: None)
    old.append("late", 2)
    old.append_snapshot("late")
    old._appender._mark_file = None
    old.close()
    assert [f.bit for f in found(disk)] == [0]
    new.close()


# -- harm


def flip(disk: SimulatedDisk, offset: int, number: int = 1, bit: int = 1) -> None:
    content(disk, number)[offset] ^= bit


@pytest.mark.parametrize(
    ("whole", "says"), [(0, ""), (1, ", with 1 whole frame among them,"), (2, ", with 2 whole fr")]
)
def test_torn_tail_is_bit_1(whole: int, says: str) -> None:
    disk = SimulatedDisk()
    log = EventLog.open("log", files=disk)
    log.append("k", 1)
    log.commit()
    log.append("k", "never acknowledged")
    torn = frames(disk)[-1]
    for _ in range(whole):
        log.append("k", "never acknowledged")
    last = frames(disk)[-1]
    flip(disk, torn.offset + 60)
    (finding,) = found(disk)
    assert (finding.bit, finding.offset, finding.next_frame) == (TORN, torn.offset, 0)
    assert last.end - 8 < finding.offset + finding.size <= last.end
    assert finding.text.startswith(f"torn tail: {finding.size} bytes{says}")
    assert says or " bytes after LSN 1 that were never acknowledged" in finding.text
    items = list(dump(EventLog.read("log", files=disk)))
    assert [i["type"] for i in items] == ["record", "torn_tail"]
    log.close()


def test_damaged_payload_is_bit_2_with_place_and_lsns(disk) -> None:
    batch = frames(disk)[1]
    flip(disk, batch.payload_offset + 5)
    (finding,) = found(disk)
    assert (finding.bit, finding.segment, finding.offset) == (DAMAGED, 1, batch.offset)
    assert (finding.first_lsn, finding.last_lsn, finding.size) == (2, 3, batch.end - batch.offset)
    assert finding.text == "record fails its CRC: LSN 2-3 lost"


def test_padding_that_is_not_zero_is_bit_2_and_loses_nothing(disk) -> None:
    frame = next(frame for frame in frames(disk) if frame.payload_end < frame.end)
    flip(disk, frame.end - 1)
    (finding,) = found(disk)
    assert finding.bit == DAMAGED and "padding" in finding.text
    assert finding.last_lsn < finding.first_lsn
    assert totals(disk).records == 10


def test_damaged_segment_header_is_bit_2_and_records_are_still_read(disk) -> None:
    flip(disk, 20)
    (finding,) = found(disk)
    assert (finding.bit, finding.offset, finding.size) == (DAMAGED, 0, 64)
    assert totals(disk).records == 10


def test_missing_segment_in_the_middle_is_bit_4_with_its_lsns(rolled) -> None:
    lost = {r.lsn for r in EventLog.read("log", files=rolled).records()}
    del rolled.directories["log"][segment_name(2)]
    findings = found(rolled)
    assert {f.bit for f in findings} == {MISSING}
    lost -= {r.lsn for r in EventLog.read("log", files=rolled).records(on_damage=lambda _: None)}
    assert {n for f in findings for n in range(f.first_lsn, f.last_lsn + 1)} == lost
    assert all("00000002.seg" in f.text for f in findings)
    after = findings[0].last_lsn + 1
    assert findings[1].text == "00000002.seg is missing"
    del rolled.directories["log"][segment_name(1)]
    *_, missing = found(rolled)
    assert (missing.segment, missing.first_lsn, missing.last_lsn) == (3, 1, after - 1)
    assert missing.text == f"00000001.seg to 00000002.seg are missing: LSN 1-{after - 1} lost"


def test_missing_first_and_last_segments_are_bit_4(rolled) -> None:
    names = sorted(name for name in rolled.directories["log"] if name.endswith(".seg"))
    del rolled.directories["log"][names[0]]
    del rolled.directories["log"][names[-1]]
    findings = found(rolled)
    assert [f.bit for f in findings] == [MISSING, MISSING]
    assert findings[0].first_lsn == 1 and findings[-1].last_lsn == 19


def superseded(takeovers: int) -> SimulatedDisk:
    """A log with segments that hold nothing that counts before the one that does."""
    disk = SimulatedDisk()
    logs = [EventLog.open("log", files=disk, takeover=i > 0) for i in range(takeovers + 1)]
    logs[-1].append("k", 1)
    logs[-1].close()
    for log in logs[:-1]:
        log._appender.fail(OSError("as if its process had died"))
        log.close()
    assert found(disk) == []
    return disk


def test_missing_segment_that_held_nothing_is_bit_4() -> None:
    disk = superseded(3)
    del disk.directories["log"][segment_name(2)]
    (finding,) = found(disk)
    assert finding.bit == MISSING and finding.last_lsn < finding.first_lsn
    assert totals(disk).records == 1


def test_unreadable_first_segment_leaves_a_gap(rolled) -> None:
    first = next(EventLog.read("log", files=rolled).records()).lsn
    flip(rolled, 20)
    flip(rolled, HEADER_SIZE + 20)
    flip(rolled, len(rolled.directories["log"][segment_name(1)].content) - 1)  # the footer
    header, gap = found(rolled)
    assert (header.bit, header.segment) == (DAMAGED, 1)
    assert (gap.bit, gap.segment, gap.first_lsn) == (GAP, 2, first)
    assert totals(rolled).records == 19 - (gap.last_lsn - gap.first_lsn + 1)


def test_segment_that_vanishes_meanwhile_is_bit_4(disk, monkeypatch) -> None:
    reader = EventLog.read("log", files=disk)

    def gone(*_: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(reader, "_load", gone)
    flip(disk, 20)  # the header
    header, finding = verify(reader)
    assert (header.bit, header.next_frame) == (DAMAGED, 0)
    vanished = "00000001.seg vanished while it was being read"
    assert finding == Finding(MISSING, 1, 0, 0, 1, 0, vanished)


def test_no_segment_left_is_bit_4(disk) -> None:
    del disk.directories["log"][segment_name(1)]
    (finding,) = found(disk)
    assert (finding.bit, finding.first_lsn, finding.last_lsn) == (MISSING, 1, 10)
    assert (finding.segment, finding.text) == (0, "no segment can be read: LSN 1-10 lost")
    disk.make_directory("log").open(segment_name(1), write=True, create=True).pwrite(b"junk", 0)
    assert [(one.bit, one.segment, one.last_lsn) for one in found(disk)] == [
        (DAMAGED, 0, 10),
        (DAMAGED, 1, 0),
    ]


def test_bad_snapshot_is_bit_8(disk) -> None:
    snapshot = next(frame for frame in frames(disk) if frame.kind == SNAPSHOT)
    flip(disk, snapshot.payload_end - 2)
    (finding,) = found(disk)
    assert (finding.bit, finding.first_lsn) == (BAD_SNAPSHOT, snapshot.lsn)
    assert finding.text == (
        "snapshot fails its CRC: LSN 5 lost; recovery falls back to an earlier one, or to the "
        "beginning of the log"
    )


def rewrite(disk: SimulatedDisk, target: Any, kind: int, lsn: int, payload: bytes) -> None:
    """Replace a frame by one that is sound in itself; the payload must have the same size."""
    header = decode_segment_header(bytes(content(disk)))
    assert header is not None
    assert len(payload) == target.size
    marks = (lsn, min(target.durable, lsn - 1), target.snapshot)
    frame = encode_frame(header.salt, kind, target.count, payload, marks)
    content(disk)[target.offset : target.end] = frame


def payload(disk: SimulatedDisk, frame: Any) -> bytes:
    return bytes(content(disk)[frame.payload_offset : frame.payload_end])


def test_snapshot_against_its_digest_is_bit_8(disk) -> None:
    frame = next(frame for frame in frames(disk) if frame.kind == SNAPSHOT)
    other = bytearray(payload(disk, frame))
    other[-1] ^= 1
    rewrite(disk, frame, SNAPSHOT, frame.lsn, bytes(other))
    findings = found(disk)
    assert findings[0].bit == BAD_SNAPSHOT and "digest" in findings[0].text


def test_gap_in_lsns_is_bit_16(disk) -> None:
    # A writer's mistake, or frames taken out: sound frames that do not follow each other.
    cut = frames(disk)[1]
    buf = content(disk)
    del buf[cut.offset : cut.end]
    (finding,) = found(disk)[:1]
    assert (finding.bit, finding.first_lsn, finding.last_lsn) == (GAP, 2, 3)
    assert bits(disk) & GAP


def test_unknown_version_is_bit_32_and_not_damage(disk) -> None:
    header = bytearray(content(disk)[:HEADER_SIZE])
    header[8] = 2
    header[60:] = crc32(header[:60]).to_bytes(4, "little")
    content(disk)[:HEADER_SIZE] = header
    (finding,) = found(disk)
    assert (finding.bit, finding.segment) == (NOT_A_LOG, 1) and "version 2" in finding.text


def test_unknown_frame_kind_is_bit_32(disk) -> None:
    frame = frames(disk)[1]
    rewrite(disk, frame, 9, frame.lsn, payload(disk, frame))
    (finding,) = found(disk)
    assert (finding.bit, finding.segment, finding.size) == (NOT_A_LOG, 1, 0)
    assert (finding.offset, finding.first_lsn, finding.last_lsn) == (frame.offset, 1, 0)
    flip(disk, frames(disk)[0].payload_offset)
    damage, kind = found(disk)
    assert (damage.bit, damage.last_lsn, kind) == (DAMAGED, 1, finding)


def test_segment_of_another_log_is_bit_32(rolled) -> None:
    other = SimulatedDisk(seed=2)
    write(other, records=12, segment_size=512)
    content(rolled, 2)[:] = content(other, 2)
    findings = found(rolled)
    assert {f.bit for f in findings} == {NOT_A_LOG, DAMAGED}
    assert "another log" in findings[-1].text


def test_mark_of_another_log_is_bit_32(disk) -> None:
    other = SimulatedDisk(seed=2)
    write(other)
    content(disk)[:] = content(other)
    (finding,) = found(disk)
    assert finding.bit == NOT_A_LOG and "MARK is of another log" in finding.text


def test_damaged_footer_of_a_sealed_segment_is_bit_2_and_loses_nothing(rolled) -> None:
    footer = frames(rolled, 1)[-1]
    assert footer.kind == FOOTER
    for offset in (footer.offset, footer.payload_offset, len(content(rolled, 1)) - 1):
        flip(rolled, offset)
        (finding,) = found(rolled)
        assert finding.bit == DAMAGED and "footer" in finding.text
        assert totals(rolled).records == 19
        flip(rolled, offset)
    last_but_one = max(EventLog.read("log", files=rolled).listing.numbers()) - 1
    del content(rolled, 1)[footer.offset :]
    del content(rolled, last_but_one)[frames(rolled, last_but_one)[-1].offset :]
    assert [(one.bit, one.segment) for one in found(rolled)] == [
        (DAMAGED, 1),
        (DAMAGED, last_but_one),
    ]


@pytest.mark.parametrize(
    ("index", "snapshot", "says"), [(72, 5, "index"), (64, 4, "newest snapshot, not LSN 5")]
)
def test_footer_that_says_wrong_things_is_bit_2(disk, index: int, snapshot: int, says: str) -> None:
    footer = frames(disk)[-1]
    assert (footer.kind, footer.snapshot) == (FOOTER, 5)
    header = decode_segment_header(bytes(content(disk)))
    assert header is not None
    body = payload(disk, footer).replace(b"\x92\x01\x40", bytes([0x92, 1, index]), 1)
    marks = (footer.lsn, footer.durable, snapshot)
    content(disk)[footer.offset :] = encode_frame(header.salt, FOOTER, 0, body, marks)
    (finding,) = found(disk)
    assert finding.bit == DAMAGED and says in finding.text


def test_mark_that_leads_is_bit_2(disk) -> None:
    header = decode_segment_header(bytes(content(disk)))
    assert header is not None
    frame = frames(disk)[0]
    body, marks = payload(disk, frame), (1, 1, 0)
    content(disk)[frame.offset : frame.end] = encode_frame(header.salt, 1, 1, body, marks)
    (finding,) = found(disk)
    assert finding.bit == DAMAGED and "ahead" in finding.text


def test_changed_frame_with_a_right_crc_is_found_by_the_digest(disk) -> None:
    frame = frames(disk)[0]
    other = payload(disk, frame).replace(b"yyy", b"yxy", 1)
    rewrite(disk, frame, frame.kind, frame.lsn, other)
    (finding,) = found(disk)
    assert finding.bit == DAMAGED and "digest" in finding.text


def test_body_that_is_no_msgpack_is_bit_2_and_dumped_as_bytes() -> None:
    disk = SimulatedDisk()
    with EventLog.open("log", files=disk) as log:
        log.append("k", Packed(b"\xc1"))
        log.append("k", 2)
    (finding,) = found(disk)
    assert (finding.bit, finding.first_lsn) == (DAMAGED, 1)
    items = list(dump(EventLog.read("log", files=disk)))
    assert [i["body"] for i in items] == [{"$msgpack": "wQ=="}, 2]


def test_torn_mark_is_noted_and_no_problem(disk) -> None:
    disk.directories["log"]["MARK"].content[3] ^= 1
    assert [f.bit for f in found(disk)] == [0]
    disk.directories["log"]["MARK"].content.clear()  # as it is before the first flush
    assert found(disk) == []


def test_every_flipped_bit_of_a_sealed_segment_is_found(rolled) -> None:
    size = len(content(rolled, 2))
    for at in range(size):
        bit = 1 << at % 8
        flip(rolled, at, 2, bit)
        assert bits(rolled), f"bit {at % 8} of byte {at} of {size}"
        flip(rolled, at, 2, bit)
    assert found(rolled) == []


def test_every_flipped_byte_of_a_closed_log_is_found(disk) -> None:
    size = len(content(disk))
    for at in range(size):
        flip(disk, at, bit=1 << at % 8)
        assert bits(disk), f"byte {at} of {size}"
        flip(disk, at, bit=1 << at % 8)


@pytest.mark.parametrize("seed", range(60))
def test_garbage_gives_findings_and_no_exception(seed: int) -> None:
    choose = random.Random(seed)
    disk = SimulatedDisk(seed)
    write(disk, records=12, segment_size=500)
    for _ in range(choose.randrange(1, 4)):
        name = choose.choice(sorted(disk.directories["log"]))
        buf = disk.directories["log"][name].content
        at = choose.randrange(len(buf) + 1)
        match choose.randrange(5):
            case 0:
                del buf[at:]
            case 1:
                buf[at : at + 9] = choose.randbytes(9)
            case 2:
                del buf[at : at + 16]
            case 3:
                buf.extend(choose.randbytes(100))
            case 4:
                del disk.directories["log"][name]
    if any(name.endswith(".seg") for name in disk.directories["log"]):
        found(disk)
        list(dump(EventLog.read("log", files=disk)))


# -- values

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(),
    st.text(),
    st.text("$ab", max_size=3),
    st.binary(),
    st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=20)),
    st.builds(
        msgpack.Timestamp, st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, 999_999_999)
    ),
)
keys = st.one_of(st.none(), st.integers(-9, 9), st.text("$ab", max_size=3), st.binary(max_size=3))
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(keys, inner, max_size=5),
    max_leaves=20,
)


@given(values)
def test_any_body_survives_json(value: Any) -> None:
    packed = msgpack.packb(value)
    text = json.dumps(to_json(packed), allow_nan=False)
    # Packed again, because NaN is not equal to itself, and 1 is to 1.0 and True.
    assert msgpack.packb(from_json(json.loads(text))) == packed


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"\x00\xff", {"$bytes": "AP8="}),
        (math.nan, {"$float": "nan"}),
        (-math.inf, {"$float": "-inf"}),
        (-math.nan, {"$float": "fff8000000000000"}),
        ({1: "x"}, {"$map": [[1, "x"]]}),
        ({"$bytes": "AP8="}, {"$map": [["$bytes", "AP8="]]}),
        (msgpack.ExtType(5, b"a"), {"$ext": [5, "YQ=="]}),
        ({"a": [1.0, True, None]}, {"a": [1.0, True, None]}),
    ],
)
def test_what_json_cannot_hold_is_tagged(value: Any, expected: Any) -> None:
    assert to_json(msgpack.packb(value)) == expected


@pytest.mark.parametrize("tag", ["$bytes", "$float", "$map", "$ext", "$msgpack"])
def test_a_tag_around_what_it_cannot_hold_is_a_key_like_any_other(tag: str) -> None:
    assert from_json({tag: 7}) == {tag: 7}


def test_keys_that_python_would_merge_are_kept() -> None:
    assert to_json(b"\x83\x01\xa1a\xc3\xa1b\x01\xa1c") == {
        "$map": [[1, "a"], [True, "b"], [1, "c"]]
    }
    assert to_json(b"\x82\xa1a\x01\xa1a\x02") == {"$map": [["a", 1], ["a", 2]]}


@pytest.mark.parametrize(
    ("around", "most"),
    [(lambda v: [v], 200), (lambda v: {"a": v}, 200), (lambda v: {1: v}, 66)],
    ids=["list", "object", "map"],
)
def test_body_that_nests_deep_is_given_packed(around: Callable[[Any], Any], most: int) -> None:
    """As JSON, it nests 200 levels deep at most."""
    for levels in (most, most + 1, 450):
        value: Any = 1
        for _ in range(levels):
            value = around(value)
        packed = msgpack.packb(value)
        found: Any = to_json(packed)
        assert ("$msgpack" in found) == (levels > most)
        assert from_json(found) == value


def test_time_that_no_clock_gave_is_shown_as_number() -> None:
    disk = SimulatedDisk()
    write(disk, records=1)
    header = decode_segment_header(bytes(content(disk)))
    assert isinstance(header, SegmentHeader)
    body = encode_payload((1 << 64) - 1, [("k", None)])
    frame = encode_frame(header.salt, 1, 1, body, (1, 0, 0))
    content(disk)[HEADER_SIZE:] = frame
    disk.directories["log"].pop("MARK")
    (item,) = (i for i in dump(EventLog.read("log", files=disk)) if i["type"] == "record")
    assert item["time_ns"] == (1 << 64) - 1 and isinstance(item["time"], str)
