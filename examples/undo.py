"""A trip that is booked piece by piece, and undone when a piece cannot be had.

    python examples/undo.py [DIRECTORY]

Kill it at any point and run it again: nothing is booked twice, and nothing is cancelled twice.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from recovery import Call, CheckpointStore, RecoverableAgent, Resolution, Run, current_call, tool

bookings: dict[str, str] = {}  # the travel agency, by idempotency key
cancellations: dict[str, str] = {}


def in_agency(call: Call) -> Resolution:
    """What became of a call that a crash cut short: the agency knows its idempotency key."""
    known = bookings | cancellations
    key = call.idempotency_key
    return Resolution.outcome(known[key]) if key in known else Resolution.retry()


@tool(reconcile=in_agency)
async def cancel(booking: Call, number: str) -> str:
    """The compensation: gets the call that it undoes, and what that returned."""
    call = current_call()
    assert call is not None
    cancellations[call.idempotency_key] = number
    return number


@tool(reconcile=in_agency, undo=cancel)
async def book(what: str) -> str:
    call = current_call()
    assert call is not None
    if what == "boat":
        raise LookupError("no boat to be had")
    bookings[call.idempotency_key] = f"{what}-{len(bookings) + 1}"
    return bookings[call.idempotency_key]


async def trip(run: Run) -> Any:
    booked = run.state.setdefault("booked", [])
    try:
        async for step in run.steps():
            booked.append(await run.call(book, run.task[step - 1]))
            if step == len(run.task):
                return booked
    except LookupError as exc:
        undone = await run.undo()
        return f"{exc}; cancelled: {', '.join(one['result'] for one in undone)}"


if __name__ == "__main__":
    store = CheckpointStore(sys.argv[1] if len(sys.argv) > 1 else None)
    agent = RecoverableAgent(trip, store, checkpoint_every_n=1)
    result = asyncio.run(agent.run_with_recovery(["flight", "hotel", "boat"], "trip_1"))
    print(result["result"])
