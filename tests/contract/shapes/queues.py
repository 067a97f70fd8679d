"""Agents whose coroutines and threads hand things to one another."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import anyio

from recovery import Run, SyncRun
from tests.contract.shapes.outside import fetch, mine, nap, page, plain_nap, post, send, sent, shape


@shape()
async def workers_of_a_queue(run: Run) -> Any:
    jobs: asyncio.Queue[int] = asyncio.Queue()
    found: dict[int, str] = {}

    async def work() -> None:
        while True:
            job = await jobs.get()
            found[job] = await page(run, job) + await sent(run, job)
            jobs.task_done()

    for job in range(6):
        jobs.put_nowait(job)
    workers = [asyncio.create_task(work()) for _ in range(3)]
    await jobs.join()
    for worker in workers:
        worker.cancel()
    return [found[job] for job in range(6)]


@shape(racy=True)
async def named_workers(run: Run) -> Any:
    """Which worker has which job is part of the arguments."""
    jobs: asyncio.Queue[int] = asyncio.Queue()
    for job in range(6):
        jobs.put_nowait(job)

    async def work(name: str) -> None:
        while not jobs.empty():
            await sent(run, f"{name} does {jobs.get_nowait()}")

    await asyncio.gather(*map(work, "abc"))


@shape()
async def producer_and_consumer(run: Run) -> Any:
    shelf: asyncio.Queue[str | None] = asyncio.Queue(2)

    async def produce() -> None:
        for i in range(5):
            await shelf.put(await page(run, i))
        await shelf.put(None)

    async def consume() -> list[str]:
        found = []
        while (one := await shelf.get()) is not None:
            found.append(await sent(run, one))
        return found

    _, found = await asyncio.gather(produce(), consume())
    return found


@shape(racy=True)
async def pipeline(run: Run) -> Any:
    first: asyncio.Queue[str] = asyncio.Queue()
    second: asyncio.Queue[str] = asyncio.Queue()

    async def read(i: int) -> None:
        await nap()
        first.put_nowait(await page(run, i))

    async def rate() -> None:
        for number in range(4):
            one = await first.get()
            second.put_nowait(
                mine(f"page {one} {number}", await run.call(fetch, f"{one} {number}"))
            )

    async def write() -> None:
        for _ in range(4):
            await sent(run, await second.get())

    await asyncio.gather(rate(), write(), *map(read, range(4)))


@shape(racy=True)
async def results_as_they_come(run: Run) -> Any:
    results: asyncio.Queue[str] = asyncio.Queue()

    async def work(i: int) -> None:
        for part in "ab":
            results.put_nowait(await page(run, f"{i}{part}"))

    async with asyncio.TaskGroup() as group:
        for i in range(3):
            group.create_task(work(i))
        for number in range(6):
            await sent(run, f"{number}: {await results.get()}")


@shape()
async def event_between_two(run: Run) -> Any:
    ready = asyncio.Event()

    async def first() -> str:
        found = await page(run, "first")
        ready.set()
        return found + await sent(run, "first")

    async def second() -> str:
        before = await page(run, "second")
        await ready.wait()
        return before + await sent(run, "second")

    return await asyncio.gather(second(), first())


@shape(racy=True)
async def condition(run: Run) -> Any:
    changed, shared = asyncio.Condition(), list[str]()

    async def one(i: int) -> None:
        found = await page(run, i)
        async with changed:
            shared.append(found)
            changed.notify_all()

    async def watch() -> None:
        for number in range(4):
            async with changed:
                await changed.wait_for(lambda count=number: len(shared) > count)  # type: ignore[misc]
            await sent(run, f"{number}: {shared[number]}")

    await asyncio.gather(watch(), *map(one, range(4)))


@shape()
async def promise(run: Run) -> Any:
    promised: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def keep() -> None:
        await nap()
        promised.set_result(await page(run, "promised"))

    async def use(i: int) -> str:
        return await sent(run, f"{i} {await promised}")

    return (await asyncio.gather(keep(), use(1), use(2)))[1:]


@shape()
async def cache_that_is_shared(run: Run) -> Any:
    """Who asks first makes the call, the others wait for it."""
    cache: dict[str, asyncio.Task[str]] = {}

    async def cached(url: str) -> str:
        if url not in cache:
            cache[url] = asyncio.create_task(page(run, url))
        return await cache[url]

    async def one(i: int) -> str:
        await nap()
        return await sent(run, f"{i} {await cached('ab'[i % 2])}")

    return await asyncio.gather(*map(one, range(5)))


@shape()
async def priorities(run: Run) -> Any:
    jobs: asyncio.PriorityQueue[tuple[int, str]] = asyncio.PriorityQueue()
    for number, name in enumerate("abcdef"):
        jobs.put_nowait((-number, name))
    found = []

    async def work() -> None:
        while not jobs.empty():
            _, name = jobs.get_nowait()
            found.append(await sent(run, name))

    await asyncio.gather(work(), work())
    return sorted(found)


@shape(racy=True)
async def merged_generators(run: Run) -> Any:
    async def source(name: str) -> AsyncIterator[str]:
        for i in range(3):
            await nap()
            yield await page(run, f"{name}{i}")

    merged: asyncio.Queue[str] = asyncio.Queue()

    async def pump(name: str) -> None:
        async for one in source(name):
            merged.put_nowait(one)

    async with asyncio.TaskGroup() as group:
        for name in "ab":
            group.create_task(pump(name))
        for _ in range(6):
            run.messages.append(await merged.get())
            await run.call(send, list(run.messages))


@shape()
async def anyio_streams(run: Run) -> Any:
    into, out = anyio.create_memory_object_stream[str](1)
    found = []

    async def produce() -> None:
        async with into:
            for i in range(4):
                await into.send(await page(run, i))

    async with anyio.create_task_group() as group:
        group.start_soon(produce)
        async with out:
            async for one in out:
                found.append(await sent(run, one))
    return found


@shape()
async def executor_between_calls(run: Run) -> Any:
    loop = asyncio.get_running_loop()

    async def one(i: int) -> str:
        found = await page(run, i)
        await loop.run_in_executor(None, plain_nap)
        return await sent(run, f"{i} {len(found)}")

    return await asyncio.gather(*map(one, range(4)))


def chain(run: SyncRun, name: str) -> list[str]:
    plain_nap()
    found = [mine(f"posted {name}", run.call(post, name))]
    plain_nap()
    return [*found, mine(f"page {name}", run.call(fetch, name))]


@shape()
def pool_of_threads(run: SyncRun) -> Any:
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(partial(chain, run), "abcd"))
    return [found, run.call(send, "end")]


@shape()
def pool_in_every_step(run: SyncRun) -> Any:
    for step in run.steps():
        with ThreadPoolExecutor(2) as pool:
            run.messages.extend(pool.map(partial(chain, run), [f"{step}a", f"{step}b"]))
        run.call(send, len(run.messages))
        if step == 3:
            return list(run.messages)


@shape()
def threads_with_a_queue(run: SyncRun) -> Any:
    jobs: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    found: dict[str, list[str]] = {}

    def work() -> None:
        while (name := jobs.get()) is not None:
            found[name] = chain(run, name)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for name in [*"abcd", None, None]:
        jobs.put(name)
    for thread in threads:
        thread.join()
    return sorted(found.items())
