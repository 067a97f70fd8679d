"""examples/shops: each framework's shop is killed at its payments, as ``make demo WITH=`` does."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from recovery import RecoverableAgent
from tests.support.paths import ROOT

SHOPS = ROOT / "examples" / "shops"
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
