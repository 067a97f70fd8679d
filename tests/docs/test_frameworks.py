"""The pages of integrations: their programs run, and all public names are on them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recovery import RecoverableAgent
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


def of_agent_framework(names: dict[str, Any]) -> list[Any]:
    """The agents of its page that its programs do not run."""
    asks: RecoverableAgent[Any] = RecoverableAgent(names["asks"], "runs")
    return [asks, names["recoverable"](names["careful"], "runs")]


def of_google_adk(names: dict[str, Any]) -> list[Any]:
    return [names["seller"], names["recoverable"](names["streaming_app"], "runs")]


@pytest.mark.parametrize("agents", [of_agent_framework, of_google_adk])
def test_the_page_runs(
    agents: Callable[[dict[str, Any]], list[Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    module = agents.__name__.removeprefix("of_")
    integration(module)
    page = PAGES[module]
    monkeypatch.chdir(tmp_path)
    names = run_page(page, blocks(page), {"__name__": "__main__"})
    (said,) = blocks(page, "text")
    assert capsys.readouterr().out == said
    for number, agent in enumerate(agents(names)):
        found = asyncio.run(agent.run_with_recovery("Go", f"run-{number}"))["result"]
        assert found in (said.strip(), [said.strip()] * 2)


PAGES = {
    "agent_framework": "agent-framework.md",
    "anthropic": "providers.md",
    "claude_agent": "claude-agent.md",
    "google_adk": "google-adk.md",
    "langgraph": "langgraph.md",
    "mcp": "providers.md",
    "openai": "providers.md",
    "openai_agents": "openai-agents.md",
    "otel": "opentelemetry.md",
    "pydantic_ai": "pydantic-ai.md",
}


def integration(module: str) -> Any:
    """Its package may be missing here, or be older than it supports."""
    return pytest.importorskip(f"recovery.integrations.{module}", exc_type=ImportError)


@pytest.mark.parametrize("module", PAGES)
def test_every_public_name_is_on_its_page_and_has_a_docstring(module: str) -> None:
    public = integration(module)
    text = page_text(PAGES[module])
    for name in {*public.__all__} - {"READ_ONLY", "SpanSource"}:
        assert re.search(rf"\b{name}\b", text), name
        assert getattr(public, name).__doc__, name


@pytest.mark.parametrize("page", sorted({*PAGES.values(), "langgraph-tools.md"}))
def test_a_program_of_a_page_survives_its_process(page: str) -> None:
    """A stranger kills it, and resumes it by the command, which imports it."""
    for code in blocks(page):
        assert "CheckpointStore()" not in code, "the runs are in memory"
        if "RecoverableAgent(" in code or "recoverable(" in code:
            assert not re.search(r"^\S.*run_with_recovery", code, re.M), (
                "importing it executes a run"
            )


def test_tools_that_record_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("other-frameworks.md")
    for _ in range(2):
        run_page("other-frameworks.md", [code], {"__name__": "page"})
        assert capsys.readouterr().out in blocks("other-frameworks.md", "text")
