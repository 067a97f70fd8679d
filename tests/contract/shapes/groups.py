"""Agents that start several coroutines and wait for them."""

from __future__ import annotations

import asyncio
import functools
import operator
import sys
from typing import Any

import anyio

from recovery import Run, tool
from tests.contract.shapes.outside import (
    fetch,
    mine,
    nap,
    page,
    pay,
    post,
    refuse,
    send,
    sent,
    shape,
)


@shape()
async def gather(run: Run) -> Any:
    pages = await asyncio.gather(*(run.call(fetch, i) for i in range(4)))
    for i in range(4):
        mine(f"page {i}", pages[i])
    return [pages, await asyncio.gather(send("a"), run.call(pay, "b"), run.call(post, "c"))]


@shape()
async def gather_with_sleeps_before(run: Run) -> Any:
    async def one(i: int) -> str:
        await nap()
        return await page(run, i) + await sent(run, i)

    return await asyncio.gather(*map(one, range(5)))


@shape()
async def gather_with_sleeps_behind(run: Run) -> Any:
    async def one(i: int) -> str:
        found = await page(run, i)
        await nap()
        return await sent(run, f"{i} {found}")

    return await asyncio.gather(*map(one, range(5)))


@shape()
async def gather_in_every_step(run: Run) -> Any:
    async for step in run.steps():
        run.messages.extend(await asyncio.gather(*(page(run, (step, i)) for i in range(3))))
        await run.call(send, f"{step}: {len(run.messages)}")
        if step == 4:
            return list(run.messages)


@shape()
async def gather_return_exceptions(run: Run) -> Any:
    calls = [page(run, 1), run.call(refuse, 2), sent(run, 3), run.call(refuse, 4)]
    found = await asyncio.gather(*calls, return_exceptions=True)
    return [str(one) for one in found] + [await sent(run, "end")]


@shape()
async def gather_where_one_fails(run: Run) -> Any:
    try:
        await asyncio.gather(page(run, 1), run.call(refuse, 2), page(run, 3))
    except ConnectionError as exc:
        return await sent(run, f"failed: {exc}")


@shape()
async def task_group(run: Run) -> Any:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(page(run, i)) for i in range(3)]
        tasks += [group.create_task(sent(run, i)) for i in range(3)]
    return [task.result() for task in tasks]


@shape()
async def task_groups_inside_one_another(run: Run) -> Any:
    async def pair(i: int) -> str:
        async with asyncio.TaskGroup() as group:
            one = group.create_task(page(run, (i, 1)))
            await nap()
            two = group.create_task(page(run, (i, 2)))
        return await sent(run, f"{one.result()} {two.result()}")

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(pair(i)) for i in range(3)]
    return [task.result() for task in tasks]


@shape()
async def task_group_where_one_fails(run: Run) -> Any:
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(run.call(refuse, 1))
            group.create_task(page(run, 2))
    except* ConnectionError:
        pass
    return await sent(run, "report")


@shape()
async def tree(run: Run) -> Any:
    async def node(path: str, depth: int) -> list[Any]:
        if not depth:
            return [await page(run, path)]
        below = await asyncio.gather(*(node(f"{path}.{i}", depth - 1) for i in range(2)))
        await nap()
        return [await sent(run, path), *below]

    return await node("root", 2)


@shape()
async def tools_that_gather(run: Run) -> Any:
    @tool
    async def research(topic: str) -> str:
        pages = await asyncio.gather(*(fetch(f"{topic} {i}") for i in range(3)))
        for i, found in enumerate(pages):
            mine(f"page {topic} {i}", found)
        return await send(f"{topic} read")

    return await asyncio.gather(*(run.call(research, topic) for topic in ("cats", "dogs")))


@shape()
async def tools_three_deep(run: Run) -> Any:
    @tool
    async def order(item: str) -> str:
        await nap()
        return await pay(item)

    @tool
    async def cart(name: str) -> list[str]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(order(f"{name} {i}")) for i in range(2)]
        return [task.result() for task in tasks]

    return await asyncio.gather(run.call(cart, "x"), run.call(cart, "y"), page(run, "z"))


@shape()
async def semaphore(run: Run) -> Any:
    gate = asyncio.Semaphore(2)

    async def one(i: int) -> str:
        async with gate:
            return await page(run, i) + await sent(run, i)

    return await asyncio.gather(*map(one, range(6)))


@shape()
async def semaphore_behind_a_sleep(run: Run) -> Any:
    gate = asyncio.Semaphore(2)

    async def one(i: int) -> str:
        await nap()
        async with gate:
            await nap()
            return await sent(run, i)

    return await asyncio.gather(*map(one, range(6)))


@shape()
async def lock_around_a_total(run: Run) -> Any:
    lock, total = asyncio.Lock(), 0

    async def one(i: int) -> None:
        nonlocal total
        found = await page(run, "x" * i)
        async with lock:
            seen = total
            await nap(0, 0.001)
            total = seen + len(found)

    await asyncio.gather(*map(one, range(5)))
    return await sent(run, total)


@shape(racy=True)
async def progress_as_argument(run: Run) -> Any:
    done = 0

    async def one(i: int) -> None:
        nonlocal done
        await page(run, i)
        done += 1
        await sent(run, f"{i} came as {done} of 4")

    await asyncio.gather(*map(one, range(4)))


@shape()
async def many_turns_behind_a_call(run: Run) -> Any:
    async def one(i: int) -> str:
        found = await page(run, i)
        for _ in range(300):  # a parser that gives way to others
            await asyncio.sleep(0)
        return await sent(run, f"{i} {len(found)}")

    return await asyncio.gather(*map(one, range(4)))


@shape(racy=True)
async def many_turns_and_who_comes_first(run: Run) -> Any:
    order: list[int] = []

    async def one(i: int) -> None:
        await page(run, i)
        for _ in range((300, 0)[i % 2]):
            await asyncio.sleep(0)
        order.append(i)
        await sent(run, list(order))

    await asyncio.gather(*map(one, range(4)))


@shape()
async def barrier(run: Run) -> Any:
    together = asyncio.Barrier(3)

    async def one(i: int) -> str:
        found = await page(run, i)
        await together.wait()
        return await sent(run, f"{i} {found}")

    return await asyncio.gather(*map(one, range(3)))


@shape()
async def background_task_over_steps(run: Run) -> Any:
    async def keep() -> list[str]:
        return [await sent(run, f"kept {i}") for i in range(4)]

    task = asyncio.create_task(keep())
    async for step in run.steps():
        await page(run, step)
        await nap()
        if step == 4:
            return await task


@shape()
async def started_and_awaited_later(run: Run) -> Any:
    early = asyncio.ensure_future(sent(run, "early"))
    pages = [await page(run, i) for i in range(3)]
    shielded = asyncio.shield(asyncio.ensure_future(sent(run, "shielded")))
    return [*pages, await early, await shielded]


@shape()
async def staggered(run: Run) -> Any:
    async def later(i: int) -> str:
        await asyncio.sleep(0.004 * i)
        return await sent(run, i)

    return await asyncio.gather(*map(later, range(5)))


@shape()
async def child_runs(run: Run) -> Any:
    async def child(run: Run) -> Any:
        return await asyncio.gather(page(run, run.task), sent(run, run.task))

    return await asyncio.gather(*(run.child(child, i, name=f"c{i}") for i in range(3)))


@shape()
async def anyio_task_group(run: Run) -> Any:
    found: dict[int, str] = {}

    async def one(i: int) -> None:
        await anyio.sleep(0.001 * i)
        found[i] = await page(run, i) + await sent(run, i)

    async with anyio.create_task_group() as group:
        for i in range(4):
            group.start_soon(one, i)
    return sorted(found.values())


@shape()
async def anyio_limiter_and_threads(run: Run) -> Any:
    limiter = anyio.CapacityLimiter(2)
    found: dict[int, str] = {}

    async def one(i: int) -> None:
        async with limiter:
            count = await anyio.to_thread.run_sync(functools.partial(operator.add, i, 1))
            found[i] = await sent(run, count)

    async with anyio.create_task_group() as group:
        for i in range(4):
            group.start_soon(one, i)
    return sorted(found.values())


@shape(python=(3, 12))
async def eager_tasks(run: Run) -> Any:
    if sys.version_info >= (3, 12):
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
    return await asyncio.gather(*(page(run, i) for i in range(3)), sent(run, "eager"))
