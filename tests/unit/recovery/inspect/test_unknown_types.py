"""People decide about runs without the types, and the code, that the runs have values of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from recovery import (
    ApprovalDeniedError,
    CheckpointStore,
    InDoubtError,
    RecoverableAgent,
    RecoveryError,
    Resolution,
    SyncRun,
    register,
    tool,
)
from recovery.control.cancel import cancel
from recovery.control.resolve import accept, resolve
from recovery.control.send import approve, deny, pending
from recovery.errors import DamagedRunError, RunCancelledError, UnreadableValueError, WaitingError
from recovery.inspect.status import status
from recovery.ops.fork import fork
from recovery.values import codec as coded
from tests.support.lives import Died


@dataclass(frozen=True)
class Money:
    cents: int


dies = [True]


@tool
def pay(sum_: Money, to: str) -> Money:
    if dies[0]:
        raise Died
    return sum_


@tool(needs_approval=True, name="ask")
def ask(sum_: Money) -> Money:
    return sum_


def agent(run: SyncRun) -> Any:
    for step in run.steps():
        run.state["spent"] = Money(step)
        run.messages.append({"role": "user", "content": Money(step)})
        if step == 3:
            return run.call(pay, run.task, "Ann")
    return None


def asking(run: SyncRun) -> Any:
    for step in run.steps():
        run.state["spent"] = Money(step)
        if step == 3:
            try:
                return run.call(ask, run.task)
            except ApprovalDeniedError as exc:
                return str(exc)
    return None


def forget() -> None:
    coded.BY_NAME.pop("Money", None)
    coded.BY_TYPE.pop(Money, None)


@pytest.fixture
def store(tmp_path: Path) -> Any:
    """Whose runs are made by processes that know the type."""
    dies[0] = True
    yield CheckpointStore(tmp_path)
    forget()


def live(store: CheckpointStore, of: Callable[[Any], Any] = agent) -> Any:
    """A process that has the type runs the agent as far as it gets."""
    register(Money)
    try:
        runner = RecoverableAgent(of, store, 2, park_after_s=0)
        return runner.run_with_recovery_sync(Money(5), "run")["result"]
    finally:
        forget()


def crashed(store: CheckpointStore) -> int:
    with pytest.raises(Died):
        live(store)
    return status(store, "run").in_doubt[0].lsn


def test_a_run_of_unknown_types_cannot_be_resumed(store: CheckpointStore) -> None:
    crashed(store)
    with pytest.raises(UnreadableValueError):
        RecoverableAgent(agent, store).resume_sync("run")


def test_it_can_be_resolved(store: CheckpointStore) -> None:
    resolve(store, "run", crashed(store), Resolution.outcome("paid"), who="ann")
    dies[0] = False
    assert live(store) == "paid"


def test_and_what_is_no_call_in_doubt_cannot(store: CheckpointStore) -> None:
    crashed(store)
    with pytest.raises(RecoveryError, match="is no open call of this run; in doubt"):
        resolve(store, "run", 1, Resolution.retry())


def test_it_can_be_cancelled(store: CheckpointStore) -> None:
    lsn = crashed(store)
    cancel(store, "run", who="ann", why="enough")
    with pytest.raises(RunCancelledError) as caught:
        live(store)
    assert caught.value.in_doubt == (lsn,)


def test_a_divergence_can_be_accepted(store: CheckpointStore) -> None:
    crashed(store)
    accept(store, "run", why="a new version")
    cancel(store, "run")
    with pytest.raises(RecoveryError, match="nothing can diverge"):
        accept(store, "run")


@pytest.mark.parametrize(("decide", "result"), [(approve, Money(5)), (deny, "denied by ann")])
def test_a_call_can_be_approved_or_denied(
    store: CheckpointStore, decide: Any, result: object
) -> None:
    with pytest.raises(WaitingError):
        live(store, asking)
    with pytest.raises(UnreadableValueError):
        pending(store, "run")  # which shows the arguments
    (call,) = status(store, "run").calls
    with pytest.raises(RecoveryError, match=r"What waits:\n  LSN \d+: ask\(Ellipsis\)"):
        decide(store, "run", call.lsn + 1)
    decide(store, "run", call.lsn, who="ann")
    found = live(store, asking)
    assert found == result or str(result) in str(found)


def test_a_damaged_run_is_not_decided_about(store: CheckpointStore, tmp_path: Path) -> None:
    """A record behind the checkpoint is lost: it may be how the call ended."""
    lsn = crashed(store)
    before = status(store, "run")
    with store.backend.read("run") as reader:  # type: ignore[union-attr]
        packed = reader.fetch({before.checkpoint + 1})[before.checkpoint + 1].packed
    for path in sorted((tmp_path / "run").glob("*.seg")):
        content = path.read_bytes()
        path.write_bytes(content.replace(bytes(packed), bytes(len(packed))))
    for act in (
        lambda: resolve(store, "run", lsn, Resolution.retry()),
        lambda: accept(store, "run"),
        lambda: approve(store, "run", lsn),
    ):
        with pytest.raises(DamagedRunError):
            act()
    assert status(store, "run").last_lsn == before.last_lsn


def test_an_unfinished_fork_is_not_decided_about(store: CheckpointStore, tmp_path: Path) -> None:
    crashed(store)
    register(Money)
    fork(store, "run", "new")
    forget()
    (path,) = (tmp_path / "new").glob("*.seg")
    with store.backend.read("new") as reader:  # type: ignore[union-attr]
        last = max(record.lsn for record in reader.records(1))
        packed = bytes(reader.fetch({last})[last].packed)
    content = path.read_bytes()
    (tmp_path / "new/MARK").unlink(missing_ok=True)
    path.write_bytes(content[: content.rindex(packed)])  # as a crash in the fork leaves it
    for act in (
        lambda: resolve(store, "new", 1, Resolution.retry()),
        lambda: accept(store, "new"),
    ):
        with pytest.raises(RecoveryError, match="a fork of 'run' that was not finished"):
            act()


def test_in_doubt_is_what_the_agent_finds(store: CheckpointStore) -> None:
    """Reading without the values finds the call that the agent parks for."""
    lsn = crashed(store)
    with pytest.raises(InDoubtError) as caught:
        live(store)
    assert [call.lsn for call in caught.value.calls] == [lsn]
