"""What the code before the loop changes inside restored values of the state is taken back."""

from __future__ import annotations

from copy import copy
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy
from hypothesis import given
from hypothesis import strategies as st

from recovery.history.run_state import Contents


def refuses(self: Any, *args: Any) -> Any:
    raise TypeError("it is not to be changed")


class Looked(list[Any]):
    """Nobody goes round in circles in it."""

    looks = 0

    def __iter__(self) -> Any:
        self.looks += 1
        assert self.looks < 1000
        return super().__iter__()


KEPT = dict.fromkeys(("__setitem__", "__ior__", "clear", "update"), refuses)
KeptList, KeptDict, KeptSet = (type("Kept", (of,), KEPT) for of in (list, dict, set))


class Frame:
    """What pandas has: an array for numpy, with flags of its own."""

    flags = SimpleNamespace(allows_duplicate_labels=True)

    def __array__(self) -> Any:
        return numpy.zeros(1)


def with_attributes(made: Any, values: list[Any]) -> Any:
    made.__dict__.update((f"a{i}", one) for i, one in enumerate(values))
    return made


def read_only(values: list[Any]) -> Any:
    made = numpy.zeros(3)
    made.flags.writeable = False
    return made


MADE: dict[str, Any] = {
    "list": Looked,
    "dict": lambda values: dict(enumerate(values)),
    "set": lambda values: {len(values), 7},
    "bytes": lambda values: bytearray(b"abc"),
    "array": lambda values: numpy.arange(3.0),
    "object": lambda values: with_attributes(SimpleNamespace(), values),
    "frame": lambda values: with_attributes(Frame(), values),
    # These are not changed, and hold what is.
    "tuple": tuple,
    "kept list": KeptList,
    "kept dict": lambda values: KeptDict(enumerate(values)),
    "kept set": lambda values: KeptSet({1, 2}),
    "read only": read_only,
}
HOLD = {*MADE} - {"set", "bytes", "array", "kept set", "read only"}  # other values


def other(one: Any) -> Any:
    """Another object, which is equal where that can be."""
    return {**one} if isinstance(one, dict) else [*one] if isinstance(one, list) else object()


def harm(one: Any, kind: str, chance: Random) -> None:
    match kind:
        case "list" if one:
            how: list[Any] = [one.reverse, one.clear, lambda: one.append(1)]
            how.append(lambda: one.__setitem__(0, other(one[0])))
            chance.choice(how)()
        case "dict" | "object" | "frame" if held := one if kind == "dict" else vars(one):
            first = next(iter(held))
            how = [lambda: held.update({first: held.pop(first)}), held.clear]
            how += [lambda: held.update(new=1), lambda: held.update({first: other(held[first])})]
            chance.choice(how)()
        case "set":
            chance.choice([one.clear, lambda: one.add(9)])()
        case "bytes":
            chance.choice([one.clear, one.reverse])()
        case "array":
            one[chance.randrange(3)] = 9


def contents(one: Any) -> Any:
    match one:
        case list() | tuple():
            return [*map(id, one)]
        case dict():
            return [(key, id(value)) for key, value in one.items()]
        case set() | bytearray():
            return copy(one)
        case numpy.ndarray():
            return one.tolist()
    return contents(vars(one))


@given(st.lists(st.sampled_from([*MADE]), min_size=1, max_size=12), st.randoms())
def test_whatever_was_changed_at_any_depth_is_put_back_in_place(
    kinds: list[str], chance: Random
) -> None:
    made, roots = list[Any](), list[Any]()
    for kind in kinds:
        inside = [roots.pop(chance.randrange(len(roots))) for _ in range(min(2, len(roots)))]
        inside += chance.sample(made, min(1, len(made)))  # held twice
        made.append(MADE[kind](inside))
        roots += [made[-1], *([] if kind in HOLD else inside)]
    for one, kind in zip(made, kinds, strict=True):
        if kind == "list":
            one.append(roots[-1])  # round and round
    before = [contents(one) for one in made]
    held = Contents(["text", *roots])
    for one, kind in zip(made, kinds, strict=True):
        if chance.random() < 0.7:
            harm(one, kind, chance)
    held.put_back()
    assert [contents(one) for one in made] == before
