"""``recovery copy``: between directories here, with a server in tests/conformance."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from shlex import quote, split
from typing import Any

import pytest

from eventlog import EventLog, LogLockedError, LogOwner, LogReader
from eventlog.files.api import write_all
from eventlog.files.posix import OSDirectory, OSFiles
from recovery import CheckpointStore, RecoverableAgent, tool
from recovery.cli.app import run
from recovery.cli.exit_codes import FOUND, NO_INPUT, OK, USAGE
from recovery.cli.key_options import encryption_from
from recovery.errors import RecoveryError
from recovery.stores.file import FileStore


@tool
def pay(step: int) -> int:
    return step


def agent(run: Any) -> int:
    return sum(run.call(pay, step) for step in range(5))


@pytest.fixture
def stores(tmp_path: Path) -> tuple[Path, Path]:
    store = CheckpointStore(tmp_path / "from")
    for run_id in ("a", "b"):
        RecoverableAgent(agent, store).run_with_recovery_sync("task", run_id)
    uid = store.run("a").status().uid
    store.backend.post("a", "signal", {"uid": uid, "name": "go", "value": 1, "who": ""})
    return tmp_path / "from", tmp_path / "the copies"


def segments(run_path: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run_path)): path.read_bytes() for path in run_path.rglob("*.seg")}


def test_a_copy_has_the_same_bytes(stores: tuple[Path, Path], capsys: Any) -> None:
    source, target = stores
    assert run(["copy", "a", "--from", str(source), "--to", str(target)]) == OK
    assert segments(target / "a") == segments(source / "a") and len(segments(target / "a")) == 2
    assert "copied 1 run" in capsys.readouterr().out
    inbox = CheckpointStore(target).backend.inbox("a")
    assert inbox is not None
    with inbox:
        assert [record.body["value"] for record in inbox.records()] == [1]
    result = RecoverableAgent(agent, CheckpointStore(target)).run_with_recovery_sync("task", "a")
    assert result["result"] == 10
    assert run(["copy", "a", "b", "--from", str(source), "--to", str(target)]) == FOUND
    assert "has a run 'a' already" in capsys.readouterr().err
    assert (target / "b").is_dir(), "the others are copied"


def test_all_runs_are_moved(stores: tuple[Path, Path]) -> None:
    source, target = stores
    before = segments(source)
    assert run(["copy", "--all", "--move", "--from", str(source), "--to", str(target)]) == OK
    assert segments(target) == before and not segments(source)


def goes_on(store: Path) -> None:
    """A process resumes run a, and records something."""
    with CheckpointStore(store).claim("a") as log:
        log.append("note", {"paid": 7})
        log.commit()


def sends(store: Path, value: int = 2) -> None:
    store_ = CheckpointStore(store)
    uid = store_.run("a").status().uid
    body = {"uid": uid, "name": "go", "value": value, "who": ""}
    store_.backend.post("a", "signal", body)


def notes(store: Path) -> list[Any]:
    with EventLog.read(store / "a") as log:
        return [record.body for record in log.records() if record.kind == "note"]


def sent(store: Path) -> list[Any]:
    with EventLog.read(store / "a" / "inbox") as log:
        return [record.body["value"] for record in log.records()]


def around(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    before: Callable[[], Any] = lambda: None,
    after: Callable[[], Any] = lambda: None,
) -> None:
    """Something happens just before, or after, the store is asked for this."""
    method = getattr(FileStore, name)

    def asked(self: Any, *given: Any) -> None:
        before()
        method(self, *given)
        after()

    monkeypatch.setattr(FileStore, name, asked)


@pytest.mark.parametrize("happens", [goes_on, sends])
def test_a_run_in_which_something_happens_before_it_is_removed_stays(
    stores: tuple[Path, Path], happens: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = stores
    move = ["copy", "a", "--move", "--from", str(source), "--to", str(target)]
    with monkeypatch.context() as patch:
        around(patch, "remove", before=lambda: happens(source))
        assert run(move) == FOUND
    told = " ".join(capsys.readouterr().err.split())
    assert "was resumed or sent a message" in told and "repeat the move" in told
    before = segments(source / "a")
    assert run(move) == OK, "the copy has nothing of its own"
    assert not (source / "a").exists() and segments(target / "a") == before
    expected = ([{"paid": 7}], [1]) if happens is goes_on else ([], [1, 2])
    assert (notes(target), sent(target)) == expected


def test_a_run_is_held_while_it_is_copied(
    stores: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = stores

    def refused() -> None:
        with pytest.raises(LogLockedError):
            goes_on(source)

    around(monkeypatch, "adopt", refused, refused)
    assert run(["copy", "a", "--from", str(source), "--to", str(target)]) == OK
    assert segments(target / "a") == segments(source / "a")


@pytest.mark.parametrize("move", [[], ["--move"]])
@pytest.mark.parametrize("is_live", [False, True])
def test_a_worker_of_the_target_may_go_on_with_the_copy_at_once(
    stores: tuple[Path, Path], move: list[str], is_live: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = stores
    with ExitStack() as held:

        def worker() -> None:
            goes_on(target)
            sends(target)
            if is_live:
                held.enter_context(CheckpointStore(target).claim("a"))

        around(monkeypatch, "adopt", after=worker)
        assert run(["copy", "a", *move, "--from", str(source), "--to", str(target)]) == OK
    assert (source / "a").exists() == (not move)
    assert (notes(target), sent(target)) == ([{"paid": 7}], [1, 2])


@pytest.fixture
def killed(stores: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A move of run a that was killed before it removed the original."""
    move = ["copy", "a", "--move", "--from", str(stores[0]), "--to", str(stores[1])]

    def dies() -> None:
        raise MemoryError

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        around(patch, "remove", before=dies)
        run(move)
    assert segments(stores[0] / "a") == segments(stores[1] / "a")
    return move


def test_a_move_that_was_killed_before_it_removed_the_original_is_repeated(
    stores: tuple[Path, Path], killed: list[str], capsys: Any
) -> None:
    source, target = stores
    before = segments(source / "a")
    assert run(killed) == OK
    assert "moved 1 run" in capsys.readouterr().out
    assert not (source / "a").exists() and segments(target / "a") == before


@pytest.mark.parametrize("is_live", [False, True])
def test_a_move_that_was_killed_is_repeated_after_the_copy_went_on(
    stores: tuple[Path, Path], killed: list[str], is_live: bool
) -> None:
    source, target = stores
    goes_on(target)
    sends(target)
    with CheckpointStore(target).claim("a") if is_live else nullcontext():
        assert run(killed) == OK
    assert not (source / "a").exists()
    assert (notes(target), sent(target)) == ([{"paid": 7}], [1, 2])


@pytest.mark.parametrize("is_known", [True, False])
def test_the_copy_may_lose_old_segments_but_not_the_last_of_the_original(
    stores: tuple[Path, Path], is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = stores
    with CheckpointStore(source).claim("a") as log:
        log.roll()
        log.append("note", {"paid": 6})

    def worker() -> None:
        goes_on(target)
        with CheckpointStore(target).claim("a") as log:
            if not is_known:
                log.roll()
                log.append("note", {"paid": 8})
            log.truncate_before(log.last_lsn)

    around(monkeypatch, "adopt", after=worker)
    done = run(["copy", "a", "--move", "--from", str(source), "--to", str(target)])
    assert done == (OK if is_known else FOUND)
    assert (source / "a").exists() != is_known
    assert notes(target) == ([{"paid": 6}, {"paid": 7}] if is_known else [{"paid": 8}])


def test_a_move_is_not_repeated_after_both_went_on(
    stores: tuple[Path, Path], killed: list[str], capsys: Any
) -> None:
    source, target = stores
    sends(source)
    goes_on(target)
    before = segments(source), segments(target)
    assert run(killed) == FOUND
    told = " ".join(capsys.readouterr().err.split())
    assert "neither continues the other" in told and "Remove the copy" not in told
    for store in stores:
        assert f"recovery show a --store {quote(str(store))}`" in told
    assert (segments(source), segments(target)) == before


def test_a_copy_that_a_process_has_is_not_replaced(
    stores: tuple[Path, Path], killed: list[str], capsys: Any
) -> None:
    source, target = stores
    sends(source)
    with CheckpointStore(target).claim("a"):
        assert run(killed) == FOUND
    assert f"{target}/a is held by" in capsys.readouterr().err
    assert sent(source) == [1, 2] and sent(target) == [1]


def test_a_message_that_a_sender_died_in_is_no_difference(
    stores: tuple[Path, Path], capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = stores
    inbox = EventLog.open(source / "a" / "inbox")
    inbox.append("signal", {"value": 2})
    inbox.commit()
    inbox._open = False
    inbox._let_go()  # as the kernel does
    around(monkeypatch, "adopt", after=lambda: sends(target, 3))
    assert run(["copy", "a", "--move", "--from", str(source), "--to", str(target)]) == OK
    assert sent(target) == [1, 2, 3] and not (source / "a").exists()


def test_a_run_is_not_moved_onto_another_of_its_id(stores: tuple[Path, Path], capsys: Any) -> None:
    source, target = stores
    RecoverableAgent(agent, CheckpointStore(target)).run_with_recovery_sync("task", "a")
    before = segments(source / "a"), segments(target / "a")
    copy = ["copy", "a", "--from", str(source), "--to", str(target)]
    for given, told in ((copy, "has a run 'a' already"), ([*copy, "--move"], "neither continues")):
        assert run(given) == FOUND
        assert told in " ".join(capsys.readouterr().err.split())
    assert (segments(source / "a"), segments(target / "a")) == before


@pytest.mark.parametrize("is_known", [True, False])
def test_a_store_is_not_moved_into_itself(
    stores: tuple[Path, Path], is_known: bool, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = stores
    target.symlink_to(source)
    before = segments(source)
    if not is_known:  # whether an owner lives, as over some network file systems
        owner = LogReader.owner

        def seen(self: LogReader) -> LogOwner | None:
            found = owner(self)
            return found and replace(found, alive=not self.path.startswith(str(target)))

        monkeypatch.setattr(LogReader, "owner", seen)
    assert run(["copy", "--all", "--move", "--from", str(source), "--to", str(target)]) == FOUND
    assert "has a run 'a' already" in capsys.readouterr().err
    assert segments(source) == before


def test_a_live_run_is_not_moved_into_its_own_store(stores: tuple[Path, Path], capsys: Any) -> None:
    source, target = stores
    target.symlink_to(source)
    before = segments(source)
    with CheckpointStore(source).claim("a"):
        assert run(["copy", "a", "--move", "--from", str(source), "--to", str(target)]) == FOUND
    assert "is held by" in capsys.readouterr().err
    assert segments(source) == before


def test_what_is_refused(stores: tuple[Path, Path], capsys: Any) -> None:
    source, target = map(str, stores)
    with CheckpointStore(source).claim("a"):
        assert run(["copy", "a", "--from", source, "--to", target]) == FOUND
    told = capsys.readouterr().err
    assert "is held by" in told and "takeover=True" not in told and not Path(target, "a").exists()
    assert run(["copy", "--from", source, "--to", target]) == USAGE
    assert run(["copy", "a", "--from", source, "--to", source]) == USAGE
    assert run(["copy", "nope", "--from", source, "--to", target]) == FOUND
    assert run(["copy", "a", "--from", target + "x", "--to", target]) == NO_INPUT


def test_a_crash_leaves_no_run_and_gc_deletes_its_remains(
    stores: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = map(str, stores)
    store = CheckpointStore(target)

    def dies(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(type(store.backend.files), "move", dies)  # type: ignore[attr-defined]
    with pytest.raises(MemoryError):
        run(["copy", "a", "--from", source, "--to", target])
    monkeypatch.undo()
    assert store.backend.run_ids() == [] and any(Path(target).iterdir())
    store.gc()
    assert not any(Path(target).iterdir())


def test_a_disk_that_is_full_keeps_no_part_of_a_copy(
    stores: tuple[Path, Path], capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = stores
    written: list[int] = []

    def fills(file: Any, data: bytes, offset: int) -> int:
        if written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(write_all(file, data, offset))
        return written[0]

    monkeypatch.setattr("recovery.stores.log_store.write_all", fills)
    assert run(["copy", "a", "--from", str(source), "--to", str(target)]) == FOUND
    told = " ".join(capsys.readouterr().err.split())
    assert written and "No space left on device. Nothing was copied" in told
    assert not any(target.iterdir())


def test_a_copy_that_is_there_but_not_durable_is_not_denied(
    stores: tuple[Path, Path], capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = stores
    move = OSFiles.move

    def fails(self: Any, path: str, new: str) -> None:
        move(self, path, new)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(OSFiles, "move", fails)
    assert run(["copy", "a", "--from", str(source), "--to", str(target)]) == FOUND
    told = " ".join(capsys.readouterr().err.split())
    assert "was copied to" in told and "Nothing was copied" not in told
    assert segments(target / "a") == segments(source / "a")


def test_an_encrypted_run_is_copied(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"k1 {os.urandom(32).hex()}\n")
    keys.chmod(0o600)
    store = FileStore(tmp_path / "from", encryption=encryption_from(str(keys), reading=False))
    RecoverableAgent(agent, CheckpointStore(store)).run_with_recovery_sync("task", "a")
    before = segments(tmp_path / "from")
    given = ["--key-file", str(keys), "--from", str(tmp_path / "from")]
    assert run(["copy", "a", "--move", *given, "--to", str(tmp_path / "to")]) == OK
    assert segments(tmp_path / "to") == before and not segments(tmp_path / "from")


async def parent(run: Any) -> Any:
    return await run.child(child, "task")


async def child(run: Any) -> Any:
    return 10


def test_child_runs_that_are_not_copied_are_named(tmp_path: Path, capsys: Any) -> None:
    source = tmp_path / "the runs"
    RecoverableAgent(parent, CheckpointStore(source)).run_with_recovery_sync("task", "p")
    (name,) = set(FileStore(source).run_ids()) - {"p"}
    to = ["--from", str(source), "--to"]
    given = ["--move", *to, str(tmp_path / "to")]
    assert run(["copy", "p", name, *to, str(tmp_path / "another")]) == OK
    assert "not copied" not in capsys.readouterr().err
    assert run(["copy", "p", *given]) == OK
    told = capsys.readouterr().err
    assert "not copied: 1 child run," in told
    (line,) = (line for line in told.splitlines() if line.startswith("next:"))
    assert split(line.removeprefix("next: ")) == ["recovery", "copy", name, *given]
    assert run(["copy", name, *given]) == OK
    assert set(FileStore(tmp_path / "to").run_ids()) == {"p", name}


def test_a_repeated_move_makes_the_copy_durable_before_it_removes_the_original(
    stores: tuple[Path, Path], killed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = stores[1]
    done: list[str] = []
    sync = OSDirectory.sync

    def synced(self: Any) -> None:
        sync(self)
        done.append(self.path)

    monkeypatch.setattr(OSDirectory, "sync", synced)
    around(monkeypatch, "remove", before=lambda: done.append("removed"))
    assert run(killed) == OK
    assert done.index(str(target)) < done.index("removed")


def test_an_original_that_cannot_be_removed_is_told_with_its_copy(
    stores: tuple[Path, Path], capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = stores

    def fails() -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(source))

    around(monkeypatch, "remove", before=fails)
    assert run(["copy", "a", "--move", "--from", str(source), "--to", str(target)]) == FOUND
    told = " ".join(capsys.readouterr().err.split())
    assert f"was copied to {target}" in told and "Permission denied" in told
    assert "repeat the move" in told


@pytest.mark.parametrize("move", [[], ["--move"]])
def test_a_run_that_is_taken_over_while_it_is_copied_is_told_with_its_copy(
    stores: tuple[Path, Path], move: list[str], capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = stores

    def takes_over() -> None:
        with CheckpointStore(source).claim("a", takeover=True) as log:
            log.append("note", {})

    around(monkeypatch, "adopt", after=takes_over)
    assert run(["copy", "a", *move, "--from", str(source), "--to", str(target)]) == FOUND
    told = " ".join(capsys.readouterr().err.split())
    assert "was taken over" in told and f"A copy of it may be in {target}" in told
    assert notes(source) == [{}]


def test_a_sender_that_waits_while_the_run_is_removed_leaves_nothing(
    stores: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = stores
    sender: list[Future[None]] = []
    with ThreadPoolExecutor(1) as thread:
        move = OSFiles.move

        def waited(self: Any, path: str, new: str) -> None:
            if path == str(source / "a"):  # under the locks of the run and of its inbox
                sender.append(thread.submit(sends, source))
                time.sleep(0.3)
            move(self, path, new)

        monkeypatch.setattr(OSFiles, "move", waited)
        assert run(["copy", "a", "--move", "--from", str(source), "--to", str(target)]) == OK
        with pytest.raises(RecoveryError, match="was removed meanwhile"):
            sender[0].result(30)
    assert not (source / "a").exists() and sent(target) == [1]
