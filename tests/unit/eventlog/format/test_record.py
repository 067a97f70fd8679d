"""Values to payloads and back, and what is refused, by its path."""

from __future__ import annotations

import datetime
import enum
import tracemalloc
from typing import Any

import msgpack
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from eventlog import EventLog, Packed, RefusedValueError, Snapshot
from eventlog.format import frame as frame_module
from eventlog.format import record as record_module
from eventlog.format.frame import FRAME_SIZE, RECORDS, SNAPSHOT, Frame, padded
from eventlog.format.record import (
    Packers,
    decode_payload,
    encode_payload,
    encode_snapshot,
    may_hold_timestamps,
    pack,
    unpack,
)
from eventlog.testing import SimulatedDisk

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
)
values = st.recursive(
    scalars, lambda v: st.lists(v) | st.dictionaries(st.text() | st.integers(0, 9), v)
)


@given(values)
def test_a_value_is_read_with_the_type_it_was_written_with(value: Any) -> None:
    assert repr(unpack(pack(value))) == repr(value)


class Colour(enum.IntEnum):
    RED = 1


class Text(str):
    pass


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("value", "path", "why"),
    [
        (1 << 64, "body", "more than 64 bits"),
        ({"a": [0, -(1 << 63) - 1]}, "body.a[1]", "more than 64 bits"),
        ({"a": "\ud800"}, "body.a", "surrogates"),
        ({"\udfff": 1}, "body['\\udfff']", "surrogates"),
        ({"a": {"b": (1,)}}, "body.a.b", "tuple cannot be carried"),
        ([datetime.datetime(2026, 1, 1)], "body[0]", "datetime.datetime"),
        ({1, 2}, "body", "set"),
        (Colour.RED, "body", "Colour"),
        ([Text("x")], "body[0]", "Text"),
        ({(1, 2): 3}, "body[(1, 2)]", "a key of type tuple"),
        ({"ok": 1, "bad": object()}, "body.bad", "object"),
        ({"ok": bytearray(b"x"), memoryview(b"ok"): 1, "bad": {1}}, "body.bad", "set"),
        (memoryview(b"abcd")[::2], "body", "not C-contiguous"),
        (nested(2000), "body" + "[0]" * 501, "nested deeper than 500"),
        (LOOP, "body" + "[0]" * 501, "nested deeper than 500"),
    ],
    ids=lambda value: None if isinstance(value, list) else "",
)
def test_what_cannot_be_carried_is_refused_by_its_path(value: Any, path: str, why: str) -> None:
    with pytest.raises(RefusedValueError, match=why) as caught:
        pack(value)
    assert caught.value.value_path == path


def test_a_packed_body_is_taken_as_it_is() -> None:
    packed = Packed(msgpack.packb({"a": 1}))
    assert pack(packed) is packed


def test_nothing_that_is_read_makes_an_object() -> None:
    assert type(unpack(msgpack.packb(msgpack.ExtType(5, b"x")))) is msgpack.ExtType


@pytest.mark.parametrize("kind", ["", "x" * 256, None, b"kind", 7, Text("kind"), "\ud800"])
@pytest.mark.parametrize("batch", [False, True])
def test_a_kind_is_a_short_str(kind: Any, batch: bool) -> None:
    with EventLog.open("log", files=SimulatedDisk()) as log:
        with pytest.raises(RefusedValueError) as caught:
            log.append_batch([("ok", 1), (kind, 2)]) if batch else log.append(kind, 1)
        assert caught.value.value_path == ("[1].kind" if batch else "kind")
        assert log.append("\U0001f600" * 255, 1) == 1


def test_a_refused_value_leaves_the_log_as_it_was() -> None:
    disk = SimulatedDisk()
    with EventLog.open("log", files=disk) as log:
        for refused in (
            lambda: log.append("event", object()),
            lambda: log.append_batch([("event", 1), ("event", object())]),
            lambda: log.append_snapshot({"a": {1}}),
        ):
            with pytest.raises(RefusedValueError) as caught:
                refused()
        assert caught.value.value_path == "state.a"
        assert log.append_batch([]) == []
        assert log.append("event", 1) == 1


def test_the_size_of_one_append_is_limited_and_the_error_names_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with EventLog.open("log", files=SimulatedDisk()) as log:
        with pytest.raises(RefusedValueError, match=str(64 << 20)):
            log.append("event", b"x" * (64 << 20))
        for module in (frame_module, record_module):
            monkeypatch.setattr(module, "PAYLOAD_SIZE_MAX", 1 << 20)
        for refused in (
            lambda: log.append_snapshot(b"x" * (1 << 20)),
            # What a kind takes is counted in bytes, not in characters.
            lambda: log.append_batch([("\U0001f600" * 255, None)] * 2000),
        ):
            with pytest.raises(RefusedValueError, match=str(1 << 20)):
                refused()
        body = b"x" * ((1 << 20) - 100)
        log.append("event", body)
        assert [record.body for record in log.records()] == [body]


def payload_frame(payload: bytes, count: int = 1, kind: int = RECORDS) -> Frame:
    end = padded(FRAME_SIZE + len(payload))
    return Frame(0, len(payload), kind, 5, 0, 0, count, 0, end)


def test_records_of_a_batch_have_lsns_in_order() -> None:
    payload = encode_payload(99, [("a", 1), ("b", Packed(pack([2])))])
    records = decode_payload(payload_frame(payload, 2), payload)
    assert records is not None
    assert [(r.lsn, r.kind, r.time_ns, r.body) for r in records] == [
        (5, "a", 99, 1),
        (6, "b", 99, [2]),
    ]
    assert repr(records[0]) == "Record(lsn=5, kind='a', 1 bytes)"
    assert records[0] == records[0] and records[0] != records[1] and len(set(records)) == 2


@pytest.mark.parametrize("count", [1, 2, 7, 8, 40])
@pytest.mark.parametrize("size", [0, 255, 256, 16_380, 16_390, 65_530, 65_535, 65_536, 300_000])
def test_a_payload_is_one_msgpack_document_whatever_its_size(size: int, count: int) -> None:
    items = [(f"kind {n}", b"x" * (size if n == count - 1 else n)) for n in range(count)]
    flat = [part for kind, body in items for part in (kind, msgpack.packb(body))]
    assert encode_payload(1 << 60, items) == msgpack.packb([1 << 60, *flat])
    digest = xxhash.xxh3_128_digest(items[-1][1])
    assert encode_snapshot(5, "s", items[-1][1]) == msgpack.packb([5, "s", items[-1][1], digest])


def test_whoever_packs_may_be_interrupted_by_whoever_packs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A finalizer, or another thread: the packer that is at work is not theirs."""
    packer, inner = msgpack.Packer(strict_types=True), list[bytes]()

    def interrupted(value: Any) -> bytes:
        inner.append(encode_payload(1, [("a", "inner")]))
        return bytes(packer.pack(value))

    packers = Packers(strict_types=True)
    packers._free = [interrupted]
    monkeypatch.setattr(record_module, "_pack_body", packers.pack)
    assert encode_payload(2, [("a", "outer")]) == msgpack.packb([2, "a", b"\xa5outer"])
    assert inner == [msgpack.packb([1, "a", b"\xa5inner"])]


def test_packers_that_refused_something_or_have_grown_are_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packers = Packers(strict_types=True)
    monkeypatch.setattr(record_module, "_pack_body", packers.pack)
    encode_payload(1, [("a", 1)])
    kept = list(packers._free)
    assert len(kept) == 1
    with pytest.raises(RefusedValueError, match="body"):
        encode_payload(1, [("a", [1, {2}])])
    assert packers._free == []
    assert encode_payload(1, [("a", 1)]) == msgpack.packb([1, "a", b"\x01"])
    assert len(packers._free) == 1 and packers._free != kept
    encode_payload(1, [("a", b"x" * (1 << 20))])
    assert packers._free == []


@pytest.mark.parametrize(
    "flat",
    [
        7,
        [],
        [1],
        [1, "a"],
        [1, "a", b"x", "b", b"y"],
        ["1", "a", b"x"],
        [1, b"a", b"x"],
        [1, "a", "x"],
        {"a": 1},
        [True, "a", b"x"],
    ],
)
def test_a_payload_that_is_not_what_its_header_says_has_no_records(flat: Any) -> None:
    payload = msgpack.packb(flat)
    for count in (0, 1, 3):
        assert decode_payload(payload_frame(payload, count=count), payload) is None
    assert decode_payload(payload_frame(payload, kind=SNAPSHOT), payload) is None
    assert decode_payload(payload_frame(b"\xc1"), b"\xc1") is None
    assert decode_payload(payload_frame(b"\x91\x01", count=0), b"\x91\x01") is None


def test_a_snapshot_whose_digest_is_wrong_is_none() -> None:
    payload = encode_snapshot(99, "snapshot", pack({"a": 1}))
    frame = payload_frame(payload, kind=SNAPSHOT)
    (snapshot,) = decode_payload(frame, payload) or []
    assert isinstance(snapshot, Snapshot) and snapshot.body == {"a": 1}
    flat = msgpack.unpackb(payload)
    for wrong in ([*flat[:2], pack({"a": 2}), flat[3]], [*flat[:3], bytes(16)]):
        assert decode_payload(frame, msgpack.packb(wrong)) is None


pieces = st.sampled_from([b"\xff", b"\xd6", b"\xd7", b"\xc7", b"\x0c", b"a", b"\xff" * 20])


@given(st.lists(pieces, max_size=40).map(b"".join))
def test_no_beginning_of_a_timestamp_is_overlooked(packed: bytes) -> None:
    there = any(start in packed for start in (b"\xd6\xff", b"\xd7\xff", b"\xc7\x0c\xff"))
    assert may_hold_timestamps(packed) is there


@pytest.mark.parametrize("length", [4096, 4097, 70_000])
def test_long_arrays_are_read_as_short_ones_are(length: int) -> None:
    value = [{"inside": list(range(length))}, "x" * 5000]
    assert unpack(pack(value)) == value


def test_of_what_says_more_than_it_holds_little_is_made() -> None:
    """Arrays nested a thousand times, each as long as the whole: half a gigabyte of room."""
    packed = (b"\xdd" + (70_000).to_bytes(4, "big")) * 900 + bytes(80_000)
    tracemalloc.start()
    with pytest.raises(ValueError, match="not a msgpack document"):
        unpack(packed)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20
