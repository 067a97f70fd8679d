"""A listing with what earlier ones have kept is the one that reads every log."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eventlog import LogError, WritableLog
from recovery import (
    CheckpointStore,
    PermanentError,
    RecoverableAgent,
    RecoveryError,
    Resolution,
    tool,
)
from recovery.inspect import listing_file
from recovery.inspect.listing import listed
from recovery.inspect.status import RunStatus, runs
from recovery.stores.file import LISTING, FileStore
from tests.support.lives import Died

RUNS = ("a", "b", "c", "d")
# Files get times that differ when as much passes between two writes.
TICK_S = 0.012


@tool(after_crash="retry")
def look(x: int) -> int:
    return x


@tool
def pay(x: int) -> int:
    if x < 0:
        raise Died
    return x


@tool(needs_approval=True)
def ship(x: int) -> int:
    return x


async def finishing(run: Any) -> Any:
    async for step in run.steps():
        run.messages.append({"role": "user", "content": "x" * 50})
        look(step)
        if step == 4:
            return pay(step)


async def failing(run: Any) -> None:
    look(1)
    raise PermanentError("no")


async def raising(run: Any) -> None:
    look(1)
    raise KeyError("order")


async def in_doubt(run: Any) -> None:
    pay(-1)


async def waiting(run: Any) -> Any:
    return await run.wait_for("go", timeout=3600)


async def asking(run: Any) -> Any:
    return ship(2)


AGENTS = (finishing, failing, raising, in_doubt, waiting, asking)


class World:
    """A store, and what happens to its runs."""

    def __init__(self, path: Path) -> None:
        self.root = path
        self.store = CheckpointStore(FileStore(path, durability="none"))
        self.held: dict[str, WritableLog] = {}

    def run(self, name: str, agent: Callable[[Any], Any]) -> None:
        made = RecoverableAgent(agent, self.store, park_after_s=0, checkpoint_every_n=2)
        with suppress(Exception, Died):
            asyncio.run(made.run_with_recovery({"order": 7}, name))

    def hold(self, name: str) -> None:
        """Another process has it."""
        if name not in self.held:
            self.held[name] = self.store.backend.claim(name)

    def release(self, name: str) -> None:
        if name in self.held:
            self.held.pop(name).close()

    def signal(self, name: str) -> None:
        self.store.run(name).signal("go", 1)

    def cancel(self, name: str) -> None:
        self.store.run(name).cancel()

    def approve(self, name: str) -> None:
        for call in self.store.run(name).status().calls:
            if call.state == "asks":
                self.store.run(name).approve(call.lsn)

    def resolve(self, name: str) -> None:
        for call in self.store.run(name).status().in_doubt:
            self.store.run(name).resolve(call.lsn, Resolution.outcome("made"))

    def remove(self, name: str) -> None:
        self.store.run(name).remove(force=True)

    def fork(self, name: str) -> None:
        self.store.run(name).fork(f"{name}-fork")

    def copy(self, name: str) -> None:
        """From a backup, with the times that the files had."""
        shutil.copytree(self.root / name, self.root / f"{name}-copy", dirs_exist_ok=True)

    def rename(self, name: str) -> None:
        for one, other in (("a", "tmp"), (name, "a"), ("tmp", name)):
            with suppress(OSError):
                (self.root / one).rename(self.root / other)

    def damage(self, name: str) -> None:
        """A byte in the newest segment, with the times put back."""
        path = sorted((self.root / name).glob("*.seg"))[-1]
        before = path.stat()
        with path.open("r+b") as file:
            file.seek(80)
            byte = file.read(1)
            file.seek(80)
            file.write(bytes([byte[0] ^ 1]))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    def lose_inbox(self, name: str) -> None:
        shutil.rmtree(self.root / name / "inbox")

    def lose_mark(self, name: str) -> None:
        (self.root / name / "MARK").unlink()

    def lose_listing(self, name: str) -> None:
        with (self.root / LISTING).open("r+b") as file:
            file.seek(200)
            file.write(b"?")

    def close(self) -> None:
        for log in self.held.values():
            log.close()

    def check(self) -> list[RunStatus]:
        """The statuses; twice, so that the second listing has what the first one kept."""
        read = list(runs(self.store))
        for _ in range(2):
            assert list(listed(self.store)) == read
        return read


OPERATIONS = (
    *("hold release signal cancel approve resolve remove fork copy rename".split()),
    *("damage lose_inbox lose_mark lose_listing".split()),
)
operations = st.lists(
    st.tuples(st.sampled_from(RUNS), st.sampled_from([*OPERATIONS, *AGENTS])), max_size=10
)


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is kept that a clock with such ticks allows to keep."""
    monkeypatch.setattr(logging.getLogger("recovery"), "disabled", True)
    monkeypatch.setattr(listing_file, "SETTLED_NS", int(TICK_S * 0.8e9))
    monkeypatch.setattr(listing_file, "ADDED_MIN", 1)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "store")
    yield made
    made.close()


def begin(world: World) -> None:
    for name, agent in zip(RUNS, (finishing, waiting, in_doubt, raising), strict=True):
        world.run(name, agent)


def do(world: World, name: str, what: Any) -> None:
    with suppress(OSError, LogError, RecoveryError, ValueError, IndexError, PermanentError):
        world.run(name, what) if callable(what) else getattr(world, what)(name)
    time.sleep(TICK_S)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations)
def test_a_listing_is_what_the_logs_say(tmp_path: Path, plan: list[tuple[str, Any]]) -> None:
    path = tmp_path / os.urandom(4).hex()
    world = World(path)
    try:
        begin(world)
        time.sleep(TICK_S)
        world.check()
        for name, what in plan:
            do(world, name, what)
            world.check()
    finally:
        world.close()
        shutil.rmtree(path)


# What notices each change; without it the listing is stale.
NOTICED = {
    "a segment that has grown": (".seg", "d", in_doubt),
    "a segment with other bytes": (".seg", "a", "damage"),
    "an owner": ("LOCK", "a", "hold"),
    "a message": ("inbox", "b", "signal"),
    "a run under the name of another": ("", "b", "rename"),
}


@pytest.mark.parametrize("seen", [True, False], ids=["seen", "not seen"])
@pytest.mark.parametrize("change", NOTICED)
def test_each_change_is_noticed_by_the_files(
    world: World, change: str, seen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(world)
    world.signal("b")
    time.sleep(TICK_S)
    before = world.check()
    if not seen:
        monkeypatch.setattr(listing_file, "_is_same", lambda root, files: True)
    _, name, what = NOTICED[change]
    do(world, name, what)
    if seen:
        assert world.check() != before
    else:
        with pytest.raises(AssertionError):
            world.check()
