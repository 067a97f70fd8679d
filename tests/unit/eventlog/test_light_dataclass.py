"""A light dataclass behaves as a dataclass, at a smaller price."""

from __future__ import annotations

import copy
import inspect
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any, ClassVar

import pytest

import eventlog
import recovery
from eventlog.light_dataclass import light_dataclass
from recovery import reports


@light_dataclass
class Light:
    """Two fields and a constant."""

    kind: ClassVar = "light"
    number: int
    items: list[Any] = field(default_factory=list)


@light_dataclass
class Longer(Light):
    """One field more."""

    name: str = ""


@light_dataclass
class Named:
    """It has a representation of its own."""

    name: str

    def __repr__(self) -> str:
        return f"<{self.name}>"


@dataclass(frozen=True, slots=True)
class Plain:
    """What Light would be."""

    kind: ClassVar = "light"
    number: int
    items: list[Any] = field(default_factory=list)


def test_it_has_the_equality_the_hash_and_the_text_of_a_dataclass() -> None:
    assert Light(1, [2]) == Light(1, [2]) != Light(1, [3])
    plain: object = Plain(1)
    assert Light(1) != plain and Light(1) != Longer(1) and Longer(1) != Longer(1, [], "a")
    nan = float("nan")
    assert Light(1, [nan]) == Light(1, [nan]) and Plain(1, [nan]) == Plain(1, [nan])
    assert hash(Named("a")) == hash(Named("a"))
    with pytest.raises(TypeError, match="unhashable"):
        hash(Light(1))  # a list is unhashable
    assert repr(Light(1, ["a"])) == repr(Plain(1, ["a"])).replace("Plain", "Light")
    assert repr(Longer(1, name="a")) == "Longer(number=1, items=[], name='a')"
    around = Light(1)
    around.items.append(around)  # it contains itself
    assert repr(around) == "Light(number=1, items=[...])"
    assert repr(Named("a")) == "<a>"


def test_what_works_upon_dataclasses_works_upon_it() -> None:
    assert [one.name for one in fields(Longer)] == [
        "number",
        "items",
        "name",
    ]
    assert replace(Light(1), number=2) == Light(2) and asdict(Light(1)) == {
        "number": 1,
        "items": [],
    }
    assert str(inspect.signature(Named)) == "(name: 'str') -> None"
    match Light(3):
        case Light(number):
            assert number == 3
    assert copy.deepcopy(Light(1, [2])) == copy.copy(Light(1, [2])) == Light(1, [2])
    assert is_dataclass(Named)
    with pytest.raises(AttributeError):
        Light(1).other = 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("module", [eventlog, recovery, reports], ids=lambda one: str(one.__name__))
def test_public_classes_are_frozen(module: Any) -> None:
    """But for Checkpoint, which a user fills in."""
    public = {getattr(module, name) for name in module.__all__} - {recovery.Checkpoint}
    for kind in (one for one in public if is_dataclass(one)):
        assert vars(kind)["__dataclass_params__"].frozen, kind
    with pytest.raises(FrozenInstanceError):
        recovery.Usage().cost = 1.0  # type: ignore[misc]
