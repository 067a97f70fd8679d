"""A recorded AgentLoop that dies at each thing that it writes or does, and goes on."""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import eventlog.write.log
from eventlog import EventLog
from eventlog.testing import SimulatedDisk
from recovery import Resolution
from recovery.call_journal import journal_execution
from recovery.integrations.hive import RecordedLoop, current_call
from tests.conftest import Figures
from tests.support.hive.loop import (
    AgentContext,
    AgentLoop,
    FileConversationStore,
    ToolResult,
    ToolUse,
)
from tests.support.lives import RUN, Died, disk_store
from tests.unit.integrations.hive.test_hive_loop import LLM

ITEMS, BATCH = 6, 3


class Mortal:
    """A world with a process in it, which dies when it comes to its ``at``-th point."""

    def __init__(self, path: Path, at: int, early: bool) -> None:
        self.path, self.at, self.config = path, at, {"early": early}
        self.items, self.batch = ITEMS, BATCH
        self.points, self.ids, self.dead = 0, 0, False
        self.power: int | None = None  # what the record loses, if it is a power loss
        self.disk = SimulatedDisk()
        self.effects: dict[str, int] = {}
        self.appended = EventLog.append

    def new_id(self, at: int) -> str:
        self.ids += 1
        return f"toolu_{self.ids}"

    def point(self) -> None:
        self.points += 1
        if self.points == self.at:
            self.dead = True
            self.left = (
                self.disk.after_process_death()
                if self.power is None
                else self.disk.after_power_loss(self.power)
            )
        if self.dead:
            raise Died

    def send(self, use: ToolUse) -> ToolResult:
        call = current_call()
        assert call is not None
        self.point()
        assert call.idempotency_key not in self.effects, "sent twice"
        self.effects[call.idempotency_key] = use.input["item"]
        self.point()
        return ToolResult(use.id, f"sent {use.input['item']}")

    def look(self, call: Any) -> Resolution:
        self.point()
        item = self.effects.get(call.idempotency_key)
        return Resolution.retry() if item is None else Resolution.outcome(f"sent {item}")

    def live(self) -> str:
        mortal = self

        def append(log: EventLog, *args: Any, **kwargs: Any) -> int:
            mortal.point()
            lsn = mortal.appended(log, *args, **kwargs)
            mortal.point()
            return lsn

        class Files(FileConversationStore):
            def _write(self, path: Path, data: dict[str, Any]) -> None:
                mortal.point()
                super()._write(path, data)
                mortal.point()

        async def main(session: RecordedLoop) -> str:
            running = asyncio.get_running_loop()
            running.set_default_executor(ThreadPoolExecutor(1))
            running.set_exception_handler(lambda *_: None)  # other tools die with the first
            loop = AgentLoop(
                None, None, self.config, session.tool_executor, session.conversation_store
            )
            await loop.execute(AgentContext(LLM(self)))
            return loop.said

        store = disk_store(self.disk)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(EventLog, "append", append)
            session = RecordedLoop(RUN, self.send, Files(self.path), store, after_crash=self.look)
            try:
                return asyncio.run(main(session))
            finally:
                session.close()


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints come soon, and nothing is flushed behind the loop's back."""
    monkeypatch.setattr(
        eventlog.write.log,
        "committer",
        SimpleNamespace(request=lambda log, lsn: None, forget=lambda log: None),
    )
    monkeypatch.setattr(journal_execution, "CHECKPOINT_SIZE", 1500)


def killed(path: Path, ats: tuple[int, ...], early: bool, power: int | None = None) -> int:
    """Die at these points, of one process each, and go on; how many there are in the last one."""
    world = Mortal(path, 0, early)
    world.power = power
    for at in ats:
        world.at, world.points = at, 0
        try:
            world.live()
            assert at != ats[0]  # the others may come to the end before
        except Died:
            world.disk = world.left
        world.dead, world.at = False, 0
    world.points = 0
    assert world.live() == "all done"
    assert Counter(world.effects.values()) == Counter(range(ITEMS))
    parts = asyncio.run(FileConversationStore(path).read_parts())
    seqs = [part["seq"] for part in parts]
    assert seqs == sorted(set(seqs))
    told = Counter(part["content"] for part in parts if part["role"] == "tool")
    assert told == Counter(f"sent {item}" for item in range(ITEMS))
    return world.points


@cache
def points(path: Path, early: bool) -> int:
    return killed(path, (), early)


@pytest.mark.parametrize("early", [False, True])
def test_a_loop_that_dies_anywhere_goes_on(tmp_path, early, rng):
    last = points(tmp_path / "whole", early)
    for at in sorted(rng.sample(range(1, last), 6)):
        killed(tmp_path / str(at), (at,), early)


@pytest.mark.crash
@pytest.mark.parametrize("early", [False, True])
def test_a_loop_that_dies_while_it_is_put_right_goes_on(tmp_path, early, rng):
    last = points(tmp_path / "whole", early)
    for i in range(150):
        ats = rng.randrange(1, last), rng.randrange(1, 24), rng.randrange(1, 12)
        killed(tmp_path / str(i), ats, early)


@pytest.mark.crash
@pytest.mark.parametrize("early", [False, True])
def test_a_power_loss_takes_back_messages_and_no_call(tmp_path, early, rng):
    """Hive flushes each of its files: they may have messages that the record has lost."""
    last = points(tmp_path / "whole", early)
    for i in range(150):
        ats = rng.randrange(1, last), rng.randrange(1, 24)
        killed(tmp_path / str(i), ats, early, power=rng.randrange(1 << 30))


@pytest.mark.crash
@pytest.mark.parametrize("early", [False, True])
def test_a_loop_that_dies_at_any_point_goes_on(tmp_path, early, figures: Figures):
    last = points(tmp_path / "whole", early)
    for at in range(1, last):
        killed(tmp_path / str(at), (at,), early)
    figures.add("Hive's loop, killed at every write", points=last)
