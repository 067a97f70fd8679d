"""Values that JSON does not know: datetimes, decimals, sets, tuples, dataclasses and models.

Run it: python examples/values.py DIRECTORY. What the agent sees is what it saw the first time, in
value and type, whenever it is resumed.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

from recovery import CheckpointStore, RecoverableAgent, Run, register, tool

booked: list[str] = []  # what happened in the outside world


@register
class Cabin(Enum):
    ECONOMY = "economy"
    SLEEPER = "sleeper"


@register(name="trip")  # the name in the log: keep it when the class is renamed
@dataclass(frozen=True)
class Trip:
    leaves: datetime
    price: Decimal
    cabin: Cabin = Cabin.ECONOMY
    stops: frozenset[str] = field(default_factory=frozenset)


class Money:
    """A type that is no dataclass: registered with a codec."""

    def __init__(self, amount: Decimal, currency: str) -> None:
        self.amount, self.currency = amount, currency


register(
    Money,
    encode=lambda money: [money.amount, money.currency],
    decode=lambda parts: Money(*parts),
)


@tool(after_crash="retry")
async def find(city: str) -> list[Trip]:
    """Reading: what comes back are Trips, not dicts of strings."""
    noon = datetime(2026, 5, 1, 12, tzinfo=UTC)
    return [
        Trip(noon, Decimal("49.90"), stops=frozenset({"Lyon", city})),
        Trip(noon + timedelta(hours=8), Decimal("129.00"), Cabin.SLEEPER),
    ]


@tool(after_crash="retry")
async def book(trip: Trip, money: Money) -> tuple[str, Decimal]:
    """Booking the same trip twice is one booking, for this operator."""
    name = f"{trip.cabin.value} at {trip.leaves:%H:%M}"
    if name not in booked:
        booked.append(name)
    return name, money.amount - trip.price


async def agent(run: Run) -> dict[str, Any]:
    money = Money(Decimal("200.00"), "EUR")
    run.state.setdefault("seen", set())
    async for step in run.steps():
        trips = await run.call(find, run.task)
        trip = trips[step - 1]
        run.state["seen"].add(trip)  # a set of Trips, changed in place
        run.messages.append({"step": step, "trip": trip})
        name, left = await run.call(book, trip, money)
        if step == len(trips):
            return {"last": name, "left": left, "seen": len(run.state["seen"])}
    raise AssertionError("the loop has no end of its own")


def main(directory: str) -> None:
    found = asyncio.run(
        RecoverableAgent(agent, CheckpointStore(directory), 1).run_with_recovery("Lisbon", "trip")
    )
    print(found["result"])


if __name__ == "__main__":
    main(*sys.argv[1:])
