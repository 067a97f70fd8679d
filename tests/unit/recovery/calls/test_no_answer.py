"""NoAnswerError: a tool that does not know whether its call took effect says so."""

from __future__ import annotations

from typing import Any

import pytest

from recovery import (
    Call,
    CheckpointStore,
    OutcomeUnknown,
    Resolution,
    Run,
    SyncRun,
    current_call,
    tool,
)
from recovery.errors import InDoubtError, NoAnswerError
from recovery.journal.events import AttemptFailed, CallFailed
from recovery.testing import crash_everywhere
from tests.support.lives import RUN, executed, recorded, run, run_sync

pytestmark = pytest.mark.usefixtures("fresh")


class BrokenLineError(NoAnswerError):
    """Of somebody's own."""


def charge(cents: int) -> str:
    executed["charge"] += 1
    if executed["charge"] == 1:
        raise BrokenLineError("the bank did not answer")
    return f"charged {cents}"


def charges(options: dict[str, Any], function: Any = charge) -> Any:
    async def agent(run: Run) -> Any:
        return await run.call(tool(**options)(function), 5)

    return agent


def test_a_plain_agent_that_calls_directly_is_told_nothing() -> None:
    """The tool's error does not reach the agent: the run parks."""
    store, caught = CheckpointStore(), list[Exception]()

    def agent(run: SyncRun) -> Any:
        try:
            return tool(charge)(5)
        except Exception as exc:
            caught.append(exc)

    with pytest.raises(InDoubtError):
        run_sync(agent, store)
    assert caught == []


def test_it_did_not_happen_so_it_is_made_again_under_its_key() -> None:
    store, keys = CheckpointStore(), set[str]()

    def keyed(cents: int) -> str:
        call = current_call()
        assert call is not None
        keys.add(call.idempotency_key)
        return charge(cents)

    agent = charges({}, keyed)
    with pytest.raises(InDoubtError):
        run(agent, store)
    (call,) = store.run(RUN).status().in_doubt
    store.run(RUN).resolve(call.lsn, Resolution.retry())
    assert run(agent, store)["result"] == "charged 5"
    assert executed == {"charge": 2} and len(keys) == 1


def test_policies_decide_at_once() -> None:
    assert isinstance(
        run(charges({"after_crash": "report"}), CheckpointStore())["result"], OutcomeUnknown
    )
    executed.clear()

    def asks(call: Call) -> Resolution:
        return Resolution.outcome("the bank says yes")

    store = CheckpointStore()
    assert run(charges({"reconcile": asks}), store)["result"] == "the bank says yes"
    assert executed == {"charge": 1}


def test_what_is_safe_to_repeat_has_failed_and_may_be_retried() -> None:
    store = CheckpointStore()
    options: Any = {"after_crash": "retry", "retry": 2}
    assert run(charges(options), store)["result"] == "charged 5"
    assert len(recorded(store, AttemptFailed)) == 1
    executed.clear()

    async def agent(run: Run) -> str:
        try:
            return str(await run.call(tool(after_crash="retry")(charge), 5))
        except BrokenLineError as exc:
            return f"failed: {exc}"

    store = CheckpointStore()
    assert run(agent, store)["result"] == "failed: the bank did not answer"
    (failed,) = recorded(store, CallFailed)
    assert failed.message == "the bank did not answer"


def test_it_survives_every_crash() -> None:
    done: list[str] = []

    async def pay(cents: int) -> str:
        done.append("paid")
        raise NoAnswerError("gone")

    async def reads(what: str) -> str:
        raise NoAnswerError("gone")

    async def agent(run: Run) -> Any:
        found = await run.call(tool(after_crash="report")(pay), 5)
        try:
            await run.call(tool(after_crash="retry")(reads), "x")
        except NoAnswerError as exc:
            return [type(found).__name__, str(exc)]

    report = crash_everywhere(agent, setup=done.clear, effects=lambda: done, points=20)
    assert report.ok, str(report)
