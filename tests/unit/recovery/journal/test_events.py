"""Events to records and back; what makes no sense is a ValueError and nothing else."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_args

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventlog import Packed, Record
from recovery.journal.encoding import decode, decode_shallow, encode
from recovery.journal.events import (
    AgentRaised,
    AttemptFailed,
    CallAbandoned,
    CallDecided,
    CallFailed,
    CallIntended,
    CallResolved,
    CallRetried,
    CallReturned,
    ChildStarted,
    DivergenceAccepted,
    Event,
    HistoryDropped,
    LogRepaired,
    MessagesChanged,
    RecordsLost,
    RunCancelled,
    RunFailed,
    RunFinished,
    RunParked,
    RunResumed,
    RunStarted,
    RunUndone,
    SignalTaken,
    StepStarted,
    ValueRecorded,
)
from recovery.values.pack import pack, unpack
from recovery.values.types import Ref

EVENTS: list[Event] = [
    RunStarted("run_1", {"ask": ["a", 1.5, None]}, "uid"),
    RunStarted("run_1", 1, "uid", {"run_id": "run", "uid": "u", "lsn": 3}),
    RunStarted("run_2", "task", "uid", None, {"run_id": "run_1", "uid": "other", "step": 3}),
    RunResumed(2, 6, "why"),
    StepStarted(3),
    CallIntended("3", "send", "id", b"\x00" * 16, 2, "park", [["a"], {"b": 1}], 9),
    CallIntended("call 7", "send", "", b"", 1, "retry", [[], {}], 3, "unsend"),
    CallIntended("3", "child", "", b"", 1, "retry", [["a", 1, ""], {}], 9, "run_1+a-0123"),
    ChildStarted(4, "run_1+a-0123"),
    CallRetried(4, 2),
    AttemptFailed(4, 1, "builtins.OSError", "down", 1.5, "Traceback"),
    CallAbandoned(4, 2, "cancelled", True, False),
    DivergenceAccepted("me", "looked"),
    HistoryDropped([4, 5]),
    CallIntended("3", "pay", "", b"", 1, "park", [[1], {}], 3, asks_until=1.5),
    CallDecided(4, True, "me", "looked", 3),
    CallReturned(4, {"x": [b"y"]}),
    CallReturned(4, "answer", [100, 20, 0.5]),
    CallFailed(4, "builtins.ValueError", "bad", ["bad"], "Traceback"),
    CallFailed(4, "m.E", "bad"),
    SignalTaken(4, {"yes": 1}, name="answer", inbox=3, uid="abc"),
    RunCancelled("me", "enough", [4], 7),
    CallResolved(4, "outcome", 5, "me", "looked"),
    ValueRecorded("3", "now", 1, 1.5),
    MessagesChanged(0, 1, [{"a": 1}, Ref(3, 1)]),
    RunParked([4, 5]),
    RunFinished("done", 3, 1),
    RunFailed("E", "m", "t", 4),
    AgentRaised("E", "m", "t", 2, "agent.py:3 in agent", True, 4),
    RunUndone("me", "no need"),
    RecordsLost(9),
    RecordsLost(9, True),
    LogRepaired([[3, 9]], "me", "bad sector", "run.~1~"),
]
ids = [type(event).__name__ for event in EVENTS]


def record(kind: str, body: Any) -> Record:
    return Record(9, kind, 0, msgpack.packb(body))


def body_of(event: Event) -> Any:
    return msgpack.unpackb(encode(event)[1], strict_map_key=False)


def test_every_type_of_event_is_here():
    assert {type(event) for event in EVENTS} == set(get_args(Event))


@pytest.mark.parametrize("event", EVENTS, ids=ids)
def test_an_event_comes_back(event):
    kind, packed = encode(event)
    assert decode(Record(1, kind, 0, packed)) == event


@pytest.mark.parametrize("event", EVENTS, ids=ids)
def test_unknown_fields_are_ignored(event):
    kind, _ = encode(event)
    assert decode(record(kind, body_of(event) | {"new in version 9": [1]})) == event


@pytest.mark.parametrize("event", EVENTS, ids=ids)
def test_missing_fields_have_their_defaults_or_make_the_record_unsound(event):
    kind, _ = encode(event)
    for missing in fields(event):
        body = body_of(event)
        body.pop(missing.name, None)  # what is None is not written
        try:
            found = decode(record(kind, body))
        except ValueError as exc:
            assert "record 9" in str(exc)
        else:
            assert found is not None
            assert getattr(found, missing.name) in (None, "", 0, [], {})


@pytest.mark.parametrize("event", EVENTS, ids=ids)
def test_skimming_leaves_what_may_be_large_packed(event):
    kind, packed = encode(event)
    shallow_events = decode_shallow(Record(1, kind, 0, packed))
    assert shallow_events is not None and type(shallow_events) is type(event)
    for field in fields(event):
        found, value = getattr(shallow_events, field.name), getattr(event, field.name)
        if field.name in ("task", "value", "args", "new", "result") and value is not None:
            assert type(found) is Packed
            found = unpack(found)
        assert found == value


def test_skimming_other_kinds_and_what_is_no_map():
    assert decode_shallow(record("tool_result", {"call": 7})) is None
    wrong: list[object] = [[], 5, {1: 2}, {"step": "three"}, {}]
    for body in wrong:
        with pytest.raises(ValueError, match=r"record 9|not a map"):
            decode_shallow(record("step", body))
    deep = b"\x81\xa5value" + b"\x91" * 5000
    for packed in (b"", b"\xdf\xff\xff\xff\xff", b"\x81", deep, b"\x81\xa1a\x01\x01"):
        with pytest.raises(ValueError, match="not a map"):
            decode_shallow(Record(9, "step", 0, packed))


def test_records_of_other_kinds_are_no_events():
    assert decode(record("tool_result", {"call": 7})) is None
    assert decode(record("snapshot", {})) is None
    assert decode(Record(1, "mine", 0, b"\xc1")) is None


def test_a_field_that_is_packed_goes_in_as_it_is():
    kind, packed = encode(CallReturned(1, pack({"a": 1}, "")))
    assert decode(Record(2, kind, 0, packed)) == CallReturned(1, {"a": 1})


def field_by_field(event: Event) -> bytes:
    """A map of the fields that say something, each packed by itself."""
    packed = b""
    written = [
        one
        for one in fields(event)
        if one.default is not None or getattr(event, one.name) is not None
    ]
    for one in written:
        packed += pack(one.name, "") + pack(getattr(event, one.name), one.name)
    return bytes([0x80 | len(written)]) + packed


@pytest.mark.parametrize("event", EVENTS, ids=ids)
def test_the_body_is_a_map_of_the_fields_in_their_order(event):
    assert encode(event)[1] == field_by_field(event)


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.lists(st.integers()),
)


@given(VALUES, VALUES, st.integers(), st.text())
def test_values_of_all_types_stand_side_by_side_in_a_body(value, usage, call, name):
    for event in (SignalTaken(call, value, usage, name), ValueRecorded(name, name, call, value)):
        assert encode(event)[1] == field_by_field(event)


def test_what_msgpack_does_not_take_by_itself_is_a_field_like_any_other():
    for event in (CallIntended("3", "send", "\ud800", b"", 1, "park"), CallReturned(1 << 70, "x")):
        assert encode(event)[1] == field_by_field(event)


HOSTILE: list[object] = [None, -1, True, 1.5, "x", b"x", [], [[]], {}, {"a": 1}, [1, "x"]]


@pytest.mark.parametrize("event", EVENTS, ids=ids)
def test_a_field_of_another_type_is_a_value_error(event):
    kind, _ = encode(event)
    free = {
        "task",
        "value",
        "result",
        "args",
        "parent",
        "usage",
        "wake_at",
        "asks_until",
    }  # these may be anything
    for name in body_of(event):
        right = type(getattr(event, name))
        for value in HOSTILE:
            if name in free or type(value) is right:
                continue
            with pytest.raises(ValueError, match="record 9"):
                decode(record(kind, body_of(event) | {name: value}))


@pytest.mark.parametrize("body", [*HOSTILE, msgpack.ExtType(1, b""), {1: 2}])
@pytest.mark.parametrize("kind", [event.kind for event in EVENTS])
def test_a_body_that_is_no_event_is_a_value_error(kind, body):
    with pytest.raises(ValueError, match=r"record 9|not a value"):
        decode(record(kind, body))


@given(st.sampled_from([event.kind for event in EVENTS]), st.binary(max_size=60))
def test_garbage_is_a_value_error(kind, garbage):
    with pytest.raises(ValueError, match=r"."):
        decode(Record(9, kind, 0, garbage))
    with pytest.raises(ValueError, match=r"."):
        decode_shallow(Record(9, kind, 0, garbage))


def test_an_event_has_any_number_of_fields() -> None:
    """Up to 15 are counted in one byte."""
    more: dict[str, Any] = {
        "args": [[], {}],
        "asks_until": 1.5,
        "lost": True,
        "loop": "before",
        "signed": True,
    }
    more |= {"timeout_s": 2.5}
    for n in range(len(more) + 1):
        made: Any = dict([*more.items()][:n])
        event = CallIntended("1", "tool", "", b"d", 1, "park", **made)
        assert decode(Record(1, event.kind, 0, encode(event)[1])) == event
