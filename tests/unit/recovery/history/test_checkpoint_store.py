"""Checkpoints saved and loaded: in memory and on disk, the same."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from eventlog import LogError, LogLockedError, RefusedValueError
from eventlog.testing import SimulatedDisk
from recovery import (
    Checkpoint,
    CheckpointStore,
    RecoverableAgent,
    RecoveryError,
    Resolution,
    Run,
    SyncRun,
    ToolError,
    tool,
)
from recovery.history import checkpoint_store_base
from recovery.history.find_run import reader_of
from recovery.stores.file import FileStore, default_directory
from recovery.stores.log_store import LogStore
from recovery.stores.memory import MemoryStore

Again = Callable[[], CheckpointStore]


def checkpoint(step: int = 1, run_id: str = "run", **parts: Any) -> Checkpoint:
    given: dict[str, Any] = {
        "checkpoint_id": f"c{step}",
        "state": {"step": step, "text": "ż" * 50},
        "messages": [{"role": "user", "n": n} for n in range(step)],
        "tool_results": [{"tool": "send", "value": n} for n in range(step)],
        "timestamp": 1700000000.5 + step,
    }
    return Checkpoint(run_id=run_id, step_number=step, **given | parts)


@pytest.fixture(params=["memory", "file", "unflushed file"])
def again(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Again]:
    """Opens stores on one backend, as each later process would."""
    memory, opened = MemoryStore(), list[CheckpointStore]()

    def another() -> CheckpointStore:
        for store in opened:
            store.close()
        match request.param:
            case "memory":
                opened.append(CheckpointStore(memory))
            case "file":
                opened.append(CheckpointStore(tmp_path / "store"))
            case _:
                opened.append(CheckpointStore(FileStore(tmp_path / "store", "none")))
        return opened[-1]

    yield another
    for store in opened:
        store.close()


@pytest.fixture
def store(again: Again) -> CheckpointStore:
    return again()


def contents(store: CheckpointStore, run_id: str = "run") -> dict[str, bytearray]:
    """The files of a run, which a test may change (``put`` writes them back)."""
    if isinstance(store.backend, MemoryStore):
        files: Any = store.backend.files
        return {name: file.content for name, file in files.directories[f"memory/{run_id}"].items()}
    assert isinstance(store.backend, FileStore)
    return {
        path.name: bytearray(path.read_bytes())
        for path in (Path(store.backend.root) / run_id).iterdir()
    }


def put(store: CheckpointStore, files: dict[str, bytearray], run_id: str = "run") -> None:
    if isinstance(store.backend, FileStore):
        for name, content in files.items():
            (Path(store.backend.root) / run_id / name).write_bytes(content)


# -- saved and loaded


def test_a_checkpoint_comes_back(store, again):
    saved = checkpoint(3)
    assert store.save(saved) == "c3"
    for one in (store, again()):
        found = one.load_latest("run")
        assert found == saved
        assert [type(getattr(found, f.name)) for f in fields(saved)] == [
            type(getattr(saved, f.name)) for f in fields(saved)
        ]
        assert list(found.state) == list(saved.state)
        assert one.validate(found)
        assert one.validate("run")
        assert str(one.check("run")) == "sound"


def test_the_newest_checkpoint_and_that_of_a_step_are_found(store):
    saved = [checkpoint(step) for step in (1, 2, 3, 2)]
    saved[3].state["second"] = True
    saved[3] = replace(saved[3], checkpoint_id="again", checksum="")
    for one in saved:
        store.save(one)
    assert store.load_latest("run") == saved[3]
    assert store.load_at_step("run", 3) == saved[2]
    assert store.load_at_step("run", 2) == saved[3]
    assert store.load_at_step("run", 1) == saved[0]
    assert store.load_at_step("run", 9) is None


def test_what_is_not_there_is_none(store):
    assert store.load_latest("nothing") is None
    assert store.load_at_step("nothing", 1) is None
    assert not store.validate("nothing")
    assert "no run 'nothing'" in str(store.check("nothing"))
    assert store.backend.run_ids() == []


def test_a_run_that_is_nowhere_is_said_without_a_place_where_there_is_none():
    with pytest.raises(RecoveryError, match=r"^there is no run 'nothing'$"):
        reader_of(CheckpointStore(), "nothing")


def test_of_many_runs_the_least_recently_saved_are_let_go(monkeypatch):
    monkeypatch.setattr(checkpoint_store_base, "OPEN_MAX", 2)
    backend = MemoryStore()
    with CheckpointStore(backend) as store, CheckpointStore(backend) as other:
        for run_id in ("a", "b", "a", "c"):
            store.save(checkpoint(1, run_id))
        other.save(checkpoint(2, "b"))
        for run_id in ("a", "c"):
            with pytest.raises(LogLockedError):
                other.save(checkpoint(2, run_id))


def test_what_is_loaded_can_be_changed_and_saved_again(store, again):
    store.save(checkpoint(1))
    for step in range(2, 6):
        store = again()
        found = store.load_latest("run")
        assert found is not None
        found.messages.append({"n": step})
        found.messages[0]["role"] = step
        found.state["step"] = step
        found.state["text"] += "!"
        changed = replace(found, step_number=step, checksum="")
        store.save(changed)
        assert store.load_latest("run") == changed


def test_a_shorter_conversation_is_restored(store, again):
    for messages in ([1, 2, 3, 4], [1, 2], [1, 9, 8], [], [5]):
        store.save(checkpoint(1, messages=messages))
        found = store.load_latest("run")
        assert found is not None
        assert found.messages == messages
        if len(messages) == 3:
            store = again()


# -- the checksum


def test_a_checksum_that_is_given_must_fit(store):
    right = checkpoint(2)
    store.save(checkpoint(2, checksum=right.checksum))
    wrong = checkpoint(2, checksum="0" * 32)
    with pytest.raises(RecoveryError, match="changed after its checksum"):
        store.save(wrong)
    assert "0" * 32 in str(store.check(wrong))
    assert wrong.is_valid is False
    assert store.validate(right)
    assert right.is_valid is True


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.state.update(new=1),
        lambda c: c.messages.append(1),
        lambda c: c.messages[0].update(role="system"),
        lambda c: c.tool_results.pop(),
        lambda c: setattr(c, "step_number", 9),
        lambda c: setattr(c, "run_id", "other"),
        lambda c: c.state.update(bad=set()),
    ],
)
def test_a_checkpoint_changed_after_its_checksum_is_not_saved(store, change):
    made = checkpoint(2)
    change(made)
    with pytest.raises((RecoveryError, RefusedValueError)):
        store.save(made)
    assert store.load_latest("run") is None
    validity = store.check(made)
    assert not validity
    assert validity.reason
    assert not made.is_valid


def test_a_checkpoint_marked_as_not_valid_stays_so(store):
    made = checkpoint(1, is_valid=False)
    assert str(store.check(made)) == "marked as not valid"


@pytest.mark.parametrize(
    ("parts", "where"),
    [
        ({"state": {"a": [{"b": object()}]}}, "state.a[0].b: object"),
        ({"state": {"a": (1, len)}}, "state.a[1]: builtin"),
        ({"state": {1: 2}}, "state[1]: keys of a state are str"),
        ({"state": {"f": open}}, "state.f: "),
        ({"messages": [1, {"x": object()}]}, "messages[1].x: object"),
        ({"messages": [1, {"x": bytearray()}]}, "messages[1].x: bytearray"),
        ({"tool_results": [{"v": memoryview(b"")}]}, "tool_results[0].v: memoryview"),
    ],
)
def test_what_cannot_be_carried_is_refused_with_the_path(store, parts, where):
    with pytest.raises(RefusedValueError) as caught:
        store.save(checkpoint(1, **parts))
    assert str(caught.value).startswith(where)
    made = checkpoint(1)
    for name, value in parts.items():
        setattr(made, name, value)
    with pytest.raises(RefusedValueError) as caught:
        store.save(made)
    assert str(caught.value).startswith(where)
    assert store.load_latest("run") is None
    store.save(checkpoint(1))
    assert store.load_latest("run") == checkpoint(1)


def test_a_save_that_is_too_large_leaves_the_store_as_it_was(store):
    store.save(checkpoint(1))
    with pytest.raises(RefusedValueError, match="bytes"):
        store.save(checkpoint(2, state={"huge": "x" * (65 << 20)}))
    assert store.load_latest("run") == checkpoint(1)
    store.save(checkpoint(3))
    assert store.load_latest("run") == checkpoint(3)


def test_a_checkpoint_is_durable_when_save_returns():
    for seed in range(20):
        disk = SimulatedDisk(seed)
        store = CheckpointStore(LogStore("home", disk, "power"))
        for step in (1, 2):
            store.save(checkpoint(step))
            with CheckpointStore(LogStore("home", disk.after_power_loss(seed), "power")) as after:
                assert after.load_latest("run") == checkpoint(step)
                assert after.validate("run")
        store.close()


def test_a_save_is_one_write_one_flush_and_the_mark_of_what_changed():
    disk = SimulatedDisk()
    with CheckpointStore(LogStore("home", disk, "power")) as store:
        state = {f"k{i}": "x" * 1000 for i in range(100)}
        messages: list[Any] = [{"role": "user", "content": f"{i} " * 100} for i in range(1000)]
        for step in (1, 2):  # both lanes
            store.save(checkpoint(step, state=state, messages=messages))
        for step in range(3, 33):
            state[f"k{step}"], messages = f"step {step}", [*messages, {"n": step}]
            before = len(disk.calls)
            store.save(checkpoint(step, state=state, messages=messages))
            assert disk.calls[before:] == ["write", "sync", "write"]
        sizes = [one.size for one in store.run("run").checkpoints()][:-2]
        # Some name all messages again, a few bytes for each; there are log2(steps) of those.
        few = [size for size in sizes if size < 2200]
        assert len(few) >= len(sizes) - 5
        assert max(sizes) < 13 * len(messages) + 2200


def test_after_a_failed_save_the_store_goes_on(again):
    disk = SimulatedDisk()
    with CheckpointStore(LogStore("home", disk, "power")) as store:
        store.save(checkpoint(1))
        for verb in ("write", "sync"):
            disk.fail_at(verb, 0, errno.ENOSPC)
            with pytest.raises(OSError, match="No space left"):
                store.save(checkpoint(2))
            found = store.load_latest("run")
            assert found is not None
            assert found in (checkpoint(1), checkpoint(2))
            store.save(checkpoint(3))
            assert store.load_latest("run") == checkpoint(3)


# -- damage (acceptance 2)


def test_a_damaged_value_that_later_checkpoints_rely_on_breaks_them_too(store, again):
    store.save(checkpoint(1, state={"n": 1}))
    for n in (2, 3, 4, 5):
        store.save(checkpoint(n, state={"n": n, "kept": "KEPT"}))
    store = again()
    files = contents(store)
    for content in files.values():
        at = bytes(content).rfind(b"KEPT")  # in the copy of all that the fifth has
        if at >= 0:
            content[at] ^= 1
    put(store, files)
    found = store.load_latest("run")
    assert found is not None
    assert found.state == {"n": 4, "kept": "KEPT"}
    assert "it needs LSN 6, which is damaged or missing" in str(store.check("run"))


# -- under an agent


@tool
def send(what: int) -> dict[str, int]:
    if what == 2:
        raise ValueError("two")
    return {"sent": what}


async def agent(run: Run) -> str:
    async for step in run.steps():
        try:
            run.messages.append(await run.call(send, step, call_id=f"id{step}"))
        except ValueError:
            run.messages.append("failed")
        run.state["step"] = step
        if step >= 7:
            if run.task == "fail":
                raise OSError
            return "done"
    raise AssertionError


def run(store: CheckpointStore, task: str = "task", run_id: str = "run") -> Any:
    of = RecoverableAgent(agent, store, checkpoint_every_n=3, max_recoveries=0)
    return asyncio.run(of.run_with_recovery(task, run_id))


def test_a_run_that_has_ended_takes_no_checkpoints(store):
    run(store)
    with pytest.raises(RecoveryError, match="has ended"):
        store.save(checkpoint(9))


def test_a_checkpoint_that_would_forget_calls_is_not_saved(store):
    with pytest.raises(OSError):
        run(store, "fail")
    with pytest.raises(RecoveryError, match=r"forget a call: send, id id7, .*step 7, with an"):
        store.save(checkpoint(6))
    store.save(checkpoint(7, state={"mine": True}))
    with pytest.raises(OSError):
        run(store, "fail")
    found = store.load_latest("run")
    assert found is not None
    assert (found.step_number, found.state["mine"]) == (7, True)


def test_an_agent_goes_on_from_a_checkpoint_that_was_saved_by_hand(store):
    store.save(checkpoint(5, messages=["a"], state={"b": 1}))
    found = run(store)
    assert (found["result"], found["recovered_from_step"]) == ("done", 5)
    latest = store.load_at_step("run", 5)
    assert latest is not None
    assert run(store)["result"] == "done"


def test_the_tool_results_of_an_agents_checkpoint_are_the_outcomes_of_its_calls(store):
    lives: list[int] = []

    @tool
    def both() -> int:
        return send(0)["sent"] + send(1)["sent"]

    @tool
    def dies() -> None:
        lives.append(1)
        raise KeyboardInterrupt

    def calling(run: SyncRun) -> None:
        for step in run.steps():
            if step == 1:
                run.call(both)
            with suppress(ValueError, ToolError):
                run.call(send if step < 3 else dies, *[step][: 3 - step], call_id=f"id{step}")
            if step == 4:
                raise OSError

    of = RecoverableAgent(calling, store, checkpoint_every_n=3, max_recoveries=0)
    with suppress(KeyboardInterrupt):
        of.run_with_recovery_sync("task", "run")
    (in_doubt,) = store.run("run").status().in_doubt
    store.run("run").resolve(in_doubt, Resolution.fail("gone"))
    with suppress(KeyboardInterrupt):
        of.resume_sync("run")
    latest = store.load_latest("run")
    assert latest is not None and latest.step_number == 3
    expected = [
        {"step": 1, "tool": "both", "call_id": "", "value": 1},
        {"step": 1, "tool": "send", "call_id": "id1", "value": {"sent": 1}},
        {"step": 2, "tool": "send", "call_id": "id2", "error": "builtins.ValueError: two"},
        {"step": 3, "tool": "dies", "call_id": "id3", "error": "resolved as failed: gone"},
    ]
    assert latest.tool_results == expected and latest.tool_results != expected[1:]
    assert latest.tool_results != 4
    assert (len(latest.tool_results), latest.tool_results[-1]) == (4, expected[-1])
    assert repr(latest.tool_results) == repr(expected)


def test_a_store_lets_go_of_a_run_for_the_agent_and_on_close(again):
    store = again()
    store.save(checkpoint(1))
    assert run(store)["recovered_from_step"] == 1
    with again() as store:
        store.save(checkpoint(1, "other"))
    run(again(), run_id="other")


def test_two_stores_do_not_save_to_one_run(store):
    store.save(checkpoint(1))
    with CheckpointStore(store.backend) as other, pytest.raises(LogLockedError, match="is held"):
        other.save(checkpoint(2))
    assert store.load_latest("run") == checkpoint(1)
    store.save(checkpoint(2))


# -- run ids


@pytest.mark.parametrize(
    "run_id",
    [
        "",
        ".",
        "..",
        "../x",
        "a/b",
        "/etc",
        "a\\b",
        "a\x00b",
        "a\nb",
        "a\n",
        "ü",
        "-a",
        ".hidden",
        "a b",
        "x" * 129,
        "x" * 200,
        "~",
        "a:b",
        "a*",
        "\ud800",
    ],
    ids=ascii,
)
def test_a_run_id_that_is_no_name_of_a_log_is_refused(store, run_id, tmp_path):
    attempts: list[Callable[[], Any]] = [
        lambda: store.save(checkpoint(1, run_id)),
        lambda: store.load_latest(run_id),
        lambda: store.load_at_step(run_id, 1),
        lambda: store.validate(run_id),
        lambda: run(store, run_id=run_id),
    ]
    for attempt in attempts:
        with pytest.raises(ValueError, match=r"run_id|surrogates"):
            attempt()
    assert store.backend.run_ids() == []
    assert list(tmp_path.glob("**/*")) == []


# -- on disk


def test_a_run_directory_that_is_a_symlink_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "run").symlink_to(tmp_path / "elsewhere")
    with CheckpointStore(tmp_path / "store") as store:
        for attempt in (lambda: store.save(checkpoint(1)), lambda: store.load_latest("run")):
            with pytest.raises(LogError, match="is a symbolic link"):
                attempt()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_the_default_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("EVENTLOG_HOME", str(tmp_path / "set"))
    assert default_directory() == str(tmp_path / "set")
    monkeypatch.setenv("EVENTLOG_HOME", "~/with-tilde")
    assert default_directory() == FileStore().root == str(tmp_path / "with-tilde")
    monkeypatch.setenv("EVENTLOG_HOME", "")
    assert default_directory() == str(tmp_path / ".eventlog")
    monkeypatch.delenv("EVENTLOG_HOME")
    assert default_directory() == FileStore().root == str(tmp_path / ".eventlog")
    of = RecoverableAgent(agent)
    assert isinstance(of.store.backend, FileStore)
    assert of.store.backend.root == str(tmp_path / ".eventlog")
    assert FileStore("~/x").root == str(tmp_path / "x")
    assert isinstance(CheckpointStore().backend, MemoryStore)


def test_a_relative_directory_stays_where_it_was(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with CheckpointStore("store") as store:
        store.save(checkpoint(1))
        monkeypatch.chdir("/")
        assert store.load_latest("run") == checkpoint(1)
        store.save(checkpoint(1, "other"))
    assert (tmp_path / "store" / "other").is_dir()


def test_errors_of_tools_are_not_needed_to_read_them():
    # What is stored names types as text; nothing is imported for it.
    assert ToolError("m.Nowhere", "x", "").type_name == "m.Nowhere"
