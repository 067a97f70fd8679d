"""run.messages behaves as a list, and every change to it is recorded."""

from __future__ import annotations

import copy
import json
import pickle  # noqa: TID251 - others may copy messages so
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from eventlog import RefusedValueError
from recovery.journal import messages as messages_module
from recovery.journal.messages import Messages, digest_of_all, digests_of
from recovery.values.frozen import FrozenDict, FrozenList
from recovery.values.pack import pack_message, unpack
from recovery.values.types import Ref, digest

VALUES = st.integers(-3, 3) | st.sampled_from(["a", "b"]) | st.lists(st.integers(0, 2), max_size=2)
INDEX = st.integers(-4, 4)
BOUND = st.none() | INDEX
SLICES = st.builds(slice, BOUND, BOUND, st.sampled_from([None, 1, 2, -1, -2]))

OPERATIONS = st.one_of(
    st.tuples(st.just("append"), VALUES),
    st.tuples(st.just("extend"), st.lists(VALUES, max_size=3)),
    st.tuples(st.just("insert"), INDEX, VALUES),
    st.tuples(st.just("pop")),
    st.tuples(st.just("pop"), INDEX),
    st.tuples(st.just("remove"), VALUES),
    st.tuples(st.just("clear")),
    st.tuples(st.just("reverse")),
    st.tuples(st.just("sort")),
    st.tuples(st.just("__setitem__"), INDEX, VALUES),
    st.tuples(st.just("__setitem__"), SLICES, st.lists(VALUES, max_size=3)),
    st.tuples(st.just("__delitem__"), INDEX | SLICES),
    st.tuples(st.just("__iadd__"), st.lists(VALUES, max_size=3)),
    st.tuples(st.just("__imul__"), st.integers(-1, 2)),
)


class Record:
    """Keeps what a Messages reports, and can make the list of it again."""

    def __init__(self) -> None:
        self.changes: list[tuple[int, int, list[Any]]] = []

    def __call__(self, start: int, stop: int, packed: list[bytes]) -> list[Ref | None]:
        self.changes.append((start, stop, [unpack(one) for one in packed]))
        return [Ref(len(self.changes), i) for i in range(len(packed))]

    def replayed(self) -> list[Any]:
        again: list[Any] = []
        for start, stop, new in self.changes:
            again[start:stop] = new
        return again


def apply(target: list[Any], operation: tuple[Any, ...]) -> tuple[str, Any]:
    name, *args = operation
    try:
        return "returned", getattr(target, name)(*copy.deepcopy(args))
    except (IndexError, ValueError, TypeError) as exc:
        return "raised", type(exc)


def fresh(values: list[Any]) -> Messages:
    messages = Messages()
    messages.extend(values)
    return messages


@given(st.lists(OPERATIONS, max_size=12))
@example([("extend", [1, 2]), ("__delitem__", 0)])
def test_any_operations_do_what_they_do_to_a_list_and_are_recorded(operations):
    record = Record()
    messages, plain = Messages(record), list[Any]()
    for operation in operations:
        before = list(plain)
        ours, theirs = apply(messages, operation), apply(plain, operation)
        if theirs[0] == "raised":
            plain = before  # a list is half sorted after a comparison that failed; ours is not
        if operation[0] in ("__iadd__", "__imul__"):
            assert ours[1] is messages
        else:
            assert ours == theirs
        assert messages == plain
        assert record.replayed() == plain
        assert messages.digest() == fresh(plain).digest()
        assert len(messages.refs) == len(messages.message_digests) == len(plain)


@given(st.lists(VALUES, max_size=5), st.lists(VALUES, max_size=5))
def test_digests_tell_conversations_apart(a, b):
    assert (fresh(a).digest() == fresh(b).digest()) == (json.dumps(a) == json.dumps(b))


def test_a_change_that_is_refused_changes_nothing():
    record = Record()
    messages = Messages(record)
    messages.append({"a": 1})
    before = messages.digest()
    with pytest.raises(RefusedValueError, match=r"messages\[1\]\.b: bytearray"):
        messages.append({"b": bytearray()})
    with pytest.raises(RefusedValueError, match=r"messages\[2\]: object"):
        messages.extend([1, object()])
    with pytest.raises(RefusedValueError, match=r"messages\[0\]\[0\]: object"):
        messages[0] = (object(),)
    assert messages == [{"a": 1}]
    assert messages.digest() == before
    assert len(record.changes) == 1


def test_a_change_that_the_recorder_refuses_changes_nothing():
    def refuse(start: int, stop: int, packed: list[bytes]) -> list[Ref | None]:
        raise OSError("full")

    messages = fresh([1, 2])
    messages.recorder = refuse
    for change in (messages.clear, messages.pop, lambda: messages.append(3), messages.reverse):
        with pytest.raises(OSError, match="full"):
            change()
    assert messages == [1, 2]


def test_nothing_is_recorded_when_nothing_changes():
    record = Record()
    messages = Messages(record)
    messages.extend([])
    messages.clear()
    messages[0:0] = []
    assert record.changes == []


def test_what_was_put_in_can_be_changed_afterwards_without_effect():
    message = {"content": ["a"]}
    messages = fresh([message])
    message["content"].append("b")
    assert messages == [{"content": ["a"]}]


# -- elements


@pytest.fixture
def message() -> Any:
    return fresh([{"role": "tool", "content": [{"text": "x"}]}])[0]


CHANGES = {
    "setitem": lambda m: m.__setitem__("role", 1),
    "delitem": lambda m: m.__delitem__("role"),
    "update": lambda m: m.update(role=1),
    "setdefault": lambda m: m.setdefault("x", 1),
    "pop": lambda m: m.pop("role"),
    "popitem": lambda m: m.popitem(),
    "clear": lambda m: m.clear(),
    "ior": lambda m: m.__ior__({"x": 1}),
    "list setitem": lambda m: m["content"].__setitem__(0, 1),
    "list delitem": lambda m: m["content"].__delitem__(0),
    "append": lambda m: m["content"].append(1),
    "extend": lambda m: m["content"].extend([1]),
    "insert": lambda m: m["content"].insert(0, 1),
    "list pop": lambda m: m["content"].pop(),
    "remove": lambda m: m["content"].remove({"text": "x"}),
    "list clear": lambda m: m["content"].clear(),
    "sort": lambda m: m["content"].sort(),
    "reverse": lambda m: m["content"].reverse(),
    "iadd": lambda m: m["content"].__iadd__([1]),
    "imul": lambda m: m["content"].__imul__(2),
    "deep": lambda m: m["content"][0].update(text="y"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changing_a_message_in_place_says_how_to_do_it(message, change):
    with pytest.raises(TypeError, match=r"assign a new one, as in run\.messages\[i\] = "):
        CHANGES[change](message)
    assert message == {"role": "tool", "content": [{"text": "x"}]}


def is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return type(value) is dict and all(map(is_plain, value.values()))
    if isinstance(value, list):
        return type(value) is list and all(map(is_plain, value))
    return True


def test_deep_copies_of_a_message_are_plain(message):
    for made in (copy.deepcopy(message), pickle.loads(pickle.dumps(message))):  # noqa: S301
        assert made == message
        assert is_plain(made)
    assert json.loads(json.dumps(message)) == message


def test_shallow_copies_of_a_message_can_be_changed(message):
    for made in (copy.copy(message), message.copy(), {**message}, dict(message), message | {}):
        assert type(made) is dict
        made["role"] = "user"
    parts = message["content"]
    for made in (copy.copy(parts), parts.copy(), [*parts], list(parts), parts[:], parts * 1):
        assert type(made) is list
        made.append(1)
    assert isinstance(message, dict)
    assert isinstance(message, FrozenDict)
    assert isinstance(parts, FrozenList)


def test_copies_of_the_list_are_plain_and_not_recorded():
    record = Record()
    messages = Messages(record)
    messages.append({"a": [1]})
    for made in (
        copy.deepcopy(messages),
        pickle.loads(pickle.dumps(messages)),  # noqa: S301
        copy.copy(messages),
    ):
        assert type(made) is list
        assert made == messages
    assert is_plain(copy.deepcopy(messages))
    for made in (messages.copy(), messages[:], list(messages), messages * 1):
        assert type(made) is list
        made.clear()
    assert len(record.changes) == 1
    assert json.dumps(messages) == '[{"a": [1]}]'


def test_a_message_can_be_put_in_again(message):
    messages = fresh([message, [message]])
    messages[0] = {**messages[0], "role": "user"}
    assert messages == [{**message, "role": "user"}, [message]]


def test_a_message_of_500_levels_is_carried():
    deep: Any = 1
    for _ in range(500):
        deep = [deep]
    messages = fresh([deep])
    assert messages == [deep]
    messages.append(messages[0])
    assert messages.message_digests[0] == messages.message_digests[1]


# -- digests of a conversation that is given again and again

PLAIN = st.lists(st.sampled_from(["a", 1, 1.0, True, None, {"x": [1]}, b"b", "\u0123"]), max_size=6)


@given(st.lists(st.tuples(PLAIN, st.integers(0, 3)), max_size=6))
def test_messages_that_were_seen_before_have_the_digests_that_they_have(given):
    """In whatever order conversations come, and whatever they share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messages_module, "CHUNK", 2)
        patch.setattr(messages_module, "KNOWN_MAX", 5)
        messages_module._known.clear()
        for start, repeated in given:
            conversation = start * (repeated + 1)
            expected = [digest(pack_message(one, "")) for one in conversation]
            assert digests_of(conversation) == (expected, digest_of_all(expected))
            assert len(messages_module._known) <= 5


def test_messages_that_look_as_before_and_cannot_be_carried_are_refused():
    conversation = [{"n": i, "data": b"x" * 20} for i in range(100)]
    assert digests_of(conversation) == digests_of(conversation)
    conversation[70] = {"n": 70, "data": bytearray(b"x" * 20)}
    with pytest.raises(RefusedValueError, match=r"messages\[70\]\.data"):
        digests_of(conversation)
    with pytest.raises(RefusedValueError, match=r"messages\[70\]\.data: object"):
        digests_of([*conversation[:70], {"data": object()}])


def test_messages_seen_before_are_not_looked_at_one_by_one(monkeypatch):
    looked = list[Any]()

    def counted(message: Any, path: str) -> Any:
        looked.append(message)
        return pack_message(message, path)

    monkeypatch.setattr(messages_module, "pack_message", counted)
    conversation = [f"message {i} of a conversation of its own" for i in range(2000)]
    digests_of(conversation)
    for i in range(100):
        looked.clear()
        conversation.append(f"and one more {i}")
        digests_of(conversation)
        assert len(looked) <= messages_module.CHUNK
    looked.clear()
    conversation[5] = "changed"
    assert digests_of(conversation)[0][5] == digest(pack_message("changed", ""))
    assert len(looked) == len(conversation)  # what stands behind it is behind another
