"""What is changed in place where a resumed run does not see it is said when it happens first."""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest

import recovery.agent_code.warn_once
import recovery.engine.changed_in_place
from recovery import CheckpointStore, RecoverableAgent, tool

Agent = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def _nothing_was_said(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(recovery.agent_code.warn_once, "_said", set())
    monkeypatch.setattr(recovery.engine.changed_in_place, "_looks", Counter())
    monkeypatch.setattr("recovery.agent.agent_errors.BACKOFF_S", 0.0)
    yield


def said_of(
    agent: Agent, caplog: pytest.LogCaptureFixture, task: Any = "task", **options: Any
) -> list[str]:
    """The warnings of a run, which nothing has disturbed."""
    caplog.set_level(logging.WARNING, "recovery")
    made = RecoverableAgent(agent, CheckpointStore(), 1, **options)
    if inspect.iscoroutinefunction(agent):
        asyncio.run(made.run_with_recovery(task, "run"))
    else:
        made.run_with_recovery_sync(task, "run")
    return [record.getMessage() for record in caplog.records]


@tool
def add(cart: list[str], item: str, note: Any = None) -> int:
    cart.append(item)
    return len(cart)


@tool
async def strip(headers: dict[str, Any], *, keep: str) -> str:
    return str(headers["x"].pop(keep))


def fills(run: Any) -> None:
    cart: list[str] = []
    for step in run.steps():
        add(cart, "pen", note={"a": 1})
        if step == 2:
            return


async def strips(run: Any) -> None:
    await strip(keep="a", headers={"x": {"a": 1}})


def changes_its_task(run: Any) -> None:
    for _ in run.steps():
        run.task.pop(0)
        if not run.task:
            return


def shares(run: Any) -> None:
    for step in run.steps():
        orders = run.state.setdefault("orders", [{"items": []}])
        current = run.state.setdefault("current", orders[0])
        current["items"].append(step)
        if step == 3:
            return


@pytest.mark.parametrize(
    "agent, task, expected",
    [
        (fills, "", "tool add in .*test_in_place.py.* has changed its argument 'cart' in place"),
        (strips, "", "tool strip in .* has changed its argument 'headers' in place"),
        (changes_its_task, [1, 2, 3], "run.task was changed in place.*run.state.setdefault"),
        (shares, "", r"run.state\['current'\] and run.state\['orders'\]\[0\] are one object"),
    ],
)
def test_it_is_said_once(
    agent: Agent, task: Any, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    said = said_of(agent, caplog, task)
    assert sum(bool(re.search(expected, one)) for one in said) == 1, said


@tool
def opens(cache: dict[str, Any]) -> str:
    cache["client"] = object()
    return "opened"


def keeps_clients(run: Any) -> str:
    for step in run.steps():
        opens({"of": step})
        run.task["client"] = object()
        if step == 3:
            return "done"
    raise AssertionError


def test_to_look_stops_no_run(caplog: pytest.LogCaptureFixture) -> None:
    """What is in the arguments and the task by now cannot be carried, and need not be."""
    said = said_of(keeps_clients, caplog, {"a": 1})
    assert ["argument 'cache'" in said[0], "run.task" in said[1], len(said)] == [True, True, 2]


def goes_by_the_book(run: Any) -> None:
    todo = run.state.setdefault("todo", run.task["todo"])
    run.state["done"] = []
    config = {"limit": 1}
    run.state |= {"one": config, "other": config}  # the same, and left as it is
    while_made: list[int] = []
    for step in run.steps():
        run.messages.append({"n": step})
        run.state["done"].append(look([todo.pop(0)], run.messages, while_made))
        if not todo:
            return


@tool(after_crash="retry")
def look(at: Any, messages: Any, other: Any) -> int:
    return len(messages)


def test_nothing_is_said_of_what_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    task = {"todo": [1, 2, 3]}
    assert said_of(goes_by_the_book, caplog, task) == []
    assert task == {"todo": [1, 2, 3]}, "the caller's own"


def test_check_locals_turns_it_off_for_the_state_and_the_task(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert said_of(shares, caplog, check_locals=False) == []
    assert said_of(changes_its_task, caplog, [1, 2], check_locals=False) == []


@pytest.mark.parametrize("every", [1, None])
def test_a_task_is_what_was_given_in_each_life(every: int | None) -> None:
    """An error of the process that can get better, and the agent has taken its task apart."""
    failed: list[int] = []
    given, effects = [10, 20, 30], list[int]()

    def agent(run: Any) -> str:
        todo = run.state.setdefault("todo", run.task)
        for step in run.steps():
            pay(todo.pop(0))
            if step == 2 and not failed:
                failed.append(step)
                raise ConnectionError
            if not todo:
                return "done"
        raise AssertionError

    @tool
    def pay(what: int) -> None:
        effects.append(what)

    made = RecoverableAgent(agent, CheckpointStore(), every, max_recoveries=2)
    assert made.run_with_recovery_sync(given, "run")["result"] == "done"
    assert effects == given == [10, 20, 30]


@tool
def reads(pages: list[str], spoil: bool) -> int:
    if spoil:
        pages.append("!")
    return len(pages)


@pytest.mark.parametrize("spoiled_in", [1, 40, None])
def test_what_is_large_is_looked_at_seldom_and_what_changes_in_it_is_said(
    spoiled_in: int | None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = ["page" * 10] * 1000
    looked = mock.Mock(wraps=recovery.engine.changed_in_place._packed)
    monkeypatch.setattr(recovery.engine.changed_in_place, "_packed", looked)

    def agent(run: Any) -> None:
        kept = run.state.setdefault("pages", pages)
        for step in run.steps():
            spoil = step == spoiled_in
            reads(kept, step >= (spoiled_in or 100))
            if spoil:
                run.task.pop()
            if step == 64:
                return

    said = said_of(agent, caplog, ["row" * 10] * 1000)
    if spoiled_in is None:
        assert said == [] and looked.call_count <= 2 * 7, "64 calls, 64 checkpoints"
    else:
        assert ["reads" in said[0], "run.task" in said[1], len(said)] == [True, True, 2]
