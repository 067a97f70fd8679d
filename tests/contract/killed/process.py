"""Runs a program in a process of its own, killed with SIGKILL when it has appended so many records.

A forked process: it has all modules, so that thousands can be killed.
"""

from __future__ import annotations

import asyncio
import inspect
import linecache
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from recovery import CheckpointStore, RecoverableAgent
from recovery.testing.simulated.forgotten_doubts import forgotten
from tests.contract.killed import programs
from tests.support import outside
from tests.support.kill_sweep import LIVES_MAX, RUNS, End, life, settle

RUN = "run"
PLAIN = "tests.contract.killed.plain"


def plain() -> ModuleType:
    """The programs as plain code."""
    source = inspect.getsource(programs)
    for pattern, instead in (
        (r"await asyncio\.sleep\(", "time.sleep("),
        (r"\bawait ", ""),
        (r"\basync (def|for|with)\b", r"\1"),
        (r"^import asyncio$", "import asyncio\nimport time"),
    ):
        source = re.sub(pattern, instead, source, flags=re.MULTILINE)
    module = sys.modules[PLAIN] = ModuleType(PLAIN)
    linecache.cache[PLAIN] = len(source), None, source.splitlines(True), PLAIN
    exec(compile(source, PLAIN, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - ours
    return module


class Program:
    """A program and its world, in a directory."""

    def __init__(self, name: str, module: ModuleType, place: Path) -> None:
        self.agent_fn, self.place = module.ALL[name], place
        self.options = {"checkpoint_every_n": 2} | module.OPTIONS[name]
        self.signals = list(module.SIGNALS.get(name, []))
        place.mkdir()
        outside.moved_to(place)

    def agent(self, store: CheckpointStore) -> RecoverableAgent[Any]:
        return RecoverableAgent(self.agent_fn, store, **self.options)

    def lives(self, *kills: int) -> list[End]:
        """One life after the other until the run has ended; each is killed at this record of it,
        those behind and those with a 0 are not."""
        lives: list[End] = []
        while len(lives) < LIVES_MAX:
            lives.append(self.life(kills[len(lives)] if len(lives) < len(kills) else 0))
            if lives[-1].how == "done":
                return lives
            self.look(lives[-1])
        raise AssertionError(f"not finished: {lives}")

    def life(self, appends: int) -> End:
        """One process, whose result is text."""
        return life(self._live, "after", appends)

    def _live(self) -> str:
        made = self.agent(CheckpointStore(self.place / RUNS))
        if inspect.iscoroutinefunction(self.agent_fn):
            return repr(asyncio.run(made.run_with_recovery("task", RUN))["result"])
        return repr(made.run_with_recovery_sync("task", RUN)["result"])

    def look(self, end: End) -> None:
        """What people do between two lives: each does what the error says, and nobody guesses."""
        store = CheckpointStore(self.place / RUNS)
        assert list(forgotten(store.backend)) == []
        match end.how:
            case "killed":
                pass
            case "RunFailedError":
                store.run(RUN).retry()
            case "WaitingError":
                name, value = self.signals.pop(0)
                store.run(RUN).signal(name, value)
            case _:
                settle(self.place, end.how)
