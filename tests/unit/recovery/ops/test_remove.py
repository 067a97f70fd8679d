"""Removing runs by name: which are refused and why, and what becomes of their relatives."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import Any
from unittest.mock import Mock

import pytest

from eventlog import LogError, LogLockedError
from eventlog.files.lock import hold
from eventlog.testing import SimulatedDisk
from recovery import (
    Checkpoint,
    CheckpointStore,
    PermanentError,
    RecoverableAgent,
    RecoveryError,
    Resolution,
    tool,
)
from recovery.control.cancel import cancel
from recovery.control.relatives import children
from recovery.control.resolve import resolve
from recovery.control.send import signal
from recovery.errors import ChildParkedError, RunFailedError
from recovery.inspect.status import status
from recovery.ops.remove import remove
from recovery.stores.file import FileStore
from recovery.stores.log_store import LogStore
from recovery.stores.memory import MemoryStore
from recovery.stores.protocol import INBOX
from tests.support.lives import (
    RUN,
    Died,
    Disk,
    after_death,
    die_in,
    disk_store,
    executed,
    refuse_deletion,
    run,
    send,
)

pytestmark = pytest.mark.usefixtures("fresh")


def ids(store: CheckpointStore) -> list[str]:
    return store.backend.run_ids()


async def finishing(run: Any) -> Any:
    async for _ in run.steps():
        return await run.call(send, "mail")


async def failing(run: Any) -> None:
    async for _ in run.steps():
        raise PermanentError("no")


async def dying(run: Any) -> None:
    async for _ in run.steps():
        await run.call(send, "mail")
        raise Died


@pytest.fixture(params=["file", "memory", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Any) -> CheckpointStore:
    made = {
        "file": lambda: CheckpointStore(FileStore(tmp_path / "home")),
        "memory": lambda: CheckpointStore(MemoryStore()),
        "disk": disk_store,
    }
    return made[request.param]()


@pytest.mark.parametrize("how", ["failed", "cancelled", "finished"])
def test_runs_that_have_ended_are_removed_without_force(how: str) -> None:
    store = disk_store()
    if how == "failed":
        with pytest.raises(RunFailedError):
            run(failing, store)
    elif how == "finished":
        run(finishing, store)
    else:
        store = die_in(dying, store)
        cancel(store, RUN)
    assert [one.state for one in remove(store, RUN)] == [how]
    assert ids(store) == []


def test_checkpoints_without_an_agent_are_removed_with_force_alone() -> None:
    store = disk_store()
    store.save(Checkpoint("", RUN, 1, {"a": 1}, [], [], 0.0))
    with pytest.raises((RecoveryError, LogLockedError)):
        remove(store, RUN)
    store.close()
    with pytest.raises(RecoveryError, match="it is saved"):
        remove(store, RUN)
    store.save(Checkpoint("", RUN, 2, {"a": 1}, [], [], 0.0))
    store.close()
    remove(store, RUN, force=True)
    assert ids(store) == []


@pytest.mark.parametrize("force", [False, True])
def test_a_run_that_a_process_has_is_not_removed(store: CheckpointStore, force: bool) -> None:
    seen: list[str] = []

    async def agent(run: Any) -> Any:
        async for _ in run.steps():
            with pytest.raises(LogLockedError, match=r"is held by process \d+ on") as caught:
                remove(store, RUN, force=force)
            seen.append(str(caught.value))
            return await run.call(send, "mail")

    assert run(agent, store)["result"] == "sent mail"
    assert len(seen) == 1
    assert ids(store) == [RUN]


def test_a_run_that_has_ended_and_is_still_held_is_not_removed() -> None:
    store = disk_store()
    run(finishing, store)
    with store.claim(RUN), pytest.raises(LogLockedError):
        remove(store, RUN)
    assert ids(store) == [RUN]


def test_a_run_that_goes_on_between_the_look_and_the_removal_stays() -> None:
    store = disk_store()
    with pytest.raises(RunFailedError) as caught:
        run(broken, store)
    backend = store.backend

    class Late(LogStore):
        def remove(self, run_id: str, at: int | None = None, inbox: int | None = None) -> None:
            resolve(store, RUN, caught.value.call, Resolution.outcome("by hand"))
            backend.remove(run_id, at, inbox)

    assert isinstance(backend, LogStore)
    late = Late("home", backend.files, "power")
    with pytest.raises(LogError, match=r"since it was read. Nothing was removed"):
        remove(late, RUN)
    assert run(broken, store)["result"] == "by hand"


@tool
def breaks() -> str:
    raise ValueError("broken")


async def broken(run: Any) -> Any:
    async for _ in run.steps():
        return await run.call(breaks)


def damaged(store: CheckpointStore) -> None:
    backend = store.backend
    assert isinstance(backend, LogStore)
    directory = backend.files.open_directory(f"home/{RUN}")
    name = next(name for name in directory.names() if name.endswith(".seg"))
    directory.open(name, write=True).pwrite(b"?" * 40, 100)


def test_a_damaged_run_is_removed_with_force_alone() -> None:
    store = disk_store()
    run(finishing, store)
    damaged(store)
    with pytest.raises(RecoveryError, match=r"damaged or cannot be read(?s:.*)logdump verify"):
        remove(store, RUN)
    assert ids(store) == [RUN]
    remove(store, RUN, force=True)
    assert ids(store) == []


def test_what_is_no_run_is_not_removed(tmp_path: Any) -> None:
    store = CheckpointStore(FileStore(tmp_path))
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "otter.jpg").write_text("otter")
    with pytest.raises(RecoveryError, match="there is no run 'photos'"):
        remove(store, "photos", force=True)
    run(finishing, store)
    (tmp_path / RUN / "notes.txt").write_text("dear")
    with pytest.raises(LogError, match="other things than a log"):
        remove(store, RUN, force=True)
    assert (tmp_path / RUN / "notes.txt").read_text() == "dear"
    assert (tmp_path / "photos" / "otter.jpg").read_text() == "otter"
    (tmp_path / "link").symlink_to(tmp_path / RUN)
    with pytest.raises(LogError, match="symbolic link"):
        remove(store, "link", force=True)
    with pytest.raises(ValueError, match="run_id"):
        remove(store, "..", force=True)


# -- relatives


async def grandchild(run: Any) -> Any:
    async for _ in run.steps():
        return await run.call(send, "deep")


async def child(run: Any) -> Any:
    async for _ in run.steps():
        return await run.child(grandchild, run.task)


async def parent(run: Any) -> Any:
    async for _ in run.steps():
        return await run.child(child, "task")


async def parent_of_a_dead_one(run: Any) -> Any:
    async for _ in run.steps():
        return await run.child(dying, "task")


async def parent_that_dies_later(run: Any) -> Any:
    async for step in run.steps():
        if step == 1:
            await run.child(finishing, "task")
        else:
            raise Died


async def parent_of_a_failed_one(run: Any) -> Any:
    async for _ in run.steps():
        return await run.child(broken, "task")


def test_children_stay_unless_they_are_asked_for() -> None:
    store = disk_store()
    run(parent, store)
    every = ids(store)
    (below,) = children(store, RUN)
    assert len(every) == 3
    (gone,) = remove(store, RUN)
    assert gone.children == tuple(sorted(set(every) - {RUN}, key=len))
    assert ids(store) == [one for one in every if one != RUN]
    assert [one.run_id for one in remove(store, below.run_id, children=True)] == list(gone.children)
    assert ids(store) == []


def test_children_go_with_their_parent_which_is_told_first() -> None:
    store = disk_store()
    run(parent, store)
    every = sorted(ids(store), key=len)
    assert [one.run_id for one in remove(store, RUN, children=True)] == every
    assert ids(store) == []


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_removal_of_a_family_that_was_killed_is_repeated(
    gone: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``gone``: runs that it had removed when the process died."""
    store = disk_store()
    run(parent, store)
    every = sorted(ids(store), key=len)
    die_after(gone, monkeypatch)
    with pytest.raises(Died):
        remove(store, RUN, children=True)
    monkeypatch.undo()
    store = after_death(store)
    assert sorted(ids(store), key=len) == every[: 3 - gone]
    assert [one.run_id for one in remove(store, RUN, children=True)] == every[: 3 - gone]
    assert ids(store) == []


def die_after(removals: int, monkeypatch: pytest.MonkeyPatch) -> None:
    done, method = list[str](), LogStore.remove

    def dies(self: LogStore, run_id: str, at: int | None = None) -> None:
        if len(done) == removals:
            raise Died
        done.append(run_id)
        method(self, run_id, at)

    monkeypatch.setattr(LogStore, "remove", dies)


def test_an_unfinished_run_whose_child_was_removed_before_a_crash_executes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = die_in(parent_of_a_dead_one, disk_store())
    die_after(1, monkeypatch)
    with pytest.raises(Died):
        remove(store, RUN, children=True, force=True)
    monkeypatch.undo()
    store = after_death(store)
    with pytest.raises(ChildParkedError, match="its log is gone"):
        run(parent_of_a_dead_one, store)
    assert executed["mail"] == 1
    remove(store, RUN, children=True, force=True)
    assert ids(store) == []


def test_a_child_that_its_parent_needs_stays_whatever_is_said() -> None:
    store = die_in(parent_of_a_dead_one, disk_store())
    (below,) = children(store, RUN)
    for force in (False, True):
        with pytest.raises(
            RecoveryError, match="is a child of run 'run'" if force else "not ended"
        ):
            remove(store, below.run_id, force=force)
    with pytest.raises(RecoveryError, match="has not ended"):
        remove(store, RUN, children=True)
    assert len(ids(store)) == 2
    remove(store, RUN, children=True, force=True)
    assert ids(store) == []


def test_a_child_whose_failure_may_be_settled_stays() -> None:
    store = disk_store()
    with pytest.raises(RunFailedError):
        run(parent_of_a_failed_one, store)
    (below,) = children(store, RUN)
    with pytest.raises(RecoveryError, match="which is failed and needs it to resume"):
        remove(store, below.run_id)
    remove(store, RUN)
    remove(store, below.run_id)
    assert ids(store) == []


def test_a_child_whose_outcome_the_parent_has_is_removed() -> None:
    store = die_in(parent_that_dies_later, disk_store())
    (below,) = children(store, RUN)
    remove(store, below.run_id)
    assert ids(store) == [RUN]

    async def later(run: Any) -> Any:
        async for step in run.steps():
            if step == 1:
                await run.child(finishing, "task")
            else:
                return "done"

    assert run(later, store)["result"] == "done"
    assert executed["mail"] == 1


def test_a_child_of_a_damaged_run_stays() -> None:
    store = disk_store()
    run(parent, store)
    (below,) = children(store, RUN)
    damaged(store)
    with pytest.raises(RecoveryError, match="is a child of run 'run'"):
        remove(store, below.run_id)


def test_a_child_of_another_run_of_the_parents_name_is_nobodys() -> None:
    store = disk_store()
    run(parent, store)
    (below,) = children(store, RUN)
    remove(store, RUN)
    store = die_in(dying, store, task="another")
    assert status(store, RUN).state == "interrupted"
    remove(store, below.run_id)


def test_when_a_child_cannot_go_nothing_goes() -> None:
    store = disk_store()
    run(parent, store)
    deep = max(ids(store), key=len)
    with store.claim(deep), pytest.raises(LogLockedError):
        remove(store, RUN, children=True)
    assert len(ids(store)) == 3


# -- those who come just then


def test_a_signal_to_a_run_that_was_just_removed_is_not_sent(store: CheckpointStore) -> None:
    run(finishing, store)
    backend = store.backend
    assert isinstance(backend, LogStore)
    open_inbox = backend._open_inbox

    def late(run_id: str) -> Any:
        remove(store, RUN)
        backend._open_inbox = open_inbox  # type: ignore[method-assign]
        return open_inbox(run_id)

    backend._open_inbox = late  # type: ignore[method-assign]
    with pytest.raises(RecoveryError, match=r"was removed meanwhile. Nothing was sent"):
        backend.post(RUN, "signal", {"name": "x", "value": 1, "who": ""})
    assert backend.inbox(RUN) is None
    assert run(finishing, store)["result"] == "sent mail", "the id is free"
    with pytest.raises(RecoveryError, match="has ended"):
        signal(store, RUN, "x")


def test_an_agent_that_is_started_just_then_begins_nothing_in_what_is_deleted() -> None:
    store = disk_store()
    run(finishing, store)
    files = store.backend.files  # type: ignore[attr-defined]
    made = files.make_directory

    def late(path: str) -> Any:
        files.make_directory = made
        directory = made(path)
        remove(store, RUN)
        return directory

    files.make_directory = late
    agent = RecoverableAgent(finishing, store)
    with pytest.raises(LogError, match="removed or moved away"):
        asyncio.run(agent.run_with_recovery("task", RUN))
    assert executed["mail"] == 1
    assert asyncio.run(agent.run_with_recovery("task", RUN))["result"] == "sent mail"
    assert executed["mail"] == 2


def test_what_is_left_of_a_removal_is_swept_by_the_next() -> None:
    store = disk_store()
    run(finishing, store)
    disk = store.backend.disk  # type: ignore[attr-defined]
    delete, disk.delete = disk.delete, lambda path: None
    remove(store, RUN)
    disk.delete = delete
    assert ids(store) == []
    assert store.backend.unswept() == [RUN]  # type: ignore[attr-defined]
    run(finishing, store)
    signal_inbox = f"home/{RUN}/{INBOX}"
    assert signal_inbox not in disk.directories
    remove(store, RUN)
    assert store.backend.unswept() == []  # type: ignore[attr-defined]
    assert disk.list_directories("home") == []


def test_a_removal_that_was_killed_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    store = disk_store()
    for run_id in (RUN, "other"):
        RecoverableAgent(finishing, store).run_with_recovery_sync("task", run_id)
        with monkeypatch.context() as patch, pytest.raises(Died):
            patch.setattr(SimulatedDisk, "delete", Mock(side_effect=Died))
            remove(store, run_id)
        store = after_death(store)
    backend = store.backend
    assert isinstance(backend, Disk) and sorted(backend.unswept()) == ["other", RUN]
    assert remove(store, RUN, dry_run=True) == [] and len(backend.unswept()) == 2
    left = next(name for name in backend.disk.list_directories("home") if RUN in name)
    with (
        hold_lock(backend.disk, f"home/{left}"),
        pytest.raises(RecoveryError, match="another process"),
    ):
        remove(store, RUN)
    assert remove(store, RUN) == []
    assert backend.disk.list_directories("home") == []
    with pytest.raises(RecoveryError, match="there is no run 'run'"):
        remove(store, RUN)


def hold_lock(disk: SimulatedDisk, path: str) -> Any:
    return closing(hold(disk.open_directory(path)))


def test_remains_of_another_run_that_cannot_be_deleted_do_not_fail_a_removal(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = disk_store()
    for run_id in (RUN, "other"):
        RecoverableAgent(finishing, store).run_with_recovery_sync("task", run_id)
    refuse_deletion(monkeypatch, SimulatedDisk, ".other.")
    with pytest.raises(PermissionError):
        remove(store, "other")
    assert [one.run_id for one in remove(store, RUN)] == [RUN]
    assert "what a removal has left could not be deleted: Permission denied" in caplog.text
    assert store.backend.unswept() == ["other"]  # type: ignore[attr-defined]
    with pytest.raises(PermissionError, match="what a removal has left"):
        remove(store, "other")
