"""logdump dump --json of any log decodes to exactly what was written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from eventlog import EventLog, LogReader, Packed
from eventlog.dump import from_json
from eventlog.format.json_values import JSON_DEPTH_MAX, json_text, to_json
from eventlog.testing import SimulatedDisk
from tests.cli.harness import call

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(),
    st.text(),
    st.text("$ab", max_size=3),
    st.binary(),
)
names = st.text("$ab\x1b", max_size=3)
keys = st.one_of(names, names, st.integers(-9, 9), st.binary(max_size=3), st.none())


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, max_size=5) | st.dictionaries(keys, inner, max_size=5)


bodies = st.recursive(scalars, nested, max_leaves=20)
extended = st.recursive(
    scalars
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=20))
    | st.builds(msgpack.Timestamp, st.integers(-9, 9), st.integers(0, 999_999_999)),
    nested,
    max_leaves=20,
)
kinds = st.one_of(
    st.sampled_from(["call", "outcome", "step", "messages", "snapshot", "run_started"]),
    st.text(min_size=1, max_size=9),
)
records = st.tuples(kinds, bodies | st.builds(Packed, extended.map(msgpack.packb) | st.binary()))
appends = st.one_of(
    records.map(lambda one: ("record", [one])),
    st.lists(records, min_size=1, max_size=4).map(lambda some: ("batch", some)),
    records.map(lambda one: ("snapshot", [("snapshot", one[1])])),
)


def dumped(disk: SimulatedDisk, *args: str) -> list[dict[str, Any]]:
    """What the command prints of the log on this disk."""
    open_log = EventLog.read

    def read(path: str, encryption: None) -> LogReader:
        return open_log(path, files=disk, encryption=encryption)

    with mock.patch.object(EventLog, "read", read):
        done = call("logdump", "dump", "log", "--json", *args, cwd=Path("/"))
    assert done.code == 0
    assert done.err == "" if done.out else done.err.startswith("logdump: no record to show: ")
    return [json.loads(line) for line in done.out.splitlines()]


@given(st.lists(appends, max_size=6), st.integers(200, 2000), st.data())
def test_any_log_decodes_to_what_was_written(
    written: list[tuple[str, list[Any]]], segment_size: int, data: st.DataObject
) -> None:
    disk = SimulatedDisk(seed=1)
    with EventLog.open("log", files=disk, segment_size=segment_size) as log:
        for how, some in written:
            if how == "snapshot":
                log.append_snapshot(some[0][1])
            elif how == "batch":
                log.append_batch(some)
            else:
                log.append(*some[0])
    expected = [(how == "snapshot", one) for how, some in written for one in some]
    with EventLog.read("log", files=disk) as reader:
        recorded = list(reader.records())
    items = dumped(disk)
    assert [item["lsn"] for item in items] == list(range(1, len(expected) + 1))
    for item, (is_snapshot, (kind, body)), record in zip(items, expected, recorded, strict=True):
        assert item["type"] == ("snapshot" if is_snapshot else "record")
        assert (item["kind"], item["time_ns"]) == (kind, record.time_ns)
        packed = body if isinstance(body, Packed) else msgpack.packb(body)
        assert item["size"] == len(packed) and item["body"] == to_json(packed)
        if not isinstance(body, Packed):
            # Packed again, because NaN is not equal to itself, and 1 is to 1.0 and True.
            assert msgpack.packb(from_json(item["body"])) == packed
    first = data.draw(st.integers(1, len(expected) + 1))
    last = data.draw(st.integers(first, len(expected) + 1))
    assert dumped(disk, "--lsn", f"{first}..{last}") == items[first - 1 : last]
    most = data.draw(st.integers(1, len(expected) + 1))
    assert dumped(disk, "--tail", str(most)) == items[-most:]


@given(st.one_of(extended.map(msgpack.packb), bodies.map(msgpack.packb), st.binary()))
@example(b"\x82\xa1a\x01\xa1a\x02")  # the same key twice
@example(b"\x81\xa2$a\x01")
@example(b"\x91\xd4\xfe\x00")  # an extension that msgpack has reserved
def test_the_fast_way_to_json_is_the_same(packed: bytes) -> None:
    assert json_text(packed) == json.dumps(to_json(packed), allow_nan=False)


@pytest.mark.parametrize(
    "value",
    [
        *({"a": inner} for inner in ([1, 2], [["k", 1]], "AAAA", "0.5")),
        *({tag: 7} for tag in ("$bytes", "$float", "$map", "$ext", "$msgpack")),
    ],
    ids=str,
)
def test_json_without_the_form_of_a_tag_stands_for_itself(value: Any) -> None:
    assert from_json(value) == value


@given(
    st.integers(JSON_DEPTH_MAX - 4, JSON_DEPTH_MAX + 4),
    st.sampled_from([lambda v: [v], lambda v: {"a": v}, lambda v: [[], v, {}], lambda v: {1: v}]),
    st.sampled_from([1, b"x", [], {}, "text", float("nan")]),
)
def test_what_is_too_deep_for_json_is_so_in_either_way(
    levels: int, inside: Any, value: Any
) -> None:
    for _ in range(levels):
        value = inside(value)
    packed = msgpack.packb(value)
    assert json_text(packed) == json.dumps(to_json(packed), allow_nan=False)
