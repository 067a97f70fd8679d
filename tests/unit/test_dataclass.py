"""Our dataclasses do what those of the standard library do, and are cheap until they are used."""

from __future__ import annotations

import copy
import dataclasses
import threading
from dataclasses import field
from typing import Any, ClassVar

import pytest

from eventlog import _dataclass

OPTIONS = [
    {"frozen": True, "slots": True},
    {"frozen": True},
    {"slots": True},
    {},
    {"eq": False, "slots": True},
    {"frozen": True, "slots": True, "kw_only": True},
]


def classes(decorated: Any, options: dict[str, bool]) -> tuple[Any, Any]:
    """A class with fields of all sorts, and one below it."""

    @decorated(**options)
    class Base:
        """A class."""

        kind: ClassVar = "base"
        name: str
        parts: list[int] = field(default_factory=list)
        hidden: int = field(default=3, repr=False, compare=False)

    @decorated(**options)
    class Below(Base):
        """One below it."""

        kind: ClassVar = "below"
        more: Any = None

        def __post_init__(self) -> None:
            if self.more == "no":
                raise ValueError(self.name)

    return Base, Below


def answer(act: Any) -> Any:
    """What it gives, or raises."""
    try:
        return act()
    except Exception as exc:
        return type(exc), str(exc)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_same_as_the_standard_library(options: dict[str, bool]) -> None:
    ours = classes(_dataclass.dataclass, options)
    theirs = classes(dataclasses.dataclass, options)

    def told(base: Any, below: Any) -> list[Any]:
        one, other = base(name="a"), below(name="a", parts=[1], more=2)
        return [
            repr(one), repr(other), one == base(name="a"), one == base(name="b"), one == other,
            other == below(name="a", parts=[1], hidden=9, more=2), one != other,
            # Both at once: a hash by place may be that of an object which is there no more.
            answer(lambda: len({*map(hash, [below(name="a", parts=(), more=2) for _ in "12"])})),
            answer(lambda: hash(below(name="a", parts=(), more=2)) is not None),
            answer(lambda: {base(name="a", parts=()): 1}[base(name="a", parts=())]),
            answer(lambda: base("a")), answer(base), answer(lambda: base(name="a", no=1)),
            answer(lambda: below(name="a", more="no")),
            answer(lambda: setattr(one, "name", "c")), answer(lambda: delattr(one, "hidden")),
            dataclasses.asdict(other), dataclasses.replace(other, name="d").name,
            copy.copy(other).parts, copy.deepcopy(other).more, base.__match_args__,
            below.__doc__, base.__hash__ is None, hasattr(one, "__dict__"),
            [f.name for f in dataclasses.fields(below)], base.kind, below.kind,
            answer(lambda: below(name="a").__init__(name="e")),
        ]  # fmt: skip

    expected = [str(part) for part in told(*theirs)]
    for _ in range(3):  # the first objects of a class are made in another way
        assert [str(part) for part in told(*ours)] == expected


def test_own_repr_and_hash_are_kept() -> None:
    @_dataclass.dataclass(frozen=True, slots=True)
    class Own:
        number: int

        def __repr__(self) -> str:
            return "mine"

        def __hash__(self) -> int:
            return 7

    assert (repr(Own(1)), hash(Own(1)), Own(1) == Own(1)) == ("mine", 7, True)


def test_nothing_is_compiled_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    true = dataclasses._create_fn if hasattr(dataclasses, "_create_fn") else None
    if true is None:
        pytest.skip("this Python makes the methods in another way")

    def counted(name: str, *args: Any, **kwargs: Any) -> Any:
        made.append(name)
        return true(name, *args, **kwargs)

    monkeypatch.setattr(dataclasses, "_create_fn", counted)
    base, _ = classes(_dataclass.dataclass, {"frozen": True, "slots": True})
    assert made == []
    first = [base("a") for _ in range(_dataclass.PLAIN_MAX)]
    assert made == []
    one = base("a")
    assert "__init__" in made
    assert "__repr__" not in made
    assert first == [one] * len(first)
    made.clear()
    base("b")
    assert made == []
    assert repr(one).endswith("(name='a', parts=[])")
    assert "__repr__" in made


def test_threads_that_use_one_first_at_once() -> None:
    for _ in range(20):
        base, _below = classes(_dataclass.dataclass, {"frozen": True, "slots": True})
        gate = threading.Barrier(4)
        seen: list[tuple[str, bool]] = []

        def use(base: Any = base, gate: Any = gate, seen: Any = seen) -> None:
            gate.wait()
            seen.append((repr(base("a")), base("a") == base("a")))

        threads = [threading.Thread(target=use) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({shown for shown, _ in seen}) == 1
        assert [same for _, same in seen] == [True] * 4
