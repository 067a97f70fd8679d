"""Settling a call from outside."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from eventlog import EventLog, LogLockedError, RefusedValueError
from recovery import (
    CheckpointStore,
    InDoubtError,
    RecoverableAgent,
    RecoveryError,
    Resolution,
    SyncRun,
    ToolError,
    tool,
)
from recovery.control.resolve import resolve
from recovery.errors import RunFailedError
from recovery.journal.encoding import decode
from recovery.journal.events import CallResolved
from tests.support.lives import Died

executed: Counter[Any] = Counter()


@tool
def send(what: str) -> str:
    executed[what] += 1
    if executed[what] == 1 and what != "safe":
        raise Died if what != "bad" else ValueError("bad address")
    return f"sent {what}"


def agent(run: SyncRun) -> Any:
    found = [run.call(send, "safe")]
    try:
        found.append(run.call(send, str(run.task)))
    except ToolError as exc:
        found.append(exc.message)
    return found


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStore:
    executed.clear()
    return CheckpointStore(None if request.param == "memory" else tmp_path)


def run(store: CheckpointStore, task: str = "mail") -> Any:
    return RecoverableAgent(agent, store).run_with_recovery_sync(task, "run")["result"]


def in_doubt(store: CheckpointStore) -> int:
    with pytest.raises((Died, InDoubtError)):
        run(store)
    with pytest.raises(InDoubtError) as caught:
        run(store)
    (call,) = caught.value.calls
    assert f"LSN {call.lsn}: send('mail')" in str(caught.value)
    assert call.idempotency_key in str(caught.value)
    return int(call.lsn)


@pytest.mark.parametrize(
    ("resolution", "result", "times"),
    [
        (Resolution.outcome("it was there"), ["sent safe", "it was there"], 1),
        (Resolution.outcome(None), ["sent safe", None], 1),
        (Resolution.retry(), ["sent safe", "sent mail"], 2),
        (Resolution.fail("no trace of it"), ["sent safe", "no trace of it"], 1),
    ],
)
def test_a_call_in_doubt_is_settled(store, resolution, result, times):
    lsn = in_doubt(store)
    resolve(store, "run", lsn, resolution, who="ops", why="ticket 7")
    assert run(store) == run(store) == result
    assert executed == {"safe": 1, "mail": times}


def test_a_call_is_settled_as_its_status_gives_it(store):
    in_doubt(store)
    handle = store.run("run")
    for call in handle.status().in_doubt:
        handle.resolve(call, Resolution.outcome("it was sent"))
    assert handle.status().in_doubt == ()


def test_who_settled_it_and_why_is_kept(store):
    lsn = in_doubt(store)
    resolve(store.backend, "run", lsn, Resolution.outcome(1), who="ops", why="ticket 7")
    with store.backend.read("run") as log:
        events = [decode(record) for record in log.records()]
    assert [event for event in events if isinstance(event, CallResolved)] == [
        CallResolved(lsn, "outcome", 1, "ops", "ticket 7")
    ]


def test_a_decision_can_be_changed_until_it_is_acted_upon(store):
    lsn = in_doubt(store)
    resolve(store, "run", lsn, Resolution.retry())
    resolve(store, "run", lsn, Resolution.outcome("found after all"))
    assert run(store) == ["sent safe", "found after all"]
    assert executed["mail"] == 1
    with pytest.raises(RecoveryError, match="has an outcome"):
        resolve(store, "run", lsn, Resolution.retry())


@pytest.mark.parametrize("lsn", [0, -1, 1, 2, 999, 10**20])
def test_only_calls_in_doubt_are_settled(store, lsn):
    doubtful = in_doubt(store)
    with store.claim("run") as log:
        before = log.last_lsn
    with pytest.raises(RecoveryError, match=rf"in doubt: \[{doubtful}\]\. Nothing was written"):
        resolve(store, "run", lsn, Resolution.retry())
    with store.claim("run") as log:
        assert log.last_lsn == before


def test_a_call_with_an_outcome_stays_as_it_is(store):
    in_doubt(store)
    with store.backend.read("run") as log:
        served = next(record.lsn for record in log.records() if record.kind == "call")
    with pytest.raises(RecoveryError, match=f"LSN {served} of run 'run' has an outcome"):
        resolve(store, "run", served, Resolution.retry())


def test_a_run_that_is_not_there_is_not_made(store):
    with pytest.raises(RecoveryError, match="no run 'nothing'"):
        resolve(store, "nothing", 1, Resolution.retry())
    with pytest.raises(ValueError, match="run_id"):
        resolve(store, "../x", 1, Resolution.retry())
    assert store.backend.run_ids() == []


def test_unknown_settles_nothing(store):
    lsn = in_doubt(store)
    with pytest.raises(ValueError, match="settles nothing"):
        resolve(store, "run", lsn, Resolution.unknown())
    with pytest.raises(RefusedValueError, match=r"^resolution\.x: object"):
        resolve(store, "run", lsn, Resolution.outcome({"x": object()}))
    assert in_doubt(store) == lsn


def test_a_run_that_is_at_work_is_not_touched(store):
    lsn = in_doubt(store)
    with store.claim("run"), pytest.raises(LogLockedError):
        resolve(store, "run", lsn, Resolution.retry())


@pytest.mark.parametrize(
    ("resolution", "result"),
    [
        (Resolution.retry(), "sent bad"),
        (Resolution.outcome("sent by hand"), "sent by hand"),
        (Resolution.fail("given up"), "given up"),
    ],
)
def test_the_failed_call_that_ended_a_run_is_settled(store, resolution, result):
    with pytest.raises(RunFailedError, match="bad address") as caught:
        run(store, "bad")
    with pytest.raises(RecoveryError, match="no open call of this run"):
        resolve(store, "run", 1, resolution)
    resolve(store, "run", caught.value.call, resolution)
    assert run(store, "bad") == run(store, "bad") == ["sent safe", result]
    assert executed["safe"] == 1


def test_a_resolution_is_in_the_log_when_resolve_returns(tmp_path):
    executed.clear()
    store = CheckpointStore(tmp_path)
    lsn = in_doubt(store)
    resolve(store, "run", lsn, Resolution.outcome(1))
    with EventLog.read(tmp_path / "run") as log:
        assert list(log.records())[-1].kind == "resolved"
