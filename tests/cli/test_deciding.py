"""Which call is meant, who said what, what is asked, and what the shell completes."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from eventlog import EventLog
from recovery import CheckpointStore, RecoverableAgent, RecoveryError, SyncRun, register, tool
from recovery.cli.call_argument import meant
from recovery.cli.next_steps import Commands
from recovery.cli.who import who_or_login
from recovery.inspect.listing import listed
from recovery.inspect.status import status
from recovery.journal.encoding import decode
from recovery.journal.events import CallResolved, Event
from recovery.reports import OpenCall, RunStatus
from recovery.values.codec import BY_NAME, BY_TYPE
from recovery.values.pack import unpack
from tests.cli.harness import RUNS, Done, Processes, call, raw
from tests.data import make_runs

KEY = "dad55780877cb907d5f0f7757c261980"  # of send_mail#58


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RUNS, tmp_path / "runs"))


@pytest.fixture
def processes(store: Path) -> Iterator[Processes]:
    with Processes(store) as started:
        yield started


def recovery(store: Path, *args: str, **env: str) -> Done:
    return call("recovery", *args, "--store", ".", cwd=store, env=env)


def recorded(store: Path, run: str) -> list[Event]:
    reader = CheckpointStore(store).backend.read(run)
    assert reader is not None
    with reader:
        found = (decode(record) for record in reader.records(1))
        return [event for event in found if event is not None]


def state(store: Path, run: str) -> str:
    return status(CheckpointStore(store), run).state


# -- which call, and what became of it


@pytest.mark.parametrize("name", ["58", "send_mail#58", KEY, KEY[:4], "call_6"])
def test_a_call_goes_by_many_names(store: Path, name: str) -> None:
    done = recovery(
        store,
        "resolve",
        "parked",
        name,
        "--outcome",
        '"250"',
        "--who",
        "bob",
        "--why",
        "asked them",
    )
    assert done.out.splitlines()[0] == 'send_mail#58 of run parked: in doubt -> outcome "250"'
    (found,) = [one for one in recorded(store, "parked") if isinstance(one, CallResolved)]
    assert found == CallResolved(58, "outcome", "250", "bob", "asked them")


@pytest.mark.parametrize("name", ["charge#58", "send_mail#57", "dad", "call_7", "x", "59", "#58"])
def test_a_name_that_is_none_is_refused_with_those_there_are(store: Path, name: str) -> None:
    before = status(CheckpointStore(store), "parked").last_lsn
    done = recovery(store, "resolve", "parked", name, "--retry")
    assert done.code == 1 and "Nothing was written" in done.err
    assert "58" in done.err
    assert status(CheckpointStore(store), "parked").last_lsn == before


def test_a_name_that_is_several_is_refused(store: Path) -> None:
    assert "no open call is ''" in recovery(store, "resolve", "parked", "", "--retry").err
    there = CheckpointStore(store)
    run = status(there, "parked")
    one, *_ = run.calls
    two = OpenCall(60, "other", "call_9", 1, "asks", "", "park", 1, 0.0, KEY[:8] + "0" * 24, 0)
    with pytest.raises(RecoveryError, match=r"2 calls are meant(.|\n)*send_mail#58(.|\n)*other#60"):
        meant(there, run, KEY[:8], [one, two])
    assert meant(there, run, KEY[:9], [one, two]) == KEY


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "exactly one of"),
        (["--retry", "--fail", "x"], "exactly one of"),
        (["--outcome", "1", "--retry"], "exactly one of"),
        (["--retry", "--text"], "--text is about --outcome"),
        (["--outcome", "250 OK"], "is not JSON"),
        (["--outcome", "@damaged_frame/00000001.seg"], "not text in UTF-8"),
        (["--outcome", "[" * 100_000], "nested too deeply"),
        (["--outcome", "NaN"], "NaN is no number of JSON"),
        (["--outcome", "[-Infinity]"], "-Infinity is no number of JSON"),
        (["--outcome", "1e999"], "1e999 is too large for a float"),
        (["--outcome", '{"paid": 1, "paid": 2}'], "the key 'paid' is there twice"),
    ],
)
def test_wrong_usage_writes_nothing(store: Path, args: list[str], says: str) -> None:
    before = status(CheckpointStore(store), "parked").last_lsn
    done = recovery(store, "resolve", "parked", "58", *args)
    assert (done.code, done.out) == (64, "") and says in done.err, done.err
    assert status(CheckpointStore(store), "parked").last_lsn == before


def test_a_value_comes_from_a_file_and_who_is_the_login(store: Path) -> None:
    (store / "receipt.json").write_text('{"receipt": "R-17"}')
    done = recovery(store, "resolve", "parked", "58", "--outcome", "@receipt.json", LOGNAME="eve")
    assert done.code == 0, done.err
    (found,) = [one for one in recorded(store, "parked") if isinstance(one, CallResolved)]
    assert (found.value, found.who) == ({"receipt": "R-17"}, "eve")
    missing = recovery(store, "resolve", "parked", "58", "--outcome", "@no.json")
    assert missing.code == 66 and "no.json: No such file" in missing.err


def test_a_user_without_a_name_has_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recovery.cli.who.getuser", Mock(side_effect=KeyError("uid not found")))
    assert who_or_login(None) == f"user {os.getuid()}"
    assert who_or_login("") == ""  # which was said


def test_a_run_that_is_held_names_its_owner(store: Path) -> None:
    with CheckpointStore(store).claim("parked"):
        done = recovery(store, "resolve", "parked", "58", "--retry")
    assert done.code == 73 and "is held by process" in done.err and "takeover=True" not in done.err


# -- decisions that wait in the inbox


def test_a_decision_is_shown_and_makes_the_run_due(store: Path) -> None:
    assert "waiting" not in recovery(store, "runs", "--due").out
    assert recovery(store, "deny", "waiting", "38", "--who", "bob", "--why", "no").code == 0
    assert recovery(store, "approve", "waiting", "charge#38", "--who", "ann", "-y").code == 0
    assert "waiting" in recovery(store, "runs", "--due").out
    shown = recovery(store, "show", "waiting").out
    assert "call 38 approved by ann" in shown and "bob" not in shown  # the last one counts
    assert "recovery approve" not in shown and "recovery resume waiting" in shown


def test_only_what_was_not_taken_lies_in_the_inbox(store: Path) -> None:
    there = CheckpointStore(store)
    assert status(there, "finished").unread == status(there, "parked").unread == ()
    (one,) = status(there, "sleeping").unread
    assert (one.kind, one.about, one.wanted, one.who) == ("signal", "answer", False, "ann")


def test_an_inbox_of_nonsense_is_passed_over(store: Path) -> None:
    backend = CheckpointStore(store).backend
    for kind, body in (
        ("signal", {"x": 1}),
        ("decision", {"of": 3}),
        ("no_such", {}),
        ("signal", {"name": [1], "value": "\x1b[2J", "who": b"x"}),
    ):
        backend.post("waiting", kind, body)
    with EventLog.open(store / "waiting" / "inbox") as inbox:
        inbox.append("signal", b"\xc1")
        inbox.append("cancel", b"\x81\xa1a\xc7\x00\x14")
    done = recovery(store, "show", "waiting")
    assert done.code == 0 and raw(done.out + done.err) == [], done
    assert done.out.count("does not count: it makes no sense") == 5


# -- what is asked


def test_without_a_terminal_nothing_is_done_unless_told_so(store: Path) -> None:
    done = recovery(store, "cancel", "waiting")
    assert done.code == 64 and "--yes" in done.err
    assert state(store, "waiting") == "waiting"
    assert recovery(store, "cancel", "waiting", "--yes").code == 0
    assert state(store, "waiting") == "cancelled"


@pytest.mark.parametrize(
    ("keys", "code", "after"),
    [(b"n\n", 1, "waiting"), (b"y\n", 0, "cancelled"), (b"\x03", 130, "waiting")],
)
def test_on_a_terminal_it_asks(
    store: Path, processes: Processes, keys: bytes, code: int, after: str
) -> None:
    done = processes.on_terminal("recovery", "cancel", "waiting", "--store", ".", keys=keys)
    assert (done.code, state(store, "waiting")) == (code, after), done.shown
    assert "End run waiting (waiting, step 4)?" in done.shown and raw(done.shown) == []


def test_a_live_run_is_told_to_end(store: Path) -> None:
    with CheckpointStore(store).claim("waiting"):
        done = recovery(store, "cancel", "waiting", "--yes")
        assert done.code == 0 and "asked to end" in done.out
    assert [one.kind for one in status(CheckpointStore(store), "waiting").unread] == ["cancel"]
    assert "request to end the run" in recovery(store, "show", "waiting").out


def test_what_a_live_run_waits_for_is_among_what_to_do_next(store: Path) -> None:
    with CheckpointStore(store).claim("waiting"):
        shown = recovery(store, "show", "waiting").out
        assert re.search(r"state +running", shown)
        key = status(CheckpointStore(store), "waiting").calls[0].idempotency_key[:16]
        assert f"recovery approve waiting {key}" in shown
        assert f"recovery deny waiting {key}" in shown
        assert "recovery resume" not in shown and "recovery resolve" not in shown
        assert recovery(store, "approve", "waiting", "38", "--yes").code == 0
        assert "recovery approve" not in recovery(store, "show", "waiting").out  # it is sent


@pytest.mark.parametrize(
    "words",
    [
        "resolve parked 58 --retry",
        "fork finished new --at 4",
        "checkpoints finished",
    ],
)
def test_a_closed_pipe_ends_it_silently(processes: Processes, words: str) -> None:
    done = processes.in_closed_pipe("recovery", *words.split(), "--store", ".")
    assert (done.code, done.err) == (141, "")


@pytest.mark.parametrize(
    ("words", "stdin", "value"),
    [
        (["@offer.json"], "", {"rooms": 2}),
        (["-"], '{"rooms": 3}', {"rooms": 3}),
        (["call me", "--text"], "", "call me"),
        ([], "", None),
    ],
)
def test_a_signal_is_sent_once_under_its_key(
    store: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], stdin: str, value: Any
) -> None:
    (store / "offer.json").write_text('{"rooms": 2}')
    for _ in range(2):
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        done = recovery(store, "signal", "waiting", "answer", *words, "--key", "order-4711")
        assert done.code == 0, done.err
    sent = status(CheckpointStore(store), "waiting").unread
    assert [(one.kind, one.about, unpack(one.value or b"")) for one in sent] == [
        ("signal", "answer", value)
    ]
    other = recovery(store, "signal", "waiting", "answer", "7", "--key", "order-4711")
    assert other.code == 64 and "was sent something else under 'order-4711'" in other.err


# -- which store, which runs


def test_a_store_is_a_path_a_url_or_at_home(store: Path) -> None:
    def listed(out: str) -> str:
        return re.sub(" --store .*", "", out)  # of the suggested commands

    named = listed(recovery(store, "runs").out)
    home = store.parent / "home"
    home.mkdir()
    (home / ".eventlog").symlink_to(store)
    for words, env in (
        (["--store", f"file://{store}"], {}),
        (["--store", f"file://localhost{store}"], {}),
        ([], {"EVENTLOG_HOME": str(store)}),
        ([], {"EVENTLOG_HOME": "", "HOME": str(home)}),
    ):
        done = call("recovery", "runs", *words, cwd=store.parent, env=env)
        assert listed(done.out) == named
    for url, says in (("file://runs", "use file:///PATH"), ("s3://db", "are not known")):
        done = call("recovery", "runs", "--store", url, cwd=store)
        assert done.code == 64 and says in done.err


def test_runs_are_printed_as_they_are_read_and_in_the_order_asked_for(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = []

    def watched(there: CheckpointStore, *chosen: Any) -> Iterator[RunStatus]:
        for one in listed(there, *chosen):
            assert isinstance(sys.stdout, io.TextIOWrapper)
            assert isinstance(sys.stdout.buffer, io.BytesIO)
            printed.append(sys.stdout.buffer.getvalue().count(b"\n"))
            yield one

    with monkeypatch.context() as patched:
        patched.setattr("recovery.cli.commands.runs.listed", watched)
        found = [json.loads(line) for line in recovery(store, "runs", "--json").out.splitlines()]
    assert printed == list(range(len(found)))
    why = {one["run_id"]: one["why"] for one in found if one["state"] == "unreadable"}
    assert "the key" in why["encrypted"]
    for order, wanted in (
        ("last", lambda one: -one["last"]),
        ("age", lambda one: one["started"] or math.inf),
    ):
        lines = recovery(store, "runs", "--sort", order, "--json").out.splitlines()
        assert [json.loads(line) for line in lines] == sorted(found, key=wanted)


def test_runs_are_chosen_by_their_last_record(store: Path) -> None:
    last = {one["run_id"]: one["last"] for one in map(json.loads, _lines(store))}
    middle = sorted(last.values())[len(last) // 2]
    moment = datetime.fromtimestamp(middle, UTC).isoformat()
    chosen = {json.loads(line)["run_id"] for line in _lines(store, "--since", moment)}
    assert chosen == {run_id for run_id, at in last.items() if at >= int(middle * 1e6) / 1e6}
    none = recovery(store, "runs", "--since", "2100-01-01")
    assert none.out.startswith(f"no such runs ({len(last)} runs in ")
    assert recovery(store, "runs", "--since", "soon").code == 64


def _lines(store: Path, *words: str) -> list[str]:
    return recovery(store, "runs", "--json", *words).out.splitlines()


def test_both_commands_say_their_version(store: Path) -> None:
    for command in ("recovery", "logdump"):
        done = call(command, "--version", cwd=store)
        assert (done.code, done.out) == (0, version("agent-eventlog") + "\n")


# -- undo and fork


def test_a_run_that_has_lost_records_is_not_undone_and_says_which(store: Path) -> None:
    def refused() -> str:
        done = recovery(store, "undo", "damaged_payload", "--dry-run")
        assert done.code == 1 and "cannot be undone, because records are lost: " in done.err
        return done.err.partition("are lost: ")[2]

    assert "record fails its CRC; LSN 52 lost. Nothing was executed" in refused()
    segment = store / "damaged_payload" / "00000001.seg"
    whole = segment.read_bytes()
    segment.write_bytes(whole[:3200] + bytes([whole[3200] ^ 1]) + whole[3201:])
    assert "LSN 17 lost, and 1 more. Nothing was executed" in refused()
    segment.write_bytes(whole)
    assert call("logdump", "repair", "damaged_payload", "--apply", cwd=store).code == 0
    assert refused().startswith("lost before a repair; LSN 52 lost. Nothing was executed")


def test_a_run_is_undone_by_the_tools_of_a_module(store: Path) -> None:
    listed = recovery(store, "undo", "finished", "--dry-run")
    assert listed.out == 'to undo: hold_seat#31("OS51", "23A"), by release_seat\n'
    refused = recovery(store, "undo", "finished", "--tools", "tests.data.trip")
    assert refused.code == 64 and state(store, "finished") == "finished"
    assert recovery(store, "undo", "finished", "--tools", "json", "--yes").code == 64
    done = recovery(store, "undo", "finished", "--tools", "tests.data.trip", "--yes", "--json")
    assert json.loads(done.out) == [
        {"call": 31, "tool": "hold_seat", "call_id": "call_3", "result": "released 23A"}
    ]
    assert state(store, "finished") == "undone"
    again = recovery(store, "undo", "finished", "--tools", "tests.data.trip:hold_seat", "--yes")
    assert again.code == 0


@pytest.mark.parametrize("written", [0, 1, 4])
def test_a_fork_on_a_full_disk_is_made_whole_by_the_same_command(
    store: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """Written before the disk is full: nothing, its lock file, some of its records."""
    really, left = os.pwrite, [None] * written

    def pwrite(*args: Any) -> int:
        if not left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left.pop()
        return really(*args)

    command = "fork", "finished", "new", "--at", "4"
    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", pwrite)
        done = recovery(store, *command)
    assert done.code == 1 and done.err.startswith(f"recovery: {store}/new/"), done.err
    assert "No space left on device. Run new is not whole" in done.err
    assert recovery(store, *command).code == 0
    assert recovery(store, *command[:2], "other", *command[3:]).code == 0
    alike = [
        [(type(one), getattr(one, "value", 0)) for one in recorded(store, run)]
        for run in ("new", "other")
    ]
    assert alike[0] == alike[1]


def test_a_fork_is_made_with_what_is_to_be_otherwise(store: Path) -> None:
    done = recovery(store, "fork", "finished", "new", "--at", "4", "--state", '{"plan": []}')
    assert done.code == 0 and "as run finished was at the end of step 4" in done.out
    assert state(store, "new") == "interrupted"
    shown = recovery(store, "show", "new").out
    assert "from finished at the end of step 4" in shown
    for args, says in (
        (["--state", "[]", "--at", "4"], "--state is a JSON object"),
        (["--messages", "{}", "--at", "4"], "--messages is a JSON array"),
        (["--task", "1"], "--at STEP is needed"),
    ):
        refused = recovery(store, "fork", "finished", "newer", *args)
        assert refused.code == 64 and says in refused.err
    assert "newer" not in CheckpointStore(store).backend.run_ids()


# -- commands that are shown can be typed


@pytest.mark.parametrize(
    "run", ["parked", "waiting", "failed", "crashed_in_doubt", "damaged_frame"]
)
def test_the_commands_that_are_shown_are_taken(store: Path, run: str) -> None:
    found = json.loads(recovery(store, "show", run, "--json").out)
    assert found["next"]
    for line in found["next"]:
        typed = line.replace("JSON", "1").replace("TEXT", "x")
        tool, *words = shlex.split(typed, comments=True)
        assert tool == "recovery"
        if words[0] not in ("resume", "retry"):  # which want the agent's code
            fresh = store.parent / f"{words[0]}{len(list(store.parent.iterdir()))}"
            shutil.copytree(RUNS, fresh)
            yes = ["--yes"] * (words[0] == "approve")  # which it asks for at a terminal
            assert call(tool, *words, *yes, cwd=fresh).code == 0, line


def test_names_are_quoted_for_the_shell() -> None:
    commands = Commands("run", "my runs/x")
    assert commands.of("show") == "recovery show run --store 'my runs/x'"


# -- what the shell completes


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("recovery show --store . fin", ["finished"]),
        ("recovery resolve --store . parked send", ["send_mail#58"]),
        ("recovery resolve --store . parked x", []),
        ("recovery resolve --store . nowhere s", []),
        ("recovery show --store /nowhere/at/all f", []),
        ("recovery resolve --store . foreign s", []),
    ],
)
def test_runs_and_calls_are_completed(store: Path, words: str, found: list[str]) -> None:
    count = len(words.split()) - 1
    done = call(
        "recovery",
        cwd=store,
        env={
            "_RECOVERY_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(count),
        },
    )
    assert (done.out.split(), done.err) == (found, "")


# -- runs of types that are not here


def test_values_of_types_that_are_not_here_are_shown_by_their_fields(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)

    def agent(run: SyncRun) -> None:
        for _ in run.steps():
            run.messages.append({"role": "assistant", "content": "I pay."})
            run.call(pays, Money(5))

    register(Money)
    with pytest.raises(KeyboardInterrupt):
        RecoverableAgent(agent, store).run_with_recovery_sync(Money(7), "run")
    BY_NAME.pop("Money")
    BY_TYPE.pop(Money)
    done = recovery(tmp_path, "show", "run")
    assert done.code == 0, done.err
    for shown in ('task     {"Money": {"cents": 7}}', '({"Money": {"cents": 5}})', '"I pay."'):
        assert shown in done.out
    refused = recovery(tmp_path, "fork", "run", "new", "--at", "0", "--state", "{}")
    assert refused.code == 1 and "Money" in refused.err
    (tmp_path / "money.py").write_text(
        "from dataclasses import dataclass\nfrom recovery import register\n"
        "@register\n@dataclass(frozen=True)\nclass Money:\n    cents: int\n"
    )
    forked = recovery(
        tmp_path, "fork", "run", "new", "--at", "0", "--state", "{}", "--import", "money"
    )
    sys.modules.pop("money", None)  # where the command ran in this process
    kind = BY_NAME.pop("Money").kind
    assert kind is not None
    BY_TYPE.pop(kind)
    assert forked.code == 0, forked.err
    hidden = recovery(tmp_path, "show", "run", "--redact", "Money", "--redact", "content").out
    assert '"cents": 5' not in hidden and '"cents": 7' not in hidden and "I pay" not in hidden


def test_large_values_are_told_by_their_size(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)

    def agent(run: SyncRun) -> None:
        for _ in run.steps():
            run.call(fetches, "x" * 3_000)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        RecoverableAgent(agent, store).run_with_recovery_sync("task", "run")
    shown = recovery(tmp_path, "show", "run").out
    assert "fetches returned 100,005 bytes" in shown
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_an_encrypted_run_is_decided_about_with_its_key(store: Path) -> None:
    (store.parent / "keys").write_text(f"{make_runs.KEY_ID} {make_runs.KEY.hex()}\n")
    (store.parent / "keys").chmod(0o600)
    keys = ["--key-file", "../keys"]
    assert "unreadable" in recovery(store, "show", "encrypted").out
    shown = recovery(store, "show", "encrypted", *keys).out
    assert "send_mail#58" in shown and "in doubt" in shown
    assert recovery(store, "resolve", "encrypted", "58", "--retry").code == 77
    in_clear = recovery(store, "resolve", "parked", "58", "--retry", *keys)
    assert in_clear.code == 1 and "give a command no key for it" in in_clear.err
    assert recovery(store, "resolve", "parked", "58", "--retry").code == 0
    done = recovery(store, "resolve", "encrypted", "call_6", "--retry", *keys)
    assert (done.code, done.err) == (0, "")
    there = recovery(store, "show", "encrypted", "--json", *keys).out
    assert json.loads(there)["open_calls"][0]["state"] == "to be made again"
    fork = recovery(store, "fork", "encrypted", "other", "--at", "4", *keys)
    assert fork.code == 0, fork.err
    written = b"".join(path.read_bytes() for path in (store / "other").glob("*.seg"))
    assert b"hold_seat" not in written and b"OS51" not in written
    assert "unreadable" in recovery(store, "show", "other").out


@dataclass(frozen=True)
class Money:
    cents: int


@tool
def pays(money: Money) -> None:
    raise KeyboardInterrupt


@tool(after_crash="retry")
def fetches(what: str) -> bytes:
    return bytes(100_000)
