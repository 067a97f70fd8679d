"""Runs a program in a process of its own, killed with SIGKILL when it has appended so many records.

A forked process: it has all modules, so that thousands can be killed.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import linecache
import os
import re
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from eventlog import EventLog
from recovery import CheckpointStore, RecoverableAgent
from recovery.control.resolve import resolve
from recovery.inspect.status import status
from recovery.testing.simulated.forgotten_doubts import forgotten
from tests.contract.killed import outside, programs

RUN = "run"
PLAIN = "tests.contract.killed.plain"
LIVES_MAX = 30
STUCK_S = 60.0


@dataclass(frozen=True)
class End:
    """How a life ended: ``how`` is "done", "killed", or the name of the error that stopped it.
    ``said``: the result, or the error, as text. ``records``: how many it appended."""

    how: str
    said: str = ""
    records: int = 0


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

    def life(self, records: int) -> End:
        """One process."""
        reads, writes = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                os.close(reads)
                with os.fdopen(writes, "w") as file:
                    json.dump(self._live(records), file)
            finally:
                os._exit(0)
        os.close(writes)
        with os.fdopen(reads) as file:
            said = file.read()
        killed = os.WIFSIGNALED(os.waitpid(pid, 0)[1])
        assert killed or said, "the process has said nothing"
        return End("killed") if killed else End(*json.loads(said))

    def _live(self, records: int) -> tuple[str, str, int]:
        signal.alarm(int(STUCK_S))
        append, count = EventLog.append, 0

        def dies(log: EventLog, *args: Any, **kwargs: Any) -> int:
            nonlocal count
            lsn = append(log, *args, **kwargs)
            count += 1
            if count == records:
                os.kill(os.getpid(), signal.SIGKILL)
            return lsn

        setattr(EventLog, "append", dies)  # noqa: B010 - of another signature
        try:
            made = self.agent(CheckpointStore(self.place / "home"))
            if inspect.iscoroutinefunction(self.agent_fn):
                found = asyncio.run(made.run_with_recovery("task", RUN))
            else:
                found = made.run_with_recovery_sync("task", RUN)
        except BaseException as exc:
            return type(exc).__name__, str(exc), count
        return "done", repr(found["result"]), count

    def look(self, end: End) -> None:
        """What people do between two lives: each does what the error says, and nobody guesses."""
        store = CheckpointStore(self.place / "home")
        assert list(forgotten(store.backend)) == []
        match end.how:
            case "killed":
                pass
            case "InDoubtError" | "UnrecordedResultError" | "ChildParkedError":
                asked = 0
                for run_id in store.backend.run_ids():
                    for call in status(store, run_id).in_doubt:
                        resolve(store, run_id, call.lsn, outside.truth(call))
                        asked += 1
                assert asked, end
            case "RunFailedError":
                store.run(RUN).retry()
            case "WaitingError":
                name, value = self.signals.pop(0)
                store.run(RUN).signal(name, value)
            case _:
                raise AssertionError(end)
