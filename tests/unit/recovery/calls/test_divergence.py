"""Code that is edited between a crash and the resumption: what each edit comes to.

`EDITS` is the table of docs/divergence.md. An edit that is accepted finishes the run and repeats
nothing; one that stops it has executed nothing new, and the old code goes on with the run.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest

from recovery import CheckpointStore, InDoubtError, RecoverableAgent, Run, RunResult, tool
from recovery.errors import DivergenceError
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "divergence.md").read_text()

executed: Counter[Any] = Counter()


class DiesError(Exception):
    pass


def made(what: Any) -> str:
    executed[what] += 1
    return f"did {what}"


@tool
def send(what: Any, to: str = "all") -> str:
    return made(what)


@tool(after_crash="retry")
def look(what: Any) -> str:
    return made(what)


@tool
async def team(what: Any) -> list[str]:
    return [send(f"{what} in it"), look(f"{what} too")]


post = tool(name="post")(made)
mail = tool(name="send")(lambda what, to="all": f"changed: {made(what)}")
send_retried = tool(name="send", after_crash="retry")(made)
look_parked = tool(name="look")(made)
cut = Counter[Any]()


def cut_once(what: Any) -> str:
    cut[what] += 1
    if cut[what] == 1:
        raise KeyboardInterrupt  # the process ends inside the tool
    return made(what)


cut_send = tool(name="send")(cut_once)
cut_look = tool(name="look", after_crash="retry")(cut_once)

Body = Callable[[Run], Any]


def calls(*each: Any) -> Body:
    """Code that makes calls, a tuple (tool, args...) each, without steps."""

    async def body(run: Run) -> None:
        for function, *args in each:
            await run.call(function, *args)

    return body


def steps(*each: list[Any]) -> Body:
    async def body(run: Run) -> None:
        async for step in run.steps():
            for function, *args in each[step - 1]:
                await run.call(function, *args)
            if step == len(each):
                return

    return body


def body_of(code: Callable[[Run], Any]) -> Body:
    async def body(run: Run) -> None:
        await code(run)

    return body


async def by_name(run: Run) -> None:
    await run.call(send, to="all", what="a")


async def by_position(run: Run) -> None:
    await run.call(send, "a", "all")


async def with_id(run: Run) -> None:
    await run.call(send, "a", call_id="call_1")


async def with_other_id(run: Run) -> None:
    await run.call(send, "a", call_id="call_2")


async def in_tasks(run: Run) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(run.call(send, "b"))
        group.create_task(run.call(send, "a"))


async def in_gather(run: Run) -> None:
    await asyncio.gather(run.call(send, "a"), run.call(send, "b"))


def messages(*each: Any, edit: bool = False) -> Body:
    async def body(run: Run) -> None:
        for message in each:
            run.messages.append(message)
        if edit:
            run.messages[0] = "edited"
        await run.call(send, "a")

    return body


def asks(count: int) -> Body:
    async def body(run: Run) -> None:
        for _ in range(count):
            run.now()
        run.state["asked"] = count
        await run.call(send, "a")

    return body


@dataclass(frozen=True)
class Edit:
    """``what`` turns ``old`` into ``new``. ``verdict``: accepted, stops or parks."""

    what: str
    verdict: str
    old: Body
    new: Body
    new_calls: tuple[Any, ...] = ()
    every: int = 99


AB = calls((send, "a"), (send, "b"))
EDITS = [
    Edit("changed argument", "stops", AB, calls((send, "a"), (send, "c"))),
    Edit("changed argument of a read", "drift", calls((look, "a")), calls((look, "b"))),
    Edit("argument by position instead of by name", "accepted", by_name, by_position),
    Edit("changed tool", "stops", AB, calls((send, "a"), (post, "b"))),
    Edit("changed function under the same name", "accepted", AB, calls((mail, "a"), (mail, "b"))),
    Edit("dropped call", "stops", AB, calls((send, "b"))),
    Edit("dropped last call", "stops", AB, calls((send, "a"))),
    Edit(
        "new side effect before recorded calls",
        "stops",
        AB,
        calls((send, "new"), (send, "a"), (send, "b")),
    ),
    Edit(
        "new read before recorded calls",
        "drift",
        AB,
        calls((look, "new"), (send, "a"), (send, "b")),
        ("new",),
    ),
    Edit(
        "new call after all recorded ones",
        "accepted",
        AB,
        calls((send, "a"), (send, "b"), (send, "new")),
        ("new",),
    ),
    Edit("changed order of recorded calls", "accepted", AB, calls((send, "b"), (send, "a"))),
    Edit(
        "changed order, only one of them recorded",
        "stops",
        calls((send, "a")),
        calls((send, "b"), (send, "a")),
    ),
    Edit(
        "step that grew, with recorded steps after it",
        "stops",
        steps([(send, "a")], [(send, "b")]),
        steps([(send, "a"), (send, "new")], [(send, "b")]),
    ),
    Edit(
        "last recorded step that grew",
        "accepted",
        steps([(send, "a")], [(send, "b")]),
        steps([(send, "a")], [(send, "b"), (send, "new")]),
        ("new",),
    ),
    Edit(
        "step that shrank",
        "stops",
        steps([(send, "a"), (send, "b")], [(send, "c")]),
        steps([(send, "a")], [(send, "c")]),
    ),
    Edit(
        "more steps",
        "accepted",
        steps([(send, "a")]),
        steps([(send, "a")], [(send, "new")]),
        ("new",),
    ),
    Edit("fewer steps", "stops", steps([(send, "a")], [(send, "b")]), steps([(send, "a")])),
    Edit(
        "call moved to a later step",
        "stops",
        steps([(send, "a"), (send, "b")], []),
        steps([(send, "a")], [(send, "b")]),
    ),
    Edit(
        "call moved to an earlier step",
        "stops",
        steps([(send, "a")], [(send, "b")]),
        steps([(send, "a"), (send, "b")], []),
    ),
    Edit(
        "step before the checkpoint edited",
        "accepted",
        steps([(send, "a")], [(send, "b")], [(send, "c")]),
        steps([(send, "x")], [(look, "y")], [(send, "c")]),
        (),
        1,
    ),
    Edit("changed call id", "stops", with_id, with_other_id),
    Edit("call id added", "stops", calls((send, "a")), with_id),
    Edit("calls moved into tasks", "accepted", AB, in_tasks),
    Edit("calls moved into a gather", "accepted", AB, in_gather),
    Edit("calls moved out of a gather", "accepted", in_gather, AB),
    Edit(
        "call moved into a tool",
        "stops",
        calls((send, "a in it"), (look, "a too")),
        calls((team, "a")),
    ),
    Edit(
        "call moved out of a tool",
        "stops",
        calls((team, "a")),
        calls((send, "a in it"), (look, "a too")),
    ),
    Edit("changed message", "drift", messages("old"), messages("new")),
    Edit("dropped message", "drift", messages("one", "two"), messages("one")),
    Edit("new message before recorded ones", "drift", messages("one"), messages("zero", "one")),
    Edit("changed edit of a message", "drift", messages("one", edit=True), messages("one", "two")),
    Edit("run.now() added, or state set otherwise", "accepted", asks(0), asks(2)),
    Edit("run.now() dropped", "accepted", asks(2), asks(0)),
    Edit(
        "after_crash from park to retry, a call in doubt",
        "accepted",
        calls((cut_send, "a")),
        calls((send_retried, "a")),
        ("a",),
    ),
    Edit(
        "after_crash from retry to park, a call in doubt",
        "parks",
        calls((cut_look, "a")),
        calls((look_parked, "a")),
    ),
    Edit(
        "after_crash changed, all calls with outcomes",
        "accepted",
        calls((send, "a"), (look, "b")),
        calls((send_retried, "a"), (look_parked, "b")),
    ),
]


def live(
    body: Body, store: CheckpointStore, every: int, *, dies: bool, **options: Any
) -> RunResult[Any]:
    async def agent(run: Run) -> str:
        await body(run)
        if dies:
            raise DiesError
        return "done"

    of = RecoverableAgent(agent, store, every, max_recoveries=0, **options)
    # The edits are data here, which is no code.
    with mock.patch(
        "recovery.agent.begin_run.digest_of", lambda agent_fn: f"code that dies: {dies}"
    ):
        return asyncio.run(of.run_with_recovery("t", "run"))


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.what)
def test_an_edit_is_harmless_or_stops_the_run_before_any_new_side_effect(edit: Edit) -> None:
    executed.clear()
    cut.clear()
    store = CheckpointStore()
    with pytest.raises((DiesError, KeyboardInterrupt)):
        live(edit.old, store, edit.every, dies=True)
    before = Counter(executed)
    if edit.verdict == "drift":
        with pytest.raises(DivergenceError):
            live(edit.new, store, edit.every, dies=False, on_drift="stop")
        assert executed == before
    if edit.verdict in ("accepted", "drift"):
        found = live(edit.new, store, edit.every, dies=False)
        assert found["result"] == "done"
        assert bool(found["report"].drift) == (edit.verdict == "drift")
        assert executed == before + Counter(edit.new_calls)
        return
    for _ in range(2):
        with pytest.raises(DivergenceError if edit.verdict == "stops" else InDoubtError):
            live(edit.new, store, edit.every, dies=False)
        assert executed == before
    assert live(edit.old, store, edit.every, dies=False)["result"] == "done"
    assert max(executed.values()) == 1


def test_the_page_has_each_edit_with_its_verdict() -> None:
    titles = {
        "The run stops": "stops",
        "The run continues, and reports drift": "drift",
        "The run continues": "accepted",
        "The run parks": "parks",
    }
    said = [
        (what.replace("`", ""), titles[title])
        for title, section in re.findall(r"^### (.*)\n\n((?:- .*\n(?:  .*\n)*)+)", PAGE, re.M)
        for item in re.findall(r"^- (.*(?:\n  .*)*)", section, re.M)
        for what in " ".join(item.split()).partition(": ")[0].split("; ")
    ]
    assert sorted(said) == sorted((edit.what, edit.verdict) for edit in EDITS)


def test_a_read_under_the_id_of_a_side_effect_is_not_made_in_its_place() -> None:
    async def sends(run: Run) -> None:
        await with_id(run)
        raise DiesError

    async def looks(run: Run) -> None:
        await run.call(look, "a", call_id="call_1")

    executed.clear()
    store = CheckpointStore()
    for agent, error in ((sends, DiesError), (looks, DivergenceError)):
        with pytest.raises(error):
            asyncio.run(
                RecoverableAgent(agent, store, max_recoveries=0).run_with_recovery("task", "run")
            )
    assert executed == {"a": 1}
