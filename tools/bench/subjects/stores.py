"""What runs take in a store of each kind: bytes, files, memory, the time to list them."""

from __future__ import annotations

import asyncio
import itertools
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from recovery import CheckpointStore, RecoverableAgent, Run, tool
from recovery.stores import FileStore, MemoryStore
from recovery.stores.postgres import PostgresStore

from .memory import resident
from .raw import text


class Store:
    """A store of the case's ``kind``."""

    def __init__(self, directory: Path, case: dict[str, Any]) -> None:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each open run has files
        self._kind, self._url, self._place = case["kind"], case.get("url", ""), directory / "runs"
        makers: dict[str, Callable[[], Any]] = {
            "memory": MemoryStore,
            "file": lambda: FileStore(self._place),
            "PostgreSQL": lambda: PostgresStore(self._url),
        }
        self._runs = makers[self._kind]()
        self._store = CheckpointStore(self._runs)
        self._numbers, self._work = itertools.count(1), tool(self._worked)
        self._size = case["size"]

    async def _worked(self, step: int) -> str:
        return text(self._size, step)

    def finish(self, runs: int, steps: int) -> dict[str, float]:
        """Have so many runs of so many steps, one after the other; what they take on disk."""
        before = self._taken()
        asyncio.run(self._finish(runs, steps))
        after = self._taken()
        return {key: after[key] - before[key] for key in after}

    async def _finish(self, runs: int, steps: int) -> None:
        async def agent(run: Run) -> None:
            for step in range(steps):
                await self._work(step)

        made = RecoverableAgent(agent, self._store)
        for _ in range(runs):
            await made.run_with_recovery(None, f"run-{next(self._numbers)}")

    def _taken(self) -> dict[str, float]:
        if self._kind == "file":
            found = [path.stat() for path in self._place.rglob("*")] if self._place.exists() else []
            return {"bytes": 512 * sum(one.st_blocks for one in found), "files": len(found)}
        if self._kind == "memory":
            return {"bytes": resident(), "files": 0}
        base, _, schema = self._url.partition("?schema=")
        with psycopg.connect(base, autocommit=True) as connection:
            row = connection.execute(
                "select sum(pg_total_relation_size(oid)) from pg_class where relkind = 'r' "
                "and relname in ('logs', 'pieces') and relnamespace = to_regnamespace(%s)",
                (schema,),
            ).fetchone()
        return {"bytes": float(row[0] or 0) if row else 0, "files": 0}

    def listing(self) -> dict[str, float]:
        """Seconds to list all runs, for each: the first time, again, and by the store's index."""
        times = []
        for listed in (self._store.runs, self._store.runs, self._found):
            began = time.perf_counter()
            count = sum(1 for _ in listed())
            times.append((time.perf_counter() - began) / max(1, count))
        return {"first": times[0], "again": times[1], "found": times[2] if count else 0}

    def _found(self) -> list[Any]:
        find = getattr(self._runs, "find", None)
        return find(states=["finished"], limit=100_000) if find is not None else []

    def waiting(self, few: int, many: int) -> float:
        """Bytes of memory for each run that waits for a signal, beyond those of the few."""
        return asyncio.run(self._waiting(few, many))

    async def _waiting(self, few: int, many: int) -> float:
        begun, found, tasks = 0, list[int](), list[asyncio.Task[Any]]()
        reached = asyncio.Event()

        async def agent(run: Run) -> None:
            nonlocal begun
            run.state["last"] = await self._work(1)
            begun += 1
            reached.set()
            await run.wait_for("go")

        made = RecoverableAgent(agent, self._store, park_after_s=None)
        for count in (few, many):
            for number in range(len(tasks), count):
                tasks.append(asyncio.create_task(made.run_with_recovery(None, f"w-{number}")))
            while begun < count:
                reached.clear()
                await reached.wait()
            await asyncio.sleep(1)
            found.append(resident())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return (found[1] - found[0]) / (many - few)
