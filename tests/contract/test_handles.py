"""A handle for one run: what it gives is the run's own, whoever runs it, whenever it is asked."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eventlog import EventLog
from eventlog.encryption import Encryption
from eventlog.errors import EncryptedLogError
from recovery import (
    CheckpointStore,
    InDoubtError,
    RecoverableAgent,
    RecoveryError,
    Resolution,
    Run,
    RunHandle,
    SyncRun,
    tool,
)
from recovery.errors import RunCancelledError, RunFailedError, RunUndoneError, WaitingError
from tests.support.paths import ROOT

RUN = "run_001"
WAITS_S = 30.0


def patient(run: SyncRun) -> str:
    for _ in run.steps():
        said = run.wait_for("go")
        if said == "fail":
            run.call(fails)
        return f"heard {said}"
    raise AssertionError("steps have no end")


@tool
def fails() -> None:
    raise ValueError("no such booking")


def parked(store: CheckpointStore) -> RecoverableAgent[str]:
    agent = RecoverableAgent(patient, store, park_after_s=0.0, max_recoveries=0)
    with pytest.raises(WaitingError):
        agent.run_with_recovery_sync("task", RUN)
    return agent


def said(handle: RunHandle, *, plain: bool) -> Any:
    """What the result comes to: what the agent returned, or the error."""
    try:
        return handle.result_sync() if plain else asyncio.run(handle.result())
    except RecoveryError as exc:
        return type(exc)


def goes_on(value: str) -> Callable[[RecoverableAgent[str]], Any]:
    def act(agent: RecoverableAgent[str]) -> None:
        agent.run(RUN).signal("go", value)
        try:
            agent.resume_sync(RUN)
        except RunFailedError:
            assert value == "fail"

    return act


ENDS: dict[str, tuple[Callable[[RecoverableAgent[str]], Any], Any]] = {
    "finished": (goes_on("now"), "heard now"),
    "failed": (goes_on("fail"), RunFailedError),
    "cancelled": (lambda agent: agent.run(RUN).cancel(who="ann"), RunCancelledError),
    "undone": (lambda agent: agent.run(RUN).undo(tools=[]), RunUndoneError),
}


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("how", ENDS)
def test_a_result_is_waited_for_until_the_run_has_ended(
    how: str, plain: bool, tmp_path: Path
) -> None:
    act, expected = ENDS[how]
    agent = parked(CheckpointStore(tmp_path))
    found: list[Any] = []
    # Another store of the same directory, as another process has it.
    handle = CheckpointStore(tmp_path).run(RUN)
    waits = threading.Thread(target=lambda: found.append(said(handle, plain=plain)))
    waits.start()
    waits.join(0.2)
    assert found == []  # parked is not ended
    act(agent)
    waits.join(WAITS_S)
    assert found == [expected]
    assert said(handle, plain=plain) == expected  # and at once ever after
    assert handle.status().state == how


PROGRAM = """
import sys, time
from recovery import CheckpointStore, RecoverableAgent
def agent(run):
    for step in run.steps():
        time.sleep(0.05)
        if step == 4:
            return run.task * 2
print("begun", flush=True)
RecoverableAgent(agent, CheckpointStore(sys.argv[1])).run_with_recovery_sync(21, "run_001")
"""


def test_the_result_of_a_run_in_another_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        handle = CheckpointStore(tmp_path).run(RUN)
        # A handle can be made before its run is there; its events wait for that, its result not.
        first = next(iter(handle.events()))
        assert first.kind == "run_started"
        assert handle.result_sync() == 42
        assert process.wait(WAITS_S) == 0


def test_no_run_has_no_result() -> None:
    store = CheckpointStore()
    handle = store.run("none")
    assert {handle: 1}[store.run("none")] and handle != "none"
    assert handle not in (store.run("other"), CheckpointStore().run("none"))
    assert handle.checkpoints() == []
    for ask in (handle.result_sync, handle.status, handle.pending, handle.children, handle.remove):
        with pytest.raises(RecoveryError, match="no run 'none'"):
            ask()


def test_a_run_is_settled_forked_and_removed_by_its_handle(tmp_path: Path) -> None:
    paid: list[str] = []

    @tool
    def pay(to: str) -> str:
        paid.append(to)
        raise KeyboardInterrupt  # the process dies, and nothing says whether it paid

    def agent(run: SyncRun) -> str:
        for _ in run.steps():
            return run.call(pay, "ann")
        raise AssertionError

    store = CheckpointStore(tmp_path)
    of = RecoverableAgent(agent, store)
    with pytest.raises(KeyboardInterrupt):
        of.run_with_recovery_sync("task", RUN)
    with pytest.raises(InDoubtError) as stopped:
        of.resume_sync(RUN)
    handle = of.run(RUN)
    assert handle == store.run(RUN) == CheckpointStore(tmp_path).run(RUN) != store.run("other")
    assert [one.run_id for one in store.runs()] == [RUN] and list(store.runs(due=True)) == []
    fork = handle.fork("run_002")
    assert [link.run_id for link in fork.lineage()] == [RUN]
    handle.resolve(stopped.value.calls[0], Resolution.outcome("receipt"), who="ann")
    assert [one.run_id for one in store.runs(due=True)] == [RUN]  # the fork is in doubt itself
    assert of.resume_sync(RUN)["result"] == handle.result_sync() == "receipt"
    assert [one.run_id for one in store.runs(state="finished")] == [RUN]
    assert [one.run_id for one in store.runs(state=["finished", "interrupted"])] == [RUN, "run_002"]
    assert handle.compare(fork).differences and handle.compare("run_002") == handle.compare(fork)
    assert [one.run_id for one in store.gc(keep=0)] == [RUN]
    fork.remove(force=True)
    assert list(store.runs()) == [] and paid == ["ann"]


def test_a_store_at_a_path_has_the_durability_and_the_key_that_it_is_given(tmp_path: Path) -> None:
    key = Encryption(bytes(32))
    store = CheckpointStore(tmp_path, durability="process", encryption=key)
    parked(store)
    log = store.claim(RUN)
    assert isinstance(log, EventLog) and log.durability == "process"
    log.close()
    assert store.run(RUN).status().state == "waiting"
    assert CheckpointStore(tmp_path).run(RUN).status().state == "unreadable"
    with pytest.raises(EncryptedLogError):
        CheckpointStore(tmp_path).run(RUN).result_sync()


def test_a_wait_inside_a_call_that_is_cut_short_is_in_flight_no_more(tmp_path: Path) -> None:
    async def agent(run: Run) -> None:
        @tool(after_crash="retry")
        async def asks() -> None:
            await run.wait_for("never")

        async for step in run.steps():
            if step == 2:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    await asks()

    store = CheckpointStore(tmp_path)
    asyncio.run(RecoverableAgent(agent, store).run_with_recovery("task", RUN))
    told = list(store.run(RUN).events(until="now"))
    assert told[-1].progress.in_flight == 0
    for event in told:
        behind = store.run(RUN).events(after=event.lsn, until="now")
        assert list(behind) == [one for one in told if one.lsn > event.lsn]
