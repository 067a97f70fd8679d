"""What listings keep of runs: where, for whom, and when not."""

from __future__ import annotations

import asyncio
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eventlog.encryption import Encryption
from recovery import CheckpointStore, RecoverableAgent, tool
from recovery.inspect import listing_file
from recovery.inspect.listing import _decoded, _encoded, listed
from recovery.inspect.listing_file import ListingFile, files_of
from recovery.inspect.status import RunStatus, runs
from recovery.stores.file import LISTING, NEW_LISTING, FileStore

SECRET = "the customer is Ann"


@tool(needs_approval=True)
def pay(to: str) -> str:
    return to


async def finishing(run: Any) -> Any:
    return run.task


@tool(needs_approval=True, approval_timeout_s=3600)
def pay_soon(to: str) -> str:
    return to


async def asking(run: Any) -> Any:
    return pay(run.task)


async def asking_soon(run: Any) -> Any:
    return pay_soon(run.task)


def make(root: Path, count: int = 3, **options: Any) -> CheckpointStore:
    store = CheckpointStore(FileStore(root, durability="none", **options))
    agent = RecoverableAgent(finishing, store)

    async def all_runs() -> None:
        for i in range(count):
            await agent.run_with_recovery(SECRET, f"run_{i}")

    asyncio.run(all_runs())
    return store


def listing(store: CheckpointStore) -> list[RunStatus]:
    found = list(listed(store))
    assert found == list(runs(store))
    return found


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Listings keep all runs, also what was written just now."""
    monkeypatch.setattr(listing_file, "SETTLED_NS", -(10**10))
    monkeypatch.setattr(listing_file, "ADDED_MIN", 1)


def test_a_run_is_read_once(tmp_path: Path, kept: None, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make(tmp_path)
    first = listing(store)
    assert SECRET in repr([one.task for one in first])
    monkeypatch.setattr(FileStore, "read", None)
    assert list(listed(store)) == first
    assert (tmp_path / LISTING).stat().st_mode & 0o777 == 0o600
    assert store.backend.run_ids() == ["run_0", "run_1", "run_2"]


def test_what_was_written_just_now_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make(tmp_path)
    monkeypatch.setattr(listing_file, "ADDED_MIN", 1)
    assert len(listing(store)) == 3
    assert not (tmp_path / LISTING).exists()
    assert files_of(str(tmp_path), "run_0") is None
    ahead = time.time_ns() + listing_file.SETTLED_NS + 10**9
    monkeypatch.setattr(time, "time_ns", lambda: ahead)
    assert files_of(str(tmp_path), "run_0") is not None


def test_a_small_store_gets_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make(tmp_path)
    monkeypatch.setattr(listing_file, "SETTLED_NS", -(10**10))
    assert len(listing(store)) == 3
    assert not (tmp_path / LISTING).exists()


def test_a_removed_run_is_nowhere(tmp_path: Path, kept: None) -> None:
    store = make(tmp_path)
    listing(store)
    assert "run_1" in (tmp_path / LISTING).read_text()
    (tmp_path / NEW_LISTING).write_text(SECRET)  # of a listing that was killed
    store.run("run_1").remove()
    assert not (tmp_path / LISTING).exists() and not (tmp_path / NEW_LISTING).exists()
    assert len(listing(store)) == 2
    assert "run_1" not in (tmp_path / LISTING).read_text()


def test_a_run_that_was_deleted_by_hand_is_forgotten(tmp_path: Path, kept: None) -> None:
    store = make(tmp_path)
    listing(store)
    (tmp_path / "run_1").rename(tmp_path.parent / "elsewhere")
    listing(store)
    assert "run_1" not in (tmp_path / LISTING).read_text()


def test_a_run_that_is_removed_while_it_is_listed_is_not_kept(
    tmp_path: Path, kept: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make(tmp_path)
    write = listing_file._write

    def late(root: str, data: bytes) -> None:
        store.run("run_1").remove()
        write(root, data)

    monkeypatch.setattr(listing_file, "_write", late)
    assert len(list(listed(store))) == 3
    assert not (tmp_path / LISTING).exists()


def test_encrypted_runs_are_never_kept(tmp_path: Path, kept: None) -> None:
    store = make(tmp_path, encryption=Encryption(bytes(32)))
    assert [one.task for one in listing(store)] == [SECRET] * 3
    assert not (tmp_path / LISTING).exists()
    without_key = CheckpointStore(FileStore(tmp_path))
    assert [one.state for one in listing(without_key)] == ["unreadable"] * 3
    assert not (tmp_path / LISTING).exists()


@pytest.mark.parametrize("harm", ["byte", "cut", "mode", "link", "directory", "nonsense"])
def test_a_damaged_file_is_ignored(tmp_path: Path, kept: None, harm: str) -> None:
    store = make(tmp_path)
    listing(store)
    file = tmp_path / LISTING
    content = file.read_bytes()
    match harm:
        case "byte":
            file.write_bytes(content.replace(b'"finished"', b'"failed"'))
        case "cut":
            file.write_bytes(content[:-100])
        case "mode":
            file.write_bytes(content.replace(b'"finished"', b'"failed"'))
            file.chmod(0o666)
        case "link":
            file.unlink()
            file.symlink_to(tmp_path / "run_0" / "LOCK")
        case "directory":
            file.unlink()
            file.mkdir()
        case "nonsense":
            body = b'run_0\t[[["run_0"]],5]\nrun_1\t[[],{}]\nrun_2\t7\n'
            file.write_bytes(listing_file._header(body) + body)
    assert [one.state for one in listing(store)] == ["finished"] * 3


def test_another_release_reads_the_logs(
    tmp_path: Path, kept: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make(tmp_path)
    listing(store)
    monkeypatch.setattr(listing_file, "version", lambda name: "another")
    known = ListingFile.of(FileStore(tmp_path))
    assert known is not None and known.get("run_0") is None


def test_a_store_that_cannot_be_written_is_listed(
    tmp_path: Path, kept: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make(tmp_path)

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "replace", refuse)
    assert len(listing(store)) == 3
    assert not (tmp_path / LISTING).exists() and not (tmp_path / NEW_LISTING).exists()


def test_the_directory_of_another_user_gets_no_file(
    tmp_path: Path, kept: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make(tmp_path)
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    assert ListingFile.of(store.backend) is None  # type: ignore[arg-type]


def test_an_approval_with_a_deadline_is_not_kept(
    tmp_path: Path, kept: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(FileStore(tmp_path, durability="none"))
    for name, agent in (("soon", asking_soon), ("ever", asking)):
        with pytest.raises(Exception, match="parked"):
            made = RecoverableAgent(agent, store, park_after_s=0)
            asyncio.run(made.run_with_recovery("x", name))
    listing(store)
    kept_runs = (tmp_path / LISTING).read_text()
    assert "\never\t" in kept_runs and "\nsoon\t" not in kept_runs
    later = time.time_ns() + 7200 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: later)
    monkeypatch.setattr(time, "time", lambda: later / 1e9)
    assert any("no decision came" in call.then for one in listing(store) for call in one.calls)


def test_a_status_that_would_come_back_different_is_seen(tmp_path: Path) -> None:
    one = RunStatus("run", "finished", wake_at=2.5, signed=("pay",))
    assert _decoded("run", json.loads(_encoded(one))) == one
    odd = replace(one, why=("not", "text"))  # type: ignore[arg-type]
    assert _decoded("run", json.loads(_encoded(odd))) != odd
