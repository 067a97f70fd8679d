"""What the pages of the section "How to" tell a reader to do, done."""

from __future__ import annotations

import functools
import os
import re
import signal
import subprocess
import sys
import time
from configparser import ConfigParser
from pathlib import Path

import pytest

import eventlog.errors
import recovery.errors
from recovery import CheckpointStore
from recovery.graph import GraphParkedError
from tests.cli.harness import call
from tests.docs.test_programs import BLOCK, DOCS, run


def files_of(page: str, place: Path) -> str:
    """Writes the files that a page names; returns the page."""
    text = (DOCS / page).read_text(encoding="utf-8")
    for found in BLOCK.finditer(text):
        if found["title"]:
            (place / found["title"]).write_text(found["code"], encoding="utf-8")
    return text


def test_the_first_agent_is_killed_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files_of("start.md", tmp_path)
    monkeypatch.setenv("EVENTLOG_HOME", str(tmp_path / "home"))
    outbox = tmp_path / "outbox.txt"
    process = subprocess.Popen([sys.executable, "mailer.py"], cwd=tmp_path)
    deadline = time.monotonic() + 60
    while not (outbox.exists() and outbox.read_text() == "ann\nbob\n"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert "in doubt send_mail" in call("recovery", "show", "monday", cwd=tmp_path).out
    args = ("monday", "send_mail", "--outcome", '"sent to bob"')
    assert call("recovery", "resolve", *args, cwd=tmp_path).code == 0
    assert run(tmp_path, "mailer.py") == "3 mails\n"
    assert outbox.read_text() == "ann\nbob\ncy\n"


def test_the_worker_resumes_what_is_due_and_ends_by_sigterm(tmp_path: Path) -> None:
    files_of("deploy.md", tmp_path)
    begin = (
        "import asyncio, shop\n"
        "from dataclasses import replace\n"
        "shop.agent.settings = replace(shop.agent.settings, park_after_s=0)\n"
        "shop.agent.store.submit('order', 300, 'order-2')\n"
        "asyncio.run(shop.agent.run_with_recovery(500, 'order-1'))\n"
    )
    (tmp_path / "begin.py").write_text(begin)
    environment = os.environ | {"EVENTLOG_HOME": str(tmp_path / "home")}
    begun = subprocess.run(
        [sys.executable, "begin.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "WaitingError" in begun.stderr
    words = [sys.executable, "-m", "recovery.cli", "worker", "shop:agent"]
    with subprocess.Popen(words, cwd=tmp_path, env=environment) as worker:
        deadline = time.monotonic() + 60
        store = CheckpointStore(tmp_path / "home")
        while {one.state for one in store.runs()} != {"finished"}:
            assert time.monotonic() < deadline and worker.poll() is None
            time.sleep(0.1)
        worker.terminate()
        assert worker.wait(30) == 0


def test_the_unit_starts_the_worker_and_gives_it_time() -> None:
    text = (DOCS / "deploy.md").read_text(encoding="utf-8")
    unit = ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(text.split('shop.service"\n')[1].split("```")[0])
    service = unit["Service"]
    assert (
        service["ExecStart"].endswith("recovery worker shop:agent")
        and service["Restart"] == "always"
    )
    assert service["Environment"] == f"EVENTLOG_HOME=/var/lib/{service['StateDirectory']}/runs"
    assert int(service["TimeoutStopSec"]) > 30  # a time-out's calls have so long to finish


def test_a_report_that_is_begun_twice_is_sent_once(tmp_path: Path) -> None:
    files_of("schedules.md", tmp_path)
    assert run(tmp_path, "report.py", "2026-11-23") == "sends the report of 2026-11-23\nsent\n"
    assert run(tmp_path, "report.py", "2026-11-23") == "sent\n"


def test_the_check_names_runs_that_need_a_person(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(
        "import os, sys\nfrom recovery import RecoverableAgent, tool\n\n\n"
        "@tool\ndef pay():\n    os._exit(9)\n\n\n"
        "def agent(run):\n    return pay() if run.task else 'nothing'\n\n\n"
        "RecoverableAgent(agent, 'runs').run_with_recovery_sync(len(sys.argv) > 1, sys.argv[-1])\n"
    )
    run(tmp_path, "agent.py")
    check = functools.partial(
        call, "recovery", "status", "--check", "--store", "runs", cwd=tmp_path
    )
    assert check().code == 0
    for _ in range(2):  # the process dies in the call; the next one parks the run
        subprocess.run(
            [sys.executable, "agent.py", "order-1"], cwd=tmp_path, capture_output=True, check=False
        )
    loud = check()
    assert loud.code == 1 and "order-1" in loud.out and "in doubt" in loud.out


def rows_of_errors() -> dict[str, list[str]]:
    text = (DOCS / "errors.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines()]
    return {
        name: row[1:]
        for row in rows
        if len(row) == 3
        for name in re.findall(r"`(\w+Error)`", row[0])
    }


def test_every_public_error_has_a_cause_and_a_next_step() -> None:
    rows = rows_of_errors()
    public = {*recovery.errors.__all__, GraphParkedError.__name__}
    public |= {
        name
        for name, one in vars(eventlog.errors).items()
        if isinstance(one, type) and issubclass(one, Exception)
    }
    raised_by_users = {"NoAnswerError", "PermanentError"}
    assert set(rows) - {"OSError"} == public - raised_by_users
    text = (DOCS / "errors.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in text for name in raised_by_users)
    assert all(cause and what for cause, what in rows.values())


def test_every_command_of_these_pages_exists_with_its_options() -> None:
    pages = "errors start deploy schedules wrong-result operations monitoring".split()
    found = set()
    for page in pages:
        text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
        found |= set(re.findall(r"(?:recovery|logdump) [a-z]+[^`|#\n;>]*", text))
    named = {line.strip() for line in found if line.split()[1] != "repair"} - {""}
    assert len(named) > 20
    for line in sorted(named):
        tool, command, *rest = line.split()
        if tool == "logdump" and not command.isalpha():
            continue
        known = call(tool, command, "--help", cwd=DOCS).out
        for option in (word for word in rest if word.startswith("--")):
            assert re.search(rf"{option}(?![\w-])", known), line
