"""Runs on a PostgreSQL server, and the yardstick: bare INSERTs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from recovery import CheckpointStore, RecoverableAgent, Run
from recovery.stores.postgres import PostgresStore
from recovery.stores.postgres.connections import Connections

from .agents import Together
from .paced import Watch
from .raw import text

FRAMES = 250  # bytes that a step's records have beside the result
WAITING = 20
SIGNAL = {"uid": "u", "name": "other", "value": 1, "who": ""}


class Ours(Together):
    """Many runs in one event loop, in the default settings; counts the statements."""

    def __init__(self, directory: Path, case: dict[str, Any]) -> None:
        super().__init__(directory, case)
        self._url = case["url"]
        self._runs = PostgresStore(self._url)
        self._store = CheckpointStore(self._runs)
        self._statements = 0
        run = Connections.run

        def counted(connections: Connections, act: Callable[[Any], Any]) -> Any:
            self._statements += 1
            return run(connections, act)

        Connections.run = counted  # type: ignore[method-assign, assignment]
        self._log = self._runs.claim("commits")
        self._record = text(case["size"] + FRAMES, 0)

    def step(self, number: int) -> None:
        """One commit, without an agent."""
        self._log.append("record", self._record)
        self._log.commit()

    def together(self, runs: int, steps: int) -> dict[str, float]:
        before = self._statements
        found = super().together(runs, steps)
        return {**found, "statements": (self._statements - before) / found["steps"]}

    def statements(self, watched_s: float) -> dict[str, float]:
        """What each of these takes; ``watched_s``: how long runs that wait are watched (0: not)."""
        return asyncio.run(self._counted(watched_s))

    async def _counted(self, watched_s: float) -> dict[str, float]:
        async def nothing(run: Run) -> None:
            pass

        async def waits(run: Run) -> Any:
            return await run.wait_for("go")

        found, before = {}, self._statements

        def since() -> int:
            return self._statements - before

        await RecoverableAgent(nothing, self._store).run_with_recovery(None, "ended")
        found["begin and end a run"] = float(since())
        before = self._statements
        with self._runs.claim("ended") as log:
            assert self._runs.inbox("ended") is None and list(log.records())
            found["open an ended run, with its inbox"] = since()
        waiting = RecoverableAgent(waits, self._store, park_after_s=None)
        names = [f"waits-{i}" for i in range(WAITING)]
        tasks = [asyncio.create_task(waiting.run_with_recovery(None, name)) for name in names]
        await asyncio.sleep(5)  # until they wait, and their listener has heard of itself
        if watched_s:
            before = self._statements
            await asyncio.sleep(watched_s)
            found[f"a minute of each of {WAITING} waiting runs"] = (
                since() * 60 / watched_s / WAITING
            )
        other = PostgresStore(self._url)
        before = self._statements
        await asyncio.to_thread(other.post, names[0], "signal", SIGNAL)
        found["post a message"] = since()
        for name in names:
            await asyncio.to_thread(CheckpointStore(other).run(name).signal, "go", 1)
        await asyncio.gather(*tasks)
        return found

    def close(self) -> None:
        self._log.close()


class Insert:
    """A row for each step, committed by itself; a connection and a thread for each run."""

    def __init__(self, directory: Path, case: dict[str, Any]) -> None:
        self._url, self._data = case["url"].partition("?")[0], text(case["size"] + FRAMES, 0)
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(
                "create table if not exists bare (run bigint, step bigint, data bytea, "
                "primary key (run, step)) with (toast_tuple_target = 8160)"
            )
            connection.execute("alter table bare alter column data set storage external")
        self._made = 0
        self._one = self._connected()

    def _connected(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self._url, autocommit=True)

    def step(self, number: int) -> None:
        self._insert(self._one, 0, number)

    def _insert(self, connection: psycopg.Connection[Any], run: int, step: int) -> None:
        row = (run, step, self._data.encode())
        connection.execute("insert into bare values (%s, %s, %b)", row, prepare=True)

    def together(self, runs: int, steps: int) -> dict[str, float]:
        watch, first = Watch(runs), self._made + 1
        self._made += runs

        def work(run: int) -> None:
            with self._connected() as connection:
                ends = watch.meet()
                ends.append(time.perf_counter())
                for step in range(steps):
                    self._insert(connection, run, step)
                    ends.append(time.perf_counter())
                watch.part()

        threads = [threading.Thread(target=work, args=(first + i,)) for i in range(runs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return watch.summary()

    def close(self) -> None:
        self._one.close()
