"""export and import: nothing of a log is lost on the way, whatever is in it."""

from __future__ import annotations

import io
import json
import struct
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventlog import EventLog, Packed, Record, Snapshot
from eventlog.encryption import Encryption
from eventlog.format.frame import SNAPSHOT
from eventlog.format.record import encode_snapshot
from eventlog.read.verify import DecodedFrame, Totals, examine
from eventlog.testing import SimulatedDisk
from eventlog.transfer import BadExportError, export, import_
from tests.property.histories import Action, programs, run

KEY = Encryption(bytes(range(32)))

# msgpack documents, and bytes that are none; each as it may stand in a body.
_floats = st.floats().map(lambda value: struct.pack(">Bd", 0xCB, value))
_bits = st.binary(min_size=8, max_size=8).map(lambda bits: b"\xcb" + bits)  # every NaN
_single = st.floats(width=32).map(lambda value: struct.pack(">Bf", 0xCA, value))
_integers = st.integers(-(1 << 63), (1 << 64) - 1).map(msgpack.packb)
_wide = st.integers(0, 255).map(lambda value: b"\xcf" + value.to_bytes(8, "big"))  # not the least
_text = st.text(max_size=12).map(msgpack.packb)
_ext = st.tuples(st.integers(-128, 127), st.binary(max_size=20)).map(
    lambda pair: b"\xc7" + bytes([len(pair[1]), pair[0] & 255]) + pair[1]
)
_atoms = st.one_of(
    st.sampled_from([b"\xc0", b"\xc2", b"\xc3"]),
    _floats,
    _bits,
    _single,
    _integers,
    _wide,
    _text,
    st.binary(max_size=12).map(msgpack.packb),
    _ext,
    st.sampled_from(["$", "$bytes", "$msgpack", "type", "lsn"]).map(msgpack.packb),
    st.datetimes().map(lambda at: msgpack.packb(msgpack.Timestamp.from_unix(at.year * 1e7))),
)


def _array(parts: list[bytes]) -> bytes:
    return b"\xdc" + len(parts).to_bytes(2, "big") + b"".join(parts)


def _map(pairs: list[tuple[bytes, bytes]]) -> bytes:  # any keys, and any of them twice
    return b"\xde" + len(pairs).to_bytes(2, "big") + b"".join(k + v for k, v in pairs)


documents = st.recursive(
    _atoms,
    lambda part: st.one_of(
        st.lists(part, max_size=4).map(_array),
        st.lists(st.tuples(part, part), max_size=4).map(_map),
        st.lists(st.tuples(_text, part), max_size=4).map(
            lambda pairs: bytes([0x80 + len(pairs)]) + b"".join(k + v for k, v in pairs)
        ),
    ),
    max_leaves=8,
)
bodies = st.one_of(documents, st.binary(max_size=10)).map(Packed)
kinds = st.text(min_size=1, max_size=255)
times = st.one_of(st.integers(0, 1 << 62), st.sampled_from([-(1 << 63), (1 << 64) - 1]))


def lines_of(disk: SimulatedDisk, path: str = "log", key: Encryption | None = None) -> bytes:
    with EventLog.read(path, files=disk, encryption=key) as reader:
        return b"".join(line.encode() + b"\n" for line in export(reader))


def frames_of(disk: SimulatedDisk, path: str, key: Encryption | None = None) -> list[Any]:
    """All that a log says, but for where it says it."""

    def of(record: Record) -> tuple[Any, ...]:
        snapshot = isinstance(record, Snapshot)
        return record.lsn, record.kind, record.time_ns, record.packed, snapshot

    with EventLog.read(path, files=disk, encryption=key) as reader:
        items = [item for item in examine(reader, Totals()) if isinstance(item, DecodedFrame)]
    return [[of(record) for record in item.records] for item in items]


def check_round_trip(disk: SimulatedDisk, key: Encryption | None = None) -> None:
    lines = lines_of(disk)
    lines.decode("ascii")
    made = SimulatedDisk(seed=99)
    result = import_(io.BytesIO(lines), "new", files=made, encryption=key)
    assert lines_of(made, "new", key) == lines
    written = frames_of(disk, "log")
    assert frames_of(made, "new", key) == written
    assert (result.records, result.lost) == (sum(map(len, written)), 0)
    with (
        EventLog.read("log", files=disk) as before,
        EventLog.open("new", files=made, encryption=key) as after,
    ):
        assert (after.report.torn_size, after.report.damaged) == (0, ())
        assert after.report.clean or not after.last_lsn
        assert after.oldest_lsn == before.listing.oldest_lsn()
        newest = before.latest_snapshot()
        assert after.latest_snapshot() == newest
        with EventLog.open("log", files=disk) as log:  # the next records are where they were
            assert after.append("more", 1) == log.append("more", 1)


@given(
    st.lists(
        st.one_of(
            st.lists(st.tuples(kinds, bodies), min_size=1, max_size=3),
            st.tuples(st.sampled_from(["snapshot", "s"]), bodies),
        ),
        max_size=5,
    ),
    times,
)
def test_every_value_comes_back_as_the_same_bytes(appends: list[Any], time_ns: int) -> None:
    disk = SimulatedDisk()
    with EventLog.open("log", files=disk) as log:
        for append in appends:
            if isinstance(append, list) and len(append) > 1:
                log.append_batch(append)
            elif isinstance(append, list):
                log.append(*append[0], time_ns=time_ns)
            else:
                payload = encode_snapshot(time_ns, *append)
                log._appender.append(SNAPSHOT, 1, payload)
    check_round_trip(disk)


@given(programs, st.booleans())
def test_every_history_comes_back(program: list[Action], encrypt: bool) -> None:
    """Batches, snapshots, many segments, several owners, truncations, torn tails."""
    history = run(program)
    history.drop()
    check_round_trip(history.disk.after_process_death(), KEY if encrypt else None)


@given(programs, st.data())
def test_an_export_that_was_changed_or_cut_is_refused_and_leaves_nothing(
    program: list[Action], data: st.DataObject
) -> None:
    history = run(program)
    history.drop()
    lines = bytearray(lines_of(history.disk.after_process_death()))
    if data.draw(st.booleans()):
        del lines[data.draw(st.integers(0, len(lines) - 1)) :]
    else:
        at = data.draw(st.integers(0, len(lines) - 1))
        lines[at] ^= 1 << data.draw(st.integers(0, 7))
    disk = SimulatedDisk()
    with pytest.raises(BadExportError, match=r"^line \d+ of the export: [^\n]*Nothing was kept\.$"):
        import_(io.BytesIO(bytes(lines)), "new", files=disk)
    assert disk.directories == {}


@given(
    st.one_of(st.binary(max_size=200), st.lists(st.text(), max_size=3).map(repr).map(str.encode))
)
def test_garbage_is_refused(garbage: bytes) -> None:
    with pytest.raises(BadExportError):
        import_(io.BytesIO(garbage), "new", files=SimulatedDisk())


def test_bodies_are_json_where_json_gives_the_same_bytes() -> None:
    disk = SimulatedDisk()
    with EventLog.open("log", files=disk) as log:
        log.append("plain", {"text": "x", "n": [1, 2.5, None]})
        log.append("twice", Packed(b"\x82\xa1a\x01\xa1a\x02"))
        log.append("single", Packed(struct.pack(">Bf", 0xCA, 1.5)))
    shown = [json.loads(line).get("body") for line in lines_of(disk).splitlines()]
    assert shown[2] == {"text": "x", "n": [1, 2.5, None]}
    assert list(shown[3]) == list(shown[4]) == ["$msgpack"]
