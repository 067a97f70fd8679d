"""What a log carries for an agent: what comes back equals what went in, in value and type."""

from __future__ import annotations

import contextlib
import math
from collections import OrderedDict
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventlog import RefusedValueError
from recovery import OutcomeUnknown
from recovery.journal.messages import Messages
from recovery.values.pack import pack, pack_arguments, pack_list, pack_map, unpack, unpack_frozen
from recovery.values.types import MessagesDigest, digest

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | TEXT
    | st.binary(max_size=8)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(TEXT | st.integers(0, 9) | st.binary(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    """Equal in value and in the type of every part, dicts in the order of their keys."""
    if type(a) is not type(b):
        return False
    if type(a) is list:
        return len(a) == len(b) and all(map(same, a, b))
    if type(a) is dict:
        return all(map(same, a, b)) and same(list(a.values()), list(b.values()))
    return (
        bool(a == b) and math.copysign(1, a) == math.copysign(1, b) if type(a) is float else a == b
    )


def nested(depth: int, leaf: Any = 1) -> Any:
    for _ in range(depth):
        leaf = [leaf]
    return leaf


@given(VALUES)
def test_what_comes_back_equals_what_went_in_in_value_and_type(value):
    assert same(unpack(pack(value, "x")), value)


@given(VALUES, VALUES)
def test_digests_tell_values_and_types_apart(a, b):
    assert (digest(pack(a, "a")) == digest(pack(b, "b"))) == same(a, b)


class Colour(str):
    __slots__ = ()


REFUSED: list[tuple[Any, str]] = [
    ({"items": [1, {"created": object()}]}, "r.items[1].created: object"),
    ({"a": [b"ok", memoryview(b"x")]}, "r.a[1]: memoryview"),
    (Colour("red"), "r: "),
    ({object: 3}, "r.keys()[0]: type cannot"),
    ({(1, 2): {3: object()}}, "r[(1, 2)][3]: object"),
    ((1, {"a": (object(),)}), "r[1].a[0]: object"),
    (OrderedDict(a=1), "r: collections.OrderedDict"),
    (object(), "r: object"),
    (len, "r: builtin_function_or_method"),
    (ValueError("x"), "r: ValueError"),
    (iter([]), "r: list_iterator"),
    # msgpack takes these two, and gives back something else
    (msgpack.ExtType(1, b"\x92\x01\x00"), "r: msgpack"),
    ({"t": msgpack.Timestamp(1)}, "r.t: msgpack"),
    (OutcomeUnknown(1, "key"), "OutcomeUnknown"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("value", "where"), REFUSED, ids=[where for _, where in REFUSED])
def test_what_cannot_be_carried_is_refused_with_the_path_to_it(value, where):
    with pytest.raises(RefusedValueError) as caught:
        pack(value, "r")
    assert where in str(caught.value)


@pytest.mark.parametrize("depth", [502, 600, 1024, 1025, 5000, 100_000])
@pytest.mark.parametrize("leaf", [1, "x" * 600, [[1] * 600] * 2])
def test_a_value_nested_too_deep_is_refused(depth, leaf):
    for value in (nested(depth, leaf), {"a": [0, nested(depth - 2, leaf)]}):
        with pytest.raises(RefusedValueError, match="deeper than 500"):
            pack(value, "r")
        with pytest.raises(RefusedValueError, match="deeper than 500"):
            pack_arguments((value,), {}, "f")


def test_outcome_unknown_says_what_to_do():
    assert "may or may not" in str(OutcomeUnknown("send", "k"))
    assert "send" in str(OutcomeUnknown("send", "k"))


def test_the_refused_part_is_found_among_frozen_values():
    frozen = unpack_frozen(pack({"a": [1]}, "x"))
    with pytest.raises(RefusedValueError, match=r"^r\[1\]\.x: object"):
        pack([frozen, {"x": object()}], "r")
    with pytest.raises(RefusedValueError, match=r"^r\[1\]: memoryview"):
        pack([frozen, memoryview(b"")], "r")


@given(st.lists(VALUES, max_size=4))
def test_lists_and_maps_of_packed_values_equal_packed_lists_and_maps(values):
    assert pack_list([pack(value, "x") for value in values]) == pack(values, "x")
    named = {f"k{i}": value for i, value in enumerate(values)}
    assert pack_map({key: pack(value, "x") for key, value in named.items()}) == pack(named, "x")


@given(st.binary(max_size=40))
def test_garbage_raises_value_error_and_nothing_else(garbage):
    for read in (unpack, unpack_frozen):
        with contextlib.suppress(ValueError):
            read(garbage)


@pytest.mark.parametrize("code", [0, 1, 2, 3, 100, 127])
@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\x90", b"\xa1x", msgpack.packb(["os", "system"]), msgpack.packb([1])]
)
def test_extension_types_that_are_none_of_ours_are_refused(code, data):
    if (code, data) == (3, msgpack.packb(["os", "system"])):
        assert unpack(msgpack.packb(msgpack.ExtType(code, data))) == OutcomeUnknown("os", "system")
        return
    with pytest.raises(ValueError, match="not a value"):
        unpack(msgpack.packb(msgpack.ExtType(code, data)))


# -- arguments


def conversation(*contents: str) -> Messages:
    messages = Messages()
    messages.extend({"role": "user", "content": content} for content in contents)
    return messages


def test_the_order_of_named_arguments_says_nothing():
    assert pack_arguments((), {"a": 1, "b": 2}, "f") == pack_arguments((), {"b": 2, "a": 1}, "f")


def test_a_conversation_among_arguments_is_recorded_by_digest():
    long = pack_arguments((conversation("a" * 5000, "b"),), {}, "f")
    assert len(long) < 50
    assert long == pack_arguments((conversation("a" * 5000, "b"),), {}, "f")
    assert long != pack_arguments((conversation("a" * 5000, "c"),), {}, "f")
    inside = pack_arguments(({"messages": conversation("a" * 5000)},), {}, "f")
    assert len(inside) < 60
    (shown,), _ = unpack(long)
    assert isinstance(shown, MessagesDigest)
    assert repr(shown).startswith("<2 messages, digest ")


@pytest.mark.parametrize(
    ("args", "kwargs", "where"),
    [
        ((1, {"a": {object}}), {}, "send(args[1].a[0]): type"),
        ((), {"to": [1, (2, object())]}, "send(to[1][1]): object"),
        ((object(),), {}, "send(args[0]): object"),
        ((conversation("x"), memoryview(b"")), {}, "send(args[1]): memoryview"),
    ],
)
def test_a_refused_argument_is_named(args, kwargs, where):
    with pytest.raises(RefusedValueError) as caught:
        pack_arguments(args, kwargs, "send(...)")
    assert str(caught.value).startswith(where)
