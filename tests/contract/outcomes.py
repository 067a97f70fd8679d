"""The agents of test_outcomes.py that run as scripts: their types are in ``__main__``."""

from __future__ import annotations

import enum
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    TypedDict,
    TypeVar,
)

from pydantic import BaseModel

from recovery import CheckpointStore, RecoverableAgent, SyncRun, tool

if TYPE_CHECKING:
    from decimal import Decimal as Unknown

T = TypeVar("T")


class Colour(enum.Enum):
    RED = 1


@dataclass
class Item:
    name: str
    colour: Colour


class Pair(NamedTuple):
    number: int
    item: Item


class Basket(TypedDict):
    pair: Pair


class Shape(BaseModel):
    name: str


class Circle(Shape):
    radius: float


@dataclass
class Kept:
    step: int
    items: list[Item]


class Entry(BaseModel):
    size: Size


class Page(BaseModel, Generic[T]):
    entries: list[T]


@dataclass
class Box(Generic[T]):
    held: T


class Size(enum.Enum):
    SMALL = "s"


class Mode(enum.Flag):
    READ = 1
    WRITE = 2


Boxed = NewType("Boxed", Box[Entry])


class RefusedError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"refused with {status}")
        self.status = status


def effect(what: str) -> None:
    """Something in the outside world, counted there."""
    with Path(os.environ["EFFECTS"]).open("a") as file:
        file.write(f"{what}\n")


@tool
def order(number: int) -> list[Item | None]:
    effect(f"order {number}")
    return [Item("tea", Colour.RED), None]


@tool
def basket() -> Basket:
    return {"pair": Pair(2, Item("cup", Colour.RED))}


@tool(after_crash="retry")
def shape() -> Shape:
    return Circle(name="circle", radius=2.0)


@tool
def page() -> Page[Entry]:
    return Page[Entry](entries=[Entry(size=Size.SMALL)])


@tool
def boxed() -> Annotated[Boxed, "an annotation that is text"]:
    return Boxed(Box(Entry(size=Size.SMALL)))


@tool
def mode() -> Literal[Mode.READ] | Unknown:
    return Mode.READ


class Client:
    """Its methods are given to run.call, and nothing else says what they return."""

    def fetch(self) -> Later:
        return Later("late")


@dataclass
class Later:
    name: str


client = Client()


@tool
def refuses() -> None:
    effect("refuses")
    raise RefusedError(429)


def unannotated():
    return Pair(3, Item("pot", Colour.RED))


TOOLS = {"unannotated": unannotated}


def agent(run: SyncRun) -> list[object]:
    for step in run.steps():
        found: list[object] = [order(step), basket(), shape(), run.call(TOOLS["unannotated"])]
        found += [page(), boxed(), mode(), run.call(client.fetch)]
        try:
            refuses()
        except RefusedError as exc:
            found.append(exc.status)
        run.state["kept"] = Kept(step, [Item("spoon", Colour.RED)])
        if step == int(os.environ.get("DIE_IN", "0")):
            os.kill(os.getpid(), signal.SIGKILL)
        if step == 4:
            return [*found, run.state["kept"]]
    raise AssertionError


if __name__ == "__main__":
    done = RecoverableAgent(agent, CheckpointStore(sys.argv[1])).run_with_recovery_sync("t", "run")
    print(repr(done["result"]))
