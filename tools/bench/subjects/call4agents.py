"""call4agents: a record of what an agent of any make did."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import call4agents as c4a

from .paced import Paced, result_of


class Call4Agents:
    """``effect``; and for what only reads ``recorded``, which it has for model calls."""

    def __init__(self, directory: Path, case: dict[str, Any]) -> None:
        size = case["size"]

        def work(number: int) -> str:
            return result_of(number, size)

        self._tool = c4a.recorded(work) if case["read"] else c4a.effect(work)
        self._place = str(directory / "ledger.sqlite")
        self._paced = Paced(self._loop)
        self.turn = self._paced.turn

    def _loop(self, go: Callable[[], bool]) -> None:
        c4a.init(self._place)
        with c4a.run("run"):
            number = 0
            while go():
                number += 1
                self._tool(number)
        c4a.current_ledger()._conn().close()  # it has no close(): puts the WAL into the database

    def close(self) -> None:
        self._paced.close()
