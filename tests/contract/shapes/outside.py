"""What the small concurrent agents meet: tools whose effects are noted in a file outside.

What they await besides their calls takes another time in each life of the process, as requests,
disks and other people's servers do.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recovery import Call, Resolution, Run, current_call, tool

jitter = random.Random(0)  # seeded anew in each life


class Effects:
    """The file in which effects are noted, a line each, durable as far as a kill is concerned."""

    path = Path("effects")

    @classmethod
    def note(cls, kind: str, what: Any) -> None:
        call = current_call()
        line = f"{kind}\t{what}\t{call.idempotency_key if call else ''}\n"
        descriptor = os.open(cls.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    @classmethod
    def noted(cls) -> list[tuple[str, str, str]]:
        if not cls.path.exists():
            return []
        lines = cls.path.read_text().splitlines()
        return [(kind, what, key) for kind, what, key in (line.split("\t") for line in lines)]


async def nap(*seconds: float) -> None:
    """Something of the agent's own, which is not recorded."""
    await asyncio.sleep(jitter.choice(seconds or (0, 0, 0.001, 0.004, 0.015)))


def plain_nap() -> None:
    time.sleep(jitter.choice((0, 0, 0.001, 0.004, 0.015)))


def asked(call: Call) -> Resolution:
    """Whether the outside world knows of the call."""
    done = any(key == call.idempotency_key for _, _, key in Effects.noted())
    return Resolution.outcome(f"sent {call.args[0]}") if done else Resolution.retry()


@tool(after_crash="retry")
async def fetch(url: Any) -> str:
    await nap()
    Effects.note("fetch", url)
    return f"page {url}"


@tool(reconcile=asked)
async def send(what: Any) -> str:
    await nap(0, 0.002)
    Effects.note("send", what)
    await nap(0, 0.002)
    return f"sent {what}"


@tool
async def pay(what: Any) -> str:  # parks when a crash leaves it in doubt
    Effects.note("pay", what)
    await nap(0, 0.002)
    return f"paid {what}"


@tool
def post(what: Any) -> str:  # a plain one
    plain_nap()
    Effects.note("post", what)
    return f"posted {what}"


@tool(after_crash="retry", raises=[ConnectionError])
async def refuse(what: Any) -> str:
    await nap()
    raise ConnectionError(f"no {what}")


def mine(wanted: str, found: str) -> str:
    """The result of a call, which is to be that of this coroutine."""
    if wanted != found:
        Effects.note("WRONG", f"{wanted} is {found}")
    return found


async def page(run: Run, url: Any) -> str:
    return mine(f"page {url}", await run.call(fetch, url))


async def sent(run: Run, what: Any) -> str:
    return mine(f"sent {what}", await run.call(send, what))


@dataclass(frozen=True, slots=True)
class Shape:
    """A way to do several things at once. ``racy``: the result depends on what comes first."""

    agent: Callable[[Any], Any]
    racy: bool = False
    python: tuple[int, int] = (3, 11)


SHAPES: dict[str, Shape] = {}

Agent = Callable[[Any], Awaitable[Any]] | Callable[[Any], Any]


def shape(**options: Any) -> Callable[[Agent], Agent]:
    """Add an agent to the list."""

    def add(agent: Agent) -> Agent:
        SHAPES[agent.__name__] = Shape(agent, **options)
        return agent

    return add
