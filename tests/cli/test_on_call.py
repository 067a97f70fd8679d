"""What a person on call meets: a run has a problem, and the commands say its cause and the way
out. Each test does what that person would do."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from eventlog.encryption import Encryption
from recovery import CheckpointStore, RecoverableAgent, Resolution, SyncRun, tool
from recovery.cli import history_view, status_view
from recovery.control.send import signal
from recovery.errors import (
    DivergenceError,
    InDoubtError,
    NoAnswerError,
    PermanentError,
    RecoveryError,
    RunFailedError,
    ToolError,
    UnrecordedResultError,
    WaitingError,
)
from tests.cli.harness import RUNS, Done, Processes, call, environment


def recovery(where: Path, *args: str) -> Done:
    return call("recovery", *args, "--store", "runs", cwd=where)


def damage(where: Path, lsn: int, run: str = "order") -> None:
    """Change a byte of this record, as a bad disk would."""
    shown = call("logdump", "dump", "--raw", "--headers", f"runs/{run}", cwd=where).out
    found = re.search(rf"segment (\d+), offset (\d+): frame of LSN {lsn}, ", shown)
    assert found is not None
    segment = where / f"runs/{run}/{int(found[1]):08d}.seg"
    content = bytearray(segment.read_bytes())
    content[int(found[2]) + 60] ^= 1
    segment.write_bytes(content)


@pytest.fixture
def charges() -> list[int]:
    return []


@pytest.fixture
def agent(tmp_path: Path, charges: list[int]) -> RecoverableAgent:
    """It charges a customer, and then does not know whether its mail was sent."""

    @tool
    def charge(cents: int) -> dict[str, str]:
        charges.append(cents)
        return {"receipt": "R-1"}

    @tool
    def send_mail(receipt: str) -> str:
        raise NoAnswerError("no answer")

    def order(run: SyncRun) -> Any:
        for step in run.steps():
            if step == 1:
                run.state["paid"] = charge(5)
            else:
                return send_mail(run.state["paid"]["receipt"])
        return None

    store = CheckpointStore(tmp_path / "runs")
    return RecoverableAgent(order, store, checkpoint_every_n=None)


def lost_intent(agent: RecoverableAgent, where: Path) -> None:
    """The charge's intent is lost, and its outcome is not; then the log is repaired."""
    with pytest.raises(InDoubtError):
        agent.run_with_recovery_sync(None, "order")
    (made,) = [one.lsn for one in agent.run("order").events(until="now") if one.tool == "charge"][
        :1
    ]
    damage(where, made)
    verified = call("logdump", "verify", "runs/order", cwd=where)
    assert f"LSN {made + 1}: outcome of such a call" in verified.out
    assert call("logdump", "repair", "--apply", "runs/order", cwd=where).code == 0


def test_a_lost_call_whose_outcome_is_there_is_not_retried_by_mistake(
    tmp_path: Path, agent: RecoverableAgent, charges: list[int]
) -> None:
    lost_intent(agent, tmp_path)
    shown = recovery(tmp_path, "show", "order").out
    assert re.search(r"REPAIRED +LSN 4: outcome of a call that was lost", shown)
    with pytest.raises(InDoubtError):
        agent.resume_sync("order")
    shown = recovery(tmp_path, "show", "order").out
    assert "LSN 4: outcome of a call that was lost, maybe this one" in shown
    assert "REPAIRED" not in shown
    (charged,) = [one for one in agent.run("order").status().in_doubt if one.tool == "charge"]
    assert charged.unclaimed_outcomes == (4,)
    # Each command that is shown is typed: reading the outcome works, a bare retry is refused.
    commands = json.loads(recovery(tmp_path, "show", "order", "--json").out)["next"]
    (dump,) = [one for one in commands if "logdump dump" in one]
    read = call(*dump.partition("   #")[0].split(), cwd=tmp_path)
    assert '{"receipt": "R-1"}' in read.out
    refused = recovery(tmp_path, "resolve", "order", "charge", "--retry")
    assert refused.code == 1 and "the outcome of a lost call (LSN 4)" in refused.err
    with pytest.raises(RecoveryError, match="force=True"):
        agent.run("order").resolve(charged, Resolution.retry())
    # Another call in doubt is not held up by it.
    assert recovery(tmp_path, "resolve", "order", "send_mail", "--retry").code == 0
    paid = recovery(tmp_path, "resolve", "order", "charge", "--outcome", '{"receipt": "R-1"}')
    assert paid.code == 0
    with pytest.raises(InDoubtError):
        agent.resume_sync("order")
    assert charges == [5]


def test_a_retry_that_is_meant_is_forced(
    tmp_path: Path, agent: RecoverableAgent, charges: list[int]
) -> None:
    lost_intent(agent, tmp_path)
    with pytest.raises(InDoubtError):
        agent.resume_sync("order")
    assert recovery(tmp_path, "resolve", "order", "charge", "--retry", "--force").code == 0
    with pytest.raises(InDoubtError):
        agent.resume_sync("order")
    assert charges == [5, 5]


# -- a fork


def test_a_fork_names_the_side_effects_that_it_would_make_again(tmp_path: Path) -> None:
    made: list[str] = []

    @tool(after_crash="retry")
    def look(what: str) -> str:
        return what

    @tool
    def send(to: str) -> str:
        made.append(to)
        return "sent"

    def sends(run: SyncRun) -> None:
        for step in run.steps():
            look("x")
            send(f"ann{step}")
            if step == 3:
                return

    agent = RecoverableAgent(sends, CheckpointStore(tmp_path / "runs"))
    agent.run_with_recovery_sync(None, "order")
    sent = [one.lsn for one in agent.run("order").events() if one.kind == "call"][1::2]
    done = recovery(tmp_path, "fork", "order", "other", "--at", "1")
    assert (
        f"would make them again if it does the same: send#{sent[1]}, send#{sent[2]}\n" in done.out
    )
    assert made == ["ann1", "ann2", "ann3"]
    agent.resume_sync("other")
    assert made[3:] == ["ann2", "ann3"]  # as was said
    nothing = recovery(tmp_path, "fork", "order", "whole")
    assert nothing.code == 0 and "again" not in nothing.out
    told = recovery(tmp_path, "fork", "order", "third", "--at", "2", "--json")
    assert json.loads(told.out)["made_again"] == [f"send#{sent[2]}"]


# -- deaths at the same place

DIES = """
import os, sys
from recovery import CheckpointStore, RecoverableAgent, tool

@tool(after_crash="retry")
def parse(page):
    if os.environ["DIES"] == "in parse" and page == 2:
        os.kill(os.getpid(), 9)
    return page

def read(run):
    for step in run.steps():
        parse(step)
        if step == 2 and os.environ["DIES"] == "beside it":
            os.kill(os.getpid(), 9)
        if step == 3:
            return "read"

agent = RecoverableAgent(read, CheckpointStore("runs"))
if __name__ == "__main__":
    for name in sys.argv[1:]:
        if os.fork() == 0:
            agent.run_with_recovery_sync(None, name)
        os.wait()
"""


@pytest.mark.parametrize(
    ("dies", "where"), [("in parse", r"step 2, in parse#\d+"), ("beside it", "step 2")]
)
def test_processes_that_die_at_the_same_place_are_seen(
    tmp_path: Path, dies: str, where: str
) -> None:
    (tmp_path / "dies.py").write_text(DIES)
    names = ["once", *["often"] * 4, "twice", "twice"]
    env = environment(DIES=dies, PYTHONPATH=os.pathsep.join(sys.path))
    subprocess.run([sys.executable, "dies.py", *names], cwd=tmp_path, env=env, check=True)
    listed = recovery(tmp_path, "runs").out
    assert re.search(r"often .* crashed 4x", listed) and listed.count("crashed") == 1
    left = r"; workers leave it alone \(quarantined\)\n"
    assert "next: recovery status often --store runs\n" in listed
    for told in (listed, recovery(tmp_path, "status").out):
        assert re.search(rf"often: 4 processes in a row died in {where}{left}", told)
    shown = recovery(tmp_path, "show", "often").out
    assert re.search(rf"CRASHES +4 processes in a row died in {where}, none got further", shown)
    assert re.search(r"workers +leave it alone \(quarantined\)", shown)
    again = "recovery worker dies:agent --retry-quarantined --store runs"
    assert f"{again}   # once it is mended\n" in shown
    assert "CRASHES" not in recovery(tmp_path, "show", "twice").out
    # The way out that is shown ends the loop.
    next_ = json.loads(recovery(tmp_path, "show", "often", "--json").out)["next"]
    if dies == "in parse":
        (out,) = [one for one in next_ if "--fail TEXT" in one]
        typed = shlex.split(out.replace("TEXT", "poison"), comments=True)
        assert call(*typed, cwd=tmp_path).code == 0
        assert recovery(tmp_path, "show", "often", "--json").out.count('"crashes": 0')
    else:
        assert next_[-1] == "recovery fork often NEW_ID --at 1 --store runs"


def test_damage_that_a_recovery_does_not_need_is_told_as_harmless() -> None:
    for run, where in (("damaged_early", "LSN 17 lost"), ("damaged_snapshot", "LSN 44 lost")):
        shown = " ".join(call("recovery", "show", run, "--store", str(RUNS), cwd=RUNS).out.split())
        assert where in shown and "armless: a recovery " in shown
        assert "logdump repair" not in shown
    lost = call("recovery", "show", "damaged_payload", "--store", str(RUNS), cwd=RUNS).out
    assert "LSN 52 lost" in lost and "armless" not in lost


# -- the first record is lost


def test_a_repair_promises_nothing_where_the_first_record_is_lost(
    tmp_path: Path, agent: RecoverableAgent
) -> None:
    with pytest.raises(InDoubtError):
        agent.run_with_recovery_sync(None, "order")
    damage(tmp_path, 1)
    for apply in ([], ["--apply"]):
        done = call("logdump", "repair", *apply, "runs/order", cwd=tmp_path)
        assert "the run cannot be resumed, nor after a repair" in done.out
        assert "becomes in doubt" not in done.out and "next: logdump repair" not in done.out
    shown = recovery(tmp_path, "show", "order").out
    assert "unreadable" in shown
    # Its keys are made of the first record: a search by another key finds nothing.
    assert "idempotency key unknown" in shown
    with pytest.raises(RecoveryError, match="cannot be resumed"):
        agent.resume_sync("order")


def test_a_repair_says_how_to_go_on(tmp_path: Path, agent: RecoverableAgent) -> None:
    with pytest.raises(InDoubtError):
        agent.run_with_recovery_sync(None, "order")
    damage(tmp_path, 3)
    said = call("logdump", "repair", "runs/order", cwd=tmp_path).out
    for _ in range(2):  # each next command is typed
        (command,) = re.findall(r"^next: (.*)", said, re.M)
        done = call(*command.split(), cwd=tmp_path)
        assert done.code == 0, done.err
        said = done.out
    assert "REPAIRED" in said


# -- other code


def orders(tmp_path: Path, cents: int, sent: list[int]) -> RecoverableAgent:
    @tool
    def charge(cents: int) -> str:
        sent.append(cents)
        return "R-1"

    def order(run: SyncRun) -> None:
        charge(cents)
        run.wait_for("delivered")

    return RecoverableAgent(order, CheckpointStore(tmp_path / "runs"), park_after_s=0)


def test_show_of_a_diverged_run_has_the_difference_and_the_ways_out(tmp_path: Path) -> None:
    sent: list[int] = []
    with pytest.raises(WaitingError):
        orders(tmp_path, 5, sent).run_with_recovery_sync(None, "order")
    refused = recovery(tmp_path, "accept", "order", "--yes")
    assert refused.code == 1 and "did not stop by a divergence" in refused.err
    with pytest.raises(DivergenceError):
        orders(tmp_path, 7, sent).resume_sync("order")
    shown = recovery(tmp_path, "show", "order")
    assert "different: args[0]: 5 -> 7" in shown.out
    assert "LSN 2: charge(5)" in shown.out  # at stake
    assert "store.run(" not in shown.out  # the commands say it
    told = recovery(tmp_path, "status", "order").out
    what = "order: its code does not do what is recorded of charge#2: args[0]: 5 -> 7"
    assert told.startswith(what)
    next_ = json.loads(recovery(tmp_path, "show", "order", "--json").out)["next"]
    assert [one.split()[1] for one in next_] == ["resume", "accept", "fork", "cancel"]
    asked = recovery(tmp_path, "accept", "order")
    assert asked.code == 64 and "--yes" in asked.err
    accept = next_[1].partition("   #")[0].replace("TEXT", "cheaper")
    assert call(*accept.split(), "--yes", cwd=tmp_path).code == 0
    again = recovery(tmp_path, "accept", "order", "--yes")
    assert again.code == 1  # it is armed once
    with pytest.raises(WaitingError):
        orders(tmp_path, 7, sent).resume_sync("order")
    assert sent == [5, 7]


def test_an_error_of_many_lines_is_shown_once(tmp_path: Path) -> None:
    def fails(run: SyncRun) -> None:
        raise KeyError("\n".join(f"line {i} of it" for i in range(5)))

    agent = RecoverableAgent(fails, CheckpointStore(tmp_path / "runs"))
    with pytest.raises(KeyError):
        agent.run_with_recovery_sync(None, "order")
    shown = recovery(tmp_path, "show", "order").out
    assert shown.count("line 3 of it") == 1 and "| KeyError" in shown
    assert re.search(r"last .* the agent raised KeyError *\n", shown)


def test_a_failed_tool_is_shown_with_its_traceback(tmp_path: Path) -> None:
    @tool
    def charge(cents: int) -> None:
        raise PermanentError("no money")

    def order(run: SyncRun) -> None:
        charge(5)

    agent = RecoverableAgent(order, CheckpointStore(tmp_path / "runs"))
    with pytest.raises(RunFailedError):
        agent.run_with_recovery_sync(None, "order")
    shown = recovery(tmp_path, "show", "order").out
    hidden = recovery(tmp_path, "show", "order", "--redact", "*").out
    assert re.search(r"^error +\| ", shown, re.M)
    # Where a line is folded depends on the length of this file's path.
    assert ["in charge" in " ".join(text.split()) for text in (shown, hidden)] == [True, False]
    assert "once the cause is mended" in shown


def test_a_long_reason_takes_a_line_of_a_list(tmp_path: Path) -> None:
    @tool
    def charge(cents: int) -> None:
        raise PermanentError("<html>\n" + "a page of the bank\n" * 500)

    agent = RecoverableAgent(lambda run: charge(5), CheckpointStore(tmp_path / "runs"))
    with pytest.raises(RunFailedError):
        agent.run_with_recovery_sync(None, "order")
    for command in ("runs", "status"):
        shown = recovery(tmp_path, command).out
        assert "PermanentError: <html> a page of" in " ".join(shown.split())
        assert len(shown) < 1000
    assert recovery(tmp_path, "show", "order").out.count("a page of the bank") > 100


def test_a_failure_is_kept_once_the_agent_catches_it(tmp_path: Path, charges: list[int]) -> None:
    @tool
    def charge(cents: int) -> None:
        charges.append(cents)
        raise PermanentError("no money")

    def order(run: SyncRun) -> str:
        try:
            charge(5)
        except ToolError as exc:
            return f"no order: {exc}"
        return "ordered"

    agent = RecoverableAgent(order, CheckpointStore(tmp_path / "runs"))
    with pytest.raises(RunFailedError, match="catch ToolError in the agent"):
        agent.run_with_recovery_sync(None, "order")
    assert "# once it catches ToolError" in recovery(tmp_path, "show", "order").out
    assert recovery(tmp_path, "resolve", "order", "charge", "--fail", "the bank refused").code == 0
    assert agent.resume_sync("order")["result"] == "no order: resolved as failed: the bank refused"
    assert charges == [5]


# -- commands that can be pasted


def test_commands_are_not_folded_and_keep_the_key_file(tmp_path: Path) -> None:
    keys = tmp_path / "a-file-with-a-rather-long-name-in-which-the-keys-of-this-store-are.txt"
    keys.write_text(f"k1 {'ab' * 32}\n")
    keys.chmod(0o600)
    key = Encryption(bytes.fromhex("ab" * 32), "k1")
    store = CheckpointStore(tmp_path / "runs", encryption=key)

    @tool
    def charge(cents: int) -> None:
        raise NoAnswerError("no answer")

    agent = RecoverableAgent(lambda run: charge(5), store)
    with pytest.raises(InDoubtError):
        agent.run_with_recovery_sync(None, "order")
    given = "--store", "runs", "--key-file", keys.name
    with Processes(tmp_path) as processes:
        shown = processes.on_terminal("recovery", "show", "order", *given).shown
        commands = [
            shlex.split(line[9:], comments=True)
            for line in shown.splitlines()
            if "recovery resolve" in line
        ]
        assert len(commands) == 3
        retry = next(one for one in commands if "--retry" in one)
        done = processes.on_terminal(*retry)
    assert done.code == 0
    assert re.search(rf"^next: recovery resume order .* --key-file {keys.name}$", done.shown, re.M)
    assert call(*retry, cwd=tmp_path).code == 0


def test_a_call_in_doubt_names_the_command_that_resolves_it(
    tmp_path: Path, agent: RecoverableAgent
) -> None:
    with pytest.raises(InDoubtError) as failed:
        agent.run_with_recovery_sync(None, "order")
    (command,) = re.findall("^  (recovery resolve .*)$", str(failed.value), re.M)
    done = call(*command.replace("JSON", "1").split(), cwd=Path("/"))
    assert done.code == 0, done.err


def test_a_command_in_a_python_error_names_the_store(tmp_path: Path) -> None:
    @tool
    def charge(cents: int) -> object:
        return object()

    agent = RecoverableAgent(lambda run: charge(5), CheckpointStore(tmp_path / "runs"))
    with pytest.raises(UnrecordedResultError) as failed:
        agent.run_with_recovery_sync(None, "order")
    (command,) = re.findall(r"`(recovery resolve .*?)`", str(failed.value))
    done = call(*command.replace("JSON", "null").split(), cwd=Path("/"))
    assert done.code == 0, done.err


# -- which runs need a person, and which can go on

SHOP = """
from recovery import CheckpointStore, RecoverableAgent, tool
from recovery.errors import NoAnswerError
from pathlib import Path

@tool
def charge(cents):
    raise NoAnswerError("no answer")

@tool(needs_approval=True)
def refund(cents):
    return cents

def order(run):
    with Path("made").open("a") as file:
        file.write(run.run_id + " ")
    match run.task:
        case "charge":
            charge(5)
        case "refund":
            refund(5)
        case "wait":
            run.wait_for("delivered")
        case "fail" if not Path("mended").exists():
            raise KeyError("tuesday")
    return "done"

agent = RecoverableAgent(order, CheckpointStore("runs"), park_after_s=0)
"""
PAYS = """
import sys
from recovery import PermanentError

@tool(raises=[PermanentError])
def pay():
    raise PermanentError("no money")

if __name__ == "__main__":
    agent.run_with_recovery_sync(sys.argv[1], sys.argv[1])
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A run of each kind, in a directory with their agent."""
    (tmp_path / "night_shop.py").write_text(SHOP)
    with contextlib.chdir(tmp_path):
        agent = runpy.run_path("night_shop.py")["agent"]
        for kind in ("charge", "refund", "wait", "fail", "finish"):
            with contextlib.suppress(RecoveryError, KeyError):
                agent.run_with_recovery_sync(kind, f"to-{kind}")
    (tmp_path / "made").unlink()
    return tmp_path


def resumed(where: Path, *args: str) -> Done:
    try:
        return recovery(where, "resume", "--agent", "night_shop:agent", *args)
    finally:
        sys.modules.pop("night_shop", None)


def made(where: Path) -> list[str]:
    return (where / "made").read_text().split()


def test_one_answer_to_which_runs_need_a_person_and_which_can_go_on(shop: Path) -> None:
    checked = recovery(shop, "status", "--check")
    assert checked.code == 1
    assert "to-charge: in doubt: charge#2\n" in checked.out
    assert "to-refund: asks for approval: refund#2\n" in checked.out
    assert re.search(r"^to-fail: KeyError: 'tuesday' \(step 0 at .* in order\)$", checked.out, re.M)
    assert "5 runs: 3 need a person, 0 can be resumed\n" in checked.out
    assert recovery(shop, "status").code == 0
    table = recovery(shop, "runs").out
    assert "to-charge: in doubt: charge#2\n" in table
    assert "next: recovery status to-charge --store runs\n" in table
    # All commands agree.
    listed = recovery(shop, "runs", "--due", "--json").out.splitlines()
    assert [json.loads(one)["run_id"] for one in listed] == ["to-fail"]
    checks = json.loads(recovery(shop, "doctor", "--json").out)["checks"]
    texts = {one["text"] for one in checks if one["name"] == "runs"}
    assert "3 runs need a person" in texts
    # The commands that are shown, until nothing is left.
    assert recovery(shop, "resolve", "to-charge", "charge", "--outcome", "1").code == 0
    assert recovery(shop, "approve", "to-refund", "refund#2", "--yes").code == 0
    done = recovery(shop, "status", "--check")
    assert done.code == 1 and "1 needs a person, 2 can be resumed" in done.out
    (shop / "mended").touch()
    ended = resumed(shop, "--due")
    assert ended.code == 0 and "3 runs resumed, 3 finished" in ended.err
    assert made(shop) == ["to-charge", "to-fail", "to-refund"]


def test_of_one_run_status_says_the_cause_and_the_next_commands(shop: Path) -> None:
    for run, cause, first in (
        ("to-charge", "in doubt: charge#2", "resolve to-charge"),
        ("to-refund", "asks for approval: refund#2", "approve to-refund"),
        ("to-fail", "KeyError: 'tuesday'", "resume to-fail"),
        ("to-wait", "waiting: waits for signal 'delivered'", "signal to-wait delivered JSON"),
    ):
        told = recovery(shop, "status", run, "--check")
        assert told.out.startswith(f"{run}: {cause}"), told.out
        assert f"\nnext: recovery {first}" in told.out
        assert told.code == (run != "to-wait")
    assert recovery(shop, "status", "to-finish").out == "to-finish: finished\n"
    assert recovery(shop, "status", "to-finnish").code == 66
    as_json = json.loads(recovery(shop, "status", "to-fail", "--json").out)
    assert as_json["runs"] == 1 and as_json["need_a_person"][0]["run_id"] == "to-fail"


def test_a_run_whose_code_fails_needs_a_person_until_it_is_mended(shop: Path) -> None:
    for _ in range(2):
        assert "to-fail: KeyError: 'tuesday'" in recovery(shop, "status").out
        assert resumed(shop, "--due").code == 1
    (shop / "mended").touch()  # and then it goes on like others
    assert resumed(shop, "--due").code == 0


def test_all_unfinished_runs_are_tried_whatever_becomes_of_the_others(shop: Path) -> None:
    (shop / "mended").touch()
    done = resumed(shop, "--all-unfinished")
    assert done.code == 1 and "4 runs resumed, 1 finished" in done.err
    assert made(shop) == ["to-charge", "to-fail", "to-refund", "to-wait"]
    only = resumed(shop, "--all-unfinished", "--match", "wait")
    assert "1 run resumed, 0 finished" in only.err
    damage(shop, 3, "to-refund")
    told = resumed(shop, "--all-unfinished", "--match", "refund")
    assert told.code == 1 and "run to-refund: skipped, its log is damaged" in told.err
    for words in (["to-wait", "--due"], [], ["--due", "--all-unfinished"]):
        assert resumed(shop, *words).code == 64


def test_a_filter_that_matches_nothing_says_so(shop: Path) -> None:
    for words in (["--match", "zzz"], ["--state", "damaged"]):
        assert recovery(shop, "runs", *words).out.startswith("no such runs (5 runs in ")
        as_json = recovery(shop, "runs", "--json", *words)
        assert as_json.out == "" and "no such runs" in as_json.err


def test_a_cancelled_run_asks_for_nothing(shop: Path) -> None:
    assert recovery(shop, "cancel", "to-refund", "--yes").code == 0
    assert "approve" not in recovery(shop, "runs").out
    assert "to-refund" not in recovery(shop, "status").out


def test_a_full_disk_is_seen(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = os.statvfs_result((4096, 4096, 1000, 10, 10, 1000, 900, 900, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    for words in (["runs"], ["show", "to-wait"], ["status"]):
        (told,) = re.findall("^DISK: 41.0 KB free.*", recovery(shop, *words).out, re.M)
        assert "(recovery gc --older-than 30d --dry-run --store runs)" in told
    resolved = recovery(shop, "status", "--check", "--json")
    assert resolved.code == 1 and json.loads(resolved.out)["disk"].startswith("DISK: ")


# -- how a command may be typed


def test_the_store_may_come_first_and_a_run_may_be_a_path(shop: Path) -> None:
    shown = call("recovery", "show", "to-wait", "--store", "runs", cwd=shop).out.splitlines()[:4]
    for words in (
        ["--store", "runs", "show", "to-wait"],
        ["--store=runs", "show", "to-wait"],
        ["show", "runs/to-wait"],
        ["show", f"{shop}/runs/to-wait/"],
    ):
        done = call("recovery", *words, cwd=shop)
        assert done.code == 0 and done.out.splitlines()[:4] == shown, words
    sent = call("recovery", "signal", "runs/to-wait", "delivered", cwd=shop)
    assert sent.code == 0 and f"--store {shop}/runs" in sent.out
    elsewhere = call("recovery", "show", "none/to-wait", "--store", "runs", cwd=shop)
    assert elsewhere.code == 64  # no log there: it is an impossible id


def test_every_deciding_command_takes_yes(shop: Path) -> None:
    assert recovery(shop, "deny", "to-refund", "refund", "--yes").code == 0
    assert recovery(shop, "resolve", "to-charge", "charge", "--fail", "no", "--yes").code == 0


def test_show_of_a_long_log_reads_its_end(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_view, "FAMILY_MAX", 2)
    shown = recovery(shop, "show", "to-wait").out
    assert "child runs up to LSN 1 are not shown" in shown
    monkeypatch.undo()
    assert "not shown" not in recovery(shop, "show", "to-wait").out


def test_a_run_that_waits_for_approval_says_how_to_approve_it(tmp_path: Path) -> None:
    """In a program that has set up no logging, on standard error; as typed, it is approved."""
    (tmp_path / "asks.py").write_text(SHOP + "agent.run_with_recovery_sync('refund', 'order')\n")
    env = environment(PYTHONPATH=os.pathsep.join(sys.path))
    command = [sys.executable, "asks.py"]
    asked = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    (approve,) = re.findall(
        "^run order waits for the approval of .*: (recovery approve .*)$", asked.stderr, re.M
    )
    assert call(*approve.split(), "--yes", cwd=Path("/")).code == 0
    again = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert again.returncode == 0 and "waits for" not in again.stderr


def test_with_the_wrong_key_every_command_says_so_and_asks_for_another(tmp_path: Path) -> None:
    shutil.copytree(RUNS / "encrypted", tmp_path / "encrypted")
    keys = tmp_path / "keys"
    keys.write_text("7" * 64)
    keys.chmod(0o600)
    for given in (["--key-file", "keys"], []):
        words = ["--store", ".", *given]
        done = call("recovery", "show", "encrypted", *words, cwd=tmp_path)
        assert done.code == 77
        assert ("the key that was given is another" in " ".join(done.out.split())) is bool(given)
        assert done.out.endswith("next  recovery show encrypted --key-file FILE --store .\n")
        assert call("recovery", "show", "encrypted", *words, "--json", cwd=tmp_path).code == 77
        assert call("recovery", "status", "encrypted", *words, cwd=tmp_path).code == 77
        told = call("recovery", "status", *words, cwd=tmp_path).out
        assert "next: recovery show encrypted --key-file FILE --store .\n" in told
        for command in (
            ["resume", "--agent", "json:dumps"],
            ["resume"],
            ["cancel", "--yes"],
            ["fork", "other"],
            ["accept", "--yes"],
        ):
            verb, *options = command
            done = call("recovery", verb, "encrypted", *options, *words, cwd=tmp_path)
            assert done.code == 77 and "--key-file" in done.err, command


def test_what_a_failed_run_says_can_be_typed(tmp_path: Path) -> None:
    """The store and the agent are in the command; a denial is not the tool's fault."""
    program = SHOP.replace('case "wait"', 'case "pay":\n            pay()\n        case "wait"')
    (tmp_path / "fails.py").write_text(program + PAYS)
    env = environment(PYTHONPATH=os.pathsep.join(sys.path))

    def run(task: str) -> str:
        words = [sys.executable, "fails.py", task]
        return subprocess.run(
            words, cwd=tmp_path, env=env, stderr=-1, text=True, check=False
        ).stderr

    run("refund")
    assert recovery(tmp_path, "deny", "refund", "refund", "--why", "no", "--yes").code == 0
    for task in ("pay", "refund"):
        for said in (run(task), run(task)):  # when it fails, and when it is begun again
            assert ("Mend the cause" in said) is (task == "pay"), said
            (command,) = re.findall("^  (recovery retry .*)$", said, re.M)
            assert f"--agent fails:agent --store {tmp_path}/runs" in command
        assert "to be made again" in call(*command.split(), cwd=tmp_path).err


# -- where an error was raised

FAILS = """
import json
from recovery import CheckpointStore, RecoverableAgent, tool

def parsed(text):
    return json.loads(text)

@tool(timeout_s=30)  # in a thread of its own
def load(text):
    return parsed(text)

def order(run):
    if run.task == "tool":
        return load("no JSON")
    if run.task == "misused":
        return run.wait_for(5)
    return {}["tuesday"]

agent = RecoverableAgent(order, CheckpointStore("runs"), max_recoveries=0)
"""


def test_a_traceback_has_the_lines_of_the_user_and_none_of_the_library(tmp_path: Path) -> None:
    (tmp_path / "night_fails.py").write_text(FAILS)
    files = {}
    for task in ("code", "tool", "misused"):
        assert recovery(tmp_path, "submit", "order", f'"{task}"', "--run", task).code == 0
        try:
            resumed = recovery(tmp_path, "resume", task, "--agent", "night_fails:agent")
        finally:
            sys.modules.pop("night_fails", None)
        assert resumed.code == 1
        told = recovery(tmp_path, "show", task, "--json").out
        content = json.loads(told)
        kept = content["traceback"] or content["error"]["traceback"]
        files[task] = [Path(one).name for one in re.findall(r'File "(.*?)", line', kept)]
        if task != "tool":  # whose failure names the commands instead
            assert re.findall(r'File "(.*?)", line', resumed.err) == re.findall(
                r'File "(.*?)", line', kept
            )
            assert "# once its code is mended" in resumed.err
            assert content["error"]["place"].startswith(str(tmp_path / "night_fails.py"))
    # The last one is a line of the library, which raised it itself.
    assert files["code"] == ["night_fails.py"]
    assert files["misused"] == ["night_fails.py", "waiting.py"]
    assert files["tool"][:3] == ["night_fails.py"] * 3 and {*files["tool"][3:]} == {
        "__init__.py",
        "decoder.py",
    }


def test_of_a_long_traceback_the_last_line_of_the_user_is_shown() -> None:
    deep = [f'  File "/x/site-packages/http/{i}.py", line 1, in f\n    f()' for i in range(20)]
    theirs = '  File "/home/ann/shop.py", line 7, in charge\n    http.post()'
    lines = "\n".join(["Traceback (most recent call last):", theirs, *deep, "OSError: x"])
    shown = status_view._ending(lines)
    assert shown[:3] == [*theirs.split("\n"), "  ..."] and shown[-1] == "OSError: x"
    assert len(shown) == status_view.TRACEBACK_LINES + 1
    assert status_view._ending("Traceback:\nKeyError: 1") == ["Traceback:", "KeyError: 1"]


# -- signals


def test_a_signal_is_told_apart_from_one_that_the_run_waits_for(shop: Path) -> None:
    misspelt = recovery(shop, "signal", "to-wait", "deliverd")
    assert misspelt.code == 0
    assert "has not asked for: the run waits for 'delivered'. Misspelt?" in misspelt.out
    assert "next: recovery signal to-wait delivered JSON --store runs\n" in misspelt.out
    first, *again = [recovery(shop, "signal", "to-wait", "delivered", "--key", "a") for _ in "12"]
    assert (first.code, first.out) == (
        0,
        "run to-wait: sent 'delivered'\n"
        "next: recovery resume to-wait --agent MODULE:NAME --store runs\n",
    )
    assert resumed(shop, "to-wait").code == 0
    # It has ended: a web hook that is delivered twice is told so, and no more is sent.
    again.append(recovery(shop, "signal", "to-wait", "delivered", "--key", "a"))
    for one in again:
        assert (one.code, one.err) == (0, "") and "was sent before under key 'a'" in one.out
    for other in (["--key", "b"], []):
        refused = recovery(shop, "signal", "to-wait", "delivered", *other)
        assert refused.code == 1 and "has ended (finished)" in refused.err
    another = recovery(shop, "signal", "to-wait", "delivered", "5", "--key", "a")
    assert another.code == 64 and "sent something else" in another.err


# -- stores that are none, and files that may not be read


def test_what_is_no_store_is_told(tmp_path: Path) -> None:
    (tmp_path / "runs/photos").mkdir(parents=True)
    assert "photos is none. Is the store another directory" in recovery(tmp_path, "runs").out
    unknown = call("recovery", "runs", "--store", "mysql://x/y", cwd=tmp_path)
    assert unknown.code == 64 and "not known" in unknown.err


def test_a_run_of_which_a_full_disk_hides_whether_it_was_submitted_is_submitted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = "submit", "order", "5"
    with monkeypatch.context() as full:
        full.setattr(os, "fdatasync", Mock(side_effect=OSError(errno.ENOSPC, "full")))
        full.setattr(os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, "full")))
        done = recovery(tmp_path, *asked)
        refused = recovery(tmp_path, "submit", "", "5")
    assert done.code == 74 and done.out == "" and refused.code == 64
    assert "--run" not in refused.err
    (run_id,) = re.findall(r"--run (\w+)", done.err)
    assert recovery(tmp_path, *asked, "--run", run_id).out.split() == [run_id]
    assert [one.run_id for one in CheckpointStore(tmp_path / "runs").runs()] == [run_id]


def test_a_signal_of_which_nobody_knows_whether_it_was_sent_is_sent_once(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = "signal", "to-wait", "delivered", "7"

    def lost(*words: Any, **options: Any) -> None:
        signal(*words, **options)
        raise ConnectionResetError(errno.ECONNRESET, "reset")

    with monkeypatch.context() as broken:
        broken.setattr("recovery.cli.commands.signal.signal", lost)
        done, named = recovery(shop, *asked), recovery(shop, *asked, "--key", "mine")
    assert done.code == named.code == 74 and "--key" not in named.err
    (key,) = re.findall(r"--key (\w+)", done.err)
    assert "is sent once" in recovery(shop, *asked, "--key", key).out
    assert len(CheckpointStore(shop / "runs").run("to-wait").status().unread) == 2


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EACCES, "belongs to nobody, and this is root. Repeat the command as"),
        (errno.ENOSPC, "The disk is full. What was recorded is safe. Free some space"),
    ],
)
def test_an_error_of_the_system_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), str(tmp_path / "runs/order/LOCK"))

    monkeypatch.setattr(CheckpointStore, "run", refused)
    monkeypatch.setattr("recovery.cli.commands.status.listed", refused)
    monkeypatch.setattr(Path, "owner", lambda self: "nobody")
    monkeypatch.setattr("recovery.cli.terminal.getpwuid", lambda uid: Mock(pw_name="root"))
    (tmp_path / "runs").mkdir()
    done = recovery(tmp_path, "status")
    told = " ".join(done.err.split())
    assert done.code == 74 and remedy in told
    assert ("gc --older-than 30d --dry-run --store runs)" in told) == (number == errno.ENOSPC)


def test_where_no_segment_is_left_the_way_out_is_told(shop: Path) -> None:
    for segment in (shop / "runs/to-wait").glob("*.seg"):
        segment.unlink()
    refused = resumed(shop, "to-wait")
    assert refused.code == 1 and "What to do: recovery show to-wait" in refused.err
    shown = recovery(shop, "show", "to-wait").out
    assert "then put its files back from a copy" in shown and "more " not in shown
    (out,) = re.findall(r"recovery rm .*?(?=   #)", shown)
    assert call(*out.split(), "--yes", cwd=shop).code == 0
