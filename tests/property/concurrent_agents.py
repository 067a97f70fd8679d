"""Agents that do several things at once, each in a way that Python programs do.

What they await besides their calls (pauses, locks, queues, requests of their own) takes another
time, and so comes in another order, in each life of the process: `Outing.pause`. An agent returns
what it has seen; where that depends on the order in which things came, it is the order in which
the log has the outcomes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from recovery import Run, tool
from tests.property.agents import Outside, World, answer, shown, timeless, yields

Agent = Callable[[Run, "Outing"], Awaitable[Any]]

PAUSES = ("none", "turns", "turns", "short", "short", "long", "callback", "thread")


class Outing:
    """What an agent meets outside in one life: tools, and times that no record knows."""

    def __init__(self, world: World, rng: random.Random, pauses: tuple[str, ...] = PAUSES) -> None:
        self.world, self.rng, self.pauses = world, rng, pauses
        self.order: list[str] = []  # in which something happened, where a test asks for it

        @tool
        async def send(what: Any) -> Any:
            return await self.work("send", "park", what)

        @tool(after_crash="retry")
        async def look(what: Any) -> Any:
            return await self.work("look", "retry", what)

        @tool(reconcile=Outside(world).reconcile)
        async def pay(what: Any) -> Any:
            return await self.work("pay", "reconcile", what)

        @tool(after_crash="report")
        async def post(what: Any) -> Any:
            return await self.work("post", "report", what)

        @tool
        def plain(what: Any) -> Any:
            world.enter("park")
            result = answer(world, "plain", what)
            world.effect(f"plain {shown(what)}", "park", result)
            return result

        @tool(raises=[ConnectionError], after_crash="retry")
        async def refuse(what: Any) -> Any:
            world.enter("retry")
            await self.pause()
            raise ConnectionError(f"no {what}")

        @tool
        async def team(what: Any) -> Any:
            world.enter("park")

            async def member(i: int) -> Any:
                await self.pause()
                return await look(f"{what}.{i}")

            found = await asyncio.gather(*map(member, range(3)))
            return [[one["x"] for one in found], await send(f"{what} sum")]

        self.send, self.look, self.pay, self.post = send, look, pay, post
        self.plain, self.refuse, self.team = plain, refuse, team
        self.any = (send, look, pay)

    async def work(self, name: str, policy: str, what: Any) -> Any:
        self.world.enter(policy)
        await self.pause(("none", "turns", "short"))
        result = answer(self.world, name, what)
        self.world.effect(f"{name} {shown(what)}", policy, result)
        await self.pause(("none", "none", "turns", "short"))
        return result

    async def pause(self, kinds: tuple[str, ...] | None = None) -> None:
        """Something that is not recorded, and takes another time in each life."""
        match self.rng.choice(self.pauses if kinds is None else kinds):
            case "turns":
                await yields(self.rng.randrange(1, 5))
            case "short":
                await asyncio.sleep(self.rng.choice([0.001, 0.03, 0.2]))
            case "long":
                await asyncio.sleep(self.rng.choice([1, 12, 25, 100]))
            case "callback":  # a future that no task of the agent has to do with
                loop = asyncio.get_running_loop()
                answered = loop.create_future()
                later = self.rng.choice([0.001, 0.1, 0.3])
                loop.call_later(later, _answer, answered)
                await answered
            case "thread":
                await asyncio.to_thread(lambda: None)


def _answer(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def name_of(result: Any) -> Any:
    return result["x"] if isinstance(result, dict) else repr(timeless(result))


def wrapped(out: Outing, run: Run, names: list[str]) -> list[Coroutine[Any, Any, Any]]:
    """Branches that do something of their own before their calls, and between them."""

    async def branch(i: int, name: str) -> Any:
        await out.pause()
        first = await run.call(out.any[i % 3], name)
        await out.pause()
        return await run.call(out.any[(i + 1) % 3], f"{first['x']}'s next")

    return [branch(i, name) for i, name in enumerate(names)]


# -- agents of which the result is the same in whatever order things come


async def gathered(run: Run, out: Outing) -> Any:
    async for step in run.steps():
        names = [f"{step}{letter}" for letter in "abcd"]
        found = await asyncio.gather(*wrapped(out, run, names))
        run.messages.extend(found)
        await run.call(out.send, run.messages)
        if step == 3:
            return [name_of(one) for one in found]
    raise AssertionError


async def nested(run: Run, out: Outing) -> Any:
    async def pair(name: str) -> Any:
        await out.pause()
        async with asyncio.TaskGroup() as group:
            branches = wrapped(out, run, [f"{name}1", f"{name}2"])
            tasks = [group.create_task(branch) for branch in branches]
        await out.pause()
        return await run.call(out.send, [name, *(task.result()["x"] for task in tasks)])

    async for step in run.steps():
        found = await asyncio.gather(*(pair(f"{step}{letter}") for letter in "ab"))
        run.state[f"step {step}"] = [*map(name_of, found), await out.team(f"{step}")]
        if step == 2:
            return run.state
    raise AssertionError


async def limited(run: Run, out: Outing) -> Any:
    """A semaphore around calls; and what is done under a lock is seen by the next one."""
    gate, lock = asyncio.Semaphore(2), asyncio.Lock()
    total = 0

    async def one(name: str) -> Any:
        nonlocal total
        async with gate:
            await out.pause()
            found = await run.call(out.any[len(name) % 3], name)
        async with lock:
            seen = total
            await out.pause()
            total = seen + 1
        return found

    for step in range(2):
        names = [f"{step}{'x' * i}" for i in range(6)]
        await asyncio.gather(*map(one, names))
        await run.call(out.send, total)
    return total


async def queued(run: Run, out: Outing) -> Any:
    """A producer, workers, and a consumer that takes what they bring."""
    jobs: asyncio.Queue[str | None] = asyncio.Queue(2)
    done: asyncio.Queue[Any] = asyncio.Queue()

    async def work() -> None:
        while (job := await jobs.get()) is not None:
            await out.pause()
            done.put_nowait(await run.call(out.any[len(job) % 3], job))

    async def consume() -> list[Any]:
        found = []
        for _ in range(7):
            result = await done.get()
            await out.pause()
            found.append((await run.call(out.look, f"seen {result['x']}"))["x"])
        return sorted(found)

    workers = [asyncio.create_task(work()) for _ in range(3)]
    consumer = asyncio.create_task(consume())
    for i in range(7):
        await out.pause(("none", "turns", "short"))
        await jobs.put("j" * (i + 1))
    for _ in workers:
        await jobs.put(None)
    await asyncio.gather(*workers)
    return await run.call(out.send, await consumer)


async def retried(run: Run, out: Outing) -> Any:
    """Wrappers that try again by themselves: a request of their own, and a call that failed."""

    async def stubborn(name: str) -> Any:
        for attempt in range(1, 4):
            await out.pause(("turns", "short", "long"))
            if attempt < 3 and out.rng.random() < 0.5:
                continue  # what it did itself went wrong this time
            return await run.call(out.send, name)

    async def again(name: str) -> Any:
        for attempt in range(3):
            try:
                return await run.call(out.refuse if attempt < 2 else out.look, name)
            except ConnectionError:
                await out.pause()

    async for step in run.steps():
        names = [f"{step}{letter}" for letter in "ab"]
        found = await asyncio.gather(*map(stubborn, names), *map(again, names))
        run.messages += sorted(map(name_of, found))
        if step == 2:
            return list(run.messages)
    raise AssertionError


async def background(run: Run, out: Outing) -> Any:
    """Tasks that begin in one step, or before the first, and end in another."""

    async def keep(name: str) -> None:
        for i in range(3):
            await out.pause()
            run.state[f"{name} {i}"] = name_of(await run.call(out.any[i], f"{name} {i}"))

    tasks = [asyncio.create_task(keep("early"))]
    async for step in run.steps():
        tasks.append(asyncio.create_task(keep(f"of {step}")))
        await run.call(out.send, f"step {step}")
        await out.pause()
        run.messages.append({"step": step})
        if step == 3:
            await asyncio.gather(*tasks)
            return [len(run.messages), dict(sorted(run.state.items()))]
    raise AssertionError


async def awaited(run: Run, out: Outing) -> Any:
    """Tools called by their own names, and clocks that no other branch looks at meanwhile."""
    for turn in range(3):
        began = run.now()
        found = await asyncio.gather(
            out.send(f"{turn}a"), out.look(f"{turn}b"), out.team(f"{turn}c")
        )
        run.messages.append(out.plain(turn))
        await run.call(out.pay, [name_of(one) for one in found])
        assert run.now() >= began
    return list(run.messages)


# -- agents of which the result depends on what came first: the log says what did


@asynccontextmanager
async def tasks_of(branches: list[Any]) -> AsyncIterator[list[asyncio.Task[Any]]]:
    tasks = [asyncio.create_task(branch) for branch in branches]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()


def racers(out: Outing, run: Run, names: list[str]) -> list[Any]:
    """Branches that do something of their own, and end with a call."""

    async def racer(i: int, name: str) -> Any:
        await out.pause()
        return await run.call(out.any[i % 3], name)

    return [racer(i, name) for i, name in enumerate(names)]


async def as_they_come(run: Run, out: Outing) -> Any:
    async for step in run.steps():
        order = run.state.setdefault("order", [])
        async with tasks_of(racers(out, run, [f"{step}{x}" for x in "abcde"])) as tasks:
            for first in asyncio.as_completed(tasks):
                result = await first
                order.append(result["x"])
                run.messages.append(result)
                if step == 1:
                    await run.call(out.send, order)
        if step == 2:
            return order
    raise AssertionError


async def in_batches(run: Run, out: Outing) -> Any:
    """How many are done at a time is part of what the agent says."""
    batches: list[list[str]] = []
    async with tasks_of(racers(out, run, list("abcdef"))) as tasks:
        pending = set(tasks)
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            batches.append(sorted(task.result()["x"] for task in done))
            await run.call(out.send, batches)
    return batches


async def first_wins(run: Run, out: Outing) -> Any:
    async for step in run.steps():
        winners = run.state.setdefault("winners", [])
        async with tasks_of([run.call(out.look, f"{step}{x}") for x in "abc"]) as tasks:
            done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)
            winners.append("".join(sorted(task.result()["x"] for task in done)))
        await run.call(out.send, winners)
        if step == 3:
            return winners
    raise AssertionError


async def handed_on(run: Run, out: Outing) -> Any:
    """What one coroutine makes of a result is seen by another at its next one."""
    shared: list[str] = []
    changed = asyncio.Condition()

    async def one(name: str) -> Any:
        await out.pause()
        result = await run.call(out.look, name)
        async with changed:
            shared.append(result["x"])
            changed.notify_all()
        await yields(len(name) % 3)
        return await run.call(out.send, [name, *shared])

    async def watch() -> Any:
        for i in range(3):
            async with changed:
                await changed.wait_for(lambda i=i: len(shared) > i)  # type: ignore[misc]
                seen = list(shared)
            await run.call(out.pay, [i, *seen])

    await asyncio.gather(watch(), *map(one, ["a", "bb", "ccc", "dddd"]))
    return shared


async def collected(run: Run, out: Outing) -> Any:
    """Workers of one queue: who comes first writes first."""
    done: asyncio.Queue[Any] = asyncio.Queue()
    order: list[str] = []

    async def work(names: str) -> None:
        for name in names:
            await out.pause()
            done.put_nowait(await run.call(out.any[ord(name) % 3], name))

    async with tasks_of([work("abc"), work("def"), work("ghi")]):
        for _ in range(9):
            order.append((await done.get())["x"])
            run.messages.append(order[-1])
            await run.call(out.look, order)
    return order


SAME: dict[str, Agent] = {
    agent.__name__: agent
    for agent in (gathered, nested, limited, queued, retried, background, awaited)
}
RACES: dict[str, Agent] = {
    agent.__name__: agent for agent in (as_they_come, in_batches, first_wins, handed_on, collected)
}
