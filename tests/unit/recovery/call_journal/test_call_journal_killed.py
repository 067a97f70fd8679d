"""Loops with checkpoint files of their own, killed before and after each append of a journal."""

from __future__ import annotations

import asyncio
import functools
import json
import random
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from recovery import Resolution, tool
from recovery.call_journal import CallJournal
from tests.support import outside
from tests.support.framework_lives import kills
from tests.support.kill_sweep import RUNS, sweep

TURNS = 3


def save(path: Path, value: Any) -> None:
    new = path.with_suffix(".new")
    new.write_text(json.dumps(value))
    new.replace(path)


class Chat:
    """What a loop keeps in a file of its own: it is there whole, or as it was before."""

    def __init__(self, place: Path) -> None:
        self.path = place / "chat.json"
        self.messages = json.loads(self.path.read_text()) if self.path.exists() else []

    def save(self) -> None:
        save(self.path, self.messages)

    @property
    def known(self) -> list[str]:
        return [one["id"] for one in self.messages if one["role"] == "tool"]

    @property
    def shown(self) -> list[list[Any]]:
        """Without the ids, which a model may give anew."""
        return [[one["role"], one.get("content"), one.get("calls")] for one in self.messages]


class Mailbox:
    """Somebody's own object, with a method that is a tool of his."""

    def __init__(self, owner: str) -> None:
        self.owner = owner

    def write(self, to: str) -> str:
        return outside.did(f"{self.owner} writes to {to}", f"written to {to}")


def send(to: str, text: str = "hello") -> dict[str, str]:
    return outside.did(f"send {to} {text}", {"sent": to})


def find_out(call: Any) -> Resolution:
    return outside.truth(call)


@tool(reconcile=find_out)
async def book(seat: int) -> str:
    await asyncio.sleep(0)
    return outside.did(f"book {seat}", f"booked {seat}")


@tool
def fails(why: str) -> str:
    raise ValueError(why)


@tool
def parcel(what: str) -> list[str]:
    """Calls another tool of its own."""
    return [tool(name="wrap")(wrap)(f"{what} {side}") for side in ("left", "right")]


def wrap(what: str) -> str:
    return outside.did(f"wrap {what}", f"wrapped {what}")


TOOLS: dict[str, Callable[..., Any]] = {
    "send": send,
    "greet": functools.partial(send, text="good day"),
    "write": Mailbox("Ada").write,
    "note": lambda line: outside.did(f"note {line}", line),
    "book": book,
    "fails": fails,
    "parcel": parcel,
}


def asked_for(turn: int) -> list[dict[str, Any]]:
    """What the model wants done in a turn."""
    wanted: list[list[tuple[str, dict[str, Any]]]] = [
        [("send", {"to": "a"}), ("send", {"to": "b"}), ("write", {"to": "c"})],
        [("send", {"to": "a"}), ("note", {"line": "x"}), ("book", {"seat": 7})],
        [("parcel", {"what": "gift"}), ("fails", {"why": "no"}), ("greet", {"to": "a"})],
    ]
    return [{"tool": name, "args": args} for name, args in wanted[turn]]


def said(result: Any) -> Any:
    return f"{type(result).__name__}: {result}" if isinstance(result, Exception) else result


def finished(chat: Chat) -> int:
    """Turns that are in the checkpoint."""
    return sum(one["role"] == "end of turn" for one in chat.messages)


def call_of(journal: CallJournal, one: dict[str, Any]) -> Any:
    try:
        return journal.call_sync(TOOLS[one["tool"]], **one["args"], call_id=one["id"])
    except Exception as exc:
        return exc


async def task_of(journal: CallJournal, one: dict[str, Any]) -> Any:
    try:
        return await journal.call(TOOLS[one["tool"]], **one["args"], call_id=one["id"])
    except Exception as exc:
        return exc


def in_threads(place: Path) -> Any:
    """Saves what the model asks for before the tools run, and runs them in threads."""
    chat = Chat(place)
    with CallJournal(place / RUNS, "chat") as journal, ThreadPoolExecutor(3) as pool:
        while (turn := finished(chat)) < TURNS:
            if not chat.messages or chat.messages[-1]["role"] != "model":
                asked = [one | {"id": f"{turn}.{n}"} for n, one in enumerate(asked_for(turn))]
                chat.messages.append({"role": "model", "asked": asked})
                chat.save()
            asked = chat.messages[-1]["asked"]
            made = pool.map(functools.partial(call_of, journal), asked)
            for one, result in zip(asked, made, strict=True):
                chat.messages.append({"role": "tool", "id": one["id"], "content": said(result)})
            chat.messages.append({"role": "end of turn"})
            chat.save()
            journal.forget()
    return chat.shown


def in_tasks(place: Path) -> Any:
    """Saves a turn when it is over, so that after a crash the model is asked again, and gives its
    calls other ids. The tasks begin in any order."""

    async def loop() -> Any:
        chat = Chat(place)
        with CallJournal(place / RUNS, "chat", known=chat.known) as journal:
            while (turn := finished(chat)) < TURNS:
                asked = [one | {"id": uuid.uuid4().hex} for one in asked_for(turn)]
                order = random.sample(asked, len(asked))
                made = await asyncio.gather(*(task_of(journal, one) for one in order))
                results = {one["id"]: result for one, result in zip(order, made, strict=True)}
                for one in asked:
                    content = said(results[one["id"]])
                    chat.messages.append({"role": "tool", "id": one["id"], "content": content})
                chat.messages.append({"role": "end of turn"})
                chat.save()
                journal.forget(results)
        return chat.shown

    return asyncio.run(loop())


def with_ids_of_its_own(place: Path) -> Any:
    """A plain loop that asks for the same in each turn, and numbers its calls."""
    at = place / "turns.json"
    turns = json.loads(at.read_text()) if at.exists() else []
    with CallJournal(place / RUNS, "turns") as journal:
        while (turn := len(turns)) < TURNS:
            ids = [f"{turn}.{n}" for n in range(3)]
            done: list[Any] = [journal.call_sync(send, "x", call_id=one) for one in ids[:2]]
            done.append(journal.call_sync(Mailbox("Bob").write, "x", call_id=ids[2]))
            turns.append(done)
            save(at, turns)
            journal.forget(ids)
    return turns


@kills(10)
@pytest.mark.parametrize("loop", [in_threads, in_tasks, with_ids_of_its_own])
def test_a_killed_loop_ends_as_the_one_that_nobody_killed(
    loop: Callable[[Path], Any], points: int, tmp_path: Path, rng: random.Random
) -> None:
    found = sweep(loop, tmp_path, rng, points=points)
    assert found.bad == []
    assert found.doubted or found.points < 2 * found.appends  # a few may all miss the tools
