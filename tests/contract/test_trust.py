"""The trust boundary: what counts for a run, from whom, and what is said of the rest."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eventlog import EventLog, LogError
from eventlog.encryption import Encryption
from recovery import (
    CheckpointStore,
    RecoverableAgent,
    RecoveryError,
    WaitingError,
    approve,
    cancel,
    fork,
    pending,
    signal,
    status,
    tool,
)
from recovery.stores.file import FileStore
from tests.cli.harness import call

RUN = "run"
KEY = bytes(range(32))
paid: list[int] = []


@tool(needs_approval=True)
def pay(cents: int) -> str:
    paid.append(cents)
    return f"paid {cents}"


async def refund(run: Any) -> list[Any]:
    return [await run.call(pay, 900), await run.wait_for("go"), await run.call(pay, 7)]


@pytest.fixture(autouse=True)
def no_money() -> None:
    paid.clear()


Store = Callable[[Path], CheckpointStore]


def clear(root: Path) -> CheckpointStore:
    return CheckpointStore(root)


def encrypted(root: Path) -> CheckpointStore:
    return CheckpointStore(FileStore(root, encryption=Encryption(KEY)))


STORES = pytest.mark.parametrize("store_of", [clear, encrypted])


def go(store: CheckpointStore, run_id: str = RUN, agent: Any = refund, **options: Any) -> Any:
    given = {"park_after_s": 0, "max_recoveries": 0} | options
    runner = RecoverableAgent(agent, store, **given)
    return asyncio.run(runner.run_with_recovery("task", run_id))["result"]


def parked(store: CheckpointStore, run_id: str = RUN, agent: Any = refund) -> None:
    with pytest.raises(WaitingError):
        go(store, run_id, agent)


# -- messages are bound to their run


def into_another_run(root: Path, store: CheckpointStore) -> str:
    parked(store, "other")
    return "other"


def into_a_fork(root: Path, store: CheckpointStore) -> str:
    """Whose call under way has the idempotency key that the message names."""
    fork(store, RUN, "forked")
    return "forked"


def into_a_run_begun_anew(root: Path, store: CheckpointStore) -> str:
    shutil.rmtree(root / RUN)
    parked(store)
    return RUN


@STORES
@pytest.mark.parametrize(
    "victim_of", [into_another_run, into_a_fork, into_a_run_begun_anew], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("message", ["approve", "signal", "cancel"])
def test_a_copied_inbox_does_nothing_and_is_told_of(
    tmp_path: Path, store_of: Store, victim_of: Any, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The files are copied by somebody without the key."""
    root = tmp_path / "runs"
    store = store_of(root)
    parked(store)
    inbox = root / RUN / "inbox"
    if message == "approve":
        approve(store, RUN, pending(store, RUN)[0], who="ann")
    elif message == "signal":
        signal(store, RUN, "go", "now", key="once")
    else:
        with store.backend.claim(RUN):  # a live one, which is told to end by a message
            cancel(store, RUN, who="ann")
    shutil.copytree(inbox, tmp_path / "kept")
    victim = victim_of(root, store)
    shutil.copytree(tmp_path / "kept", root / victim / "inbox")

    parked(store, victim)  # neither approved nor cancelled
    assert paid == []
    (told,) = status(store, victim).unread
    assert told.refused == "it was sent to another run" and not told.wanted
    assert "does not count: it was sent to another run" in caplog.text
    if store_of is clear:
        shown = call("recovery", "show", victim, "--store", str(root), cwd=root).out
        assert "does not count: it was sent to another run" in " ".join(shown.split())

    # What is sent to the victim itself counts, also under the key of the copied message.
    approve(store, victim, pending(store, victim)[0], who="bob")
    parked(store, victim)
    signal(store, victim, "go", "mine", key="once")
    parked(store, victim)
    approve(store, victim, pending(store, victim)[0], who="bob")
    assert go(store, victim) == ["paid 900", "mine", "paid 7"]
    assert paid == [900, 7]


def test_a_message_of_a_longer_run_executes_nothing(tmp_path: Path) -> None:
    """It knows of more records than the run has: the log may be the one that was exchanged."""
    store = clear(tmp_path)
    parked(store)
    signal(store, RUN, "go", 1)
    approve(store, RUN, pending(store, RUN)[0])
    parked(store)
    approve(store, RUN, pending(store, RUN)[0])
    paid.clear()
    parked(store, "other")
    shutil.copytree(tmp_path / RUN / "inbox", tmp_path / "other" / "inbox")
    with pytest.raises(RecoveryError, match="its inbox knows of"):
        go(store, "other")
    assert paid == []


def in_clear(inbox: Path) -> EventLog:
    return EventLog.open(inbox)


def under_another_key(inbox: Path) -> EventLog:
    return EventLog.open(inbox, encryption=Encryption(os.urandom(32)))


@pytest.mark.parametrize("forged", [in_clear, under_another_key], ids=lambda f: f.__name__)
def test_without_the_key_no_message_can_be_made(tmp_path: Path, forged: Any) -> None:
    """Not even by somebody who knows the run's uid and the call's idempotency key."""
    store = encrypted(tmp_path)
    parked(store)
    (asked,) = pending(store, RUN)
    body = {
        "uid": status(store, RUN).uid,
        "of": asked.idempotency_key,
        "approved": True,
        "who": "ann",
        "why": "",
        "key": "",
    }
    with forged(tmp_path / RUN / "inbox") as inbox:
        inbox.append("decision", body)
    with pytest.raises(LogError, match=r"under|clear"):
        go(store)
    assert paid == []
    assert "clear" in (said := status(store, RUN).inbox_damage) or "key" in said


NONSENSE: dict[str, dict[str, Any]] = {
    "cancel by a number": {"who": 5, "why": ""},
    "cancel for a number": {"uid": 7},
    "decision without an answer": {"of": "0" * 32},
    "decision of a truthy answer": {"of": "KEY", "approved": "yes"},
    "signal without a value": {"name": "go"},
    "signal of a list": {"name": ["go"], "value": 1},
    "signal of no document": {},
}


@pytest.mark.parametrize("what", NONSENSE)
def test_a_message_that_makes_no_sense_is_told_of_and_stops_nobody(
    tmp_path: Path, what: str
) -> None:
    store = clear(tmp_path)
    parked(store)
    (asked,) = pending(store, RUN)
    body = {"uid": status(store, RUN).uid} | NONSENSE[what]
    body |= {"of": asked.idempotency_key} if body.get("of") == "KEY" else {}
    store.backend.post(RUN, what.split(maxsplit=1)[0], body)
    (told,) = status(store, RUN).unread
    assert told.refused.startswith("it makes no sense")
    parked(store)
    signal(store, RUN, "go", 1, key="k")  # and nobody who sends
    approve(store, RUN, asked)
    parked(store)
    assert paid == [900]


def test_messages_that_name_no_run_count_where_old_libraries_sent_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In a run that an older library has begun, and in no other, nor in a fork of it."""

    def sent(run_id: str) -> list[bool]:
        body = {"name": "go", "value": run_id, "who": ""}
        store.backend.post(run_id, "signal", body)
        return [bool(one.refused) for one in status(store, run_id).unread]

    store = clear(tmp_path)
    parked(store, "new")
    monkeypatch.setattr("recovery._beginning.Rules", lambda version: None)
    parked(store, "old")
    fork(store, "old", "forked")
    assert [sent("old"), sent("new"), sent("forked")] == [[False], [True], [True]]
    approve(store, "old", pending(store, "old")[0])
    parked(store, "old")
    assert status(store, "old").unread == ()  # it was taken


# -- a child's log is kept as its parent's


def kept(root: Path, key: bytes | None = KEY, **other: Any) -> CheckpointStore:
    durability = other.pop("durability", "power")
    encryption = Encryption(key, **other.pop("given", {})) if key else None
    return CheckpointStore(FileStore(root, durability, encryption), **other)


CHILD_STORES: dict[str, Callable[[Path], CheckpointStore]] = {
    "in clear": lambda root: kept(root, None),
    "by its path alone": CheckpointStore,
    "under another key": lambda root: kept(root, bytes(32)),
    "under a key of another name": lambda root: kept(root, given={"key_id": "2"}),
    "which takes what is in clear": lambda root: kept(root, given={"accept_clear": True}),
    "which may lose it with the power": lambda root: kept(root, durability="process"),
    "which keeps less": lambda root: kept(root, retention="latest_only"),
    "elsewhere": lambda root: kept(root / "elsewhere"),
    "in memory": lambda root: CheckpointStore(),
}


def child_of(root: Path, store: CheckpointStore) -> Any:
    async def sub(run: Any) -> str:
        return f"{run.task} is kept"

    async def agent(run: Any) -> Any:
        return await run.child(RecoverableAgent(sub, store), "the secret")

    return go(kept(root), agent=agent)


@pytest.mark.parametrize("what", CHILD_STORES)
def test_a_child_whose_log_would_be_kept_otherwise_is_refused(tmp_path: Path, what: str) -> None:
    with pytest.raises(ValueError, match=r"lives in the store of its parent.*same CheckpointStore"):
        child_of(tmp_path, CHILD_STORES[what](tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == [RUN]


def test_a_child_in_a_store_like_its_parents_is_encrypted(tmp_path: Path) -> None:
    assert child_of(tmp_path, kept(tmp_path)) == "the secret is kept"
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert len({*tmp_path.iterdir()}) == 2 and not any(b"the secret" in one for one in written)
