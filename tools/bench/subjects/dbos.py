"""DBOS, on SQLite or where the case has its database."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy
from dbos import DBOS
from sqlalchemy.engine import Engine

from .paced import Paced, Watch, result_of


class Dbos:
    """Its default settings: the rollback journal of SQLite, synchronous=FULL; a plain workflow."""

    PRAGMAS: tuple[str, ...] = ()

    def __init__(self, directory: Path, case: dict[str, Any]) -> None:
        size, self._made = case["size"], 0
        sqlalchemy.event.listen(Engine, "connect", self._connected)
        database = case.get("database") or f"sqlite:///{directory / 'db'}"
        DBOS(config={"name": "bench", "system_database_url": database, "log_level": "ERROR"})

        @DBOS.step()
        def work(number: int) -> str:
            return result_of(number, size)

        @DBOS.workflow()
        def paced() -> None:
            number = 0
            while self._go():
                number += 1
                work(number)

        @DBOS.workflow()
        def one_of_many(steps: int) -> None:
            ends = self._watch.meet()
            ends.append(time.perf_counter())
            for number in range(steps):
                work(number)
                ends.append(time.perf_counter())
            self._watch.part()

        self._one_of_many = one_of_many
        DBOS.launch()

        def loop(go: Callable[[], bool]) -> None:
            self._go = go  # the arguments of a workflow are recorded: this cannot be one
            paced()

        self._paced = Paced(loop)
        self.turn = self._paced.turn

    def _connected(self, connection: Any, record: Any) -> None:
        for pragma in self.PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")

    def together(self, runs: int, steps: int) -> dict[str, float]:
        """So many new runs of so many steps each, in the threads that it has for them."""
        self._watch = Watch(runs)
        handles = [DBOS.start_workflow(self._one_of_many, steps) for _ in range(runs)]
        for handle in handles:
            handle.get_result()
        return self._watch.summary()

    def close(self) -> None:
        self._paced.close()
        DBOS.destroy()


class Wal(Dbos):
    """With a write-ahead log, by a hook of SQLAlchemy: DBOS has no option for it."""

    PRAGMAS = ("journal_mode=WAL", "synchronous=FULL")


class WalNormal(Dbos):
    """As above, and its commits wait for no flush."""

    PRAGMAS = ("journal_mode=WAL", "synchronous=NORMAL")
