"""A run is gone on with from its id alone: its task is the one that it has recorded."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from eventlog import LogLockedError
from eventlog.errors import FencedError
from recovery import (
    Checkpoint,
    CheckpointStore,
    InDoubtError,
    RecoverableAgent,
    RecoveryError,
    Run,
    SyncRun,
    tool,
)
from recovery.engine.run_session import RunSession
from recovery.errors import RunFailedError
from recovery.text import SEALED_TEXT
from tests.support.lives import Died

TASK = {"to": "Ann", "n": float("nan")}
executed: Counter[str] = Counter()


@tool
def send(what: str) -> str:
    executed[what] += 1
    if executed[what] == 1:
        raise Died
    return f"sent {what}"


def plain(run: SyncRun) -> Any:
    return run.call(send, run.task["to"])


async def coroutine(run: Run) -> Any:
    return await run.call(send, run.task["to"])


@pytest.fixture(params=[plain, coroutine], ids=["plain", "async"])
def agent(request: pytest.FixtureRequest, tmp_path: Path) -> RecoverableAgent:
    executed.clear()
    return RecoverableAgent(request.param, CheckpointStore(tmp_path))


def begun(agent: RecoverableAgent) -> None:
    with pytest.raises(Died):
        agent.run_with_recovery_sync(TASK, "run")


def test_it_never_begins_a_run(agent: RecoverableAgent) -> None:
    with pytest.raises(RecoveryError, match=r"there is no run 'run' in .*\. Nothing was executed"):
        agent.resume_sync("run")
    assert agent.store.backend.run_ids() == []
    agent.store.save(Checkpoint("c1", "run", 1, {}, [], [], 1.0))
    with pytest.raises(RecoveryError, match="no agent has begun run 'run'"):
        asyncio.run(agent.resume("run"))
    assert executed == {}


def test_not_even_one_that_was_removed_a_moment_ago(
    agent: RecoverableAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(agent)
    resolved = agent.store.claim

    def removed_first(run_id: str, takeover: bool = False) -> Any:
        agent.store.backend.remove(run_id)
        return resolved(run_id, takeover)

    monkeypatch.setattr(agent.store, "claim", removed_first)
    with pytest.raises(RecoveryError, match="no agent has begun run"):
        agent.resume_sync("run")
    assert executed == {"Ann": 1}


def test_a_live_run_is_left_alone_unless_it_is_taken_over(agent: RecoverableAgent) -> None:
    begun(agent)
    with agent.store.claim("run") as log:
        with pytest.raises(LogLockedError):
            agent.resume_sync("run")
        with pytest.raises(InDoubtError):
            agent.resume_sync("run", takeover=True)
        with pytest.raises(FencedError):
            log.append("late", b"\xc0")
            log.commit()


def test_in_async_code_it_says_what_to_await(tmp_path: Path) -> None:
    agent = RecoverableAgent(coroutine, CheckpointStore(tmp_path))

    async def code() -> None:
        with pytest.raises(RuntimeError, match=r"await resume\(\.\.\.\)"):
            agent.resume_sync("run")
        with pytest.raises(RuntimeError, match=r"await run_with_recovery\(\.\.\.\)"):
            agent.run_with_recovery_sync(TASK, "run")

    asyncio.run(code())


_CAUSE = "builtins.ValueError", "Ann owes 5", ""


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            RunFailedError("r", _CAUSE, 0, is_sealed=True),
            f"run 'run' failed: {_CAUSE[0]}: {SEALED_TEXT}",
        ),
        (
            RunFailedError("r", _CAUSE, 0),
            f"RunFailedError: run 'r' failed: {_CAUSE[0]}: Ann owes 5",
        ),
        (RecoveryError("one\ntwo"), "RecoveryError: one\n  | two"),
        (KeyError("x"), "KeyError: 'x'\nKeyError: 'x'"),
    ],
)
def test_log_lines_tell_of_a_session_what_is_no_subjects(error: Exception, told: str) -> None:
    assert RunSession("run").told(error) == told
