"""Runs in encrypted stores: nothing of them is in any file, and nothing else changes."""

from __future__ import annotations

import asyncio
import inspect
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eventlog import EventLog
from eventlog.dump import verify
from eventlog.encryption import Encryption
from eventlog.errors import EncryptedLogError, NotEncryptedError, WrongKeyError
from recovery import CheckpointStore, RecoverableAgent, Run, SyncRun, tool
from recovery.control.send import signal
from recovery.errors import RunFailedError
from recovery.stores.file import FileStore
from recovery.stores.memory import MemoryStore
from tests.support.lives import Died
from tests.support.paths import ROOT

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
WORDS = (
    "tasksecret",
    "argsecret",
    "messagesecret",
    "statesecret",
    "resultsecret",
    "errorsecret",
    "toolsecret",
    "finalsecret",
)


class World:
    """What tools do, and how often."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.dies = True

    @property
    def tools(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        @tool
        def toolsecret_send(to: str) -> str:
            self.calls.append(to)
            return f"resultsecret {to}"

        @tool
        def toolsecret_fail(why: str) -> str:
            self.calls.append(why)
            raise RuntimeError(f"errorsecret {why}")

        return toolsecret_send, toolsecret_fail

    def enter(self, step: int) -> None:
        if step == 3 and self.dies:
            self.dies = False
            raise Died


def plain(world: World) -> Callable[[SyncRun], str]:
    send, fail = world.tools

    def agent(run: SyncRun) -> str:
        for step in run.steps():
            run.messages.append({"content": f"messagesecret {step}"})
            run.state["key-statesecret"] = f"statesecret {step}"
            run.messages.append({"result": run.call(send, f"argsecret {step}")})
            try:
                run.call(fail, f"argsecret {step}")
            except RuntimeError as exc:
                assert "errorsecret" in str(exc)
            world.enter(step)
            if step == 4:
                break
        return f"finalsecret {run.state['key-statesecret']} {len(run.messages)}"

    return agent


def asynchronous(world: World) -> Callable[[Run], Any]:
    send, fail = world.tools

    async def agent(run: Run) -> str:
        async for step in run.steps():
            run.messages.append({"content": f"messagesecret {step}"})
            run.state["key-statesecret"] = f"statesecret {step}"
            run.messages.append({"result": await run.call(send, f"argsecret {step}")})
            try:
                await run.call(fail, f"argsecret {step}")
            except RuntimeError as exc:
                assert "errorsecret" in str(exc)
            world.enter(step)
            if step == 4:
                break
        return f"finalsecret {run.state['key-statesecret']} {len(run.messages)}"

    return agent


def start(agent: Any, store: CheckpointStore, task: str = "tasksecret") -> Any:
    recoverable = RecoverableAgent(agent, store, checkpoint_every_n=2)
    if inspect.iscoroutinefunction(agent):
        return asyncio.run(recoverable.run_with_recovery(task, "run"))
    return recoverable.run_with_recovery_sync(task, "run")


def store_of(path: Path, encryption: Encryption | None) -> CheckpointStore:
    return CheckpointStore(FileStore(path, encryption=encryption))


def stored(path: Path) -> bytes:
    files = [file for file in path.rglob("*") if file.is_file()]
    assert files
    return b"".join(file.name.encode() + file.read_bytes() for file in files)


AGENTS = pytest.mark.parametrize("make", [plain, asynchronous])


@AGENTS
def test_nothing_of_a_run_that_was_killed_and_resumed_is_in_any_file(make, tmp_path) -> None:
    world = World()
    agent = make(world)
    with pytest.raises(Died):
        start(agent, store_of(tmp_path, Encryption(KEY)))
    left = stored(tmp_path)
    result = start(agent, store_of(tmp_path, Encryption(KEY)))
    assert result["result"] == "finalsecret statesecret 4 8"
    assert result["recovered_from_step"] == 2
    assert world.calls == [f"argsecret {n}" for n in (1, 1, 2, 2, 3, 3, 4, 4)], "once each"
    for content in (left, stored(tmp_path)):
        for word in (*WORDS, "run_started", "intent", "checkpoint", "RuntimeError", "Traceback"):
            assert word.encode() not in content, word
    # The same in clear has all of them: the test looks where they would be.
    other = World()
    with pytest.raises(Died):
        start(make(other), store_of(tmp_path / "clear", None))
    start(make(other), store_of(tmp_path / "clear", None))
    for word in (*WORDS, "run_started", "RuntimeError"):
        assert word.encode() in stored(tmp_path / "clear"), word


@AGENTS
@pytest.mark.parametrize(
    ("encryption", "error"),
    [
        (None, EncryptedLogError),
        (Encryption(OTHER), WrongKeyError),
        (Encryption({"2": KEY}.get, "2"), WrongKeyError),
    ],
)
def test_without_its_key_a_run_is_neither_executed_nor_changed(
    make, encryption, error, tmp_path
) -> None:
    world = World()
    agent = make(world)
    with pytest.raises(Died):
        start(agent, store_of(tmp_path, Encryption(KEY)))
    before, calls = stored(tmp_path), list(world.calls)
    with pytest.raises(error) as caught:
        start(agent, store_of(tmp_path, encryption))
    assert type(caught.value) is error
    with pytest.raises(error):
        store_of(tmp_path, encryption).load_latest("run")
    assert stored(tmp_path) == before and world.calls == calls
    assert start(agent, store_of(tmp_path, Encryption(KEY)))["result"].startswith("finalsecret")


@AGENTS
def test_a_key_can_be_changed_between_two_lives(make, tmp_path) -> None:
    keys = {"old": KEY, "new": OTHER}.get
    world = World()
    agent = make(world)
    with pytest.raises(Died):
        start(agent, store_of(tmp_path, Encryption(keys, "old")))
    result = start(agent, store_of(tmp_path, Encryption(keys, "new")))
    assert result["result"] == "finalsecret statesecret 4 8"
    assert len(world.calls) == 8
    with pytest.raises(WrongKeyError, match="'old'"):
        list(
            EventLog.read(
                tmp_path / "run", encryption=Encryption({"new": OTHER}.get, "new")
            ).records()
        )


@AGENTS
def test_a_run_begun_in_clear_goes_on_encrypted(make, tmp_path) -> None:
    world = World()
    agent = make(world)
    with pytest.raises(Died):
        start(agent, store_of(tmp_path, None))
    before = stored(tmp_path)
    with pytest.raises(NotEncryptedError):
        start(agent, store_of(tmp_path, Encryption(KEY)))
    assert stored(tmp_path) == before and len(world.calls) == 6
    result = start(agent, store_of(tmp_path, Encryption(KEY, accept_clear=True)))
    assert result["result"] == "finalsecret statesecret 4 8" and len(world.calls) == 8
    assert b"finalsecret" not in stored(tmp_path)
    with pytest.raises(EncryptedLogError):
        start(agent, store_of(tmp_path, None))


@AGENTS
def test_a_run_in_memory_can_be_encrypted(make) -> None:
    backend = MemoryStore(encryption=Encryption(KEY))
    world = World()
    agent = make(world)
    with pytest.raises(Died):
        start(agent, CheckpointStore(backend))
    assert start(agent, CheckpointStore(backend))["recovered_from_step"] == 2
    directory = backend.files.make_directory("memory/run")
    held = b"".join(directory.open(name).pread(1 << 30, 0) for name in directory.names())
    assert len(held) > 1000 and not any(word.encode() in held for word in WORDS)


def test_a_run_that_failed_says_nothing_on_disk(tmp_path) -> None:
    @tool
    def toolsecret_divide() -> float:
        return 1 / 0

    def agent(run: SyncRun) -> None:
        run.call(toolsecret_divide)

    with pytest.raises(RunFailedError):
        start(agent, store_of(tmp_path, Encryption(KEY)))
    assert b"division" not in stored(tmp_path) and b"toolsecret" not in stored(tmp_path)


def test_what_others_send_to_a_run_is_encrypted_as_well(tmp_path) -> None:
    world = World()

    def agent(run: SyncRun) -> Any:
        for step in run.steps():
            world.enter(step + 2)
            return run.wait_for("namesecret", timeout=60)

    with pytest.raises(Died):
        start(agent, store_of(tmp_path, Encryption(KEY)))
    for store in (store_of(tmp_path, None), store_of(tmp_path, Encryption(OTHER))):
        with pytest.raises(EncryptedLogError):
            signal(store, "run", "namesecret", "forged")
    assert not (tmp_path / "run" / "inbox").exists(), "nothing in clear was left there"
    signal(store_of(tmp_path, Encryption(KEY)), "run", "namesecret", "valuesecret", who="whosecret")
    assert (tmp_path / "run" / "inbox").is_dir()
    assert start(agent, store_of(tmp_path, Encryption(KEY)))["result"] == "valuesecret"
    for word in ("namesecret", "valuesecret", "whosecret", "forged"):
        assert word.encode() not in stored(tmp_path)


def test_the_example_says_what_it_should(capsys: pytest.CaptureFixture[str], tmp_path) -> None:
    example = runpy.run_path(str(ROOT / "examples" / "encryption.py"))
    example["main"](tmp_path)
    said = re.sub(r"\d+ bytes", "so many bytes", capsys.readouterr().out)
    assert said.splitlines() == [
        "result: 2 patients",
        "diagnosis on disk: False",
        "problems found without the key: 0",
        "LSN 1: so many bytes, under the key 2026-05",
        "EncryptedLogError 2026-05",
    ]
    for run in tmp_path.iterdir():
        with EventLog.read(run) as reader:
            assert list(verify(reader)) == []
