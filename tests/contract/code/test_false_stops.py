"""Code that has not changed does not stop with an error after a crash, however it is written."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eventlog.testing import SimulatedDisk
from recovery import Call, CheckpointStore, RecoverableAgent, Resolution, Run, SyncRun, tool
from recovery.declare.spec import spec_of
from recovery.errors import DivergenceError, StoppedError
from recovery.testing import crash_everywhere
from recovery.testing.simulated.virtual_time import Clock, Loop, bury, virtual_time
from tests.contract.test_concurrency import DiesError
from tests.support.lives import RUN, Died, disk_store, executed, run, run_sync, send
from tests.support.scale import scaled

LONG_S = 25  # no life here takes as long

pytestmark = pytest.mark.usefixtures("fresh")


def stops(agent: Callable[[Run], Any]) -> list[str]:
    """How resumed runs of this agent stop, which is killed everywhere."""
    report = crash_everywhere(agent, "task", points=scaled(15, 50))
    return [found.what for found in report.failures if "DivergenceError" in found.what]


def live(of: RecoverableAgent[Any]) -> Any:
    """One life of the run, in which sleeping takes no time."""
    clock = Clock()
    clock.begin()
    with virtual_time(clock):
        loop = Loop(clock)
        try:
            return loop.run_until_complete(of.run_with_recovery("task", RUN))["result"]
        finally:
            bury(loop)
            assert clock.ahead < LONG_S, "it waited for what was stopped"


# -- tasks that the agent leaves at work


@tool(after_crash="retry")
async def refused() -> None:
    await asyncio.sleep(3)
    raise ValueError


@tool(reconcile=lambda call: Resolution.retry())
async def charge(what: str) -> str:
    await asyncio.sleep(5)
    executed[what] += 1
    return what


async def leaves_a_sibling(run: Run) -> str:
    async def fails() -> None:
        await run.call(refused)

    async def sibling() -> None:
        await asyncio.sleep(3.5)
        await run.call(charge, "first")  # left at work
        await run.call(charge, "second")

    try:
        await asyncio.gather(fails(), sibling())
    except ValueError:
        await asyncio.sleep(1)
    return "done"


async def leaves_one_behind_a_checkpoint(run: Run) -> str:
    async for step in run.steps():
        await run.call(send, step)
        if step == 4:
            break
    return await leaves_a_sibling(run)


@pytest.mark.parametrize("agent", [leaves_a_sibling, leaves_one_behind_a_checkpoint])
def test_the_end_of_an_agent_waits_for_tasks_whose_calls_are_recorded(agent: Any) -> None:
    assert stops(agent) == []


def test_the_end_of_a_plain_agent_waits_for_threads_whose_calls_are_recorded() -> None:
    def agent(run: SyncRun, lives: list[int] = []) -> str:  # noqa: B006 - of all lives
        def late() -> None:
            time.sleep(0.2)
            run.call(send, "late")

        lives.append(1)
        thread = threading.Thread(target=late)
        thread.start()
        run.call(send, "first")
        if len(lives) == 1:
            thread.join()
            raise DiesError
        return "done"

    assert run_sync(agent, CheckpointStore())["result"] == "done"
    assert executed == {"first": 1, "late": 1}


def test_an_agent_that_returns_while_its_task_is_in_a_call_is_told_where(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recovery.agent_code.warn_once._said", set())
    with caplog.at_level(logging.WARNING, "recovery"):
        for _ in range(2):
            assert live(RecoverableAgent(leaves_a_sibling, CheckpointStore())) == "done"
    lines = Path(__file__).read_text().splitlines()
    (line,) = [number for number, text in enumerate(lines, 1) if text.endswith("# left at work")]
    (said,) = [one.getMessage() for one in caplog.records if "has returned while" in one.message]
    assert f"{__file__}:{line}." in said
    assert "Await the task" in said


# -- a stop in the middle of a replay


class Closing:
    """An agent whose tool makes a call in a ``finally``. It dies behind a call of another task;
    in its second life it is ended before that task comes to the call."""

    def __init__(self, how: str) -> None:
        self.how, self.disk = how, SimulatedDisk()
        self.left: SimulatedDisk | None = None  # by the first life
        self.lives = 0

    async def __call__(self, run: Run) -> Any:
        @tool(reconcile=lambda call: Resolution.retry())
        async def order() -> str:
            try:
                await asyncio.sleep(4)
                await run.call(send, "noted")
                await asyncio.sleep(2)
            finally:
                await run.call(send, "closed")
            return "ordered"

        self.lives += 1
        task = asyncio.current_task()
        assert task is not None
        if self.lives == 2 and self.how in ("stopped", "cancelled"):
            end = task.cancel if self.how == "cancelled" else self.second.stop
            asyncio.get_running_loop().call_later(1, end)
        limit = 1 if self.lives == 2 and self.how == "timed out" else None
        async with asyncio.timeout(limit), asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in (run.call(order), self.other(run))]
        return [one.result() for one in tasks]

    async def other(self, run: Run) -> None:
        await asyncio.sleep(3)
        await run.call(send, "x")
        if self.left is None:
            await asyncio.sleep(2)
            self.left = self.disk.after_process_death()
            raise Died

    def store_of_the_second_life(self) -> CheckpointStore:
        with pytest.raises(BaseExceptionGroup):
            live(RecoverableAgent(self.__call__, disk_store(self.disk)))
        assert self.left is not None
        executed.clear()
        store = disk_store(self.left)
        self.second = RecoverableAgent(self.__call__, store)
        return store


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("stopped", StoppedError),
        ("cancelled", asyncio.CancelledError),
        ("timed out", DivergenceError),
    ],
)
def test_a_stop_of_a_resumed_run_is_no_divergence(how: str, error: type[BaseException]) -> None:
    """Who does what is recorded was stopped. (A time-out of the agent's own is no stop.)"""
    closing = Closing(how)
    store = closing.store_of_the_second_life()
    with pytest.raises(error):
        live(closing.second)
    assert not executed, "something new was done while recorded ones were left"
    assert live(RecoverableAgent(closing.__call__, store)) == ["ordered", None]
    assert executed == {"closed": 1}


# -- names that get their value later


def test_an_agent_may_use_a_variable_that_has_no_value_yet() -> None:
    async def agent(run: Run) -> Any:
        return await helper(run) if executed else await run.call(send, "x")

    assert run(agent, CheckpointStore())["result"] == "sent x"

    async def helper(run: Run) -> str:
        return "helped"


# -- undo behind a checkpoint


async def unbook(call: Call, booked: str) -> None:
    executed[f"not {booked}"] += 1


async def book_a_room(what: str) -> str:
    return what


FOUND_BY_LUCK = ("found by luck", "a module has another tool of that name")


@pytest.mark.parametrize("how", [*FOUND_BY_LUCK, "given", "no checkpoints"])
def test_an_undo_that_a_resumed_run_could_not_make_is_told_at_the_first_execution(
    how: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recovery.agent_code.warn_once._said", set())
    room = spec_of(tool(name="a room", undo=unbook)(book_a_room))
    others = {"book": replace(room, name="book")} if how == FOUND_BY_LUCK[1] else {}
    monkeypatch.setattr("recovery.calls.undo.undoable_tools", others)

    async def agent(run: Run) -> Any:
        @tool(undo=unbook)
        async def book(what: str) -> str:
            return what

        async for step in run.steps():
            if step == 1:
                await run.call(book, "a flight")
            if step == 3:
                return await run.undo(tools=[book] if how == "given" else [])

    every = None if how == "no checkpoints" else 1
    with caplog.at_level(logging.WARNING, "recovery"):
        run(agent, CheckpointStore(), checkpoint_every_n=every)
    said = [one.getMessage() for one in caplog.records if "run.undo(tools=[...])" in one.message]
    assert len(said) == (how in FOUND_BY_LUCK)
    assert all(f"{__file__}:" in one and "tool book" in one for one in said)
    assert executed == {"not a flight": 1}
