"""Golden runs of the second rules: `python -m tests.data.second_rules` makes a store of them.

Each has died where only these rules say how it goes on. Once made they are never written again.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

from recovery import ApprovalDeniedError, Retry, Run, tool
from recovery.control.send import deny, pending, signal
from tests.data import trip
from tests.data.make_runs import Maker, Stored, _fixed, write

RUNS = Path(__file__).parent / "second_rules"


async def pays(run: Run) -> list[Any]:
    """A call that is denied, which the agent handles."""
    async for _ in run.steps():
        try:
            paid = str(await run.call(trip.charge, Decimal("12.50"), card=trip.CARD))
        except ApprovalDeniedError as no:
            paid = type(no).__name__
        return [paid, len(await run.call(trip.search, "hotel"))]
    raise AssertionError("steps have no end")


@tool(after_crash="retry", retry=Retry(3, delay_s=1, jitter=0))
async def book(seat: str) -> str:
    """Its first attempt fails, behind a side effect."""
    held = await trip.hold_seat("OS51", seat)
    return f"{held['seat']}, {len(await trip.tickets('R-1'))} files"


async def books(run: Run) -> str:
    async for _ in run.steps():
        return await book("23A")
    raise AssertionError("steps have no end")


async def _reads(run: Run, query: str) -> list[Any]:
    async for _ in run.steps():
        found = await run.call(trip.search, query, call_id="read")
        held = await run.call(trip.hold_seat, "OS51", "4C")
        return [found[0]["stars"], held["seat"], len(await run.call(trip.tickets, "R-2"))]
    raise AssertionError("steps have no end")


async def reads(run: Run) -> list[Any]:
    return await _reads(run, "hotel, cheap")


async def reads_otherwise(run: Run) -> list[Any]:
    """The same agent, whose author has changed the words of a question."""
    return await _reads(run, "hotel, not too dear")


async def looks(run: Run) -> int:
    """A child run."""
    async for _ in run.steps():
        return len(await run.call(trip.search, f"reviews of {run.task}"))
    raise AssertionError("steps have no end")


async def sends(run: Run) -> list[int]:
    async for _ in run.steps():
        return [await run.child(looks, place) for place in ("Gion", "Nara")]
    raise AssertionError("steps have no end")


async def waits(run: Run) -> Any:
    async for _ in run.steps():
        await run.call(trip.search, "flights")
        answer = await run.wait_for(("answer", "never mind"), timeout=86400)
        return [answer, len(await run.call(trip.tickets, "R-3"))]
    raise AssertionError("steps have no end")


def denied(maker: Maker) -> None:
    maker.live("denied", pays, "trip")
    deny(maker.store, "denied", pending(maker.store, "denied")[0], who="ann", why="too dear")
    maker.world.dies_in = "search"
    maker.live("denied", pays, "trip")


def failed_inside(maker: Maker) -> None:
    maker.world.refuses["tickets"], maker.world.dies_in = 1, "tickets"
    maker.live("failed_inside", books, "trip")


def drifted(maker: Maker) -> None:
    for agent in (reads, reads_otherwise):
        maker.world.dies_in = "tickets"
        maker.live("drifted", agent, "trip")


def with_child(maker: Maker) -> None:
    maker.world.dies_in = "search"
    maker.live("with_child", sends, "trip")


def answered(maker: Maker) -> None:
    maker.live("answered", waits, "trip")
    signal(maker.store, "answered", "answer", {"go": True}, who="ann")


# By run: its agent of today, what it gives, and what is executed when it is resumed.
MADE: dict[Callable[[Maker], None], tuple[Callable[..., Any], Any, list[str]]] = {
    denied: (pays, ["ApprovalDeniedError", 1], ["search"]),
    failed_inside: (books, "23A, 2 files", ["tickets"]),
    drifted: (reads_otherwise, [4, "4C", 2], ["tickets"]),
    with_child: (sends, [1, 1], ["search", "search"]),
    answered: (waits, [("answer", {"go": True}), 2], ["tickets"]),
}


def make(run: Callable[[Maker], None]) -> Stored:
    """The files of one of them."""
    maker = Maker(500 + 10 * [*MADE].index(run))
    with _fixed(maker):
        run(maker)
        return maker.stored()


if __name__ == "__main__":
    write(RUNS, map(make, MADE))
