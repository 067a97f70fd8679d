"""Agents that start several coroutines and wait for them."""

from __future__ import annotations

import asyncio
import functools
import operator
import sys
from typing import Any

import anyio

from recovery import Run
from tests.contract.shapes.outside import (
    nap,
    page,
    sent,
    shape,
)


@shape()
async def gather_with_sleeps_behind(run: Run) -> Any:
    async def one(i: int) -> str:
        found = await page(run, i)
        await nap()
        return await sent(run, f"{i} {found}")

    return await asyncio.gather(*map(one, range(5)))


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
async def semaphore(run: Run) -> Any:
    gate = asyncio.Semaphore(2)

    async def one(i: int) -> str:
        async with gate:
            return await page(run, i) + await sent(run, i)

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
