"""Values of types that msgpack has not: what comes back equals what went in, in value and type."""

from __future__ import annotations

import contextlib
import enum
import functools
import itertools
import json
import math
import os
import subprocess
import sys
import threading
from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, make_dataclass
from datetime import UTC, datetime, time, timedelta, timezone, tzinfo
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import msgpack
import numpy
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventlog import Packed, RefusedValueError
from eventlog.dump import to_json
from eventlog.format.record import decode as decode_document
from eventlog.format.record import unpack as unpack_document
from recovery import OutcomeUnknown, register
from recovery.errors import UnreadableValueError
from recovery.journal.messages import Messages
from recovery.values import codec as coded
from recovery.values.frozen import FrozenSet
from recovery.values.pack import pack, pack_arguments, pack_list, pack_map, unpack, unpack_frozen
from recovery.values.types import MessagesDigest, digest
from tests.support.lives import forget


@pytest.fixture(autouse=True)
def _registrations() -> Iterator[None]:
    """What a test registers is forgotten after it."""
    yield
    forget()


# -- types of users


class Colour(enum.Enum):
    RED = 1
    BLUE = object()
    ALSO_RED = 1  # noqa: PIE796 - another name for it


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    YES = "yes"


class Right(enum.Flag):
    READ = 1
    WRITE = 2


class Bits(enum.IntFlag):
    ONE = 1
    TWO = 2


@dataclass
class Order:
    item: str
    price: Any = Decimal("0.10")
    tags: set[str] = field(default_factory=set)
    next: Any = None


@dataclass(frozen=True, slots=True)
class Place:
    x: int
    y: Any = None


class Pair(NamedTuple):
    left: Any
    right: Any = "nothing"


class User(pydantic.BaseModel):
    name: str
    since: datetime | None = None
    tags: set[str] = set()
    place: Any = None
    _secret: int = pydantic.PrivateAttr(default=7)


class Open(pydantic.BaseModel, extra="allow"):
    pass


class Names(pydantic.RootModel[list[str]]):
    pass


class Money:
    """A type of its own, with a codec of its own."""

    def __init__(self, cents: int) -> None:
        self.cents = cents

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and other.cents == self.cents

    def __hash__(self) -> int:
        return hash(self.cents)

    def __repr__(self) -> str:
        return f"Money({self.cents})"


OWN = (Colour, Level, Word, Right, Bits, Order, Place, Pair, User, Open, Names)


def register_all() -> None:
    for cls in OWN:
        register(cls)
    register(Money, encode=lambda money: money.cents, decode=Money, frozen=True)


@pytest.fixture
def own_types() -> None:
    register_all()


# -- equality that sees all that a program could


def same(a: Any, b: Any) -> bool:  # noqa: PLR0911 - a table
    """Equal in value and in the type of every part."""
    if type(a) is not type(b):
        return False
    match a:
        case list() | tuple():
            return len(a) == len(b) and all(map(same, a, b))
        case dict():
            return same(list(a.items()), list(b.items()))
        case set() | frozenset():
            return len(a) == len(b) and all(any(same(x, y) for y in b) for x in a)
        case float():
            return repr(a) == repr(b)
        case complex():
            return same(a.real, b.real) and same(a.imag, b.imag)
        case Decimal():
            return str(a) == str(b)
        case datetime() | time():
            return repr(a) == repr(b) and a.fold == b.fold and same_zone(a.tzinfo, b.tzinfo)
        case pydantic.BaseModel():
            state = a.__getstate__(), b.__getstate__()
            return same(*state)
        case numpy.ndarray():
            return bool(a.dtype == b.dtype) and a.shape == b.shape and a.tobytes() == b.tobytes()
        case numpy.generic():
            return same(a.dtype, b.dtype) and (a.tobytes() == b.tobytes())
        case Order() | Place():
            return all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    return bool(a == b)


def same_zone(a: tzinfo | None, b: tzinfo | None) -> bool:
    name = [None if zone is None else zone.tzname(None) for zone in (a, b)]
    return type(a) is type(b) and name[0] == name[1] and a == b


# -- hypothesis

ZONES = ["UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "Etc/GMT+12"]
OFFSETS = st.timedeltas(timedelta(hours=-23), timedelta(hours=23))
TIMEZONES = (
    st.none()
    | st.just(UTC)
    | st.builds(timezone, OFFSETS)
    | st.builds(timezone, OFFSETS, st.text(max_size=4))
    | st.sampled_from([ZoneInfo(key) for key in ZONES])
)
FOLDS = st.sampled_from([0, 1])
ANY_TEXT = st.text(st.characters(), max_size=6)  # lone surrogates among them
NAMES = st.text(st.characters(exclude_characters="\0"), max_size=6)
DTYPES = [
    "?",
    "<i1",
    "<i8",
    ">u4",
    "<f2",
    "<f8",
    ">f4",
    "<c8",
    "<c16",
    "<M8[ns]",
    "<m8[3D]",
    "S3",
    "<U2",
]
ARRAYS = st.builds(
    lambda dtype, shape: (
        numpy.arange(math.prod(shape))
        .astype(dtype if dtype[1:3] not in ("M8", "m8") else "<i8")
        .astype(dtype)
        .reshape(shape)
    ),
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 3), max_size=3),
)
HASHABLE = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(1 << 200), 1 << 200)
    | st.floats()
    | ANY_TEXT
    | st.binary(max_size=6)
    | st.complex_numbers()
    | st.decimals(allow_nan=False)
    | st.just(Decimal("NaN"))
    | st.fractions(max_denominator=1 << 70)
    | st.dates()
    | st.times().flatmap(lambda t: st.builds(t.replace, tzinfo=TIMEZONES, fold=FOLDS))
    | st.datetimes().flatmap(lambda t: st.builds(t.replace, tzinfo=TIMEZONES, fold=FOLDS))
    | st.timedeltas()
    | st.uuids()
    | NAMES.map(PurePosixPath)
    | ANY_TEXT.map(PureWindowsPath)
    | NAMES.map(Path)
    | st.sampled_from(
        [
            *Colour,
            *Level,
            *Word,
            Right.READ,
            Right.READ | Right.WRITE,
            Right(0),
            Bits.ONE | Bits.TWO,
            Bits(0),
        ]
    )
    | st.builds(Place, st.integers(), st.none() | st.dates())
    | st.builds(Money, st.integers())
)
KEYS = st.recursive(
    HASHABLE,
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.frozensets(inner, max_size=3)
        | st.builds(Pair, inner, inner)
        | st.builds(Place, st.integers(), inner)
    ),
    max_leaves=4,
)
SCALARS = st.sampled_from(["f8", "i2", "u8", "c16", "?"]).map(lambda t: numpy.dtype(t).type(1))
VALUES = st.recursive(
    HASHABLE | SCALARS | st.binary(max_size=4).map(bytearray) | ARRAYS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.sets(KEYS, max_size=3)
        | st.frozensets(KEYS, max_size=3)
        | st.builds(Order, ANY_TEXT, inner, st.sets(ANY_TEXT, max_size=2), inner)
        | st.builds(Pair, inner, inner)
        | st.builds(
            functools.partial(User.model_construct, since=datetime(2026, 1, 1)),
            name=ANY_TEXT,
            place=inner,
        )
    ),
    max_leaves=8,
)


@given(VALUES)
def test_what_comes_back_equals_what_went_in_in_value_and_type(value):
    register_all()
    packed = pack(value, "x")
    found = unpack(packed)
    assert same(found, value)
    assert pack(found, "x") == packed
    assert pack(unpack_frozen(packed), "x") == packed


@given(VALUES)
def test_a_log_shows_what_it_cannot_read_as_it_is(value):
    """Readers of logs know no types: every value is a document of msgpack's, and JSON."""
    register_all()
    packed = pack(value, "x")
    assert "$msgpack" not in json.dumps(to_json(packed), allow_nan=False)
    unpack_document(packed)


@given(VALUES, VALUES)
def test_a_document_of_several_values_is_read_like_each(a, b):
    register_all()
    both = Packed(b"\x82\xa1a" + pack(a, "x") + b"\xa1b\x91" + pack(b, "x"))
    assert same(unpack(both), {"a": a, "b": [b]})


@given(VALUES, VALUES)
def test_digests_tell_values_and_types_apart(a, b):
    register_all()
    assert (digest(pack(a, "a")) == digest(pack(b, "b"))) == same(a, b)


@given(st.lists(VALUES, max_size=4))
def test_lists_and_maps_of_packed_values_equal_packed_lists_and_maps(values):
    register_all()
    assert pack_list([pack(value, "x") for value in values]) == pack(values, "x")
    named = {f"k{i}": value for i, value in enumerate(values)}
    assert pack_map({key: pack(value, "x") for key, value in named.items()}) == pack(named, "x")


@given(st.sets(KEYS, max_size=8), st.randoms(use_true_random=False))
def test_equal_sets_have_equal_digests_in_whatever_order_they_were_made(value, random):
    register_all()
    shuffled = list(value)
    random.shuffle(shuffled)
    assert digest(pack(set(shuffled), "x")) == digest(pack(value, "x"))


DIGESTS = """
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from uuid import UUID
from recovery.values.pack import pack
from recovery.values.types import digest
values = [
    {"b", "a", "c", 1, None, (1, 2), ("x",)}, frozenset({"q", "r", frozenset({"s", "t"})}),
    Decimal("1.50"), datetime(2026, 1, 1, tzinfo=UTC), UUID(int=7), 1 << 80, Path("/a"),
    {frozenset("abc"): {"x", "y"}},
]
print([digest(pack(value, "x")).hex() for value in values])
"""


def test_digests_are_the_same_in_every_process():
    found = set()
    for seed in ("0", "1", "4711"):
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", DIGESTS],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        found.add(done.stdout)
    assert len(found) == 1


def test_a_decimal_is_recorded_alike_whatever_the_context():
    value = Decimal("1E+100")
    with localcontext(Context(capitals=0, prec=2)):
        small = pack(value, "x")
        assert unpack(pack(Decimal("1.2345"), "x")) == Decimal("1.2345")
    assert small == pack(value, "x")


EDGES = [
    Decimal("NaN123"),
    Decimal("-sNaN5"),
    Decimal("-0"),
    Decimal("1E+999999"),
    Decimal("-Infinity"),
    1 << 64,
    -(1 << 63) - 1,
    1 << 100_000,
    "\ud800",
    "\ud800\udc00",
    "a\udfff\u1234",
    math.nan,
    -math.inf,
    -0.0,
    complex(math.nan, -0.0),
    bytearray(),
    (),
    set(),
    frozenset(),
    ((),),
    {(): ()},
    datetime.max,
    datetime.min,
    datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
    time(1, 2, tzinfo=timezone(timedelta(seconds=1), "")),
    timezone(timedelta(hours=1)),
    timezone(timedelta(hours=1), "CET"),
    ZoneInfo("UTC"),
    timedelta.max,
    timedelta.min,
    timedelta(microseconds=-1),
    UUID(int=(1 << 128) - 1),
    Path(),
    PurePosixPath("//a/../b"),
    PureWindowsPath("c:a"),
    Path("a\udc80"),
    numpy.array(5),
    numpy.array([]),
    numpy.zeros((2, 0, 3)),
    numpy.str_("a\0"),
    numpy.bytes_(b"\0"),
    numpy.str_("\ud800"),
    numpy.datetime64("NaT", "s"),
    numpy.float16(-0.0),
    numpy.array([["a", "bcd"]]),
    numpy.asfortranarray(numpy.arange(6).reshape(2, 3)),
]


@pytest.mark.parametrize("value", EDGES, ids=lambda value: f"{type(value).__name__}")
def test_edges_come_back(value):
    for whole in (value, [value], {"k": (value,)}, (value, [value])):
        assert same(unpack(pack(whole, "x")), whole)
    (there,), _ = unpack(pack_arguments((value,), {}, "f(...)"))
    assert same(there, value)


def test_names_of_time_zones_are_told_from_offsets():
    named = unpack(pack(timezone(timedelta(hours=1), "CET"), "x"))
    assert (named.tzname(None), repr(unpack(pack(UTC, "x")))) == (
        "CET",
        "datetime.timezone.utc",
    )


@pytest.mark.usefixtures("own_types")
def test_types_of_users_come_back():
    user = User(name="Ada", since=datetime(2026, 1, 1), tags={"a"}, place=Place(1, (2,)))
    user._secret = 9
    order = Order("x", Level.LOW, {"b"}, Pair(Money(3), [User(name="Bob")]))
    for value in (
        user,
        order,
        Open.model_validate({"x": (1, Colour.RED)}),
        Names(["Ada"]),
        Colour.BLUE,
        Right.READ | Right.WRITE,
    ):
        assert same(unpack(pack({"v": [value]}, "x"))["v"][0], value)
    found = unpack(pack(user, "x"))
    assert (found._secret, found.model_fields_set) == (9, user.model_fields_set)
    assert found.model_fields_set == {"name", "since", "tags", "place"}


# -- what is refused


class Strange(tzinfo):
    def utcoffset(self, moment: datetime | None) -> timedelta:
        return timedelta()

    tzname = dst = utcoffset  # type: ignore[assignment]


def mapping(count: int) -> dict[Any, Any]:
    # All with one hash.
    return {(i * (2**61 - 1),): i for i in range(1, count)}


class Loud:
    def __repr__(self) -> str:
        raise RuntimeError("no")


REFUSED: list[tuple[Any, str]] = [
    (datetime(2026, 1, 1, tzinfo=Strange()), "r: its tzinfo is a "),
    ({"a": ({1, object},)}, "type cannot be carried"),
    ({(1, object()): 2}, "r.keys()[0][1]: object cannot"),
    (type("Sub", (set,), {})({1}), "Sub cannot be carried"),
    (type("Sub", (datetime,), {})(2026, 1, 1), "Sub cannot be carried"),
    (Order("x"), "r: "),
    ([Order("x")], "recovery.register(Order)"),
    (Colour.RED, "recovery.register(Colour)"),
    (Pair(1, 2), "recovery.register(Pair)"),
    (User(name="x"), "recovery.register(User)"),
    (Money(1), "recovery.register(Money, encode=..., decode=...)"),
    (Loud(), "Loud cannot be carried"),
    ({Loud(): 1}, "Loud cannot be carried"),
    (numpy.array([object()]), "r: a numpy value of dtype object"),
    (numpy.zeros(2, "i4,f8"), "r: a numpy value of dtype"),
    (numpy.longdouble(1), "r: "),
    (numpy.ma.masked_array([1], [True]), "MaskedArray cannot be carried"),
    (Fraction(1, 1 << 10_000), "r: a Fraction of numbers larger than"),
    ({"items": [1, {"created": object()}]}, "r.items[1].created: object"),
    ({"a": [b"ok", memoryview(b"x")]}, "r.a[1]: memoryview"),
    ({object: 3}, "r.keys()[0]: type cannot"),
    ({(1, 2): {3: object()}}, "r[(1, 2)][3]: object"),
    (OrderedDict(a=1), "r: collections.OrderedDict"),
    (len, "r: builtin_function_or_method"),
    (ValueError("x"), "r: ValueError"),
    # msgpack takes these two, and gives back something else
    (msgpack.ExtType(1, b"\x92\x01\x00"), "r: msgpack"),
    ({"t": msgpack.Timestamp(1)}, "r.t: msgpack"),
    (OutcomeUnknown(1, "key"), "OutcomeUnknown"),  # type: ignore[arg-type]
    (mapping(100), "r: more than 64 keys have one hash"),
    (set(mapping(100)), "r: more than 64 elements have one hash"),
]


@pytest.mark.parametrize(("value", "where"), REFUSED, ids=[where for _, where in REFUSED])
def test_what_cannot_be_carried_is_refused_with_the_path_to_it(value, where):
    with pytest.raises(RefusedValueError) as caught:
        pack(value, "r")
    assert where in str(caught.value)
    assert str(caught.value).startswith("r")
    with pytest.raises(RefusedValueError, match=r"^r\[1\]"):
        pack([unpack_frozen(pack({"a": [1]}, "x")), value], "r")


@pytest.mark.usefixtures("own_types")
def test_the_path_goes_into_what_is_refused():
    for value, where in (
        (Order("x", 1, set(), [1, (object(),)]), "r.next[1][0]: object"),
        ({"a": Place(1, {"k": object()})}, "r.a.y.k: object"),
        (Pair(1, [object()]), "r.right[0]: object"),
    ):
        with pytest.raises(RefusedValueError) as caught:
            pack(value, "r")
        assert str(caught.value).startswith(where)


@pytest.mark.parametrize(
    ("args", "kwargs", "where"),
    [
        ((1, {"a": {object}}), {}, "send(args[1].a[0]): type"),
        ((), {"to": [1, (2, object())]}, "send(to[1][1]): object"),
        ((object(),), {}, "send(args[0]): object"),
        ((Messages(), memoryview(b"")), {}, "send(args[1]): memoryview"),
    ],
)
def test_a_refused_argument_is_named(args, kwargs, where):
    with pytest.raises(RefusedValueError) as caught:
        pack_arguments(args, kwargs, "send(...)")
    assert str(caught.value).startswith(where)


def chain(levels: int, leaf: Any = 1) -> Any:
    for _ in range(levels):
        leaf = (leaf,)
    return leaf


def nested(depth: int, leaf: Any) -> Any:
    for _ in range(depth):
        leaf = [leaf]
    return leaf


def test_depth_has_the_same_limit_for_writing_and_reading():
    deep = chain(64)
    assert unpack(pack(deep, "x")) == deep
    inside = Packed(b"\x81\xa1a\x91\x81\xa1b" + pack(deep, "x"))  # as events and checkpoints do
    assert unpack(inside) == {"a": [{"b": deep}]}
    for value in (chain(65), [chain(1000)], chain(100_000)):
        with pytest.raises(RefusedValueError, match="more than 64 values with codecs inside"):
            pack(value, "r")
    lists = nested(499, (1,))
    assert unpack(pack(lists, "x")) == lists
    for leaf in (1, "x" * 600, [[1] * 600] * 2):
        for depth in (502, 1025, 100_000):
            with pytest.raises(RefusedValueError, match="deeper than 500"):
                pack({"a": [0, nested(depth, leaf)]}, "r")
            with pytest.raises(RefusedValueError, match="deeper than 500"):
                pack_arguments((nested(depth, leaf),), {}, "f")


def test_values_that_contain_themselves_are_refused():
    around: list[Any] = []
    around.append((around,))
    wide: dict[str, Any] = {}
    wide.update(a=wide, b=wide, c={1})
    for value in (around, wide):
        with pytest.raises(RefusedValueError, match=r"inside one another|deeper than"):
            pack(value, "r")


def deep_call(levels: int, function: Any) -> Any:
    return function() if levels == 0 else deep_call(levels - 1, function)


def test_reading_does_not_depend_on_how_deep_the_stack_is():
    packed = pack(nested(400, chain(60)), "x")
    found = deep_call(sys.getrecursionlimit() - len_of_stack() - 40, lambda: unpack(packed))
    assert pack(found, "x") == packed


def len_of_stack() -> int:
    frame, count = sys._getframe(), 0
    while frame is not None:
        frame, count = frame.f_back, count + 1  # type: ignore[assignment]
    return count


def test_a_value_that_was_changed_while_it_was_packed_changes_nothing():
    value = {"a": [(1, 2), bytearray(b"x")], "b": {3}}
    before = repr(value)
    pack(value, "x")
    assert repr(value) == before


# -- messages


def conversation(*contents: str) -> Messages:
    messages = Messages()
    messages.extend({"role": "user", "content": content} for content in contents)
    return messages


def test_a_conversation_among_arguments_is_recorded_by_digest():
    long = pack_arguments((conversation("a" * 5000, "b"),), {}, "f")
    assert len(long) < 50
    assert long == pack_arguments((conversation("a" * 5000, "b"),), {}, "f")
    assert long != pack_arguments((conversation("a" * 5000, "c"),), {}, "f")
    assert len(pack_arguments(({"messages": conversation("a" * 5000)},), {}, "f")) < 60
    (shown,), _ = unpack(long)
    assert isinstance(shown, MessagesDigest)
    assert repr(shown).startswith("<2 messages, digest ")


def test_the_order_of_named_arguments_says_nothing():
    assert pack_arguments((), {"a": 1, "b": 2}, "f") == pack_arguments((), {"b": 2, "a": 1}, "f")


def test_an_unknown_outcome_is_a_value_and_says_what_it_is_of():
    unknown = OutcomeUnknown("send", "k")
    assert "may or may not" in str(unknown) and "send" in str(unknown)
    assert unpack(pack(unknown, "x")) == unknown


@pytest.mark.usefixtures("own_types")
def test_a_message_holds_what_cannot_be_changed():
    messages = Messages()
    messages.append({"when": datetime(2026, 1, 1), "tags": {"a"}, "at": Place(1, [2, {"k": {3}}])})
    message = messages[0]
    assert message == {"when": datetime(2026, 1, 1), "tags": {"a"}, "at": Place(1, [2, {"k": {3}}])}
    assert type(message["tags"]) is FrozenSet
    for change in (
        lambda: message["tags"].add("b"),
        lambda: message["tags"].__ior__({"b"}),
        lambda: message["at"].y.append(1),
        message["at"].y[1].clear,
        lambda: message["at"].y[1]["k"].discard(3),
    ):
        with pytest.raises(TypeError, match="messages are recorded values"):
            change()
    messages.append({"numbers": numpy.arange(3), "pair": Pair(1, [2]), "cost": Money(1)})
    with pytest.raises(ValueError, match="read-only"):
        messages[1]["numbers"][0] = 9
    copy = messages.__deepcopy__(None)
    copy[0]["tags"].add("b")
    copy[0]["at"].y.append(4)
    copy[1]["numbers"][0] = 9
    assert pack(messages, "x") == pack([dict(message) for message in messages], "x")
    assert type(copy[0]["tags"]) is set


@pytest.mark.usefixtures("own_types")
@pytest.mark.parametrize(
    ("value", "where"),
    [
        ([1, {"a": bytearray(b"x")}], "messages[0][1].a: bytearray can be changed in place"),
        (({"a": Order("x")},), "messages[0][0].a: "),
        (Place(1, [User(name="x")]), "messages[0].y[0]: "),
    ],
)
def test_a_message_refuses_what_can_be_changed_in_place(value, where):
    messages = Messages()
    with pytest.raises(RefusedValueError) as caught:
        messages.append(value)
    assert str(caught.value).startswith(where)
    assert "can be changed in place" in str(caught.value)
    assert messages == []


# -- registration


def test_registration_is_a_decorator_with_and_without_arguments():
    @register
    @dataclass
    class One:
        x: int

    @register(name="second")
    @dataclass
    class Two:
        x: int

    assert unpack(pack([One(1), Two(2)], "x")) == [One(1), Two(2)]
    assert {"One", "second"} <= coded.BY_NAME.keys()
    assert register(One) is One


def test_a_name_is_given_once():
    register(Order, name="order")
    with pytest.raises(ValueError, match="is registered as 'order' already"):
        register(Place, name="order")
    with pytest.raises(ValueError, match="is registered as 'order'"):
        register(Order, name="another")
    assert coded.BY_NAME["order"].kind is Order
    assert "another" not in coded.BY_NAME


def test_a_class_that_is_defined_again_takes_the_place_of_the_old_one():
    def define() -> Any:
        @register
        @dataclass
        class Cell:
            x: int

        return Cell

    old, new = define(), define()
    assert type(unpack(pack(new(1), "x"))) is new
    assert type(unpack(pack(old(1), "x"))) is new


@pytest.mark.parametrize(
    ("cls", "options", "why"),
    [
        (int, {}, "no dataclass"),
        (Money, {}, "give encode= and decode="),
        (Money, {"encode": str}, "needs decode="),
        (Place, {"frozen": True}, "frozen= is for types"),
        (tuple, {"encode": list, "decode": tuple}, "needs no registration"),
        (make_dataclass("E", ["x"], bases=(Exception,)), {}, "more than its fields"),
        (Order, {"name": "a\nb"}, "printable"),
        (Order, {"name": "a" * 201}, "printable"),
        (len, {}, "is for classes"),
    ],
)
def test_what_cannot_be_registered(cls, options, why):
    before = {*coded.BY_TYPE}
    with pytest.raises((TypeError, ValueError), match=why):
        register(cls, **options)
    assert {*coded.BY_TYPE} == before


def test_threads_that_register_at_once_agree():
    classes = [make_dataclass(f"T{i}", ["x"], namespace={"n": i}) for i in range(8)]
    refused: list[type] = []
    begin = threading.Barrier(8)

    def work(cls: type) -> None:
        begin.wait()
        try:
            register(cls, name="shared")
        except ValueError:
            refused.append(cls)

    threads = [threading.Thread(target=work, args=(cls,)) for cls in classes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winner = coded.BY_NAME["shared"].kind
    assert len(refused) == 7
    assert {*classes} - {*refused} == {winner}
    assert {*classes} & coded.BY_TYPE.keys() == {winner}


def test_an_attribute_that_is_no_field_is_not_lost_in_silence():
    register(Order)
    order = Order("x")
    order.extra = 1  # type: ignore[attr-defined]
    with pytest.raises(RefusedValueError, match="attribute 'extra', which is no field"):
        pack(order, "r")


def test_a_cached_property_is_no_field():
    @register
    @dataclass
    class Lazy:
        x: int

        @functools.cached_property
        def double(self) -> int:
            return self.x * 2

    lazy = Lazy(2)
    assert lazy.double == 4
    assert unpack(pack(lazy, "x")).double == 4


def test_reading_runs_no_constructor():
    @register
    @dataclass
    class Counted:
        x: int

        def __post_init__(self) -> None:
            raise_if_reading()

    reading = False

    def raise_if_reading() -> None:
        assert not reading

    packed = pack(Counted(1), "x")
    reading = True
    assert unpack(packed).x == 1


# -- codecs of users


def test_a_codec_that_cannot_read_what_it_wrote_is_refused():
    def fail(payload: Any) -> Any:
        raise KeyError("x")

    counter = itertools.count()
    for encode, decode, why in (
        (lambda money: money.cents, fail, "could not be read again"),
        (lambda money: money.cents, lambda cents: cents, "made a int of it"),
        (lambda money: next(counter), Money, "encode= gives something else"),
        (lambda money: object(), Money, "object cannot be carried"),
        (lambda money: 1 / 0, Money, "ZeroDivisionError"),
    ):
        register(Money, encode=encode, decode=decode)
        with pytest.raises(RefusedValueError, match=why):
            pack({"a": [Money(1)]}, "r")


def test_a_decode_of_recorded_fields_is_checked_as_well():
    register(Order, decode=lambda fields: fields["item"])
    with pytest.raises(RefusedValueError, match="made a str of it"):
        pack([Order("x")], "r")


def test_codecs_of_users_inside_one_another_are_checked_once():
    calls = 0

    def decode(payload: Any) -> Money:
        nonlocal calls
        calls += 1
        return Money(payload)

    register(Money, encode=lambda money: money.cents, decode=decode)
    value: Any = 1
    for _ in range(30):
        value = Money(value)
    assert unpack(pack(value, "x")) == value
    assert calls == 60


# -- types that have changed since, or are not known


def recorded_by(cls: type, value: Any, **options: Any) -> bytes:
    """``value`` as a process packed it that has registered its class as "thing"."""
    forget()
    register(cls, name="thing", **options)
    packed = pack({"list": [0, value]}, "x")
    forget()
    return packed


def read_as(packed: bytes, cls: type, **options: Any) -> Any:
    forget()
    register(cls, name="thing", **options)
    return unpack(packed)["list"][1]


def test_an_unknown_name_is_an_error_that_names_it():
    packed = recorded_by(Order, Order("x"))
    for read in (unpack, unpack_frozen):
        with pytest.raises(UnreadableValueError) as caught:
            read(packed)
        assert not isinstance(caught.value, ValueError)  # which would be taken for damage
        assert (caught.value.name, caught.value.path) == ("thing", ".list[1]")
        for part in ("list[1]", "'thing'", "recovery.register(", "Nothing is damaged"):
            assert part in str(caught.value)
        assert "LSN 7" in str(caught.value.at(7))
    assert to_json(packed) == {"list": [0, {"$ext": [20, to_json(packed)["list"][1]["$ext"][1]]}]}  # type: ignore[call-overload, index]


def test_fields_that_came_and_fields_that_went():
    old = make_dataclass("Thing", ["a", "b"])
    packed = recorded_by(old, old(1, 2))
    grown = make_dataclass("Thing", ["a", "b", ("c", list, field(default_factory=list))])
    assert read_as(packed, grown) == grown(1, 2, [])
    needs = make_dataclass("Thing", ["a", "b", "c"])
    with pytest.raises(UnreadableValueError, match="does not have 'c'"):
        read_as(packed, needs)
    shrunk = make_dataclass("Thing", ["a"])
    with pytest.raises(UnreadableValueError, match="no field 'b'"):
        read_as(packed, shrunk)
    assert read_as(packed, shrunk, decode=lambda fields: shrunk(fields["a"])) == shrunk(1)


def test_the_same_for_models_named_tuples_and_enums():
    packed = recorded_by(User, User(name="x"))
    grown = pydantic.create_model("User", __base__=User, more=(int, 5))
    assert read_as(packed, grown).more == 5
    needs = pydantic.create_model("User", __base__=User, more=(int, ...))
    with pytest.raises(UnreadableValueError, match="does not have 'more'"):
        read_as(packed, needs)
    packed = recorded_by(Pair, Pair(1))
    wider = namedtuple("wider", "left right far", defaults=[9])
    assert read_as(packed, wider) == (1, "nothing", 9)
    packed = recorded_by(Colour, Colour.BLUE)
    with pytest.raises(UnreadableValueError, match="no member 'BLUE'"):
        read_as(packed, Level)


def test_a_key_whose_type_is_not_hashable_any_more_is_not_damage():
    register(Place, name="thing")
    packed = pack({Place(1): 2}, "x")
    forget()
    register(make_dataclass("Place", ["x", "y"]), name="thing")
    with pytest.raises(UnreadableValueError, match="no longer"):
        unpack(packed)


def test_what_this_system_does_not_have_is_not_damage(monkeypatch):
    def elsewhere(text: str) -> Any:
        raise NotImplementedError("cannot instantiate on your system")

    path, array = pack(Path("/x"), "x"), pack(numpy.arange(3), "x")
    kinds = (type(Path()),) * 2 + (elsewhere,) * 2
    monkeypatch.setattr("recovery.values.builtin_codecs._PATHS", kinds)
    monkeypatch.setattr(elsewhere, "__name__", "PosixPath")
    with pytest.raises(UnreadableValueError, match="a PosixPath, which this system has not"):
        unpack(path)
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(UnreadableValueError, match="numpy, which is not installed here"):
        unpack(array)
    zone = b"\x07\xea\x01\x01" + bytes(8) + b"ZNowhere/Atlantis"
    with pytest.raises(UnreadableValueError, match="'Nowhere/Atlantis', which this system does"):
        unpack(ext(15, zone))


# -- forged bytes


def ext(code: int, data: bytes) -> bytes:
    return bytes(msgpack.packb(msgpack.ExtType(code, data)))


def doc(value: Any) -> bytes:
    return bytes(msgpack.packb(value))


HUGE = doc(["<f8", [1 << 40], b""])
FORGED = [
    ext(0, b""),
    ext(1, b"\x90"),
    ext(2, b"\xa1x"),
    ext(3, b"\xc1"),
    ext(3, doc([1])),
    ext(5, b"\xff"),
    ext(7, b""),
    ext(7, b"\xc1"),
    ext(7, doc({})),
    ext(7, doc(1)),
    ext(8, doc([1, 1])),
    ext(8, doc([[1]])),
    ext(9, doc([{}])),
    ext(10, b"x" * 15),
    ext(11, b"x"),
    ext(11, b"\xff"),
    ext(12, b""),
    ext(12, b"\0\x01\x01\0"),
    ext(12, b"\x08\0" + b"x" * 5000),
    ext(13, b"\0" * 4),
    ext(13, b"x"),
    ext(14, b"\xff" * 8),
    ext(15, b"\xff" * 12),
    ext(15, b""),
    ext(15, b"\x07\xea\x01\x01\0\0\0\0\0\0\0\0O"),
    ext(15, b"\x07\xea\x01\x01\0\0\0\0\0\0\0\0Z../../etc/passwd"),
    ext(15, b"\x07\xea\x01\x01\0\0\0\0\0\0\0\0Zos.path"),
    ext(17, b""),
    ext(17, b"O" + b"\x7f" * 8),
    ext(17, b"Z/etc/passwd"),
    ext(17, b"Q"),
    ext(16, b"\x7f" * 12),
    ext(18, b"x"),
    ext(19, b""),
    ext(19, b"\x09a"),
    ext(20, b""),
    ext(20, doc([1, 2])),
    ext(20, doc(["a"])),
    ext(20, doc("os.system")),
    ext(21, b""),
    ext(21, HUGE),
    ext(21, doc(["|O", [1], b"x" * 8])),
    ext(21, doc(["O", None, b""])),
    ext(21, doc(["<f8", None, b"x"])),
    ext(21, doc(["<f8", [-1], b""])),
    ext(21, doc(["<f8", [0] * 99, b""])),
    ext(21, doc(["<f8", [0, 1 << 62], b""])),
    ext(21, doc(["|b1", [1], b"\x02"])),
    ext(21, doc(["<U1", [1], b"\xff" * 4])),
    ext(21, doc(["<U0", [5], b""])),
    ext(21, doc(["i4,f8", [1], b"x" * 12])),
    ext(21, doc([1, 2, 3])),
    ext(22, b""),
    ext(22, doc([1])),
    ext(99, b""),
    ext(127, b""),
    doc({"a": msgpack.Timestamp(1)}),
    ext(7, doc([msgpack.Timestamp(1)])),
    # more than it holds
    ext(7, b"\xdd\x7f\xff\xff\xff" * 2000),
    ext(1, b"\xdd\x7f\xff\xff\xff" * 2000),
    ext(21, b"\xdd\x7f\xff\xff\xff" * 2000),
    ext(7, b"\xdd\x00\x01\x00\x00" * 900),
]


@pytest.mark.parametrize("packed", FORGED, ids=lambda packed: packed[:14].hex())
def test_bytes_that_make_no_sense_are_a_value_error(packed):
    for whole in (packed, b"\x91" + packed, b"\x81" + packed + b"\x01", ext(7, b"\x91" + packed)):
        for read in (unpack, unpack_frozen):
            with pytest.raises(ValueError, match="not a value"):
                read(whole)


def test_a_name_from_data_is_looked_up_among_registered_names_alone():
    for name in (
        "os.system",
        "builtins.eval",
        "recovery.agent.run.Run",
        "Order",
        "",
    ):
        with pytest.raises(UnreadableValueError):
            unpack(ext(20, doc([name, "x"])))


def nested_ext(levels: int) -> bytes:
    data = b"\x90"
    for _ in range(levels):
        data = b"\x91" + ext(7, data)
    return data


def test_nesting_is_bounded_on_reading():
    assert unpack(nested_ext(60)) is not None
    for levels in (70, 3000):
        with pytest.raises(ValueError, match="nested too deep"):
            unpack(nested_ext(levels))


def colliding() -> list[list[Any]]:
    numbers = [i * (2**61 - 1) for i in range(1, 200)]
    return [
        [(n,) for n in numbers],
        [n << 61 for n in numbers],
        [UUID(int=n << 50) for n in numbers],
    ]


@pytest.mark.parametrize("keys", colliding(), ids=lambda keys: type(keys[0]).__name__)
def test_keys_that_collide_on_purpose_are_refused(keys):
    assert len({hash(key) for key in keys}) == 1
    parts = [pack(key, "x") for key in keys]
    count = len(parts).to_bytes(2, "big")
    for forged in (
        ext(8, b"\xdc" + count + b"".join(parts)),
        ext(9, b"\xdc" + count + b"".join(parts)),
        b"\xde" + count + b"".join(part + b"\x01" for part in parts),
    ):
        with pytest.raises(ValueError, match="collide on purpose"):
            unpack(forged)


def test_timestamps_by_chance_do_not_keep_keys_of_ours_from_being_read():
    value = {UUID(int=5): 1, (1, 2): b"\xd6\xff\xd7\xff\xc7\x0c\xff" * 1000}
    packed = pack(value, "x")
    assert len(packed) > 4096
    assert unpack(packed) == value
    decode_document(packed)


@given(st.integers(4, 24), st.binary(max_size=60))
def test_any_data_is_a_value_or_a_value_error(code, data):
    for packed in (ext(code, data), ext(code, doc([data])), ext(20, doc(["thing", data]))):
        with contextlib.suppress(ValueError, UnreadableValueError):
            pack(unpack(packed), "x")
    with contextlib.suppress(ValueError, UnreadableValueError):
        unpack_frozen(data)
