"""The shops of examples/, of each framework, are killed at their payments, and pay each once."""

from __future__ import annotations

import runpy
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import recovery.cli
from recovery import RecoverableAgent
from tests.support.forked import forked
from tests.support.paths import ROOT

EXAMPLES = ROOT / "examples"
SHOPS = EXAMPLES / "shops"
FRAMEWORKS = {
    "pydantic_ai": "pydantic_ai",
    "openai_agents": "agents",
    "langgraph": "langgraph",
    "langchain": "langchain",
    "agent_framework": "agent_framework",
    "google_adk": "google.adk",
    "openai": "openai",
    "anthropic": "anthropic",
    "mcp": "mcp",
    "claude_agent": "claude_agent_sdk",
    "otel": "opentelemetry.sdk",
}


def test_there_is_a_shop_for_each_framework() -> None:
    assert {path.stem for path in SHOPS.glob("with_*.py")} == {
        f"with_{name}" for name in FRAMEWORKS
    }


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_shop_pays_each_once(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(FRAMEWORKS[name])
    monkeypatch.syspath_prepend(SHOPS)
    monkeypatch.chdir(tmp_path)
    shop: Any = runpy.run_path(str(SHOPS / f"with_{name}.py"))["shop"]
    task = "Buy tea and a cup."
    if isinstance(shop, RecoverableAgent):
        told = shop.run_with_recovery_sync(task, "order-42")["result"]
    else:
        told = shop(task)
    assert told == "Tea and a cup are paid."
    payments = (tmp_path / "payments").read_text().splitlines()
    assert sorted(line.partition(" ")[2] for line in payments) == ["300 to bob", "500 to ann"]


@pytest.mark.crash  # each death is a process that imports the framework
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_shop_that_is_killed_at_its_payments_pays_each_once(name: str, tmp_path: Path) -> None:
    pytest.importorskip(FRAMEWORKS[name])
    command = [sys.executable, "-m", "recovery.cli", "crashtest", f"with_{name}:shop"]
    command += ["--task", '"Buy tea and a cup."', "--tool", "bank:pay", "--fresh", str(SHOPS)]
    # Before and after each of the two payments.
    command += ["--points", "4", "--kills", "0"]
    done = subprocess.run(command, cwd=SHOPS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "survives a crash at every point" in done.stdout
    assert 'returned "Tea and a cup are paid."; executed pay 2 times' in done.stdout


def test_a_shop_of_pydantic_ai_dies_while_it_pays_and_pays_once(tmp_path: Path) -> None:
    pytest.importorskip("pydantic_ai")
    done = forked(EXAMPLES / "pydantic_ai_shop.py", str(tmp_path), place=EXAMPLES)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "in doubt: pay; the bank says: paid",
        "approved: refund.approval {'cents': 100}",
        "Tea is paid, and a part is refunded.",
        "payments: 1",
    ]


def test_a_payment_of_openai_agents_that_a_kill_cut_short_is_made_once(tmp_path: Path) -> None:
    pytest.importorskip("agents")
    bank = {"EXAMPLE_BANK": str(tmp_path)}
    asked = ["model: Serve.", "model: Serve.", "model: Take the money."]
    script = EXAMPLES / "openai_agents.py"
    died = forked(script, str(tmp_path), "--die", place=EXAMPLES, **bank)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert died.stdout.splitlines() in ([], asked)  # what was not flushed is lost
    resume = ("resume", "order-42", "--agent", "openai_agents:agent", "--store", str(tmp_path))
    ended = forked(recovery.cli.main, *resume, place=EXAMPLES, **bank)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["model: Take the money.", '"The shoes are paid."']
    assert len((tmp_path / "payments").read_text().splitlines()) == 1
