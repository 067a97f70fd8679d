"""An agent that books a trip, as the golden runs have it: what it calls, in which order.

Its model is a script. Its payloads have what a tool for logs has to cope with: types beyond JSON,
control characters, escape sequences, marks that reverse the direction of text, wide characters.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from recovery import PermanentError, Retry, Run, SyncRun, current_call, tool

TASK = {"to": "京都", "days": 4, "budget": Decimal("1800.00")}
NASTY = "\x1b[31mSOLD OUT\x1b[0m \x1b]0;title\x07 \x9b2J \u202etxt.exe\u2069 \u2028 \x7f end\r\n"
CARD = "4111 1111 1111 1111"

# What the model says, one line a step, and the calls that it asks for: (id, tool, arguments).
Asked = list[tuple[str, str, dict[str, Any]]]
SCRIPT: list[tuple[str, Asked]] = [
    (
        "Let me look for flights, a hotel and things to see.",
        [
            ("call_1a", "search", {"query": "flights Vienna to Osaka, 4 May"}),
            ("call_1b", "search", {"query": "hotel in 京都 near 祇園"}),
            ("call_1c", "search", {"query": "国立博物館 opening hours"}),
        ],
    ),
    ("What will the weather be?", [("call_2", "weather", {"city": "京都"})]),
    ("I keep the seat.", [("call_3", "hold_seat", {"flight": "OS51", "seat": "23A"})]),
    ("Now the payment.", [("call_4", "charge", {"amount": Decimal("1249.90")})]),
    ("The tickets.", [("call_5", "tickets", {"receipt": "R-2026-0417"})]),
    (
        "And the mail to Ann.",
        [("call_6", "send_mail", {"to": "ann@example.com", "subject": "Your trip to 京都"})],
    ),
    ("What is said of the hotel?", [("call_7", "search", {"query": "reviews of Gion Hotel"})]),
    ("All is booked.", []),
]

FOUND: dict[str, list[dict[str, Any]]] = {
    "flights": [
        {"flight": "OS51", "price": Decimal("1249.90"), "at": datetime(2026, 5, 4, 10, 35)},
        {"flight": "LH740", "price": Decimal("1310.00"), "at": datetime(2026, 5, 4, 12, 5)},
    ],
    "hotel": [{"name": "祇園ホテル", "stars": 4, "per_night": Decimal("92.50")}],
    "国立博物館": [{"title": "国立博物館 " + "漢字" * 40, "open": (9, 17)}],
    "reviews": [{"by": "bob", "text": NASTY}],
}


class World:
    """What is outside of the process, and when the process dies."""

    def __init__(self, dies: Callable[[], None]) -> None:
        self.dies = dies
        self.dies_in = ""  # a tool, in its next call
        self.refuses = Counter({"weather": 1})  # calls by tool that are still refused
        self.sent: list[str] = []

    def enter(self, name: str) -> None:
        """Every tool does this when it begins."""
        if self.refuses[name]:
            self.refuses[name] -= 1
            raise ConnectionError(f"{name}: 503 Service Unavailable")
        if self.dies_in == name:
            self.dies_in = ""
            self.dies()


world = World(lambda: None)


@tool(after_crash="retry")
async def ask_model(messages: list[Any]) -> dict[str, Any]:
    """The model: says what comes next in the script."""
    said = sum(1 for message in messages if message["role"] == "assistant")
    text, calls = SCRIPT[said]
    await asyncio.sleep(1.2 + 0.35 * said)
    world.enter("ask_model")
    size = 180 + 95 * len(messages)
    return {
        "role": "assistant",
        "content": text,
        "tool_calls": [{"id": of, "name": name, "args": args} for of, name, args in calls],
        "usage": {
            "prompt_tokens": size,
            "completion_tokens": 20 + len(text),
            "cost": round(size * 3e-6 + len(text) * 15e-6, 6),
        },
    }


@tool(after_crash="retry")
async def search(query: str) -> list[dict[str, Any]]:
    """Takes the longer, the longer the query is, so that searches overlap."""
    await asyncio.sleep(len(query) / 40)
    world.enter("search")
    return next(found for word, found in FOUND.items() if word in query)


@tool(after_crash="retry", retry=Retry(attempts=3, delay_s=0.5, jitter=0))
async def weather(city: str) -> dict[str, Any]:
    """Refused once."""
    await asyncio.sleep(0.2)
    world.enter("weather")
    return {"city": city, "celsius": 21.5, "rain": float("nan")}


async def release_seat(call: Any, held: Any) -> str:
    """Undoes hold_seat."""
    await asyncio.sleep(0.1)
    return f"released {held['seat']}"


@tool(undo=release_seat)
async def hold_seat(flight: str, seat: str) -> dict[str, Any]:
    """A side effect that can be undone."""
    await asyncio.sleep(0.3)
    world.enter("hold_seat")
    return {"flight": flight, "seat": seat, "until": datetime(2026, 5, 5, tzinfo=UTC)}


@tool(needs_approval=True, redact=["card"])
async def charge(amount: Decimal, card: str) -> dict[str, Any]:
    """A payment, which a person has to approve."""
    await asyncio.sleep(0.9)
    world.enter("charge")
    if world.refuses["charge for good"]:
        raise PermanentError(f"the card {card} was declined")
    return {"receipt": "R-2026-0417", "amount": amount, "at": datetime(2026, 5, 4, 9, tzinfo=UTC)}


@tool(after_crash="retry")
async def tickets(receipt: str) -> list[Any]:
    """Bytes, and what a terminal must never see raw."""
    await asyncio.sleep(0.25)
    world.enter("tickets")
    return [b"%PDF-1.7\x00\xff\x1b[2J" + bytes(range(256)), {"note": NASTY, ("OS51", 1): {"23A"}}]


@tool
async def send_mail(to: str, subject: str) -> str:
    """A side effect that parks its run when a crash leaves it in doubt."""
    await asyncio.sleep(0.4)
    world.enter("send_mail")
    call = current_call()
    assert call is not None
    world.sent.append(call.idempotency_key)
    return f"250 OK {len(world.sent)}"


TOOLS: dict[str, Callable[..., Any]] = {
    name: function
    for name, function in globals().copy().items()
    if hasattr(function, "tool_spec") and name != "ask_model"
}


async def book_trip(run: Run) -> dict[str, Any]:
    """The agent: as a loop around a model is written."""
    run.state["plan"] = []
    async for step in run.steps():
        if not run.messages:
            run.messages.append({"role": "user", "content": f"A trip to {run.task['to']}, please."})
            run.state["began"] = run.now()
        reply = await run.call(ask_model, run.messages)
        run.messages.append(reply)
        if not reply["tool_calls"]:
            return {"trip": run.state["plan"], "id": run.uuid()}
        secret = {"charge": {"card": CARD}}  # which no model is told
        results = await asyncio.gather(
            *(
                run.call(
                    TOOLS[asked["name"]],
                    call_id=asked["id"],
                    **asked["args"],
                    **secret.get(asked["name"], {}),
                )
                for asked in reply["tool_calls"]
            )
        )
        for asked, result in zip(reply["tool_calls"], results, strict=True):
            run.messages.append({"role": "tool", "tool_call_id": asked["id"], "content": result})
        run.state["plan"] = [*run.state["plan"], f"{step}: {reply['content']}"]
    raise AssertionError("steps have no end")


async def wait_for_spring(run: Run) -> str:
    """Sleeps for a week, and asks then."""
    async for step in run.steps():
        if step == 1:
            run.messages.append(await run.call(search, "flights in spring"))
        elif step == 2:
            await run.sleep(7 * 86400)
        else:
            return str(await run.wait_for("answer", timeout=86400))
    raise AssertionError("steps have no end")


@tool(after_crash="retry")
def look_at(place: str) -> str:
    """A call of a child run."""
    time.sleep(0.5)
    return f"{place}: worth a day"


def look_around(run: SyncRun) -> str:
    """A child run."""
    for _ in run.steps():
        return str(run.call(look_at, run.task))
    raise AssertionError("steps have no end")


def plan_days(run: SyncRun) -> list[str]:
    """Starts a run for each day."""
    for _ in run.steps():
        run.state["days"] = [run.child(look_around, place) for place in ("祇園", "奈良")]
        return list(run.state["days"])
    raise AssertionError("steps have no end")


async def plan_badly(run: Run) -> list[str]:
    """Looks for a day that nobody has planned, each time that it is run."""
    days = {"monday": "museum"}
    async for step in run.steps():
        await run.call(look_at, f"day {step}")
        if step == 3:
            return [days["tuesday"]]
    raise AssertionError("steps have no end")
