"""The code in docs/claude-agent.md and docs/other-frameworks.md runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.pages import blocks, page_text, run_page


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
    (code,) = blocks("claude-agent.md")
    run_page("claude-agent.md", [code], names)
    assert asyncio.run(names["ask"]("write to ada")) == "s"
    assert fake.seen == ["ada@example.org", "sent to ada"]


def test_every_public_name_is_on_claudes_page() -> None:
    pytest.importorskip("claude_agent_sdk")
    from recovery.integrations import claude_agent

    text = page_text("claude-agent.md")
    for name in {*claude_agent.__all__} - {"READ_ONLY"}:
        assert name in text, name


def test_tools_that_record_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("other-frameworks.md")
    for _ in range(2):
        run_page("other-frameworks.md", [code], {"__name__": "page"})
        assert capsys.readouterr().out in blocks("other-frameworks.md", "text")
