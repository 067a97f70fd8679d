"""tool(call_id=...): the model's id of a call, for a tool that is called directly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from recovery import CheckpointStore, Run, SyncRun, current_call, tool
from recovery.journal.events import CallIntended
from tests.support.lives import Died, after_death, disk_store, executed, recorded, run, run_sync

pytestmark = pytest.mark.usefixtures("fresh")


@tool
def pay(to: str, cents: int = 0, *, note: str = "") -> str:
    call = current_call()
    assert call is not None
    executed[call.call_id] += 1
    return f"{call.call_id}: {cents} to {to} {note}".strip()


@tool
async def pay_async(to: str, cents: int = 0, *, note: str = "") -> str:
    return pay.__wrapped__(to, cents, note=note)  # type: ignore[attr-defined,no-any-return]


class Bank:
    @tool(identity=["to"])
    def pay(self, to: str, cents: int = 0, *, note: str = "") -> str:
        return pay.__wrapped__(to, cents, note=note)  # type: ignore[attr-defined,no-any-return]


def undecorated(to: str, cents: int = 0, *, note: str = "") -> str:
    return pay.__wrapped__(to, cents, note=note)  # type: ignore[attr-defined,no-any-return]


WAYS: dict[str, Callable[[Any], Any]] = {
    "by position": lambda pays: pays("ann", 5),
    "by name": lambda pays: pays(to="ann", cents=5),
    "both": lambda pays: pays("ann", cents=5, note="x"),
    "partly bound": lambda pays: partial(pays, "ann")(5),
}
TOOLS: dict[str, Any] = {
    "plain": pay,
    "async": pay_async,
    "method": Bank().pay,
    "no tool before": undecorated,
    "partial of a tool": partial(pay, note="y"),
}


@pytest.mark.parametrize("kind", ["async", "plain"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", TOOLS)
def test_a_tool_called_directly_has_the_id_it_is_given(name: str, way: str, kind: str) -> None:
    store, ids = CheckpointStore(), ["toolu_1", "toolu_2"]
    if name == "partial of a tool" and way == "both":
        return  # it has a note

    def calls() -> list[Any]:
        return [WAYS[way](tool(call_id=one)(TOOLS[name])) for one in ids]

    async def agent(run: Run) -> Any:
        found = calls()
        return await asyncio.gather(*found) if name == "async" else found

    async def gathered(found: list[Any]) -> list[Any]:
        return list(await asyncio.gather(*found))

    def plain_agent(run: SyncRun) -> Any:
        async def main() -> list[Any]:
            return await gathered(calls())

        return asyncio.run(main()) if name == "async" else calls()

    go: Any = partial(run, agent) if kind == "async" else partial(run_sync, plain_agent)
    result = go(store)["result"]
    assert [one.partition(":")[0] for one in result] == ids
    assert [one.call_id for one in recorded(store, CallIntended)] == ids
    assert go(store)["result"] == result
    assert executed == dict.fromkeys(ids, 1)


def test_it_is_the_id_that_run_call_gives() -> None:
    """A run that was begun with run.call(..., call_id=) goes on with tools called directly."""
    store, calls_directly = disk_store(), False

    async def agent(run: Run) -> Any:
        if calls_directly:
            return [tool(call_id="a")(pay)("ann"), tool(call_id="b", retry=2)(pay)("bob")]
        first = await run.call(pay, "ann", call_id="a")
        second = await run.call(pay, "bob", call_id="b")
        if run.recovery_count == 0:
            raise Died
        return [first, second]

    with pytest.raises(Died):
        run(agent, store)
    calls_directly = True
    assert run(agent, after_death(store))["result"] == ["a: 0 to ann", "b: 0 to bob"]
    assert executed == {"a": 1, "b": 1}


def test_what_run_call_says_counts() -> None:
    store = CheckpointStore()

    async def agent(run: Run) -> Any:
        return await run.call(tool(call_id="a")(pay), "ann", call_id="b")

    assert run(agent, store)["result"] == "b: 0 to ann"


def test_the_tool_itself_stays_without_one() -> None:
    store = CheckpointStore()

    async def agent(run: Run) -> Any:
        tool(call_id="a")(pay)("ann")
        return pay("ann")

    assert run(agent, store)["result"] == ": 0 to ann"
    assert [one.call_id for one in recorded(store, CallIntended)] == ["a", ""]
    assert tool(call_id="a")(len)("xy") == 2  # outside of a run it is the function


def test_a_parameter_of_that_name_has_it() -> None:
    @tool
    def knows(to: str, call_id: str = "") -> str:
        return f"{call_id} to {to}"

    def agent(run: SyncRun) -> Any:
        return tool(call_id="a")(knows)("ann")

    assert run_sync(agent, CheckpointStore())["result"] == "a to ann"


@pytest.mark.parametrize("call_id", ["", 7, None])
def test_an_id_that_is_no_text_is_refused(call_id: Any) -> None:
    with pytest.raises(TypeError, match="call_id is text"):
        tool(call_id=call_id)(pay)
