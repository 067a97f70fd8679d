"""crash_everywhere: good agents pass, each fault is reported, in the right words."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import pytest

import recovery.calls.attempts
from recovery import (
    CheckpointStore,
    OutcomeUnknown,
    PermanentError,
    RecoverableAgent,
    Resolution,
    Retry,
    Run,
    SyncRun,
    current_call,
    tool,
)
from recovery.control.send import signal
from recovery.testing import CrashOptions, CrashReport, Finding, crash_everywhere
from recovery.testing.crash_report import Kind
from recovery.testing.simulated import crash
from tests.cli.harness import call
from tests.support.pages import blocks, page_text, run_page

# -- a world, and tools that act on it

outside: list[str] = []  # what took place
memory: dict[str, Any] = {}  # of the process, but one that outlives its death


@pytest.fixture(autouse=True)
def _fresh_world() -> Iterator[None]:
    reset()
    yield
    reset()


def reset() -> None:
    outside.clear()
    memory.clear()


@tool(after_crash="retry")
def look(what: Any) -> Any:
    return what


@tool
def charge(what: Any) -> str:
    outside.append(f"charge {what}")
    return f"charged {what}"


@tool
async def send(what: Any) -> str:
    await asyncio.sleep(1)
    outside.append(f"send {what}")
    await asyncio.sleep(1)
    return f"sent {what}"


def happened(call: Any) -> Resolution:
    text = f"keyed {call.args[0]} {call.idempotency_key}"
    return Resolution.outcome("done") if text in outside else Resolution.retry()


@tool(reconcile=happened)
def keyed(what: Any) -> str:
    call = current_call()
    outside.append(f"keyed {what} {call.idempotency_key if call else ''}")
    return "done"


@tool(after_crash="report")
def report_it(what: Any) -> str:
    outside.append(f"report {what}")
    return "reported"


def hook(what: Any) -> None:
    outside.append(f"hook {what}")


def sweep(agent: Any, **options: Any) -> CrashReport:
    return crash_everywhere(
        agent, "a task", **{"setup": reset, "timeout_s": 30, "points": 10, **options}
    )


def kinds(report: CrashReport) -> set[tuple[str, str]]:
    return {(found.kind, found.tool) for found in report.failures}


# -- agents that survive


async def chat(run: Run) -> str:
    run.messages.append({"role": "user", "content": run.task})
    async for step in run.steps():
        reply = await run.call(look, {"content": f"reply {step}", "done": step == 3})
        run.messages.append(reply)
        if reply["done"]:
            return str(reply["content"])
        run.messages.append(await run.call(send, f"mail {step}", call_id=f"c{step}"))
        run.state["sent"] = run.state.get("sent", 0) + 1
    raise AssertionError


def plain(run: SyncRun) -> Any:
    began = run.now()
    for step in run.steps():
        charge(f"{step} {run.uuid()}")
        run.call(send, run.random())
        if step == 3:
            return [run.now() >= began, run.uuid()]
    raise AssertionError


async def side_by_side(run: Run) -> Any:
    async def branch(n: int) -> str:
        await asyncio.sleep(3 - n)
        return str(await run.call(keyed, f"{run.step} {n}"))

    async for step in run.steps():
        run.messages.extend(await asyncio.gather(*map(branch, range(3))))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run.call(look, n)) for n in range(3)]
        run.state["sum"] = run.state.get("sum", 0) + sum(task.result() for task in tasks)
        if step == 2:
            return run.state["sum"]
    raise AssertionError


def in_threads(run: SyncRun) -> Any:
    for step in run.steps():
        with ThreadPoolExecutor(3) as pool:
            found = list(pool.map(lambda n: run.call(charge, f"{run.step} {n}"), range(3)))
        if step == 2:
            return found
    raise AssertionError


async def fails(run: Run) -> Any:
    async for step in run.steps():
        charge(step)
        if step == 2:
            raise PermanentError("no")
    raise AssertionError


async def recovers(run: Run) -> Any:
    async for step in run.steps():
        charge(step)
        if step == 2 and "failed" not in memory:
            memory["failed"] = True
            raise ConnectionError("once")
        if step == 3:
            return step
    raise AssertionError


async def finds_out(run: Run) -> Any:
    async for _ in run.steps():
        found = await run.call(report_it, 1)
        if isinstance(found, OutcomeUnknown) and not await run.call(look, "report 1" in outside):
            found = await run.call(report_it, 1, call_id="again")
        return str(found)


GOOD = [chat, plain, side_by_side, in_threads, fails, recovers, finds_out]


@pytest.mark.parametrize("agent", GOOD, ids=lambda agent: agent.__name__)
def test_an_agent_that_survives_is_told_so(agent: Callable[..., Any]) -> None:
    report = sweep(agent, effects=lambda: outside)
    assert report.ok, str(report)
    assert str(report).startswith(f"{agent.__name__}: survives a crash at every point")
    assert report.points == 10
    assert report.resumptions >= report.points


def test_all_points_of_an_agent_are_tried_and_told_in_one_report() -> None:
    report = sweep(chat, points="all")
    assert report.points == report.possible > 50
    assert report.effects == {"look": 3, "send": 2}
    assert report.reference == "'reply 3'"
    doubt = [found for found in report.findings if found.kind == "in doubt"]
    assert {found.tool for found in doubt} == {"send"}
    assert any(found.point.startswith("after send#2 took effect") for found in doubt)
    again = [found for found in report.findings if found.tool == "look"]
    assert {(found.kind, found.allowed) for found in again} == {("ran twice", True)}
    assert "after_crash='retry'" in again[0].what


def test_a_power_loss_is_survived_too() -> None:
    without, lost = sweep(chat, points=10), sweep(chat, power_loss=True)
    assert lost.ok, str(lost)
    assert lost.possible > 1.5 * without.possible


def test_the_same_seed_gives_the_same_report() -> None:
    first, again = (str(sweep(chat, points=8, seed=7)) for _ in range(2))
    assert first == again
    assert "seed 7" in first
    assert str(sweep(chat, points=8, seed=8)) != first


def test_a_strict_report_takes_a_call_in_doubt_for_a_failure() -> None:
    assert sweep(chat).ok
    report = sweep(chat, strict=True)
    assert kinds(report) == {("in doubt", "send")}
    assert "IN DOUBT: it may or may not have taken effect" in str(report)
    assert str(report).splitlines()[-1].startswith("What to do: A person has to settle")


# -- agents with faults


async def undecorated(run: Run) -> str:
    async for step in run.steps():
        hook(step)
        await run.call(charge, step)
        if step == 2:
            return "done"
    raise AssertionError


async def effect_before_the_first_step(run: Run) -> str:
    hook("began")
    async for step in run.steps():
        await run.call(charge, step)
        if step == 2:
            return "done"
    raise AssertionError


async def random_argument(run: Run) -> str:
    async for _ in run.steps():
        await run.call(charge, str(uuid.uuid4()))
        return "done"
    raise AssertionError


async def time_in_the_result(run: Run) -> float:
    await run.call(charge, 1)
    return time.time()


async def local_variable(run: Run) -> int:
    total = 0
    async for step in run.steps():
        total += await run.call(look, 5)
        if step == 5:
            return int(total)
    raise AssertionError


async def process_memory(run: Run) -> str:
    async for step in run.steps():
        if "asked" not in memory:
            memory["asked"] = await run.call(look, "?")
        await run.call(charge, step)
        if step == 2:
            return "done"
    raise AssertionError


async def calls_again_when_resumed(run: Run) -> str:
    await run.call(charge, 1)
    if run.recovery_count:
        await run.call(charge, "sorry for the delay")
    return "done"


async def repeats_what_is_unknown(run: Run) -> str:
    found = await run.call(report_it, 1)
    if isinstance(found, OutcomeUnknown):
        found = await run.call(report_it, 1, call_id="again")
    return str(found)


@tool(reconcile=lambda call: Resolution.retry())
def forgetful(what: int) -> int:
    return what


@tool(reconcile=lambda call: Resolution.outcome(1))
def boastful(what: int) -> int:
    return what


async def wrong_reconcile(run: Run) -> int:
    return int(await run.call(forgetful, 1)) + int(await run.call(boastful, 1))


async def waits_for_what_was(run: Run) -> str:
    woken = asyncio.Event()
    if "began" not in memory:
        memory["began"] = True
        asyncio.get_running_loop().call_later(60, woken.set)
    await run.call(look, 1)
    await woken.wait()
    return "done"


def waits_in_a_thread(run: SyncRun) -> str:
    run.call(look, 1)
    woken = memory.setdefault("woken", threading.Semaphore(1))
    woken.acquire()
    run.call(look, 2)
    return "done"


given_up = threading.Event()  # by the tests, so that no thread goes on for ever


def never_gives_up(run: SyncRun) -> str:
    while not given_up.is_set():
        try:
            return str(run.call(charge, 1))
        except BaseException:
            pass
    return "at the end of its test"


async def loses_state(run: Run) -> int:
    async for step in run.steps():
        if step == 1:
            memory["counts"] = []
        run.state["counts"] = len(memory.setdefault("counts", []))
        memory["counts"].append(await run.call(look, step))
        if step == 5:
            return step
    raise AssertionError


async def fails_when_resumed(run: Run) -> str:
    await run.call(charge, 1)
    if run.recovery_count:
        raise PermanentError("I was told that this cannot be resumed")
    return "done"


AGENT = ""
FAULTS: list[tuple[Callable[..., Any], set[tuple[str, str]], list[str]]] = [
    (
        undecorated,
        {("ran twice", AGENT)},
        ["outside, 'hook 1' took place", "; without a crash once", "decorate it with @tool"],
    ),
    (effect_before_the_first_step, {("ran twice", AGENT)}, ["outside, 'hook began' took place "]),
    (
        random_argument,
        {("differs", AGENT), ("raised", AGENT)},
        [
            "the agent itself gave two different results without any crash: calls: charge('",
            "DivergenceError",
            "recorded: charge",
            "now: charge",
            "not the same in each run: uuid.uuid4() in random_argument (test_testing.py:",
            "use run.uuid()",
        ],
    ),
    (
        time_in_the_result,
        {("differs", AGENT)},
        [
            "1 fault without any crash",
            "gave two different results without any crash: 1",
            "time.time() in time_in_the_result",
            "use run.now()",
        ],
    ),
    (
        local_variable,
        {("differs", AGENT)},
        ["the result is 10; without a crash it is 25", "in run.state and run.messages"],
    ),
    (process_memory, {("raised", AGENT)}, ["recorded: look", "now: charge", "DivergenceError"]),
    (
        calls_again_when_resumed,
        {("differs", "charge")},
        ["charge('sorry for the delay') took place; without a crash it does not"],
    ),
    (
        repeats_what_is_unknown,
        {("ran twice", "report_it")},
        ["report_it(1) took place twice; without a crash once", "the outcome is unknown"],
    ),
    (
        wrong_reconcile,
        {("ran twice", "forgetful"), ("lost", "boastful")},
        [
            "its reconcile function said that it had not happened",
            "boastful(1) did not take place; without a crash once",
        ],
    ),
    (
        waits_for_what_was,
        {("stuck", AGENT)},
        ["the run waits for ever, in waits_for_what_was (test_testing.py:"],
    ),
    (waits_in_a_thread, {("stuck", AGENT)}, ["the run waits for ever, in waits_in_a_thread"]),
    (never_gives_up, {("stuck", AGENT)}, ["catches BaseException and tries again for ever"]),
    (loses_state, {("differs", AGENT)}, ["run.state['counts'] is "]),
    (
        fails_when_resumed,
        {("raised", AGENT)},
        ["the resumed run failed: recovery.PermanentError: I was told"],
    ),
]


@pytest.mark.parametrize(
    ("agent", "found", "words"), FAULTS, ids=lambda case: getattr(case, "__name__", "")
)
def test_a_fault_is_found_and_told(
    agent: Callable[..., Any], found: set[tuple[str, str]], words: list[str]
) -> None:
    # Semaphores of a world that outlives the process are not made anew.
    points = {waits_in_a_thread: 4, never_gives_up: 8}.get(agent, 16)
    timeout_s = 2 if agent is waits_in_a_thread else 30
    given_up.clear()
    report = sweep(agent, effects=lambda: outside, points=points, timeout_s=timeout_s)
    given_up.set()
    assert not report.ok
    assert kinds(report) == found, str(report)
    for word in words:
        assert word in str(report), str(report)


def test_an_effect_that_nobody_looks_at_is_named_at_least() -> None:
    report = sweep(undecorated)
    assert report.ok
    assert "outside of recorded calls is done again after a crash" in str(report)
    assert "hook (test_testing.py)" in str(report)


def test_a_plain_function_is_watched_by_whatever_name_it_is_called() -> None:
    held = {"it": hook}

    async def agent(run: Run) -> str:
        async for step in run.steps():
            held["it"](step)
            await run.call(charge, step)
            if step == 2:
                return "done"
        raise AssertionError

    code = hook.__code__
    report = sweep(agent, watch=[hook])
    assert hook.__code__ is code and not hasattr(hook, "__signature__")
    assert kinds(report) == {("ran twice", "hook")}
    assert "hook(1) took place" in str(report)
    assert "it is called outside of recorded calls" in str(report)
    points = {found.point for found in report.failures}
    assert any(point.startswith("after hook#2 took effect") for point in points)
    assert report.effects == {"hook": 2, "charge": 2}


def test_async_functions_methods_and_closures_are_watched_too() -> None:
    class Mailer:
        def __init__(self) -> None:
            self.sent: list[str] = []

        async def send(self, to: str, *, urgent: bool = False) -> str:
            await asyncio.sleep(1)
            self.sent.append(to)
            return to

    mailer = Mailer()

    async def agent(run: Run) -> str:
        result = await mailer.send("ann", urgent=True)
        await run.call(charge, result)
        return result

    report = sweep(agent, watch=[mailer.send])
    assert kinds(report) == {("ran twice", "send")}
    assert "send('ann', urgent=True) took place twice" in str(report)


def test_a_watched_function_inside_of_a_tool_is_judged_by_the_tool() -> None:
    @tool(after_crash="retry")
    def safe(what: int) -> None:
        hook(what)

    @tool
    def unsafe(what: int) -> None:
        hook(what)

    async def agent(run: Run) -> str:
        await run.call(safe, 1)
        await run.call(unsafe, 2)
        return "done"

    report = sweep(agent, watch=[hook], points="all")
    assert report.ok, str(report)
    allowed = {found.what for found in report.findings if found.tool == "hook"}
    assert all(what.startswith("hook(1) took place twice") for what in allowed) and allowed


async def cleans_up(run: Run) -> str:
    try:
        try:
            await run.call(look, "first")
        finally:
            await run.call(look, "last")
    except BaseException:
        await run.call(look, "after all")
        raise
    return "done"


def cleans_up_plainly(run: SyncRun) -> str:
    def numbers() -> Iterator[int]:
        try:
            yield from (1, 2)
        finally:
            run.call(look, "last")

    for number in numbers():
        run.call(look, number)
    return "done"


def dies_in_threads(run: SyncRun) -> str:
    threads = [threading.Thread(target=run.call, args=[charge, n]) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run.call(look, "behind")
    return "done"


@pytest.mark.parametrize("agent", [cleans_up_plainly, dies_in_threads])
def test_nothing_is_printed_of_deaths_that_are_planned(
    agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", said.append)
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    crash_everywhere(agent, points=10, watch=[hook])
    assert not said


def test_swallowing_everything_is_noted() -> None:
    async def agent(run: Run) -> str:
        async for step in run.steps():
            with suppress(BaseException):
                await run.call(charge, step)
            if step == 2:
                return "done"
        raise AssertionError

    report = sweep(agent)
    assert "the agent catches BaseException and continues" in str(report)
    for other in (in_threads, side_by_side, cleans_up, cleans_up_plainly):
        assert "BaseException" not in str(sweep(other))


# -- what the agent and its world are


def test_a_factory_is_given_the_world_that_setup_made() -> None:
    worlds: list[list[str]] = []

    def world() -> list[str]:
        worlds.append([])
        return worlds[-1]

    def make(bank: list[str]) -> RecoverableAgent:
        @tool
        def pay(to: str) -> int:
            bank.append(to)
            return len(bank)

        async def agent(run: Run) -> int:
            async for step in run.steps():
                paid = await run.call(pay, f"{run.task} {step}")
                if step == 2:
                    return int(paid)
            raise AssertionError

        return RecoverableAgent(agent, checkpoint_every_n=1)

    report = crash_everywhere(make, "ann", setup=world, effects=lambda bank: bank, points=20)
    assert report.ok, str(report)
    assert report.reference == "2"
    assert len(worlds) == report.points + 2
    assert all(bank == ["ann 1", "ann 2"] for bank in worlds)


def test_each_life_is_given_the_task_as_it_was() -> None:
    def agent(run: SyncRun) -> str:
        todo = run.state.setdefault("todo", run.task)
        for _ in run.steps():
            if not todo:
                return "done"
            charge(todo.pop(0))
        raise AssertionError

    task = [10, 20, 30]
    report = crash_everywhere(agent, task, setup=reset, effects=lambda: outside, points=16)
    assert report.ok, str(report)
    assert task == [10, 20, 30]


def test_an_agent_keeps_the_store_it_has(tmp_path: Path) -> None:
    agent = RecoverableAgent(chat, CheckpointStore(tmp_path / "runs"))
    store = agent.store
    assert sweep(agent).ok
    assert sweep(lambda: agent).ok
    assert agent.store is store
    assert not (tmp_path / "runs").exists()
    assert agent.recovery_count == 0


def test_effects_may_be_a_value_instead_of_a_list() -> None:
    balance = {"ann": 0}

    def restore() -> None:
        balance["ann"] = 0

    async def agent(run: Run) -> str:
        balance["ann"] += 5
        await run.call(charge, 1)
        return "done"

    report = crash_everywhere(agent, setup=restore, effects=lambda: balance)
    said = "what effects= gives is {'ann': 10}; without a crash it is {'ann': 5}"
    assert any(said in found.what for found in report.failures), str(report)


def test_effects_that_only_grow_need_no_setup() -> None:
    report = crash_everywhere(chat, "a task", effects=lambda: outside, points=10)
    assert report.ok, str(report)


def test_a_person_may_say_something_else_than_the_truth() -> None:
    asked = []

    def say(call: Any) -> Resolution:
        asked.append(call.tool)
        return Resolution.outcome("charged 1")

    async def agent(run: Run) -> Any:
        return await run.call(charge, 1)

    report = sweep(agent, resolve=say)
    assert set(asked) == {"charge"}
    assert kinds(report) == {("lost", "charge")}
    report = sweep(agent, resolve=lambda call: Resolution.retry())
    assert kinds(report) == {("ran twice", "charge")}
    report = sweep(agent, resolve=lambda call: Resolution.unknown())
    assert report.ok, str(report)


@pytest.mark.parametrize("what", [lambda: 7, lambda: None, lambda: lambda x: x])
def test_what_makes_no_agent_is_refused(what: Any) -> None:
    with pytest.raises(TypeError, match="not a RecoverableAgent"):
        crash_everywhere(what)


def test_only_python_functions_can_be_watched() -> None:
    with pytest.raises(TypeError, match="watch= is for functions written in Python, not <built-in"):
        sweep(chat, watch=[len])


def test_an_agent_that_fails_by_itself_raises_its_error() -> None:
    async def agent(run: Run) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        sweep(agent)
    assert "the run without any crash" in caught.value.__notes__[0]


def test_an_agent_that_hangs_by_itself_is_said_to() -> None:
    async def agent(run: Run) -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError, match=r"waits for ever, in agent \(test_testing"):
        sweep(agent)

    def plain_agent(run: SyncRun) -> None:
        threading.Event().wait()

    with pytest.raises(TimeoutError, match=r"waits for ever, in plain_agent"):
        sweep(plain_agent, timeout_s=0.3)


def test_errors_of_the_world_are_raised() -> None:
    def broken() -> None:
        raise OSError("no world today")

    with pytest.raises(OSError, match="no world today"):
        crash_everywhere(chat, setup=broken)
    with pytest.raises(OSError, match="no world today"):
        crash_everywhere(chat, effects=broken)


# -- points


def test_points_are_chosen_by_seed_and_can_be_repeated() -> None:
    report = sweep(undecorated, watch=[hook], points=12)
    assert 8 < report.points <= 12 < report.possible
    first = next(found.point for found in report.failures)
    again = sweep(undecorated, watch=[hook], points=[first])
    assert again.points == 1
    assert {found.point for found in again.findings} == {first}
    with pytest.raises(ValueError, match="no such crash point"):
        sweep(undecorated, points=["at the end of time"])
    with pytest.raises(ValueError, match='points is "all"'):
        sweep(undecorated, points=0)


def test_executions_of_tools_come_first_when_points_are_few() -> None:
    seen = []

    @tool
    def note(what: int) -> None:
        seen.append(threading.get_ident())

    async def agent(run: Run) -> str:
        await run.call(note, 1)
        return "done"

    report = sweep(agent, points=4, strict=True)
    assert any(
        found.point == "after note#1 took effect, before that was recorded"
        for found in report.findings
    )


def test_nobody_guesses_about_a_call_that_was_cut_in_the_middle() -> None:
    @tool
    async def early(what: int) -> int:
        outside.append(f"early {what}")
        await asyncio.sleep(10)
        return what

    async def agent(run: Run) -> Any:
        async def later(seconds: int) -> Any:
            await asyncio.sleep(seconds)
            return await run.call(look, seconds)

        return await asyncio.gather(run.call(early, 1), later(1))

    report = sweep(agent, effects=lambda: outside, points="all")
    assert report.ok, str(report)
    assert any(
        found.kind == "in doubt" and "early#1, look#1" in found.point for found in report.findings
    )


def test_one_key_used_twice_is_found_in_any_agent() -> None:
    async def agent(run: Run) -> float:
        await run.call(forgetful, 1)
        return random.random()

    report = sweep(agent, points="all")
    assert kinds(report) == {("differs", AGENT), ("ran twice", "forgetful")}
    assert "forgetful(1) took place twice under one idempotency key" in str(report)


def test_a_process_dies_in_every_way_in_which_one_can() -> None:
    async def agent(run: Run) -> str:
        await run.call(send, 1)
        await run.call(look, 1)
        return "done"

    report = sweep(agent, points="all", power_loss=True, strict=True)
    points = {found.point for found in report.findings}
    for way in (
        "before send#1 took effect",
        "after send#1 took effect, before that was recorded",
        r"at disk call \d+ of \d+ \(sync\), during send#1",
        r"at disk call \d+ of \d+ \(write of \d+ bytes, torn after \d+\), during look#1",
        r"at disk call \d+ .*, and again at disk call \d+ of the resumption",
        r"after send#1 .*, a power loss \(seed \d+\)",
    ):
        assert any(re.fullmatch(way, point) for point in points), way


# -- time, threads, loops


def test_a_run_that_was_given_up_does_nothing_any_more() -> None:
    others = threading.enumerate()
    gate = threading.Semaphore(2)  # for the two runs without a crash

    def agent(run: SyncRun) -> str:
        run.call(look, 1)
        gate.acquire()
        return charge("late")

    report = sweep(agent, points=["before charge#1 took effect"], timeout_s=2)
    assert kinds(report) == {("stuck", AGENT)}
    before = list(outside)
    (left,) = [thread for thread in threading.enumerate() if thread not in others]
    gate.release()
    left.join(60)
    assert not left.is_alive()
    assert outside == before


def test_an_agent_that_sleeps_for_days_takes_no_time() -> None:
    async def sleeper(run: Run) -> Any:
        began = asyncio.get_running_loop().time()
        async for step in run.steps():
            await asyncio.sleep(86_400)
            await run.call(send, step)
            if step == 3:
                return asyncio.get_running_loop().time() - began > 86_400

    assert sweep(sleeper).ok

    def plain_sleeper(run: SyncRun) -> Any:
        began = time.monotonic()
        for step in run.steps():
            time.sleep(86_400)
            run.call(send, step)
            if step == 3:
                return time.monotonic() - began > 86_400
        raise AssertionError

    report = sweep(plain_sleeper)
    assert report.ok, str(report)
    assert report.reference == "True"


async def waits_long(run: Run) -> Any:
    heard = asyncio.create_task(run.wait_for("go"))
    await run.sleep(86_400)
    try:
        await run.wait_for("never", timeout=7200)
    except TimeoutError:
        return await heard, await run.call(send, "late")


def waits_long_plainly(run: SyncRun) -> Any:
    for step in run.steps():
        try:
            run.wait_for("never", timeout=7200)
        except TimeoutError:
            run.sleep(86_400)
        if step == 2:
            return run.call(retried, "late"), run.wait_for("go")


@tool(after_crash="retry", retry=Retry(2, delay_s=3600, max_delay_s=3600))
def retried(what: str) -> str:
    call = current_call()
    if call is not None and call.attempt == 1:
        raise OSError("not yet")
    return what


def someone(store: CheckpointStore, run_id: str) -> None:
    signal(store, run_id, "go", "go", key="go")


@pytest.mark.parametrize("agent", [waits_long, waits_long_plainly])
def test_time_goes_on_to_the_next_deadline_at_once(agent: Any) -> None:
    began = time.process_time()
    report = sweep(agent, answer=someone, points=6)
    assert report.ok, str(report)
    assert time.process_time() - began < 5


def test_time_goes_on_where_the_threads_of_a_pool_have_no_work() -> None:
    def agent(run: SyncRun) -> Any:
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(lambda n: run.call(charge, n), range(2)))
            later = pool.submit(run.call, charge, "later")
            run.sleep(86_400)
            return found, later.result()

    report = sweep(agent)
    assert report.ok, str(report)


def test_time_does_not_go_on_beyond_what_the_agent_does_itself() -> None:
    async def agent(run: Run) -> Any:
        async def impatient() -> None:
            await asyncio.sleep(5000)
            sleeping.cancel()

        began = time.monotonic()
        sleeping = asyncio.create_task(run.sleep(86_400))
        await asyncio.gather(impatient(), sleeping, return_exceptions=True)
        return round((time.monotonic() - began) / 100)

    assert sweep(agent, points=5).reference == "50"


def test_runs_of_the_same_child_have_ids_of_their_own() -> None:
    async def child(run: Run) -> Any:
        return await run.call(send, run.task), run.uuid()

    async def agent(run: Run) -> Any:
        async for step in run.steps():
            found = await run.child(child, 5)
            if step == 1:
                run.state["first"] = found
            else:
                return found[1] != run.state["first"][1]

    report = sweep(agent)
    assert report.ok, str(report)
    assert report.reference == "True"


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_a_plain_agent_is_not_stuck_where_its_child_parks(kind: str) -> None:
    async def child(run: Run) -> Any:
        return await run.call(send, run.task)

    def plain_child(run: SyncRun) -> Any:
        return run.call(send, run.task)

    def agent(run: SyncRun) -> Any:
        return run.child(child if kind == "async" else plain_child, 5)

    report = sweep(agent)
    assert report.ok, str(report)
    assert {found.kind for found in report.findings} == {"in doubt"}


def test_what_was_replaced_is_put_back() -> None:
    before = time.sleep, time.time, time.monotonic, asyncio.events.new_event_loop
    disabled = [logging.getLogger(name).disabled for name in ("recovery", "eventlog", "asyncio")]
    assert sweep(chat, points=2).ok
    assert before == (time.sleep, time.time, time.monotonic, asyncio.events.new_event_loop)
    after = [logging.getLogger(name).disabled for name in ("recovery", "eventlog", "asyncio")]
    assert after == disabled
    assert sys.getprofile() is None


def test_it_can_be_called_in_a_running_event_loop() -> None:
    async def test() -> CrashReport:
        return sweep(chat, points=2)

    assert asyncio.run(test()).ok


def test_timeouts_of_real_sockets_do_not_run_ahead_of_them() -> None:
    async def agent(run: Run) -> str:
        async def answer(reader: Any, writer: Any) -> None:
            writer.write(await reader.readline())
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            async with asyncio.timeout(60):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"hello\n")
                said = await reader.read()
                writer.close()
                await writer.wait_closed()
        await run.call(charge, said.decode())
        return "done"

    report = sweep(agent, points=6)
    assert report.ok, str(report)


def test_what_run_gives_is_the_same_in_each_run_and_differs_from_place_to_place() -> None:
    given: list[list[Any]] = []

    async def agent(run: Run) -> str:
        values: list[Any] = []
        async for step in run.steps():
            values += [run.uuid(), run.uuid(), run.random(), run.now(), run.now()]
            if step == 2:
                given.append(values)
                return "done"
        raise AssertionError

    assert sweep(agent, points=5).ok
    whole = [values for values in given if len(values) == 10]
    assert len(whole) >= 2
    assert all(values == whole[0] for values in whole)
    assert len(set(map(str, whole[0]))) == 10
    times = [whole[0][i] for i in (3, 4, 8, 9)]
    assert times == sorted(times)


# -- the test itself is tested: faults of the runtime are found


def test_a_runtime_that_repeats_calls_in_doubt_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def repeat(*args: Any) -> Any:
        return None
        yield

    monkeypatch.setattr(recovery.calls.attempts, "resolve_in_doubt", repeat)
    report = sweep(chat)
    assert kinds(report) == {("ran twice", "send")}


def test_a_runtime_that_does_not_commit_intents_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def lazily(self: Any) -> None:
        """Nothing is flushed."""

    monkeypatch.setattr("recovery.engine.execution_base.ExecutionBase.commit", lazily)
    for power_loss in (False, True):  # an intent is written with what is committed
        report = sweep(chat, power_loss=power_loss, points=40)
        assert ("ran twice", "send") in kinds(report)


def test_a_runtime_that_forgets_outcomes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def match(self: Any, key: Any) -> None:
        """Nothing is recorded."""

    monkeypatch.setattr("recovery.replay.matching.Replay.match", match)
    report = sweep(chat)
    assert not report.ok


# -- the report


def finding(kind: Any, point: str, what: str = "x", **more: Any) -> Finding:
    return Finding(kind, point, more.pop("tool", ""), what, **more)


def test_the_same_finding_at_several_points_is_one_line() -> None:
    found = [
        finding("ran twice", f"point {n}", f"pay({n}) took place {n} times", tool="pay")
        for n in (2, 3, 4)
    ]
    text = str(CrashReport("agent", 9, 9, "None", tuple(found)))
    assert text.startswith("agent: 1 fault, at 3 crash points\n  pay\n")
    assert "RAN TWICE: pay(2) took place 2 times\n      3 points, the first: point 2\n" in text
    assert "pay(3)" not in text


def test_the_worst_is_what_is_to_be_done_about() -> None:
    found = (finding("in doubt", "a"), finding("differs", "b"), finding("lost", "c"))
    text = str(CrashReport("agent", 3, 3, "None", found))
    assert text.splitlines()[-1].startswith("What to do: Make the effect inside a recorded call")
    assert not CrashReport("agent", 3, 3, "None", found).ok
    allowed = (finding("ran twice", "a", allowed=True),)
    report = str(CrashReport("agent", 3, 3, "None", allowed))
    assert report.endswith("\nNothing to do.")
    assert "made again (allowed): " in report and "ran twice" not in report


def test_a_report_says_what_it_rests_on() -> None:
    report = CrashReport("agent", 5, 7, "'ok'", (), {"pay": 1, "look": 2}, 3, 90, notes=("look",))
    assert str(report).splitlines() == [
        "agent: survives a crash at every point that was tried",
        "  note: look",
        "  without a crash: 'ok'; executed pay 1 time, look 2 times",
        "  5 crash points (of 90), 7 resumptions, seed 3",
        "Nothing to do.",
    ]


def test_a_divergence_names_the_line_of_the_agent() -> None:
    report = sweep(random_argument)
    now = [line for line in str(report).splitlines() if "now: charge" in line]
    assert now and all(f"{Path(__file__).name}:" in line for line in now)


def test_random_agents_are_judged_by_what_can_be_known(rng: random.Random) -> None:
    async def agent(run: Run) -> Any:
        async for step in run.steps():
            await run.call(look, step)
            charge(step)
            if step == 2:
                return random.random()

    report = sweep(agent, seed=rng.randrange(1 << 20))
    assert kinds(report) == {("differs", AGENT)}  # nothing but that the result is random
    assert "without any crash" in str(report)
    assert "random.random() in agent" in str(report)


# -- the page about it

PAGE, DEBUGGING = "testing-agents.md", "debugging.md"


def test_the_tests_of_the_page_pass_and_say_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crash, "POINTS", 30)
    short, whole, watching, fixture = blocks(PAGE)
    names = run_page(PAGE, [short, whole, watching, fixture], {"log_to_slack": hook})
    names["test_the_shop_survives"]()
    names["test_it_logs_once"]()
    tested = []

    def sweep_it(*args: Any, **options: Any) -> None:
        tested.append(crash_everywhere(*args, **options))

    names["test_my_agent_survives"](sweep_it)
    (report,) = tested
    quoted = next(one for one in blocks(PAGE, "text") if one.startswith("make_agent"))
    # Which calls of the disk a run makes is not the page's business.
    said, told = (re.sub(r"\d+|\(sync\)|\(write.*?\)", "N", one) for one in (str(report), quoted))
    assert said.startswith(told), str(report)
    (point,) = re.findall(r'points=\["(.*?)"\]', page_text(PAGE))
    again = crash_everywhere(names["make_agent"], "a task", setup=names["Outside"], points=[point])
    assert again.points == 1


def test_the_page_replays_a_production_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    @tool
    def ask_model(what: str) -> int:
        assert not recorded, "it is executed again"
        return 5

    async def shop(run: Run) -> int:
        return int(await run.call(ask_model, run.task))

    recorded: list[Any] = []
    agent = RecoverableAgent(shop, "runs")
    recorded.append(asyncio.run(agent.run_with_recovery("tea", "run_001")))
    exported = call("logdump", "export", "runs/run_001", cwd=tmp_path).out
    (tmp_path / "run_001.jsonl").write_text(exported)
    names = run_page(DEBUGGING, blocks(DEBUGGING), {"shop": shop, "cheaper_model": lambda what: 4})
    names["test_the_run_of_tuesday"](names["replay"])
    names["test_another_model"]()
    assert "4" in capsys.readouterr().out


def test_the_first_five_lines_of_the_page_are_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crash, "POINTS", 5)
    given = {"make_agent": lambda: RecoverableAgent(chat, CheckpointStore())}
    names = run_page(PAGE, blocks(PAGE)[:1], given)
    names["test_my_agent_survives"]()


def test_the_page_tells_of_every_kind_and_option() -> None:
    page = page_text(PAGE)
    for kind in get_args(Kind):
        assert f"| `{kind if kind == 'in doubt' else kind.upper()}` |" in page
    doc = crash_everywhere.__doc__ or ""
    for option in CrashOptions.__annotations__:
        assert f"\n        {option}: " in doc, option
