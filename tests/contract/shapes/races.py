"""Agents that go by what comes first, or by time."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio

from recovery import Run
from tests.contract.shapes.outside import fetch, mine, nap, page, pay, refuse, sent, shape


@shape(racy=True)
async def queue_with_sleeps_behind(run: Run) -> Any:
    queue: asyncio.Queue[str] = asyncio.Queue()

    async def one(i: int) -> None:
        found = await page(run, i)
        await nap()
        await queue.put(found)

    tasks = [asyncio.create_task(one(i)) for i in range(4)]
    for _ in tasks:
        await sent(run, await queue.get())
    await asyncio.gather(*tasks)


@shape(racy=True)
async def messages_with_sleeps_behind(run: Run) -> Any:
    async def one(i: int) -> None:
        found = await page(run, i)
        await nap()
        run.messages.append(found)

    await asyncio.gather(*map(one, range(4)))
    return await sent(run, list(run.messages))


@shape(racy=True)
async def run_wait_in_recorded_order(run: Run) -> Any:
    async def one(i: int) -> str:
        found = await page(run, i)
        await nap(0, 0, 0.001, 0.002)
        return found

    pending = [asyncio.create_task(one(i)) for i in range(4)]
    while pending:
        done, pending = await run.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            await sent(run, f"{len(pending)} left, {task.result()}")


@shape()
async def heartbeat_that_reads(run: Run) -> Any:
    async def beat() -> None:
        for number in range(1000):
            await asyncio.sleep(0.005)
            await run.call(fetch, f"beat {number}")

    beating = asyncio.create_task(beat())
    found = [await sent(run, i) for i in range(6)]
    beating.cancel()
    return found


@shape()
async def heartbeat_until_it_is_told(run: Run) -> Any:
    over = asyncio.Event()

    async def beat() -> None:
        for number in range(1000):
            try:
                await asyncio.wait_for(over.wait(), 0.005)
                return
            except TimeoutError:
                await run.call(fetch, f"beat {number}")

    async with asyncio.TaskGroup() as group:
        group.create_task(beat())
        found = [await sent(run, i) for i in range(6)]
        over.set()
    return found


@shape(racy=True)
async def heartbeat_until_an_event(run: Run) -> Any:
    over = asyncio.Event()

    async def beat() -> int:
        number = 0
        while not over.is_set():
            await sent(run, f"beat {number}")
            number += 1
            await nap(0.003, 0.006)
        return number

    beating = asyncio.create_task(beat())
    for i in range(5):
        await page(run, i)
        await nap()
    over.set()
    return await beating


@shape(racy=True)
async def wait_for_with_fallback(run: Run) -> Any:
    async def one(i: int) -> str:
        try:
            return await asyncio.wait_for(page(run, i), 0.004)
        except TimeoutError:
            return await page(run, f"cached {i}")

    found = await asyncio.gather(*map(one, range(3)))
    await sent(run, found)


@shape(racy=True)
async def anyio_move_on(run: Run) -> Any:
    found = []
    with anyio.move_on_after(0.006):
        for i in range(4):
            found.append(await page(run, i))
    await sent(run, found)


@shape(racy=True)
async def batched_by_time(run: Run) -> Any:
    waiting: list[str] = []

    async def one(i: int) -> None:
        waiting.append(await page(run, i))

    tasks = [asyncio.create_task(one(i)) for i in range(5)]
    while not all(task.done() for task in tasks) or waiting:
        await asyncio.sleep(0.004)
        if waiting:
            batch, waiting[:] = list(waiting), []
            await sent(run, batch)


@shape()
async def rate_limited(run: Run) -> Any:
    loop, lock, last = asyncio.get_running_loop(), asyncio.Lock(), 0.0

    async def one(i: int) -> str:
        nonlocal last
        async with lock:
            left = last + 0.003 - loop.time()
            if left > 0:
                await asyncio.sleep(left)
            last = loop.time()
        return await sent(run, i)

    return await asyncio.gather(*map(one, range(5)))


@shape()
async def retried_by_hand(run: Run) -> Any:
    async def stubborn(i: int) -> str:
        for attempt in range(3):
            try:
                return str(await run.call(refuse if attempt < 2 else fetch, i))
            except ConnectionError:
                await asyncio.sleep(0.002 * 2**attempt)
        raise AssertionError

    found = await asyncio.gather(*map(stubborn, range(3)))
    return [mine(f"page {i}", one) for i, one in enumerate(found)] + [await sent(run, "end")]


@shape(racy=True)
async def polled(run: Run) -> Any:
    """Asks for the state of a job, beside other work, until it is done."""
    job = asyncio.create_task(page(run, "job"))

    async def poll() -> int:
        for number in range(100):
            await run.call(fetch, f"state {number}")
            if job.done():
                return number
            await asyncio.sleep(0.002)
        raise AssertionError

    await asyncio.gather(poll(), sent(run, "beside"))
    return await job


@shape()
async def requests_of_its_own(run: Run) -> Any:
    """A client of which the library knows nothing, between the calls."""
    loop = asyncio.get_running_loop()

    async def answered() -> None:
        answer = loop.create_future()
        loop.call_later(0.003, answer.set_result, None)
        await answer

    async def one(i: int) -> str:
        await answered()
        found = await page(run, i)
        await answered()
        return await sent(run, found)

    return await asyncio.gather(*map(one, range(4)))


@shape(racy=True)
async def side_effect_that_is_cancelled(run: Run) -> Any:
    slow = asyncio.create_task(page(run, "slow"))
    quick = await run.call(pay, "quick")
    slow.cancel()
    await asyncio.gather(slow, return_exceptions=True)
    await sent(run, quick)
