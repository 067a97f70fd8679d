"""The programs of docs/agent-framework.md run."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.pages import blocks, page_text, run_page

pytest.importorskip("agent_framework")

import recovery.integrations.agent_framework as integration

PAGE = "agent-framework.md"


def test_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = run_page(PAGE, blocks(PAGE), {"__name__": "__main__"})
    (said,) = blocks(PAGE, "text")
    assert capsys.readouterr().out == said

    has = "Ann has the money."
    assert asyncio.run(names["both"].run_with_recovery("Go", "two"))["result"] == [has, has]
    asks = names["RecoverableAgent"](names["asks"], "runs")
    assert asyncio.run(asks.run_with_recovery("Go", "asks"))["result"] == has
    careful = integration.recoverable(names["careful"], "runs")
    assert asyncio.run(careful.run_with_recovery("Go", "careful"))["result"] == has


def test_every_public_name_is_on_the_page() -> None:
    text = page_text(PAGE)
    for name in integration.__all__:
        assert f"`{name}" in text or f"{name}(" in text, name
        assert getattr(integration, name).__doc__
