"""The code in docs/claude-agent.md and docs/other-frameworks.md runs."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT


def blocks(page: str, kind: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL)


def test_claudes_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claude_agent_sdk = pytest.importorskip("claude_agent_sdk")
    from tests.support.fake_claude import FakeClaude

    monkeypatch.chdir(tmp_path)
    asked, query = {"name": "ada"}, claude_agent_sdk.query
    fake = FakeClaude(
        tmp_path,
        [[("mcp__mail__look_up", asked)], [("mcp__mail__send_mail", {"to": "ada"})]],
    )
    monkeypatch.setattr(claude_agent_sdk, "query", lambda **given: query(**given, transport=fake))
    names: dict[str, Any] = {}
    (code,) = blocks("claude-agent.md", "python")
    exec(compile(code, "claude-agent.md", "exec"), names)  # noqa: S102 - our own page
    assert asyncio.run(names["ask"]("write to ada")) == "s"
    assert fake.seen == ["ada@example.org", "sent to ada"]


def test_every_public_name_is_on_claudes_page() -> None:
    pytest.importorskip("claude_agent_sdk")
    from recovery.integrations import claude_agent

    text = (ROOT / "docs/claude-agent.md").read_text(encoding="utf-8")
    for name in {*claude_agent.__all__} - {"READ_ONLY"}:
        assert name in text, name


def test_tools_that_record_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("other-frameworks.md", "python")
    for _ in range(2):
        exec(compile(code, "other-frameworks.md", "exec"), {"__name__": "page"})  # noqa: S102
        assert capsys.readouterr().out in blocks("other-frameworks.md", "text")
