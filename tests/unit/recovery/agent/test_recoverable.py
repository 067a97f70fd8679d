"""The promises of RecoverableAgent, each as an agent that tries to break it."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

import recovery.agent.agent_errors
from eventlog import Damage, LogLockedError, RefusedValueError
from eventlog.errors import FencedError, WriterFailedError
from eventlog.testing import SimulatedDisk
from recovery import (
    CheckpointStore,
    InDoubtError,
    OutcomeUnknown,
    PermanentError,
    RecoverableAgent,
    RecoveryError,
    Resolution,
    Run,
    SyncRun,
    Usage,
    current_call,
    tool,
)
from recovery.agent.run import execution_of
from recovery.control.resolve import resolve
from recovery.engine.recovery_report import RecoveryReport
from recovery.errors import (
    RunFailedError,
    TaskMismatchError,
    UnrecordedResultError,
)
from recovery.inspect.follow import events
from recovery.journal.events import CallIntended
from tests.support.lives import Died, Disk, die_in, disk_store, executed, run, send

keys: list[str] = []  # the idempotency keys that `dying` was given


@pytest.fixture(autouse=True)
def _fresh(fresh: None) -> None:
    keys.clear()


@tool
async def asend(what: Any) -> str:
    executed[what] += 1
    await asyncio.sleep(0)
    return f"sent {what}"


@tool(after_crash="retry")
def look(what: Any) -> Any:
    executed[str(what)] += 1
    return what


# -- acceptance 1: the task's example


def test_an_agent_that_raises_at_step_5_goes_on_from_the_checkpoint_of_step_3():
    steps = []

    async def agent(run: Run) -> str:
        async for step in run.steps():
            steps.append(step)
            run.messages.append(await run.call(send, step))
            run.state["done"] = step
            if step == 5 and run.recovery_count == 0:
                raise ConnectionError("lost")
            if step == 6:
                return f"{run.state['done']} {len(run.messages)}"
        raise AssertionError

    of = RecoverableAgent(agent, CheckpointStore(), checkpoint_every_n=3)
    found = asyncio.run(of.run_with_recovery("task", "run"))
    assert found["result"] == "6 6"
    assert found["recovered_from_step"] == 3
    assert found["recovery_count"] == of.recovery_count == 1
    assert steps == [1, 2, 3, 4, 5, 4, 5, 6]
    assert executed == dict.fromkeys(range(1, 7), 1)
    assert (found["report"].from_step, found["report"].served, found["report"].executed) == (
        3,
        2,
        1,
    )


def test_a_report_says_in_a_line_all_that_a_person_may_have_to_act_on() -> None:
    report = RecoveryReport(
        "run",
        recovery_count=2,
        from_step=3,
        checkpoint_lsn=9,
        replayed=4,
        served=0,
        executed=0,
        in_doubt=(),
        torn_size=0,
        damage=(),
        broken=(),
        time_s=0.0125,
        usage=Usage(1, 2, 0.0, 3, 4, 5.0),
    )
    said = "run run: recovery 2 from step 3; 4 records replayed"
    assert str(report) == f"{said}; used: {report.usage} (12.5 ms)"
    assert f"{said}; 0 calls served from the log, 1 executed; " in str(replace(report, executed=1))
    full = replace(
        report,
        served=1,
        in_doubt=("pay: retry",),
        torn_size=7,
        damage=(Damage(1, 2, 3, 4, 5, "bad"),),
        broken=("checkpoint 9",),
        lost=("a gap",),
        drift=("a word",),
    )
    assert str(full) == (
        f"{said}; 1 call served from the log, 0 executed; in doubt: pay: retry; "
        f"torn tail of 7 bytes cut off; DAMAGE: {full.damage[0]}; passed over: checkpoint 9; "
        f"LOST: a gap; DRIFT: a word; used: {report.usage} (12.5 ms)"
    )


def test_of_a_run_that_has_ended_nothing_is_in_doubt() -> None:
    """Not even a call whose thread the agent did not wait for."""
    store = CheckpointStore()

    def agent(run: SyncRun) -> None:
        execution_of(run).record(CallIntended("0", "look", "", b"d", 1, "retry"))

    of = RecoverableAgent(agent, store)
    for _ in range(2):
        assert of.run_with_recovery_sync("task", "run")["report"].in_doubt == ()


EXAMPLE = """
import asyncio, os, sys
from recovery import CheckpointStore, RecoverableAgent, tool

home, effects, die = sys.argv[1:]

def note(line):
    with open(effects, "a") as file:
        file.write(line + "\\n")

@tool
def send(what):
    note(f"sent {what}")

async def agent(run):
    async for step in run.steps():
        note(f"step {step}")
        await run.call(send, step)
        if step == 5 and die == "die":
            os._exit(9)
        if step == 6:
            return "done"

agent = RecoverableAgent(agent, CheckpointStore(home), checkpoint_every_n=3)
found = asyncio.run(agent.run_with_recovery("task", "run_001"))
print(found["result"], found["recovered_from_step"], found["recovery_count"])
"""


def test_an_agent_whose_process_dies_at_step_5_goes_on_from_the_checkpoint_of_step_3(
    tmp_path: Path,
):
    def process(die: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", EXAMPLE, tmp_path / "home", tmp_path / "effects", die],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    assert process("die").returncode == 9
    done = process("live")
    assert done.stdout.split() == ["done", "3", "1"], done.stderr
    lines = (tmp_path / "effects").read_text().splitlines()
    assert [line for line in lines if "step" in line] == [
        f"step {n}" for n in (1, 2, 3, 4, 5, 4, 5, 6)
    ]
    assert Counter(line for line in lines if "sent" in line) == {
        f"sent {n}": 1 for n in range(1, 7)
    }


# -- recovery in the same process


def test_recovery_in_the_process_is_bounded_and_backs_off(monkeypatch):
    slept = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def agent(run: Run) -> None:
        executed["agent"] += 1
        raise ConnectionError("never up")

    monkeypatch.setattr(recovery.agent.agent_errors, "BACKOFF_S", 0.05)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    store = CheckpointStore()
    with pytest.raises(ConnectionError, match="never up"):
        run(agent, store, max_recoveries=3)
    assert executed["agent"] == 4
    assert slept == [0.05, 0.1, 0.2]

    async def mended(run: Run) -> int:
        return run.recovery_count

    assert run(mended, store)["result"] == 4


def test_a_permanent_error_ends_the_run_as_failed_for_ever():
    class OutOfMoneyError(PermanentError):
        pass

    async def agent(run: Run) -> None:
        await run.call(send, 1)
        executed["agent"] += 1
        raise OutOfMoneyError("no more")

    store = CheckpointStore()
    with pytest.raises(RunFailedError, match="OutOfMoneyError: no more") as caught:
        run(agent, store)
    assert isinstance(caught.value.__cause__, OutOfMoneyError)
    for _ in range(2):
        with pytest.raises(RunFailedError, match="OutOfMoneyError: no more") as caught:
            run(agent, store)
        assert caught.value.call == 0
        assert "raise OutOfMoneyError" in caught.value.traceback
    assert executed == {1: 1, "agent": 1}


@tool
def refuse(what: Any) -> None:
    executed[what] += 1
    if executed[what] == 1:
        raise ValueError(f"no {what}")


@pytest.mark.parametrize("how", ["alone", "gather", "task group", "after others"])
def test_a_recorded_failure_that_the_agent_lets_through_ends_the_run(how):
    async def agent(run: Run) -> str:
        executed["agent"] += 1
        match how:
            case "alone":
                await run.call(refuse, 1)
            case "gather":
                await asyncio.gather(run.call(send, 2), run.call(refuse, 1))
            case "task group":
                async with asyncio.TaskGroup() as group:
                    group.create_task(run.call(refuse, 1))
            case "after others":
                first: Any = await asyncio.gather(run.call(refuse, 1), return_exceptions=True)
                await asyncio.gather(run.call(refuse, 2), return_exceptions=True)
                raise first[0]
        return "went on"

    store = CheckpointStore()
    with pytest.raises(RunFailedError) as caught:
        run(agent, store)
    assert caught.value.call > 0
    assert (executed["agent"], executed[1]) == (1, 1)
    with pytest.raises(RunFailedError):
        run(agent, store)
    assert (executed["agent"], executed[1]) == (1, 1)
    if how != "after others":
        resolve(store, "run", caught.value.call, Resolution.retry(), who="me")
        assert run(agent, store)["result"] == "went on"
        assert executed[1] == 2


# -- the end of a run


def test_another_task_is_refused_with_both_shown():
    async def agent(run: Run) -> Any:
        return run.task

    store = CheckpointStore()
    run(agent, store, task={"find": "otters", "n": 1})
    with pytest.raises(TaskMismatchError) as caught:
        run(agent, store, task={"find": "badgers", "n": 1})
    assert "otters" in str(caught.value)
    assert "badgers" in str(caught.value)
    assert run(agent, store, task={"n": 1, "find": "otters"})["result"] == {
        "find": "otters",
        "n": 1,
    }


def test_a_task_that_cannot_be_carried_is_refused_before_anything_is_written():
    async def agent(run: Run) -> None:
        raise AssertionError

    store = CheckpointStore()
    with pytest.raises(RefusedValueError, match=r"^task\.when\[0\]: "):
        run(agent, store, task={"when": {len}})
    assert store.backend.run_ids() == []


# -- in doubt


def dying(what: Any) -> str:
    executed[what] += 1
    call = current_call()
    keys.append(call.idempotency_key if call else "")
    if executed[what] == 1:
        raise Died
    return f"done {what}"


async def in_doubt_agent(run: Run) -> Any:
    answer = await run.call(cast(Any, in_doubt_agent).tool, "x")
    return [answer if not isinstance(answer, OutcomeUnknown) else "unknown", str(answer)]


def in_doubt(**policy: Any) -> CheckpointStore:
    in_doubt_agent.tool = tool(**policy)(dying)  # type: ignore[attr-defined]
    return die_in(in_doubt_agent, disk_store())


def test_report_gives_the_agent_the_same_outcome_unknown_ever_after():
    store = in_doubt(after_crash="report")

    async def agent(run: Run) -> Any:
        answer = await run.call(cast(Any, in_doubt_agent).tool, "x")
        assert isinstance(answer, OutcomeUnknown)
        assert (answer.tool, answer.idempotency_key) == ("dying", keys[0])
        executed[answer] += 1
        if run.recovery_count < 3:
            raise OSError
        return answer

    found = run(agent, store)
    assert list(executed.values()) == [1, 3]
    assert found["result"] == run(agent, store)["result"]
    assert type(found["result"]) is OutcomeUnknown


async def async_outcome(call: Any) -> Resolution:
    await asyncio.sleep(0)
    assert (call.tool, call.args, call.run_id) == ("dying", ("x",), "run")
    return Resolution.outcome("found")


def broken(call: Any) -> Resolution:
    raise OSError("the outside world is down")


@tool
def nested_question(key: str) -> str:
    executed["asked"] += 1
    return "found"


@pytest.mark.parametrize(
    ("reconcile", "result"),
    [
        (lambda call: Resolution.outcome("found"), "found"),
        (async_outcome, "found"),
        (lambda call: Resolution.outcome(nested_question(call.idempotency_key)), "found"),
        (lambda call: Resolution.retry(), "done x"),
        (lambda call: Resolution.fail("gone"), RunFailedError),
        (lambda call: Resolution.unknown(), InDoubtError),
        (broken, InDoubtError),
        (lambda call: None, InDoubtError),
        (lambda call: True, InDoubtError),
        (lambda call: Resolution.outcome({"x": len}), UnrecordedResultError),
        (lambda call: Resolution.outcome("x" * (65 << 20)), UnrecordedResultError),
    ],
)
def test_reconcile_asks_the_outside_world(reconcile, result):
    store = in_doubt(reconcile=reconcile)
    if isinstance(result, type):
        with pytest.raises(result) as stopped:
            run(in_doubt_agent, store)
        assert executed["x"] == 1
        if result is RunFailedError:
            assert ": resolved as failed: gone" in str(stopped.value)
        if result is RunFailedError:
            return
        if result is UnrecordedResultError:
            where = ".x" if isinstance(reconcile(None).value, dict) else ""
            error: Any = stopped.value
            assert error.path == f"resolution of dying{where}"
        in_doubt_agent.tool = tool(reconcile=lambda call: Resolution.outcome("later"))(  # type: ignore[attr-defined]
            dying
        )
        result = "later"
    assert run(in_doubt_agent, store)["result"][0] == result
    assert executed["x"] == (2 if result == "done x" else 1)


def test_what_a_reconcile_hook_asks_is_not_part_of_the_run():
    async def agent(run: Run) -> Any:
        found = await run.call(made, "x")
        if run.recovery_count < 3:
            raise Died
        return [found, await run.call(send, 1)]

    made = tool(reconcile=lambda call: Resolution.outcome(nested_question("k")))(dying)
    store = die_in(agent, disk_store())
    for _ in range(2):
        store = die_in(agent, store)
    assert run(agent, store)["result"] == ["found", "sent 1"]
    assert executed == {"x": 1, "asked": 1, 1: 1}


@pytest.mark.parametrize("swallow", ["except", "gather", "task group", "finally", "wait"])
def test_an_agent_cannot_swallow_that_its_run_is_parked(swallow):
    store = in_doubt()
    parked = in_doubt_agent.tool  # type: ignore[attr-defined]

    async def agent(run: Run) -> str:
        match swallow:
            case "except":
                try:
                    await run.call(parked, "x")
                except Exception:
                    executed["swallowed"] += 1
            case "gather":
                await asyncio.gather(run.call(parked, "x"), return_exceptions=True)
            case "task group":
                async with asyncio.TaskGroup() as group:
                    group.create_task(run.call(parked, "x"))
            case "finally":
                try:
                    await run.call(parked, "x")
                finally:
                    raise ValueError("hidden")
            case "wait":
                task = asyncio.create_task(run.call(parked, "x"))
                await asyncio.wait([task])
        await run.call(send, "after")
        return "done"

    with pytest.raises(InDoubtError):
        run(agent, store)
    assert executed == {"x": 1}


def test_a_tool_cannot_swallow_that_a_call_inside_it_parked():
    async def agent(run: Run) -> Any:
        return await run.call(outer)

    @tool(after_crash="retry")
    async def middle() -> Any:
        return await inner("x")

    @tool(after_crash="retry")
    async def outer() -> Any:
        found = await asyncio.gather(middle(), return_exceptions=executed["x"] > 0)
        return str(found)

    @tool
    async def inner(what: str) -> str:
        return dying(what)

    store = die_in(agent, disk_store())
    with pytest.raises(InDoubtError) as caught:
        run(agent, store)
    resolve(store, "run", caught.value.calls[0].lsn, Resolution.outcome("resolved"))
    assert run(agent, store)["result"] == "['resolved']"
    assert executed["x"] == 1


# -- tools and agents, plain and async, in all combinations


async def async_agent(run: Run) -> list[Any]:
    found = [await run.call(send, 1), await run.call(asend, 2), send(3), await asend(4)]
    async for step in run.steps():
        found += [await run.call(send, 5), await run.call(asend, 6), send(7), await asend(8)]
        found += await asyncio.gather(asyncio.to_thread(send, 9), asend(10))
        if step == 2:
            if run.recovery_count == 0:
                raise OSError
            return [found, run.now(), run.random(), run.uuid()]
    raise AssertionError


def plain_agent(run: SyncRun) -> list[Any]:
    found = [run.call(send, 1), run.call(asend, 2), send(3)]
    for step in run.steps():
        found += [run.call(send, 5), run.call(asend, 6), send(7)]
        if step == 2:
            if run.recovery_count == 0:
                raise OSError
            return [found, run.now(), run.random(), run.uuid()]
    raise AssertionError


def test_the_sync_twin_says_what_to_do_inside_a_loop():
    async def main() -> None:
        RecoverableAgent(async_agent, CheckpointStore()).run_with_recovery_sync("t", "run")

    with pytest.raises(RuntimeError, match="await run_with_recovery"):
        asyncio.run(main())


def test_an_awaitable_from_a_plain_tool_is_awaited_or_explained():
    hidden = tool(name="hidden")(asend.tool_spec.function.__call__)  # type: ignore[attr-defined]

    async def called(run: Run) -> Any:
        return await run.call(hidden, 1)

    async def direct(run: Run) -> Any:
        with pytest.raises(TypeError, match="returned something to await"):
            hidden(2)
        return "explained"

    def plain(run: SyncRun) -> Any:
        return hidden(3)

    assert run(called, CheckpointStore())["result"] == "sent 1"
    assert run(direct, CheckpointStore())["result"] == "explained"
    assert (
        RecoverableAgent(plain, CheckpointStore()).run_with_recovery_sync("t", "run")["result"]
        == "sent 3"
    )


@pytest.mark.parametrize("resumed", [False, True])
def test_checkpoints_by_bytes(resumed: bool):
    """Steps 2 and 5 record much, the others little; what was recorded before a crash counts."""

    def agent(run: SyncRun) -> str:
        for step in run.steps():
            run.call(look, "x" * (6000 if step in (2, 5) else 10) + str(step))
            if step == 6:
                return "done"
            if step == 2 and resumed and run.recovery_count == 0:
                raise Died
        raise AssertionError

    store, options = disk_store(), {"checkpoint_every_n": 100, "checkpoint_every_bytes": 6000}
    if resumed:
        store = die_in(agent, store, **options)
    run(agent, store, **options)
    found = [event.step for event in events(store, "run") if event.kind == "snapshot"]
    assert found == [2, 5]
    resumed, store = False, disk_store()
    run(agent, store, checkpoint_every_n=2, checkpoint_every_bytes=6000)
    found = [event.step for event in events(store, "run") if event.kind == "snapshot"]
    assert found == [2, 4, 5]  # whichever comes first
    with pytest.raises(ValueError, match="checkpoint_every_bytes is a whole number, 1 or more"):
        RecoverableAgent(agent, checkpoint_every_bytes=0)


def test_a_checkpoint_knows_what_was_put_off():
    """Code before the first step that is new asks the clock while a recorded call is unmatched, so
    that is written later: here not before the next checkpoint, which has to name it."""
    seen: list[list[float]] = []

    def agent(run: SyncRun) -> Any:
        seen.append([run.now()] if run.recovery_count else [])
        for step in run.steps():
            run.call(look, step)
            if step > run.recovery_count:
                raise Died
            if step == 3:
                return seen[-1]

    store = disk_store()
    for _ in range(3):
        store = die_in(agent, store, checkpoint_every_n=1)
    assert run(agent, store, checkpoint_every_n=1)["result"] == seen[1]
    assert seen[1] == seen[2] == seen[3]


# -- what a run gives the agent


def test_state_can_be_replaced_and_changed():
    async def agent(run: Run) -> Any:
        run.state["before"] = 1
        async for step in run.steps():
            if step == 1:
                run.state = {"list": [0], "past": run.state}
                assert run.state.pop("past") == {"before": 1}
            run.state["list"].append(step)
            if step == 2:
                alias = run.state
                run.state = {**run.state, "two": True}
                assert alias is run.state
            if step == 5 and run.recovery_count == 0:
                run.state["list"].append("lost")
                raise OSError
            if step == 6:
                return run.state
        raise AssertionError

    assert run(agent, CheckpointStore())["result"] == {"list": [0, 1, 2, 3, 4, 5, 6], "two": True}


def test_messages_can_be_assigned_and_edited():
    async def agent(run: Run) -> Any:
        run.messages = [{"role": "system"}]
        async for step in run.steps():
            run.messages += [{"n": step}]
            if step == 4:
                run.messages[1:3] = [{"summary": "1-2"}]
            if step == 5 and run.recovery_count == 0:
                raise OSError
            if step == 6:
                return run.messages
        raise AssertionError

    found = run(agent, CheckpointStore())["result"]
    assert found == [{"role": "system"}, {"summary": "1-2"}, {"n": 3}, {"n": 4}, {"n": 5}, {"n": 6}]


def test_messages_are_not_changed_inside_a_tool():
    async def agent(run: Run) -> Any:
        @tool
        def sly() -> None:
            run.messages.append("lost on replay")

        with pytest.raises(RecoveryError, match="return the message, and let the agent append it"):
            await run.call(sly)
        return run.messages

    assert run(agent, CheckpointStore())["result"] == []


def test_there_is_one_loop_of_steps():
    async def agent(run: Run) -> Any:
        async for _ in run.steps():
            break
        async for _ in run.steps():
            break

    with pytest.raises(RecoveryError, match="one loop of steps"):
        run(agent, CheckpointStore(), max_recoveries=0)


def test_the_outside_world_is_recorded():
    seen = []

    async def agent(run: Run) -> str:
        seen.append((run.now(), run.now(), run.random(), run.random(), run.uuid(), run.uuid()))
        if run.recovery_count < 2:
            raise OSError
        return "done"

    run(agent, CheckpointStore())
    assert seen == [seen[0]] * 3
    assert len(set(seen[0])) >= 5
    assert abs(seen[0][0] - time.time()) < 60


# -- several runs, several tasks


def test_fifty_runs_share_a_process():
    async def agent(run: Run) -> Any:
        found: list[Any] = []
        async for step in run.steps():
            found += await asyncio.gather(
                run.call(asend, (run.task * 10 + step) * 10), run.call(look, run.task)
            )
            run.messages.append(found[-2])
            if step == 3 and run.recovery_count == 0 and run.task % 2:
                raise OSError
            if step == 4:
                return [run.task, len(found), len(run.messages)]
        raise AssertionError

    async def main(of: RecoverableAgent) -> Any:
        return await asyncio.gather(*(of.run_with_recovery(n, f"run_{n}") for n in range(50)))

    of = RecoverableAgent(agent, CheckpointStore(), checkpoint_every_n=2)
    found = asyncio.run(main(of))
    assert [one["result"] for one in found] == [[n, 8 if n % 2 == 0 else 4, 4] for n in range(50)]
    assert of.recovery_count == 25
    assert {times for what, times in executed.items() if isinstance(what, int)} == {1}


def test_the_same_run_twice_at_once_is_refused_at_once():
    begun, over = asyncio.Event(), asyncio.Event()

    async def agent(run: Run) -> str:
        begun.set()
        await over.wait()
        return "done"

    async def main(of: RecoverableAgent) -> Any:
        first = asyncio.create_task(of.run_with_recovery("t", "run"))
        await begun.wait()
        with pytest.raises(LogLockedError):
            await of.run_with_recovery("t", "run")
        over.set()
        return await first

    assert asyncio.run(main(RecoverableAgent(agent, CheckpointStore())))["result"] == "done"


async def cancelled(of: RecoverableAgent) -> None:
    """A run that is cancelled when its agent has got to where it says so."""
    task = asyncio.create_task(of.run_with_recovery("t", "run"))
    while not executed["reached"]:  # noqa: ASYNC110 - set in another thread
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_cancelling_stops_a_plain_agent_at_the_next_thing_it_does():
    def agent(run: SyncRun) -> str:
        for n in range(100):
            run.call(send, n)
            if run.recovery_count == 0:
                executed["reached"] = 1
                time.sleep(0.02)
        return "done"

    async def main(of: RecoverableAgent) -> None:
        await cancelled(of)
        assert executed[99] == 0
        executed.pop("reached")
        assert (await of.run_with_recovery("t", "run"))["result"] == "done"  # at once: it let go

    asyncio.run(main(RecoverableAgent(agent, CheckpointStore())))
    assert executed == dict.fromkeys(range(100), 1)


def test_a_run_inside_a_tool_of_another_run_is_its_own():
    store = CheckpointStore()

    async def inner(run: Run) -> Any:
        assert run.run_id == "inner"
        return await asend("inner")

    async def outer(run: Run) -> Any:
        found = [await run.call(delegate), await asend("outer")]
        if run.recovery_count == 0:
            raise OSError
        return found

    @tool(after_crash="retry")
    async def delegate() -> Any:
        executed["delegate"] += 1
        found = await RecoverableAgent(inner, store).run_with_recovery("sub", "inner")
        return found["result"]

    assert run(outer, store)["result"] == ["sent inner", "sent outer"]
    assert executed == {"inner": 1, "outer": 1, "delegate": 1}
    with pytest.raises(TypeError, match="agent_fn is a function"):
        RecoverableAgent("agent")  # type: ignore[call-overload]


def test_a_call_that_was_cancelled_is_in_doubt():
    async def agent(run: Run) -> str:
        await run.call(slow)
        return "done"

    @tool
    async def slow() -> None:
        executed["reached"] += 1
        await asyncio.sleep(60 if executed["reached"] == 1 else 0)

    of = RecoverableAgent(agent, CheckpointStore())
    asyncio.run(cancelled(of))
    with pytest.raises(InDoubtError, match="slow"):
        asyncio.run(of.run_with_recovery("t", "run"))
    assert executed == {"reached": 1}


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("plain", [True, False])
def test_what_ends_the_process_passes_through_and_the_run_is_resumed(stop, plain):
    @tool(after_crash="retry")
    def interrupted() -> str:
        executed["tool"] += 1
        if executed["tool"] == 1:
            raise stop
        return "done"

    def plain_agent(run: SyncRun) -> Any:
        return run.call(interrupted)

    async def agent(run: Run) -> Any:
        return interrupted()

    of = RecoverableAgent(plain_agent if plain else agent, CheckpointStore())
    with pytest.raises(stop):
        of.run_with_recovery_sync("t", "run")
    assert of.run_with_recovery_sync("t", "run")["result"] == "done"


def test_what_a_task_of_a_recovered_run_does_does_not_count():
    async def agent(run: Run) -> Any:
        async def straggler() -> None:
            await asyncio.sleep(0.05)
            with pytest.raises(RecoveryError, match="over, or was recovered"):
                await run.call(send, "late")
            executed["refused"] += 1

        if run.recovery_count == 0:
            agent.task = asyncio.create_task(straggler())  # type: ignore[attr-defined]
            raise OSError
        await agent.task  # type: ignore[attr-defined]
        return "done"

    assert run(agent, CheckpointStore())["result"] == "done"
    assert executed == {"refused": 1}


# -- the log fails


@pytest.mark.parametrize("verb", ["write", "sync"])
def test_a_full_or_broken_disk_ends_the_run_whatever_the_agent_catches(verb):
    disk = SimulatedDisk()

    async def agent(run: Run) -> Any:
        for n in range(50):
            if n == 20 and run.recovery_count == 0:
                disk.fail_at(verb, 0, errno.ENOSPC)
            try:
                await run.call(send, n)
            except Exception:
                executed["swallowed"] += 1
        return "done"

    store = disk_store(disk)
    with pytest.raises((OSError, WriterFailedError)) as caught:
        run(agent, store)
    # The thread that flushes behind the agent may have met it first.
    error = caught.value if isinstance(caught.value, OSError) else caught.value.__cause__
    assert isinstance(error, OSError)
    assert error.errno == errno.ENOSPC
    assert executed["swallowed"] == 0
    assert 19 <= len(executed) <= 21
    try:
        found = run(agent, store)
    except InDoubtError as exc:  # it failed between the intent and the start of the call
        for call in exc.calls:
            resolve(store, "run", call.lsn, Resolution.retry())
        found = run(agent, store)
    assert found["result"] == "done"
    assert {executed[n] for n in range(50)} == {1}


def test_a_run_that_was_taken_over_ends_as_fenced():
    store = CheckpointStore()

    async def agent(run: Run) -> Any:
        async for step in run.steps():
            try:
                await run.call(send, step)
            except Exception:
                executed["swallowed"] += 1
            if step == 3 and run.recovery_count == 0:
                other = RecoverableAgent(agent, store)
                found = await other.run_with_recovery("t", "run", takeover=True)
                assert found["result"] == "done"
            if step == 5:
                return "done"
        raise AssertionError

    with pytest.raises(FencedError):
        asyncio.run(RecoverableAgent(agent, store).run_with_recovery("t", "run"))
    assert executed == dict.fromkeys(range(1, 6), 1)
    assert run(agent, store, task="t")["result"] == "done"
    assert executed == dict.fromkeys(range(1, 6), 1)


# -- the process dies at any moment


snapshots: list[SimulatedDisk] = []


def test_a_task_that_outlives_its_step_is_not_lost():
    wanted: list[asyncio.Event] = []  # the task's outcome, in each life

    async def agent(run: Run) -> Any:
        background = None
        wanted.append(asyncio.Event())
        async for step in run.steps():
            if step == 2:
                background = asyncio.create_task(run.call(slow, "x"))
            await run.call(send, step)
            if step == 5:
                wanted[-1].set()
                if run.recovery_count == 0:
                    raise Died
                assert background is not None
                return [await background, step]
        raise AssertionError

    @tool(after_crash="retry")
    async def slow(what: str) -> str:
        executed[what] += 1
        await wanted[-1].wait()
        return what

    store = die_in(agent, disk_store(), checkpoint_every_n=1)
    assert run(agent, store, checkpoint_every_n=1)["result"] == ["x", 5]
    assert {executed[n] for n in range(1, 6)} == {1}


def test_damaged_checkpoints_lead_further_back_and_never_to_a_second_execution():
    """Acceptance 2, at the level of runs."""

    async def agent(run: Run) -> Any:
        async for step in run.steps():
            run.messages.append(await run.call(send, step))
            run.state["step"] = step
            if step == 8:
                if run.recovery_count == 0:
                    raise Died
                return [run.state, len(run.messages)]
        raise AssertionError

    for damaged, from_step in ((0, 6), (1, 4), (2, 2), (3, 0)):
        executed.clear()
        store = die_in(agent, disk_store(), checkpoint_every_n=2)
        assert isinstance(store.backend, Disk)
        entries = store.backend.disk.directories["home/run"]
        with store.claim("run") as log:
            found = [snapshot.packed for snapshot in log.snapshots()]
        for packed in found[:damaged]:
            for inode in entries.values():
                at = bytes(inode.content).find(packed)
                if at >= 0:
                    inode.content[at + 30] ^= 1
        result = run(agent, store, checkpoint_every_n=2)
        assert result["recovered_from_step"] == from_step
        assert result["result"] == [{"step": 8}, 8]
        assert executed == dict.fromkeys(range(1, 9), 1)
        assert len(result["report"].damage) == damaged
