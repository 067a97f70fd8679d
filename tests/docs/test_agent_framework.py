"""The programs of docs/agent-framework.md run."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT

pytest.importorskip("agent_framework")

import recovery.integrations.agent_framework as integration

PAGE = ROOT / "docs/agent-framework.md"


def test_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = PAGE.read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "__main__"}
    for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(text, str(PAGE), "exec"), names)  # noqa: S102 - our own page
    (said,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    assert capsys.readouterr().out == said

    has = "Ann has the money."
    assert asyncio.run(names["both"].run_with_recovery("Go", "two"))["result"] == [has, has]
    asks = names["RecoverableAgent"](names["asks"], "runs")
    assert asyncio.run(asks.run_with_recovery("Go", "asks"))["result"] == has
    careful = integration.recoverable(names["careful"], "runs")
    assert asyncio.run(careful.run_with_recovery("Go", "careful"))["result"] == has


def test_every_public_name_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name in integration.__all__:
        assert f"`{name}" in text or f"{name}(" in text, name
        assert getattr(integration, name).__doc__
