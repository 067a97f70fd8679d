"""Runs that are asked to stop do so between calls, and can be resumed."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from recovery import CheckpointStore, ParkedError, RecoverableAgent, Retry, Run, SyncRun, tool
from recovery.errors import StoppedError, UnrecordedResultError, WaitingError
from recovery.journal.events import MessagesChanged
from recovery.testing.simulated.virtual_time import Clock, Loop
from tests.support.lives import Died, disk_store, executed, recorded

pytestmark = pytest.mark.usefixtures("fresh")


def resumed(agent: Any, store: CheckpointStore) -> Any:
    return RecoverableAgent(agent, store).run_with_recovery_sync("task", "run")["result"]


def test_a_side_effect_gets_to_its_end_and_is_recorded() -> None:
    @tool
    async def send(what: str) -> str:
        executed[what] += 1
        if what == "a" and executed[what] == 1:
            of.stop("enough")
            await asyncio.sleep(0.001)
        return f"sent {what}"

    async def agent(run: Run) -> list[str]:
        return [await run.call(send, "a"), await run.call(send, "b")]

    store = disk_store()
    of = RecoverableAgent(agent, store)
    with pytest.raises(StoppedError, match="enough") as caught:
        asyncio.run(of.run_with_recovery("task", "run"))
    assert isinstance(caught.value, ParkedError)
    assert executed == {"a": 1}
    assert resumed(agent, store) == ["sent a", "sent b"]
    assert executed == {"a": 1, "b": 1}


def test_code_that_goes_on_behind_a_stop_records_nothing_of_it() -> None:
    @tool
    async def send(what: str) -> str:
        executed[what] += 1
        of.stop("enough")
        return f"sent {what}"

    async def agent(run: Run) -> list[str]:
        try:
            found = await run.call(send, "a")
        except BaseException:  # a stop, too
            found = "nothing"
        run.messages.append(found)
        return list(run.messages)

    store = disk_store()
    of = RecoverableAgent(agent, store)
    with pytest.raises(StoppedError, match="enough"):
        asyncio.run(of.run_with_recovery("task", "run"))
    assert recorded(store, MessagesChanged) == []
    assert resumed(agent, store) == ["sent a"]
    assert executed == {"a": 1}


def test_a_stop_that_is_swallowed_beside_a_side_effect_stays_one(clock: Clock) -> None:
    @tool
    async def hangs() -> None:
        await asyncio.sleep(3600)

    async def agent(run: Run) -> str:
        hanging = asyncio.ensure_future(run.call(hangs))
        await asyncio.sleep(1)
        of.stop("enough")
        with suppress(BaseException):
            await run.call(hangs, call_id="another")
        return f"done beside {hanging}"

    of = RecoverableAgent(agent, CheckpointStore())
    with pytest.raises(StoppedError, match="enough"):
        asyncio.run(of.run_with_recovery("task", "run"))
    assert [one.tool for one in of.store.run("run").status().in_doubt] == ["hangs"]


def test_the_first_reason_to_stop_counts() -> None:
    @tool
    async def opens(seconds: float) -> Any:
        await asyncio.sleep(seconds)
        return object()  # which cannot be recorded

    async def agent(run: Run) -> None:
        await asyncio.gather(run.call(opens, 0.0), run.call(opens, 0.05))

    with pytest.raises(UnrecordedResultError) as stopped:
        resumed(agent, CheckpointStore())
    assert stopped.value.lsn == 2


def test_the_pause_before_the_next_attempt_is_cut_short(clock: Clock) -> None:
    @tool(retry=Retry(3, delay_s=500), after_crash="retry")
    async def fails() -> None:
        executed["fails"] += 1
        asyncio.get_running_loop().call_later(1, of.stop, "enough")
        raise ConnectionError

    async def agent(run: Run) -> None:
        await run.call(fails)

    of = RecoverableAgent(agent, CheckpointStore())
    with pytest.raises(StoppedError, match="enough"):
        asyncio.run(of.run_with_recovery("task", "run"))
    assert clock.ahead < 10
    assert executed == {"fails": 1}


def test_a_wait_for_the_agent_to_cancel_a_call_again_is_cut_short(clock: Clock) -> None:
    @tool(after_crash="retry")
    async def hangs() -> None:
        executed["hangs"] += 1
        await asyncio.Event().wait()

    async def agent(run: Run) -> None:
        if executed["hangs"]:
            asyncio.get_running_loop().call_later(1, of.stop, "enough")
            await run.call(hangs)
        with suppress(TimeoutError):
            await asyncio.wait_for(run.call(hangs), 100)
        run.messages.append("gave up")
        raise Died

    store = CheckpointStore()
    of = RecoverableAgent(agent, store)
    with pytest.raises(Died):
        asyncio.run(of.run_with_recovery("task", "run"))
    began = clock.ahead
    with pytest.raises(StoppedError, match="enough"):
        asyncio.run(of.run_with_recovery("task", "run"))
    assert clock.ahead - began < 10
    assert executed == {"hangs": 1}


def test_a_plain_agent_stops_between_its_calls() -> None:
    @tool
    def send(what: str) -> str:
        executed[what] += 1
        if what == "a":
            of.stop()
        return f"sent {what}"

    def agent(run: SyncRun) -> list[str]:
        return [run.call(send, "a"), run.call(send, "b")]

    store = disk_store()
    of = RecoverableAgent(agent, store)
    with pytest.raises(StoppedError, match="asked to"):
        of.run_with_recovery_sync("task", "run")
    assert resumed(agent, store) == ["sent a", "sent b"]
    assert executed == {"a": 1, "b": 1}


def test_a_plain_agent_in_a_thread_of_async_code_stops() -> None:
    def agent(run: SyncRun) -> int:
        for step in run.steps():
            executed["step"] += 1
            if step == 3 and executed["step"] == 3:
                of.stop()
            if step == 5:
                return step
        raise AssertionError

    store = disk_store()
    of = RecoverableAgent(agent, store)
    with pytest.raises(StoppedError):
        asyncio.run(of.run_with_recovery("task", "run"))
    assert executed["step"] == 3
    assert resumed(agent, store) == 5


def test_what_is_safe_to_repeat_is_not_waited_for() -> None:
    @tool(after_crash="retry")
    async def think() -> str:
        executed["think"] += 1
        if executed["think"] == 1:
            asyncio.get_running_loop().call_soon(of.stop)
            await asyncio.Event().wait()  # for ever
        return "thought"

    async def agent(run: Run) -> Any:
        return await run.call(think)

    store = disk_store()
    of = RecoverableAgent(agent, store)

    async def main() -> None:
        with pytest.raises(StoppedError):
            await of.run_with_recovery("task", "run")
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0  # nobody has cancelled this one
        await asyncio.sleep(0)

    asyncio.run(main())
    assert resumed(agent, store) == "thought"


def test_an_agent_that_waits_for_something_else_is_not_waited_for() -> None:
    async def agent(run: Run) -> str:
        executed["agent"] += 1
        if executed["agent"] == 1:
            threading.Thread(target=of.stop).start()
            await asyncio.Event().wait()
        return "done"

    store = disk_store()
    of = RecoverableAgent(agent, store)

    async def main() -> None:
        with pytest.raises(StoppedError):
            await of.run_with_recovery("task", "run")
        await asyncio.sleep(0)

    asyncio.run(main())
    assert resumed(agent, store) == "done"


def test_all_runs_of_the_agent_stop_and_no_other() -> None:
    started = 0

    async def agent(run: Run) -> Any:
        nonlocal started
        started += 1
        await asyncio.Event().wait()

    async def other(run: Run) -> str:
        while started < 3:  # noqa: ASYNC110
            await asyncio.sleep(0)
        of.stop()
        return "done"

    of = RecoverableAgent(agent, disk_store())

    async def main() -> Any:
        runs = [of.run_with_recovery("task", f"run_{i}") for i in range(3)]
        runs.append(RecoverableAgent(other, disk_store()).run_with_recovery("task", "other"))
        return await asyncio.gather(*runs, return_exceptions=True)

    *stopped, done = asyncio.run(main())
    assert [type(one) for one in stopped] == [StoppedError] * 3
    assert done["result"] == "done"


def test_a_cancellation_from_outside_stays_one() -> None:
    async def agent(run: Run) -> Any:
        executed["agent"] += 1
        await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.ensure_future(
            RecoverableAgent(agent, disk_store()).run_with_recovery("task", "run")
        )
        while not executed["agent"]:  # noqa: ASYNC110
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelling() == 1  # what the library may take back is its own

    asyncio.run(main())


PROGRAM = """
import asyncio, os, signal, sys, time
from recovery import CheckpointStore, RecoverableAgent, tool
from recovery.errors import StoppedError

@tool
def effect(i):
    with open(sys.argv[1] + "/effects", "a") as file:
        file.write(f"{i}\\n")
    print(i, flush=True)
    while i == 4 and not os.path.exists(sys.argv[1] + "/signalled"):
        time.sleep(0.01)
    return i

async def agent(run):
    async for step in run.steps():
        await run.call(effect, step)
        if step == 40:
            return "done"

def plain(run):
    for step in run.steps():
        run.call(effect, step)
        if step == 40:
            return "done"

of = RecoverableAgent(plain if sys.argv[2] == "plain" else agent, CheckpointStore(sys.argv[1]),
                      stop_on=(signal.SIGINT, signal.SIGTERM))
try:
    print(of.run_with_recovery_sync("task", "run")["result"])
except StoppedError as exc:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    print("stopped:", exc.why)
"""


@pytest.mark.parametrize("kind", ["async", "plain"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_between_calls(
    tmp_path: Path, kind: str, number: signal.Signals
) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line == "3\n":
                process.send_signal(number)
                (tmp_path / "signalled").touch()
                break
        rest = process.stdout.read().splitlines()
    assert process.returncode == 0
    assert rest[-1] == f"stopped: {number.name} received"
    again = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert again.stdout.splitlines()[-1] == "done"
    effects = (tmp_path / "effects").read_text().split()
    assert effects == [str(i) for i in range(1, 41)]  # none twice, none left out


def test_a_second_signal_does_what_it_always_did() -> None:
    @tool
    def stubborn() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        executed["first"] += 1
        os.kill(os.getpid(), signal.SIGINT)
        executed["second"] += 1

    before = signal.getsignal(signal.SIGINT)
    of = RecoverableAgent(lambda run: run.call(stubborn), disk_store(), stop_on=[signal.SIGINT])
    with pytest.raises(KeyboardInterrupt):
        of.run_with_recovery_sync("task", "run")
    assert executed == {"first": 1}
    assert signal.getsignal(signal.SIGINT) is before


def test_signals_need_the_main_thread() -> None:
    of = RecoverableAgent(lambda run: None, disk_store(), stop_on=[signal.SIGINT])
    errors: list[Exception] = []

    def work() -> None:
        try:
            of.run_with_recovery_sync("task", "run")
        except RuntimeError as exc:
            errors.append(exc)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert "main thread" in str(errors[0])


def test_a_side_effect_inside_a_call_that_can_be_repeated_gets_to_its_end() -> None:
    @tool
    async def send(what: str) -> str:
        executed[what] += 1
        if executed["b"] == 1:
            of.stop()
            await asyncio.sleep(0.01)
        return f"sent {what}"

    @tool(after_crash="retry")
    async def outer() -> list[str]:
        return [await send("a"), await send("b"), await send("c")]

    async def agent(run: Run) -> Any:
        return await run.call(outer)

    store = disk_store()
    of = RecoverableAgent(agent, store)
    with pytest.raises(StoppedError):
        asyncio.run(of.run_with_recovery("task", "run"))
    assert executed == {"a": 1, "b": 1}
    assert resumed(agent, store) == ["sent a", "sent b", "sent c"]
    assert executed == {"a": 1, "b": 1, "c": 1}


def test_a_task_group_does_not_cancel_what_is_under_way_beside_a_stop() -> None:
    @tool
    async def send(what: str) -> str:
        executed[what] += 1
        if what == "slow":
            await asyncio.sleep(0.02)
        elif executed["quick"] == 1:
            of.stop()
        return f"sent {what}"

    async def agent(run: Run) -> Any:
        async def twice() -> str:
            run.messages.append(await run.call(send, "quick"))
            return str(await run.call(send, "next"))

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run.call(send, "slow")), group.create_task(twice())]
        return [task.result() for task in tasks]

    store = disk_store()
    of = RecoverableAgent(agent, store)
    with pytest.raises(StoppedError):
        asyncio.run(of.run_with_recovery("task", "run"))
    assert executed == {"slow": 1, "quick": 1}
    assert resumed(agent, store) == ["sent slow", "sent next"]
    assert executed == {"slow": 1, "quick": 1, "next": 1}


@pytest.mark.parametrize("beside", [False, True])
def test_a_side_effect_that_makes_calls_gets_to_its_end(beside: bool) -> None:
    @tool
    async def send(what: str) -> str:
        executed[what] += 1
        if what == "first":
            of.stop()
            await asyncio.sleep(0.01)
        return f"sent {what}"

    @tool
    async def outer() -> list[str]:
        executed["outer"] += 1
        return [await send("first"), *await asyncio.gather(send("second"), send("third"))]

    async def agent(run: Run) -> Any:
        if not beside:
            return await run.call(outer)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(run.call(outer))
            group.create_task(run.call(send, "beside"))
        return task.result()

    store = disk_store()
    of = RecoverableAgent(agent, store)
    with pytest.raises(StoppedError):
        asyncio.run(of.run_with_recovery("task", "run"))
    sent = {"outer": 1, "first": 1, "second": 1, "third": 1}
    assert executed.items() >= sent.items()
    assert resumed(agent, store) == ["sent first", "sent second", "sent third"]
    assert executed == (sent | {"beside": 1} if beside else sent)


@pytest.mark.parametrize("ends", ["stopped", "left behind", "by an error of its own"])
def test_asyncio_reports_what_the_caller_does_not_know_already(ends: str, clock: Clock) -> None:
    async def beside(run: Run) -> None:
        if ends == "left behind":
            await asyncio.sleep(50)
            run.now()
        try:
            await run.wait_for("a")
        except BaseException:
            if ends == "by an error of its own":
                raise ValueError("its own") from None
            raise

    async def agent(run: Run) -> None:
        tasks.append(asyncio.create_task(beside(run)))
        await run.wait_for("b")

    async def lives() -> None:
        of = RecoverableAgent(agent, CheckpointStore(), park_after_s=1)
        with pytest.raises(WaitingError):
            await of.run_with_recovery("task", "run")
        await asyncio.sleep(100)

    tasks: list[Any] = []
    reported: list[str] = []
    loop = Loop(clock)
    loop.set_exception_handler(lambda _, context: reported.append(context["message"]))
    loop.run_until_complete(lives())
    assert tasks.pop().done()
    gc.collect()
    loop.close()
    own = ends == "by an error of its own"
    assert reported == ["Task exception was never retrieved"] * own
