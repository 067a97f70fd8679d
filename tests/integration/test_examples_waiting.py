"""examples/waiting.py and examples/approvals.py: run as users run them, and killed everywhere."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recovery import CheckpointStore, RecoverableAgent
from recovery.control.send import approve, deny, pending, signal
from recovery.testing import crash_everywhere

ROOT = Path(__file__).parents[2]


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import approvals
    import waiting

    yield waiting, approvals
    del sys.modules["waiting"], sys.modules["approvals"]


def run(name: str, directory: Path, *args: str) -> str:
    command = [sys.executable, str(ROOT / "examples" / name), str(directory), *args]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


def test_the_waiting_agent_waits_in_no_process(tmp_path: Path) -> None:
    parked = "run 'order-17' is parked until something happens outside:\n  signal 'shipped'\n"
    for _ in range(2):
        assert run("waiting.py", tmp_path).startswith(parked)
    for _ in range(2):  # a sender that is not sure sends again
        assert run("waiting.py", tmp_path, "ship", "4711") == ""
    said = run("waiting.py", tmp_path).splitlines()
    assert said[:2] == ["mail: Your parcel 4711 is on its way.", "mail: Did it arrive?"]
    assert said[3].startswith("  signal 'answer', until ")
    run("waiting.py", tmp_path, "answer", "yes")
    for _ in range(2):
        assert run("waiting.py", tmp_path) == "4711: yes"


def test_the_paying_agent_pays_what_was_approved(tmp_path: Path) -> None:
    assert "approval of LSN" in run("approvals.py", tmp_path)
    shown = run("approvals.py", tmp_path, "show")
    assert "pay(40, 'bob')" in shown
    key = shown.partition(":")[0]
    run("approvals.py", tmp_path, "yes", key, "as agreed")
    assert "pay(9999, 'mallory')" in run("approvals.py", tmp_path)
    key = run("approvals.py", tmp_path, "show").partition(":")[0]
    run("approvals.py", tmp_path, "no", key, "who is that?")
    for _ in range(2):
        assert run("approvals.py", tmp_path).splitlines() == [
            "paid 10 to alice",
            "paid 40 to bob",
            "did not pay mallory: who is that?",
        ]


def test_the_waiting_agent_survives_being_killed_at_every_point(examples: Any) -> None:
    waiting, _ = examples

    def answer(store: CheckpointStore, run_id: str) -> None:
        signal(store, run_id, "shipped", "4711", key="shipped")
        signal(store, run_id, "answer", "yes", key="answer")

    report = crash_everywhere(
        lambda: RecoverableAgent(waiting.agent, CheckpointStore()),
        setup=waiting.mails.clear,
        effects=lambda: list(waiting.mails),
        answer=answer,
        points=25,
        power_loss=True,
    )
    assert report.ok, str(report)
    assert report.points > 20


def test_the_paying_agent_survives_being_killed_at_every_point(examples: Any) -> None:
    _, approvals = examples

    def answer(store: CheckpointStore, run_id: str) -> None:
        for call in pending(store, run_id):
            (approve if call.args[0] < 1000 else deny)(store, run_id, call)

    report = crash_everywhere(
        lambda: RecoverableAgent(approvals.agent, CheckpointStore()),
        setup=approvals.paid.clear,
        effects=lambda: list(approvals.paid),
        answer=answer,
        points=25,
        power_loss=True,
    )
    assert report.ok, str(report)
    assert report.points > 20
