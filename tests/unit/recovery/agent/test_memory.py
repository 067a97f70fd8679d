"""What a live run holds in memory: its state, and nothing that grows with what was recorded."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest

from recovery import CheckpointStore, tool
from recovery.journal.events import CallIntended, CallReturned, MessagesChanged, StepStarted
from recovery.replay.recorded_call import RecordedCall
from recovery.stores.file import FileStore
from tests.support.lives import RUN, Died, die_in, disk_store, run

# What is not the run's, or is code.
ELSEWHERE = (
    types.ModuleType,
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.CodeType,
    threading.Thread,
    asyncio.AbstractEventLoop,
    asyncio.Task,
    types.FrameType,
    types.GeneratorType,
    types.CoroutineType,
)


def everything(*roots: Any) -> list[Any]:
    """All that can be reached from these objects."""
    seen: dict[int, Any] = {}
    todo = list(roots)
    while todo:
        one = todo.pop()
        if id(one) not in seen and not isinstance(one, ELSEWHERE):
            seen[id(one)] = one
            todo += gc.get_referents(one)
    return list(seen.values())


def held_by(*roots: Any) -> int:
    """Bytes of all that can be reached from these objects."""
    return sum(map(sys.getsizeof, everything(*roots)))


def events() -> list[Any]:
    """What of a log's records is in memory, decoded."""
    kinds = (CallIntended, CallReturned, MessagesChanged, StepStarted, RecordedCall)
    return [one for one in gc.get_objects() if type(one) in kinds]


@tool(after_crash="retry")
async def fetch(n: int) -> str:
    return f"{n:500}"


def test_a_run_does_not_grow_with_its_steps(tmp_path: Path) -> None:
    sizes: list[int] = []

    async def agent(run: Any) -> None:
        async for step in run.steps():
            run.state["step"] = step
            run.messages[:] = [await run.call(fetch, step)]
            run.now()
            if step in (600, 900):  # the first outcomes have been forgotten
                gc.collect()
                sizes.append(held_by(run))
            if step == 900:
                return

    run(agent, CheckpointStore(FileStore(tmp_path, durability="process")), checkpoint_every_n=10)
    assert sizes[1] - sizes[0] <= 4096, sizes  # the index of the segment, and longer numbers


@pytest.mark.parametrize("every", [10, 1000], ids=["checkpoint", "beginning"])
def test_a_resumed_run_holds_nothing_of_what_was_replayed(every: int) -> None:
    kept: list[Any] = []

    async def agent(run: Any) -> None:
        async for step in run.steps():
            run.state["value"] = f"{step:700}"
            run.now()
            run.messages.append(await run.call(fetch, step))
            del run.messages[:-3]
            if step == 36 and run.recovery_count == 0:
                raise Died
            if step == 36:
                gc.collect()
                kept.extend(one for one in events() if id(one) not in known)
                kept.extend(
                    one
                    for one in everything(run)
                    if type(one) is str and len(one) in (500, 700) and int(one) < 34
                )
                return

    known: set[int] = set()
    dead = die_in(agent, disk_store(), checkpoint_every_n=every)
    gc.collect()
    before = events()  # of other tests
    known.update(map(id, before))
    run(agent, dead, checkpoint_every_n=every)
    assert kept == []


def test_a_signal_that_is_not_taken_yet_is_held_without_its_value(tmp_path: Path) -> None:
    store, held = CheckpointStore(tmp_path / "runs"), list[bytes]()

    async def agent(run: Any) -> Any:
        store.run(RUN).signal("later", "_" * 700)
        store.run(RUN).signal("now")
        await run.wait_for("now")
        held.extend(one for one in everything(run) if isinstance(one, bytes) and b"_" * 700 in one)
        return await run.wait_for("later")

    assert run(agent, store)["result"] == "_" * 700
    assert held == []
