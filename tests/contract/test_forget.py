"""Values of a subject are on disk under its key alone, and gone for all when the key is."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventlog import EventLog, LogLockedError, Packed, RefusedValueError
from eventlog.encryption import Encryption
from eventlog.files.posix import OSFile, OSFiles
from eventlog.testing import Crash, SimulatedDisk
from recovery import (
    CheckpointStore,
    InDoubtError,
    RecoverableAgent,
    RecoveryError,
    Resolution,
    Retry,
    ToolError,
    current_run,
    tool,
)
from recovery.errors import (
    DivergenceError,
    ForgottenError,
    RunFailedError,
    SubjectKeysError,
    UnreadableValueError,
    UnrecordedResultError,
)
from recovery.history import subject_values
from recovery.history.find_run import keys_of
from recovery.history.subject_values import is_personal, values_of
from recovery.inspect import listing_file
from recovery.inspect.status import status
from recovery.journal.events import CallIntended, CallReturned, HistoryDropped
from recovery.ops.copy_run import copy_run
from recovery.stores.log_store import LogStore
from recovery.stores.subject_keys import KeyFile, SubjectKeys
from recovery.subjects import Forgotten, SubjectError, personal
from recovery.testing import crash_everywhere
from recovery.values import sealed
from recovery.values.codec import BY_CODE, BY_NAME
from recovery.values.pack import pack, pack_arguments, pack_list, unpack
from recovery.values.types import digest
from tests.cli.harness import Processes, call
from tests.support.lives import recorded

WHO = "alice-0a1b2c3d"  # the subject; no part of it may be in a log either
# Each way in which a value comes into a log, with a text of its own.
ARGUMENT, RESULT, TOLD, RAISED, RETRIED, NESTED, STREAMED, WRITTEN, STATE, FOUND, CHILD = (
    f"{name}-5ecret-value-{name}" for name in "ab cd ef gh ij kl mn op qr st uv".split()
)
SECRETS = [WHO, ARGUMENT, RESULT, TOLD, RAISED, RETRIED, NESTED, STREAMED, WRITTEN, STATE]
SECRETS += [FOUND, CHILD]
made: list[str] = []


@pytest.fixture(autouse=True)
def nothing_made() -> None:
    made.clear()
    sealed._OPENERS.clear()  # of lives that have died in another test, and whose disk says so


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    with Processes(tmp_path) as started:
        yield started


@tool(subject="who", after_crash="retry")
def look_up(who: str, what: str) -> dict[str, Any]:
    made.append("look_up")
    return {"result": RESULT, "number": 17, "deep": [{"in": note(NESTED)}]}


@tool(after_crash="retry")
def note(text: str) -> str:
    return text


@tool(subject=lambda who, **_: who, after_crash="retry", retry=Retry(2, delay_s=0))
def refuse(who: str, *, why: str) -> None:
    made.append("refuse")
    raise ValueError(RETRIED if made.count("refuse") == 1 else RAISED)


@tool(subject="who", after_crash="retry")
def spell(who: str, text: str) -> Iterator[str]:
    yield from text


@tool(after_crash="retry")
def search(number: int) -> Any:
    return personal(WHO, {"found": FOUND, "number": number})


def child(run: Any) -> str:
    return f"{note(run.task)} {CHILD}"


@tool(subject="who", after_crash="retry")
def delegate(who: str, run: Any = None) -> str:
    here: Any = current_run()
    return str(here.child(child, f"{CHILD} task"))


def everything(run: Any) -> Any:
    """A run that records values of a subject in all ways."""
    got = look_up(WHO, ARGUMENT)
    run.messages.append({"role": "tool", "content": got["result"]})
    run.messages.append({"role": "tool", "content": f"status {got['number']}"})
    for step in run.steps():
        run.messages.append(personal(WHO, {"role": "user", "content": TOLD}))
        run.state["got"] = got
        run.state["told"] = personal(WHO, {"text": STATE, "step": step})
        run.state["told"]["step"] += 1  # stays the subject's
        try:
            refuse(WHO, why=ARGUMENT)
        except ValueError as exc:
            assert str(exc) == RAISED, exc
        with run.stream(spell, WHO, STREAMED) as letters:
            assert "".join(letters) == STREAMED
        run.state["found"] = search(step)["found"]
        assert delegate(WHO).endswith(CHILD)
        run.messages.reverse()
        if step == 1 and not made.count("crash"):
            made.append("crash")
            raise ConnectionError(f"about {got['result']}")  # the agent's own error quotes a value
        if step == 3:
            break
    return personal(WHO, [WRITTEN, run.state["told"]["step"], len(run.messages)])


async def everything_async(run: Any) -> Any:
    return await asyncio.to_thread(lambda: None) or await _async(run)


async def _async(run: Any) -> Any:
    got = await run.call(look_up, WHO, ARGUMENT)
    async for step in run.steps():
        run.messages.append({"role": "tool", "content": got})
        run.state["got"] = {"all": [got]}
        if step == 3:
            return got["result"]


def text_of(root: Path, but: str = ".subjects") -> bytes:
    return b"".join(
        path.read_bytes() for path in root.rglob("*") if path.is_file() and but not in path.parts
    )


def leaks(root: Path) -> list[str]:
    found = text_of(root)
    return [one for one in SECRETS if one.encode() in found]


def agent_of(root: Any, agent: Any = everything, **options: Any) -> RecoverableAgent:
    store = root if isinstance(root, CheckpointStore) else CheckpointStore(root)
    return RecoverableAgent(agent, store, **{"checkpoint_every_n": 1, **options})


def run(root: Any, agent: Any = everything, **options: Any) -> Any:
    return agent_of(root, agent, **options).run_with_recovery_sync("task", "run")["result"]


# -- on disk


@pytest.mark.parametrize("agent", [everything, everything_async])
@pytest.mark.parametrize("every", [1, 2, None])
def test_no_value_of_a_subject_is_on_disk_in_clear_at_any_time(
    tmp_path: Path, agent: Any, every: int | None
) -> None:
    seen: list[list[str]] = []
    result = run(
        tmp_path,
        agent,
        checkpoint_every_n=every,
        check_locals=False,
        on_event=lambda event: seen.append(leaks(tmp_path)),
    )
    assert len(seen) > 10
    assert not any(seen), (seen, leaks(tmp_path))
    assert result == RESULT if agent is everything_async else result[0] == WRITTEN
    list(CheckpointStore(tmp_path).runs())  # which keeps what it has read
    assert leaks(tmp_path) == []
    assert WHO.encode() in text_of(tmp_path, "nothing")


@pytest.mark.parametrize("way", ["message", "state", "call", "value"])
def test_a_value_too_short_to_be_known_elsewhere_is_sealed_where_it_is(
    tmp_path: Path, way: str
) -> None:
    short, seen = "pin 7461", list[bytes]()

    @tool(subject=lambda pin: WHO, after_crash="retry", retry=Retry(2, delay_s=0))
    def charge(pin: str) -> str:
        made.append(pin)
        if made.count(pin) == 1:
            raise ValueError(pin)
        return pin

    def agent(run: Any) -> Any:
        for step in run.steps():
            match way:
                case "message":
                    run.messages.append(personal(WHO, short) if step == 1 else short)
                case "state":
                    run.state["pin"] = personal(WHO, short) if step == 1 else run.state["pin"] + "!"
                case "call":
                    assert charge(short) == short
            if step == 2 and "stop" not in made:
                made.append("stop")
                raise KeyboardInterrupt
            if step == 3:
                return personal(WHO, short)

    def life() -> Any:
        return run(tmp_path, agent, on_event=lambda event: seen.append(text_of(tmp_path)))

    with pytest.raises(KeyboardInterrupt):
        life()
    assert life() == short
    assert seen and not [one for one in seen if short.encode() in one]


def test_a_sealed_value_of_the_state_is_not_written_again_by_the_next_process(
    tmp_path: Path,
) -> None:
    def agent(run: Any) -> None:
        for step in run.steps():
            if step == 1:
                run.state["told"] = personal(WHO, STATE * 100)
            elif "stop" not in made:
                made.append("stop")
                raise KeyboardInterrupt
            if step == 3:
                return

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, agent)
    run(tmp_path, agent)
    sizes = {one.step: one.size for one in CheckpointStore(tmp_path).run("run").checkpoints()}
    assert sizes[1] > len(STATE * 100) > 2 * sizes[2]


def test_a_run_of_a_subject_is_sealed_as_a_whole(tmp_path: Path) -> None:
    def agent(run: Any) -> str:
        for step in run.steps():
            run.messages.append({"content": f"{TOLD} {step}"})
            run.state["n"] = STATE
            got = note(ARGUMENT)
            said = run.wait_for("said")
            return f"{got} {said} {run.child(child, CHILD)}"
        return ""

    options: dict[str, Any] = {"subject": lambda task: task["who"], "park_after_s": 0}
    mine = agent_of(tmp_path, agent, **options)
    with pytest.raises(RecoveryError, match="said"):
        mine.run_with_recovery_sync({"who": WHO, "about": WRITTEN}, "run")
    mine.run("run").signal("said", FOUND, key="once")
    mine.run("run").signal("said", FOUND, key="once")
    result = mine.run_with_recovery_sync({"who": WHO, "about": WRITTEN}, "run")["result"]
    assert result == f"{ARGUMENT} {FOUND} {CHILD} {CHILD}"
    with pytest.raises(RecoveryError, match="said"):
        mine.run_with_recovery_sync({"who": WHO, "about": WRITTEN}, "open")
    assert leaks(tmp_path) == []
    gone = mine.store.forget(WHO)
    assert gone is not None
    assert len(gone.runs) == 3  # a child, too
    for run_id, what in ("run", "its result"), ("open", "its records"):
        with pytest.raises(ForgottenError, match=what):
            mine.run_with_recovery_sync({"who": WHO, "about": WRITTEN}, run_id)
    assert not leaks(tmp_path)


def test_a_task_that_is_handed_in_for_a_subject_is_sealed_and_so_is_its_run(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    for name in ("one", "two"):
        store.submit("shop", personal(WHO, {"text": ARGUMENT}), name)
    store.submit("shop", personal(WHO, {"text": ARGUMENT}), "one")  # the same: nothing is done
    assert leaks(tmp_path) == []
    mine = agent_of(store, lambda run: [run.task["text"], note(TOLD)])
    mine.run_with_recovery_sync({"text": ARGUMENT}, "one")
    assert leaks(tmp_path) == []
    gone = store.forget(WHO)
    assert gone is not None
    assert {*gone.runs} == {"one", "two"}
    for task in ({"text": ARGUMENT}, store.backend.submission("two").task):  # type: ignore[attr-defined]
        with pytest.raises(ForgottenError):
            mine.run_with_recovery_sync(task, "two")


def test_what_is_not_marked_is_in_clear_as_the_page_says(tmp_path: Path) -> None:
    def agent(run: Any) -> None:
        run.messages.append(f"Dear {look_up(WHO, ARGUMENT)['result']}!")

    run(tmp_path, agent)
    assert leaks(tmp_path) == [RESULT]


def test_a_call_of_nobody_is_in_clear(tmp_path: Path) -> None:
    @tool(subject="who")
    def of_nobody(who: str | None, what: str) -> str:
        return f"{what} {FOUND}"

    run(tmp_path, lambda run: of_nobody(None, ARGUMENT))
    assert leaks(tmp_path) == [ARGUMENT, FOUND]


def test_the_subject_of_a_method_is_what_a_function_says_of_its_object(tmp_path: Path) -> None:
    class Desk:
        of = WHO

        @tool(subject=lambda self, what: self.of)
        def answer(self, what: str) -> str:
            return f"{what} {FOUND}"

    run(tmp_path, lambda run: run.call(Desk().answer, ARGUMENT))
    assert leaks(tmp_path) == []


def test_a_result_of_a_subject_that_cannot_be_recorded_is_not_shown(tmp_path: Path) -> None:
    @tool(subject="who")
    def odd(who: str) -> Any:
        return [RESULT, object()]

    with pytest.raises(UnrecordedResultError, match="returned: <of a subject>\n") as caught:
        run(tmp_path, lambda run: odd(WHO))
    assert RESULT not in str(caught.value)


def test_a_resumed_run_ends_as_one_that_was_never_killed() -> None:
    def agent(run: Any) -> Any:
        got = look_up(WHO, ARGUMENT)
        for step in run.steps():
            run.messages.append(got)
            run.messages.append(personal(WHO, {"n": step, "text": TOLD}))
            run.state["got"] = {"it": got, "step": step}
            run.state["p"] = personal(WHO, [STATE, step])
            run.messages.reverse()
            note(step)
            if step == 3:
                break
        return personal(WHO, [run.state["p"], [*run.messages]])

    report = crash_everywhere(
        lambda: RecoverableAgent(agent, CheckpointStore(), 1), "task", points=40
    )
    assert report.ok, str(report)


def test_no_guess_at_arguments_can_be_tested_without_the_key(tmp_path: Path) -> None:
    found = []
    for name in ("one", "two"):
        store = CheckpointStore(tmp_path / name)
        run(store, lambda run: look_up(WHO, ARGUMENT)["number"])
        found += recorded(store, CallIntended)
    assert [one.tool for one in found] == ["look_up", "note"] * 2
    assert len({one.digest for one in found}) == 4  # equal calls, other keys
    assert digest(pack_arguments((WHO, ARGUMENT), {}, "")) not in {one.digest for one in found}
    assert found[0].idempotency_key("uid") != found[2].idempotency_key("uid")


def test_a_listing_keeps_nothing_of_a_subject(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing_file, "SETTLED_NS", -(10**12))  # files of now do not change
    monkeypatch.setattr(listing_file, "ADDED_MIN", 0)
    with pytest.raises(RunFailedError):
        run(tmp_path, lambda run: refuse(WHO, why=ARGUMENT))
    agent_of(tmp_path, lambda run: note("it")).run_with_recovery_sync("task", "other")
    assert RAISED in {one.run_id: one.why for one in CheckpointStore(tmp_path).runs()}["run"]
    assert b"other" in (tmp_path / ".listing").read_bytes()
    assert leaks(tmp_path) == []


# -- forgetting


def test_what_is_forgotten_is_gone_and_all_else_holds(tmp_path: Path) -> None:
    run(tmp_path)
    store = CheckpointStore(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.glob("*/*.seg")}
    assert store.subjects() == [WHO]
    would = store.forget(WHO, dry_run=True)
    gone = store.forget(WHO)
    assert gone is not None
    assert gone == would
    assert "run" in gone.runs and len(gone.runs) > 1  # the child runs, too
    assert store.subjects() == []
    assert store.forget(WHO) is None
    assert {path: path.read_bytes() for path in tmp_path.glob("*/*.seg")} == before
    for one in gone.runs:
        with EventLog.read(tmp_path / one) as log:
            assert list(log.records())  # every checksum
        assert store.validate(one)
    latest = store.load_latest("run")
    assert latest is not None
    assert store.validate(latest)
    assert isinstance(latest.state["told"], Forgotten)
    assert isinstance(latest.state["got"], Forgotten)
    assert all(isinstance(one, Forgotten) or "status" in str(one) for one in latest.messages)


def test_by_default_a_run_that_needs_it_stops_before_anything_is_executed(tmp_path: Path) -> None:
    def agent(run: Any) -> str:
        made.append("agent")
        got = look_up(WHO, ARGUMENT)
        note("it")
        if "stop" not in made:
            made.append("stop")
            raise KeyboardInterrupt
        return str(got)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, agent)
    store = CheckpointStore(tmp_path)
    assert store.forget(WHO) is not None
    made[:] = ["stop"]
    with pytest.raises(ForgottenError, match="call 2 \\(look_up\\)") as caught:
        run(tmp_path, agent)
    assert caught.value.run_id == "run"
    assert made == ["stop", "agent"]  # and no tool
    assert store.subjects() == []  # the replay has made no key
    assert "recovery cancel run" in str(caught.value)
    found = run(tmp_path, agent, on_forgotten="serve")
    assert found.startswith("<forgotten, ")
    assert made == ["stop", "agent", "agent"]
    assert store.subjects() == []


def test_failures_and_none_are_served_as_far_as_they_are_known(tmp_path: Path) -> None:
    @tool(subject="who")
    def send(who: str) -> None:
        made.append("send")

    def agent(run: Any) -> Any:
        send(WHO)
        try:
            refuse(WHO, why=ARGUMENT)
        except (ValueError, ToolError) as exc:
            said = exc
        if "stop" not in made:
            made.append("stop")
            raise KeyboardInterrupt
        return [type(said).__name__, str(said)]

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, agent)
    CheckpointStore(tmp_path).forget(WHO)
    with pytest.raises(ForgottenError, match="refuse"):
        run(tmp_path, agent)
    kind, text = run(tmp_path, agent, on_forgotten="serve")
    assert kind == "ValueError"  # the type is in clear
    assert text.startswith("<forgotten, ")
    assert made == ["send", "refuse", "refuse", "stop"]


@pytest.mark.parametrize("is_late", [False, True])
def test_a_checkpoint_with_forgotten_values_stops_the_run_or_serves_them(
    tmp_path: Path, is_late: bool
) -> None:
    """Late: the message comes while a recorded call behind it is still to be made, and so it is in
    the checkpoint itself."""
    if not is_late:
        made.append("late")

    def agent(run: Any) -> Any:
        for step in run.steps():
            if step == 1:
                run.state["told"] = personal(WHO, STATE)
                if "late" in made:
                    run.messages.append(personal(WHO, TOLD))
                note("behind")
                if "late" not in made:
                    made.append("late")
                    raise KeyboardInterrupt
            elif "stop" not in made:
                made.append("stop")
                raise KeyboardInterrupt
            else:
                return [run.state["told"], run.messages[0]]

    for _ in range(1 + is_late):
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, agent)
    keys = tmp_path / ".subjects/keys"
    known = keys.read_bytes()
    keys.unlink()
    with pytest.raises(SubjectKeysError, match="of a message"):
        run(tmp_path, agent)
    keys.write_bytes(known)
    CheckpointStore(tmp_path).forget(WHO)
    with pytest.raises(ForgottenError, match="message"):
        run(tmp_path, agent)
    assert all(isinstance(one, Forgotten) for one in run(tmp_path, agent, on_forgotten="serve"))
    assert leaks(tmp_path) == []


def test_a_message_of_a_subject_is_compared_until_it_is_forgotten(tmp_path: Path) -> None:
    says: list[Any] = [{"user": TOLD}]

    def agent(run: Any) -> Any:
        run.messages.append(personal(WHO, says[-1]))
        if len(says) == 1:
            raise KeyboardInterrupt
        return run.messages[0]

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, agent)
    says.append({"system": [FOUND]})
    with pytest.raises(DivergenceError, match=r"messages\[0:0\] = \['<of a subject>'\]") as caught:
        run(tmp_path, agent)
    assert not [one for one in SECRETS if one in str(caught.value)]
    CheckpointStore(tmp_path).forget(WHO)
    with pytest.raises(ForgottenError, match="a message"):
        run(tmp_path, agent)
    assert isinstance(run(tmp_path, agent, on_forgotten="serve"), Forgotten)


def test_a_divergence_shows_nothing_of_a_call_of_a_subject(tmp_path: Path) -> None:
    says = [ARGUMENT]

    @tool(subject="who")
    def charge(who: str, what: str) -> str:
        return what

    def agent(run: Any) -> None:
        charge(WHO, says[-1])
        if len(says) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, agent)
    says.append(FOUND)
    with pytest.raises(DivergenceError) as caught:
        run(tmp_path, agent)
    assert str(caught.value).count(": <of a subject>, ") == 2
    assert not [one for one in SECRETS if one in str(caught.value)]


def test_drift_is_recorded_without_the_messages_of_a_subject(tmp_path: Path) -> None:
    says = [f"{TOLD} {FOUND}"]

    def agent(run: Any) -> Any:
        got = look_up(WHO, ARGUMENT)["result"]
        run.messages.append(personal(WHO, says[-1]))
        run.messages.append({"role": f"tool number {len(says)}", "content": got})
        if len(says) == 1:
            raise KeyboardInterrupt
        return personal(WHO, [*run.messages])

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, agent)
    says.append(f"{TOLD} {CHILD}")
    run(tmp_path, agent)
    drift = [one.drift for one in recorded(CheckpointStore(tmp_path), HistoryDropped)]
    assert len(drift) == 2
    for text in drift:
        assert text.endswith("stays, in place of ['<of a subject>']")
    assert leaks(tmp_path) == []


def test_a_value_is_known_again_while_few_others_came_and_sealed_while_its_key_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subject_values, "PARTS_MAX", 2)
    values = values_of("run", CheckpointStore().backend)
    keys = values.ids_of(WHO)
    first, *others = (pack(text, "") for text in (TOLD, STATE, FOUND))
    for one in (first, *others):
        values.note(one, keys)
    assert values.message(first) is first
    hidden = [values.message(one) for one in others]
    assert [is_personal([CallReturned(1, Packed(one))]) for one in (first, *hidden)] == [0, 1, 1]
    assert values.keys is not None
    values.keys.forget(WHO)
    for record in (values.seal, lambda packed, keys: values.call_digest(keys, packed)):
        with pytest.raises(ForgottenError, match="to record a value"):
            record(first, keys)


def test_new_values_get_a_new_key_and_old_ones_stay_gone(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    run(store)
    first = store.forget(WHO)
    again = agent_of(store).run_with_recovery_sync("task", "again")["result"]
    assert again[0] == WRITTEN
    assert leaks(tmp_path) == []
    second = store.forget(WHO)
    assert first is not None and second is not None
    assert first.keys != second.keys
    assert "run" not in second.runs


def test_a_call_that_was_forgotten_is_told_apart_from_those_of_others(tmp_path: Path) -> None:
    def agent(run: Any) -> Any:
        got = [look_up(who, ARGUMENT) for who in (WHO, "bob", WHO)]
        if "stop" not in made:
            made.append("stop")
            raise KeyboardInterrupt
        return [got[0], got[1]["number"], got[2]]

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, agent)
    CheckpointStore(tmp_path).forget(WHO)
    found = run(tmp_path, agent, on_forgotten="serve")
    assert [type(one) for one in found] == [Forgotten, int, Forgotten]
    assert made.count("look_up") == 3


def test_the_command_says_which_runs_and_asks(tmp_path: Path, processes: Processes) -> None:
    run(tmp_path)
    forget = ("recovery", "forget", "--store", str(tmp_path))
    assert call(*forget, "--list", cwd=tmp_path).out == f"{WHO}\n"
    would = call(*forget, WHO, "--dry-run", cwd=tmp_path)
    assert would.code == 0
    assert would.out.startswith(f"4 runs with values of {WHO}:\n")
    assert "\n  run\n" in would.out
    assert call(*forget, WHO, cwd=tmp_path).code == 64  # no terminal to ask at
    refused = processes.on_terminal(*forget, WHO, keys=b"n\n")
    assert refused.code == 1
    assert "nothing was changed" in refused.shown
    assert call(*forget, cwd=tmp_path).code == 64
    with EventLog.open(tmp_path / "run"):  # as a process that has it
        held = call(*forget, WHO, "--yes", cwd=tmp_path)
        assert held.code == 1
        assert "is held by process" in held.err
    assert call(*forget, "--list", cwd=tmp_path).out == f"{WHO}\n"
    agreed = processes.on_terminal(*forget, WHO, keys=b"y\n")
    assert agreed.code == 0
    assert "is destroyed" in agreed.shown
    again = call(*forget, WHO, "--yes", cwd=tmp_path)
    assert again.code == 1
    assert "there is no key" in again.err


# -- live runs


def test_a_live_run_keeps_its_subject_unless_it_is_forced_and_stops_then(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)

    def agent(run: Any) -> None:
        look_up(WHO, ARGUMENT)
        for step in run.steps():
            if step == 2:
                with pytest.raises(LogLockedError):
                    CheckpointStore(tmp_path).forget(WHO)
                assert CheckpointStore(tmp_path).forget(WHO, force=True) is not None
            try:
                run.messages.append(personal(WHO, f"{TOLD} {step}"))
                look_up(WHO, f"{ARGUMENT} {step}")
            except Exception as exc:  # an agent that swallows it is stopped again
                made.append(type(exc).__name__)

    with pytest.raises(ForgottenError):
        run(store, agent)
    assert made.count("look_up") == 2
    assert store.subjects() == []
    assert leaks(tmp_path) == []
    secret = text_of(tmp_path, "nothing")
    assert WHO.encode() not in secret


# -- the keys


def keys_in(document: bytes, who: str = WHO) -> bytes:
    """The secret of a subject in a document that is not encrypted."""
    at = document.index(who.encode()) + len(who)
    return document[at + 2 + 16 + 2 :][:32]


def test_keys_that_another_process_replaces_while_they_are_read_are_no_damage(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The bytes that it replaces are written over."""
    ours, other = (SubjectKeys(KeyFile(str(tmp_path), OSFiles())) for _ in range(2))
    other.id_of("bob")
    other.id_of(WHO)
    size, due = OSFile.size, [other.forget]

    def size_before(file: OSFile) -> int:
        found = size(file)
        if due:
            due.pop()(WHO)
        return found

    monkeypatch.setattr(OSFile, "size", size_before)
    assert ours.subjects() == ["bob"]


FORKED = """
import os, signal, sys, threading
from eventlog.files.posix import OSFiles
from recovery.stores.subject_keys import KeyFile, SubjectKeys

looks, go_on = threading.Event(), threading.Event()

class Slow(KeyFile):
    def head(self, size):
        if threading.current_thread() is thread:
            looks.set()
            go_on.wait(60)
        return super().head(size)

keys = SubjectKeys(Slow(sys.argv[1], OSFiles()))
thread = threading.Thread(target=keys.subjects)
thread.start()
looks.wait(60)
child = os.fork()
if not child:
    signal.alarm(60)
    keys.id_of("bob")
    os._exit(0)
print(os.waitpid(child, 0)[1])
go_on.set()
"""


def test_a_child_made_by_fork_waits_for_no_thread_of_its_parent(tmp_path: Path) -> None:
    made = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED, tmp_path],
        capture_output=True,
        text=True,
        check=True,
    )
    assert made.stdout == "0\n"


def test_a_subject_that_is_forgotten_while_its_key_is_made_gets_another_one() -> None:
    disk = SimulatedDisk()
    other, made = SubjectKeys(KeyFile("store", disk)), list[bytes]()

    class Document(KeyFile):
        def change(self, change: Callable[[bytes], bytes]) -> None:
            super().change(change)
            if not made:
                made.extend(other.ids_of(WHO))
                other.forget(WHO)

    keys = SubjectKeys(Document("store", disk))
    assert keys.id_of(WHO) == other.known_id(WHO) != made[0]


@pytest.mark.parametrize("power", [False, True])
def test_a_crash_while_forgetting_leaves_the_key_or_nothing_of_it(power: bool) -> None:
    """At each call of the disk, and for every disk that a power loss may leave."""
    states = 0
    for number in range(100):
        disk = SimulatedDisk()
        keys = SubjectKeys(KeyFile("store", disk), None, disk.random_bytes)
        kept, gone = keys.id_of("bob"), keys.id_of(WHO)
        secret = keys_in(KeyFile("store", disk).read())
        assert len(secret) == 32
        disk.crash_at(number)
        try:
            keys.forget(WHO)
            over = True
        except Crash:
            over = False
        after = disk.power_losses() if power else [disk.after_process_death()]
        for one in after:
            states += 1
            found = SubjectKeys(KeyFile("store", one), None, one.random_bytes)
            assert found.known_id("bob") == kept
            assert (found.known_id(WHO) is None) == found.has_forgotten(gone)
            files = one.directories["store/.subjects"].values()
            if over:
                assert found.has_forgotten(gone)
                assert not any(secret in bytes(file.content) for file in files)
            found.forget(WHO)  # it can be repeated
            assert found.has_forgotten(gone)
            assert not any(secret in bytes(file.content) for file in files)
        if over:
            break
    assert over
    assert states >= number + 1


def test_kill_9_while_forgetting_leaves_the_key_or_nothing_of_it(tmp_path: Path) -> None:
    code = textwrap.dedent(
        """
        import os, signal, sys
        from recovery import CheckpointStore
        from eventlog.files import posix
        left = int(sys.argv[2])
        def dying(kind, name):
            real = getattr(kind, name)
            def call(*args, **kwargs):
                global left
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*args, **kwargs)
            setattr(kind, name, call)
        for name in ("pwrite", "truncate", "sync"):
            dying(posix.OSFile, name)
        for name in ("replace", "sync"):
            dying(posix.OSDirectory, name)
        store = CheckpointStore(sys.argv[1])
        assert store.forget(sys.argv[3]) is not None
        """
    )
    origin = tmp_path / "origin"
    store = CheckpointStore(origin)
    run(store, lambda run: [look_up(who, "x")["number"] for who in (WHO, "bob")])
    secret = keys_in((origin / ".subjects/keys").read_bytes())
    for number in range(20):
        root = tmp_path / f"{number}"
        shutil.copytree(origin, root)
        command = [sys.executable, "-c", code, str(root), str(number), WHO]
        ended = subprocess.run(command, check=False).returncode
        assert ended in (0, -signal.SIGKILL)
        after = CheckpointStore(root)
        is_there = WHO in after.subjects()
        assert after.subjects() == ["bob"] * (not is_there) + [WHO, "bob"] * is_there
        if not is_there:
            assert secret not in (root / ".subjects/keys").read_bytes()
        after.forget(WHO)
        assert secret not in text_of(root, "nothing")
        if ended == 0:
            assert not is_there
            break
    assert ended == 0
    assert number > 4


def test_two_processes_make_one_key(tmp_path: Path) -> None:
    stores = [CheckpointStore(tmp_path) for _ in range(4)]
    ids = {keys_of(store).id_of(WHO) for store in stores}
    assert len(ids) == 1
    assert stores[0].forget(WHO) is not None
    assert stores[1].subjects() == []
    mode = (tmp_path / ".subjects/keys").stat().st_mode
    assert mode & 0o077 == 0


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-3]), "damaged"),
        (lambda path: path.write_bytes(b"x" + path.read_bytes()[1:]), "damaged"),
        (
            lambda path: path.write_bytes(path.read_bytes()[:60] + b"\0" + path.read_bytes()[61:]),
            "damaged",
        ),
        (lambda path: path.unlink(), "does not have the key"),
    ],
)
def test_without_its_keys_a_run_executes_nothing_and_needs_them_back(
    tmp_path: Path, damage: Callable[[Path], None], says: str
) -> None:
    def agent(run: Any) -> Any:
        got = look_up(WHO, ARGUMENT)
        if "stop" not in made:
            made.append("stop")
            raise KeyboardInterrupt
        return got["number"]

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, agent)
    path = tmp_path / ".subjects/keys"
    good = path.read_bytes()
    damage(path)
    calls = made.count("look_up")
    for policy in ("stop", "serve"):
        with pytest.raises(UnreadableValueError, match=says):
            run(tmp_path, agent, on_forgotten=policy)
    if path.exists():
        with pytest.raises(SubjectKeysError):
            CheckpointStore(tmp_path).forget(WHO)
    path.write_bytes(good)
    assert run(tmp_path, agent) == 17
    assert made.count("look_up") == calls


def test_the_keys_of_an_encrypted_store_are_encrypted(tmp_path: Path) -> None:
    one, other = (Encryption(secrets.token_bytes(32), key_id=name) for name in ("1", "2"))
    store = CheckpointStore(tmp_path, encryption=one)
    run(store)
    assert WHO.encode() not in text_of(tmp_path, "nothing")
    assert CheckpointStore(tmp_path, encryption=one).subjects() == [WHO]
    for wrong in (None, other, Encryption(secrets.token_bytes(32))):
        with pytest.raises(SubjectKeysError, match="key '1'"):
            CheckpointStore(tmp_path, encryption=wrong).subjects()
    gone = CheckpointStore(tmp_path, encryption=one).forget(WHO)
    assert gone is not None
    assert "run" in gone.runs
    shutil.rmtree(tmp_path / ".subjects")
    keys_of(CheckpointStore(tmp_path)).id_of("x")  # put there by someone without a key
    with pytest.raises(SubjectKeysError, match="not encrypted"):
        store.subjects()


# -- what else is done with runs


def test_a_fork_holds_no_value_in_clear_and_is_forgotten_with_its_origin(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    run(store)
    store.run("run").fork("copy", at_step=2)
    copied = store.load_latest("run")
    assert copied is not None
    store.run("run").fork("changed", at_step=2, state=copied.state, messages=copied.messages)
    assert leaks(tmp_path) == []
    assert agent_of(store).run_with_recovery_sync("task", "copy")["result"][0] == WRITTEN
    assert leaks(tmp_path) == []
    gone = store.forget(WHO)
    assert gone is not None
    assert {"run", "copy", "changed"} <= {*gone.runs}


def test_a_fork_of_a_run_of_a_subject_belongs_to_it_too(tmp_path: Path) -> None:
    def agent(run: Any) -> str:
        for step in run.steps():
            if step == 2:
                break
        return f"{run.task} {note(TOLD)}"

    mine = agent_of(tmp_path, agent, subject=WHO)
    mine.run_with_recovery_sync(ARGUMENT, "run")
    mine.run("run").fork("copy", at_step=1)
    mine.run("run").fork("other", at_step=1, task=STATE, state={"x": FOUND}, messages=[CHILD])
    assert leaks(tmp_path) == []
    assert mine.run_with_recovery_sync(ARGUMENT, "copy")["result"] == f"{ARGUMENT} {TOLD}"
    assert mine.run_with_recovery_sync(STATE, "other")["result"] == f"{STATE} {TOLD}"
    assert leaks(tmp_path) == []


@pytest.mark.parametrize("what", ["state", "messages"])
def test_of_values_of_subjects_only_the_agent_takes_checkpoints(what: str, tmp_path: Path) -> None:
    def agent(run: Any) -> None:
        for step in run.steps():
            if what == "state":
                run.state["told"] = personal(WHO, STATE)
            else:
                run.messages.append(personal(WHO, TOLD))
            if step == 4:
                raise OSError

    store = CheckpointStore(tmp_path)
    with pytest.raises(OSError):
        run(store, agent, max_recoveries=0)
    latest = store.load_latest("run")
    assert latest is not None and store.validate(latest)
    with pytest.raises(RecoveryError, match="holds values of subjects"):
        store.save(latest)


@pytest.mark.usefixtures("at_once")
def test_retention_copies_values_as_they_are(tmp_path: Path) -> None:
    def agent(run: Any) -> str:
        look_up(WHO, ARGUMENT)
        for step in run.steps():
            run.messages.append(personal(WHO, f"{TOLD} {step}" * 300))
            run.state["told"] = personal(WHO, f"{STATE} {step}" * 300)
            note("x" * 200_000)
            if step == 60:
                break
        return "done"

    store = CheckpointStore(tmp_path, retention="latest_only")
    assert run(store, agent) == "done"
    with EventLog.read(tmp_path / "run") as log:
        assert log.oldest_lsn > 1  # retention was at work
    assert leaks(tmp_path) == []
    assert store.validate("run")
    latest = store.load_latest("run")
    assert latest is not None
    assert latest.state["told"].startswith(STATE)
    assert store.forget(WHO) is not None
    assert store.validate("run")


def test_a_run_is_copied_with_its_keys_to_a_store_that_has_others(tmp_path: Path) -> None:
    def agent(run: Any) -> Any:
        got = [look_up(who, ARGUMENT)["number"] for who in (WHO, "bob")]
        if made.count("stop") < 2:
            made.append("stop")
            raise KeyboardInterrupt
        return got

    one, other = CheckpointStore(tmp_path / "one"), CheckpointStore(tmp_path / "other")
    with pytest.raises(KeyboardInterrupt):
        run(one, agent)
    with pytest.raises(KeyboardInterrupt):
        agent_of(other, agent).run_with_recovery_sync("task", "its")
    assert one.forget("bob") is not None
    copy_run(one.backend, other.backend, "run")
    calls = made.count("look_up")
    assert agent_of(other, agent).run_with_recovery_sync("task", "its")["result"] == [17, 17]
    with pytest.raises(ForgottenError):  # bob's
        run(other, agent)
    assert made.count("look_up") == calls
    gone = other.forget(WHO)
    assert gone is not None
    assert (len(gone.keys), {*gone.runs}) == (2, {"run", "its"})
    assert one.subjects() == [WHO]


def test_exports_hold_what_the_log_holds(tmp_path: Path) -> None:
    run(tmp_path / "a")
    for words in (["recovery", "export", "run", "--redact", "x"], ["logdump", "export"]):
        where = ["--store", f"{tmp_path}/a"] if words[0] == "recovery" else [f"{tmp_path}/a/run"]
        program, *rest = words
        command = [sys.executable, "-m", "recovery.cli" if program == "recovery" else program]
        ended = subprocess.run([*command, *rest, *where], capture_output=True, check=True)
        assert len(ended.stdout) > 1000
        assert not [one for one in SECRETS if one.encode() in ended.stdout + ended.stderr]


@pytest.mark.parametrize("how", [Resolution.outcome, Resolution.fail])
def test_a_resolved_call_is_sealed_with_what_a_person_says(tmp_path: Path, how: Any) -> None:
    @tool(subject="who")
    def send(who: str) -> str:
        made.append("send")
        raise KeyboardInterrupt

    def agent(run: Any) -> str:
        try:
            said = send(WHO)
        except ToolError as exc:
            said = exc.message
        run.messages.append({"role": "tool", "content": said})
        if "stop" not in made:
            made.append("stop")
            raise KeyboardInterrupt
        return str(said)

    mine = agent_of(tmp_path, agent)
    with pytest.raises(KeyboardInterrupt):
        mine.run_with_recovery_sync("task", "run")
    with pytest.raises(InDoubtError) as caught:
        mine.run_with_recovery_sync("task", "run")
    assert WHO not in str(caught.value)
    mine.run("run").resolve(caught.value.calls[0], how(FOUND))
    with pytest.raises(KeyboardInterrupt):
        mine.run_with_recovery_sync("task", "run")
    shutil.copytree(tmp_path, tmp_path / "copy")
    assert mine.run_with_recovery_sync("task", "run")["result"] == FOUND
    assert leaks(tmp_path) == []
    CheckpointStore(tmp_path / "copy").forget(WHO)
    with pytest.raises(ForgottenError, match="outcome of call 2"):
        run(tmp_path / "copy", agent)
    assert run(tmp_path / "copy", agent, on_forgotten="serve").startswith("<forgotten, ")


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("told", ["result", "error", "chunk"])
def test_what_an_agent_is_told_is_known_again_when_it_is_replayed_too(
    tmp_path: Path, told: str, is_late: bool
) -> None:
    text = "5ecret-15-bytes"  # packed it has as many bytes as it takes to be known again

    @tool(subject="who", after_crash="retry")
    def tells(who: str) -> str | Iterator[str]:
        if told == "error":
            raise ValueError(text)
        return iter([text]) if told == "chunk" else text

    def agent(run: Any) -> None:
        if told == "chunk":
            for said in run.stream(tells, WHO):
                raise ConnectionError(f"about {said}")
        try:
            said = tells(WHO)
        except ValueError as exc:
            said = str(exc)
        if is_late and "stop" not in made:
            made.append("stop")
            raise KeyboardInterrupt
        run.messages.append(said)
        raise ConnectionError(f"about {said}")

    if is_late and told != "chunk":
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, agent)
    with pytest.raises(ConnectionError, match=text):
        run(tmp_path, agent, max_recoveries=0)
    assert text.encode() not in text_of(tmp_path)


def test_an_approval_shows_the_arguments_and_leaves_none_on_disk(tmp_path: Path) -> None:
    ask = tool(needs_approval=True, name="ask")(look_up)
    mine = agent_of(tmp_path, lambda run: ask(WHO, ARGUMENT)["number"], park_after_s=0)
    with pytest.raises(RecoveryError):
        mine.run_with_recovery_sync("task", "run")
    (asked,) = mine.run("run").pending()
    assert asked.args == (WHO, ARGUMENT)
    assert WHO not in str(asked)
    mine.run("run").approve(asked)
    assert mine.run_with_recovery_sync("task", "run")["result"] == 17
    assert leaks(tmp_path) == []


def test_the_end_of_a_failed_run_tells_nothing(tmp_path: Path) -> None:
    with pytest.raises(RunFailedError, match=RAISED):
        run(tmp_path, lambda run: refuse(WHO, why=ARGUMENT))
    assert leaks(tmp_path) == []
    assert RAISED in status(tmp_path, "run").why
    CheckpointStore(tmp_path).forget(WHO)
    assert "forgotten" in status(tmp_path, "run").why
    with pytest.raises(RunFailedError, match="forgotten"):
        run(tmp_path, lambda run: refuse(WHO, why=ARGUMENT))


def test_a_store_in_memory_forgets_as_well() -> None:
    store = CheckpointStore()
    assert run(store)[0] == WRITTEN
    assert store.subjects() == [WHO]
    assert store.forget(WHO) is not None
    with pytest.raises(ForgottenError):
        run(store)


# -- mistakes


def test_mistakes_are_told_where_they_are_made(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no such parameter"):
        tool(subject="whom")(look_up)
    with pytest.raises(TypeError, match="plain function"):
        tool(subject=everything_async)(look_up)  # type: ignore[arg-type]
    for wrong in (17, ""):
        with pytest.raises(SubjectError, match="a subject is text"):
            run(tmp_path / f"{wrong}", lambda run, wrong=wrong: look_up(wrong, "x"))
    assert made == []
    with pytest.raises(SubjectError):
        personal(17, "x")  # type: ignore[arg-type]
    with pytest.raises(SubjectError):
        agent_of(tmp_path, subject=17)
    with pytest.raises(ValueError, match="on_forgotten"):
        agent_of(tmp_path, on_forgotten="again")
    with pytest.raises(RefusedValueError, match="as a whole"):
        run(tmp_path / "part", lambda run: run.messages.append({"a": personal(WHO, TOLD)}))

    class Bare:
        def __getattr__(self, name: str) -> Any:
            if name == "subject_keys":
                raise AttributeError(name)
            return getattr(inner, name)

    inner = LogStore("bare", SimulatedDisk(), "power")
    for use in (run, lambda store: store.forget(WHO)):
        with pytest.raises(RecoveryError, match="keeps no keys of subjects"):
            use(CheckpointStore(Bare()))


def test_an_older_library_refuses_the_run_and_executes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def agent(run: Any) -> Any:
        made.append("agent")
        got = look_up(WHO, ARGUMENT)
        if "stop" not in made:
            made.append("stop")
            raise KeyboardInterrupt
        return got

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, agent)
    made[:] = ["stop"]
    monkeypatch.delitem(BY_CODE, sealed.EXT_SEALED)
    monkeypatch.delitem(BY_NAME, sealed._NAME)
    with pytest.raises(RecoveryError, match=r"upgrade the package|extension type 24"):
        run(tmp_path, agent)
    assert made == ["stop"]


VALUES = st.recursive(
    st.none() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda part: st.lists(part, max_size=4) | st.dictionaries(st.text(), part, max_size=4),
    max_leaves=12,
)


@given(VALUES, st.lists(st.text(min_size=1), min_size=1, max_size=3, unique=True), st.data())
def test_any_value_is_the_same_again_until_one_of_its_subjects_is_forgotten(
    value: Any, subjects: list[str], data: Any
) -> None:
    disk = SimulatedDisk()
    keys = SubjectKeys(KeyFile("store", disk), None, os.urandom)
    ids = tuple(sorted(keys.id_of(one) for one in subjects))
    packed = sealed.pack_sealed(keys.seal(ids, pack(value, "")) or b"")
    inside = pack_list([Packed(pack(1, "")), packed])
    assert unpack(packed) == value
    assert type(unpack(packed)) is type(value)
    assert unpack(inside) == [1, value]
    assert sealed.may_hold_sealed(inside)
    at = packed.index(ids[-1]) + data.draw(st.integers(16, len(packed) - packed.index(ids[-1]) - 1))
    changed = bytearray(packed)
    changed[at] ^= 1
    with pytest.raises(ValueError, match="changed"):
        unpack(bytes(changed))
    keys.forget(data.draw(st.sampled_from(subjects)))
    found = unpack(packed)
    assert isinstance(found, Forgotten)
    assert found.keys == ids
    assert pack(found, "") == packed
    assert pack(unpack(inside), "") == inside
